"""A connection to an engine of DCGM: its GPUs and MIG instances, what it is asked to watch, and its latest values.

A handle, its groups and its watches die with the engine, and nothing of them can be used with another handle. So
`connect` makes a connection from nothing, as often as needed. Nothing of it outlives us, and nothing that other clients
made is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import struct
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InputError
from ...store.metrics import METRICS
from ..backend import Device
from .bindings import BLANK_WORD, Bindings, StatusCode, code_of, scaled, text_of

GPU, INSTANCE = 1, 4  # kinds of entities
PORT = 5555
LOCAL, LOCAL_SOCKET = f"127.0.0.1:{PORT}", "/tmp/nv-hostengine"  # noqa: S108 - where the engine puts it
XID = 230
HEALTH_WATCHES = 0xFFFFFFFF & ~0x100  # not of power: that warns at the power limit, which is normal under load
_PATIENCE_MS = 2000
_EMBEDDED = 1  # an engine that samples by itself
_EMPTY = 1  # the kind of a group
_PROFILING_US = 100_000  # profiling values that are asked for more often are wrong
_SLOW_US = 1_000_000  # so old may a slow value be when it is read
_XIDS_S, _XIDS = 3600.0, 10_000  # how long, and how many, the engine keeps: a read may be late
_AT_ONCE = 256  # values: some engines of DCGM 3 answer with 16 KiB at most
_NAME, _UUID, _LIVE = 50, 54, 1
_PROFILE = re.compile(r"\d+[cg]\.\S+")
_VALUE = struct.Struct("<4xIIHhi4xqq")  # the head of DCGM's c_dcgmFieldValue_v2; bindings read it member by member

_BE_ROOT = "run nv-hostengine as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
_WAYS_OUT = {
    StatusCode.NO_PERMISSION: _BE_ROOT,
    StatusCode.REQUIRES_ROOT: _BE_ROOT,
    StatusCode.NO_MODULE: "the engine has no profiling module for these GPUs; on those of data centres, install the "
    "package datacenter-gpu-manager-4-proprietary",
    StatusCode.NO_PROFILING: "these GPUs have no profiling fields",
    StatusCode.IN_USE: "another tool, as Nsight, has the counters: end it, or ask for dcgmi profile --resume",
}
# Where the first field is refused so, all are.
_HOPELESS = {StatusCode.NO_MODULE, StatusCode.NO_PROFILING, StatusCode.NO_PERMISSION, StatusCode.REQUIRES_ROOT}

FIELDS = {m.dcgm.id: row for row, m in enumerate(METRICS) if m.dcgm is not None}
"""The row of METRICS of each field that is read, by its number."""
PROFILING = tuple(m.dcgm.id for m in METRICS if m.dcgm is not None and m.dcgm.profiling)
FAST_FIELDS = tuple(number for number in FIELDS if METRICS[FIELDS[number]].tier == "fast" and number not in PROFILING)
SLOW_FIELDS = tuple(number for number in FIELDS if number not in FAST_FIELDS)
# Fields that a part of a GPU has of its own. Its power, clocks and temperature would be those of the whole GPU.
_OF_INSTANCES = {"memory_used", "memory_free"}


def engine_address(host: str) -> str:
    """HOST:PORT of what a user wrote for an engine. Raises InputError where it is none."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, str(PORT)
    if not name or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"{host!r} is not the address of an engine: write HOST or HOST:PORT, as {LOCAL}")
    return f"{name}:{int(port)}"


def pace_us(number: int, interval_us: int, slow_us: int) -> int:
    """How often the engine measures a field, us; `slow_us` is the time between two readings of slow fields.

    Profiling values are means since the one before, so they are measured as often as they are read.
    """
    if number in PROFILING:
        return max(slow_us, _PROFILING_US)
    return min(slow_us, max(interval_us, _SLOW_US)) if number in SLOW_FIELDS else interval_us


def is_denied(code: int) -> bool:
    """Whether a field is refused with this code because of who asks; else the engine cannot read it."""
    return code in (StatusCode.NO_PERMISSION, StatusCode.REQUIRES_ROOT)


def way_out(code: int) -> str:
    """Why an engine refuses profiling fields with this code, and what to do."""
    return _WAYS_OUT.get(code, f"DCGM's code {code}")


class Value(NamedTuple):
    """A field's value of an entity: `type` is "d" (8 bytes in `bits` are a double), "i" or "t"; `ts_us` the stamp."""

    entity: tuple[int, int]
    number: int
    type: int
    status: int
    ts_us: int
    bits: int


@dataclass(frozen=True)
class Entity:
    """A GPU or MIG instance: its kind and number in the engine, and its row of `gpus`."""

    key: tuple[int, int]
    device: Device
    parent: tuple[int, int] | None = None
    """The key of its GPU, of an instance."""


@dataclass
class EngineConnection:
    """An open connection to the engine at `address`, which may run within this process (`embedded`)."""

    bindings: Bindings
    handle: Any
    address: str
    embedded: bool
    entities: list[Entity] = field(default_factory=list)
    gpus: Any = None
    """The engine's group of all whole GPUs."""
    checks_health: bool = False
    start_us: int = 0
    """The engine's time when it began to measure for us; 0 where it does not say."""
    refused: dict[tuple[int, int], list[Entity]] = field(default_factory=dict)
    """What the engine does not watch: by status code and field, the entities."""
    watched: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """The fields of each entity, by its key, that the engine watches for us."""
    _xids: tuple[Any, Any] | None = None
    """The group of GPUs, and that of fields, of which the engine keeps XIDs."""

    def latest(self, entities: Iterable[Entity], numbers: Sequence[int]) -> Iterator[Value]:
        """The latest value of each field of each entity, as DCGM has it. Raises DCGM's error."""
        pairs = [self.bindings.structs.c_dcgmGroupEntityPair_t(*entity.key) for entity in entities]
        fields = [number for number in numbers if any(number in watched for watched in self.watched.values())]
        size = ctypes.sizeof(self.bindings.structs.c_dcgmFieldValue_v2)
        together = max(1, _AT_ONCE // max(1, len(fields)))
        for first in range(0, len(pairs) if fields else 0, together):
            values = self.bindings.agent.dcgmEntitiesGetLatestValues(
                self.handle, pairs[first : first + together], fields, 0
            )
            for offset in range(0, len(values) * size, size):
                kind, number, *value = _VALUE.unpack_from(values, offset)
                if kind:  # else the engine gave fewer
                    yield Value((kind, number), *value)

    def xids(self, since_us: int) -> tuple[list[tuple[int, int, int]], int | None]:
        """XIDs from `since_us` on, as number of the GPU, time in us and code, and the engine's time, us.

        That time is None where the engine does not watch XIDs. Raises DCGM's error.
        """
        if self._xids is None:
            return [], None
        xids: list[tuple[int, int, int]] = []

        def keep(_kind: int, number: int, values: Any, count: int, _: object) -> int:
            good = (value for value in values[:count] if value.ts and not value.status)
            xids.extend((number, value.ts, value.value.i64) for value in good if 0 < value.value.i64 < BLANK_WORD)
            return 0

        agent = self.bindings.agent
        callback = agent.dcgmFieldValueEntityEnumeration_f(keep)
        return xids, int(agent.dcgmGetValuesSince_v2(self.handle, *self._xids, since_us, callback, None))

    def refused_profiling(self) -> Iterator[tuple[int, list[int], int]]:
        """Profiling fields that the engine does not measure: a status code, the fields, and on how many whole GPUs."""
        refusals: dict[tuple[int, int], list[int]] = {}
        for (code, number), entities in self.refused.items():
            gpus = sum(entity.parent is None for entity in entities)
            if number in PROFILING and gpus:
                refusals.setdefault((code, gpus), []).append(number)
        for (code, gpus), numbers in refusals.items():
            yield code, numbers, gpus

    def make_group(self, entities: Iterable[Entity]) -> Any:
        """A group of our own in the engine."""
        agent = self.bindings.agent
        group = agent.dcgmGroupCreate(self.handle, _EMPTY, _new_name())
        for entity in entities:
            agent.dcgmGroupAddEntity(self.handle, group, *entity.key)
        return group

    def watch_all(self, interval_us: int, slow_us: int) -> None:
        """Have the engine measure all that is read of all entities, as often as it is read."""
        gpus = [entity for entity in self.entities if entity.parent is None]
        instances = [entity for entity in self.entities if entity.parent is not None]
        if not gpus:
            raise InputError(f"the DCGM engine at {self.address} shows no GPU")
        self.gpus = self.make_group(gpus)
        self._watch(gpus, [XID], interval_us)
        _, now_us = self.xids(time.time_ns() // 1000)
        self.start_us = now_us or 0
        self._begin_health()  # before the fields: it watches some of them at a slow pace
        slow = [number for number in SLOW_FIELDS if number not in PROFILING]
        memory = [number for number in slow if METRICS[FIELDS[number]].name in _OF_INSTANCES]
        # Device fields and profiling fields apart: a profiling field that cannot be watched costs all others.
        for numbers in (FAST_FIELDS, slow, PROFILING):
            self._watch(gpus, numbers, pace_us(numbers[0], interval_us, slow_us))
        for numbers in (memory, PROFILING):
            self._watch(instances, numbers, pace_us(numbers[0], interval_us, slow_us))

    def _watch(self, entities: Sequence[Entity], numbers: Sequence[int], every_us: int) -> None:
        """Have the engine measure fields, as many as it is able to; what it refuses is added to `refused`.

        One field of one GPU that it refuses costs all that are asked for together, so they are asked for in parts:
        profiling fields, which may lack on a GPU altogether, by GPU first, others by field.
        """
        if not entities or not numbers:
            return
        try:
            self._watch_together(entities, numbers, every_us)
        except self.bindings.error as error:
            code, several, half = code_of(error), len(entities) > 1, len(numbers) // 2
            if code == StatusCode.GONE:
                raise
            if several and (not half or numbers[0] in PROFILING):
                for entity in entities:
                    self._watch([entity], numbers, every_us)
            elif half and code not in _HOPELESS:
                self._watch(entities, numbers[:half], every_us)
                self._watch(entities, numbers[half:], every_us)
            else:
                for number in numbers:
                    self.refused.setdefault((code, number), []).extend(entities)
        else:
            for entity in entities:
                self.watched.setdefault(entity.key, set()).update(numbers)

    def _watch_together(self, entities: Sequence[Entity], numbers: Sequence[int], every_us: int) -> None:
        agent, xids = self.bindings.agent, XID in numbers
        groups = [self.make_group(entities)]
        # Only the latest value counts. An age and a number: some engines keep by the one, some by the other.
        keep = (_XIDS_S, _XIDS) if xids else (float(max(2, -(-3 * every_us // 1_000_000))), 2)
        try:
            groups.append(agent.dcgmFieldGroupCreate(self.handle, list(numbers), _new_name()))
            agent.dcgmWatchFields(self.handle, *groups, every_us, *keep)
        except self.bindings.error:  # an engine has room for a few dozen groups
            for destroy, group in zip((agent.dcgmGroupDestroy, agent.dcgmFieldGroupDestroy), groups, strict=False):
                with contextlib.suppress(self.bindings.error):
                    destroy(self.handle, group)
            raise
        if xids:
            self._xids = groups[0], groups[1]

    def _begin_health(self) -> None:
        """Have the engine's health checks run; an engine that cannot is left alone."""
        try:
            self.bindings.agent.dcgmHealthSet(self.handle, self.gpus, HEALTH_WATCHES)
        except self.bindings.error as error:
            if code_of(error) == StatusCode.GONE:
                raise
        else:
            self.checks_health = True

    def close(self) -> None:
        """Leave the engine, which takes back what it made for us. Safe to call twice, and where it is gone."""
        if self.handle is None:
            return
        agent = self.bindings.agent
        with contextlib.suppress(self.bindings.error):
            (agent.dcgmStopEmbedded if self.embedded else agent.dcgmDisconnect)(self.handle)
        self.handle = None


def _new_name() -> str:
    """A name for a group that is the only such one in the engine, though its clients may run on several machines."""
    return f"whorl-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"


def connect(
    bindings: Bindings, host: str | None, socket_path: str | None, *, interval_us: int, slow_us: int
) -> EngineConnection:
    """Reach an engine and have it measure every GPU and MIG instance. Raises InputError with what to do.

    It is that at HOST:PORT, or at a Unix socket; with neither, this node's, else one within this process.
    """
    connection = _reach(bindings, host, socket_path)
    try:
        connection.entities = find_entities(bindings, connection.handle)
        connection.watch_all(interval_us, slow_us)
    except bindings.error as error:
        connection.close()
        raise InputError(sentence(bindings, error, connection.address)) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _reach(bindings: Bindings, host: str | None, socket_path: str | None) -> EngineConnection:
    """A connection to an engine, with nothing in it."""
    if host is not None:
        return _open(bindings, engine_address(host))
    if socket_path is not None:
        if not Path(socket_path).exists():
            raise InputError(
                f"there is no socket {socket_path}: start the engine with nv-hostengine -d, or give its host"
            )
        return _open(bindings, socket_path)
    for local in (LOCAL, LOCAL_SOCKET):
        if local == LOCAL or Path(local).exists():
            with contextlib.suppress(_NoAnswerError):
                return _open(bindings, local)
    try:
        return _open(bindings, "this process", embedded=True)
    except InputError as error:
        raise InputError(f"no DCGM engine answers at {LOCAL}, and none can run within this process: {error}") from error


class _NoAnswerError(InputError):
    """Nothing answers there."""


def _open(bindings: Bindings, address: str, *, embedded: bool = False) -> EngineConnection:
    """Open HOST:PORT, the path of a socket, or an engine within this process."""
    options = {"unixSocketPath" if address.startswith("/") else "ipAddress": address, "timeoutMs": _PATIENCE_MS}
    try:
        handle = bindings.pydcgm.DcgmHandle(**({"opMode": _EMBEDDED} if embedded else options))
    except bindings.error as error:
        kind = _NoAnswerError if code_of(error) in (StatusCode.GONE, StatusCode.TIMEOUT) else InputError
        raise kind(sentence(bindings, error, address)) from error
    # Its destructor would leave the engine whenever Python pleases, and wait for one that hangs: `close` leaves it.
    handle._handleCreated = False
    return EngineConnection(bindings, handle.handle, address, embedded)


def sentence(bindings: Bindings, error: BaseException, address: str) -> str:
    """What an error of DCGM means for people, and what to do."""
    code = code_of(error)
    if code in (StatusCode.GONE, StatusCode.TIMEOUT):
        return (
            f"no DCGM engine answers at {address}: check the address, and that nv-hostengine runs there "
            "(systemctl status nvidia-dcgm)"
        )
    if code in (StatusCode.MISMATCH, StatusCode.NO_FUNCTION):
        return (
            f"the DCGM bindings in {bindings.folder} (for library {bindings.version() or 'of unknown version'}) do not "
            f"fit the engine at {address}: give the bindings of the engine's version in WHORL_PYDCGM_PATH"
        )
    if code in (StatusCode.NO_PERMISSION, StatusCode.REQUIRES_ROOT):
        return f"this user may not use the DCGM engine at {address}: {error}; run as root, or ask for access to it"
    if code == StatusCode.NO_LIBRARY:
        return f"the DCGM engine at {address} misses a library: {error} (is an NVIDIA driver installed and loaded?)"
    return f"the DCGM engine at {address} refuses: {error} (code {code})"


# -- the GPUs and MIG instances ---------------------------------------------------------------------------------------


def find_entities(bindings: Bindings, handle: Any, slots: Mapping[str, int] | None = None) -> list[Entity]:
    """All that answer: whole GPUs by PCI address, then MIG instances. Raises DCGM's error.

    `slots` holds the slots of GPUs that are known, by UUID: they stay although others of the node are lost.
    """
    gpus = []
    for number in bindings.agent.dcgmGetAllSupportedDevices(handle):
        try:
            attributes = bindings.agent.dcgmGetDeviceAttributes(handle, number)
        except bindings.error as error:
            if code_of(error) in (StatusCode.LOST, StatusCode.RESET_REQUIRED):  # lost just now
                continue
            raise
        row = _describe(attributes)
        if row["uuid"] is not None:
            gpus.append(Entity((GPU, number), Device(row["uuid"], row)))
    gpus.sort(key=lambda entity: str(entity.device.row["pci_bus_id"]))
    for place, entity in enumerate(gpus):
        entity.device.row["slot"] = (slots or {}).get(entity.device.gpu, place)
    return gpus + _find_instances(bindings, handle, {entity.key: entity.device for entity in gpus})


def _describe(attributes: Any) -> dict[str, Any]:
    """A GPU's row of `gpus`, without its slot."""
    identifiers, limits, heat = attributes.identifiers, attributes.powerLimits, attributes.thermalSettings
    sets = attributes.clockSets.clockSet[: attributes.clockSets.count]
    return {
        "uuid": text_of(identifiers.uuid),
        "model": text_of(identifiers.deviceName),
        "serial": text_of(identifiers.serial),
        "vbios": text_of(identifiers.vbios),
        "driver": text_of(identifiers.driverVersion),
        "pci_bus_id": text_of(identifiers.pciBusId),
        "power_limit_mw": scaled(limits.enforcedPowerLimit, 1000),
        "power_limit_default_mw": scaled(limits.defaultPowerLimit, 1000),
        "power_limit_min_mw": scaled(limits.minPowerLimit, 1000),
        "power_limit_max_mw": scaled(limits.maxPowerLimit, 1000),
        "sm_clock_max_mhz": max(filter(None, (scaled(clocks.smClock) for clocks in sets)), default=None),
        "mem_clock_max_mhz": max(filter(None, (scaled(clocks.memClock) for clocks in sets)), default=None),
        "temperature_slowdown_c": scaled(heat.slowdownTemp),
        "temperature_shutdown_c": scaled(heat.shutdownTemp),
        "memory_total": scaled(attributes.memoryUsage.fbTotal, 2**20),
    }


def _find_instances(bindings: Bindings, handle: Any, gpus: Mapping[tuple[int, int], Device]) -> list[Entity]:
    """MIG instances; none where the engine does not know of any."""
    try:
        tree = bindings.agent.dcgmGetGpuInstanceHierarchy(handle)
    except bindings.error as error:
        if code_of(error) == StatusCode.GONE:
            raise
        return []
    instances = []
    for node in tree.entityList[: tree.count]:
        parent = int(node.parent.entityGroupId), int(node.parent.entityId)
        if node.entity.entityGroupId != INSTANCE or parent not in gpus:
            continue
        gpu = gpus[parent]
        name, uuid = _name_instance(bindings, handle, node.entity)
        profile = _PROFILE.search(name or "")
        row = {
            **{column: gpu.row.get(column) for column in ("uuid", "slot", "model", "serial", "driver", "pci_bus_id")},
            "parent": gpu.gpu,
            "mig_profile": profile.group() if profile else f"{node.info.nvmlProfileSlices}g",
        }
        if uuid is None or not uuid.startswith("MIG-"):  # by its GPU and number, as on the pages of exporters
            uuid = f"{gpu.gpu}:GI{node.info.nvmlInstanceId}"
        instances.append(Entity((INSTANCE, int(node.entity.entityId)), Device(uuid, row, parent=gpu.gpu), parent))
    return instances


def _name_instance(bindings: Bindings, handle: Any, entity: Any) -> tuple[str | None, str | None]:
    """The name and UUID of an instance, where the engine tells them."""
    pair = bindings.structs.c_dcgmGroupEntityPair_t(entity.entityGroupId, entity.entityId)
    try:
        values = bindings.agent.dcgmEntitiesGetLatestValues(handle, [pair], [_NAME, _UUID], _LIVE)
    except bindings.error:
        return None, None
    texts = {text.fieldId: text_of(text.value.str) for text in values if not text.status and text.fieldType == ord("s")}
    return texts.get(_NAME), texts.get(_UUID)
