"""Real GPUs through CuPy: the list of them, and each one as a `Device`.

Nothing here changes a setting of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceError, InputError
from .cuda_identity import cuda_uuid
from .cupy_finding import cuda_version, find_cupy, gpu_count
from .cupy_gpu import CupyGpu
from .cupy_loaded import CupyLoaded
from .work import Work


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
    found: list[CupyDevice] = []
    first: DeviceError | None = None
    for ordinal in range(count) if indices is None else indices:
        try:
            found.append(CupyDevice(cupy, ordinal, count))
        except DeviceError as error:
            if unusable is None:
                raise
            first = first or error
            known = cuda_uuid(ordinal)
            unusable.append(Unusable(ordinal, None if known is None else f"GPU-{known}", str(error)))
    if first is not None and not found:
        raise first
    return found


@dataclass(frozen=True)
class Unusable:
    """A GPU that CUDA shows and that does not say what it is."""

    ordinal: int
    """CUDA's number of it."""
    gpu: str | None
    """UUID; None where the driver does not tell."""
    says: str


class CupyDevice(CupyGpu):
    """One real GPU; see `Device`. Used from one thread at a time."""

    simulated = False

    def __init__(self, cupy: Any, ordinal: int, count: int) -> None:
        """`ordinal` is CUDA's number of it among `count` that it shows. DeviceError."""
        super().__init__(cupy, ordinal, count)
        self._open: list[CupyLoaded] = []

    @property
    def versions(self) -> Mapping[str, str]:
        """See `Device.versions`. cuBLAS is among them once a product was loaded."""
        runtime = self.runtime
        found = {
            "cupy": str(self._cupy.__version__),
            "cuda_runtime": cuda_version(runtime.runtimeGetVersion()),
            "cuda_driver": cuda_version(runtime.driverGetVersion()),
        }
        if self._nvml.driver is not None:
            found["driver"] = self._nvml.driver
        with suppress(Exception):  # CuPy loads NVRTC when it compiles
            found["nvrtc"] = ".".join(map(str, self._cupy.cuda.nvrtc.getVersion()))
        if self._blas is not None:
            with suppress(DeviceError):
                found["cublas"] = self._blas.version
        return found

    def now_ns(self) -> int:
        return time.time_ns()

    def others(self) -> Sequence[str]:
        return self._nvml.others()

    def free_bytes(self) -> int:
        with self.using("asking for its free memory"):
            return int(self.runtime.memGetInfo()[0])

    async def load(self, work: Work, *, seed: int) -> CupyLoaded:
        with self.using(f"loading {work.kernel}"):
            if any(buffer.place == "peer" for buffer in work.buffers):
                self.reach_peer()
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
