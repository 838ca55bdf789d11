"""whorl's search against random settings and scikit-learn's process, on tasks whose truth is known; of `tune.py`.

A task's default is the first trial of every method, and every method gives its answer by the same rule. Regret: true
energy of the answer over the least true energy within the true bound, less one, in %; an answer over the true bound
counts with the regret of the default. `regret_pct`: the median after so many trials, with a 95 % interval from
resampling the seeds (the tasks are fixed). `within_3_pct`: share of runs with a regret of 3 % at most. `answers_over`:
share of runs whose answer is over the true bound. `trials_over`: share of trials more than 0.5 % over it;
`chosen_over`: the same of those that the process chose. `cpu_s`: CPU of a run of 16 trials beside measuring.

`simulated` and `sweeps` are what the acceptance is stated on; `beside scikit-learn` has fewer seeds, the same ones for
both. In `confirmed` the whole of `whorl tune` runs: it measures default and answer again, in turn, and gives up an
answer that is over the bound then. `populations` are other GPUs, bounds and noises, after 12 trials; `assumed` is the
noise that the search was told where that is not the true one.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from whorl.analysis.tuning.process import FloatArray
from whorl.analysis.tuning.search import FIRST_RANDOM, Knob, Search, Setting, TimeBound, Trial
from whorl.benchmarks.reporting import say, share
from whorl.benchmarks.tune_tasks import TuningTask, services, simulated, sweeps
from whorl.errors import DeviceError
from whorl.jobs.tuning import TuningOptions, tune
from whorl.simulation import models

if TYPE_CHECKING:
    from whorl.benchmarks.tune import TuneOptions

TRIALS = 16
BUDGETS = (6, 8, 12, 16)
RESAMPLES = 400


@dataclass(frozen=True)
class TrialNoise:
    """What a trial is off by: standard deviations of ln energy and ln time."""

    sd: float = 0.01
    assumed: float | None = None
    """What the search is told, where that is not the true one."""
    heavy: bool = False
    """Student's t with 3 degrees of freedom, of the same standard deviation."""

    def measure(self, task: TuningTask, setting: Setting, random: np.random.Generator) -> Trial:
        """A trial of a task; without figures where the sweep has no measurement."""
        draws = random.standard_t(3, 2) / math.sqrt(3) if self.heavy else random.standard_normal(2)
        energy_j, time_s = (
            float(truth[task.index(setting)]) * math.exp(self.sd * draw)
            for truth, draw in zip((task.energy_j, task.time_s), draws, strict=True)
        )
        failed = math.isnan(energy_j)
        return Trial(setting, None if failed else energy_j, None if failed else time_s)


@dataclass(frozen=True)
class SearchRun:
    """One search: at each of `BUDGETS` the regret (share) of its answer, and whether that is over the bound."""

    seed: int
    regrets: tuple[float, ...]
    answers_over: tuple[bool, ...]
    trials_over: int
    chosen_over: int
    trials: int
    cpu_s: float


class ScikitSearch(Search):
    """The same search with scikit-learn's Gaussian process: lengths, amplitude and noise by maximum likelihood."""

    def _predict(
        self, measured: Mapping[Any, Any], values: Mapping[Any, float], points: FloatArray, *, output: int
    ) -> tuple[FloatArray, FloatArray]:
        del measured, output
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        lengths = np.full(points.shape[1], 0.5)
        kernel = ConstantKernel(1.0, (0.05, 50)) * Matern(lengths, (0.05, 10), nu=2.5) + WhiteKernel(1e-3, (1e-6, 1.0))
        process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lengths at the ends of their range
            process.fit(self._points(np.array(list(values))), np.array(list(values.values())))
            mean, sd = process.predict(points, return_std=True)
        return mean, sd


class RandomSearch(Search):
    """Every trial but the first at random."""

    first_random = TRIALS


class SafeSearch(Search):
    """whorl's search with `--safe`."""

    def __init__(self, knobs: Sequence[Knob], bound: TimeBound, *, noise: float, seed: int) -> None:
        super().__init__(knobs, bound, noise=noise, seed=seed, safe=True)


METHODS: dict[str, Callable[..., Search]] = {
    "whorl": Search,
    "whorl --safe": SafeSearch,
    "random": RandomSearch,
    "scikit-learn": ScikitSearch,
}


def judged(task: TuningTask, answer: Setting) -> tuple[float, bool]:
    """The regret (share) of an answer, and whether it is over the true bound."""
    over = not task.time_s[task.index(answer)] <= task.bound_s
    counted = {knob.name: knob.default for knob in task.knobs} if over else answer
    return float(task.energy_j[task.index(counted)]) / task.least_j - 1, over


def played(task: TuningTask, seed: int, method: Callable[..., Search], noise: TrialNoise) -> SearchRun:
    """One search of a task with a method."""
    random = np.random.default_rng([41, seed])
    search = method(task.knobs, task.bound, noise=noise.assumed or noise.sd, seed=seed)
    over: list[bool] = []
    judgements: list[tuple[float, bool]] = []
    cpu_s = 0.0
    for number in range(1, TRIALS + 1):
        started = time.process_time()
        setting = search.suggest()
        cpu_s += time.process_time() - started
        if setting is not None:
            trial = noise.measure(task, setting, random)
            search.tell(setting, trial.energy_j, trial.time_s)
            over.append(not task.time_s[task.index(setting)] <= 1.005 * task.bound_s)
        if number in BUDGETS:
            judgements.append(judged(task, search.answer()))
    regrets, answers_over = zip(*judgements, strict=True)
    chosen_over = sum(over[1 + FIRST_RANDOM :])
    return SearchRun(seed, regrets, answers_over, sum(over), chosen_over, len(over), cpu_s)


def summary(runs: Sequence[SearchRun]) -> dict[str, Any]:
    """What the head of this file says of many runs."""
    n, trials = len(runs), sum(run.trials for run in runs)
    return {
        "n": n,
        "regret_pct": {str(budget): _median([(run.seed, run.regrets[at]) for run in runs]) for at, budget in _AT},
        "within_3_pct": {
            str(budget): share(sum(run.regrets[at] <= 0.03 for run in runs), n) for at, budget in _AT if budget > 8
        },
        "answers_over": {str(budget): share(sum(run.answers_over[at] for run in runs), n) for at, budget in _AT},
        "trials_over": share(sum(run.trials_over for run in runs), trials),
        "chosen_over": share(sum(run.chosen_over for run in runs), trials - (1 + FIRST_RANDOM) * n),
        "cpu_s": round(sum(run.cpu_s for run in runs) / n, 3),
    }


_AT = tuple(enumerate(BUDGETS))


def _median(regrets: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """The median (seed, regret) in %, with the interval of resampled seeds."""
    by_seed: dict[int, list[float]] = {}
    for seed, regret in regrets:
        by_seed.setdefault(seed, []).append(100 * regret)
    table = np.array(list(by_seed.values()))  # (seeds, tasks)
    drawn = np.random.default_rng(0).integers(0, len(table), (RESAMPLES, len(table)))
    medians = np.median(table[drawn].reshape(RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return {"median": round(float(np.median(table)), 2), "interval": [round(float(low), 2), round(float(high), 2)]}


def compared(
    tasks: Sequence[TuningTask], seeds: int, methods: Iterable[str], noise: TrialNoise | None = None
) -> dict[str, Any]:
    """Each method on every task with so many seeds."""
    results: dict[str, Any] = {"tasks": len(tasks), "seeds": seeds}
    for name in methods:
        runs = [played(task, seed, METHODS[name], noise or TrialNoise()) for task in tasks for seed in range(seeds)]
        results[name] = summary(runs)
    return results


@dataclass(frozen=True)
class TaskBench:
    """A task as what `whorl tune` measures: one GPU, on which every knob can be set."""

    task: TuningTask
    noise: TrialNoise
    random: np.random.Generator
    label: str = "task"
    gpus: tuple[str, ...] = ("GPU-0",)
    unset: tuple[Any, ...] = ()

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The task's knobs."""
        return self.task.knobs

    def measure(self, setting: Setting, gpu: str, *, stop_over_s: float | None = None) -> Trial:
        """A trial of the task."""
        del gpu, stop_over_s
        trial = self.noise.measure(self.task, setting, self.random)
        if trial.energy_j is None:
            raise DeviceError("the sweep has no measurement there")
        return replace(trial, noise=self.noise.sd)

    def commands(self, setting: Setting) -> tuple[str, ...]:
        """None: nobody sets it."""
        del setting
        return ()


def confirmed(tasks: Sequence[TuningTask], seeds: int, noise: TrialNoise) -> dict[str, Any]:
    """The whole of `whorl tune` with 12 trials, answers measured again: regret, and answers over the true bound."""
    judgements, given_up = [], 0
    for task in tasks:
        for seed in range(seeds):
            bench = TaskBench(task, noise, np.random.default_rng([42, seed]))
            tuned = tune(bench, task.bound, TuningOptions(trials=12, seed=seed))
            judgements.append((seed, *judged(task, tuned.setting)))
            given_up += bool(tuned.given_up)
    n = len(judgements)
    return {
        "tasks": len(tasks),
        "seeds": seeds,
        "n": n,
        "noise": noise.sd,
        "regret_pct": {"12": _median([(seed, regret) for seed, regret, _ in judgements])},
        "answers_over": share(sum(over for *_, over in judgements), n),
        "gave_up_an_answer": share(given_up, n),
    }


def out_of_memory(task: TuningTask) -> TuningTask:
    """The task where the two largest batches fail."""
    room = np.arange(len(task.knobs[-1].values)) < len(task.knobs[-1].values) - 2
    energy, times = (np.where(room, truth, np.nan) for truth in (task.energy_j, task.time_s))
    return replace(task, name=f"{task.name}, large batches fail", energy_j=energy, time_s=times)


def jumping(task: TuningTask) -> TuningTask:
    """The task where every fourth power limit takes a tenth longer: times that are not monotone in the limit."""
    position = [knob.name for knob in task.knobs].index("power_limit_w")
    factors = np.where(np.arange(task.time_s.shape[position]) % 4 == 1, 1.1, 1.0)
    factors = factors.reshape([-1 if axis == position else 1 for axis in range(task.time_s.ndim)])
    return replace(task, name=f"{task.name}, jumps", energy_j=task.energy_j * factors, time_s=task.time_s * factors)


def with_bound(task: TuningTask, bound: TimeBound) -> TuningTask:
    """The same work under another bound."""
    return TuningTask(task.name, task.knobs, bound, task.energy_j, task.time_s)


def populations(measured: list[TuningTask], seeds: int) -> dict[str, Any]:
    """The search and random settings where tasks, bounds or noises are others."""
    made = services()
    others = [
        simulated(models.A100, bound_s=0.020, latency_ms=(4, 0.5)),
        simulated(models.H100, bound_s=0.016, latency_ms=(3, 0.35), gpu=20),
        simulated(models.V100, bound_s=0.040, latency_ms=(5, 1.0), clock_every=2, gpu=33),
    ]
    cases: dict[str, tuple[list[TuningTask], TrialNoise]] = {
        "simulated, other GPUs": (others, TrialNoise()),
        "simulated, 5 % slower": ([with_bound(task, TimeBound(max_slowdown=0.05)) for task in made], TrialNoise()),
        "simulated, noise 0.3 %": (made, TrialNoise(0.003)),
        "simulated, noise 3 %": (made, TrialNoise(0.03)),
        "simulated, heavy tails": (made, TrialNoise(heavy=True)),
        "simulated, jumps": ([jumping(task) for task in made], TrialNoise()),
        "simulated, large batches fail": ([out_of_memory(task) for task in made], TrialNoise()),
        "simulated, noise 3 %, assumed 1 %": (made, TrialNoise(0.03, assumed=0.01)),
        "sweeps, 5 % slower": ([with_bound(task, TimeBound(max_slowdown=0.05)) for task in measured], TrialNoise()),
        "sweeps, 25 % slower": ([with_bound(task, TimeBound(max_slowdown=0.25)) for task in measured], TrialNoise()),
        "sweeps, stated time": (
            [with_bound(task, TimeBound(max_time_s=task.bound_s)) for task in measured],
            TrialNoise(),
        ),
        "sweeps, noise 0.3 %": (measured, TrialNoise(0.003)),
        "sweeps, noise 3 %": (measured, TrialNoise(0.03)),
        "sweeps, heavy tails": (measured, TrialNoise(heavy=True)),
        "sweeps, noise 1 %, assumed 0.3 %": (measured, TrialNoise(0.01, assumed=0.003)),
        "sweeps, noise 1 %, assumed 3 %": (measured, TrialNoise(0.01, assumed=0.03)),
    }
    results: dict[str, Any] = {"seeds": seeds}
    for name, (tasks, noise) in cases.items():
        if tasks:
            results[name] = {
                method: {"n": figures["n"], "regret_pct_12": figures["regret_pct"]["12"]}
                | {subject: figures[subject]["12"] for subject in ("within_3_pct", "answers_over")}
                for method, figures in compared(tasks, seeds, ("whorl", "random"), noise).items()
                if method in METHODS
            }
            say(f"{name}: {results[name]['whorl']}")
    return results


def section(options: TuneOptions) -> dict[str, Any]:
    """All of this file; `options.sweeps` are tasks of their own beside the public ones."""
    seeds = 100 if options.long else 20
    measured = sweeps(sorted((options.data / "power").glob("zeus_power_limits_*.csv.gz")))
    results: dict[str, Any] = {}
    for name, tasks in (
        ("simulated", services()),
        ("sweeps", measured),
        *((f"sweep {path.name}", sweeps([path])) for path in options.sweeps),
    ):
        results[name] = compared(tasks, seeds, ("whorl", "whorl --safe", "random"))
        results[name]["beside scikit-learn"] = compared(tasks, max(2, seeds // 10), ("whorl", "scikit-learn"))
        say(f"{name}: {results[name]['whorl']['regret_pct']}")
    results["confirmed"] = {
        "sweeps, noise 1 %": confirmed(measured, seeds, TrialNoise()),
        "sweeps, noise 3 %": confirmed(measured, seeds, TrialNoise(0.03)),
        "sweeps, heavy tails": confirmed(measured, seeds, TrialNoise(heavy=True)),
    }
    results["populations"] = populations(measured, max(5, seeds // 4))
    return results
