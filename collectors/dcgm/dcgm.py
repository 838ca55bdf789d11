"""The stream `dcgm`: what an engine of NVIDIA's DCGM samples of its GPUs.

The engine asks the driver at the interval that it was given and keeps what it got for a minute or more; a poll takes
all of it. So a late poll loses nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InputError
from ...store.events import Event
from ...store.metrics import METRICS
from ...store.power_sensors import sensor_of_model
from ...store.vocabulary import EventKind
from ..backends import Readings, Status
from .bindings import Bindings, find_bindings
from .connection import AHEAD_US, Connection, Refusal, another, connect
from .entities import find_entities, lost_gpus
from .events import Health, HeldDown, Xids
from .job import JobStatistics
from .reaching import NO_PERMISSION, REQUIRES_ROOT, Target, sentence
from .reading import OF_XID, Reader
from .rows import Assembler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backends import Device

log = logging.getLogger(__name__)

_LEAST_POLL_S = 1.0
_LEAST_OVERLAP_US = 250_000  # a sample may come as late as the driver's answer to the call after its stamp
_CHORES_US = 10_000_000
_FAST = np.array([m.tier == "fast" for m in METRICS])
_FIELD = {m.dcgm.id: m.name for m in METRICS if m.dcgm is not None}
_PROFILING = {m.dcgm.id for m in METRICS if m.dcgm is not None and m.dcgm.profiling}


class Dcgm:
    """DCGM as a `Stream`. `host` is HOST:PORT, `socket` a path; with neither, this node's engine or an embedded one."""

    name = "dcgm"
    keeps = True

    def __init__(
        self,
        *,
        host: str | None = None,
        socket: str | None = None,
        job: str | None = None,
        interval_s: float = 1.0,
        slow_s: float = 10.0,
    ) -> None:
        if host is not None and socket is not None:
            raise InputError("give --host or --socket, not both: an engine is reached by one of them")
        if job is not None and not 0 < (length := len(job.encode(errors="replace"))) < 64:
            raise InputError(f"DCGM's job ids have 1 to 63 bytes, and {job!r} has {length}")
        self.period_ms: int | None = None
        self.poll_s = max(interval_s, _LEAST_POLL_S)
        self._target = Target(host, socket)
        self._interval_us, self._slow_us = round(interval_s * 1e6), round(max(slow_s, interval_s) * 1e6)
        self._overlap_us = max(2 * self._interval_us, _LEAST_OVERLAP_US)
        self._connection: Connection | None = None
        self._job_id = job
        self._job: JobStatistics | None = None
        self._devices: list[Device] = []
        self._xids, self._health, self._held = Xids(), Health(), HeldDown()
        self._assembler = Assembler()
        self._version: str | None = None
        self._refused: list[Refusal] = []
        self._pending: list[Event] = []

    def open(self) -> None:
        """Find the bindings, reach the engine, and have it sample; see `Stream.open`."""
        self._target.address()
        bindings = find_bindings()
        bindings.load()
        self._bindings = bindings
        self._connect(bindings)
        self._begin_job()

    def devices(self) -> Sequence[Device]:
        return self._devices

    def close(self) -> None:
        """Take back our watches and groups, and leave the engine."""
        connection, self._connection = self._connection, None
        job, self._job = self._job, None
        if job is not None:
            job.close()
        if connection is not None:
            connection.close()

    def end(self) -> list[Event]:
        """Times held down that go on, and the engine's statistics of the job that was asked for."""
        events = self._held.end()
        if self._job is not None:
            try:
                events += self._job.end(self._gpus)
            except self._bindings.error as error:
                events.append(_no_statistics(str(error)))
        return events

    def _begin_job(self) -> None:
        if self._job_id is None or self._connection is None or self._job is not None:
            return
        whole = [one for one in self._connection.entities if one.parent is None]
        own = None
        try:
            own = another(self._connection)
            self._job = JobStatistics(own, self._job_id, whole, every_us=self._interval_us)
        except (self._bindings.error, InputError) as error:
            if own is not None:
                own.close()
            self._pending.append(_no_statistics(str(error)))

    @property
    def late(self) -> int:
        """Samples that came too late for their row, or belong to none."""
        return self._assembler.late

    def _connect(self, bindings: Bindings) -> None:
        made = connect(bindings, self._target, interval_us=self._interval_us, slow_us=self._slow_us)
        self._connection = made
        self._devices = [one.device for one in made.entities]
        positions = {one.key: position for position, one in enumerate(made.entities)}
        self._numbers = {one.number: positions[one.key] for one in made.entities if one.parent is None}
        self._gpus = {one.key: one.device.gpu for one in made.entities}
        self._reader = Reader(bindings, made.handle, positions)
        sensors = [sensor_of_model(one.row.get("model")) for one in self._devices]
        self.period_ms = max((s.period_ms for s in sensors if s is not None and s.period_ms), default=None)
        self._assembler = Assembler()
        for one, sensor in zip(made.entities, sensors, strict=True):
            watched = made.watched.get(one.key, set())
            given = np.array([m.dcgm is not None and m.dcgm.id in watched for m in METRICS])
            if one.parent is None:
                window = None if sensor is None else sensor.draw_ms
                expected = given & (_FAST | (self._slow_us <= self._interval_us))
                self._assembler.meet(self._interval_us, expected, window)
            else:  # an instance has slow metrics only
                self._assembler.meet(self._slow_us, given, None)
        self._next_us = 0
        self._chores_us = made.start_us + _CHORES_US
        self._xids = Xids()
        self._tell(made)

    def _tell(self, made: Connection) -> None:
        """What is said once of an engine: its version, and what it will not sample."""
        version = made.bindings.engine_version(made.handle) or made.bindings.version()
        if version != self._version:
            self._version = version
            where = "within this process" if made.embedded else f"at {made.where}"
            detail = (
                f"the DCGM engine {where} is version {version or 'unknown'}, with bindings in {made.bindings.where}"
            )
            self._pending.append(Event(EventKind.SOURCE_VERSION, None, detail, version=version))
        if made.refused != self._refused:
            self._refused = made.refused
            everyone = {one.key for one in made.entities if one.parent is None}
            for refusal in made.refused:
                self._pending += _refusal_events(refusal, everyone)

    # -- reading ------------------------------------------------------------------------------------------

    def poll(self) -> tuple[Readings, list[Event]]:
        """What the engine sampled since the last poll; see `Stream.poll`."""
        made = self._connection
        if made is None:
            raise InputError("the connection to the DCGM engine is closed")
        try:
            return self._poll(made)
        except made.bindings.error as error:
            raise InputError(sentence(made.bindings, error, made.where)) from error

    def _poll(self, made: Connection) -> tuple[Readings, list[Event]]:
        samples, later = made.read(self._reader, self._overlap_us)
        if later < self._next_us - AHEAD_US:  # its clock was set back
            self._assembler.forget_times()
            self._held = HeldDown()
            made.start_us = self._chores_us = later
        self._next_us = later
        of_xid = samples.row == OF_XID
        events, self._pending = self._pending, []
        if of_xid.any():
            events += self._xids.events(samples.pick(of_xid), self._devices)
            samples = samples.pick(~of_xid)
        readings = self._assembler.rows(samples, later)
        events += self._held.events(readings, self._devices)
        try:
            if self._assembler.silent:
                self._mark_lost(made, readings)
            if later >= self._chores_us:
                self._chores_us = later + _CHORES_US
                readings = self._look(made, readings, events)
        except made.bindings.error as error:  # what was read is kept; where the engine is gone, the next poll says so
            log.debug("the engine refuses: %s", error)
        return readings, events

    def _mark_lost(self, made: Connection, readings: Readings) -> None:
        """Say of the GPUs that turned silent whether the engine has lost them."""
        lost = {self._numbers[number] for number in lost_gpus(made.bindings, made.handle) & self._numbers.keys()}
        lost |= {at for at, device in enumerate(self._devices) if device.parent in lost}
        for device in lost.intersection(self._assembler.silent):
            watched = made.watched.get(made.entities[device].key, set())
            rows = [row for row, m in enumerate(METRICS) if m.dcgm is not None and m.dcgm.id in watched]
            last = int(np.flatnonzero(readings.device == device)[-1])
            readings.status[rows, last] = Status.LOST

    # -- now and then -------------------------------------------------------------------------------------

    def _look(self, made: Connection, readings: Readings, events: list[Event]) -> Readings:
        """Look at the engine's health checks, and at which GPUs and instances there are. Positions may change."""
        events += self._health.check(made, self._gpus)
        if not self._changed(made):
            return readings
        before = [device.gpu for device in self._devices]
        made.close()
        self._connection = None
        try:
            self._connect(made.bindings)
        except InputError:  # what was read is kept; the next poll says that the engine is gone
            return readings
        place = {device.gpu: position for position, device in enumerate(self._devices)}
        now = np.array([place.get(gpu, -1) for gpu in before], np.intp)[readings.device]
        there = now >= 0
        return Readings(now[there], readings.ts[there], readings.values[:, there], readings.status[:, there])

    def _changed(self, made: Connection) -> bool:
        """Whether there are other GPUs or instances than those that are watched. A lost GPU stays watched."""
        known = {one.key: one.device.gpu for one in made.entities}
        numbers = lost_gpus(made.bindings, made.handle)
        lost = {one.key for one in made.entities if one.parent is None and one.number in numbers}
        gone = {one.key for one in made.entities if one.key in lost or one.parent in lost}
        now = {one.key: one.device.gpu for one in find_entities(made.bindings, made.handle)}
        return now != {key: gpu for key, gpu in known.items() if key not in gone or key in now}


def _no_statistics(reason: str) -> Event:
    return Event(EventKind.NOT_SUPPORTED, None, f"the engine gives no statistics of the job: {reason}")


def _refusal_events(refusal: Refusal, everyone: set[int]) -> list[Event]:
    """What the engine will not sample, in sentences: of profiling fields one, of others one for each."""
    denied = refusal.code in (NO_PERMISSION, REQUIRES_ROOT)
    kind = EventKind.NOT_PERMITTED if denied else EventKind.NOT_SUPPORTED
    of_all = everyone <= {one.key for one in refusal.entities}
    gpus = [None] if of_all else [one.device.gpu for one in refusal.entities]
    profiling = [number for number in refusal.numbers if number in _PROFILING]
    told: list[tuple[str | None, str]] = []
    if profiling:
        fields = ", ".join(map(str, profiling))
        told.append(
            (
                None,
                f"the engine {'may not' if denied else 'cannot'} read the profiling fields {fields}: {refusal.way_out}",
            )
        )
    for number in refusal.numbers:
        if number not in profiling:
            metric = _FIELD.get(number)
            what = f"field {number} ({metric or 'XID errors'})"
            told.append((metric, f"the engine does not give {what}: DCGM's code {refusal.code}"))
    return [Event(kind, gpu, detail, metric=metric) for gpu in gpus for metric, detail in told]
