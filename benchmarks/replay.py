"""How fast job traces are replayed, what policies gain by scores, and how often the finding "better" is right.

    python -m benchmarks.replay [--only SECTION] [--quick | --long]

speed     the 18 replays of PAL (SC'24) from public files; jobs on 27,648 GPUs under EASY backfill (100,000 with --long)
schemes   Shockwave on its trace beside LAS, SRTF and FIFO; EaCO on 112 GPUs beside packed and first come first served
scores    by how much each policy is better than itself without scores: mean over seeds (geometric), 90 % interval
findings  stores whose true scores are known: how often a policy is found better where GPUs do not differ, and where
          they do, and how often the printed interval holds the true gain over itself without scores
chains    policies that submit the next job of a chain, on a real log (Lonestar6): hours of interruption and overlap
          beside reactive, fixed leads, the mean wait, and who knows the wait
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.chains.jobs_log import read_log
from whorl.analysis.chains.study import StudyOptions, chain_study
from whorl.analysis.placement import scores as scores_of_store
from whorl.analysis.replay import (
    Beliefs,
    Fleet,
    Job,
    Options,
    Outcome,
    Policy,
    Power,
    Rates,
    Trace,
    World,
    replay,
)
from whorl.analysis.replay.findings import BETTER, LEAST_PCT, interval
from whorl.analysis.replay.from_store import MeasuredFleets
from whorl.analysis.replay.policies.eaco import EaCO, Sharing
from whorl.analysis.replay.policies.placements import Packed
from whorl.analysis.replay.policies.shares import FirstCome
from whorl.analysis.replay.power import ANY
from whorl.analysis.replay.published import POLICIES as PUBLISHED
from whorl.analysis.replay.published import pal_sc24, profiles, published_trace
from whorl.analysis.replay.setting import ReplaySetting
from whorl.analysis.replay.study import BASELINES, Case, General
from whorl.analysis.replay.tables import Pairs, read_pairs
from whorl.analysis.replay.traces import TraceOptions, read_trace
from whorl.benchmarks.fleets import PER_NODE, Floats, began_s, stored
from whorl.benchmarks.harness import BenchOptions, child, peak_mb, public_file, run, say, scratch, share, timed
from whorl.store import Store

SIA = "traces/sia-philly"

# -- speed -----------------------------------------------------------------------------------------------------------

SEED, MEAN_S, LOCALITY = 20, 3600.0, 1.2
GPUS_OF_SUMMIT, GPUS_OF_NODE = 27_648, 6
WIDTHS = ((1, 40), (6, 25), (24, 15), (432, 12), (1728, 6), (3456, 2))
"""Widths, in proportion to the fleet, and how often they are asked for."""


def drawn_trace(jobs: int, load: float) -> Trace:
    draw = random.Random(SEED)
    sizes, weights = zip(*WIDTHS, strict=True)
    gap = sum(a * b for a, b in WIDTHS) / sum(weights) * MEAN_S / (GPUS_OF_SUMMIT * load)
    now, drawn_jobs = 0.0, []
    for number, width in enumerate(draw.choices(sizes, weights, k=jobs)):
        ideal = draw.lognormvariate(0.0, 1.2) * MEAN_S / 2.0544  # the mean of the log-normal
        workload = draw.choice("ABCD")
        drawn_jobs.append(Job(str(number), now, width, ideal, workload, ideal * draw.uniform(1.2, 5.0)))
        now += draw.expovariate(1 / gap)
    return Trace(f"{jobs} drawn jobs", tuple(drawn_jobs))


def large(jobs: int, load: float) -> Callable[[], dict[str, Any]]:
    """Jobs on 27,648 GPUs, packed with EASY backfill."""
    draw, trace = random.Random(SEED + 1), drawn_trace(jobs, load)
    spread = {"A": 0.05, "B": 0.02, "C": 0.02, "D": 0.005}
    scores = {name: [draw.lognormvariate(0, sd) for _ in range(GPUS_OF_SUMMIT)] for name, sd in spread.items()}
    world = World.regular(GPUS_OF_SUMMIT // GPUS_OF_NODE, GPUS_OF_NODE, scores, locality=LOCALITY)

    def work() -> dict[str, Any]:
        outcome = replay(trace, world, "packed", options=Options(backfill="easy"))
        waited = outcome.start_s - outcome.submit_s
        return {"events": outcome.events, "mean_wait_s": round(float(waited.mean()), 1), "peak_mb": peak_mb()}

    return work


def speed(options: BenchOptions) -> dict[str, Any]:
    """The published replays in one process, and a large fleet in processes of their own."""
    jobs = options.pick(2000, 30_000, 100_000)
    table: dict[str, Any] = {f"{jobs} jobs, load {load}": child("replay", "large", jobs, load) for load in (0.9, 1.1)}
    scored = profiles([public_file("longhorn")])
    traces = [published_trace(public_file(f"{SIA}/workload-{number}.csv")) for number in (1, 2, 3)]
    figures = timed(lambda: [len(pal_sc24(trace, scored, policy).jobs) for trace in traces for policy in PUBLISHED])
    return table | {"published": {"replays": len(traces) * len(PUBLISHED), "cpu_s": figures["cpu_s"], "n": 1}}


# -- schedulers of the literature ------------------------------------------------------------------------------------

SLACK, RESTART_S, WRONG = 1.25, 20.0, 1.3
IDLE_W, BUSY_W, NODE_W = 50.0, 250.0, 760.0


def shockwave(*, regimes: bool) -> Trace:
    folder = public_file("schedulers/shockwave")
    reading = TraceOptions(regimes=folder / "regimes_32gpus.json") if regimes else TraceOptions()
    return read_trace(folder / "jobs_32gpus.csv", reading=reading)


def figures(outcome: Outcome) -> dict[str, Any]:
    metrics = outcome.metrics()
    run_time = outcome.held_s / np.array([job.ideal_s for job in outcome.jobs])
    names = ("energy_kwh", "base_kwh", "node_hours", "late", "wasted_gpu_h")
    of_metrics = {name: rounded(getattr(metrics, name)) for name in names}
    times = {"run_time_mean": round(float(run_time.mean()), 4), "run_time_max": round(float(run_time.max()), 3)}
    return {**of_metrics, **times, "undone": metrics.migrations}


def rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 2)


def power_of(watts: Mapping[str, np.ndarray[Any, Any]]) -> Power:
    return Power(watts, idle_w=IDLE_W, node_w=NODE_W, asleep_w=0.0, sleep_after_s=0.0)


def schemes(_options: BenchOptions) -> dict[str, Any]:
    """Shockwave and EaCO on what their papers use; one run each, as nothing is random in them."""
    world, trace = World.regular(32, 1, {}), shockwave(regimes=True)
    rounds = Options(round_s=120.0, rounds=True, start_s=20.0)
    of_shockwave = {}
    for name in ("shockwave", "las", "srtf", "fifo"):
        answer = timed(lambda name=name: replay(trace, world, name, options=rounds).metrics())  # type: ignore[misc]
        metrics = answer["answer"]
        of_shockwave[name] = {
            "makespan_s": round(metrics.makespan_s), "avg_jct_s": round(metrics.avg_jct_s),
            "worst_ftf": rounded(metrics.worst_ftf), "unfair_pct": rounded(metrics.unfair_pct),
            "cpu_s": answer["cpu_s"],
        }  # fmt: skip
    pairs = read_pairs(public_file("schedulers/gavel/pairs.csv.gz"), "v100")
    rates = Rates(Fleet.regular(14, 8), {}, pairs=pairs, power=power_of({ANY: np.full(112, BUSY_W)}))
    small = shockwave(regimes=False)
    small = replace(small, jobs=tuple(job for job in small.jobs if job.gpus == 1))
    rows = []
    policies: list[tuple[Policy, float, str]] = [(FirstCome(), SLACK, "exact"), (Packed(), SLACK, "exact")]
    policies += [(EaCO(Sharing(slack)), slack, "exact") for slack in (1.1, 1.25, 1.5)]
    for policy, slack, believed in [*policies, (EaCO(Sharing(SLACK)), SLACK, "30 % too high")]:
        wrong = Pairs({pair: WRONG * share for pair, share in pairs.shares.items()})
        beliefs = rates if believed == "exact" else replace(rates, pairs=wrong)
        jobs = tuple(replace(job, deadline_s=job.submit_s + slack * job.ideal_s) for job in small.jobs)
        options = Options(migration_s=RESTART_S)
        outcome = replay(replace(small, jobs=jobs), World(rates, Beliefs(beliefs)), policy, options=options)
        rows.append({"policy": outcome.policy, "slack": slack, "believed": believed} | figures(outcome))
    return {"shockwave": of_shockwave, "eaco": rows, "jobs": {"shockwave": len(trace.jobs), "eaco": len(small.jobs)}}


# -- what scores gain ------------------------------------------------------------------------------------------------


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


def longhorn_halves(workload: str) -> Halves:
    """Of nodes of which all four GPUs ran at least twice: medians of the even runs, and of the odd ones, shrunk."""
    runs = pl.read_csv(public_file(f"longhorn/{workload}.csv.gz"), infer_schema_length=None).filter(pl.col("node") >= 0)
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


Draw = Callable[[int], tuple[Trace, World]]
"""By seed, the jobs and the fleet."""


def of_profile(trace: Trace, score: Floats, nodes: int, per_node: int) -> Draw:
    """The jobs as they are, on GPUs drawn from a profile's rows, believed within 1 %."""

    def draw(seed: int) -> tuple[Trace, World]:
        rng = np.random.default_rng(seed)
        true = rng.choice(score, nodes * per_node)
        believed = true * np.exp(rng.normal(0.0, 0.01, len(true)))
        jobs = tuple(replace(job, workload="A", model="A") for job in trace.jobs)
        return replace(trace, jobs=jobs), World.regular(nodes, per_node, {"A": true}, believed={"A": believed})

    return draw


def of_halves(trace: Trace, halves: Halves, pairs: Pairs) -> Draw:
    """Jobs drawn again, with deadlines, on 28 real nodes: true by the one half of their runs, believed by the other."""

    def draw(seed: int) -> tuple[Trace, World]:
        rng = np.random.default_rng(seed)
        nodes = rng.permutation(halves.true["node"].unique(maintain_order=True).to_list())[:28].tolist()
        drawn = rng.integers(len(trace.jobs), size=len(trace.jobs)).tolist()
        jobs = []
        for number, (job, pick) in enumerate(zip(trace.jobs, drawn, strict=True)):
            row = replace(trace.jobs[pick], name=str(number), submit_s=job.submit_s, workload=halves.workload)
            jobs.append(replace(row, deadline_s=row.submit_s + SLACK * row.ideal_s))
        beliefs = Beliefs(halves.rates(halves.believed, nodes, pairs))
        return replace(trace, jobs=tuple(jobs)), World(halves.rates(halves.true, nodes, pairs), beliefs)

    return draw


def gain_of(logs: Sequence[float]) -> dict[str, Any]:
    """From the logarithms of a figure with scores over that without, of the seeds."""
    low, high = interval(list(logs))
    mean, *bounds = (None if log is None else round(100 * (1 - math.exp(log)), 2) for log in (fmean(logs), high, low))
    finding = "gain" if high is not None and high < 0 else "no measurable gain"
    return {"gain_pct": mean, "interval_90_pct": bounds, "n": len(logs), "finding": finding}


def scores(options: BenchOptions) -> dict[str, Any]:
    """Shockwave and partial backpropagation in mean completion time, EaCO and matched clocks in energy."""
    seeds, rows = options.pick(2, 12, 20), []
    score = profiles([public_file("longhorn")]).relative()["A"]  # ResNet-50, as the PAL study names the class
    sia, own = read_trace(public_file(f"{SIA}/workload-1.csv")), shockwave(regimes=False)
    regimes, short = shockwave(regimes=True), replace(sia, jobs=sia.jobs[:60])
    pairs, halves = read_pairs(public_file("schedulers/gavel/pairs.csv.gz"), "v100"), longhorn_halves("sgemm")
    two, six = (Options(round_s=60.0 * minutes, rounds=True, start_s=20.0) for minutes in (2, 6))
    cases: list[tuple[str, str, str, Draw, Options]] = [
        ("shockwave", regimes.name, "avg_jct_s", of_profile(regimes, score, 32, 1), two),
        ("shockwave", sia.name, "avg_jct_s", of_profile(short, score, 16, 4), six),
        ("spb", sia.name, "avg_jct_s", of_profile(sia, score, 16, 4), Options()),
        *(
            (policy, trace.name, "energy_kwh", of_halves(trace, halves, pairs), Options())
            for policy in ("eaco", "clocks")
            for trace in (sia, own)
        ),
    ]
    for policy, name, figure, draw, rules in cases[:: options.pick(3, 1, 1)]:
        logs = []
        for seed in range(seeds):
            trace, world = draw(seed)
            outcomes = [replay(trace, view, policy, options=rules, seed=seed) for view in (world, world.flat())]
            scored, flat = (getattr(outcome.metrics(), figure) for outcome in outcomes)
            logs.append(math.log((scored or 1) / (flat or 1)))
        rows.append({"policy": policy, "trace": name, "figure": figure, **gain_of(logs)})
        say(str(rows[-1]))
    return {"cases": rows}


# -- findings --------------------------------------------------------------------------------------------------------

GPUS, JOBS, NEW_TRACES, SEEDS, PENALTY = 32, 60, 10, 20, 1.3
POLICIES = ("pal", "pal-sticky")
OPTIONS = Options(rounds=True)
KINDS: dict[str, dict[str, Any]] = {
    "noise: runs stray by 2 %": {}, "noise: a tenth of the runs takes half as long again": {"glitches": 0.1},
    "noise: a GPU differs by 2 % from day to day": {"day": 0.02},
    "noise: a node differs by 2 % from day to day": {"node_day": 0.02},
    "one GPU takes 1.4 times as long": {"slow": ((5, 1.4),)}, "one GPU takes 2 times as long": {"slow": ((5, 2.0),)},
    "GPUs differ by 6 %": {"between": 0.06}, "GPUs differ by 12 %": {"between": 0.12},
}  # fmt: skip
"""Standard deviations; 4 runs on each of 3 days. GPUs of `noise` do not differ."""


def times_of(kind: Mapping[str, Any], draw: np.random.Generator) -> tuple[Floats, Floats]:
    """The true scores of a fleet (gpus,) and its measured times (gpus, runs)."""
    true = np.exp(draw.normal(0.0, kind.get("between", 0.0), GPUS))
    for gpu, score in kind.get("slow", ()):
        true[gpu] = score
    daily = draw.normal(0.0, kind.get("day", 0.0), (GPUS, 3))
    daily += np.repeat(draw.normal(0.0, kind.get("node_day", 0.0), (GPUS // PER_NODE, 3)), PER_NODE, axis=0)
    strayed = draw.normal(0.0, 0.02, (GPUS, 12)) + np.repeat(daily, 4, axis=1)
    strayed += np.where(draw.random((GPUS, 12)) < kind.get("glitches", 0.0), np.log(1.5), 0.0)
    return true / np.median(true), 100.0 * true[:, None] * np.exp(strayed)


def trace(name: str, workload: str, random: np.random.Generator, jobs: int = JOBS) -> Trace:
    """Jobs of 1 to 12 GPUs, log-normal run times, exponential gaps: about 0.8 of what the fleet can do."""
    widths = random.choice([1, 2, 4, 6, 8, 12], p=[0.4, 0.15, 0.2, 0.1, 0.1, 0.05], size=jobs)
    ideal = 600.0 + random.lognormal(8.0, 1.0, jobs)
    submit = np.cumsum(random.exponential(3.3 * 5515.0 / (0.8 * GPUS), jobs))
    rows = zip(submit.tolist(), widths.tolist(), ideal.tolist(), strict=True)
    return Trace(name, tuple(Job(f"{n}", at, gpus, time, workload) for n, (at, gpus, time) in enumerate(rows)))


@dataclass(frozen=True)
class TrueFleets:
    """The fleets of a store, on which jobs run at the true scores."""

    fleets: MeasuredFleets
    workload: str
    true: Floats

    def draw(self, seed: int) -> World:
        world = self.fleets.draw(seed)
        score = dict(zip(self.fleets.scores.gpus, self.true, strict=True))
        scores = {self.workload: np.array([score[name] for name in world.fleet.gpu_names])}
        return replace(world, rates=replace(world.rates, scores=scores))


def true_gain(study: General, policy: str, number: int) -> float:
    """In %, of the policy over itself without scores, over new traces in other orders of the nodes."""
    logs = []
    for place in range(NEW_TRACES):
        case = Case(place, policy, "fifo", 10**6 + 1000 * number + place)
        score, control = (study.run(case).metrics.avg_jct_s for case in (case, replace(case, flat=True)))
        logs.append(math.log(score / control))
    return -100 * math.expm1(fmean(logs))


def judged_store(fleets: MeasuredFleets, workload: str, true: Floats, number: int) -> dict[str, dict[str, Any]]:
    """Of each policy whether it is found better, its printed gain over itself without scores, and the true one."""
    draw = np.random.default_rng([number, 77])
    study = General((trace("t0", workload, draw, JOBS),), fleets, OPTIONS)
    setting = ReplaySetting(study, list(POLICIES), list(BASELINES), ["fifo"], BASELINES, seed=1000 * number)
    findings = {finding.policy: finding for finding in setting.answer(seeds=SEEDS).findings if finding.trace == "t0"}
    new = tuple(trace(f"n{place}", workload, draw, JOBS) for place in range(NEW_TRACES))
    truth = General(new, TrueFleets(fleets, workload, true), OPTIONS)
    row: dict[str, dict[str, Any]] = {}
    for policy in POLICIES:
        row[policy] = {"better": findings[policy].finding == BETTER, "held": None}
        control = next((gain for gain in findings[policy].gains if gain.of_control), None)
        if control is not None and control.lower_pct is not None and control.upper_pct is not None:
            value = true_gain(truth, policy, number)
            held = control.lower_pct - LEAST_PCT <= value <= control.upper_pct + LEAST_PCT
            row[policy] |= {"held": held, "printed": control.mean_pct, "true": value}
    return row


def findings(options: BenchOptions) -> dict[str, Any]:
    """Every kind of store. Where no difference is told a policy is its own control, so it is not replayed."""
    tables: dict[str, Any] = {}
    for place, (name, kind) in enumerate(KINDS.items()):
        stores = options.pick(1, 100, 400) if name.startswith("noise") else options.pick(1, 8, 40)
        draws = [times_of(kind, np.random.default_rng([place, number])) for number in range(stores)]
        with scratch() as folder:
            times = {f"w{number:04d}": of_fleet for number, (_, of_fleet) in enumerate(draws)}
            scored = scores_of_store(stored(Store.create(folder / "S"), times, began_s(3, 4, apart_s=600.0)))
        differing = [workload for workload in scored.of if scored.of[workload].repeatable]
        rows = []
        for workload in differing:
            number = int(workload[1:])
            alone = replace(scored, workloads=(workload,), of={workload: scored.of[workload]})
            fleets = MeasuredFleets(alone, [workload], locality=PENALTY)
            rows.append(judged_store(fleets, workload, draws[number][0], number))
        tables[name] = {"told_to_differ": share(len(differing), stores)}
        for policy in POLICIES:
            judged = [row[policy] for row in rows if row[policy]["held"] is not None]
            tables[name][policy] = {"better": share(sum(row[policy]["better"] for row in rows), stores)}
            if judged and not name.startswith("noise"):
                tables[name][policy] |= {
                    "held": share(sum(row["held"] for row in judged), len(judged)),
                    "printed_gain_pct": round(fmean(row["printed"] for row in judged), 2),
                    "true_gain_pct": round(fmean(row["true"] for row in judged), 2),
                }
        say(f"{name}: {tables[name]}")
    return {"gpus": GPUS, "seeds_of_a_study": SEEDS, "kinds": tables}


# -- chains ----------------------------------------------------------------------------------------------------------

CHAIN_POLICIES = ("reactive", "lead6", "lead12", "average", "test-only", "known", "p50", "p75", "p90")
PARTS = (("2023-02-01", "2023-03-01", 72), ("2023-02-01", "2023-03-01", 80), ("2023-01-01", "2023-02-01", 72))
"""Tested from, the end of the log that is read, and how many nodes the cluster has."""


def chains(options: BenchOptions) -> dict[str, Any]:
    """Chains of jobs of 1 and 8 nodes; models learn from what lies before the test."""
    log, parts = read_log(str(public_file("schedulers/mirage/ls6_a100_2022-11_2023-02.csv.gz"))), []
    for test_from, until, cluster_nodes in PARTS[: options.pick(1, 2, 3)]:
        start_s, until_s = (datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() for day in (test_from, until))
        for nodes in (1,) if options.size == "quick" else (1, 8):
            study = StudyOptions(cluster_nodes, nodes, CHAIN_POLICIES, start_s, 0.5)
            rows = [row.as_dict() for row in chain_study(log.until(until_s), options=study)]
            say(f"{test_from}, {cluster_nodes} nodes, jobs of {nodes}")
            shown_rows = [{key: round(v, 3) if isinstance(v, float) else v for key, v in row.items()} for row in rows]
            parts.append({"test_from": test_from, "cluster_nodes": cluster_nodes, "nodes": nodes, "rows": shown_rows})
    return {"jobs_of_the_log": len(log), "cost": 0.5, "parts": parts}


SECTIONS = {
    "speed": speed, "schemes": schemes, "scores": scores, "findings": findings, "chains": chains,
}  # fmt: skip

if __name__ == "__main__":
    run("replay", SECTIONS, {"large": large}, ("numpy", "polars", "scipy", "scikit-learn"))
