"""A ledger at work: the thread that reads the GPUs while spans are open, and the events of spans that wait for it.

A span notes two times and nothing else. The thread reads the sensors every 20 to 50 ms while spans are open and sleeps
when none is; whenever all sensors have had a new value it splits what was used until then (`splitting`).
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ...errors import WhorlError
from .figures import Why
from .spans import Span
from .splitting import Splitting
from .totals import Totals

if TYPE_CHECKING:
    from .keeping import Keeper
    from .ledger import Ledger
    from .sensing import Sensing

log = logging.getLogger(__name__)

CLOSING_S = 2.0  # the longest that an end waits for the sensors
_LONGEST_S = 5.0  # without a new value; then it is a gap
_MOST_EVENTS = 1_000_000  # that wait for the sensors
_TOGETHER = 500  # events that are taken in at once: more do not fit the cache
_LOOK_IN_S = 10.0  # how often the sleeping thread looks whether there is something to store
_LINGER_S = 1.0  # the thread goes on for so long after the last span, as the next one may come soon


class Book:
    """A ledger at work in one process. It lives from the first span, or `open`, to `close` or a fork."""

    def __init__(self, options: Ledger) -> None:
        self._clock = options.clock
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._events: deque[tuple[int, Span, bool]] = deque()
        self._lock = threading.RLock()  # of everything below
        self._wake = threading.Event()
        self._asleep = False
        self._closed = False
        self._failed = False
        self._taken_s = 0.0
        self._thread: threading.Thread | None = None
        self.sensing: Sensing | None = None
        self.why: Why | None = None
        self.problem: str | None = None
        self.totals = Totals()
        self.keeper: Keeper | None = None
        try:
            self._open(options)
        except Exception as error:  # the application goes on without figures
            self.why = self.why or Why.NO_GPU
            self.problem = str(error) if isinstance(error, WhorlError) else f"{type(error).__name__}: {error}"
            log.warning("the ledger gives no energy: %s", self.problem)

    def _open(self, options: Ledger) -> None:
        from .sensing import Sensing

        if options.store is not None:
            from .keeping import Keeper

            self.keeper = Keeper(options.store, options.cluster, self._clock)
        sensing = Sensing(options.backend, options.gpus, self._clock)
        sensing.read()
        blind = [gpu for gpu, curve in zip(sensing.gpus, sensing.curves, strict=True) if curve.end is None]
        if blind:
            sensing.close()
            self.why = Why.NO_SENSOR
            self.problem = f"{', '.join(blind)} tells neither energy nor power: choose other GPUs, or the whole GPU"
            log.warning("the ledger gives no energy: %s", self.problem)
            return
        began = sensing.end()
        assert began is not None
        self._taken_s = began
        self._splitting = Splitting(sensing.curves, began)
        self.most_w = np.array([curve.most_w for curve in sensing.curves])
        self.sensing = sensing
        self._asleep = True
        if options.thread:
            self._thread = threading.Thread(target=self._run, name="whorl ledger", daemon=True)
            self._thread.start()

    # -- for spans ------------------------------------------------------------------------------------------

    def name(self) -> str:
        """A name that no other span has."""
        return f"{self._prefix}-{next(self._numbers):x}"

    def note(self, span: Span, *, begins: bool) -> int:
        """Note that a span begins or ends now, and return the time."""
        now = self._clock.steady()
        if self.sensing is None:
            if not begins and not self._closed:
                span.ended_ns = now
                with self._lock:
                    self._finish(span)
        elif len(self._events) < _MOST_EVENTS:
            self._events.append((now, span, begins))
        else:
            self.give_up()
        if self._asleep:
            self._wake.set()
        return now

    def give_up(self) -> None:
        """Count no more spans: the driver has not answered for long."""
        if self.why is None:
            self.why, self.problem = Why.GAPS, "the driver of the GPUs does not answer"
            log.warning("the ledger gives no energy: %s", self.problem)

    def settle(self, timeout_s: float, span: Span | None = None) -> bool:
        """Wait for what a span that has ended needs, or all that have; whether it is there."""
        sensing = self.sensing
        began = self._clock.steady()
        while sensing is not None and not (self._closed or (span is not None and span.finished)):
            waited_s = (self._clock.steady() - began) / 1e9
            if waited_s > timeout_s or not self._lock.acquire(timeout=timeout_s):
                break  # the driver hangs
            try:
                if not self._waits(span, began):
                    break
                self._try_to_look()
                if waited_s > sensing.settled_s:
                    self._go_on()
            finally:
                self._lock.release()
            if self._events:
                self._clock.sleep(round(1e9 * sensing.every_s))
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

    def look(self) -> None:
        """Read the sensors once, and take in what can be settled by it."""
        with self._lock:
            if self.sensing is not None and not self._closed:
                self.sensing.read()
            self.take()

    def _try_to_look(self) -> None:
        """`look`, where the application must not hear of what fails."""
        try:
            self.look()
            self._failed = False
        except Exception:
            if not self._failed:  # said once
                log.warning("the ledger cannot read the GPUs", exc_info=True)
            self._failed = True

    def _go_on(self) -> None:
        """Take in what there is, although no sensor has had a new value: until now it is a gap."""
        with self._lock:
            for curve in self.sensing.curves if self.sensing is not None else ():
                curve.extend(self._clock.steady() / 1e9)
            self.take()

    def take(self) -> None:
        """Take in the spans' begins and ends up to where the curves reach."""
        with self._lock:
            end_s = None if self.sensing is None else self.sensing.end()
            if self.sensing is None or end_s is None:
                return
            events = []
            while self._events and self._events[0][0] <= 1e9 * end_s:
                events.append(self._events.popleft())
            events.sort(key=itemgetter(0))
            # One that was noted late counts from where the books are.
            spread = [(max(at / 1e9, self._taken_s), span, begins) for at, span, begins in events]
            for first in range(0, len(spread), _TOGETHER):
                for node in self._splitting.take(spread[first : first + _TOGETHER]):
                    assert isinstance(node, Span)
                    self._finish(node)
            self._taken_s = end_s
            for curve in self.sensing.curves:
                curve.forget(end_s)

    def _finish(self, span: Span) -> None:
        span.counted_within = span.within is not None
        self.totals.add(span)
        span.finished = True
        if self.keeper is not None:
            self.keeper.keep(span)
            self.keeper.flush()

    def _run(self) -> None:
        idle_since = None
        assert self.sensing is not None
        while not self._closed:
            self._try_to_look()
            if self._events or not self._splitting.idle:
                idle_since = None
                if self._events and self._clock.steady() - self._events[0][0] > 1e9 * _LONGEST_S:
                    self._go_on()
            else:
                now = self._clock.steady()
                idle_since = now if idle_since is None else idle_since
                if now - idle_since > 1e9 * _LINGER_S:
                    self._sleep()
                    idle_since = None
                    continue
            self._clock.sleep(round(1e9 * self.sensing.every_s))

    def _sleep(self) -> None:
        """Wait for the next span."""
        self._wake.clear()
        self._asleep = True
        while not (self._events or self._closed or self._wake.wait(_LOOK_IN_S)):
            with self._lock:
                if self.keeper is not None:
                    self.keeper.flush()
        self._asleep = False

    def abandon(self) -> None:
        """Forget all, in a child process: the spans are the parent's."""
        self._closed, self._lock, self._events, self.keeper = True, threading.RLock(), deque(), None

    def close(self) -> None:
        """Settle what has ended, store it, and leave the driver. What is open stays without a figure."""
        if self._closed:
            return
        try:
            self.settle(CLOSING_S)
            if self.keeper is not None and self._lock.acquire(timeout=CLOSING_S):
                try:
                    self.keeper.flush(all_of_it=True)
                finally:
                    self._lock.release()
        except Exception:
            log.warning("the ledger could not settle its last spans", exc_info=True)
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSING_S)
        hangs = self._thread is not None and self._thread.is_alive()
        if self.sensing is not None and not hangs:  # a driver that hangs would keep the application from ending
            try:
                self.sensing.close()
            except Exception:
                log.warning("the ledger could not leave the driver", exc_info=True)
