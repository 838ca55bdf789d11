"""The backend `dcgm`: the latest values of what an engine of NVIDIA's DCGM measures of its GPUs.

The engine asks the driver at the collector's interval; each tick takes the latest value of each field. Samples between
two ticks are dropped. Every value has the engine's stamp: that of the energy counter is the time of the reading.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...errors import InputError
from ...store.events import Event
from ...store.metrics import BOARD_POWER, FAST, METRICS, ROW
from ...store.power_sensors import PowerSensor, sensor_of_model
from ...store.vocabulary import EventKind
from ..backend import Backend, Device, Reading, Status
from ..kernel_log import xid_event
from .bindings import BLANK, BLANK_DOUBLE, BLANK_WORD, StatusCode, code_of, find_bindings, text_of
from .connection import (
    FAST_FIELDS,
    FIELDS,
    GPU,
    PROFILING,
    SLOW_FIELDS,
    XID,
    EngineConnection,
    Entity,
    Value,
    connect,
    find_entities,
    is_denied,
    pace_us,
    sentence,
    way_out,
)

_HEALTH_S = 10.0
_STALL_S = 10.0  # an engine that has measured nothing for so long, and for several intervals, does not work
_OLD_US = 2_000_000  # a value that is older, and older than several intervals, is none
_LATE_US = 10_000_000  # so late may an XID come
_INTERVALS = 3
_WELL = 0
_GRAVE = {_WELL: "well again", 10: "a warning", 20: "a failure"}
_ENERGY, _AGE, _WINDOW = ROW["energy_mj"], ROW["power_age_us"], ROW["power_window_ms"]
_INSTANT, _POWER = (ROW[name] for name in BOARD_POWER)
_UNREAD = bytes([Status.UNREAD]) * len(METRICS)
_COUNTERS = {number for number, row in FIELDS.items() if METRICS[row].kind == "counter"}
_SCALES = {m.dcgm.id: m.dcgm.scale for m in METRICS if m.dcgm is not None}
_DOUBLE, _WHOLE_TYPES = ord("d"), (ord("i"), ord("t"))
_WHOLE, _REAL = struct.Struct("<q"), struct.Struct("<d")
_WIDE = 2**62  # no metric comes near it
# What a blank says by its distance from the first one; the first itself is: nothing measured yet.
_BLANKS = (Status.UNREAD, Status.UNSUPPORTED, Status.UNSUPPORTED, Status.DENIED)
_CODES = {
    StatusCode.NOT_SUPPORTED: Status.UNSUPPORTED,
    StatusCode.NO_DATA: Status.UNREAD,
    StatusCode.STALE: Status.UNREAD,
    StatusCode.NOT_WATCHED: Status.UNREAD,
    StatusCode.NO_PERMISSION: Status.DENIED,
    StatusCode.LOST: Status.LOST,
    StatusCode.RESET_REQUIRED: Status.NEEDS_RESET,
}


def decode(value: Value) -> tuple[int, Status]:
    """A value of DCGM in the unit of its metric, and what became of it; the number counts only where that is OK."""
    if value.status:
        return 0, _CODES.get(value.status, Status.FAILED)
    number: float = value.bits
    if value.type == _DOUBLE:
        (number,) = _REAL.unpack(_WHOLE.pack(value.bits))
        if not math.isfinite(number):
            return 0, Status.FAILED
        first = BLANK_DOUBLE
    elif value.type in _WHOLE_TYPES:
        # Only a counter can come to the blank of 32 bits.
        narrow = BLANK_WORD <= number <= BLANK_WORD + 0xF and value.number not in _COUNTERS
        first = BLANK_WORD if narrow else BLANK
    else:
        return 0, Status.UNSUPPORTED
    if number >= first:
        return 0, _BLANKS[min(int(number - first), 3)]
    number = round(number * _SCALES[value.number])
    return (number, Status.OK) if abs(number) < _WIDE else (0, Status.FAILED)


@dataclass
class _DeviceState:
    entity: Entity
    sensor: PowerSensor | None = None
    refused: dict[int, Status] = field(default_factory=dict)  # by row of METRICS
    ts_us: int = 0  # of its last reading
    marks: dict[int, int] = field(default_factory=dict)  # stamps in it, by row: of energy and power


class Dcgm(Backend):
    """An engine of DCGM. `host` is HOST:PORT, `socket` a path; with neither, this node's or one within this process.

    Times are in s. Raises InputError where the arguments cannot be.
    """

    name = "dcgm"
    one_by_one = False

    def __init__(
        self, *, host: str | None = None, socket: str | None = None, interval_s: float = 1.0, slow_s: float = 10.0
    ) -> None:
        if host is not None and socket is not None:
            raise InputError("give host or socket, not both: an engine is reached by one of them")
        self._host, self._socket = host, socket
        self._interval_us, self._slow_us = round(interval_s * 1e6), round(max(slow_s, interval_s) * 1e6)
        self._connection: EngineConnection | None = None
        self._states: dict[str, _DeviceState] = {}
        self._uuids: dict[tuple[int, int], str] = {}  # of every entity that is watched, also of lost GPUs
        self._pending: list[Event] = []
        self._version: str | None = None
        self._refused: dict[tuple[int, int], list[Entity]] = {}
        self._xids_us = self._began_us = 0  # by the engine: since when to look for XIDs, and those that are ours
        self._xids: set[tuple[int, int, int]] = set()
        self._ill: dict[tuple[int, int, int, int], tuple[int, str | None]] = {}  # entity, system, error -> how grave
        self._health_at = self._fresh_at = 0.0  # by the steady clock
        self._limits_us = {
            FIELDS[number]: max(_OLD_US, _INTERVALS * pace_us(number, self._interval_us, self._slow_us))
            for number in FIELDS
        }

    # -- the devices --------------------------------------------------------------------------------------

    def devices(self) -> list[Device]:
        if self._connection is None:
            self._connect()
        else:
            with self._sentences(self._connection) as connection:
                slots = {gpu: state.entity.device.row["slot"] for gpu, state in self._states.items()}
                entities = find_entities(connection.bindings, connection.handle, slots)
            if all(self._uuids.get(entity.key) == entity.device.gpu for entity in entities):
                self._meet(connection, entities)
            else:  # other GPUs or instances than those that are watched
                self._leave()
                self._connect()
        return [state.entity.device for state in self._states.values()]

    def _connect(self) -> None:
        bindings = find_bindings()
        bindings.load()
        connection = connect(bindings, self._host, self._socket, interval_us=self._interval_us, slow_us=self._slow_us)
        self._connection = connection
        with self._sentences(connection):
            bindings.agent.dcgmUpdateAllFields(connection.handle, 1)  # the first values are there for the first tick
        self._uuids = {entity.key: entity.device.gpu for entity in connection.entities}
        if not self._began_us:  # a later connection tells what came while there was none
            self._began_us = self._xids_us = connection.start_us
        self._health_at = self._fresh_at = time.monotonic()
        self._states.clear()
        self._meet(connection, connection.entities)
        self._announce(connection)

    def _meet(self, connection: EngineConnection, entities: Sequence[Entity]) -> None:
        before, self._states = self._states, {}
        for entity in entities:
            state = before.get(entity.device.gpu) or _DeviceState(entity)
            state.entity, state.sensor = entity, sensor_of_model(entity.device.row.get("model"))
            self._states[entity.device.gpu] = state
            state.refused = {
                FIELDS[number]: Status.DENIED if is_denied(code) else Status.UNSUPPORTED
                for (code, number), refused in connection.refused.items()
                if number in FIELDS and number not in PROFILING and entity.key in {member.key for member in refused}
            }
        sensors = [state.sensor for state in self._states.values() if state.sensor is not None]
        self.period_ms = max((sensor.period_ms for sensor in sensors if sensor.period_ms), default=None)

    def _announce(self, connection: EngineConnection) -> None:
        """Tell once of an engine's version, and of profiling fields and XIDs that it does not give."""
        version = connection.bindings.engine_version(connection.handle) or connection.bindings.version()
        if version != self._version:
            self._version = version
            place = "within this process" if connection.embedded else f"at {connection.address}"
            folder = connection.bindings.folder
            detail = f"the DCGM engine {place} is version {version or 'unknown'}, with bindings in {folder}"
            self._pending.append(Event(EventKind.SOURCE_VERSION, None, detail, version=version))
        if connection.refused != self._refused:
            self._refused = connection.refused
            self._pending += _refusals(connection)

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:
        if self._connection is None:
            raise InputError("the connection to the DCGM engine is closed")
        with self._sentences(self._connection) as connection:
            events, self._pending = self._pending, []
            yield from events
            yield from self._read_xids(connection)
            now = time.monotonic()
            for state, latest in self._latest(connection, gpus, slow=slow):
                reading = self._reading(state, latest, slow=slow)
                if reading is not None:
                    self._fresh_at = now
                    yield reading
            if now >= self._health_at:
                self._health_at = now + _HEALTH_S
                yield from self._check_health(connection)
            if gpus and now - self._fresh_at > max(_STALL_S, 5e-6 * self._interval_us):
                self._leave()
                raise InputError(
                    f"the DCGM engine at {connection.address} has measured nothing for {now - self._fresh_at:.0f} s: "
                    "see its log, and restart it (systemctl restart nvidia-dcgm)"
                )

    def _latest(
        self, connection: EngineConnection, gpus: Sequence[str], *, slow: bool
    ) -> list[tuple[_DeviceState, dict[int, Value]]]:
        """The latest values of these devices, by row of METRICS; those that were measured before we came are left
        out."""
        states = [self._states[gpu] for gpu in gpus if gpu in self._states]
        latest: dict[tuple[int, int], dict[int, Value]] = {state.entity.key: {} for state in states}
        entities = [state.entity for state in states]
        values = connection.latest([entity for entity in entities if entity.parent is None], FAST_FIELDS)
        slow_values = connection.latest(entities, SLOW_FIELDS) if slow else ()
        for value in itertools.chain(values, slow_values):
            if value.ts_us > connection.start_us:
                latest[value.entity][FIELDS[value.number]] = value
        return [(state, latest[state.entity.key]) for state in states]

    def _reading(self, state: _DeviceState, latest: dict[int, Value], *, slow: bool) -> Reading | None:
        """A reading of the values of a device; None where nothing is newer than in the one before."""
        numbers, statuses = [0] * len(METRICS), bytearray(_UNREAD)
        newest = max((value.ts_us for value in latest.values()), default=0)
        for row, value in latest.items():
            if value.ts_us >= newest - self._limits_us[row]:
                numbers[row], statuses[row] = decode(value)
        stamps = {row: latest[row].ts_us for row in (_ENERGY, _POWER, _INSTANT) if statuses[row] == Status.OK}
        if Status.OK in statuses:
            ts_us = self._stamp(state, stamps, newest)
        else:  # it says why it gives nothing, or nothing was measured yet
            ts_us = newest if statuses != _UNREAD and newest > state.ts_us else None
        if ts_us is None:
            return None
        if _ENERGY not in stamps and statuses[_ENERGY] == Status.OK:
            statuses[_ENERGY] = Status.UNREAD  # it was given, with its own time
        state.ts_us, state.marks = ts_us, stamps
        if state.sensor is not None and state.sensor.draw_ms and _POWER in stamps:
            numbers[_WINDOW], statuses[_WINDOW] = state.sensor.draw_ms, Status.OK
        for row in (_POWER, _INSTANT):  # the age is that of the instantaneous reading, where there is one
            if row in stamps:
                numbers[_AGE], statuses[_AGE] = ts_us - stamps[row], Status.OK
        for row, status in state.refused.items():
            if slow or row in FAST:
                statuses[row] = status
        if not slow:
            numbers = [numbers[row] for row in FAST]
        return Reading(state.entity.device.gpu, numbers, bytes(statuses), ts_us * 1000)

    def _stamp(self, state: _DeviceState, stamps: dict[int, int], newest: int) -> int | None:
        """The time of a reading: that of a new energy value, else of a new power value, us; None where neither is new.

        An energy value that is not new is taken out of `stamps`. A device that has neither is as new as the newest of
        its values.
        """
        energy_us, power_us = stamps.get(_ENERGY), stamps.get(_POWER)
        if energy_us is not None:
            if energy_us > max(state.marks.get(_ENERGY, 0), state.ts_us):
                return energy_us
            del stamps[_ENERGY]
        elif power_us is None:
            return newest if newest > state.ts_us else None
        if power_us is None or power_us <= state.marks.get(_POWER, 0):
            return None
        # Less than half an interval after the reading before, it is of the same cycle of the engine.
        return power_us if power_us - state.ts_us > self._interval_us // 2 else None

    def _read_xids(self, connection: EngineConnection) -> Iterator[Event]:
        """XIDs that were not told yet: reads overlap, as one may come late."""
        xids, now_us = connection.xids(self._xids_us)
        if now_us is None:
            return
        for number, ts_us, code in xids:
            if (number, ts_us, code) not in self._xids:
                yield xid_event(self._uuids.get((GPU, number)), code, ts_ns=ts_us * 1000)
        self._began_us = min(self._began_us, now_us)
        self._xids_us = max(now_us - _LATE_US, self._began_us)
        self._xids = {xid for xid in self._xids.union(xids) if xid[1] >= self._xids_us}

    @contextlib.contextmanager
    def _sentences(self, connection: EngineConnection) -> Iterator[EngineConnection]:
        """What DCGM refuses within is an InputError, and costs the connection."""
        try:
            yield connection
        except connection.bindings.error as error:
            self._leave()
            raise InputError(sentence(connection.bindings, error, connection.address)) from error

    def _check_health(self, connection: EngineConnection) -> Iterator[Event]:
        """What the engine's own health checks find: an event when it is first found, and one when it is over."""
        if not connection.checks_health:
            return
        try:
            response = connection.bindings.agent.dcgmHealthCheck(connection.handle, connection.gpus)
        except connection.bindings.error as error:
            if code_of(error) == StatusCode.GONE:
                raise
            connection.checks_health = False
            yield Event(EventKind.NOT_SUPPORTED, None, f"the engine's health checks do not work: {error}")
            return
        ill = {}
        for incident in response.incidents[: response.incidentCount]:
            entity, finding = incident.entityInfo, incident.error
            key = (int(entity.entityGroupId), int(entity.entityId), int(incident.system), int(finding.code))
            ill[key] = int(incident.health), text_of(finding.msg)
        for key, (_, text) in {**self._ill, **ill}.items():
            health = ill.get(key, (_WELL, None))[0]
            if self._ill.get(key, (_WELL, None))[0] != health:
                detail = f"DCGM's health check, {_GRAVE.get(health, 'a finding')}: {text}"
                yield Event(EventKind.HEALTH, self._uuids.get(key[:2]), detail, code=key[3], value=health)
        self._ill = ill

    def close(self) -> list[Event]:
        """Leave the engine."""
        self._leave()
        return []

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _refusals(connection: EngineConnection) -> Iterator[Event]:
    """That the engine gives no profiling fields, in one event for each reason, and no XIDs."""
    gpus = sum(entity.parent is None for entity in connection.entities)
    for code, numbers, count in connection.refused_profiling():
        kind = EventKind.NOT_PERMITTED if is_denied(code) else EventKind.NOT_SUPPORTED
        fields, which = ", ".join(map(str, numbers)), "" if count == gpus else f" of {count} of {gpus} GPUs"
        cannot = "may not" if is_denied(code) else "cannot"
        yield Event(kind, None, f"the engine {cannot} read the profiling fields {fields}{which}: {way_out(code)}")
    if any(number == XID for _, number in connection.refused):
        yield Event(EventKind.NOT_SUPPORTED, None, "the engine tells no XID errors: there will be no such events")
