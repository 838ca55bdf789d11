"""How well a median is known: its interval by order statistics, for repeats that may hang together.

The interval takes nothing for granted about the shape of the distribution: of n independent values, the k-th
smallest and the k-th largest enclose the median unless fewer than k values fall on one side of it, which is a
binomial tail (David and Nagaraja, Order Statistics, section 7.1). Repeats that follow each other on a GPU are not
independent where the clock wanders: then blocks of neighbours take the place of single values, doubled in length
until their medians hang together no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
FEWEST = 6
"""Fewer independent values than these have no 95 % interval of the median."""
FEWEST_BLOCKS = 10

_HANGS_TOGETHER = 0.1  # lag-1 correlation above which neighbours are joined; by chance alone it is 1/sqrt(n)


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval, in the unit of the values."""

    median: float
    low: float | None
    """None, as `high`, where there are too few values."""
    high: float | None
    n: int
    """How many values."""
    block: int
    """How many neighbouring values count as one."""
    settled: bool
    """False where even the longest blocks hang together: the interval is too narrow then."""

    @property
    def relative(self) -> float | None:
        """Half the interval's width as a share of the median; None where it is not known."""
        if self.low is None or self.high is None or self.median <= 0:
            return None
        return (self.high - self.low) / 2 / self.median


@lru_cache(maxsize=4096)
def rank(n: int, level: float = LEVEL) -> int:
    """The largest k for which the k-th smallest and k-th largest of n values enclose the median; 0 where none does."""
    allowed = (1 - level) / 2
    if n > 2000:  # the normal approximation is right to a rank there, and taken a rank wider
        return int(n / 2 - 1.959964 * sqrt(n) / 2) - 1
    tail, k = 0, 0
    whole = 1 << n
    while k < n:
        tail += comb(n, k)
        if tail / whole > allowed:
            break
        k += 1
    return k


def interval_of(values: NDArray[np.float64]) -> Interval:
    """The median of values in the order in which they came, shape (n,), n at least 1, with its interval."""
    n = len(values)
    median = float(np.median(values))
    block, settled = _block(values)
    points = _blocks(values, block)
    k = rank(len(points))
    if k == 0:
        return Interval(median, None, None, n, block, settled)
    ordered = np.sort(points)
    low, high = float(ordered[k - 1]), float(ordered[-k])
    # The median of block medians need not be that of all values: the interval holds both.
    return Interval(median, min(low, median), max(high, median), n, block, settled)


def _block(values: NDArray[np.float64]) -> tuple[int, bool]:
    """How many neighbours must be joined, and whether the blocks are free of each other then."""
    block = 1
    while True:
        points = _blocks(values, block)
        if lag_one(points) <= max(_HANGS_TOGETHER, 1 / sqrt(max(len(points), 1))):
            return block, True
        if len(values) // (2 * block) < FEWEST_BLOCKS:
            return block, False
        block *= 2


def _blocks(values: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    if block == 1:
        return values
    whole = len(values) // block * block
    return np.asarray(np.median(values[len(values) - whole :].reshape(-1, block), axis=1))


def lag_one(values: NDArray[np.float64]) -> float:
    """Correlation of each value with the next; 0 where it is not defined."""
    if len(values) < 4:
        return 0.0
    off = values - values.mean()
    whole = float(off @ off)
    # Values that agree to the last digits differ by rounding alone.
    if whole <= len(values) * (1e-12 * abs(float(values.mean()))) ** 2:
        return 0.0
    return float(off[:-1] @ off[1:]) / whole
