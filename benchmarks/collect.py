"""What `whorl collect` costs the node that it watches: CPU a sweep, ticks kept beside load, and memory over a day.

    python -m benchmarks.collect [--only SECTION] [--quick | --long] [--peers PYTHON]

sweeps   CPU microseconds of a sweep of 8 GPUs ten times a second, and memory: `whorl collect` with all that it journals
         and makes durable, beside the plain loops of `peers.py` and, with the Python of --peers, nvitop. Each is a
         process over the simulated NVML library of the tests, which answers in about a microsecond: the reader's own
         work.
beside   ticks kept and CPU a sweep while 12 processes compute, of whorl and of the plain durable loop at the same time
memory   a day of readings (--long; else some hours) that pass as fast as the machine can, through the sampler, the
         journal and its sealing, and as many at 50 Hz: the most resident memory of each ten minutes and its slope,
         beside a Python with numpy and pyarrow that collects nothing

CPU time is the process's own clock over a window that begins 8 s after the start; memory is the peak.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scipy import stats

from whorl.benchmarks import peers
from whorl.benchmarks.collected_day import GPUS, RATE_HZ
from whorl.benchmarks.harness import ROOT, BenchOptions, cpu_s, in_turns, peak_mb, run, say, scratch, spread
from whorl.store import Store

SETTLE_S, BUSY = 8.0, 12
FASTEST_HZ = 50.0
COLLECT = [
    *(sys.executable, "-c", "import sys; from whorl.cli import main; sys.exit(main())"),
    *("collect", "--store", "S", "--backend", "nvml", "--interval", f"{1000 / RATE_HZ:g}ms"),
]


@contextlib.contextmanager
def simulated_library(folder: Path) -> Iterator[Any]:
    """The simulated NVML library with 8 GPUs on which one process computes."""
    module = runpy.run_path(str(ROOT / "tests" / "nvml_library.py"))
    library = module["NvmlLibrary"](module["compile_library"](folder), folder)
    library.write(f"gpus {GPUS}", "model H100", "load 10 0.7", "limit 650000")
    library.add(f"process {os.getpid()}")
    yield library


def reader(name: str, peer_python: Path | None) -> list[str]:
    """The command of a way to read the GPUs."""
    python = str(peer_python) if name == "nvitop" else sys.executable
    return COLLECT if name == "whorl" else [python, peers.__file__, "read", name, str(RATE_HZ)]


def stored_sweeps(folder: Path, since_s: float, until_s: float) -> dict[str, float]:
    """How many sweeps of a window are in the store, and how many values a sweep has."""
    inside = f"where epoch_ns(ts) between {int(since_s * 1e9)} and {int(until_s * 1e9)}"
    table = Store.open(folder / "S").sql(f"select * from telemetry {inside}").table
    names = [name for name in table.column_names if name not in ("ts", "cluster", "gpu", "quality", "import_id")]
    values = sum(len(table) - table.column(name).null_count for name in names)
    sweeps = len(table) / GPUS
    return {"sweeps": sweeps, "values_a_sweep": round(values / sweeps) if sweeps else 0}


def watched(
    names: Sequence[str],
    environment: dict[str, str],
    seconds: float,
    *,
    computing: int = 0,
    peer_python: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Run readers at the same time, beside so many processes that compute; look at them over a window, and end them.

    By reader the CPU microseconds of a sweep, how many sweeps it made, and its peak memory.
    """
    with scratch() as folder:
        running: dict[str, subprocess.Popen[str]] = {}
        busy: list[subprocess.Popen[bytes]] = []
        try:
            for name in names:
                (folder / name).mkdir()
                running[name] = subprocess.Popen(
                    reader(name, peer_python), cwd=folder / name, env=environment, text=True, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            time.sleep(SETTLE_S * len(names))
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(computing)]
            time.sleep(2.0 * bool(busy))
            used, began = {name: cpu_s(process.pid) for name, process in running.items()}, time.time()
            time.sleep(seconds)
            used, ended = {name: cpu_s(process.pid) - used[name] for name, process in running.items()}, time.time()
            peaks = {name: peak_mb(process.pid) for name, process in running.items()}
        finally:
            for processor in busy:
                processor.kill()
                processor.wait()
            for process in running.values():
                process.send_signal(signal.SIGTERM)
            outputs = {name: process.communicate(timeout=120)[0] for name, process in running.items()}
        figures: dict[str, dict[str, Any]] = {}
        for name, output in outputs.items():
            if name == "whorl":
                sweeps = stored_sweeps(folder / name, began, ended)
            else:
                sweeps = {"sweeps": sum(began <= at < ended for at in json.loads(output))}
            cost_us = 1e6 * used[name] / max(sweeps["sweeps"], 1)
            figures[name] = {"cpu_us_a_sweep": cost_us, "peak_mb": peaks[name], **sweeps}
    return figures


def sweeps(options: BenchOptions) -> dict[str, Any]:
    """Every reader in turns."""

    def alone(name: str) -> dict[str, Any]:
        return watched([name], library.environment(), options.pick(2, 20, 30), peer_python=options.peers)[name]

    with scratch() as folder, simulated_library(folder) as library:
        names = ["whorl", *(name for name in peers.READERS if name != "nvitop" or options.peers)]
        contenders = {name: partial(alone, name) for name in names}
        table = in_turns(contenders, options.pick(1, 3, 5), against="plain_durable", figure="cpu_us_a_sweep")
    return {"gpus": GPUS, "rate_hz": RATE_HZ, "readers": table}


def beside(options: BenchOptions) -> dict[str, Any]:
    """Both at the same time: what one meets, the other meets."""
    seconds, names, turns = float(options.pick(3, 30, 60)), ("whorl", "plain_durable"), []
    with scratch() as folder, simulated_library(folder) as library:
        for _ in range(options.pick(1, 3, 5)):
            turns.append(watched(names, library.environment(), seconds, computing=BUSY))
            say(str(turns[-1]))
    figures = {
        name: {"ticks": spread([turn[name]["sweeps"] for turn in turns], 1),
               "cpu_us_a_sweep": spread([turn[name]["cpu_us_a_sweep"] for turn in turns], 1)}
        for name in names
    }  # fmt: skip
    return {"computing": BUSY, "ticks_due": round(seconds * RATE_HZ), **figures}


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(options: BenchOptions) -> dict[str, Any]:
    """At two rates, as many readings at each."""
    plain = "import numpy, pyarrow, json; from pathlib import Path; print(Path('/proc/self/status').read_text())"
    status = subprocess.run([sys.executable, "-c", plain], capture_output=True, text=True, check=True).stdout
    resident = next(int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmRSS"))
    hours = float(options.pick(1, 6, 24))
    rates = {f"{rate_hz:g} Hz": memory_at(rate_hz, hours * RATE_HZ / rate_hz) for rate_hz in (RATE_HZ, FASTEST_HZ)}
    return {"plain_python_mb": resident, **rates}


def memory_at(rate_hz: float, hours: float) -> dict[str, Any]:
    """The line through the peaks after the first half hour, with its standard error."""
    with scratch() as folder:
        Store.create(folder / "S").close()
        # A process that imports nothing else: what this program has loaded must not count.
        code = (
            "import sys, json; sys.argv = ['x']; from whorl.benchmarks import collected_day as m; "
            f"print(json.dumps(m.a_day({str(folder / 'S')!r}, {hours}, {rate_hz})))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        noted = json.loads(done.stdout)
    later = [(row["hours"], row["peak_mb"]) for row in noted if row["hours"] > 0.5]
    cpu = noted[-1]["cpu_s"] / noted[-1]["hours"]
    return {"hours": hours, "seals": len(noted), "most_mb": max(row["peak_mb"] for row in noted),
            "mb_per_hour": line(later), "cpu_s_per_hour": round(cpu, 2)}  # fmt: skip


def line(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The slope of a line through points, and its standard error."""
    if len(points) < 3:
        return {"n": len(points), "slope": None, "standard_error": None}
    fit = stats.linregress(*zip(*points, strict=True))
    return {"n": len(points), "slope": round(float(fit.slope), 4), "standard_error": round(float(fit.stderr), 4)}


SECTIONS = {"sweeps": sweeps, "beside": beside, "memory": memory}

if __name__ == "__main__":
    run("collect", SECTIONS, packages=("nvidia-ml-py", "numpy", "pyarrow"))
