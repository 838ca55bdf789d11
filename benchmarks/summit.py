"""The fleet of `summit.py`: nodes of six V100 at 1 Hz, and the jobs on them.

All is made up, in the shape of what `whorl collect` reads of a V100: twelve metrics at every tick and six more at every
tenth, times with the jitter of a sampler, counters that grow, temperatures that follow the power.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.signal import lfilter

from whorl.store.journal_file import Ticks, pack_readings

CLUSTER, GPUS, MINUTE_S, SLOW_S = "summit", 6, 60, 10
END_NS = 1_767_312_000 * 10**9  # 2026-01-02 00:00 UTC: all readings are of the day before
LIMIT_W, IDLE_W = 300.0, 42.0
FAST = (
    "power_mw", "energy_mj", "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "memory_temperature_c", "utilization",
    "memory_utilization", "clock_event_reasons", "power_violation_ns", "thermal_violation_ns", "read_us",
)  # fmt: skip
SLOW = (*FAST, "memory_used", "power_limit_mw", "pstate", "pcie_tx_bytes", "pcie_rx_bytes", "nvlink_tx_bytes")
_USERS, _MOST_NODES = 300, 1024
_KEEP_NOISE, _KEEP_WARM = 0.8, 0.985  # of a second's value in the next one

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FleetShape:
    """How much of a Summit day is simulated: its last `seconds`, on so many nodes."""

    nodes: int
    minutes: int
    seal_minutes: int = 10
    """Between two sealings of a node, as collectors do it."""

    @property
    def began_ns(self) -> int:
        return END_NS - self.minutes * MINUTE_S * 10**9

    @property
    def rows(self) -> int:
        return self.nodes * GPUS * self.minutes * MINUTE_S


def node_name(node: int) -> str:
    return f"n{node:05}"


def gpu_names(node: int) -> list[str]:
    return [
        f"GPU-{(node * GPUS + gpu) * 2654435761 % 2**32:08x}-5355-4d4d-4954-{node:06x}{gpu:06x}" for gpu in range(GPUS)
    ]


def identities(shape: FleetShape) -> pa.Table:
    """Rows of `gpus`."""
    places = [(node_name(node), gpu) for node in range(shape.nodes) for gpu in gpu_names(node)]
    n = len(places)
    return pa.table(
        {
            "cluster": [CLUSTER] * n, "gpu": [gpu for _, gpu in places], "node": [node for node, _ in places],
            "model": ["Tesla V100-SXM2-16GB"] * n, "power_limit_mw": [int(1000 * LIMIT_W)] * n,
        }
    )  # fmt: skip


@dataclass(frozen=True)
class FleetJob:
    """Whole nodes from one second to another (since the begin), at a mean power (W)."""

    number: int
    user: int
    nodes: tuple[int, ...]
    first_s: int
    last_s: int
    watts: float


def jobs_of(shape: FleetShape, seed: int = 44) -> list[FleetJob]:
    """Jobs that fill the fleet: the nodes that are free first take the next one, after a pause of a minute or two.

    The number of nodes is a Pareto variable (exponent 1.1, at most 1,024), the time log-normal (median 25 minutes);
    users have Zipf shares. A twentieth of the jobs leaves the GPUs idle.
    """
    rng = np.random.default_rng(seed)
    free = [(int(at), node) for node, at in enumerate(rng.integers(-1200, 90, shape.nodes))]
    heapq.heapify(free)
    shares = 1.0 / np.arange(1, _USERS + 1)
    shares /= shares.sum()
    jobs: list[FleetJob] = []
    seconds = shape.minutes * MINUTE_S
    while free[0][0] < seconds:
        node_count = min(int(rng.pareto(1.1) + 1), _MOST_NODES, shape.nodes)
        chosen = [heapq.heappop(free) for _ in range(node_count)]
        first_s = max(at for at, _ in chosen) + int(rng.integers(30, 150))
        last_s = first_s + 60 + int(1500 * rng.lognormal(0.0, 0.8))
        watts = IDLE_W + 2 if rng.random() < 0.05 else float(rng.uniform(110, LIMIT_W - 5))
        nodes = tuple(node for _, node in chosen)
        jobs.append(FleetJob(len(jobs), int(rng.choice(_USERS, p=shares)), nodes, first_s, last_s, watts))
        for node in nodes:
            heapq.heappush(free, (last_s, node))
    return jobs


def job_rows(shape: FleetShape, jobs: list[FleetJob]) -> pa.Table:
    """Rows of `jobs`: one for each GPU of a job that is over, as accounting has them."""
    over = [job for job in jobs if job.last_s < shape.minutes * MINUTE_S]
    of_gpus = [(job, node, gpu) for job in over for node in job.nodes for gpu in gpu_names(node)]

    def stamps(seconds: list[int], offset_us: int) -> pa.Array:
        return pa.array(shape.began_ns // 1000 + 10**6 * np.array(seconds, np.int64) + offset_us, pa.timestamp("us"))

    numbers = [str(1_000_000 + job.number) for job, _, _ in of_gpus]
    began, ended = [job.first_s for job, _, _ in of_gpus], [job.last_s for job, _, _ in of_gpus]
    return pa.table(
        {
            "cluster": [CLUSTER] * len(numbers), "allocation": numbers, "job_id": numbers,
            "gpu": [gpu for _, _, gpu in of_gpus], "node": [node_name(node) for _, node, _ in of_gpus],
            "user": [f"u{job.user:03}" for job, _, _ in of_gpus], "share": np.ones(len(numbers)),
            "began": stamps(began, 300_000), "ended": stamps(ended, 700_000), "recorded": stamps(ended, 900_000),
        }
    )  # fmt: skip


class FleetReadings:
    """The readings of some nodes, a minute after another. Arrays are (GPUs, seconds)."""

    def __init__(
        self, nodes: range, shape: FleetShape, jobs: list[FleetJob], before: dict[str, dict[str, Any]]
    ) -> None:
        """`before`: the last stored row of a GPU, from which its counters go on."""
        self._shape, self._first = shape, nodes[0]
        self._work = np.zeros((len(nodes), shape.minutes * MINUTE_S), np.float32)
        for job in jobs:
            for node in job.nodes:
                if node in nodes:
                    self._work[node - nodes[0], max(0, job.first_s) : max(0, job.last_s)] = job.watts
        rng = np.random.default_rng([1, nodes[0]])
        self._gpus = [gpu for node in nodes for gpu in gpu_names(node)]
        n = len(self._gpus)
        self._offset_w, self._idle_w = rng.normal(0, 4, (n, 1)), rng.normal(IDLE_W, 2, (n, 1))
        self._cooling = rng.normal(0, 3, (n, 1))
        self._noise, self._warm = np.zeros(n), np.full(n, 35.0)
        self._counters = {"energy_mj": rng.integers(0, 10**12, n), "power_violation_ns": rng.integers(0, 10**15, n)}
        self._counters |= {name: rng.integers(0, 10**14, n) for name in SLOW if name.endswith("_bytes")}
        for name, values in self._counters.items():
            for place, gpu in enumerate(self._gpus):
                values[place] = before.get(gpu, {}).get(name) or values[place]

    def minute(self, number: int) -> Iterator[list[Ticks]]:
        """The sweeps of each node in a minute."""
        rng = np.random.default_rng([2, self._first, number])
        began_s = number * MINUTE_S
        work = np.repeat(self._work[:, began_s : began_s + MINUTE_S], GPUS, axis=0).astype(float)
        busy = work > IDLE_W + 5
        n, shape = len(self._gpus), work.shape
        swing, _ = lfilter(
            [1 - _KEEP_NOISE],
            [1, -_KEEP_NOISE],
            9.0 * rng.standard_normal(shape),
            zi=_KEEP_NOISE * self._noise[:, None],
        )
        self._noise = swing[:, -1]
        idle_w = self._idle_w + 0.05 * rng.standard_normal(shape)
        watts = np.where(busy, np.minimum(work + self._offset_w + swing, LIMIT_W + 2), idle_w)
        power = np.rint(1000 * watts).astype(np.int64)
        warm, _ = lfilter(
            [1 - _KEEP_WARM], [1, -_KEEP_WARM], 28 + 0.125 * watts + self._cooling, zi=_KEEP_WARM * self._warm[:, None]
        )
        self._warm = warm[:, -1]
        clock = 15 * np.rint((1530 - 0.8 * (warm - 40) - 0.6 * np.maximum(watts - 250, 0) + 4 * swing) / 15)
        capped = busy & (watts > 0.93 * LIMIT_W)
        steps = {
            name: (busy * rng.lognormal(16, 0.2, shape)).astype(np.int64) for name in SLOW if name.endswith("_bytes")
        }
        steps |= {"energy_mj": power, "power_violation_ns": (capped * rng.integers(0, 5 * 10**7, shape))}
        grown = {}
        for name, step in steps.items():
            grown[name] = self._counters[name][:, None] + np.cumsum(step, axis=1)
            self._counters[name] = grown[name][:, -1]
        late_us = np.repeat(rng.gamma(2.0, 1500.0, (n // GPUS, MINUTE_S)), GPUS, axis=0)
        late_us += 420.0 * (np.arange(n) % GPUS)[:, None] + rng.gamma(2.0, 8.0, shape)
        ts = self._shape.began_ns // 1000 + 10**6 * (began_s + np.arange(MINUTE_S)) + late_us.astype(np.int64)
        values = {
            "power_mw": power, **grown,
            "sm_clock_mhz": np.where(busy, clock, 135), "mem_clock_mhz": np.full(shape, 877),
            "temperature_c": np.rint(warm + 0.15 * rng.standard_normal(shape)),
            "memory_temperature_c": np.rint(warm - 2 + 0.15 * rng.standard_normal(shape)),
            "utilization": np.where(busy, np.minimum(100, 96 + rng.integers(0, 6, shape)), 0),
            "memory_utilization": np.where(busy, np.rint(38 + 2 * rng.standard_normal(shape)), 0),
            "clock_event_reasons": np.where(capped, 4, np.where(busy, 0, 1)),
            "thermal_violation_ns": np.zeros(shape), "read_us": np.rint(rng.gamma(20.0, 20.0, shape)),
            "memory_used": np.where(busy, (work * 41).astype(np.int64) << 20, 3 << 20),
            "power_limit_mw": np.full(shape, 1000 * LIMIT_W), "pstate": np.where(busy, 0, 8),
        }  # fmt: skip
        by_sweep = (n // GPUS, GPUS, MINUTE_S)
        times = ts.reshape(by_sweep).transpose(0, 2, 1).tolist()
        table = np.stack([values[name].astype(np.int64) for name in SLOW], axis=-1)
        table = table.reshape(*by_sweep, len(SLOW)).transpose(0, 2, 1, 3)
        fast = table[..., : len(FAST)].tolist()
        slow = table[:, ::SLOW_S].tolist()
        keys = [(CLUSTER, gpu) for gpu in self._gpus]
        for node in range(n // GPUS):
            gpus = keys[node * GPUS : (node + 1) * GPUS]
            yield [
                Ticks(times[node][s], gpus, *pack_readings(FAST, fast[node][s]))
                if s % SLOW_S
                else Ticks(times[node][s], gpus, *pack_readings(SLOW, slow[node][s // SLOW_S]))
                for s in range(MINUTE_S)
            ]
