"""What should be on a node, by its PCI bus and by what a store knows of it: GPUs, and jobs that had processes on them.

GPUs that should be there and that the driver does not show are events `absent`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from ..store.events import Event
from ..store.vocabulary import EventKind
from .backend import Aside
from .kernel_log import bus_address, text_in

if TYPE_CHECKING:
    from ..store import Store
    from .backend import Device

log = logging.getLogger(__name__)

REMEMBERED_NS = 30 * 86_400 * 10**9
"""A GPU that was seen on a node is expected there for so long."""
_NVIDIA = "0x10de"
_DISPLAY, _COMPUTE = "0x0300", "0x0302"  # classes of PCI devices that are GPUs
_DRIVER = "nvidia"


class NodeHistory:
    """The memory of the store, which is read when it is first asked for: that may take seconds.

    `read` gives what `remember_as_child` does.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self._lock = threading.Lock()

    @cached_property
    def _content(self) -> Mapping[str, Any]:
        try:
            return self._read()
        except StoreError as error:
            log.warning("what the store knows of this node could not be read: %s", error)
            return {}

    def of(self, topic: str) -> Any:
        """`expected`: the GPUs that belong on this node, and their PCI addresses. `running`: the allocations that ran
        by the last record of an earlier collector. None where nothing is known."""
        with self._lock:
            return self._content.get(topic)


class ExpectedGpus(Aside):
    """Compares the GPUs that the driver shows with those on the PCI bus and those that the store expects here.

    At the start and once an hour, each that is missing is an event `absent`, once in a run. `root` is where /sys, /proc
    and /dev are. A board that another driver has, as one that is given to a virtual machine, and one whose device file
    this process may not use, as in a job that has some GPUs of the node, is not missed.
    """

    interval_s = 3600.0

    def __init__(self, history: NodeHistory, *, root: str = "/") -> None:
        self._history, self._root = history, Path(root)
        self._missed: set[str | None] = set()  # keys or PCI addresses of which there is an event

    def look(self, devices: Sequence[Device]) -> list[Event]:
        """The GPUs that are missing beside `devices`, which are all that the driver ever showed in this run."""
        expected: Mapping[str, str | None] = self._history.of("expected") or {}
        gpus = {device.gpu for device in devices}
        addresses = {bus_address(device.row.get("pci_bus_id")) for device in devices}
        on_bus = dict(self._boards())
        keys = {bus_address(at): gpu for gpu, at in expected.items()}
        missing: list[tuple[str | None, str | None, str]] = [
            (keys.get(address) or uuid, address, "is on the PCI bus, and the driver does not show it")
            for address, (uuid, usable) in on_bus.items()
            if usable and address not in addresses
        ]
        for gpu, pci_bus_id in expected.items():
            address = bus_address(pci_bus_id)
            if gpu not in gpus and (address not in on_bus or address in addresses):
                place = "another GPU is in its place" if address in addresses else "no GPU is in its place"
                missing.append((gpu, address, f"is expected on this node, and {place}"))
        events = [
            Event(EventKind.ABSENT, key, f"the GPU {detail}", pci_bus_id=address)
            for key, address, detail in missing
            if (key or address) not in self._missed
        ]
        self._missed = {key or address for key, address, _ in missing}
        return events

    def _boards(self) -> Iterator[tuple[str, tuple[str | None, bool]]]:
        """The GPUs on the bus by address: the UUID that the driver gave it, and whether NVML should show it to us."""
        folder = self._root / "sys/bus/pci/devices"
        for name in sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ():
            address = bus_address(name)
            if address is None or not name.endswith(".0") or text_in(folder / name / "vendor") != _NVIDIA:
                continue
            if text_in(folder / name / "class")[:6] not in (_DISPLAY, _COMPUTE) or (folder / name / "physfn").exists():
                continue  # it is another device, or a part of a GPU for a virtual machine
            driver = folder / name / "driver"
            if not driver.is_symlink():  # the driver refused it, or fell over it
                yield address, (None, True)
            elif driver.readlink().name == _DRIVER:
                yield address, self._of_driver(name)
            else:
                yield address, (None, False)

    def _of_driver(self, name: str) -> tuple[str | None, bool]:
        """UUID, and whether this process may use it, of a board that NVIDIA's driver has."""
        about = text_in(self._root / "proc/driver/nvidia/gpus" / name / "information")
        lines = dict(line.partition(":")[::2] for line in about.splitlines())
        uuid, minor = (lines.get(key, "").strip() for key in ("GPU UUID", "Device Minor"))
        usable = minor.isdecimal() and os.access(self._root / f"dev/nvidia{minor}", os.R_OK | os.W_OK)
        return (uuid if uuid and "?" not in uuid else None), usable


# -- in a child of the collector, or of `whorl check`: with libraries that a collector does without --------------------


def remember_as_child(root: str, cluster: str, node: str, *, until_ns: int) -> dict[str, Any]:
    """The GPUs that are expected on a node with their PCI addresses, and its jobs that were running by what a collector
    stored last: of each its `allocation`, `job_id`, `began_ns`, `seen_ns` (the last reading of its GPUs: it was running
    then, as far as anybody knows; both UTC) and, by GPU, its `shares`.

    Readings from `until_ns` on do not count. Raises StoreError.
    """
    import polars as pl

    from ..store import Store

    os.setpriority(os.PRIO_PROCESS, 0, max(0, os.getpriority(os.PRIO_PROCESS, 0)))  # the collector goes before others
    store = Store.open(root)
    here = pl.col("gpu").is_in(list(seen_on(store, node, until_ns)))
    identities = store.scan("gpus").filter(here).sort("first_seen")
    places = store.collect(identities.group_by("gpu").agg(pl.col("pci_bus_id").drop_nulls().last()))
    return {"expected": dict(places.sort("gpu").iter_rows()), "running": _running(store, cluster, node, until_ns)}


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
