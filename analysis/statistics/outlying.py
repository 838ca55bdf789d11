"""How unlikely a value is that lies far from the others of its population: the tail probability of Student's t."""

from __future__ import annotations

import math

_TAIL_FROM = 1.5  # standard deviations from which a tail probability is worth computing


def tail(z: float, n: int) -> float:
    """The probability that one of `n` values of one population is as far out as `z` on either side; 1 where z is small.

    By Student's t with 0.7 (n - 1) degrees of freedom. Below 1.5 standard deviations 1 stands for the larger values,
    which no correction for many looks leaves of interest.
    """
    if not math.isfinite(z) or abs(z) < _TAIL_FROM or n < 2:
        return 0.0 if math.isinf(z) else 1.0
    freedom = 0.7 * (n - 1)
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + z * z))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function by its continued fraction, in Lentz's form."""
    if not 0 < x < 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    d = 1 / max(tiny, 1 - (a + b) * x / (a + 1))
    c, found = 1.0, d
    for m in range(1, 400):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + numerator * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + numerator / c
            c = c if abs(c) > tiny else tiny
            found *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return front * found / a
