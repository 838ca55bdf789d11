"""The backend that reads real GPUs through NVML, by nvidia-ml-py.

Devices are known by UUID. What the driver shows is looked at anew at each call of `devices`, and taken over all at
once. Nothing here changes a setting of a GPU.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml as nv

from ..errors import InputError
from ..store.events import Event
from ..store.metrics import FAST, METRICS
from ..store.vocabulary import EventKind
from .backend import Backend, Device, Reading, Status
from .kernel_log import name_lost_boards, xid_event
from .nvml_driver import (
    answer_of,
    decoded,
    describe,
    driver_version,
    instances,
    meaning,
    open_library,
    power_window,
    status_of,
    text,
)
from .nvml_reader import Profiling, Reader

log = logging.getLogger(__name__)

_REOPEN_AFTER = 30  # looks at the devices while a GPU is missing
_EVENTS_NS = 1_000_000_000  # between two looks at the event set
_EVENTS_AT_ONCE = 64  # a flood is read on at the next look
_ALL = {status: bytes([status]) * len(METRICS) for status in Status}
# Why a GPU cannot be identified, or profiled -> the event that says so.
_KINDS = {
    Status.LOST: EventKind.LOST,
    Status.NEEDS_RESET: EventKind.NEEDS_RESET,
    Status.DENIED: EventKind.NOT_PERMITTED,
    Status.UNSUPPORTED: EventKind.NOT_SUPPORTED,
}


@dataclass(frozen=True)
class _Entry:
    """A device that the driver shows, and what reads it: None for a GPU that must be reset before it is even named.

    The reader can be kept as long as what it `fits` is the same.
    """

    device: Device
    reader: Reader | None
    fits: object = None


class Nvml(Backend):
    """NVML as a backend."""

    name = "nvml"

    def __init__(self) -> None:
        self._listed: dict[str, _Entry] | None = None
        """What the driver showed at the last look, by UUID, each GPU before its instances; None: it was not reached."""
        self._otherwise: Status | None = Status.LOST  # what is said of a device that is not shown; None: nothing
        self._whole: dict[str, Device] = {}  # every GPU that ever was there, by UUID
        self._by_handle: dict[int, str] = {}  # address of every handle of a GPU that ever was -> UUID
        self._reading: set[str] = set()  # UUIDs: their reading is under way, or hangs
        self._looks_without = 0  # looks since a GPU is missing
        self._events: Any = None  # NVML's event set
        self._registered: set[int] = set()  # addresses of the handles in it
        self._looked_ns = 0  # at it, monotonic
        self._hearing = False  # a look at it is under way, or hangs
        self._deaf = False  # the driver reports no events, and this was told
        self._pending: deque[Event] = deque()

    def devices(self) -> list[Device]:
        """Reach the driver at the first call; where it was unloaded since, or a GPU is missing long, open it anew."""
        if self._listed is None:
            try:
                self._listed = self._first_look()
            except InputError as error:
                raise InputError(f"{error}{name_lost_boards()}") from error
        elif status_of(nv.nvmlDeviceGetCount) == Status.DRIVER:
            self._reopen(Status.DRIVER)
        else:
            missing = not self._whole.keys() <= self._listed.keys()
            self._looks_without = self._looks_without + 1 if missing else 0
            if missing and self._looks_without % _REOPEN_AFTER == 0 and not self._reading:
                self._reopen(None)  # some drivers show a GPU that was reset only then
            else:
                self._listed = self._look(self._listed)
        return [entry.device for entry in self._listed.values()]

    def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading | Event]:
        """Read devices one by one; at the end, the events of the driver."""
        for gpu in gpus:
            listed = self._listed or {}
            entry = listed.get(gpu)
            if entry is None or entry.reader is None:
                status = self._otherwise if entry is None else Status.NEEDS_RESET
                if status is not None:
                    yield Reading(gpu, [0] * len(METRICS if slow else FAST), _ALL[status])
                continue
            self._reading.add(gpu)
            values, statuses = entry.reader.read(slow=slow)
            self._reading.discard(gpu)
            if listed is self._listed or Status.DRIVER not in statuses:  # else the driver was opened anew meanwhile
                yield Reading(gpu, values, statuses)
        if time.monotonic_ns() - self._looked_ns >= _EVENTS_NS:
            self._hear()
        while self._pending:
            yield self._pending.popleft()

    def close(self) -> list[Event]:
        """Leave the driver, with what it announced up to now. Safe to call twice."""
        if self._listed is not None:
            self._hear()
            if self._events is not None:
                answer_of(nv.nvmlEventSetFree, self._events)
            self._events = self._listed = None
            answer_of(nv.nvmlShutdown)
        events = list(self._pending)
        self._pending.clear()
        return events

    # -- which devices there are ------------------------------------------------------------------------------

    def _first_look(self) -> dict[str, _Entry]:
        """Reach the driver, and look. Raises InputError where there is none, or no GPU."""
        open_library()
        listed = self._look({}, first=True)
        if not self._whole:
            self._listed = listed
            reasons = [event.detail for event in self.close()]
            raise InputError(": ".join(["backend nvml shows no GPU on this machine", *reasons[:1]]))
        return listed

    def _reopen(self, meanwhile: Status | None) -> None:
        """Open the driver anew, and look; `meanwhile` is said of all devices. InputError where it is not back yet."""
        self._hear()
        self._otherwise, self._listed = meanwhile, {}
        self._events = None  # it dies with the session
        self._registered.clear()
        answer_of(nv.nvmlShutdown)
        open_library()
        self._listed = self._look({})
        self._otherwise = Status.LOST

    def _look(self, before: dict[str, _Entry], *, first: bool = False) -> dict[str, _Entry]:
        """What the driver shows now. A GPU whose reading hangs stays as it was `before`."""
        listed: dict[str, _Entry] = {}
        driver = driver_version()
        hanging = [before[gpu].device for gpu in self._reading.copy() if gpu in before]
        skipped = {device.row["nvml_index"]: device.parent or device.gpu for device in hanging}
        for index in range(answer_of(nv.nvmlDeviceGetCount) or 0):
            if index in skipped:
                listed |= {gpu: e for gpu, e in before.items() if skipped[index] in (gpu, e.device.parent)}
                continue
            try:
                gpu, handle = _reach(index)
            except nv.NVMLError as error:
                self._miss(listed, index, error, first=first)
                continue
            if gpu in listed:
                if first:
                    log.warning("the GPU at index %d has the UUID of another one, and is not read: %s", index, gpu)
                continue
            address = _address(handle)
            entry = before.get(gpu)
            same = entry is not None and entry.reader is not None and self._by_handle.get(address) == gpu
            if entry is not None and same and entry.device.row["nvml_index"] == index:
                device = entry.device
            else:
                device = describe(gpu, handle, index, driver)
            self._whole[gpu], self._by_handle[address] = device, gpu
            parts = instances(handle, device)
            readable: list[tuple[Device, Any, object]] = [(device, handle, (address, bool(parts)))]
            readable += [(part, part_handle, (_address(part_handle), part)) for part, part_handle in parts]
            for readable_device, readable_handle, fits in readable:
                entry = before.get(readable_device.gpu)
                reader = entry.reader if entry is not None and entry.fits == fits else None
                reader = reader or self._reader(readable_device, readable_handle)
                listed[readable_device.gpu] = _Entry(readable_device, reader, fits)
            self._register(handle, address)
        if listed and not self._registered and not self._deaf:
            self._deaf = True
            self._pending.append(Event(EventKind.NOT_SUPPORTED, None, "the driver does not report XID errors here"))
        return listed

    def _miss(self, listed: dict[str, _Entry], index: int, error: Any, *, first: bool) -> None:
        """A GPU cannot be identified: it is shown where it is known to be there, and at first told."""
        status = meaning(error.value)
        at_index = [device for device in self._whole.values() if device.row["nvml_index"] == index]
        if status == Status.NEEDS_RESET and at_index:
            listed[at_index[0].gpu] = _Entry(at_index[0], None)
        elif first:
            kind = _KINDS.get(status, EventKind.FAILED_READING)
            self._pending.append(Event(kind, None, f"the GPU at index {index} cannot be identified: {error}"))

    def _reader(self, device: Device, handle: Any) -> Reader:
        """What reads a device; what it finds out about it is told."""
        if device.parent is not None:
            number = answer_of(nv.nvmlDeviceGetGpuInstanceId, handle)
            gpu = None if number is None else answer_of(nv.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
            part = None if gpu is None else Profiling(gpu, instance=number)
            return Reader(handle, instance=True, profiling=part)
        window_ms, period_ms = power_window(handle)
        self.period_ms = max(filter(None, (self.period_ms, period_ms)), default=None)
        profiling = Profiling(handle)
        if (refused := meaning(profiling.refused)) in (Status.DENIED, Status.UNSUPPORTED):
            detail = "the driver gives no profiling metrics of this GPU, such as sm_active_ppm"
            why = ": this user may not read them" if refused == Status.DENIED else "; NVML has them from Hopper on"
            self._pending.append(Event(_KINDS[refused], device.gpu, detail + why))
        reader = Reader(handle, window_ms=window_ms, profiling=profiling)
        if reader.of_module:
            detail = "the driver gives instantaneous power only for the whole module: processor and GPU together"
            self._pending.append(Event(EventKind.MODULE_POWER, device.gpu, detail))
        return reader

    # -- XIDs -------------------------------------------------------------------------------------------------

    def _register(self, handle: Any, address: int) -> None:
        """Hear of the XIDs of a GPU. One that announces nothing is left: its other readings say how it is."""
        if self._events is None:
            self._events = answer_of(nv.nvmlEventSetCreate)
        if self._events is None or address in self._registered:
            return
        if status_of(nv.nvmlDeviceRegisterEvents, handle, nv.nvmlEventTypeXidCriticalError, self._events) == Status.OK:
            self._registered.add(address)

    def _hear(self) -> None:
        """Take in the XIDs that the driver announced, without waiting."""
        self._looked_ns = time.monotonic_ns()
        if not self._registered or self._hearing:
            return
        self._hearing = True
        for _ in range(_EVENTS_AT_ONCE):
            event = answer_of(nv.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                break
            if event.eventType == nv.nvmlEventTypeXidCriticalError:
                gpu, pci_bus_id = self._who(event.device)
                self._pending.append(xid_event(gpu, int(event.eventData), pci_bus_id=pci_bus_id))
        self._hearing = False

    def _who(self, handle: Any) -> tuple[str | None, str | None]:
        """UUID and PCI address of the GPU behind a handle, of any time; None where nothing tells."""
        gpu = self._by_handle.get(_address(handle))
        if gpu is not None:
            return gpu, self._whole[gpu].row["pci_bus_id"]
        pci = answer_of(nv.nvmlDeviceGetPciInfo_v3, handle)
        if pci is None:
            return None, None
        pci_bus_id = text(pci.busId)
        at = (device.gpu for device in self._whole.values() if device.row["pci_bus_id"] == pci_bus_id)
        return next(at, None), pci_bus_id


def _reach(index: int) -> tuple[str, Any]:
    """UUID and handle of a GPU that answers. Raises nv.NVMLError where it does not."""
    handle = nv.nvmlDeviceGetHandleByIndex(index)
    uuid = text(decoded(nv.nvmlDeviceGetUUID, handle))
    # The driver tells the identity of a GPU that is gone from memory.
    if uuid is None or status_of(nv.nvmlDeviceGetMemoryInfo, handle) == Status.LOST:
        raise nv.NVMLError(nv.NVML_ERROR_GPU_IS_LOST)
    return uuid, handle


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
