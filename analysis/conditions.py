"""Conditions of runs that must be alike for their times to be compared: they part the runs, or a note names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from ..store.conditions import CONDITIONS, Clock, stated
from .measurements import SOUND

if TYPE_CHECKING:
    from ..store import Store

_ALIKE = {one.name: one.alike for one in CONDITIONS if one.alike}
"""What it is called, by the key in `runs.conditions`."""
_LIMITS = ("asked_power_limit_w", "power_cap_w")
_LOCKED = pl.format("locked at {} MHz", stated("locked_clock_mhz").str.strip_suffix(".0"))
_MOST_NAMED = 3
_LONGEST = 40  # characters of a value


def told_apart(store: Store, runs: pl.DataFrame) -> pl.DataFrame:
    """`runs` with a workload of its own for each model of GPU, power limit and locked clock, where these differ.

    `runs`: as `measurements` gives them with `run_ids`. A workload whose runs are alike in these keeps its name; one
    of two models becomes `sgemm [Tesla V100]` and `sgemm [A100]`. What is not known is a kind of its own.
    """
    limit = pl.coalesce(pl.when(stated(key) != "none").then(stated(key)) for key in _LIMITS)
    stated_ones = store.scan("runs").select(
        "run_id",
        pl.format("{} W", limit.str.strip_suffix(".0")).alias("limit"),
        pl.when(stated("clock") == Clock.LOCKED.value).then(_LOCKED).alias("lock"),
    )
    models = store.scan("gpus").drop_nulls("model").sort("first_seen", nulls_last=False, maintain_order=True)
    models = models.group_by("cluster", "gpu").agg(pl.col("model").last())
    kinds = {"model": "model unknown", "limit": "power limit not set", "lock": "clock not locked"}
    keys = ["cluster", "workload"]
    named = runs.lazy().select("run_id", pl.col(*keys, "gpu").cast(pl.String))
    named = named.join(stated_ones, on="run_id", how="left", maintain_order="left")
    named = named.join(models, on=["cluster", "gpu"], how="left", maintain_order="left")
    parts = [
        pl.when(pl.col(kind).n_unique().over(keys) > 1).then(pl.col(kind).fill_null(unknown))
        for kind, unknown in kinds.items()
    ]
    kind = pl.concat_str(parts, separator=", ", ignore_nulls=True)
    named = named.select(pl.when(kind == "").then("workload").otherwise(pl.format("{} [{}]", "workload", kind)))
    return runs.with_columns(store.collect(named)["workload"].cast(pl.Categorical))


def mixed_conditions(
    store: Store, *, clusters: Sequence[str] = (), workloads: Sequence[str] = (), apart: bool = False
) -> list[str]:
    """A sentence for each workload of a cluster whose sound runs were measured under conditions that differ.

    Only what a run states is compared; a power limit that was not asked for is one, too. `apart`: the runs are those
    of `told_apart`, so that clocks and power limits are not mixed.
    """
    runs = store.scan("runs").filter(SOUND, pl.col("conditions").is_not_null())
    if clusters:
        runs = runs.filter(pl.col("cluster").is_in(list(clusters)))
    if workloads:
        runs = runs.filter(pl.col("workload").is_in(list(workloads)))
    known = store.collect(runs.select("cluster", "workload", "conditions").unique())
    if known.is_empty():
        return []
    clock = pl.when(stated("clock") == Clock.LOCKED.value).then(_LOCKED).otherwise(stated("clock"))
    names = {key: name for key, name in _ALIKE.items() if not (apart and key in (*_LIMITS, "clock"))}
    states = [(clock if key == "clock" else stated(key)).alias(key) for key in names]
    kinds = known.select("cluster", "workload", *states).group_by("cluster", "workload", maintain_order=True)
    rows = kinds.agg(pl.col(list(names)).drop_nulls().unique()).sort("cluster", "workload")
    return [sentence for row in rows.iter_rows(named=True) if (sentence := _sentence(row, names))]


def _sentence(row: dict[str, list[str]], names: Mapping[str, str]) -> str | None:
    differ = [f"{name} ({_named(row[key])})" for key, name in names.items() if len(row[key]) > 1]
    if not differ:
        return None
    where = f"{row['workload']} on {row['cluster']}"
    return f"{where}: the runs differ in {'; '.join(differ)}, which changes their times too"


def _named(values: Sequence[str]) -> str:
    short = [value if len(value) <= _LONGEST else value[: _LONGEST - 3] + "..." for value in sorted(values)]
    more = len(short) - _MOST_NAMED
    return ", ".join(short[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
