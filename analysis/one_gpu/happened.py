"""What happened to one GPU: changes of its driver, firmware, place and power limit; its events; what held its clock.

Where the driver counts the time of a reason, the counter tells its share of the time. Else the readings do: the share
of them that name the reason. Of minutes that telemetry was pruned to, the reasons are known that were told at any time
in them, so that a share of those is the most that it can have been.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from ...store.instants import date_of_ns
from ...store.vocabulary import CLOCK_EVENTS, OUT_OF_USE, ClockEvent, EventKind

if TYPE_CHECKING:
    from ...store import Store


_EVENTS = 500  # the newest ones
_SAID = {"driver": "driver", "vbios": "VBIOS", "power_limit_w": "power limit, W"}
_PLACE = ("node", "slot")
_MARKED = (
    *OUT_OF_USE, EventKind.XID, EventKind.RETURNED, EventKind.WRONG_RESULT, EventKind.MIG, EventKind.HEALTH,
    EventKind.SETTINGS_CHANGED, EventKind.STUCK_SENSOR, EventKind.PROBE_FAILED,
)  # fmt: skip
"""Events that may explain a change of a GPU."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A date that may explain a change."""

    at: datetime
    what: str
    """A code: driver, vbios, place, power_limit_w, or the kind of an event."""
    says: str
    n: int = 1
    """How many of its kind were on that day."""


@dataclass(frozen=True, slots=True)
class Happened:
    """An event."""

    ts: datetime | None
    kind: str
    detail: str | None
    meaning: str
    """What the kind means; "" for one that this whorl does not know."""


def marks(store: Store, cluster: str, keys: Collection[str], node: str | None = None) -> list[Mark]:
    """When driver, VBIOS, place and power limit became others, and when an event may have changed it. By time."""
    of_gpu = (pl.col("cluster") == cluster) & pl.col("gpu").is_in(list(keys))
    identities = store.scan("gpus").filter(of_gpu & pl.col("first_seen").is_not_null())
    limit = (pl.col("power_limit_mw") / 1000).alias("power_limit_w")
    rows = store.collect(identities.select(_us("first_seen").alias("at"), "driver", "vbios", limit, *_PLACE))
    happened = store.collect(
        store.scan("events")
        .filter(_of(cluster, keys, node) & pl.col("ts").is_not_null())
        .select(_us("ts").alias("at"), "kind", "version", "detail")
    )
    reloaded = happened.filter((pl.col("kind") == EventKind.DRIVER_RELOADED.value) & pl.col("version").is_not_null())
    rows = pl.concat([rows, reloaded.select("at", driver="version")], how="diagonal_relaxed").sort(
        "at", maintain_order=True
    )
    listed = [
        Mark(at, column, f"{word} {_shown(old)} to {_shown(new)}")
        for column, word in _SAID.items()
        for (_, old), (at, new) in pairwise(rows.select("at", column).drop_nulls(column).iter_rows())
        if old != new
    ]
    listed += _moves(rows)
    marked = happened.filter(pl.col("kind").is_in([kind_of_event.value for kind_of_event in _MARKED])).sort("at")
    by_day = marked.group_by(pl.col("at").dt.date().alias("day"), "kind", maintain_order=True)
    for at, kind, detail, n in (
        by_day.agg(pl.col("at").first(), pl.col("detail").first(), pl.len())
        .select("at", "kind", "detail", "len")
        .iter_rows()
    ):
        says = detail or EventKind(kind).meaning
        listed.append(Mark(at, kind, says if n == 1 else f"{n:,} on this day; the first: {says}", n))
    return sorted(listed, key=lambda kind_of_event: kind_of_event.at)


def _moves(rows: pl.DataFrame) -> list[Mark]:
    """When it was in another place. Where a row does not know the slot, it is the one before."""
    listed, had = [], None
    for at, node, slot in rows.select("at", *_PLACE).drop_nulls("node").iter_rows():
        now = (node, slot if slot is not None or had is None or had[0] != node else had[1])
        if had is not None and (now[0] != had[0] or None not in (now[1], had[1])) and now != had:
            names = (spot[0] if spot[1] is None else f"{spot[0]}/{spot[1]}" for spot in (had, now))
            listed.append(Mark(at, "place", "moved from {} to {}".format(*names)))
        had = now
    return listed


def events(store: Store, cluster: str, keys: Collection[str], node: str | None = None) -> list[Happened]:
    """Its events, and those of its node that name no GPU: the newest 500, the newest first."""
    rows = store.scan("events").filter(_of(cluster, keys, node)).select(_us("ts"), "kind", "detail")
    newest = store.collect(rows.sort("ts", descending=True, nulls_last=True).head(_EVENTS))
    meanings = {kind_of_event.value: kind_of_event.meaning for kind_of_event in EventKind}
    return [Happened(ts, kind, detail, meanings.get(kind, "")) for ts, kind, detail in newest.iter_rows()]


def lost_since(listed: Sequence[Happened]) -> datetime | None:
    """When a GPU was lost that did not come back, of its events."""
    for event in listed:
        if event.kind in (EventKind.RETURNED, EventKind.APPEARED):
            return None
        if event.kind in OUT_OF_USE:
            return event.ts
    return None


def _of(cluster: str, keys: Collection[str], node: str | None) -> pl.Expr:
    of_node = pl.col("gpu").is_null() & (pl.col("node") == node) if node is not None else pl.lit(value=False)
    return (pl.col("cluster") == cluster) & (pl.col("gpu").is_in(list(keys)) | of_node)


def _us(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Datetime("us"))


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STEPS = 120
"""Into so many steps, about, the time that was read is cut."""
_ROWS = 1_500_000  # readings at most: of a longer time, the newest days
_FEW = 8  # fewer readings tell nothing of how often they come
_LONG = 5.0  # usual times between two readings, from which on it is a gap
_SHORTEST_S = 120.0  # but no gap is shorter
_MINUTE_S = 60.0
_SHOWN = tuple(reason for reason in CLOCK_EVENTS if reason.name != "idle")
_COUNTERS = tuple(reason.counter for reason in _SHOWN if reason.counter is not None)


@dataclass(frozen=True)
class Held:
    """One reason over time."""

    reason: ClockEvent
    share: Floats
    """(steps,) of the time that was read; NaN in a gap."""
    counted: bool
    """Whether a counter tells it; else readings do."""
    whole: float | None
    """The share of all the time that was read."""


@dataclass(frozen=True)
class Reasons:
    """The reasons over time, in steps that are about equally long. Between two stretches nothing was read."""

    began: tuple[datetime, ...]
    ended: tuple[datetime, ...]
    """(steps,) UTC."""
    stretch: Ints
    """(steps,) the number of the stretch of time without a gap that each is in."""
    n: Ints
    """(steps,) readings in each."""
    covered: Floats
    """(steps,) the share of each that was read."""
    held: tuple[Held, ...]
    """The reasons that were told at any time, that of the largest share first."""
    readings: int
    minutes: int
    """How many pruned minutes are among what was read."""
    cut: bool
    """Whether there is earlier telemetry that is left out, as it is too much at once."""
    told: bool = True
    """Whether any reading says which reasons there were; else nobody knows."""


def reasons(
    store: Store, cluster: str, keys: Collection[str], since_ns: int | None = None, until_ns: int | None = None
) -> Reasons | None:
    """The reasons over all telemetry of a GPU, or between two times (ns since 1970); None where there is none."""
    in_time = (pl.col("cluster") == cluster) & pl.col("gpu").is_in(list(keys))
    at = pl.col("ts").dt.epoch("ns")
    in_time = in_time if since_ns is None else in_time & (at >= since_ns)
    in_time = in_time if until_ns is None else in_time & (at < until_ns)
    readings, pruned = store.scan("telemetry", keys), store.scan("telemetry_minutes", keys)
    days = [table.filter(in_time).select(at.alias("day") // 86_400_000_000_000) for table in (readings, pruned)]
    counted = store.collect(pl.concat(days).group_by("day").len().sort("day", descending=True))
    if counted.is_empty():
        return None
    fits_in = counted.filter((pl.col("len").cum_sum() <= _ROWS) | (pl.int_range(pl.len()) == 0))
    cut = fits_in.height < counted.height
    in_time = in_time & (at >= int(fits_in["day"][-1]) * 86_400_000_000_000)
    mask = "clock_event_reasons"
    rows = store.collect(readings.filter(in_time).select(at, mask, *_COUNTERS, pl.lit(1, pl.Int64).alias("n")))
    ends = (f"{counter}_{end}" for counter in _COUNTERS for end in ("first", "last"))
    minutes = store.collect(pruned.filter(in_time).select(at, "n", mask, *ends))
    return _reasons(rows, minutes, cut=cut)


def _reasons(rows: pl.DataFrame, minutes: pl.DataFrame, *, cut: bool) -> Reasons | None:
    points = pl.concat(
        [rows.with_columns(pl.lit(value=False).alias("minute")), _points(minutes)], how="diagonal_relaxed"
    ).sort("ts")
    ts = points["ts"].to_numpy()
    if len(ts) < 2 or ts[-1] <= ts[0]:
        return None
    apart, joined = _between(ts)
    edges, stretch = _steps(ts, apart, joined, _rarest(points, ts))
    bins = np.searchsorted(edges[0], ts, side="right") - 1
    n = np.bincount(bins, points["n"].to_numpy(), minlength=len(stretch)).astype(np.int64)
    covered = _summed(bins[1:][joined], apart[joined], len(stretch)) / ((edges[1] - edges[0]) / 1e9)
    held = [shares for reason in _SHOWN if (shares := _held(reason, points, ts, bins, len(stretch))) is not None]
    held.sort(key=lambda shares: -(shares.whole or 0.0))
    began, ended = (tuple(date_of_ns(int(ns)) for ns in ends) for ends in edges)
    is_known = any(points[name].count() for name in ("clock_event_reasons", *_COUNTERS))
    return Reasons(
        began, ended, stretch, n, np.minimum(covered, 1.0), tuple(held), int(n.sum()),
        int(points["minute"].to_numpy().sum()) // 2, cut, is_known,
    )  # fmt: skip


def _rarest(points: pl.DataFrame, ts: Ints) -> float:
    """The usual seconds between two readings of what is read least often of what tells a reason."""
    present = (points[name].is_not_null().to_numpy() for name in ("clock_event_reasons", *_COUNTERS))
    read = [ts, *(ts[times] for times in present if times.sum() >= _FEW)]
    return max(_usual(np.diff(times) / 1e9) for times in read)


def _steps(ts: Ints, apart: Floats, joined: npt.NDArray[np.bool_], rarest: float) -> tuple[Floats, Ints]:
    """(2, steps) beginning and end of each, and the number of its stretch: none is where nothing was read for long.

    A step is longer than the time between two readings: a shorter one would have none, as if nobody had read.
    """
    step = max(max(float(apart[joined].sum()), 1.0) / STEPS, 2 * rarest)
    breaks = np.flatnonzero(~joined & (apart > step))
    first, last = ts[np.append(0, breaks + 1)], ts[np.append(breaks, len(ts) - 1)]
    if len(first) > STEPS:  # as of a reading now and then
        first, last, step = ts[:1], ts[-1:], (ts[-1] - ts[0]) / 1e9 / STEPS
    edges: list[Floats] = []
    stretch: list[int] = []
    for number, (began, ended) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        count = max(1, round((ended - began) / 1e9 / step))
        cuts = np.linspace(began, max(ended, began + 1), count + 1)
        edges.append(np.stack([cuts[:-1], cuts[1:]]))
        stretch += [number] * count
    return np.concatenate(edges, axis=1), np.array(stretch, dtype=np.int64)


def _between(ts: Ints) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Seconds between readings, and whether there was no gap between them."""
    apart = np.diff(ts) / 1e9
    return apart, (apart > 0) & (apart <= max(_LONG * _usual(apart), _SHORTEST_S))


def _usual(apart: Floats) -> float:
    return float(np.median(apart[apart > 0])) if (apart > 0).any() else 0.0


def _held(reason: ClockEvent, points: pl.DataFrame, ts: Ints, bins: Ints, steps: int) -> Held | None:
    """A reason; None where it was never told."""
    if (
        reason.counter is not None
        and (counted := _counted(reason, points[reason.counter], ts, bins, steps)) is not None
    ):
        return counted
    if reason.bit is None:
        return None
    mask = points["clock_event_reasons"]
    is_read = mask.is_not_null().to_numpy()
    is_named = is_read & ((mask.fill_null(0).to_numpy() & reason.bit) != 0)
    if not is_named.any():
        return None
    weight = points["n"].to_numpy().astype(np.float64)
    named_weight, read_weight = (_summed(bins[chosen], weight[chosen], steps) for chosen in (is_named, is_read))
    return Held(reason, _share(named_weight, read_weight), False, float(named_weight.sum() / read_weight.sum()))


def _counted(reason: ClockEvent, column: pl.Series, ts: Ints, bins: Ints, steps: int) -> Held | None:
    """A reason by its counter, which may be read less often than the rest; None where it never moved."""
    read_at = np.flatnonzero(column.is_not_null().to_numpy())
    if len(read_at) < 2:
        return None
    moved = np.diff(column.drop_nulls().to_numpy()) / 1e9
    apart, joined = _between(ts[read_at])
    use = joined & (moved >= 0)  # a counter that fell was reset
    seconds, read_s = (_summed(bins[read_at[1:]][use], values[use], steps) for values in (moved, apart))
    if not seconds.any():
        return None
    return Held(reason, _share(seconds, read_s), True, min(1.0, float(seconds.sum() / read_s.sum())))


def _summed(bins: Ints, values: Floats, steps: int) -> Floats:
    return np.bincount(bins, values, minlength=steps).astype(np.float64)


def _share(part: Floats, total: Floats) -> Floats:
    with np.errstate(all="ignore"):
        return np.where(total > 0, np.minimum(part / total, 1.0), np.nan)


def _points(minutes: pl.DataFrame) -> pl.DataFrame:
    """A minute as its first and its last reading."""
    half = (pl.col("n") + 1) // 2
    ends = {"first": (pl.col("ts"), half), "last": (pl.col("ts") + int(0.98 * _MINUTE_S * 1e9), pl.col("n") - half)}
    return pl.concat(
        minutes.select(
            at.alias("ts"), count.alias("n"), "clock_event_reasons",
            *(pl.col(f"{counter}_{end}").alias(counter) for counter in _COUNTERS), pl.lit(value=True).alias("minute"),
        )
        for end, (at, count) in ends.items()
    )  # fmt: skip
