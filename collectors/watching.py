"""A loop in a thread of its own on a fixed time grid, and the watch over it: what `Sampler` and `Streamer` share.

The polling thread is a daemon: a call that never returns can neither stop the loop nor keep the process from ending.
When a call hangs, the thread in it is given up and a fresh one goes on; the old one says so if the call ever returns.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import DeviceError
from ..store.events import Event
from .backends import Device
from .clock import Clock, SystemClock
from .noticing import Events

if TYPE_CHECKING:
    from ..store.journal_file import Ticks

log = logging.getLogger(__name__)

STORE = "the store"  # what a thread may hang in, besides what the loop reads
_SLICE_NS = 200_000_000  # the longest sleep, so that an end is noticed


class Recorder(Protocol):
    """Where readings go. What was appended is kept whatever becomes of this process."""

    def append(self, ticks: Ticks) -> None: ...

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None: ...

    def identify(self, devices: Sequence[Device], seen_ns: int) -> None: ...


class Abandoned(BaseException):  # no error: how a thread that was given up learns of it
    """This thread was given up on; another one goes on."""


@dataclass(frozen=True)
class Counts:
    """What happened so far."""

    ticks: int
    rows: int
    missed: int
    events: int


class Poller(threading.Thread):
    """A polling thread. `busy` is what it is in and since when (steady ns), None between calls."""

    def __init__(self, target: Callable[[Poller], None]) -> None:
        super().__init__(name="whorl-poller", daemon=True)
        self._poll = target
        self.busy: tuple[int | str, int] | None = None
        self.hung_in: int | str | None = None  # what it was given up for

    def run(self) -> None:
        self._poll(self)


class Watched:
    """The loop without what it reads: one of the two that read is made of it and says what a turn is.

    `interval_s` is the time between ticks. `hung_s`: a call that takes longer is taken for hanging (default: 5 s or
    ten intervals, whichever is longer). `late`: a tick is due at the end of its interval, and the last one when the
    run ends; none is missed then, as a late one has what the earlier ones would have had.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        interval_s: float,
        hung_s: float | None,
        cluster: str,
        node: str,
        clock: Clock | None,
        late: bool = False,
    ) -> None:
        self.stuck_in: dict[int | str, int] = {}  # what hangs, and since when (steady ns)
        self._recorder, self._clock = recorder, clock or SystemClock()
        self._interval = round(interval_s * 1e9)
        self._hung = round((max(5.0, 10 * interval_s) if hung_s is None else hung_s) * 1e9)
        self._events = Events(self._clock, cluster=cluster, node=node)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._ending = False
        self._late = late
        self._tick, self._ticks, self._rows_kept = 0, 0, 0

    @property
    def silent(self) -> bool:
        """Whether all that is read does not answer now."""
        return False

    @property
    def counts(self) -> Counts:
        """What happened so far."""
        return Counts(self._ticks, self._rows_kept, self._events.missed, self._events.count)

    @property
    def waiting_for_store(self) -> bool:
        """Whether the recorder has not returned from its last call for long."""
        return STORE in self.stuck_in

    # -- what the two loops say ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """The run begins."""

    def _turn(self, me: Poller) -> None:
        """One tick, which it counts (`_tick`) as soon as it has read."""
        raise NotImplementedError

    def _finish(self, me: Poller) -> None:
        """What is to be done at the end."""

    def _given_up(self, what: int | str, since: int) -> None:
        """The thread that hangs in `what` since then (steady ns) was given up; the next one is about to start."""
        raise NotImplementedError

    def _returned(self, what: int | str, took_ns: int) -> None:
        """The call that hung has returned; this is still the thread that was given up for it."""
        raise NotImplementedError

    # -- the watch ----------------------------------------------------------------------------------------

    def run(
        self,
        duration_s: float | None = None,
        *,
        ended: Callable[[], bool] = lambda: False,
        look: Callable[[], None] = lambda: None,
    ) -> Counts:
        """Read until `duration_s` has passed or `ended` says so; `look` is called several times a second.

        Raises what the recorder raised: then nothing after the last tick that it took is kept.
        """
        self._events.begin()
        self._start = self._clock.steady()
        self._total: int | None = None
        self._stop: int | None = None
        if duration_s is not None and self._late:
            self._stop = self._start + round(duration_s * 1e9)
            self._total = max(1, -(-round(duration_s * 1e9) // self._interval))
        elif duration_s is not None:
            self._total = max(1, round(duration_s * 1e9 / self._interval))
        self._begin()
        self._poller = Poller(self._poll)
        self._poller.start()
        while self._poller.is_alive() and not ended():
            self._poller.join(min(0.5, self._hung / 2e9))
            self._watch()
            look()
        self._ending = True
        patience = time.monotonic() + min(self._hung / 1e9, 2.0)
        while self._poller.is_alive() and time.monotonic() < patience:
            self._poller.join(0.05)
            self._watch()
        with self._lock:  # whatever still hangs must not write any more
            if self._poller.is_alive() and (busy := self._poller.busy) is not None:
                self.stuck_in.setdefault(*busy)
                self._poller.hung_in = busy[0]
            self._poller = Poller(self._poll)
        if self._failure is not None:
            if isinstance(self._failure, DeviceError) and not self.waiting_for_store:  # what led to it is told
                self.write_events()
            raise self._failure
        self._events.tell_missed()
        if not self.waiting_for_store:
            self.write_events()
        return self.counts

    def _watch(self) -> None:
        """Give up a thread whose call hangs, and start another without what it hangs in."""
        poller = self._poller
        busy = poller.busy
        if busy is None or self._clock.steady() - busy[1] < self._hung:
            return
        what, since = busy
        if what == STORE:
            if STORE not in self.stuck_in:
                self.stuck_in[STORE] = since
                waited = (self._clock.steady() - since) / 1e9
                log.warning("the store has not answered for %.0f s; waiting for it", waited)
            return
        with self._lock:
            if poller.busy is not busy:  # it returned at this very moment
                return
            self.stuck_in[what] = since
            poller.hung_in = what
            self._poller = Poller(self._poll)
        self._given_up(what, since)
        self._poller.start()

    @contextlib.contextmanager
    def _in(self, me: Poller, what: int | str) -> Iterator[None]:
        """A stretch in which this thread may hang. Raises Abandoned at its end where it was given up meanwhile."""
        me.busy = (what, self._clock.steady())
        try:
            yield
        finally:
            self._out(me)

    def _out(self, me: Poller) -> None:
        """The end of such a stretch. A thread that was given up hands back what it hung in."""
        with self._lock:
            me.busy = None
            mine = self._poller is me
        if mine:
            if STORE in self.stuck_in:
                del self.stuck_in[STORE]
            return
        what = me.hung_in
        since = None if what is None else self.stuck_in.pop(what, None)
        if what is not None and since is not None and not self._ending:
            self._returned(what, self._clock.steady() - since)
        raise Abandoned

    @contextlib.contextmanager
    def _commit(self, me: Poller) -> Iterator[None]:
        with self._lock:
            if self._poller is not me:
                raise Abandoned
            yield

    # -- the polling thread -------------------------------------------------------------------------------

    def _poll(self, me: Poller) -> None:
        try:
            while self._wait(me):
                self._turn(me)
            if self._late and self._ending and self._poller is me:
                self._turn(me)
            if self._poller is me:
                self._finish(me)
        except Abandoned:
            return
        except BaseException as error:  # handed to the watching thread, which raises it
            if self._poller is me:
                self._failure = error

    def _wait(self, me: Poller) -> bool:
        """Sleep until the next tick is due; count those that have gone by. False at the end."""
        if self._total is not None and self._tick >= self._total:
            return False
        due = self._start + (self._tick + self._late) * self._interval
        if self._stop is not None:
            due = min(due, self._stop)
        while (left := due - self._clock.steady()) > 0:
            if self._ending or self._poller is not me:
                return False
            self._clock.sleep(min(left, _SLICE_NS))
        if self._ending:
            return False
        missed = -left // self._interval
        if missed:
            if self._total is not None:
                missed = min(missed, self._total - self._tick - 1)
            if not self._late:
                self._events.miss(missed, due, self._interval)
            self._tick += missed
        return True

    # -- events -------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Record an event."""
        self._events.tell(event)

    def write_events(self, me: Poller | None = None) -> None:
        """Store the events that are not stored yet."""
        columns = self._events.take()
        if columns is None:
            return
        if me is None:
            self._recorder.append_rows(columns, "events")
        else:
            with self._in(me, STORE):
                self._recorder.append_rows(columns, "events")
