"""The sampling loop: a backend is read device by device on a fixed time grid, watched as `Watched` says.

When a call hangs, the fresh thread goes on without that GPU, and the old one hands it back if the call ever returns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..store.events import Event, EventKind
from ..store.metrics import ROW
from .backends import Backend, Device, Status, Sweep
from .clock import Clock
from .noticing import Noticing
from .quality import READ, Quality
from .rows import Filler, Rows
from .watching import STORE, Poller, Recorder, Watched

_TOGETHER_NS = 100_000  # two clocks that are read within so long tell the same instant
_CHORES_NS = 1_000_000_000  # how often to look at clocks, counters and the driver's events
_LOOK_SOON_NS = 1_000_000_000  # how often to look for a driver that went away
_Alike = tuple[bytes, tuple[str | None, ...], tuple[bool, ...]]  # statuses, marks, and who was asked
_REPORTED = READ.index("power_mw")
_DEVICES, _EVENTS = "the list of GPUs", "the driver's events"


class Sampler(Watched):
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
        super().__init__(recorder, interval_s=interval_s, hung_s=hung_s, cluster=cluster, node=node, clock=clock)
        self.source = backend
        self._cluster = cluster
        self._slow = max(round(slow_s * 1e9), self._interval)
        self._window_s = window_s
        self._noticing = Noticing(self._events, self._clock)
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
    def watts(self) -> float | None:
        """Of all GPUs together at the last tick; None where no GPU tells."""
        known = self._judged_known[_REPORTED]
        return float(self._power[known].sum()) / 1000 if len(known) == len(self._power) and known.any() else None

    def _begin(self) -> None:
        self._look_due = self._start + self._slow
        self._chores_due = self._start

    def close(self) -> None:
        """Leave the driver."""
        self.source.close()

    # -- calls that hang ----------------------------------------------------------------------------------

    def _given_up(self, what: int | str, since: int) -> None:  # noqa: ARG002 - the event says how long it took
        of = "" if isinstance(what, int) else f" for {what}"
        detail = f"a driver call{of} has not returned for {self._hung / 1e9:g} s; the others continue"
        self._events.tell(Event(EventKind.HUNG, self._gpu(what), detail, duration_ns=self._hung))

    def _returned(self, what: int | str, took_ns: int) -> None:
        detail = f"the hanging driver call returned after {took_ns / 1e9:.1f} s"
        self._events.tell(Event(EventKind.ANSWERS_AGAIN, self._gpu(what), detail, duration_ns=took_ns))
        self._look_due = 0

    def _gpu(self, what: int | str) -> str | None:
        return self._known[what].gpu if isinstance(what, int) else None

    # -- the polling thread -------------------------------------------------------------------------------

    def _turn(self, me: Poller) -> None:
        """One tick: every device is read, the readings are recorded, and events are derived from them."""
        steady, read, stuck, silent = self._clock.steady, self.source.read, self.stuck_in, self._noticing.silent
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
        me.busy = (STORE, steady())
        self._recorder.flush()
        self._out(me)

    def _record(self, me: Poller, slow: set[int], *, chores: bool) -> None:
        sweep = self.source.sweep(self._stamps)
        values, status = sweep.values, sweep.status
        for device in tuple(self.stuck_in):
            if isinstance(device, int):
                status[:, device] = Status.UNREAD
        state = status.tobytes()
        if state != self._state:
            for device in self._noticing.notice(status):
                self.source.lose(device)
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

    def _fill(self, me: Poller, values: NDArray[np.int64]) -> bool:
        """Record a tick that differs from the one before in numbers only, where there is a template for it."""
        filler = self._filler
        if filler is None or self._filler_for != self._alike:
            return False
        if not filler.fill(values, self._stamps, self._read_us):
            return False
        me.busy = (STORE, self._clock.steady())
        kept = self._recorder.append_template(filler.template)
        self._out(me)
        if kept:
            self._rows_kept += filler.template.rows
        else:
            self._filler = None
        return kept

    def _append(self, me: Poller, sweep: Sweep, slow: set[int], *, again: bool) -> None:
        """Record a tick as a batch of its own; where the next may be alike, make a template for it."""
        present = np.array(self._whole)
        for device in slow:
            if not self._whole[device]:  # an instance that is gone has no row
                present[device] = bool((sweep.status[:, device] == Status.OK).any())
        batch = self._rows.batch(sweep, present, self._stamps, self._read_us, self._alike[1], slow=bool(slow))
        with self._in(me, STORE):
            self._recorder.append(batch)
            template = self._recorder.template(batch) if again and not slow else None
        if template is not None:
            self._filler, self._filler_for = self._rows.filler(template, present), self._alike
        self._rows_kept += len(batch)

    def _hear(self, me: Poller) -> None:
        """What the driver announced."""
        if _EVENTS in self.stuck_in or _DEVICES in self.stuck_in:
            return
        with self._in(me, _EVENTS):
            announced = self.source.happened()
        self._events.add(announced)

    def _look(self, me: Poller, now: int) -> None:
        """Look for devices that come and go."""
        if _DEVICES in self.stuck_in:
            return
        self._look_due = now + (min(_LOOK_SOON_NS, self._slow) if self._noticing.driver_gone else self._slow)
        stuck = frozenset(device for device in tuple(self.stuck_in) if isinstance(device, int))
        with self._in(me, _DEVICES):
            found = self.source.look_again(stuck, lambda: self._commit(me))
        self._events.add(found)
        devices = list(self.source.devices())
        if devices != self._known:
            self._meet(devices, me)

    # -- what is known of the devices ---------------------------------------------------------------------

    def _meet(self, devices: list[Device], me: Poller | None = None) -> None:
        """Take in a changed list of devices, and write down who they are."""
        number, more = len(devices), len(devices) - len(self._known)
        self._known, self._whole = devices, [device.parent is None for device in devices]
        self._noticing.meet(devices)
        self._rows = Rows(self._cluster, devices)
        self._filler, self._state = None, b""
        if more:
            self._slow_due += [self._clock.steady()] * more
            self._stamps, self._read_us = [0] * number, [-1] * number
            period = self.source.period_ms
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
            with self._in(me, STORE):
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
