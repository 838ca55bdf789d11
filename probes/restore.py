"""Restore files: the GPU settings that whorl changed on this machine and has not restored yet.

Before a process changes a setting it writes a file that says what there was. It holds a lock on that file as long as
it lives, however it ends. A file that nobody holds was left by a process that is dead: the next start restores what
the file says, and removes it.

    FOLDER/restore-HOST-BOOT-PID-N.json   one of each process that has settings changed now
    FOLDER/restore-HOST-BOOT.lock         held while files are claimed, or left ones are looked at

FOLDER is $WHORL_STATE, else $XDG_STATE_HOME/whorl, else ~/.local/state/whorl. BOOT tells this boot of the machine from
others: no setting outlives a reboot.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, WhorlError
from ..store.system import files, locks, processes

if TYPE_CHECKING:
    from ..collectors.nvml_settings import Control, Controls

_FORMAT = 1
_WAIT_S = 10.0


@dataclass(frozen=True)
class Before:
    """What is to be restored of one GPU.

    `power_limit_mw` is what there was and `power_limit_set_mw` what was set, mW; None where the limit is not touched.
    Of the clock it is known only that it is locked now: NVML does not tell what was before, which is taken for free.
    """

    power_limit_mw: int | None = None
    power_limit_set_mw: int | None = None
    clock_locked: bool = False


@dataclass(frozen=True)
class Note:
    """The content of a restore file: who changed what, when, and what there was. `started` is the process's start in
    clock ticks since boot, which tells it from a later one of the same number."""

    host: str
    boot: str
    pid: int
    started: int | None
    when: str
    driver: str | None
    gpus: Mapping[str, Before]

    def text(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def parse(cls, text: str) -> Note:
        """Raises ValueError for what is no such content."""
        try:
            document = json.loads(text)
            if document.pop("format") != _FORMAT:
                raise ValueError("another version of whorl wrote it")
            gpus = {str(gpu): Before(**before) for gpu, before in document.pop("gpus").items()}
            numbers = [n for b in gpus.values() for n in (b.power_limit_mw, b.power_limit_set_mw) if n is not None]
            note = cls(**document, gpus=gpus)
            if not all(isinstance(number, int) for number in [*numbers, note.pid]):
                raise ValueError("it contains text instead of a number")
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("it is not complete") from error
        return note


def state_folder() -> Path:
    """Where this user's restore files lie. Raises InputError where no folder can be told."""
    for variable, below in (("WHORL_STATE", ""), ("XDG_STATE_HOME", "whorl")):
        if value := os.environ.get(variable):
            return Path(value) / below
    try:
        return Path.home() / ".local" / "state" / "whorl"
    except RuntimeError as error:
        raise InputError("this user has no home folder: set WHORL_STATE to a folder for restore files") from error


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:  # no /proc: a reboot cannot be told from a crash
        return "unknown"


def _started(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None where there is no such process, or it is not told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])  # field 22 of proc(5); the name before may hold anything


def _mine() -> str:
    return f"restore-{processes.host()}-{_boot()[:8]}"


# -- locks ------------------------------------------------------------------------------------------------------------


def _held_by_other(handle: int, note: Note | None) -> bool:
    """Take the lock of an open restore file; True where the process that wrote it has it still."""
    got = locks.attempt(handle)
    if got is None:  # a file system without locks: its content decides
        return note is not None and _started(note.pid) is not None and _started(note.pid) == note.started
    return not got


@contextlib.contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Keep other processes from claiming and restoring. InputError where the folder cannot be written, or is busy."""
    path = folder / f"{_mine()}.lock"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        # None: no locks here, and two that start in the same instant are not kept apart.
        if locks.wait(handle, _WAIT_S) is False:
            raise InputError(
                f"another whorl has been changing or restoring settings for {_WAIT_S:.0f} s ({path}): try again"
            )
        yield
    finally:
        os.close(handle)


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write the restore file in {folder} ({error.strerror}), so no setting was changed: set WHORL_STATE to "
        f"a folder that this user can write"
    )


# -- claims -----------------------------------------------------------------------------------------------------------


class Claim:
    """The restore file of this process, written and held before anything is changed."""

    def __init__(self, folder: Path, gpus: Mapping[str, Before], driver: str | None) -> None:
        """Raises InputError where it cannot be written. Only within `exclusively`."""
        self.path = folder / f"{_mine()}-{os.getpid()}-{time.monotonic_ns():x}.json"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._note = Note(processes.host(), _boot(), os.getpid(), _started(os.getpid()), now, driver, dict(gpus))
        self._handle = -1
        try:
            self._write()
        except OSError as error:
            raise _unwritable(folder, error) from error

    def keep(self, gpus: Mapping[str, Before]) -> None:
        """From now on these are to be restored; none: the file is gone. Raises OSError."""
        if gpus:
            self._note = replace(self._note, gpus=dict(gpus))
            self._write()
            return
        self.path.unlink(missing_ok=True)
        files.sync_folder(self.path.parent)

    def release(self) -> None:
        """Leave the file, if it is still there, to the next start."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _write(self) -> None:
        fresh = self.path.with_suffix(f".{time.monotonic_ns():x}.new")
        handle = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            locks.attempt(handle)  # None: a file system without locks, where the content decides
            with os.fdopen(handle, "w", closefd=False) as stream:
                stream.write(self._note.text())
            files.sync(handle)
            fresh.replace(self.path)
            files.sync_folder(self.path.parent)
        except OSError:
            os.close(handle)
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
        self.release()
        self._handle = handle


# -- what was left ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """A restore file of this machine. `note` is None where it cannot be read, for the reason in `why`; a `foreign` one
    is another user's work, and nothing is done for it."""

    path: Path
    living: bool
    note: Note | None
    why: str = ""
    foreign: bool = False


def pending(folder: Path) -> list[Left]:
    """The restore files of this machine; of others, that share the folder, none. Raises OSError."""
    found: list[Left] = []
    if not folder.is_dir():
        return found
    here = f"-{_boot()[:8]}-"
    names = sorted(entry.name for entry in os.scandir(folder) if entry.name.startswith("restore-"))
    for name in names:
        ours = name.startswith(f"restore-{processes.host()}-") or here in name
        if not ours or not name.endswith(".json"):
            continue
        path = folder / name
        try:
            # For writing: NFS locks no file for one process alone that is open for reading only.
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its process has just restored
        except OSError as error:
            found.append(Left(path, False, None, error.strerror or str(error)))
            continue
        try:
            note, why = None, _reason_not_to_believe(handle)
            foreign = bool(why)
            try:
                if not foreign:
                    note = Note.parse(os.read(handle, 1 << 20).decode())
            except ValueError as error:
                why = str(error)
            found.append(Left(path, not foreign and _held_by_other(handle, note), note, why, foreign))
        finally:
            os.close(handle)
    return found


def _reason_not_to_believe(handle: int) -> str:
    """Why what an open restore file says is not done: who can write it could set the GPUs. "" where it is."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        return "it is not a regular file"
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users may write it"
    return ""


def restore_left_over() -> list[str]:
    """Restore what dead processes of whorl left changed on this machine; returns what there is to tell, in sentences.

    Never raises. Where nothing was left it costs a look into one folder.
    """
    try:
        folder = state_folder()
        if not any(not left.living for left in pending(folder)):
            return []
        with exclusively(folder):
            return restore_dead(folder)
    except PermissionError:
        return []  # who may not look into it has left nothing there; `whorl doctor` says so
    except (WhorlError, OSError) as error:
        return [f"restoring the settings of GPUs: {error}"]


def restore_dead(folder: Path) -> list[str]:
    """The same under a lock that the caller holds (`exclusively`). Raises OSError."""
    from ..collectors.nvml_settings import Controls

    notes: list[str] = []
    for left in pending(folder):
        if left.living:
            continue
        if left.foreign:
            notes.append(f"the restore file {left.path} is not used: {left.why}")
            continue
        if left.note is None:
            notes.append(
                f"the restore file {left.path} cannot be used ({left.why}): reset the GPUs by hand (nvidia-smi -rgc "
                f"for the clocks, -pl for the power limit) and remove it"
            )
            continue
        who = f"process {left.note.pid} of {left.note.when}"
        if left.note.boot != _boot():
            left.path.unlink(missing_ok=True)
            notes.append(f"{who} left settings of GPUs changed; the restart of the machine since then has reset them")
            continue
        try:
            session = Controls()
        except InputError as error:
            notes.append(f"{who} left settings of GPUs changed ({left.path}), but they cannot be restored now: {error}")
            continue
        with session:
            notes += _restore_file(left.path, left.note, session, who)
    return notes


def _restore_file(path: Path, note: Note, session: Controls, who: str) -> list[str]:
    if note.driver is not None and session.driver != note.driver:
        path.unlink(missing_ok=True)
        return [f"{who} left settings of GPUs changed; reloading the driver since then has reset them"]
    notes, remaining = [], {}
    for gpu, before in note.gpus.items():
        sentences, rest = bring_back(session, gpu, before)
        notes += [f"{sentence} (changed by {who}, which ended without restoring it)" for sentence in sentences]
        if rest is not None:
            remaining[gpu] = rest
    try:
        if not remaining:
            path.unlink(missing_ok=True)
            files.sync_folder(path.parent)
        elif remaining != note.gpus:
            files.put(path, replace(note, gpus=remaining).text().encode(), 0o600)
    except OSError as error:
        notes.append(f"{path} cannot be updated ({error.strerror}): remove it by hand")
    return notes


def bring_back(session: Controls, gpu: str, before: Before) -> tuple[list[str], Before | None]:
    """Restore one GPU. Returns what there is to tell, and what could not be restored (None: nothing)."""
    notes: list[str] = []
    try:
        control = session.find(gpu)
    except WhorlError as error:
        return [f"{error}; the next start of whorl that finds it restores its settings"], before
    rest: dict[str, Any] = {}
    if before.power_limit_mw is not None:
        try:
            notes += _bring_back_limit(control, before)
        except WhorlError as error:
            notes.append(f"{error}; the power limit is not restored")
            rest |= {"power_limit_mw": before.power_limit_mw, "power_limit_set_mw": before.power_limit_set_mw}
    if before.clock_locked:
        try:
            control.unlock_clock()
            notes.append(f"{gpu}: the clock is unlocked again")
        except WhorlError as error:
            notes.append(f"{error}; the clock is not restored")
            rest["clock_locked"] = True
    return notes, Before(**rest) if rest else None


def _bring_back_limit(control: Control, before: Before) -> list[str]:
    from ..collectors.nvml_settings import same_limit

    was, ours, now = before.power_limit_mw, before.power_limit_set_mw, control.power_limit_mw()
    assert was is not None
    if same_limit(now, was):
        return []  # it was not changed yet, or the GPU was reset
    if ours is not None and not same_limit(now, ours):
        return [f"{control.gpu}: the power limit is {now / 1000:g} W, as somebody else set it since, and stays so"]
    control.check_power_limit(was)  # who wrote the file may have been wrong
    control.set_power_limit(was)
    return [f"{control.gpu}: the power limit is {was / 1000:g} W again"]
