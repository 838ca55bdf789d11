"""The memory of a collector over a day of readings, which pass as fast as the machine can. Prints JSON.

    python benchmarks/collector_memory.py [--hours 24] [--gpus 8] [--rate 10]

The sampler, the journal and its sealing are those of `whorl collect`. Only the clock and the GPUs are made up:
the clock jumps from tick to tick, and the readings are random walks of the size of real ones. So a day has its 864,000
ticks and 144 seals, in some minutes.

After every seal the process notes its memory: `rss_mb` at that moment, and `peak_mb`, the most since the seal before.
The slope is that of a line through the peaks over the hours of data, without the first hour, with its standard
error from the scatter of the peaks. The alternative is `plain`: the same interpreter with NumPy and pyarrow, which
collects nothing. CPU time is that of the process. It states what it measured and asserts nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SEGMENT_S = 600
BEGAN = 1_800_000_000 * 10**9  # ns
STATUS = Path("/proc/self/status")
PLAIN = f"import numpy, pyarrow; print(open({str(STATUS)!r}).read())"


def memory_mb(text: str) -> dict[str, float]:
    """The memory of a process now (VmRSS), and the most so far (VmHWM), from its `status` in /proc."""
    found = dict(re.findall(r"(VmRSS|VmHWM|RssAnon):\s*(\d+) kB", text))
    return {name: round(int(kb) / 1024, 2) for name, kb in found.items()}


def collect(root: str, gpus: int, rate: float, hours: float) -> None:
    """In a process of its own: collect, and print a line after every seal."""
    from whorl.collectors.backend import Backend, Device, Reading, Status
    from whorl.collectors.collect import settle
    from whorl.collectors.recording import StoreRecorder
    from whorl.collectors.sampler import Sampler, Sampling
    from whorl.store.journal import Journal
    from whorl.store.journal_file import Ticks
    from whorl.store.metrics import FAST, METRICS

    settle()
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: F401  as the collector of a node has it

    class Jumping:
        """A clock that is ahead by as much as anybody sleeps."""

        passed = 0

        def wall(self) -> int:
            return BEGAN + self.passed

        def steady(self) -> int:
            return self.passed

        boot = steady

        def sleep(self, ns: int) -> None:
            self.passed += ns

    every = range(len(METRICS))
    counts = [metric.kind == "counter" for metric in METRICS]
    statuses = {
        slow: bytes(Status.OK if slow or row in FAST else Status.UNREAD for row in every) for slow in (False, True)
    }

    class Walking(Backend):
        """GPUs whose readings walk at random: gauges up and down, counters up."""

        name, period_ms = "walking", 100

        def __init__(self) -> None:
            self._values = {device.gpu: [300_000] * len(METRICS) for device in self.devices()}

        def devices(self) -> list[Device]:
            return [Device(f"GPU-{number:08x}-0000-0000-0000-000000000000") for number in range(gpus)]

        def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading]:
            for gpu in gpus:
                values, noise = self._values[gpu], os.urandom(len(METRICS))
                for row in every if slow else FAST:
                    step = noise[row] - 127
                    values[row] = (values[row] + (50_000 + abs(step) if counts[row] else step)) % (1 << 30)
                yield Reading(gpu, list(values) if slow else [values[row] for row in FAST], statuses[slow])

    seals = 0

    class Maintained(StoreRecorder):
        """Seals by the clock of the readings, as the journal's own thread does by the machine's."""

        def append(self, ticks: Ticks) -> None:
            nonlocal seals
            super().append(ticks)
            number = round(clock.passed / 1e9 * rate)
            if number and number % round(SEGMENT_S * rate) == 0:
                journal.seal()
                seals += 1
                say(seals)

    def say(seals: int) -> None:
        used = memory_mb(STATUS.read_text())
        said = {
            "hours": round(clock.passed / 3600e9, 4),
            "seals": seals,
            "rss_mb": used["VmRSS"],
            "anonymous_mb": used["RssAnon"],
            "peak_mb": used["VmHWM"],
            "cpu_s": round(time.process_time(), 2),
        }
        print(json.dumps(said), flush=True)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # from here on a new peak

    clock = Jumping()
    journal = Journal(Path(root), "n", offline=True, clock=clock.wall)  # a child seals, as for a collector
    recorder = Maintained(Path(root), journal, cluster="c", node="n")
    say(0)
    sampler = Sampler(Walking(), recorder, Sampling(1 / rate, "c", "n", hung_s=1e9, clock=clock))
    sampler.run(hours * 3600 + 1 / rate)
    journal.close()


def line(points: Sequence[tuple[float, float]]) -> dict[str, float | int | None]:
    """The slope of a line through points, and its standard error."""
    n = len(points)
    if n < 3:
        return {"n": n, "slope": None, "standard_error": None}
    mean_x, mean_y = (sum(point[axis] for point in points) / n for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return {"n": n, "slope": round(slope, 4), "standard_error": round((rest / (n - 2) / spread) ** 0.5, 4)}


def measured(command: list[str], environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for text in process.stdout:
            yield json.loads(text)
    if process.returncode:
        sys.exit("the collector ended with an error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="hours of readings")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rate", type=float, default=10.0, help="ticks a second")
    parser.add_argument("--collect", metavar="STORE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.collect:
        collect(given.collect, given.gpus, given.rate, given.hours)
        return
    from whorl.benchmarks.machine import machine

    before = machine("numpy", "pyarrow")
    plain = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=True).stdout
    own = [sys.executable, str(Path(__file__).resolve())]
    with tempfile.TemporaryDirectory(prefix="collector-") as folder:
        first, root = str(Path(folder) / "first"), str(Path(folder) / "S")
        make = "import sys; from whorl.store import Store; [Store.create(path) for path in sys.argv[1:]]"
        subprocess.run([sys.executable, "-c", make, first, root], check=True)
        # Modules are compiled once, as those of an installed package are: compiling takes memory.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "compiled")
        size = ["--gpus", str(given.gpus), "--rate", str(given.rate), "--hours", str(given.hours)]
        found = []
        list(measured([*own, "--collect", first, "--hours", "0.01"], environment))
        for one in measured([*own, "--collect", root, *size], environment):
            found.append(one)
            print(one, file=sys.stderr)
    idle, *seals = found
    later = [one for one in seals if one["hours"] > 1.0]
    print(
        json.dumps(
            {
                "benchmark": "collector_memory",
                "machine": before,
                "workload": {"gpus": given.gpus, "rate_hz": given.rate, "hours": given.hours, "seals": len(seals)},
                "plain_rss_mb": memory_mb(plain)["VmRSS"],
                "idle_rss_mb": idle["rss_mb"],
                "max_rss_mb": max(one["peak_mb"] for one in found),
                "peak_mb_per_hour": line([(one["hours"], one["peak_mb"]) for one in later]),
                "rss_mb_per_hour": line([(one["hours"], one["rss_mb"]) for one in later]),
                "cpu_s_per_hour": round((found[-1]["cpu_s"] - idle["cpu_s"]) / found[-1]["hours"], 2),
                "every_hour": [one for one in found if one["hours"] % 1 < 0.01],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
