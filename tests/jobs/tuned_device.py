"""A device of this node whose speed follows its SM clock, as the driver tells it; its runs take real time.

With the NVML library of `tests/native` it can be tuned as a real GPU is: by real settings, and real readings meanwhile.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pynvml

from whorl.analysis.tuning.search import TimeBound
from whorl.collectors.nvml_settings import Controls
from whorl.jobs.tuning import TuneAnswer, TuneProgress, TuningOptions, tune
from whorl.jobs.tuning_probe import ProbeBench, ProbeBenchOptions, bench_on
from whorl.kernels.device import Timed, Verdict
from whorl.kernels.work import Work
from whorl.probes.catalogue import find_probe
from whorl.probes.effort import EFFORTS
from whorl.store import Store
from whorl.tests.probes.hand_device import FACTS, HandDevice, HandLoaded

FULL_MHZ = 1980
BOUND = TimeBound(max_slowdown=0.05)
SHORT = replace(
    EFFORTS["quick"], least_s=0.35, limit_s=0.4, warm_up_s=0.2, first_warm_up_s=0.2, slope_s=0.05, repeats=5
)
"""A trial takes a second."""


@dataclass
class ClockedDevice(HandDevice):
    """2 ms a repetition at the highest clock."""

    hold: Path | None = None
    """A run says so and waits until this file is there."""

    def now_ns(self) -> int:
        return time.time_ns()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def load(self, work: Work, *, seed: int) -> ClockedLoaded:
        return ClockedLoaded(self, work)


class ClockedLoaded(HandLoaded):
    async def run(self, repeats: int, *, each: int = 1, limit_s: float, apart: bool = False) -> Timed:
        handle = pynvml.nvmlDeviceGetHandleByUUID(self.device.facts.gpu)
        mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        times = np.full(repeats, 2.0 * FULL_MHZ / mhz)
        began_ns = time.time_ns()
        hold = self.device.hold if isinstance(self.device, ClockedDevice) else None
        if hold is not None:
            say("held")
            while not hold.exists():
                time.sleep(0.01)
        time.sleep(float(times.sum()) * each / 1000)
        return Timed(began_ns, time.time_ns(), times, repeats * each)

    async def check(self) -> Verdict:
        return Verdict(10, 0)


def clocked(gpus: Sequence[str]) -> list[ClockedDevice]:
    return [ClockedDevice(facts=replace(FACTS, gpu=gpu, index=place)) for place, gpu in enumerate(gpus)]


def bench(store: Store, devices: Sequence[ClockedDevice]) -> ProbeBench:
    """The probe `fma-fp32` on these GPUs of the driver."""
    with patch.dict(EFFORTS, quick=SHORT):  # for this bench alone: other tests of the process measure as users do
        return bench_on(store, find_probe("fma-fp32"), devices, ProbeBenchOptions(suite="quick"))


def tuned(folder: Path, gpus: Sequence[str], trials: int, *, held_after: int | None = None) -> TuneAnswer:
    """Tune, with a log beside the store. After so many measurements the next one waits until there is a file `go`."""
    devices = clocked(gpus)

    def count(progress: TuneProgress) -> None:
        if progress.done == held_after:
            for device in devices:
                device.hold = folder / "go"

    options = TuningOptions(trials=trials, log=folder / "log", progress=count)
    with Controls():  # keeps the driver open between the probes, for the clock
        return tune(bench(Store.create(folder / "store"), devices), BOUND, options)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    tuned(Path(sys.argv[1]), sys.argv[3:], 6, held_after=int(sys.argv[2]))
