"""The GPUs and MIG instances that an engine knows, as devices by UUID. Its own numbers for them are never stored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backends import Device
from .reaching import GONE, LOST, RESET_REQUIRED, code_of
from .reading import BLANK_WORD, entity_key

if TYPE_CHECKING:
    from .bindings import Bindings

GPU, INSTANCE = 1, 4  # kinds of entities
_NAME, _UUID, _LIVE = 50, 54, 1
_PROFILE = re.compile(r"\d+[cg]\.\S+")


@dataclass(frozen=True)
class Entity:
    """A GPU or MIG instance: its kind and number in the engine, and who it is. `parent` is the entity of its GPU."""

    group: int
    number: int
    device: Device
    parent: int | None = None

    @property
    def key(self) -> int:
        """The entity as samples name it."""
        return entity_key(self.group, self.number)


def find_entities(bindings: Bindings, handle: Any) -> list[Entity]:
    """All that answer: whole GPUs by PCI address, then MIG instances. Raises DCGM's error."""
    agent = bindings.agent
    whole = []
    for number in agent.dcgmGetAllSupportedDevices(handle):
        try:
            told = agent.dcgmGetDeviceAttributes(handle, number)
        except bindings.error as error:
            if code_of(error) in (LOST, RESET_REQUIRED):  # lost just now
                continue
            raise
        device = _describe(told)
        if device is not None:
            whole.append(Entity(GPU, number, device))
    whole.sort(key=lambda one: str(one.device.row["pci_bus_id"]))
    for slot, one in enumerate(whole):
        one.device.row["slot"] = slot
    return whole + _instances(bindings, handle, {one.number: at for at, one in enumerate(whole)}, whole)


def lost_gpus(bindings: Bindings, handle: Any) -> set[int]:
    """Numbers of the GPUs that the engine knows and that do not answer it any more. Raises DCGM's error."""
    agent = bindings.agent
    return set(agent.dcgmGetAllDevices(handle)) - set(agent.dcgmGetAllSupportedDevices(handle))


def _describe(told: Any) -> Device | None:
    who, limits, heat = told.identifiers, told.powerLimits, told.thermalSettings
    uuid = _text(who.uuid)
    if uuid is None:
        return None
    clocks = [told.clockSets.clockSet[at] for at in range(min(told.clockSets.count, len(told.clockSets.clockSet)))]
    return Device(
        uuid,
        {
            "uuid": uuid,
            "model": _text(who.deviceName),
            "serial": _text(who.serial),
            "vbios": _text(who.vbios),
            "driver": _text(who.driverVersion),
            "pci_bus_id": _text(who.pciBusId),
            "power_limit_mw": _scaled(limits.enforcedPowerLimit, 1000),
            "power_limit_default_mw": _scaled(limits.defaultPowerLimit, 1000),
            "power_limit_min_mw": _scaled(limits.minPowerLimit, 1000),
            "power_limit_max_mw": _scaled(limits.maxPowerLimit, 1000),
            "sm_clock_max_mhz": max(filter(None, (_scaled(one.smClock, 1) for one in clocks)), default=None),
            "mem_clock_max_mhz": max(filter(None, (_scaled(one.memClock, 1) for one in clocks)), default=None),
            "temperature_slowdown_c": _scaled(heat.slowdownTemp, 1),
            "temperature_shutdown_c": _scaled(heat.shutdownTemp, 1),
            "memory_total": _scaled(told.memoryUsage.fbTotal, 2**20),
        },
    )


def _instances(bindings: Bindings, handle: Any, position: dict[int, int], whole: list[Entity]) -> list[Entity]:
    """MIG instances; none where the engine does not know of any."""
    try:
        tree = bindings.agent.dcgmGetGpuInstanceHierarchy(handle)
    except bindings.error as error:
        if code_of(error) == GONE:
            raise
        return []
    found = []
    for at in range(tree.count):
        one = tree.entityList[at]
        parent = position.get(one.parent.entityId)
        if one.entity.entityGroupId != INSTANCE or one.parent.entityGroupId != GPU or parent is None:
            continue
        physical = whole[parent].device
        name, uuid = _told(bindings, handle, one.entity)
        profile = _PROFILE.search(name or "")
        row = {
            **{key: physical.row.get(key) for key in ("uuid", "slot", "model", "serial", "driver", "pci_bus_id")},
            "parent": physical.gpu,
            "mig_profile": profile.group() if profile else f"{one.info.nvmlProfileSlices}g",
        }
        if uuid is None or not uuid.startswith("MIG-"):  # by its GPU and number, as on the pages of exporters
            uuid = f"{physical.gpu}:GI{one.info.nvmlInstanceId}"
        found.append(
            Entity(
                INSTANCE, one.entity.entityId, Device(uuid, row, parent=parent), entity_key(GPU, whole[parent].number)
            )
        )
    return found


def _told(bindings: Bindings, handle: Any, entity: Any) -> tuple[str | None, str | None]:
    """The name and UUID of an instance, where the engine tells them."""
    pair = bindings.structs.c_dcgmGroupEntityPair_t()
    pair.entityGroupId, pair.entityId = entity.entityGroupId, entity.entityId
    try:
        values = bindings.agent.dcgmEntitiesGetLatestValues(handle, [pair], [_NAME, _UUID], _LIVE)
    except bindings.error:
        return None, None
    texts = {one.fieldId: _text(one.value.str) for one in values if one.status == 0 and one.fieldType == ord("s")}
    return texts.get(_NAME), texts.get(_UUID)


def _text(value: str | bytes) -> str | None:
    """A string of the engine, None for one that says that there is none."""
    text = (value.decode(errors="replace") if isinstance(value, bytes) else value).strip()
    return None if not text or text.startswith("<<<") else text


def _scaled(value: int, scale: int) -> int | None:
    """A number of the engine in our unit, None where it is a blank."""
    return None if value >= BLANK_WORD else int(value) * scale
