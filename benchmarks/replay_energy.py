"""What EaCO and matched clocks save in a replay: beside first come first served, packed, and themselves. Prints JSON.

    python benchmarks/replay_energy.py [--seeds 20] > benchmarks/results/replay_energy.json

`shared_gpus`: the 92 one-GPU jobs of Shockwave's trace on 14 nodes of 8 GPUs, with Gavel's pairs on V100. Node 760 W,
GPU 250 W with jobs and 50 W without, nodes without jobs off. `durations`: "one piece" keeps the batch size that a job
begins with, "regimes" changes it as the trace's jobs do. `believed`: "exact", or shares that are believed 30 % too
high, of all models or of one. `run_time`: time that a job held GPUs / its time alone. `late`: of the deadlines
submission + slack x time alone; for policies without a slack 1.25.

`gain_by_scores`: of each policy over itself with flat beliefs, in energy and in mean JCT, for each trace and workload:
the mean over seeds and the middle 90 % of them; and the mean number of jobs that end after 1.25 x their time alone,
with scores and without. Each seed draws 28 nodes of 4 GPUs from Longhorn, and jobs from the trace in place of its own.
GPUs run and draw what one half of their runs of the workload measured (medians); the beliefs are the other half, shrunk
to the median by how well the halves agree: `agree`, the correlations of times and of powers. SGEMM runs at Longhorn's
power cap. Models that Gavel did not measure share no GPUs.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.replay import Beliefs, Fleet, Metrics, Options, Outcome, Policy, Power, Rates, Trace, World, replay
from whorl.analysis.replay.policies.clocks import Clocks
from whorl.analysis.replay.policies.eaco import EaCO, Sharing
from whorl.analysis.replay.policies.packed import Packed
from whorl.analysis.replay.policies.shares import FirstCome
from whorl.analysis.replay.power import ANY
from whorl.analysis.replay.tables import Pairs, read_pairs
from whorl.analysis.replay.traces import TraceOptions, read_trace
from whorl.benchmarks.intervals import LONGHORN
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say

SHARED = LONGHORN.parent
SCHEDULERS, SIA = SHARED / "schedulers", SHARED / "traces" / "sia-philly"
SLACK, RESTART_S, WRONG = 1.25, 20.0, 1.3
IDLE_W, BUSY_W, NODE_W = 50.0, 250.0, 760.0
NODES = 28
POLICIES: tuple[type[Policy], ...] = (EaCO, Clocks)


def shockwave(*, regimes: bool) -> Trace:
    folder = SCHEDULERS / "shockwave"
    reading = TraceOptions(regimes=folder / "regimes_32gpus.json") if regimes else TraceOptions()
    return read_trace(folder / "jobs_32gpus.csv", reading=reading)


def believed_wrong(pairs: Pairs, models: str) -> Pairs:
    """Shares of the jobs whose name begins so are believed too high."""
    return Pairs(
        {pair: share * (WRONG if pair[0][0].startswith(models) else 1.0) for pair, share in pairs.shares.items()}
    )


def shared_gpus(pairs: Pairs) -> list[dict[str, Any]]:
    rates = Rates(Fleet.regular(14, 8), {}, pairs=pairs, power=power_of({ANY: np.full(112, BUSY_W)}))
    rows = []
    for durations in ("one piece", "regimes"):
        trace = shockwave(regimes=durations == "regimes")
        trace = replace(trace, jobs=tuple(job for job in trace.jobs if job.gpus == 1))
        cases: list[tuple[Policy, float, str]] = [(FirstCome(), SLACK, "exact"), (Packed(), SLACK, "exact")]
        cases += [(EaCO(Sharing(slack)), slack, "exact") for slack in (1.1, 1.25, 1.5)]
        cases += [
            (EaCO(Sharing(SLACK)), SLACK, models)
            for models in ("all", "LM", "Recommendation", "ResNet-18", "ResNet-50", "Transformer")
        ]
        for policy, slack, believed in cases:
            beliefs = rates
            if believed != "exact":
                beliefs = replace(rates, pairs=believed_wrong(pairs, "" if believed == "all" else believed))
            deadlines = replace(
                trace, jobs=tuple(replace(job, deadline_s=job.submit_s + slack * job.ideal_s) for job in trace.jobs)
            )
            began = time.process_time()
            outcome = replay(deadlines, World(rates, Beliefs(beliefs)), policy, options=Options(migration_s=RESTART_S))
            rows.append(
                {
                    "durations": durations,
                    "policy": outcome.policy,
                    "slack": slack if isinstance(policy, EaCO) else None,
                    "believed": believed,
                }
                | figures(outcome)
                | {"cpu_s": round(time.process_time() - began, 2)}
            )
            say(str(rows[-1]))
    return rows


def figures(outcome: Outcome) -> dict[str, Any]:
    metrics = outcome.metrics()
    run_time = outcome.held_s / np.array([job.ideal_s for job in outcome.jobs])
    return {
        "energy_kwh": rounded(metrics.energy_kwh),
        "base_kwh": rounded(metrics.base_kwh),
        "node_hours": rounded(metrics.node_hours),
        "run_time_mean": round(float(run_time.mean()), 4),
        "run_time_max": round(float(run_time.max()), 3),
        "late": metrics.late,
        "undone": metrics.migrations,
        "wasted_gpu_h": rounded(metrics.wasted_gpu_h),
    }


def rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 2)


def power_of(watts: Mapping[str, np.ndarray[Any, Any]]) -> Power:
    return Power(watts, idle_w=IDLE_W, node_w=NODE_W, asleep_w=0.0, sleep_after_s=0.0)


@dataclass(frozen=True)
class Halves:
    """What the GPUs of a cluster measured in a workload. Columns node, score, watts."""

    workload: str
    true: pl.DataFrame
    believed: pl.DataFrame
    agree: dict[str, float]

    def rates(self, of_half: pl.DataFrame, nodes: Sequence[str], pairs: Pairs) -> Rates:
        """A fleet of these nodes, by one of the halves."""
        rows = {node: (score, watts) for node, score, watts in of_half.group_by("node").agg("score", "watts").rows()}
        score, watts = (np.concatenate([rows[node][place] for node in nodes]) for place in (0, 1))
        power = power_of({self.workload: watts})
        return Rates(Fleet.regular(len(nodes), 4), {self.workload: score}, pairs=pairs, power=power)


def gain_by_scores(pairs: Pairs, seeds: int) -> list[dict[str, Any]]:
    traces = {
        "Shockwave, one piece": shockwave(regimes=False),
        "Shockwave, regimes": shockwave(regimes=True),
        "Sia 1": read_trace(SIA / "workload-1.csv"),
        "Sia 2": read_trace(SIA / "workload-2.csv"),
    }
    rows = []
    for workload in ("sgemm", "resnet50"):
        halves = longhorn_halves(workload)
        for (name, trace), policy in product(traces.items(), POLICIES):
            outcomes = [both_ways(policy, trace, pairs, halves, seed) for seed in range(seeds)]
            row: dict[str, Any] = {"workload": workload, "trace": name, "policy": policy.name, "seeds": seeds}
            for figure in ("energy_kwh", "avg_jct_s"):
                gains = np.log([getattr(flat, figure) / getattr(scored, figure) for scored, flat in outcomes])
                mean, low, high = (
                    round(100 * -math.expm1(-gain), 2) for gain in (gains.mean(), *np.quantile(gains, (0.05, 0.95)))
                )
                row |= {f"{figure}_gain_pct": mean, f"{figure}_middle_90": [low, high]}
            row["late"] = fmean(scored.late or 0 for scored, _ in outcomes)
            row["late_without_scores"] = fmean(flat.late or 0 for _, flat in outcomes)
            rows.append(row | {"agree": halves.agree})
            say(str(row))
    return rows


def both_ways(policy: type[Policy], trace: Trace, pairs: Pairs, halves: Halves, seed: int) -> tuple[Metrics, Metrics]:
    """With scores and with flat beliefs, on one fleet and one draw of jobs."""
    rng = np.random.default_rng(seed)
    nodes = rng.permutation(halves.true["node"].unique(maintain_order=True).to_list())[:NODES].tolist()
    drawn = rng.integers(len(trace.jobs), size=len(trace.jobs)).tolist()
    jobs = []
    for number, (job, pick) in enumerate(zip(trace.jobs, drawn, strict=True)):
        row = replace(trace.jobs[pick], name=str(number), submit_s=job.submit_s, workload=halves.workload)
        jobs.append(replace(row, deadline_s=row.submit_s + SLACK * row.ideal_s))
    beliefs = Beliefs(halves.rates(halves.believed, nodes, pairs))
    world = World(halves.rates(halves.true, nodes, pairs), beliefs)
    drawn_trace = replace(trace, jobs=tuple(jobs))
    return replay(drawn_trace, world, policy).metrics(), replay(drawn_trace, world.flat(), policy).metrics()


def longhorn_halves(workload: str) -> Halves:
    """Of nodes of which all four GPUs ran at least twice: medians of the even runs, and of the odd ones, shrunk."""
    runs = pl.read_csv(LONGHORN / f"{workload}.csv.gz", infer_schema_length=None).filter(pl.col("node") >= 0)
    runs = runs.with_columns(node=pl.format("{}-{}", "cabinet", "node"), odd=pl.int_range(pl.len()).over("uuid").mod(2))
    medians = runs.group_by("node", "uuid", "odd").agg(pl.col("perf", "pwr").median()).sort("node", "uuid")
    even, odd = (medians.filter(odd=half).drop("odd") for half in (0, 1))
    gpus = even.join(odd, on=["node", "uuid"], suffix="_odd").filter(pl.len().over("node") == 4)
    agree = {name: float(gpus.select(pl.corr(name, f"{name}_odd")).item()) for name in ("perf", "pwr")}
    shrunk = {
        name: 1 + max(0.0, correlation) * (pl.col(f"{name}_odd") / pl.col(f"{name}_odd").median() - 1)
        for name, correlation in agree.items()
    }
    return Halves(
        workload,
        gpus.select("node", score=pl.col("perf") / pl.col("perf").median(), watts="pwr"),
        gpus.select("node", score=shrunk["perf"], watts=shrunk["pwr"] * pl.col("pwr").median()),
        {"times": round(agree["perf"], 3), "powers": round(agree["pwr"], 3)},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    pairs = read_pairs(SCHEDULERS / "gavel" / "pairs.csv.gz", "v100")
    result = {
        "shared_gpus": shared_gpus(pairs),
        "gain_by_scores": gain_by_scores(pairs, arguments.seeds),
        "machine": machine(),
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
