"""How far advice is right, and how long it takes, against advice from plain medians. Prints JSON.

    python benchmarks/placement.py [--fleets 100] [--gpus 128] [--large 27648]

(a) Generated fleets whose scores are known, many of each kind: how often a gain is promised where there is none, how
often the 90 % intervals of gains hold the true ones, those of scores in the long run the true scores and those of
scores in another sitting such a sitting's levels, how often a slow GPU is found, and the gain promised
beside the gain that the advised set really has. Beside it stands the same choice by the plain medians of the runs,
believed as they are. (b) Wall time and peak memory of scores and advice for two sizes of fleet.

It states what it measured and asserts nothing.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from whorl.analysis.placement import Advice, Scores, advise, scores, sets
from whorl.analysis.placement.evidence import HARD
from whorl.analysis.placement.posterior import Mask
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json
from whorl.store import Store

Floats = npt.NDArray[np.float64]
PER_NODE = 4
JOB = 8


@dataclass(frozen=True)
class Kind:
    """A kind of fleet: the standard deviations of GPUs and of runs, the runs a GPU, and what goes wrong."""

    says: str
    between: float
    within: float
    runs: int
    slow: tuple[float, ...] = ()
    glitches: float = 0.0
    gpus: int | None = None
    day: float = 0.0
    """Standard deviation of a GPU from day to day."""
    per_day: int = 0
    """Runs a day; 0: all runs are of one day, an hour apart."""


KINDS = {
    "noise": Kind("no GPU differs", 0.0, 0.03, 4),
    "glitches": Kind("no GPU differs; a tenth of the runs takes half as long again", 0.0, 0.02, 3, glitches=0.1),
    "one_slow": Kind("one GPU takes 2.8 times as long, the others do not differ", 0.0, 0.03, 3, slow=(2.8,)),
    "one_slow_glitches": Kind("the same with glitches", 0.0, 0.02, 3, slow=(2.8,), glitches=0.1),
    "all_differ": Kind("GPUs differ by 3 %, runs by 2 %", 0.03, 0.02, 4),
    "all_differ_little": Kind("GPUs differ by 1 %, runs by 3 %", 0.01, 0.03, 4),
    "differ_and_slow": Kind("GPUs differ by 2 %, one takes 1.5 times as long", 0.02, 0.02, 4, slow=(1.5,)),
    "braked": Kind(
        "32 GPUs differ by 1.2 %, runs by 0.2 %, one takes 1.17 times as long", 0.012, 0.002, 2, slow=(1.17,), gpus=32
    ),
    "few_gpus": Kind("32 GPUs differ by 3 %, runs by 3 %", 0.03, 0.03, 3, gpus=32),
    "days": Kind(
        "no GPU differs, but by 2 % from day to day, runs by 0.5 %; 4 runs on each of 3 days",
        0.0,
        0.005,
        12,
        day=0.02,
        per_day=4,
    ),
    "differ_and_days": Kind(
        "GPUs differ by 3 %, from day to day by 2 %, runs by 0.5 %; 4 runs on each of 3 days",
        0.03,
        0.005,
        12,
        day=0.02,
        per_day=4,
    ),
}


def drawn(kind: Kind, gpus: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """The scores of a fleet's GPUs, its times (gpus, runs), and the level of each GPU in another sitting."""
    rng = np.random.default_rng([seed, 2026])
    true_scores = np.exp(rng.normal(0.0, kind.between, gpus))
    for number, factor in enumerate(kind.slow):
        true_scores[PER_NODE * number + 1] = factor
    strayed = rng.normal(0.0, kind.within, (gpus, kind.runs))
    if kind.per_day:
        strayed += np.repeat(rng.normal(0.0, kind.day, (gpus, kind.runs // kind.per_day)), kind.per_day, axis=1)
    strayed += np.where(rng.random(strayed.shape) < kind.glitches, np.log(1.5), 0.0)
    again = rng.normal(0.0, kind.within, (gpus, kind.per_day or kind.runs)) + rng.normal(0.0, kind.day, (gpus, 1))
    again += np.where(rng.random(again.shape) < kind.glitches, np.log(1.5), 0.0)
    usual = np.median(true_scores)
    level = true_scores * np.exp(np.median(again, axis=1))
    return true_scores / usual, 100.0 * true_scores[:, None] * np.exp(strayed), level / np.median(level)


def stored(root: Path, fleets: dict[str, Floats], per_day: int = 0) -> Store:
    """A store whose workloads are these fleets' times, so many runs a day (0: all on one)."""
    store = Store.create(root / "S")
    gpus = max(len(times) for times in fleets.values())
    names = [f"g{gpu:06d}" for gpu in range(gpus)]
    about = {
        "cluster": ["c"] * gpus,
        "gpu": names,
        "node": [f"n{gpu // PER_NODE:05d}" for gpu in range(gpus)],
        "slot": pa.array([gpu % PER_NODE for gpu in range(gpus)], pa.int32()),
    }
    runs: dict[str, list[Any]] = {name: [] for name in ("run_id", "workload", "gpu", "value", "began")}
    for workload, times in fleets.items():
        for (gpu, run), value in np.ndenumerate(times):
            row = (f"{workload}-{gpu}-{run}", workload, names[gpu], float(value), 1_800_000_000 + since_s(run, per_day))
            for column, cell in zip(runs.values(), row, strict=True):
                column.append(cell)
    count = len(runs["run_id"])
    keys = {name: runs[name] for name in ("run_id", "workload", "gpu")} | {"cluster": ["c"] * count}
    began = pa.array([value * 10**9 for value in runs["began"]], pa.timestamp("ns"))
    result = {"figure": ["time"] * count, "unit": ["ms"] * count, "repeat": pa.array([0] * count, pa.int32())}
    store.append(
        {
            "gpus": pa.table(about),
            "runs": pa.table({**keys, "began": began, "status": ["ok"] * count}),
            "results": pa.table({**keys, **result, "value": runs["value"]}),
        },
        "fleets",
    )
    return store


def since_s(run: int, per_day: int) -> int:
    """When a run begins, in s."""
    return 86_400 * (run // per_day) + 600 * (run % per_day) if per_day else 3600 * run


def calibration(kind: Kind, fleets: int, gpus: int) -> dict[str, Any]:
    """What came true over many fleets of a kind."""
    gpus = kind.gpus or gpus
    true_scores, times, again = {}, {}, {}
    for seed in range(fleets):
        name = f"w{seed:04d}"
        true_scores[name], times[name], again[name] = drawn(kind, gpus, seed)
    with tempfile.TemporaryDirectory() as folder:
        scored = scores(stored(Path(folder), times, kind.per_day))
    rows = [row for name in times for row in judged(scored, name, true_scores[name], times[name], again[name], kind)]
    return {
        "says": kind.says,
        "fleets": fleets,
        "gpus": gpus,
        "runs": kind.runs,
        "told_to_differ": mean(rows, "repeatable"),
        "scores_within_long_run": mean(rows, "scores_within"),
        "another_sitting_within_interval": mean(rows, "another_within"),
        "hard_found": mean(rows, "hard_found"),
        "hard_false_nodes": sum(row.get("hard_false", 0) for row in rows),
        **{
            f"{choice}_against_{against}": {
                name: mean([row for row in rows if (row["choice"], row["against"]) == (choice, against)], name)
                for name in ("measurable", "within_interval", "promised", "true", "plain_promised", "plain_true")
            }
            for choice in ("packed", "spread")
            for against in ("drained", "random")
        },
    }


def judged(
    fleet_scores: Scores, name: str, true_scores: Floats, times: Floats, again: Floats, kind: Kind
) -> Iterator[dict[str, Any]]:
    """One row a choice and baseline: what was promised for a job of `JOB` GPUs and what is true."""
    scored = fleet_scores.of[name]
    advice = advise(fleet_scores, name, gpus=JOB, max_share=1.0)
    slow = {f"n{number:05d}" for number in range(len(kind.slow))}
    hard = {node.node for node in advice.nodes if node.tier == "hard"}
    truly = {f"n{gpu // PER_NODE:05d}" for gpu in np.flatnonzero(true_scores > HARD)}
    first: dict[str, Any] = {"repeatable": scored.repeatable, "hard_false": len(hard - truly)}
    if slow:
        first["hard_found"] = len(hard & slow) / len(slow)
    first["another_within"] = float(np.mean((scored.lower <= again) & (again <= scored.upper)))
    if scored.repeatable:
        low, high = scored.posterior.lower[scored.unit], scored.posterior.upper[scored.unit]
        first["scores_within"] = float(np.mean((low <= true_scores) & (true_scores <= high)))
    everywhere = np.ones(len(true_scores), dtype=np.bool_)
    off = np.array([f"n{gpu // PER_NODE:05d}" not in hard for gpu in range(len(true_scores))])
    plain = np.median(times, axis=1) / np.median(np.median(times, axis=1))
    for choice in ("packed", "spread"):
        for against, mask in (("drained", off), ("random", everywhere)):
            row: dict[str, Any] = {"choice": choice, "against": against, **first}
            first = {}
            gain = [gain for gain in advice.gains if (gain.choice, gain.against) == (choice, against)]
            row["measurable"] = bool(gain) and gain[0].measurable
            row["promised"] = gain[0].median if gain else 0.0
            if gain and scored.repeatable:
                row["true"] = came_true(true_scores, chosen_of(advice, choice), mask, choice)
                row["within_interval"] = gain[0].lower - 1e-9 <= row["true"] <= gain[0].upper + 1e-9
            else:
                row["true"] = 0.0
            by_plain = best(plain, choice)
            row["plain_promised"] = came_true(plain, by_plain, mask, choice)
            row["plain_true"] = came_true(true_scores, by_plain, mask, choice)
            yield row


def chosen_of(advice: Advice, choice: str) -> npt.NDArray[np.intp]:
    chosen = advice.packed if choice == "packed" else advice.spread
    assert chosen is not None
    return np.array([int(gpu[1:]) for gpu in chosen.gpus], dtype=np.intp)


def best(score: Floats, choice: str) -> npt.NDArray[np.intp]:
    chosen = sets.best_packed(score, ground(len(score)), JOB) if choice == "packed" else sets.best_spread(score, JOB)
    assert chosen is not None
    return chosen


def ground(gpus: int) -> sets.NodeLayout:
    return sets.NodeLayout(np.arange(gpus) // PER_NODE)


def came_true(score: Floats, chosen: npt.NDArray[np.intp], mask: Mask, choice: str) -> float:
    """The share of time that a set saves against a random one off some nodes, if GPUs have these scores."""
    draws, layout = score[None, mask].astype(np.float32), ground(len(score)).only(mask)
    if choice == "packed":
        random = sets.random_packed(draws, layout, JOB, np.random.default_rng(0))
        assert random is not None
    else:
        random = sets.random_spread(draws, layout, JOB)
    return 1.0 - float(score[chosen].max() / random[0])


def mean(rows: list[dict[str, Any]], name: str) -> float | None:
    values = [float(row[name]) for row in rows if name in row]
    return round(sum(values) / len(values), 4) if values else None


def speed(gpus: int, runs: int) -> dict[str, Any]:
    """Wall time of scores and advice for one fleet; the peak memory is that of the process so far."""
    times = drawn(Kind("", 0.02, 0.02, runs, slow=(2.8, 1.5)), gpus, 0)[1]
    with tempfile.TemporaryDirectory() as folder:
        store = stored(Path(folder), {"w": times})
        start = time.perf_counter()
        scored = scores(store)
        between = time.perf_counter()
        advise(scored, "w", gpus=64)
        end = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "gpus": gpus,
        "runs": runs,
        "scores_s": round(between - start, 3),
        "advise_s": round(end - between, 3),
        "peak_rss_bytes": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=100, help="of each kind")
    parser.add_argument("--gpus", type=int, default=128, help="in a fleet")
    parser.add_argument("--large", type=int, default=27_648, help="GPUs of the large fleet that is timed")
    arguments = parser.parse_args()
    result = {
        "benchmark": "placement",
        "machine": machine("numpy", "polars"),
        "speed": [speed(400, 30), speed(arguments.large, 6)],
        "calibration": {name: calibration(kind, arguments.fleets, arguments.gpus) for name, kind in KINDS.items()},
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
