"""CUDA's driver by its C interface, and NVML: who a GPU is, who else uses it, and calls that must not hold the lock.

CuPy holds Python's lock in its calls that open a GPU and that ask for or record an event. Where a GPU hangs, such a
call may never return, and no thread of the process would go on, telemetry's and the watchdog's neither. Calls through
ctypes let the others run.

CUDA numbers devices by speed and hides some (CUDA_VISIBLE_DEVICES), so its numbers are no keys. The UUID comes from
the driver by its C interface: all 16 bytes of it, which bindings that hand it on as text cut at a zero byte.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def driver_library() -> ctypes.CDLL | None:
    """CUDA's driver library, libcuda; None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def cuda_uuid(ordinal: int) -> uuid.UUID | None:
    """The UUID of a visible device, of the instance where it is one of MIG; None where the driver does not tell."""
    driver = driver_library()
    if driver is None or driver.cuInit(0) != 0:
        return None
    device = ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) != 0:
        return None
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    uuid_bytes = (ctypes.c_ubyte * 16)()
    return uuid.UUID(bytes=bytes(uuid_bytes)) if ask(uuid_bytes, device) == 0 else None


def open_context(ordinal: int) -> None:
    """Open CUDA's context on a visible device, which can take the driver seconds.

    Not left to CuPy, whose calls for that keep Python's lock: every thread would stand still meanwhile, telemetry's
    too, and for ever where a GPU that failed holds the call. An error is not raised here but by the next call.
    """
    driver = driver_library()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver is None or driver.cuInit(0) != 0:
        return
    if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)  # for ever, as the runtime keeps it


def event_calls(runtime: Any) -> tuple[Callable[[int], int], Callable[[int, int], None]]:
    """What asks for an event's status, and what records an event in a stream: the driver's, else CuPy's.

    Events and streams of the runtime are those of the driver (CUDA Runtime API, interactions with the driver API), and
    the numbers of these statuses are the same.
    """
    driver = driver_library()
    if driver is None:
        return runtime.eventQuery, runtime.eventRecord
    pointer = ctypes.c_void_p

    def record(event: int, stream: int) -> None:
        runtime.check_status(driver.cuEventRecord(pointer(event), pointer(stream)))

    return lambda event: int(driver.cuEventQuery(pointer(event))), record


class NvmlView:
    """A GPU as NVML sees it, by UUID. Every call opens and leaves NVML: it counts its users."""

    def __init__(self, gpu_uuid: uuid.UUID) -> None:
        self.gpu = f"GPU-{gpu_uuid}"
        self.index: int | None = None
        self.driver: str | None = None
        self.why: str | None = None
        """Why NVML does not tell; None where it does."""
        self._before = self._look(gpu_uuid)

    def _look(self, gpu_uuid: uuid.UUID) -> frozenset[int]:
        """Find the name NVML has for it, and which processes were there before this one came."""
        with _Nvml() as nvml:
            if nvml.why is not None:
                self.why = nvml.why
                return frozenset()
            self.driver = nvml.text("nvmlSystemGetDriverVersion")
            for prefix in ("GPU", "MIG"):
                handle = nvml.handle(f"{prefix}-{gpu_uuid}")
                if handle is not None:
                    self.gpu = f"{prefix}-{gpu_uuid}"
                    index = nvml.asked("nvmlDeviceGetIndex", handle) if prefix == "GPU" else None
                    self.index = index if isinstance(index, int) else None
                    return frozenset(nvml.processes(handle) or ())
            self.why = f"NVML does not know GPU-{gpu_uuid}"
            return frozenset()

    def others(self) -> Sequence[str]:
        """Other processes that compute on it, as 'pid 123 (python)'; one that says why where that is not known.

        NVML names processes as the host counts them. In a container with its own numbers our own is the one that
        came since, if it is the only one.
        """
        with _Nvml() as nvml:
            handle = nvml.handle(self.gpu) if nvml.why is None else None
            pids = nvml.processes(handle) if handle is not None else None
        if pids is None:
            return [f"not known: {self.why or nvml.why or 'NVML does not list processes here'}"]
        other_pids = [pid for pid in pids if pid != os.getpid()]
        if len(other_pids) == len(pids):
            came = [pid for pid in pids if pid not in self._before]
            if len(came) == 1 and _name(came[0]) is None:
                other_pids.remove(came[0])
        return [f"pid {pid} ({_name(pid) or 'of another container or user'})" for pid in other_pids]


def _name(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


class _Nvml:
    """NVML, opened for a few questions; `why` says why it could not be."""

    def __init__(self) -> None:
        self.why: str | None = None
        self._nvml: Any = None

    def __enter__(self) -> _Nvml:
        try:
            import pynvml
        except ImportError:
            self.why = "the NVML bindings are not installed"
            return self
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
        except pynvml.NVMLError as error:
            self.why = f"NVML: {error}"
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            self.asked("nvmlShutdown")

    def asked(self, function: str, *arguments: Any) -> Any:
        """What a function gives; None where NVML answers with an error."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except self._nvml.NVMLError:
            return None

    def text(self, function: str) -> str | None:
        answer = self.asked(function)
        return answer.decode() if isinstance(answer, bytes) else answer

    def handle(self, name: str) -> Any:
        return self.asked("nvmlDeviceGetHandleByUUID", name)

    def processes(self, handle: Any) -> list[int] | None:
        """Processes with a compute context, under MPS or not; None where NVML does not tell."""
        computing = self.asked("nvmlDeviceGetComputeRunningProcesses", handle)
        under_mps = self.asked("nvmlDeviceGetMPSComputeRunningProcesses", handle)
        if computing is None:
            return None
        return sorted({int(process.pid) for process in [*computing, *(under_mps or ())]})
