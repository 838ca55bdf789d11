"""A fleet's readings at 1 Hz, the jobs that ran on it, and stores of them, for benchmarks.

They are synthetic, so bytes per sample depend on their noise: `entropy_bytes` says how much there is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from whorl.store import Store

METRICS = (
    "power_mw",
    "energy_mj",
    "sm_clock_mhz",
    "mem_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "utilization",
    "memory_utilization",
    "memory_used",
    "pstate",
    "fan_speed",
    "clock_event_reasons",
    "pcie_tx_bytes",
    "pcie_rx_bytes",
)
WIDE = {"energy_mj", "memory_used", "clock_event_reasons", "pcie_tx_bytes", "pcie_rx_bytes"}  # 64 bits in `telemetry`
BEGAN_NS = 1_767_225_600_000_000_000  # 2026-01-01 00:00 UTC
NODE = 400  # GPUs generated at a time, and the GPUs of one writer
_JOBS = 5.1  # a GPU an hour
_GAP = 0.15  # share of the time without a job


@dataclass(frozen=True)
class Workload:
    """`rows` of telemetry by writer, each in the order of arrival (ts, gpu), and the jobs.

    `jobs` has job_id, gpu, began, ended: one GPU a job, never two at once on one GPU.
    """

    writers: list[pa.Table]
    jobs: pa.Table
    gpus: list[str]
    seconds: int

    @property
    def rows(self) -> int:
        return sum(len(table) for table in self.writers)


def workload(gpus: int, seconds: int, seed: int = 20_260) -> Workload:
    """Telemetry of `gpus` GPUs at 1 Hz for `seconds`, written by ceil(gpus / 400) writers."""
    rng = np.random.default_rng(seed)
    names = sorted(
        f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}" for h in (rng.bytes(16).hex() for _ in range(gpus))
    )
    parts = [_part(rng, names[at : at + NODE], seconds, at) for at in range(0, gpus, NODE)]
    return Workload([table for table, _ in parts], pa.concat_tables([jobs for _, jobs in parts]), names, seconds)


def _lagged(values: NDArray[np.float64], keep: float, start: NDArray[np.float64]) -> NDArray[np.float64]:
    """A first-order lag along the second axis: y[t] = keep y[t-1] + (1 - keep) x[t]."""
    out = np.empty_like(values)
    state = start.copy()
    for t in range(values.shape[1]):
        state = keep * state + (1.0 - keep) * values[:, t]
        out[:, t] = state
    return out


def _part(rng: np.random.Generator, names: list[str], seconds: int, first_job: int) -> tuple[pa.Table, pa.Table]:
    """One writer's telemetry and jobs; arrays are (gpus, seconds)."""
    n, shape = len(names), (len(names), seconds)
    noise = rng.standard_normal
    jobs, busy, memory = _schedule(rng, names, seconds, first_job)
    # A sampler wakes some ms after its grid, and reads the GPUs of a node one after the other.
    late = np.rint(rng.gamma(2.0, 1.5, (n + 3) // 4 * seconds)).astype(np.int64).reshape(-1, seconds)
    ms = 1000 * np.arange(seconds) + np.repeat(late, 4, axis=0)[:n] + (np.arange(n) % 4)[:, None]
    busy_w = rng.normal(297.0, 2.0, (n, 1)) + 3.0 * _lagged(noise(shape), 0.8, np.zeros(n)) / np.sqrt(0.2 / 1.8)
    idle_w = rng.normal(42.0, 2.0, (n, 1)) + 0.05 * noise(shape)
    power = np.rint(1000.0 * np.where(busy, busy_w, idle_w)).astype(np.int64)
    elapsed = np.diff(ms, axis=1, prepend=ms[:, :1] - 1000)
    energy = np.cumsum(np.rint(power * elapsed / 1000.0).astype(np.int64), axis=1) + rng.integers(0, 10**12, (n, 1))
    warm = _lagged(28.0 + 0.125 * power / 1000.0 + rng.normal(0.0, 3.0, (n, 1)), 0.985, np.full(n, 35.0))
    temperature = np.rint(warm + 0.15 * noise(shape)).astype(np.int64)
    memory_temperature = np.rint(warm - 2.0 + 0.15 * noise(shape)).astype(np.int64)
    clock = 15 * np.rint((1365.0 - 0.8 * (warm - 60.0) + rng.normal(0, 12, (n, 1)) + 5.0 * noise(shape)) / 15.0)
    capped = busy & (rng.random(shape) < 0.9)
    traffic = [np.where(busy, rng.lognormal(13.5, 0.2, shape), rng.lognormal(7.0, 0.2, shape)) for _ in "tr"]
    values: dict[str, NDArray[np.int64]] = {
        "power_mw": power,
        "energy_mj": energy,
        "sm_clock_mhz": np.where(busy, clock, 135).astype(np.int64),
        "mem_clock_mhz": np.full(shape, 877),
        "temperature_c": temperature,
        "memory_temperature_c": memory_temperature,
        "utilization": np.where(busy, np.minimum(100, 98 + rng.integers(0, 5, shape)), 0),
        "memory_utilization": np.where(busy, np.rint(38.0 + 2.0 * noise(shape)), 0).astype(np.int64),
        "memory_used": memory,
        "pstate": np.where(busy, 0, 8),
        "fan_speed": np.rint(1.1 * warm - 20.0 + 0.1 * noise(shape)).astype(np.int64),
        "clock_event_reasons": np.where(capped, 4, np.where(busy, 0, 1)),
        "pcie_tx_bytes": np.cumsum(traffic[0].astype(np.int64), axis=1),
        "pcie_rx_bytes": np.cumsum(traffic[1].astype(np.int64), axis=1),
    }
    order = np.argsort(ms.ravel(), kind="stable")
    codes = np.repeat(np.arange(n, dtype=np.int32), seconds)[order]
    columns = {
        "ts": pa.array((BEGAN_NS + ms.ravel()[order] * 1_000_000).view("datetime64[ns]")),
        "cluster": pa.DictionaryArray.from_arrays(np.zeros(len(codes), np.int32), ["bench"]).cast(pa.string()),
        "gpu": pa.DictionaryArray.from_arrays(codes, names).cast(pa.string()),
    }
    for name in METRICS:
        kind = np.int64 if name in WIDE else np.int32
        columns[name] = pa.array(values[name].ravel()[order].astype(kind))
    return pa.table(columns), jobs


def _schedule(
    rng: np.random.Generator, names: list[str], seconds: int, first_job: int
) -> tuple[pa.Table, NDArray[np.bool_], NDArray[np.int64]]:
    """Jobs one after the other on every GPU; where they run; the memory they hold."""
    busy = np.zeros((len(names), seconds), bool)
    memory = np.full(busy.shape, 3 << 20, np.int64)
    rows = []
    for gpu, name in enumerate(names):
        cuts = np.sort(rng.uniform(1.5, seconds - 1.5, max(1, rng.poisson(_JOBS * seconds / 3600) - 1)))
        edges = [1.5, *cuts, seconds - 1.5]
        for number, (start, right) in enumerate(itertools.pairwise(edges)):
            began, ended = round(1000 * (start + _GAP * (right - start))), round(1000 * right)
            busy[gpu, began // 1000 : ended // 1000] = True
            memory[gpu, began // 1000 : ended // 1000] = int(rng.integers(1, 16_000)) << 21
            rows.append((f"job-{first_job + gpu}-{number}", name, began, ended))
    stamps = [pa.array(BEGAN_NS + 1_000_000 * np.array([r[at] for r in rows]), pa.timestamp("ns")) for at in (2, 3)]
    jobs = pa.table(
        {"job_id": [r[0] for r in rows], "gpu": [r[1] for r in rows], "began": stamps[0], "ended": stamps[1]}
    )
    return jobs, busy, memory


def entropy_bytes(table: pa.Table) -> float:
    """Order-0 entropy of each metric's differences within a GPU, in bytes per sample, the time stamp's shared out.

    The energy counter counts its difference from power times time only. A bound for coders that look at one
    difference at a time; a coder that models more may beat it.
    """
    table = table.sort_by([("gpu", "ascending"), ("ts", "ascending")])
    gpu = table["gpu"].combine_chunks().dictionary_encode().indices.to_numpy()
    inside = gpu[1:] == gpu[:-1]
    stamp = np.diff(table["ts"].to_numpy().astype("datetime64[ns]").view(np.int64))
    power = table["power_mw"].to_numpy().astype(np.int64)[1:]
    bits = _entropy(stamp[inside])
    for name in METRICS:
        step = np.diff(table[name].to_numpy().astype(np.int64))
        if name == "energy_mj":
            step = step - np.rint(power * (stamp / 1e9)).astype(np.int64)
        bits += _entropy(step[inside])
    return bits / 8 / len(METRICS)


def _entropy(values: NDArray[np.int64]) -> float:
    _, counts = np.unique(values, return_counts=True)
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum())


PART, SHORT = 400, 100  # GPUs made at a time; short runs of a GPU


def make_windows(root: Path, gpus: int, seconds: int, shape: str) -> None:
    """A store whose GPUs run some five jobs an hour, or 100 runs of 30 s (`short`)."""
    store = Store.create(root)
    for number, at in enumerate(range(0, gpus, PART)):
        work = workload(min(PART, gpus - at), seconds, seed=number)
        gpu, began, ended = (work.jobs[name] for name in ("gpu", "began", "ended"))
        if shape == "short":
            starts = np.tile(BEGAN_NS + np.arange(SHORT) * (seconds * 10**9 // SHORT), len(work.gpus))
            gpu = pa.array(np.repeat(work.gpus, SHORT))
            began, ended = (pa.array((starts + after * 10**9).view("datetime64[ns]")) for after in (0, 30))
        n = len(gpu)
        runs = {
            "run_id": [f"{number}-{turn}" for turn in range(n)], "cluster": ["bench"] * n, "workload": ["job"] * n,
            "gpu": gpu, "began": began, "ended": ended, "status": ["ok"] * n,
        }  # fmt: skip
        gpus_of = pa.table({"cluster": ["bench"] * len(work.gpus), "gpu": work.gpus})
        store.append({"telemetry": work.writers[0], "gpus": gpus_of, "runs": pa.table(runs)}, f"part-{number}")
