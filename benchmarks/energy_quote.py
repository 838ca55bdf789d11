"""How often the interval of a quote holds what really happened, and how wide it is. Prints JSON.

    python benchmarks/energy_quote.py > benchmarks/results/energy_quote.json
    python benchmarks/energy_quote.py --long       # four times as many simulated stores

`trainings`: a cap on work that never ran under one. Zeus's sweeps: six trainings on two models of GPU, in several
settings, under several power limits. Each training is left out with all its settings; the model of caps (`CapModel`) is
fitted on the other five, and each setting of it is quoted. Quotes of one training are alike, so `trainings_held` says
for how many of six the interval holds in at least nine of ten quotes. `error_pct` is the mean absolute error, beside
that of the rule that others use: a cap costs no time, and power is the cap or what it was. `published` is the fit over
all six, which whorl ships.

`itself`: from the workload's own curve, on the same sweeps: one limit between the lowest and the highest is left out,
and predicted from the others of its sweep.

`simulated`: `quote_workload` on stores of four simulated GPUs, against eight GPUs of the model that the store does not
have, each held out alone and all eight as one job; and by name on the store's GPUs, against further runs of them. The
store knows of the workload: a curve (`whorl tune`, 14 trials); runs at the default limit; its class alone. In the
last two, the five other workloads ran under three limits.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from whorl.analysis.energy.options import CAPS, CapModel, Quote, cap_points
from whorl.analysis.energy.quote import FutureJob, quote_workload
from whorl.analysis.power_classes import Curve, curves, own_runs
from whorl.analysis.statistics.student import quantile
from whorl.analysis.tuning.curve import CappedRuns, own_curve
from whorl.analysis.tuning.search import TimeBound
from whorl.benchmarks.machine import machine
from whorl.benchmarks.reporting import as_json, share
from whorl.cli.answers.measuring import measure
from whorl.jobs.tuning import TuningOptions, tune
from whorl.jobs.tuning_probe import ProbeBenchOptions, probe_bench
from whorl.store import Store

POWER = Path(__file__).resolve().parents[2] / "shared" / "data" / "power"
WORKLOADS = {"gemm-fp32": "compute", "gemm-fp16": "compute", "fma-fp64": "compute", "transformer": "both",
             "stream-triad": "memory", "pagerank": "memory"}  # fmt: skip
"""With the class that a user would name."""
LIMITS_W = {"V100": 300.0, "H100": 700.0, "A100": 400.0, "H200": 700.0}
SHARES = (1.0, 0.8, 0.6)
STORED, HELD_OUT = 4, 8
SECONDS = 3600.0

Row = dict[str, tuple[float, float]]
"""Of `time` and `energy`: the error of ln, and half of the interval, on the side of the error."""


def zeus(model: str) -> list[Curve]:
    """The curves of a sweep: a family is data set and network, a setting adds batch size and optimizer."""
    table = pl.read_csv(POWER / f"zeus_power_limits_{model}.csv.gz")
    family = pl.concat_str("dataset", "network", separator="/")
    return curves(
        table.select(
            family.alias("family"),
            pl.concat_str(family, "batch_size", "optimizer", separator="/").alias("setting"),
            pl.col("power_limit").cast(pl.Float64).alias("cap"),
            pl.col("time_per_epoch").alias("time"),
            pl.col("average_power").alias("power_w"),
        )
    )


def fitted(sweeps: list[Curve]) -> CapModel:
    """The model of caps of some trainings, each of which counts once."""
    points = defaultdict(list)
    for curve in sweeps:
        points[curve.family].append(cap_points(curve))
    means = np.array(
        [joined.mean(axis=1) for joined in (np.concatenate(parts, axis=1) for parts in points.values()) if joined.size]
    )
    (slow, below), (slow_sd, below_sd) = means.mean(axis=0), means.std(axis=0, ddof=1)
    return CapModel(float(slow), float(slow_sd), float(below), float(below_sd), len(means))


def trainings(sweeps: dict[str, list[Curve]]) -> dict[str, Any]:
    """Each training left out, on each model of GPU."""
    all_curves = [curve for of_model in sweeps.values() for curve in of_model]
    answer: dict[str, Any] = {"published": vars(fitted(all_curves))}
    for model, of_model in sweeps.items():
        rows, rule, by_training = [], [], defaultdict(list)
        for family in sorted({curve.family for curve in of_model}):
            fit = fitted([curve for curve in all_curves if curve.family != family])
            for curve, cap in product([curve for curve in of_model if curve.family == family], CAPS):
                if cap < curve.share[0]:
                    continue
                time, power = (float(np.interp(cap, curve.share, values)) for values in (curve.time, curve.power))
                multiple = fit.multiple(curve.load, cap)
                row = {"time": (abs(np.log(time) - multiple.time), multiple.time_half),
                       "energy": (abs(np.log(time * power) - multiple.energy), multiple.energy_half)}  # fmt: skip
                rows.append(row)
                by_training[family].append([error <= half for error, half in row.values()])
                rule.append([abs(np.log(time)), abs(np.log(min(1.0, cap / curve.load) / time / power))])
        answer[model] = figures(rows)
        for place, figure in enumerate(("time", "energy")):
            held = [np.mean([holds[place] for holds in rows_of]) >= 0.9 for rows_of in by_training.values()]
            answer[model][figure]["trainings_held"] = int(sum(held))
            answer[model][figure]["error_pct_of_the_rule"] = round(100 * float(np.mean(rule, axis=0)[place]), 2)
    return answer


def itself(sweeps: list[Curve]) -> dict[str, Any]:
    """Of the workload's own curve: a limit is left out of a sweep and predicted from the others."""
    rows = []
    for sweep in sweeps:
        for place in range(1, len(sweep.share) - 1):
            others = np.arange(len(sweep.share)) != place
            level, time, energy = (values[others] for values in (sweep.share, sweep.time, sweep.time * sweep.power))
            curve = own_curve(CappedRuns(np.full(len(level), "gpu"), level, energy, time, np.ones(len(level))))
            assert curve is not None
            effect = curve.effect(float(sweep.share[place]))
            assert effect is not None
            reach = float(quantile(0.025, curve.freedom))
            time_x, energy_x = np.log(sweep.time[place]), np.log(sweep.time[place] * sweep.power[place])
            rows.append({"time": (abs(time_x - effect.log_time), reach * effect.time_sd),
                         "energy": (abs(energy_x - effect.log_energy), reach * effect.energy_sd)})  # fmt: skip
    return figures(rows)


def figures(rows: list[Row]) -> dict[str, Any]:
    """How many intervals hold, how wide they are, and the mean error."""
    answer: dict[str, Any] = {"quotes": len(rows)}
    for figure in ("time", "energy"):
        errors, halves = np.array([row[figure] for row in rows]).T
        answer[figure] = {
            "holds": share(int((errors <= halves).sum()), len(rows)),
            "median_half_width_pct": round(100 * float(np.median(halves)), 1),
            "widest_half_width_pct": round(100 * float(halves.max()), 1),
            "error_pct": round(100 * float(errors.mean()), 2),
        }
    return answer


# -- simulated stores -----------------------------------------------------------------------------------------------


def run(store: Path, model: str, workload: str, cap: float, fleet: tuple[int, int]) -> None:
    """Measure a workload on a simulated fleet (GPUs, seed) under a cap, a share of the limit."""
    limit_w = None if cap == 1 else cap * LIMITS_W[model]
    measure(store, workload, backend="simulated", model=model, gpus=fleet[0], seed=fleet[1], suite="quick",
            power_limit=limit_w)  # fmt: skip


def simulated(*, long: bool) -> dict[str, Any]:
    """By what the store knows of the workload, and by cap."""
    models, seeds = (tuple(LIMITS_W), (1, 2)) if long else (("V100", "H100"), (1,))
    rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for model, seed, workload in product(models, seeds, WORKLOADS):
        with tempfile.TemporaryDirectory() as folder:
            stores = known_stores(Path(folder), model, workload, seed)
            truth = measured(Path(folder) / "truth", model, workload, (HELD_OUT, seed + 50))
            again = measured(Path(folder) / "again", model, workload, (STORED, seed))
            for (knowledge, (store, name)), cap in product(stores.items(), SHARES):
                cap_text = None if cap == 1 else f"{100 * cap:.0f}%"
                one, eight = (
                    quote_workload(Store.open(store), FutureJob(name, gpus=gpus, cap=cap_text, time_s=SECONDS))
                    for gpus in (1, HELD_OUT)
                )
                if knowledge != "class":
                    gpus = Store.open(store).sql("select gpu from gpus_now order by gpu").to_pylist()
                    for row, *of in zip(gpus, *again[cap], strict=True):
                        future = FutureJob(name, gpus=[row["gpu"]], cap=cap_text, time_s=SECONDS)
                        quote = quote_workload(Store.open(store), future)
                        rows[f"{knowledge}, GPUs of the store", f"cap {100 * cap:.0f} %"].append(compared(quote, *of))
                time_s, energy_j = truth[cap]
                where = f"cap {100 * cap:.0f} %"
                rows[knowledge, where] += [compared(one, *of) for of in zip(time_s, energy_j, strict=True)]
                rows[knowledge, f"{where}, {HELD_OUT} GPUs"].append(compared(eight, time_s.max(), energy_j.sum()))
    answer: dict[str, Any] = {"workloads": tuple(WORKLOADS), "models": models, "seeds": seeds}
    for (knowledge, where), of in rows.items():
        answer.setdefault(knowledge, {})[where] = figures(of)
    return answer


def known_stores(folder: Path, model: str, workload: str, seed: int) -> dict[str, tuple[Path, str]]:
    """The stores, and what is asked of each: the workload, or its class."""
    of_class, runs, tuned = folder / "class", folder / "runs", folder / "tuned"
    for other, cap in product((name for name in WORKLOADS if name != workload), SHARES):
        run(of_class, model, other, cap, (STORED, seed))
    shutil.copytree(of_class, runs)
    run(runs, model, workload, 1.0, (STORED, seed))
    options = ProbeBenchOptions(backend="simulated", model=model, gpus=STORED, seed=seed, suite="quick")
    tune(probe_bench(tuned, workload, options), TimeBound(max_slowdown=0.05), TuningOptions(seed=seed))
    return {"curve": (tuned, workload), "runs": (runs, workload), "class": (of_class, WORKLOADS[workload])}


def measured(
    store: Path, model: str, workload: str, fleet: tuple[int, int]
) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """By cap, seconds and joules (GPUs,) of GPUs of the model for what takes `SECONDS` on their median at the default
    limit."""
    for cap in SHARES:
        run(store, model, workload, cap, fleet)
    runs = (
        own_runs(Store.open(store), workload=workload)
        .group_by("gpu", "limit_w")
        .agg(pl.col("time_s", "energy_j").mean())
    )
    runs = runs.sort("limit_w", "gpu", descending=[True, False])
    time_s, energy_j = (runs[name].to_numpy().reshape(len(SHARES), fleet[0]) for name in ("time_s", "energy_j"))
    scale = SECONDS / float(np.median(time_s[0]))
    return {cap: (scale * time_s[place], scale * energy_j[place]) for place, cap in enumerate(SHARES)}


def compared(quote: Quote, time_s: float, energy_j: float) -> Row:
    """The error of a quote, and half of its interval, on the side of the truth."""
    row = {}
    for figure, estimate, truth in (("time", quote.s, time_s), ("energy", quote.j, energy_j)):
        assert estimate is not None
        end = estimate.high if truth > estimate.value else estimate.low
        row[figure] = (abs(np.log(truth / estimate.value)), abs(np.log(max(end, 1e-9) / estimate.value)))
    return row


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="more simulated stores")
    arguments = parser.parse_args()
    sweeps = {model: zeus(model) for model in ("v100", "rtx6000")}
    answer = {
        "machine": machine(), "trainings": trainings(sweeps),
        "itself": {model: itself(of_model) for model, of_model in sweeps.items()},
        "simulated": simulated(long=arguments.long),
    }  # fmt: skip
    sys.stdout.write(as_json(answer) + "\n")


if __name__ == "__main__":
    main()
