"""Conditions of runs that must be alike for their times to be compared: which workloads mix them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from ..store import Store

_ALIKE = {
    "clock": "clock",
    "asked_power_limit_w": "power limit",
    "power_cap_w": "power limit",
    "neighbours": "neighbours",
    "suite": "suite",
    "input": "input",
    "parameters": "sizes",
}
"""What it is called, by the key in `runs.conditions`."""
_MOST_NAMED = 3
_LONGEST = 40  # characters of a value


def mixed_conditions(store: Store, *, clusters: Sequence[str] = (), workloads: Sequence[str] = ()) -> list[str]:
    """A sentence for each workload of a cluster whose sound runs were measured under conditions that differ.

    Only what a run states is compared; a power limit that was not asked for is one, too.
    """
    runs = store.scan("runs").filter(pl.col("status").fill_null("ok") == "ok", pl.col("conditions").is_not_null())
    if clusters:
        runs = runs.filter(pl.col("cluster").is_in(list(clusters)))
    if workloads:
        runs = runs.filter(pl.col("workload").is_in(list(workloads)))
    stated = store.collect(runs.select("cluster", "workload", "conditions").unique())
    if stated.is_empty():
        return []
    states = [
        pl.when(pl.col("conditions").str.contains(f'"{key}":', literal=True))
        .then(pl.col("conditions").str.json_path_match(f"$.{key}").fill_null("none"))
        .alias(key)
        for key in _ALIKE
    ]
    kinds = stated.select("cluster", "workload", *states).group_by("cluster", "workload", maintain_order=True)
    rows = kinds.agg(pl.col(list(_ALIKE)).drop_nulls().unique()).sort("cluster", "workload")
    return [sentence for row in rows.iter_rows(named=True) if (sentence := _sentence(row))]


def _sentence(row: dict[str, list[str]]) -> str | None:
    differ = [f"{name} ({_named(row[key])})" for key, name in _ALIKE.items() if len(row[key]) > 1]
    if not differ:
        return None
    where = f"{row['workload']} on {row['cluster']}"
    return f"{where}: the runs differ in {'; '.join(differ)}, which moves their times as well"


def _named(values: Sequence[str]) -> str:
    short = [value if len(value) <= _LONGEST else value[: _LONGEST - 3] + "..." for value in sorted(values)]
    more = len(short) - _MOST_NAMED
    return ", ".join(short[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
