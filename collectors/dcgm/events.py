"""What the engine says besides values: findings of its health checks, its statistics of a job, and times held down.

Each thing is one event: what is found again at every check is told when it is first found, and when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...store.events import Event
from ...store.metrics import METRICS
from ...store.vocabulary import EventKind
from ..backend import Status
from .bindings import BLANK_DOUBLE, StatusCode, code_of, scaled, text_of
from .connection import EngineConnection
from .entities import GPU, Entity

_WELL = 0
_GRAVE = {_WELL: "well again", 10: "a warning", 20: "a failure"}
_QUIET_NS = 60_000_000_000  # shorter breaks belong to one time in which the clock was held down
_LONGEST_NS = 600_000_000_000  # one that goes on is told in parts
_HELD = [row for row, m in enumerate(METRICS) if m.unit == "ns" and m.kind == "counter" and m.dcgm is not None]
_JOB_EVERY_US, _JOB_KEEP_S = 10_000_000, 86_400.0


class Health:
    """DCGM's own health checks, of the GPUs that we watch."""

    def __init__(self) -> None:
        self._ill: dict[tuple[int, int, int, int], tuple[int, str | None]] = {}  # entity, system, error -> how grave

    def check(self, connection: EngineConnection, uuids: Mapping[tuple[int, int], str]) -> list[Event]:
        """What was found now, and what is over; `uuids` has that of each entity. Raises DCGM's error."""
        if not connection.checks_health:
            return []
        try:
            response = connection.bindings.agent.dcgmHealthCheck(connection.handle, connection.gpus)
        except connection.bindings.error as error:
            if code_of(error) == StatusCode.GONE:
                raise
            connection.checks_health = False
            return [Event(EventKind.NOT_SUPPORTED, None, f"the engine's health checks do not work: {error}")]
        ill = {}
        for incident in response.incidents[: response.incidentCount]:
            entity, finding = incident.entityInfo, incident.error
            key = (int(entity.entityGroupId), int(entity.entityId), int(incident.system), int(finding.code))
            ill[key] = int(incident.health), text_of(finding.msg)
        events = []
        for key, (_, text) in {**self._ill, **ill}.items():
            health = ill.get(key, (_WELL, None))[0]
            if self._ill.get(key, (_WELL, None))[0] != health:
                detail = f"DCGM's health check, {_GRAVE.get(health, 'a finding')}: {text}"
                events.append(Event(EventKind.HEALTH, uuids.get(key[:2]), detail, code=key[3], value=health))
        self._ill = ill
        return events


@dataclass
class _Span:
    """A time in which a counter grew: from `began_ns`, by `held_ns`, until `last_ns`."""

    began_ns: int
    last_ns: int
    held_ns: int


class HeldDown:
    """Times in which a clock was held down, from the driver's counters: an event for each when it is over."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, int], tuple[int, int]] = {}  # GPU and metric -> stamp and counter
        self._spans: dict[tuple[str, int], _Span] = {}

    def events(self, gpu: str, ts_ns: int, values: Sequence[int], statuses: bytes | bytearray) -> Iterator[Event]:
        """Take in values of a GPU and their statuses, in the order of METRICS; gives the times that are over."""
        for row in _HELD:
            if statuses[row] != Status.OK:
                continue
            key = gpu, row
            before_ns, counter = self._before.get(key, (ts_ns, values[row]))
            self._before[key] = ts_ns, values[row]
            span = self._spans.get(key)
            if span and (before_ns - span.last_ns >= _QUIET_NS or before_ns - span.began_ns >= _LONGEST_NS):
                yield self._over(key)
            if values[row] > counter:
                span = self._spans.setdefault(key, _Span(before_ns, ts_ns, 0))
                span.last_ns = ts_ns
                span.held_ns += values[row] - counter

    def end(self) -> list[Event]:
        """Those of which nothing more will be known."""
        return [self._over(key) for key in list(self._spans)]

    def _over(self, key: tuple[str, int]) -> Event:
        span, metric = self._spans.pop(key), METRICS[key[1]].name
        # The driver adds to the counter a little before or after the time of the sample.
        length_s = max(span.last_ns - span.began_ns, span.held_ns) / 1e9
        detail = f"{metric}: the clock was held down for {span.held_ns / 1e9:.3f} s of {length_s:.3f} s"
        duration_ns = span.held_ns
        return Event(
            EventKind.HELD_DOWN, key[0], detail, span.began_ns, metric=metric, value=length_s, duration_ns=duration_ns
        )


class JobStatistics:
    """DCGM's own statistics of the job `name`; they begin now, unless somebody began them before.

    They are sampled over a connection of their own: of one connection, an engine keeps the samples of a field for as
    long as was asked for last.
    """

    # What we began is still there after a connection broke. By engine and job, who ends it: the newest of several.
    _begun: ClassVar[dict[tuple[str, str], JobStatistics]] = {}

    def __init__(self, connection: EngineConnection, name: str, gpus: Iterable[Entity], *, every_us: int) -> None:
        self._connection, self._name = connection, name
        self._key = connection.address, name
        agent, handle = connection.bindings.agent, connection.handle
        group = connection.make_group(gpus)
        every_us = max(every_us, _JOB_EVERY_US)
        agent.dcgmWatchJobFields(handle, group, every_us, _JOB_KEEP_S, round(_JOB_KEEP_S * 1e6 / every_us))
        try:
            agent.dcgmJobStartStats(handle, group, name)
            agent.dcgmUpdateAllFields(handle, 1)  # what grows is counted from the first samples on
        except connection.bindings.error as error:
            if code_of(error) != StatusCode.DUPLICATE:
                raise
            if self._key not in self._begun:
                return
        self._begun[self._key] = self

    def end(self, uuids: Mapping[tuple[int, int], str]) -> list[Event]:
        """What it used; `uuids` has that of each entity. None where the engine is gone. Raises DCGM's error."""
        agent, handle = self._connection.bindings.agent, self._connection.handle
        newest = self._begun.get(self._key)
        if newest not in (None, self):
            return []
        try:
            agent.dcgmUpdateAllFields(handle, 1)
            if newest is self:
                agent.dcgmJobStopStats(handle, self._name)
            statistics = agent.dcgmJobGetStats(handle, self._name)
            if newest is self:
                agent.dcgmJobRemove(handle, self._name)
                del self._begun[self._key]
        except self._connection.bindings.error as error:
            if code_of(error) == StatusCode.GONE:
                return []
            raise
        return [self._event(used, uuids) for used in statistics.gpus[: statistics.numGpus]]

    def close(self) -> None:
        """Leave the engine."""
        self._connection.close()

    def _event(self, used: Any, uuids: Mapping[tuple[int, int], str]) -> Event:
        energy, xids = scaled(used.energyConsumed), scaled(used.numXidCriticalErrors)
        began, ended = scaled(used.startTime), scaled(used.endTime)
        power = used.powerUsage.average
        parts = [
            _quantity("", energy, 1e-3, "J"),
            _quantity("mean power ", float(power) if abs(power) < BLANK_DOUBLE else None, 1, "W"),
            _quantity("mean SM clock ", scaled(used.smClock.average), 1, "MHz"),
            _quantity("held down by power for ", scaled(used.powerViolationTime), 1e-9, "s"),  # the header says us
            _quantity("held down by temperature for ", scaled(used.thermalViolationTime), 1e-9, "s"),
            _quantity("XIDs: ", xids, 1, ""),
            _quantity("memory errors not corrected: ", scaled(used.eccDoubleBit), 1, ""),
        ]
        return Event(
            EventKind.JOB_STATISTICS,
            uuids.get((GPU, int(used.gpuId))),
            f"DCGM's statistics of job {self._name}: {', '.join(parts)}",
            value=None if energy is None else energy / 1000,
            n=xids,
            duration_ns=(ended - began) * 1000 if began and ended and ended >= began else None,
            job_id=self._name,
        )


def _quantity(label: str, number: float | None, scale: float, unit: str) -> str:
    return f"{label}n/a" if number is None else f"{label}{number * scale:.6g} {unit}".rstrip()
