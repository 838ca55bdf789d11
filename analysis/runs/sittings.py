"""Sittings: the runs of one GPU without a pause of 6 hours, of 24 hours at most. They share what the day brought.

The figure of a sitting is the median of its runs. A series is one GPU in one workload. Times are in days since 1970,
values are natural logarithms of times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PAUSE = 0.25
"""Days without a run that end a sitting."""
LONGEST = 1.0
"""Days that a sitting lasts at most: a chain of runs without a pause is cut, counted from where it began."""
UNKNOWN = -1e6
"""Stands for a time that is not known: the runs at unknown times of a GPU are one sitting."""
AHEAD = timedelta(hours=1)
"""A date so far after now counts as one of now: clocks of nodes differ."""
_NEAR = 1e-8  # what rounding leaves of a time


def latest() -> datetime:
    """The latest date that a run may have now."""
    return datetime.now(UTC) + AHEAD


def days() -> pl.Expr:
    """When runs began, in days since 1970; `UNKNOWN` where it is null."""
    return (pl.col("began").dt.epoch("us") / 86_400e6).fill_null(UNKNOWN)


def date_of(at: float | np.float64) -> datetime:
    """The date (UTC without a zone, as in tables) that so many days are."""
    return datetime(1970, 1, 1) + timedelta(days=float(at))  # noqa: DTZ001


def begins(owner: Ints, at: Floats, pause: float = PAUSE, longest: float = LONGEST) -> Bools:
    """At which runs a sitting begins, of runs sorted by `owner` (the number of a GPU, or of a GPU in a workload), and
    time."""
    new = np.ones(len(owner), bool)
    new[1:] = (np.diff(owner) != 0) | (np.diff(at) >= pause - _NEAR)
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(at)) - 1
    if len(at) and (at[last] - at[first]).max() >= longest - _NEAR:
        began = np.repeat(at[first], last - first + 1)
        new[1:] |= np.diff(np.floor((at - began) / longest + _NEAR)) > 0
    return new


def numbered(owner: Ints, at: Floats, pause: float = PAUSE, longest: float = LONGEST) -> Ints:
    """The number of each run's sitting, by owner and time; runs in any order."""
    order = in_order(owner, at)
    found = np.empty(len(owner), dtype=np.int64)
    found[order] = np.cumsum(begins(owner[order], at[order], pause, longest)) - 1
    return found


def are_in_order(owner: Ints, at: Floats) -> bool:
    """Whether runs lie by owner and time."""
    later = at[1:] >= at[:-1]
    later &= owner[1:] == owner[:-1]
    later |= owner[1:] > owner[:-1]
    return bool(later.all())


def in_order(owner: Ints, at: Floats) -> Ints:
    """The order by owner (whole numbers from 0) and time."""
    if are_in_order(owner, at):
        return np.arange(len(owner))
    if (at[1:] < at[:-1]).any():
        return np.lexsort((at, owner))
    # Runs come from a store in time. Then one stable sort is enough; of 16 bits numpy sorts by counting.
    most = int(owner.max(initial=0))
    order = np.argsort((owner & 0xFFFF).astype(np.uint16), kind="stable")
    if most > 0xFFFF:
        high = (owner[order] >> 16).astype(np.uint16 if most < 1 << 32 else np.int64)
        order = order[np.argsort(high, kind="stable")]
    return order


_SPARSE = 4  # times the values: a table of groups that is larger is not worth it
_ALIKE = 1e-6  # of a gap: two gaps that differ by less are one
_EACH = 4  # runs with a time, in the mean, for times to be few values
_FINE = 1e-6  # of a time: finer steps do not matter
_MANY = 20_000  # runs that tell whether steps are fine
_NORMAL = 1.4826  # times the median absolute deviation: the standard deviation of a normal distribution


@dataclass(frozen=True)
class Sittings:
    """All sittings, sorted by series and time: arrays of one length."""

    series: Ints
    """Numbers of the series, from 0."""
    at: Floats
    """When it began."""
    value: Floats
    """The median of its runs."""
    low: Floats
    """The lower median: of an even number the smaller of the middle two, so one high run of two cannot raise it. Of
    times that come in steps, half a step less: the true time may be that low."""
    high: Floats
    """The upper median; of times that come in steps, half a step more."""
    runs: Ints
    warmth: Floats
    """The median temperature of its runs, °C; NaN where unknown."""
    count: int
    """How many series there are; some may have no sitting."""
    rounding: float = 0.0
    """Standard deviation of what is lost if times come in steps, in logarithms."""

    def __len__(self) -> int:
        return len(self.series)

    @cached_property
    def per_series(self) -> Ints:
        """(count,) how many sittings each series has."""
        return np.bincount(self.series, minlength=self.count).astype(np.int64)

    @cached_property
    def first(self) -> Ints:
        """(count,) the place of the first sitting of each series."""
        return np.cumsum(self.per_series) - self.per_series

    @cached_property
    def place(self) -> Ints:
        """The number of each sitting within its series, from 0."""
        return np.arange(len(self)) - self.first[self.series]

    def keep(self, mask: Bools) -> Sittings:
        """Those sittings; the series keep their numbers."""
        return self.take(np.flatnonzero(mask), self.series[mask], self.count)

    def take(self, places: Ints, series: Ints, count: int) -> Sittings:
        """The sittings at these places, as those of other series."""
        values = (self.value[places], self.low[places], self.high[places])
        return Sittings(series, self.at[places], *values, self.runs[places], self.warmth[places], count, self.rounding)

    def less(self, effect: Floats) -> Sittings:
        """The same with `effect`, one for each sitting, taken out of its values."""
        return replace(self, value=self.value - effect, low=self.low - effect, high=self.high - effect)


@dataclass(frozen=True)
class Runs:
    """Runs, sorted by series and time."""

    series: Ints
    at: Floats
    value: Floats
    sitting: Ints
    """The place of each run's sitting in `Sittings`."""
    order: Ints
    """Where each run was before."""


def sittings(
    series: Ints, at: Floats, value: Floats, count: int | None = None, warmth: Floats | None = None, step: float = 0.0
) -> tuple[Sittings, Runs]:
    """The sittings of runs in any order. Runs without a finite time or value must not be among them.

    `step`: in which the times come (`step_of`).
    """
    count = int(series.max(initial=-1)) + 1 if count is None else count
    order = np.arange(len(series))
    if not are_in_order(series, at):
        order = in_order(series, at)
        series, at, value = series[order], at[order], value[order]
        warmth = None if warmth is None else warmth[order]
    new = begins(series, at)
    sitting = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    runs = np.diff(np.append(first, len(series)))
    ranked = sorted_in_groups(value, sitting, runs)
    low, high = ranked[first + (runs - 1) // 2], ranked[first + runs // 2]
    warm = np.broadcast_to(np.nan, len(first))
    if warmth is not None:
        warm_runs = np.isfinite(warmth)
        warm = groups_median(warmth[warm_runs], sitting[warm_runs], len(first))
    middle, rounding = (low + high) / 2, 0.0
    if step > 0:
        least, most = np.exp(low), np.exp(high)
        low, high = np.log(np.maximum(least - step / 2, least / 2)), np.log(most + step / 2)
        rounding = step / np.sqrt(12) / float(np.median(np.exp(middle)))  # all of a step is equally likely
    table = Sittings(series[first], at[first], middle, low, high, runs, warm, count, rounding)
    return table, Runs(series, at, value, sitting, order)


def step_of(value: Floats) -> float:
    """The step in which times come (1 where they are whole numbers), in their unit, from their logarithms; 0 for none.

    It is the smallest gap between neighbours that is seen twice, as one gap may be the difference of two GPUs. Of a few
    values that most runs have, it is the last decimal in use.
    """
    if not len(value) or _are_fine(value):
        return 0.0
    times = np.unique(np.exp(value))
    gaps = np.sort(np.diff(times))
    gaps = gaps[gaps > _FINE * times[-1]]
    twice = np.flatnonzero(np.diff(gaps) <= _ALIKE * gaps[1:])
    if len(twice):
        return float(gaps[twice[0]])
    return _decimal(times) if 1 < len(times) <= len(value) / _EACH else 0.0


def _are_fine(value: Floats) -> bool:
    """Whether some of many values tell that nearly all differ, so that steps are far finer than the times' spread."""
    sample = value[:: max(1, len(value) // _MANY)]
    return len(value) > 2 * _MANY and len(np.unique(sample)) > 0.9 * len(sample)


def _decimal(times: Floats) -> float:
    """The largest power of ten below all times of which they are multiples; 0 if it is fine."""
    step = 10.0 ** (np.ceil(np.log10(times[0])) - 1)
    while step > _FINE * times[-1]:
        if np.all(np.abs(times / step - np.round(times / step)) < _ALIKE):
            return float(step)
        step /= 10
    return 0.0


def groups_median(values: Floats, groups: Ints, count: int) -> Floats:
    """(count,) the median of the values of each group; NaN for a group without any."""
    low, high = middles(values, groups, count)
    return np.asarray((low + high) / 2)


def middles(values: Floats, groups: Ints, count: int) -> tuple[Floats, Floats]:
    """(count,) the lower and the upper median of each group: the same of an odd number; NaN for a group without any."""
    sizes = np.bincount(groups, minlength=count)
    first = np.cumsum(sizes) - sizes
    ranked = np.append(sorted_in_groups(values, groups, sizes), np.nan)
    last = len(values)
    low = np.where(sizes > 0, first + np.maximum(sizes - 1, 0) // 2, last)
    high = np.where(sizes > 0, first + sizes // 2, last)
    return ranked[np.minimum(low, last)], ranked[np.minimum(high, last)]


def sorted_in_groups(values: Floats, groups: Ints, sizes: Ints) -> Floats:
    """The values sorted by group and, within each, by size, NaN last. `sizes`: (count,) how many a group has."""
    widest = int(sizes.max(initial=0))
    if widest * len(sizes) > _SPARSE * len(values):
        return np.asarray(values[np.lexsort((values, groups))])
    # Small groups that lie together are the rows of a table, which is sorted much faster.
    if (groups[1:] < groups[:-1]).any():
        narrow = groups.astype(np.min_scalar_type(len(sizes)))  # of 16 bits and less, numpy sorts by radix
        values = values[np.argsort(narrow, kind="stable")]
    if widest * len(sizes) == len(values):
        return np.sort(values.reshape(len(sizes), widest), axis=1).ravel()
    present = np.arange(widest) < sizes[:, None]
    table = np.full(present.shape, np.nan)
    table[present] = values
    table.sort(axis=1)
    return np.asarray(table[present])


def spread(values: Floats) -> float:
    """The standard deviation, robustly, of values around 0; NaN where there are none."""
    return _NORMAL * float(np.median(np.abs(values))) if len(values) else float("nan")
