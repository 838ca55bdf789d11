"""DCGM's own statistics of a job, as events at the end: one for each GPU.

They are sampled over a connection of their own: of one connection, an engine keeps the samples of a field for as long
as was asked for last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...store.events import Event
from ...store.vocabulary import EventKind
from .entities import GPU
from .reaching import DUPLICATE, GONE, code_of
from .reading import BLANK, BLANK_DOUBLE, BLANK_WORD, entity_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .connection import Connection
    from .entities import Entity

_EVERY_US, _KEEP_S = 10_000_000, 86_400.0
_begun: set[tuple[str, str]] = set()  # engines and jobs: what we began is still there after the connection broke


class JobStatistics:
    """The statistics of the job `name` in an engine; they begin now, unless somebody began them before."""

    def __init__(self, connection: Connection, name: str, gpus: Iterable[Entity], *, every_us: int) -> None:
        self._connection, self._name, self._own = connection, name, True
        self._key = connection.where, name
        agent, handle = connection.bindings.agent, connection.handle
        group = connection.make_group(gpus)
        every_us = max(every_us, _EVERY_US)
        agent.dcgmWatchJobFields(handle, group, every_us, _KEEP_S, round(_KEEP_S * 1e6 / every_us))
        try:
            agent.dcgmJobStartStats(handle, group, name)
            agent.dcgmUpdateAllFields(handle, 1)  # what grows is counted from the first samples on
        except connection.bindings.error as error:
            if code_of(error) != DUPLICATE:
                raise
            self._own = self._key in _begun
        if self._own:
            _begun.add(self._key)

    def end(self, gpus: dict[int, str]) -> list[Event]:
        """What it used; `gpus` has the UUID of each entity. Raises DCGM's error."""
        agent, handle = self._connection.bindings.agent, self._connection.handle
        try:
            agent.dcgmUpdateAllFields(handle, 1)
            if self._own:
                agent.dcgmJobStopStats(handle, self._name)
            told = agent.dcgmJobGetStats(handle, self._name)
            if self._own:
                agent.dcgmJobRemove(handle, self._name)
                _begun.discard(self._key)
        except self._connection.bindings.error as error:
            if code_of(error) == GONE:
                return []
            raise
        return [self._event(told.gpus[at], gpus) for at in range(min(told.numGpus, len(told.gpus)))]

    def close(self) -> None:
        """Leave the engine."""
        self._connection.close()

    def _event(self, used: Any, gpus: dict[int, str]) -> Event:
        energy, xids = _whole(used.energyConsumed), _whole(used.numXidCriticalErrors)
        began, ended = _whole(used.startTime), _whole(used.endTime)
        length_us = ended - began if began and ended and ended >= began else None
        parts = [
            _shown("", energy, 1e-3, "J"),
            _shown("mean power ", _real(used.powerUsage.average), 1, "W"),
            _shown("mean SM clock ", _whole(used.smClock.average), 1, "MHz"),
            _shown("held down by power for ", _whole(used.powerViolationTime), 1e-9, "s"),  # the header says us
            _shown("held down by temperature for ", _whole(used.thermalViolationTime), 1e-9, "s"),
            _shown("XIDs: ", xids, 1, ""),
            _shown("memory errors not corrected: ", _whole(used.eccDoubleBit), 1, ""),
        ]
        return Event(
            EventKind.JOB_STATISTICS,
            gpus.get(entity_key(GPU, int(used.gpuId))),
            f"DCGM's statistics of job {self._name}: {', '.join(parts)}",
            value=None if energy is None else energy / 1000,
            n=xids,
            duration_ns=None if length_us is None else length_us * 1000,
            job_id=self._name,
        )


def _whole(value: int) -> int | None:
    """A number, None where it is a blank of 32 or of 64 bits."""
    blank = value >= BLANK or BLANK_WORD <= value <= BLANK_WORD + 0xF
    return None if blank else int(value)


def _real(value: float) -> float | None:
    return float(value) if abs(value) < BLANK_DOUBLE else None


def _shown(what: str, value: float | None, scale: float, unit: str) -> str:
    return f"{what}n/a" if value is None else f"{what}{value * scale:.6g} {unit}".rstrip()
