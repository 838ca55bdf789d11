"""What collectors and imports noticed around the readings of a GPU, as notes of its meter: reloads, clocks set.

Readings alone do not show them: a counter that was reset looks the same without a reload, and rows lie in the order of
their times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from ....store.vocabulary import EventKind
from .findings import Note, Problem

if TYPE_CHECKING:
    from ....store import Store

_PROBLEMS = {EventKind.DRIVER_RELOADED.value: Problem.DRIVER_RELOAD, EventKind.CLOCK_STEP.value: Problem.CLOCK_STEP}

Happened = dict[tuple[str, str], tuple[Note, ...]]
"""By cluster and GPU, in order of time."""


def happened(store: Store, cluster: str | None, since_ns: int | None, until_ns: int | None) -> Happened:
    """The notes that events give of each GPU. An event of a whole node counts for each of its GPUs."""
    which = pl.col("kind").is_in(list(_PROBLEMS))
    if cluster is not None:
        which &= pl.col("cluster") == cluster
    at = pl.col("ts").dt.epoch("ns")
    if since_ns is not None:
        which &= at >= since_ns
    if until_ns is not None:
        which &= at <= until_ns
    columns = ("cluster", "gpu", "node", "kind", at.alias("at"), "duration_ns")
    events = store.collect(store.scan("events").filter(which).select(*columns).unique())
    of_nodes = pl.col("gpu").is_null() & pl.col("node").is_not_null()
    if not events.filter(of_nodes).is_empty():
        gpus = store.sql("select cluster, node, gpu from gpus_now where parent is null and node is not null").polars()
        gpus = gpus.cast(pl.String)
        each = events.filter(of_nodes).drop("gpu").join(gpus, on=["cluster", "node"], nulls_equal=True)
        events = pl.concat([events.filter(~of_nodes), each.select(events.columns)])
    found: dict[tuple[str, str], list[Note]] = {}
    for row in events.drop_nulls("gpu").sort("at", "kind", "duration_ns").iter_rows(named=True):
        # The times that the clock showed twice lie after a step back; those that it never showed, before a step ahead.
        stepped = row["duration_ns"] or 0 if row["kind"] == EventKind.CLOCK_STEP else 0
        began, ended = sorted((row["at"], row["at"] - stepped))
        note = Note(_PROBLEMS[row["kind"]], began, ended, seconds=stepped / 1e9 if stepped else None)
        found.setdefault((row["cluster"], row["gpu"]), []).append(note)
    return {key: tuple(notes) for key, notes in found.items()}
