"""Restore files: what a crash left is brought back by the next start, or it is said why not."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import InputError
from whorl.probes.settings import RestoreFile, Settings, restore_left_over, state_folder
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.changing import BUSY, PATIENCE_S, assert_as_before, limit_w, notes, process_with_settings, uuids


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
