"""The memory of a work on a GPU: allocated, filled with repeating inputs, freed.

Plain allocations of the CUDA runtime, none of a pool: what a work holds is what its buffers say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DeviceError, InputError
from .cuda_errors import OUT_OF_MEMORY, on_another, status_of
from .inputs import filled
from .work import Array, Buffer, Work


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
        self._give_back: list[Callable[[], None]] = []
        self._kept: list[NDArray[Any]] = []  # host memory that a copy may still read

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
        self._give_back.append(lambda: self._runtime.free(address))
        return address

    def _take(self, buffer: Buffer) -> None:
        size = max(buffer.bytes, 1)
        if buffer.place == "device":
            address = self.scratch(size)
        elif buffer.place == "host":
            address = int(self._runtime.hostAlloc(size, self._runtime.hostAllocDefault))
            self._give_back.append(lambda: self._runtime.freeHost(address))
        elif self._peer is None:
            raise DeviceError(f"{self._gpu}: it cannot reach another GPU of this node")
        else:
            with self._on_peer():
                address = int(self._runtime.malloc(size))
            self._give_back.append(lambda: self._free_on_peer(address))
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
                left, total = self._runtime.memGetInfo()
                free = f"; {gigabytes(left)} of {gigabytes(total)} are free"
        return f"{self._gpu}: out of memory: {work.kernel} needs {gigabytes(need)}{whose}{free}"

    def release(self) -> None:
        """Give everything back. Never raises; safe to call twice."""
        while self._give_back:
            with suppress(Exception):
                self._give_back.pop()()
        self._address.clear()
        self._kept.clear()

    # -- filling ------------------------------------------------------------------------------------------

    def fill(self, name: str, seed: int) -> None:
        """Enqueue the filling of a buffer with its content: one period travels, the GPU repeats it."""
        buffer = self._of[name]
        assert buffer.content is not None
        made = buffer.content.make(seed) if isinstance(buffer.content, Array) else filled(seed, buffer)
        period = np.ascontiguousarray(made).reshape(-1)
        if period.dtype != np.dtype(buffer.dtype) or period.size == 0:
            raise InputError(f"the content of {name} is {period.size} of {period.dtype}, not some of {buffer.dtype}")
        if buffer.place == "host":
            self.host(name)[:] = np.resize(period, buffer.count)
        else:
            self._spread(name, period)

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
        if buffer.place == "host":
            self.host(name).view(np.uint8)[:] = 0xFF
        elif buffer.place == "peer":  # copies reach another GPU for certain, of setting memory no manual says so
            self._spread(name, np.full(min(buffer.bytes, 1 << 20), 0xFF, np.uint8))
        else:
            self._runtime.memsetAsync(self._address[name], 0xFF, buffer.bytes, self._stream)

    def host(self, name: str) -> NDArray[Any]:
        """A pinned buffer as an array that shares its memory."""
        buffer = self._of[name]
        memory = (ctypes.c_ubyte * buffer.bytes).from_address(self._address[name])
        return np.ndarray((buffer.count,), np.dtype(buffer.dtype), memoryview(memory).cast("B"))

    def upload(self, array: NDArray[Any]) -> int:
        """Memory on the GPU with a copy of an array, enqueued; its address."""
        address = self.scratch(array.nbytes)
        self._kept.append(array)
        self._copy(address, array.ctypes.data, array.nbytes)
        return address

    def download(self, array: NDArray[Any], address: int) -> None:
        """Copy so many bytes as an array holds into it. To be called when nothing is enqueued: CUDA waits, without a
        limit, for all that comes before a copy into memory that is not pinned."""
        self._copy(array.ctypes.data, address, array.nbytes)

    def landed(self) -> None:
        """Say that all that was enqueued is done, so that host memory need not be kept for it."""
        self._kept.clear()

    def _copy(self, target: int, source: int, size: int) -> None:
        self._runtime.memcpyAsync(target, source, size, self._runtime.memcpyDefault, self._stream)
