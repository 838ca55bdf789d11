"""Chains of multiply-adds in registers: what the arithmetic units can do when nothing else is asked of a GPU."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of, words
from .rounding import DTYPES, Doubles, encode, fused, nearest, unit
from .sizing import capability, fitting, flop_per_s, multiple
from .work import Array, Buffer, Expected, Facts, Kernel, Launch, Output, Unfit, Work, unchanging

PERIOD = 256
"""Threads after which the inputs repeat, as in fma.cu."""

ROUNDS = 2048
BLOCK = 256

WAVE = 24
"""Blocks for each multiprocessor are a multiple of this: whole waves, whether 4, 6, 8 or 12 of them run at a time."""

PAIRS = {"fp16": 12, "bf16": 12}
"""Points in each thread, where not 8. Of twelve, compilers for sm_80 and sm_90 put as many numbers into even registers
as into odd ones; of eight packed ones up to six in ten into even ones, which are then read too slowly."""

FACTOR = 0.5**0.5
"""h of the circle, to be rounded to the precision."""

INTEGER_FACTOR = 0x9E3779B1
"""h of int32: odd, its bits mixed."""

PACKED = {"fp16": 2, "bf16": 2}
"""Numbers in a 32-bit word, where more than one."""

SINCE = {"fp16": (6, 0), "bf16": (8, 0)}
"""Compute capability from which a precision has vector multiply-adds at full rate."""

ACTIVITY = {"fp64": 1.0, "fp32": 0.9, "fp16": 0.9, "bf16": 0.9, "int32": 0.7}


def numbers_per_thread(precision: str) -> int:
    return _pairs(precision) * 2 * PACKED.get(precision, 1)


def _pairs(precision: str) -> int:
    return PAIRS.get(precision, 8)


def chain_buffers(precision: str, threads: int) -> tuple[Buffer, ...]:
    """The buffers start and out for the chains of a number of threads."""
    dtype, points = DTYPES[precision], PERIOD * numbers_per_thread(precision)
    says = "integers" if precision == "int32" else "uniform in [-1, 1)"
    return (
        Buffer("start", dtype, points, Array(says, partial(_stored, precision))),
        Buffer("out", dtype, threads * numbers_per_thread(precision)),
    )


def chain_launch(precision: str, blocks: int, block: int, rounds: int, times: int = 1) -> Launch:
    value = {"fp64": "double", "fp32": "float"}.get(precision, "word")
    ahead, back = (_literal(factor, precision) for factor in _factors(precision))
    defines = (
        f"VALUE={value}",
        f"FUSED=fused_{precision}",
        f"PAIRS={_pairs(precision)}",
        f"AHEAD={ahead}",
        f"BACK={back}",
    )
    args = ("start", "out", np.int32(rounds))
    return Launch("fma.cu", "chains", (blocks, 1, 1), (block, 1, 1), args, defines, times)


def chain_flop(precision: str, threads: int, rounds: int) -> int:
    """Two for each multiply-add: 2 · threads · numbers per thread · rounds."""
    return 2 * threads * numbers_per_thread(precision) * rounds


def chain_output(precision: str, threads: int, rounds: int) -> Output:
    return Output("out", unchanging(partial(_expect, precision, threads, rounds)), _DERIVATIONS.get(precision, _EXACT))


def build(facts: Facts, *, precision: str, rounds: int = ROUNDS, blocks: int | None = None) -> Work | Unfit:
    """FLOP: 2 · blocks · 256 threads · 16 numbers (48 packed ones) · rounds. Nothing goes over memory but the ends.

    `blocks`: of 256 threads; by default a multiple of 24 for each multiprocessor that takes about 6 ms.
    For int32 the operations are integer ones and are counted as `flop` too.
    """
    since = SINCE.get(precision, (0, 0))
    if facts.capability < since:
        needed = f"{since[0]}.{since[1]}"
        return Unfit(f"{precision} multiply-adds need compute capability {needed}; this GPU has {capability(facts)}")
    rounds = multiple(rounds, 16)
    if blocks is None:
        wave = chain_flop(precision, WAVE * facts.sms * BLOCK, rounds)
        blocks = WAVE * facts.sms * max(1, round(6e-3 * flop_per_s(facts, precision) / wave))
    threads = blocks * BLOCK
    work = Work(
        kernel=f"fma-{precision}",
        precision=precision,
        buffers=chain_buffers(precision, threads),
        turns=((chain_launch(precision, blocks, BLOCK, rounds),),),
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


def _stored(precision: str, seed: int) -> NDArray[Any]:
    values = _start(precision, seed)
    return values if values.dtype == np.uint32 else encode(values, precision)


def _start(precision: str, seed: int) -> NDArray[Any]:
    """One period of the points: uint32 for int32, else float64 numbers that the precision holds."""
    count = PERIOD * numbers_per_thread(precision)
    if precision == "int32":
        return words(seed, "start", count)
    return nearest(stream_of(seed, "start").uniform(-1.0, 1.0, count), precision)


def _factors(precision: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """h and -h, each an array of one: uint32 for int32, else a float64 number that the precision holds."""
    if precision == "int32":
        ahead = np.array([INTEGER_FACTOR], np.uint32)
        return ahead, np.uint32(0) - ahead
    factor = nearest(np.array([FACTOR]), precision)
    return factor, -factor


def _literal(factor: NDArray[Any], precision: str) -> str:
    """A factor in CUDA C: a packed one as the word that holds it twice."""
    if precision == "int32":
        return f"0x{int(factor[0]):08x}u"
    if precision in PACKED:
        bits = encode(factor, precision).view(np.uint16)
        return f"0x{2 * f'{int(bits[0]):04x}'}u"
    return repr(float(factor[0])) + ("f" if precision == "fp32" else "")


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
    """All points after a number of rounds, (2 · pairs, PERIOD · packed), and the error bound of each pair."""
    pairs, row = _pairs(precision), PERIOD * PACKED.get(precision, 1)
    points = _start(precision, seed).reshape(pairs, 2, row)
    h, g = (np.full((pairs, row), factor[0]) for factor in _factors(precision))
    x, y = np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1])
    roamed = np.zeros((pairs, row))
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
    values = np.stack([x, y], axis=1).astype(np.float64).reshape(2 * pairs, row)
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
        says=f"{2 * _pairs(precision)} chains of {precision} multiply-adds in each thread's registers",
        build=partial(build, precision=precision),
        needs=needs,
    )


FP64, FP32, INT32 = _kernel("fp64"), _kernel("fp32"), _kernel("int32")
FP16 = _kernel("fp16", "compute capability 6.0")
BF16 = _kernel("bf16", "compute capability 8.0")
