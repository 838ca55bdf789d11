"""Tuning through the driver: knobs that can be set and that cannot, and settings that come back however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from whorl.errors import InputError
from whorl.jobs.tuning import TuneProgress, TuningOptions, tune
from whorl.jobs.tuning_knobs import CLOCK, MEMORY, POWER, knobs_of_gpus
from whorl.probes.settings import restore_left_over
from whorl.store import Store
from whorl.tests.jobs.tuned_device import BOUND, bench, clocked, tuned
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.changing import BUSY, PATIENCE_S, clock_mhz, limit_w, notes, uuids

ONE = ("model H100", "root yes", "gpus 1", "load 10 1")


def test_knobs_are_what_the_driver_has(nvml: NvmlLibrary, state: Path) -> None:
    nvml.write(*BUSY, "gpu 0 limit 650500")
    gpus = uuids()
    found = knobs_of_gpus(gpus[:2])
    power, clock = found.knobs
    assert (power.name, clock.name) == (POWER, CLOCK)
    assert power.default == 650.5, "how it is set"
    assert power.values[:2] == (200, 225)
    assert power.values[-4:] == (625, 650.5, 675, 700), "no two within a watt"
    assert clock.default == clock.values[-1] == 1980
    assert clock.values[-2] == 1950, "every second clock"
    assert limit_w(gpus[0]) == 650.5
    assert clock_mhz(gpus[0]) > 1200
    assert not notes(state)
    assert found.limits({POWER: 650.5, CLOCK: 1980.0}) == {"power_limit_w": None, "lock_clock_mhz": None}
    assert found.limits({POWER: 500.0, CLOCK: 1200.0}) == {"power_limit_w": 500.0, "lock_clock_mhz": 1200.0}
    assert found.commands({POWER: 500.0, CLOCK: 1200.0}) == [
        "nvidia-smi -i 0 -pl 500", "nvidia-smi -i 0 -lgc 1200,1200",
        "nvidia-smi -i 1 -pl 500", "nvidia-smi -i 1 -lgc 1200,1200",
    ]  # fmt: skip
    assert {knob.name for knob in found.unset} <= {MEMORY}


@pytest.mark.parametrize(
    ("statement", "unset", "reason"),
    [
        ("root no", {POWER, CLOCK}, "needs root"),
        ("gpu 0 deny 3 nvmlDeviceSetGpuLockedClocks", {CLOCK}, "locking the clock is not possible"),
        ("gpu 0 deny 3 nvmlDeviceGetPowerManagementLimitConstraints", {POWER}, "the power limit is not possible"),
        ("gpu 0 deaf", {POWER}, "the driver took a power limit of 675 W and shows 700 W"),
    ],
)
def test_a_knob_that_cannot_be_set_is_named_with_the_command(
    nvml: NvmlLibrary, state: Path, statement: str, unset: set[str], reason: str
) -> None:
    nvml.write(*BUSY, statement)
    gpus = uuids()
    found = knobs_of_gpus(gpus[:1])
    assert {knob.name for knob in found.unset} - {MEMORY} == unset
    assert {knob.name for knob in found.knobs} == {POWER, CLOCK} - unset
    commands = {POWER: ("nvidia-smi -i 0 -pl W",), CLOCK: ("nvidia-smi -i 0 -lgc MIN,MAX",)}
    for knob in found.unset:
        if knob.name != MEMORY:
            assert knob.commands == commands[knob.name]
            assert reason in knob.reason
    assert not notes(state)
    assert limit_w(gpus[0]) == 700


def test_a_driver_that_refuses_half_way_leaves_all_as_it_was(
    nvml: NvmlLibrary, state: Path, store: Store, tmp_path: Path
) -> None:
    nvml.write(*ONE)
    gpus = uuids()

    def refuse(progress: TuneProgress) -> None:
        if progress.done == 3:
            nvml.add("gpu 0 deny 4 nvmlDeviceSetPowerManagementLimit nvmlDeviceSetGpuLockedClocks")

    options = TuningOptions(trials=5, log=tmp_path / "log", progress=refuse)
    with pytest.raises(InputError, match=f"{gpus[0]}: (setting|locking) .* needs root"):
        tune(bench(store, clocked(gpus)), BOUND, options)
    assert limit_w(gpus[0]) == 700
    assert clock_mhz(gpus[0]) > 1200
    assert not notes(state)
    assert len((tmp_path / "log").read_text().splitlines()) == 1 + 3


@contextmanager
def tuning(nvml: NvmlLibrary, folder: Path, gpu: str) -> Iterator[subprocess.Popen[str]]:
    """A process that tunes, and is in the middle of its third trial."""
    command = [sys.executable, "-m", "whorl.tests.jobs.tuned_device", str(folder), "4", gpu]
    process = subprocess.Popen(
        command, env=nvml.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n", process.communicate()[1]
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_what_ends_a_tuning_run_leaves_its_log_and_no_setting(
    nvml: NvmlLibrary, state: Path, tmp_path: Path, number: signal.Signals
) -> None:
    nvml.write(*ONE)
    (gpu,) = uuids()
    with tuning(nvml, tmp_path, gpu) as process:
        assert notes(state)
        process.send_signal(number)
        (tmp_path / "go").touch()
        process.wait(PATIENCE_S)
    if number == signal.SIGKILL:
        assert notes(state), "nobody was there to restore"
        assert any("again" in sentence for sentence in restore_left_over())
    assert not notes(state)
    assert limit_w(gpu) == 700
    assert clock_mhz(gpu) > 1200
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 5, "what is tuned, the default twice, and two trials"
    answer = tuned(tmp_path, [gpu], trials=4)
    assert (tmp_path / "log").read_text().splitlines()[:5] == lines
    assert len(answer.trials) == 4
    assert limit_w(gpu) == 700
    counted = Store.create(tmp_path / "store").sql("select count(*) as n from runs").to_pylist()[0]["n"]
    assert counted >= 4 + 1
