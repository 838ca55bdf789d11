"""The interval of a standard deviation, also where the tails are heavier than those of the normal distribution.

(n - 1) s² / sigma² is chi-squared with n - 1 degrees of freedom for normal values. For others the variance of s² is
that of a chi-squared with fewer: 2 (n - 1) / (k - 1), where k is the kurtosis (3 for the normal; for example G. E. P.
Box, Biometrika 40, 1953).
"""

from __future__ import annotations

import math

_TERMS, _STEPS, _CLOSE = 500, 80, 1e-13
_NORMAL = 3.0


def interval_of_sd(sd: float, freedom: float, kurtosis: float = _NORMAL) -> tuple[float, float]:
    """The 95 % interval of a standard deviation that was found to be `sd` with `freedom` (at least 1) degrees."""
    df = max(1.0, 2 * freedom / (max(kurtosis, _NORMAL) - 1))
    return sd * math.sqrt(df / quantile(0.975, df)), sd * math.sqrt(df / quantile(0.025, df))


def quantile(share: float, freedom: float) -> float:
    """The value below which chi-squared lies with probability `share`."""
    low, high = 0.0, 1.0
    while _below(high, freedom) < share:
        low, high = high, 2 * high
    at = (low + high) / 2
    for _ in range(_STEPS):  # Newton's; where one would leave the interval, it is halved
        below = _below(at, freedom)
        low, high = (at, high) if below < share else (low, at)
        density = math.exp((freedom / 2 - 1) * math.log(at / 2) - at / 2 - math.lgamma(freedom / 2)) / 2
        before, at = at, at + (share - below) / density if density else low
        if not low < at < high:
            at = (low + high) / 2
        if abs(at - before) <= _CLOSE * at:
            break
    return at


def _below(value: float, freedom: float) -> float:
    """The distribution function, by the series of the incomplete gamma function."""
    if value <= 0:
        return 0.0
    half, x = freedom / 2, value / 2
    term = total = 1 / half
    for place in range(1, _TERMS + int(x)):
        term *= x / (half + place)
        total += term
        if term < 1e-15 * total:
            break
    return min(1.0, math.exp(half * math.log(x) - x - math.lgamma(half)) * total)
