"""Jobs of a node by the cgroups of the processes on its GPUs: over the real bindings, and a /proc of the test."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from whorl.collectors.backend import Device
from whorl.collectors.job_labels import JobLabels
from whorl.collectors.node_memory import NodeHistory, remember_as_child
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.nvml_library import NvmlLibrary

SCOPE = "system.slice/slurmstepd.scope"
V2 = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0\n"
V1 = "12:pids:/user.slice\n5:memory:/slurm/uid_1000/job_{}/step_0/task_0\n4:freezer:/slurm_n1/uid_1000/job_{}/step_0\n"
NONE = NodeHistory(dict)


class Table:
    """A recorder that keeps the rows of `jobs`."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None:
        assert table == "jobs"
        self.rows += arrow_rows(table, columns).to_pylist()

    def now(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The rows of the newest record of each allocation, by job and GPU."""
        newest = {row["allocation"]: row["recorded"] for row in sorted(self.rows, key=lambda row: row["recorded"])}
        return {(r["job_id"], r["gpu"]): r for r in self.rows if r["recorded"] == newest[r["allocation"]]}


class Node:
    """GPUs of our own driver, and folders that stand for /proc and /sys/fs/cgroup."""

    def __init__(self, nvml: NvmlLibrary, folder: Path) -> None:
        self.nvml, self.table = nvml, Table()
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        self.gpus = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        self.devices = [Device(gpu) for gpu in self.gpus]

    def labels(self, history: NodeHistory = NONE) -> JobLabels:
        folders: dict[str, Any] = {"proc": str(self.proc), "cgroups": str(self.cgroups)}
        return JobLabels(self.table, history, cluster="c", node="n1", interval_s=0.0, **folders)

    def start(self, process: int, gpu: int, cgroup: str, *, age_s: float = 100.0) -> None:
        """A process on a GPU."""
        ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - age_s) * os.sysconf("SC_CLK_TCK")
        folder = self.proc / str(process)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(cgroup)
        (folder / "stat").write_text(f"{process} (a ) b) S {' '.join(['0'] * 18)} {int(ticks)} 0 0\n")
        self.nvml.add(f"gpu {gpu} process {process}")

    def end(self, process: int, gpu: int) -> None:
        self.nvml.remove(f"gpu {gpu} process {process}")
        shutil.rmtree(self.proc / str(process))


@pytest.fixture
def node(nvml: NvmlLibrary, tmp_path: Path) -> Node:
    nvml.write("gpus 3", "model H100")
    return Node(nvml, tmp_path)


def look(labels: JobLabels, node: Node) -> None:
    assert labels.look(node.devices) == []


@pytest.mark.parametrize("cgroup", [V2, V1])
def test_a_job_is_recorded_when_it_is_seen_when_it_has_one_gpu_more_and_when_it_is_over(
    node: Node, cgroup: str
) -> None:
    labels = node.labels()
    node.start(101, 0, cgroup.replace("{}", "4242"))
    look(labels, node)
    row = node.table.now()["4242", node.gpus[0]]
    assert (row["cluster"], row["node"], row["raw_id"], row["state"], row["ended"]) == (
        "c",
        "n1",
        "4242",
        "RUNNING",
        None,
    )
    assert (row["source"], row["gpu_from"], row["share"], row["node_gpus"]) == ("cgroup", "process", 1.0, 1)
    began = row["began"]
    assert dt.timedelta(seconds=99) < row["recorded"] - began < dt.timedelta(seconds=200)
    node.start(102, 1, cgroup.replace("{}", "4242"), age_s=1)
    look(labels, node)
    look(labels, node)
    rows = node.table.now()
    assert set(rows) == {("4242", node.gpus[0]), ("4242", node.gpus[1])}
    assert {r["began"] for r in rows.values()} == {began}
    assert len(node.table.rows) == 3
    node.end(101, 0)
    node.end(102, 1)
    look(labels, node)
    rows = node.table.now()
    assert {(r["state"], r["began"]) for r in rows.values()} == {("ENDED", began)}
    assert all(r["ended"] > began for r in rows.values())
    assert len({r["allocation"] for r in node.table.rows}) == 1


def test_a_job_lasts_as_long_as_its_cgroup(node: Node) -> None:
    """Between two programs of its script nothing is on the GPU."""
    labels = node.labels()
    (node.cgroups / SCOPE / "job_7").mkdir(parents=True)
    node.start(101, 0, V2.format(7))
    look(labels, node)
    node.end(101, 0)
    look(labels, node)
    assert node.table.now()["7", node.gpus[0]]["ended"] is None
    (node.cgroups / SCOPE / "job_7").rmdir()
    look(labels, node)
    assert node.table.now()["7", node.gpus[0]]["ended"] is not None


def test_processes_of_no_job_and_those_that_nobody_may_see_are_no_rows(node: Node) -> None:
    labels = node.labels()
    node.start(101, 0, "0::/user.slice/user-1000.slice/session-1.scope\n")
    node.start(102, 0, "0::/user.slice/job_1/not.of.that.kind\n")
    node.start(103, 0, "\0" * 10_000)
    node.start(105, 0, "0::/user.slice/user-1000.slice/user@1000.service/system.slice/slurmstepd.scope/job_5/a\n")
    node.start(106, 0, "4:memory:/user.slice/slurm/uid_1000/job_6/step_0\n")
    node.nvml.add("gpu 1 process 999999")
    node.start(104, 1, V2.format("99x"))
    node.nvml.add("gpu 2 lost")
    look(labels, node)
    assert node.table.rows == []


def test_jobs_on_one_gpu_have_shares_of_the_time_in_which_both_were_there(node: Node) -> None:
    node.nvml.write("gpus 3", "model H100", "load 1000 1")
    labels = node.labels()
    node.start(101, 0, V2.format(7))
    look(labels, node)
    node.start(102, 0, V2.format(8))
    node.start(103, 0, V2.format(8))
    look(labels, node)
    rows = node.table.now()
    assert rows["8", node.gpus[0]]["share"] == pytest.approx(2 / 3, abs=0.01)
    assert rows["7", node.gpus[0]]["share"] == pytest.approx(1 / 3, abs=0.01)


def test_where_the_driver_gives_no_time_of_processes_shares_are_not_known(node: Node) -> None:
    node.nvml.write("gpus 3", "model H100", "load 1000 1", "deny 3 nvmlDeviceGetProcessUtilization")
    labels = node.labels()
    for process, job in ((101, 7), (102, 8)):
        node.start(process, 0, V2.format(job))
    node.start(103, 1, V2.format(7))
    look(labels, node)
    shares = {key: row["share"] for key, row in node.table.now().items()}
    assert shares == {("7", node.gpus[0]): None, ("8", node.gpus[0]): None, ("7", node.gpus[1]): 1.0}


def test_an_instance_has_the_job_and_its_gpu_has_not(nvml: NvmlLibrary, tmp_path: Path) -> None:
    nvml.write("gpus 1", "model H100", "gpu 0 mig 3g.40gb")
    node = Node(nvml, tmp_path)
    handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
    instance = str(pynvml.nvmlDeviceGetUUID(handle))
    node.devices = [Device(node.gpus[0]), Device(instance, parent=node.gpus[0])]
    labels = node.labels()
    node.start(101, 0, V2.format(7))
    look(labels, node)
    assert set(node.table.now()) == {("7", instance)}


def test_the_next_collector_goes_on_with_what_runs_and_ends_what_does_not(node: Node, store: Store) -> None:
    """Killed collectors record no end. The last reading of a GPU says until when the job was seen."""
    node.start(101, 0, V2.format(7))
    node.start(102, 1, V2.format(8))
    look(node.labels(), node)
    columns = {name: [row[name] for row in node.table.rows] for name in node.table.rows[0]}
    began, recorded = columns["began"][0], columns["recorded"][0]
    store.append({"jobs": arrow_rows("jobs", columns)}, "labels")
    last = recorded + dt.timedelta(seconds=5)
    telemetry = {"ts": [last], "cluster": ["c"], "gpu": [node.gpus[1]], "power_mw": [1000]}
    store.append({"telemetry": arrow_rows("telemetry", telemetry)}, "telemetry")
    until_ns = time.time_ns() + 60 * 10**9
    history = NodeHistory(lambda: remember_as_child(str(store.root), "c", "n1", until_ns=until_ns))
    assert {job["job_id"] for job in history.of("running")} == {"7", "8"}
    before = set(columns["allocation"])
    node.table.rows.clear()
    node.end(102, 1)
    labels = node.labels(history)
    look(labels, node)
    node.start(103, 2, V2.format(7), age_s=1)
    look(labels, node)
    rows = node.table.now()
    assert {row["allocation"] for row in rows.values()} <= before
    ended = rows["8", node.gpus[1]]
    assert (ended["state"], ended["ended"]) == ("ENDED", last)
    assert {gpu for job, gpu in rows if job == "7"} == {node.gpus[0], node.gpus[2]}
    assert rows["7", node.gpus[0]]["began"] == began
