"""Restore files: the settings of GPUs that whorl changed on this machine and has not restored yet.

Before a process changes a GPU it writes down what there was, in FOLDER/restore-GPU.json, and locks that file for as
long as it lives, however it ends. A file that nobody locks was left by a dead process: the next start restores the GPU
and removes it. No setting outlives a reboot, so a file of another boot, or of another machine, is left alone.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, WhorlError
from ..store.system import files, locks, processes

if TYPE_CHECKING:
    from ..collectors.nvml_settings import Controls


@dataclass(frozen=True)
class Saved:
    """What is to be restored of a GPU, and who changed it: `started` tells a process from a later one of its number.

    `power_limit_mw` is what there was and `power_limit_set_mw` what was set, mW; None where the limit is not touched.
    NVML does not tell whether a clock was locked: it is taken for free.
    """

    boot: str
    pid: int
    started: str | None
    when: str
    driver: str | None
    power_limit_mw: int | None = None
    power_limit_set_mw: int | None = None
    clock_locked: bool = False

    def __post_init__(self) -> None:
        numbers = (self.pid, self.power_limit_mw, self.power_limit_set_mw)
        if not all(isinstance(number or 0, int) for number in numbers):
            raise ValueError("it contains text instead of a number")


def state_folder() -> Path:
    """Where this user's restore files lie. Raises InputError where there is no home folder either."""
    for variable, below in (("WHORL_STATE", ""), ("XDG_STATE_HOME", "whorl")):
        if value := os.environ.get(variable):
            return Path(value) / below
    try:
        return Path.home() / ".local" / "state" / "whorl"
    except RuntimeError as error:
        raise InputError("this user has no home folder: set WHORL_STATE to a folder for restore files") from error


def boot() -> str:
    """This boot of this machine; "unknown" without /proc, where a reboot cannot be told from a crash."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown"


class RestoreFile:
    """The restore file of a GPU, open. Where no living process has it (`living`), this one does until it is closed.

    `saved` is None where there is nothing to restore, or where nothing can be read, for the reason in `problem`.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Raises OSError; FileNotFoundError also where another process has just restored the GPU."""
        self.path, self.gpu = path, path.stem.removeprefix("restore-")
        self.saved: Saved | None = None
        self.problem = ""
        # For writing: NFS locks no file for one process alone that is open for reading only.
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_CREAT * create
        self._handle = os.open(path, flags, 0o600)
        free, status = locks.attempt(self._handle), os.fstat(self._handle)
        if status.st_nlink == 0:
            os.close(self._handle)
            raise FileNotFoundError(errno.ENOENT, "another process has just removed it", str(path))
        writable = status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if writable or status.st_nlink > 1 or not stat.S_ISREG(status.st_mode):
            self.problem = "other users may have written it"
        elif content := os.read(self._handle, 1 << 20):
            try:
                self.saved = Saved(**json.loads(content))
            except (ValueError, TypeError) as error:
                self.problem = f"it is damaged: {error}"
        if free is None and self.saved is not None:  # a file system without locks: its content decides
            free = self.saved.boot != boot() or processes.began(self.saved.pid) != self.saved.started
        self.living = free is False and not writable

    @property
    def left(self) -> bool:
        """Whether a dead process left something that is to be restored on this boot, or that cannot be read."""
        return not self.living and bool(self.problem or (self.saved is not None and self.saved.boot == boot()))

    def write(self, saved: Saved) -> None:
        """Write down what there was. Raises OSError."""
        self.saved = saved
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(asdict(saved)).encode(), 0)
        files.sync(self._handle)

    def close(self) -> None:
        """Leave the file to the next start where there is something to restore, else remove it. Raises OSError."""
        try:
            if not (self.living or self.problem or self.saved):
                self.path.unlink()
        finally:
            os.close(self._handle)

    def restore(self) -> list[str]:
        """Restore what a dead process left. Returns what there is to tell, in sentences."""
        from ..collectors.nvml_settings import Controls

        saved = self.saved
        if self.problem:
            by_hand = "nvidia-smi -rgc for the clocks, -pl for the power limit"
            return [f"{self.path} cannot be used ({self.problem}): reset the GPU by hand ({by_hand}) and remove it"]
        if saved is None or not self.left:
            return []
        try:
            with Controls() as session:
                if saved.driver in (None, session.driver):
                    sentences, complete = bring_back(session, self.gpu, saved)
                else:
                    sentences, complete = [f"{self.gpu}: reloading the driver has reset its settings"], True
        except InputError as error:
            sentences, complete = [f"{self.gpu}: its settings cannot be restored now: {error}"], False
        self.saved = None if complete else saved
        return [f"{sentence} (process {saved.pid} of {saved.when} had changed it)" for sentence in sentences]


def claim(folder: Path, gpu: str, tell: Callable[[str], None]) -> RestoreFile:
    """Have the restore file of a GPU. What a dead process left is restored first, and `tell` hears of it.

    InputError where the file cannot be written, a living process has it, or what is left cannot be restored.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = RestoreFile(folder / f"restore-{gpu}.json", create=True)
    except OSError as error:
        raise InputError(
            f"cannot write the restore file in {folder} ({error.strerror}), so no setting was changed: set WHORL_STATE "
            f"to a folder that this user can write"
        ) from error
    for sentence in file.restore():
        tell(sentence)
    if file.living or file.left:
        file.close()
        process = "another process" if file.saved is None else f"process {file.saved.pid}"
        if file.living:
            raise InputError(f"{gpu}: {process} has changed its settings: wait until that process ends")
        raise InputError(f"{gpu}: settings that {process} changed could not be restored: run whorl doctor")
    return file


def pending(folder: Path) -> list[RestoreFile]:
    """The restore files in a folder, open, but for one whose process has just restored. Raises OSError."""
    opened = []
    for name in sorted(files.names_in(folder)):
        if name.startswith("restore-") and name.endswith(".json"):
            with suppress(FileNotFoundError, PermissionError):  # of another user: who may not read it may not restore
                opened.append(RestoreFile(folder / name))
    return opened


def restore_left_over() -> list[str]:
    """Restore what dead processes of whorl left changed on this machine; returns what there is to tell, in sentences.

    Never raises. Where nothing was left it costs a look into one folder.
    """
    sentences: list[str] = []
    try:
        for file in pending(state_folder()):
            with closing(file):
                sentences += file.restore()
    except PermissionError:
        pass  # who may not look into it has left nothing there; `whorl doctor` says so
    except (WhorlError, OSError) as error:
        sentences.append(f"restoring the settings of GPUs: {error}")
    return sentences


def bring_back(session: Controls, gpu: str, saved: Saved) -> tuple[list[str], bool]:
    """Restore a GPU. Returns what there is to tell, in sentences, and whether all of it is restored."""
    sentences: list[str] = []
    complete = True
    for metric in ("power_limit_mw", "sm_clock_mhz"):
        try:
            control = session.find(gpu)
            if metric == "sm_clock_mhz" and saved.clock_locked:
                control.unlock_clock()
                sentences.append(f"{gpu}: the clock is unlocked again")
            elif metric == "power_limit_mw" and saved.power_limit_mw and saved.power_limit_set_mw:
                sentences += control.restore_power_limit(saved.power_limit_mw, saved.power_limit_set_mw)
        except WhorlError as error:
            sentences.append(f"{error}; it is not restored: the next start of whorl tries again")
            complete = False
    return list(dict.fromkeys(sentences)), complete
