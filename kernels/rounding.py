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
    """a * x + c, rounded once to fp64, fp32, fp16 or bf16: bit for bit what a correctly rounding GPU computes.

    The arguments are numbers of that precision, whose results neither overflow nor lie below the normal range of
    float64. In the short formats the product is exact in float64; the sum is rounded to odd there, after which rounding
    to the format is as if from the exact value. In fp64 what product and sums lose is carried along, and only its own
    sum is rounded to odd.
    Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums, IEEE Trans. Computers 57 (2008).
    """
    product = a * x
    if precision != "fp64":
        return nearest(_to_odd(*_exact_sum(product, c)), precision)
    middle, middle_lost = _exact_sum(c, _lost_product(a, x, product))
    total, total_lost = _exact_sum(product, middle)
    return total + _to_odd(*_exact_sum(middle_lost, total_lost))


def _exact_sum(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """The rounded sum, and what it lost. Source: Knuth, The Art of Computer Programming 2, section 4.2.2."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _lost_product(a: Doubles, b: Doubles, product: Doubles) -> Doubles:
    """What the rounded product lost. Source: Dekker, A floating-point technique, Numerische Mathematik 18 (1971)."""
    (high_a, low_a), (high_b, low_b) = _halves(a), _halves(b)
    return ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


def _halves(values: Doubles) -> tuple[Doubles, Doubles]:
    """Two numbers of 26 bits at most, whose products are exact, and whose sum each value is."""
    spread = values * (2.0**27 + 1)
    high = spread - (spread - values)
    return high, values - high


def _to_odd(total: Doubles, lost: Doubles) -> Doubles:
    """A sum and what it lost, rounded to odd: an inexact one gets an odd last bit."""
    pattern = total.view(np.int64)
    outward = (lost > 0) == (total > 0)
    odd = np.where((lost != 0) & ((pattern & 1) == 0), np.where(outward, 1, -1), 0)
    return (pattern + odd).view(np.float64)
