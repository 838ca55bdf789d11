"""The memory of a work on a GPU: allocated, filled, freed.

Plain allocations of the CUDA runtime, none of a pool: what a work holds is what its buffers say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, InputError
from .cuda import OUT_OF_MEMORY, on_another, status_of
from .inputs import cleared_faults, key, stored_table
from .work import FAULTS_NAME, Buffer, Lanes, Scalar, Words, Work

Launcher = Callable[[str, tuple[str, ...], int, tuple[Scalar, ...]], None]
"""Enqueues a function of fill.cu: its name, definitions, the number of elements, and its arguments."""


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


class Buffers:
    """Addresses by name of a work's buffers. To be used with the GPU as the current one."""

    def __init__(self, runtime: Any, gpu: str, ordinal: int, peer: int | None, stream: int) -> None:
        """`runtime` is `cupy.cuda.runtime`; `peer` the CUDA number of another GPU, where buffers may lie."""
        self._runtime = runtime
        self._gpu = gpu
        self._ordinal = ordinal
        self._peer = peer
        self._stream = stream
        self._address: dict[str, int] = {}
        self._of: dict[str, Buffer] = {}
        self._give_back: list[Callable[[], object]] = []
        self._kept: list[NDArray[Any]] = []  # host memory that a copy may still read
        self._placed: dict[str, tuple[int, NDArray[Any]]] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        self._cleared = cleared_faults()

    def __getitem__(self, name: str) -> int:
        if name not in self._address:
            raise InputError(f"a step names the buffer {name}; there are {', '.join(self._address) or 'none'}")
        return self._address[name]

    def buffer(self, name: str) -> Buffer:
        return self._of[name]

    # -- taking and giving back ---------------------------------------------------------------------------

    def take(self, work: Work) -> None:
        """Allocate all buffers of a work. DeviceError that says how much is needed and free; then none is kept."""
        try:
            for buffer in work.buffers:
                self._take(buffer)
        except Exception as error:
            self.release()
            if status_of(error) != OUT_OF_MEMORY:
                raise
            raise DeviceError(self._too_much(work, buffer)) from error

    def scratch(self, size: int) -> int:
        """The address of `size` bytes on the GPU that live as long as the others."""
        address = int(self._runtime.malloc(max(size, 1)))
        self.on_release(lambda: self._runtime.free(address))
        return address

    def on_release(self, give_back: Callable[[], object]) -> None:
        """Call this, too, when everything is given back: the last one first, and one that fails stops no other."""
        self._give_back.append(give_back)

    def _take(self, buffer: Buffer) -> None:
        size = max(buffer.bytes, 1)
        if buffer.place == "device":
            address = self.scratch(size)
        elif buffer.place == "host":
            address = int(self._runtime.hostAlloc(size, self._runtime.hostAllocDefault))
            self.on_release(lambda: self._runtime.freeHost(address))
        elif self._peer is None:
            raise DeviceError(f"{self._gpu}: it cannot reach another GPU of this node")
        else:
            with self._on_peer():
                address = int(self._runtime.malloc(size))
            self.on_release(lambda: self._free_on_peer(address))
        self._address[buffer.name] = address
        self._of[buffer.name] = buffer

    @contextmanager
    def _on_peer(self) -> Iterator[None]:
        try:
            with on_another(self._gpu, "the GPU that it copies to"):  # CUDA tells errors of the current GPU
                self._runtime.setDevice(self._peer)
                yield
        finally:
            self._runtime.setDevice(self._ordinal)

    def _free_on_peer(self, address: int) -> None:
        with self._on_peer():
            self._runtime.free(address)

    def _too_much(self, work: Work, buffer: Buffer) -> str:
        if buffer.place == "host":
            need = sum(b.bytes for b in work.buffers if b.place == "host")
            return f"{self._gpu}: {work.kernel} needs {gigabytes(need)} of pinned host memory, but the system has less"
        need = work.memory_bytes if buffer.place == "device" else buffer.bytes
        whose = "" if buffer.place == "device" else " on the other GPU"
        free = ""
        with suppress(Exception):  # the sentence is the same without it
            if buffer.place == "device":
                free_bytes, total = self._runtime.memGetInfo()
                free = f"; {gigabytes(free_bytes)} of {gigabytes(total)} are free"
        return f"{self._gpu}: out of memory: {work.kernel} needs {gigabytes(need)}{whose}{free}"

    def release(self) -> None:
        """Give everything back. Never raises; safe to call twice."""
        while self._give_back:
            with suppress(Exception):
                self._give_back.pop()()
        self._address.clear()
        self._placed.clear()
        self._arrays.clear()
        self._kept.clear()

    # -- filling ------------------------------------------------------------------------------------------

    def fill(self, name: str, seed: int, launch: Launcher) -> None:
        """Enqueue the filling of a buffer with its content.

        What knows its place is made by the GPU, `launch` being what enqueues a function of fill.cu, wherever the
        buffer lies: pinned memory and, once it is reached, a peer's are within the GPU's reach. Of an array one period
        travels, and the GPU repeats it.
        """
        buffer, content = self._of[name], self._of[name].content
        assert content is not None
        target = (np.uint64(self._address[name]), np.uint64(buffer.count), np.uint32(key(seed, name)))
        if isinstance(content, Words):
            if buffer.dtype != "uint32":
                raise InputError(f"the content of {name} is words of uint32, not some of {buffer.dtype}")
            launch("words", (), buffer.count, target)
        elif isinstance(content, Lanes):
            size = np.dtype(buffer.dtype).itemsize
            table = np.uint64(self.placed(name, self._array(name, lambda: stored_table(seed, name, content))))
            shape = (np.uint64(content.length), np.uint32(content.lanes), np.uint32(content.across))
            launch("lanes", (f"BYTES={size}",), buffer.count, (*target, table, *shape))
        else:
            period = self._array(name, lambda: content.make(seed))
            if not content.rise:
                self._spread(name, period)
                return
            number = {"float32": "float", "uint32": "unsigned int"}[buffer.dtype]
            address = np.uint64(self.placed(name, period))
            args = (*target[:2], address, np.uint64(period.size), np.uint32(content.rise % 2**32))
            launch("rising", (f"NUMBER={number}",), buffer.count, args)

    def _array(self, name: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """What the host makes for a buffer the first time, and keeps."""
        if name not in self._arrays:
            array, dtype = np.ascontiguousarray(make()).reshape(-1), self._of[name].dtype
            if array.dtype != np.dtype(dtype) or array.size == 0:
                raise InputError(f"the content of {name} is {array.size} of {array.dtype}, not some of {dtype}")
            self._arrays[name] = array
        return self._arrays[name]

    def _spread(self, name: str, period: NDArray[Any]) -> None:
        self._kept.append(period)
        address, total = self._address[name], self._of[name].bytes
        filled = min(period.nbytes, total)
        if filled:
            self._copy(address, period.ctypes.data, filled)
        while filled < total:  # doubling keeps whole periods in front until the last copy
            part = min(filled, total - filled)
            self._copy(address + filled, address, part)
            filled += part

    def poison(self, name: str) -> None:
        """Enqueue the filling with 0xFF: NaN in every floating-point format, and the last value of integers."""
        buffer = self._of[name]
        if buffer.place == "device":
            self._runtime.memsetAsync(self._address[name], 0xFF, buffer.bytes, self._stream)
        else:  # copies reach another GPU and pinned memory for certain, of setting memory no manual says so
            self._spread(name, np.full(min(buffer.bytes, 1 << 20), 0xFF, np.uint8))

    def clear_faults(self) -> None:
        """Enqueue the clearing of the counters, where the work has them."""
        if FAULTS_NAME in self._of:
            self._spread(FAULTS_NAME, self._cleared)

    def upload(self, array: NDArray[Any]) -> int:
        """Memory on the GPU with a copy of an array, enqueued; its address."""
        address = self.scratch(array.nbytes)
        self.overwrite(address, array)
        return address

    def placed(self, name: str, array: NDArray[Any]) -> int:
        """Where on the GPU an array lies that has this name; copied, enqueued, where it is another than before."""
        address, present = self._placed.get(name, (0, None))
        if present is not array:
            if present is not None and present.nbytes == array.nbytes:
                self.overwrite(address, array)
            else:
                address = self.upload(array)
            self._placed[name] = address, array
        return address

    def download(self, array: NDArray[Any], address: int) -> None:
        """Copy so many bytes as an array holds into it. To be called when nothing is enqueued: CUDA waits, without a
        limit, for all that comes before a copy into memory that is not pinned."""
        self._copy(array.ctypes.data, address, array.nbytes)

    def landed(self) -> None:
        """Say that all that was enqueued is done, so that host memory need not be kept for it."""
        self._kept.clear()

    def overwrite(self, address: int, array: NDArray[Any]) -> None:
        """Enqueue a copy of an array to an address."""
        self._kept.append(array)
        self._copy(address, array.ctypes.data, array.nbytes)

    def _copy(self, target: int, source: int, size: int) -> None:
        self._runtime.memcpyAsync(target, source, size, self._runtime.memcpyDefault, self._stream)
