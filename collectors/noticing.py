"""Events besides the readings: each is recorded once, not at every tick."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..store.events import Event, event_columns
from ..store.metrics import METRICS, Call, Field
from ..store.vocabulary import EventKind
from .backends import Device, Status
from .clock import Clock, Steps

_TOGETHER_NS = 10_000_000_000  # missed ticks within this are one event
_AGAIN_NS = 60_000_000_000  # what cannot be read now and then is recorded once a minute
# Of a metric by itself. Of profiling metrics a source tells once, of all together; some metrics it cannot have.
_TOLD = frozenset(
    row
    for row, m in enumerate(METRICS)
    if isinstance(m.nvml, Field) or (isinstance(m.nvml, Call) and not m.nvml.only_if)
)
_COUNTERS = np.array([row for row, m in enumerate(METRICS) if m.kind == "counter" and not m.wraps], np.intp)
_SENTENCES = {
    Status.UNSUPPORTED: (EventKind.NOT_SUPPORTED, "this GPU or its driver does not have"),
    Status.DENIED: (EventKind.NOT_PERMITTED, "this user may not read"),
    Status.FAILED: (EventKind.FAILED_READING, "no number could be read for"),
}


class Events:
    """Events of one node until they are recorded. Any thread may tell one."""

    def __init__(self, clock: Clock, *, cluster: str, node: str) -> None:
        self.count = 0
        self.missed = 0  # ticks
        self._clock, self._cluster, self._node = clock, cluster, node
        self._lock = threading.Lock()
        self._told: list[Event] = []
        self._steps = Steps(clock)
        self._untold, self._since, self._until = 0, 0, 0  # missed ticks, and between which times (steady ns)

    def tell(self, event: Event) -> None:
        """Something happened, now where the event has no time."""
        if event.ts_ns is None:
            event = replace(event, ts_ns=self._clock.wall())
        with self._lock:
            self._told.append(event)
            self.count += 1

    def add(self, events: Iterable[Event]) -> None:
        """What a backend says that happened."""
        for event in events:
            self.tell(event)

    def take(self) -> dict[str, list[Any]] | None:
        """The events that nobody took yet, as columns of `events`; None where there is none."""
        if not self._told:
            return None
        with self._lock:
            events, self._told = self._told, []
        return event_columns(events, cluster=self._cluster, node=self._node)

    def begin(self) -> None:
        """From here on clocks are watched."""
        self._steps = Steps(self._clock)

    def look_at_clocks(self) -> None:
        """Record an event if the wall clock was set, or the machine slept, since the last call."""
        stepped, slept = self._steps.since()
        if slept:
            self.tell(Event(EventKind.SUSPENDED, None, f"the machine slept for {slept / 1e9:.1f} s", duration_ns=slept))
        if stepped:
            way = "forward" if stepped > 0 else "back"
            detail = f"the wall clock was set {way} by {abs(stepped) / 1e9:.3f} s"
            self.tell(Event(EventKind.CLOCK_STEP, None, detail, duration_ns=stepped))

    def miss(self, number: int, due_ns: int, interval_ns: int) -> None:
        """Count missed ticks; the first of them was due at `due_ns`, by the steady clock."""
        if not self._untold:
            self._since = due_ns
        self._untold += number
        self.missed += number
        self._until = due_ns + number * interval_ns

    def tell_missed(self, *, now_ns: int | None = None) -> None:
        """Record the missed ticks as an event; with `now_ns`, only if the first one was long ago."""
        if not self._untold or (now_ns is not None and now_ns - self._since < _TOGETHER_NS):
            return
        ticks = f"{self._untold} tick{'s' if self._untold > 1 else ''}"
        within = self._until - self._since
        detail = f"{ticks} missed within {within / 1e9:.1f} s"
        self.tell(Event(EventKind.MISSED_TICKS, None, detail, n=self._untold, duration_ns=within))
        self._untold = 0


class Gaps:
    """Which sources do not answer, by name: one event when that begins and one when it ends, not one for each try."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, int] = {}  # steady ns

    def __contains__(self, name: str) -> bool:
        return name in self._since

    def gone(self, name: str, reason: str, *, since_ns: int | None = None) -> list[Event]:
        """It did not answer, for this reason; `since_ns` is since when where that is not now, by the steady clock."""
        if name in self._since:
            return []
        self._since[name] = self._clock.steady() if since_ns is None else since_ns
        return [Event(EventKind.SOURCE_GONE, None, reason)]

    def back(self, name: str) -> list[Event]:
        """It answered."""
        if name not in self._since:
            return []
        took = self._clock.steady() - self._since.pop(name)
        return [Event(EventKind.SOURCE_BACK, None, f"{name} answers again after {took / 1e9:.1f} s", duration_ns=took)]


class Noticing:
    """The last known statuses and counters of each device, and events for changes."""

    def __init__(self, events: Events, clock: Clock) -> None:
        self.silent: list[str | None] = []  # by device: why it gives no readings, as `quality` says it
        self.driver_gone = False
        self._events, self._clock = events, clock
        self._devices: Sequence[Device] = []
        self._status: NDArray[np.uint8] = np.zeros((len(METRICS), 0), np.uint8)
        self._before: NDArray[np.int64] = np.zeros((len(_COUNTERS), 0), np.int64)
        self._told_at: dict[tuple[int, int | None], int] = {}  # by device and metric; None: of failures of any metric

    def meet(self, devices: Sequence[Device]) -> None:
        """Take in a list of devices; those known keep their positions."""
        more = len(devices) - len(self._devices)
        self._devices = devices
        self.silent += [None] * more
        self._status = np.pad(self._status, ((0, 0), (0, more)), constant_values=Status.OK)
        self._before = np.pad(self._before, ((0, 0), (0, more)), constant_values=-1)

    def notice(self, status: NDArray[np.uint8]) -> list[int]:
        """Record what can no longer be read, or never could; returns the devices that were lost now."""
        differs = (status != self._status) & (status != Status.UNREAD)
        lost = [
            device
            for device in np.flatnonzero(differs.any(axis=0)).tolist()
            if self._notice_device(device, np.flatnonzero(differs[:, device]).tolist(), status[:, device])
        ]
        self._status[differs] = status[differs]
        return lost

    def _notice_device(self, device: int, rows: list[int], status: NDArray[np.uint8]) -> bool:
        now = {int(status[row]) for row in rows}
        known = self._devices[device]
        if Status.OK in now:
            self.silent[device] = None
        if known.parent is not None:
            return False
        if Status.LOST in now:
            if self.silent[device] != "lost":
                detail = "the GPU does not answer any more; it is checked again from time to time"
                self._events.tell(Event(EventKind.LOST, known.gpu, detail))
            self.silent[device] = "lost"
            return True
        if Status.DRIVER in now:
            if not self.driver_gone:
                detail = "the driver does not answer any more: it was unloaded or replaced"
                self._events.tell(Event(EventKind.DRIVER_GONE, None, detail))
            self.silent[device] = "no_driver"
            self.driver_gone = True
            return False
        self.driver_gone = self.driver_gone and Status.OK not in now
        for meaning, (kind, words) in _SENTENCES.items():
            found = [row for row in rows if status[row] == meaning and row in _TOLD]
            if meaning != Status.FAILED:
                found = [row for row in found if self._worth_telling(device, row)]
            elif found and not self._worth_telling(device, None):
                continue
            for column in (METRICS[row].name for row in found):
                self._events.tell(Event(kind, known.gpu, f"{words} {column}", metric=column))
        return False

    def _worth_telling(self, device: int, row: int | None) -> bool:
        """Whether nothing of the sort was recorded in the last minute."""
        now = self._clock.steady()
        if now - self._told_at.get((device, row), now - _AGAIN_NS) < _AGAIN_NS:
            return False
        self._told_at[device, row] = now
        return True

    def notice_resets(self, values: NDArray[np.int64], status: NDArray[np.uint8]) -> None:
        """Record the counters that were reset since the last call."""
        now, good = values[_COUNTERS], status[_COUNTERS] == Status.OK
        fell = good & (now < self._before)
        for device in np.flatnonzero(fell.any(axis=0)).tolist():
            gpu = self._devices[device].gpu
            for row in np.flatnonzero(fell[:, device]).tolist():
                column = METRICS[_COUNTERS[row]].name
                before, value = int(self._before[row, device]), int(now[row, device])
                detail = f"{column} fell from {before} to {value}"
                self._events.tell(
                    Event(EventKind.COUNTER_RESET, gpu, detail, metric=column, before=before, value=value)
                )
        np.copyto(self._before, now, where=good)
