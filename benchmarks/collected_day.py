"""A day of a collector's readings that passes as fast as the machine can: imported by a process that measures itself.

Of whorl it imports only what `whorl collect` has, so that its memory is that of a collector.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from whorl.benchmarks.harness import peak_mb

GPUS, RATE_HZ = 8, 10.0
SEGMENT_S = 600
BEGAN_NS = 1_800_000_000 * 10**9


def a_day(root: str, hours: float, rate_hz: float) -> list[dict[str, float]]:
    """In a process of its own: collect, and note the memory after every seal (MiB)."""
    from whorl.collectors.backend import Backend, Device, Reading, Status
    from whorl.collectors.collect import settle
    from whorl.collectors.recording import StoreRecorder
    from whorl.collectors.sampler import Sampler, Sampling
    from whorl.store.journal import Journal
    from whorl.store.journal_file import Ticks
    from whorl.store.metrics import FAST, METRICS

    settle()

    class Jumping:
        """A clock that is ahead by as much as anybody sleeps."""

        passed = 0

        def wall(self) -> int:
            """Nanoseconds since 1970."""
            return BEGAN_NS + self.passed

        def steady(self) -> int:
            """Nanoseconds since the start."""
            return self.passed

        boot = steady

        def sleep(self, ns: int) -> None:
            """Jump."""
            self.passed += ns

    rows = range(len(METRICS))
    counts = [metric.kind == "counter" for metric in METRICS]
    statuses = {
        slow: bytes(Status.OK if slow or row in FAST else Status.UNREAD for row in rows) for slow in (False, True)
    }

    class Walking(Backend):
        """GPUs whose readings walk at random: gauges up and down, counters up."""

        name, period_ms = "walking", 100

        def __init__(self) -> None:
            self._values = {device.gpu: [300_000] * len(METRICS) for device in self.devices()}

        def devices(self) -> list[Device]:
            return [Device(f"GPU-{number:08x}-0000-0000-0000-000000000000") for number in range(GPUS)]

        def read(self, gpus: Sequence[str], *, slow: bool) -> Iterator[Reading]:
            for gpu in gpus:
                values, noise = self._values[gpu], os.urandom(len(METRICS))
                for row in rows if slow else FAST:
                    step = noise[row] - 127
                    values[row] = (values[row] + (50_000 + abs(step) if counts[row] else step)) % (1 << 30)
                yield Reading(gpu, list(values) if slow else [values[row] for row in FAST], statuses[slow])

    clock, noted = Jumping(), list[dict[str, float]]()
    # A child seals, as for a collector. To wait for the disk at every tick would take as long as the day itself.
    journal = Journal(Path(root), "n", durable_s=60.0, offline=True, clock=clock.wall)

    class Maintained(StoreRecorder):
        """Seals by the clock of the readings, as the journal's own thread does by the machine's."""

        def append(self, ticks: Ticks) -> None:
            super().append(ticks)
            number = round(clock.passed / 1e9 * rate_hz)
            if number and number % round(SEGMENT_S * rate_hz) == 0:
                journal.seal()
                noted.append({"hours": clock.passed / 3600e9, "peak_mb": peak_mb() or 0, "cpu_s": time.process_time()})
                with contextlib.suppress(OSError):
                    Path("/proc/self/clear_refs").write_text("5")  # from here on a new peak

    recorder = Maintained(Path(root), journal, cluster="c", node="n")
    sampler = Sampler(Walking(), recorder, Sampling(1 / rate_hz, "c", "n", hung_s=1e9, clock=clock))
    sampler.run(hours * 3600 + 1 / rate_hz)
    journal.close()
    return noted
