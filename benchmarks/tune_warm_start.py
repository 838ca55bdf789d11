"""What a sweep of the same work on another model is worth at the start of a search; a section of `tune.py`.

For each training that was measured on two models of GPU: a search over batch and power limit on one of them, with and
without the other's sweep as its prior. Regret: true energy of the answer over the least energy within the bound.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from whorl.analysis.tuning.search import Prior, Search, Trial
from whorl.benchmarks.tune_tasks import TuningTask, sweeps
from whorl.jobs.tuning_warm_start import warm_start

if TYPE_CHECKING:
    from whorl.benchmarks.tune import TuneOptions

BUDGETS = (2, 4, 6, 8)
NOISE = 0.01


def pairs(options: TuneOptions) -> list[tuple[TuningTask, TuningTask]]:
    """Tasks (searched, started from) of the same training in two files."""
    power = options.data / "power"
    files = [power / f"zeus_power_limits_{model}.csv.gz" for model in ("v100", "rtx6000")]
    tasks = list(sweeps([*files, *options.sweeps]))
    return [
        (target, source)
        for target in tasks
        for source in tasks
        if target.name != source.name and target.name.split(" ", 1)[1] == source.name.split(" ", 1)[1]
    ]


def prior_of(target: TuningTask, source: TuningTask) -> Prior:
    """The prior of a search, from all settings that the other model's sweep has."""
    names = [knob.name for knob in source.knobs]
    settings = [dict(zip(names, values, strict=True)) for values in product(*(knob.values for knob in source.knobs))]
    trials = map(Trial, settings, source.energy_j.ravel().tolist(), source.time_s.ravel().tolist())
    return warm_start(target.knobs, [trial for trial in trials if trial.energy_j and np.isfinite(trial.energy_j)])


def searched(task: TuningTask, prior: Prior | None, seed: int) -> tuple[list[float], list[bool], float]:
    """Of one search: the regret at each of `BUDGETS`, %, whether the answer holds the bound, and the share of trials
    that are more than 0.5 % over it."""
    search, random = Search(task.knobs, task.bound, noise=NOISE, seed=seed, prior=prior), np.random.default_rng(seed)
    regrets, held, over = [], [], 0
    for trial in range(1, BUDGETS[-1] + 1):
        setting = search.suggest()
        if setting is not None:
            place = task.index(setting)
            energy, time = (
                float(of[place]) * np.exp(NOISE * random.standard_normal()) for of in (task.energy_j, task.time_s)
            )
            over += task.time_s[place] > 1.005 * task.bound_s
            search.tell(setting, *((None, None) if np.isnan(energy) else (energy, time)))
        if trial in BUDGETS:
            answer = task.index(search.answer())
            regrets.append(100 * (float(task.energy_j[answer]) / task.least_j - 1))
            held.append(bool(task.time_s[answer] <= task.bound_s))
    return regrets, held, over / BUDGETS[-1]


def section(options: TuneOptions) -> dict[str, Any]:
    """Median regrets over all pairs and seeds, by budget."""
    seeds = range(40 if options.long else 20)
    both = pairs(options)
    priors = {"without": lambda target, source: None, "warm start": prior_of}  # noqa: ARG005
    results: dict[str, Any] = {"pairs": len(both), "seeds": len(seeds), "budgets": list(BUDGETS)}
    for name, make in priors.items():
        runs = [searched(target, make(target, source), seed) for target, source in both for seed in seeds]
        regrets, held, over = (np.array(column) for column in zip(*runs, strict=True))
        results[name] = {
            "median_regret_pct": np.median(regrets, axis=0).round(1).tolist(),
            "answers_hold_pct": (100 * held.mean(axis=0)).round(1).tolist(),
            "trials_over_pct": round(100 * float(over.mean()), 1),
        }
    return results
