"""A barrier for the GPUs of a node, so that they begin each probe together and measure together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from ..kernels.work import Facts

LOOK_S = 0.2
"""How often a GPU looks whether its neighbours are ready."""
LONGEST_WAIT_S = 120.0
"""After that it goes on without them."""


class Attendant(Protocol):
    """What a meeting needs of a GPU."""

    @property
    def facts(self) -> Facts: ...

    def now_ns(self) -> int: ...

    async def pause(self, seconds: float) -> None: ...


class Meeting:
    """The GPUs of a node, which reach the same points in the same order. Thread-safe.

    A GPU that made another one wait for too long is not waited for again until it comes.
    """

    def __init__(self, gpus: Sequence[str], *, longest_s: float = LONGEST_WAIT_S) -> None:
        self._points = dict.fromkeys(gpus, -1)
        self._came_ns = dict.fromkeys(gpus, 0)
        self._late: set[str] = set()
        self._longest_ns = round(longest_s * 1e9)
        self._lock = threading.Lock()

    async def arrive(self, device: Attendant, point: int, ended: Callable[[], bool]) -> None:
        """Wait at a point until `complete`, or until somebody wants to stop."""
        while not self.complete(device, point) and not ended():
            await device.pause(LOOK_S)

    def complete(self, device: Attendant, point: int) -> bool:
        """Note that a GPU is at a point; whether every other one that is waited for has come as far."""
        gpu, now_ns = device.facts.gpu, device.now_ns()
        with self._lock:
            if self._points[gpu] < point:
                self._points[gpu], self._came_ns[gpu] = point, now_ns
            self._late.discard(gpu)
            missing = {other for other, reached in self._points.items() if reached < point} - self._late
            if missing and now_ns - self._came_ns[gpu] > self._longest_ns:
                self._late |= missing
                return True
            return not missing

    def leave(self, gpu: str) -> None:
        """The others wait for this GPU no more."""
        with self._lock:
            self._points.pop(gpu, None)
