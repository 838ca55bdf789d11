"""The backend that reads real GPUs through NVML, by nvidia-ml-py.

Devices are known by UUID and keep their position for as long as the backend is open: a GPU that is lost keeps its
place and takes it again when it returns. Nothing here changes a setting of a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..store.events import Event
from ..store.metrics import FAST, METRICS
from ..store.vocabulary import EventKind
from .backends import Commit, Device, Status, Sweep
from .nvml_gpm import Profiling
from .nvml_identity import asked, describe, instances, power_window, text, told
from .nvml_reader import Reader, Taken, meaning, silent
from .xids import xid_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

log = logging.getLogger(__name__)

_REOPEN_AFTER = 30  # looks
_fast_of = itemgetter(*FAST)
# Why a GPU cannot even be identified -> the event that says so.
_UNSEEN = {
    Status.LOST: EventKind.LOST,
    Status.DENIED: EventKind.NOT_PERMITTED,
    Status.UNSUPPORTED: EventKind.NOT_SUPPORTED,
}


@dataclass
class _Plan:
    """What is going to be known of the devices; it becomes so all at once."""

    devices: list[Device]
    handles: list[Any]
    position: dict[str, int]  # UUID -> position
    touched: set[int] = field(default_factory=set)  # to be read under a new handle
    gone: set[int] = field(default_factory=set)

    def place(self, device: Device, handle: Any) -> None:
        """Give a device its position; a known one keeps its own."""
        if device.gpu in self.position:
            position = self.position[device.gpu]
            self.devices[position], self.handles[position] = device, handle
        else:
            position = self.position[device.gpu] = len(self.devices)
            self.devices.append(device)
            self.handles.append(handle)
        self.touched.add(position)


class _Sweep(Sweep):
    """What the readers of all devices took."""

    def __init__(self, taken: list[Taken]) -> None:
        self._taken = taken
        self._arrays: tuple[NDArray[np.int64], NDArray[np.uint8]] | None = None

    def statuses(self) -> tuple[bytes, ...]:
        return tuple([statuses for _, statuses in self._taken])

    def numbers(self, *, slow: bool) -> Sequence[Sequence[int]]:
        if slow:
            values: list[list[int]] = self.values.tolist()
            return values
        return list(zip(*[v if len(v) == len(FAST) else _fast_of(v) for v, _ in self._taken], strict=True))

    @property
    def values(self) -> NDArray[np.int64]:
        return self._made()[0]

    @property
    def status(self) -> NDArray[np.uint8]:
        return self._made()[1]

    def _made(self) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        if self._arrays is None:
            shape = len(METRICS), len(self._taken)
            values, status = np.zeros(shape, np.int64), np.zeros(shape, np.uint8)
            for device, (some, statuses) in enumerate(self._taken):
                values[FAST if len(some) == len(FAST) else ..., device] = some
                status[:, device] = np.frombuffer(statuses, np.uint8)
            self._arrays = values, status
        return self._arrays


class Nvml:
    """NVML as a `Backend`."""

    name = "nvml"

    def __init__(self) -> None:
        self.period_ms: int | None = None
        self._devices: list[Device] = []
        self._handles: list[Any] = []
        self._position: dict[str, int] = {}  # UUID -> position
        self._readers: list[Reader | None] = []  # None: not read
        self._silent: list[Status] = []  # of a device that is not read: what is said of all its metrics
        self._known = False  # which devices there are
        self._open = False
        self._looks = 0
        self._unloaded: set[int] = set()  # were answering when the driver went
        self._events: tuple[Any, Any, Any] | None = None  # event set, what it fills, the function that does
        self._deaf = False  # the driver reports no events, and this was recorded
        self._doubles: set[tuple[str, int]] = set()  # UUID and index of GPUs that are not read, which was recorded
        self._pending: list[Event] = []

    # -- opening ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Reach the driver; see `Backend.open`."""
        try:
            import pynvml
        except ImportError as error:
            raise InputError("the NVML bindings are not installed: pip install nvidia-ml-py") from error
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise InputError(f"NVML: {error} (is an NVIDIA driver installed and loaded?)") from error
        self._open = True
        self._pending += self._enumerate(frozenset(), contextlib.nullcontext)

    def devices(self) -> Sequence[Device]:
        return self._devices

    def close(self) -> None:
        """Leave the driver. Safe to call twice."""
        import pynvml

        self._drop_events()
        if self._open:
            asked(pynvml.nvmlShutdown)
        self._open = False

    # -- reading ------------------------------------------------------------------------------------------

    def read(self, device: int, *, slow: bool) -> None:
        reader = self._readers[device]
        if reader is not None:
            reader.read(slow=slow)

    def sweep(self, stamps: list[int]) -> Sweep:
        return _Sweep(
            [
                silent(why) if reader is None else reader.take(stamp)
                for reader, why, stamp in zip(self._readers, self._silent, stamps, strict=True)
            ]
        )

    def happened(self) -> list[Event]:
        """XIDs, and what opening found out."""
        found, self._pending = self._pending, []
        if self._events is None:
            return found
        import pynvml

        events, data, wait = self._events
        for _ in range(64):  # a flood is read on at the next tick
            if wait(events, ctypes.byref(data), ctypes.c_uint(0)):
                break
            if data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                found.append(xid_event(self._gpu_of(data.device), int(data.eventData)))
        return found

    def _gpu_of(self, handle: Any) -> str | None:
        address = _address(handle)
        return next(
            (
                d.gpu
                for d, h in zip(self._devices, self._handles, strict=True)
                if h is not None and _address(h) == address
            ),
            None,
        )

    # -- coming and going ---------------------------------------------------------------------------------

    def lose(self, device: int) -> None:
        """Stop reading a lost device, and its instances; `look_again` takes it back."""
        for position, other in enumerate(self._devices):
            if position == device or other.parent == device:
                self._detach(position, Status.LOST if position == device else Status.UNREAD)

    def _detach(self, device: int, status: Status) -> None:
        self._handles[device] = self._readers[device] = None
        self._silent[device] = status

    def look_again(self, passed_over: frozenset[int], commit: Commit) -> list[Event]:
        """Find GPUs that came, returned, or changed their MIG instances; see `Backend.look_again`.

        Where the driver was unloaded under us, it is opened anew; while a GPU is lost, now and then as well, as
        only a fresh driver handle may show a GPU that was reset.
        """
        import pynvml

        status = _status(pynvml.nvmlDeviceGetCount)
        if status == Status.DRIVER:
            return self._reopen(passed_over, commit, reloaded=True)
        missing = any(d.parent is None and h is None for d, h in zip(self._devices, self._handles, strict=True))
        self._looks = self._looks + 1 if missing else 0
        if missing and not passed_over and self._looks % _REOPEN_AFTER == 0:
            return self._reopen(passed_over, commit, reloaded=False)
        return self._enumerate(passed_over, commit)

    def _reopen(self, passed_over: frozenset[int], commit: Commit, *, reloaded: bool) -> list[Event]:
        import pynvml

        with commit():
            self._events = None  # it dies with the driver
            for device in range(len(self._devices)):
                if self._readers[device] is not None:
                    self._detach(device, Status.DRIVER)
                    self._unloaded.add(device)
        asked(pynvml.nvmlShutdown)
        if _status(pynvml.nvmlInit) != Status.OK:
            return []  # not back yet: the readings say so, and the next look tries again
        found = self._enumerate(passed_over, commit)
        if _status(pynvml.nvmlDeviceGetCount) == Status.OK:  # the driver is there, and these GPUs are not
            with commit():
                for device in self._unloaded - passed_over:
                    self._silent[device] = Status.LOST if self._devices[device].parent is None else Status.UNREAD
                self._unloaded &= passed_over
        if not reloaded:
            return found
        answer = asked(pynvml.nvmlSystemGetDriverVersion)
        version = text(answer) if answer else None
        detail = f"the driver was reloaded, version {version or 'unknown'}"
        return [Event(EventKind.DRIVER_RELOADED, None, detail, version=version), *found]

    def _enumerate(self, passed_over: frozenset[int], commit: Commit) -> list[Event]:
        """Compare what the driver shows with what is known, and take in what is new."""
        plan = _Plan(list(self._devices), list(self._handles), dict(self._position))
        found = self._compare(plan, passed_over)
        for position, device in enumerate(list(plan.devices)):
            if device.parent is None and plan.handles[position] is not None and position not in passed_over:
                found += self._compare_instances(plan, position)
        if not plan.touched and not plan.gone:
            return found
        more = len(plan.devices) - len(self._devices)
        readers = [*self._readers, *[None] * more]
        for position in sorted(plan.touched):
            readers[position] = self._reader(plan.devices[position], plan.handles[position], found)
        with commit():
            self._devices, self._handles, self._position = plan.devices, plan.handles, plan.position
            self._readers = readers
            self._silent += [Status.UNREAD] * more
            for position in plan.gone:
                self._detach(position, Status.UNREAD)
            self._unloaded -= plan.touched
            self._known = True
        self._watch_events()
        return found

    def _compare(self, plan: _Plan, passed_over: frozenset[int]) -> list[Event]:
        """Whole GPUs."""
        import pynvml as nv

        found: list[Event] = []
        version = asked(nv.nvmlSystemGetDriverVersion)
        driver = text(version) if version else None
        skipped = {self._devices[p].row.get("nvml_index") for p in passed_over}
        seen: dict[str, int] = {}  # UUID -> index
        for index in range(asked(nv.nvmlDeviceGetCount) or 0):
            if index in skipped:
                continue
            try:
                gpu, handle = _reach(index)
            except nv.NVMLError as error:
                if not self._known:
                    kind = _UNSEEN.get(meaning(error.value), EventKind.FAILED_READING)
                    found.append(Event(kind, None, f"the GPU at index {index} cannot be identified: {error}"))
                continue
            if (first := seen.setdefault(gpu, index)) != index:
                found += self._double(gpu, first, index)
                continue
            known = plan.position.get(gpu)
            if known in passed_over:
                continue
            if known is None or plan.handles[known] is None:
                plan.place(describe(gpu, handle, index, driver), handle)
                if self._known and known not in self._unloaded:
                    came = known is None
                    kind, what = (EventKind.APPEARED, "is new") if came else (EventKind.RETURNED, "answers again")
                    found.append(Event(kind, gpu, f"the GPU {what}, index {index}"))
            elif _address(handle) != _address(plan.handles[known]) or self._readers[known] is None:
                plan.place(plan.devices[known], handle)
        return found

    def _double(self, gpu: str, first: int, index: int) -> list[Event]:
        """Tell, once, that a GPU is not read, as another one has its UUID: their readings could not be told apart."""
        if (gpu, index) in self._doubles:
            return []
        self._doubles.add((gpu, index))
        detail = f"the GPUs at index {first} and {index} have the same UUID {gpu}; only the first is read"
        log.warning("%s", detail)
        return [Event(EventKind.FAILED_READING, gpu, detail)]

    def _compare_instances(self, plan: _Plan, position: int) -> list[Event]:
        """The MIG instances of one GPU."""
        device = plan.devices[position]
        there = instances(plan.handles[position], device, position)
        names = {instance.gpu for instance, _ in there}
        before = {p for p, d in enumerate(plan.devices) if d.parent == position and plan.handles[p] is not None}
        gone = {p for p in before if plan.devices[p].gpu not in names}
        for p in gone:
            plan.handles[p] = None
        known = {plan.devices[p].gpu: plan.devices[p] for p in before}
        new = [i for i in there if known.get(i[0].gpu) != i[0]]
        for instance, handle in new:
            plan.place(instance, handle)
        plan.gone |= gone
        if not (new or gone) or position in plan.touched:
            return []
        profiles = ", ".join(str(instance.row["mig_profile"]) for instance, _ in there) or "none"
        detail = f"the MIG instances changed; now there are: {profiles}"
        return [Event(EventKind.MIG, device.gpu, detail, n=len(there))]

    def _reader(self, device: Device, handle: Any, found: list[Event]) -> Reader:
        """What reads a device; adds to `found` what it finds out about it."""
        import pynvml

        if device.parent is not None:
            number = asked(pynvml.nvmlDeviceGetGpuInstanceId, handle)
            gpu = None if number is None else asked(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
            part = None if gpu is None else Profiling(gpu, function, instance=number)
            return Reader(handle, function, instance=True, profiling=part)
        window, period = power_window(handle)
        self.period_ms = max(filter(None, (self.period_ms, period)), default=None)
        profiling = Profiling(handle, function)
        if (refused := meaning(profiling.refused)) in (Status.DENIED, Status.UNSUPPORTED):
            detail = "the driver gives no profiling metrics of this GPU, such as sm_active_ppm"
            why = ": this user may not read them" if refused == Status.DENIED else "; NVML has them from Hopper on"
            found.append(Event(_UNSEEN[refused], device.gpu, detail + why))
        reader = Reader(handle, function, window_ms=window, profiling=profiling)
        if reader.of_module:
            detail = "the driver gives instantaneous power only for the whole module: processor and GPU together"
            found.append(Event(EventKind.MODULE_POWER, device.gpu, detail))
        return reader

    # -- events -------------------------------------------------------------------------------------------

    def _watch_events(self) -> None:
        import pynvml as nv

        self._drop_events()
        events = asked(nv.nvmlEventSetCreate)
        wait = function("nvmlEventSetWait_v2") or function("nvmlEventSetWait")
        if events is None or wait is None:
            self._miss_events()
            return
        watched = 0
        for device, handle in zip(self._devices, self._handles, strict=True):
            if device.parent is None and handle is not None:
                try:
                    nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, events)
                    watched += 1
                except nv.NVMLError:
                    continue  # this GPU announces nothing; its other readings say how it is
        if watched:
            self._events = (events, nv.c_nvmlEventData_t(), wait)
        else:
            asked(nv.nvmlEventSetFree, events)
            self._miss_events()

    def _miss_events(self) -> None:
        """Tell, once, that errors will not be heard of."""
        if not self._deaf and any(handle is not None for handle in self._handles):
            self._deaf = True
            self._pending.append(Event(EventKind.NOT_SUPPORTED, None, "the driver does not report XID errors here"))

    def _drop_events(self) -> None:
        import pynvml

        if self._events is not None:
            asked(pynvml.nvmlEventSetFree, self._events[0])
            self._events = None


def _status(call: Callable[..., Any], *arguments: Any) -> Status:
    """What became of a call of the binding."""
    import pynvml

    try:
        call(*arguments)
    except pynvml.NVMLError as error:
        return meaning(error.value)
    return Status.OK


def _reach(index: int) -> tuple[str, Any]:
    """UUID and handle of a GPU that answers. Raises pynvml.NVMLError where it does not."""
    import pynvml as nv

    handle = nv.nvmlDeviceGetHandleByIndex(index)
    uuid = text(told(nv.nvmlDeviceGetUUID, handle))
    # The driver tells the identity of a GPU that is gone from memory.
    if uuid is None or _status(nv.nvmlDeviceGetMemoryInfo, handle) == Status.LOST:
        raise nv.NVMLError(nv.NVML_ERROR_GPU_IS_LOST)
    return uuid, handle


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def function(name: str) -> Any:
    """The C function of NVML called `name`, or None where this driver has none.

    The binding's own getter is private; should it go, the library that the binding loaded is asked by its name.
    """
    import pynvml

    getter = getattr(pynvml, "_nvmlGetFunctionPointer", None)
    if getter is None:
        return getattr(ctypes.CDLL("libnvidia-ml.so.1"), name, None)
    try:
        return getter(name)
    except pynvml.NVMLError:
        return None
