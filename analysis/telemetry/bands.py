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
        share_unread = (self.asked - self.taken) / (self.asked - 1)
        return 196 * float(np.sqrt(0.25 / self.seen * share_unread))


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
    chosen = [shown(name) for name in metrics]
    looked_at = list(read(store, keys[:: max(1, len(keys) // _LOOKED_AT)], metrics, since, until))
    steps = [series.step_ns for gpu_read in looked_at for series in gpu_read.series.values()]
    usual = max((step for step in steps if step is not None), default=0)
    most_readings = max((len(series.ts) for gpu_read in looked_at for series in gpu_read.series.values()), default=0)
    keys = sample(keys, max(_FEWEST, _ROWS // max(most_readings, 1)))
    width = max((until - since) // _STRETCHES, int(_STEPS * usual), 1)
    first = since // width
    stretches = np.arange(first, max(first + 1, -(-until // width)))
    rows = _of_stretches(store, keys, chosen, since, until, width)
    place = {key: at for at, key in enumerate(keys)}
    gpu = np.array([place[key] for key in rows.select("cluster", "gpu").rows()], np.intp)
    at = rows["stretch"].to_numpy() - first

    def table(column: str) -> Floats:
        """A column as an array (GPUs, stretches)."""
        of_metrics = np.full((len(keys), len(stretches)), np.nan)
        of_metrics[gpu, at] = rows[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return of_metrics

    of_metrics, shares = [], []
    for metric in chosen:
        if metric.kind == "mask":
            shares += _shares(table(f"{metric.name}_any"))
        else:
            of_metrics.append(_band(metric, table, keys))
    gpus_read = len(np.unique(gpu))
    middles = stretches * width + width // 2
    return Bands(
        since,
        until,
        width,
        middles,
        tuple(of_metrics),
        tuple(shares),
        asked,
        len(keys),
        gpus_read,
        int(rows["n"].sum()),
    )


def _of_stretches(
    store: Store, keys: Sequence[Key], metrics: Sequence[Shown], since: int, until: int, width: int
) -> pl.DataFrame:
    """One row for each GPU and stretch."""
    pruned = bool(store.files("telemetry_minutes"))
    parts = [part for metric in metrics for part in _of_stretch(metric, pruned=pruned)]
    at = f"epoch_ns(ts) + CASE WHEN n > 1 THEN {MINUTE_NS // 2} ELSE 0 END" if pruned else "epoch_ns(ts)"
    table, counted = ("history", "sum(n)") if pruned else ("telemetry", "count(*)")
    frames = []
    for cluster in dict.fromkeys(cluster for cluster, _ in keys):
        gpus = [gpu for of_cluster, gpu in keys if of_cluster == cluster]
        frames.append(
            store.sql(
                f"SELECT cluster, gpu, ({at}) // '{width}'::BIGINT AS stretch, {counted} AS n, {', '.join(parts)} "
                f"FROM {table} WHERE {these(cluster, gpus)} AND ts >= {in_sql(since)} "
                f"AND ts < {in_sql(until)} GROUP BY cluster, gpu, stretch"
            ).polars()
        )
    return pl.concat(frames)


def _of_stretch(metric: Shown, *, pruned: bool) -> list[str]:
    name = metric.name
    if metric.kind == "mask":
        return [f"bit_or({name}) AS {name}_any"]
    if metric.kind == "counter":
        first = f"{name}_first" if pruned else name
        is_known = f"FILTER (WHERE {first} IS NOT NULL)"
        return [f"arg_min({first}, ts) AS {name}_first", f"epoch_ns(min(ts) {is_known}) AS {name}_at"]
    if pruned:
        mean = f"sum({name}_mean * n) / sum(n) FILTER (WHERE {name}_mean IS NOT NULL)"
        return [f"{mean} AS {name}_mean", f"min({name}_min) AS {name}_min", f"max({name}_max) AS {name}_max"]
    return [f"avg({name}) AS {name}_mean", f"min({name}) AS {name}_min", f"max({name}) AS {name}_max"]


def _band(metric: Shown, table: Any, keys: Sequence[Key]) -> Band:
    if metric.kind == "counter":
        first, read_at = table(f"{metric.name}_first"), table(f"{metric.name}_at")
        mean = np.full(first.shape, np.nan)
        grown = np.diff(first, axis=1)
        mean[:, :-1] = np.where(grown >= 0, grown, np.nan) / (np.diff(read_at, axis=1) / 1e9)
        low = high = mean
    else:
        mean, low, high = (table(f"{metric.name}_{part}") for part in ("mean", "min", "max"))
    is_read = ~np.isnan(mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a stretch in which nothing was read is NaN
        levels = np.nanquantile(mean, LEVELS, axis=0) * metric.factor
        least, most = np.nanmin(low, axis=0) * metric.factor, np.nanmax(high, axis=0) * metric.factor
    far = _far(mean * metric.factor, is_read, levels[2], keys)
    return Band(metric.name, levels, least, most, np.count_nonzero(is_read, axis=0), far)


def _far(mean: Floats, is_read: Bools, median: Floats, keys: Sequence[Key]) -> tuple[tuple[Key, float], ...]:
    """The GPUs whose mean distance from the median is far from that of the others, by the median deviation."""
    rows = np.flatnonzero(is_read.any(axis=1))
    if len(rows) < _LEAST:
        return ()
    apart = np.nanmean(mean[rows] - median, axis=1)
    off = np.abs(apart - np.median(apart))
    usual = 1.4826 * float(np.median(off))
    least = max(_FAR * usual, _RELEVANT * abs(float(np.nanmean(median))))
    far = np.argsort(-off)[:_MOST_FAR]
    return tuple((keys[rows[place]], float(apart[place])) for place in far.tolist() if off[place] > least)


def _shares(bits: Floats) -> list[Share]:
    is_read = ~np.isnan(bits)
    reasons = np.where(is_read, bits, 0).astype(np.int64)
    n = np.count_nonzero(is_read, axis=0)
    shares = []
    for reason in CLOCK_EVENTS:
        if reason.bit is not None and (reasons & reason.bit).any():
            held = np.count_nonzero(reasons & reason.bit, axis=0)
            percent = np.divide(100.0 * held, n, out=np.full(len(n), np.nan), where=n > 0)
            shares.append(Share(reason.name, percent))
    return shares
