"""The past of one GPU, sitting by sitting, beside its peers of the same days; and how well its runs repeat."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import polars as pl

from ..runs.sittings import UNKNOWN, Floats, date_of, numbered
from ..statistics.deviation import interval_of_sd
from ..statistics.ordering import quantiles
from ..statistics.spread import PROBABILITIES
from ..verdicts.levels import in_pct
from ..verdicts.sittings import Runs, Sittings, sittings
from .peers import FEWEST, NO_PEERS, Peers, Sds, scatter, squares
from .standing import Five, Standing

_MEDIAN = 1.2533  # standard error of a median over that of a mean, of normal values
_REACH = 1.96
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


def past(runs: pl.DataFrame, others: Mapping[str, Peers], stands: Iterable[Standing]) -> list[Line]:
    """The past in each workload, in which it is slowest first. `runs`: of `timed`; `others`: of `beside`."""
    centres = {one.workload: _centre(one) for one in stands if one.figure == "time" and one.workload is not None}
    of = runs.partition_by("workload", as_dict=True)
    order = [*centres, *sorted({str(workload) for (workload,) in of} - set(centres))]
    return [
        _line(workload, mine, others.get(workload, NO_PEERS), centres.get(workload))
        for workload in order
        if (mine := of.get((workload,))) is not None
    ]


def _centre(one: Standing) -> float | None:
    """The level of the peers, ln ms."""
    if one.off_pct is None or not one.value:
        return None
    return math.log(one.value) - math.log1p(one.off_pct / 100)


def _line(workload: str, runs: pl.DataFrame, others: Peers, centre: float | None) -> Line:
    dated = runs.filter(pl.col("at") > UNKNOWN).sort("at", maintain_order=True)
    sat, each = sittings(np.zeros(dated.height, np.int64), dated["at"].to_numpy(), dated["x"].to_numpy())
    centre = others.middle if centre is None else centre
    usual = float(np.median(sat.value)) if centre is None and dated.height else centre or 0.0
    within, between = scatter(sat, each, others.step(sat.at))
    runs_scatter = _scatter(within, others.within)
    error = _error(sat, each, runs_scatter, others)
    listed = []
    for at, value, n, read in zip(sat.at.tolist(), sat.value.tolist(), sat.runs.tolist(), _read(dated), strict=True):
        day, half = others.on(at), None if error is None else _REACH * _MEDIAN * error / math.sqrt(n)
        listed.append(
            Sitting(
                date_of(at), n, in_pct(value - usual),
                None if half is None else in_pct(value - usual - half),
                None if half is None else in_pct(value - usual + half),
                in_pct(value - float(np.median(day.values))) if day.is_known else None,
                _five(np.expm1(day.values - usual) * 100) if day.is_known else None, day.peers, *read,
            )
        )  # fmt: skip
    undated = runs.height - dated.height
    return Line(
        workload, tuple(listed), centre is not None, runs.height, undated, runs_scatter,
        _scatter(between, others.between),
    )  # fmt: skip


def _scatter(mine: Sds, others: Sds) -> Scatter | None:
    if not len(mine.freedom) or mine.freedom[0] < 1:
        return None
    own, freedom = float(mine.sd[0]), int(mine.freedom[0])
    ends = None if freedom < _SAYS else interval_of_sd(own, freedom, others.kurtosis)
    known = others.sd[others.freedom >= min(2, freedom)]
    band = _five(100 * known) if len(known) >= FEWEST else None
    low, high = (None, None) if ends is None else (100 * ends[0], 100 * ends[1])
    return Scatter(100 * own, low, high, freedom, band, len(known))


def _error(sat: Sittings, each: Runs, own: Scatter | None, others: Peers) -> float | None:
    """Standard deviation of a run within a sitting: the GPU's own where it is known, else that of all."""
    if own is not None and own.freedom >= _OWN_FREEDOM:
        return own.pct / 100
    total, freedom = squares(sat, each)
    freedom += others.freedom
    return math.sqrt((total + others.squares) / freedom) if freedom else None


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
