"""What a store knows of a node when a collector begins there: its GPUs, and the jobs that had processes on them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import StoreError

if TYPE_CHECKING:
    from ..store import Store

log = logging.getLogger(__name__)

REMEMBERED_NS = 30 * 86_400 * 10**9
"""A GPU that was seen on a node is expected there for so long."""


@dataclass(frozen=True)
class RunningJob:
    """An allocation that was running by the last record of an earlier collector; times are UTC, in ns."""

    allocation: str
    job_id: str
    began_ns: int
    seen_ns: int
    """The last reading of its GPUs before now: it was running then, as far as anybody knows."""
    shares: Mapping[str, float | None]
    """By GPU: the column `share`."""


class NodeHistory:
    """The memory of the store, read in a thread of its own; a collector begins without it.

    `read` gives what `remember_as_child` does.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any] | None]) -> None:
        self.expected: Mapping[str, str | None] = {}
        """The GPUs that belong on this node, and their PCI addresses."""
        self.running: list[RunningJob] = []
        self._read = read
        self._thread = threading.Thread(target=self._load, name="whorl-history", daemon=True)
        self._thread.start()

    @property
    def loading(self) -> bool:
        """Whether it is not known yet."""
        return self._thread.is_alive()

    def _load(self) -> None:
        try:
            history = self._read() or {}
        except StoreError as error:
            log.warning("what the store knows of this node could not be read: %s", error)
            return
        self.expected = history.get("expected", {})
        self.running = [RunningJob(**job) for job in history.get("running", ())]


# -- in a child of the collector, or of `whorl check`: with libraries that a collector does without --------------------


def remember_as_child(root: str, cluster: str, node: str, *, until_ns: int) -> dict[str, Any]:
    """The GPUs that are expected on a node with their PCI addresses, and its jobs that were running by what a collector
    stored last, as the fields of `RunningJob`.

    Readings from `until_ns` on do not count. Raises StoreError.
    """
    import polars as pl

    from ..store import Store

    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))  # the collector goes before others
    store = Store.open(root)
    here = pl.col("gpu").is_in(list(seen_on(store, node, until_ns)))
    identities = store.scan("gpus").filter(here).sort("first_seen")
    places = store.collect(identities.group_by("gpu").agg(pl.col("pci_bus_id").drop_nulls().last()))
    return {
        "expected": dict(places.sort("gpu").iter_rows()),
        "running": _running(store, cluster, node, until_ns),
    }


def _running(store: Store, cluster: str, node: str, until_ns: int) -> list[dict[str, Any]]:
    import polars as pl

    from ..store.catalog import quoted
    from ..store.importing import superseding
    from ..store.instants import in_sql
    from ..store.vocabulary import JobSource, TagState

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


def seen_on(store: Store, node: str, now_ns: int) -> dict[str, str]:
    """The whole GPUs that belong on a node: GPU -> its name, `node/slot`.

    Collectors and campaigns saw them there within 30 days before `now_ns` (UTC), and on no other node since. Simulated
    ones belong on no node. A GPU that was retired is left out until it is seen again.
    """
    import polars as pl

    from ..store.names import SIMULATED
    from ..store.vocabulary import EventKind

    identities = store.scan("gpus").filter(pl.col("node").is_not_null() & pl.col("uuid").is_not_null())
    real = pl.col("driver").ne_missing(SIMULATED)
    identities = identities.filter(real).select("gpu", "node", "slot", "parent", "first_seen")
    identities = identities.sort("first_seen", nulls_last=False)
    newest = store.collect(identities).group_by("gpu").last().filter(pl.col("node") == node, pl.col("parent").is_null())
    here = pl.col("gpu").is_in(newest["gpu"].implode())
    sightings = [
        newest.select("gpu", pl.col("first_seen").alias("at")),
        store.collect(store.scan("latest").filter(here).select("gpu", pl.col("ts").alias("at"))),
        store.collect(store.scan("runs").filter(here).select("gpu", pl.col("began").alias("at"))),
    ]
    retirements = store.scan("events").filter(here, pl.col("kind") == EventKind.RETIRED).select("gpu", "ts")
    retired = store.collect(retirements).group_by("gpu").agg(pl.col("ts").max().alias("retired"))
    last_seen = pl.concat(sightings).group_by("gpu").agg(pl.col("at").max()).join(retired, on="gpu", how="left")
    recent = pl.col("at").dt.epoch("ns") >= now_ns - REMEMBERED_NS
    counts = last_seen.filter(recent, pl.col("retired").is_null() | (pl.col("at") > pl.col("retired")))
    rows = newest.join(counts, on="gpu", how="semi").sort("slot", "gpu").select("gpu", "slot")
    return {gpu: gpu if slot is None else f"{node}/{slot}" for gpu, slot in rows.iter_rows()}
