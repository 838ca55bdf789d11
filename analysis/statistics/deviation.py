"""The interval of a standard deviation, also where the tails are heavier than those of the normal distribution.

(n - 1) s² / sigma² is chi-squared with n - 1 degrees of freedom for normal values. For others the variance of s² is
that of a chi-squared with fewer: 2 (n - 1) / (k - 1), where k is the kurtosis (3 for the normal; for example G. E. P.
Box, Biometrika 40, 1953).
"""

from __future__ import annotations

import math

from scipy import special

_NORMAL = 3.0


def interval_of_sd(sd: float, freedom: float, kurtosis: float = _NORMAL) -> tuple[float, float]:
    """The 95 % interval of a standard deviation that was found to be `sd` with `freedom` (at least 1) degrees."""
    df = max(1.0, 2 * freedom / (max(kurtosis, _NORMAL) - 1))
    low, high = (sd * math.sqrt(df / float(special.chdtri(df, tail))) for tail in (0.025, 0.975))
    return low, high
