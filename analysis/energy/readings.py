"""Meters of a store's GPUs: their telemetry, a number of GPUs at a time, and what was noticed around it.

A row of `telemetry` is a reading. A minute of pruned telemetry, which has means, is two: at the first and at the last
row that it stands for. Events say what readings do not show: a counter that was reset looks the same without a reload
of the driver, and rows lie in the order of their times even if the clock was set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.catalog import quoted
from ...store.file_names import EVER, Bounds
from ...store.instants import date_of_ns, times_of_ns
from ...store.metrics import BOARD_POWER
from ...store.vocabulary import EventKind
from .meter import Meters, meters_of_readings
from .sensor import Note, Problem, Readings

if TYPE_CHECKING:
    from ...store import Store

_ROWS = 100_000  # of telemetry that are in memory at once, about
_LONGEST_NS = 2**62  # the times of GPUs that are metered at once add up to this at most
_MARGIN_NS = 180 * 10**9  # before and after the time that was asked for: the readings on either side of its ends
_MINUTE_S = 60.0
_FULL_MINUTE = 0.9  # of the rows of the minutes beside it
_KEYS = ["cluster", "gpu"]
_FIGURES = ("power_w", "instant_w", "counter_j", "utilization", "window_s", "limit_w", "spread_w", "every_s")
_OFTEN_MISSING = ("instant_w", "counter_j", "window_s", "limit_w", "spread_w", "every_s")
_PROBLEMS = {EventKind.DRIVER_RELOADED.value: Problem.DRIVER_RELOAD, EventKind.CLOCK_STEP.value: Problem.CLOCK_STEP}

Key = tuple[str, str]


@dataclass(frozen=True)
class GpuRange:
    """GPUs with names in a range: from `first` on, up to the one before `end`; None: without a bound."""

    first: str | None = None
    end: str | None = None

    def __contains__(self, gpu: str | None) -> bool:
        if gpu is None:
            return self.first is None
        return (self.first is None or gpu >= self.first) and (self.end is None or gpu < self.end)

    @property
    def holds(self) -> pl.Expr:
        """Whether a row is of such a GPU. What files say of their names tells which have none."""
        gpu = pl.col("gpu")
        after = pl.lit(value=True) if self.first is None else gpu >= pl.lit(self.first)
        return after if self.end is None else after & (gpu < pl.lit(self.end))


ALL_GPUS = GpuRange()


class ReadingScope(TypedDict, total=False):
    """Which telemetry is metered; what is left out bounds nothing."""

    cluster: str | None
    gpus: Collection[tuple[str, str]] | None
    """Only these: cluster and GPU of each."""
    since_ns: int | None
    """From when to when, UTC."""
    until_ns: int | None
    names: GpuRange


def meters_of_many(store: Store, **scope: Unpack[ReadingScope]) -> Iterator[Meters]:
    """The meters of all physical GPUs that have telemetry in a scope, in order, some GPUs at a time. Raises
    StoreError."""
    since_ns, until_ns = scope.get("since_ns"), scope.get("until_ns")
    for parts in metered_readings(store, **scope):
        meters = Meters.joined([meters for _, meters in parts])
        meters = meters.only(meters.boards.select(_KEYS).with_row_index().sort(_KEYS)["index"].to_numpy())
        yield from filter(len, [meters.between(since_ns, until_ns)])


def metered_readings(store: Store, **scope: Unpack[ReadingScope]) -> Iterator[list[tuple[Readings, Meters]]]:
    """As `meters_of_many`, some GPUs at a time, of these those with as many readings each together: the readings, those
    shortly before and after the time too, and the meters of all of them."""
    cluster, gpus, names = scope.get("cluster"), scope.get("gpus"), scope.get("names", ALL_GPUS)
    since_ns, until_ns = scope.get("since_ns"), scope.get("until_ns")
    within = _bounds(since_ns, until_ns)
    listed = None if gpus is None else list({gpu for _, gpu in gpus})
    tables = {
        name: _near(store.scan(name, listed, within=within), cluster, listed, since_ns, until_ns).filter(names.holds)
        for name in _tables(store, within)
    }
    counts = pl.concat([store.collect(rows.group_by(_KEYS).len()) for rows in tables.values()])
    # Readings of which nobody knows the GPU are of no meter.
    counts = counts.drop_nulls("gpu").group_by(_KEYS).agg(pl.col("len").sum()).sort(_KEYS)
    # What MIG instances have of power is their GPU's.
    instances = store.scan("gpus").filter(pl.col("parent").is_not_null()).select(_KEYS).unique()
    counts = counts.join(store.collect(instances), on=_KEYS, how="anti", nulls_equal=True)
    if gpus is not None:
        chosen = pl.DataFrame(list(gpus), schema=dict.fromkeys(_KEYS, pl.String), orient="row")
        counts = counts.join(chosen, on=_KEYS, how="semi", nulls_equal=True)
    boards, noticed = _boards(store, gpus), _noticed(store, cluster, since_ns, until_ns)
    part = (pl.col("len").cum_sum() - 1) // _ROWS
    for chunk in counts.with_columns(part.alias("part")).partition_by("part", maintain_order=True):
        parts, lasted = list[tuple[Readings, Meters]](), 0
        for keys, readings in _chunk(store, tables, chunk):
            ends = readings.ts_ns[:, [0, -1]]
            lasts = int(np.diff(ends).sum())
            if parts and lasted + lasts > _LONGEST_NS:
                yield parts
                parts, lasted = [], 0
            events = [
                [note for note in noticed.get(key, ()) if first <= note.began_ns <= last]
                for key, (first, last) in zip(keys, ends.tolist(), strict=True)
            ]
            limits_w, models = zip(*(boards.get(key, (None, None)) for key in keys), strict=True)
            meters = meters_of_readings(keys, readings, limits_w, models=models, events=events)
            parts, lasted = [*parts, (readings, meters)], lasted + lasts
        if parts:
            yield parts


def covered(store: Store, *, cluster: str | None = None) -> pl.DataFrame:
    """What time has telemetry, by cluster: `cluster`, `first` and `last` (UTC). Raises StoreError."""
    parts = []
    of_cluster = "" if cluster is None else f"where cluster = {quoted(cluster)} "
    for name in _tables(store):
        lasts = " + interval 1 minute" if name == "telemetry_minutes" else ""  # its time stamps are when minutes begin
        query = f"select cluster, min(ts) as first, max(ts) as last from {name} {of_cluster}group by cluster"
        clusters = store.sql(f"select distinct cluster from {name}").polars()["cluster"].to_list()
        ends = store.rows([name])[name].ends_us
        if len(clusters) == 1 and clusters[0] is not None and cluster in (None, clusters[0]) and ends is not None:
            first, last = (f"make_timestamp({end})" for end in ends)  # quicker than to read all times
            query = f"select {quoted(clusters[0])} as cluster, {first} as first, {last} as last"
        ends_ns = f"first::timestamp_ns as first, (last{lasts})::timestamp_ns as last"
        parts.append(store.sql(f"select cluster, {ends_ns} from ({query})").polars())
    ends_by_table = pl.concat(parts).with_columns(pl.col("cluster").cast(pl.String))
    return ends_by_table.group_by("cluster").agg(pl.col("first").min(), pl.col("last").max()).sort("cluster")


def rows_since(store: Store, since: Sequence[datetime], until: datetime, *, cluster: str | None = None) -> list[int]:
    """How many rows of telemetry there are from each of these times to `until` (UTC). Raises StoreError."""
    counts = ", ".join(f"count(*) filter (ts >= timestamp '{moment}') as n{n}" for n, moment in enumerate(since))
    before = f"ts < timestamp '{until}'" + ("" if cluster is None else f" and cluster = {quoted(cluster)}")
    by_table = [store.sql(f"select {counts} from {name} where {before}").polars().row(0) for name in _tables(store)]
    return [sum(numbers) for numbers in zip(*by_table, strict=True)]


def _tables(store: Store, within: Bounds = EVER) -> list[str]:
    """The tables that hold telemetry within the bounds: pruned minutes only where there are any."""
    pruned = store.rows(["telemetry_minutes"], within)["telemetry_minutes"].files
    return ["telemetry", "telemetry_minutes"] if pruned else ["telemetry"]


def _bounds(since_ns: int | None, until_ns: int | None) -> Bounds:
    """The times of files that can have readings from one to the other, or shortly beside them."""
    return Bounds(
        EVER.first_us if since_ns is None else (since_ns - _MARGIN_NS) // 1000,
        EVER.last_us if until_ns is None else (until_ns + _MARGIN_NS) // 1000,
    )


def _chunk(store: Store, tables: dict[str, pl.LazyFrame], chunk: pl.DataFrame) -> Iterator[tuple[list[Key], Readings]]:
    """The readings of some GPUs: of those with as many, together."""
    within = _among(chunk["gpu"].to_list())
    numbered = chunk.sort("len", maintain_order=True).select(_KEYS).with_row_index("place")

    def read(name: str, columns: Sequence[pl.Expr | str]) -> pl.DataFrame:
        rows = store.collect(tables[name].filter(within).select(*_KEYS, "ts", *columns))
        return rows.join(numbered, on=_KEYS, nulls_equal=True).drop(_KEYS)

    parts = [read("telemetry", _READ)]
    if "telemetry_minutes" in tables:
        parts += _ends(read("telemetry_minutes", _READ_OF_MINUTES))
    rows = pl.concat(parts, how="diagonal_relaxed").sort("place", "ts", maintain_order=True)
    place, ts = rows["place"].to_numpy(), rows["ts"].dt.epoch("ns").to_numpy()
    fresh = np.append(True, (ts[1:] != ts[:-1]) | (place[1:] != place[:-1]))  # one row of an instant counts
    columns: dict[str, Any] = {"ts_ns": ts, "stuck": rows["stuck"].to_numpy()}
    for name in _FIGURES:
        values = rows[name] if name in rows.columns else None
        if values is None or (values.null_count() == len(values) and name in _OFTEN_MISSING):
            columns[name] = None
        else:
            columns[name] = values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    readings = Readings(**columns)
    if not fresh.all():
        readings, place = readings.each(lambda values: values[fresh]), place[fresh]
    firsts = np.flatnonzero(np.diff(place, prepend=place[:1] + 1))
    n, keys = np.diff(firsts, append=len(place)), numbered.drop("place").rows()
    most = _LONGEST_NS // max(int(np.ptp(ts)), 1) if len(ts) else 1  # GPUs whose times do not add up to more
    changes = np.diff(n, prepend=-1) != 0
    changes[::most] = True
    for gpu, end in pairwise([*np.flatnonzero(changes).tolist(), len(n)]):
        of_gpus = partial(_matrix, int(firsts[gpu]), end - gpu, int(n[gpu]))
        yield [keys[at] for at in place[firsts[gpu:end]].tolist()], readings.each(of_gpus)


def _matrix(first: int, gpus: int, n: int, values: NDArray[Any]) -> NDArray[Any]:
    """The values of GPUs with as many readings each, from one place on; a row for each GPU."""
    return values[first : first + gpus * n].reshape(gpus, n)


def _among(gpus: Sequence[str]) -> pl.Expr:
    """Whether a row is of one of these GPUs. The range of their names tells which files have none."""
    if not gpus:
        return pl.lit(False)
    return pl.col("gpu").is_between(pl.lit(min(gpus)), pl.lit(max(gpus))) & pl.col("gpu").is_in(gpus)


def _near(
    rows: pl.LazyFrame, cluster: str | None, gpus: Sequence[str] | None, since_ns: int | None, until_ns: int | None
) -> pl.LazyFrame:
    """The rows of a cluster and of GPUs of these names, and shortly before and after a time."""
    if cluster is not None:
        rows = rows.filter(pl.col("cluster") == cluster)
    if gpus is not None:
        rows = rows.filter(_among(gpus))
    if since_ns is not None:
        rows = rows.filter(pl.col("ts") >= pl.lit(date_of_ns(since_ns - _MARGIN_NS)))
    if until_ns is not None:
        rows = rows.filter(pl.col("ts") <= pl.lit(date_of_ns(until_ns + _MARGIN_NS)))
    return rows


def _mean_power(name: str) -> pl.Expr:
    """Of a minute; a mean over rows of 0 W is no power."""
    return pl.when(pl.col(f"{name}_min") > 0).then(pl.col(f"{name}_mean")).otherwise(pl.col(f"{name}_min")) / 1000


def _spread(name: str) -> pl.Expr:
    return (pl.col(f"{name}_max") - pl.col(f"{name}_min")) / 1000


_STUCK = pl.col("quality").str.contains("power_stuck", literal=True).fill_null(False).alias("stuck")
_READ = (
    (pl.col("power_mw") / 1000).alias("power_w"),
    (pl.col("power_instant_mw") / 1000).alias("instant_w"),
    (pl.col("energy_mj") / 1000).alias("counter_j"),
    (pl.col("utilization") / 100).alias("utilization"),
    (pl.col("power_window_ms") / 1000).alias("window_s"),
    (pl.col("power_limit_mw") / 1000).alias("limit_w"),
    _STUCK,
)
_READ_OF_MINUTES = (
    "n",
    _mean_power("power_mw").alias("power_w"),
    _mean_power("power_instant_mw").alias("instant_w"),
    (pl.col("energy_mj_first") / 1000).alias("first_j"),
    (pl.col("energy_mj_last") / 1000).alias("last_j"),
    (pl.col("utilization_mean") / 100).alias("utilization"),
    (pl.col("power_window_ms_mean") / 1000).alias("window_s"),
    (pl.col("power_limit_mw_max") / 1000).alias("limit_w"),
    pl.coalesce(*(_spread(name) for name in BOARD_POWER)).alias("spread_w"),
    _STUCK,
)


def _ends(minutes: pl.DataFrame) -> list[pl.DataFrame]:
    """Minutes of pruned telemetry as two readings each: at the first and at the last row that it stands for.

    A minute with fewer rows than the one before or after it is not full: its rows are taken to lie at the side of the
    minute before.
    """
    ts = pl.col("ts").dt.epoch("ns")
    minute = int(_MINUTE_S * 1e9)
    rows = minutes.sort("place", "ts", "n").unique(["place", "ts"], keep="last", maintain_order=True)
    beside = {by: (ts - ts.shift(by)).over("place").abs() == minute for by in (1, -1)}
    most = pl.max_horizontal("n", *(pl.when(near).then(pl.col("n").shift(by)) for by, near in beside.items()))
    rows = rows.with_columns(most.alias("most"), beside[1].fill_null(False).alias("follows"))
    full = pl.col("n") >= _FULL_MINUTE * pl.col("most")
    apart = (_MINUTE_S / pl.when(full).then("n").otherwise("most")).alias("every_s")
    rows = rows.with_columns(apart).with_columns((pl.col("n") * pl.col("every_s")).alias("covered_s"))
    began = pl.when("follows").then(0.0).otherwise(_MINUTE_S - pl.col("covered_s"))

    def at(seconds: pl.Expr, counter: str) -> pl.DataFrame:
        moment = times_of_ns(ts + (seconds * 1e9).cast(pl.Int64))
        return rows.with_columns(moment.alias("ts"), pl.col(counter).alias("counter_j")).select(
            "place", "ts", "counter_j", "power_w", "instant_w", "utilization", "window_s", "limit_w", "spread_w",
            "every_s", "stuck",
        )  # fmt: skip

    half = pl.col("every_s") / 2
    return [at(began + half, "first_j"), at(began + pl.col("covered_s") - half, "last_j")]


def _boards(store: Store, gpus: Collection[tuple[str, str]] | None) -> dict[Key, tuple[float | None, str | None]]:
    """By cluster and GPU: its power limit (W) and its model."""
    limit = pl.max_horizontal("power_limit_mw", "power_limit_default_mw").max() / 1000
    model = pl.col("model").sort_by("first_seen", nulls_last=False).drop_nulls().last()
    rows = store.scan("gpus")
    if gpus is not None:
        rows = rows.filter(pl.col("gpu").is_in(sorted({gpu for _, gpu in gpus})))
    boards = store.collect(rows.group_by(_KEYS).agg(limit.alias("limit_w"), model))
    return {(cluster, gpu): (limit_w, name) for cluster, gpu, limit_w, name in boards.iter_rows()}


def _noticed(store: Store, cluster: str | None, since_ns: int | None, until_ns: int | None) -> dict[Key, list[Note]]:
    """The notes that events give of each GPU, in order. An event of a whole node counts for each of its GPUs."""
    conditions = [f"kind in ({', '.join(map(quoted, _PROBLEMS))})"]
    conditions += [f"events.cluster = {quoted(cluster)}"] if cluster is not None else []
    conditions += [f"epoch_ns(ts) >= {since_ns}"] if since_ns is not None else []
    conditions += [f"epoch_ns(ts) <= {until_ns}"] if until_ns is not None else []
    rows = store.sql(
        "select distinct events.cluster, coalesce(events.gpu, gpus_now.gpu) as gpu, kind, epoch_ns(ts) as ts, "
        "coalesce(duration_ns, 0) as duration_ns from events left join gpus_now on events.gpu is null "
        "and parent is null and gpus_now.node = events.node and gpus_now.cluster is not distinct from events.cluster "
        f"where {' and '.join(conditions)} order by ts, kind, duration_ns"
    ).to_pylist()
    notes = defaultdict[Key, list[Note]](list)
    for row in rows:
        # The times that the clock showed twice lie after a step back; those that it never showed, before a step ahead.
        stepped = row["duration_ns"] if row["kind"] == EventKind.CLOCK_STEP else 0
        began, ended = sorted((row["ts"], row["ts"] - stepped))
        if row["gpu"] is not None:
            note = Note(_PROBLEMS[row["kind"]], began, ended, seconds=stepped / 1e9 if stepped else None)
            notes[row["cluster"], row["gpu"]].append(note)
    return notes
