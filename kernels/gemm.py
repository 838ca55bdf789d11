"""Matrix products through the vendor's library, in every precision that tensor cores or vector units have."""

from __future__ import annotations

from functools import lru_cache, partial
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import SWITCHING, content, numbers
from .rounding import DTYPES, Doubles, unit
from .sizing import capability, fitting, flop_per_s, multiple, room
from .work import Array, Buffer, Expected, Facts, Gemm, Kernel, Output, Unfit, Work, unchanging

PERIOD = 64
"""Rows of A, and of B, after which they repeat: C repeats in both directions, and all of it is compared."""

SINCE = {"fp16": (7, 0), "tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}
"""Compute capability from which a precision has tensor cores."""

LONGEST = {"fp8": 4096}
"""Inner dimension at most: up to here every partial sum of fp8 inputs fits the 14 bits that Hopper adds them with."""

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


def build(
    facts: Facts,
    *,
    precision: str,
    n: int | None = None,
    k: int | None = None,
    input: str = "uniform",  # noqa: A002 - the name in conditions and on the command line
) -> Work | Unfit:
    """C = A B, with A and C of n rows. FLOP: 2 n² k. Bytes: A, B and C once each.

    `n`, `k`: by default equal, chosen so that a product takes about 8 ms; `input`: a name of `inputs.DISTRIBUTIONS`.
    """
    since = SINCE.get(precision, (0, 0))
    if facts.capability < since:
        needed = f"{since[0]}.{since[1]}"
        return Unfit(f"{precision} tensor cores need compute capability {needed}; this GPU has {capability(facts)}")
    if n is None:
        n = size(facts, precision, seconds=8e-3)
    if k is None:
        k = min(n, LONGEST.get(precision, 8192))
    if n % PERIOD:
        return Unfit(f"a size of {n} is not a multiple of {PERIOD}, the period of the inputs")
    buffers, step, output = product(precision, n, k, input)
    work = Work(
        kernel=f"gemm-{precision}",
        precision=precision,
        buffers=buffers,
        turns=((step,),),
        flop=2 * n * n * k,
        bytes=sum(buffer.bytes for buffer in buffers),
        outputs=(output,),
        parameters={"m": n, "n": n, "k": k, "input": input},
        activity=SWITCHING[input],
    )
    return fitting(facts, work)


def size(facts: Facts, precision: str, *, seconds: float) -> int:
    """The n, a multiple of 256, of a square product that takes about so long and fits the memory."""
    n = (flop_per_s(facts, precision, matrix=True) * seconds / 2) ** (1 / 3)
    if precision in LONGEST and n > LONGEST[precision]:
        n = (flop_per_s(facts, precision, matrix=True) * seconds / 2 / LONGEST[precision]) ** 0.5
    itemsize = np.dtype(DTYPES[precision]).itemsize
    return multiple(min(n, (room(facts) / 3 / max(itemsize, 2)) ** 0.5 - 256, 16384), 256)


def product(precision: str, n: int, k: int, distribution: str) -> tuple[tuple[Buffer, ...], Gemm, Output]:
    """The buffers a, b and c of a product, the step and what comes out."""
    dtype, out, plain = DTYPES[precision], OUT[precision], precision in PLAIN
    columns = content("b", PERIOD * k, distribution, precision)
    buffers = (
        Buffer("a", dtype, n * k, content("a", PERIOD * k, distribution, precision)),
        Buffer("b", dtype, n * k, Array(columns.says, partial(_abreast, columns, n, k)) if plain else columns),
        Buffer("c", DTYPES[out], n * n),
    )
    derivation = _EXACT if is_exact(precision, distribution) else _ROUNDED
    return (
        buffers,
        Gemm(precision, n, n, k, "a", "b", "c", plain=plain),
        Output("c", unchanging(partial(_expect, precision, n, k, distribution)), derivation),
    )


def _abreast(columns: Array, n: int, k: int, seed: int) -> NDArray[Any]:
    """B as k x n: its columns are PERIOD different ones, again and again."""
    rows = np.ascontiguousarray(columns.make(seed).reshape(PERIOD, k).T)
    return np.repeat(rows[:, None, :], n // PERIOD, axis=1).reshape(-1)


def is_exact(precision: str, distribution: str) -> bool:
    """Whether all products and partial sums are numbers that the accumulator holds."""
    return distribution in ("small-integers", "zeros") or (distribution == "uniform" and precision == "fp8")


_EXACT = (
    "the inputs are few-bit numbers whose products and partial sums the accumulator holds exactly; C is rounded once"
)
_ROUNDED = (
    "products have random signs, so that in whatever order the k of them are added, the partial sums are at most 6 "
    "roots of the sum of their squares in quadratic mean; rounding to nearest adds independent errors of unit u to "
    "these: 8 sqrt(k) u 6 roots; tensor cores cut off towards zero (u = 2^-23, in fp8 2^-13) after blocks of 4 (in fp8 "
    "32) products, which adds k / 4 (32) u 6 roots; a C of 16 bits is rounded by 2 units at most"
)


def accumulation(precision: str, k: int, root: Doubles) -> Doubles:
    """Bound of the error of a sum of k products, `root` being the root of the sum of their squares."""
    independent = DEVIATIONS * sqrt(k)
    if precision in ("fp64", "fp32"):
        return independent * unit(precision) * WALK * root
    cut, block = COARSE if precision == "fp8" else (TRUNCATED, SHORTEST_BLOCK)
    return (k / block + independent) * cut * WALK * root


@lru_cache(maxsize=16)
def _expect(precision: str, n: int, k: int, distribution: str, seed: int) -> Expected:
    a = numbers(seed, "a", PERIOD * k, distribution, precision).reshape(PERIOD, k)
    b = numbers(seed, "b", PERIOD * k, distribution, precision).reshape(PERIOD, k)
    c = a @ b.T
    out = OUT[precision]
    tolerance = np.zeros_like(c)
    if not is_exact(precision, distribution):
        tolerance = accumulation(precision, k, np.sqrt((a * a) @ (b * b).T))
        if precision == "fp64":
            tolerance *= 2  # the reference is rounded as the GPU is
    if unit(out) > unit("fp32"):
        tolerance += 2 * unit(out) * (np.abs(c) + tolerance)  # to nearest or towards zero
    return Expected(n, c, tolerance)


def _kernel(precision: str, stresses: str, needs: str = "") -> Kernel:
    return Kernel(
        name=f"gemm-{precision}",
        version="1",
        stresses=stresses,
        says=f"a square {precision} matrix product by cuBLAS",
        build=partial(build, precision=precision),
        needs=needs,
    )


FP64 = _kernel("fp64", "fp64 units, or fp64 tensor cores")
FP32 = _kernel("fp32", "fp32 vector units, registers, shared memory")
TF32 = _kernel("tf32", "tensor cores, tf32", "compute capability 8.0")
FP16 = _kernel("fp16", "tensor cores, fp16", "compute capability 7.0")
BF16 = _kernel("bf16", "tensor cores, bf16", "compute capability 8.0")
FP8 = _kernel("fp8", "tensor cores, fp8", "compute capability 8.9")
