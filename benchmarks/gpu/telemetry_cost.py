"""What reading telemetry costs the kernels beside it: the same work in turns with and without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from whorl.benchmarks.gpu.goals import TELEMETRY_COST
from whorl.kernels.cupy_device import CupyDevice
from whorl.kernels.device import finish
from whorl.kernels.work import Work
from whorl.probes.interval import interval_of


def telemetry_cost(
    device: CupyDevice, work: Work, reading: Callable[[], AbstractContextManager[object]], *, pairs: int, seconds: float
) -> dict[str, Any]:
    """The extra time per repetition while telemetry is read, in %: the median over pairs of runs, with its 95 %
    interval. The order changes from pair to pair, so that a GPU that drifts favours neither."""
    loaded = finish(device.load(work, seed=1))
    try:
        first = finish(loaded.run(3, limit_s=120.0))
        once_s = max(float(np.median(first.times_ms)) / 1e3, 1e-6)
        each = max(1, round(0.02 / once_s))
        repeats = max(12, round(seconds / (each * once_s)))

        def run() -> float:
            timed = finish(loaded.run(repeats, each=each, limit_s=60.0 + 10 * seconds))
            return float(np.median(timed.times_ms[1:-1]))

        run()
        ratios = []
        for pair in range(pairs):
            with_s = without_s = 0.0
            for telemetry in (pair % 2 == 0, pair % 2 == 1):
                if telemetry:
                    with reading():
                        time.sleep(0.2)
                        with_s = run()
                else:
                    without_s = run()
            ratios.append(with_s / without_s)
    finally:
        loaded.unload()
    interval = interval_of(np.array(ratios))
    cost = 100 * (statistics.median(ratios) - 1)
    return {
        "kernel": work.kernel,
        "pairs": pairs,
        "seconds_each": seconds,
        "cost_percent": cost,
        "low_percent": None if interval.low is None else 100 * (interval.low - 1),
        "high_percent": None if interval.high is None else 100 * (interval.high - 1),
        "goal_percent": TELEMETRY_COST,
        "met": cost < TELEMETRY_COST,
    }
