"""How far a set of times spreads: the box-plot figures, the outliers, the coefficients of variation.

Definitions: docs/how-we-know/statistics.md. `fence_pct` is the "variation" of the SC'22 study (arXiv 2208.11035);
quartiles interpolate linearly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .ordering import quantiles


MAD_TO_SD = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""

PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
FIGURES = (
    "fence_pct", "whisk_pct", "range_pct", "p95p5_pct", "cov_pct", "rcov_pct", "worst_over_median",
)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """The figures of one set of times. `figures` are in % (worst_over_median: a ratio); None has its reason."""

    n: int
    median: float
    lower: float
    """Q1 - 1.5 IQR, in the unit of the times."""
    upper: float
    """Q3 + 1.5 IQR, in the unit of the times."""
    fast: int
    """How many values lie below `lower`: the first ones in ascending order."""
    slow: int
    """How many values lie above `upper`: the last ones in ascending order."""
    figures: dict[str, float | None]
    reasons: dict[str, str]


def spread(ordered: Floats) -> Spread:
    """The spread of `ordered`: at least one finite time, ascending, any one unit."""
    n = len(ordered)
    p5, q1, median, q3, p95 = (float(q) for q in quantiles(ordered, PROBABILITIES))
    lower, upper = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    fast = int(np.searchsorted(ordered, lower, side="left"))
    slow = n - int(np.searchsorted(ordered, upper, side="right"))
    mean = float(ordered.mean())
    sd = float(ordered.std(ddof=1)) if n > 1 else math.nan
    deviation = float(np.median(np.abs(ordered - median)))
    with np.errstate(all="ignore"):
        found = np.array([
            400.0 * (q3 - q1),
            100.0 * float(ordered[n - slow - 1] - ordered[fast]),
            100.0 * float(ordered[-1] - ordered[0]),
            100.0 * (p95 - p5),
            100.0 * sd,
            100.0 * MAD_TO_SD * deviation,
            float(ordered[-1]),
        ]) / np.array([median, median, median, median, mean, median, median])  # fmt: skip
    figures: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for name, figure in zip(FIGURES, found.tolist(), strict=True):
        figures[name] = figure if math.isfinite(figure) else None
        if figures[name] is None:
            if name == "cov_pct":
                reasons[name] = "one value has no standard deviation" if n < 2 else "the mean is zero"
            else:
                reasons[name] = "the median is zero"
    return Spread(n, median, lower, upper, fast, slow, figures, reasons)
