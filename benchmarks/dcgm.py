"""What reading the latest values of an engine of DCGM costs, against the reader in DCGM's own bindings.

    python benchmarks/dcgm.py [--gpus 8] [--rate 10] [--seconds 300] [--latency-us 100]

An engine of tests/native (nv-hostengine as a process of its own, over the simulated driver) measures every field that
whorl reads, of every GPU, at the rate. Each call of the driver takes `--latency-us` longer. The variants read the
latest values over TCP at the same rate and at the same time, each in a process of its own:

    collect      `whorl collect --backend dcgm`: rows are journalled, made durable and published as by default
    backend      whorl's backend alone: values are read and made into readings, which are thrown away
    dcgm_reader  `DcgmReader.GetLatestGpuValuesAsFieldIdDict()` of the real bindings; the values are thrown away

Two ticks that fall between two samples see the same one, and two samples between two ticks leave the first unread: so
it is meant. To say how many, another client has the engine keep every sample of the energy counter. `dropped` are those
that have no reading; of `dcgm_reader` it is not known, as it gives no times of single values.

CPU time (user and system) is the process's own clock over the window, which begins 8 s after the start. A value is one
field of one reading that is not blank or NULL. It states what it measured and asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whorl.benchmarks.machine import cpu_s, machine, peak_bytes
from whorl.benchmarks.reporting import as_json
from whorl.store.metrics import METRICS, ROW

SETTLE_S = 8.0
EDGE_US = 2_000_000  # samples so near the window's ends are not looked at
BLANK = 0x7FFFFFFFFFFFFFF0
ENERGY = 156
WHORL = "import sys; from whorl.cli import main; sys.exit(main())"
FIELDS = {metric.dcgm.id: metric.name for metric in METRICS if metric.dcgm is not None}
VARIANTS = ("collect", "backend", "dcgm_reader")
SEEN = "seen.json"


# The variants that are a loop: each reads the latest values at the rate until SIGTERM, and then says what it had


def read_at_rate(rate_hz: float, read: Callable[[], int]) -> dict[str, Any]:
    """Call `read`, which gives a number of values, until SIGTERM: the times of reads (us) and the values of each."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    start, tick = time.monotonic(), 0
    times, values = [], []
    while not ended:
        values.append(read())
        times.append(time.time_ns() // 1000)
        tick += 1
        time.sleep(max(0.0, start + tick / rate_hz - time.monotonic()))
    return {"times": times, "values": values}


def read_backend(address: str, rate_hz: float) -> dict[str, Any]:
    from whorl.collectors.backend import Reading
    from whorl.collectors.dcgm.dcgm import Dcgm

    backend = Dcgm(host=address, interval_s=1 / rate_hz, slow_s=1 / rate_hz)
    gpus = [device.gpu for device in backend.devices()]
    stamps: list[int] = []

    def read() -> int:
        readings = [reading for reading in backend.read(gpus, slow=True) if isinstance(reading, Reading)]
        stamps.extend((reading.ts_ns or 0) // 1000 for reading in readings if reading.statuses[ROW["energy_mj"]] == 0)
        return sum(reading.statuses.count(0) for reading in readings)

    seen = read_at_rate(rate_hz, read)
    backend.close()
    return seen | {"stamps": stamps}


def read_dcgm_reader(address: str, rate_hz: float) -> dict[str, Any]:
    from model_analyzer.monitor.dcgm.DcgmReader import DcgmReader

    reader = DcgmReader(
        hostname=address, fieldIntervalMap={round(1e6 / rate_hz): list(FIELDS)}, fieldGroupName="benchmark"
    )
    reader.Init(os.environ["DCGM_FOLDER"])
    return read_at_rate(
        rate_hz, lambda: sum(len(values) for values in reader.GetLatestGpuValuesAsFieldIdDict().values())
    )


class Auditor:
    """A client that has the engine keep every sample of the energy counter."""

    def __init__(self, engine: Any, every_us: int, keep_s: float) -> None:
        pydcgm, self._agent, structs = engine.bindings()
        self._handle = pydcgm.DcgmHandle(ipAddress=engine.address, timeoutMs=5000)
        self._group = pydcgm.DcgmGroup(self._handle, groupName="auditor", groupType=structs.DCGM_GROUP_DEFAULT)
        self._fields = pydcgm.DcgmFieldGroup(self._handle, "auditor", [ENERGY])
        self._group.samples.WatchFields(self._fields, every_us, keep_s, 1)

    def stamps(self) -> dict[int, list[int]]:
        """The times of all samples that are not blank, us, by GPU."""
        stamps: dict[int, set[int]] = {}

        def keep(_kind: int, gpu: int, values: Any, count: int, _: object) -> int:
            good = [value.ts for value in values[:count] if value.ts and not value.status and value.value.i64 < BLANK]
            stamps.setdefault(gpu, set()).update(good)
            return 0

        callback = self._agent.dcgmFieldValueEntityEnumeration_f(keep)
        group, fields = self._group.GetId(), self._fields.fieldGroupId
        self._agent.dcgmGetValuesSince_v2(self._handle.handle, group, fields, 0, callback, None)
        return {gpu: sorted(times) for gpu, times in stamps.items()}

    def close(self) -> None:
        self._handle.Shutdown()


# Measuring


def raise_priority(process: int) -> int:
    """Let the engine run before all others where we may: what is measured is who reads it. Its priority now."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), -15)
    return os.getpriority(os.PRIO_PROCESS, process)


def of_loop(folder: Path, first_us: float, last_us: float) -> dict[str, Any]:
    """What a variant that is a loop had within the window."""
    seen = json.loads((folder / SEEN).read_text())
    within = [value for us, value in zip(seen["times"], seen["values"], strict=True) if first_us <= us < last_us]
    result: dict[str, Any] = {"ticks": len(within), "values_per_s": 1e6 * sum(within) / (last_us - first_us)}
    if "stamps" in seen:
        result["readings"] = sum(first_us <= us < last_us for us in seen["stamps"])
    return result


def of_collect(folder: Path, first_us: float, last_us: float) -> dict[str, Any]:
    """What `whorl collect` stored within the window."""
    from whorl.store import Store

    store = Store.open(folder / "S")
    counts = " + ".join(f"count({name})" for name in FIELDS.values())
    window = f"epoch_us(ts) >= {first_us} and epoch_us(ts) < {last_us}"
    (row,) = store.sql(f"select {counts} as n, count(energy_mj) as e from telemetry where {window}").to_pylist()
    events = store.sql("select kind, count(*) as n from events group by kind order by kind").to_pylist()
    return {
        "readings": row["e"],
        "values_per_s": 1e6 * row["n"] / (last_us - first_us),
        "events": {event["kind"]: event["n"] for event in events},
    }


def measure(given: argparse.Namespace, engine: Any, folders: dict[str, Path]) -> dict[str, Any]:
    every_us, priority = round(1e6 / given.rate), raise_priority(engine.pid)
    environment = engine.environment(DCGM_FOLDER=str(engine.folder))
    auditor = Auditor(engine, every_us, given.seconds + 120)
    interval = f"{every_us // 1000}ms"
    verb = ["collect", "--store", "S", "--backend", f"dcgm:host={engine.address}"]
    commands = {
        "collect": [sys.executable, "-c", WHORL, *verb, "--interval", interval, "--set", f"slow-interval={interval}"]
    }
    for name in ("backend", "dcgm_reader"):
        options = ["--variant", name, "--address", engine.address, "--rate", str(given.rate)]
        commands[name] = [sys.executable, str(Path(__file__).resolve()), *options]
    running: dict[str, subprocess.Popen[str]] = {}
    cpu: dict[str, float] = {}
    memory: dict[str, int] = {}
    try:
        for name, folder in folders.items():
            output = (folder / "output").open("w")
            running[name] = subprocess.Popen(
                commands[name], cwd=folder, env=environment, text=True, stderr=output, stdout=output
            )
        time.sleep(SETTLE_S)
        before = {name: cpu_s(process.pid) for name, process in running.items() if process.poll() is None}
        engine_s, began = cpu_s(engine.pid), time.time()
        time.sleep(given.seconds)
        for name, process in running.items():
            if process.poll() is None:
                cpu[name], memory[name] = cpu_s(process.pid) - before[name], peak_bytes(process.pid) or 0
        engine_s, ended = cpu_s(engine.pid) - engine_s, time.time()
        time.sleep(1.0)
        stamps = auditor.stamps()
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for process in running.values():
            process.wait(120)
    auditor.close()
    first_us, last_us = began * 1e6 + EDGE_US, ended * 1e6 - EDGE_US
    within = {gpu: [us for us in times if first_us <= us < last_us] for gpu, times in stamps.items()}
    apart = [later - sooner for times in within.values() for sooner, later in itertools.pairwise(times)]
    sampled = sum(map(len, within.values()))
    result: dict[str, Any] = {
        "engine": {
            "nice": priority,
            "cpu_share_pct": 100 * engine_s / (ended - began),
            "energy_samples": sampled,
            "ms_between_samples": {
                "asked": every_us / 1e3,
                "median": statistics.median(apart) / 1e3,
                "longest": max(apart) / 1e3,
            },
        }
    }
    for name, folder in folders.items():
        if name not in cpu:
            result[name] = {"did_not_run": (folder / "output").read_text().strip().splitlines()[-1:]}
            continue
        cost = {"cpu_share_pct": 100 * cpu[name] / (ended - began), "peak_rss_bytes": memory[name]}
        result[name] = cost | (of_collect if name == "collect" else of_loop)(folder, first_us, last_us)
        result[name]["cpu_us_per_value"] = 1e4 * cost["cpu_share_pct"] / result[name]["values_per_s"]
        if "readings" in result[name]:
            result[name]["dropped"] = sampled - result[name]["readings"]
    return result


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rate", type=float, default=10.0, help="ticks a second")
    parser.add_argument("--seconds", type=float, default=300.0, help="length of the window")
    parser.add_argument("--latency-us", type=int, default=100, help="how much longer each call of the driver takes")
    parser.add_argument("--only", action="append", choices=VARIANTS, help="variants to run (repeatable)")
    parser.add_argument("--variant", choices=("backend", "dcgm_reader"), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.variant:
        read = {"backend": read_backend, "dcgm_reader": read_dcgm_reader}[given.variant]
        seen = read(given.address, given.rate)
        Path(SEEN).write_text(json.dumps(seen))
        return

    from whorl.tests.dcgm_library import DcgmEngine, compile_dcgm
    from whorl.tests.nvml_library import NvmlLibrary, compile_library

    before = machine()
    with tempfile.TemporaryDirectory(prefix="dcgm-") as temporary:
        folder = Path(temporary)
        folders = {name: folder / name for name in (given.only or VARIANTS)}
        for needed in (folder / "nvml", folder / "dcgm", *folders.values()):
            needed.mkdir()
        compile_dcgm(folder / "dcgm")
        driver = NvmlLibrary(compile_library(folder / "nvml"), folder)
        driver.write(f"gpus {given.gpus}", "model H100", "load 10 0.7", f"latency {given.latency_us}")
        engine = DcgmEngine(folder / "dcgm", driver, folder)
        engine.start()
        try:
            variants = measure(given, engine, folders)
        finally:
            engine.stop()
    result: dict[str, Any] = {
        "benchmark": "dcgm",
        "machine": before,
        "workload": {
            "gpus": given.gpus,
            "fields": len(FIELDS),
            "rate_hz": given.rate,
            "window_s": given.seconds,
            "latency_us": given.latency_us,
        },
        "n": 1,
        "variants": variants,
    }
    if all("cpu_us_per_value" in variants.get(name, {}) for name in VARIANTS):
        theirs_us = variants["dcgm_reader"]["cpu_us_per_value"]
        result["cpu_per_value_over_dcgm_readers"] = {
            name: variants[name]["cpu_us_per_value"] / theirs_us for name in ("collect", "backend")
        }
    print(as_json(rounded(result)))


if __name__ == "__main__":
    main()
