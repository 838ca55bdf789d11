"""Every kernel on a real GPU: its result is right, a wrong one is found, and its times are possible."""

from __future__ import annotations

import os
import time

import numpy as np
import pynvml
import pytest

from whorl.kernels.catalogue import KERNELS, find_kernel
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.cupy_loaded import CupyLoaded
from whorl.kernels.device import finish
from whorl.kernels.sizing import VECTOR, flop_per_s
from whorl.kernels.work import Unfit, Work

pytestmark = pytest.mark.gpu

LIMIT_S = 60.0
SLACK = 1.02
"""Clocks may pass the highest that the driver tells by a step."""


def work_for(device: CupyDevice, name: str) -> Work:
    """The kernel's work as a probe would have it; skips the test where the device cannot do it."""
    work = find_kernel(name).build(device.facts)
    if isinstance(work, Unfit):
        pytest.skip(work.reason)
    return work


def overwrite(device: CupyDevice, loaded: CupyLoaded, buffer: str, index: int) -> None:
    """Flip all bits of one element of a result."""
    dtype = np.dtype(next(b.dtype for b in loaded.work.buffers if b.name == buffer))
    element = np.zeros(1, dtype)
    address = loaded.address(buffer) + index * dtype.itemsize
    with device.using("spoiling a result"):
        runtime = device.runtime
        runtime.memcpy(element.ctypes.data, address, dtype.itemsize, runtime.memcpyDefault)
        element.view(np.uint8)[:] ^= 0xFF
        runtime.memcpy(address, element.ctypes.data, dtype.itemsize, runtime.memcpyDefault)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_is_right_on_every_gpu_and_a_wrong_result_is_found(name: str, devices: list[CupyDevice]) -> None:
    for device in devices:
        loaded = finish(device.load(work_for(device, name), seed=11))
        try:
            finish(loaded.poison())
            finish(loaded.run(3, limit_s=LIMIT_S))
            verdict = finish(loaded.check())
            assert verdict.elements > 0
            assert verdict.wrong == 0, f"{verdict.first}; the worst is {verdict.worst:.3g} tolerances off"
            assert verdict.repetitions >= 3
            places = {(output.buffer, output.at) for output in loaded.work.outputs}
            for buffer, index in places:
                overwrite(device, loaded, buffer, index)
            assert (finish(loaded.check()).wrong > 0) == bool(places)
        finally:
            loaded.unload()


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_times_are_possible(name: str, device: CupyDevice) -> None:
    work = work_for(device, name)
    loaded = finish(device.load(work, seed=1))
    try:
        finish(loaded.run(3, limit_s=LIMIT_S))
        before = time.time_ns()
        repetitions = min(2, work.lap or 2)
        timed = finish(loaded.run(7, each=repetitions, limit_s=LIMIT_S))
        after = time.time_ns()
    finally:
        loaded.unload()
    assert (timed.times_ms > 0).all()
    assert before - 5e6 < timed.began_ns < timed.ended_ns < after + 5e6
    if not work.lap:  # else audits lie between the repeats
        assert 2 * timed.times_ms.sum() == pytest.approx((timed.ended_ns - timed.began_ns) / 1e6, rel=0.01, abs=0.05)
    seconds = float(np.min(timed.times_ms)) / 1e3
    if name.startswith(("fma", "gemm")) and device.facts.capability in VECTOR:  # of others no peak is known
        peak = flop_per_s(device.facts, work.precision, matrix=name.startswith("gemm"))
        assert work.flop / seconds <= SLACK * peak
    if name.startswith("stream") and device.facts.bandwidth_gb_s is not None:
        assert work.bytes / seconds / 1e9 <= SLACK * device.facts.bandwidth_gb_s


def test_all_memory_is_given_back(device: CupyDevice) -> None:
    work = work_for(device, "stream-copy")
    loaded = finish(device.load(work, seed=1))
    finish(loaded.run(2, limit_s=LIMIT_S))
    finish(loaded.check())
    loaded.unload()  # what CUDA takes for itself, modules included, is taken now

    def free() -> int:
        with device.using("asking for its memory"):
            return int(device.runtime.memGetInfo()[0])

    before = free()
    for _ in range(3):
        loaded = finish(device.load(work, seed=1))
        finish(loaded.run(2, limit_s=LIMIT_S))
        finish(loaded.check())
        assert free() <= before - work.memory_bytes
        loaded.unload()
    assert free() >= before - (4 << 20)


def test_many_short_launches_become_a_graph(device: CupyDevice) -> None:
    loaded = finish(device.load(work_for(device, "launch"), seed=1))
    try:
        finish(loaded.run(3, limit_s=LIMIT_S))
        assert loaded._graphs[0] is not None
    finally:
        loaded.unload()


def test_gpus_are_those_of_nvml_and_nobody_else_is_told_of_us(devices: list[CupyDevice]) -> None:
    pynvml.nvmlInit()
    try:
        for device in devices:
            finish(device.load(work_for(device, "stream-copy"), seed=1)).unload()  # from here on this process is there
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.facts.gpu)
            assert pynvml.nvmlDeviceGetUUID(handle) == device.facts.gpu
            assert not any(f"pid {os.getpid()} " in process for process in device.others())
    finally:
        pynvml.nvmlShutdown()
