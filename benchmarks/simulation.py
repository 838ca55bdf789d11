"""How much a simulated fleet varies beside the public cluster that it was fitted to.

    python -m benchmarks.simulation [--quick | --long]

spread   the population `longhorn` beside the SGEMM and PageRank files of Longhorn, by the same statistics: the data's
         value, the mean over seeds of the model, its standard deviation from seed to seed; more than three of these
         away is `apart`. The model is measured by the plan of the data: as many GPUs, each as often on as many days.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import ndimage, stats

from whorl.benchmarks.harness import BenchOptions, public_file, run
from whorl.simulation.fleet import GPUS_PER_NODE, NODES_PER_CABINET, Fleet
from whorl.simulation.load import PAGERANK, SGEMM, Workload
from whorl.simulation.models import PARAMETERS, V100
from whorl.simulation.spread import Spread, find_population

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HEALTHY_PCT = 6.0
FAST_MODE_PCT = -1.5
"""A GPU whose memory is faster than this belongs to the second speed."""


@dataclass(frozen=True)
class Runs:
    """Runs of one workload: arrays of shape (runs,)."""

    time_pct: Floats
    """100 ln time."""
    temperature_c: Floats
    gpu: Ints
    day: Ints
    node: Ints
    """By run; -1 where it is not known."""
    cabinet: Ints
    rear: Ints


def compared(
    measured: Mapping[str, Mapping[str, float]], drawn: list[dict[str, dict[str, float]]]
) -> list[dict[str, Any]]:
    """A row for each statistic of each workload."""
    rows = []
    for workload, statistics in measured.items():
        for name, value in statistics.items():
            model = np.array([board[workload][name] for board in drawn])
            mean, sd = float(model.mean()), float(model.std(ddof=1))
            row = {"workload": workload, "statistic": name, "apart": bool(abs(value - mean) > 3 * sd)}
            rows.append(row | {"data": round(value, 4), "model": round(mean, 4), "model_sd": round(sd, 4)})
    return rows


def spread(options: BenchOptions) -> dict[str, Any]:
    """28 statistics of the two files."""
    population, seeds = find_population("longhorn"), options.pick(2, 20, 40)
    gemm, rank = read(public_file("longhorn"))
    drawn = [
        {"sgemm": of_sgemm(simulated(gemm, SGEMM, seed, population)),
         "pagerank": of_pagerank(simulated(rank, PAGERANK, seed, population))}
        for seed in range(seeds)
    ]  # fmt: skip
    return {
        "parameters": PARAMETERS, "population": "longhorn", "seeds": seeds, "sgemm_runs": len(gemm.gpu),
        "sgemm_gpus": int(gemm.gpu.max()) + 1, "pagerank_runs": len(rank.gpu),
        "statistics": compared({"sgemm": of_sgemm(gemm), "pagerank": of_pagerank(rank)}, drawn),
    }  # fmt: skip


def read(folder: Path) -> tuple[Runs, Runs]:
    """The SGEMM and PageRank runs. Exact duplicates are dropped, and runs whose time of day is not known."""
    gemm, rank = (
        pl.read_csv(folder / f"{name}.csv.gz", infer_schema_length=None)
        .filter(pl.col("ts") > 0)
        .unique(maintain_order=True)
        for name in ("sgemm", "pagerank")
    )
    places = rank.group_by("uuid", maintain_order=True).agg(pl.col("cabinet", "node", "device").last())
    return _runs(gemm, places), _runs(rank, places)


def _runs(rows: pl.DataFrame, places: pl.DataFrame) -> Runs:
    rows = rows.select("uuid", "ts", "perf", "temp").join(places, on="uuid", how="left", maintain_order="left")
    node = pl.format("{}-{}", "cabinet", "node")
    numbers = rows.select(
        pl.col("uuid").rank("dense"), pl.col("ts").cast(pl.Int64).floordiv(86_400).rank("dense").alias("day"),
        node.rank("dense").alias("node"), pl.col("cabinet").rank("dense"), pl.col("device").cast(pl.Int64).mod(2),
    )  # fmt: skip
    gpu, day, node_no, cabinet, rear = (
        numbers[name].cast(pl.Int64).fill_null(0).to_numpy() for name in numbers.columns
    )
    time_pct, celsius = 100 * np.log(rows["perf"].to_numpy()), rows["temp"].cast(pl.Float64).to_numpy()
    return Runs(time_pct, celsius, gpu - 1, day - 1, node_no - 1, cabinet - 1, rear)


def simulated(plan: Runs, workload: Workload, seed: int, spread: Spread) -> Runs:
    """As many runs of as many healthy GPUs on as many days as in the plan."""
    gpus = int(plan.gpu.max()) + 1
    fleet = Fleet.draw(V100, gpus, seed, spread, faults=0)
    times, temperatures = np.empty(len(plan.gpu)), np.empty(len(plan.gpu))
    number = 0
    for day in np.unique(plan.day):
        today = fleet.on_day(int(day))
        steady = today.steady(workload)
        clean = np.log(today.relative_time(workload, steady))
        today_runs = np.flatnonzero(plan.day == day)
        turn = np.empty(len(today_runs), dtype=np.int64)  # of each run: how many the GPU had before on this day
        for gpu in np.unique(plan.gpu[today_runs]):
            of_gpu = plan.gpu[today_runs] == gpu
            turn[of_gpu] = np.arange(of_gpu.sum())
        for board in range(int(turn.max()) + 1):
            runs = today_runs[turn == board]
            noise = today.noise(workload, "time of a run", number)
            number += 1
            times[runs] = 100 * (clean + noise)[plan.gpu[runs]]
            temperatures[runs] = np.rint(steady.temperature_c[plan.gpu[runs]])
    node = plan.gpu // GPUS_PER_NODE
    is_known = plan.node >= 0
    cabinet = np.where(is_known, node // NODES_PER_CABINET, -1)
    return Runs(
        times, temperatures, plan.gpu, plan.day, np.where(is_known, node, -1), cabinet, plan.gpu % GPUS_PER_NODE % 2
    )


def of_sgemm(runs: Runs) -> dict[str, float]:
    """The statistics of SGEMM: levels of GPUs, days and runs, nodes and cabinets; times in %."""
    gpu_day = np.unique(runs.gpu * (int(runs.day.max()) + 1) + runs.day, return_inverse=True)[1]
    levels, temperatures = _medians(runs.time_pct, runs.gpu), _medians(runs.temperature_c, runs.gpu)
    apart = levels - np.median(levels)
    healthy = np.abs(apart) < HEALTHY_PCT
    inside = healthy[runs.gpu]
    between, within = _components(runs.time_pct[inside], runs.gpu[inside])
    of_gpu = runs.time_pct - _medians(runs.time_pct, runs.gpu)[runs.gpu]
    days, residual = _components(of_gpu[inside], gpu_day[inside])
    counts = np.unique(gpu_day, return_counts=True)
    often = np.isin(gpu_day, counts[0][counts[1] >= 5]) & inside
    of_day = (runs.time_pct - _medians(runs.time_pct, gpu_day)[gpu_day])[often]
    pairs = _day_pairs(runs, inside)
    by_group = {
        "GPU level: sd": float(apart[healthy].std(ddof=1)),
        "GPU level: skewness": float(stats.skew(apart[healthy])),
        "GPU level: excess kurtosis": float(stats.kurtosis(apart[healthy])),
        "ICC by GPU": between / (between + within),
        "within a GPU: sd": within**0.5,
        "between days: share of it": max(days, 0.0) / (max(days, 0.0) + residual),
        "run within a day: sd": float(of_day.std()),
        "run within a day: robust sd": _robust_sd(of_day),
        "run within a day: excess kurtosis": float(stats.kurtosis(of_day)),
        "GPU and day: sd": float(pairs.std()),
        "GPU and day: robust sd": _robust_sd(pairs),
        "runs more than 1 % off their GPU: per 1,000": 1000 * float(np.mean(np.abs(of_gpu[inside]) > 1)),
        "largest run off its GPU": float(np.abs(of_gpu[inside]).max()),
    }
    first = np.unique(runs.gpu, return_index=True)[1]
    node, cabinet, rear = runs.node[first], runs.cabinet[first], runs.rear[first]
    placed = (node >= 0) & healthy
    without_position = _position_out(apart, rear, placed)
    warm = _position_out(temperatures, rear, placed)
    by_node, in_node = _components(without_position, node[placed])
    by_group["level: share of the node"] = max(by_node, 0.0) / (max(by_node, 0.0) + in_node)
    by_cabinet, rest = _components(without_position, cabinet[placed])
    by_group["level: share of the cabinet"] = max(by_cabinet, 0.0) / (max(by_cabinet, 0.0) + rest)
    by_group["temperature, node and cabinet: sd, K"] = max(_components(warm, node[placed])[0], 0.0) ** 0.5
    by_group["temperature, cabinet: sd, K"] = max(_components(warm, cabinet[placed])[0], 0.0) ** 0.5
    by_group["temperature, GPU in its node: sd, K"] = _components(warm, node[placed])[1] ** 0.5
    return by_group


def of_pagerank(runs: Runs) -> dict[str, float]:
    """The statistics of PageRank: a second speed of memory, and what is left within each."""
    levels = _medians(runs.time_pct, runs.gpu)
    apart = levels - np.median(levels)
    fast = apart < FAST_MODE_PCT
    between, within = _components(runs.time_pct, runs.gpu)
    usual = ~fast[runs.gpu]
    without_position, noise = _components(runs.time_pct[usual], runs.gpu[usual])
    residual = runs.time_pct - levels[runs.gpu]
    first = np.unique(runs.gpu, return_index=True)[1]
    temperatures = _position_out(
        _medians(runs.temperature_c, runs.gpu), runs.rear[first], np.ones(len(first), dtype=np.bool_)
    )
    return {
        "ICC by GPU": between / (between + within),
        "GPUs with faster memory: share": float(fast.mean()),
        "how much faster": -float(np.median(apart[fast]) - np.median(apart[~fast])) if fast.any() else 0.0,
        "other GPUs: level, sd": max(without_position, 0.0) ** 0.5,
        "other GPUs: ICC by GPU": max(without_position, 0.0) / (max(without_position, 0.0) + noise),
        "run: sd": noise**0.5,
        "run: robust sd": _robust_sd(residual),
        "temperature, node and cabinet: sd, K": max(_components(temperatures, runs.node[first])[0], 0.0) ** 0.5,
        "temperature, cabinet: sd, K": max(_components(temperatures, runs.cabinet[first])[0], 0.0) ** 0.5,
        "temperature, GPU in its node: sd, K": _components(temperatures, runs.node[first])[1] ** 0.5,
    }


def _components(values: Floats, groups: Ints) -> tuple[float, float]:
    """Variance between and within groups, by one-way analysis of variance with unequal sizes."""
    group = np.unique(groups, return_inverse=True)[1]
    sizes = np.bincount(group)
    means = np.bincount(group, values) / sizes
    within = float(((values - means[group]) ** 2).sum() / (len(values) - len(sizes)))
    between = float((sizes * (means - values.mean()) ** 2).sum() / (len(sizes) - 1))
    typical = (len(values) - (sizes**2).sum() / len(values)) / (len(sizes) - 1)
    return (between - within) / float(typical), within


def _medians(values: Floats, groups: Ints) -> Floats:
    """The median of each group; groups are numbered from 0."""
    return np.asarray(ndimage.median(values, groups, np.arange(groups.max() + 1)))


def _day_pairs(runs: Runs, inside: NDArray[np.bool_]) -> Floats:
    """Differences of a GPU's medians of one day and of its next one (three runs each at least), over the root of 2."""
    of_days = pl.DataFrame({"gpu": runs.gpu[inside], "day": runs.day[inside], "time": runs.time_pct[inside]})
    medians = of_days.group_by("gpu", "day").agg(pl.len(), pl.col("time").median()).filter(pl.col("len") >= 3)
    steps = medians.sort("gpu", "day").select(pl.col("time").diff().over("gpu")).to_series().drop_nulls()
    return np.asarray(steps.to_numpy() / np.sqrt(2))


def _position_out(values: Floats, rear: Ints, inside: NDArray[np.bool_]) -> Floats:
    """Values without the difference between the front and the rear of a node."""
    by_group = values[inside].astype(np.float64)
    for place in (0, 1):
        today_runs = rear[inside] == place
        by_group[today_runs] -= by_group[today_runs].mean()
    return by_group


def _robust_sd(values: Floats) -> float:
    return float(stats.median_abs_deviation(values, scale="normal"))


if __name__ == "__main__":
    run("simulation", {"spread": spread}, packages=("numpy", "pyarrow"))
