"""Laws of chance for whole arrays: Student's t, counts, a standard deviation's interval, and many tests at once.

`scipy.stats` has the same, and takes a second to import."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]


def upper_tail(values: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """The probability that t with `freedom` degrees is above each of `values`; NaN where a value is NaN.

    It keeps its relative accuracy far out, where a heavy tail is a power of the value.
    """
    return np.asarray(special.stdtr(freedom, -np.asarray(values, float)))


def quantile(tail: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """The value above which t with `freedom` degrees is with probability `tail` (at most a half)."""
    return np.asarray(-special.stdtrit(freedom, tail))


def log_density(values: Floats, freedom: float) -> Floats:
    """The logarithm of the density of t with `freedom` degrees."""
    constant = special.gammaln((freedom + 1) / 2) - special.gammaln(freedom / 2) - np.log(freedom * np.pi) / 2
    return np.asarray(constant - (freedom + 1) / 2 * np.log1p(values**2 / freedom))


def poisson(count: npt.ArrayLike, mean: npt.ArrayLike) -> Floats:
    """The chance that Poisson's law with this mean gives exactly `count`."""
    number = np.asarray(count, float)
    return np.asarray(np.exp(special.xlogy(number, mean) - special.gammaln(number + 1) - mean))


def poisson_at_least(count: npt.ArrayLike, mean: npt.ArrayLike) -> Floats:
    """The chance that Poisson's law with this mean gives `count` or more."""
    return np.where(np.asarray(count) > 0, special.pdtrc(np.maximum(count, 1) - 1, mean), 1.0)


def binomial(draws: int, chance: float) -> Floats:
    """(draws + 1,) the chance of each number of successes in so many draws."""
    number = np.arange(draws + 1.0)
    log_ways = special.gammaln(draws + 1) - special.gammaln(number + 1) - special.gammaln(draws - number + 1)
    log_chance = special.xlogy(number, chance) + special.xlog1py(draws - number, -chance)
    return np.asarray(np.exp(log_ways + log_chance))


def share_interval(successes: int, draws: int, tail: float = 0.025) -> tuple[float, float]:
    """The interval of the chance behind so many successes, with `tail` beyond each end (Clopper and Pearson,
    Biometrika 26, 1934)."""
    low = special.betaincinv(successes, draws - successes + 1, tail) if successes else 0.0
    high = special.betaincinv(successes + 1, draws - successes, 1 - tail) if successes < draws else 1.0
    return float(low), float(high)


_NORMAL = 3.0


def interval_of_sd(sd: float, freedom: float, kurtosis: float = _NORMAL) -> tuple[float, float]:
    """The 95 % interval of a standard deviation that was found to be `sd` with `freedom` (at least 1) degrees."""
    df = max(1.0, 2 * freedom / (max(kurtosis, _NORMAL) - 1))
    low, high = (sd * math.sqrt(df / float(special.chdtri(df, tail))) for tail in (0.025, 0.975))
    return low, high


def simes(p_values: Floats, counted: npt.NDArray[np.bool_] | None = None) -> Floats:
    """(columns,) one p-value for each column of (tests, columns), by Simes' rule (Biometrika 73, 1986).

    `counted`: (tests, columns), which of them were made; 1 where none was.
    """
    there = np.ones(p_values.shape, dtype=bool) if counted is None else counted
    ranked = np.sort(np.where(there, p_values, 2.0), axis=0)
    n, rank = there.sum(axis=0), np.arange(1, len(p_values) + 1)[:, None]
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
