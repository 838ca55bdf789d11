"""Conditions of runs that must be alike for their times to be compared: a note names those that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from ...store.names import plain_workload
from ...store.vocabulary import CONDITIONS, stated
from .kinds import APART
from .measurements import SOUND

if TYPE_CHECKING:
    from ...store import Store

_ALIKE = {one.name: one.alike for one in CONDITIONS if one.alike and one.name not in APART}
"""What it is called, by the field of `runs.conditions`."""
_MOST_NAMED = 3
_LONGEST = 40  # characters of a value


def mixed_conditions(store: Store, *, clusters: Sequence[str] = (), workloads: Sequence[str] = ()) -> list[str]:
    """A sentence for each workload of a cluster whose sound runs were measured under conditions that differ.

    Only what a run states is compared. Models, power limits and clocks are not here: `told_apart` parts the runs.
    """
    runs = store.scan("runs").filter(SOUND, pl.col("conditions").is_not_null())
    if clusters:
        runs = runs.filter(pl.col("cluster").is_in(list(clusters)))
    if workloads:
        runs = runs.filter(pl.col("workload").is_in([*workloads, *map(plain_workload, workloads)]))
    states = [stated(key).alias(key) for key in _ALIKE]
    kinds = store.collect(runs.select("cluster", "workload", *states)).group_by("cluster", "workload")
    rows = kinds.agg(pl.col(list(_ALIKE)).drop_nulls().unique()).sort("cluster", "workload")
    return [sentence for row in rows.iter_rows(named=True) if (sentence := _sentence(row, _ALIKE))]


def _sentence(row: dict[str, list[Any]], names: Mapping[str, str]) -> str | None:
    differ = [f"{name} ({_named(row[key])})" for key, name in names.items() if len(row[key]) > 1]
    if not differ:
        return None
    where = f"{row['workload']} on {row['cluster']}"
    return f"{where}: the runs differ in {'; '.join(differ)}, which changes their times too"


def _named(values: Sequence[str | Mapping[str, float]]) -> str:
    texts = sorted(value if isinstance(value, str) else _sizes(value) for value in values)
    short = [text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..." for text in texts]
    more = len(short) - _MOST_NAMED
    return ", ".join(short[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _sizes(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {size:g}" for name, size in sizes.items()) or "none"
