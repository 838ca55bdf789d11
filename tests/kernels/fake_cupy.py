"""A CuPy that needs no GPU: as much of its interface as whorl uses, over host memory and NVRTC's code, interpreted.

It keeps what matters of a GPU's behaviour: work is enqueued in a stream and takes time, events are reached when the
work before them is, a capture records and does not run, memory is limited, and every call can be made to fail with a
code of CUDA. Results can be made wrong as a faulty GPU makes them: `FakeRuntime.harms`, `alias` and `dry`.
What it cannot show is whether a real GPU gives the same results or times.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from whorl.kernels.cupy_library import source
from whorl.tests.kernels import compiling
from whorl.tests.kernels.device_memory import Allocation
from whorl.tests.kernels.interpreter import Harm, Memory, Module, Shape, run_kernel

INVALID_HANDLE = 400
NOT_READY = 600
PEER_ALREADY_ENABLED = 704
SMS = 4


def any_source(name: str) -> str:
    """A source as `whorl.kernels.cupy_library.source` gives it; those of the tests as well."""
    path = compiling.NATIVE / name
    return path.read_text() if path.exists() else source(name)


class CUDARuntimeError(RuntimeError):
    """As CuPy's: the code is in `status`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError{status}: error number {status}")
        self.status = status


class CompileException(Exception):  # noqa: N818 - CuPy's name
    """As CuPy's: the text is the compiler's log."""


class FakeRuntime:
    """`cupy.cuda.runtime` of `count` GPUs."""

    memcpyDefault = 4  # noqa: N815 - these names are CuPy's
    hostAllocDefault = 0  # noqa: N815
    eventDisableTiming = 2  # noqa: N815
    streamCaptureModeRelaxed = 2  # noqa: N815
    streamNonBlocking = 1  # noqa: N815
    cudaDevAttrClockRate = 13  # noqa: N815
    cudaDevAttrMultiProcessorCount = 16  # noqa: N815
    cudaDevAttrMemoryClockRate = 36  # noqa: N815
    cudaDevAttrGlobalMemoryBusWidth = 37  # noqa: N815
    cudaDevAttrL2CacheSize = 38  # noqa: N815
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97  # noqa: N815

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.memory_bytes = 1 << 30
        self.launch_s = 5e-6
        self.fail: dict[str, int] = {}
        """Function name -> the status that its next call fails with."""
        self.ruined: dict[int, int] = {}
        """Device -> the status that every call in its context fails with."""
        self.complaints: list[str] = []
        """What CuPy wrote to standard error where no error could be raised."""
        self.driver, self.built = 12090, 12090
        self.outstanding = 0
        """The most launches that ever waited."""
        self.hang = False
        self.dry = False
        """Whether what is enqueued takes its time and does nothing."""
        self.harms: list[Harm] = []
        """What goes wrong in kernels."""
        self.launches = 0
        """Kernels that were run, those of graphs included."""
        self.memory = Memory()  # the device of pinned memory is -1
        self._tail: dict[int, float] = {}  # stream -> when what is enqueued ends
        self._interpreting_s = 0.0
        self._ends: list[float] = []
        self._streams: set[int] = set()
        self._events: dict[int, float] = {}
        self._timed: dict[int, bool] = {}  # events -> whether they were recorded; those without timing are not here
        self.opened: set[int] = set()
        """Devices on which there is a context."""
        self._reached: set[tuple[int, int]] = set()  # devices, and the peers that they can reach
        self._here = threading.local()  # CUDA's current device, and a capture, are those of a thread
        self._lock = threading.RLock()
        self._graphs: dict[int, list[Callable[[], None]]] = {}
        self._numbers = iter(range(1000, 10**9))
        self.graph_launches = 0

    @property
    def device(self) -> int:
        """The current one of this thread."""
        return 0 if self.context is None else self.context

    @property
    def context(self) -> int | None:
        """The device whose context is the current one of this thread; None where it has none yet."""
        return getattr(self._here, "device", None)

    def leave(self) -> None:
        """Let this thread have no context, as one that never worked on a GPU."""
        self._here.device = None

    @property
    def _captured(self) -> list[Callable[[], None]] | None:
        return getattr(self._here, "captured", None)

    # What tests look at

    @property
    def taken(self) -> int:
        """Bytes that were allocated and not given back, on GPUs and pinned."""
        return sum(allocation.size for allocation in self._allocations)

    @property
    def _allocations(self) -> list[Allocation]:
        return list(self.memory.allocations.values())

    def at(self, address: int) -> Allocation:
        """The memory that an address is in."""
        allocation = self.memory.find(address)
        assert allocation is not None, f"{address:#x} is in no memory of this GPU"
        return allocation

    def alias(self, address: int, first: int, second: int, count: int) -> None:
        """Let two ranges of a buffer, whole pages, be the same memory."""
        self.at(address).alias(first, second, count)

    @property
    def alive(self) -> int:
        """Streams, events, graphs and graph executables that exist."""
        return len(self._streams) + len(self._events) + len(self._graphs)

    def _called(self, name: str) -> None:
        if name in self.fail:
            raise CUDARuntimeError(self.fail.pop(name))
        if self.device in self.ruined and name not in ("getDeviceCount", "getDeviceProperties", "setDevice"):
            raise CUDARuntimeError(self.ruined[self.device])

    def end(self) -> None:
        """What hangs comes to its end now."""
        self.hang = False
        self._tail.clear()
        self._events = dict.fromkeys(self._events, 0.0)

    def now(self) -> float:
        """Seconds, without those that the interpreter takes, which a GPU would not."""
        return time.monotonic() - self._interpreting_s

    def enqueue(self, action: Callable[[], None], stream: int) -> None:
        """Run in a stream, or remember where a capture is under way."""
        if self._captured is not None:
            self._captured.append(action)
            return
        with self._lock:
            self._enqueued(action, stream)

    def _enqueued(self, action: Callable[[], None], stream: int) -> None:
        began = time.monotonic()
        if not self.dry:
            action()
        self._interpreting_s += time.monotonic() - began
        now = self.now()
        self._tail[stream] = float("inf") if self.hang else max(now, self._tail.get(stream, 0.0)) + self.launch_s
        self._ends = [end for end in self._ends if end > now] + [self._tail[stream]]
        self.outstanding = max(self.outstanding, len(self._ends))

    # Devices

    def getDeviceCount(self) -> int:  # noqa: N802
        self._called("getDeviceCount")
        return self.count

    def driverGetVersion(self) -> int:  # noqa: N802
        return self.driver

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return self.built

    def getDeviceProperties(self, device: int) -> dict[str, Any]:  # noqa: N802
        self._called("getDeviceProperties")
        return {"name": b"Fake H100", "major": 9, "minor": 0, "totalGlobalMem": self.memory_bytes}

    def deviceGetAttribute(self, attribute: int, device: int) -> int:  # noqa: N802
        return {13: 1_980_000, 16: SMS, 36: 2_619_000, 37: 5120, 38: 50 << 20, 97: 48 << 10}[attribute]

    def deviceCanAccessPeer(self, device: int, peer: int) -> int:  # noqa: N802
        return int(device != peer)

    def deviceEnablePeerAccess(self, peer: int) -> None:  # noqa: N802
        self._called("deviceEnablePeerAccess")
        if peer in self.ruined:
            raise CUDARuntimeError(self.ruined[peer])
        self.opened.add(peer)
        if (self.device, peer) in self._reached:
            raise CUDARuntimeError(PEER_ALREADY_ENABLED)
        self._reached.add((self.device, peer))

    def getDevice(self) -> int:  # noqa: N802
        return self.device

    def setDevice(self, device: int) -> None:  # noqa: N802
        self._called("setDevice")
        self.opened.add(device)  # since CUDA 12 at once
        self._here.device = device

    # Memory

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        self._called("memGetInfo")
        held = sum(allocation.size for allocation in self._allocations if allocation.device == self.device)
        return self.memory_bytes - held, self.memory_bytes

    def _allocate(self, size: int, device: int) -> int:
        return self.memory.take(size, device, written=device == -1).base

    def malloc(self, size: int) -> int:
        self._called("malloc")
        if size > self.memGetInfo()[0]:
            raise CUDARuntimeError(2)
        return self._allocate(size, self.device)

    def free(self, address: int) -> None:
        assert not self.hang, "to free memory waits for the GPU: this would block for ever"
        self._called("free")
        assert self.memory.allocations[address].device == self.device
        del self.memory.allocations[address]

    def hostAlloc(self, size: int, flags: int) -> int:  # noqa: N802
        self._called("hostAlloc")
        return self._allocate(size, -1)

    def freeHost(self, address: int) -> None:  # noqa: N802
        assert self.memory.allocations[address].device == -1
        del self.memory.allocations[address]

    def _lies_on(self, address: int) -> int | None:
        """The device (-1: pinned) whose memory an address is in; None where it is ordinary memory of the host."""
        allocation = self.memory.find(address)
        return None if allocation is None else allocation.device

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self._called("memcpyAsync")
        if self._lies_on(target) is None and self._lies_on(source) is not None:
            assert self.now() >= self._tail.get(stream, 0.0), "it waits for all that is enqueued, without a limit"
        self.enqueue(lambda: self._copy(target, source, size), stream)

    def _copy(self, target: int, source: int, size: int) -> None:
        ends = [(place, self.memory.find(place)) for place in (target, source)]
        for place, allocation in ends:
            inside = allocation is None or place + size <= allocation.base + allocation.size
            assert inside, f"a copy of {size} bytes goes beyond the memory that it begins in"
        ctypes.memmove(target, source, size)
        (_, written), (_, read) = ends
        if written is not None:
            marks = 1 if read is None else read.marks(source - read.base, size)
            written.mark_range(target - written.base, size, marks)

    def memsetAsync(self, address: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        assert self._lies_on(address) == self.device, "of another GPU's memory no manual says that it can be set"
        self.enqueue(lambda: self._set(address, value, size), stream)

    def _set(self, address: int, value: int, size: int) -> None:
        allocation = self.at(address)
        assert address + size <= allocation.base + allocation.size, f"{size} bytes are more than the memory has"
        ctypes.memset(address, value, size)
        allocation.mark_range(address - allocation.base, size)

    def streamCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        assert flags == self.streamNonBlocking
        self._called("streamCreateWithFlags")
        stream = next(self._numbers)
        self._streams.add(stream)
        return stream

    def streamWaitEvent(self, stream: int, event: int, flags: int = 0) -> None:  # noqa: N802
        assert flags == 0
        self._tail[stream] = max(self._tail.get(stream, 0.0), self._events[event])

    def streamDestroy(self, stream: int) -> None:  # noqa: N802
        self._streams.remove(stream)

    # Events

    def eventCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        event = next(self._numbers)
        self._events[event] = 0.0
        if not flags & self.eventDisableTiming:
            self._timed[event] = False
        return event

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        self._called("eventRecord")
        self._events[event] = max(self.now(), self._tail.get(stream, 0.0))
        if event in self._timed:
            self._timed[event] = True

    def eventQuery(self, event: int) -> int:  # noqa: N802
        if "eventQuery" in self.fail:
            return self.fail["eventQuery"]  # such errors stay
        return 0 if self.now() >= self._events[event] else NOT_READY

    def eventElapsedTime(self, began: int, ended: int) -> float:  # noqa: N802
        if not (self._timed.get(began) and self._timed.get(ended)):
            raise CUDARuntimeError(INVALID_HANDLE)
        if self.eventQuery(began) or self.eventQuery(ended):
            raise CUDARuntimeError(NOT_READY)
        return float(np.float32(1e3 * (self._events[ended] - self._events[began])))

    def eventDestroy(self, event: int) -> None:  # noqa: N802
        del self._events[event]
        self._timed.pop(event, None)

    @staticmethod
    def check_status(status: int) -> None:
        if status:
            raise CUDARuntimeError(status)

    # Graphs

    def streamBeginCapture(self, stream: int, mode: int = 2) -> None:  # noqa: N802
        self._called("streamBeginCapture")
        self._here.captured = []

    def streamEndCapture(self, stream: int) -> int:  # noqa: N802
        assert self._captured is not None
        graph, actions = next(self._numbers), self._captured
        self._here.captured = None
        self._called("streamEndCapture")
        self._graphs[graph] = actions
        return graph

    def graphInstantiate(self, graph: int) -> int:  # noqa: N802
        self._called("graphInstantiate")
        ready = next(self._numbers)
        self._graphs[ready] = self._graphs[graph]
        return ready

    def graphLaunch(self, graph: int, stream: int) -> None:  # noqa: N802
        self.graph_launches += 1
        actions = self._graphs[graph]
        self.enqueue(lambda: all_of(actions), stream)

    def graphDestroy(self, graph: int) -> None:  # noqa: N802
        del self._graphs[graph]

    def graphExecDestroy(self, graph: int) -> None:  # noqa: N802
        del self._graphs[graph]


def void(*_: object) -> None:
    """Nothing, of anything."""


def all_of(actions: list[Callable[[], None]]) -> None:
    for action in actions:
        action()


class _Current:
    """What `with` makes the current device or stream."""

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None], ptr: int = 0) -> None:
        self._enter, self._leave, self.ptr = enter, leave, ptr

    def __enter__(self) -> _Current:
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()


class FakeFunction:
    """`cupy.cuda.function.Function`: a kernel of a module, which it keeps."""

    def __init__(self, module: FakeModule, name: str) -> None:
        self._module, self._name = module, name
        self.ptr = id(self)
        self.most_dynamic_shared = 48 << 10
        module.cupy.functions[self.ptr] = self

    def __call__(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        cupy = self._module.cupy
        runtime, shape = cupy.runtime, Shape(grid, block, shared_mem)
        runtime._called("launch")
        assert all(isinstance(argument, np.generic) for argument in args), "a plain number travels as 64 bits"
        assert shared_mem <= self.most_dynamic_shared, "a block has not so much shared memory"
        stream = cupy.streams[-1]  # IndexError: a launch outside of the device's stream

        def run() -> None:
            runtime.launches += 1
            options: dict[str, Any] = {"sms": SMS, "harms": runtime.harms, "number": runtime.launches}
            run_kernel(self._module.code, self._name, shape, args, **options)

        runtime.enqueue(run, stream)


class FakeModule:
    """`cupy.cuda.function.Module`: code that is loaded on the current device, and unloaded when the object goes."""

    def __init__(self, cupy: FakeCupy, ptx: str) -> None:
        self.cupy = cupy
        self._loaded_on = cupy.runtime.device
        self.code = Module(ptx, cupy.runtime.memory)

    def get_function(self, name: str) -> FakeFunction:
        """A function of it, which keeps it."""
        assert name in self.code.kernels, f"no kernel {name}"
        return FakeFunction(self, name)

    def __del__(self) -> None:
        if self.cupy.runtime.context != self._loaded_on:
            self.cupy.runtime.complaints.append("CUDADriverError 201: Exception ignored in Module.__dealloc__")


class FakeCupy:
    """The module `cupy`."""

    __version__ = "14.2.0"

    def __init__(self, runtime: FakeRuntime) -> None:
        self.runtime = runtime
        self._here = threading.local()
        self.compiled: list[tuple[str, ...]] = []
        """The options of what was compiled."""
        self.headers = True
        """Whether there are headers of the CUDA toolkit, without which RawModule does nothing."""
        self._modules: dict[tuple[Any, ...], FakeModule] = {}  # those of RawModule, which CuPy keeps until the end
        self.functions: WeakValueDictionary[int, FakeFunction] = WeakValueDictionary()
        nvrtc = SimpleNamespace(getVersion=lambda: (12, 9))
        driver = SimpleNamespace(funcSetAttribute=self._set_attribute)
        compiler = SimpleNamespace(_compile_module_with_cache=self._module)
        self.cuda = SimpleNamespace(
            runtime=runtime, driver=driver, Device=self._device, Stream=self._stream, nvrtc=nvrtc, compiler=compiler
        )

    def _set_attribute(self, function: int, attribute: int, value: int) -> None:
        assert attribute == 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.functions[function].most_dynamic_shared = value

    @property
    def streams(self) -> list[int]:
        """This thread's current streams, the innermost last."""
        if not hasattr(self._here, "streams"):
            self._here.streams = []
        streams: list[int] = self._here.streams
        return streams

    def _device(self, ordinal: int) -> _Current:
        before = self.runtime.device
        return _Current(lambda: self.runtime.setDevice(ordinal), lambda: self.runtime.setDevice(before))

    def _stream(self, *, non_blocking: bool) -> _Current:
        assert non_blocking
        self.runtime._called("streamCreate")
        ptr = next(self.runtime._numbers)
        made_on = self.runtime.device

        def enter() -> None:
            if self.runtime.device != made_on:  # CuPy's words, and no error of CUDA
                raise RuntimeError(f"The device that the stream is created on ({made_on}) does not match")
            self.streams.append(ptr)

        return _Current(enter, lambda: void(self.streams.pop()), ptr)

    def RawModule(self, *, code: str, options: tuple[str, ...], backend: str) -> SimpleNamespace:  # noqa: N802
        def get_function(name: str) -> FakeFunction:
            if not self.headers:
                raise RuntimeError("Failed to find CUDA headers. Please install CUDA toolkit headers")
            key = (self.runtime.device, code, options)
            if key not in self._modules:
                self._modules[key] = self._module(code, options, backend=backend)
            return self._modules[key].get_function(name)

        return SimpleNamespace(get_function=get_function)

    def _module(self, code: str, options: tuple[str, ...], *, backend: str) -> FakeModule:
        assert backend == "nvrtc"
        self.runtime._called("compile")
        self.compiled.append(options)
        defines = tuple(option[2:] for option in options if option.startswith("-D"))
        try:
            return FakeModule(self, compiling.ptx(code, "90", defines))
        except compiling.CompileError as error:
            raise CompileException(str(error)) from error

    def end(self) -> None:
        """What CuPy does when the process ends: the main thread, which may have no GPU, drops all modules."""
        self.runtime.leave()
        self._modules.clear()


class LibraryInStream:
    """cuBLAS compiled for the host, whose products are enqueued as those of the real one are."""

    def __init__(self, cupy: FakeCupy) -> None:
        self.real = compiling.c_library("cublas.c")
        self._cupy = cupy

    @property
    def handles(self) -> int:
        return ctypes.c_int.in_dll(self.real, "open_handles").value

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.real, name)
        if name not in ("cublasGemmEx", "cublasGemmStridedBatchedEx", "cublasLtMatmul"):
            return function

        def enqueued(*args: Any) -> int:
            runtime, statuses = self._cupy.runtime, []

            def run() -> None:
                statuses.append(function(*args))
                for argument in args:  # what it wrote is written
                    place = getattr(argument, "value", argument)
                    matrix = runtime.memory.find(place) if isinstance(place, int) else None
                    if matrix is not None:
                        matrix.complete = True

            runtime.enqueue(run, self._cupy.streams[-1])
            return int(statuses[0]) if statuses else 0

        return enqueued
