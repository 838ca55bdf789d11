"""Settings of GPUs during a measurement: a locked clock or another power limit, restored afterwards.

It comes back when the measurement ends, when it fails, at Ctrl-C, SIGTERM and SIGHUP; and where the process is killed
or the machine's memory runs out, at the next start of whorl (see `restore`).

Restore files: the settings of GPUs that whorl changed on this machine and has not restored yet.

Before a process changes a GPU it writes down what there was, in FOLDER/restore-GPU.json, and locks that file for as
long as it lives, however it ends. A file that nobody locks was left by a dead process: the next start restores the GPU
and removes it. No setting outlives a reboot, so a file of another boot, or of another machine, is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, InputError, WhorlError
from ..store.events import Event
from ..store.system import files, locks, processes, signals
from ..store.vocabulary import EventKind

if TYPE_CHECKING:
    from ..collectors.nvml_settings import Control, Controls


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


_APART_S = 1.0


class Settings:
    """The clock locked near `lock_clock_mhz` and the power limit at `power_limit_w` on `gpus` (UUIDs), while the block
    runs; with neither, nothing is looked at and nothing changed.

    `tell` hears what was done: an event of kind 'settings_changed', 'settings_restored', 'settings_not_restored', or
    'settings_left_over' of what an earlier run left. Entering raises InputError where a GPU
    cannot be set so, this user may not, or another whorl has it; DeviceError where a GPU does not answer: then
    everything is as it was. In the main thread, SIGTERM and SIGHUP end the block by SystemExit where nobody else
    handles them, and of signals that come together the first counts.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        *,
        lock_clock_mhz: float | None = None,
        power_limit_w: float | None = None,
        tell: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self._gpus = tuple(dict.fromkeys(gpus))
        self._mhz, self._watt = lock_clock_mhz, power_limit_w
        self._tell = tell
        self._clocks: dict[str, int] = {}
        self._changed: dict[str, Saved] = {}
        """What is to be restored, by GPU: of what was changed, or perhaps was."""
        self._files: dict[str, RestoreFile] = {}
        self._session: Controls | None = None
        self._signals = contextlib.ExitStack()

    def locked_clock_mhz(self, gpu: str) -> int | None:
        """At how many MHz the clock of a GPU is locked; None where it is free."""
        return self._clocks.get(gpu)

    def __enter__(self) -> Settings:
        if self._mhz is None and self._watt is None:
            return self
        self._signals.enter_context(signals.Unwinding(apart_s=_APART_S))
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        from ..collectors.nvml_settings import Controls

        folder = state_folder()
        self._session = session = Controls()
        controls = [session.find(gpu) for gpu in self._gpus]
        for gpu in self._gpus:  # what an earlier run left would count as the original setting
            self._files[gpu] = claim(folder, gpu, self._tell_left_over)
        plan = [(control, self._plan(control, session.driver)) for control in controls]
        for control, saved in plan:
            try:
                self._files[control.gpu].write(saved)
            except OSError as error:
                raise InputError(
                    f"cannot write {self._files[control.gpu].path} ({error.strerror}), so no setting was changed"
                ) from error
        for control, saved in plan:
            self._change(control, saved)

    def _tell_left_over(self, sentence: str) -> None:
        self._tell(Event(EventKind.SETTINGS_LEFT_OVER, None, sentence))

    def _plan(self, control: Control, driver: str | None) -> Saved:
        """What there is, of what will be changed. Raises InputError for what this GPU cannot have."""
        pid, when = os.getpid(), datetime.now(UTC).isoformat(timespec="seconds")
        saved = Saved(boot(), pid, processes.began(pid), when, driver)
        self._changed[control.gpu] = saved
        if self._watt is not None:
            limit_mw = round(self._watt * 1000)
            control.check_power_limit(limit_mw)
            saved = replace(saved, power_limit_mw=control.power_limit_mw(), power_limit_set_mw=limit_mw)
        if self._mhz is not None:
            self._clocks[control.gpu] = control.nearest_clock(self._mhz)
            saved = replace(saved, clock_locked=True)
        return saved

    def _change(self, control: Control, saved: Saved) -> None:
        gpu, before_mw, limit_mw = control.gpu, saved.power_limit_mw, saved.power_limit_set_mw
        kind = EventKind.SETTINGS_CHANGED
        if before_mw is not None and limit_mw is not None:
            with self._trying(gpu, power_limit_mw=before_mw, power_limit_set_mw=limit_mw):
                control.set_power_limit(limit_mw)
            detail = f"{gpu}: the power limit is {limit_mw / 1000:g} W, and was {before_mw / 1000:g} W"
            self._tell(Event(kind, gpu, detail, metric="power_limit_mw", before=before_mw, value=limit_mw))
        if saved.clock_locked:
            mhz = self._clocks[gpu]
            with self._trying(gpu, clock_locked=True):
                control.lock_clock(mhz)
            self._tell(Event(kind, gpu, f"{gpu}: the clock is locked at {mhz} MHz", metric="sm_clock_mhz", value=mhz))

    @contextlib.contextmanager
    def _trying(self, gpu: str, **fields: Any) -> Iterator[None]:
        """A change counts as made from before it is tried, unless the driver refuses it."""
        before = self._changed[gpu]
        self._changed[gpu] = replace(before, **fields)
        try:
            yield
        except InputError:
            self._changed[gpu] = before
            raise

    def __exit__(self, *_: object) -> None:
        events: list[Event] = []
        try:
            with self._signals, signals.held():
                for gpu, file in self._files.items():
                    events += self._restore(gpu, file)
                if self._session is not None:
                    self._session.__exit__()
                self._session = None
                self._files, self._clocks = {}, {}
        finally:
            for event in events:  # last, so that a failing callback cannot prevent the restoring
                self._tell(event)

    def _restore(self, gpu: str, file: RestoreFile) -> list[Event]:
        """Bring back what was changed of a GPU; its file stays where something could not be."""
        sentences: list[str] = []
        complete = True
        if gpu in self._changed and self._session is not None:
            sentences, complete = bring_back(self._session, gpu, self._changed.pop(gpu))
        file.saved = None if complete else file.saved
        kind = EventKind.SETTINGS_RESTORED if complete else EventKind.SETTINGS_NOT_RESTORED
        try:
            file.close()
        except OSError as error:
            kind = EventKind.SETTINGS_NOT_RESTORED
            sentences.append(f"{file.path} cannot be removed ({error.strerror}): remove it by hand")
        return [Event(kind, gpu, sentence) for sentence in sentences]


def refusal(gpu: str, **setting: float) -> str | None:
    """Why a GPU cannot have a setting, in a sentence; None where it can. `setting`: as of `Settings`.

    It is made and restored at once: NVML does not tell beforehand whether this user may. Raises InputError where the
    restore file cannot be written or another process has changed this GPU, DeviceError where the GPU is gone.
    """
    claim(state_folder(), gpu, lambda _: None).close()
    try:
        with Settings([gpu], **setting):  # type: ignore[arg-type]
            return None
    except (InputError, DeviceError) as error:
        if isinstance(error, DeviceError) and error.gone:
            raise
        return str(error)
