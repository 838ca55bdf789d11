"""A unit of a load's work: what it is, how long it takes, and by how much its time differs from run to run."""

from __future__ import annotations

import numpy as np

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
