"""What the past of a GPU is compared with: its peers, in one workload. It is the same for all GPUs but the peers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from ..runs.sittings import Floats, Ints
from ..statistics.ordering import bounds
from ..verdicts.sittings import Runs, Sittings, sittings
from ..verdicts.states import codes

FEWEST = 3  # GPUs of a day, before their median says what was usual on it
_ILL = 4.0  # usual standard deviations of the peers


class Day(NamedTuple):
    """The peers on a day: the values of their sittings, ascending, and how many peers they are."""

    values: Floats
    peers: int

    @property
    def is_known(self) -> bool:
        """Whether they tell what was usual."""
        return self.peers >= FEWEST


_NOBODY = Day(np.zeros(0), 0)


class Sds(NamedTuple):
    """(series,) the standard deviation of each series and its degrees of freedom; and the kurtosis of all values."""

    sd: Floats
    freedom: Ints
    kurtosis: float


@dataclass(frozen=True)
class Peers:
    """The sittings of the peers in a workload, in ln ms."""

    middle: float | None
    """The median of all their sittings; None where they have none."""
    days: dict[int, Day]
    """By day since 1970."""
    within: Sds
    """Of runs within sittings."""
    between: Sds
    """Of the medians of sittings, without what the day did to all."""
    squares: float
    freedom: int
    """The squares of all runs about the medians of their sittings, and their degrees of freedom."""

    def step(self, at: Floats) -> Floats:
        """What the days of these times (days since 1970) did to the peers; 0 where fewer than three tell it."""
        each = [self.on(one) for one in at.tolist()]
        middle = self.middle or 0.0
        return np.array([float(np.median(day.values)) - middle if day.is_known else 0.0 for day in each], np.float64)

    def on(self, at: float) -> Day:
        """The peers on the day of a time."""
        return self.days.get(int(np.floor(at)), _NOBODY)


_NONE = Sds(np.zeros(0), np.zeros(0, np.int64), 3.0)
NO_PEERS = Peers(None, {}, _NONE, _NONE, 0.0, 0)


def beside(peers: pl.DataFrame, keys: Collection[str] = ()) -> dict[str, Peers]:
    """The peers by workload. `peers`: of `peers_runs`; without the GPU that has these keys."""
    others = peers.filter(~pl.col("gpu").is_in(list(keys)))
    series = codes(others["gpu"], others["gpu"].unique().sort().to_list())
    numbered = others.with_columns(pl.Series("series", series)).partition_by("workload", as_dict=True)
    return {str(workload): _of_workload(rows) for (workload,), rows in numbered.items()}


def _of_workload(rows: pl.DataFrame) -> Peers:
    sat, each = sittings(rows["series"].to_numpy(), rows["at"].to_numpy(), rows["x"].to_numpy())
    dates, day = np.unique(np.floor(sat.at), return_inverse=True)
    order = np.lexsort((sat.value, day))
    parts = (order[begin:end] for begin, end in pairwise(bounds(day, len(dates))))
    days = [Day(sat.value[part], len(np.unique(sat.series[part]))) for part in parts]
    by_date = dict(zip(dates.astype(np.int64).tolist(), days, strict=True))
    found = replace(NO_PEERS, middle=float(np.median(sat.value)), days=by_date)
    within, between = scatter(sat, each, found.step(dates)[day])
    total, freedom = squares(sat, each)
    return replace(found, within=within, between=between, squares=total, freedom=freedom)


def scatter(sat: Sittings, each: Runs, steps: Floats) -> tuple[Sds, Sds]:
    """Of runs within sittings, and between sittings without `steps`, one for each sitting."""
    between = _sds(sat.value - steps, sat.series, np.arange(sat.count))
    return _sds(each.value, each.sitting, sat.series), between


def squares(sat: Sittings, each: Runs) -> tuple[float, int]:
    """The squares of runs about the medians of their sittings, and their degrees of freedom."""
    off = each.value - sat.value[each.sitting]
    return float((off**2).sum()), int(np.maximum(sat.runs - 1, 0).sum())


def _sds(values: Floats, group: Ints, series: Ints) -> Sds:
    """By series the standard deviation of values about the mean of their group. `series`: of each group."""
    n = np.bincount(group, minlength=len(series))
    mean = np.bincount(group, values, minlength=len(series)) / np.maximum(n, 1)
    off = values - mean[group]
    freedom = np.bincount(series, np.maximum(n - 1, 0)).astype(np.int64)
    total = np.bincount(series, np.bincount(group, off**2, minlength=len(series)))
    # A mean of few takes a part of what its values differ by.
    full = off * np.sqrt(n / np.maximum(n - 1, 1))[group]
    with np.errstate(all="ignore"):
        sd = np.sqrt(total / freedom)
    usual = float(np.median(sd[freedom > 0])) if (freedom > 0).any() else 0.0
    healthy = sd <= _ILL * usual  # those that scatter more by far are ill, and say nothing about tails
    sound = full[healthy[series[group]] & (n[group] > 1)]
    second = float((sound**2).mean()) if len(sound) else 0.0
    return Sds(sd, freedom, float((sound**4).mean()) / second**2 if second > 0 else 3.0)
