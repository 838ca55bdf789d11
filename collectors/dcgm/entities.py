"""The GPUs and MIG instances that an engine knows, as devices by UUID. Its own numbers for them are never stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..backend import Device
from .bindings import Bindings, StatusCode, code_of, scaled, text_of

GPU, INSTANCE = 1, 4  # kinds of entities
_NAME, _UUID, _LIVE = 50, 54, 1
_PROFILE = re.compile(r"\d+[cg]\.\S+")


@dataclass(frozen=True)
class Entity:
    """A GPU or MIG instance: its kind and number in the engine, and its row of `gpus`."""

    key: tuple[int, int]
    device: Device
    parent: tuple[int, int] | None = None
    """The key of its GPU, of an instance."""


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


def lost_gpus(bindings: Bindings, handle: Any) -> set[tuple[int, int]]:
    """Keys of the GPUs that the engine knows and that do not answer it any more. Raises DCGM's error."""
    agent = bindings.agent
    numbers = set(agent.dcgmGetAllDevices(handle)) - set(agent.dcgmGetAllSupportedDevices(handle))
    return {(GPU, number) for number in numbers}


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
