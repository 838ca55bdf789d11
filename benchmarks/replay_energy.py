"""What EaCO and matched clocks save in a replay: beside first come first served, packed, and themselves. Prints JSON.

    python benchmarks/replay_energy.py [--seeds 20] > benchmarks/results/replay_energy.json

`shared_gpus`: the 92 one-GPU jobs of Shockwave's trace on 14 nodes of 8 GPUs, with Gavel's pairs on V100. Node 760 W,
GPU 250 W with jobs and 50 W without, nodes without jobs off. `durations`: "one piece" keeps the batch size that a job
begins with, "regimes" changes it as the trace's jobs do. `believed`: "exact", or shares that are believed 30 % too
high, of all models or of one. `run_time`: time that a job held GPUs / its time alone. `late`: of the deadlines
submission + slack x time alone; for policies without a slack 1.25.

`gain_by_scores`: of each policy over itself with flat beliefs, in energy and in mean JCT, for each trace: the mean over
seeds and the middle 90 % of them. Each seed draws 16 nodes of 4 GPUs from Longhorn and jobs from the trace, in place of
its own jobs. GPUs run and draw what one half of their ResNet-50 runs measured (medians); the beliefs are the other
half, shrunk to the median by how well the halves agree. Models that Gavel did not measure share no GPUs.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.replay import Beliefs, Fleet, Options, Outcome, Policy, Power, Rates, Trace, World, replay
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


def gain_by_scores(pairs: Pairs, seeds: int) -> list[dict[str, Any]]:
    halves = longhorn_halves()
    traces = {
        "Shockwave, one piece": shockwave(regimes=False),
        "Shockwave, regimes": shockwave(regimes=True),
        "Sia 1": read_trace(SIA / "workload-1.csv"),
        "Sia 2": read_trace(SIA / "workload-2.csv"),
    }
    rows = []
    for name, trace in traces.items():
        for policy in (EaCO, Clocks):
            gains = [gains_of(policy, trace, pairs, halves, seed) for seed in range(seeds)]
            row: dict[str, Any] = {"trace": name, "policy": policy.name, "seeds": seeds}
            for place, figure in enumerate(("energy", "avg_jct")):
                ratios = np.log([gain[place] for gain in gains])
                mean, low, high = (100 * (1 - math.exp(x)) for x in (ratios.mean(), *np.quantile(ratios, (0.95, 0.05))))
                row |= {f"{figure}_gain_pct": round(mean, 2), f"{figure}_middle_90": [round(low, 2), round(high, 2)]}
            rows.append(row)
            say(str(row))
    return rows


def gains_of(
    policy: type[Policy], trace: Trace, pairs: Pairs, halves: tuple[pl.DataFrame, pl.DataFrame], seed: int
) -> Sequence[float]:
    """Energy and mean JCT beside those with flat beliefs, of one fleet and one draw of jobs."""
    rng = np.random.default_rng(seed)
    nodes = rng.permutation(halves[0]["node"].unique(maintain_order=True).to_numpy())[:16]
    fleet = Fleet.regular(16, 4)
    true, believed = (
        Rates(
            fleet,
            {"resnet50": column(half, nodes, "perf")},
            pairs=pairs,
            power=power_of({"resnet50": column(half, nodes, "pwr")}),
        )
        for half in halves
    )
    drawn = rng.integers(len(trace.jobs), size=len(trace.jobs))
    jobs = tuple(
        replace(trace.jobs[pick], name=str(number), submit_s=job.submit_s, workload="resnet50")
        for number, (job, pick) in enumerate(zip(trace.jobs, drawn.tolist(), strict=True))
    )
    world = World(true, Beliefs(believed))
    with_scores = replay(replace(trace, jobs=jobs), world, policy).metrics()
    without = replay(replace(trace, jobs=jobs), world.flat(), policy).metrics()
    assert with_scores.energy_kwh
    assert without.energy_kwh
    return with_scores.energy_kwh / without.energy_kwh, with_scores.avg_jct_s / without.avg_jct_s


def column(half: pl.DataFrame, nodes: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """(nodes x 4,) a column of the GPUs of these nodes, node by node."""
    rows = dict(half.group_by("node", maintain_order=True).agg(name).iter_rows())
    return np.concatenate([rows[node] for node in nodes.tolist()])


def longhorn_halves() -> tuple[pl.DataFrame, pl.DataFrame]:
    """node, perf (score), pwr (W) of GPUs: medians of the even runs; and of the odd ones, shrunk to the median GPU.

    Nodes of which all four GPUs ran at least twice.
    """
    runs = pl.read_csv(LONGHORN / "resnet50.csv.gz", infer_schema_length=None).filter(pl.col("node") >= 0)
    runs = runs.with_columns(
        node=pl.format("{}-{}", "cabinet", "node"), half=pl.int_range(pl.len()).over("uuid").mod(2)
    )
    medians = runs.group_by("node", "uuid", "half").agg(pl.col("perf", "pwr").median()).sort("node", "uuid")
    even, odd = (medians.filter(pl.col("half") == half).drop("half") for half in (0, 1))
    both = even.join(odd, on=["node", "uuid"], suffix="_odd").filter(pl.len().over("node") == 4)
    centres = {name: float(np.median(both[name].to_numpy())) for name in both.columns if name.startswith(("p",))}
    agree = {
        name: max(0.0, float(np.corrcoef(both[name].to_numpy(), both[f"{name}_odd"].to_numpy())[0, 1]))
        for name in ("perf", "pwr")
    }
    watts = centres["pwr"]
    true = both.select("node", pl.col("perf") / centres["perf"], pl.col("pwr").clip(IDLE_W))
    believed = both.select(
        "node",
        perf=1 + agree["perf"] * (pl.col("perf_odd") / centres["perf_odd"] - 1),
        pwr=watts * (1 + agree["pwr"] * (pl.col("pwr_odd") / centres["pwr_odd"] - 1)),
    )
    return true, believed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    pairs = read_pairs(Path(SCHEDULERS / "gavel" / "pairs.csv.gz"), "v100")
    result = {
        "shared_gpus": shared_gpus(pairs),
        "gain_by_scores": gain_by_scores(pairs, arguments.seeds),
        "machine": machine(),
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
