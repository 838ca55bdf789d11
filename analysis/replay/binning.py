"""Scores in a few levels, by which PM-First and PAL distinguish GPUs. Run times never use them.

PAL (SC'24) groups the scores of a class by k-means, k being two and one more for every outlier, and gives each GPU
its group's mean over the median of these means. It asks scikit-learn for the best of ten random starts; in one
dimension the best grouping there is can be had exactly, by dynamic programming over the sorted scores, so that is
what stands here: no seed, no start, and never a worse grouping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

ORDINARY_GROUPS = 2
"""PAL's search for a number of groups always ends at its first candidate."""


@dataclass(frozen=True)
class Bins:
    """The scores of a class of jobs, in levels. Higher is slower, 1 is the middle level."""

    level: Indices
    """(gpus,) the level that each GPU is in, 0 the fastest."""
    values: Floats
    """(levels,) the score that stands for each level, ascending."""

    @property
    def sf(self) -> Floats:
        """(gpus,) the score that stands for each GPU; GPUs of a level have exactly the same."""
        return self.values[self.level]


def binned(scores: Floats) -> Bins:
    """The levels of `scores` (gpus,) as PAL makes them: two, and one more for each score beyond mean + 3 sd (ddof 1).

    Fewer where there are fewer distinct scores.
    """
    level = grouped(scores, ORDINARY_GROUPS + int(np.count_nonzero(outlying(scores))))
    means = np.bincount(level, weights=scores) / np.bincount(level)
    return Bins(level, means / np.median(means))


def outlying(scores: Floats) -> NDArray[np.bool_]:
    """(gpus,) whether each of `scores` (gpus,) is beyond mean + 3 sd (ddof 1): PAL's outliers, on the slow side."""
    if scores.size < 2:
        return np.zeros(scores.size, dtype=np.bool_)
    return np.asarray(scores > scores.mean() + 3 * scores.std(ddof=1))


def grouped(values: Floats, groups: int) -> Indices:
    """(n,) the group of each of `values` (n,), numbered upwards: the grouping with the least squares about its means.

    Exact k-means in one dimension. Optimal groups are runs of the sorted values, so each further group is one pass
    over where the last one begins; that beginning never moves left as the end moves right, which makes a pass
    O(n log n). Equal values stay together: there are `groups` groups, or as many as distinct values if these are fewer.
    """
    distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    groups = min(groups, distinct.size)
    if not groups:
        return inverse
    deviations = distinct - distinct.mean()  # squares of what is left lose no digits
    within = _Within(counts.astype(np.float64), deviations)
    ends = np.arange(distinct.size + 1)
    least = within(np.zeros_like(ends), ends)
    begins = []
    for _ in range(groups - 1):
        least, begin = _another_group(least, within)
        begins.append(begin)
    group = np.zeros(distinct.size, dtype=np.intp)
    end = distinct.size
    for begin in reversed(begins):
        end = int(begin[end])
        group[end:] += 1
    # A group that rounding leaves empty has no number.
    return np.unique(group[inverse], return_inverse=True)[1]


class _Within:
    """Sum of weighted squares about the mean of the sorted values from one index up to another."""

    def __init__(self, weights: Floats, values: Floats) -> None:
        self._weights = np.concatenate(([0.0], np.cumsum(weights)))
        self._sums = np.concatenate(([0.0], np.cumsum(weights * values)))
        self._squares = np.concatenate(([0.0], np.cumsum(weights * values * values)))

    def __call__(self, begin: Indices, end: Indices) -> Floats:
        weight = np.maximum(self._weights[end] - self._weights[begin], 1.0)  # an empty range has no sum either
        total = self._sums[end] - self._sums[begin]
        squares: Floats = np.maximum(self._squares[end] - self._squares[begin] - total * total / weight, 0.0)
        return squares


def _another_group(least: Floats, within: _Within) -> tuple[Floats, Indices]:
    """The least squares of the first j values with one group more than `least` has, and where that group begins.

    Ends are solved in the order of a bisection, all of one depth at once: each is searched for only between the
    beginnings of its solved neighbours.
    """
    size = least.size - 1
    best, begin = np.zeros_like(least), np.zeros(size + 1, dtype=np.intp)
    step = 1 << size.bit_length()
    solved = np.zeros(step + 1, dtype=np.intp)  # index: the end; beyond the last one, no bound but the end itself
    solved[size + 1 :] = size
    while step > 1:
        step //= 2
        ends = np.arange(step, size + 1, 2 * step)
        low, high = solved[ends - step], np.minimum(solved[ends + step], ends)
        lengths = high - low + 1
        starts = np.cumsum(lengths) - lengths
        tried = np.arange(int(lengths.sum())) - np.repeat(starts - low, lengths)
        squares = least[tried] + within(tried, np.repeat(ends, lengths))
        best[ends] = np.minimum.reduceat(squares, starts)
        at_best = np.flatnonzero(squares == np.repeat(best[ends], lengths))
        begin[ends] = solved[ends] = tried[at_best[np.searchsorted(at_best, starts)]]
    return best, begin
