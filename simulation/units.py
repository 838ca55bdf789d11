"""The unit of work of each workload: its name, its duration, and the noise of its duration from run to run."""

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
    """The name of a workload's unit of work, to which its times refer."""
    return _UNITS.get(workload.name, _ANY_UNIT)[0]


def unit_ms(workload: Workload, model: GpuModel) -> float:
    """Duration of a unit of work on a GPU of the model at its highest clock, ms.

    On V100 it is the median of the public cluster. On other models that median is scaled by peak arithmetic and memory
    bandwidth, which is an assumption.
    """
    arithmetic = V100.lanes * V100.max_clock_mhz / (model.lanes * model.max_clock_mhz)
    memory = V100.bandwidth_gb_s / model.bandwidth_gb_s
    share = workload.compute_share
    return _UNITS.get(workload.name, _ANY_UNIT)[1] * (share * arithmetic + (1 - share) * memory)


def factors(fleet: Fleet, load: Load, number: int, repeats: int) -> Floats:
    """Factors from relative time to ms, with the noise of the run, its day and its repeats: shape (repeats, gpus).

    `number` is the number of the run; its noise depends on it.
    """
    n = len(fleet)
    scale, noise = np.zeros(n), np.zeros(n)
    of_each = [load.workload_of(gpu) for gpu in range(n)]
    for workload in dict.fromkeys(load.workloads):
        some = np.array([gpu for gpu in range(n) if of_each[gpu] is workload], dtype=np.intp)
        scale[some] = unit_ms(workload, fleet.model)
        noise[some] = fleet.noise(workload, "time of a run", number)[some]
    of_repeat = stream(fleet.seed, "time of a repeat", number).standard_normal((repeats, n))
    return np.asarray(scale * np.exp(noise + REPEAT_NOISE * of_repeat))
