"""The plain calls that kernels are compared with: a product by CuPy's own handle of cuBLAS, and the runtime's copy."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from whorl.errors import DeviceError
from whorl.kernels.cublas import DATA_TYPES
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.cupy_loaded import CupyLoaded
from whorl.kernels.cupy_waiting import Late, Throttle, Waiting
from whorl.kernels.work import Gemm

COMPUTE = {"fp64": 70, "fp32": 68, "tf32": 77, "fp16": 68, "bf16": 68}
LIMIT_S = 120.0


def median_ms(device: CupyDevice, enqueue: Callable[[], None], seconds: float) -> float:
    """The median time of a call, over so many seconds of it back to back, after half as many that are not counted.

    Without those a GPU that its power limit holds down would look faster than under a probe, which warms it up. To be
    called with the device as the current one. DeviceError where it takes longer than LIMIT_S: then nothing is given
    back, as to try would wait for what hangs.
    """
    waiting = Waiting(device.runtime, device.stream_address)
    markers = waiting.event(timing=False), waiting.event(timing=False)
    events = [waiting.event(), waiting.event()]
    throttle = Throttle(waiting, markers, time.monotonic() + LIMIT_S)
    hangs = False
    try:
        enqueue()
        waiting.record(events[0])
        enqueue()
        waiting.record(events[1])
        waiting.until(events[1], time.monotonic() + LIMIT_S)
        once_s = max(device.runtime.eventElapsedTime(*events) / 1e3, 1e-6)
        calls = max(1, round(0.02 / once_s))
        repeats = max(12, min(1000, round(seconds / (calls * once_s))))
        first = repeats // 2
        throttle.pace(1, once_s)
        repeats += first
        while len(events) < repeats + 1:
            events.append(waiting.event())
        waiting.record(events[0])
        for event in events[1 : repeats + 1]:
            for _ in range(calls):
                enqueue()
                throttle.launched()
            waiting.record(event)
        waiting.until(events[repeats], time.monotonic() + LIMIT_S)
        times = [device.runtime.eventElapsedTime(a, b) / calls for a, b in pairwise(events[: repeats + 1])]
        return float(np.median(times[first:-1]))
    except Late:
        hangs = True
        raise DeviceError(f"{device.facts.gpu}: a plain call hangs: {LIMIT_S:g} s were not enough", gone=True) from None
    finally:
        for event in () if hangs else (*markers, *events):
            device.runtime.eventDestroy(event)


def product_gflop_s(device: CupyDevice, loaded: CupyLoaded, seconds: float) -> float:
    """The rate of `cublasGemmEx` as CuPy calls it: both matrices row-major, nothing transposed, its own workspace."""
    step = next(step for step in loaded.work.turns[0] if isinstance(step, Gemm))
    libs = importlib.import_module("cupy_backends.cuda.libs")
    cublas = getattr(libs, "cublas", None) or importlib.import_module("cupy_backends.cuda.libs.cublas")
    scalar = np.float64 if step.precision == "fp64" else np.float32
    alpha, zero = np.ones(1, scalar), np.zeros(1, scalar)
    types = {buffer.name: DATA_TYPES[np.dtype(buffer.dtype).name] for buffer in loaded.work.buffers}
    a, b, c = (loaded.address(name) for name in (step.a, step.b, step.c))
    m, n, k = step.m, step.n, step.k
    with device.using("a plain product"):
        handle = importlib.import_module("cupy").cuda.device.get_cublas_handle()

        def enqueue() -> None:
            cublas.gemmEx(
                *(handle, 0, 0, n, m, k, alpha.ctypes.data, b, types[step.b], n, a, types[step.a], k),
                *(zero.ctypes.data, c, types[step.c], n, COMPUTE[step.precision], -1),
            )

        return 2 * m * n * k / median_ms(device, enqueue, seconds) / 1e6


def copy_gb_s(device: CupyDevice, seconds: float) -> float:
    """The rate of the runtime's copy within device memory, bytes read and written, in buffers far beyond L2."""
    runtime = device.runtime
    size = min(1 << 30, device.facts.memory_bytes // 16)
    with device.using("a plain copy"):
        source, target = runtime.malloc(size), runtime.malloc(size)
        hangs = False
        try:
            stream, kind = device.stream_address, runtime.memcpyDefault
            runtime.memsetAsync(source, 0x5A, size, stream)

            def enqueue() -> None:
                runtime.memcpyAsync(target, source, size, kind, stream)

            return 2 * size / median_ms(device, enqueue, seconds) / 1e6
        except DeviceError:
            hangs = True
            raise
        finally:
            for address in () if hangs else (source, target):
                runtime.free(address)
