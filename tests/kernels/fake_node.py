"""The GPUs of the stand-in for CuPy (fake_cupy.py) in this process, and in the processes that measure them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from whorl.kernels import catalogue, cupy_device, peers
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.peers import PeerGpus, open_peers
from whorl.kernels.work import Kernel
from whorl.tests.kernels.fake_cupy import FakeCupy, FakeRuntime
from whorl.tests.kernels.stand_in import Put, take_place
from whorl.tests.kernels.test_arithmetic import small_work
from whorl.tests.probes.apart import meet


def with_small_kernels(put: Put) -> None:
    """Let every kernel have the size that the tests can run."""
    usual = catalogue.find_kernel

    def find(name: str) -> Kernel:
        if name in catalogue.EXCHANGES:
            return usual(name)
        return dataclasses.replace(usual(name), build=lambda *_, **__: small_work(name))

    put(catalogue, "find_kernel", find)
    put(peers, "WINDOW_BYTES", 2048)
    put(peers, "REDUCED_BYTES", 4096)


@dataclass(frozen=True)
class FakeNode:
    """Opens the GPUs in other processes, in place of `node.open_gpu` and `node.open_peers`."""

    names: tuple[str, ...]
    """UUIDs."""
    failing: dict[int, int] = dataclasses.field(default_factory=dict)
    """CUDA's number of a GPU -> the status with which it takes no memory."""
    fates: dict[int, str] = dataclasses.field(default_factory=dict)
    """CUDA's number of a GPU -> what befalls its process at its tenth event (`apart.meet`)."""

    def open_gpu(self, ordinal: int, _: str) -> CupyDevice:
        runtime = self._offer()
        usual, events = runtime.eventRecord, itertools.count(1)

        def record(event: int, stream: int) -> None:
            if next(events) == 10:
                meet(self.fates.get(ordinal, ""))
            usual(event, stream)

        runtime.eventRecord = record  # type: ignore[method-assign]
        return cupy_device.cupy_devices([ordinal])[0]

    def open_peers(self, ordinals: Sequence[int]) -> PeerGpus:
        self._offer()
        return open_peers(ordinals)

    def _offer(self) -> FakeRuntime:
        runtime = FakeRuntime(len(self.names))
        runtime.launch_s = 0.002
        take_place(FakeCupy(runtime), self.names)
        with_small_kernels(setattr)
        usual = runtime.malloc

        def malloc(size: int) -> int:
            if runtime.device in self.failing:
                runtime.fail["malloc"] = self.failing[runtime.device]
            return usual(size)

        runtime.malloc = malloc  # type: ignore[method-assign]
        return runtime
