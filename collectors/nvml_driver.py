"""Asking the NVIDIA driver through nvidia-ml-py: what its return codes mean, and who a GPU is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml as nv

from ..errors import DeviceError, InputError
from ..store.power_sensors import sensor_of_chip
from .backend import Device, Status

SUCCESS, NOT_SUPPORTED = 0, 3  # return codes of NVML
NOT_YET = -1  # in place of a return code: nothing was asked

_OF_WHOLE_GPU = ("uuid", "slot", "model", "serial", "driver", "pci_bus_id", "nvml_index")  # also of its instances
_GA100 = 0x20  # first byte of its PCI device ids; other Ampere parts have 0x22 to 0x25
_UNKNOWN = 0xFFFFFFFF

_MEANINGS = {
    SUCCESS: Status.OK,
    NOT_YET: Status.UNREAD,
    **dict.fromkeys(
        (2, NOT_SUPPORTED, 13, 25, 26), Status.UNSUPPORTED
    ),  # invalid argument, no such function or version
    4: Status.DENIED,
    **dict.fromkeys((15, 28), Status.LOST),  # lost, not found
    16: Status.NEEDS_RESET,
    **dict.fromkeys((1, 9, 18), Status.DRIVER),  # uninitialised, not loaded, library and driver of two versions
}


def open_library() -> Any:
    """The module `pynvml`, with the driver reached. InputError where there is no driver."""
    try:
        nv.nvmlInit()
    except nv.NVMLError as error:
        raise InputError(f"NVML: {error} (is an NVIDIA driver installed and loaded?)") from error
    return nv


def meaning(code: int) -> Status:
    """What a return code of NVML means."""
    return _MEANINGS.get(code, Status.FAILED)


def library_function(name: str) -> Any:
    """The C function of NVML called `name`, or None where this driver has none. The driver must have been reached."""
    return getattr(ctypes.cdll["libnvidia-ml.so.1"], name, None)


def text(value: Any) -> str | None:
    """A string of the driver, None for an empty one."""
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip() or None


def decoded(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the driver answers. The binding decodes texts, and some boards have names that are no UTF-8."""
    try:
        return function(*arguments)
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def answer_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the driver answers, or None where this GPU or driver does not."""
    try:
        return decoded(function, *arguments)
    except nv.NVMLError:
        return None


def status_of(function: Callable[..., Any], *arguments: Any) -> Status:
    """What became of a call of the binding."""
    try:
        decoded(function, *arguments)
    except nv.NVMLError as error:
        return meaning(error.value)
    return Status.OK


def whole_gpu(gpu: str) -> Any:
    """The driver's handle of the GPU with a UUID; of a MIG instance, that of the whole GPU.

    The driver must have been reached. DeviceError where it does not show the GPU.
    """
    try:
        handle = nv.nvmlDeviceGetHandleByUUID(gpu)
    except nv.NVMLError as error:
        raise DeviceError(f"{gpu}: the driver does not show it: {error}") from error
    if answer_of(nv.nvmlDeviceIsMigDeviceHandle, handle):
        handle = answer_of(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
    return handle


def driver_version() -> str | None:
    """The version of the loaded driver, None where it does not tell."""
    version = answer_of(nv.nvmlSystemGetDriverVersion)
    return text(version) if version else None


# -- identity ---------------------------------------------------------------------------------------------------------


_DESCRIBED = {
    "model": ("nvmlDeviceGetName",),
    "serial": ("nvmlDeviceGetSerial",),
    "vbios": ("nvmlDeviceGetVbiosVersion",),
    "inforom": ("nvmlDeviceGetInforomImageVersion",),
    "gsp_firmware": ("nvmlDeviceGetGspFirmwareVersion",),
    "power_limit_mw": ("nvmlDeviceGetEnforcedPowerLimit",),
    "power_limit_default_mw": ("nvmlDeviceGetPowerManagementDefaultLimit",),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", nv.NVML_CLOCK_SM),
    "mem_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", nv.NVML_CLOCK_MEM),
    "temperature_max_operating_c": ("nvmlDeviceGetTemperatureThreshold", nv.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
    "temperature_slowdown_c": ("nvmlDeviceGetTemperatureThreshold", nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    "temperature_shutdown_c": ("nvmlDeviceGetTemperatureThreshold", nv.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
}  # columns of `gpus`, each with the function that gives it and its arguments


def describe(uuid: str, handle: Any, index: int, driver: str | None) -> Device:
    """The identity of the GPU behind a handle."""

    def ask(function: str, *arguments: Any) -> Any:
        answer = answer_of(getattr(nv, function), handle, *arguments) if hasattr(nv, function) else None
        return text(answer) if isinstance(answer, str | bytes) else answer

    pci = ask("nvmlDeviceGetPciInfo_v3")
    low, high = ask("nvmlDeviceGetPowerManagementLimitConstraints") or (None, None)
    memory = ask("nvmlDeviceGetMemoryInfo", nv.nvmlMemory_v2) or ask("nvmlDeviceGetMemoryInfo")
    return Device(
        uuid,
        {
            "uuid": uuid,
            "slot": index,  # NVML counts by PCI address, so this is a place as long as no GPU is missing
            "driver": driver,
            "pci_bus_id": None if pci is None else text(pci.busId),
            "nvml_index": index,
            "power_limit_min_mw": low,
            "power_limit_max_mw": high,
            "memory_total": None if memory is None else int(memory.total),
            **{column: ask(*call) for column, call in _DESCRIBED.items()},
        },
    )


def instances(handle: Any, physical: Device) -> list[tuple[Device, Any]]:
    """The MIG instances of a GPU with their handles; empty where MIG is off or unknown here."""
    mode = answer_of(nv.nvmlDeviceGetMigMode, handle)
    if not mode or mode[0] != 1:
        return []
    parts = []
    for number in range(answer_of(nv.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = answer_of(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        uuid = None if instance is None else answer_of(nv.nvmlDeviceGetUUID, instance)
        if uuid is None:
            continue  # this place holds no instance
        name = text(answer_of(nv.nvmlDeviceGetName, instance) or "") or ""
        memory = answer_of(nv.nvmlDeviceGetMemoryInfo, instance, nv.nvmlMemory_v2)
        row = {
            **{column: physical.row.get(column) for column in _OF_WHOLE_GPU},
            "memory_total": None if memory is None else int(memory.total),
            "parent": physical.gpu,
            "mig_profile": text(name.partition(" MIG ")[2]),
        }
        parts.append((Device(str(text(uuid)), row, parent=physical.gpu), instance))
    return parts


def power_window(handle: Any) -> tuple[int | None, int | None]:
    """Over how many ms this part averages the power it reports, and how often it has a new value; None if unknown."""
    architecture = answer_of(nv.nvmlDeviceGetArchitecture, handle)
    if architecture is None or architecture == _UNKNOWN:
        return None, None
    pci = answer_of(nv.nvmlDeviceGetPciInfo_v3, handle)
    sensor = sensor_of_chip(architecture, ga100=pci is not None and pci.pciDeviceId >> 24 == _GA100)
    return (None, None) if sensor is None else (sensor.draw_ms, sensor.period_ms)
