"""The interval of a median by order statistics, for repeats that may be correlated.

The interval takes nothing for granted about the shape of the distribution: of n independent values, the k-th
smallest and the k-th largest enclose the median unless fewer than k values fall on one side of it, which is a
binomial tail (David and Nagaraja, Order Statistics, section 7.1). Repeats that follow each other on a GPU are not
independent where the clock wanders: n values are then worth as many as n / tau independent ones, tau being the
integrated autocorrelation time, 1 + 2 times the sum of the autocorrelations, up to where Sokal's window ends it (A.
Sokal, Monte Carlo Methods in Statistical Mechanics, 1996, section 3). What counts is how the sides of the median
hang together, and the ranks of the values, which tells more: the longer time of the two is taken. Ranks do not mind
how skewed the times are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

FEWEST_WORTH = 10.0
"""With values worth fewer independent ones, the autocorrelation time itself is not known well enough."""

_HANGS_TOGETHER = 0.1  # lag-1 correlation above which values hang together; by chance alone it is 1/sqrt(n)
_BEYOND = 0.025  # of a 95 % interval, on each side
_WINDOW = 2.5  # autocorrelation times that are summed over: five, of times counted as Sokal does, with a half


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval, in the unit of the values."""

    median: float
    low: float | None
    """None, as `high`, where there are too few values."""
    high: float | None
    n: int
    """How many values."""
    block: float
    """How many neighbouring values are worth one independent value: the integrated autocorrelation time."""
    settled: bool
    """False where the values hang together so much that the interval is too narrow."""

    @property
    def relative(self) -> float | None:
        """Half the interval's width as a share of the median; None where it is not known."""
        if self.low is None or self.high is None or self.median <= 0:
            return None
        return (self.high - self.low) / 2 / self.median

    def within(self, half_width: float) -> bool:
        """Whether the median is known as well as that: half the width as a share of it, and not too narrow."""
        return self.settled and self.relative is not None and self.relative <= half_width


@lru_cache(maxsize=4096)
def rank(n: int) -> int:
    """The largest k for which the k-th smallest and k-th largest of n values enclose the median by 95 %; 0: none."""
    if n > 2000:  # the normal approximation is right to a rank there, and taken a rank wider
        return int(n / 2 - 1.959964 * sqrt(n) / 2) - 1
    tail, k = 0, 0
    total = 1 << n
    while k < n:
        tail += comb(n, k)
        if tail / total > _BEYOND:
            break
        k += 1
    return k


def interval_of(values: NDArray[np.float64]) -> Interval:
    """The median of values in the order in which they came, shape (n,), n at least 1, with its interval."""
    n = len(values)
    median = float(np.median(values))
    block = _together(values)
    settled = block == 1.0 or n / block >= FEWEST_WORTH
    k = rank(int(n / block))
    if k == 0:
        return Interval(median, None, None, n, block, settled)
    ordered = np.sort(values)
    place = int(k * block)
    return Interval(median, float(ordered[place - 1]), float(ordered[-place]), n, block, settled)


def _together(values: NDArray[np.float64]) -> float:
    """The integrated autocorrelation time of values, in values; 1 where neighbours do not hang together."""
    n = len(values)
    ranks = np.empty(n)
    ranks[np.argsort(values, kind="stable")] = np.arange(n)
    if lag_one(values) <= max(_HANGS_TOGETHER, 1 / sqrt(n)):
        return 1.0
    return max(_integrated(ranks), _integrated((values < np.median(values)).astype(np.float64)))


def _integrated(values: NDArray[np.float64]) -> float:
    off = values - values.mean()
    squares = float(off @ off)
    if squares == 0:  # more than half of the values are the smallest one
        return 1.0
    time = 1.0
    for lag in range(1, len(values) // 2):
        # An autocorrelation of n values is too low by about time/n (Marriott and Pope, Biometrika 1954).
        time += 2 * (float(off[:-lag] @ off[lag:]) / squares + (1 + max(time, 1.0)) / len(values))
        if lag >= _WINDOW * max(time, 1.0):
            break
    return max(time, 1.0)


def lag_one(values: NDArray[np.float64]) -> float:
    """Correlation of each value with the next; 0 where it is not defined."""
    if len(values) < 4:
        return 0.0
    off = values - values.mean()
    squares = float(off @ off)
    # Values that agree to the last digits differ by rounding alone.
    if squares <= len(values) * (1e-12 * abs(float(values.mean()))) ** 2:
        return 0.0
    return float(off[:-1] @ off[1:]) / squares
