"""CUDA's driver by its C interface, and NVML: who a GPU is, who else uses it, and calls that must not hold the lock.

CuPy holds Python's lock in its calls that open a GPU and that ask for or record an event. Where a GPU hangs, such a
call may never return, and no thread of the process would go on, telemetry's and the watchdog's neither. Calls through
ctypes let the others run.

CUDA numbers devices by speed and hides some (CUDA_VISIBLE_DEVICES), so its numbers are no keys. The UUID comes from
the driver by its C interface: all 16 bytes of it, which bindings that hand it on as text cut at a zero byte.

What CUDA's error codes mean: a sentence for people, and whether the GPU can still be used.

Codes are those of `cudaError_t` in CUDA's driver_types.h; the driver's `CUresult` has the same numbers for these.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import DeviceError, WhorlError
from ..store.vocabulary import Outcome


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


OUT_OF_MEMORY = 2
INSUFFICIENT_DRIVER = 35
NO_DEVICE = 100
NOT_READY = 600
PEER_ALREADY_ENABLED = 704

_LOST = "this process cannot use this GPU any more"
_SAYS = {
    OUT_OF_MEMORY: "out of memory",
    3: "CUDA could not start on it; nvidia-smi may say why",
    46: "it is in use or in a bad state: another process may hold it in exclusive mode, or it fell off the bus",
    98: "the compiled kernel does not fit it",
    101: "CUDA no longer knows this GPU",
    209: "no code was compiled for its architecture; try a newer CuPy or CUDA toolkit",
    214: "an uncorrectable ECC error happened in its memory",
    217: "it cannot reach the memory of the other GPU",
    220: "an uncorrectable NVLink error happened",
    222: "its driver is older than the compiler of the kernels: install a newer driver or an older CUDA toolkit",
    226: "an error on the GPU was contained to this process",
    304: "the operating system refused a call of the driver",
    700: "a kernel used memory that it does not own (illegal address)",
    701: "a kernel needs more registers or threads than there are",
    702: "the display's watchdog ended a kernel that ran too long",
    709: "its context was destroyed",
    710: "a kernel stopped at an assertion",
    714: "the hardware stack of a kernel failed",
    715: "a kernel ran an illegal instruction",
    716: "a kernel used a misaligned address",
    717: "a kernel used an address of the wrong space",
    718: "the program counter of a kernel was invalid",
    719: "a kernel failed while it ran: the GPU may have fallen off the bus, see the XIDs in the system's log",
    721: "a kernel left the memory of the tensor cores behind",
    800: "the operation is not permitted to this user",
    802: "the system is not ready: check that the fabric manager runs",
    803: "the parts of the driver have different versions: restart the machine",
    804: "CUDA's compatibility package does not support this GPU",
    805: "the MPS server cannot be reached",
    806: "the MPS server does not answer",
    807: "the MPS server is not ready",
    808: "the MPS server has no room for another process",
    809: "the MPS server has no room for another connection",
    810: "the MPS server ended this process's work",
    911: "a device outside of CUDA failed",
    999: "the driver reports an unknown error: the GPU may have fallen off the bus, see the system's log",
}
"""The meaning of each code. Codes that are not here keep CUDA's own text."""

_GONE = frozenset({3, 46, 101, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 721, *range(802, 811), 911, 999})
"""Codes after which the context, and with it every further call of this process, fails."""
_OFF_THE_BUS = frozenset({46, 719, 999})
"""Codes of a GPU that has fallen off the bus, or may have."""


def sentence(error: BaseException) -> str:
    """An error in one line: the first that says something."""
    lines = [line.strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)


def status_of(error: BaseException) -> int | None:
    """CUDA's code for an error of the runtime or driver; None for others, whose codes (NVRTC's) are of another kind."""
    if type(error).__name__ not in ("CUDARuntimeError", "CUDADriverError"):
        return None
    status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def explain(error: Exception, gpu: str, doing: str) -> DeviceError | None:
    """The DeviceError for an error of CUDA or its compiler; None for any other."""
    if type(error).__name__ == "CompileException":  # CuPy's; its text is the compiler's log
        log = [line.strip() for line in str(error).splitlines() if ": error" in line or ": catastrophic" in line]
        first = log[0] if log else sentence(error)
        if "--gpu-architecture" in first:
            first += " (the compiler is too old for this GPU, or no longer supports it)"
        return DeviceError(f"{gpu}: {doing}: the CUDA C does not compile: {first}")
    status = status_of(error)
    if status is None:
        return None
    says = _SAYS.get(status)
    text = f"{says} (CUDA error {status})" if says else sentence(error)
    gone, outcome = status in _GONE, Outcome.LOST if status in _OFF_THE_BUS else Outcome.FAILED
    return DeviceError(f"{gpu}: {doing}: {text}" + (f"; {_LOST}" if gone else ""), gone=gone, outcome=outcome)


@contextmanager
def on_another(gpu: str, other_gpu: str) -> Iterator[None]:
    """Turn what another GPU has failed with into a DeviceError of this one, which can be used on; `other` as 'the GPU
    that it copies to'. Around calls that only the other GPU can fail in this way. Other errors pass."""
    try:
        yield
    except RuntimeError as error:
        status = status_of(error)
        if status is None or status not in _GONE:
            raise
        says = _SAYS.get(status, sentence(error))
        raise DeviceError(f"{gpu}: {other_gpu} cannot be used: {says} (CUDA error {status})") from error


@contextmanager
def explained(gpu: str, doing: str) -> Iterator[None]:
    """Turn errors of CUDA and its compiler into DeviceError, each with what was being done to which GPU."""
    try:
        yield
    except WhorlError:
        raise
    except Exception as error:
        explained_as = explain(error, gpu, doing)
        if explained_as is None:
            raise
        raise explained_as from error
