"""How much a simulated fleet varies beside the public cluster that it was fitted to, by the same statistics.

    python benchmarks/simulated_spread.py --data ../shared/data/longhorn > benchmarks/results/simulated_spread.json

The data are the SGEMM and PageRank files of Longhorn (V100 SXM2; docs/simulation.md names the source). The model is
the population `longhorn`, or another one with --population, drawn from several seeds and measured by the plan of the
data: as many GPUs, and each as often on as many days. Of each statistic: the data's value, the model's mean over the
seeds, and its standard deviation from seed to seed. What is more than three of these away is marked in `apart`.
A place is known of the GPUs in the PageRank file alone. Levels are those of GPUs within 6 % of the median.
"""

from __future__ import annotations

import argparse
import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json
from whorl.simulation.fleet import GPUS_PER_NODE, NODES_PER_CABINET, Fleet
from whorl.simulation.models import PARAMETERS, V100
from whorl.simulation.spread import Spread, find_population
from whorl.simulation.workloads import PAGERANK, SGEMM, Workload

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


def main() -> None:
    parser = argparse.ArgumentParser(description="The spread of a simulated fleet beside that of the public cluster.")
    parser.add_argument("--data", type=Path, required=True, help="folder with sgemm.csv.gz and pagerank.csv.gz")
    parser.add_argument("--population", default="longhorn")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    spread = find_population(options.population)
    gemm, rank = read(options.data)
    found = {"sgemm": of_sgemm(gemm), "pagerank": of_pagerank(rank)}
    drawn = [
        {
            "sgemm": of_sgemm(simulated(gemm, SGEMM, seed, spread)),
            "pagerank": of_pagerank(simulated(rank, PAGERANK, seed, spread)),
        }
        for seed in range(options.seeds)
    ]
    print(
        as_json(
            {
                "benchmark": "simulated_spread",
                "machine": machine(),
                "parameters": PARAMETERS,
                "population": options.population,
                "seeds": options.seeds,
                "sgemm_runs": len(gemm.gpu),
                "sgemm_gpus": int(gemm.gpu.max()) + 1,
                "pagerank_runs": len(rank.gpu),
                "pagerank_gpus": int(rank.gpu.max()) + 1,
                "statistics": compared(found, drawn),
            }
        )
    )


def compared(data: Mapping[str, Mapping[str, float]], drawn: list[dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """A row for each statistic of each workload."""
    rows = []
    for workload, statistics in data.items():
        for name, value in statistics.items():
            model = np.array([one[workload][name] for one in drawn])
            mean, sd = float(model.mean()), float(model.std(ddof=1))
            rows.append(
                {
                    "workload": workload,
                    "statistic": name,
                    "data": round(value, 4),
                    "model": round(mean, 4),
                    "model_sd": round(sd, 4),
                    "apart": bool(abs(value - mean) > 3 * sd),
                }
            )
    return rows


# -- the data ---------------------------------------------------------------------------------------------------------


def read(folder: Path) -> tuple[Runs, Runs]:
    """The SGEMM and PageRank runs. Exact duplicates are dropped, and runs whose time of day is not known."""
    rank, gemm = (_rows(folder / name) for name in ("pagerank.csv.gz", "sgemm.csv.gz"))
    places = {row["uuid"]: (row["cabinet"], f"{row['cabinet']}-{row['node']}", int(row["device"])) for row in rank}
    return _runs(gemm, places), _runs(rank, places)


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        rows = [row for row in csv.DictReader(file) if float(row["ts"]) > 0]
    return [dict(row) for row in dict.fromkeys(tuple(row.items()) for row in rows)]


def _runs(rows: list[dict[str, str]], places: Mapping[str, tuple[str, str, int]]) -> Runs:
    def number(values: list[str]) -> Ints:
        return np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)

    known = np.array([row["uuid"] in places for row in rows])
    cabinets, nodes, devices = zip(*(places.get(row["uuid"], ("", "", 0)) for row in rows), strict=True)
    return Runs(
        100 * np.log([float(row["perf"]) for row in rows]),
        np.array([float(row["temp"]) for row in rows]),
        number([row["uuid"] for row in rows]),
        number([f"{int(float(row['ts'])) // 86_400:06d}" for row in rows]),
        np.where(known, number(list(nodes)), -1),
        np.where(known, number(list(cabinets)), -1),
        np.array(devices, dtype=np.int64) % 2,
    )


# -- the model --------------------------------------------------------------------------------------------------------


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
        here = np.flatnonzero(plan.day == day)
        turn = np.empty(len(here), dtype=np.int64)  # of each run: how many the GPU had before on this day
        for gpu in np.unique(plan.gpu[here]):
            mine = plan.gpu[here] == gpu
            turn[mine] = np.arange(mine.sum())
        for one in range(int(turn.max()) + 1):
            runs = here[turn == one]
            noise = today.noise(workload, "time of a run", number)
            number += 1
            times[runs] = 100 * (clean + noise)[plan.gpu[runs]]
            temperatures[runs] = np.rint(steady.temperature_c[plan.gpu[runs]])
    node = plan.gpu // GPUS_PER_NODE
    known = plan.node >= 0
    return Runs(
        times,
        temperatures,
        plan.gpu,
        plan.day,
        np.where(known, node, -1),
        np.where(known, node // NODES_PER_CABINET, -1),
        plan.gpu % GPUS_PER_NODE % 2,
    )


# -- the statistics ---------------------------------------------------------------------------------------------------


def of_sgemm(runs: Runs) -> dict[str, float]:
    """The statistics of SGEMM: levels of GPUs, days and runs, nodes and cabinets; times in %."""
    gpu_day = runs.gpu * (int(runs.day.max()) + 1) + runs.day
    levels, temperatures = _medians(runs.time_pct, runs.gpu), _medians(runs.temperature_c, runs.gpu)
    apart = levels - np.median(levels)
    healthy = np.abs(apart) < HEALTHY_PCT
    kept = healthy[runs.gpu]
    between, within = _components(runs.time_pct[kept], runs.gpu[kept])
    of_gpu = runs.time_pct - _medians(runs.time_pct, runs.gpu)[runs.gpu]
    days, residual = _components(of_gpu[kept], gpu_day[kept])
    counts = np.unique(gpu_day, return_counts=True)
    often = np.isin(gpu_day, counts[0][counts[1] >= 5]) & kept
    of_day = (runs.time_pct - _spread_out(_medians_of(runs.time_pct, gpu_day), gpu_day))[often]
    pairs = _day_pairs(runs, kept)
    found = {
        "GPU level: sd": float(apart[healthy].std(ddof=1)),
        "GPU level: skewness": _skewness(apart[healthy]),
        "GPU level: excess kurtosis": _kurtosis(apart[healthy]),
        "ICC by GPU": between / (between + within),
        "within a GPU: sd": within**0.5,
        "between days: share of it": max(days, 0.0) / (max(days, 0.0) + residual),
        "run within a day: sd": float(of_day.std()),
        "run within a day: robust sd": _robust_sd(of_day),
        "run within a day: excess kurtosis": _kurtosis(of_day),
        "GPU and day: sd": float(pairs.std()),
        "GPU and day: robust sd": _robust_sd(pairs),
        "runs more than 1 % off their GPU: per 1,000": 1000 * float(np.mean(np.abs(of_gpu[kept]) > 1)),
        "largest run off its GPU": float(np.abs(of_gpu[kept]).max()),
    }
    first = np.unique(runs.gpu, return_index=True)[1]
    node, cabinet, rear = runs.node[first], runs.cabinet[first], runs.rear[first]
    placed = (node >= 0) & healthy
    own = _position_out(apart, rear, placed)
    warm = _position_out(temperatures, rear, placed)
    by_node, in_node = _components(own, node[placed])
    found["level: share of the node"] = max(by_node, 0.0) / (max(by_node, 0.0) + in_node)
    by_cabinet, rest = _components(own, cabinet[placed])
    found["level: share of the cabinet"] = max(by_cabinet, 0.0) / (max(by_cabinet, 0.0) + rest)
    found["temperature, node and cabinet: sd, K"] = max(_components(warm, node[placed])[0], 0.0) ** 0.5
    found["temperature, cabinet: sd, K"] = max(_components(warm, cabinet[placed])[0], 0.0) ** 0.5
    found["temperature, GPU in its node: sd, K"] = _components(warm, node[placed])[1] ** 0.5
    return found


def of_pagerank(runs: Runs) -> dict[str, float]:
    """The statistics of PageRank: a second speed of memory, and what is left within each."""
    levels = _medians(runs.time_pct, runs.gpu)
    apart = levels - np.median(levels)
    fast = apart < FAST_MODE_PCT
    between, within = _components(runs.time_pct, runs.gpu)
    usual = ~fast[runs.gpu]
    own, noise = _components(runs.time_pct[usual], runs.gpu[usual])
    residual = runs.time_pct - levels[runs.gpu]
    first = np.unique(runs.gpu, return_index=True)[1]
    temperatures = _position_out(
        _medians(runs.temperature_c, runs.gpu), runs.rear[first], np.ones(len(first), dtype=np.bool_)
    )
    return {
        "ICC by GPU": between / (between + within),
        "GPUs with faster memory: share": float(fast.mean()),
        "how much faster": -float(np.median(apart[fast]) - np.median(apart[~fast])) if fast.any() else 0.0,
        "other GPUs: level, sd": max(own, 0.0) ** 0.5,
        "other GPUs: ICC by GPU": max(own, 0.0) / (max(own, 0.0) + noise),
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


def _medians_of(values: Floats, groups: Ints) -> dict[int, float]:
    order = np.argsort(groups, kind="stable")
    names, begins = np.unique(groups[order], return_index=True)
    parts = np.split(values[order], begins[1:])
    return {int(name): float(np.median(part)) for name, part in zip(names, parts, strict=True)}


def _medians(values: Floats, groups: Ints) -> Floats:
    """The median of each group; groups are numbered from 0."""
    found = _medians_of(values, groups)
    return np.array([found[group] for group in range(len(found))])


def _spread_out(medians: Mapping[int, float], groups: Ints) -> Floats:
    return np.array([medians[int(group)] for group in groups])


def _day_pairs(runs: Runs, kept: NDArray[np.bool_]) -> Floats:
    """Differences of a GPU's medians of one day and of its next one (three runs each at least), over the root of 2."""
    days: dict[int, list[float]] = {}
    for gpu in np.unique(runs.gpu[kept]):
        mine = runs.gpu == gpu
        for day in np.unique(runs.day[mine]):
            times = runs.time_pct[mine & (runs.day == day)]
            if len(times) >= 3:
                days.setdefault(int(gpu), []).append(float(np.median(times)))
    return np.asarray(np.concatenate([np.diff(found) for found in days.values()]) / np.sqrt(2))


def _position_out(values: Floats, rear: Ints, kept: NDArray[np.bool_]) -> Floats:
    """Values without the difference between the front and the rear of a node."""
    found = values[kept].astype(np.float64)
    for place in (0, 1):
        here = rear[kept] == place
        found[here] -= found[here].mean()
    return found


def _robust_sd(values: Floats) -> float:
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def _skewness(values: Floats) -> float:
    centred = values - values.mean()
    return float((centred**3).mean() / (centred**2).mean() ** 1.5)


def _kurtosis(values: Floats) -> float:
    centred = values - values.mean()
    return float((centred**4).mean() / (centred**2).mean() ** 2 - 3)


if __name__ == "__main__":
    main()
