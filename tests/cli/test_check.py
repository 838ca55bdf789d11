"""`whorl check`: its exit status, its formats, and that it fails open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from whorl.analysis.verdicts import Judgement, Kind, Level, State, Verdict
from whorl.analysis.verdicts.judgements import record
from whorl.analysis.verdicts.verdict import Action
from whorl.analysis.verdicts.watch import Level as OwnLevel
from whorl.analysis.verdicts.watch import known
from whorl.cli.answers.check import PROBES, THREAD_NAME
from whorl.collectors.backend import Device
from whorl.dashboards.documents.check import CheckLimits, CheckStatus, GpuCheck, NodeCheck, ProbeTime
from whorl.errors import DeviceError, InputError
from whorl.probes.node import Local
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.cli.calling import document, refusal, whorl
from whorl.tests.cli.test_verdicts import AT
from whorl.tests.conftest import BuiltOnce
from whorl.tests.judged_fleet import CLUSTER, DAY_NS, MODEL, judged_store, uuid
from whorl.tests.nvml_library import NvmlLibrary


def checked(*words: object, status: int) -> dict[str, Any]:
    answer = document("check --format json", *words, schema="check", status=status)
    assert answer["exit_status"] == status
    return answer


def nagios(*words: object, status: int, begins: str) -> str:
    """The one line of a check for Nagios."""
    done = whorl("check --format nagios", *words)
    assert (done.exit_code, done.output.startswith(f"WHORL {begins}")) == (status, True), done.output
    return done.output


def sentences_of(answer: dict[str, Any]) -> dict[str, list[str]]:
    """What is said of each GPU, by its name."""
    return {gpu["name"]: gpu["says"] for gpu in answer["gpus"]}


@pytest.fixture(scope="module")
def node(built_once: BuiltOnce) -> str:
    """A store that has measured a simulated node of four GPUs on two days."""

    def build(folder: Path) -> None:
        for _ in range(2):
            done = whorl("probe run --suite quick --backend simulated --store", folder / "S", *PROBES)
            assert done.exit_code == 0, done.output

    return str(built_once("checked-node", build) / "S")


SIMULATED = ("--backend", "simulated")


@pytest.mark.long
def test_who_may_only_read_the_store_is_answered_too(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = "select count(*) as n from runs"
    before = Store.open(node).sql(count).to_pylist()
    monkeypatch.setattr(Store, "writable", lambda store: str(store.root) != node)
    answer = checked("--store", node, *SIMULATED, status=0)
    assert answer["says"] == ["the runs are not stored: this user may only read the store"]
    assert all(gpu["now"][0]["own_pct"] is not None for gpu in answer["gpus"])
    assert Store.open(node).sql(count).to_pylist() == before


def node_check(status: CheckStatus, *, failed: bool = False) -> NodeCheck:
    result = NodeCheck("n01", failed=failed, says=["it took long"] if failed else [])
    for slot, gpu_status in enumerate((CheckStatus.OK, status)):
        gpu = GpuCheck(uuid(slot), f"n01/{slot}")
        if gpu_status is not CheckStatus.OK:
            gpu.note(gpu_status, 'gemm-fp32 +12.0 % of "its" own <level> | more')
        gpu.now.append(ProbeTime("gemm-fp32", 100.0, 12.0 * slot, -1.0, 1.0))
        result.gpus.append(gpu)
    return result


@pytest.mark.parametrize(
    ("status", "failed", "skipped"),
    [(CheckStatus.WARNING, 1, 0), (CheckStatus.CRITICAL, 1, 0), (CheckStatus.UNKNOWN, 0, 1)],
)
def test_junit_is_xml_with_a_case_for_each_gpu(status: CheckStatus, failed: int, skipped: int) -> None:
    suite = ET.fromstring(node_check(status).junit())
    assert [case.get("name") for case in suite.iter("testcase")] == ["n01/0", "n01/1"]
    assert len(list(suite.iter("failure"))) == int(suite.get("failures", "")) == failed
    assert len(list(suite.iter("skipped"))) == int(suite.get("skipped", "")) == skipped
    line = node_check(status).nagios()
    assert line.startswith(f"WHORL {status.name} - n01/1: gemm-fp32 +12.0 %")
    assert line.count("|") == 1
    assert "'n01/1 gemm-fp32'=12.00%;3;10" in line


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The GPUs of this node: what the test puts here; an exception is raised."""
    gpus: list[Any] = []

    def broken() -> bool:
        return bool(gpus) and isinstance(gpus[0], Exception)

    def local_devices(**_: Any) -> Local:
        if broken():
            raise gpus[0]
        return Local(iter(gpus))

    def driver(_: str) -> Any:
        rows = [] if broken() else [Device(gpu.facts.gpu, {}) for gpu in gpus]
        return lambda: SimpleNamespace(open=lambda: None, devices=lambda: rows, close=lambda: None)

    monkeypatch.setattr("whorl.probes.node.local_devices", local_devices)
    monkeypatch.setattr("whorl.collectors.backend.find_backend", driver)
    monkeypatch.setenv("SLURMD_NODENAME", "n01")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return gpus


def add_sighting(store: Store, node: str, *gpus: str, days_ago: float = 0) -> None:
    """These GPUs were seen on a node."""
    at = time.time_ns() - int(days_ago * DAY_NS)
    n = len(gpus)
    columns = {"cluster": [CLUSTER] * n, "gpu": gpus, "uuid": gpus, "node": [node] * n, "slot": range(n)}
    store.append({"gpus": arrow_rows("gpus", columns | {"first_seen": [at] * n})}, f"seen-{at}")


@pytest.fixture
def judged(here: list[Any], tmp_path: Path) -> Store:
    """A store that has measured the four GPUs of this node, which a quick check sees here."""
    store = judged_store(tmp_path / "S", 4, (0,))
    add_sighting(store, "n01", *map(uuid, range(4)))
    facts = [SimpleNamespace(gpu=uuid(gpu), node="n01", index=gpu, model=MODEL) for gpu in range(4)]
    here += [SimpleNamespace(facts=gpu) for gpu in facts]
    return store


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> str:
    """16 GPUs on four nodes, measured on two days."""
    return str(built_once("checked-fleet", lambda folder: judged_store(folder / "S", 16)) / "S")


def finding(gpu: int, kind: Kind, state: State, effect: float | None) -> Verdict:
    name = f"n01/{gpu}"
    figure = "temperature rise" if kind is Kind.HOT else "time"
    return Verdict(
        Level.GPU, name, (name,), CLUSTER, MODEL, ("gemm-fp32",), kind, state, effect, None, None, None, None, None, (),
        None, None, (), Action.RUN_FULL_SUITE, figure=figure,
    )  # fmt: skip


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("kind", "state", "effect", "status"),
    [
        (Kind.SLOW, State.CONFIRMED, 5.0, 1), (Kind.SLOW, State.SUSPECTED, 15.0, 1),
        (Kind.SLOW, State.CONFIRMED, 15.0, 2), (Kind.WRONG, State.SUSPECTED, None, 2),
        (Kind.FAST, State.CONFIRMED, -5.0, 0), (Kind.LOST, State.SUSPECTED, None, 1),
        (Kind.HOT, State.CONFIRMED, 60.0, 1),
    ],
)  # fmt: skip
def test_what_was_judged_counts(kind: Kind, state: State, effect: float | None, status: int, judged: Store) -> None:
    record(judged, [Judgement(CLUSTER, (finding(1, kind, state, effect),), (), 4, 4)], AT)
    sentences = sentences_of(checked("--quick", "--store", judged.root, status=status))
    assert bool(sentences["n01/1"]) == bool(status)
    assert not sentences["n01/0"]


def test_firmware_that_its_peers_do_not_have_is_named_and_no_alarm(judged: Store) -> None:
    gpus = [uuid(gpu) for gpu in range(4)]
    columns = {"cluster": [CLUSTER] * 4, "gpu": gpus, "model": [MODEL] * 4, "vbios": ["1", "2", "1", "1"]}
    judged.append({"gpus": arrow_rows("gpus", columns | {"first_seen": [time.time_ns()] * 4})}, "firmware")
    add_sighting(judged, "n01", *gpus)
    assert sentences_of(checked("--quick", "--store", judged.root, status=0)) == {
        "n01/0": [], "n01/1": ["vbios 2; most of the 3 other GPUs have 1"], "n01/2": [], "n01/3": [],
    }  # fmt: skip


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("kind", "code", "status"), [("xid", 79, 1), ("needs_reset", None, 1), ("wrong_result", None, 2), ("xid", 31, 0)]
)
def test_what_happened_since_the_last_judgement_counts(kind: str, code: int | None, status: int, judged: Store) -> None:
    """XID 31 is an error of a program."""
    record(judged, [Judgement(CLUSTER, (), (), 4, 4)], AT)
    for days in (-1, 1):
        at = int(AT.replace(tzinfo=UTC).timestamp() + days * 86_400) * 10**9
        row = {"cluster": CLUSTER, "gpu": uuid(1), "node": "n01", "kind": kind, "code": code, "ts": at}
        events = arrow_rows("events", {name: [value] for name, value in row.items()})
        judged.append({"events": events}, f"happened-{at}")
    sentences = sentences_of(checked("--quick", "--store", judged.root, status=status))
    assert len(sentences["n01/1"]) == bool(status)  # what happened before was judged
    assert not sentences["n01/0"]


def test_a_gpu_that_became_slower_than_its_own_level_is_noticed(fleet: str) -> None:
    """Its level in the store is that of 100 ms; so many per cent more are a warning, critical, or within the noise."""
    levels = known(Store.open(fleet), [uuid(2)], PROBES)
    level = levels.levels[uuid(2)]["gemm-fp32"]
    assert level.own_ms is not None
    for factor, status in ((1.0, "OK"), (1.02, "OK"), (1.06, "WARNING"), (1.2, "CRITICAL")):
        gpu = GpuCheck(uuid(2), "n01/2")
        probe = ProbeTime.beside(level, "gemm-fp32", level.own_ms * factor)
        assert gpu.note_time(probe, CheckLimits())
        assert probe.own_pct == pytest.approx(100 * (factor - 1))
        assert gpu.status.name == status, factor
    stranger = levels.peers_of(uuid(99), "gemm-fp32", MODEL)
    assert (stranger is not None, getattr(stranger, "own_ms", 0)) == (True, None)
    gpu = GpuCheck(uuid(99), "n09/0")
    assert gpu.note_time(ProbeTime.beside(stranger, "gemm-fp32", 115.0), CheckLimits())
    assert gpu.status is CheckStatus.CRITICAL
    assert not gpu.note_time(ProbeTime.beside(None, "gemm-fp32", 115.0), CheckLimits())
    assert levels.peers_of(uuid(99), "gemm-fp32", "another model") is None


def test_a_small_change_that_lasts_is_noticed_over_several_checks() -> None:
    """2 % is below the threshold of a warning; one run of it says nothing, but days of it do."""

    def level(history: Sequence[tuple[float, float]]) -> OwnLevel:
        return OwnLevel(100.0, 99.8, 100.2, None, 1, 0.002, tuple(history))

    day = 86_400.0
    steady = [(100.0 + 0.05 * (n % 3), n * day) for n in range(8)]
    for ms in (100.1, 120.0):
        assert level(steady).left(ms, 8 * day) is None
    slower = [*steady, *((102.0, n * day + run * 60) for n in (8, 9, 10) for run in range(3))]
    alarms = [level(slower[:n]).left(*slower[n]) for n in range(9, len(slower))]
    first = next(alarm for alarm in alarms if alarm is not None)
    assert first.effect_pct == pytest.approx(2, abs=0.3)
    assert first.since_s >= 8 * day


GONE = "from 1 reload 4000000000"  # the driver is not loaded


@pytest.fixture
def collected(nvml: NvmlLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_once: BuiltOnce) -> Store:
    """A store whose collector has seen four GPUs on this node, which is n01."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "n01")
    nvml.write("gpus 4", "model H100")
    folder_made = built_once("checked-collected", lambda folder: collect(folder / "S"))
    return Store.open(shutil.copytree(folder_made / "S", tmp_path / "S"))


def collect(store: Path) -> None:
    done = whorl("collect --duration 0.2 --interval 0.1 --store", store)
    assert done.exit_code == 0, done.output


def quick(store: Store, status: int, *options: str) -> list[str]:
    """The keys of the GPUs that a quick check calls critical, in their order."""
    answer = checked("--quick", "--store", store.root, *options, status=status)
    assert answer["probed"] is False
    return [gpu["gpu"] for gpu in answer["gpus"] if gpu["status"] == "critical"]


def contents(store: Store) -> set[Path]:
    """The files of a store, without the list of those that were found sound."""
    return {path for path in store.root.rglob("*") if path.is_file() and path.name != "verified.log"}


def test_an_expected_gpu_that_is_absent_is_critical(collected: Store, nvml: NvmlLibrary) -> None:
    before = contents(collected)
    for backend in ("cuda", "auto"):
        assert quick(collected, 0, "--backend", backend) == []
    nvml.add("gpu 2 lost")
    [lost] = quick(collected, 2)
    nvml.write("gpus 4", "model H100", GONE)
    assert lost in quick(collected, 2, "--backend", "auto")
    options = ("--quick", "--backend", "auto", "--store", collected.root)
    line = nagios(*options, status=2, begins="CRITICAL - n01/0: ")
    assert "the driver does not answer" in line
    assert "NVML: " in line
    assert contents(collected) == before, "a quick check writes nothing"


@pytest.mark.long
def test_a_node_without_the_library_of_the_driver_is_critical(collected: Store) -> None:
    words = ("check", "--quick", "--backend", "auto", "--format", "nagios", "--store")
    hidden = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    command = [sys.executable, "-m", "whorl", *words, str(collected.root)]
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("WHORL CRITICAL - ")) == (2, True), done.stdout


@pytest.mark.long
def test_a_gpu_that_moved_or_was_retired_is_expected_again_when_it_is_seen_here(
    collected: Store, nvml: NvmlLibrary
) -> None:
    nvml.write("gpus 3", "model H100")
    [absent] = quick(collected, 2)
    assert document("store retire", absent, "--store", collected.root)["gpu"] == absent
    assert quick(collected, 0) == []
    nvml.write("gpus 4", "model H100")
    collect(collected.root)
    nvml.write("gpus 3", "model H100")
    assert quick(collected, 2) == [absent]
    add_sighting(collected, "n02", absent)
    assert quick(collected, 0) == []
    assert refusal("store retire n09/7 --store", collected.root)


@pytest.mark.long
def test_a_job_expects_the_gpus_that_it_names_by_uuid(
    collected: Store, nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.write("gpus 3", "model H100")
    [absent] = quick(collected, 2)
    for visible, status in ((absent, 2), (absent[:12], 2), ("0,1", 0), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert quick(collected, status) == [absent] * (status == 2)
    nvml.add(GONE)
    for visible, status, critical in (("0,1", 2, 4), (absent, 2, 1), ("", 3, 0), ("NoDevFiles", 3, 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert len(quick(collected, status)) == critical


@pytest.mark.long
def test_where_nothing_is_expected_the_answer_is_unknown(
    store: Store, nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("SLURMD_NODENAME", "n01")
    for statements in ((), (GONE,)):
        nvml.write("gpus 2", "model H100", *statements)
        assert quick(store, 3) == []
    done = whorl("collect --backend simulated --duration 0.1 --store", store.root)
    assert done.exit_code == 0, done.output
    nagios("--quick", "--store", store.root, status=3, begins="UNKNOWN - no GPU is expected here")
    add_sighting(store, "n01", uuid(1), days_ago=31)
    assert quick(store, 3) == []
    add_sighting(store, "n01", uuid(2), days_ago=29)
    assert quick(store, 2) == [uuid(2)]


def test_a_simulated_quick_check_needs_to_be_asked_for_and_stores_nothing(store: Store) -> None:
    before = contents(store)
    assert quick(store, 0, *SIMULATED) == []
    assert len(quick(store, 2, *SIMULATED, "--backend", "simulated:fault=lost")) == 1
    assert contents(store) == before


def test_what_cannot_be_checked_is_unknown_and_gpus_that_cannot_be_used_are_critical(
    fleet: str, here: list[Any], tmp_path: Path
) -> None:
    for error in (InputError("CuPy is not installed"), RuntimeError("boom")):
        here[:] = [error]
        assert str(error) in checked("--store", fleet, status=3)["says"][-1]
    here[:] = [DeviceError("GPU-1 fell off the bus", gone=True)]
    assert checked("--store", fleet, status=2)["gpus"][0]["says"] == ["GPU-1 fell off the bus"]
    assert "is not a store" in nagios("--store", tmp_path / "none", status=3, begins="UNKNOWN - ")
    for line in (f"check --nosuch --store {fleet}", "check"):
        assert whorl(line).exit_code == 3


def test_a_call_that_does_not_return_is_unknown_in_time(fleet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr("whorl.probes.node.local_devices", lambda **_: never.wait(30))
    assert "no answer within 0.2 s" in checked("--store", fleet, "--timeout", "0.2s", status=3)["says"][0]
    never.set()


def test_no_probe_begins_when_the_check_has_answered(node: str) -> None:
    before = contents(Store.open(node))
    checked("--store", node, *SIMULATED, "--timeout", "0", status=3)
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join()
    assert contents(Store.open(node)) == before


def test_the_command_ends_with_its_answer_though_a_call_hangs(fleet: str) -> None:
    code = f"""
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from whorl.cli import main
from whorl.cli.answers import check

def hang(*_, **__):
    ThreadPoolExecutor().submit(threading.Event().wait).result()

check.opened = hang
sys.argv = ["whorl", "check", "--store", {fleet!r}, "--timeout", "0.2s", "--format", "nagios"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.count("\n") == 1
