"""Ways to read GPUs that are not whorl's, and what is run in a process over the simulated NVML library of the tests.

    PYTHON peers.py read NAME RATE       sweep until SIGTERM; then print when each sweep began, as JSON
    PYTHON peers.py spans NAME COUNT     take so many empty spans; print CPU microseconds of a span, as JSON

Run by `collect.py` and `energy.py`; imports nothing of whorl at its top, as that would count, and the Python of nvitop
has none.

    nothing        wakes up at the rate and reads nothing: what any Python process pays
    plain_durable  14 metrics by the stock calls of nvidia-ml-py, a CSV line for each GPU, durable at every sweep
    plain_same     what whorl reads, as often, by the stock calls, durable: its metrics of every tick; once a second the
                   XIDs of the driver; every 10 s its slow metrics (not those of GPM) and the processes on each GPU
    nvitop         `Device.as_snapshot()` of every GPU; it reads more (names, limits) and waits for PCIe counters
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def plain_reader() -> Callable[[], list[list[float]]]:
    """The loop that a person writes with nvidia-ml-py: a row of 14 metrics for each GPU."""
    import pynvml as nvml

    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    ids = [nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_FI_DEV_POWER_AVERAGE, nvml.NVML_FI_DEV_MEMORY_TEMP]

    def read() -> list[list[float]]:
        rows = []
        for handle in handles:
            utilization = nvml.nvmlDeviceGetUtilizationRates(handle)
            instant, average, memory_temperature = nvml.nvmlDeviceGetFieldValues(handle, ids)
            rows.append([
                nvml.nvmlDeviceGetPowerUsage(handle), instant.value.uiVal, average.value.uiVal,
                nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
                memory_temperature.value.uiVal, utilization.gpu, utilization.memory,
                nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used,
                nvml.nvmlDeviceGetCurrentClocksEventReasons(handle), nvml.nvmlDeviceGetPerformanceState(handle),
                nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
            ])  # fmt: skip
        return rows

    return read


def same_reader() -> Callable[[], list[list[float]]]:
    """What whorl reads, as often as whorl does at 10 Hz, without the constant time over which a sensor averages."""
    import pynvml as nvml

    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    announced = nvml.nvmlEventSetCreate()
    for handle in handles:
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, announced)
    ids = [
        nvml.NVML_FI_DEV_POWER_INSTANT,
        nvml.NVML_FI_DEV_POWER_AVERAGE,
        nvml.NVML_FI_DEV_MEMORY_TEMP,
        nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        nvml.NVML_FI_DEV_PERF_POLICY_POWER,
        nvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
        nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
    ]
    # Held down by other causes, PCIe and NVLink traffic, ECC errors, remapped rows, NVLink errors, retired pages.
    slow_ids = [76, 77, 79, 269, 270, 197, 198, 138, 139, 94, 3, 4, 5, 6]
    slow_ids += [*range(142, 146), 230, 38, 45, 52, 59, 29, 30, 31]
    sweeps = itertools.count()

    def slow(handle: Any) -> list[float]:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        return [
            memory.used,
            memory.free,
            nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
            nvml.nvmlDeviceGetPerformanceState(handle),
            nvml.nvmlDeviceGetEncoderUtilization(handle)[0],
            nvml.nvmlDeviceGetDecoderUtilization(handle)[0],
            nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
            *(field.value.ullVal for field in nvml.nvmlDeviceGetFieldValues(handle, slow_ids)),
            *(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            *(process.pid for process in nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)),
        ]

    def read() -> list[list[float]]:
        sweep = next(sweeps)
        rows = []
        for handle in handles:
            now_us = time.time_ns() // 1000
            utilization = nvml.nvmlDeviceGetUtilizationRates(handle)
            fields = nvml.nvmlDeviceGetFieldValues(handle, ids)
            rows.append(
                [
                    nvml.nvmlDeviceGetPowerUsage(handle),
                    *(field.value.uiVal for field in fields[:3]),
                    now_us - fields[0].timestamp,
                    *(field.value.ullVal for field in fields[3:]),
                    nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                    nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                    nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
                    utilization.gpu,
                    utilization.memory,
                    nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
                    *(slow(handle) if sweep % 100 == 0 else ()),
                ]
            )
        if sweep % 10 == 0:
            with contextlib.suppress(nvml.NVMLError_Timeout):
                xid = nvml.nvmlEventSetWait_v2(announced, 0)
                rows.append([xid.eventData])
        return rows

    return read


def durable_csv(reader: Callable[[], Callable[[], list[list[float]]]]) -> Callable[[], object]:
    """A plain loop, which appends to a CSV file in the current folder and makes it durable."""

    read = reader()
    file = Path("plain.csv").open("a", newline="")  # noqa: SIM115 (open as long as the process lives)
    writer = csv.writer(file)

    def sweep() -> None:
        now = time.time()
        writer.writerows([now, index, *row] for index, row in enumerate(read()))
        file.flush()
        os.fdatasync(file.fileno())

    return sweep


def nvitop_reader() -> Callable[[], object]:
    """nvitop's snapshots, in a Python that has it."""
    from nvitop import Device  # type: ignore[import-not-found,unused-ignore]

    devices = Device.all()
    return lambda: [device.as_snapshot() for device in devices]


def loop(name: str, rate: float) -> None:
    """Sweep on a grid until SIGTERM; then print when each sweep began."""
    sweep = READERS[name]()
    began: list[float] = []
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    start = time.monotonic()
    tick = 0
    while not ended:
        began.append(time.time())
        sweep()
        tick = max(tick + 1, int((time.monotonic() - start) * rate))  # a tick that was missed is left out
        time.sleep(max(0.0, start + tick / rate - time.monotonic()))
    print(json.dumps(began))


# -- spans -----------------------------------------------------------------------------------------------------------


def whorl_spans(spans: int) -> float:
    """whorl's spans, after a thousand that are not counted."""
    from whorl import ledger

    books = ledger.open()
    assert books.problem() is None, books.problem()
    for count in (1000, spans):
        began = time.thread_time()
        for _ in range(count):
            with ledger.span("request"):
                pass
        used_s = time.thread_time() - began
    ledger.close()
    return used_s


def plain_spans(spans: int) -> float:
    """The energy counters of all GPUs before and after."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    began = time.thread_time()
    for _ in range(2 * spans):
        for handle in handles:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    return time.thread_time() - began


READERS: dict[str, Callable[[], Callable[[], object]]] = {
    "nothing": lambda: lambda: None,
    "plain_durable": lambda: durable_csv(plain_reader),
    "plain_same": lambda: durable_csv(same_reader),
    "nvitop": nvitop_reader,
}
SPANS: dict[str, Callable[[int], float]] = {"whorl": whorl_spans, "plain": plain_spans}


def main() -> None:
    """Run what the command line names."""
    kind, name, number = sys.argv[1:]
    if kind == "read":
        loop(name, float(number))
    else:
        print(json.dumps({"caller_us": SPANS[name](int(number)) / int(number) * 1e6}))


if __name__ == "__main__":
    main()
