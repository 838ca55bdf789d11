"""Result files of a simulated fleet, in the layouts of published GPU variability studies.

Each function gives the text of one CSV file with one row per run: columns, units, line ends and oddities as in
the public files of the SC'22 study "Not All GPUs Are Created Equal" (arXiv 2208.11035), with figures from the
simulation. No published value is in them, other than the scale of the run times.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from .cluster import Identity
from .draws import Floats, stream
from .fleet import GPUS_PER_NODE, Fleet
from .load import PAGERANK, RESNET, SGEMM, Load, Workload
from .models import V100, GpuModel

DAY_S = 86_400

# Times of one run on a V100 at its highest clock: the medians of the public cluster, scaled by the model.
SGEMM_KERNEL_MS = 2187.0
PAGERANK_TOTAL_MS = 66_050.0
RESNET_ITERATION_S = 0.1175

SGEMM_RUNS = 8
SGEMM_KERNELS = 100
SGEMM_SIZE = 25_536
PAGERANK_RUNS = 5
PAGERANK_KERNELS = 2000
RESNET_JOBS_PER_NODE = 4
RESNET_ITERATIONS = 500


def gemm_csv(fleet: Fleet, gpus: Sequence[Identity]) -> str:
    """SGEMM on single GPUs, eight days; `perf` is the mean kernel time in milliseconds.

    Two days do not know the place of their GPUs (cabinet and node are -1), and some rows of those days stand
    twice. One run in twenty is missing.
    """
    random = stream(fleet.seed, "gemm.csv")
    began = _unix(2026, 2, 2)
    rows, unplaced = [], []
    for run in range(SGEMM_RUNS):
        steady = fleet.on_day(began // DAY_S + run).steady(SGEMM, run=run)
        perf = SGEMM_KERNEL_MS * steady.relative_time
        power = steady.reported_power_w + 0.3 * random.standard_normal(len(fleet))
        start = random.uniform(290.3, 291.1, len(fleet))
        # The mean leaves out the first and the last kernel, so the span is a little off it.
        span = (SGEMM_KERNELS - 1) * perf / 1000 * (1 + random.normal(-1e-4, 5e-5, len(fleet)))
        happened = random.random(len(fleet)) >= 0.05
        at = began + run * DAY_S + random.integers(0, DAY_S // 2, len(fleet))
        for i in np.flatnonzero(happened).tolist():
            identity = gpus[i]
            is_located = run >= 2
            row = (
                f"sgemm,{SGEMM_SIZE},{SGEMM_KERNELS},{identity.uuid},"
                f"{f'c{identity.cabinet:03d},{identity.node}' if is_located else '-1,-1'},{at[i]},"
                f"volta_sgemm_128x128_nn,{start[i]:.6f},{start[i] + span[i]:.6f},{SGEMM_KERNELS},{perf[i]:.6f},"
                f"{int(steady.clock_mhz[i])},{fleet.model.memory_clock_mhz:.0f},"
                f"{steady.temperature_c[i]:.0f},{power[i]:.3f},0"
            )
            rows.append(row)
            if not is_located:
                unplaced.append(row)
    rows += [unplaced[i] for i in random.permutation(len(unplaced))[: -(-len(unplaced) // 6)]]
    header = (
        "exp,input_size,reps,uuid,cabinet,node,ts,kern,kern_min_start,kern_max_start,num_kerns,perf,freq,memfreq,"
        "temp,pwr,dev_id"
    )
    return "\r\n".join([header, *(rows[i] for i in random.permutation(len(rows)))])


def pagerank_csv(fleet: Fleet, gpus: Sequence[Identity]) -> str:
    """PageRank on single GPUs, five runs; `perf` is the total time of 2000 kernels in milliseconds.

    The first column is a row number without a name. This file links UUIDs with cabinet, node and device.
    """
    random = stream(fleet.seed, "pagerank.csv")
    began = _unix(2026, 2, 16)
    rows = []
    for run in range(PAGERANK_RUNS):
        steady = fleet.on_day(began // DAY_S).steady(PAGERANK, run=run)
        perf = PAGERANK_TOTAL_MS * steady.relative_time
        power = steady.reported_power_w + 0.15 * random.standard_normal(len(fleet))
        start = random.uniform(0.75, 0.95, len(fleet))
        span = (PAGERANK_KERNELS - 1) / PAGERANK_KERNELS * perf / 1000
        for i, identity in enumerate(gpus):
            at = began + 900 * (i // GPUS_PER_NODE) + 280 * run + identity.device
            rows.append(
                f"pagerank,{run + 1},{identity.uuid},c{identity.cabinet:03d},{identity.node:03d},"
                f"{at},{identity.device},"
                f"{start[i]:.6f},{start[i] + span[i]:.6f},{PAGERANK_KERNELS},{perf[i]:.6f},"
                f"{float(int(steady.clock_mhz[i]))},{fleet.model.memory_clock_mhz:.1f},"
                f"{steady.temperature_c[i]:.0f}.0,{power[i]:.3f}"
            )
    header = ",exp,reps,uuid,cabinet,node,ts,device,kern_min_start,kern_max_start,num_kerns,perf,freq,memfreq,temp,pwr"
    lines = [header, *(f"{i},{rows[i]}" for i in random.permutation(len(rows)))]
    return "".join(f"{line}\n" for line in lines)


def resnet_csv(fleet: Fleet, gpus: Sequence[Identity]) -> str:
    """ResNet-50 training, every job on the four GPUs of a node; durations in seconds, `perf` the median one.

    The GPUs of a job wait for each other in every iteration, so the slowest sets the pace and the rows of a
    job are near-copies. Jobs differ by 4 % (host, input, network), whatever GPUs they run on.
    """
    random = stream(fleet.seed, "resnet.csv")
    began = _unix(2026, 2, 20)
    rows, job_id = [], 100_000
    for run in range(RESNET_JOBS_PER_NODE):
        steady = fleet.on_day(began // DAY_S + run).steady(RESNET, run=run)
        pace = steady.relative_time.reshape(-1, GPUS_PER_NODE).max(axis=1)
        for node in random.permutation(len(pace)):
            job_id += int(random.integers(5, 400))
            at = began + run * DAY_S + int(random.integers(0, DAY_S))
            job = RESNET_ITERATION_S * pace[node] * np.exp(0.042 * random.standard_normal())
            perf = job * np.exp(0.002 * random.standard_normal(GPUS_PER_NODE))
            mean = perf * random.uniform(1.4, 1.8) * (1 + 0.01 * random.standard_normal(GPUS_PER_NODE))
            shortest = 0.82 * perf * (1 + 0.005 * random.standard_normal(GPUS_PER_NODE))
            longest = random.uniform(3.0, 4.5, GPUS_PER_NODE)
            # What lies between the iterations (data loading, the optimizer's step) counts in the total only.
            train = RESNET_ITERATIONS * mean.max() * random.uniform(1.15, 1.35)
            power = np.exp(0.01 * random.standard_normal(GPUS_PER_NODE))
            for device in range(GPUS_PER_NODE):
                i = node * GPUS_PER_NODE + device
                identity = gpus[i]
                rows.append(
                    f"resnet,{job_id},{at},c{identity.cabinet:03d},{identity.node},{identity.place},{device},{train:.6f},"
                    f"{mean[device]:.9f},{perf[device]:.9f},{shortest[device]:.9f},{longest[device]:.9f},"
                    f"{int(steady.clock_mhz[i])},{steady.temperature_c[i]:.1f},"
                    f"{steady.reported_power_w[i] * power[device]:.3f}"
                )
    header = (
        "exp,job_id,ts,cabinet,node,uuid,device,train_time,mean_iter_dur,perf,min_iter_dur,max_iter_dur,freq,temp,pwr"
    )
    return "\r\n".join([header, *rows])


def _unix(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp())


# -- the unit of work of each workload: its name, its duration, and the noise of its duration from run to run --------

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
        members = np.array([gpu for gpu in range(n) if of_each[gpu] is workload], dtype=np.intp)
        scale[members] = unit_ms(workload, fleet.model)
        noise[members] = fleet.noise(workload, "time of a run", number)[members]
    of_repeat = stream(fleet.seed, "time of a repeat", number).standard_normal((repeats, n))
    return np.asarray(scale * np.exp(noise + REPEAT_NOISE * of_repeat))
