"""Real GPUs through CuPy: the list of them, and each one as a `Device`.

Nothing here changes a setting of a GPU.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceError, InputError
from ..store.names import this_node
from .cublas import WORKSPACE_BYTES, Cublas, library
from .cuda import PEER_ALREADY_ENABLED, NvmlView, cuda_uuid, explained, on_another, open_context, status_of
from .cupy_library import compiled, cuda_version, find_cupy, gpu_count
from .cupy_loaded import CupyLoaded
from .work import Facts, Work

_MOST_DYNAMIC_SHARED = 8
"""CUDA's CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


def cupy_devices(indices: Sequence[int] | None = None, unusable: list[Unusable] | None = None) -> list[CupyDevice]:
    """The GPUs that CUDA shows to this process, or those with these numbers among them.

    InputError where CuPy is missing or does not fit the driver, or no GPU is visible, each in a sentence. A GPU that
    fails when it is asked what it is goes to `unusable`; DeviceError where that is None, or no GPU is left. To list
    them touches no GPU; each is opened by the first work that is loaded on it.
    """
    cupy = find_cupy()
    count = gpu_count(cupy)
    wrong = [index for index in indices or () if not 0 <= index < count]
    if wrong:
        raise InputError(f"there is no GPU {wrong[0]}: CUDA shows {count}, numbered from 0")
    devices: list[CupyDevice] = []
    first: DeviceError | None = None
    for ordinal in range(count) if indices is None else indices:
        try:
            devices.append(CupyDevice(cupy, ordinal, count))
        except DeviceError as error:
            if unusable is None:
                raise
            first = first or error
            gpu_uuid = cuda_uuid(ordinal)
            unusable.append(Unusable(ordinal, None if gpu_uuid is None else f"GPU-{gpu_uuid}", str(error)))
    if first is not None and not devices:
        raise first
    return devices


@dataclass(frozen=True)
class Unusable:
    """A GPU that CUDA shows and that does not say what it is."""

    ordinal: int
    """CUDA's number of it."""
    gpu: str | None
    """UUID; None where the driver does not tell."""
    says: str


def _never_free(*objects: object) -> None:
    """Keep CuPy objects, and the modules that they refer to, until the process ends.

    Unloading a module waits for its GPU: a GPU that hangs would keep the process from ending. And CuPy unloads what is
    left from the main thread, which often has no current GPU: each module would print an error.
    """
    for kept_object in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept_object))


class CupyDevice:
    """One real GPU; see `Device`. Used from one thread at a time."""

    simulated = False

    def __init__(self, cupy: Any, ordinal: int, count: int) -> None:
        """`ordinal` is CUDA's number of it among the `count` that it shows. DeviceError."""
        self.runtime = cupy.cuda.runtime
        self.ordinal = ordinal
        self.lost: str | None = None
        """Why the GPU is lost; None while it works."""
        self.lost_by = ""
        """The outcome of the run in which it was lost, as in `DeviceError`."""
        self._cupy = cupy
        self._stream: Any = None
        self._blas: Cublas | None = None
        self._workspace: int | None = None
        self._functions: dict[tuple[str, str, tuple[str, ...]], Any] = {}
        self._open: list[CupyLoaded] = []
        self._here = threading.local()
        with explained(f"CUDA device {ordinal}", "asking what it is"):
            gpu_uuid = cuda_uuid(ordinal)
            if gpu_uuid is None:
                raise DeviceError(
                    f"CUDA device {ordinal}: the driver does not give its UUID, which identifies it in tables"
                )
            self._nvml = NvmlView(gpu_uuid)
            self._peers = [
                peer for peer in range(count) if peer != ordinal and self.runtime.deviceCanAccessPeer(ordinal, peer)
            ]
            self.facts = self._facts()

    # -- what it is ---------------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        runtime, properties = self.runtime, self.runtime.getDeviceProperties(self.ordinal)

        def attribute(name: str) -> int:
            return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), self.ordinal))

        name = properties["name"]
        transfers_a_second = 2e3 * attribute("MemoryClockRate")  # two per clock, which is in kHz
        bandwidth = transfers_a_second * attribute("GlobalMemoryBusWidth") / 8e9
        return Facts(
            gpu=self._nvml.gpu,
            model=name.decode() if isinstance(name, bytes) else str(name),
            node=this_node(),
            index=self.ordinal if self._nvml.index is None else self._nvml.index,
            capability=(int(properties["major"]), int(properties["minor"])),
            sms=attribute("MultiProcessorCount"),
            memory_bytes=int(properties["totalGlobalMem"]),
            l2_bytes=attribute("L2CacheSize"),
            max_clock_mhz=attribute("ClockRate") / 1e3,
            bandwidth_gb_s=bandwidth or None,
            peers=len(self._peers),
            shared_bytes=attribute("MaxSharedMemoryPerBlockOptin"),
        )

    @property
    def peer(self) -> int | None:
        """CUDA's number of the GPU that this one copies to: the next higher one that it can reach, else the lowest."""
        later = [peer_ordinal for peer_ordinal in self._peers if peer_ordinal > self.ordinal]
        return next(iter(later or self._peers), None)

    @property
    def versions(self) -> Mapping[str, str]:
        """See `Device.versions`. cuBLAS is among them once a product was loaded."""
        runtime = self.runtime
        versions = {
            "cupy": str(self._cupy.__version__),
            "cuda_runtime": cuda_version(runtime.runtimeGetVersion()),
            "cuda_driver": cuda_version(runtime.driverGetVersion()),
        }
        if self._nvml.driver is not None:
            versions["driver"] = self._nvml.driver
        with suppress(Exception):  # CuPy loads NVRTC when it compiles
            versions["nvrtc"] = ".".join(map(str, self._cupy.cuda.nvrtc.getVersion()))
        if self._blas is not None:
            with suppress(DeviceError):
                versions["cublas"] = self._blas.version
        return versions

    def now_ns(self) -> int:
        return time.time_ns()

    def others(self) -> Sequence[str]:
        return self._nvml.others()

    def free_bytes(self) -> int:
        with self.using("asking for its free memory"):
            return int(self.runtime.memGetInfo()[0])

    # -- working on it ------------------------------------------------------------------------------------

    @contextmanager
    def using(self, doing: str) -> Iterator[None]:
        """Make this GPU and its stream the current ones of the thread. The GPU stays the current one afterwards.

        Errors name the GPU and what was being done. Raises DeviceError if the GPU is lost; if a call loses it, that is
        remembered for the next one.
        """
        if self.lost is not None:
            raise DeviceError(self.lost, gone=True, outcome=self.lost_by)
        gpu = self.facts.gpu
        try:
            with ExitStack() as stack:
                stack.enter_context(explained(gpu, doing))
                self._make_current()
                stack.enter_context(self._stream)
                yield
        except DeviceError as error:
            if error.gone:
                self.give_up(str(error), error.outcome)
            if gpu in str(error):
                raise
            raise DeviceError(f"{gpu}: {doing}: {error}", gone=error.gone, outcome=error.outcome) from error

    def _make_current(self) -> None:
        """Make it the thread's current GPU, and open it the first time.

        CuPy's `Device` is not used: when it ends, it makes the GPU before it current again. A thread begins with the
        first GPU, and CUDA 12 opens each GPU that becomes current. If the first GPU has failed, or belongs to somebody
        else, that would fail here too.
        """
        if self._stream is None:
            open_context(self.ordinal)
        # CuPy's call holds Python's lock, and may wait for a GPU that hangs: once for each thread is enough.
        if not getattr(self._here, "entered", False) or self.runtime.getDevice() != self.ordinal:
            self.runtime.setDevice(self.ordinal)
            self._here.entered = True
        if self._stream is None:
            self._stream = self._cupy.cuda.Stream(non_blocking=True)

    def give_up(self, why: str, outcome: str) -> None:
        """Remember that this GPU is lost; `outcome` as in `DeviceError`."""
        if self.lost is None:
            self.lost, self.lost_by = why, outcome
            _never_free(self._stream)

    def reach(self, ordinal: int, other_gpu: str) -> None:
        """Let this GPU, which is the current one, reach the memory of another. `other_gpu` is what errors call it."""
        open_context(ordinal)
        try:
            self.runtime.deviceEnablePeerAccess(ordinal)
        except RuntimeError as error:
            if status_of(error) == PEER_ALREADY_ENABLED:
                return
            self.runtime.memGetInfo()  # fails if this GPU is the cause; else the other GPU is
            with on_another(self.facts.gpu, other_gpu):
                raise

    async def load(self, work: Work, *, seed: int) -> CupyLoaded:
        with self.using(f"loading {work.kernel}"):
            if self.peer is not None and any(buffer.place == "peer" for buffer in work.buffers):
                self.reach(self.peer, "the GPU that it copies to")
            loaded = CupyLoaded(self, work, seed, self._forget)
            self._open.append(loaded)
            return loaded

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _forget(self, loaded: CupyLoaded) -> None:
        if loaded in self._open:
            self._open.remove(loaded)

    def close(self) -> None:
        """See `Device.close`. What hangs or failed is left as it is."""
        for loaded in list(self._open):
            loaded.unload()
        if self._stream is not None:  # what was never opened is not opened to be closed
            with suppress(Exception), self.using("closing"):
                if self._blas is not None:
                    self._blas.close()
                if self._workspace is not None:
                    self.runtime.free(self._workspace)
        self._blas = self._workspace = self._stream = None
        self._functions.clear()

    # -- inside `using` -----------------------------------------------------------------------------------

    @property
    def stream_address(self) -> int:
        return int(self._stream.ptr)

    def function(self, name: str, function: str, defines: tuple[str, ...]) -> Any:
        """A function of a source file, compiled for this GPU. Raises DeviceError."""
        key = (name, function, defines)
        if key not in self._functions:
            self._functions[key] = compiled(self._cupy, name, function, defines)
            _never_free(self._functions[key])
        return self._functions[key]

    def allow_shared(self, kernel: Any, size: int) -> None:
        """Let the blocks of a function have so many bytes of shared memory: above 48 KiB it must be asked for."""
        compiled_function = getattr(kernel, "kernel", kernel)  # RawModule gives a RawKernel, its compiler a Function
        self._cupy.cuda.driver.funcSetAttribute(compiled_function.ptr, _MOST_DYNAMIC_SHARED, size)

    def library(self, name: str) -> Any:
        """A library of the CUDA toolkit, such as 'cublasLt'. Raises DeviceError if it is not found."""
        return library(name, int(self.runtime.runtimeGetVersion()) // 1000)

    @property
    def workspace(self) -> int:
        """The address of WORKSPACE_BYTES on the GPU, which its matrix products share: they run one after another."""
        if self._workspace is None:
            self._workspace = int(self.runtime.malloc(WORKSPACE_BYTES))
        return self._workspace

    @property
    def blas(self) -> Cublas:
        if self._blas is None:
            self._blas = Cublas(self.library("cublas"), self.stream_address, self.workspace)
        return self._blas
