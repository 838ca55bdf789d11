"""The sampling loop: one polling thread on a fixed time grid, and a thread that watches it.

The polling thread is a daemon: a driver call that never returns can neither stop the sampling of other GPUs nor keep
the process from ending. When a call hangs, the thread in it is given up, a fresh one goes on without that GPU, and the
old one hands the GPU back if the call ever returns.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ..store.events import Event, EventKind
from ..store.metrics import ROW
from .backends import Backend, Device, Status, Sweep
from .clock import Clock, SystemClock
from .noticing import Events, Noticing
from .quality import READ, Quality
from .rows import Filler, Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from ..store.writers.template import Template

log = logging.getLogger(__name__)

_SLICE_NS = 200_000_000  # the longest sleep, so that an end is noticed
_TOGETHER_NS = 100_000  # two clocks that are read within so long tell the same instant
_CHORES_NS = 1_000_000_000  # how often to look at clocks, counters and the driver's events
_LOOK_SOON_NS = 1_000_000_000  # how often to look for a driver that went away
_Alike = tuple[bytes, tuple[str | None, ...], tuple[bool, ...]]  # statuses, marks, and who was asked
_REPORTED = READ.index("power_mw")
_DEVICES, _EVENTS, _STORE = "the list of GPUs", "the driver's events", "the store"


class Recorder(Protocol):
    """Where readings go. What was appended is kept whatever becomes of this process; `flush` has it made durable.

    What fails in the background is raised by the next call.
    """

    def append(self, batch: pa.RecordBatch, table: str = ...) -> None: ...

    def template(self, batch: pa.RecordBatch) -> Template | None:
        """The batch as a template to fill in; None where this recorder has none."""
        ...

    def append_template(self, template: Template) -> bool:
        """Keep the filled template; False if a new one must be made."""
        ...

    def flush(self) -> None:
        """Begin to make durable what was appended, where that is wanted at every tick; does not wait for it."""
        ...

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


class _Poller(threading.Thread):
    """A polling thread. `busy` is what it is in and since when (steady ns), None between calls."""

    def __init__(self, target: Callable[[_Poller], None]) -> None:
        super().__init__(name="whorl-poller", daemon=True)
        self._poll = target
        self.busy: tuple[int | str, int] | None = None
        self.hung_in: int | str | None = None  # what it was given up for

    def run(self) -> None:
        self._poll(self)


class Sampler:
    """Reads a backend on a grid and records what it gives.

    `interval_s` is the time between ticks, `slow_s` between readings of the slow metrics. `hung_s`: a driver call
    that takes longer is taken for hanging (default: 5 s or ten intervals, whichever is longer).
    """

    def __init__(
        self,
        backend: Backend,
        recorder: Recorder,
        *,
        interval_s: float,
        cluster: str,
        node: str,
        slow_s: float = 10.0,
        hung_s: float | None = None,
        window_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self.stuck_in: dict[int | str, int] = {}  # what hangs, and since when (steady ns)
        self._backend, self._recorder, self._clock = backend, recorder, clock or SystemClock()
        self._cluster = cluster
        self._interval = round(interval_s * 1e9)
        self._slow = max(round(slow_s * 1e9), self._interval)
        self._hung = round((max(5.0, 10 * interval_s) if hung_s is None else hung_s) * 1e9)
        self._window_s = window_s
        self._events = Events(self._clock, cluster=cluster, node=node)
        self._noticing = Noticing(self._events, self._clock)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._ending = False
        self._tick, self._ticks, self._rows_kept = 0, 0, 0
        self._known: list[Device] = []
        self._slow_due: list[int] = []
        self._judged = np.array([ROW[column] for column in READ], np.intp)
        self._judged_known: NDArray[np.bool_] = np.zeros((len(READ), 0), bool)
        self._power: NDArray[np.int64] = np.zeros(0, np.int64)
        self._state = b""  # the statuses of the last tick
        self._alike: _Alike = (b"", (), ())
        self._filler: Filler | None = None  # for ticks that are ...
        self._filler_for: _Alike = (b"", (), ())  # ... like this
        self._meet(list(backend.devices()))

    @property
    def counts(self) -> Counts:
        """What happened so far."""
        return Counts(self._ticks, self._rows_kept, self._events.missed, self._events.count)

    @property
    def waiting_for_store(self) -> bool:
        """Whether the recorder has not returned from its last call for long."""
        return _STORE in self.stuck_in

    @property
    def watts(self) -> float | None:
        """Of all GPUs together at the last tick; None where no GPU tells."""
        known = self._judged_known[_REPORTED]
        return float(self._power[known].sum()) / 1000 if len(known) == len(self._power) and known.any() else None

    # -- the watch ----------------------------------------------------------------------------------------

    def run(
        self,
        duration_s: float | None = None,
        *,
        ended: Callable[[], bool] = lambda: False,
        look: Callable[[], None] = lambda: None,
    ) -> Counts:
        """Sample until `duration_s` has passed or `ended` says so; `look` is called several times a second.

        Raises what the recorder raised: then nothing after the last tick that it took is kept.
        """
        self._events.begin()
        self._start = self._clock.steady()
        self._total = None if duration_s is None else max(1, round(duration_s * 1e9 / self._interval))
        self._look_due = self._start + self._slow
        self._chores_due = self._start
        self._poller = self._begin_poller()
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
            self._poller = _Poller(self._poll)
        if self._failure is not None:
            raise self._failure
        self._events.tell_missed()
        if not self.waiting_for_store:
            self.write_events()
        return self.counts

    def _begin_poller(self) -> _Poller:
        poller = _Poller(self._poll)
        self._poller = poller
        poller.start()
        return poller

    def _watch(self) -> None:
        """Give up a thread whose call hangs, and start another without what it hangs in."""
        poller = self._poller
        busy = poller.busy
        if busy is None or self._clock.steady() - busy[1] < self._hung:
            return
        what, since = busy
        if what == _STORE:
            if _STORE not in self.stuck_in:
                self.stuck_in[_STORE] = since
                waited = (self._clock.steady() - since) / 1e9
                log.warning("the store has not answered for %.0f s; waiting for it", waited)
            return
        with self._lock:
            if poller.busy is not busy:  # it returned at this very moment
                return
            self.stuck_in[what] = since
            poller.hung_in = what
            self._poller = _Poller(self._poll)
        gpu = self._known[what].gpu if isinstance(what, int) else None
        of = "" if isinstance(what, int) else f" for {what}"
        detail = f"a driver call{of} has not returned for {self._hung / 1e9:g} s; the others continue"
        self._events.tell(Event(EventKind.HUNG, gpu, detail, duration_ns=self._hung))
        self._poller.start()

    @contextlib.contextmanager
    def _in(self, me: _Poller, what: int | str) -> Iterator[None]:
        """A stretch in which this thread may hang. Raises Abandoned at its end where it was given up meanwhile."""
        me.busy = (what, self._clock.steady())
        try:
            yield
        finally:
            self._out(me)

    def _out(self, me: _Poller) -> None:
        """The end of such a stretch. A thread that was given up hands back what it hung in."""
        with self._lock:
            me.busy = None
            mine = self._poller is me
        if mine:
            if _STORE in self.stuck_in:
                del self.stuck_in[_STORE]
            return
        what = me.hung_in
        since = None if what is None else self.stuck_in.pop(what, None)
        if what is not None and since is not None and not self._ending:
            gpu = self._known[what].gpu if isinstance(what, int) else None
            took = self._clock.steady() - since
            detail = f"the hanging driver call returned after {took / 1e9:.1f} s"
            self._events.tell(Event(EventKind.ANSWERS_AGAIN, gpu, detail, duration_ns=took))
            self._look_due = 0
        raise Abandoned

    @contextlib.contextmanager
    def _commit(self, me: _Poller) -> Iterator[None]:
        with self._lock:
            if self._poller is not me:
                raise Abandoned
            yield

    # -- the polling thread -------------------------------------------------------------------------------

    def _poll(self, me: _Poller) -> None:
        try:
            while self._wait(me):
                self._read_all(me)
        except Abandoned:
            return
        except BaseException as error:  # handed to the watching thread, which raises it
            if self._poller is me:
                self._failure = error

    def _wait(self, me: _Poller) -> bool:
        """Sleep until the next tick is due; count those that have gone by. False at the end."""
        if self._total is not None and self._tick >= self._total:
            return False
        due = self._start + self._tick * self._interval
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
            self._events.miss(missed, due, self._interval)
            self._tick += missed
        return True

    def _read_all(self, me: _Poller) -> None:
        """One tick: every device is read, the readings are recorded, and events are derived from them."""
        steady, read, stuck, silent = self._clock.steady, self._backend.read, self.stuck_in, self._noticing.silent
        stamps, read_us, slow_due = self._stamps, self._read_us, self._slow_due
        for _ in range(10):
            now = began = steady()
            ahead = self._clock.wall() - now  # of the wall clock before the steady one
            if steady() - now < _TOGETHER_NS:  # else this thread was held up between the two
                break
        due: set[int] = set()
        for device, whole in enumerate(self._whole):
            slow = now >= slow_due[device]
            stamps[device] = began + ahead
            read_us[device] = -1
            if device in stuck or not (slow or whole):  # an instance has slow metrics only
                continue
            me.busy = (device, began)
            read(device, slow=slow)
            ended = steady()
            if self._poller is not me:
                break
            if silent[device] is None:
                read_us[device] = (ended - began) // 1000
            if slow:
                due.add(device)
                slow_due[device] += self._slow * (1 + (now - slow_due[device]) // self._slow)
            began = ended
        self._out(me)
        chores = now >= self._chores_due
        self._record(me, due, chores=chores)
        self._tick += 1
        self._ticks += 1
        if chores:
            self._chores_due = now + _CHORES_NS
            self._events.look_at_clocks()
            self._events.tell_missed(now_ns=now)
            self._hear(me)
        if now >= self._look_due:
            self._look(me, now)
        self.write_events(me)
        me.busy = (_STORE, steady())
        self._recorder.flush()
        self._out(me)

    def _record(self, me: _Poller, slow: set[int], *, chores: bool) -> None:
        sweep = self._backend.sweep(self._stamps)
        values, status = sweep.values, sweep.status
        for device in tuple(self.stuck_in):
            if isinstance(device, int):
                status[:, device] = Status.UNREAD
        state = status.tobytes()
        if state != self._state:
            for device in self._noticing.notice(status):
                self._backend.lose(device)
            if self._noticing.driver_gone:
                self._look_due = 0
            self._judged_known = status[self._judged] == Status.OK
            self._state = state
        if slow or chores:
            self._noticing.notice_resets(values, status)
        judged = values[self._judged]
        self._power = judged[_REPORTED]
        for finding in self._quality.note(judged, self._judged_known, self._stamps):
            self._events.tell(finding.event(self._known[finding.device].gpu))
        alike = (state, self._marks(), tuple([took >= 0 for took in self._read_us]))
        again, self._alike = alike == self._alike, alike
        if slow or not again or not self._fill(me, values):
            self._append(me, sweep, slow, again=again)

    def _fill(self, me: _Poller, values: NDArray[np.int64]) -> bool:
        """Record a tick that differs from the one before in numbers only, where there is a template for it."""
        filler = self._filler
        if filler is None or self._filler_for != self._alike:
            return False
        if not filler.fill(values, self._stamps, self._read_us):
            return False
        me.busy = (_STORE, self._clock.steady())
        kept = self._recorder.append_template(filler.template)
        self._out(me)
        if kept:
            self._rows_kept += filler.template.rows
        else:
            self._filler = None
        return kept

    def _append(self, me: _Poller, sweep: Sweep, slow: set[int], *, again: bool) -> None:
        """Record a tick as a batch of its own; where the next may be alike, make a template for it."""
        present = np.array(self._whole)
        for device in slow:
            if not self._whole[device]:  # an instance that is gone has no row
                present[device] = bool((sweep.status[:, device] == Status.OK).any())
        batch = self._rows.batch(sweep, present, self._stamps, self._read_us, self._alike[1], slow=bool(slow))
        with self._in(me, _STORE):
            self._recorder.append(batch)
            template = self._recorder.template(batch) if again and not slow else None
        if template is not None:
            self._filler, self._filler_for = self._rows.filler(template, present), self._alike
        self._rows_kept += len(batch)

    def _hear(self, me: _Poller) -> None:
        """What the driver announced."""
        if _EVENTS in self.stuck_in or _DEVICES in self.stuck_in:
            return
        with self._in(me, _EVENTS):
            announced = self._backend.happened()
        self._events.add(announced)

    def _look(self, me: _Poller, now: int) -> None:
        """Look for devices that come and go."""
        if _DEVICES in self.stuck_in:
            return
        self._look_due = now + (min(_LOOK_SOON_NS, self._slow) if self._noticing.driver_gone else self._slow)
        stuck = frozenset(device for device in tuple(self.stuck_in) if isinstance(device, int))
        with self._in(me, _DEVICES):
            found = self._backend.look_again(stuck, lambda: self._commit(me))
        self._events.add(found)
        devices = list(self._backend.devices())
        if devices != self._known:
            self._meet(devices, me)

    # -- what is known of the devices ---------------------------------------------------------------------

    def _meet(self, devices: list[Device], me: _Poller | None = None) -> None:
        """Take in a changed list of devices, and write down who they are."""
        number, more = len(devices), len(devices) - len(self._known)
        self._known, self._whole = devices, [device.parent is None for device in devices]
        self._noticing.meet(devices)
        self._rows = Rows(self._cluster, devices)
        self._filler, self._state = None, b""
        if more:
            self._slow_due += [self._clock.steady()] * more
            self._stamps, self._read_us = [0] * number, [-1] * number
            period = self._backend.period_ms
            self._quality = Quality(
                number,
                interval_s=self._interval / 1e9,
                period_s=None if period is None else period / 1000,
                window_s=self._window_s,
            )
        seen = self._clock.wall()
        if me is None:
            self._recorder.identify(devices, seen)
        else:
            with self._in(me, _STORE):
                self._recorder.identify(devices, seen)

    def _marks(self) -> tuple[str | None, ...]:
        """The column `quality`: what the sensors' marks say, or why there are no readings."""
        marks, silent = self._quality.texts, self._noticing.silent
        if any(silent) or self.stuck_in:
            marks = [why or text for why, text in zip(silent, marks, strict=True)]
            for device in tuple(self.stuck_in):
                if isinstance(device, int):
                    marks[device] = "hung"
        return tuple(marks)

    def tell(self, event: Event) -> None:
        """Record an event."""
        self._events.tell(event)

    def write_events(self, me: _Poller | None = None) -> None:
        """Store the events that are not stored yet."""
        batch = self._events.take()
        if batch is None:
            return
        if me is None:
            self._recorder.append(batch, "events")
        else:
            with self._in(me, _STORE):
                self._recorder.append(batch, "events")
