"""Events besides the readings: each is recorded once, not at every tick."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..store.events import Event, event_columns
from ..store.metrics import METRICS, Call, Field
from ..store.vocabulary import EventKind
from .backend import Device, Status
from .clock import Clock, Steps
from .quality import Quality
from .recording import EVERY, QUICK, Columns, judged_of, nulls_of

_TOGETHER_NS = 10_000_000_000  # missed ticks within this are one event
_DOUBLE_NS = 30_000_000_000  # NVML's event of an XID is read at the next tick, which may be that much later
_MOST_WAITING = 32
_AGAIN_NS = 60_000_000_000  # what cannot be read now and then is recorded once a minute
# Of a metric by itself. Of profiling metrics a source tells once, of all together; some metrics it cannot have.
_TOLD = frozenset(
    row
    for row, m in enumerate(METRICS)
    if isinstance(m.nvml, Field) or (isinstance(m.nvml, Call) and not m.nvml.only_if)
)
_COUNTERS = {row for row, m in enumerate(METRICS) if m.kind == "counter" and not m.wraps}
_PLACES = {
    columns: tuple((place, row) for place, row in enumerate(columns.rows) if row in _COUNTERS)
    for columns in (QUICK, EVERY)
}  # the counters among the values of a reading
# Why a GPU as a whole gives nothing -> `quality` of its rows, and the event that says so. That the driver is gone is an
# event of the node.
SILENCES: dict[Status, tuple[str, EventKind | None, str]] = {
    Status.LOST: ("lost", EventKind.LOST, "the GPU does not answer any more; it is checked again from time to time"),
    Status.NEEDS_RESET: ("needs_reset", EventKind.NEEDS_RESET, "the GPU gives nothing before it is reset"),
    Status.DRIVER: ("no_driver", None, ""),
}
_BACK = ("lost", "needs_reset")  # of a GPU that answers after one of them it is told
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
        self.driver_gone = False
        self._clock, self._cluster, self._node = clock, cluster, node
        self._lock = threading.Lock()
        self._told: list[Event] = []
        # Of XIDs and losses, by kind, GPU and code: who told of it, and when (UTC ns).
        self._tellers: dict[tuple[EventKind, str, int | None], list[tuple[object, int]]] = {}
        self._steps = Steps(clock)
        self._untold, self._since, self._until = 0, 0, 0  # missed ticks, and between which times (steady ns)

    def tell(self, event: Event, source: object = None) -> None:
        """Something happened, now where the event has no time. `source` is who tells of it, besides the backend."""
        ts_ns = self._clock.wall() if event.ts_ns is None else event.ts_ns
        with self._lock:
            if not self._told_by_another(event, source, ts_ns):
                self._told.append(replace(event, ts_ns=ts_ns))
                self.count += 1

    def _told_by_another(self, event: Event, source: object, ts_ns: int) -> bool:
        """Whether another source has told of this XID or loss: the driver and the kernel's log both do.

        One of them does some time later. So an event of one source takes away the next event of the same kind, GPU and
        code of another source within 30 s.
        """
        gpu = event.gpu or event.pci_bus_id
        if event.kind not in (EventKind.XID, EventKind.LOST) or gpu is None:
            return False
        tellers = self._tellers.setdefault((event.kind, gpu, event.code), [])
        tellers[:] = [teller for teller in tellers if abs(ts_ns - teller[1]) < _DOUBLE_NS][-_MOST_WAITING:]
        first = next((teller for teller in tellers if teller[0] is not source), None)
        if first is not None:
            tellers.remove(first)
        else:
            tellers.append((source, ts_ns))
        return first is not None

    @property
    def waiting(self) -> bool:
        """Whether there are events that nobody took yet."""
        return bool(self._told)

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

    def driver_gone_now(self) -> None:
        """Tell once that the driver went."""
        if not self.driver_gone:
            self.driver_gone = True
            detail = "the driver does not answer any more: it was unloaded or replaced"
            self.tell(Event(EventKind.DRIVER_GONE, None, detail))

    def driver_back(self, version: str | None) -> None:
        """Tell once that the driver, of this version, is there again."""
        if self.driver_gone:
            self.driver_gone = False
            detail = f"the driver was reloaded, version {version or 'unknown'}"
            self.tell(Event(EventKind.DRIVER_RELOADED, None, detail, version=version))


class SeenDevice:
    """What is known of one GPU or MIG instance, and the events that follow from its readings."""

    def __init__(self, device: Device, cluster: str, events: Events, clock: Clock, quality: Quality | None) -> None:
        self.device, self.key = device, (cluster, device.gpu)
        self.quality = quality
        """Of its power sensor; None for an instance, which has none."""
        self.silent: str | None = None
        """Why it gives no readings, as `quality` says it in its rows."""
        self.listed = True
        """Whether its source shows it."""
        self.statuses = b""
        """Of its last reading."""
        self.nulls: Mapping[Columns, int] = {}
        """By the columns of a reading: what `statuses` says is missing, as `Ticks.nulls`."""
        self.judged = 0
        """A bit for each of the metrics that `Quality` judges by, as `statuses` says."""
        self.ts_ns: int | None = None
        """When its last reading was taken, where its source has a clock of its own."""
        self.profiles: dict[str, Any] | None = None
        """Its MIG instances when it answered last, with their profiles."""
        self._events, self._clock = events, clock
        self._known = bytearray([Status.OK]) * len(METRICS)  # the last statuses of metrics that were asked for
        self._counters: dict[int, int] = {}
        self._told_at: dict[int | None, int] = {}  # by metric; None: of failures of any metric

    def notice(self, statuses: bytes) -> None:
        """Take in statuses that differ from the last ones, and tell what can no longer be read, or never could."""
        self.statuses, self.judged = statuses, judged_of(statuses)
        self.nulls = nulls_of(statuses)
        if self.device.parent is None:
            for status in SILENCES:
                if status in statuses:
                    self.fall_silent(status)
                    return
        if Status.OK in statuses:
            if self.silent in _BACK:
                self.tell(EventKind.RETURNED, "the GPU answers again")
            elif self.silent == SILENCES[Status.DRIVER][0]:
                self._events.driver_back(self.device.row.get("driver"))
            self.silent = None
        if self.device.parent is not None:
            return
        pairs = zip(statuses, self._known, strict=True)
        changed = [row for row, (status, before) in enumerate(pairs) if status not in (before, Status.UNREAD)]
        for row in changed:
            self._known[row] = statuses[row]
        for meaning, (kind, words) in _SENTENCES.items():
            rows = [row for row in changed if statuses[row] == meaning and row in _TOLD]
            if meaning != Status.FAILED:
                rows = [row for row in rows if self._worth_telling(row)]
            elif rows and not self._worth_telling(None):
                continue
            for metric in (METRICS[row].name for row in rows):
                self._events.tell(Event(kind, self.device.gpu, f"{words} {metric}", metric=metric))

    def fall_silent(self, status: Status) -> None:
        """Tell once why the GPU gives nothing."""
        quality, kind, detail = SILENCES[status]
        if self.silent == quality:
            return
        self.silent = quality
        if kind is None:
            self._events.driver_gone_now()
        else:
            self.tell(kind, detail)

    def tell(self, kind: EventKind, detail: str) -> None:
        """Record an event of this GPU, with its place on the node."""
        self._events.tell(Event(kind, self.device.gpu, detail, pci_bus_id=self.device.row.get("pci_bus_id")))

    def _worth_telling(self, row: int | None) -> bool:
        """Whether nothing of the sort was recorded in the last minute."""
        now = self._clock.steady()
        if now - self._told_at.get(row, now - _AGAIN_NS) < _AGAIN_NS:
            return False
        self._told_at[row] = now
        return True

    def notice_resets(self, columns: Columns, values: Sequence[int], statuses: bytes) -> None:
        """Tell of the counters that were reset since the last call."""
        for place, row in _PLACES[columns]:
            if statuses[row] != Status.OK:
                continue
            value, before = values[place], self._counters.get(row, -1)
            self._counters[row] = value
            if value < before:
                name = METRICS[row].name
                detail = f"{name} fell from {before} to {value}"
                kind = EventKind.COUNTER_RESET
                self._events.tell(Event(kind, self.device.gpu, detail, metric=name, before=before, value=value))
