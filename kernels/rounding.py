"""The number formats of GPUs in numpy: rounding to each, their bit patterns, and the correctly rounded multiply-add."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

Doubles = NDArray[np.float64]

SIGNIFICANT_BITS = {"fp64": 53, "fp32": 24, "tf32": 11, "fp16": 11, "bf16": 8, "fp8": 4}
"""Bits of the significand, the implicit one included: IEEE 754, and OCP OFP8 for E4M3."""

_LOWEST = -126
"""Exponent of the smallest normal number of tf32 and bf16, as of fp32."""

DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "uint16",
    "fp8": "uint8",
    "int32": "uint32",
}
"""What a buffer of a precision is stored as."""


def unit(precision: str) -> float:
    """Unit roundoff: the largest relative error of rounding a number to nearest in a precision."""
    return 2.0 ** -SIGNIFICANT_BITS[precision]


def nearest(values: Doubles, precision: str) -> Doubles:
    """`values` rounded to a precision, ties to even, as float64; below the normal range too, and not above it."""
    if precision == "fp64":
        return values
    if precision == "fp32":
        return values.astype(np.float32).astype(np.float64)
    if precision == "fp16":
        return values.astype(np.float16).astype(np.float64)
    if precision == "fp8":
        return _fp8_values()[_fp8_codes(np.abs(values))] * np.where(np.signbit(values), -1.0, 1.0)
    rounded = _cut(values, 53 - SIGNIFICANT_BITS[precision])
    small = np.abs(values) < 2.0**_LOWEST
    if not small.any():
        return rounded
    scale = 2.0 ** (SIGNIFICANT_BITS[precision] - 1 - _LOWEST)
    return np.where(small, np.rint(np.where(small, values, 0.0) * scale) / scale, rounded)


def _cut(values: Doubles, bits: int) -> Doubles:
    """`values` with the last `bits` of the significand rounded away: integer arithmetic on the bit patterns."""
    pattern = np.ascontiguousarray(values).view(np.int64)
    tie = (np.int64(1) << np.int64(bits - 1)) - np.int64(1) + ((pattern >> np.int64(bits)) & np.int64(1))
    return ((pattern + tie) & (np.int64(-1) << np.int64(bits))).view(np.float64)


def encode(values: Doubles, precision: str) -> NDArray[Any]:
    """`values` rounded to a precision, as it is stored (`DTYPES`)."""
    if precision == "bf16":
        pattern = nearest(values, "bf16").astype(np.float32).view(np.uint32)
        return (pattern >> np.uint32(16)).astype(np.uint16)
    if precision == "fp8":
        return (_fp8_codes(np.abs(values)) | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)
    if precision not in SIGNIFICANT_BITS:
        raise InputError(f"no number format {precision!r}; there are {', '.join(SIGNIFICANT_BITS)}")
    return nearest(values, precision).astype(DTYPES[precision])


def decode(stored: NDArray[Any], precision: str) -> Doubles:
    """What `encode` stored, as float64."""
    if precision == "bf16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if precision == "fp8":
        magnitudes: Doubles = _fp8_values()[stored & 0x7F]
        return magnitudes * np.where(stored & 0x80, -1.0, 1.0)
    return stored.astype(np.float64)


@cache
def _fp8_values() -> Doubles:
    """What the 127 non-negative E4M3 patterns 0x00..0x7E mean; 0x7F is NaN. Source: OCP OFP8."""
    pattern = np.arange(127)
    exponent, fraction = pattern >> 3, pattern & 7
    normal = np.ldexp(1 + fraction / 8, exponent - 7)
    return np.where(exponent == 0, np.ldexp(fraction / 8, -6), normal)


def _fp8_codes(magnitudes: Doubles) -> NDArray[np.int64]:
    """The patterns nearest to `magnitudes`, ties to even, the largest one for all above it."""
    values = _fp8_values()
    above = np.clip(np.searchsorted(values, magnitudes), 1, 126)
    middle = (values[above - 1] + values[above]) / 2
    down = (magnitudes < middle) | ((magnitudes == middle) & (above % 2 == 1))
    return np.where(down, above - 1, above).astype(np.int64)


def fused(a: Doubles, x: Doubles, c: Doubles, precision: str) -> Doubles:
    """a * x + c, rounded once to fp32, fp16 or bf16: bit for bit what a correctly rounding GPU computes.

    The arguments are numbers of that precision. Their product is exact in float64; the sum is rounded to odd there,
    after which rounding to the shorter format is as if from the exact value.
    Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums, IEEE Trans. Computers 57 (2008).
    """
    product = a * x
    total = product + c
    part = total - product
    lost = (product - (total - part)) + (c - part)
    pattern = total.view(np.int64)
    outward = (lost > 0) == (total > 0)
    odd = np.where((lost != 0) & ((pattern & 1) == 0), np.where(outward, 1, -1), 0)
    return nearest((pattern + odd).view(np.float64), precision)
