"""A ledger: the spans of an application, and the thread that reads the GPUs while spans are open.

A span notes two times and nothing else. The thread reads the sensors every 20 to 50 ms while spans are open and sleeps
when none is; whenever all sensors have had a new value it splits what was used until then (`splitting`).
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...collectors.clock import Clock, SystemClock
from ...errors import WhorlError
from .figures import Figure, Why, figure_of, missing
from .spans import INHERITED, Parent, Span
from .splitting import Splitting
from .totals import Factor, Quote, Totals, quote

if TYPE_CHECKING:
    from ...collectors.backends import Backend
    from .keeping import Keeper
    from .sensing import Sensing

log = logging.getLogger(__name__)

_SETTINGS = "energy.toml"  # in a store
_CLOSING_S = 1.0  # the longest that an end waits for the sensors
_TOGETHER = 500  # events that are taken in at once: more do not fit the cache
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
        self._events.append((now, span, begins))
        if self._asleep:
            self._wake.set()
        return now

    def settle(self, timeout_s: float, span: Span | None = None) -> bool:
        """Wait for what a span that has ended needs, or all that have; whether it is there."""
        sensing = self.sensing
        if sensing is None:
            self.take()
        began = self._clock.steady()
        while sensing is not None and not self._closed and (bool(self._events) if span is None else _waits(span)):
            waited_s = (self._clock.steady() - began) / 1e9
            if waited_s > timeout_s or not self._lock.acquire(timeout=timeout_s):
                break  # the driver hangs
            try:
                self._try_to_look()
                if waited_s > sensing.settled_s:  # no new value came: a gap
                    for curve in sensing.curves:
                        curve.extend(self._clock.steady() / 1e9)
                    self.take()
            finally:
                self._lock.release()
            if self._events:
                self._clock.sleep(round(1e9 * sensing.every_s))
        return not self._events if span is None else span.finished

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

    def take(self) -> None:
        """Take in the spans' begins and ends up to where the curves reach."""
        with self._lock:
            end_s = self.sensing.end() if self.sensing is not None else float("inf")
            if end_s is None:
                return
            events = []
            while self._events and self._events[0][0] <= 1e9 * end_s:
                events.append(self._events.popleft())
            events.sort(key=_time)
            if self.sensing is None:
                for _, span, begins in events:
                    if not begins:
                        self._finish(span)
            else:
                # One that was noted late counts from where the books are.
                spread = [(max(at / 1e9, self._taken_s), span, begins) for at, span, begins in events]
                for first in range(0, len(spread), _TOGETHER):
                    for node in self._splitting.take(spread[first : first + _TOGETHER]):
                        assert isinstance(node, Span)
                        self._finish(node)
                self._taken_s = end_s
                for curve in self.sensing.curves:
                    curve.forget(end_s)
            if self.keeper is not None:
                self.keeper.flush()

    def _finish(self, span: Span) -> None:
        span.counted_within = span.within is not None
        self.totals.add(span)
        span.finished = True
        if self.keeper is not None:
            self.keeper.keep(span)

    def _run(self) -> None:
        idle_since = None
        assert self.sensing is not None
        while not self._closed:
            self._try_to_look()
            if self._events or not self._splitting.idle:
                idle_since = None
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
        if not self._events and not self._closed:
            self._wake.wait()
        self._asleep = False

    def close(self) -> None:
        """Settle what has ended, store it, and leave the driver. What is open stays without a figure."""
        if self._closed:
            return
        try:
            self.settle(_CLOSING_S)
            if self.keeper is not None and self._lock.acquire(timeout=_CLOSING_S):
                try:
                    self.keeper.flush(all_of_it=True)
                finally:
                    self._lock.release()
        except Exception:
            log.warning("the ledger could not settle its last spans", exc_info=True)
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)
        if self.sensing is not None:
            try:
                self.sensing.close()
            except Exception:
                log.warning("the ledger could not leave the driver", exc_info=True)


def _waits(span: Span) -> bool:
    """Whether a span that has ended has no figures only because the sensors have had no new value."""
    return not span.finished and not span.children


def _time(event: tuple[int, Span, bool]) -> int:
    return event[0]


class Ledger:
    """Counts the energy of spans on some GPUs: those that CUDA shows to this process, or `gpus` (UUIDs, NVML indices).

    `backend` is "nvml", "simulated" or an object that satisfies `collectors.backends.Backend`. With a `store`, a
    folder, every span becomes a row of its table `spans`. `settings` is the site's energy.toml, for grams; without it,
    that in the store. It opens at the first span; what keeps it from working is in
    `problem()`, and spans then have times and no energy. Nothing raises into the application.
    """

    def __init__(
        self,
        *,
        backend: str | Backend = "nvml",
        gpus: Sequence[str | int] | None = None,
        store: str | Path | None = None,
        cluster: str | None = None,
        settings: str | Path | None = None,
        clock: Clock | None = None,
        thread: bool = True,
    ) -> None:
        self.backend, self.gpus, self.store, self.cluster = backend, gpus, store, cluster
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.thread = thread
        self._book: Book | None = None
        self._making = threading.Lock()
        _LEDGERS.add(self)

    def book(self) -> Book:
        """The ledger at work; it is opened where it is not."""
        book = self._book
        if book is None:
            with self._making:
                book = self._book
                if book is None:
                    book = self._book = Book(self)
        return book

    def open(self) -> Ledger:
        """Reach the driver now, not at the first span: that may take a second."""
        self.book()
        return self

    def span(
        self,
        name: str,
        *,
        parent: Parent = INHERITED,
        job: str | None = None,
        weight: float = 1.0,
        **attributes: Any,
    ) -> Span:
        """A span, for `with` or as a decorator.

        `parent` is a span, or the `id` of one in another process; without it, the innermost open span of this thread
        or task; None for none. `job` is the batch job; without it, that of the environment. Concurrent spans share by
        `weight`. Further words are attributes, which `totals` and `quote` tell apart.
        """
        return Span(self, name, parent, job, weight if weight > 0 else 1.0, attributes)

    def figure(self, span: Span, *, own: bool = False) -> Figure:
        """What a span used; see `Span.figure`."""
        if span.book is None or span.ended_ns is None or not span.finished:
            return missing(Why.OPEN)
        return figure_of(span, own=own)

    def totals(self) -> Totals:
        """What the spans that have ended used so far, by name and attributes. Waits as `Span.settle` does."""
        book = self.book()
        book.settle(_CLOSING_S)
        return book.totals

    def quote(
        self,
        configurations: Sequence[Mapping[str, Any] | str],
        *,
        span: str | None = None,
        grams_per_kwh: float | None = None,
    ) -> list[Quote]:
        """What each configuration takes, from its spans so far: s, J and g, and which are worth choosing.

        A configuration is the attributes of its spans (of those called `span`, where it is given), or their name. Grams
        are by `grams_per_kwh`, else by the ledger's settings: the factor of now. Raises InputError where these cannot
        be read.
        """
        by: Factor | None = None
        if grams_per_kwh is not None:
            by = Factor(grams_per_kwh)
        elif self._has_settings():
            from .grams import factor

            by = factor(self.settings, self.store, self.cluster)
        return quote(self.totals(), configurations, span=span, factor=by)

    def _has_settings(self) -> bool:
        return self.settings is not None or (self.store is not None and (Path(self.store) / _SETTINGS).is_file())

    def problem(self) -> str | None:
        """Why there is no energy, in a sentence; None where there is."""
        return self.book().problem

    def close(self) -> None:
        """Settle what has ended, store it, and leave the driver. A later span opens it again."""
        with self._making:
            book, self._book = self._book, None
        if book is not None:
            book.close()

    def _forked(self) -> None:
        """In a child process there is no thread: it begins anew, and the parent's spans stay the parent's."""
        self._making = threading.Lock()
        self._book = None


_LEDGERS: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_LEDGERS):
        ledger._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
