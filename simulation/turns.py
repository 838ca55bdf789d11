"""The measured parts of a load's turns: when they lie, and how long a unit of work took in each.

A turn is a run: a warm-up, then equal parts that are measured, one repeat each. The time of a unit of work is the
time of the part over the work done in it, so that throttling shows in it, times the workload's run-to-run noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from .campaigns import PAGERANK_TOTAL_MS, RESNET_ITERATION_S, SGEMM_KERNEL_MS, SGEMM_SIZE
from .draws import stream
from .fleet import Fleet
from .load import Load
from .models import V100, GpuModel
from .physics import Floats
from .workloads import PAGERANK, RESNET, SGEMM, Workload

REPEAT_NOISE = 0.0005
"""Standard deviation of ln time from repeat to repeat within a run (assumed)."""

_UNITS = {
    SGEMM.name: (f"one product of square matrices of {SGEMM_SIZE}", SGEMM_KERNEL_MS),
    PAGERANK.name: ("2000 kernels", PAGERANK_TOTAL_MS),
    RESNET.name: ("one training iteration", RESNET_ITERATION_S * 1000),
}
_ANY_UNIT = ("an arbitrary amount of work", 1000.0)


def unit(workload: Workload) -> str:
    """What the time of a workload is the time of."""
    return _UNITS.get(workload.name, _ANY_UNIT)[0]


def unit_ms(workload: Workload, model: GpuModel) -> float:
    """The time of a unit of work on a GPU of the model at its highest clock, ms.

    On V100 the median of the public cluster; on other models that scaled by their peak arithmetic and their memory
    bandwidth, which is an assumption.
    """
    arithmetic = V100.lanes * V100.max_clock_mhz / (model.lanes * model.max_clock_mhz)
    memory = V100.bandwidth_gb_s / model.bandwidth_gb_s
    share = workload.compute_share
    return _UNITS.get(workload.name, _ANY_UNIT)[1] * (share * arithmetic + (1 - share) * memory)


@dataclass(frozen=True)
class Stop:
    """An instant at which the work done by some GPUs is to be looked at."""

    at_s: float
    """Since the start of the simulated clock."""
    turn: int
    part: int
    """0 where the first measured part begins, `Load.repeats` where the last one ends."""
    gpus: NDArray[np.intp]


def first_run_ends_s(load: Load) -> float:
    """When the first run of a load ends, s after its start; infinity where its turns cannot be measured."""
    return load.begins_s + load.busy_s if load.workloads and load.repeats else inf


def stops(load: Load, gpus: int, span_s: float) -> Iterator[Stop]:
    """The stops of every turn that ends within a span, in order of time."""
    if first_run_ends_s(load) == inf:
        return
    starts = load.starts_s(gpus)
    groups = [(float(at), np.flatnonzero(starts == at)) for at in np.unique(starts)]
    found = []
    for begins, members in groups:
        for turn in range(max(0, int((span_s - begins - load.busy_s + 1e-6) // load.period_s) + 1)):
            first = begins + turn * load.period_s + load.warm_up_s
            found += [Stop(first + part * load.repeat_s, turn, part, members) for part in range(load.repeats + 1)]
    yield from sorted(found, key=lambda stop: (stop.at_s, stop.turn, stop.part, int(stop.gpus[0])))


def unit_times_ms(fleet: Fleet, load: Load, stop: Stop, worked_s: Floats, number: int) -> Floats:
    """The times of a unit of work in each repeat of a turn that has just ended, ms: shape (repeats, GPUs of `stop`).

    `worked_s` is the work done at each of the turn's stops (`Simulation.worked_s`), shape (repeats + 1, GPUs of
    `stop`). `number` picks the noise, see `factors`. Not a number where a GPU did nothing.
    """
    done = np.diff(worked_s, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(done > 0, load.repeat_s / done, np.nan)
    return relative * factors(fleet, load, number, load.repeats)[:, stop.gpus]


def factors(fleet: Fleet, load: Load, number: int, repeats: int) -> Floats:
    """Time of a unit of work (ms) over relative time, with the noise of run and repeats: shape (repeats, gpus).

    `number` is the run's, and picks the noise.
    """
    n = len(fleet)
    scale, noise = np.zeros(n), np.zeros(n)
    for gpu in range(n):
        workload = load.workload_of(gpu)
        if workload is not None:
            scale[gpu], noise[gpu] = unit_ms(workload, fleet.model), workload.noise
    of_run = stream(fleet.seed, "time of a run", number).standard_normal(n)
    of_repeat = stream(fleet.seed, "time of a repeat", number).standard_normal((repeats, n))
    return np.asarray(scale * np.exp(noise * of_run + REPEAT_NOISE * of_repeat))
