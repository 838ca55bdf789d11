"""GpuHealth before and after a probe: what changed is the run's status, and an event with its numbers."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whorl.analysis.runs.measurements import measurements
from whorl.probes.campaign import Campaign, Plan, Report
from whorl.probes.conditions import Asked, Setting, process_conditions
from whorl.probes.gpu_process import GpuProcess
from whorl.probes.health import COUNTED, DriverHealth, GpuHealth, changes_between
from whorl.probes.node import run_gpus, sharing_notes
from whorl.probes.recording import Recorder
from whorl.probes.watch import Recent
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes import apart
from whorl.tests.probes.changing import uuids
from whorl.tests.probes.hand_device import FACTS, QUICK, HandDevice, HandLoaded, a_probe, find


def health(xids: tuple[int, ...] = (), **values: float) -> GpuHealth:
    return GpuHealth(np.array([values.get(name, np.nan) for name in COUNTED]), xids)


def test_what_is_not_told_and_a_counter_that_was_reset_are_no_change() -> None:
    before = health(ecc_uncorrected=1, pcie_replays=7, pcie_width=16, fabric_state=3)
    after = health((13, 48), ecc_uncorrected=2, pcie_replays=0, pcie_width=8, row_remap_failed=0)
    changes = changes_between(before, after)
    assert [(change.metric, change.before, change.value, change.code, change.n) for change in changes] == [
        (None, None, None, 48, 2),
        ("ecc_uncorrected", 1, 2, None, None),
        ("pcie_width", 16, 8, None, None),
    ]
    assert changes[1].sentence == "ecc_uncorrected was 1 before and is 2"
    assert changes_between(None, after) == changes_between(after, None) == []


def test_the_driver_tells_of_memory_fabric_links_inforom_and_xids(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model H100", "gpu 0 fabric 3 0", "gpu 0 ecc 5 0")
    driver = DriverHealth(uuids()[0])
    before = driver.read()
    assert (before.value("fabric_state"), before.value("inforom_valid"), before.value("ecc_corrected")) == (3, 1, 5)
    assert changes_between(before, driver.read()) == []
    nvml.add("gpu 0 fabric 4 2", "gpu 0 ecc 5 1", "gpu 0 remapped 0 1 0 1", "gpu 1 pcie 1 8")
    nvml.add(f"gpu 0 from {time.time():.3f} xid 63", f"gpu 1 from {time.time():.3f} xid 79")
    time.sleep(0.05)
    changes = changes_between(before, driver.read())
    assert {change.metric for change in changes} == {
        None, "fabric_state", "fabric_error", "ecc_uncorrected", "row_remap_pending", "remapped_rows_uncorrected",
    }  # fmt: skip
    assert (changes[0].code, changes[0].n) == (63, 1)


def test_a_driver_without_these_interfaces_says_nothing_and_not_0(nvml: NvmlLibrary) -> None:
    functions = "nvmlDeviceGetGpuFabricInfoV nvmlDeviceValidateInforom nvmlDeviceGetFieldValues"
    nvml.write("gpus 1", f"deny 13 {functions} nvmlDeviceGetCurrPcieLinkWidth", "deny 3 nvmlDeviceGetTotalEccErrors")
    driver = DriverHealth(uuids()[0])
    absent = {"fabric_state", "inforom_valid", "row_remap_failed", "pcie_width", "ecc_uncorrected"}
    first = driver.read()
    assert {name for name in absent if first.value(name) is not None} == set()
    nvml.write("gpus 1")
    assert changes_between(first, driver.read()) == []


class Telling(Recent):
    """Telemetry of a GPU of which the driver tells these readings of its health."""

    def __init__(self, *readings: GpuHealth) -> None:
        super().__init__([FACTS.gpu], seconds=60.0, interval_s=0.1)
        self._told = iter(readings)

    def health(self, gpu: str) -> GpuHealth | None:
        return next(self._told)


def run(store: Store, device: HandDevice | GpuProcess, watch: Recent) -> Report:
    plan = Plan((a_probe("one"), a_probe("two")), Asked(QUICK), "c")
    campaign = Campaign(plan, Recorder(store, cluster="k", campaign="c"), find, {}, 1)
    return run_gpus(campaign, [device], watch, {device.facts.gpu: Setting("idle")})


def test_a_gpu_that_counts_errors_meanwhile_has_its_run_marked(store: Store) -> None:
    errors = health(ecc_uncorrected=2, pcie_width=8)
    report = run(store, HandDevice(), Telling(health(ecc_uncorrected=0, pcie_width=8), errors, errors))
    rows = store.sql("select workload, status, status_detail from runs order by workload").to_pylist()
    assert [(row["workload"], row["status"]) for row in rows] == [("one", "health_changed"), ("two", "ok")]
    assert "ecc_uncorrected was 0 before and is 2" in rows[0]["status_detail"]
    events = store.sql("select kind, workload, metric, before, value from events").to_pylist()
    assert [tuple(event.values()) for event in events] == [("health_changed", "one", "ecc_uncorrected", 0, 2)]
    assert [run.probe for run in report.unhealthy] == ["one"]
    assert measurements(store, workloads=["one"]).height == 1, "its figures are compared all the same"


class Failing(apart.Apart):
    """A device whose GPU counts two errors when work is loaded."""

    async def load(self, work: object, *, seed: int) -> HandLoaded:
        loaded = await super().load(work, seed=seed)
        with Path(os.environ["WHORL_NVML_CONTROL"]).open("a") as control:
            control.write("ecc 0 2\n")
        time.sleep(0.05)  # the library looks at its control file every 10 ms
        return loaded


def opened(gpu: str) -> Failing:
    """The device, in its process."""
    apart.opened(0, "")
    return Failing(facts=replace(FACTS, gpu=gpu))


@pytest.mark.long
def test_the_process_of_a_gpu_asks_the_driver(store: Store, nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.write("gpus 1", "model H100")
    for name, value in nvml.environment().items():  # for the process of the GPU
        monkeypatch.setenv(name, value)
    (gpu,) = uuids()
    process = GpuProcess(replace(FACTS, gpu=gpu), (opened, (gpu,)))
    report = run(store, process, Recent([gpu], seconds=60.0, interval_s=0.1))
    assert [(run.probe, run.status) for run in report.runs] == [("one", "health_changed"), ("two", "ok")]


def test_the_firmware_that_few_have_is_named(store: Store) -> None:
    names = ["vbios", "inforom", "gsp_firmware", "driver"]
    rows: list[dict[str, str | None]] = [
        {**dict.fromkeys(names, "1"), "node": f"n{index}", "model": "H100"} for index in range(4)
    ]
    rows[2] |= {"vbios": "2", "inforom": None}
    rows.append({**dict.fromkeys(names, "9"), "node": "n9", "model": "V100"})
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in [*names, "node", "model"]}
    gpus = [f"GPU-{index}" for index in range(len(rows))]
    columns |= {"cluster": ["c"] * len(rows), "gpu": gpus, "uuid": gpus, "slot": [0] * len(rows)}
    store.append({"gpus": arrow_rows("gpus", columns)}, "gpus")
    query = "select name, part, version, usual_version, alike, gpus from other_firmware"
    assert [tuple(row.values()) for row in store.sql(query).to_pylist()] == [("n2/0", "vbios", "2", "1", 1, 4)]


def test_what_of_the_process_changes_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("CUDA", "CUBLAS", "APPTAINER", "KUBERNETES"))]:
        monkeypatch.delenv(name)
    plain = process_conditions(tmp_path)
    assert plain == {"mps": False, "mps_share_pct": None, "container": None, "environment": None}
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")
    for path in ("tmp/nvidia-mps/control", "run/.containerenv"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    changed = process_conditions(tmp_path)
    assert (changed["mps"], changed["mps_share_pct"], changed["container"]) == (True, 50.0, "podman")
    assert changed["environment"] == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CUDA_LAUNCH_BLOCKING": "1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
        "NVIDIA_TF32_OVERRIDE": "0",
    }


def test_mps_mig_and_variables_are_named_where_figures_are_shown() -> None:
    process = {"mps": True, "mps_share_pct": 50.0, "container": None, "environment": {"NVIDIA_TF32_OVERRIDE": "0"}}
    settings = {"GPU-1": Setting("idle", more={"mig": True}), "GPU-2": Setting("idle", more={"mig": False})}
    mps, mig, variables = sharing_notes(process, settings)
    assert "with 50 % of the threads" in mps
    assert mig.endswith(": GPU-1")
    assert variables.endswith(": NVIDIA_TF32_OVERRIDE")
    assert sharing_notes({"mps": False, "mps_share_pct": None, "environment": None}, {}) == []
