"""What the store knows of a node when a collector begins there; a child of the collector reads it."""

from __future__ import annotations

import os
from typing import Any

import polars as pl

from ..analysis.verdicts.reference import seen_on
from ..store import Store
from ..store.catalog import quoted
from ..store.importing import superseding
from ..store.instants import in_sql
from ..store.vocabulary import JobSource, TagState


def remember_as_child(root: str, cluster: str, node: str, *, until_ns: int) -> dict[str, list[dict[str, Any]]]:
    """The GPUs that are expected on a node, and its jobs that were running by what a collector stored last.

    They have the fields of `ExpectedGpu` and `RunningJob`; readings from `until_ns` on do not count. Raises StoreError.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))  # the collector goes before others
    store = Store.open(root)
    expected = seen_on(store, node, until_ns)
    here = store.scan("gpus").filter(pl.col("gpu").is_in(list(expected))).sort("first_seen")
    places = store.collect(here.group_by("gpu").agg(pl.col("pci_bus_id").drop_nulls().last()))
    return {
        "expected": [{"gpu": gpu, "pci_bus_id": address} for gpu, address in places.sort("gpu").iter_rows()],
        "running": _running(store, cluster, node, until_ns),
    }


def _running(store: Store, cluster: str, node: str, until_ns: int) -> list[dict[str, Any]]:
    by_processes = pl.col("source") == JobSource.CGROUP.value
    rows = superseding.newest(store, by_processes & (pl.col("cluster") == cluster) & (pl.col("node") == node))
    rows = rows.filter(pl.col("state") == TagState.RUNNING.value)
    running = []
    for (allocation,), group in rows.group_by("allocation", maintain_order=True):
        first = group.row(0, named=True)
        began_ns, recorded_ns = (
            int(group.select(pl.col(name).dt.epoch("us")).item(0, 0)) * 1000 for name in ("began", "recorded")
        )
        gpus = ", ".join(quoted(gpu) for gpu in group["gpu"].drop_nulls())
        # The GPUs were read as long as there was a collector, which saw the job as well.
        last = store.sql(
            f"SELECT epoch_us(max(ts)) FROM telemetry WHERE gpu IN ({gpus or 'NULL'}) AND cluster = {quoted(cluster)} "
            f"AND ts >= {in_sql(recorded_ns)} AND ts < {in_sql(until_ns)}"
        ).polars()
        running.append(
            {
                "allocation": allocation,
                "job_id": first["job_id"],
                "began_ns": began_ns,
                "seen_ns": max(recorded_ns, (last.item(0, 0) or 0) * 1000),
                "shares": dict(group.select("gpu", "share").iter_rows()),
            }
        )
    return running
