"""Settings for the length of a measurement: changed, verified, brought back, however the measurement ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import DeviceError, InputError
from whorl.probes.settings import RestoreFile, Settings, restore_left_over, state_folder
from whorl.store.events import Event
from whorl.store.vocabulary import EventKind
from whorl.tests.checks import until
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.changing import (
    BUSY,
    PATIENCE_S,
    assert_as_before,
    clock_mhz,
    limit_w,
    notes,
    process_with_settings,
    uuids,
)


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


# -- restore files -----------------------------------------------------------------------------------------------------
# Restore files: what a crash left is brought back by the next start, or it is said why not.


def left_by_a_killed_process(nvml: NvmlLibrary, state: Path, *statements: str) -> tuple[Path, list[str]]:
    """The restore file of the first of three GPUs, which a dead process left at 500 W and 1200 MHz."""
    nvml.write(*BUSY, *statements)
    gpus = uuids()
    with process_with_settings(nvml, state, gpus) as process:
        process.kill()
        process.wait(PATIENCE_S)
    assert len(notes(state)) == 3
    assert limit_w(gpus[0]) == 500
    return state / f"restore-{gpus[0]}.json", gpus


def rewrite(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def setters(nvml: NvmlLibrary) -> set[str]:
    """What this process tried to change."""
    return {name for process, name in nvml.setters() if process == os.getpid()}


COMMANDS = [["doctor"], ["collect", "--store", "s", "--duration", "0.2", "--interval", "0.1"]]


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_the_next_command_restores(
    nvml: NvmlLibrary, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    path, gpus = left_by_a_killed_process(nvml, state)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert f"{gpus[1]}: the power limit is 700 W again" in " ".join(done.output.split())
    assert [limit_w(gpu) for gpu in gpus] == [700] * 3
    assert not path.exists()


def test_a_planted_restore_file_sets_nothing(nvml: NvmlLibrary, state: Path, tmp_path: Path) -> None:
    path, gpus = left_by_a_killed_process(nvml, state)

    def sets_nothing(fragment: str) -> None:
        assert any(fragment in sentence for sentence in restore_left_over())
        assert limit_w(gpus[0]) == 500
        assert path.exists()

    path.chmod(0o666)
    sets_nothing("other users may have written it")
    path.chmod(0o600)
    if os.geteuid() == 0:  # only root can give a file to another user
        os.chown(path, 12345, 12345)
        sets_nothing("other users may have written it")
        os.chown(path, 0, 0)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    sets_nothing(str(path))
    path.unlink()
    (tmp_path / "elsewhere").rename(path)
    rewrite(path, power_limit_mw=5_000_000)
    sets_nothing("not allowed")


def test_nothing_to_restore_costs_a_look(state: Path) -> None:
    code = "import sys\nfrom whorl.probes.settings import restore_left_over\nassert restore_left_over() == []\n"
    code += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pynvml", "numpy", "pyarrow", "asyncio"} & set(done.stdout.split())
    assert not state.exists(), "looking leaves no trace"


def test_on_a_file_system_without_locks_the_process_decides(
    gpus: list[str], nvml: NvmlLibrary, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_with_settings(nvml, state, gpus) as process:

        def no_locks(*_: object) -> None:
            raise OSError(errno.ENOLCK, "no locks available")

        monkeypatch.setattr(fcntl, "flock", no_locks)
        path = state / f"restore-{gpus[0]}.json"

        def living() -> bool:
            with closing(RestoreFile(path)) as file:
                return file.living

        assert living()
        started = json.loads(path.read_text())["started"]
        rewrite(path, started="1")  # another process that had its number
        assert not living()
        rewrite(path, started=started)
        assert living()
        process.kill()
        process.wait(PATIENCE_S)
        assert not living()
        with Settings(gpus, power_limit_w=300):
            assert limit_w(gpus[0]) == 300
    assert_as_before(gpus, state)


def test_a_damaged_file_is_told_and_stays(nvml: NvmlLibrary, state: Path) -> None:
    path, gpus = left_by_a_killed_process(nvml, state)
    for note in {*notes(state)} - {path}:
        note.unlink()
    text = path.read_bytes().replace(b"700000", b'"700000"')
    for content in (b"{", b"[]", b"null", b'{"boot": "1"}', b'{"gpus": {}}', b"\xff", text):
        path.write_bytes(content)
        (sentence,) = restore_left_over()
        assert str(path) in sentence, content
        assert "nvidia-smi -rgc" in sentence, content
        with pytest.raises(InputError, match="could not be restored"), Settings(gpus, power_limit_w=300):
            pass
        assert not setters(nvml), content
    path.write_bytes(b"")  # its process died before it changed anything
    with Settings(gpus, power_limit_w=300):
        assert limit_w(gpus[0]) == 300
    assert not notes(state)


def test_a_new_driver_undid_it(nvml: NvmlLibrary, state: Path) -> None:
    path, gpus = left_by_a_killed_process(nvml, state)
    for note in notes(state):
        rewrite(note, driver="470.1")
    sentences = restore_left_over()
    assert sorted(sentence.partition(":")[0] for sentence in sentences if "reloading the driver" in sentence) == sorted(
        gpus
    )
    assert not setters(nvml)
    assert not path.exists()


def test_what_another_boot_or_machine_left_is_not_restored(nvml: NvmlLibrary, state: Path) -> None:
    path, gpus = left_by_a_killed_process(nvml, state)
    for note in notes(state):
        rewrite(note, boot="0badcafe")
    assert restore_left_over() == []
    assert not setters(nvml)
    assert path.exists()
    with Settings(gpus, power_limit_w=300):
        assert limit_w(gpus[0]) == 300
    assert not notes(state)


def test_without_permission_the_file_stays_for_one_who_may(nvml: NvmlLibrary, state: Path) -> None:
    path, gpus = left_by_a_killed_process(nvml, state)
    nvml.add("root no")
    sentences = restore_left_over()
    assert "setting the power limit needs root" in sentences[0]
    assert limit_w(gpus[0]) == 500
    assert path.exists()
    nvml.remove("root no")
    restore_left_over()
    assert limit_w(gpus[0]) == 700
    assert not path.exists()


def test_a_gpu_that_is_not_here_waits_for_its_return(nvml: NvmlLibrary, state: Path) -> None:
    path, gpus = left_by_a_killed_process(nvml, state)
    nvml.add("gpus 2")
    sentences = restore_left_over()
    assert any(gpus[2] in sentence and "does not show this GPU" in sentence for sentence in sentences)
    assert [limit_w(gpu) for gpu in gpus[:2]] == [700, 700]
    assert [note.stem for note in notes(state)] == [f"restore-{gpus[2]}"]
    with Settings(gpus[:2], power_limit_w=400):  # a GPU that is gone keeps nobody from the others
        assert limit_w(gpus[0]) == 400
    nvml.remove("gpus 2")
    restore_left_over()
    assert limit_w(gpus[2]) == 700
    assert not path.exists()


@pytest.mark.parametrize(("number", "count"), [(errno.EIO, 1), (errno.EACCES, 0)])
def test_a_folder_that_cannot_be_read(state: Path, monkeypatch: pytest.MonkeyPatch, number: int, count: int) -> None:
    state.mkdir()

    def refused(_: object) -> Iterator[Any]:
        raise OSError(number, os.strerror(number), str(state))

    monkeypatch.setattr(os, "scandir", refused)
    sentences = restore_left_over()
    assert len(sentences) == count, "of another user's folder there is nothing to say"
    assert all(os.strerror(number) in sentence and str(state) in sentence for sentence in sentences)


def test_two_that_start_at_once_restore_once(nvml: NvmlLibrary, state: Path) -> None:
    path, gpus = left_by_a_killed_process(nvml, state, "latency 50000 nvmlDeviceResetGpuLockedClocks")
    sentences: list[list[str]] = []
    threads = [threading.Thread(target=lambda: sentences.append(restore_left_over())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sum(map(len, sentences)) == 6
    assert limit_w(gpus[0]) == 700
    assert not path.exists()


@contextmanager
def _variables(monkeypatch: pytest.MonkeyPatch, **values: str | None) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name in ("WHORL_STATE", "XDG_STATE_HOME", "HOME"):
            value = values.get(name)
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        yield


def test_where_the_files_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    with _variables(monkeypatch, WHORL_STATE="/a", XDG_STATE_HOME="/b", HOME="/c"):
        assert state_folder() == Path("/a")
    with _variables(monkeypatch, XDG_STATE_HOME="/b", HOME="/c"):
        assert state_folder() == Path("/b/whorl")
    with _variables(monkeypatch, HOME="/c"):
        assert state_folder() == Path("/c/.local/state/whorl")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with _variables(monkeypatch), pytest.raises(InputError, match="set WHORL_STATE"):
        state_folder()
