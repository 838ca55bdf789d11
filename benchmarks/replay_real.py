"""Whether "better" of `whorl replay` comes true on a real cluster, split by date. Prints JSON.

    python benchmarks/replay_real.py > benchmarks/results/replay_real.json

Longhorn's runs are split in two: SGEMM by its dates, the other workloads, which have one day
for most GPUs, in odd and even runs. Policies see the scores of one half. The true gain is that over itself without
scores where jobs run at the levels which the other half measured (GPUs without one: the median), as a mean over 10 new
traces. A fleet is 8 nodes of the cluster, and no node is in two fleets; each has its own trace of 60 jobs and 20 seeds.
Both ways use the same two halves, so they are not independent of each other: n counts the fleets of one way.

`promised_pct` is the mean printed gain over itself without scores, `true_pct` the mean true gain, `held` how often the
printed interval held the true gain of its own fleet, `better` how often the finding was so.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis import measurements
from whorl.analysis.placement import Scores, scores
from whorl.analysis.replay.findings import BETTER, LEAST_PCT
from whorl.analysis.replay.from_store import MeasuredFleets
from whorl.analysis.replay.setting import ReplaySetting
from whorl.analysis.replay.study import BASELINES, General
from whorl.benchmarks.intervals import LONGHORN, part
from whorl.benchmarks.machine import machine
from whorl.benchmarks.placement import PER_NODE
from whorl.benchmarks.replay_findings import (
    GPUS,
    LOCALITY,
    NEW_TRACES,
    OPTIONS,
    POLICIES,
    SEEDS,
    Floats,
    TrueFleets,
    trace,
    true_gain,
)
from whorl.benchmarks.reporting import as_json, say, share
from whorl.store import Store
from whorl.store.importing import Options, import_file

FILES = ("sgemm", "pagerank", "resnet50", "bert")


def halves(runs: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame, pl.DataFrame]]:
    """The ways to split the runs of a workload."""
    runs = runs.drop_nulls("began").sort("began").with_columns(date=pl.col("began").dt.date())
    dates = runs["date"].unique().sort().to_list()
    if len(dates) >= 8:
        late = pl.col("date") >= dates[len(dates) // 2]
        yield "dates", runs.filter(~late), runs.filter(late)
        odd = pl.col("date").is_in(dates[1::2])
        yield "alternate_dates", runs.filter(~odd), runs.filter(odd)
    else:
        runs = runs.with_columns(odd=pl.int_range(pl.len()).over("gpu") % 2 == 1)
        yield "runs", runs.filter(~pl.col("odd")), runs.filter("odd")


def levels(seen: Scores, other: Scores, workload: str) -> tuple[Floats, int]:
    """(GPUs that are seen,) the level of each in the other half, 1 where it has none; and how many have one."""
    theirs = other.of[workload]
    place = {gpu: number for number, gpu in enumerate(other.gpus)}
    found = np.array([theirs.raw[place[gpu]] if gpu in place else np.nan for gpu in seen.gpus])
    return np.where(np.isnan(found), 1.0, found), int((~np.isnan(found)).sum())


def fleets_of(nodes: list[str]) -> list[set[str]]:
    """Fleets of 8 nodes, in an order that is drawn; nodes that are left over are in none."""
    size = GPUS // PER_NODE
    order = np.random.default_rng(79).permutation(nodes).tolist()
    return [set(order[start : start + size]) for start in range(0, len(order) - size + 1, size)]


def judged(one: Store, two: Store, workload: str) -> dict[str, Any]:
    """What the replay on one half says, and what comes true on the other."""
    other = scores(two, [workload])
    nodes = sorted({node for node in scores(one, [workload]).nodes if node is not None})
    rows: dict[str, list[dict[str, Any]]] = {policy: [] for policy in POLICIES}
    told = known = gpus = 0
    for number, chosen in enumerate(fleets_of(nodes)):
        seen = scores(one, [workload], nodes=chosen)
        true, there = levels(seen, other, workload)
        told, known, gpus = told + seen.of[workload].repeatable, known + there, gpus + len(true)
        fleets = MeasuredFleets(seen, [workload], locality=LOCALITY)
        random = np.random.default_rng([number, 78])
        study = General((trace("t0", workload, random),), fleets, OPTIONS)
        setting = ReplaySetting(study, list(POLICIES), list(BASELINES), ["fifo"], BASELINES, seed=1000 * number)
        findings = {its.policy: its for its in setting.answer(seeds=SEEDS).findings}
        new = tuple(trace(f"n{place}", workload, random) for place in range(NEW_TRACES))
        truth = General(new, TrueFleets(fleets, workload, true), OPTIONS)
        for policy in POLICIES:
            control = next(gain for gain in findings[policy].gains if gain.of_control)
            assert control.lower_pct is not None
            assert control.upper_pct is not None
            value = true_gain(truth, policy, number)
            held = control.lower_pct - LEAST_PCT <= value <= control.upper_pct + LEAST_PCT
            better = findings[policy].finding == BETTER
            rows[policy].append({"better": better, "promised": control.mean_pct, "true": value, "held": held})
    n = len(rows[POLICIES[0]])
    result: dict[str, Any] = {"told_to_differ": share(told, n), "gpus": gpus, "with_a_level": known}
    for policy, own in rows.items():
        better_rows = [its["true"] for its in own if its["better"]]
        result[policy] = {
            "better": share(len(better_rows), n),
            "of_these_true_gain_above_0": sum(value > 0 for value in better_rows),
            "held": share(sum(its["held"] for its in own), n),
            "promised_pct": round(fmean(its["promised"] for its in own), 2),
            "true_pct": round(fmean(its["true"] for its in own), 2),
        }
    return result


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    result: dict[str, Any] = {
        "schema": "whorl.benchmark.replay_real/1",
        "benchmark": "replay_real",
        "machine": machine("numpy", "polars"),
        "fleet_gpus": GPUS,
        "seeds": SEEDS,
        "longhorn": {},
    }
    if not LONGHORN.is_dir():
        result["did_not_run"] = f"there is no folder {LONGHORN}"
        print(as_json(result))
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "store")
        for name in FILES:
            import_file(store, LONGHORN / f"{name}.csv.gz", Options(cluster="longhorn"))
        runs = measurements(store, run_ids=True).with_columns(pl.col("workload").cast(pl.String))
        for workload in runs["workload"].unique().sort().to_list():
            for name, *both in halves(runs.filter(pl.col("workload") == workload)):
                at = Path(folder) / f"{workload}-{name}"
                one, two = (part(store, its, at.with_suffix(f".{number}")) for number, its in enumerate(both))
                for way, seen, other in (("first to second", one, two), ("second to first", two, one)):
                    its = judged(seen, other, workload)
                    say(f"{workload}, {name}, {way}: {its}")
                    result["longhorn"][f"{workload}, {name}, {way}"] = its
    print(as_json(result))


if __name__ == "__main__":
    main()
