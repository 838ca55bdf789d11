"""The one loop: reads a backend on a fixed time grid, records what it gives, and notices what changes.

Threads share the work. The polling thread reads and records. It is a daemon: a call that never returns can neither stop
the loop nor keep the process from ending. When a call hangs, the watching thread (the one in `run`) gives its thread up
and starts a fresh one, which goes on without the GPU, or with another connection; the old thread says so if the call
ever returns. What may take long and waits for nobody is done by others: one stores identities, and each aside has one.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ..errors import DeviceError, InputError
from ..store.events import Event
from ..store.journal_file import Ticks
from ..store.metrics import FAST
from ..store.vocabulary import EventKind
from .backend import Aside, Backend, Device, Reading, Status
from .clock import Clock, SystemClock, one_instant
from .noticing import Events, SeenDevice
from .quality import Quality
from .recording import EVERY, QUICK, Columns, Row, ticks_of

log = logging.getLogger(__name__)

# What a call can hang in, besides a GPU or a connection.
STORE, LIST, ANNOUNCED, LEAVING = "the store", "the list of GPUs", "the driver's events", "leaving"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.02, 86_400.0
_FAST_VALUES = len(FAST)
_LEAST_HUNG_S = 0.1  # busy machines keep a call waiting for that long
_REFUSED = (EventKind.NOT_SUPPORTED, EventKind.NOT_PERMITTED)
_GAPS = (EventKind.SOURCE_GONE, EventKind.SOURCE_BACK)
_SLICE_NS = 500_000_000  # the longest sleep, so that an end is noticed
_SECOND_NS = 1_000_000_000  # between two chores, or two tries to reach a source that is gone
_LONGEST_NS = 600_000_000_000  # between two fresh connections while others hang
_MOST_HANGING = 16  # connections; more of them help nobody
_WATCH_S = 2.5  # between two looks whether a call hangs: a thread that wakes up costs as much as a third of a sweep
_LOOK_S = 0.5  # the same where somebody looks on
_LEAVING_S = 2.0  # how long the end waits for a call that leaves the source, and for asides
_STORING_S = 60.0  # how long the end waits for identities to be stored


class Recorder(Protocol):
    """Where readings go. What was appended is kept whatever becomes of this process."""

    def append(self, ticks: Ticks) -> None: ...

    def append_rows(self, columns: Mapping[str, Sequence[Any]], table: str) -> None: ...

    def identify(self, devices: Sequence[Device], seen_ns: int) -> None: ...


@dataclass(frozen=True)
class Counts:
    """What happened so far."""

    ticks: int
    rows: int
    missed: int
    events: int


@dataclass(frozen=True)
class Sampling:
    """How to read: `interval_s` is the time between ticks, `slow_s` between readings of the slow metrics.

    A call that takes longer than `hung_s` is taken for hanging (default: 5 s or ten intervals, whichever is longer).
    `window_s` is how far back sensors are judged. Raises InputError for what is not possible.
    """

    interval_s: float
    cluster: str
    node: str
    slow_s: float = 10.0
    hung_s: float | None = None
    window_s: float = 60.0
    clock: Clock = field(default_factory=SystemClock)
    among: Callable[[Sequence[Device]], Sequence[Device]] | None = None
    """Gives those of the devices that are read, of which alone events are told; None: all are."""

    def __post_init__(self) -> None:
        if self.interval_s < _LEAST_INTERVAL_S:
            raise InputError(
                f"an interval of {self.interval_s:g} s is too short: no power sensor has a new value more often than "
                f"every {_LEAST_INTERVAL_S:g} s; give {_LEAST_INTERVAL_S:g} or more"
            )
        if self.interval_s > _MOST_INTERVAL_S:
            raise InputError(f"an interval of {self.interval_s:g} s is too long; give {_MOST_INTERVAL_S:g} or less")
        if not _NODE.fullmatch(self.node):
            raise InputError(f"{self.node!r} is not a valid node name: use letters, digits, '.', '_' and '-'")
        if self.hung_s is not None and self.hung_s < _LEAST_HUNG_S:
            raise InputError(f"a driver call of {self.hung_s:g} s may be normal: give hung={_LEAST_HUNG_S:g} or more")

    @property
    def hung_ns(self) -> int:
        return round((max(5.0, 10 * self.interval_s) if self.hung_s is None else self.hung_s) * 1e9)


class Abandoned(BaseException):  # no error: how a thread that was given up learns of it
    """This thread was given up on; another one goes on."""


class _Poller(threading.Thread):
    """A polling thread, and the connection that it uses. `busy` is what it is in and since when (steady ns), None
    between calls."""

    def __init__(self, target: Callable[[_Poller], None], source: Backend) -> None:
        super().__init__(name="whorl-poller", daemon=True)
        self._poll, self.source = target, source
        self.busy: tuple[str, int] | None = None

    def run(self) -> None:
        self._poll(self)


class Sampler:
    """Reads a backend and records what it gives. `devices` are those that it showed when it was opened.

    `fresh` makes another backend like it, for one whose calls are not one by one. `asides` are looked at meanwhile.
    """

    def __init__(
        self,
        backend: Backend,
        recorder: Recorder,
        sampling: Sampling,
        *,
        devices: Sequence[Device] | None = None,
        fresh: Callable[[], Backend] | None = None,
        asides: Sequence[Aside] = (),
    ) -> None:
        self.source = backend
        self.waiting_for_store = False
        """Whether the recorder has not returned from its last call for long."""
        self._given_up: list[_Poller] = []  # those that still hang in a call of the source
        self._recorder, self._sampling, self._fresh, self._asides = recorder, sampling, fresh, asides
        self._clock = sampling.clock
        self._interval = self._paced = round(sampling.interval_s * 1e9)
        self._hung = sampling.hung_ns
        self._slow = max(round(sampling.slow_s * 1e9), self._interval)
        self._events = Events(self._clock, cluster=sampling.cluster, node=sampling.node)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._ending, self._left, self._leaving_hangs = False, False, False
        self._ended: Callable[[], bool] = lambda: False
        self._tick, self._ticks, self._rows_kept = 0, 0, 0
        self._reachable = True
        self._gone_since: int | None = None  # since when the source does not answer, as was told (steady ns)
        self._known: dict[str, SeenDevice] = {}  # all devices that were ever there, by key
        self._asked: list[str] = []  # the keys of those that are read
        self._unread: list[SeenDevice] = []  # whole GPUs that are not, and have a row without numbers at every tick
        self._new_identities = threading.Event()
        self._identified: list[Device] | None = None  # as they were stored last
        self._over = threading.Event()
        self._meet(list(backend.devices() if devices is None else devices))

    def pace(self, interval_s: float) -> None:
        """Change the time between ticks of a run without a `duration_s`, from the next tick on. Any thread may."""
        self._paced = round(interval_s * 1e9)

    @property
    def silent(self) -> bool:
        """Whether the source as a whole does not answer now."""
        return self._gone_since is not None

    @property
    def counts(self) -> Counts:
        """What happened so far."""
        return Counts(self._ticks, self._rows_kept, self._events.missed, self._events.count)

    @property
    def stuck_in(self) -> list[str]:
        """What hangs."""
        names = [poller.busy[0] for poller in list(self._given_up) if poller.busy is not None]
        return names + [STORE] * self.waiting_for_store + [LEAVING] * self._leaving_hangs

    @property
    def devices(self) -> list[Device]:
        """All devices that were ever there, whole GPUs and instances."""
        return [gpu.device for gpu in list(self._known.values())]

    # -- the watching thread ------------------------------------------------------------------------------

    def run(
        self,
        duration_s: float | None = None,
        *,
        ended: Callable[[], bool] = lambda: False,
        look: Callable[[], None] | None = None,
    ) -> Counts:
        """Read until `duration_s` has passed or `ended` says so, and leave.

        `look` is called twice a second; `ended` before each tick, in another thread, and once in a while in this one.
        Raises what the recorder raised: then nothing after the last tick that it took is kept.
        """
        self._ended = ended
        self._events.begin()
        self._start = self._slow_due = self._chores_due = self._clock.steady()
        self._look_due = self._start + self._slow
        self._total = None if duration_s is None else max(1, round(duration_s * 1e9 / self._interval))
        storing = self._beside(self._identify, self._new_identities, None)
        looking = [
            self._beside(partial(self._look_aside, aside), self._over, aside.interval_s) for aside in self._asides
        ]
        self._poller = _Poller(self._poll, self.source)
        self._poller.start()
        pause_s = min(_WATCH_S if look is None else _LOOK_S, self._hung / 2e9)
        while self._poller.is_alive() and not ended():
            self._poller.join(pause_s)
            self._watch()
            if look is not None:
                look()
        self._ending = True
        self._over.set()
        self._new_identities.set()
        patience = time.monotonic() + min(self._hung / 1e9, 2.0)
        while self._poller.is_alive() and time.monotonic() < patience:
            self._poller.join(0.05)
            self._watch()
        with self._lock:  # whatever still hangs must not write any more
            if self._poller.is_alive() and (busy := self._poller.busy) is not None:
                if busy[0] == STORE:
                    self.waiting_for_store = True
                else:
                    self._given_up.append(self._poller)
            self._poller = _Poller(self._poll, self.source)
        storing.join(_STORING_S)
        self.waiting_for_store |= storing.is_alive()
        patience = time.monotonic() + _LEAVING_S
        for thread in looking:
            thread.join(max(0.0, patience - time.monotonic()))
        if self._failure is not None:
            if isinstance(self._failure, DeviceError) and not self.waiting_for_store:  # what led to it is told
                self.write_events()
            raise self._failure
        self._events.tell_missed()
        if not self.waiting_for_store:
            self.write_events()
        return self.counts

    def close(self) -> None:
        """Leave the source, where `run` has not; one that hangs even then is left behind."""
        if self._left:
            return
        self._left = True
        leaving = threading.Thread(target=self.source.close, name="whorl-leaving", daemon=True)
        leaving.start()
        leaving.join(_LEAVING_S)
        self._leaving_hangs = leaving.is_alive()

    def _watch(self) -> None:
        """Give up a thread whose call hangs, and start another without what it hangs in."""
        poller = self._poller
        busy = poller.busy
        if busy is None or self._clock.steady() - busy[1] < self._hung:
            return
        call_name, since = busy
        if call_name == STORE:
            if not self.waiting_for_store:
                self.waiting_for_store = True
                waited = (self._clock.steady() - since) / 1e9
                log.warning("the store has not answered for %.0f s; waiting for it", waited)
            return
        with self._lock:
            if poller.busy is not busy:  # it returned at this very moment
                return
            self._given_up.append(poller)
            if not self.source.one_by_one:
                assert self._fresh is not None
                self.source = self._fresh()
            self._poller = _Poller(self._poll, self.source)
        if self.source.one_by_one:
            self._tell_of_call(EventKind.HUNG, call_name, self._hung)
        else:
            self._pause_connecting(since)
        self._poller.start()

    def _tell_of_call(self, kind: EventKind, call_name: str, lasted_ns: int) -> None:
        """Tell that a call hangs, or returned after so long, and go on without it, or with it."""
        gpu = call_name if call_name in self._known else None
        of = "" if gpu else f" for {call_name}"
        detail = f"a driver call{of} has not returned for {lasted_ns / 1e9:g} s; the others continue"
        if kind is EventKind.ANSWERS_AGAIN:
            detail = f"the hanging driver call returned after {lasted_ns / 1e9:.1f} s"
        self._events.tell(Event(kind, gpu, detail, duration_ns=lasted_ns))
        self._choose()

    def _pause_connecting(self, since: int) -> None:
        """Tell that a connection hangs since then (steady ns); the next one is made later where several do."""
        name, hanging = self.source.name, len(self._given_up)
        detail = f"{name} has not answered for {self._hung / 1e9:g} s; another connection is made"
        self._source_gone(detail, since, EventKind.HUNG)
        pause = 0 if hanging == 1 else min(self._hung << hanging - 1, _LONGEST_NS)
        self._look_due = self._clock.steady() + pause
        if hanging >= _MOST_HANGING:
            self._failure = DeviceError(
                f"{name}: {hanging} connections hang, one after the other; restart the engine, and this collector"
            )
            self._ending = True

    # -- a thread in a call -------------------------------------------------------------------------------

    def _call(self, me: _Poller, call_name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call what may hang. Raises Abandoned where this thread was given up meanwhile."""
        me.busy = (call_name, self._clock.steady())
        try:
            return function(*arguments)
        finally:
            self._out(me)

    def _out(self, me: _Poller) -> None:
        """The end of a call that may hang. A thread that was given up hands back what it hung in."""
        with self._lock:
            busy, me.busy = me.busy, None
            if self._poller is me:
                self.waiting_for_store = False
                return
            hung = me in self._given_up
            if hung:
                self._given_up.remove(me)
        if hung and busy is not None and not self._ending:
            self._look_due = 0
            if me.source.one_by_one:
                self._tell_of_call(EventKind.ANSWERS_AGAIN, busy[0], self._clock.steady() - busy[1])
            else:
                me.source.close()
        raise Abandoned

    # -- the polling thread -------------------------------------------------------------------------------

    def _poll(self, me: _Poller) -> None:
        try:
            while self._wait(me):
                self._turn(me)
            if self._poller is not me:
                return
            self._judge_sensors()
            if self._reachable and not self._left:
                self._left = True
                for event in filter(self._is_ours, self._call(me, LEAVING, self.source.close)):
                    self.tell(event)
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
            if self._ending or self._poller is not me or self._ended():
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

    def _turn(self, me: _Poller) -> None:
        """One tick: every device is read, events are derived from the readings, and both are recorded.

        What needs no answer of the store comes before it: after its wait for the disk all code is cold.
        """
        now, wall, _ = one_instant(self._clock)
        if not self._reachable and now >= self._look_due:
            self._look(me, now)
        tick = self._sweep(me, now, wall - now) if self._reachable else {}
        self._tick += 1
        if self._paced != self._interval and self._total is None:
            self._start, self._tick, self._interval = now, 1, self._paced
        if now >= self._chores_due:
            self._chores_due = now + _SECOND_NS
            self._judge_sensors()
            self._events.look_at_clocks()
            self._events.tell_missed(now_ns=now)
        if self._events.waiting:
            self.write_events(me)
        self._keep(me, tick)
        if self._reachable and now >= self._look_due:
            self._look(me, now)
            self.write_events(me)

    def _sweep(self, me: _Poller, now: int, ahead: int) -> dict[Columns, list[Row]]:
        """Read every device once; the rows that come of it."""
        slow = now >= self._slow_due
        readings: list[tuple[SeenDevice, Reading, int, int]] = []
        try:
            self._read(me, readings, now, slow=slow)
        except InputError as error:
            self._source_gone(str(error), now)
        else:
            self._ticks += 1
            if self._gone_since is not None:
                self._source_back(now)
            if slow:
                self._slow_due += self._slow * (1 + (now - self._slow_due) // self._slow)
        counting = slow or now >= self._chores_due
        tick: dict[Columns, list[Row]] = {}
        for gpu, reading, began, ended in readings:
            statuses, values, stamp = reading.statuses, reading.values, reading.ts_ns
            if stamp is None:
                if gpu.ts_ns is not None and gpu.silent and statuses == gpu.statuses:
                    continue  # a source with a clock of its own has one row of what is lost
                stamp = began + ahead
            elif stamp == gpu.ts_ns:
                continue
            else:
                gpu.ts_ns = stamp
            if statuses != gpu.statuses:
                gpu.notice(statuses)
            columns = QUICK if len(values) == _FAST_VALUES else EVERY
            if counting:
                gpu.notice_resets(columns, values, statuses)
            numbers, packed, nulls = columns.fitting((*values, (ended - began) // 1000), gpu.nulls[columns])
            mark, quality = gpu.silent, gpu.quality
            if mark is not None or reading.ts_ns is not None:
                nulls |= columns.read_us_missing
            if quality is not None:
                quality.note(stamp, columns.judged(numbers), gpu.judged)
                mark = mark or quality.text
            elif Status.OK not in statuses:
                continue  # an instance that is gone has no row
            tick.setdefault(columns, []).append((stamp // 1000, gpu.key, packed, nulls, mark))
        for gpu in self._unread:
            self._add_silent(tick, gpu, now + ahead)
        if self._events.driver_gone:
            self._look_due = min(self._look_due, now + _SECOND_NS)
        return tick

    def _source_back(self, now: int) -> None:
        assert self._gone_since is not None
        lasted, self._gone_since = now - self._gone_since, None
        detail = f"{self.source.name} answers again after {lasted / 1e9:.1f} s"
        log.warning("%s", detail)
        self._events.tell(Event(EventKind.SOURCE_BACK, None, detail, duration_ns=lasted))

    def _read(
        self, me: _Poller, readings: list[tuple[SeenDevice, Reading, int, int]], began: int, *, slow: bool
    ) -> None:
        """Add what the source gives, with the times (steady ns) between which each device was read."""
        gpus, seen_gpus, steady = self._asked, self._known, self._clock.steady
        one_by_one = self.source.one_by_one
        place = 0
        me.busy = (self.source.name if not one_by_one else gpus[0] if gpus else ANNOUNCED, began)
        try:
            for reading in self.source.read(gpus, slow=slow):
                if self._poller is not me:
                    break
                if not isinstance(reading, Reading):
                    self._announced(reading)
                    continue
                ended = steady()
                gpu = seen_gpus.get(reading.gpu)
                if gpu is None:  # it came after the list was made
                    self._look_due = 0
                    continue
                readings.append((gpu, reading, began, ended))
                if one_by_one:
                    place = gpus.index(reading.gpu, place) + 1
                    me.busy = (gpus[place] if place < len(gpus) else ANNOUNCED, ended)
                    began = ended
        finally:
            self._out(me)

    def _is_ours(self, event: Event) -> bool:
        """Whether an event is of a GPU that is read, or of all of the node."""
        return self._sampling.among is None or event.gpu is None or event.gpu in self._known

    def _announced(self, event: Event) -> None:
        """Record what a source says of itself; what costs a metric or a page, who watches the collector hears too."""
        if not self._is_ours(event):
            return
        self._events.tell(event)
        if self.source.one_by_one:
            return
        refused = event.kind in _REFUSED and event.metric is None
        if refused or event.kind in _GAPS or (event.kind == EventKind.EXPORTER and event.metric is not None):
            log.warning("%s", event.detail)

    def _add_silent(self, tick: dict[Columns, list[Row]], gpu: SeenDevice, stamp: int) -> None:
        """Add a row without numbers, taken at `stamp` (UTC ns): the GPU hangs, or is lost."""
        columns = next(iter(tick), QUICK)
        mark = "hung" if gpu.device.gpu in self.stuck_in else gpu.silent
        tick.setdefault(columns, []).append((stamp // 1000, gpu.key, columns.zeros, columns.nothing, mark))

    def _keep(self, me: _Poller, tick: Mapping[Columns, Sequence[Row]]) -> None:
        for columns, rows in tick.items():
            self._call(me, STORE, self._recorder.append, ticks_of(columns, rows))
            self._rows_kept += len(rows)

    def _judge_sensors(self) -> None:
        for gpu in self._known.values():
            for event in gpu.quality.judge() if gpu.quality is not None else ():
                self._events.tell(event)

    # -- the devices --------------------------------------------------------------------------------------

    def _look(self, me: _Poller, now: int) -> None:
        """Look for devices that come and go; this also reaches a source that was gone."""
        call_name = LIST if self.source.one_by_one else self.source.name
        if self.source.one_by_one and LIST in self.stuck_in:
            return
        self._look_due = now + (self._slow if self._reachable else _SECOND_NS)
        try:
            devices = self._call(me, call_name, self.source.devices)
        except InputError as error:
            if self._events.driver_gone:
                self._look_due = now + _SECOND_NS
            else:
                self._source_gone(str(error), now)
            return
        if not self._reachable:
            self._reachable, self._look_due = True, now + self._slow
        if gone := self._meet(devices):  # a source with a clock of its own has one row of what it lost
            tick: dict[Columns, list[Row]] = {}
            for gpu in gone:
                self._add_silent(tick, gpu, self._clock.wall())
            self._keep(me, tick)

    def _meet(self, devices: Sequence[Device]) -> list[SeenDevice]:
        """Take in the list of devices, tell what changed, and have them identified where they did.

        Returns the GPUs that were lost, of a source with a clock of its own.
        """
        first, changed = not self._known, False
        devices = devices if self._sampling.among is None else self._sampling.among(devices)
        listed = {device.gpu: device for device in devices}
        gone = []
        for key, gpu in self._known.items():
            if gpu.listed and key not in listed:
                gpu.listed, gpu.statuses = False, b""
                if gpu.quality is not None:
                    gpu.fall_silent(Status.LOST)
                    gone += [gpu] * (gpu.ts_ns is not None)
        for key, device in listed.items():
            gpu_before = self._known.get(key)
            changed |= gpu_before is None or gpu_before.device != device
            if gpu_before is not None:
                gpu_before.device, gpu_before.listed = device, True
                continue
            self._known[key] = new = self._observed(device)
            if not first and device.parent is None:
                new.tell(EventKind.APPEARED, "the GPU is new")
        for key, gpu in self._known.items():
            if gpu.quality is None or not gpu.listed:
                continue
            profiles = {device.gpu: device.row.get("mig_profile") for device in devices if device.parent == key}
            if gpu.profiles is not None and gpu.profiles != profiles and gpu.silent is None:
                names = ", ".join(str(profile) for profile in profiles.values()) or "none"
                detail = f"the MIG instances changed; now there are: {names}"
                self._events.tell(Event(EventKind.MIG, key, detail, n=len(profiles)))
            if gpu.silent is None or profiles:
                gpu.profiles = profiles
        if changed:
            self._new_identities.set()
            self._slow_due = 0
        self._choose()
        return gone

    def _observed(self, device: Device) -> SeenDevice:
        sampling, period_ms = self._sampling, self.source.period_ms
        quality = None
        if device.parent is None:
            quality = Quality(
                device.gpu,
                interval_s=sampling.interval_s,
                period_s=None if period_ms is None else period_ms / 1000,
                window_s=sampling.window_s,
            )
        return SeenDevice(device, sampling.cluster, self._events, self._clock, quality)

    def _choose(self) -> None:
        """Choose what is read: all that is listed and does not hang."""
        gpus = list(self._known.items())
        stuck_in = self.stuck_in
        self._asked = [key for key, gpu in gpus if gpu.listed and key not in stuck_in]
        unasked = [gpu for key, gpu in gpus if key not in self._asked]
        self._unread = [gpu for gpu in unasked if gpu.quality is not None and gpu.ts_ns is None]

    def _source_gone(self, why: str, since: int, kind: EventKind = EventKind.SOURCE_GONE) -> None:
        """The source as a whole does not answer: tell it once, also to who watches the collector; try again soon."""
        self._reachable, self._look_due = False, since + _SECOND_NS
        if self._gone_since is None:
            self._gone_since = since
            log.warning("%s", why)
            duration_ns = self._hung if kind is EventKind.HUNG else None
            self._events.tell(Event(kind, None, why, duration_ns=duration_ns))

    # -- threads that nobody waits for --------------------------------------------------------------------

    def _beside(self, work: Callable[[], None], wake: threading.Event, interval_s: float | None) -> threading.Thread:
        """A thread that does some work now, whenever it is woken or the time has passed, and at the end."""

        def repeat() -> None:
            try:
                while True:
                    is_over = self._over.is_set()
                    work()
                    if is_over:
                        return
                    wake.wait(interval_s)
                    if wake is not self._over:
                        wake.clear()
            except BaseException as error:  # handed to the watching thread, which raises it
                self._failure, self._ending = self._failure or error, True

        thread = threading.Thread(target=repeat, name="whorl-beside", daemon=True)
        thread.start()
        return thread

    def _identify(self) -> None:
        """Store who the devices are where that changed."""
        if (devices := self.devices) != self._identified:
            self._identified = devices
            self._recorder.identify(devices, self._clock.wall())

    def _look_aside(self, aside: Aside) -> None:
        for event in aside.look(self.devices):
            self._events.tell(event, aside)

    # -- events -------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Record an event."""
        self._events.tell(event)

    def write_events(self, me: _Poller | None = None) -> None:
        """Store the events that are not stored yet."""
        columns = self._events.take()
        if columns is None:
            return
        if me is None:
            self._recorder.append_rows(columns, "events")
        else:
            self._call(me, STORE, self._recorder.append_rows, columns, "events")
