"""Meters of a store's GPUs: their readings, a number of GPUs at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from .building import build
from .happened import happened
from .meter import Meter
from .readings import Floats, Readings

if TYPE_CHECKING:
    from ....store import Store

_ROWS = 2_000_000  # of telemetry that are in memory at once, about


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
    rows = _rows(store, cluster, since_ns, until_ns)
    counts = store.collect(rows.group_by("cluster", "gpu").len().sort("cluster", "gpu"))
    counts = counts.join(_instances(store), on=["cluster", "gpu"], how="anti", nulls_equal=True)
    if gpus is not None:
        wanted = pl.DataFrame(list(gpus), schema={"cluster": pl.String, "gpu": pl.String}, orient="row")
        counts = counts.join(wanted, on=["cluster", "gpu"], how="semi", nulls_equal=True)
    boards, noticed = _boards(store), happened(store, cluster, since_ns, until_ns)
    part = (pl.col("len").cum_sum() - 1) // _ROWS
    for chunk in counts.with_columns(part.alias("part")).partition_by("part", maintain_order=True):
        keys = chunk.select("cluster", "gpu")
        names = keys["gpu"].to_list()
        mine = store.collect(rows.filter(pl.col("gpu").is_in(names)))
        mine = mine.join(keys, on=["cluster", "gpu"], how="semi", nulls_equal=True).sort("cluster", "gpu", "ts")
        for (on, gpu), frame in mine.group_by("cluster", "gpu", maintain_order=True):
            key = (str(on), str(gpu))
            meter = build(*key, _readings(frame, *boards.get(key, (None, None))))
            yield replace(meter, notes=(*meter.notes, *noticed[key])) if key in noticed else meter


def _rows(store: Store, cluster: str | None, since_ns: int | None, until_ns: int | None) -> pl.LazyFrame:
    rows = store.scan("telemetry")
    if cluster is not None:
        rows = rows.filter(pl.col("cluster") == cluster)
    if since_ns is not None:
        rows = rows.filter(pl.col("ts") >= pl.lit(since_ns).cast(pl.Datetime("ns")))
    if until_ns is not None:
        rows = rows.filter(pl.col("ts") <= pl.lit(until_ns).cast(pl.Datetime("ns")))
    return rows.select(
        "cluster",
        "gpu",
        "ts",
        (pl.col("power_mw") / 1000).alias("power_w"),
        (pl.col("power_instant_mw") / 1000).alias("instant_w"),
        (pl.col("energy_mj") / 1000).alias("counter_j"),
        (pl.col("utilization") / 100).alias("utilization"),
        (pl.col("power_window_ms") / 1000).alias("window_s"),
        (pl.col("power_limit_mw") / 1000).alias("limit_w"),
        pl.col("quality").str.contains("power_stuck", literal=True).fill_null(False).alias("stuck"),
    )


def _instances(store: Store) -> pl.DataFrame:
    """MIG instances: what they have of power is their GPU's."""
    return store.collect(store.scan("gpus").filter(pl.col("parent").is_not_null()).select("cluster", "gpu").unique())


def _boards(store: Store) -> dict[tuple[str, str], tuple[float | None, str | None]]:
    """By cluster and GPU: its power limit (W) and its model."""
    limit = pl.max_horizontal("power_limit_mw", "power_limit_default_mw").max() / 1000
    model = pl.col("model").drop_nulls().last()
    found = store.collect(store.scan("gpus").group_by("cluster", "gpu").agg(limit.alias("limit_w"), model))
    return {(on, gpu): (limit, model) for on, gpu, limit, model in found.iter_rows()}


def _readings(frame: pl.DataFrame, limit_w: float | None, model: str | None) -> Readings:
    ts = frame["ts"].cast(pl.Int64).to_numpy()
    fresh = np.concatenate([[True], np.diff(ts) > 0])  # a second row of the same instant is left out

    def column(name: str) -> Floats:
        found: Floats = frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()[fresh]
        return found

    limits = column("limit_w")
    highest = np.nanmax(limits) if not np.isnan(limits).all() else None
    return Readings(
        ts[fresh],
        column("power_w"),
        column("instant_w"),
        column("counter_j"),
        column("utilization"),
        column("window_s"),
        frame["stuck"].to_numpy()[fresh],
        float(highest) if highest is not None else limit_w,
        model,
    )
