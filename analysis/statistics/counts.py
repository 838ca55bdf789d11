"""Laws of counts, the Poisson and the binomial, and the interval of a share.

`scipy.stats` has the same, and takes a second to import.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special



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
