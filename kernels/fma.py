"""Chains of multiply-adds in registers: what the arithmetic units can do when nothing else is asked of a GPU.

A multiply-add is rounded once, to nearest (IEEE 754), so that every bit of a chain is known. Each thread compares its
numbers with those, and counts what is wrong by multiprocessor: nothing is written back.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import stream_of, words
from .rounding import DTYPES, encode, fused, nearest
from .sizing import fitting, flop_per_s, multiple, too_old
from .work import COUNTERS, Array, Buffer, Facts, Launch, Unfit, Work

PERIOD = 256
"""Threads after which the inputs repeat, as in fma.cu."""

ROUNDS = 2048
"""Of the chains: fewer where a wave of blocks would take longer than `SECONDS`."""

SECONDS = 6e-3
"""About how long a repetition takes."""

BLOCK = 256

WAVE = 24
"""Blocks for each multiprocessor are a multiple of this: whole waves, whether 4, 6, 8 or 12 of them run at a time."""

PAIRS = {"fp64": 6, "fp16": 12}
"""Points in each thread, where not 8. In fp64 more would take the registers with which six blocks run at a time on a
multiprocessor. Of twelve, compilers for sm_80 and sm_90 put as many numbers into even registers
as into odd ones; of eight packed ones up to six in ten into even ones, which are then read too slowly."""

FACTOR = 0.5**0.5
"""h of the circle, to be rounded to the precision."""

INTEGER_FACTOR = 0x9E3779B1
"""h of int32: odd, its bits mixed."""

PACKED = {"fp16": 2, "bf16": 2}
"""Numbers in a 32-bit word, where more than one."""

SINCE = {"fp16": (6, 0)}
"""Compute capability from which a precision has vector multiply-adds at full rate."""

ACTIVITY = {"fp64": 1.0, "fp32": 0.9, "fp16": 0.9, "int32": 0.7}


def numbers_per_thread(precision: str) -> int:
    return _pairs(precision) * 2 * PACKED.get(precision, 1)


def _pairs(precision: str) -> int:
    return PAIRS.get(precision, 8)


def chain_buffers(precision: str, rounds: int) -> tuple[Buffer, ...]:
    """The points that chains start from, what so many rounds make of them, and the counters."""
    dtype, points = DTYPES[precision], PERIOD * numbers_per_thread(precision)
    says = "integers" if precision == "int32" else "uniform in [-1, 1)"
    return (
        Buffer("start", dtype, points, Array(says, partial(_stored, precision))),
        Buffer("expected", dtype, points, Array("what comes out", partial(_results, precision, rounds))),
        COUNTERS,
    )


def chain_launch(precision: str, blocks: int, block: int, rounds: int, times: int = 1) -> Launch:
    value = {"fp64": "double", "fp32": "float"}.get(precision, "word")
    ahead, back = factor_literals(precision)
    defines = (
        f"VALUE={value}",
        f"FUSED=fused_{precision}",
        f"PAIRS={_pairs(precision)}",
        f"AHEAD={ahead}",
        f"BACK={back}",
    )
    args = ("start", "expected", "faults", np.int32(rounds))
    return Launch("fma.cu", "chains", (blocks, 1, 1), (block, 1, 1), args, defines, times)


def chain_flop(precision: str, threads: int, rounds: int) -> int:
    """Two for each multiply-add: 2 · threads · numbers per thread · rounds."""
    return 2 * threads * numbers_per_thread(precision) * rounds


def chain_compared(precision: str, threads: int) -> int:
    """Comparisons of a launch: of packed numbers, two at once."""
    return 2 * threads * _pairs(precision)


def build(facts: Facts, *, precision: str, rounds: int | None = None, blocks: int | None = None) -> Work | Unfit:
    """FLOP: 2 · blocks · 256 threads · 16 numbers (12 in fp64, 48 packed ones) · rounds. Only the ends go over memory.

    `blocks`: of 256 threads; by default a multiple of 24 for each multiprocessor that takes about 6 ms. `rounds`: by
    default 2048, or fewer where the units are so slow that a wave of blocks would take longer.
    For int32 the operations are integer ones and are counted as `flop` too.
    """
    if unfit := too_old(facts, f"{precision} multiply-adds", SINCE.get(precision, (0, 0))):
        return unfit
    wave, operations = WAVE * facts.sms, SECONDS * flop_per_s(facts, precision)
    rounds = multiple(rounds or min(ROUNDS, operations / chain_flop(precision, wave * BLOCK, 1)), 16)
    if blocks is None:
        blocks = wave * max(1, round(operations / chain_flop(precision, wave * BLOCK, rounds)))
    threads = blocks * BLOCK
    work = Work(
        kernel=f"fma-{precision}",
        precision=precision,
        buffers=chain_buffers(precision, rounds),
        turns=((chain_launch(precision, blocks, BLOCK, rounds),),),
        flop=chain_flop(precision, threads, rounds),
        path="none",
        parameters={"blocks": blocks, "threads_per_block": BLOCK, "rounds": rounds},
        activity=ACTIVITY[precision],
        compared=chain_compared(precision, threads),
    )
    return fitting(facts, work)


def _stored(precision: str, seed: int) -> NDArray[Any]:
    return stored(start_points(precision, _pairs(precision), seed), precision)


def stored(points: NDArray[Any], precision: str) -> NDArray[Any]:
    """Points as they lie in memory (`rounding.DTYPES`)."""
    return points if points.dtype == np.uint32 else encode(points, precision)


def start_points(precision: str, pairs: int, seed: int) -> NDArray[Any]:
    """One period of so many points in each thread: uint32 for int32, else float64 numbers that the precision holds.

    Shape (2 pairs · 256 threads · numbers in a word,): number after number, each of all threads.
    """
    count = PERIOD * 2 * pairs * PACKED.get(precision, 1)
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


def factor_literals(precision: str) -> tuple[str, str]:
    """h and -h in CUDA C."""
    ahead, back = (_literal(factor, precision) for factor in _factors(precision))
    return ahead, back


def _literal(factor: NDArray[Any], precision: str) -> str:
    """A factor in CUDA C: a packed one as the word that holds it twice."""
    if precision == "int32":
        return f"0x{int(factor[0]):08x}u"
    if precision in PACKED:
        bits = encode(factor, precision).view(np.uint16)
        return f"0x{2 * f'{int(bits[0]):04x}'}u"
    return repr(float(factor[0])) + ("f" if precision == "fp32" else "")


@lru_cache(maxsize=16)
def _results(precision: str, rounds: int, seed: int) -> NDArray[Any]:
    return stored(gone_round(start_points(precision, _pairs(precision), seed), precision, rounds), precision)


def gone_round(points: NDArray[Any], precision: str, rounds: int) -> NDArray[Any]:
    """Points (as of `start_points`) after a number of rounds."""
    row = PERIOD * PACKED.get(precision, 1)
    pairs = points.size // (2 * row)
    points = points.reshape(pairs, 2, row)
    ahead, back = (np.full((pairs, row), factor[0]) for factor in _factors(precision))
    x, y = np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1])
    for _ in range(rounds):
        if precision == "int32":
            x = ahead * y + x
            y = back * x + y
        else:
            x = fused(ahead, y, x, precision)
            y = fused(back, x, y, precision)
    return np.stack([x, y], axis=1).reshape(-1)
