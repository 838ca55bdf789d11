"""How often the interval of a quote under a power cap holds what really happened. Prints JSON.

    python benchmarks/energy_quote.py > benchmarks/results/energy_quote.json
    python benchmarks/energy_quote.py --long       # four times as many simulated stores

`models`: from other workloads. Zeus's sweeps, as in `power_classes.py`: six trainings on two models of GPU, in several
settings, under several power limits. Each training is left out with all its settings, and each of its settings is
quoted as a job of `whorl energy quote` from the other five. `holds` is the share of quotes whose 95 % interval holds
the true time or energy; quotes of one training are alike, so `trainings` says for how many of six it holds in at least
nine of ten quotes. `error_pct` is the mean absolute error, beside that of the rule that others use: a cap costs no
time, and power is the cap or what it was.

`itself`: from the workload's own curve, on the same sweeps: one limit between the lowest and the highest is left out,
and predicted from the others of its sweep. `simulated`: stores that the loop of `whorl tune` fills with 14 trials, on
four simulated GPUs; the curve says what a cap of 60 % does, and runs under that cap on these GPUs and on eight others
of the model say what is true.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from whorl.analysis.energy.choices.quoting import CAPS, Ran, caps
from whorl.analysis.power_classes import METHODS, Curve, curve_of_runs, own_runs
from whorl.analysis.power_classes.caps import at
from whorl.analysis.statistics.student import quantile
from whorl.analysis.tuning.curve import CapEffect, CappedRuns, OwnCurve, own_curve
from whorl.analysis.tuning.search import TimeBound
from whorl.benchmarks.machine import machine
from whorl.benchmarks.power_classes import MODELS, zeus
from whorl.benchmarks.reporting import as_json, share
from whorl.cli.answers.measuring import measure
from whorl.jobs.tuning import TuningOptions, tune
from whorl.jobs.tuning_probe import ProbeBenchOptions, probe_bench
from whorl.store import Store

LIMIT_W = 250.0
SECONDS = 3600.0
TUNED_MODELS = ("V100", "H100")
MORE_MODELS = ("A100", "H200")
TUNED_WORKLOADS = ("gemm-fp32", "gemm-fp16", "stream-triad", "transformer", "fma-fp64", "pagerank")
SEEDS = (1, 2)


def job(curve: Curve) -> Ran:
    """A setting as a job that is always busy, of an hour under the highest limit."""
    joules = curve.load * LIMIT_W * SECONDS
    return Ran(
        "zeus", ("GPU",), 1, SECONDS, SECONDS, joules, joules, joules, 0.0, 1.0, "any", None, LIMIT_W, None, None
    )


def quotes(known: list[Curve]) -> list[dict[str, Any]]:
    """A row for each cap of each setting: what was said, and what was true, as multiples."""
    rows = []
    for family in sorted({one.family for one in known}):
        others = [one for one in known if one.family != family]
        for curve in (one for one in known if one.family == family):
            ran = job(curve)
            assert ran.energy_j is not None
            for cap, said in zip(CAPS, caps(ran, others), strict=True):
                if said.energy_j is None or said.time_s is None or cap < curve.share[0]:
                    continue
                time, power = at(curve, cap)
                rule = METHODS["limit rule"](others, curve.load, cap)
                rows.append(
                    {
                        "family": family, "cap": cap,
                        "time": (said.time_s / SECONDS, said.time_low_s, said.time_high_s, time * SECONDS, time),
                        "energy": (said.energy_j / ran.energy_j, said.low_j, said.high_j, time * power * ran.energy_j,
                                   time * power),
                        "rule": {"time": rule[0], "energy": rule[0] * rule[1]},
                    }
                )  # fmt: skip
    return rows


def summary(rows: list[dict[str, Any]], what: str) -> dict[str, Any]:
    """Of time or energy."""
    held = [row[what][1] <= row[what][3] <= row[what][2] for row in rows]
    by_family: dict[str, list[bool]] = defaultdict(list)
    for row, holds in zip(rows, held, strict=True):
        by_family[row["family"]].append(holds)
    widths = [100 * (row[what][2] - row[what][1]) / 2 / row[what][3] * row[what][4] for row in rows]
    return {
        "holds": share(sum(held), len(rows)),
        "trainings": sum(sum(one) >= 0.9 * len(one) for one in by_family.values()),
        "median_half_width_pct": round(float(np.median(widths)), 1),
        "error_pct": round(100 * float(np.mean([abs(row[what][0] / row[what][4] - 1) for row in rows])), 2),
        "error_pct_of_the_rule": round(
            100 * float(np.mean([abs(row["rule"][what] / row[what][4] - 1) for row in rows])), 2
        ),
    }


def itself(sweeps: list[Curve]) -> dict[str, Any]:
    """Of the workload's own curve: a limit is left out of a sweep and predicted from the others."""
    rows = []
    for sweep in sweeps:
        for place in range(1, len(sweep.share) - 1):
            others = np.arange(len(sweep.share)) != place
            level, time, energy = (of[others] for of in (sweep.share, sweep.time, sweep.time * sweep.power))
            curve = own_curve(CappedRuns(np.full(len(level), "gpu"), level, energy, time, np.ones(len(level))))
            assert curve is not None
            effect = curve.effect(float(sweep.share[place]))
            assert effect is not None
            rows.append(held(curve, effect, sweep.time[place], sweep.time[place] * sweep.power[place]))
    return figures(rows)


def held(curve: OwnCurve, effect: CapEffect, time: float, energy: float) -> dict[str, tuple[float, float]]:
    """Of time and energy, as multiples: the error of ln, and half of the interval."""
    reach = float(quantile(0.025, curve.freedom))
    return {
        "time": (abs(np.log(time) - effect.log_time), reach * effect.time_sd),
        "energy": (abs(np.log(energy) - effect.log_energy), reach * effect.energy_sd),
    }


def figures(rows: list[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """How many hold, how wide they are, and the mean error."""
    summaries = {}
    for figure in ("time", "energy"):
        errors, halves = np.array([row[figure] for row in rows]).T
        summaries[figure] = {
            "holds": share(int((errors <= halves).sum()), len(rows)),
            "median_half_width_pct": round(100 * float(np.median(halves)), 1),
            "widest_half_width_pct": round(100 * float(halves.max()), 1),
            "error_pct": round(100 * float(errors.mean()), 2),
        }
    return {"quotes": len(rows)} | summaries


def simulated(*, long: bool) -> dict[str, Any]:
    """Of curves of tuned workloads: a cap of 60 % on the GPUs of the store, and on others."""
    rows: dict[str, list[dict[str, tuple[float, float]]]] = {"these GPUs": [], "other GPUs": []}
    models, seeds = (TUNED_MODELS + MORE_MODELS, SEEDS) if long else (TUNED_MODELS, SEEDS[:1])
    for model, workload, seed in product(models, TUNED_WORKLOADS, seeds):
        with tempfile.TemporaryDirectory() as folder:
            options = ProbeBenchOptions(backend="simulated", model=model, gpus=4, seed=seed, suite="quick")
            store = Path(folder) / "tuned"
            tune(probe_bench(store, workload, options), TimeBound(max_slowdown=0.05), TuningOptions(seed=seed))
            runs = own_runs(Store.open(store))
            known, cap_w = curve_of_runs(runs), 0.6 * float(runs["default_w"][0])
            assert known is not None
            effect = known.effect(cap_w)
            if effect is None:
                continue
            for name, fleet in (("these GPUs", (4, seed)), ("other GPUs", (8, seed + 50))):
                for time, energy in capped(Path(folder) / name, model, workload, fleet=fleet, cap_w=cap_w):
                    rows[name].append(held(known, effect, time, energy))
    stores = len(rows["these GPUs"]) // 4
    return {"stores": stores, "workloads": TUNED_WORKLOADS, "models": models} | {
        name: figures(of) for name, of in rows.items()
    }


def capped(
    store: Path, model: str, workload: str, *, fleet: tuple[int, int], cap_w: float
) -> list[tuple[float, float]]:
    """Time and energy of each GPU under a cap, as multiples of its own without. `fleet`: GPUs and seed."""
    gpus, seed = fleet
    for limit_w in (None, cap_w):
        measure(
            store, workload, backend="simulated", model=model, gpus=gpus, seed=seed, suite="quick", power_limit=limit_w
        )
    runs = own_runs(Store.open(store)).sort("gpu", "cap_w")
    time, energy = (runs[name].to_numpy().reshape(gpus, 2) for name in ("time_s", "energy_j"))
    return list(zip(time[:, 0] / time[:, 1], energy[:, 0] / energy[:, 1], strict=True))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="more simulated stores")
    arguments = parser.parse_args()
    answer: dict[str, Any] = {"machine": machine(), "models": {}}
    for model in MODELS:
        rows = quotes(zeus(model))
        answer["models"][model] = {
            "quotes": len(rows), "of_trainings": len({row["family"] for row in rows}),
            "time": summary(rows, "time"), "energy": summary(rows, "energy"),
            "itself": itself(zeus(model)),
        }  # fmt: skip
    answer["simulated"] = simulated(long=arguments.long)
    sys.stdout.write(as_json(answer) + "\n")


if __name__ == "__main__":
    main()
