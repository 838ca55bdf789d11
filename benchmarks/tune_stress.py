"""The search for the hardest kernel against random settings and scikit-learn's forest, part by part. Prints JSON.

    python -m benchmarks.tune_stress                        # the public kernels and the made surface, 34 seeds
    python -m benchmarks.tune_stress --space FILE FILE      # other kernels: columns of knobs, time_ms last; .gz or not

A kernel's file has a row for each setting that compiles; an empty time is a kernel that failed when it ran. What is in
no row of it does not compile: such a trial fails, or is known beforehand (`fits`) and not tried. A setting is worth
the best time of the file over its time; the default is the setting of median time. These kernels have no special
values, so that `direct` already is the search without projection and buckets.

The made surface has 24 knobs of 32 values, and the mean of four of them is its value (most 1). Six knobs have a special
value: for two it is better than all other values, for one it is worse than most, and three have no effect. The fourth
effective knob has none. Which knobs, and where their peaks lie, is drawn anew for each seed; the default is the middle.

`value` is the mean over seeds of the best value after so many trials, with its standard error; `ahead` is the mean
difference to `against` of the same seed, with its standard error. `failed` is the share of trials that failed.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from whorl.analysis.tuning.process import FloatArray, Process
from whorl.analysis.tuning.search import Setting
from whorl.analysis.tuning.stress import StressKnob, StressOptions, StressSearch
from whorl.benchmarks.reporting import as_json, say

if TYPE_CHECKING:
    from whorl.benchmarks.tune import TuneOptions

PUBLIC_KERNELS = ("hub_gemm_RTX_3090.csv.gz", "hub_convolution_A100.csv.gz", "hub_convolution_A4000.csv.gz")
SEEDS, LONG_SEEDS = 34, 100
RANDOM = StressOptions(special_chance=None, random_first=1000)
DIRECT = StressOptions(special_chance=None)


class SklearnForest:
    """The named alternative: scikit-learn's random forest of 24 trees."""

    def __init__(self, seed: int) -> None:
        self._forest = RandomForestRegressor(24, random_state=seed)

    def fit(self, points: FloatArray, values: FloatArray) -> None:
        self._forest.fit(points, values)

    def predict(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        trees = np.array([tree.predict(points) for tree in self._forest.estimators_])
        return trees.mean(axis=0), trees.std(axis=0)


def process(_seed: int) -> Process:
    """The process of `whorl tune`: from 7 knobs on all axes share one length."""
    return Process()


@dataclass(frozen=True)
class Surface:
    """What is searched: knobs, the value of a setting (None: it fails), and what is known to fit."""

    knobs: Sequence[StressKnob]
    value: Callable[[Setting], float | None]
    fits: Callable[[Setting], bool] = lambda _: True


@dataclass(frozen=True)
class Ablation:
    """The methods to compare, at which numbers of trials, from how many seeds, and whom they should beat."""

    methods: Mapping[str, StressOptions]
    trials: tuple[int, ...]
    seeds: int
    against: str


def kernel_methods(knobs: int) -> dict[str, StressOptions]:
    """The ablation on a kernel of so many knobs: tune.md's 6 axes for 10 knobs, in proportion."""
    axes = round(0.6 * knobs)
    return {
        "random": RANDOM,
        "direct": DIRECT,
        "projection": replace(DIRECT, axes=axes),
        "buckets": replace(DIRECT, buckets=8),
        "all": replace(DIRECT, axes=axes, buckets=8),
        "direct, scikit-learn": replace(DIRECT, surrogate=SklearnForest),
        "direct, process": replace(DIRECT, surrogate=process),
    }


MADE_METHODS = {
    "random": RANDOM,
    "direct": DIRECT,
    "special": StressOptions(),
    "special at 0.3": StressOptions(special_chance=0.3),
    "projection": replace(DIRECT, axes=16),
    "buckets": replace(DIRECT, buckets=8),
    "special and buckets": StressOptions(buckets=8),
    "all": StressOptions(axes=16, buckets=8),
    "special, scikit-learn": StressOptions(surrogate=SklearnForest),
    "special, process": StressOptions(surrogate=process),
}


def kernel(path: Path, *, fits_known: bool) -> Surface:
    """The measured settings of a kernel; `fits_known`: whether the search knows which settings have a row."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as lines:
        header, *rows = list(csv.reader(lines)) or [["nothing"]]
    names = header[:-1]
    times = {tuple(map(float, row[:-1])): float(row[-1]) if row[-1] else None for row in rows if row}
    ranked = sorted((time_ms, setting) for setting, time_ms in times.items() if time_ms is not None)
    if header[-1] != "time_ms" or not ranked:
        raise SystemExit(f"{path}: the last column must be time_ms, and at least one row must have a time")
    best_ms, median = ranked[0][0], ranked[len(ranked) // 2][1]

    def place(setting: Setting) -> tuple[float, ...]:
        return tuple(setting[name] for name in names)

    def value(setting: Setting) -> float | None:
        time_ms = times.get(place(setting))
        return None if time_ms is None else best_ms / time_ms

    knobs = [StressKnob(name, tuple(sorted({row[i] for row in times})), median[i]) for i, name in enumerate(names)]
    return Surface(knobs, value, lambda setting: place(setting) in times or not fits_known)


def made_surface(seed: int) -> Surface:
    """The surface of 24 knobs that the module describes."""
    random = np.random.default_rng([2026, seed])
    with_special, without = np.split(random.permutation(24), [6])
    better, worse, plain = with_special[:2], with_special[2], without[0]
    peaks = dict(zip([*better, worse, plain], random.uniform(0.2, 1, 4), strict=True))
    names = [f"knob{i}" for i in range(24)]
    grid = tuple(float(i) for i in range(32))
    knobs = [StressKnob(name, grid, 16.0, 0.0 if i in with_special else None) for i, name in enumerate(names)]

    def value(setting: Setting) -> float:
        total = 0.0
        for i, peak in peaks.items():
            place = setting[names[i]]
            bump = math.exp(-(((place / 31 - peak) / 0.3) ** 2))
            if i in better:
                total += 1.0 if place == 0 else 0.7 * bump
            elif i == worse:
                total += 0.2 if place == 0 else bump
            else:
                total += bump
        return total / 4

    return Surface(knobs, value)


def ablation(surface: Callable[[int], Surface], plan: Ablation) -> list[dict[str, Any]]:
    """A row for each method; `surface` gives what the search of a seed is over."""
    reached: dict[str, FloatArray] = {}
    rows = []
    for name, options in plan.methods.items():
        started = time.process_time()
        failed = 0
        best = np.zeros((plan.seeds, max(plan.trials)))
        for seed in range(plan.seeds):
            over = surface(seed)
            search = StressSearch(over.knobs, fits=over.fits, options=options, seed=seed)
            for trial in range(max(plan.trials)):
                setting = search.suggest()
                value = over.value(setting)
                search.tell(setting, value)
                failed += value is None
                best[seed, trial] = search.best.value if search.best and search.best.value is not None else 0
        reached[name] = best
        cpu_ms = 1000 * (time.process_time() - started) / best.size
        row: dict[str, Any] = {"method": name, "seeds": plan.seeds, "failed": round(failed / best.size, 3)}
        row["cpu_ms_a_trial"] = round(cpu_ms, 1)
        for trials in plan.trials:
            row[f"value_{trials}"] = mean_and_error(best[:, trials - 1])
            if plan.against in reached and name != plan.against:
                ahead = best[:, trials - 1] - reached[plan.against][:, trials - 1]
                row[f"ahead_{trials}"] = mean_and_error(ahead) | {"against": plan.against}
        rows.append(row)
        values = (f"@{trials} {row[f'value_{trials}']['mean']:.3f}" for trials in plan.trials)
        errors = (f"± {row[f'value_{trials}']['standard_error']:.3f}" for trials in plan.trials)
        say(f"  {name:22}" + "  ".join(f"{value} {error}" for value, error in zip(values, errors, strict=True)))
    return rows


def mean_and_error(values: FloatArray) -> dict[str, float]:
    """The mean and its standard error."""
    error = values.std(ddof=1) / math.sqrt(len(values))
    return {"mean": round(float(values.mean()), 4), "standard_error": round(float(error), 4)}


def kernel_ablations(path: Path, seeds: int) -> dict[str, Any]:
    """The ablation on a kernel, without and with knowing what fits."""
    tables = {}
    for name, fits_known in (("fits_unknown", False), ("fits_known", True)):
        say(f"{path.name}, {name.replace('_', ' ')}, {seeds} seeds")
        surface = kernel(path, fits_known=fits_known)
        plan = Ablation(kernel_methods(len(surface.knobs)), (15, 30), seeds, against="random")

        def same(_seed: int, surface: Surface = surface) -> Surface:
            return surface

        tables[name] = ablation(same, plan)
    return {"knobs": len(surface.knobs), **tables}


def section(options: TuneOptions) -> dict[str, Any]:
    """The section `stress` of `benchmarks/tune.py`."""
    paths = [options.data / "tune" / name for name in PUBLIC_KERNELS]
    return stress(paths, LONG_SEEDS if options.long else SEEDS)


def stress(paths: Sequence[Path], seeds: int) -> dict[str, Any]:
    """The ablation on these kernels and on the made surface."""
    kernels = {path.name.removesuffix(".gz").removesuffix(".csv"): kernel_ablations(path, seeds) for path in paths}
    say(f"made surface of 24 knobs, {seeds} seeds")
    made = ablation(made_surface, Ablation(MADE_METHODS, (15, 30, 60), seeds, against="direct"))
    return {"kernels": kernels, "made_surface": made, "accepted": acceptance(kernels, made)}


def acceptance(kernels: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What must hold: on a GEMM `direct` is ahead of random by 0.03; on the made surface `all` is not behind direct."""
    rows = []
    for name, tables in kernels.items():
        for table in ("fits_unknown", "fits_known") if "gemm" in name else ():
            ahead = next(row for row in tables[table] if row["method"] == "direct")["ahead_30"]["mean"]
            rows.append({"line": f"{name} {table} @30", "ahead": ahead, "least": 0.03, "met": ahead >= 0.03})
    for trials in (30, 60):
        ahead = next(row for row in made if row["method"] == "all")[f"ahead_{trials}"]["mean"]
        rows.append({"line": f"made surface @{trials}", "ahead": ahead, "least": 0.0, "met": ahead >= 0})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = Path(__file__).resolve().parents[2] / "shared" / "data" / "tune"
    parser.add_argument("--space", type=Path, nargs="+", default=[data / name for name in PUBLIC_KERNELS])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    print(as_json(stress(arguments.space, arguments.seeds)))


if __name__ == "__main__":
    main()
