"""Order, ranks and medians of long columns, without a group-by.

One sort of a column serves its quantiles, its ranks and, by a stable counting sort of the group numbers taken in
that order, the sorted values of every group.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

_STEPS = (1.0, 2.0, 10.0, 100.0, 1000.0)
"""Fractions of a unit in which meters report: 1 °C, 7.5 MHz, 1 mW."""

_CODES = 1 << 16
"""numpy sorts 16-bit integers by counting, in one pass."""


def ascending(values: Floats) -> Ints:
    """The positions that put `values` (no NaN) in ascending order; the order among ties is unspecified."""
    codes = _step_codes(values)
    if codes is not None:
        return np.argsort(codes, kind="stable")
    order: Ints = pl.Series(values).arg_sort().to_numpy().astype(np.intp)
    return order


def _step_codes(values: Floats) -> npt.NDArray[np.uint16] | None:
    """The values as whole numbers of steps above their minimum, or None when they are not few enough steps."""
    if len(values) < _CODES:  # a comparison sort is as fast
        return None
    low, high = float(values.min()), float(values.max())
    probe = values[:1024]
    for step in _STEPS:
        # Equal numbers of steps must mean equal values, bit for bit, so that ties are exactly the ties.
        if (high - low) * step < _CODES - 1 and np.array_equal(np.rint(probe * step) / step, probe):
            counts = np.rint(values * step)
            if np.array_equal(counts / step, values):
                codes: npt.NDArray[np.uint16] = (counts - np.rint(low * step)).astype(np.uint16)
                return codes
    return None


def by_group(groups: Ints, order: Ints, count: int) -> Ints:
    """`order` rearranged so that each group's members stand together, groups ascending, the order inside kept.

    `groups`: the group number of each row, 0 to `count` - 1; `order`: row positions. Returns row positions.
    """
    # A radix sort: 16 bits of the group number a pass, least first, each pass stable.
    for shift in range(0, max(1, int(count - 1).bit_length()), 16):
        digits = (groups >> shift if shift else groups).astype(np.uint16)  # keeps the low 16 bits
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def bounds(groups: Ints, count: int) -> Ints:
    """Where each group begins once the rows stand by group: `count` + 1 positions, the last the number of rows."""
    starts = np.zeros(count + 1, dtype=np.intp)
    np.cumsum(np.bincount(groups, minlength=count), out=starts[1:])
    return starts


def medians(values: Floats, starts: Ints) -> Floats:
    """The median of each group, in the unit of `values`; NaN for an empty group.

    `values`: by group and ascending inside each; `starts`: from `bounds`.
    """
    sizes = np.diff(starts)
    result = np.full(len(sizes), np.nan)
    some = sizes > 0
    first, size = starts[:-1][some], sizes[some]
    result[some] = (values[first + (size - 1) // 2] + values[first + size // 2]) / 2.0
    return result


def tie_ranks(ordered: Floats) -> Floats:
    """Ranks of values in ascending order, from 1, tied values sharing their average rank."""
    n = len(ordered)
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    if len(starts) == n:
        return np.arange(1.0, n + 1.0)
    counts = np.diff(np.append(starts, n))
    return np.repeat(starts + (counts + 1) / 2.0, counts)


def quantiles(ordered: Floats, probabilities: tuple[float, ...]) -> Floats:
    """Linear-interpolation quantiles (numpy's default, DuckDB's `quantile_cont`) of ascending values."""
    at = np.asarray(probabilities) * (len(ordered) - 1)
    below = np.floor(at).astype(np.intp)
    above = np.minimum(below + 1, len(ordered) - 1)
    found: Floats = ordered[below] + (at - below) * (ordered[above] - ordered[below])
    return found


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
