"""Ways to read GPUs that are not whorl's, and what is run in a process over the simulated NVML library of the tests.

    PYTHON peers.py read NAME RATE       sweep until SIGTERM; then print when each sweep began, as JSON
    PYTHON peers.py spans NAME COUNT     take so many empty spans; print CPU microseconds of a span, as JSON

Run by `collect.py` and `energy.py`; imports nothing of whorl at its top, as the Python of other tools has none.

    nothing        wakes up at the rate and reads nothing: what any Python process pays
    plain_durable  14 metrics by the stock calls of nvidia-ml-py, a CSV line for each GPU, durable at every sweep
    plain_same     what whorl reads, as often, by the stock calls, durable: its metrics of every tick; once a second the
                   XIDs of the driver; every 10 s its slow metrics (not those of GPM) and the processes on each GPU
    nvitop         `Device.as_snapshot()` of every GPU; it reads more (names, limits) and waits for PCIe counters
    gpustat        `gpustat.new_query()`; it reads the processes too, and sleeps 0.1 s for each GPU
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
from collections.abc import Callable, Iterator
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
            rows.append(
                [
                    nvml.nvmlDeviceGetPowerUsage(handle),
                    instant.value.uiVal,
                    average.value.uiVal,
                    nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
                    nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                    nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                    nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),
                    memory_temperature.value.uiVal,
                    utilization.gpu,
                    utilization.memory,
                    nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used,
                    nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
                    nvml.nvmlDeviceGetPerformanceState(handle),
                    nvml.nvmlDeviceGetEnforcedPowerLimit(handle),
                ]
            )
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


def csv_reader(durable: bool, reader: Callable[[], Callable[[], list[list[float]]]]) -> Callable[[], object]:
    """A plain loop, which appends to a CSV file in the current folder."""

    read = reader()
    file = Path("plain.csv").open("a", newline="")  # noqa: SIM115 (open as long as the process lives)
    writer = csv.writer(file)

    def sweep() -> None:
        now = time.time()
        writer.writerows([now, index, *row] for index, row in enumerate(read()))
        file.flush()
        if durable:
            os.fdatasync(file.fileno())

    return sweep


def nvitop_reader() -> Callable[[], object]:
    from nvitop import Device  # type: ignore[import-not-found,unused-ignore]

    devices = Device.all()
    return lambda: [device.as_snapshot() for device in devices]


def gpustat_reader() -> Callable[[], object]:
    import gpustat  # type: ignore[import-not-found,unused-ignore]

    return lambda: gpustat.new_query()


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


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def _nothing_way(spans: int) -> dict[str, Any]:
    for _ in range(spans):
        with _nothing():
            pass
    return {}


def _flat(ledger: Any, spans: int) -> None:
    for _ in range(spans):
        with ledger.span("request"):
            pass


def _nested(ledger: Any, spans: int) -> None:
    with ledger.span("all"):
        for _ in range(spans // 11):
            with ledger.span("ten"):
                for _ in range(10):
                    with ledger.span("request"):
                        pass


def _whorl(take: Callable[[Any, int], None]) -> Callable[[int], dict[str, Any]]:
    def way(spans: int) -> dict[str, Any]:
        from whorl import ledger

        books = ledger.open()
        assert books.problem() is None, books.problem()
        _flat(ledger, 1000)
        books.totals()
        began, cpu, thread_s = time.perf_counter(), time.process_time(), time.thread_time()
        take(ledger, spans)
        thread_s = time.thread_time() - thread_s
        books.totals()  # all of them are split
        lasted, cpu = time.perf_counter() - began, time.process_time() - cpu
        with ledger.span("rest"):  # as long with one span: the sensor's own cost
            idle_s = time.process_time()
            time.sleep(max(lasted, 0.5))
            idle_s = (time.process_time() - idle_s) * lasted / max(lasted, 0.5)
        counted = sum(total.n for total in books.totals()) - 1001
        ledger.close()
        return {
            "caller_us": thread_s / spans * 1e6,
            "process_us": (cpu - idle_s) / spans * 1e6,
            "spans_counted": counted,
        }

    return way


def _plain(spans: int) -> dict[str, Any]:
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    zero_spans = 0
    thread_s = time.thread_time()
    for _ in range(spans):
        before = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
        after = [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
        zero_spans += before == after
    thread_s = time.thread_time() - thread_s
    return {
        "caller_us": thread_s / spans * 1e6,
        "process_us": thread_s / spans * 1e6,
        "share_with_0_j": zero_spans / spans,
    }


def _zeus(spans: int) -> dict[str, Any]:
    import pynvml
    from zeus.monitor import ZeusMonitor  # type: ignore[import-not-found]  # the peers have it

    pynvml.nvmlInit()
    monitor = ZeusMonitor(gpu_indices=list(range(pynvml.nvmlDeviceGetCount())), cpu_indices=[])
    zero_spans = 0
    cpu, thread_s = time.process_time(), time.thread_time()
    for _ in range(spans):
        monitor.begin_window("request", sync_execution=False)
        zero_spans += monitor.end_window("request", sync_execution=False).total_energy == 0
    thread_s, cpu = time.thread_time() - thread_s, time.process_time() - cpu
    return {"caller_us": thread_s / spans * 1e6, "process_us": cpu / spans * 1e6, "share_with_0_j": zero_spans / spans}


READERS: dict[str, Callable[[], Callable[[], object]]] = {
    "nothing": lambda: lambda: None,
    "plain_durable": lambda: csv_reader(durable=True, reader=plain_reader),
    "plain_same": lambda: csv_reader(durable=True, reader=same_reader),
    "nvitop": nvitop_reader,
    "gpustat": gpustat_reader,
}
SPANS: dict[str, Callable[[int], dict[str, Any]]] = {
    "whorl": _whorl(_flat), "whorl nested": _whorl(_nested), "plain": _plain, "zeus": _zeus, "nothing": _nothing_way,
}  # fmt: skip
OTHERS = ("nvitop", "gpustat", "zeus")
"""What needs the Python of `--peers`."""


def main() -> None:
    """Run what the command line names."""
    kind, name, number = sys.argv[1:]
    if kind == "read":
        loop(name, float(number))
        return
    cpu = time.thread_time()
    figures = SPANS[name](int(number))
    us = (time.thread_time() - cpu) / int(number) * 1e6
    print(json.dumps(figures or {"caller_us": us, "process_us": us}))


if __name__ == "__main__":
    main()
