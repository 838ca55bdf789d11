"""Chains of multiply-adds in registers: what the arithmetic units can do when nothing else is asked of a GPU."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of, words
from .rounding import DTYPES, Doubles, encode, fused, nearest, unit
from .sizing import capability, fitting, flop_per_s, multiple
from .work import Buffer, Content, Expected, Facts, Kernel, Launch, Output, Unfit, Work

PAIRS = 8
PERIOD = 256
"""Threads after which the inputs repeat; both as in fma.cu."""

ROUNDS = 2048
BLOCK = 256
PACKED = {"fp16": 2, "bf16": 2}
"""Numbers in a 32-bit word, where more than one."""

SINCE = {"fp16": (6, 0), "bf16": (8, 0)}
"""Compute capability from which a precision has vector multiply-adds at full rate."""

ACTIVITY = {"fp64": 1.0, "fp32": 0.9, "fp16": 0.9, "bf16": 0.9, "int32": 0.7}


def numbers_per_thread(precision: str) -> int:
    return PAIRS * 2 * PACKED.get(precision, 1)


def chain_buffers(precision: str, threads: int) -> tuple[Buffer, ...]:
    """h, g, start and out of so many threads' chains."""
    dtype, packed = DTYPES[precision], PACKED.get(precision, 1)
    factors, points = PERIOD * packed, PERIOD * numbers_per_thread(precision)
    whole = precision == "int32"
    return (
        Buffer("h", dtype, factors, _content("h", precision, "odd integers" if whole else "uniform in [1/4, 1)")),
        Buffer("g", dtype, factors, _content("g", precision, "the integers of h, negated" if whole else "-h")),
        Buffer("start", dtype, points, _content("start", precision, "integers" if whole else "uniform in [-1, 1)")),
        Buffer("out", dtype, threads * numbers_per_thread(precision)),
    )


def chain_launch(precision: str, blocks: int, block: int, rounds: int, times: int = 1) -> Launch:
    value = {"fp64": "double", "fp32": "float"}.get(precision, "word")
    defines = (f"VALUE={value}", f"FUSED=fused_{precision}")
    args = ("h", "g", "start", "out", np.int32(rounds))
    return Launch("fma.cu", "chains", (blocks, 1, 1), (block, 1, 1), args, defines, times)


def chain_flop(precision: str, threads: int, rounds: int) -> int:
    """Two for each multiply-add: 2 · threads · numbers per thread · rounds."""
    return 2 * threads * numbers_per_thread(precision) * rounds


def chain_output(precision: str, threads: int, rounds: int) -> Output:
    return Output("out", partial(_expect, precision, threads, rounds), _DERIVATIONS.get(precision, _EXACT))


def build(facts: Facts, *, precision: str, rounds: int = ROUNDS, blocks: int | None = None) -> Work | Unfit:
    """FLOP: 2 · blocks · 256 threads · 16 numbers (32 packed ones) · rounds. Nothing goes over memory but the ends.

    `blocks`: of 256 threads; by default waves of eight for each multiprocessor that take about 6 ms.
    For int32 the operations are integer ones and are counted as `flop` too.
    """
    since = SINCE.get(precision, (0, 0))
    if facts.capability < since:
        needed = f"{since[0]}.{since[1]}"
        return Unfit(f"{precision} multiply-adds need compute capability {needed}; this GPU has {capability(facts)}")
    rounds = multiple(rounds, 16)
    if blocks is None:
        wave = chain_flop(precision, 8 * facts.sms * BLOCK, rounds)
        blocks = 8 * facts.sms * max(1, round(6e-3 * flop_per_s(facts, precision) / wave))
    threads = blocks * BLOCK
    work = Work(
        kernel=f"fma-{precision}",
        precision=precision,
        buffers=chain_buffers(precision, threads),
        steps=(chain_launch(precision, blocks, BLOCK, rounds),),
        flop=chain_flop(precision, threads, rounds),
        bytes=0,
        outputs=(chain_output(precision, threads, rounds),),
        path="none",
        parameters={"blocks": blocks, "threads_per_block": BLOCK, "rounds": rounds},
        activity=ACTIVITY[precision],
    )
    return fitting(facts, work)


_EXACT = (
    "none: a multiply-add is rounded once, to nearest (IEEE 754), so that every bit of the recurrence is known; "
    "the reference rounds to odd in float64 before it rounds to the precision"
)
_DERIVATIONS = {
    "int32": "none: integers wrap around modulo 2^32",
    "fp64": "both sides round each step by at most 2^-53 of its result, and the recurrence, which keeps a quadratic "
    "form, grows an error by at most sqrt((2+h)/(2-h)): the sum of that over all steps, in float64 of the reference "
    "(which rounds product and sum) and on the GPU",
}


def _content(name: str, precision: str, says: str) -> Content:
    return Content(says, partial(_stored, name, precision))


def _stored(name: str, precision: str, seed: int) -> NDArray[Any]:
    values = _values(name, precision, seed)
    return values if values.dtype == np.uint32 else encode(values, precision)


def _values(name: str, precision: str, seed: int) -> NDArray[Any]:
    """One period of an input: uint32 for int32, else float64 numbers that the precision holds."""
    packed = PACKED.get(precision, 1)
    count = PERIOD * (numbers_per_thread(precision) if name == "start" else packed)
    if precision == "int32":
        drawn = words(seed, "start" if name == "start" else "h", count)
        if name == "start":
            return drawn
        odd = drawn | np.uint32(1)
        return odd if name == "h" else np.uint32(0) - odd
    if name == "start":
        return nearest(stream_of(seed, name).uniform(-1.0, 1.0, count), precision)
    factor = nearest(stream_of(seed, "h").uniform(0.25, 0.999, count), precision)
    return factor if name == "h" else -factor


@lru_cache(maxsize=16)
def _expect(precision: str, threads: int, rounds: int, seed: int) -> Expected:
    """The recurrence of one period of threads: a row for each of a thread's words, a column for each thread."""
    points, factors = _recurrence(precision, rounds, seed)
    tolerance = np.zeros_like(points)
    if precision == "fp64":
        tolerance = np.repeat(factors, 2, axis=0)
    return Expected(threads * PACKED.get(precision, 1), points, tolerance)


@lru_cache(maxsize=16)
def _recurrence(precision: str, rounds: int, seed: int) -> tuple[Doubles, Doubles]:
    """All points after so many rounds, (2 PAIRS, PERIOD · packed), and the bound of the error of each pair."""
    row = PERIOD * PACKED.get(precision, 1)
    points = _values("start", precision, seed).reshape(PAIRS, 2, row)
    h = np.ascontiguousarray(np.broadcast_to(_values("h", precision, seed), (PAIRS, row)))
    g = np.ascontiguousarray(np.broadcast_to(_values("g", precision, seed), (PAIRS, row)))
    x, y = np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1])
    roamed = np.zeros((PAIRS, row))
    for _ in range(rounds):
        if precision == "int32":
            x = h * y + x
            y = g * x + y
        elif precision == "fp64":
            x = h * y + x
            y = g * x + y
            roamed += np.abs(x) + np.abs(y)
        else:
            x = fused(h, y, x, precision)
            y = fused(g, x, y, precision)
    values = np.stack([x, y], axis=1).astype(np.float64).reshape(2 * PAIRS, row)
    return values, _bound(h, roamed) if precision == "fp64" else roamed


def _bound(h: Doubles, roamed: Doubles) -> Doubles:
    """How far rounding can take a point of the circle map in fp64: on the GPU once a step, in the reference twice.

    `roamed` is the sum of |x| + |y| over all steps. The product of the reference is at most |h| times the other
    coordinate, so its rounding errors are below (1 + h) of the GPU's.
    """
    growth = np.sqrt((2 + h) / (2 - h))
    return growth * unit("fp64") * roamed * (1 + 1 + h)


def _kernel(precision: str, needs: str = "") -> Kernel:
    return Kernel(
        name=f"fma-{precision}",
        version="1",
        stresses=f"{precision} vector units",
        says=f"16 chains of {precision} multiply-adds in each thread's registers",
        build=partial(build, precision=precision),
        needs=needs,
    )


FP64, FP32, INT32 = _kernel("fp64"), _kernel("fp32"), _kernel("int32")
FP16 = _kernel("fp16", "compute capability 6.0")
BF16 = _kernel("bf16", "compute capability 8.0")
