"""Order, ranks, the figures of a box plot, correlations, laws of chance, and many tests at once, for whole arrays.

`fence_pct` is the "variation" of the SC'22 study (arXiv 2208.11035); docs/how-we-know/statistics.md defines each
figure. Quartiles interpolate linearly. `scipy.stats` has the laws too, and takes a second to import; `scipy.special`
takes a sixth of one, and is loaded where a law is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def bounds(groups: Ints, count: int) -> Ints:
    """Where each group begins once the rows stand by group: `count` + 1 positions, the last the number of rows."""
    starts = np.zeros(count + 1, dtype=np.intp)
    np.cumsum(np.bincount(groups, minlength=count), out=starts[1:])
    return starts


def ranks(values: Floats) -> Floats:
    """The rank of each value, from 1, tied values sharing their average rank."""
    return pl.Series(values).rank("average").to_numpy()


def median_interval(ordered: Floats) -> tuple[float | None, float | None]:
    """A 95 % interval of the median, whatever the distribution: between two of the values in order.

    As many lie on either side as a binomial distribution allows (here by its normal approximation, which is never too
    narrow). None for fewer than six values, of which even the ends do not make 95 %.
    """
    n = len(ordered)
    if n < 6:
        return None, None
    below = max(0, int((n - 1 - 1.96 * np.sqrt(n)) // 2))
    return float(ordered[below]), float(ordered[n - 1 - below])


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
    p5, q1, median, q3, p95 = (float(q) for q in np.quantile(ordered, PROBABILITIES))
    lower, upper = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    fast = int(np.searchsorted(ordered, lower, side="left"))
    slow = n - int(np.searchsorted(ordered, upper, side="right"))
    mean = float(ordered.mean())
    sd = float(ordered.std(ddof=1)) if n > 1 else math.nan
    deviation = float(np.median(np.abs(ordered - median)))
    with np.errstate(all="ignore"):
        of_median = np.array([
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
    for name, figure in zip(FIGURES, of_median.tolist(), strict=True):
        figures[name] = figure if math.isfinite(figure) else None
        if figures[name] is None:
            if name == "cov_pct":
                reasons[name] = "one value has no standard deviation" if n < 2 else "the mean is zero"
            else:
                reasons[name] = "the median is zero"
    return Spread(n, median, lower, upper, fast, slow, figures, reasons)


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
        fields: dict[str, Any] = {"pearson": self.pearson, "spearman": self.spearman, "n": self.n}
        if self.interval is not None:
            fields |= {"low": self.interval[0], "high": self.interval[1]}
        return fields if self.reason is None else {**fields, "reason": self.reason}


def correlate(
    time: Floats,
    paired: Floats | None,
    column_name: str,
    *,
    time_is: str = "time",
) -> Correlation:
    """The correlation of `time` (finite) with `paired` (NaN where unknown; None when there is no such column).

    `column_name`, `time_is`: what a reason calls the two.
    """
    if paired is None:
        return Correlation(None, None, 0, f"no {column_name} is known")
    is_known = np.isfinite(paired)
    n = int(np.count_nonzero(is_known))
    if n < len(paired):
        time, paired = time[is_known], paired[is_known]
    if n == 0:
        return Correlation(None, None, 0, f"no {column_name} is known")
    if n < 3:
        return Correlation(None, None, n, "fewer than 3 rows have both values")
    # Compared exactly: the deviations of a constant column from its rounded mean are not always zero.
    for column, name in ((paired, column_name), (time, time_is)):
        if bool((column == column[0]).all()):
            return Correlation(None, None, n, f"{name} is constant ({column[0]:g})")
    return Correlation(_cosine(time, paired), _cosine(ranks(time), ranks(paired)), n)


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


def upper_tail(values: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """The probability that t with `freedom` degrees is above each of `values`; NaN where a value is NaN.

    It keeps its relative accuracy far out, where a heavy tail is a power of the value.
    """
    return np.asarray(scipy.special.stdtr(freedom, -np.asarray(values, float)))


def quantile(tail: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """The value above which t with `freedom` degrees is with probability `tail` (at most a half)."""
    return np.asarray(-scipy.special.stdtrit(freedom, tail))


def log_density(values: Floats, freedom: float) -> Floats:
    """The logarithm of the density of t with `freedom` degrees."""
    constant = (
        scipy.special.gammaln((freedom + 1) / 2) - scipy.special.gammaln(freedom / 2) - np.log(freedom * np.pi) / 2
    )
    return np.asarray(constant - (freedom + 1) / 2 * np.log1p(values**2 / freedom))


def poisson(count: npt.ArrayLike, mean: npt.ArrayLike) -> Floats:
    """The chance that Poisson's law with this mean gives exactly `count`."""
    number = np.asarray(count, float)
    return np.asarray(np.exp(scipy.special.xlogy(number, mean) - scipy.special.gammaln(number + 1) - mean))


def poisson_at_least(count: npt.ArrayLike, mean: npt.ArrayLike) -> Floats:
    """The chance that Poisson's law with this mean gives `count` or more."""
    return np.where(np.asarray(count) > 0, scipy.special.pdtrc(np.maximum(count, 1) - 1, mean), 1.0)


def binomial(draws: int, chance: float) -> Floats:
    """(draws + 1,) the chance of each number of successes in so many draws."""
    number = np.arange(draws + 1.0)
    log_ways = (
        scipy.special.gammaln(draws + 1) - scipy.special.gammaln(number + 1) - scipy.special.gammaln(draws - number + 1)
    )
    log_chance = scipy.special.xlogy(number, chance) + scipy.special.xlog1py(draws - number, -chance)
    return np.asarray(np.exp(log_ways + log_chance))


def share_interval(successes: int, draws: int, tail: float = 0.025) -> tuple[float, float]:
    """The interval of the chance behind so many successes, with `tail` beyond each end (Clopper and Pearson,
    Biometrika 26, 1934)."""
    low = scipy.special.betaincinv(successes, draws - successes + 1, tail) if successes else 0.0
    high = scipy.special.betaincinv(successes + 1, draws - successes, 1 - tail) if successes < draws else 1.0
    return float(low), float(high)


_NORMAL = 3.0


def interval_of_sd(sd: float, freedom: float, kurtosis: float = _NORMAL) -> tuple[float, float]:
    """The 95 % interval of a standard deviation that was found to be `sd` with `freedom` (at least 1) degrees."""
    df = max(1.0, 2 * freedom / (max(kurtosis, _NORMAL) - 1))
    low, high = (sd * math.sqrt(df / float(scipy.special.chdtri(df, tail))) for tail in (0.025, 0.975))
    return low, high


def simes(p_values: Floats, counted: npt.NDArray[np.bool_] | None = None) -> Floats:
    """(columns,) one p-value for each column of (tests, columns), by Simes' rule (Biometrika 73, 1986).

    `counted`: (tests, columns), which of them were made; 1 where none was.
    """
    made = np.ones(p_values.shape, dtype=bool) if counted is None else counted
    ranked = np.sort(np.where(made, p_values, 2.0), axis=0)
    n, rank = made.sum(axis=0), np.arange(1, len(p_values) + 1)[:, None]
    return np.asarray(np.where(rank <= n, ranked * n / rank, 1.0).min(axis=0, initial=1.0))


def discoveries(p_values: Floats, tests: int) -> Floats:
    """(n,) the q-value of each p-value by Benjamini and Hochberg (J. R. Statist. Soc. B 57, 1995), of so many tests:
    those that are left out count as larger."""
    # scipy.stats has the same, and takes a second to import.
    order = np.argsort(p_values)
    ranked = p_values[order] * max(tests, len(p_values)) / np.arange(1, len(p_values) + 1)
    q_values = np.empty_like(p_values)
    q_values[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1.0)
    return q_values
