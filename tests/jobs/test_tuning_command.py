"""Tuning a command: what it prints, how it fails, that it ends with all of its processes, and what its energy is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whorl.analysis.tuning.search import TimeBound, Trial
from whorl.errors import DeviceError, InputError
from whorl.jobs import tuning_command
from whorl.jobs.tuning import TuneAnswer, TuningOptions, tune
from whorl.jobs.tuning_command import CommandBench, command_knob
from whorl.store.system import processes
from whorl.tests.checks import not_none
from whorl.tests.nvml_library import NvmlLibrary

Maker = Callable[..., CommandBench]
BUSY = ("model V100", "root yes", "load 1 1")
LONG = "0.6"  # s


@pytest.fixture
def bench(nvml: NvmlLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Maker]:
    """Makes benches on a V100 that works all the time, so that short runs give its power too."""
    monkeypatch.setattr(tuning_command, "MOST_EDGE", 5)
    monkeypatch.setenv("WHORL_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml.write("gpus 1", *BUSY)
    benches: list[CommandBench] = []

    def make(command: str, *knobs: str, **options: object) -> CommandBench:
        benches.append(CommandBench(command, [command_knob(knob) for knob in knobs], **options))  # type: ignore[arg-type]
        return benches[-1]

    yield make
    for started in benches:
        started.__exit__()


def measured(bench: CommandBench, setting: dict[str, float], **options: float) -> Trial:
    """A trial of a short run, again where the machine kept the ledger from reading meanwhile."""
    for _ in range(5):
        try:
            return bench.measure(setting, bench.gpus[0], **options)
        except (InputError, DeviceError) as error:
            if "too short" not in str(error):
                raise
    raise AssertionError("the ledger had no reading in five runs")


def default_of(bench: CommandBench) -> dict[str, float]:
    return {knob.name: knob.default for knob in bench.knobs}


def limit_mw() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0)))
    finally:
        pynvml.nvmlShutdown()


# -- a run ------------------------------------------------------------------------------------------------------


def test_the_wall_time_and_the_true_energy_are_those_of_a_unit_of_work(bench: Maker, nvml: NvmlLibrary) -> None:
    command_bench = bench(
        f"sh -c 'sleep {LONG}; test {{n}} = 0.25 -a {{{{n}}}} = {{{{n}}}}'", "n=0.25,3", unit_of_work=100
    )
    began = time.time()
    trial = measured(command_bench, default_of(command_bench))
    seconds = time.time() - began
    assert float(LONG) <= 100 * not_none(trial.time_s) <= seconds
    power_w = (nvml.energy_j(0, began + seconds) - nvml.energy_j(0, began)) / seconds
    assert not_none(trial.energy_j) / not_none(trial.time_s) == pytest.approx(power_w, rel=0.15)


def test_the_last_line_counts_from_where_the_program_says_it_begins(bench: Maker) -> None:
    before, after = "sleep 0.5; echo whorl: latency_ms=9 work=5; echo whorl: begin", "printf 'whorl: work=1000'"
    command_bench = bench(f'sh -c "{before}; echo whorl: work=1; sleep {LONG}; {after}"', unit_of_work=1)
    began = time.monotonic()
    trial = measured(command_bench, default_of(command_bench))
    seconds = time.monotonic() - began
    assert 0 < 1000 * not_none(trial.time_s) < seconds - 0.5
    assert not_none(trial.energy_j) / not_none(trial.time_s) == pytest.approx(300, rel=0.15)  # W, as the limit is


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo whorl: latency_s=0.016 work=9", "printed 'whorl: latency_s=0.016 work=9', which is not understood"),
        ("echo whorl: latency=16ms work=9", "latency in milliseconds"),
        ("echo whorl: latency_ms=16ms work=9", "a value is no number above 0: print 'whorl: latency_ms=12.5"),
        ("echo whorl: latency_ms=nan work=9", "no number above 0"),
        ("echo whorl: latency_ms=0 work=9", "no number above 0"),
        ("echo whorl: latency_ms=-3 work=9", "no number above 0"),
        ("echo whorl:", "is not understood"),
        ("echo done", "told no units of work: print 'whorl: latency_ms=12.5 work=1000'"),
        ("echo whorl: latency_ms=3", "or state --set unit-of-work=N"),
        ("echo whorl: work=9", "too short for the energy sensor of the GPU: give it work for"),
        ("echo no memory >&2; exit 3", "ended with exit status 3; its last lines: no memory"),
        ("kill -11 $$", "ended by signal 11"),
        ("echo busy; sleep 60", "did not end within 0.3 s; its last lines: busy"),
    ],
)
def test_a_first_run_that_fails_says_why_in_a_sentence(bench: Maker, script: str, sentence: str) -> None:
    command_bench = bench(f"sh -c {script!r}", timeout_s=0.3)
    with pytest.raises(InputError) as refused:
        command_bench.measure(default_of(command_bench), command_bench.gpus[0])
    assert sentence in str(refused.value)


def test_a_later_run_that_hangs_ends_with_all_its_processes_and_settings(
    bench: Maker, nvml: NvmlLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_command, "_GRACE_S", 0.2)
    pid = tmp_path / "pid"
    heard: list[str] = []
    command_bench = bench(
        f"sh -c 'trap : TERM; sh -c \"trap : TERM; sleep 60; sleep 60\" & echo $! > {pid}; wait; wait; echo {{n}}'",
        "n=1,2",
        unit_of_work=1,
        timeout_s=0.5,
        tell=heard.append,
    )
    with pytest.raises(DeviceError, match="did not end within"):
        command_bench.measure(default_of(command_bench) | {"n": 2.0, "power_limit_w": 200.0}, command_bench.gpus[0])
    assert not _lives(int(pid.read_text()))
    assert "nvmlDeviceSetPowerManagementLimit" in {name for _, name in nvml.setters()}
    assert limit_mw() == 300_000
    assert not heard  # of what is as in every trial


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_restores(bench: Maker, tmp_path: Path, number: signal.Signals) -> None:
    pid = tmp_path / "pid"
    command_bench = bench(f"sh -c 'echo $$ > {pid}; exec sleep 60'", unit_of_work=1)

    def send() -> None:
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.01)
        assert limit_mw() == 200_000
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        command_bench.measure(default_of(command_bench) | {"power_limit_w": 200.0}, command_bench.gpus[0])
    sender.join()
    assert not _lives(int(pid.read_text()))
    assert limit_mw() == 300_000


def test_what_a_killed_process_left_is_restored_before_the_default_is_read(bench: Maker, nvml: NvmlLibrary) -> None:
    program = (
        "import os, sys; from whorl.probes.settings import Settings; "
        "Settings([sys.argv[1]], power_limit_w=200).__enter__(); os.kill(os.getpid(), 9)"
    )
    gpu = bench("true").gpus[0]
    killed = subprocess.run([sys.executable, "-c", program, gpu], env=nvml.environment(), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert limit_mw() == 200_000
    heard: list[str] = []
    command_bench = bench("true", tell=heard.append)
    assert (command_bench.knobs[0].name, command_bench.knobs[0].default, limit_mw()) == (
        "power_limit_w",
        300.0,
        300_000,
    )
    assert "the power limit is 300 W again" in heard[0]


def _lives(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    stat = Path(f"/proc/{pid}/stat")
    return processes.alive(pid) and not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_trial_ends_early_where_a_tenth_of_the_usual_work_shows_that_it_is_over_the_bound(
    bench: Maker, tmp_path: Path
) -> None:
    script = tmp_path / "serve"
    script.write_text(
        f"echo whorl: latency_ms=10 work=100; [ $1 = 1 ] && exec sleep {LONG}\n"
        "echo whorl: latency_ms=20 work=9; sleep 0.1; echo whorl: latency_ms=18 work=11; sleep 60"
    )
    command_bench = bench(f"sh {script} {{n}}", "n=1,2")
    assert measured(command_bench, default_of(command_bench), stop_over_s=0.016).time_s == 0.01
    over = command_bench.measure(default_of(command_bench) | {"n": 2.0}, command_bench.gpus[0], stop_over_s=0.016)
    assert (over.ended_early, over.time_s) == (True, 0.018)


# -- the GPUs ---------------------------------------------------------------------------------------------------


def test_a_command_has_the_gpus_that_are_chosen_for_it(bench: Maker, nvml: NvmlLibrary) -> None:
    nvml.write("gpus 3", *BUSY)
    script = f'sh -c \'sleep {LONG}; echo "whorl: work=$(echo $CUDA_VISIBLE_DEVICES | tr , "\\n" | wc -l)"\''
    alone = bench(script)
    assert len(alone.gpus) == 3
    pair = bench(script, gpus=["1,2"])
    assert pair.gpus == [",".join(alone.gpus[1:])]
    trial = measured(pair, default_of(pair) | {"power_limit_w": 150.0})
    assert not_none(trial.energy_j) / not_none(trial.time_s) == pytest.approx(2 * 150, rel=0.15)  # W
    assert not_none(trial.time_s) > float(LONG) / 2 - 0.001  # a unit of work on each of the two
    with pytest.raises(InputError, match="there is no GPU '7' here; there is 0"):
        bench(script, gpus=["7"])


# -- the search -------------------------------------------------------------------------------------------------


def test_runs_that_fail_now_and_then_are_left_out(bench: Maker, nvml: NvmlLibrary, tmp_path: Path) -> None:
    nvml.write("gpus 1", "model V100", "root no", "load 1 1")
    script, runs = tmp_path / "serve", tmp_path / "runs"
    script.write_text(f"echo >> {runs}; sleep 1; [ $(wc -l < {runs}) != 2 ] && [ $1 != 3 ] && echo whorl: work=9")
    command_bench = bench(f"sh {script} {{n}}", "n=1,2,3")
    answer = tune(command_bench, TimeBound(max_time_s=0.01), TuningOptions(trials=3))
    assert answer.is_default
    assert not answer.within
    assert {trial.setting["n"]: trial.failure is None for trial in answer.trials} == {1.0: True, 2.0: True, 3.0: False}


BOUND_MS = 30.0
SERVICE = r"""
import os, re, sys, time
control, batch = os.environ["WHORL_NVML_CONTROL"], float(sys.argv[1])
limits = re.findall(r"limit (\d+)", open(control).read())
limit_w = float(limits[-1]) / 1000 if limits else 300.0
duty = batch / (batch + 4)
with open(control, "a") as steered:
    steered.write(f"\nfrom {time.time():.6f} load 0.004 {duty:.4f}\n")
latency_ms = (4 + batch) * (355.0 / (limit_w - 45)) ** 0.45
began = time.monotonic()
print("whorl: begin")
time.sleep(0.6)
print(f"whorl: latency_ms={latency_ms} work={batch * 1000 * (time.monotonic() - began) / latency_ms}")
"""


@pytest.mark.long
def test_the_search_finds_the_setting_of_a_service_that_saves_most_within_its_latency(
    bench: Maker, nvml: NvmlLibrary, tmp_path: Path
) -> None:
    nvml.write("gpus 1", *BUSY, "deny 4 nvmlDeviceSetGpuLockedClocks")
    script = tmp_path / "service.py"
    script.write_text(SERVICE)
    command_bench = bench(f"{sys.executable} -S {script} {{batch}}", "batch=2,1,4,8,16,32")
    assert [knob.name for knob in command_bench.knobs] == ["power_limit_w", "batch"]
    answer = tuned(
        command_bench, TimeBound(max_time_s=BOUND_MS / 1000), TuningOptions(trials=8, seed=1, log=tmp_path / "log")
    )
    grid = [(watt, batch) for watt in command_bench.knobs[0].values for batch in command_bench.knobs[1].values]
    best_j = min(service_j(*point) for point in grid if latency_ms(*point) <= BOUND_MS)
    setting = (answer.setting["power_limit_w"], answer.setting["batch"])
    assert service_j(*setting) < 1.1 * best_j
    assert latency_ms(*setting) <= BOUND_MS
    true_saved_pct = 100 * (1 - service_j(*setting) / service_j(300.0, 2.0))
    assert answer.saved.n == 3
    assert answer.saved.pct == pytest.approx(true_saved_pct, abs=10)
    assert answer.commands == (f"nvidia-smi -i 0 -pl {setting[0]:g}",)
    assert any(answer.is_over(trial) for trial in answer.trials)
    assert limit_mw() == 300_000


def tuned(bench: CommandBench, bound: TimeBound, options: TuningOptions) -> TuneAnswer:
    """Tune, and go on where the machine kept the ledger from reading during a run of the default."""
    for _ in range(5):
        try:
            return tune(bench, bound, options)
        except InputError as error:
            if "too short" not in str(error):
                raise
    raise AssertionError("the ledger had no reading in five runs")


def latency_ms(limit_w: float, batch: float) -> float:
    return float((4 + batch) * (355.0 / (limit_w - 45)) ** 0.45)


def service_j(limit_w: float, batch: float) -> float:
    """J of a unit of its work: the stand-in draws 45 W, and up to 291 W while it is busy, as the limit is."""
    return (45 + batch / (batch + 4) * (min(limit_w, 291) - 45)) * latency_ms(limit_w, batch) / batch / 1000
