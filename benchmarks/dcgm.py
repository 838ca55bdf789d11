"""What reading an engine of DCGM costs, and whether samples are lost, against the reader in DCGM's own bindings.

    python benchmarks/dcgm.py [--gpus 8] [--rate 10] [--seconds 300] [--latency-us 300]

An engine of tests/native (nv-hostengine as a process of its own, over the simulated driver) samples every field that
whorl reads, of every GPU, at the rate. Each call of the driver takes `--latency-us` longer. The variants read the same
engine over TCP at the same time, once a second, each in a process of its own:

    collect      `whorl collect --backend dcgm`: rows are journalled, made durable and published as by default
    stream       whorl's stream alone: samples are read and made into rows, which are thrown away
    dcgm_reader  `DcgmReader.GetAllGpuValuesAsFieldIdDictSinceLastCall()` of the real bindings; the values are
                 thrown away

Another client has the engine keep all that it sampled, and reads it at the end: what a variant did not hand out is
lost. Of `stream` and `dcgm_reader` single samples are compared. The store has one time for a row, so of `collect` a
sample is lost if no row of its own has a value within three quarters of an interval; the instant power is left out, as
it stands in each row until there is a new one. Where the engine pauses, it goes on with some fields earlier than with
others: then rows have NULLs (`nulls`), and of two profiling samples of one row the mean is stored, so that one of them
counts as lost.

CPU time (user and system) is the process's own clock over the window, which begins 8 s after the start. A value is a
sample that is not blank: of `collect` as the store has it. It states what it measured and asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
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

import numpy as np

from whorl.benchmarks.machine import cpu_s, machine, peak_bytes
from whorl.benchmarks.reporting import as_json
from whorl.store.metrics import METRICS

SETTLE_S = 8.0
POLL_S = 1.0
EDGE_US = 2_000_000  # samples so near the window's ends are not looked at: not everyone has read them
BLANK, BLANK_DOUBLE = 0x7FFFFFFFFFFFFFF0, 2.0**47
WHORL = "import sys; from whorl.cli import main; sys.exit(main())"
FIELDS = {metric.dcgm.id: metric.name for metric in METRICS if metric.dcgm is not None}
STANDS = 157  # the instant power
REACH = 0.75  # of an interval: a sample so near a row is that row's
VARIANTS = ("collect", "stream", "dcgm_reader")


# The variants that are a loop: each takes what is new once a second until SIGTERM, and then says what it had


def polled(poll: Callable[[], object]) -> None:
    ended: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    start, tick = time.monotonic(), 0
    while not ended:
        poll()
        tick += 1
        time.sleep(max(0.0, start + tick * POLL_S - time.monotonic()))


def read_stream(address: str, every_us: int, output: Path) -> None:
    from whorl.collectors.dcgm import connection
    from whorl.collectors.dcgm.dcgm import Dcgm

    seen = []
    read = connection.Connection.read

    def keep(self: Any, reader: Any, overlap_us: int) -> Any:
        samples, later = read(self, reader, overlap_us)
        seen.append(samples)
        return samples, later

    connection.Connection.read = keep  # type: ignore[method-assign]
    stream = Dcgm(host=address, interval_s=every_us / 1e6, slow_s=every_us / 1e6)
    stream.open()
    polled(stream.poll)
    stream.close()
    numbers = np.array([metric.dcgm.id if metric.dcgm else 0 for metric in METRICS] + [0])
    keys = [
        np.stack([samples.device, numbers[samples.row], samples.ts], axis=1)[samples.status == 0] for samples in seen
    ]
    np.save(output, np.unique(np.concatenate(keys), axis=0))


def read_dcgm_reader(address: str, every_us: int, output: Path) -> None:
    from model_analyzer.monitor.dcgm.DcgmReader import DcgmReader

    reader = DcgmReader(
        hostname=address, fieldIntervalMap={every_us: list(FIELDS)}, maxKeepAge=60.0, fieldGroupName="benchmark"
    )
    reader.Init(os.environ["DCGM_FOLDER"])
    said: list[tuple[int, int]] = []

    def poll() -> None:
        values = reader.GetAllGpuValuesAsFieldIdDictSinceLastCall()
        count = sum(len(series) for fields in values.values() for series in fields.values())
        said.append((reader.fvs._nextSinceTimestamp, count))

    polled(poll)
    np.save(output, np.array(said))


# What the engine sampled


class Auditor:
    """A client that has the engine keep everything."""

    def __init__(self, engine: Any, every_us: int, keep_s: float) -> None:
        self._pydcgm, self._agent, structs = engine.bindings()
        self._handle = self._pydcgm.DcgmHandle(ipAddress=engine.address, timeoutMs=5000)
        self._group = self._pydcgm.DcgmGroup(self._handle, groupName="auditor", groupType=structs.DCGM_GROUP_DEFAULT)
        self._fields = self._pydcgm.DcgmFieldGroup(self._handle, "auditor", list(FIELDS))
        self._group.samples.WatchFields(self._fields, every_us, keep_s, 1)

    def samples(self, since_us: int) -> Any:
        """All that is not blank: rows of GPU, field and time. The engine keeps some twice, with one time."""
        found = []

        def keep(_kind: int, gpu: int, values: Any, _count: int, _data: object) -> int:
            value = values[0]
            blank = value.value.dbl >= BLANK_DOUBLE if value.fieldType == ord("d") else value.value.i64 >= BLANK
            if value.ts and not value.status and not blank:
                found.append((gpu, value.fieldId, value.ts))
            return 0

        callback = self._agent.dcgmFieldValueEntityEnumeration_f(keep)
        self._agent.dcgmGetValuesSince_v2(
            self._handle.handle, self._group.GetId(), self._fields.fieldGroupId, since_us, callback, None
        )
        return np.array(found, np.int64)

    def close(self) -> None:
        self._handle.Shutdown()


def between(samples: Any, first_us: float, last_us: float) -> Any:
    return samples[(samples[:, 2] >= first_us) & (samples[:, 2] < last_us)]


# Measuring


def raise_priority(process: int) -> int:
    """Let the engine run before all others where we may: what is measured is who reads it. Its priority now."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), -15)
    return os.getpriority(os.PRIO_PROCESS, process)


def of_stream(folder: Path, truth: Any, window: tuple[float, float], _every_us: int) -> dict[str, Any]:
    ends = (window[0] * 1e6 + EDGE_US, window[1] * 1e6 - EDGE_US)
    wanted, got = np.unique(between(truth, *ends), axis=0), between(np.load(folder / "seen.npy"), *ends)
    both = len(np.unique(np.concatenate([wanted, got]), axis=0))
    seconds = (ends[1] - ends[0]) / 1e6
    return {"samples_of_engine": len(wanted), "samples_lost": both - len(got), "values_per_s": len(got) / seconds}


def of_dcgm_reader(folder: Path, truth: Any, window: tuple[float, float], _every_us: int) -> dict[str, Any]:
    said = np.load(folder / "seen.npy")
    inside = said[(said[:, 0] >= window[0] * 1e6) & (said[:, 0] < window[1] * 1e6)]
    wanted, got = between(truth, inside[0, 0], inside[-1, 0]), int(inside[1:, 1].sum())
    seconds = (inside[-1, 0] - inside[0, 0]) / 1e6
    return {"samples_of_engine": len(wanted), "samples_lost": len(wanted) - got, "values_per_s": got / seconds}


def unmatched(sampled: Any, stored: Any, reach_us: float) -> int:
    """How many of the engine's samples have no row of their own so near; both in the order of time."""
    lost = at = 0
    for us in sampled:
        while at < len(stored) and stored[at] < us - reach_us:
            at += 1
        if at < len(stored) and stored[at] <= us + reach_us:
            at += 1
        else:
            lost += 1
    return lost


def of_collect(folder: Path, truth: Any, window: tuple[float, float], every_us: int) -> dict[str, Any]:
    from whorl.store import Store

    store = Store.open(folder / "S")
    first, last = window[0] * 1e6 + EDGE_US, window[1] * 1e6 - EDGE_US
    given = sorted(set(truth[:, 1].tolist()) - {STANDS})
    columns = ", ".join(FIELDS[number] for number in given)
    gpus = store.sql("select distinct gpu from telemetry order by gpu").column("gpu").to_pylist()
    lost, values, nulls, samples = dict.fromkeys(given, 0), 0, 0, 0
    for gpu, uuid in enumerate(gpus):  # the simulated driver numbers GPUs in the order of their UUIDs
        rows = store.sql(f"select epoch_us(ts) as us, {columns} from telemetry where gpu = '{uuid}' order by ts")
        us = rows.column("us").to_numpy()
        inside = (us >= first) & (us < last)
        for number in given:
            there = rows.column(FIELDS[number]).is_valid().to_numpy()
            values, nulls = values + int((there & inside).sum()), nulls + int((~there & inside).sum())
            sampled = np.unique(between(truth[(truth[:, 0] == gpu) & (truth[:, 1] == number)], first, last)[:, 2])
            samples += len(sampled)
            lost[number] += unmatched(sampled.tolist(), us[there].tolist(), REACH * every_us)
    events = store.sql("select kind, count(*) as n from events group by kind order by kind").to_pylist()
    return {
        "samples_of_engine": samples,
        "values": values,
        "nulls": nulls,
        "samples_lost": sum(lost.values()),
        "samples_lost_of": {FIELDS[number]: count for number, count in lost.items() if count},
        "values_per_s": 1e6 * values / (last - first),
        "events": {event["kind"]: event["n"] for event in events},
    }


def measure(given: argparse.Namespace, engine: Any, folders: dict[str, Path]) -> dict[str, Any]:
    every_us, priority = round(1e6 / given.rate), raise_priority(engine.pid)
    environment = engine.environment(DCGM_FOLDER=str(engine.folder))
    auditor = Auditor(engine, every_us, given.seconds + 120)
    interval = f"{every_us // 1000}ms"
    order = ["collect", "--store", "S", "--backend", "dcgm", "--host", engine.address]
    commands = {"collect": [sys.executable, "-c", WHORL, *order, "--interval", interval, "--slow-interval", interval]}
    for name in ("stream", "dcgm_reader"):
        own = ["--variant", name, "--address", engine.address, "--rate", str(given.rate)]
        commands[name] = [sys.executable, str(Path(__file__).resolve()), *own]
    running: dict[str, subprocess.Popen[str]] = {}
    used: dict[str, float] = {}
    memory: dict[str, int] = {}
    try:
        for name, folder in folders.items():
            said = (folder / "said").open("w")
            running[name] = subprocess.Popen(
                commands[name],
                cwd=folder,
                env=environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stderr=said,
                stdout=said,
            )
        time.sleep(SETTLE_S)
        before = {name: cpu_s(process.pid) for name, process in running.items() if process.poll() is None}
        of_engine, began = cpu_s(engine.pid), time.time()
        time.sleep(given.seconds)
        for name, process in running.items():
            if process.poll() is None:
                used[name], memory[name] = cpu_s(process.pid) - before[name], peak_bytes(process.pid) or 0
        of_engine, ended = cpu_s(engine.pid) - of_engine, time.time()
        time.sleep(2 * POLL_S)
        truth = auditor.samples(round(began * 1e6))
    finally:
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for process in running.values():
            process.wait(120)
    auditor.close()
    looks = {"collect": of_collect, "stream": of_stream, "dcgm_reader": of_dcgm_reader}
    share = 100 * of_engine / (ended - began)
    found: dict[str, Any] = {"engine": {"nice": priority, "cpu_share_pct": share} | paces(truth, every_us)}
    for name, folder in folders.items():
        if name not in used:
            found[name] = {"did_not_run": (folder / "said").read_text().strip().splitlines()[-1:]}
            continue
        cost = {"cpu_share_pct": 100 * used[name] / (ended - began), "peak_rss_bytes": memory[name]}
        found[name] = cost | looks[name](folder, truth, (began, ended), every_us)
        found[name]["cpu_us_per_value"] = 1e4 * cost["cpu_share_pct"] / found[name]["values_per_s"]
    return found


def paces(truth: Any, every_us: int) -> dict[str, Any]:
    """How far apart the engine's samples are, and what it has."""
    power = truth[truth[:, 1] == 155]
    apart = np.concatenate([np.diff(power[power[:, 0] == gpu, 2]) for gpu in np.unique(power[:, 0])])
    return {
        "fields_with_values": len(np.unique(truth[:, 1])),
        "ms_between_samples": {
            "asked": every_us / 1e3,
            "median": statistics.median(apart.tolist()) / 1e3,
            "longest": float(apart.max()) / 1e3,
        },
    }


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rate", type=float, default=10.0, help="samples a second, of each field and GPU")
    parser.add_argument("--seconds", type=float, default=300.0, help="length of the window")
    parser.add_argument("--latency-us", type=int, default=300, help="how much longer each call of the driver takes")
    parser.add_argument("--only", action="append", choices=VARIANTS, help="variants to run (repeatable)")
    parser.add_argument("--variant", choices=("stream", "dcgm_reader"), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.variant:
        read = {"stream": read_stream, "dcgm_reader": read_dcgm_reader}[given.variant]
        read(given.address, round(1e6 / given.rate), Path("seen.npy"))
        return

    from whorl.tests.dcgm_library import DcgmEngine, compile_dcgm
    from whorl.tests.nvml_library import NvmlLibrary, compile_library

    before = machine()
    with tempfile.TemporaryDirectory(prefix="dcgm-") as temporary:
        folder = Path(temporary)
        folders = {name: folder / name for name in (given.only or VARIANTS)}
        for one in (folder / "nvml", folder / "dcgm", *folders.values()):
            one.mkdir()
        compile_dcgm(folder / "dcgm")
        driver = NvmlLibrary(compile_library(folder / "nvml"), folder)
        driver.write(f"gpus {given.gpus}", "model H100", "load 10 0.7", f"latency {given.latency_us}")
        engine = DcgmEngine(folder / "dcgm", driver, folder)
        engine.start()
        try:
            found = measure(given, engine, folders)
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
        "variants": found,
    }
    if all("cpu_us_per_value" in found.get(name, {}) for name in VARIANTS):
        theirs = found["dcgm_reader"]["cpu_us_per_value"]
        result["cpu_per_value_over_dcgm_readers"] = {
            name: found[name]["cpu_us_per_value"] / theirs for name in ("collect", "stream")
        }
    print(as_json(rounded(result)))


if __name__ == "__main__":
    main()
