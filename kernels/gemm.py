"""Matrix products through the vendor's library, in every precision that tensor cores or vector units have."""

from __future__ import annotations

from functools import lru_cache, partial
from math import sqrt

import numpy as np

from .checking import alike
from .inputs import SWITCHING, lane_values, lanes
from .rounding import DTYPES, Doubles, unit
from .sizing import bytes_per_s, fitting, flop_per_s, multiple, room, too_old
from .work import COUNTERS, Buffer, Expected, Facts, Gemm, Output, Unfit, Work, WorkPart, unchanging

PERIOD = 64
"""Different rows of A, and columns of B, before they are scaled: all of C follows from the products of these."""

SLOTS = 4
"""Results that are kept in a ring before they are compared with each other: more than a repeat of 20 ms has."""

RING_SHARE = 0.05
"""Of the memory that the ring takes at most, where the size is chosen here."""

AUDIT_SHARE = 0.009
"""Of the time of products that comparing their results takes at most, by the peak rates."""

SINCE = {"fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
"""Compute capability from which a precision has tensor cores."""

LONGEST = 65536
"""Inner dimension at most: so far every partial sum of uniform fp8 inputs fits the 14 bits that Hopper adds with."""

TRUNCATED = 2.0**-23
"""Unit of what tensor cores cut off: they add a block of products and the sum so far to fp32, towards zero.
Source: Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ Comput. Sci. 7 (2021)."""

SHORTEST_BLOCK = 4
"""Products that a tensor core adds at once, at least: V100."""

COARSE = (2.0**-13, 32)
"""The two of fp8, which Hopper adds with 14 bits: DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.3."""

DEVIATIONS = 8.0
"""Standard deviations of a sum of independent errors that are allowed for: beyond lies 1 in 10^15."""

WALK = 6.0
"""Root mean square of the partial sums of products with random signs, at most, in roots of the sum of their squares.
Its square is the integral of a squared random walk, which exceeds x with a probability of about exp(-pi² x / 8)."""

PLAIN = ("fp64", "fp32")
"""Precisions of which B is k x n, as matrices mostly lie; where tensor cores read 16 bits or less, n x k is at least as
fast, and their own form."""

OUT = {"fp64": "fp64", "fp32": "fp32", "tf32": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
"""What C is stored in."""


ALPHA = {"fp16": 2.0**-6}
"""What a product is multiplied by, where not 1: scaled rows and columns would exceed the range of fp16."""


def build(
    facts: Facts,
    *,
    precision: str,
    n: int | None = None,
    k: int | None = None,
    input: str = "uniform",  # noqa: A002 - the name in conditions and on the command line
) -> Work | Unfit:
    """C = +-A B, with A and C of n rows. FLOP: 2 n² k. Bytes: A, B and C once each.

    `n`, `k`: by default such that a product takes about 8 ms, and k so large that to read C again takes at most 1 %
    of that; `input`: a name of `inputs.DISTRIBUTIONS`.
    """
    if unfit := too_old(facts, f"{precision} tensor cores", SINCE.get(precision, (0, 0))):
        return unfit
    n, k = shape(facts, precision, SLOTS, seconds=8e-3, n=n, k=k)
    if n % PERIOD:
        return Unfit(f"a size of {n} is not a multiple of {PERIOD}, the period of the inputs")
    ring = product(facts, precision, n, k, distribution=input, slots=SLOTS)
    work = Work(
        kernel=f"gemm-{precision}",
        precision=precision,
        buffers=(*ring.buffers, COUNTERS),
        turns=tuple((step,) for step in ring.turns),
        flop=2 * n * n * k,
        bytes=sum(buffer.bytes for buffer in ring.buffers[:2]) + ring.buffers[2].bytes // SLOTS,
        outputs=ring.outputs,
        parameters={"m": n, "n": n, "k": k, "input": input, "ring_bytes": ring.buffers[2].bytes},
        activity=SWITCHING[input],
        lap=SLOTS,
        audit=ring.audit,
        compared=ring.compared,
    )
    return fitting(facts, work)


def shape(
    facts: Facts, precision: str, slots: int, *, seconds: float, n: int | None = None, k: int | None = None
) -> tuple[int, int]:
    """n and k, where they are not chosen: multiples of 256 (64 where small) with which a product takes about so long.

    k is as large as n at least (up to 8192), and so large that a C is read again within `AUDIT_SHARE` of the time;
    n is such that the matrices fit the memory, and `slots` of C its `RING_SHARE`.
    """
    products = flop_per_s(facts, precision, matrix=True) * seconds / 2
    stored, result = (np.dtype(DTYPES[name]).itemsize for name in (precision, OUT[precision]))
    step = 256 if products > 2048**3 else PERIOD
    by_audit = products * result / (AUDIT_SHARE * seconds * bytes_per_s(facts))
    length = k or min(max(by_audit, min(products ** (1 / 3), 8192)), LONGEST)
    if n is None:
        least = min((products / length) ** 0.5, room(facts) / 3 / (length * stored))
        n = multiple(min(least, (RING_SHARE * facts.memory_bytes / slots / result) ** 0.5 - step), step)
        if n.bit_count() == 1:  # no bit of an address may lead from a slot to the same place of another one
            n = n - step if n > step else n + step
    return n, k or multiple(length, step)


def product(facts: Facts, precision: str, n: int, k: int, *, distribution: str, slots: int) -> WorkPart:
    """A product of n x k and k x n numbers, whose results go round in a ring: buffers a, b, and c, which has all slots.

    The inputs are `work.Lanes`, so that C has a scale by row and column. The turns go round once with one sign, then
    with the other: what stands in a slot from the lap before has the wrong one. The slots of a lap are equal.
    """
    dtype, plain, size = DTYPES[precision], precision in PLAIN, n * n
    a, b = (lanes(distribution, precision, PERIOD, k, across=across) for across in (False, plain))
    c = Buffer("c", DTYPES[OUT[precision]], slots * size)
    alpha = ALPHA.get(precision, 1.0)
    turns, outputs = [], []
    for turn in range(2 * slots):
        sign, at = alpha if turn < slots else -alpha, turn % slots * size
        turns.append(Gemm(precision, n, n, k, "a", "b", "c", plain=plain, alpha=sign, c_at=at))
        expect = unchanging(partial(_expect, precision, n, k, distribution, sign))
        outputs.append(Output("c", expect, turn, at=at, count=size))
    return WorkPart(
        buffers=(Buffer("a", dtype, n * k, a), Buffer("b", dtype, n * k, b), c),
        turns=tuple(turns),
        outputs=tuple(outputs),
        audit=(alike(c, slots, facts.sms),),
        compared=c.bytes // slots // 4,
    )


def is_exact(precision: str, distribution: str) -> bool:
    """Whether all products and partial sums are numbers that the accumulator holds."""
    return distribution in ("small-integers", "zeros") or (distribution == "uniform" and precision == "fp8")


def accumulation(precision: str, k: int, root: Doubles) -> Doubles:
    """Bound of the error of a sum of k products, `root` being the root of the sum of their squares.

    Products have random signs, so that in whatever order they are added, the partial sums are at most `WALK` roots in
    quadratic mean. Rounding to nearest adds independent errors of one unit of these; tensor cores cut off towards zero
    after each block of products.
    """
    independent = DEVIATIONS * sqrt(k)
    if precision in ("fp64", "fp32"):
        return independent * unit(precision) * WALK * root
    cut, block = COARSE if precision == "fp8" else (TRUNCATED, SHORTEST_BLOCK)
    return (k / block + independent) * cut * WALK * root


@lru_cache(maxsize=16)
def _expect(precision: str, n: int, k: int, distribution: str, alpha: float, seed: int) -> Expected:
    values, tolerance = _lanes_product(precision, k, distribution, seed)
    return Expected(n, alpha * values, abs(alpha) * tolerance, scaled=True)


@lru_cache(maxsize=16)
def _lanes_product(precision: str, k: int, distribution: str, seed: int) -> tuple[Doubles, Doubles]:
    """The products of the lanes of A and B, and their tolerances. Shape (PERIOD, PERIOD) each."""
    a, b = (lane_values(seed, name, lanes(distribution, precision, PERIOD, k)) for name in "ab")
    c = a @ b.T
    out = OUT[precision]
    tolerance = np.zeros_like(c)
    if not is_exact(precision, distribution):
        tolerance = accumulation(precision, k, np.sqrt((a * a) @ (b * b).T))
        if precision == "fp64":
            tolerance *= 2  # the reference is rounded as the GPU is
    if unit(out) > unit("fp32"):
        tolerance += 2 * unit(out) * (np.abs(c) + tolerance)  # to nearest or towards zero
    return c, tolerance
