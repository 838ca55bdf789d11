"""Burst plans and partial backpropagation: what planning costs, and what measured scores gain. Prints JSON.

    python benchmarks/burst_plans.py > benchmarks/results/burst_plans.json

`planner`: CPU milliseconds for a plan of VGG16 and, by the exact rules, of a chain of eight of them. `scores`: the gain
in mean completion time of the policies `burst` and `spb` over themselves without scores, in percent, with its 90 %
interval over the seeds. Each seed draws 64 GPUs of Longhorn (medians of SGEMM, or of ResNet-50) into 16 nodes; policies
believe the scores up to an error of 1 %. Each gain is the geometric mean over three traces of the PAL study. For
`burst`, jobs of 2, 4, 8 and 16 GPUs train as VGG16 with batch 32 does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.replay.burst_jobs import JobPlan, with_plan
from whorl.analysis.replay.engine import replay
from whorl.analysis.replay.fleet import Floats
from whorl.analysis.replay.job import Trace
from whorl.analysis.replay.policies.burst import Burst
from whorl.analysis.replay.policies.policy import Policy
from whorl.analysis.replay.policies.spb import PartialBackpropagation
from whorl.analysis.replay.traces import read_trace
from whorl.analysis.replay.world import World
from whorl.analysis.training.burst import BurstQuestion, Layer, LayerProfile, plan_burst, read_network, read_profile
from whorl.benchmarks.intervals import LONGHORN
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say

SHARED = LONGHORN.parent
SEEDS, NODES, PER_NODE, ERROR = 40, 16, 4, 0.01
BATCH, WIDTHS = 32, (2, 4, 8, 16)
KIND = "gpu"


def cpu_ms(network: Sequence[Layer], profile: LayerProfile, question: BurstQuestion, times: int) -> float:
    """CPU milliseconds of a plan."""
    began = time.process_time()
    for _ in range(times):
        plan_burst(network, profile, question)
    return round((time.process_time() - began) / times * 1000, 1)


def scores_of(file: str) -> Floats:
    """(GPUs,) the medians of the runs of each GPU of Longhorn, over that of the median GPU."""
    runs = pl.read_csv(LONGHORN / file, infer_schema_length=None)
    medians = runs.group_by("uuid").agg(pl.col("perf").median()).sort("uuid")["perf"].to_numpy()
    scores: Floats = medians / np.median(medians)
    return scores


def gain(traces: list[Trace], policy: type[Policy], scores: Floats) -> dict[str, Any]:
    """What a policy gains by scores."""
    gains = []
    for seed in range(SEEDS):
        rng = np.random.default_rng([73, seed])
        runs_at = rng.choice(scores, NODES * PER_NODE)
        believed = runs_at * np.exp(rng.normal(0, ERROR, len(runs_at)))
        world = World.regular(NODES, PER_NODE, {KIND: runs_at}, believed={KIND: believed})
        ratios = []
        for trace in traces:
            jct_s = [
                (replay(trace, its_world, policy).finish_s - [job.submit_s for job in trace.jobs]).mean()
                for its_world in (world, world.flat())
            ]
            ratios.append(np.log(jct_s[0] / jct_s[1]))
        gains.append(100 * (1 - np.exp(np.mean(ratios))))
    low, high = np.quantile(gains, (0.05, 0.95))
    finding = "gain" if low > 0 else "no measurable gain"
    return {"gain_pct": round(float(np.mean(gains)), 2), "interval": [round(float(low), 2), round(float(high), 2)],
            "seeds": SEEDS, "finding": finding}  # fmt: skip


def main() -> None:
    """Print the figures."""
    deeppool = SHARED / "schedulers" / "deeppool"
    network = read_network(deeppool / "vgg16_plans.json")
    profile = read_profile(deeppool / "layer_times_a100.csv.gz", "vgg16")
    report: dict[str, Any] = {"machine": machine("numpy"), "planner": {}, "scores": {}}
    for rules in ("published", "exact"):
        question = BurstQuestion(BATCH, 16, 2.0, rules)
        report["planner"][f"{rules}, 38 layers, 16 GPUs"] = cpu_ms(network, profile, question, 10)
    question = BurstQuestion(64, 64, 1.3)
    report["planner"]["exact, 304 layers, 64 GPUs"] = cpu_ms(network * 8, profile, question, 1)
    plans = [plan_burst(network, profile, BurstQuestion(BATCH, gpus, 5.0)) for gpus in WIDTHS]
    parallel = [plan_burst(network, profile, BurstQuestion(BATCH, gpus, None)) for gpus in WIDTHS]
    as_jobs = [
        JobPlan(plan.question.gpus, BATCH, plan.stages, plan.time_ms / plain.time_ms)
        for plan, plain in zip(plans, parallel, strict=True)
    ]
    traces = [_trace(SHARED / "traces" / "sia-philly" / f"workload-{number}.csv") for number in (1, 2, 3)]
    bursts = [with_plan(trace, {KIND: as_jobs}) for trace in traces]
    for file in ("sgemm.csv.gz", "resnet50.csv.gz"):
        for policy, jobs in ((Burst, bursts), (PartialBackpropagation, traces)):
            say(f"{policy.name} by the scores of {file}")
            report["scores"][f"{policy.name}, {file.partition('.')[0]}"] = gain(jobs, policy, scores_of(file))
    print(as_json(report))


def _trace(path: Path) -> Trace:
    """A trace, all of whose jobs are of one class and one model."""
    trace = read_trace(path)
    return replace(trace, jobs=tuple(replace(job, workload=KIND, model=KIND) for job in trace.jobs))


if __name__ == "__main__":
    main()
