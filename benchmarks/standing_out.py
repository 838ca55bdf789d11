"""How often what stands out of a campaign is what was planted, and how often it is not.

    python benchmarks/standing_out.py > benchmarks/results/standing_out.json

Fleets of simulated GPUs run a suite of probes; `analysis.standing_out` names GPUs without knowing what was planted;
the two are compared here. Half the fleets have faults of every kind, half have none. Recall is by kind: the share of
the faulty GPUs that were named, and the share that were also taken for what they have; with 95 % Wilson intervals.
False alarms are healthy GPUs that were named. The fleets and the faults are whorl's own: this says how the detector
does on the faults that it was made for, at the sizes they are planted with, and nothing about other ones.

How small a slowdown is still found is another question: in the campaigns of the healthy fleets the times of one probe
are made longer by a few per cent on some GPUs, and the share of these that is named is `sensitivity`.
"""

from __future__ import annotations

import argparse
import math
import resource
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.planted import LOOKS_LIKE
from whorl.analysis.probing import Probed, probed
from whorl.analysis.standing_out import ERROR_RATE, RELEVANT_PCT, judge
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, say
from whorl.probes import catalogue
from whorl.probes.campaign import Plan
from whorl.probes.conditions import Asked
from whorl.probes.effort import EFFORTS
from whorl.probes.simulated import run_simulated
from whorl.simulation.faults import KINDS
from whorl.simulation.fleet import Fleet
from whorl.simulation.models import find_model
from whorl.store import Store

SLOWED = (1.02, 1.03, 1.05, 1.07, 1.1, 1.15)
"""How many times as long the times are made, one after another ..."""
SLOWED_PROBES = ("gemm-fp32", "stream-triad")
SLOWED_GPUS = 5
"""... of this many GPUs at once."""


def one(model: str, gpus: int, seed: int, suite: str, each: int) -> dict[str, Any]:
    """What was planted in a fleet and what was found: counters by kind."""
    fleet = Fleet.draw(find_model(model), gpus, seed, faults=each * len(KINDS), kinds=KINDS if each else ())
    plan = Plan(catalogue.suite(suite), Asked(EFFORTS[suite]), "evaluated", "busy")
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "store")
        report = run_simulated(store, fleet, plan)
        campaign = probed(store)
        judged = judge(campaign, store)
    found = {one.gpu: one for one in judged.found}
    ended_ns = report.ended_ns or 0
    there = [one for one in report.planted if one.began_ns is None or one.began_ns < ended_ns]
    named = [one for one in there if one.uuid in found]
    ours = {one.uuid for one in report.planted}
    return {
        "seconds": (ended_ns - (report.began_ns or 0)) / 1e9,
        "planted": Counter(one.kind for one in report.planted),
        "there": Counter(one.kind for one in there),
        "named": Counter(one.kind for one in named),
        "right": Counter(one.kind for one in named if found[one.uuid].cause == LOOKS_LIKE[one.kind]),
        "taken_for": Counter((one.kind, found[one.uuid].cause) for one in named),
        "false": Counter(one.cause for gpu, one in found.items() if gpu not in ours),
        "false_by_inference": sum(bool(one.deviations) for gpu, one in found.items() if gpu not in ours),
        "looks": judged.looks,
        "slowed": slowed(campaign, seed) if not each else Counter(),
    }


def slowed(campaign: Probed, seed: int) -> Counter[tuple[str, float, bool]]:
    """(probe, factor, whether it was named): how many GPUs, of those whose times were made longer."""
    counts: Counter[tuple[str, float, bool]] = Counter()
    random = np.random.default_rng(seed)
    for probe in SLOWED_PROBES:
        for factor in SLOWED:
            some = random.choice(campaign.gpus["gpu"].to_numpy(), SLOWED_GPUS, replace=False).tolist()
            chosen = pl.col("gpu").is_in(some) & (pl.col("workload") == probe)
            longer = [
                (pl.col(name) * pl.when(chosen).then(factor).otherwise(1.0)).alias(name)
                for name in ("value", "low", "high")
            ]
            named = {one.gpu for one in judge(replace(campaign, runs=campaign.runs.with_columns(longer))).found}
            counts.update((probe, factor, gpu in named) for gpu in some)
    return counts


def share(hits: int, n: int) -> dict[str, Any]:
    """A share with its n and its 95 % Wilson interval."""
    if not n:
        return {"n": 0, "share": None, "interval": None}
    z, p = 1.96, hits / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    bounds = [max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))]
    return {"n": n, "hits": hits, "share": round(p, 4), "interval": [round(bound, 4) for bound in bounds]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fleets", type=int, default=20, help="with faults, and as many without")
    parser.add_argument("--gpus", type=int, default=256, help="in a fleet")
    parser.add_argument("--model", default="V100")
    parser.add_argument("--suite", default="quick")
    parser.add_argument("--each", type=int, default=2, help="faults of each kind in a faulty fleet")
    given = parser.parse_args()
    start = time.perf_counter()
    sums: dict[str, Counter[Any]] = {name: Counter() for name in ("planted", "there", "named", "right", "taken_for")}
    false: dict[str, list[int]] = {"faulty": [], "healthy": []}
    causes: Counter[str] = Counter()
    longer: Counter[tuple[str, float, bool]] = Counter()
    looks, seconds = 0, 0.0
    for kind, each in (("faulty", given.each), ("healthy", 0)):
        for number in range(given.fleets):
            # Seeds that no other benchmark and no test was tuned with.
            got = one(given.model, given.gpus, 5000 + number + (1000 if each == 0 else 0), given.suite, each)
            for name, counter in sums.items():
                counter.update(got[name])
            false[kind].append(sum(got["false"].values()))
            causes.update(got["false"])
            longer.update(got["slowed"])
            looks, seconds = got["looks"], got["seconds"]
            say(f"{kind} fleet {number + 1} of {given.fleets}")
    result = {
        "benchmark": "standing_out",
        "machine": machine("numpy", "polars"),
        "model": given.model,
        "gpus": given.gpus,
        "suite": given.suite,
        "fleets": {"faulty": given.fleets, "healthy": given.fleets},
        "faults_of_each_kind": given.each,
        "error_rate": ERROR_RATE,
        "relevant_pct": RELEVANT_PCT,
        "comparisons_per_fleet": looks,
        "simulated_s_per_fleet": round(seconds, 1),
        "recall": {
            kind: {
                "named": share(sums["named"][kind], sums["there"][kind]),
                "named_and_taken_for_what_it_is": share(sums["right"][kind], sums["there"][kind]),
                "not_yet_there_at_the_end": sums["planted"][kind] - sums["there"][kind],
                "taken_for": {cause: n for (of, cause), n in sums["taken_for"].items() if of == kind},
            }
            for kind in KINDS
        },
        "false_alarms": {
            kind: {
                "healthy_gpus_named": sum(counts),
                "fleets_with_any": share(sum(count > 0 for count in counts), len(counts)),
            }
            for kind, counts in false.items()
        },
        "false_alarms_taken_for": dict(causes),
        "sensitivity": {
            probe: {
                f"{100 * (factor - 1):.0f} % slower": share(
                    longer[probe, factor, True], longer[probe, factor, True] + longer[probe, factor, False]
                )
                for factor in SLOWED
            }
            for probe in SLOWED_PROBES
        },
        "wall_s": round(time.perf_counter() - start, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(as_json(result))


if __name__ == "__main__":
    main()
