"""Made telemetry: readings of a fleet at 1 Hz and the jobs on it, in the shape of what `whorl collect` reads of V100s.

Times have the jitter of a sampler, counters grow, temperatures follow the power. All is synthetic, so bytes a sample
depend on its noise: `entropy_bytes` says how much there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.signal import lfilter

from whorl.benchmarks.fleets import CLUSTER, PER_NODE, Floats, gpu_name, node_name, same

METRICS = (
    "power_mw", "energy_mj", "sm_clock_mhz", "mem_clock_mhz", "temperature_c", "memory_temperature_c", "utilization",
    "memory_utilization", "memory_used", "pstate", "fan_speed", "clock_event_reasons", "pcie_tx_bytes", "pcie_rx_bytes",
)  # fmt: skip
FAST = (
    *METRICS[:8], "clock_event_reasons", "power_violation_ns", "thermal_violation_ns", "read_us",
)  # fmt: skip
"""What a collector reads at every tick."""
SLOW = (*FAST, "memory_used", "power_limit_mw", "pstate", "pcie_tx_bytes", "pcie_rx_bytes", "nvlink_tx_bytes")
"""What it reads at every tenth."""
BEGAN_NS = 1_767_225_600 * 10**9  # 2026-01-01 00:00 UTC
LIMIT_W, IDLE_W, USERS, MAX_TURNS = 300.0, 42.0, 300, 10_000


@dataclass(frozen=True)
class FleetShape:
    """Which nodes of a fleet are made for how long. Jobs run on whole nodes, or on single GPUs."""

    nodes: range
    seconds: int
    per_node: int = PER_NODE
    whole_nodes: bool = False
    work_s: float = 600.0
    """The mean time of a job; the pause before it is a sixth of that."""
    step_s: int = 1
    began_ns: int = BEGAN_NS

    @property
    def gpus(self) -> list[str]:
        return [gpu_name(gpu) for gpu in range(self.nodes.start * self.per_node, self.nodes.stop * self.per_node)]

    @property
    def ticks(self) -> int:
        return self.seconds // self.step_s


class FleetReadings:
    """The jobs of a fleet, and its readings by metric: whole numbers (gpus, ticks)."""

    def __init__(self, shape: FleetShape, seed: int = 44) -> None:
        self.shape = shape
        rng = np.random.default_rng([seed, shape.nodes.start, shape.began_ns])
        units = len(shape.nodes) * (1 if shape.whole_nodes else shape.per_node)
        turns = min(MAX_TURNS, 8 + round(2 * shape.seconds / shape.work_s))
        works = shape.work_s * rng.exponential(1.0, (units, turns)) + 2
        pauses = shape.work_s / 3 * rng.random((units, turns)) + 1.5
        self.ends_s = np.cumsum(works + pauses, axis=1)
        self.begins_s = self.ends_s - works
        self._level_w = rng.uniform(110, LIMIT_W - 5, (units, turns))
        self._users = rng.integers(USERS, size=(units, turns))
        self._rng = rng

    def jobs(self) -> pa.Table:
        """Rows of `jobs`: one for each GPU of a job that is over by the end."""
        shape = self.shape
        unit, turn = np.nonzero(self.ends_s < shape.seconds - 1.5)
        width = shape.per_node if shape.whole_nodes else 1
        day = shape.began_ns // (86_400 * 10**9)
        names = [f"{day}-{shape.nodes.start}-{a}-{b}" for a, b in zip(unit.tolist(), turn.tolist(), strict=True)]
        gpus = np.array(shape.gpus).reshape(-1, width)[unit].ravel()
        nodes = np.array([node_name(node) for node in shape.nodes]).repeat(shape.per_node).reshape(-1, width)[unit]
        began, ended = (
            pa.array(shape.began_ns // 1000 + (1e6 * at[unit, turn]).astype(np.int64).repeat(width), pa.timestamp("us"))
            for at in (self.begins_s, self.ends_s)
        )
        users = [f"u{user:03d}" for user in self._users[unit, turn].repeat(width).tolist()]
        ids = np.repeat(names, width)
        columns = {
            "cluster": same(CLUSTER, len(gpus)), "allocation": ids, "job_id": ids, "gpu": gpus, "node": nodes.ravel(),
            "user": users, "share": np.ones(len(gpus)), "began": began, "ended": ended, "recorded": ended,
        }  # fmt: skip
        return pa.table(columns)

    def values(self) -> dict[str, NDArray[np.int64]]:
        """By metric (gpus, ticks); `us` when each was read, since 1970."""
        shape, rng = self.shape, self._rng
        n, ticks = len(shape.gpus), shape.ticks
        seconds = shape.step_s * np.arange(ticks)
        work = np.zeros((len(self.ends_s), ticks))
        for unit in range(len(work)):
            at = np.searchsorted(self.begins_s[unit], seconds, "right") - 1
            busy = (at >= 0) & (seconds < self.ends_s[unit][np.maximum(at, 0)])
            work[unit, busy] = self._level_w[unit][at[busy]]
        work = np.repeat(work, n // len(work), axis=0)
        busy, size = work > 0, (n, ticks)
        # A sampler wakes some ms after its grid, and reads the GPUs of a node one after the other.
        late_ms = np.rint(rng.gamma(2.0, 1.5, (len(shape.nodes), ticks))).repeat(shape.per_node, axis=0)
        us = 10**6 * seconds + (1000 * (late_ms + (np.arange(n) % shape.per_node)[:, None])).astype(np.int64)
        swing = lagged(rng.standard_normal(size), 0.8, np.zeros(n)) / np.sqrt(0.2 / 1.8)
        idle_w = rng.normal(IDLE_W, 2.0, (n, 1)) + 0.05 * rng.standard_normal(size)
        power = np.rint(1000 * np.where(busy, np.minimum(work + 3.0 * swing, LIMIT_W + 2), idle_w))
        warm = lagged(28.0 + 0.125 * power / 1000 + rng.normal(0.0, 3.0, (n, 1)), 0.985, np.full(n, 35.0))
        clock = 1530 - 0.8 * (warm - 40.0) + rng.normal(0, 12, (n, 1)) + 5.0 * rng.standard_normal(size)
        capped = busy & (rng.random(size) < 0.9)
        traffic = {
            name: np.where(busy, rng.lognormal(13.5, 0.2, size), rng.lognormal(7.0, 0.2, size))
            for name in ("pcie_tx_bytes", "pcie_rx_bytes", "nvlink_tx_bytes")
        }
        elapsed_s = np.diff(us, axis=1, prepend=us[:, :1] - 10**6 * shape.step_s) / 1e6
        counted = {"energy_mj": power * elapsed_s, "power_violation_ns": capped * rng.integers(0, 5 * 10**7, size)}
        values: dict[str, Any] = {
            "us": shape.began_ns // 1000 + us, "power_mw": power,
            "sm_clock_mhz": np.where(busy, 15 * np.rint(clock / 15), 135), "mem_clock_mhz": np.full(size, 877),
            "temperature_c": np.rint(warm + 0.15 * rng.standard_normal(size)),
            "memory_temperature_c": np.rint(warm - 2 + 0.15 * rng.standard_normal(size)),
            "utilization": np.where(busy, np.minimum(100, 98 + rng.integers(0, 5, size)), 0),
            "memory_utilization": np.where(busy, np.rint(38 + 2 * rng.standard_normal(size)), 0),
            "memory_used": np.where(busy, work.astype(np.int64) << 25, 3 << 20), "pstate": np.where(busy, 0, 8),
            "fan_speed": np.rint(1.1 * warm - 20 + 0.1 * rng.standard_normal(size)),
            "clock_event_reasons": np.where(capped, 4, np.where(busy, 0, 1)),
            "thermal_violation_ns": np.zeros(size), "read_us": np.rint(rng.gamma(20.0, 20.0, size)),
            "power_limit_mw": np.full(size, 1000 * LIMIT_W),
        }  # fmt: skip
        for name, steps in (traffic | counted).items():
            values[name] = rng.integers(0, 10**12, (n, 1)) + np.cumsum(np.rint(steps).astype(np.int64), axis=1)
        return {name: numbers.astype(np.int64) for name, numbers in values.items()}

    def table(self, metrics: Sequence[str] = METRICS) -> pa.Table:
        """Rows of `telemetry` in the order (gpu, ts)."""
        values, gpus = self.values(), self.shape.gpus
        codes = np.repeat(np.arange(len(gpus), dtype=np.int32), self.shape.ticks)
        columns = {
            "ts": pa.array(values["us"].ravel(), pa.timestamp("us")), "cluster": same(CLUSTER, len(codes)),
            "gpu": pa.DictionaryArray.from_arrays(codes, gpus).cast(pa.string()),
        }  # fmt: skip
        return pa.table(columns | {name: values[name].ravel() for name in metrics})


def lagged(values: Floats, remembered: float, before: Floats) -> Floats:
    """A first-order lag along the second axis: y[t] = remembered y[t-1] + (1 - remembered) x[t]."""
    start = remembered * before[:, None]
    return np.asarray(lfilter([1 - remembered], [1, -remembered], values, zi=start)[0])


def entropy_bytes(table: pa.Table) -> float:
    """Order-0 entropy of each metric's differences within a GPU, in bytes per sample, the time stamp's shared out.

    The energy counter counts its difference from power times time only. A bound for coders that look at one
    difference at a time; a coder that models more may beat it.
    """
    gpu = table["gpu"].combine_chunks().dictionary_encode().indices.to_numpy()
    inside = gpu[1:] == gpu[:-1]
    stamp_us = np.diff(table["ts"].cast(pa.int64()).to_numpy())
    bits = _entropy(stamp_us[inside])
    for name in METRICS:
        step = np.diff(table[name].to_numpy())
        if name == "energy_mj":
            step = step - np.rint(table["power_mw"].to_numpy()[1:] * (stamp_us / 1e6)).astype(np.int64)
        bits += _entropy(step[inside])
    return bits / 8 / len(METRICS)


def _entropy(values: NDArray[np.int64]) -> float:
    _, counts = np.unique(values, return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum())
