"""Settings of GPUs during a measurement: a locked clock or another power limit, restored afterwards.

It comes back when the measurement ends, when it fails, at Ctrl-C, SIGTERM and SIGHUP; and where the process is killed
or the machine's memory runs out, at the next start of whorl (see `restore`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..errors import DeviceError, InputError
from ..store.events import Event
from ..store.system import processes, signals
from ..store.vocabulary import EventKind
from .restore import RestoreFile, Saved, boot, bring_back, claim, state_folder

if TYPE_CHECKING:
    from ..collectors.nvml_settings import Control, Controls

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
