"""The number formats in numpy against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whorl.kernels.rounding import SIGNIFICANT_BITS, decode, encode, fused, nearest, unit

LOWEST = {"fp64": -1022, "fp32": -126, "tf32": -126, "fp16": -14, "bf16": -126, "fp8": -6}
"""Exponent of the smallest normal number."""

FORMATS = sorted(SIGNIFICANT_BITS)


def exactly(value: Fraction, precision: str) -> Fraction:
    """`value` rounded to nearest, ties to even, in rational arithmetic; in range."""
    if value == 0:
        return value
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, LOWEST[precision]) - SIGNIFICANT_BITS[precision] + 1)
    return round(value / step) * step


numbers = st.floats(min_value=-400, max_value=400, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-60)


@pytest.mark.parametrize("precision", FORMATS)
@given(value=numbers)
def test_rounding_is_to_nearest_even(precision: str, value: float) -> None:
    assert Fraction(float(nearest(np.array([value]), precision)[0])) == exactly(Fraction(value), precision)


@pytest.mark.parametrize("precision", FORMATS)
@given(value=numbers)
def test_what_is_stored_reads_back(precision: str, value: float) -> None:
    rounded = nearest(np.array([value]), precision)
    np.testing.assert_array_equal(decode(encode(np.array([value]), precision), precision), rounded)
    assert abs(rounded[0] - value) <= unit(precision) * abs(value) + 2.0 ** (LOWEST[precision] - 1)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
@given(a=numbers, x=numbers, c=numbers, close=st.integers(-3, 3))
def test_a_multiply_add_is_rounded_once(precision: str, a: float, x: float, c: float, close: int) -> None:
    """Also where the sum lies near the middle of two numbers, where rounding twice goes wrong."""
    a, x, c = (float(nearest(np.array([value / 32]), precision)[0]) for value in (a, x, c))
    for addend in (c, float(nearest(np.array([-a * x * (1 + close * unit(precision))]), precision)[0])):
        got = fused(np.array([a]), np.array([x]), np.array([addend]), precision)[0]
        assert Fraction(float(got)) == exactly(Fraction(a) * Fraction(x) + Fraction(addend), precision)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_what_is_below_the_normal_range_keeps_fewer_bits(precision: str) -> None:
    least = 2.0 ** (-126 - SIGNIFICANT_BITS[precision] + 1)
    values = np.array([0.0, 0.5, 0.51, 1.0, 1.5, 2.5, 3.2, -0.75]) * least
    assert (nearest(values, precision) / least).tolist() == [0, 0, 1, 1, 2, 2, 3, -1]
    assert nearest(np.array([2.0**-126 * (1 - 2.0**-30)]), precision)[0] == 2.0**-126
    assert decode(encode(values, precision), precision).tolist() == nearest(values, precision).tolist()
