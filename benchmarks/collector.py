"""What `whorl collect` costs the node it watches, against other ways to read the same GPUs. Prints JSON.

    python benchmarks/collector.py [--peers PEERS/bin/python] [--gpus 8] [--rate 10] [--seconds 30] [--turns 3]

Every variant is a process of its own over the simulated NVML library of tests/native, which answers in about a
microsecond: what is measured is the reader's own work. A real driver takes longer, for everybody. The variants:

    whorl            `whorl collect`: its whole sweep, journalled and made durable as it does by default
    nothing          wakes up at the rate and reads nothing: what any Python process pays
    plain            14 metrics by the stock calls of nvidia-ml-py, thrown away
    plain_csv        the same, a line for each GPU appended to a CSV file at every sweep
    plain_durable    the same, and the file made durable at every sweep: what whorl does
    plain_same       every metric that whorl reads at every tick, by the stock calls, with one call for all fields of a
                     GPU; a line for each GPU, durable at every sweep
    nvitop           `Device.as_snapshot()` of every GPU; it reads more (names, limits) and waits for PCIe counters
    nvitop_same      the same metrics as `plain`, as far as nvitop has them, within its `oneshot()`
    gpustat          `gpustat.new_query()`; it reads the processes too, and sleeps 0.1 s for each GPU
    gpustat_idle     the same where no process runs on the GPUs

With --busy N, whorl, whorl without the right to raise its priority (where setpriv is installed) and `plain_durable` run
at the same time beside N processes that compute: how many ticks each keeps, and at what cost. For a run with the
disk busy as well give --busy-disk M: M more processes write and sync. On a machine whose load changes, `--busy 0`
compares them best: what one meets, all do. The window begins 43 s after the start.

On every GPU one process computes, as on a node at work; only gpustat looks at it. The last four variants need nvitop
and gpustat, which are no part of the project; for them give the interpreter of a scratch environment
(`uv venv PEERS && uv pip install --python PEERS nvitop gpustat`). Without it they are "not installed". A variant
that cannot hold the rate has fewer sweeps; CPU time for one sweep compares them all the same. A sweep of whorl reads
more than one of `plain`, so CPU time for one value (one metric of one GPU) is given as well: for whorl of what the
store has (no NULL counted, the slow tier included), for the others of what the loop asks for. How many values are in a
snapshot of nvitop or gpustat is not counted.

CPU time (user and system) is the process's own clock over the window, which begins 8 s after the start (what was spent
before is `cpu_before_window_s`). Memory is the peak (VmHWM), starting included. whorl seals its journal every ten
minutes, which no window sees. It states what it measured and asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = ("whorl", "nothing", "plain", "plain_csv", "plain_durable", "plain_same")
PEERS = ("nvitop", "nvitop_same", "gpustat", "gpustat_idle")
SETTLE_S = 8.0
WHORL = "import sys; from whorl.cli import main; sys.exit(main())"
METRICS, SAME = 14, 15
# Values of one GPU in a sweep of a reader that is given its metrics. Not known of nvitop's and gpustat's snapshots.
VALUES = {"plain": METRICS, "plain_csv": METRICS, "plain_durable": METRICS, "plain_same": SAME, "nvitop_same": 9}


# The variants: each makes a function that reads every GPU once


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
    """The metrics that whorl reads at every tick, without the constant time over which a sensor averages."""
    import pynvml as nvml

    nvml.nvmlInit()
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    ids = [
        nvml.NVML_FI_DEV_POWER_INSTANT,
        nvml.NVML_FI_DEV_POWER_AVERAGE,
        nvml.NVML_FI_DEV_MEMORY_TEMP,
        nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        nvml.NVML_FI_DEV_PERF_POLICY_POWER,
        nvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
        nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
    ]

    def read() -> list[list[float]]:
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
                ]
            )
        return rows

    return read


def csv_reader(durable: bool, reader: Callable[[], Callable[[], list[list[float]]]]) -> Callable[[], object]:
    """A plain loop, which appends to a CSV file in the current folder."""
    import csv

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


def nvitop_same_reader() -> Callable[[], object]:
    from nvitop import Device

    devices = Device.all()

    def sweep() -> list[list[object]]:
        rows = []
        for device in devices:
            with device.oneshot():
                rows.append(
                    [
                        device.power_usage(),
                        device.sm_clock(),
                        device.memory_clock(),
                        device.temperature(),
                        device.gpu_utilization(),
                        device.memory_utilization(),
                        device.memory_used(),
                        device.performance_state(),
                        device.power_limit(),
                    ]
                )
        return rows

    return sweep


def gpustat_reader() -> Callable[[], object]:
    import gpustat  # type: ignore[import-not-found,unused-ignore]

    return lambda: gpustat.new_query()


READERS: dict[str, Callable[[], Callable[[], object]]] = {
    "nothing": lambda: lambda: None,
    "plain": plain_reader,
    "plain_csv": lambda: csv_reader(durable=False, reader=plain_reader),
    "plain_durable": lambda: csv_reader(durable=True, reader=plain_reader),
    "plain_same": lambda: csv_reader(durable=True, reader=same_reader),
    "nvitop": nvitop_reader,
    "nvitop_same": nvitop_same_reader,
    "gpustat": gpustat_reader,
    "gpustat_idle": gpustat_reader,
}


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


# Measuring


def memory_bytes(process: int) -> dict[str, int]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {
        key: int(rest.split()[0]) * 1024 for key, _, rest in (line.partition(":") for line in lines) if "kB" in rest
    }
    return {"peak_rss_bytes": found["VmHWM"], "anonymous_bytes": found["RssAnon"]}


def measured(command: list[str], folder: Path, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """Run a command, look at it over a window, end it with SIGTERM; what it cost, and what it said."""
    from whorl.benchmarks.machine import cpu_s  # here: the interpreter of the peers has no whorl

    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stderr=said, **streams)
        try:
            time.sleep(SETTLE_S)
            result: dict[str, Any] = {}
            if process.poll() is None:
                began, began_unix, cpu = time.monotonic(), time.time(), cpu_s(process.pid)
                time.sleep(seconds)
                used = cpu_s(process.pid) - cpu
                result = {
                    "cpu_share_pct": 100 * used / (time.monotonic() - began),
                    "cpu_s": used,
                    "cpu_before_window_s": cpu,
                    "window": (began_unix, time.time()),
                    **memory_bytes(process.pid),
                }
                process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
        said.seek(0)
        words = said.read()
    if process.returncode or not result:
        return {"did_not_run": words.strip().splitlines()[-1:]}
    return result | {"output": output, "said": words}


def whorl_sweeps(store: Path, window: tuple[float, float]) -> dict[str, Any]:
    """How many sweeps of the window are in the store, and how many values one of them has."""
    from whorl.store import Store

    opened = Store.open(store)
    inside = f"where epoch_ns(ts) between {int(window[0] * 1e9)} and {int(window[1] * 1e9)}"
    telemetry = opened.sql(f"select * from telemetry {inside}")
    names = [name for name in telemetry.column_names if name not in ("ts", "cluster", "gpu", "quality", "import_id")]
    values = sum(len(telemetry) - telemetry.column(name).null_count for name in names)
    sweeps = len(telemetry) / max(1, len(telemetry.column("gpu").unique()))
    events = opened.sql("select kind, count(*) as n from events group by kind order by kind").to_pylist()
    return {
        "sweeps": sweeps,
        "values_per_sweep": round(values / sweeps) if sweeps else 0,
        "events": {event["kind"]: event["n"] for event in events},
    }


def turn(name: str, given: argparse.Namespace, library: Any) -> dict[str, Any]:
    """One variant, once."""
    if name in PEERS and given.peers is None:
        return {"did_not_run": "not installed"}
    library.write(f"gpus {given.gpus}", "model H100", "load 10 0.7", "limit 650000")
    if name != "gpustat_idle":
        library.add(f"process {os.getpid()}")
    environment = library.environment()
    with tempfile.TemporaryDirectory(prefix="collector-") as temporary:
        folder = Path(temporary)
        if name == "whorl":
            order = ["collect", "--store", "S", "--backend", "nvml", "--interval", str(1 / given.rate)]
            result = measured([sys.executable, "-c", WHORL, *order], folder, environment, given.seconds)
            if "did_not_run" not in result:
                result |= whorl_sweeps(folder / "S", result["window"])
                result["said"] = re.sub(r"\s+", " ", result["said"].replace(str(folder), "")).strip()
        else:
            python = given.peers if name in PEERS else sys.executable
            order = [str(python), str(Path(__file__).resolve()), "--variant", name, "--rate", str(given.rate)]
            result = measured(order, folder, environment, given.seconds)
            if "did_not_run" not in result:
                first, last = result["window"]
                result["sweeps"] = sum(first <= began < last for began in json.loads(result["output"]))
                del result["said"]
                if name in VALUES:
                    result["values_per_sweep"] = VALUES[name] * given.gpus
    if "did_not_run" not in result:
        del result["output"], result["window"]
        result["cpu_us_per_sweep"] = 1e6 * result["cpu_s"] / result["sweeps"]
        result["sweeps_per_s"] = result["sweeps"] / given.seconds
        if values := result.get("values_per_sweep"):
            result["cpu_us_per_value"] = result["cpu_us_per_sweep"] / values
    return result


COMPUTE = "while True: pass"
WRITE = """
import os
while True:
    with open(f"busy-{os.getpid()}", "wb") as file:
        for _ in range(16):
            file.write(os.urandom(1 << 18))
        file.flush()
        os.fsync(file.fileno())
"""


def beside(given: argparse.Namespace, library: Any) -> dict[str, Any]:
    """Ticks that whorl and the plain durable loop keep beside other work, all of them at the same time."""
    from whorl.benchmarks.machine import cpu_s

    library.write(f"gpus {given.gpus}", "model H100", "load 10 0.7", "limit 650000")
    collect = [sys.executable, "-c", WHORL, "collect", "--store", "S", "--interval", str(1 / given.rate)]
    plain = [sys.executable, str(Path(__file__).resolve()), "--variant", "plain_durable", "--rate", str(given.rate)]
    commands = {"whorl": collect, "plain_durable": plain}
    if setpriv := shutil.which("setpriv"):
        commands["whorl_without_right"] = [setpriv, "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", *collect]
    with tempfile.TemporaryDirectory(prefix="collector-") as temporary:
        folders = {name: Path(temporary) / name for name in commands}
        running: dict[str, subprocess.Popen[str]] = {}
        others: list[subprocess.Popen[bytes]] = []
        try:
            for name, command in commands.items():
                folders[name].mkdir()
                running[name] = subprocess.Popen(
                    command, cwd=folders[name], env=library.environment(), text=True, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                )  # fmt: skip
            time.sleep(5 * SETTLE_S)
            for code in [COMPUTE] * given.busy + [WRITE] * given.busy_disk:
                others.append(subprocess.Popen([sys.executable, "-c", code], cwd=temporary))  # noqa: PERF401
            time.sleep(3.0)
            before, began = {name: cpu_s(one.pid) for name, one in running.items()}, time.time()
            time.sleep(given.seconds)
            used, ended = {name: cpu_s(one.pid) - before[name] for name, one in running.items()}, time.time()
        finally:
            for other in others:
                other.kill()
                other.wait()
            outputs = {}
            for name, one in running.items():
                one.send_signal(signal.SIGTERM)
                outputs[name] = one.communicate(timeout=120)[0]
        found: dict[str, Any] = {}
        for name, folder in folders.items():
            if name == "plain_durable":
                ticks = float(sum(began <= at < ended for at in json.loads(outputs[name])))
            else:
                ticks = whorl_sweeps(folder / "S", (began, ended))["sweeps"]
            found[name] = {"ticks": ticks, "cpu_us_per_sweep": round(1e6 * used[name] / max(ticks, 1), 1)}
    return {"computing": given.busy, "writing": given.busy_disk, "ticks_due": round(given.seconds * given.rate)} | found


def summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, least and most over the turns of one variant."""
    from whorl.benchmarks.reporting import spread

    if failed := [one for one in turns if "did_not_run" in one]:
        return failed[0]
    figures = (
        ("cpu_share_pct", 3),
        ("cpu_us_per_sweep", 1),
        *((("cpu_us_per_value", 2),) if "cpu_us_per_value" in turns[0] else ()),
        ("cpu_before_window_s", 3),
        ("sweeps_per_s", 2),
        ("peak_rss_bytes", 0),
        ("anonymous_bytes", 0),
    )
    result: dict[str, Any] = {"n": len(turns)}
    result |= {figure: spread([one[figure] for one in turns], digits) for figure, digits in figures}
    return result | {key: turns[-1][key] for key in ("values_per_sweep", "events", "said") if key in turns[-1]}


def ratios(turns: dict[str, list[dict[str, Any]]], figure: str) -> Iterator[tuple[str, dict[str, float]]]:
    """A figure of each variant that has it over whorl's, turn by turn."""
    from whorl.benchmarks.reporting import spread

    for name, theirs in turns.items():
        pairs = [
            (other[figure], own[figure])
            for other, own in zip(theirs, turns["whorl"], strict=True)
            if figure in other and figure in own
        ]
        if pairs and name != "whorl":
            yield name, spread([other / own for other, own in pairs], 2)


def versions(python: Path | None) -> dict[str, str]:
    """Versions of what was compared, as each interpreter has it."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    result: dict[str, str] = {}
    ours, peers = ("nvidia-ml-py", "numpy", "pyarrow"), ("nvitop", "gpustat")
    for interpreter, names in ((Path(sys.executable), ours), (python, peers)):
        if interpreter is None:
            result |= dict.fromkeys(names, "not installed")
            continue
        done = subprocess.run([interpreter, "-c", code, *names], capture_output=True, text=True, check=True)
        result |= json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="Python interpreter that has nvitop and gpustat")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rate", type=float, default=10.0, help="sweeps a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the window")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", action="append", choices=(*OURS, *PEERS), help="variants to run (repeatable)")
    parser.add_argument("--busy", type=int, help="only this: ticks kept beside so many processes that compute")
    parser.add_argument("--busy-disk", type=int, default=0, help="with --busy: and so many that write and sync")
    parser.add_argument("--variant", choices=tuple(READERS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.variant:
        loop(given.variant, given.rate)
        return
    from whorl.benchmarks.machine import file_system, machine  # here: the interpreter of the peers has no whorl
    from whorl.benchmarks.reporting import as_json, say

    simulated = runpy.run_path(str(ROOT / "tests" / "nvml_library.py"))
    names = tuple(given.only or (*OURS, *PEERS))
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    before = machine() | {"file_system": file_system(Path(tempfile.gettempdir()))}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        library = simulated["NvmlLibrary"](simulated["compile_library"](folder), folder)
        if given.busy is not None:
            found = [beside(given, library) for _ in range(given.turns)]
            workload = {"gpus": given.gpus, "rate_hz": given.rate, "window_s": given.seconds}
            print(as_json({"benchmark": "collector", "machine": before, "workload": workload, "beside": found}))
            return
        for number in range(given.turns):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                turns[name].append(turn(name, given, library))
                say(f"{name}: {turns[name][-1]}")
    result = {
        "benchmark": "collector",
        "machine": before,
        "versions": versions(given.peers),
        "workload": {
            "gpus": given.gpus,
            "metrics_of_plain": METRICS,
            "rate_hz": given.rate,
            "window_s": given.seconds,
            "turns": given.turns,
        },
        "variants": {name: summary(of_one) for name, of_one in turns.items()},
        "cpu_of_a_sweep_over_whorls": dict(ratios(turns, "cpu_us_per_sweep")) if "whorl" in turns else {},
        "cpu_of_a_value_over_whorls": dict(ratios(turns, "cpu_us_per_value")) if "whorl" in turns else {},
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
