"""`whorl probe` from end to end: on the simulated fleet, killed and begun again, and where there is none."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from whorl.cli import output
from whorl.dashboards.documents import probes as documents
from whorl.errors import DeviceError, InputError
from whorl.kernels import cupy_device
from whorl.kernels.catalogue import find_kernel
from whorl.kernels.device import Verdict, finish
from whorl.kernels.simulated_device import facts_of
from whorl.kernels.work import Work
from whorl.probes import catalogue, prolog
from whorl.probes.health import COUNTED, GpuHealth, unfit_reasons
from whorl.simulation.models import find_model
from whorl.store import Store
from whorl.store.vocabulary import reason_bit
from whorl.tests.checks import until
from whorl.tests.cli.calling import document, refusal, whorl
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probed_fleet import stored
from whorl.tests.probes.hand_device import FACTS, HandDevice, find
from whorl.tests.stores import new_store
from whorl.tests.without import COMMAND, NODE, run_without

WHORL = [sys.executable, "-m", "whorl"]
PATIENCE_S = 120


def simulated(store: Path, *words: object) -> Result:
    return whorl("probe run --backend simulated --store", store, *words)


def quick(store: Path, line: str, *words: object, gpus: int = 1) -> Result:
    """A short run of the simulated GPUs that ends well."""
    answer = simulated(store, *line.split(), "--suite", "quick", "--backend", f"simulated:gpus={gpus}", *words)
    assert answer.exit_code == 0, answer.output
    return answer


def rows(store: Path, columns: str) -> list[dict[str, Any]]:
    return list(Store.open(store).sql(f"select {columns}").to_pylist())


def test_the_list_shows_every_probe_also_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {row["name"]: row for row in document("probe list", schema="probe.list")["probes"]}
    assert list(by_name) == list(catalogue.PROBES)
    assert by_name["gemm-fp32"]["suite"] == "quick"
    assert by_name["gemm-fp8"]["needs"]
    assert set(by_name["gemm-fp8"]["time_s"]) == {"full"}
    assert all(row["says"] and row["stresses"] for row in by_name.values())
    for columns in (40, 80, None):
        monkeypatch.setattr(output, "width", lambda columns=columns: columns)
        text = whorl("probe list").output
        for probe in catalogue.PROBES.values():
            assert re.search(rf"(^|\s){probe.name}\s", text), f"{probe.name} is broken at {columns} columns"
            assert columns or probe.stresses.split(",")[0] in text


def test_the_keep_rule_is_printed_of_a_store(tmp_path: Path) -> None:
    assert "no real data yet" in whorl("probe list --keep-rule").output
    stored(tmp_path / "store", gpus=24, campaign="one")
    command = ("probe list --keep-rule --store", tmp_path / "store")
    text = whorl(*command).output
    assert "no real data yet" in text
    assert "Simulated data: plumbing only" in text
    probes = document(*command, schema="probe.keep-rule")["probes"]
    assert [row["workload"] for row in probes] == ["gemm-fp32", "stream-triad", "copy-h2d", "pagerank"]
    assert {row["stays"] for row in probes} == {None}


def test_the_list_gives_the_size_of_the_work_for_a_model() -> None:
    def listed(model: str) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in document(f"probe list --backend simulated:model={model}")["probes"]}

    text = whorl("probe list --backend simulated:model=V100").output
    assert max(map(len, text.splitlines())) <= 120
    assert "Sizes are for one repetition on one V100" in text.splitlines()[0], "'a V100', but 'an A100' and 'an NVIDIA'"
    assert "121 GFLOP, 185 MB" in next(line for line in text.splitlines() if line.startswith("gemm-fp32"))
    assert "1.00 kop" in next(line for line in text.splitlines() if line.startswith("launch"))
    by_name, large = listed("V100"), listed("H100")
    work = find_kernel("gemm-fp32").build(facts_of(find_model("V100")))
    assert isinstance(work, Work)
    assert (by_name["gemm-fp32"]["flop"], by_name["gemm-fp32"]["bytes"]) == (work.flop, work.bytes)
    assert by_name["idle"]["flop"] is by_name["idle"]["operations"] is None
    assert (by_name["l2-read"]["flop"], by_name["fma-int32"]["flop"]) == (0, 0), "known to be none"
    assert "compute capability 8.9" in by_name["gemm-fp8"]["unfit"]
    assert large["gemm-fp8"]["flop"] > 1e12
    assert large["gemm-fp8"]["unfit"] is None
    assert "no simulated GPU model 'none'" in refusal("probe list --backend simulated:model=none")


@pytest.mark.long
def test_the_quick_suite_takes_less_than_a_minute_per_gpu_and_measures_everything(tmp_path: Path) -> None:
    store = tmp_path / "S"
    answer = document(
        "probe run --suite quick --backend simulated:gpus=4 --neighbours busy --store", store, schema="probe.run"
    )
    assert (answer["backend"], answer["suite"], answer["neighbours"]) == ("simulated", "quick", "busy")
    assert answer["not_run"] == answer["failed"] == []
    probes, gpus = {probe.name for probe in catalogue.suite("quick")}, {run["gpu"] for run in answer["runs"]}
    assert {(run["probe"], run["gpu"]) for run in answer["runs"]} == {(name, gpu) for name in probes for gpu in gpus}
    for run in answer["runs"]:
        assert run["status"] == "ok"
        assert run["value"] is not None, run["probe"]
        assert run["unit"]
    assert _seconds(answer) < 60
    times = rows(store, "workload, gpu, count(*) n from results where figure = 'time' group by all")
    assert len(times) == 4 * (len(probes) - 1)  # an idle GPU has no times
    assert min(row["n"] for row in times if row["workload"] != "memory") >= 20
    assert min(row["n"] for row in times) >= 12, "each pattern of the memory, once at least"


def _seconds(answer: dict[str, Any]) -> float:
    return (datetime.fromisoformat(answer["ended"]) - datetime.fromisoformat(answer["began"])).total_seconds()


def test_clocks_and_caps_are_conditions_and_a_lock_is_at_the_nearest_clock(tmp_path: Path) -> None:
    quick(tmp_path / "S", "gemm-fp32 --lock-clock 1200 --power-limit 250")
    quick(tmp_path / "S", "launch --lock-clock 1003")
    locked, near = rows(tmp_path / "S", "sm_clock_mhz, power_w, conditions from runs order by workload")
    conditions = locked["conditions"]
    assert (conditions["clock"], conditions["locked_clock_mhz"], conditions["power_limit_w"]) == ("locked", 1200, 250)
    assert locked["sm_clock_mhz"] <= 1200
    assert (near["sm_clock_mhz"], near["conditions"]["locked_clock_mhz"]) == (1005, 1005)


def test_what_to_do_next_has_something_to_say(tmp_path: Path) -> None:
    """GPUs are compared by times, and idle has none; a named campaign has no second's worth of others in its name."""
    store = tmp_path / "S"
    idle = quick(store, "idle").output
    assert "readings" in idle
    unfit = quick(store, "gemm-fp8").output
    for text in (idle, unfit):
        query = shlex.split(text.splitlines()[-1].removeprefix("next: "))
        assert query[:4] == ["whorl", "sql", "--store", str(store)]
        done = whorl(*query[1:])
        assert done.exit_code == 0, done.output
        assert "(0 rows)" not in done.output
    again = quick(store, "launch").output
    assert again.endswith(f"next: whorl verdicts variability --store {store}\n")
    names = [row["campaign"] for row in rows(store, "distinct campaign from runs")]
    assert all(re.fullmatch(r"probe-\d{8}T\d{6}\.\d{6}Z", name) for name in names), names
    assert "1 row of runs" in again


GPUS = 24


@pytest.mark.parametrize(("low", "explained"), [(9.9, True), (None, False)])
def test_a_sign_is_explained_where_a_row_has_it(low: float | None, explained: bool) -> None:
    """A run of correlated repeats whose interval is not known has no sign: its row says n/a."""
    entry = SimpleNamespace(
        median_ms=10.0, low_ms=low, high_ms=10.1, independent=False, drift=None, steady=True, n=9, wrong=False
    )
    plan: Any = SimpleNamespace(asked=SimpleNamespace(half_width=0.01))
    report: Any = SimpleNamespace(runs=[entry])
    assert documents._half_width(entry) == ("≥ 1.0" if explained else "n/a")  # type: ignore[arg-type]
    assert any(line.startswith("≥: ") for line in documents._remarks(report, plan, by_gpu=True)) is explained


UNNAMED = f"--suite standard --backend simulated:gpus={GPUS} --neighbours idle".split()
LONG = [*UNNAMED, "--campaign", "c"]


def _begin(store: Path, options: Sequence[str] = LONG) -> subprocess.Popen[str]:
    command = [*WHORL, "probe", "run", *options, "--store", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: [*(store / "runs").glob("sim-*.parquet")], process)
    return process


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_the_end_of_a_jobs_time_store_what_is_complete(number: signal.Signals, tmp_path: Path) -> None:
    store = tmp_path / "S p"
    options = LONG if number == signal.SIGTERM else UNNAMED
    with _begin(store, options) as process:
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number, errors
    cause = "interrupted" if number == signal.SIGINT else "stopped by a signal"
    [name] = {row["campaign"] for row in rows(store, "campaign from runs")}
    again = shlex.join(["whorl", "probe", "run", *options, "--store", str(store)])
    again += "" if options is LONG else f" --campaign {name}"
    assert errors == f"whorl: {cause}; what was stored stays; to go on with campaign {name}, run: {again}\n"
    runs = rows(store, "count(*) n, count(distinct run_id) ids from runs")
    assert runs[0]["n"] == runs[0]["ids"] >= GPUS
    assert Store.open(store).check() == {}
    idle = len(rows(store, "1 from runs where workload = 'idle'"))
    resumed = document("probe run idle", *UNNAMED, "--campaign", name, "--store", store)
    assert resumed["stored_before"] == idle > 0


@pytest.mark.long
def test_a_full_disk_is_one_sentence_and_what_was_stored_stays(tmp_path: Path) -> None:
    store = tmp_path / "S"
    new_store(store)
    code = (
        "import resource, signal, sys; sys.dont_write_bytecode = True; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000));"
        f"sys.argv = ['whorl', 'probe', 'run', *{LONG!r}, '--store', {str(store)!r}];"
        "from whorl.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 3, done.stderr
    assert "no space is left there" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert Store.open(store).check() == {}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "choose what to run"),
        ("gemm", "there is no probe 'gemm': did you mean gemm-fp8? `whorl probe list` lists the probes: idle, gemm-"),
        ("launch --suite slow", "'slow' is not one of 'quick', 'standard', 'full'"),
        ("gemm-fp33", "there is no probe 'gemm-fp33': did you mean gemm-fp32?"),
        ("launch --set period=1", "period works only with power-square"),
        ("power-square --set period=0.001", "from 0.04 to 60 s"),
        ("gemm-fp32 --set input=blue", "there is no distribution 'blue'"),
        ("launch --set input=zeros", "input works only with probes whose input data can be chosen"),
        ("launch --gpu 0", "gpu works only with real GPUs"),
        ("launch --set exclusive=yes", "exclusive works only with real GPUs"),
        ("launch --backend simulated:model=X1", "X1"),
        ("launch --backend simulated:gpus=4,faults=9", "9 faults cannot be planted in 4 GPUs"),
        ("launch --lock-clock 9999", "takes a clock lock from 135 to 1530 MHz"),
        ("launch --power-limit 1", "takes a power cap from 150 to 300 W"),
        ("launch --campaign=", "--campaign is empty"),
        ("launch --time-limit 0", "longer than 0 s"),
        ("power-square --set duty=nan", "duty"),
        ("power-square --set precision=nan", "precision"),
        ("power-square --set start-temperature=nan", "start-temperature"),
        ("power-square --set start-temperature=-300", "start-temperature"),
        ("power-square --backend simulated:interval=0", "every 0.1 s at most"),
        ("power-square --backend simulated:interval=0.001", "every 0.1 s at most"),
        ("power-square --power-limit nan", "nan"),
        ("power-square --lock-clock inf", "inf"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(line: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal("probe run --backend simulated --store", tmp_path / "S", *line.split())
    assert not (tmp_path / "S").exists()


def test_without_a_gpu_a_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise InputError("CuPy is not installed, but real GPUs need it: install it")

    monkeypatch.setattr(cupy_device, "cupy_devices", refuse)
    assert refusal("probe run launch --store", tmp_path / "S").endswith(
        "install it; without a GPU, use --backend simulated"
    )
    assert not (tmp_path / "S").exists()
    auto = whorl("probe run launch --backend auto:gpus=1 --suite quick --store", tmp_path / "S")
    assert auto.exit_code == 0, auto.output
    assert "a simulated fleet is used instead" in auto.output
    probed = whorl("probe run launch --backend auto --gpu 0 --store", tmp_path / "T")
    assert probed.exit_code == 2, "no simulated GPU stands for one that was named"
    assert not (tmp_path / "T").exists()


@pytest.fixture
def by_hand(nvml: NvmlLibrary, state: Path, monkeypatch: pytest.MonkeyPatch) -> list[HandDevice]:
    """Two devices with the UUIDs that NVML knows."""
    import pynvml

    nvml.write("model H100", "root yes", "gpus 2", "load 10 1")
    pynvml.nvmlInit()
    names = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(2)]
    now_ns = time.time_ns()
    devices: list[HandDevice] = [
        _Real(facts=replace(FACTS, gpu=name, index=i, memory_bytes=80 << 30, sms=132), began_ns=now_ns)
        for i, name in enumerate(names)
    ]
    monkeypatch.setattr(cupy_device, "cupy_devices", lambda *_: devices)
    return devices


class _Real(HandDevice):
    """In real time, so that there is telemetry."""

    def now_ns(self) -> int:
        return time.time_ns()

    async def pause(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.6))


QUICK = "probe run launch --suite quick --time-limit 0.3 --store"


@pytest.mark.long
def test_one_real_gpu_can_be_chosen_and_settings_are_restored(by_hand: list[HandDevice], tmp_path: Path) -> None:
    store, chosen = tmp_path / "S", by_hand[1].facts.gpu
    answer = whorl(QUICK, store, "--gpu", 1, "--lock-clock", 1200)
    assert answer.exit_code == 0, answer.output
    (run,) = rows(store, "gpu, conditions from runs")
    assert run["gpu"] == chosen
    assert run["conditions"]["locked_clock_mhz"] == 1200
    kinds = {row["kind"] for row in rows(store, "kind from events where gpu is not null")}
    assert {"settings_changed", "settings_restored"} <= kinds
    assert by_hand[0].calls == []
    facts = [device.facts for device in by_hand]
    for name, why in (("7", "there is no GPU '7' here; there is "), ("GPU-", "'GPU-' fits 2 GPUs: ")):
        sentence = refusal("probe run launch --store", store, "--gpu", name)
        assert why in sentence
        assert all(f"{gpu.node}/{gpu.index} ({gpu.gpu})" in sentence for gpu in facts)
    again = whorl(QUICK, store, "--gpu", f"{facts[1].node}/1")
    assert again.exit_code == 0, again.output
    assert {row["gpu"] for row in rows(store, "gpu from runs")} == {chosen}


def test_a_gpu_that_others_use_is_noted_or_refused(by_hand: list[HandDevice], tmp_path: Path) -> None:
    by_hand[0].busy_with = ("pid 7 (python)",)
    refused = whorl("probe run launch --suite quick --set exclusive=yes --store", tmp_path / "S")
    assert (refused.exit_code, "pid 7 (python)" in refused.output) == (6, True)
    whorl(QUICK, tmp_path / "S", "--gpu", 0)
    (run,) = rows(tmp_path / "S", "conditions from runs")
    assert run["conditions"]["other_processes"] == ["pid 7 (python)"]


def test_without_nvml_the_probes_run_without_telemetry(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, device = tmp_path / "S", HandDevice()
    monkeypatch.setattr(cupy_device, "cupy_devices", lambda *_: [device])
    answer = whorl("probe run launch idle --suite quick --store", store)
    assert answer.exit_code == 0, answer.output
    assert "the probes ran without telemetry" in answer.output
    runs = rows(store, "workload, status, power_w, clock_events from runs order by workload")
    assert runs == [
        {"workload": name, "status": "ok", "power_w": None, "clock_events": None} for name in ("idle", "launch")
    ]
    assert rows(store, "count(*) n from results where figure in ('energy', 'power')") == [{"n": 0}]
    assert rows(store, "gpu, node, model from gpus") == [{"gpu": FACTS.gpu, "node": "n1", "model": "test"}]


def test_a_job_leaves_one_file_of_each_table(
    by_hand: list[HandDevice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.probes.recording.LONGEST_S", 0.0)  # runs are stored as soon as they are made
    answer = whorl(QUICK, tmp_path / "S", "gemm-fp32")
    assert answer.exit_code == 0, answer.output
    tables = [path.relative_to(tmp_path / "S").parts[0] for path in (tmp_path / "S").rglob("[!_]*.parquet")]
    assert sorted(tables) == ["events", "gpus", "latest", "results", "runs", "telemetry"]


@pytest.mark.long
def test_a_node_needs_no_packages_of_the_analysis(tmp_path: Path) -> None:
    """A compute node has numpy, pyarrow, click and nvidia-ml-py; a store made elsewhere may be on it."""
    new_store(tmp_path / "S")
    arguments = ("probe", "run", "launch", "--suite", "quick", "--backend", "simulated:gpus=1")
    done = run_without(NODE, COMMAND, *arguments, "--store", tmp_path / "S")
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "S", "count(*) n from runs") == [{"n": 1}]


@pytest.mark.long
def test_variability_keeps_runs_of_different_conditions_apart(tmp_path: Path) -> None:
    store = tmp_path / "s"
    for line in ("launch", "launch --lock-clock 1200", "launch --power-limit 200", "copy-h2d"):
        quick(store, line, gpus=3)
    answer = document("verdicts variability --set replicates=100 --store", store)
    assert answer["notes"] == []
    assert {row["workload"]: row["n"] for row in answer["rows"]} == {
        "copy-h2d": 3,
        "launch [200 W, clock not locked]": 3,
        "launch": 3,
        "launch [power limit not set, locked at 1200 MHz]": 3,
    }


@pytest.mark.long
def test_planted_faults_are_found_with_address_or_multiprocessor_and_a_soak_prints_its_curve(tmp_path: Path) -> None:
    planted = "--suite quick --backend simulated:gpus=1,model=H200,fault=wrong_results=100% --time-limit 20s"
    answer = simulated(tmp_path / "S", "memory", "sm", "soak", *planted.split())
    assert answer.exit_code == 1
    for pattern in (
        r"memory on .*: offset 0x[0-9a-f]+: 0x\w+, should be 0xaaaaaaaa \(bit \d+; pattern: ",
        r"sm on .*: multiprocessor \d+: [\d,]+ wrong in fp32, found by lane \d+",
        "the share that this soak finds, %, by N",
    ):
        assert re.search(pattern, answer.output)

    def value(figure: str, condition: str = "true") -> float:
        return float(rows(tmp_path / "S", f"value from results where figure = '{figure}' and {condition}")[0]["value"])

    assert value("memory_share") >= 90
    repetitions = value("checked_repetitions", "workload = 'soak'")
    assert value("found_at_10000") == pytest.approx(100 * (1 - 0.9999**repetitions))


# -- prolog ------------------------------------------------------------------------------------------------------------
# `whorl probe prolog`: whether GPUs are fit for a job, in one line and an exit status, also where a driver hangs.


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
