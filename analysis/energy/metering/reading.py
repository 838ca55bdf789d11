"""Meters of a store's GPUs: their readings, a number of GPUs at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ....store.metrics import BOARD_POWER
from .building import build
from .findings import Note
from .happened import happened
from .meter import Meter
from .readings import Readings

if TYPE_CHECKING:
    from ....store import Store

_ROWS = 2_000_000  # of telemetry that are in memory at once, about
_MARGIN_NS = 180 * 10**9  # before and after the time that was asked for: the readings on either side of its ends
_MINUTE_S = 60.0
_FULL_MINUTE = 0.9  # of the rows of the minutes beside it
_KEYS = ["cluster", "gpu"]
_FIGURES = ("power_w", "instant_w", "counter_j", "utilization", "window_s", "limit_w", "spread_w", "every_s")

Key = tuple[str, str]


def meters(
    store: Store,
    *,
    cluster: str | None = None,
    gpus: Collection[tuple[str, str]] | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
) -> Iterator[Meter]:
    """The meter of each physical GPU that has telemetry from `since_ns` to `until_ns` (UTC; None: all), in order.

    `gpus` keeps only these: cluster and GPU of each. Raises StoreError.
    """
    near = {name: _near(store.scan(name), cluster, since_ns, until_ns) for name in _tables(store)}
    counts = pl.concat([store.collect(rows.group_by(_KEYS).len()) for rows in near.values()])
    counts = counts.group_by(_KEYS).agg(pl.col("len").sum()).sort(_KEYS)
    counts = counts.join(_instances(store), on=_KEYS, how="anti", nulls_equal=True)
    if gpus is not None:
        wanted = pl.DataFrame(list(gpus), schema=dict.fromkeys(_KEYS, pl.String), orient="row")
        counts = counts.join(wanted, on=_KEYS, how="semi", nulls_equal=True)
    boards, noticed = _boards(store), happened(store, cluster, since_ns, until_ns)
    part = (pl.col("len").cum_sum() - 1) // _ROWS
    for chunk in counts.with_columns(part.alias("part")).partition_by("part", maintain_order=True):
        for place, readings in _chunk(store, near, chunk):
            key: Key = chunk.select(_KEYS).row(place)
            board, told = boards.get(key, {}), _inside(noticed.get(key, ()), readings)
            meter = build(*key, readings, board.get("limit_w"), board.get("model"), told).between(since_ns, until_ns)
            if meter is not None:
                yield meter


def covered(store: Store, *, cluster: str | None = None) -> pl.DataFrame:
    """What time has telemetry, by cluster: `cluster`, `first` and `last` (UTC). Raises StoreError."""
    parts = []
    for name in _tables(store):
        first, last = pl.col("ts").min().alias("first"), pl.col("ts").max().alias("last")
        if name == "telemetry_minutes":  # its time stamps are when minutes begin
            last += pl.duration(seconds=60, time_unit="ns")
        rows = _near(store.scan(name), cluster, None, None)
        parts.append(store.collect(rows.group_by("cluster").agg(first, last)))
    found = pl.concat(parts)
    return found.group_by("cluster").agg(pl.col("first").min(), pl.col("last").max()).sort("cluster")


def _tables(store: Store) -> list[str]:
    """The tables that hold telemetry: pruned minutes only where there are any."""
    return ["telemetry", "telemetry_minutes"] if len(store.files("telemetry_minutes")) > 1 else ["telemetry"]


def _chunk(store: Store, tables: dict[str, pl.LazyFrame], chunk: pl.DataFrame) -> Iterator[tuple[int, Readings]]:
    """The readings of some GPUs: the row in `chunk`, and what was read."""
    numbered = chunk.select(_KEYS).with_row_index("place")
    names = chunk["gpu"]
    within = pl.col("gpu").is_between(pl.lit(names.min()), pl.lit(names.max())) & pl.col("gpu").is_in(names.to_list())

    def read(name: str, columns: Sequence[pl.Expr | str]) -> pl.DataFrame:
        some = store.collect(tables[name].filter(within).select(*_KEYS, "ts", *columns))
        return some.join(numbered, on=_KEYS, nulls_equal=True).drop(_KEYS)

    parts = [read("telemetry", _READ)]
    if "telemetry_minutes" in tables:
        parts += _ends(read("telemetry_minutes", _READ_OF_MINUTES))
    rows = pl.concat(parts, how="diagonal_relaxed").sort("place", "ts", maintain_order=True)
    place, ts = rows["place"].to_numpy(), rows["ts"].cast(pl.Int64).to_numpy()
    fresh = np.ones(len(ts), bool)  # a second row of one instant is left out
    fresh[1:] = (ts[1:] != ts[:-1]) | (place[1:] != place[:-1])
    again = not fresh.all()
    given = [name for name in _FIGURES if name in rows.columns]
    figures = dict(zip(given, rows.select(pl.col(given).cast(pl.Float64).fill_null(float("nan"))), strict=True))
    columns: dict[str, Any] = {name: values.to_numpy() for name, values in figures.items()}
    columns |= {"ts_ns": ts, "stuck": rows["stuck"].to_numpy()}
    if again:
        columns, place = {name: values[fresh] for name, values in columns.items()}, place[fresh]
    edges = np.concatenate([[0], np.flatnonzero(np.diff(place)) + 1, [len(place)]])
    for began, ended in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield int(place[began]), Readings(**{name: values[began:ended] for name, values in columns.items()})


def _near(rows: pl.LazyFrame, cluster: str | None, since_ns: int | None, until_ns: int | None) -> pl.LazyFrame:
    if cluster is not None:
        rows = rows.filter(pl.col("cluster") == cluster)
    if since_ns is not None:
        rows = rows.filter(pl.col("ts") >= pl.lit(since_ns - _MARGIN_NS).cast(pl.Datetime("ns")))
    if until_ns is not None:
        rows = rows.filter(pl.col("ts") <= pl.lit(until_ns + _MARGIN_NS).cast(pl.Datetime("ns")))
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
    ts = pl.col("ts").cast(pl.Int64)
    minute = int(_MINUTE_S * 1e9)
    rows = minutes.sort("place", "ts", "n").unique(["place", "ts"], keep="last", maintain_order=True)
    beside = {by: (ts - ts.shift(by)).over("place").abs() == minute for by in (1, -1)}
    most = pl.max_horizontal("n", *(pl.when(near).then(pl.col("n").shift(by)) for by, near in beside.items()))
    rows = rows.with_columns(most.alias("most"), beside[1].fill_null(False).alias("follows"))
    full = pl.col("n") >= _FULL_MINUTE * pl.col("most")
    every = (_MINUTE_S / pl.when(full).then("n").otherwise("most")).alias("every_s")
    rows = rows.with_columns(every).with_columns((pl.col("n") * pl.col("every_s")).alias("covered_s"))
    began = pl.when("follows").then(0.0).otherwise(_MINUTE_S - pl.col("covered_s"))

    def at(seconds: pl.Expr, counter: str) -> pl.DataFrame:
        when = (ts + (seconds * 1e9).cast(pl.Int64)).cast(pl.Datetime("ns"))
        return rows.with_columns(when.alias("ts"), pl.col(counter).alias("counter_j")).select(
            "place", "ts", "counter_j", "power_w", "instant_w", "utilization", "window_s", "limit_w", "spread_w",
            "every_s", "stuck",
        )  # fmt: skip

    half = pl.col("every_s") / 2
    return [at(began + half, "first_j"), at(began + pl.col("covered_s") - half, "last_j")]


def _instances(store: Store) -> pl.DataFrame:
    """MIG instances: what they have of power is their GPU's."""
    return store.collect(store.scan("gpus").filter(pl.col("parent").is_not_null()).select(_KEYS).unique())


def _boards(store: Store) -> dict[Key, dict[str, Any]]:
    """By cluster and GPU: its power limit (W) and its model."""
    limit = pl.max_horizontal("power_limit_mw", "power_limit_default_mw").max() / 1000
    model = pl.col("model").sort_by("first_seen", nulls_last=False).drop_nulls().last()
    found = store.collect(store.scan("gpus").group_by(_KEYS).agg(limit.alias("limit_w"), model))
    return {(row["cluster"], row["gpu"]): row for row in found.iter_rows(named=True)}


def _inside(notes: Sequence[Note], readings: Readings) -> list[Note]:
    first, last = readings.ts_ns[[0, -1]].tolist()
    return [note for note in notes if first <= note.began_ns <= last]
