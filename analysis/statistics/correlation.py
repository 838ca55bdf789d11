"""The correlation of two columns, Pearson's and Spearman's, or the reason why it is undefined."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .ordering import Floats, Ints, ascending, tie_ranks

NORMAL_975 = 1.959963984540054
"""The 97.5 % point of the standard normal distribution."""


@dataclass(frozen=True)
class Correlation:
    """Pearson's and Spearman's coefficient over `n` rows that have both values; None with the `reason`."""

    pearson: float | None
    spearman: float | None
    n: int
    reason: str | None = None

    interval: tuple[float, float] | None = None
    """A 95 % interval of Spearman's, where the rows are independent units."""

    def with_interval(self) -> Correlation:
        """The same with its interval: for rows that are independent, as GPUs are and the runs of one are not."""
        return self if self.spearman is None else replace(self, interval=spearman_interval(self.spearman, self.n))

    def as_dict(self) -> dict[str, Any]:
        """The row's JSON: pearson, spearman, n; low and high of Spearman's where known; reason when undefined."""
        found: dict[str, Any] = {"pearson": self.pearson, "spearman": self.spearman, "n": self.n}
        if self.interval is not None:
            found |= {"low": self.interval[0], "high": self.interval[1]}
        return found if self.reason is None else {**found, "reason": self.reason}


def correlate(
    time: Floats,
    other: Floats | None,
    what: str,
    *,
    time_is: str = "time",
    time_ranks: Floats | None = None,
    order: Ints | None = None,
) -> Correlation:
    """The correlation of `time` (finite) with `other` (NaN where unknown; None when there is no such column).

    `what`, `time_is`: what a reason calls the two. `time_ranks`: the average ranks of `time` and `order`: the
    ascending order of `other`, where the caller has them; used when no value is missing.
    """
    if other is None:
        return Correlation(None, None, 0, f"no {what} is known")
    known = np.isfinite(other)
    n = int(np.count_nonzero(known))
    if n < len(other):
        time, other, time_ranks, order = time[known], other[known], None, None
    if n == 0:
        return Correlation(None, None, 0, f"no {what} is known")
    if n < 3:
        return Correlation(None, None, n, "fewer than 3 rows have both values")
    # Compared exactly: the deviations of a constant column from its rounded mean are not always zero.
    for column, name in ((other, what), (time, time_is)):
        if bool((column == column[0]).all()):
            return Correlation(None, None, n, f"{name} is constant ({column[0]:g})")
    if time_ranks is None:
        by_time = ascending(time)
        time_ranks = np.empty(n)
        time_ranks[by_time] = tie_ranks(time[by_time])
    if order is None:
        order = ascending(other)
    other_ranks = np.empty(n)
    other_ranks[order] = tie_ranks(other[order])
    return Correlation(_cosine(time, other), _cosine(time_ranks, other_ranks), n)


def _cosine(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Pearson's coefficient of two columns that vary."""
    a, b = a - a.mean(), b - b.mean()
    for deviation in (a, b):
        # Scaled by the largest first, so that neither tiny nor huge values under- or overflow when squared.
        deviation /= max(float(deviation.max()), -float(deviation.min()))
    # Not by `@`: the threads of BLAS wait for each other longer than such a sum takes.
    r = float((a * b).sum()) / math.sqrt(float((a * a).sum()) * float((b * b).sum()))
    return min(1.0, max(-1.0, r))


def spearman_interval(r: float, n: int) -> tuple[float, float] | None:
    """A 95 % interval for Spearman's coefficient, or None when n < 4 or |r| = 1 leaves it undefined.

    Fisher's z with the variance (1 + r²/2)/(n - 3) of D. G. Bonett and T. A. Wright, Psychometrika 65 (2000).
    """
    if n < 4 or abs(r) >= 1.0:
        return None
    half = NORMAL_975 * math.sqrt((1.0 + r * r / 2.0) / (n - 3))
    z = math.atanh(r)
    return math.tanh(z - half), math.tanh(z + half)
