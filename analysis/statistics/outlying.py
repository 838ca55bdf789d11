"""Which of many values are outliers: a robust scale, a tail probability, and a correction for many comparisons.

The centre is the median. The scale is the biweight's (Mosteller and Tukey, *Data Analysis and Regression*, 1977; Lax,
JASA 80, 1985): about 87 % as efficient as the standard deviation where values are normal, and unmoved by a quarter of
them that are not. The same source compares it with Student's t at 0.7 (n - 1) degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_REACH = 9.0  # times the median absolute deviation: about six standard deviations
_SIDE = 0.841344746  # the normal distribution's quantile of one standard deviation
_DOUBT = 2.25  # over the root of n: 1.5 standard errors of that quantile's distance, as a share of it
_TAIL_FROM = 1.5  # standard deviations from which a tail probability is worth computing


def biweight_scale(values: Floats) -> float:
    """The biweight scale of `values` (at least one, finite), in their unit; 0 where more than half are the same."""
    apart = np.abs(values - np.median(values))
    middle = float(np.median(apart))
    if middle == 0:
        return 0.0
    share = (apart / (_REACH * middle)) ** 2
    inside = share < 1
    kept, weight = apart[inside], 1 - share[inside]
    top = float((kept**2 * weight**4).sum())
    bottom = abs(float((weight * (1 - 5 * share[inside])).sum()))
    return math.sqrt(len(values) * top) / bottom if bottom else 0.0


def robust_z(values: Floats, floor: float = 0.0, own: Floats | None = None) -> Floats:
    """(n,) how far each value is from the median, in standard deviations of the side it is on.

    The standard deviation is the biweight scale or, where that is larger by more than its sampling error, the distance
    from the median to the quantile that is one standard deviation away on that side, so that a skewed population has a
    longer tail there.
    It is never below `floor`, in the unit of the values; where the scale and the floor are 0, every value is at 0.
    `own`, (n,), are standard deviations of the measurements themselves, NaN where unknown: what a value's is larger by
    than the median one is added to its scale, in squares, so that a poor measurement is no outlier. The doubt about the
    median of the population is in it as well (the root of 1 + 1/n).
    """
    n = len(values)
    middle = float(np.median(values))
    scale = biweight_scale(values)
    low, high = (abs(float(np.quantile(values, share)) - middle) for share in (1 - _SIDE, _SIDE))
    low, high = (side if side > scale * (1 + _DOUBT / math.sqrt(n)) else scale for side in (low, high))
    sides = np.where(values > middle, max(high, floor), max(low, floor)) * math.sqrt(1 + 1 / n)
    if own is not None and np.isfinite(own).any():
        more = np.where(np.isfinite(own), own**2 - float(np.nanmedian(own)) ** 2, 0.0)
        sides = np.sqrt(sides**2 + np.maximum(more, 0.0))
    with np.errstate(all="ignore"):
        found: Floats = np.where(sides > 0, (values - middle) / sides, 0.0)
    return found


def tail(z: float, n: int) -> float:
    """The probability that one of `n` values of one population is as far out as `z` on either side; 1 where z is small.

    By Student's t with 0.7 (n - 1) degrees of freedom. Below 1.5 standard deviations 1 stands for the larger values,
    which no correction for many looks leaves of interest.
    """
    if not math.isfinite(z) or abs(z) < _TAIL_FROM or n < 2:
        return 0.0 if math.isinf(z) else 1.0
    freedom = 0.7 * (n - 1)
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + z * z))


def holm(p: Sequence[float], looks: int) -> list[float]:
    """Holm's adjusted probabilities, in the order of `p`: below 5 % means a family-wise error rate below 5 %.

    `looks` is how many comparisons there were, at least those of `p`; those that are left out are taken to be larger.
    Valid whatever the dependence between the looks (Holm, Scand. J. Statist. 6, 1979).
    """
    order = sorted(range(len(p)), key=lambda place: p[place])
    adjusted = [1.0] * len(p)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (looks - rank) * p[place]))
        adjusted[place] = highest
    return adjusted


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
