"""`whorl probe run` on real GPUs' code, from the command line to the tables, over the CuPy of the tests."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import DeviceError
from whorl.kernels import catalogue
from whorl.kernels.cupy_device import cupy_devices
from whorl.kernels.device import finish
from whorl.probes import gpu_process, node, prolog
from whorl.probes.effort import EFFORTS
from whorl.tests.kernels import compiling
from whorl.tests.kernels.fake_cupy import CUDARuntimeError, FakeRuntime, LibraryInStream
from whorl.tests.kernels.fake_node import FakeNode, with_small_kernels

pytestmark = [
    pytest.mark.skipif(bool(compiling.why_not()), reason=compiling.why_not()),
    pytest.mark.usefixtures("stores_are_copied"),
]


COLUMNS = ["kind", "gpu", "detail"]


@pytest.fixture
def small_kernels(
    blas: LibraryInStream, runtime: FakeRuntime, state: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeNode:
    """Two GPUs on which every kernel is small and takes 2 ms, each in a process of its own, and brief measurements."""
    # What is imported for the first time below would keep the small kernels for all later tests.
    importlib.import_module("whorl.probes.simulated")
    importlib.import_module("whorl.probes.node")
    with_small_kernels(monkeypatch.setattr)
    for suite, effort in EFFORTS.items():
        brief = dataclasses.replace(effort, least_s=0.05, limit_s=0.2, warm_up_s=0.3, first_warm_up_s=0.3)
        monkeypatch.setitem(EFFORTS, suite, brief)
    fake = FakeNode(tuple(device.facts.gpu for device in cupy_devices()))
    opened(fake, monkeypatch)
    return fake


def opened(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "open_gpu", fake.open_gpu)
    monkeypatch.setattr(node, "open_peers", fake.open_peers)


def probe(store: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(cli, ["probe", "run", *arguments, "--store", str(store), "--backend", "cuda", "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("runtime", [FakeRuntime(4)], ids=["4 GPUs"])
def test_a_gpu_that_fails_is_killed_or_hangs_holding_its_lock_costs_itself_alone(
    small_kernels: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_process, "SILENT_S", 12.0)
    opened(dataclasses.replace(small_kernels, fates={1: "killed", 2: "locked"}, failing={3: 719}), monkeypatch)
    status, report = probe(tmp_path / "S", "launch", "copy-d2d", "--campaign", "c")
    assert status == 6
    well, killed, locked, failing = small_kernels.names
    assert Counter(run["gpu"] for run in report["runs"] if run["status"] == "ok") == {well: 2}
    sentences = {run["gpu"]: run["status"] for run in report["runs"] if run["status"] != "ok"}
    assert "may have fallen off the bus" in sentences.pop(failing)
    assert sentences == {
        killed: f"{killed}: its process was killed by SIGKILL",
        locked: f"{locked}: its process was silent for 12 s and was ended",
    }
    assert Counter(row["gpu"] for row in report["not_run"]) == {killed: 1, locked: 1, failing: 1}


@pytest.mark.long
def test_all_gpus_together_come_last(small_kernels: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("all-reduce", "pairs", "all-reduce-nccl", "launch")
    status, report = probe(tmp_path / "S", *names, "--campaign", "c", "--neighbours", "busy")
    assert status == 0, report
    assert Counter((run["probe"], run["status"]) for run in report["runs"]) == {
        (name, "ok"): 2 for name in ("launch", "pairs", "all-reduce")
    }
    assert [run["probe"] for run in report["runs"]][:2] == ["launch", "launch"]
    assert Counter(row["probe"] for row in report["not_run"]) == {"all-reduce-nccl": 2}
    again = probe(tmp_path / "S", *names, "--campaign", "c", "--neighbours", "busy")[1]
    assert again["runs"] == []


@pytest.mark.long
def test_a_prolog_finds_a_gpu_fit_and_one_without_memory_unfit(
    small_kernels: None, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prolog, "find_kernel", catalogue.find_kernel)
    first, second = cupy_devices()
    steps: list[str] = []
    assert finish(prolog.examine(first, steps.append)) == []
    assert steps == ["product", "memory", "multiprocessors"]
    first.close()
    runtime.fail["malloc"] = 2
    (reason,) = finish(prolog.examine(second, steps.append))
    assert "memory" in reason
    second.close()


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.long
def test_a_gpu_that_fails_when_it_is_listed_is_told_and_the_other_is_measured(
    is_named: bool, small_kernels: FakeNode, runtime: FakeRuntime, tmp_path: Path
) -> None:
    first, second = (device.facts.gpu for device in cupy_devices())
    runtime.fail["getDeviceProperties"] = 999  # once
    status, report = probe(tmp_path / "S", "launch", *(["--gpu", first, "--gpu", second] if is_named else []))
    assert status == 6
    assert [run["gpu"] for run in report["runs"]] == [second]
    assert {run["status"] for run in report["runs"]} == {"ok"}
    events = [
        row
        for path in (tmp_path / "S" / "events").rglob("*.parquet")
        for row in pq.read_table(path, columns=COLUMNS).to_pylist()
    ]
    (failed,) = [row for row in events if row["kind"] == "probe_failed"]
    assert failed["gpu"] == first
    assert "CUDA device 0: asking what it is: the driver reports an unknown error" in json.dumps(failed)
    assert "CUDA device 0: asking what it is" in json.dumps(report)


def test_only_the_gpu_that_fails_when_it_is_listed(
    small_kernels: FakeNode, runtime: FakeRuntime, tmp_path: Path
) -> None:
    first = cupy_devices()[0].facts.gpu
    runtime.fail["getDeviceProperties"] = 999
    done = CliRunner().invoke(cli, ["probe", "run", "launch", "--store", str(tmp_path / "S"), "--gpu", first])
    assert done.exit_code == 6
    assert done.stderr.startswith("whorl: CUDA device 0: asking what it is: ")
    assert not (tmp_path / "S").exists()


def test_where_all_gpus_fail_when_they_are_listed_it_is_the_first_sentence(
    small_kernels: FakeNode, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(device: int) -> dict[str, Any]:
        raise CUDARuntimeError(719)

    monkeypatch.setattr(runtime, "getDeviceProperties", fails)
    with pytest.raises(DeviceError, match=r"CUDA device 0: asking what it is: .* fallen off the bus"):
        cupy_devices(None, [])
