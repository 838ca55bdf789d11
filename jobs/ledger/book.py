"""A ledger at work: the thread that reads the GPUs while spans are open, the events of spans that wait for it, and the
journal of this process that has them in a store.

A span notes two times and nothing else. The thread reads the sensors every 20 to 50 ms while spans are open and sleeps
when none is; whenever all sensors have had a new value it splits what was used until then (`split`), looks at the
budgets, and every few seconds writes what spans used: rows of `spans` for those that ended, and a row of `spans_open`
for each that goes on, so that a process that is killed leaves what its spans had used.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ...collectors.clock import Clock, SystemClock
from ...collectors.collect import open_store
from ...errors import StoreError, WhorlError
from ...store.journal import Journal
from ...store.names import this_cluster, this_node
from ...store.schema import texts_of
from ...store.system.locks import is_held
from .budgets import Budget, Limit, Totals
from .sensor import BoardLimits, BoardSensors
from .spans import LedgerOptions, Span, SpanEnergy, TraceContext, Unmeasured
from .split import SpanEvent, SpentSoFar, Split, figure, joules

log = logging.getLogger(__name__)

CLOSING_S = 2.0
"""The longest that an end waits for the sensors."""
_LONGEST_S = 5.0  # without a new value; then it is a gap
_MOST_EVENTS = 1_000_000  # that wait for the sensors
_RECORD_S = 5.0  # between two writes: a process that is killed loses less than 10 s
_LINGER_S = 1.0  # the thread goes on for so long after the last span, as the next one may come soon

_TOGETHER = 5_000  # rows in an append
_MOST = 200_000  # rows that wait for a store that cannot be written
_WRITERS = 1_000  # on a node

Row = dict[str, Any]


class Book:
    """A ledger at work in one process. It lives from the first span, or `open`, to `close` or a fork."""

    def __init__(self, options: LedgerOptions) -> None:
        self._clock = clock = options.clock or SystemClock()
        self._random = Random(os.urandom(16))  # noqa: S311 - ids are no secrets
        self._numbers = itertools.count(self._random.getrandbits(63) + 1)
        self.process = self.new_span()
        """Its name in the store: two processes that read the same GPU count it twice."""
        header = os.environ.get("TRACEPARENT")
        self.root = None if header is None else TraceContext.parse(header)
        self._events: deque[tuple[int, Span, bool]] = deque()  # ns, the span, whether it begins
        self._crossings: deque[tuple[Budget, Limit]] = deque()
        self._lock = threading.RLock()  # of everything below
        self._wake = threading.Event()
        self._asleep = self._closed = self._failed = False
        self._thread: threading.Thread | None = None
        self._sensors: BoardSensors | None = None
        self._boards = BoardLimits()
        self._records: SpanRecords | None = None
        self._record_at = clock.steady() + round(1e9 * _RECORD_S)
        self.why: Unmeasured | None = None
        self.problem: str | None = None
        self.totals = Totals()
        try:
            if options.store is not None:
                self._records = SpanRecords(options.store, options.cluster, clock, self.process)
            sensors = BoardSensors(options.backend, options.gpus, clock)
            self._open(sensors, threaded=options.clock is None)
        except Exception as error:  # the application goes on without figures
            why = str(error) if isinstance(error, WhorlError) else f"{type(error).__name__}: {error}"
            self._give_up(Unmeasured.NO_GPU, why)

    def _open(self, sensors: BoardSensors, *, threaded: bool) -> None:
        sensors.read()
        blind = [gpu for gpu, curve in zip(sensors.gpus, sensors.curves, strict=True) if curve.end is None]
        began = sensors.end()
        if blind or began is None:
            sensors.close()
            problem = f"{', '.join(blind)} tells neither energy nor power: choose other GPUs, or the whole GPU"
            self._give_up(Unmeasured.NO_SENSOR, problem)
            return
        self._split = Split(sensors.curves, began)
        self._sensors, self._boards = sensors, sensors.boards
        if self._records is not None:
            self._records.gpus = sensors.gpus
        self._asleep = True
        if threaded:
            self._thread = threading.Thread(target=self._run, name="whorl ledger", daemon=True)
            self._thread.start()

    def _give_up(self, why: Unmeasured, problem: str) -> None:
        """Count no energy from here on."""
        if self.why is None:
            self.why, self.problem = why, problem
            log.warning("the ledger gives no energy: %s", problem)

    # -- for spans ------------------------------------------------------------------------------------------

    def new_trace(self) -> str:
        """A random id of a trace that is not zero."""
        return f"{self._random.getrandbits(128) or 1:032x}"

    def new_span(self) -> str:
        """An id of a span: numbers from a random one on."""
        return f"{next(self._numbers):016x}"

    def note(self, span: Span, *, begins: bool) -> int:
        """Note that a span begins or ends at this moment, and return the time, ns."""
        now = self._clock.steady()
        if self._sensors is None:
            if not begins and not self._closed:
                span.ended_ns = now
                with self._lock:
                    self._finish(span)
                    self._record()
        elif len(self._events) < _MOST_EVENTS:
            self._events.append((now, span, begins))
        else:
            self._give_up(Unmeasured.GAPS, "the driver of the GPUs does not answer")
        if self._asleep:
            self._wake.set()
        return now

    def wall_ns(self) -> int:
        return self._clock.wall()

    def figure(self, span: Span, *, alone: bool = False) -> SpanEnergy:
        """What a span used, with the spans inside it or without."""
        if span.ended_ns is None or span.children:
            return SpanEnergy(reason=Unmeasured.OPEN)
        if not span.finished:
            return SpanEnergy(reason=Unmeasured.SILENT)
        used = span.own if alone else span.used
        if self.why is not None or used is None:
            return SpanEnergy(reason=self.why or Unmeasured.OPEN)
        return figure(used, self._boards)

    def settle(self, timeout_s: float, span: Span | None = None) -> bool:
        """Wait for what a span that has ended needs, or all that have; whether it is there."""
        began = self._clock.steady()
        while self._sensors is not None and not (self._closed or (span is not None and span.finished)):
            waited_s = (self._clock.steady() - began) / 1e9
            if waited_s > timeout_s or not self._lock.acquire(timeout=timeout_s):
                break  # the driver hangs
            try:
                if not self._waits(span, began):
                    break
                self._try_to_look(beyond=waited_s > self._sensors.settled_s)
            finally:
                self._lock.release()
            if self._events or not (span is None or span.finished):
                self._clock.sleep(round(1e9 * self._sensors.every_s))
        if span is not None:
            return span.finished
        if self._lock.acquire(timeout=timeout_s):  # the thread may just take in the last ones
            self._lock.release()
        return not self._events

    def _waits(self, span: Span | None, asked_ns: int) -> bool:
        """Whether a span that has ended (None: any) has no figures only because the sensors have had no new value.

        One with spans inside it may wait for these: which of them are open shows when all that was noted before
        `asked_ns` is taken in.
        """
        if span is None:
            return bool(self._events)
        noted = bool(self._events) and self._events[0][0] <= asked_ns
        return not span.finished and (noted or not span.children)

    # -- the readings -----------------------------------------------------------------------------------------

    def look(self, *, beyond: bool = False) -> None:
        """Read the sensors once, and take in what can be settled by it. `beyond`: up to this moment, although no sensor
        has had a new value: that is a gap."""
        with self._lock:
            sensors = self._sensors
            if sensors is None or self._closed:
                return
            try:
                sensors.read()
                if beyond:
                    for curve in sensors.curves:
                        curve.extend(self._clock.steady() / 1e9)
                self._take(sensors)
            finally:
                self._record()

    def check(self) -> None:
        """Read the sensors where no thread does, and call back for the budgets that are over."""
        if self._thread is None:  # a driver that hangs must not keep the application
            self._try_to_look()
        self._call_back()

    def _try_to_look(self, *, beyond: bool = False) -> None:
        """`look`, where the application must not hear of what fails."""
        try:
            self.look(beyond=beyond)
            self._failed = False
        except Exception:
            was_told, self._failed = self._failed, True  # before it is told: another thread may fail meanwhile
            if not was_told:
                log.warning("the ledger cannot read the GPUs", exc_info=True)

    def _take(self, sensors: BoardSensors) -> None:
        """Take in the spans' begins and ends up to where the curves reach."""
        end_s = sensors.end()
        if end_s is None or end_s <= self._split.until_s:
            return
        before_s = self._split.until_s
        events: list[SpanEvent] = []
        while self._events and self._events[0][0] <= 1e9 * end_s:
            at, span, begins = self._events.popleft()
            events.append((max(at / 1e9, before_s), span, begins))  # a late one counts from where the books are
        events.sort(key=itemgetter(0))
        for span in self._split.take(events, end_s):
            self._finish(span)
        for span in self._split.open_spans:
            if isinstance(span, Budget):
                self._judge(span, self._split.so_far(span)[0])
        for curve in sensors.curves:
            curve.forget(end_s)

    def _finish(self, span: Span) -> None:
        self.totals.add(span, self._boards, self.why)
        span.finished = True
        if self._records is not None:
            self._records.add(span, self.figure(span), joules(span.own))
        if isinstance(span, Budget) and span.used is not None and span.ended_ns is not None:
            self._judge(span, SpentSoFar(span.ended_ns / 1e9, span.used, np.zeros(span.used.shape[1])))

    def _judge(self, budget: Budget, spent: SpentSoFar) -> None:
        if self.why is None:
            for limit in budget.judge(spent, self._boards, self._clock.wall()):
                self._crossings.append((budget, limit))

    def _call_back(self) -> None:
        """Tell of limits that were crossed; the caller holds no lock."""
        while self._crossings:
            try:
                budget, limit = self._crossings.popleft()
            except IndexError:  # another thread took it
                return
            try:
                if budget.on_over is not None:
                    budget.on_over(budget, limit)
            except Exception:
                log.warning("on_over of the budget %r failed", budget.name, exc_info=True)

    def _record(self, *, last: bool = False) -> None:
        """Store what spans used, if it is time to: those that ended, and what open ones used so far."""
        now, records = self._clock.steady(), self._records
        if records is None or not (last or now >= self._record_at or records.is_full):
            return
        self._record_at = now + round(1e9 * _RECORD_S)
        rows = []
        if self._sensors is not None:
            for span in self._split.open_spans:
                so_far, own = self._split.so_far(span)
                energy = SpanEnergy(reason=self.why) if self.why else figure(so_far.since(), self._boards)
                rows.append(records.row(span, energy, joules(own), until_ns=round(1e9 * so_far.at_s)))
        records.write(rows)

    def _run(self) -> None:
        idle_since = None
        assert self._sensors is not None
        while not self._closed:
            self._try_to_look()
            self._call_back()
            now = self._clock.steady()
            if self._events or self._split.open_spans:
                idle_since = None
                if self._events and now - self._events[0][0] > 1e9 * _LONGEST_S:
                    self._try_to_look(beyond=True)
            else:
                idle_since = now if idle_since is None else idle_since
                if now - idle_since > 1e9 * _LINGER_S:
                    self._sleep()
                    idle_since = None
                    continue
            self._clock.sleep(round(1e9 * self._sensors.every_s))

    def _sleep(self) -> None:
        """Wait for the next span."""
        self._wake.clear()
        self._asleep = True
        while not (self._events or self._closed or self._wake.wait(_RECORD_S)):
            with self._lock:
                self._record()
        self._asleep = False

    def abandon(self) -> None:
        """Forget all, in a child process: the spans are the parent's."""
        self._closed, self._lock, self._events = True, threading.RLock(), deque()
        if self._records is not None:
            self._records.abandon()
            self._records = None

    def close(self) -> None:
        """Settle what has ended, store it, and leave the driver. What is open stays without a figure."""
        if self._closed:
            return
        try:
            self.settle(CLOSING_S)
            self._call_back()
        except Exception:
            log.warning("the ledger could not settle its last spans", exc_info=True)
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSING_S)
        hangs = self._thread is not None and self._thread.is_alive()
        try:
            if self._records is not None and self._lock.acquire(timeout=CLOSING_S):
                try:
                    self._record(last=True)
                    self._records.close()
                finally:
                    self._lock.release()
            if self._sensors is not None and not hangs:  # a driver that hangs would keep the application from ending
                self._sensors.close()
        except Exception:
            log.warning("the ledger could not be closed", exc_info=True)


# -- spans in a store ---------------------------------------------------------------------------------------------


class SpanRecords:
    """The rows of this process's spans. Raises StoreError where there can be no store."""

    def __init__(self, store: str | Path, cluster: str | None, clock: Clock, process: str) -> None:
        self._clock = clock
        self._cluster = cluster or this_cluster()
        self._node = this_node()
        self._process = process
        self._job = os.environ.get("SLURM_JOB_ID")
        self._journal = _journal(open_store(str(store)), f"{self._node}.spans")
        self._rows: list[Row] = []
        self._failed = False
        self.gpus: list[str] | None = None
        self.dropped = 0
        """Spans that were not stored, as the store could not be written for long."""

    @property
    def is_full(self) -> bool:
        """Whether so many rows wait that they should be written soon."""
        return len(self._rows) >= _TOGETHER and not self._failed

    def row(self, span: Span, energy: SpanEnergy, own_j: float | None, *, until_ns: int) -> Row:
        """The row of a span until a time, ns on the steady clock."""
        shift_ns, began_ns = self._clock.wall() - self._clock.steady(), span.began_ns or until_ns
        return {
            "cluster": self._cluster,
            "span": span.id,
            "parent": span.parent_id,
            "trace_id": span.trace_id,
            "process": self._process,
            "within_parent": span.within is not None,
            "name": str(span.name),
            "attributes": texts_of(span.attributes) if span.attributes else None,
            "job_id": self._job if span.job is None else str(span.job),
            "node": self._node,
            "gpus": self.gpus,
            "began": began_ns + shift_ns,
            "ended": max(began_ns, until_ns) + shift_ns,
            "own_j": own_j,
            "energy_j": energy.energy_j,
            "low_j": energy.low_j,
            "high_j": energy.high_j,
            "measured": energy.measured,
            "method": energy.method,
            "reason": energy.reason,
            "error": span.error,
        }

    def add(self, span: Span, energy: SpanEnergy, own_j: float | None) -> None:
        """Store a span that ended, at the next `write`."""
        if len(self._rows) < _MOST:
            self._rows.append(self.row(span, energy, own_j, until_ns=span.ended_ns or 0))
        else:
            self.dropped += 1

    def write(self, open_rows: Sequence[Row]) -> None:
        """Store what waits, and how far the open spans are. If the store cannot be written, that is said once, and the
        rows go on waiting."""
        try:
            while self._rows:
                self._append(self._rows[:_TOGETHER], "spans")
                del self._rows[:_TOGETHER]
            if open_rows:
                self._append(open_rows, "spans_open")
        except Exception as error:  # whatever it is, the application goes on
            if not self._failed:
                log.warning("spans wait to be stored: %s", error)
            self._failed = True
        else:
            self._failed = False

    def _append(self, rows: Sequence[Row], table: str) -> None:
        self._journal.append_columns({name: [row[name] for row in rows] for name in rows[0]}, table)

    def abandon(self) -> None:
        """Let go of the journal in a child process after a fork: it is the parent's."""
        self._journal.abandon()

    def close(self) -> None:
        """Seal the journal. Raises StoreError."""
        if self.dropped:
            log.warning("%d spans were not stored, as the store could not be written", self.dropped)
        self._journal.close()


def _journal(root: Path, name: str) -> Journal:
    """A journal of this name, or with a number where other processes of the node have it. A dead process leaves its
    name, and its rows, to the next one. Raises StoreError."""
    for number in range(_WRITERS):
        numbered = f"{name}-{number}" if number else name
        lock = root / "journal" / f"{numbered}.lock"
        if is_held(lock) is False:
            try:
                return Journal(root, numbered)
            except StoreError:
                if is_held(lock) is False:
                    raise
    raise StoreError(f"{_WRITERS} processes of {name} write spans into {root}: let fewer processes store theirs")
