"""The sampling loop: a backend is read device by device on a fixed time grid, watched as `Watched` says.

When a call hangs, the fresh thread goes on without that GPU, and the old one hands it back if the call ever returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ..store.events import Event
from ..store.metrics import FAST, METRICS, ROW
from ..store.vocabulary import EventKind
from .backends import Backend, Device, Status, Sweep
from .clock import Clock
from .noticing import Noticing
from .quality import READ, Quality
from .rows import EVERY, QUICK
from .watching import STORE, Poller, Recorder, Watched

_TOGETHER_NS = 100_000  # two clocks that are read within so long tell the same instant
_CHORES_NS = 1_000_000_000  # how often to look at clocks, counters and the driver's events
_LOOK_SOON_NS = 1_000_000_000  # how often to look for a driver that went away
_REPORTED = READ.index("power_mw")
_JUDGED = np.array([ROW[column] for column in READ], np.intp)
_judged_of = itemgetter(*(FAST.index(row) for row in _JUDGED)), itemgetter(*_JUDGED)  # of fast and slow ticks
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
        self._judged_known: NDArray[np.bool_] = np.zeros((len(READ), 0), bool)
        self._power: Sequence[int] = ()
        self._state: tuple[bytes, ...] = ()  # the statuses of the last tick
        self._good: NDArray[np.bool_] = np.zeros((len(METRICS), 0), bool)  # and which are OK
        self._meet(list(backend.devices()))

    @property
    def watts(self) -> float | None:
        """Of all GPUs together at the last tick; None where no GPU tells."""
        known, power = self._judged_known[_REPORTED], np.array(self._power)
        return float(power[known].sum()) / 1000 if len(known) == len(power) and known.any() else None

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

    def _record(self, me: Poller, due: set[int], *, chores: bool) -> None:
        sweep, slow = self.source.sweep(self._stamps), bool(due)
        if self.stuck_in:
            for device in tuple(self.stuck_in):
                if isinstance(device, int):
                    sweep.status[:, device] = Status.UNREAD
            sweep = Sweep(sweep.values, sweep.status)
        state, numbers = sweep.statuses(), sweep.numbers(slow=slow)
        if state != self._state:
            for device in self._noticing.notice(sweep.status):
                self.source.lose(device)
            if self._noticing.driver_gone:
                self._look_due = 0
            self._good = sweep.status == Status.OK
            self._judged_known = self._good[_JUDGED]
            self._state = state
        if slow or chores:
            self._noticing.notice_resets(sweep.values, sweep.status)
        judged = _judged_of[slow](numbers)
        self._power = judged[_REPORTED]
        for finding in self._quality.note(judged, self._judged_known, self._stamps):
            self._events.tell(finding.event(self._known[finding.device].gpu))
        present = list(self._whole)
        for device in due:
            present[device] |= bool(self._good[:, device].any())  # an instance that is gone has no row
        columns, known = (EVERY, self._good) if slow else (QUICK, self._good[FAST, :])
        ticks = columns.ticks(self._gpus, self._stamps, numbers, known, read_us=self._read_us, marks=self._marks()).of(
            [device for device, there in enumerate(present) if there]
        )
        with self._in(me, STORE):
            self._recorder.append(ticks)
        self._rows_kept += len(ticks.gpus)

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
            changes = self.source.look_again(stuck, lambda: self._commit(me))
        self._events.add(changes)
        devices = list(self.source.devices())
        if devices != self._known:
            self._meet(devices, me)

    # -- what is known of the devices ---------------------------------------------------------------------

    def _meet(self, devices: list[Device], me: Poller | None = None) -> None:
        """Take in a changed list of devices, and write down who they are."""
        number, more = len(devices), len(devices) - len(self._known)
        self._known, self._whole = devices, [device.parent is None for device in devices]
        self._noticing.meet(devices)
        self._gpus = tuple((self._cluster, device.gpu) for device in devices)
        self._state = ()
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

    def _marks(self) -> list[str | None]:
        """The column `quality`: what the sensors' marks say, or why there are no readings."""
        marks, silent = list(self._quality.texts), self._noticing.silent
        if any(silent) or self.stuck_in:
            marks = [why or text for why, text in zip(silent, marks, strict=True)]
            for device in tuple(self.stuck_in):
                if isinstance(device, int):
                    marks[device] = "hung"
        return marks
