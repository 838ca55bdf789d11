"""`whorl probe prolog`: whether GPUs are fit for a job, in one line and an exit status, also where a driver hangs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whorl.errors import DeviceError
from whorl.kernels.device import Verdict, finish
from whorl.probes import prolog
from whorl.probes.health import COUNTED, GpuHealth, unfit_reasons
from whorl.store import Store
from whorl.store.vocabulary import reason_bit
from whorl.tests.cli.calling import document, whorl
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.hand_device import FACTS, HandDevice, find
from whorl.tests.stores import new_store

SIMULATED = ("--backend", "simulated:gpus=3")


def asked(*options: str, status: int) -> dict[str, Any]:
    answer = document("probe prolog", *options, status=status)
    assert answer["exit_status"] == status
    return answer


def test_a_simulated_node_is_fit() -> None:
    assert [gpu["fit"] for gpu in asked(*SIMULATED, status=0)["gpus"]] == [True] * 3
    assert whorl("probe prolog", *SIMULATED).stdout == "whorl: 3 GPUs fit\n"


@pytest.mark.parametrize(("fault", "reason"), [("wrong_results", "values wrong"), ("lost", "fallen off the bus")])
def test_a_faulty_gpu_is_named_in_a_line_and_stored(tmp_path: Path, fault: str, reason: str) -> None:
    new_store(tmp_path / "S")
    document = asked(*SIMULATED, "--backend", f"simulated:fault={fault}", "--store", str(tmp_path / "S"), status=1)
    (bad,) = (gpu for gpu in document["gpus"] if not gpu["fit"])
    assert bad["reason"] == document["reason"]
    assert bad["reason"].startswith(f"GPU {bad['index']}: ")
    assert reason in bad["reason"]
    assert len(bad["reason"]) <= 100
    events = Store.open(tmp_path / "S").sql("select kind, gpu, detail from events").to_pylist()
    assert events == [{"kind": "unfit", "gpu": bad["gpu"], "detail": bad["reason"]}]


def test_what_the_driver_says_makes_a_gpu_unfit_and_what_it_does_not_say_does_not() -> None:
    silent = GpuHealth(np.full(len(COUNTED), np.nan))
    assert unfit_reasons(silent) == []
    well = {"inforom_valid": 1, "pcie_width": 16, "pcie_width_max": 16, "fabric_state": 3, "fabric_error": 0}
    bad = {"recovery_action": 1, "row_remap_failed": 1, "inforom_valid": 0, "pcie_width": 8, "fabric_state": 2}
    for name, value in ({} | bad).items():
        counted = well | {name: value}
        health = GpuHealth(np.array([counted.get(metric, 0) for metric in COUNTED], np.float64))
        assert len(unfit_reasons(health)) == 1, name
    held = replace(silent, clock_reasons=reason_bit("power_brake") | reason_bit("power_cap"))
    assert unfit_reasons(held) == ["the clock is held down: power_brake"]


def test_works_that_come_out_wrong_or_fail_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prolog, "find_kernel", find)
    monkeypatch.setattr(prolog, "_WORKS", (("product", "work", {}),))
    steps: list[str] = []
    assert finish(prolog.examine(HandDevice(), steps.append)) == []
    assert steps == ["product"]
    (reason,) = finish(prolog.examine(HandDevice(verdicts=[Verdict(10, 2)]), steps.append))
    assert reason == "product: 2 of 10 values wrong"

    device = HandDevice(breaks_at=0, error=DeviceError(f"{FACTS.gpu}: it fell off the bus", gone=True))
    assert finish(prolog.examine(device, steps.append)) == ["it fell off the bus"]


@pytest.mark.long
def test_a_driver_that_says_so_one_that_hangs_and_none(nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.write("gpus 3", "gpu 0 recovery 2", "gpu 1 hang nvmlDeviceGetFieldValues", "deny 13 nvmlDeviceValidateInforom")
    for name, value in nvml.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    document = asked("--timeout", "10s", status=1)
    assert document["reason"] == "GPU 0: the driver asks for a reboot of the node (and 2 more)"
    first, second, third = document["gpus"]
    assert (first["fit"], second["fit"], third["fit"]) == (False, None, None)
    assert second["reason"] == "GPU 1: asking its driver did not end within 10 s"
    assert "CuPy" in third["reason"] or "CUDA" in third["reason"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", third["gpu"])
    assert [gpu["gpu"] for gpu in asked("--timeout", "10s", status=3)["gpus"]] == [third["gpu"]]


def test_it_loads_nothing_of_the_analysis() -> None:
    code = "import sys, whorl.probes.prolog\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyarrow", "polars", "duckdb", "scipy"} & set(done.stdout.split())
