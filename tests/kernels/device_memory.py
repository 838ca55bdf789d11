"""The memory of the GPUs that the tests stand in for: host memory of known bounds, what was written in it, and races.

The checks follow the memory model of PTX: two threads may touch the same bytes, one of them writing, if both do it by
atomics or volatile accesses, or if a barrier of their block lies between. Nothing orders different blocks of a launch:
no kernel has a fence.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whorl.tests.kernels.ptx import UNSIGNED

PAGE = mmap.PAGESIZE
GRANULE = 4
"""Races in global memory are looked for by this many bytes, or by fewer where an access is of fewer."""
LOGGED = 1 << 22
"""Accesses of a launch that are kept before they are compared."""


class Fault(AssertionError):  # noqa: N818 - CUDA's word
    """What a kernel must not do, in a sentence with kernel, block, thread, address and instruction."""


class Access(NamedTuple):
    """One instruction's accesses to one allocation: a place and a thread each."""

    kind: str
    """"read" or "write"."""
    strong: bool
    """Whether by an atomic or a volatile access."""
    size: int
    offsets: NDArray[np.int64]
    threads: NDArray[np.int64]
    """Numbers in the grid."""
    time: int
    instruction: str


class Bytes:
    """Memory with a note of what was written. `room`: bytes that can be used, beyond which there is a guard."""

    def __init__(self, raw: NDArray[np.uint8], *, written: bool) -> None:
        self.raw = raw
        self.complete = written
        """Whether all of it was written."""
        self._written = np.zeros(0 if written else raw.size, np.uint8)
        self._views: dict[Any, NDArray[Any]] = {}

    def view(self, dtype: Any) -> NDArray[Any]:
        """All of it as numbers of one type."""
        if dtype not in self._views:
            self._views[dtype] = self.raw.view(dtype)
        return self._views[dtype]

    def unwritten(self, offsets: NDArray[np.int64], size: int) -> NDArray[np.bool_] | None:
        """Of each place of `size` bytes whether some of them were never written; None where all were."""
        if self.complete:
            return None
        marks = self._written.view(UNSIGNED[size])[offsets // size]
        missing: NDArray[np.bool_] = marks != int.from_bytes(b"\1" * size, "little")
        return missing if missing.any() else None

    def mark(self, offsets: NDArray[np.int64], size: int) -> None:
        """Places of `size` bytes are written."""
        if not self.complete:
            self._written.view(UNSIGNED[size])[offsets // size] = int.from_bytes(b"\1" * size, "little")

    def mark_range(self, first: int, count: int, marks: NDArray[np.uint8] | int = 1) -> None:
        """Bytes of a range are written, or as `marks` says."""
        if not self.complete:
            self._written[first : first + count] = marks

    def marks(self, first: int, count: int) -> NDArray[np.uint8] | int:
        return 1 if self.complete else self._written[first : first + count].copy()


class Allocation(Bytes):
    """A piece of memory with an address, which lies in pages of its own."""

    def __init__(self, size: int, device: int, *, written: bool) -> None:
        self.size, self.device = size, device
        self.label = f"memory of {size} bytes"
        self._pages = mmap.mmap(-1, -(-(size + 512) // PAGE) * PAGE)
        raw = np.frombuffer(self._pages, np.uint8)
        raw[:] = 0xA5
        super().__init__(raw, written=written)
        self.base = int(raw.ctypes.data)
        self.log: list[Access] = []

    def alias(self, first: int, second: int, count: int) -> None:
        """Let two ranges (offsets and size in whole pages) be the same memory: a fault of address lines."""
        assert first % PAGE == second % PAGE == count % PAGE == 0
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        shared = os.memfd_create("aliased")
        try:
            os.ftruncate(shared, count)
            flags = mmap.MAP_SHARED | 0x10  # MAP_FIXED
            for offset in (first, second):
                address = self.base + offset
                assert libc.mmap(address, count, mmap.PROT_READ | mmap.PROT_WRITE, flags, shared, 0) == address
        finally:
            os.close(shared)


SEVERAL = -2
"""Threads of several warps read a granule; threads of one warp: SEVERAL - 1 - the warp."""


class SharedRaces:
    """Races for the shared memory of the blocks of a wave, found as they happen.

    warps: of each thread of the wave. granule: the smallest access of the kernel, in bytes.
    """

    def __init__(self, size: int, granule: int, warps: NDArray[np.int64]) -> None:
        self._granule, self._warps = granule, warps
        self._who = {kind: np.full(size // granule + 1, -1, np.int64) for kind in ("write", "read", "strong")}
        self._when = {kind: np.zeros(size // granule + 1, np.int64) for kind in self._who}
        self._barriers = np.zeros(warps.size, np.int64)

    def barrier(self, threads: NDArray[np.int64], time: int) -> None:
        """The threads passed a barrier of their blocks."""
        self._barriers[threads] = time

    def note(self, access: Access) -> int | None:
        """Accesses of one instruction by threads of the wave; of one that races the place among them."""
        against = ["write"] if access.strong else ["write", "strong"]
        if access.kind == "write":
            against.append("read")
        for shift in range(access.size // self._granule):
            places = access.offsets // self._granule + shift
            for earlier in against:
                clash = self._unordered(earlier, places, access.threads)
                if clash.any():
                    return int(np.flatnonzero(clash)[0])
            if access.kind == "read":
                self._enter_readers(places, access)
                continue
            kind = "strong" if access.strong else "write"
            self._who[kind][places], self._when[kind][places] = access.threads, access.time
            twice = self._who[kind][places] != access.threads
            if twice.any() and not access.strong:
                return int(np.flatnonzero(twice)[0])
        return None

    def _unordered(self, kind: str, places: NDArray[np.int64], threads: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where another thread touched the place, and no barrier lies between."""
        last, times = self._who[kind][places], self._when[kind][places]
        unordered: NDArray[np.bool_] = (last != -1) & (last != threads) & (times > self._barriers[threads])
        return unordered

    def _warp_of(self, readers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The warp of a thread or of several; -1 where they are of different ones."""
        warps: NDArray[np.int64] = np.where(readers >= 0, self._warps[np.maximum(readers, 0)], SEVERAL - 1 - readers)
        return warps

    def _enter_readers(self, places: NDArray[np.int64], access: Access) -> None:
        threads, readers = access.threads, self._who["read"]
        joined = self._unordered("read", places, threads)
        same_warp = self._warp_of(readers[places]) == self._warps[threads]
        entered = np.where(joined, np.where(same_warp, SEVERAL - 1 - self._warps[threads], SEVERAL), threads)
        readers[places], self._when["read"][places] = entered, access.time
        last = readers[places]
        differ = last != entered
        if differ.any():
            same_warp = differ & (self._warp_of(last) == self._warps[threads])
            readers[places[same_warp]] = SEVERAL - 1 - self._warps[threads[same_warp]]
            readers[places[differ & ~same_warp]] = SEVERAL


@dataclass
class Order:
    """When the threads of a launch passed what orders their accesses."""

    threads_per_block: int
    barriers: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Block -> times."""

    def ordered(self, before: tuple[int, int], after: tuple[int, int]) -> bool:
        """Whether an access (thread, time) lies before a later one for sure."""
        (thread, began), (second, ended) = before, after
        block = thread // self.threads_per_block
        if thread == second or block != second // self.threads_per_block:
            return thread == second
        times = self.barriers[block]  # they ascend
        at = bisect_right(times, began)
        return at < len(times) and times[at] <= ended


def race(log: list[Access], size: int, order: Order) -> tuple[int, tuple[int, int], tuple[int, int]] | None:
    """The first race in the accesses to one allocation: the offset, and thread and time of two accesses."""
    writes = [access for access in log if access.kind == "write"]
    if not writes:
        return None
    granule = min(GRANULE, *(access.size for access in log))
    writer = np.full(size // granule + 1, -1, np.int64)
    suspects: list[NDArray[np.int64]] = []

    def places(access: Access) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        count = access.size // granule
        return (access.offsets[:, None] // granule + np.arange(count)).ravel(), np.repeat(access.threads, count)

    for access in writes:
        at, threads = places(access)
        others = (writer[at] >= 0) & (writer[at] != threads)
        writer[at] = threads
        suspects.append(at[others | (writer[at] != threads)])
    for access in log:
        if access.kind == "read":
            at, threads = places(access)
            suspects.append(at[(writer[at] >= 0) & (writer[at] != threads)])
    suspected = np.unique(np.concatenate(suspects))
    if suspected.size and not all(access.strong for access in log):
        return _first_race(log, suspected, granule, order)
    return None


def _first_race(
    log: list[Access], suspected: NDArray[np.int64], granule: int, order: Order
) -> tuple[int, tuple[int, int], tuple[int, int]] | None:
    """Pairs of accesses of the suspected granules, until one is found that nothing orders."""
    events: defaultdict[int, list[tuple[int, int, bool, bool]]] = defaultdict(list)
    for access in log:
        for shift in range(access.size // granule):
            places = access.offsets // granule + shift
            for at in np.flatnonzero(np.isin(places, suspected)).tolist():
                event = int(access.threads[at]), access.time, access.kind == "write", access.strong
                events[int(places[at])].append(event)
    for place in suspected.tolist():
        weak = [event for event in events[place] if not event[3]]
        for thread, time, writes, strong in events[place]:
            for partner, partner_time, _, _ in (weak if strong else events[place]) if writes else ():
                first, second = ((thread, time), (partner, partner_time))[:: 1 if time <= partner_time else -1]
                if thread != partner and not order.ordered(first, second):
                    return place * granule, first, second
    return None
