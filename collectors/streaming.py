"""The loop that reads a stream, a source with a clock of its own: to callers the same as `Sampler`.

A stream that hangs is given up with its thread, and a fresh one is opened. One that does not answer is tried again
until it does: one event says when that began and one when it ended, however often it was tried.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, InputError
from ..store.events import Event
from ..store.metrics import METRICS, ROW
from ..store.vocabulary import EventKind
from .backends import Device, Readings, Status, Stream
from .clock import Clock
from .noticing import Gaps, Noticing
from .quality import READ, Quality
from .rows import EVERY
from .watching import STORE, Poller, Recorder, Watched

log = logging.getLogger(__name__)

_OFTEN_NS = 1_000_000_000  # the shortest time between two tries to open, or two looks at the clocks
_LONGEST_NS = 600_000_000_000  # the longest time between two fresh streams while others hang
_MOST_HANGING = 16  # threads; more of them help nobody
_REMEMBERED = 256  # rows of a GPU, against which further ones are compared
_LATE_NS = 60_000_000_000  # a row older than the newest by less comes late; by more, the clock was set back
_LEAVING_S = 2.0
_JUDGED = np.array([ROW[column] for column in READ], np.intp)
_POWER, _REPORTED = ROW["power_mw"], READ.index("power_mw")


class Streamer(Watched):
    """Reads a stream, which is open already, and records what it gives.

    `fresh` makes another one like it. `interval_s` is the time between two readings of a GPU, as the source was asked
    for. The rest is as of `Sampler`.
    """

    def __init__(
        self,
        stream: Stream,
        fresh: Callable[[], Stream],
        recorder: Recorder,
        *,
        interval_s: float,
        cluster: str,
        node: str,
        hung_s: float | None = None,
        window_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        if hung_s is None:
            hung_s = max(5.0, 10 * interval_s)
        super().__init__(
            recorder,
            interval_s=stream.poll_s,
            hung_s=hung_s,
            cluster=cluster,
            node=node,
            clock=clock,
            late=stream.keeps,
        )
        self.source = stream
        self._fresh, self._number = fresh, 0
        self._streams = {0: stream}  # by number: the last one, and those that hang
        self._open, self._try_at = True, 0
        self._gaps = Gaps(self._clock)
        self._noticing = Noticing(self._events, self._clock)
        self._cluster, self._every_s, self._window_s = cluster, interval_s, window_s
        self._listed: list[Device] = []  # as the stream has them now
        self._known: list[Device] = []  # all that were ever there
        self._positions: NDArray[np.intp] = np.zeros(0, np.intp)  # of the listed among the known
        self._seen: NDArray[np.int64] = np.zeros((_REMEMBERED, 0), np.int64)  # by GPU: the times of its last rows, ...
        self._rows_seen: NDArray[np.intp] = np.zeros(0, np.intp)  # ... how many there were, ...
        self._newest: list[int] = []  # ... and the newest of them
        self._power: NDArray[np.int64] = np.zeros(0, np.int64)  # by GPU: the last reading, mW ...
        self._told: NDArray[np.bool_] = np.zeros(0, bool)  # ... and whether there was one
        self._meet(list(stream.devices()))

    @property
    def watts(self) -> float | None:
        """Of all GPUs together as they were last told; None where one does not tell."""
        whole = [gpu for gpu, one in enumerate(self._known) if one.parent is None]
        return float(self._power[whole].sum()) / 1000 if whole and self._told[whole].all() and not self.silent else None

    @property
    def silent(self) -> bool:
        return self.source.name in self._gaps

    def close(self) -> None:
        """Leave the source; one that hangs even then is left behind."""
        leaving = threading.Thread(target=self.source.close, name="whorl-leaving", daemon=True)
        leaving.start()
        leaving.join(_LEAVING_S)
        if leaving.is_alive():
            self.stuck_in[self._number] = self._clock.steady()

    def _begin(self) -> None:
        self._chores_due = self._start

    # -- a stream that hangs or does not answer -----------------------------------------------------------

    def _given_up(self, what: int | str, since: int) -> None:  # noqa: ARG002 - the last stream is what hangs
        hanging = len(self._streams)
        self._number += 1
        self.source = self._streams[self._number] = self._fresh()
        self._open = False
        pause = 0 if hanging == 1 else min(self._hung << hanging - 1, _LONGEST_NS)
        self._try_at = self._clock.steady() + pause
        detail = f"{self.source.name} has not answered for {self._hung / 1e9:g} s; another connection is made"
        if self._gaps.gone(self.source.name, detail, since_ns=since):
            self._say(Event(EventKind.HUNG, None, detail, duration_ns=self._hung))
        if hanging >= _MOST_HANGING:
            self._failure = DeviceError(
                f"{self.source.name}: {hanging} connections hang, one after the other; "
                "restart the engine, and this collector"
            )
            self._ending = True

    def _returned(self, what: int | str, took_ns: int) -> None:  # noqa: ARG002 - the gap is what counts
        self._try_at = 0
        self._streams.pop(int(what)).close()

    def _say(self, event: Event) -> None:
        """Tell of a gap, also to who watches the collector."""
        log.warning("%s", event.detail)
        self._events.tell(event)

    # -- the polling thread -------------------------------------------------------------------------------

    def _turn(self, me: Poller) -> None:
        now = self._clock.steady()
        was_open = self._open
        polled = self._ask(me, now) if was_open or now >= self._try_at else None
        if polled is None and was_open and self._late:  # an engine that was started again may be there already
            polled = self._ask(me, now)
        self._tick += 1
        if polled is not None:
            self._ticks += 1
            readings, events = polled
            self._events.add(events)
            for event in events:
                if _matters(event):
                    log.warning("%s", event.detail)
            if len(readings.ts):
                self._take(me, readings)
        if now >= self._chores_due:
            self._chores_due = now + _OFTEN_NS
            self._events.look_at_clocks()
            self._events.tell_missed(now_ns=now)
        self.write_events(me)

    def _finish(self, me: Poller) -> None:
        if self._open:
            with contextlib.suppress(InputError), self._in(me, self._number):
                self._events.add(self.source.end())

    def _ask(self, me: Poller, now: int) -> tuple[Readings, list[Event]] | None:
        """What is new; None where the stream does not answer."""
        stream = self.source
        try:
            if not self._open:
                with self._in(me, self._number):
                    stream.close()
                    stream.open()
                self._open = True
            with self._in(me, self._number):
                polled = stream.poll()
                devices = list(stream.devices())
        except InputError as error:
            self._open, self._try_at = False, now + _OFTEN_NS
            for event in self._gaps.gone(stream.name, str(error)):
                self._say(event)
            return None
        for event in self._gaps.back(stream.name):
            self._say(event)
        if devices != self._listed:
            self._meet(devices, me)
        return polled

    def _take(self, me: Poller, readings: Readings) -> None:
        """Record rows; positions become those among the known."""
        self._keep(me, self._positions[readings.device], readings)

    def _lose(self, me: Poller, gpus: list[int]) -> None:
        """A last row, without numbers, of each GPU that the source does not list any more."""
        number = len(gpus)
        status = np.full((len(METRICS), number), Status.LOST, np.uint8)
        stamps = np.full(number, self._clock.wall(), np.int64)
        device = np.array(gpus, np.intp)
        self._keep(me, device, Readings(device, stamps, np.zeros(status.shape, np.int64), status))

    def _keep(self, me: Poller, device: NDArray[np.intp], readings: Readings) -> None:
        """Record rows of known devices, and derive events from them."""
        new = self._unseen(device, readings.ts)
        if not len(new):
            return
        rows = Readings(device[new], readings.ts[new], readings.values[:, new], readings.status[:, new])
        marks: list[str | None] = [None] * len(new)
        for turn in _turns(rows.device):
            self._notice(rows, turn[self._in_order(rows.device[turn].tolist(), rows.ts[turn].tolist())])
            quality, silent = self._quality.texts, self._noticing.silent
            for row, gpu in zip(turn.tolist(), rows.device[turn].tolist(), strict=True):
                marks[row] = silent[gpu] or quality[gpu]
        gpus = [(self._cluster, self._known[gpu].gpu) for gpu in rows.device.tolist()]
        ticks = EVERY.ticks(gpus, rows.ts, rows.values, rows.status == Status.OK, marks=marks)
        with self._in(me, STORE):
            self._recorder.append(ticks)
        self._rows_kept += len(gpus)

    def _unseen(self, device: NDArray[np.intp], ts: NDArray[np.int64]) -> NDArray[np.intp]:
        """The rows that were not there before: polls may overlap."""
        order = np.lexsort((ts, device))
        again = np.append(False, (np.diff(device[order]) == 0) & (np.diff(ts[order]) == 0))
        before = (self._seen[:, device] == ts).any(axis=0)
        before[order] |= again
        new = np.flatnonzero(~before)
        of = device[new]
        self._seen[(self._rows_seen[of] + _ranks(of)) % _REMEMBERED, of] = ts[new]
        np.add.at(self._rows_seen, of, 1)
        return new

    def _in_order(self, device: list[int], ts: list[int]) -> list[bool]:
        """Which rows come after those before: a row that is late says nothing about the GPU as it is now."""
        after = []
        for one, at in zip(device, ts, strict=True):
            after.append(not 0 <= self._newest[one] - at < _LATE_NS)
            if after[-1]:
                self._newest[one] = at
        return after

    def _notice(self, readings: Readings, turn: NDArray[np.intp]) -> None:
        """Look at rows of different GPUs as the sampler looks at those of a tick."""
        device = readings.device[turn]
        shape = (len(METRICS), len(self._known))
        values = np.zeros(shape, np.int64)
        status = np.full(shape, Status.UNREAD, np.uint8)
        values[:, device], status[:, device] = readings.values[:, turn], readings.status[:, turn]
        stamps = np.zeros(shape[1], np.int64)
        stamps[device] = readings.ts[turn]
        lost = [gpu for gpu, why in enumerate(self._noticing.silent) if why == "lost"]
        self._noticing.notice(status)
        for gpu in lost:
            if self._noticing.silent[gpu] is None:
                self._events.tell(Event(EventKind.RETURNED, self._known[gpu].gpu, "the GPU answers again"))
        self._noticing.notice_resets(values, status)
        known = status[_JUDGED] == Status.OK
        self._power[device], self._told[device] = values[_POWER, device], known[_REPORTED, device]
        found = self._quality.note(values[_JUDGED], known, stamps.tolist())
        for finding in found:
            self._events.tell(finding.event(self._known[finding.device].gpu))

    # -- what is known of the devices ---------------------------------------------------------------------

    def _meet(self, devices: list[Device], me: Poller | None = None) -> None:
        """Take in a changed list of devices, and write down who they are. The known keep their positions."""
        before, self._listed = self._listed, devices
        place = {one.gpu: position for position, one in enumerate(self._known)}
        more = [one.gpu for one in devices if one.gpu not in place]
        for gpu in more:
            place[gpu] = len(place)
        known = [*self._known, *(Device(gpu) for gpu in more)]
        for one in devices:
            parent = None if one.parent is None else place[devices[one.parent].gpu]
            known[place[one.gpu]] = replace(one, parent=parent)
        self._power = np.pad(self._power, (0, len(more)))
        self._told = np.pad(self._told, (0, len(more)))
        self._known = known
        self._positions = np.array([place[one.gpu] for one in devices], np.intp)
        self._noticing.meet(self._known)
        if more:
            self._seen = np.pad(self._seen, ((0, 0), (0, len(more))))
            self._rows_seen = np.pad(self._rows_seen, (0, len(more)))
            self._newest += [0] * len(more)
            period = self.source.period_ms
            self._quality = Quality(
                len(self._known),
                interval_s=self._every_s,
                period_s=None if period is None else period / 1000,
                window_s=self._window_s,
            )
        seen = self._clock.wall()
        if me is None:
            self._recorder.identify(self._known, seen)
            return
        for one in self._known[-len(more) :] if more else ():
            if one.parent is None:
                self._events.tell(Event(EventKind.APPEARED, one.gpu, f"the GPU {one.gpu} is new"))
        was, now = _instances(before), _instances(devices)
        for gpu in (gpu for gpu in {**was, **now} if was.get(gpu) != now.get(gpu)):
            there = now.get(gpu, {})
            profiles = ", ".join(str(profile) for profile in there.values()) or "none"
            detail = f"the MIG instances changed; now there are: {profiles}"
            self._events.tell(Event(EventKind.MIG, gpu, detail, n=len(there)))
        with self._in(me, STORE):
            self._recorder.identify(self._known, seen)
        if not self._late:  # pages of exporters: those of some may be missing now, and say nothing of their GPUs
            return
        listed = {one.gpu for one in devices}
        if gone := [place[one.gpu] for one in before if one.parent is None and one.gpu not in listed]:
            self._lose(me, gone)


def _matters(event: Event) -> bool:
    """Whether it costs a metric on all GPUs, so that who watches the collector should hear of it."""
    refused = event.kind in (EventKind.NOT_SUPPORTED, EventKind.NOT_PERMITTED) and event.metric is None
    return refused or (event.kind == EventKind.EXPORTER and event.metric is not None)


def _instances(devices: Sequence[Device]) -> dict[str, dict[str, str | None]]:
    """The MIG instances of each GPU that has any, with their profiles."""
    found: dict[str, dict[str, str | None]] = {}
    for one in devices:
        if one.parent is not None:
            found.setdefault(devices[one.parent].gpu, {})[one.gpu] = one.row.get("mig_profile")
    return found


def _turns(device: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Rows in turns: the first of each device, then the second of each, and so on."""
    turn = _ranks(device)
    for number in range(int(turn.max()) + 1):
        yield np.flatnonzero(turn == number)


def _ranks(device: NDArray[np.intp]) -> NDArray[np.intp]:
    """The number of each row among those of its device, from 0."""
    order = np.argsort(device, kind="stable")
    ordered = device[order]
    began = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))[: len(device)]
    ranks = np.empty(len(device), np.intp)
    ranks[order] = np.arange(len(device)) - np.repeat(began, np.diff(np.append(began, len(device))))
    return ranks
