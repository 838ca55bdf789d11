"""The past of one GPU, sitting by sitting, beside its peers of the same days; and how well its runs repeat."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from ..runs.sittings import UNKNOWN, Floats, Ints, date_of, numbered
from ..statistics.deviation import interval_of_sd
from ..statistics.ordering import bounds, quantiles
from ..statistics.spread import PROBABILITIES
from ..verdicts.causes.states import codes
from ..verdicts.levels.estimate import in_pct
from ..verdicts.levels.sittings import Runs, Sittings, sittings
from .standing import Five, Standing

_FEWEST = 3  # GPUs of a day, before their median says what was usual on it
_MEDIAN = 1.2533  # standard error of a median over that of a mean, of normal values
_REACH = 1.96
_ILL = 4.0  # usual standard deviations of the peers
_SAYS = 2  # degrees of freedom from which on a standard deviation has an interval
_OWN_FREEDOM = 5  # with so many degrees a GPU's own scatter is known, else that of its peers counts
_READ = ("sm_clock_mhz", "power_w", "temperature_c")


@dataclass(frozen=True, slots=True)
class Sitting:
    """Its runs of one workload without a pause of 6 hours. Slower is positive; None where it is unknown."""

    began: datetime
    n: int
    off_pct: float
    """From the level of its peers over all time; where it has none, from its own median."""
    low_pct: float | None
    high_pct: float | None
    """95 % interval of the sitting's median, from the scatter of runs within sittings; None where no two runs are."""
    that_day_pct: float | None
    """From the median of the peers of the same day; None for fewer than three of them."""
    peers_pct: Five | None
    """Those peers: 5, 25, 50, 75 and 95 %, as `off_pct`."""
    peers: int
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class Scatter:
    """A standard deviation in per cent of the time, beside those of the peers."""

    pct: float
    low_pct: float | None
    high_pct: float | None
    """95 % interval; None of one degree of freedom, which says next to nothing."""
    freedom: int
    """Degrees of freedom: values that are free to differ."""
    peers_pct: Five | None
    """Of the peers that have as many or more degrees of freedom, or at least 2: 5, 25, 50, 75 and 95 %."""
    peers: int


@dataclass(frozen=True)
class Line:
    """The past of a GPU in one workload."""

    workload: str
    sittings: tuple[Sitting, ...]
    beside_peers: bool
    """Whether `off_pct` is from the peers; else the GPU has none."""
    runs: int
    undated: int
    """Runs without a time, which stand nowhere in `sittings`."""
    within: Scatter | None
    """Of runs within a sitting; None where no sitting has two."""
    between: Scatter | None
    """Of the medians of sittings, without what the day did to its peers too; None for fewer than two."""


def past(runs: pl.DataFrame, peers: pl.DataFrame, stands: Iterable[Standing], keys: Collection[str]) -> list[Line]:
    """The past in each workload, in which it is slowest first. `runs`: of `timed`; `peers`: of `peers_runs`; `keys`: of
    the GPU."""
    centres = {one.workload: _centre(one) for one in stands if one.figure == "time" and one.workload is not None}
    order = [*centres, *sorted(set(runs["workload"]) - set(centres))]
    others = peers.filter(~pl.col("gpu").is_in(list(keys)))
    others = others.with_columns(pl.Series("series", codes(others["gpu"], others["gpu"].unique().sort().to_list()) + 1))
    found = []
    for workload in order:
        of_it = pl.col("workload") == workload
        mine = runs.filter(of_it)
        if mine.height:
            found.append(_line(workload, mine, others.filter(of_it), centres.get(workload)))
    return found


def _centre(one: Standing) -> float | None:
    """The level of the peers, ln ms."""
    if one.off_pct is None or not one.value:
        return None
    return math.log(one.value) - math.log1p(one.off_pct / 100)


def _line(workload: str, runs: pl.DataFrame, peers: pl.DataFrame, centre: float | None) -> Line:
    dated = runs.filter(pl.col("at") > UNKNOWN).sort("at", maintain_order=True)
    series = np.concatenate([np.zeros(dated.height, np.int64), peers["series"].to_numpy()])
    at, x = (np.concatenate([dated[name].to_numpy(), peers[name].to_numpy()]) for name in ("at", "x"))
    sat, each = sittings(series, at, x)
    day, days = _days(sat)
    values = sat.value[sat.series > 0]
    middle = float(np.median(values)) if len(values) else 0.0
    if centre is None and len(values):
        centre = middle
    steps = np.array([float(np.median(one.values)) - middle if one.peers >= _FEWEST else 0.0 for one in days])[day]
    usual = float(np.median(sat.value[sat.series == 0])) if centre is None and dated.height else centre or 0.0
    within, between = _scatter(*_sds(each.value, each.sitting, sat.series)), _between(sat, steps)
    own = np.flatnonzero(sat.series == 0)
    error = _error(sat, each, within)
    read = _read(dated)
    listed = []
    for row, place in enumerate(own.tolist()):
        value, others = float(sat.value[place]), days[day[place]]
        half = None if error is None else _REACH * _MEDIAN * error / math.sqrt(int(sat.runs[place]))
        known = others.peers >= _FEWEST
        listed.append(
            Sitting(
                date_of(sat.at[place]), int(sat.runs[place]), in_pct(value - usual),
                None if half is None else in_pct(value - usual - half),
                None if half is None else in_pct(value - usual + half),
                in_pct(value - float(np.median(others.values))) if known else None,
                _five(np.expm1(others.values - usual) * 100) if known else None, others.peers, *read[row],
            )
        )  # fmt: skip
    return Line(
        workload, tuple(listed), centre is not None, runs.height, runs.height - dated.height, within, between
    )  # fmt: skip


class _Day(NamedTuple):
    """The peers on a day: the values of their sittings, ascending, and how many peers they are."""

    values: Floats
    peers: int


def _days(sat: Sittings) -> tuple[Ints, list[_Day]]:
    """(sittings,) the number of the day of each sitting; and the peers of each day."""
    _, day = np.unique(np.floor(sat.at), return_inverse=True)
    peers = np.flatnonzero(sat.series > 0)
    order = peers[np.lexsort((sat.value[peers], day[peers]))]
    starts = bounds(day[peers], int(day.max(initial=-1)) + 1)
    rows = (order[begin:end] for begin, end in pairwise(starts))
    return day, [_Day(sat.value[own], len(np.unique(sat.series[own]))) for own in rows]


def _sds(values: Floats, group: Ints, series: Ints) -> tuple[Floats, Ints, float]:
    """By series the standard deviation of values about the mean of their group, its degrees of freedom, and the
    kurtosis of the peers' values. `series`: of each group."""
    n = np.bincount(group, minlength=len(series))
    mean = np.bincount(group, values, minlength=len(series)) / np.maximum(n, 1)
    off = values - mean[group]
    freedom = np.bincount(series, np.maximum(n - 1, 0)).astype(np.int64)
    squares = np.bincount(series, np.bincount(group, off**2, minlength=len(series)))
    # A mean of few takes a part of what its values differ by.
    full = off * np.sqrt(n / np.maximum(n - 1, 1))[group]
    with np.errstate(all="ignore"):
        sd = np.sqrt(squares / freedom)
    usual = float(np.median(sd[1:][freedom[1:] > 0])) if (freedom[1:] > 0).any() else 0.0
    healthy = sd <= _ILL * usual  # those that scatter more by far are ill, and say nothing about tails
    peers = full[(series[group] > 0) & healthy[series[group]] & (n[group] > 1)]
    second = float((peers**2).mean()) if len(peers) else 0.0
    kurtosis = float((peers**4).mean()) / second**2 if second > 0 else 3.0
    return sd, freedom, kurtosis


def _scatter(sd: Floats, freedom: Ints, kurtosis: float) -> Scatter | None:
    if not len(freedom) or freedom[0] < 1:
        return None
    own = float(sd[0])
    ends = None if freedom[0] < _SAYS else interval_of_sd(own, int(freedom[0]), kurtosis)
    others = sd[1:][freedom[1:] >= min(2, int(freedom[0]))]
    band = _five(100 * others) if len(others) >= _FEWEST else None
    low, high = (None, None) if ends is None else (100 * ends[0], 100 * ends[1])
    return Scatter(100 * own, low, high, int(freedom[0]), band, len(others))


def _between(sat: Sittings, steps: Floats) -> Scatter | None:
    every = np.arange(sat.count)
    return _scatter(*_sds(sat.value - steps, sat.series, every))


def _error(sat: Sittings, each: Runs, own: Scatter | None) -> float | None:
    """Standard deviation of a run within a sitting: the GPU's own where it is known, else that of all."""
    if own is not None and own.freedom >= _OWN_FREEDOM:
        return own.pct / 100
    off = each.value - sat.value[each.sitting]
    freedom = int(np.maximum(sat.runs - 1, 0).sum())
    return float(np.sqrt((off**2).sum() / freedom)) if freedom else None


def _read(runs: pl.DataFrame) -> list[tuple[float | None, float | None, float | None]]:
    """By sitting, the medians of what was read in its runs. `runs`: by time."""
    number = numbered(np.zeros(runs.height, np.int64), runs["at"].to_numpy())
    medians = (pl.col(name).cast(pl.Float64).fill_nan(None).median() for name in _READ)
    each = runs.with_columns(pl.Series("sitting", number)).group_by("sitting").agg(*medians).sort("sitting")
    return list(each.select(_READ).iter_rows())


def _five(values: Floats) -> Five:
    low, first, middle, third, high = quantiles(np.sort(values), PROBABILITIES).tolist()
    return low, first, middle, third, high


def frame(lines: Iterable[Line]) -> pl.DataFrame:
    """How well the times repeat, as a table: workload, runs, sittings, and for `within` and `between`: the standard
    deviation in per cent, _low and _high of its interval, _peers_low and _peers_high (5 and 95 %), _peers."""
    rows = []
    for one in lines:
        row: dict[str, object] = {"workload": one.workload, "runs": one.runs, "sittings": len(one.sittings)}
        for name, of in (("within", one.within), ("between", one.between)):
            band = None if of is None else of.peers_pct
            row[name] = None if of is None else of.pct
            row[f"{name}_low"] = None if of is None else of.low_pct
            row[f"{name}_high"] = None if of is None else of.high_pct
            row[f"{name}_peers_low"] = None if band is None else band[0]
            row[f"{name}_peers_high"] = None if band is None else band[4]
            row[f"{name}_peers"] = None if of is None else of.peers
        rows.append(row)
    ends = ("", "_low", "_high", "_peers_low", "_peers_high")
    schema: dict[str, pl.DataType] = {"workload": pl.String(), "runs": pl.Int64(), "sittings": pl.Int64()}
    for name in ("within", "between"):
        schema |= {f"{name}{end}": pl.Float64() for end in ends}
        schema[f"{name}_peers"] = pl.Int64()
    return pl.DataFrame(rows, schema=schema)
