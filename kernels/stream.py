"""The four kernels of STREAM in fp64: what the device memory delivers."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from .inputs import content, numbers
from .rounding import unit
from .sizing import bytes_per_s, far_beyond_l2, fitting, room
from .work import Buffer, Expected, Facts, Kernel, Launch, Output, Unfit, Work, unchanging

PERIOD = 4096
SCALAR = 3.0
BLOCK = 256
PER_BLOCK = BLOCK * 4 * 2
"""Numbers that a block moves: 4 loads of 2 by each thread, as in stream.cu."""

TILE = PER_BLOCK * 2
"""Lengths are multiples of this: of whole blocks and whole periods."""

ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}
OPERATIONS = {"copy": 0, "scale": 1, "add": 1, "triad": 2}
"""FLOP per number."""


def build(facts: Facts, *, operation: str, count: int | None = None) -> Work | Unfit:
    """Bytes: 8 · count · 2 (copy, scale) or 3 (add, triad). FLOP: 0, 1, 1 or 2 · count.

    `count`: numbers in an array; by default so many that a repetition takes about 4 ms, each array is more than four
    times the L2 cache, and all fit the memory.
    """
    arrays = ARRAYS[operation]
    if count is None:
        wanted = max(far_beyond_l2(facts), bytes_per_s(facts) * 4e-3 / arrays)
        count = int(min(wanted, room(facts) / arrays) / 8)
    count = count // TILE * TILE
    if count == 0:
        return Unfit(f"an array needs at least {TILE} numbers, {TILE * 8 * arrays >> 10} KiB in all")
    buffers, step, output = moved(operation, count)
    work = Work(
        kernel=f"stream-{operation}",
        precision="fp64",
        buffers=buffers,
        turns=((step,),),
        flop=OPERATIONS[operation] * count,
        bytes=8 * count * arrays,
        outputs=(output,),
        parameters={"count": count},
        activity=0.2,
    )
    return fitting(facts, work)


def moved(operation: str, count: int, suffix: str = "") -> tuple[tuple[Buffer, ...], Launch, Output]:
    """The buffers of an operation (a, b, out with a suffix), its launch and what comes out."""
    a, b, out = "a" + suffix, "b" + suffix, "out" + suffix
    names = (a, b) if ARRAYS[operation] == 3 else (a,)
    buffers = tuple(Buffer(name, "float64", count, content(name, PERIOD, "uniform", "fp64")) for name in names)
    scalar = (np.float64(SCALAR),) if operation in ("scale", "triad") else ()
    launch = Launch(
        "stream.cu", f"stream_{operation}", (count // PER_BLOCK, 1, 1), (BLOCK, 1, 1), (*names, out, *scalar)
    )
    derivation = _TRIAD if operation == "triad" else "none: one correctly rounded operation, or none, per number"
    return (
        (*buffers, Buffer(out, "float64", count)),
        launch,
        Output(out, unchanging(partial(_expect, operation, a, b)), derivation),
    )


_TRIAD = "the GPU rounds once; the reference rounds the product and the sum, each by at most 2^-53 of its result"


@lru_cache(maxsize=16)
def _expect(operation: str, first: str, second: str, seed: int) -> Expected:
    a = numbers(seed, first, PERIOD, "uniform", "fp64")
    b = numbers(seed, second, PERIOD, "uniform", "fp64")
    values = {"copy": a, "scale": SCALAR * a, "add": a + b, "triad": a + SCALAR * b}[operation].reshape(1, -1)
    tolerance = np.zeros_like(values)
    if operation == "triad":
        tolerance = unit("fp64") * (2 * np.abs(values) + np.abs(SCALAR * b).reshape(1, -1)) * (1 + unit("fp32"))
    return Expected(PERIOD, values, tolerance)


def _kernel(operation: str, formula: str) -> Kernel:
    return Kernel(
        name=f"stream-{operation}",
        version="1",
        stresses="device memory",
        says=f"{formula} in fp64 over arrays far larger than the caches",
        build=partial(build, operation=operation),
    )


COPY = _kernel("copy", "c = a")
SCALE = _kernel("scale", "c = 3 a")
ADD = _kernel("add", "c = a + b")
TRIAD = _kernel("triad", "c = a + 3 b")
