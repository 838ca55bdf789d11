"""Settings for the length of a measurement: changed, verified, brought back, however the measurement ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whorl.errors import DeviceError, InputError
from whorl.probes.settings import Settings, restore_left_over
from whorl.store.events import Event
from whorl.store.vocabulary import EventKind
from whorl.tests.checks import until
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.changing import PATIENCE_S, assert_as_before, clock_mhz, limit_w, notes, process_with_settings


class Told(list[Event]):
    """What was told, in order."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def kinds(self, gpu: str | None) -> list[EventKind]:
        return [event.kind for event in self if event.gpu == gpu]


def test_what_there_was_comes_back(gpus: list[str], nvml: NvmlLibrary, state: Path) -> None:
    nvml.add("gpu 0 limit 650000")
    events = Told()
    free = clock_mhz(gpus[1])
    with Settings(gpus[:2], lock_clock_mhz=1203, power_limit_w=500, tell=events) as settings:
        assert [limit_w(gpu) for gpu in gpus] == [500, 500, 700]
        assert [clock_mhz(gpu) for gpu in gpus[:2]] == [1200, 1200]
        assert settings.locked_clock_mhz(gpus[0]) == 1200, "the nearest clock that the GPU has"
        assert settings.locked_clock_mhz(gpus[2]) is None
        path, _ = notes(state)
        assert path.stat().st_mode & 0o777 == 0o600
    assert [limit_w(gpu) for gpu in gpus] == [650, 700, 700]
    assert clock_mhz(gpus[1]) == free
    assert not notes(state)
    assert events.kinds(gpus[0]) == ["settings_changed"] * 2 + ["settings_restored"] * 2
    first = events[0]
    assert first.detail == f"{gpus[0]}: the power limit is 500 W, and was 650 W"
    assert (first.metric, first.before, first.value) == ("power_limit_mw", 650_000, 500_000)
    assert (events[1].metric, events[1].before, events[1].value) == ("sm_clock_mhz", None, 1200)


def test_one_setting_alone_leaves_the_other(gpus: list[str], nvml: NvmlLibrary, state: Path) -> None:
    with Settings(gpus, power_limit_w=600) as settings:
        assert settings.locked_clock_mhz(gpus[0]) is None
    assert not {name for _, name in nvml.setters() if "Clocks" in name}
    with Settings(gpus, lock_clock_mhz=900):
        assert limit_w(gpus[0]) == 700
        assert clock_mhz(gpus[0]) == 900
    assert clock_mhz(gpus[0]) > 900


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"power_limit_w": 10}, "a power limit of 10 W is not allowed; it accepts 200 to 700 W"),
        ({"power_limit_w": 701}, "it accepts 200 to 700 W"),
        ({"lock_clock_mhz": 5000}, "a clock of 5000 MHz is not allowed; it accepts 345 to 1980 MHz"),
        ({"lock_clock_mhz": float("nan")}, "a clock of nan MHz is not allowed"),
        ({"power_limit_w": 400, "lock_clock_mhz": 1}, "it accepts 345 to 1980 MHz"),
    ],
)
def test_what_a_gpu_cannot_have_is_refused_before_anything(
    gpus: list[str], nvml: NvmlLibrary, state: Path, values: dict[str, float], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence) as raised, Settings(gpus, **values):  # type: ignore[arg-type]
        pass
    assert gpus[0] in str(raised.value)
    assert not nvml.setters()
    assert not notes(state)


def test_without_permission_nothing_is_changed_and_nothing_left(
    gpus: list[str], nvml: NvmlLibrary, state: Path
) -> None:
    nvml.add("root no")
    events = Told()
    for values, doing in (
        ({"lock_clock_mhz": 900}, "locking the clock"),
        ({"power_limit_w": 300}, "setting the power"),
    ):
        with pytest.raises(InputError, match=f"{gpus[0]}: {doing}.* needs root"), Settings(gpus, tell=events, **values):
            pass
    assert not events
    assert not notes(state)
    assert {name for _, name in nvml.setters()} == {"nvmlDeviceSetGpuLockedClocks", "nvmlDeviceSetPowerManagementLimit"}


@pytest.mark.parametrize("refused", ["nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks"])
@pytest.mark.parametrize("status", [3, 4, 999])
def test_one_gpu_that_refuses_leaves_all_as_they_were(
    gpus: list[str], nvml: NvmlLibrary, state: Path, refused: str, status: int
) -> None:
    nvml.add(f"gpu 1 deny {status} {refused}")
    with pytest.raises((InputError, DeviceError), match=gpus[1]), Settings(gpus, lock_clock_mhz=900, power_limit_w=300):
        pass
    assert_as_before(gpus, state)


def test_a_driver_that_takes_and_does_not_do_is_found_out(gpus: list[str], nvml: NvmlLibrary, state: Path) -> None:
    nvml.add("gpu 1 deaf")
    sentence = f"{gpus[1]}: the driver took a power limit of 300 W and shows 700 W"
    with pytest.raises(DeviceError, match=sentence), Settings(gpus, power_limit_w=300):
        pass
    assert_as_before(gpus, state)


def test_a_gpu_that_falls_off_is_restored_when_it_is_back(gpus: list[str], nvml: NvmlLibrary, state: Path) -> None:
    events = Told()
    with Settings(gpus, lock_clock_mhz=900, power_limit_w=300, tell=events):
        nvml.add("gpu 1 lost")
    assert [limit_w(gpus[0]), limit_w(gpus[2])] == [700, 700]
    assert events.kinds(gpus[1])[-1] == "settings_not_restored"
    assert events.kinds(gpus[2])[-1] == "settings_restored"
    assert [path.stem for path in notes(state)] == [f"restore-{gpus[1]}"]
    (sentence,) = restore_left_over()
    assert gpus[1] in sentence
    nvml.remove("gpu 1 lost")
    assert len(restore_left_over()) == 2
    assert limit_w(gpus[1]) == 700
    assert clock_mhz(gpus[1]) > 900
    assert not notes(state)
    assert restore_left_over() == []


def test_a_limit_that_somebody_else_set_meanwhile_stays(gpus: list[str], nvml: NvmlLibrary, state: Path) -> None:
    events = Told()
    with Settings(gpus[:1], power_limit_w=300, tell=events):
        nvml.add("gpu 0 limit 450000")
    assert limit_w(gpus[0]) == 450
    assert "somebody else set the power limit" in events[-1].detail
    assert not notes(state)


def test_a_folder_that_cannot_be_written_is_said_before_anything(
    gpus: list[str], nvml: NvmlLibrary, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.write_text("no folder")
    with pytest.raises(InputError, match="no setting was changed: set WHORL_STATE"), Settings(gpus, power_limit_w=300):
        pass
    assert not nvml.setters()


@pytest.mark.usefixtures("gpus")
def test_an_instance_has_no_settings_of_its_own(nvml: NvmlLibrary, state: Path) -> None:
    nvml.add("gpu 0 mig 3g.40gb")
    instance = "MIG-77686f72-6c00-5000-0000-000000000000"
    with pytest.raises(InputError, match="is a MIG instance"), Settings([instance], power_limit_w=300):
        pass
    with pytest.raises(DeviceError, match="does not show this GPU"), Settings(["GPU-none"], power_limit_w=300):
        pass
    assert not nvml.setters()


def test_two_processes_do_not_take_each_others_gpus(gpus: list[str], nvml: NvmlLibrary, state: Path) -> None:
    with process_with_settings(nvml, state, gpus[:1]) as process:
        assert limit_w(gpus[0]) == 500
        with (
            pytest.raises(InputError, match=f"{gpus[0]}: process {process.pid} has changed"),
            Settings(gpus, power_limit_w=300),
        ):
            pass
        with Settings(gpus[1:], power_limit_w=300):
            assert len(notes(state)) == 3
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)
            assert limit_w(gpus[0]) == 700
            assert len(notes(state)) == 2, "the other's file went, ours stayed"
        assert limit_w(gpus[1]) == 700
    assert not notes(state)


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -signal.SIGINT)]
)
def test_signals_end_it_and_what_there_was_comes_back(
    gpus: list[str], nvml: NvmlLibrary, state: Path, number: signal.Signals, status: int
) -> None:
    with process_with_settings(nvml, state, gpus) as process:
        assert clock_mhz(gpus[2]) == 1200
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == status
    assert_as_before(gpus, state)


def test_more_signals_do_not_disturb_the_restoring(gpus: list[str], nvml: NvmlLibrary, state: Path) -> None:
    nvml.add("latency 200000 nvmlDeviceResetGpuLockedClocks")
    with process_with_settings(nvml, state, gpus) as process:
        process.send_signal(signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            time.sleep(0.1)  # in the middle: restoring three GPUs takes 0.6 s
            process.send_signal(number)
        process.wait(PATIENCE_S)
        assert process.returncode != 0
    assert_as_before(gpus, state)


@pytest.mark.parametrize("together", [True, False])
def test_signals_while_settings_are_restored_act_afterwards(
    gpus: list[str], nvml: NvmlLibrary, state: Path, *, together: bool
) -> None:
    """Two that Python finds pending at once, of which the second is raised where the first is handled; or one that
    comes in the second and a half for which a process that is through restores clocks."""
    body = "pass"
    if together:
        body = (
            "import os, signal; both = {signal.SIGINT, signal.SIGTERM}; "
            "signal.pthread_sigmask(signal.SIG_BLOCK, both); [os.kill(os.getpid(), n) for n in both]; "
            "signal.pthread_sigmask(signal.SIG_UNBLOCK, both); time.sleep(60)"
        )
    else:
        nvml.add("latency 500000 nvmlDeviceResetGpuLockedClocks")
    with process_with_settings(nvml, state, gpus, watt=500 if together else None, body=body) as process:
        if not together:
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
        status = process.wait(PATIENCE_S)
        assert status == 143 or (together and status != 0)
    assert_as_before(gpus, state)


def test_a_killed_process_is_undone_by_the_next(gpus: list[str], nvml: NvmlLibrary, state: Path) -> None:
    nvml.add("gpu 0 limit 650000")
    events = Told()
    with process_with_settings(nvml, state, gpus) as process:
        assert restore_left_over() == [], "it lives"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert [limit_w(gpu) for gpu in gpus] == [500] * 3
    with Settings(gpus, power_limit_w=400, tell=events):
        assert limit_w(gpus[0]) == 400
        assert clock_mhz(gpus[0]) > 1200
    assert [limit_w(gpu) for gpu in gpus] == [650, 700, 700], "as before the first, not as the killed one left it"
    assert events.kinds(None) == ["settings_left_over"] * 6
    assert not notes(state)


SET_LIMIT = "nvmlDeviceSetPowerManagementLimit"


@pytest.mark.long(short=1)
@pytest.mark.parametrize("function", [SET_LIMIT, "nvmlDeviceSetGpuLockedClocks"])
def test_killed_in_the_middle_of_changing(gpus: list[str], nvml: NvmlLibrary, state: Path, function: str) -> None:
    nvml.add(f"gpu 1 hang {function}")
    program = (
        f"from whorl.probes.settings import Settings\n"
        f"with Settings({gpus!r}, lock_clock_mhz=900, power_limit_w=300):\n    pass"
    )
    process = subprocess.Popen([sys.executable, "-c", program], env=nvml.environment(WHORL_STATE=str(state)))
    until(lambda: (process.pid, function) in nvml.setters() and limit_w(gpus[0]) == 300)
    time.sleep(0.05)  # now it hangs at the second GPU
    process.kill()
    process.wait()
    nvml.remove(f"gpu 1 hang {function}")
    sentences = restore_left_over()
    assert sum("the power limit is 700 W again" in sentence for sentence in sentences) == 1 + (function != SET_LIMIT)
    assert not any("somebody else" in sentence for sentence in sentences), "a limit not yet changed is nobody's"
    assert_as_before(gpus, state)
