"""The plain calls that kernels are compared with: a product by CuPy's own handle of cuBLAS, and the runtime's copy."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import numpy as np

from whorl.errors import DeviceError
from whorl.kernels.cublas import DATA_TYPES
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.cupy_loaded import CupyLoaded
from whorl.kernels.cupy_waiting import OUTSTANDING, Late, Waiting
from whorl.kernels.work import Gemm

COMPUTE = {"fp64": 70, "fp32": 68, "tf32": 77, "fp16": 68, "bf16": 68}
LIMIT_S, BATCHES = 120.0, 12


def median_ms(device: CupyDevice, enqueue: Callable[[], None], seconds: float) -> float:
    """The median time of a call, over so many seconds of it in batches, after half as many that are not counted.

    Without those a GPU that its power limit holds down would look faster than under a probe, which warms it up. To be
    called with the device as the current one. DeviceError where a batch takes longer than LIMIT_S.
    """
    runtime, waiting = device.runtime, Waiting(device.runtime, device.stream_address)
    begins, ends = waiting.event(), waiting.event()

    def batch(calls: int) -> float:
        waiting.record(begins)
        for _ in range(calls):
            enqueue()
        waiting.record(ends)
        waiting.until(ends, time.monotonic() + LIMIT_S)
        return float(runtime.eventElapsedTime(begins, ends)) / calls

    try:
        batch(1)
        once_ms = max(batch(1), 1e-3)
        calls = max(1, min(OUTSTANDING, round(1e3 * seconds / BATCHES / once_ms)))
        times = [batch(calls) for _ in range(BATCHES + BATCHES // 2)]
    except Late:  # nothing is given back, as to try would wait for what hangs
        raise DeviceError(f"{device.facts.gpu}: a plain call hangs: {LIMIT_S:g} s were not enough", gone=True) from None
    for event in (begins, ends):
        runtime.eventDestroy(event)
    return float(np.median(times[BATCHES // 2 :]))


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
        stream, kind = device.stream_address, runtime.memcpyDefault
        runtime.memsetAsync(source, 0x5A, size, stream)
        rate = 2 * size / median_ms(device, lambda: runtime.memcpyAsync(target, source, size, kind, stream), seconds)
        for address in (source, target):
            runtime.free(address)
    return rate / 1e6
