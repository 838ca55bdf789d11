"""How often `whorl replay` says "better" where GPUs do not differ, and where they do. Prints JSON.

    python benchmarks/replay_findings.py [--noise 400] [--real 40] > benchmarks/results/replay_findings.json

Many stores of each kind, each with its own fleet of 32 GPUs in 8 nodes, its own noise, its own trace (or traces) of 60
jobs (one kind: 240) and its own 20 seeds, with a locality penalty of 1.3. Shares have their n and their 95 % Wilson
interval.

`told_to_differ`: stores whose GPUs were said to differ. `better`: how often a policy was found better. `better_before`:
the same by the rule that whorl had before, a gain over both baselines alone, in the interval of the mean over seeds,
for the trace as it is. packed-nonsticky looks at no score.

Noise: where no difference is known, a policy is its own control, and "better" cannot be. So of such stores only the
first ones are replayed (`replayed` says how many in all, and `better_before` is of those), and every store that was
told to differ is. Where GPUs differ, the true gain of a policy over itself without scores is that on the fleet's true
scores, over 10 new traces: `true_gain_pct` is its mean over the stores, `printed_gain_pct` that of the printed ones,
and `held` says how often the printed interval held the true gain of its own store.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from whorl.analysis.placement import scores
from whorl.analysis.replay import Job, Options, Trace, World
from whorl.analysis.replay.findings import ALL, BETTER, LEAST_PCT
from whorl.analysis.replay.from_store import MeasuredFleets
from whorl.analysis.replay.setting import Answered, ReplaySetting
from whorl.analysis.replay.study import BASELINES, Case, General
from whorl.benchmarks.machine import machine
from whorl.benchmarks.placement import PER_NODE, stored
from whorl.benchmarks.reporting import as_json, say, share

Floats = npt.NDArray[np.float64]
GPUS, JOBS, LOCALITY, NEW_TRACES, SEEDS = 32, 60, 1.3, 10, 20
BLIND = "packed-nonsticky"
POLICIES = ("pal", "pal-sticky")
UNTOLD = 15
"""Stores without known differences that are replayed, of each kind of noise."""
OPTIONS = Options(rounds=True)


@dataclass(frozen=True)
class Kind:
    """A kind of fleet: how GPUs truly differ, how runs stray, how often each was measured."""

    says: str
    between: float = 0.0
    """Standard deviation of the GPUs' true log scores."""
    slow: tuple[tuple[int, float], ...] = ()
    """(GPU, true score)."""
    run: float = 0.02
    """Standard deviation of a run about its GPU."""
    shape: str = "normal"
    glitches: float = 0.0
    day: float = 0.0
    """Of a GPU from day to day."""
    node_day: float = 0.0
    """Of a node from day to day: all its GPUs at once."""
    runs: int = 6
    per_day: int = 1
    traces: int = 1
    jobs: int = JOBS
    """Of a trace."""
    misled: bool = False
    """Whether the runs look like true differences: most stores will be told to differ, so few are made."""

    @property
    def real(self) -> bool:
        """Whether GPUs truly differ."""
        return bool(self.between or self.slow)


DAYS: dict[str, Any] = {"run": 0.005, "runs": 12, "per_day": 4}
NOISE = {
    "normal": Kind("runs stray by 2 %, one a day on 6 days"),
    "normal_3_traces": Kind("the same, with 3 traces", traces=3),
    "heavy": Kind("runs stray as Student's t with 2 degrees of freedom does, scale 1.5 %", run=0.015, shape="heavy"),
    "skewed": Kind("runs stray to the slow side only, exponentially, by 3 % in the mean", run=0.03, shape="skewed"),
    "glitches": Kind("a tenth of the runs takes half as long again", glitches=0.1),
    "days": Kind("a GPU differs by 2 % from day to day; 4 runs on each of 3 days", day=0.02, **DAYS),
    "node_days": Kind("a node differs by 2 % from day to day; 4 runs on each of 3 days", node_day=0.02, **DAYS),
    "two_runs": Kind("runs stray by 2 %, two in all", runs=2),
    "node_one_day": Kind(
        "a node differs by 2 % from day to day, but all 4 runs are of one day",
        **{**DAYS, "runs": 4},
        node_day=0.02,
        misled=True,
    ),
}
REAL = {
    "one_2x": Kind("one GPU takes 2 times as long", slow=((5, 2.0),)),
    "one_1.4x": Kind("one GPU takes 1.4 times as long", slow=((5, 1.4),)),
    "quarter_1.2x": Kind(
        "one GPU of every node takes 1.2 times as long", slow=tuple((gpu, 1.2) for gpu in range(1, GPUS, PER_NODE))
    ),
    "node_1.3x": Kind("one node takes 1.3 times as long", slow=tuple((gpu, 1.3) for gpu in range(4, 8))),
    "differ_3": Kind("GPUs differ by 3 %", between=0.03),
    "differ_6": Kind("GPUs differ by 6 %", between=0.06),
    "differ_6_3_traces": Kind("GPUs differ by 6 %, 3 traces", between=0.06, traces=3),
    "differ_12": Kind("GPUs differ by 12 %", between=0.12),
    "differ_6_240_jobs": Kind("GPUs differ by 6 %, a trace of 240 jobs", between=0.06, jobs=240),
    "differ_12_3_traces": Kind("GPUs differ by 12 %, 3 traces", between=0.12, traces=3),
}


def drawn(kind: Kind, random: np.random.Generator) -> tuple[Floats, Floats]:
    """The true scores of a fleet (gpus,) and its measured times (gpus, runs)."""
    true = np.exp(random.normal(0.0, kind.between, GPUS)) if kind.between else np.ones(GPUS)
    for gpu, score in kind.slow:
        true[gpu] = score
    size = (GPUS, kind.runs)
    if kind.shape == "heavy":
        strayed = kind.run * random.standard_t(2.0, size)
    elif kind.shape == "skewed":
        strayed = random.exponential(kind.run, size)
    else:
        strayed = random.normal(0.0, kind.run, size)
    days = math.ceil(kind.runs / kind.per_day)
    by_day = random.normal(0.0, kind.day, (GPUS, days))
    by_day += np.repeat(random.normal(0.0, kind.node_day, (GPUS // PER_NODE, days)), PER_NODE, axis=0)
    strayed += np.repeat(by_day, kind.per_day, axis=1)[:, : kind.runs]
    strayed += np.where(random.random(size) < kind.glitches, np.log(1.5), 0.0)
    return true / np.median(true), 100.0 * true[:, None] * np.exp(np.clip(strayed, -1.0, 3.0))


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


def one_store(kind: Kind, fleets: MeasuredFleets, workload: str, true: Floats, number: int) -> dict[str, Any]:
    """What is said of each policy, and what is true."""
    random = np.random.default_rng([number, 77])
    traces = tuple(trace(f"t{place}", workload, random, kind.jobs) for place in range(kind.traces))
    study = General(traces, fleets, OPTIONS)
    policies = list(POLICIES) if kind.real else [BLIND, *POLICIES]
    setting = ReplaySetting(study, policies, list(BASELINES), ["fifo"], BASELINES, seed=1000 * number)
    found = setting.answer(seeds=SEEDS)
    name = ALL if kind.traces > 1 else "t0"
    row: dict[str, Any] = {}
    for policy in policies:
        one = next(one for one in found.findings if (one.trace, one.policy) == (name, policy))
        its: dict[str, Any] = {"better": one.finding == BETTER, "before": before(found, policy)}
        row[policy] = its
        if kind.real:
            control = next(gain for gain in one.gains if gain.of_control)
            assert control.lower_pct is not None
            assert control.upper_pct is not None
            new = tuple(trace(f"n{place}", workload, random, kind.jobs) for place in range(NEW_TRACES))
            value = true_gain(General(new, TrueFleets(fleets, workload, true), OPTIONS), policy, number)
            # What rounds to 0.0 % is 0.
            held = control.lower_pct - LEAST_PCT <= value <= control.upper_pct + LEAST_PCT
            its |= {"printed": control.mean_pct, "true": value, "held": held}
    return row


def before(found: Answered, policy: str) -> bool:
    """Whether the policy gains measurably over both baselines, on the first trace as it is."""
    own = [
        gain
        for gain in found.gains
        if (gain.trace, gain.policy, gain.figure) == ("t0", policy, "avg_jct_s") and gain.against in BASELINES
    ]
    return all(gain.measurable and gain.mean_pct > 0 for gain in own)


def true_gain(study: General, policy: str, number: int) -> float:
    """In %, of the policy over itself without scores, over new traces in other orders of the nodes."""
    logs = []
    for place in range(NEW_TRACES):
        case = Case(place, policy, "fifo", 10**6 + 1000 * number + place)
        own, control = (study.run(one).metrics.avg_jct_s for one in (case, replace(case, flat=True)))
        logs.append(math.log(own / control))
    return -100 * math.expm1(fmean(logs))


def rates(kind: Kind, place: int, stores: int) -> dict[str, Any]:
    """Over many stores of a kind."""
    trues, times = {}, {}
    for number in range(stores):
        name = f"w{number:04d}"
        trues[name], times[name] = drawn(kind, np.random.default_rng([kind.real, place, number]))
    with tempfile.TemporaryDirectory() as folder:
        found = scores(stored(Path(folder), times, kind.per_day))
    told = {name for name in times if found.of[name].repeatable}
    untold = [name for name in times if name not in told][: stores if kind.real else UNTOLD]
    rows = {}
    for number, name in enumerate(times):
        if name in told or name in untold:
            own = replace(found, workloads=(name,), of={name: found.of[name]})
            rows[name] = one_store(kind, MeasuredFleets(own, [name], locality=LOCALITY), name, trues[name], number)
    first = rows if kind.real or kind.misled else untold
    result: dict[str, Any] = {
        "says": kind.says,
        "traces": kind.traces,
        "jobs": kind.jobs,
        "told_to_differ": share(len(told), stores),
        "replayed": len(rows),
    }
    for policy in next(iter(rows.values())):
        own_rows = [row[policy] for row in rows.values()]
        its: dict[str, Any] = {
            "better": share(sum(one["better"] for one in own_rows), stores),
            "better_before": share(sum(rows[name][policy]["before"] for name in first), len(first)),
        }
        if kind.real:
            its |= {
                "held": share(sum(one["held"] for one in own_rows), len(own_rows)),
                "true_gain_pct": round(fmean(one["true"] for one in own_rows), 2),
                "printed_gain_pct": round(fmean(one["printed"] for one in own_rows), 2),
            }
        result[policy] = its
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=int, default=400, help="stores of each kind of noise")
    parser.add_argument("--real", type=int, default=40, help="stores of each kind of differences")
    parser.add_argument("--only", help="one kind")
    given = parser.parse_args()
    result: dict[str, Any] = {
        "schema": "whorl.benchmark.replay_findings/1",
        "benchmark": "replay_findings",
        "machine": machine("numpy", "polars"),
        "gpus": GPUS,
        "seeds": SEEDS,
    }
    for part, kinds in (("noise", NOISE), ("real", REAL)):
        result[part] = {}
        for place, (name, kind) in enumerate(kinds.items()):
            if given.only in (None, name):
                few = kind.real or kind.misled
                result[part][name] = rates(kind, place, given.real if few else given.noise)
                say(f"{name}: {result[part][name]}")
    result["load_after"] = [round(load, 2) for load in os.getloadavg()]
    print(as_json(result))


if __name__ == "__main__":
    main()
