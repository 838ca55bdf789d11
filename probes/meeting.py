"""A barrier for the GPUs of a node, so that they begin each probe together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ..kernels.device import Device

WAIT_S = 0.2
"""How often a GPU looks whether its neighbours are ready."""
LONGEST_WAIT_S = 120.0
"""After that it begins without them."""


class Meeting:
    """The GPUs of a node, which begin each probe together. Thread-safe."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._stage = dict.fromkeys(gpus, -1)
        self._lock = threading.Lock()

    async def arrive(self, device: Device, stage: int, ended: Callable[[], bool]) -> None:
        """Wait until every GPU that is still there has come as far, or has made the others wait too long."""
        with self._lock:
            self._stage[device.facts.gpu] = stage
        began_ns = device.now_ns()
        while not self._complete(stage) and not ended():
            await device.pause(WAIT_S)
            if device.now_ns() - began_ns > LONGEST_WAIT_S * 1e9:
                break

    def leave(self, gpu: str) -> None:
        """The others wait for this GPU no more."""
        with self._lock:
            self._stage.pop(gpu, None)

    def _complete(self, stage: int) -> bool:
        with self._lock:
            return all(reached >= stage for reached in self._stage.values())
