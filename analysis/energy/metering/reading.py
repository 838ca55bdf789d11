"""Meters of a store's GPUs: their readings, a number of GPUs at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

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
    tables = [_of_readings(store.scan("telemetry"))]
    if len(store.files("telemetry_minutes")) > 1:
        tables += _of_minutes(store.scan("telemetry_minutes"))
    near = [_near(rows, cluster, since_ns, until_ns) for rows in tables]
    counts = pl.concat([store.collect(rows.group_by(_KEYS).len()) for rows in near])
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


def _chunk(store: Store, tables: list[pl.LazyFrame], chunk: pl.DataFrame) -> Iterator[tuple[int, Readings]]:
    """The readings of some GPUs: the row in `chunk`, and what was read."""
    numbered = chunk.select(_KEYS).with_row_index("place")
    names = chunk["gpu"]
    within = pl.col("gpu").is_between(pl.lit(names.min()), pl.lit(names.max())) & pl.col("gpu").is_in(names.to_list())
    parts = [
        store.collect(rows.filter(within)).join(numbered, on=_KEYS, nulls_equal=True).drop(_KEYS) for rows in tables
    ]
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


def _of_readings(rows: pl.LazyFrame) -> pl.LazyFrame:
    return rows.select(
        *_KEYS,
        "ts",
        (pl.col("power_mw") / 1000).alias("power_w"),
        (pl.col("power_instant_mw") / 1000).alias("instant_w"),
        (pl.col("energy_mj") / 1000).alias("counter_j"),
        (pl.col("utilization") / 100).alias("utilization"),
        (pl.col("power_window_ms") / 1000).alias("window_s"),
        (pl.col("power_limit_mw") / 1000).alias("limit_w"),
        _stuck().alias("stuck"),
    )


def _of_minutes(rows: pl.LazyFrame) -> list[pl.LazyFrame]:
    """Minutes of pruned telemetry as two readings each: at the first and at the last row that it stands for."""
    every = _MINUTE_S / pl.col("n")
    instant = pl.col("power_instant_mw_mean").is_not_null()

    def power(name: str) -> pl.Expr:  # a mean over rows of 0 W is no power
        return pl.when(pl.col(f"{name}_min") > 0).then(pl.col(f"{name}_mean") / 1000).otherwise(pl.col(f"{name}_min"))

    def spread(name: str) -> pl.Expr:
        return (pl.col(f"{name}_max") - pl.col(f"{name}_min")) / 1000

    def at(seconds: pl.Expr, counter: str) -> pl.LazyFrame:
        return rows.select(
            *_KEYS,
            pl.col("ts") + pl.duration(nanoseconds=(seconds * 1e9).cast(pl.Int64)),
            power("power_mw").alias("power_w"),
            power("power_instant_mw").alias("instant_w"),
            (pl.col(counter) / 1000).alias("counter_j"),
            (pl.col("utilization_mean") / 100).alias("utilization"),
            (pl.col("power_window_ms_mean") / 1000).alias("window_s"),
            (pl.col("power_limit_mw_max") / 1000).alias("limit_w"),
            _stuck().alias("stuck"),
            pl.when(instant).then(spread("power_instant_mw")).otherwise(spread("power_mw")).alias("spread_w"),
            every.alias("every_s"),
        )

    return [
        at(every / 2, "energy_mj_first"),
        at(_MINUTE_S - every / 2, "energy_mj_last").filter(pl.col("every_s") < 60),
    ]


def _stuck() -> pl.Expr:
    return pl.col("quality").str.contains("power_stuck", literal=True).fill_null(False)


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
