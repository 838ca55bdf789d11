"""Settings of GPUs during a measurement: a locked clock or another power limit, restored afterwards.

It comes back when the measurement ends, when it fails, at Ctrl-C, SIGTERM and SIGHUP; and where the process is killed
or the machine's memory runs out, at the next start of whorl (see `restore`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..store.events import Event
from ..store.system import signals
from ..store.vocabulary import EventKind
from .restore import Before, Claim, bring_back, exclusively, pending, restore_dead, state_folder

if TYPE_CHECKING:
    from ..collectors.nvml_settings import Control, Controls

_APART_S = 1.0


def _quietly(event: Event) -> None:
    """A callback that does nothing."""


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
        tell: Callable[[Event], None] = _quietly,
    ) -> None:
        self._gpus = tuple(dict.fromkeys(gpus))
        self._mhz, self._watt = lock_clock_mhz, power_limit_w
        self._tell = tell
        self._clocks: dict[str, int] = {}
        self._done: dict[str, Before] = {}  # changed, or perhaps: what is to be restored
        self._session: Controls | None = None
        self._claim: Claim | None = None
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
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    # -- changing -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        from ..collectors.nvml_settings import Controls

        folder = state_folder()
        self._session = Controls()
        with exclusively(folder):
            try:
                for sentence in restore_dead(folder):  # otherwise it would count as the original setting
                    self._tell(Event(EventKind.SETTINGS_LEFT_OVER, None, sentence))
                self._refuse_taken(pending(folder))
            except OSError as error:
                raise InputError(f"cannot look for restore files in {folder}: {error.strerror}") from error
            plan = {gpu: self._plan(self._session.find(gpu)) for gpu in self._gpus}
            self._claim = Claim(folder, plan, self._session.driver)
        for gpu, before in plan.items():
            self._change(self._session.find(gpu), before)

    def _refuse_taken(self, files: Sequence[Any]) -> None:
        for left in files:
            if left.foreign:
                continue
            taken = sorted(set(self._gpus) & set(left.note.gpus)) if left.note is not None else []
            if left.living and taken:
                raise InputError(
                    f"{taken[0]}: process {left.note.pid} has changed its settings: wait until that process ends"
                )
            if not left.living and (taken or left.note is None):
                raise InputError(
                    f"settings that an earlier run changed could not be restored ({left.path}): "
                    f"solve that first (run whorl doctor)"
                )

    def _plan(self, control: Control) -> Before:
        """What there is, of what will be changed. Raises InputError for what this GPU cannot have."""
        before = Before()
        if self._watt is not None:
            milliwatt = round(self._watt * 1000)
            control.check_power_limit(milliwatt)
            before = replace(before, power_limit_mw=control.power_limit_mw(), power_limit_set_mw=milliwatt)
        if self._mhz is not None:
            self._clocks[control.gpu] = control.nearest_clock(self._mhz)
            before = replace(before, clock_locked=True)
        return before

    def _change(self, control: Control, before: Before) -> None:
        gpu = control.gpu
        if before.power_limit_set_mw is not None:
            change = Before(before.power_limit_mw, before.power_limit_set_mw)
            self._try(gpu, change, lambda: control.set_power_limit(change.power_limit_set_mw or 0))
            was, now = before.power_limit_mw or 0, before.power_limit_set_mw
            detail = f"{gpu}: the power limit is {now / 1000:g} W, and was {was / 1000:g} W"
            self._tell(
                Event(EventKind.SETTINGS_CHANGED, gpu, detail, metric="power_limit_mw", before=was or None, value=now)
            )
        if before.clock_locked:
            mhz = self._clocks[gpu]
            self._try(gpu, replace(self._done.get(gpu, Before()), clock_locked=True), lambda: control.lock_clock(mhz))
            detail = f"{gpu}: the clock is locked at {mhz} MHz"
            self._tell(Event(EventKind.SETTINGS_CHANGED, gpu, detail, metric="sm_clock_mhz", before=None, value=mhz))

    def _try(self, gpu: str, change: Before, make: Callable[[], None]) -> None:
        """Make a change, which counts as done from before it is tried, unless the driver refuses it."""
        before = self._done.get(gpu)
        self._done[gpu] = change
        try:
            make()
        except InputError:
            if before is None:
                del self._done[gpu]
            else:
                self._done[gpu] = before
            raise

    # -- restoring ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        events: list[Event] = []
        try:
            with self._signals, signals.held():
                remaining = self._restore(events)
                claim, self._claim = self._claim, None
                if claim is not None:
                    try:
                        claim.keep(remaining)
                    except OSError as error:
                        sentence = f"{claim.path} cannot be brought up to date ({error.strerror}): remove it by hand"
                        events.append(Event(EventKind.SETTINGS_NOT_RESTORED, None, sentence))
                    claim.release()
                session, self._session = self._session, None
                if session is not None:
                    session.__exit__()
                self._clocks.clear()
        finally:
            for event in events:  # last, so that a failing callback cannot prevent the restoring
                self._tell(event)

    def _restore(self, events: list[Event]) -> dict[str, Before]:
        """Bring back what was changed; returns what could not be."""
        done, self._done = self._done, {}
        remaining: dict[str, Before] = {}
        for gpu, before in done.items():
            assert self._session is not None
            sentences, rest = bring_back(self._session, gpu, before)
            if rest is not None:
                remaining[gpu] = rest
            kind = EventKind.SETTINGS_RESTORED if rest is None else EventKind.SETTINGS_NOT_RESTORED
            events += [Event(kind, gpu, sentence) for sentence in sentences]
        return remaining
