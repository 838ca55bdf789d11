"""What many GPUs did over time: quantiles over the GPUs, lowest and highest reading, and who is far from the others."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.instants import in_sql
from ...store.vocabulary import CLOCK_EVENTS
from .readings import MINUTE_NS, Bools, Floats, Key, Shown, Times, read, shown, these

if TYPE_CHECKING:
    from ...store import Store

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
SAMPLE = 256
"""Of more GPUs, so many are read: spread evenly over the order of their names."""
_STRETCHES = 300
_STEPS = 1.5  # a stretch has this many readings of a GPU at least, about
_LOOKED_AT = 3  # GPUs that tell how often readings come
_ROWS, _FEWEST = 16_000_000, 16  # of telemetry that is read, about; GPUs that are read however many rows they have
_FAR = 3.5  # robust standard deviations from which a GPU is far from the others
_RELEVANT = 0.02  # of the level: a smaller distance is of no use to anybody, however clear it is
_LEAST = 8  # GPUs of which one can be far from the others
_MOST_FAR = 4


@dataclass(frozen=True)
class Band:
    """A metric of many GPUs in stretches of time, (k,) each, in the unit in which it is shown; NaN where none was read.

    A stretch counts with its mean of each GPU. Of a counter that is the rate from stretch to stretch.
    """

    metric: str
    levels: Floats
    """(5, k) the quantiles `LEVELS` over the GPUs."""
    low: Floats
    """The lowest single reading of any GPU; of a counter the lowest mean."""
    high: Floats
    gpus: Times
    """How many GPUs were read in the stretch."""
    far: tuple[tuple[Key, float], ...]
    """GPUs that are far from the others over the whole range, the farthest first: their mean distance from the median,
    in the unit."""


@dataclass(frozen=True)
class Share:
    """The share of GPUs, (k,) in %, of which a reason for the clock stood at some time of a stretch."""

    reason: str
    percent: Floats


@dataclass(frozen=True)
class Bands:
    """What many GPUs did from `since` to `until` (ns since 1970)."""

    since: int
    until: int
    width_ns: int
    ts: Times
    """(k,) the middle of each stretch."""
    bands: tuple[Band, ...]
    shares: tuple[Share, ...]
    asked: int
    """GPUs that were asked for."""
    taken: int
    """GPUs that were read: all, or a sample."""
    seen: int
    """Of these, GPUs that have readings."""
    readings: int

    @property
    def off_points(self) -> float:
        """Half the 95 % interval of the share of all GPUs that lies below the median of a sample, percentage points."""
        if self.taken >= self.asked or not self.seen:
            return 0.0
        left = (self.asked - self.taken) / (self.asked - 1)
        return 196 * float(np.sqrt(0.25 / self.seen * left))


def sample(keys: Sequence[Key], most: int = SAMPLE) -> tuple[Key, ...]:
    """At most this many of some GPUs, spread evenly over their order; always the same."""
    if len(keys) <= most:
        return tuple(keys)
    places = (np.arange(most) * len(keys)) // most + len(keys) // most // 2
    return tuple(keys[place] for place in places.tolist())


def bands(store: Store, keys: Sequence[Key], metrics: Sequence[str], since: int, until: int, *, asked: int) -> Bands:
    """The bands of these GPUs, which were taken out of `asked`.

    Where they have too many readings, of some of them. Raises QueryError for an unknown metric.
    """
    named = [shown(name) for name in metrics]
    some = list(read(store, keys[:: max(1, len(keys) // _LOOKED_AT)], metrics, since, until))
    steps = [series.step_ns for own in some for series in own.series.values()]
    usual = max((step for step in steps if step is not None), default=0)
    each = max((len(series.ts) for own in some for series in own.series.values()), default=0)
    keys = sample(keys, max(_FEWEST, _ROWS // max(each, 1)))
    width = max((until - since) // _STRETCHES, int(_STEPS * usual), 1)
    first = since // width
    stretches = np.arange(first, max(first + 1, -(-until // width)))
    rows = _of_stretches(store, keys, named, since, until, width)
    place = {key: at for at, key in enumerate(keys)}
    gpu = np.array([place[key] for key in rows.select("cluster", "gpu").rows()], np.intp)
    at = rows["stretch"].to_numpy() - first

    def table(column: str) -> Floats:
        """A column as an array (GPUs, stretches)."""
        found = np.full((len(keys), len(stretches)), np.nan)
        found[gpu, at] = rows[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return found

    found, shares = [], []
    for one in named:
        if one.kind == "mask":
            shares += _shares(table(f"{one.name}_any"))
        else:
            found.append(_band(one, table, keys))
    seen = len(np.unique(gpu))
    middles = stretches * width + width // 2
    return Bands(
        since, until, width, middles, tuple(found), tuple(shares), asked, len(keys), seen, int(rows["n"].sum())
    )


def _of_stretches(
    store: Store, keys: Sequence[Key], named: Sequence[Shown], since: int, until: int, width: int
) -> pl.DataFrame:
    """One row for each GPU and stretch."""
    pruned = bool(store.files("telemetry_minutes"))
    parts = [part for one in named for part in _of_stretch(one, pruned=pruned)]
    at = f"epoch_ns(ts) + CASE WHEN n > 1 THEN {MINUTE_NS // 2} ELSE 0 END" if pruned else "epoch_ns(ts)"
    table, counted = ("history", "sum(n)") if pruned else ("telemetry", "count(*)")
    found = []
    for cluster in dict.fromkeys(cluster for cluster, _ in keys):
        gpus = [gpu for of, gpu in keys if of == cluster]
        found.append(
            store.sql(
                f"SELECT cluster, gpu, ({at}) // '{width}'::BIGINT AS stretch, {counted} AS n, {', '.join(parts)} "
                f"FROM {table} WHERE {these(cluster, gpus)} AND ts >= {in_sql(since)} "
                f"AND ts < {in_sql(until)} GROUP BY cluster, gpu, stretch"
            ).polars()
        )
    return pl.concat(found)


def _of_stretch(one: Shown, *, pruned: bool) -> list[str]:
    name = one.name
    if one.kind == "mask":
        return [f"bit_or({name}) AS {name}_any"]
    if one.kind == "counter":
        first = f"{name}_first" if pruned else name
        known = f"FILTER (WHERE {first} IS NOT NULL)"
        return [f"arg_min({first}, ts) AS {name}_first", f"epoch_ns(min(ts) {known}) AS {name}_at"]
    if pruned:
        mean = f"sum({name}_mean * n) / sum(n) FILTER (WHERE {name}_mean IS NOT NULL)"
        return [f"{mean} AS {name}_mean", f"min({name}_min) AS {name}_min", f"max({name}_max) AS {name}_max"]
    return [f"avg({name}) AS {name}_mean", f"min({name}) AS {name}_min", f"max({name}) AS {name}_max"]


def _band(one: Shown, table: Any, keys: Sequence[Key]) -> Band:
    if one.kind == "counter":
        first, when = table(f"{one.name}_first"), table(f"{one.name}_at")
        mean = np.full(first.shape, np.nan)
        grown = np.diff(first, axis=1)
        mean[:, :-1] = np.where(grown >= 0, grown, np.nan) / (np.diff(when, axis=1) / 1e9)
        low = high = mean
    else:
        mean, low, high = (table(f"{one.name}_{part}") for part in ("mean", "min", "max"))
    known = ~np.isnan(mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a stretch in which nothing was read is NaN
        levels = np.nanquantile(mean, LEVELS, axis=0) * one.factor
        least, most = np.nanmin(low, axis=0) * one.factor, np.nanmax(high, axis=0) * one.factor
    far = _far(mean * one.factor, known, levels[2], keys)
    return Band(one.name, levels, least, most, np.count_nonzero(known, axis=0), far)


def _far(mean: Floats, known: Bools, median: Floats, keys: Sequence[Key]) -> tuple[tuple[Key, float], ...]:
    """The GPUs whose mean distance from the median is far from that of the others, by the median deviation."""
    seen = np.flatnonzero(known.any(axis=1))
    if len(seen) < _LEAST:
        return ()
    apart = np.nanmean(mean[seen] - median, axis=1)
    off = np.abs(apart - np.median(apart))
    usual = 1.4826 * float(np.median(off))
    least = max(_FAR * usual, _RELEVANT * abs(float(np.nanmean(median))))
    far = np.argsort(-off)[:_MOST_FAR]
    return tuple((keys[seen[one]], float(apart[one])) for one in far.tolist() if off[one] > least)


def _shares(bits: Floats) -> list[Share]:
    known = ~np.isnan(bits)
    whole = np.where(known, bits, 0).astype(np.int64)
    n = np.count_nonzero(known, axis=0)
    found = []
    for reason in CLOCK_EVENTS:
        if reason.bit is not None and (whole & reason.bit).any():
            held = np.count_nonzero(whole & reason.bit, axis=0)
            percent = np.divide(100.0 * held, n, out=np.full(len(n), np.nan), where=n > 0)
            found.append(Share(reason.name, percent))
    return found
