"""What happened to GPUs, by DCGM: XIDs, findings of its health checks, and times in which a clock was held down.

Each thing is one event: what is found again at every check is told when it is first found, and when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...store.events import Event
from ...store.metrics import METRICS
from ...store.vocabulary import EventKind
from ..backends import Status
from ..xids import xid_event
from .reaching import GONE, code_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backends import Device, Readings
    from .connection import Connection
    from .reading import Samples

_WELL = 0
_SYSTEMS = {
    0x1: "PCIe",
    0x2: "NVLink",
    0x4: "power management unit",
    0x8: "micro-controller",
    0x10: "memory",
    0x20: "SM",
    0x40: "InfoROM",
    0x80: "temperature",
    0x100: "power",
    0x200: "driver",
    0x400: "NVSwitch, not fatal",
    0x800: "NVSwitch, fatal",
}
_GRAVE = {10: "a warning", 20: "a failure"}
_QUIET_NS = 60_000_000_000  # shorter breaks belong to one time in which the clock was held down
_LONGEST_NS = 600_000_000_000  # one that goes on is told in parts
_HELD = [row for row, m in enumerate(METRICS) if m.unit == "ns" and m.kind == "counter"]


class Xids:
    """XIDs, each told once though reads overlap."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int, int], None] = {}

    def events(self, samples: Samples, devices: Sequence[Device]) -> list[Event]:
        """Those that samples of the field of XIDs tell for the first time."""
        found = []
        for device, ts, code, status in zip(
            samples.device.tolist(), samples.ts.tolist(), samples.value.tolist(), samples.status.tolist(), strict=True
        ):
            key = (device, ts, code)
            if status != Status.OK or code <= 0 or key in self._told:
                continue
            self._told[key] = None
            found.append(xid_event(devices[device].gpu, code, ts_ns=ts * 1000))
        while len(self._told) > 4096:
            del self._told[next(iter(self._told))]
        return found


class Health:
    """DCGM's own health checks, of the GPUs that we watch."""

    def __init__(self) -> None:
        self._ill: dict[tuple[int, int, int, int], tuple[int, str]] = {}  # who and what -> how grave, and the sentence

    def check(self, connection: Connection, devices: dict[int, str]) -> list[Event]:
        """What was found now, and what is over; `devices` has the UUID of each entity. Raises DCGM's error."""
        if not connection.checks_health:
            return []
        try:
            told = connection.bindings.agent.dcgmHealthCheck(connection.handle, connection.group)
        except connection.bindings.error as error:
            if code_of(error) == GONE:
                raise
            connection.checks_health = False
            return [Event(EventKind.NOT_SUPPORTED, None, f"the engine's health checks do not work: {error}")]
        now: dict[tuple[int, int, int, int], tuple[int, str]] = {}
        for at in range(min(told.incidentCount, len(told.incidents))):
            one = told.incidents[at]
            who = (int(one.entityInfo.entityGroupId), int(one.entityInfo.entityId))
            text = one.error.msg
            said = " ".join((text.decode(errors="replace") if isinstance(text, bytes) else text).split())
            now[(*who, int(one.system), int(one.error.code))] = (int(one.health), said)
        found = []
        for key, (health, said) in now.items():
            if self._ill.get(key, (None, ""))[0] != health:
                found.append(_incident(key, health, f"{_GRAVE.get(health, 'a finding')}: {said}", devices))
        found += [_incident(key, _WELL, "well again", devices) for key in self._ill if key not in now]
        self._ill = now
        return found


def _incident(key: tuple[int, int, int, int], health: int, what: str, devices: dict[int, str]) -> Event:
    group, number, system, code = key
    gpu = devices.get(group << 32 | number)
    detail = f"DCGM's health check of {_SYSTEMS.get(system, f'system {system}')}, {what}"
    return Event(EventKind.HEALTH, gpu, detail, code=code, value=health)


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

    def events(self, readings: Readings, devices: Sequence[Device]) -> list[Event]:
        """Take in rows; returns the times that are over."""
        found: list[Event] = []
        for row in _HELD:
            there = np.flatnonzero(readings.status[row] == Status.OK)[::-1]  # the last first
            for device, at in zip(*np.unique(readings.device[there], return_index=True), strict=True):
                last = int(there[at])
                key = (devices[int(device)].gpu, row)
                found += self._note(key, int(readings.ts[last]), int(readings.values[row, last]))
        return found

    def _note(self, key: tuple[str, int], ts: int, value: int) -> list[Event]:
        before = self._before.get(key)
        self._before[key] = (ts, value)
        found = []
        span = self._spans.get(key)
        if before is not None and value > before[1]:
            if span is not None and before[0] - span.last_ns >= _QUIET_NS:
                found.append(self._over(key))
                span = None
            if span is None:
                span = self._spans[key] = _Span(before[0], ts, 0)
            span.last_ns = ts
            span.held_ns += value - before[1]
        if span is not None and (ts - span.last_ns >= _QUIET_NS or ts - span.began_ns >= _LONGEST_NS):
            found.append(self._over(key))
        return found

    def end(self) -> list[Event]:
        """Those of which nothing more will be known."""
        return [self._over(key) for key in list(self._spans)]

    def _over(self, key: tuple[str, int]) -> Event:
        span, metric = self._spans.pop(key), METRICS[key[1]]
        # The driver adds to the counter a little before or after the time of the sample.
        whole = max(span.last_ns - span.began_ns, span.held_ns) / 1e9
        detail = f"{metric.name}: the clock was held down for {span.held_ns / 1e9:.3f} s of {whole:.3f} s"
        return Event(
            EventKind.HELD_DOWN,
            key[0],
            detail,
            ts_ns=span.began_ns,
            metric=metric.name,
            value=whole,
            duration_ns=span.held_ns,
        )
