"""Several GPUs of a node in one process, which exchange data past the host: copies of pairs, and all-reduces.

Each repetition moves words that no other one moves, and every word that arrives is compared, outside of the times. So
what was not moved, or was moved to another place, is seen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from ..errors import DeviceError
from ..store.vocabulary import Outcome
from . import checking
from .checking import BLOCK, Counts
from .cupy_device import CupyDevice, cupy_devices
from .cupy_library import find_cupy
from .cupy_waiting import Waiting
from .device import Verdict
from .inputs import cleared_faults, key, mix
from .sizing import room
from .work import WordsExpected

LIMIT_S = 60.0
"""What the GPUs exchange at once ends within this time, or they hang."""
WINDOWS = 6
"""Copies of a batch along a route; the first and the last are not counted, as the others may not copy then."""
WINDOW_BYTES = 128 << 20
REDUCED_BYTES = 4 << 30
VECTOR_WORDS = 4

Route = tuple[int, int]
"""Positions of the GPU that sends and the GPU that receives."""


def open_peers(ordinals: Sequence[int]) -> PeerGpus:
    """The GPUs with these numbers of CUDA's, opened in this process; they reach one another where that is possible."""
    return PeerGpus(cupy_devices(list(ordinals)))


class PeerGpus:
    """GPUs that exchange data. Used from one thread."""

    def __init__(self, devices: Sequence[CupyDevice]) -> None:
        self.devices = list(devices)
        self.runtime: Any = devices[0].runtime
        self.waiting: list[Waiting] = []
        self.routes: set[Route] = set()
        """Those that lead past the host."""
        for position, device in enumerate(self.devices):
            with device.using("opening it for its peers"):
                self.waiting.append(Waiting(self.runtime, device.stream_address))
                for receiver, peer in enumerate(self.devices):
                    if position != receiver and self.runtime.deviceCanAccessPeer(device.ordinal, peer.ordinal):
                        device.reach(peer.ordinal, "a GPU that it copies to")
                        self.routes.add((position, receiver))

    @property
    def versions(self) -> Mapping[str, str]:
        """As `Device.versions`."""
        return self.devices[0].versions

    def others(self) -> Sequence[str]:
        """Other processes on any of the GPUs, as `Device.others`."""
        return sorted({name for device in self.devices for name in device.others()})

    def close(self) -> None:
        """Leave the GPUs. Never raises."""
        for device in self.devices:
            device.close()


class _Exchange:
    """Memory, events and counters on each of some GPUs; a context manager, which gives them back."""

    def __init__(self, peers: PeerGpus, doing: str) -> None:
        self.peers, self.doing = peers, doing
        self.repetitions = 0
        self.verdicts = [Verdict(0, 0)] * len(peers.devices)
        """What was found so far, by position of the GPU."""
        self._runtime = peers.runtime
        self._give_back: list[tuple[int, Callable[[int], None], int]] = []
        self._counters: list[int] = []

    def __enter__(self) -> Self:
        try:
            self._counters = self.everywhere(cleared_faults().nbytes)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _take(self) -> None:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        for position, give_back, handle in reversed(self._give_back):
            with suppress(Exception), self.on(position):  # nothing is given back on a GPU that is lost
                give_back(handle)

    def on(self, position: int) -> Any:
        """Work on one of the GPUs: it and its stream are the current ones."""
        return self.peers.devices[position].using(self.doing)

    def everywhere(self, size: int) -> list[int]:
        addresses = []
        for position in range(len(self.peers.devices)):
            with self.on(position):
                addresses.append(int(self._runtime.malloc(size)))
                self._give_back.append((position, self._runtime.free, addresses[-1]))
        return addresses

    def events(self, count: int, *, timing: bool = True) -> list[list[int]]:
        by_gpu: list[list[int]] = []
        for position, waiting in enumerate(self.peers.waiting):
            with self.on(position):
                by_gpu.append([waiting.event(timing=timing) for _ in range(count)])
                self._give_back += [(position, self._runtime.eventDestroy, event) for event in by_gpu[-1]]
        return by_gpu

    def launch(self, position: int, source: str, function: str, count: int, *args: np.generic) -> None:
        """Enqueue a function on the current GPU, with threads for `count` elements."""
        device = self.peers.devices[position]
        kernel = device.function(source, function, ())
        kernel(checking.grid(count, device.facts.sms), (BLOCK, 1, 1), args)

    def copy(self, position: int, target: int, source: int, size: int) -> None:
        stream = self.peers.devices[position].stream_address
        self._runtime.memcpyAsync(target, source, size, self._runtime.memcpyDefault, stream)

    def settle(self) -> None:
        """Wait until all is done. DeviceError, with `gone`, where a GPU is not within the limit."""
        deadline = time.monotonic() + LIMIT_S
        for position, (device, waiting) in enumerate(zip(self.peers.devices, self.peers.waiting, strict=True)):
            with self.on(position):
                if not waiting.drained(max(0.0, deadline - time.monotonic())):
                    names = ", ".join(peer.facts.gpu for peer in self.peers.devices if peer is not device)
                    raise DeviceError(
                        f"{device.facts.gpu}: {self.doing} did not end within {LIMIT_S:g} s: it or one of its peers "
                        f"({names}) hangs",
                        gone=True,
                        outcome=Outcome.HUNG,
                    )

    def elapsed_ms(self, began: int, ended: int) -> float:
        return float(self._runtime.eventElapsedTime(began, ended))

    def compare(self, position: int, subject: str, kernel: tuple[str, str], count: int, *args: np.generic) -> None:
        """Compare `count` words on a GPU by a kernel (source and function), which counts what it finds.

        DeviceError where it did not compare them all.
        """
        counters, address = cleared_faults(), self._counters[position]
        with self.on(position):
            self.copy(position, address, counters.ctypes.data, counters.nbytes)
            self.launch(position, *kernel, count, *args, np.uint64(address))
        self.settle()
        with self.on(position):
            self.copy(position, counters.ctypes.data, address, counters.nbytes)
        self.settle()
        counts = Counts.of(counters)
        if counts.compared != count:
            gpu = self.peers.devices[position].facts.gpu
            raise DeviceError(f"{gpu}: the check of {self.doing} compared {counts.compared} of {count} words")
        first, worst = (f"{subject}, word {counts.first}", math.inf) if counts.wrong else (None, 0.0)
        so_far = self.verdicts[position] + Verdict(count, counts.wrong, first, worst)
        self.verdicts[position] = replace(so_far, repetitions=self.repetitions)

    def fill(self, position: int, address: int, count: int, stream: int) -> None:
        """Enqueue the making of `count` words of a stream on a GPU."""
        with self.on(position):
            self.launch(position, "fill.cu", "words", count, np.uint64(address), np.uint64(count), np.uint32(stream))


@dataclass
class CopyTimes:
    """Of some batches: the times of the copies that count, ms, by route, and how many bytes a ms each GPU sent."""

    times_ms: dict[Route, list[float]] = field(default_factory=dict)
    sent: dict[int, list[float]] = field(default_factory=dict)


class Copies(_Exchange):
    """Copies along several routes at once, each of `WINDOWS` windows that lie one behind another."""

    def __init__(self, peers: PeerGpus, seed: int) -> None:
        super().__init__(peers, "copying between GPUs")
        least = min(room(device.facts) for device in peers.devices)
        windows = WINDOWS * len(peers.devices)  # a GPU's own, and those of all others
        self.window_bytes = min(WINDOW_BYTES, least // windows // 16 * 16)
        self._sent_bytes = WINDOWS * self.window_bytes
        self._seed = seed

    def _take(self) -> None:
        senders = len(self.peers.devices) - 1
        self._sources = self.everywhere(self._sent_bytes)
        self._targets = self.everywhere(senders * self._sent_bytes)
        self._events = self.events(WINDOWS * senders + 1)

    def _target(self, route: Route) -> int:
        """Where what comes along a route is put: a place for each sender."""
        sender, receiver = route
        return self._targets[receiver] + (sender - (sender > receiver)) * self._sent_bytes

    def run(self, routes: Sequence[Route], times: CopyTimes) -> None:
        """Copy along these routes at once, and compare all that arrived. Those of one sender take turns."""
        self.repetitions += 1
        streams = {sender: key(self._seed, f"{sender} {self.repetitions}") for sender, _ in routes}
        for sender, stream in streams.items():
            self.fill(sender, self._sources[sender], self._sent_bytes // 4, stream)
        order: dict[int, list[Route]] = {sender: [] for sender in streams}
        for sender in streams:
            with self.on(sender):
                self.peers.waiting[sender].record(self._events[sender][0])
        for window in range(WINDOWS):
            at = window * self.window_bytes
            for route in routes:
                sender = route[0]
                order[sender].append(route)
                with self.on(sender):
                    self.copy(sender, self._target(route) + at, self._sources[sender] + at, self.window_bytes)
                    self.peers.waiting[sender].record(self._events[sender][len(order[sender])])
        self.settle()
        for route in routes:
            self._check(route, streams[route[0]])
        self._time(order, times)

    def _check(self, route: Route, stream: int) -> None:
        sender, receiver = route
        count = self._sent_bytes // 4
        words = np.uint64(self._target(route)), *checking.words_of(WordsExpected(stream), count)
        subject = f"from {self.peers.devices[sender].facts.gpu}"
        self.compare(receiver, subject, (checking.SOURCE, "compare_words"), count, *words)

    def _time(self, order: Mapping[int, Sequence[Route]], times: CopyTimes) -> None:
        for sender, routes in order.items():
            events, round_length = self._events[sender], len(set(routes))
            counted = range(round_length, len(routes) - round_length)
            with self.on(sender):
                for copy in counted:
                    elapsed_ms = self.elapsed_ms(events[copy], events[copy + 1])
                    times.times_ms.setdefault(routes[copy], []).append(elapsed_ms)
                span_ms = self.elapsed_ms(events[counted.start], events[counted.stop])
            times.sent.setdefault(sender, []).append(len(counted) * self.window_bytes / span_ms)


class AllReduce(_Exchange):
    """The sum of a buffer on each GPU, on every GPU: around a ring, each GPU reading from the one before it.

    A ring moves 2 (n - 1) / n of the buffer along each link (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69,
    2009): first each GPU adds a part of what the one before has to its own, n - 1 times, until each has one part of
    the sum; then these parts go round. Words are added modulo 2^32, so that the sum is exact.
    """

    def __init__(self, peers: PeerGpus, seed: int) -> None:
        super().__init__(peers, "the all-reduce")
        self._gpus = len(peers.devices)
        least = min(room(device.facts) for device in peers.devices)
        part = self._gpus * VECTOR_WORDS
        self.count = min(REDUCED_BYTES, least // 2) // 4 // part * part
        self.bytes = 4 * self.count
        self.moved_bytes = 2 * (self._gpus - 1) / self._gpus * self.bytes
        """Along each link of the ring."""
        self._seed = seed

    def _take(self) -> None:
        self._own, self._sums = self.everywhere(self.bytes), self.everywhere(self.bytes)
        self._spans = self.events(2)
        self._steps = self.events(2 * self._gpus - 1, timing=False)

    def run(self) -> float:
        """One all-reduce of new words, all sums compared; the time of the GPU that took longest, ms."""
        self.repetitions += 1
        base = key(self._seed, f"all-reduce {self.repetitions}")
        for position in range(self._gpus):
            stream = mix(np.array([(base + position) % 2**32], np.uint32))[0]
            self.fill(position, self._own[position], self.count, stream)
        self._start()
        self._reduce()
        self._each(lambda position: self.peers.waiting[position].record(self._spans[position][1]))
        self.settle()
        for position in range(self._gpus):
            sums, count = np.uint64(self._sums[position]), np.uint64(self.count)
            which = np.uint32(base), np.uint32(self._gpus)
            self.compare(position, "the sum", ("peers.cu", "compare_sums"), self.count, sums, count, *which)
        return max(self.elapsed_ms(*self._spans[position]) for position in range(self._gpus))

    def _each(self, enqueue: Callable[[int], None]) -> None:
        for position in range(self._gpus):
            with self.on(position):
                enqueue(position)

    def _start(self) -> None:
        """Begin the time on all GPUs when the last of them has its words."""
        self._each(lambda position: self.peers.waiting[position].record(self._steps[position][0]))

        def begin(position: int) -> None:
            for neighbour in range(self._gpus):
                self._wait(position, self._steps[neighbour][0])
            self.peers.waiting[position].record(self._spans[position][0])

        self._each(begin)

    def _wait(self, position: int, event: int) -> None:
        """Let the stream of a GPU, which is the current one, wait for an event of any."""
        self._runtime.streamWaitEvent(self.peers.devices[position].stream_address, event)

    def _reduce(self) -> None:
        """Enqueue all of it, step by step over all GPUs, so that what a step waits for is enqueued before it."""
        gpus, part = self._gpus, self.bytes // self._gpus
        for step in range(1, 2 * gpus - 1):
            for position in range(gpus):
                before = (position - 1) % gpus
                with self.on(position):
                    self._wait(position, self._steps[before][step - 1])
                    if step < gpus:
                        self._add(position, before, (position - step) % gpus * part, first=step == 1)
                    else:
                        at = (position - step + gpus) % gpus * part
                        self.copy(position, self._sums[position] + at, self._sums[before] + at, part)
                    self.peers.waiting[position].record(self._steps[position][step])

    def _add(self, position: int, before: int, at: int, *, first: bool) -> None:
        vectors = self.bytes // self._gpus // 16
        partial = self._own[before] if first else self._sums[before]
        addresses = (self._sums[position] + at, self._own[position] + at, partial + at)
        self.launch(position, "peers.cu", "add", vectors, *map(np.uint64, addresses), np.uint64(vectors))


class NcclAllReduce(AllReduce):
    """The same by NCCL."""

    def __init__(self, peers: PeerGpus, seed: int, nccl: Any) -> None:
        super().__init__(peers, seed)
        self._nccl = nccl

    def _take(self) -> None:
        super()._take()
        self._ranks = self._nccl.NcclCommunicator.initAll([device.ordinal for device in self.peers.devices])

    def _reduce(self) -> None:
        nccl = self._nccl
        nccl.groupStart()
        for position, rank in enumerate(self._ranks):
            with self.on(position):
                stream = self.peers.devices[position].stream_address
                addresses = self._own[position], self._sums[position]
                rank.allReduce(*addresses, self.count, nccl.NCCL_UINT32, nccl.NCCL_SUM, stream)
        nccl.groupEnd()


def nccl_of() -> Any | None:
    """CuPy's NCCL; None where it has none."""
    nccl = getattr(find_cupy().cuda, "nccl", None)
    return nccl if getattr(nccl, "available", False) else None
