"""What Shockwave gains by the scores of GPUs: beside itself with all GPUs believed alike. Prints JSON.

    python benchmarks/replay_scores.py [--seeds 20] > benchmarks/results/replay_scores.json

Its own trace of 120 jobs on 32 GPUs in as many nodes, and the first 60 jobs of two static Sia traces on 64 GPUs in 16
nodes, in rounds of 120 and 360 s. A start costs 20 s, and spanning nodes costs nothing. Each seed draws a fleet: scores
of ResNet-50 on Longhorn, over their median, with replacement. Policies believe them with an error of 1 %.

`gain_pct` is by how much a time is shorter with scores, the mean over the seeds (geometric), and `interval_pct` its
90 % interval. A gain is measurable where that does not contain 0. `per_seed` has every gain: how far they lie apart is
what another fleet may show.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from whorl.analysis.replay import Options, Outcome, Trace, World, replay
from whorl.analysis.replay.findings import interval
from whorl.analysis.replay.profiles import profiles
from whorl.analysis.replay.traces import TraceOptions, read_trace
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
WORKLOAD = "A"
"""ResNet-50, as the PAL study names the class."""
BELIEF_ERROR = 0.01


@dataclass(frozen=True)
class PolicyTrial:
    """A policy on a trace."""

    policy: str
    trace: Trace
    nodes: int
    gpus_per_node: int
    round_s: float


def cases() -> list[PolicyTrial]:
    """The policies and traces that are compared."""
    folder = SHARED / "schedulers" / "shockwave"
    regimes = TraceOptions(regimes=folder / "regimes_32gpus.json")
    shockwave = read_trace(folder / "jobs_32gpus.csv", reading=regimes)
    static = [read_trace(SHARED / "traces" / "sia-philly" / f"workload-{number}.csv") for number in (1, 2)]
    return [
        PolicyTrial("shockwave", shockwave, 32, 1, 120.0),
        *(PolicyTrial("shockwave", replace(trace, jobs=trace.jobs[:60]), 16, 4, 360.0) for trace in static),
    ]


def figures(outcome: Outcome) -> dict[str, float]:
    """The times that are compared, in seconds."""
    completion_s = outcome.finish_s - outcome.submit_s
    return {"avg_jct_s": float(completion_s.mean()), "makespan_s": float(outcome.finish_s.max())}


def gains(case: PolicyTrial, scores: np.ndarray[Any, np.dtype[np.float64]], seed: int) -> dict[str, float]:
    """By figure, the logarithm of a policy's time with scores over that without, on a fleet drawn from these."""
    draw = np.random.default_rng(seed)
    fleet = draw.choice(scores, case.nodes * case.gpus_per_node)
    believed = fleet * np.exp(draw.normal(0.0, BELIEF_ERROR, len(fleet)))
    world = World.regular(case.nodes, case.gpus_per_node, {WORKLOAD: fleet}, believed={WORKLOAD: believed})
    trace = replace(case.trace, jobs=tuple(replace(job, workload=WORKLOAD) for job in case.trace.jobs))
    options = Options(round_s=case.round_s, rounds=True, start_s=20.0)
    scored, flat = (
        figures(replay(trace, each, case.policy, options=options, seed=seed)) for each in (world, world.flat())
    )
    logs = {name: math.log(scored[name] / flat[name]) for name in scored}
    say(f"{case.policy}, {trace.name}, seed {seed}: {logs}")
    return logs


def summary(case: PolicyTrial, seeds: Sequence[dict[str, float]]) -> dict[str, Any]:
    """What a policy gains by scores, over the seeds."""
    head = {"policy": case.policy, "trace": case.trace.name, "jobs": len(case.trace.jobs), "n": len(seeds)}
    return head | {name: _gain([logs[name] for logs in seeds]) for name in seeds[0]}


def _gain(logs: list[float]) -> dict[str, Any]:
    """From the logarithms of times with scores over those without."""
    low, high = interval(logs)
    return {
        "gain_pct": _percent(fmean(logs)),
        "interval_pct": None if low is None or high is None else [_percent(high), _percent(low)],
        "finding": "no measurable gain" if high is None or high >= 0 else "gain",
        "per_seed": [_percent(log) for log in logs],
    }


def _percent(log: float) -> float:
    return round(100 * (1 - math.exp(log)), 2)


def main() -> None:
    """Print what each case gains."""
    parser = argparse.ArgumentParser(description="What Shockwave gains by the scores of GPUs.")
    parser.add_argument("--seeds", type=int, default=20, help="fleets that are drawn for each trace")
    parser.add_argument("--workers", type=int, help="processes; as many as there are processors")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine("scipy", "numpy"), "belief_error": BELIEF_ERROR, "cases": []}
    if SHARED.is_dir():
        scores = profiles([SHARED / "longhorn"]).relative()[WORKLOAD]
        result["scores"] = {"n": len(scores), "cv_pct": round(100 * float(np.std(scores) / np.mean(scores)), 2)}
        with ProcessPoolExecutor(arguments.workers) as pool:
            replays = [[pool.submit(gains, case, scores, seed) for seed in range(arguments.seeds)] for case in cases()]
            result["cases"] = [
                summary(case, [future.result() for future in futures])
                for case, futures in zip(cases(), replays, strict=True)
            ]
    else:
        result["did_not_run"] = f"there is no folder {SHARED}"
    print(as_json(result))


if __name__ == "__main__":
    main()
