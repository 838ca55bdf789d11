"""The tuning of whorl beside random settings, scikit-learn's process, and one limit for all.

    python -m benchmarks.tune [--only SECTION] [--quick | --long]

search       energy searches on tasks whose truth is known (services on simulated GPUs, Zeus's public sweeps): regret of
             the answer after 6 to 16 trials, answers over the bound. Beside it random settings and scikit-learn's
             Gaussian process (a tenth of the seeds), by the same rule of answering. `confirmed`: the whole of `whorl
             tune`, which measures its answer again. `others`: other GPUs, bounds and noises.
warm_start   the same with a sweep of another model of GPU as prior, and without
power_plans  power limits of synchronous jobs in simulated fleets: energy saved, and how much slower the step; beside it
             one limit for all that saves as much, and how often the intervals of a plan hold. `braked`: how often a
             braked GPU is named, and others are
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from whorl.analysis.tuning.power_plan import (
    FULL_CLOCK,
    WAITING_RANGE,
    ClassRuns,
    Floats,
    PowerPlan,
    SyncJob,
    braked,
    plan_power,
    step_energy,
    step_time,
)  # fmt: skip
from whorl.analysis.tuning.search import FloatArray, Knob, Prior, Search, Setting, TimeBound, Trial
from whorl.analysis.tuning.sweep import MeasuredSweep, across_batches, read_sweeps
from whorl.benchmarks.harness import BenchOptions, public_file, run, say, share, share_of
from whorl.errors import DeviceError
from whorl.jobs.tuning import TuningOptions, tune
from whorl.jobs.tuning import warm_start as prior_from
from whorl.simulation import models
from whorl.simulation.fleet import CAP_SETTLES_AT, Fleet
from whorl.simulation.load import SGEMM, WORKLOADS, Workload
from whorl.simulation.models import find_model
from whorl.simulation.physics import relative_time, settle

# -- tasks whose truth is known: simulated GPUs, public sweeps ---------------------------------------------------------

BATCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@dataclass(frozen=True)
class TuningTask:
    """Knobs, a bound, and the true energy (J) and time (s) of every setting, by the positions of its values.

    NaN where a sweep has no measurement: there a trial fails.
    """

    name: str
    knobs: tuple[Knob, ...]
    bound: TimeBound
    energy_j: FloatArray
    time_s: FloatArray

    def index(self, setting: Setting) -> tuple[int, ...]:
        """The position of a setting in the arrays."""
        return tuple(knob.values.index(setting[knob.name]) for knob in self.knobs)

    @cached_property
    def bound_s(self) -> float:
        """The true bound: the stated one, or the share of the default's true time."""
        if self.bound.max_time_s is not None:
            return self.bound.max_time_s
        default = self.index({knob.name: knob.default for knob in self.knobs})
        assert self.bound.max_slowdown is not None
        return float(self.time_s[default]) * (1 + self.bound.max_slowdown)

    @cached_property
    def least_j(self) -> float:
        """The least true energy within the true bound."""
        return float(np.nanmin(np.where(self.time_s <= self.bound_s, self.energy_j, np.nan)))


def simulated(
    model: models.GpuModel, *, bound_s: float, latency_ms: tuple[float, float], clock_every: int = 1, gpu: int = 7
) -> TuningTask:
    """A service on one GPU of a simulated fleet: knobs clock, limit and batch; the bound is a latency.

    A batch of b takes (first + second * b) ms of `latency_ms` at the highest clock.
    """
    silicon = Fleet.draw(model, 64, seed=3, faults=0).silicon
    steps = np.arange(model.min_power_limit_w, model.power_limit_w + 1, 25)
    clocks = model.clocks_mhz
    locks = clocks[::-clock_every][::-1]
    at_clocks = silicon.take(np.full(len(clocks), gpu))
    energy = np.empty((len(locks), len(steps), len(BATCHES)))
    time = np.empty_like(energy)
    for number, batch in enumerate(BATCHES):
        work = Workload(
            f"batch {batch:g}",
            activity=0.95 * batch / (batch + 5),
            compute_share=0.9 * batch / (batch + 4),
            bandwidth_share=0.55 - 0.25 * batch / (batch + 4),
            noise=0.0,
        )
        power, temperature = settle(model, at_clocks, work, clocks)
        latency_s = (latency_ms[0] + latency_ms[1] * batch) / 1000 * relative_time(model, at_clocks, work, clocks)
        for column, limit in enumerate(steps):
            fits = (power * at_clocks.sensor <= CAP_SETTLES_AT * limit) & (temperature <= model.slowdown_c)
            highest = int(np.flatnonzero(fits)[-1]) if fits.any() else 0
            reached = np.minimum(np.searchsorted(clocks, locks), highest)
            time[:, column, number] = latency_s[reached]
            energy[:, column, number] = power[reached] * latency_s[reached] / batch
    knobs = (
        Knob("sm_clock_mhz", tuple(locks.tolist()), float(locks[-1])),
        Knob("power_limit_w", tuple(steps.tolist()), float(steps[-1])),
        Knob("batch", BATCHES, 8.0),
    )
    return TuningTask(f"{model.name} gpu {gpu}", knobs, TimeBound(max_time_s=bound_s), energy, time)


def services() -> list[TuningTask]:
    """The three simulated tasks that the acceptance is stated on."""
    return [
        simulated(models.H200, bound_s=0.016, latency_ms=(3, 0.35)),
        simulated(models.H100, bound_s=0.016, latency_ms=(3, 0.35)),
        simulated(models.V100, bound_s=0.040, latency_ms=(5, 1.0), clock_every=2),
    ]


def sweeps(files: Sequence[Path], *, max_slowdown: float = 0.10) -> list[TuningTask]:
    """The tasks of sweeps that were measured: one for each workload of each file, with the knobs batch and limit.

    The default is the highest limit of the middle batch.
    """
    tasks = []
    for path in files:
        swept = read_sweeps(path)
        for sweep in across_batches(swept.sweeps):
            parts = [getattr(sweep.workload, name) for name in ("dataset", "network", "optimizer")]
            name = " ".join([sweep.workload.gpu or path.name.split(".")[0], *filter(None, parts)])
            tasks.append(_sweep_task(name, swept.knob, sweep, max_slowdown))
    return tasks


def _sweep_task(name: str, knob: str, sweep: MeasuredSweep, max_slowdown: float) -> TuningTask:
    sizes = np.nan_to_num(sweep.batch_sizes)  # NaN: a sweep without batches
    batches, rows = np.unique(sizes, return_inverse=True)
    settings, columns = np.unique(sweep.settings, return_inverse=True)
    energy, time = np.full((2, len(batches), len(settings)), np.nan)
    energy[rows, columns], time[rows, columns] = sweep.energies_j, sweep.times_s
    knobs = (
        Knob("batch", tuple(batches.tolist()), float(sizes[sweep.default])),
        Knob(knob, tuple(settings.tolist()), float(sweep.settings[sweep.default])),
    )
    return TuningTask(name, knobs, TimeBound(max_slowdown=max_slowdown), energy, time)


# -- search ----------------------------------------------------------------------------------------------------------


TRIALS = 16
BUDGETS = (6, 8, 12, 16)
RESAMPLES = 400


@dataclass(frozen=True)
class TrialNoise:
    """What a trial is off by: standard deviations of ln energy and ln time."""

    sd: float = 0.01
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
    trials_over: tuple[bool, ...]
    """Of each trial, whether it is over the bound."""
    cpu_s: float


class ScikitSearch(Search):
    """The same search with scikit-learn's Gaussian process: lengths, amplitude and noise by maximum likelihood."""

    def _predict(
        self, measured: Mapping[Any, Any], values: Mapping[Any, float], points: FloatArray, *, output: int
    ) -> tuple[FloatArray, FloatArray]:
        del measured, output
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
        from threadpoolctl import threadpool_limits

        lengths = np.full(points.shape[1], 0.5)
        kernel = ConstantKernel(1.0, (0.05, 50)) * Matern(lengths, (0.05, 10), nu=2.5) + WhiteKernel(1e-3, (1e-6, 1.0))
        process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0)
        # With a thread for each core, matrices of 16 rows take ten times as long: the threads wait for each other.
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lengths at the ends of their range
            process.fit(self._points(np.array(list(values))), np.array(list(values.values())))
            mean, sd = process.predict(points, return_std=True)
        return mean, sd


class RandomSearch(Search):
    """Every trial but the first at random."""

    first_random = TRIALS


METHODS: dict[str, Callable[..., Search]] = {"whorl": Search, "random": RandomSearch, "scikit-learn": ScikitSearch}


def judged(task: TuningTask, answer: Setting) -> tuple[float, bool]:
    """The regret (share) of an answer, and whether it is over the true bound."""
    over = not task.time_s[task.index(answer)] <= task.bound_s
    counted = {knob.name: knob.default for knob in task.knobs} if over else answer
    return float(task.energy_j[task.index(counted)]) / task.least_j - 1, over


def played(
    task: TuningTask, seed: int, method: Callable[..., Search], noise: TrialNoise, budgets: Sequence[int] = BUDGETS
) -> SearchRun:
    """One search of a task with a method."""
    random = np.random.default_rng([41, seed])
    search = method(task.knobs, task.bound, noise=noise.sd, seed=seed)
    over: list[bool] = []
    judgements: list[tuple[float, bool]] = []
    cpu_s = 0.0
    for number in range(1, max(budgets) + 1):
        started = time.process_time()
        setting = search.suggest()
        cpu_s += time.process_time() - started
        if setting is not None:
            trial = noise.measure(task, setting, random)
            search.tell(setting, trial.energy_j, trial.time_s)
            over.append(not task.time_s[task.index(setting)] <= 1.005 * task.bound_s)
        if number in budgets:
            judgements.append(judged(task, search.answer()))
    regrets, answers_over = zip(*judgements, strict=True)
    return SearchRun(seed, regrets, answers_over, tuple(over), cpu_s)


def summary(runs: Sequence[SearchRun]) -> dict[str, Any]:
    """Regret and answers over the bound by budget; trials over the bound; CPU seconds of a search."""
    at_budget = {str(budget): place for place, budget in enumerate(BUDGETS)}
    return {
        "n": len(runs),
        "regret_pct": {name: _median([(run.seed, run.regrets[at]) for run in runs]) for name, at in at_budget.items()},
        "within_3_pct": share_of(run.regrets[at_budget["16"]] <= 0.03 for run in runs),
        "answers_over": {name: share_of(run.answers_over[at] for run in runs) for name, at in at_budget.items()},
        "trials_over": share_of(over for run in runs for over in run.trials_over),
        "cpu_s": round(sum(run.cpu_s for run in runs) / len(runs), 3),
    }


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


def compared(tasks: Sequence[TuningTask], seeds: int, other: str, noise: TrialNoise | None = None) -> dict[str, Any]:
    """whorl and another method on every task with so many seeds."""
    results: dict[str, Any] = {"tasks": len(tasks), "seeds": seeds}
    for name in ("whorl", other):
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


def confirmed(tasks: Sequence[TuningTask], seeds: int) -> dict[str, Any]:
    """The whole of `whorl tune` with 12 trials, answers measured again: regret, and answers over the true bound."""
    judgements, given_up = [], 0
    for task in tasks:
        for seed in range(seeds):
            bench = TaskBench(task, TrialNoise(), np.random.default_rng([42, seed]))
            tuned = tune(bench, task.bound, TuningOptions(trials=12, seed=seed))
            judgements.append((seed, *judged(task, tuned.setting)))
            given_up += bool(tuned.given_up)
    n = len(judgements)
    return {
        "tasks": len(tasks), "seeds": seeds, "n": n,
        "regret_pct": {"12": _median([(seed, regret) for seed, regret, _ in judgements])},
        "answers_over": share_of(over for *_, over in judgements), "gave_up_an_answer": share(given_up, n),
    }  # fmt: skip


def search(options: BenchOptions) -> dict[str, Any]:
    """All tasks with every method, the whole of `whorl tune`, and tasks, bounds or noises that are others."""
    seeds, results = options.pick(2, 20, 100), {}
    measured = sweeps(sorted(public_file("power").glob("zeus_power_limits_*.csv.gz")))[: options.pick(1, 99, 99)]
    for name, tasks in (("simulated", services()), ("sweeps", measured)):
        results[name] = compared(tasks, seeds, "random")
        results[name]["beside scikit-learn"] = compared(tasks, max(1, seeds // 10), "scikit-learn")
        say(f"{name}: {results[name]['whorl']['regret_pct']}")
    results["confirmed"] = confirmed(measured, seeds)
    slower = [replace(task, bound=TimeBound(max_slowdown=0.05)) for task in services()]
    others = {
        "other GPUs": ([simulated(models.A100, bound_s=0.020, latency_ms=(4, 0.5)),
                        simulated(models.H100, bound_s=0.016, latency_ms=(3, 0.35), gpu=20)], TrialNoise()),
        "5 % slower": (slower, TrialNoise()),
        "noise 3 %": (services(), TrialNoise(0.03)), "heavy tails": (services(), TrialNoise(heavy=True)),
    }  # fmt: skip
    results["others"] = {
        name: compared(tasks, max(2, seeds // 4), "random", noise) for name, (tasks, noise) in others.items()
    }
    return results


# -- warm start ------------------------------------------------------------------------------------------------------


def warm_start(options: BenchOptions) -> dict[str, Any]:
    """Each training that was measured on two models: a search on one of them, with the other's sweep and without."""
    seeds, budgets = range(options.pick(1, 10, 40)), (2, 4, 6, 8)
    tasks = sweeps([public_file(f"power/zeus_power_limits_{model}.csv.gz") for model in ("v100", "rtx6000")])
    pairs = [
        (target, source)
        for target, source in product(tasks, tasks)
        if target.name != source.name and target.name.split(" ", 1)[1] == source.name.split(" ", 1)[1]
    ]
    answer: dict[str, Any] = {"pairs": len(pairs), "seeds": len(seeds), "budgets": list(budgets)}
    for name in ("without", "with"):
        regrets = []
        for target, source in pairs:
            method = partial(Search, prior=None if name == "without" else prior_of(target, source))
            regrets += [played(target, seed, method, TrialNoise(), budgets).regrets for seed in seeds]
        answer[f"median_regret_pct_{name}"] = np.median(100 * np.array(regrets), axis=0).round(1).tolist()
    return answer


def prior_of(target: TuningTask, source: TuningTask) -> Prior:
    """The prior of a search, from all settings that the other model's sweep has."""
    names = [knob.name for knob in source.knobs]
    settings = [dict(zip(names, values, strict=True)) for values in product(*(knob.values for knob in source.knobs))]
    trials = map(Trial, settings, source.energy_j.ravel().tolist(), source.time_s.ravel().tolist())
    return prior_from(target.knobs, [trial for trial in trials if trial.energy_j and np.isfinite(trial.energy_j)])


# -- power plans -----------------------------------------------------------------------------------------------------


GPUS, PER_JOB, CLASS_GPUS, FIRST_SEED = 64, 8, 16, 4100
STEPS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Limits of the class's curve, of the highest."""
POWER_NOISE = 0.001


@dataclass(frozen=True)
class Setup:
    """What fleets and jobs are like."""

    model: str = "H100"
    work: Workload = SGEMM
    limit: float = 1.0
    """The present limit, of the highest."""
    draw: Mapping[str, Any] = field(default_factory=lambda: {"faults": 0})


@dataclass(frozen=True)
class PlannedJob:
    """A job with its plan, and what the plan truly does."""

    plan: PowerPlan
    braked: tuple[int, ...]
    saved: float | None = None
    saved_waiting: float | None = None
    """The same where waiting GPUs use a random share of their power at work."""
    slower: float | None = None
    one_limit: float | None = None
    """How much slower one limit for all makes the job that saves as much."""


def under(fleet: Fleet, work: Workload, limit_w: Floats | float) -> tuple[Floats, Floats, Floats, Floats]:
    """Speed, reported power, true power (W) and clock (MHz) of GPUs under their limits, as the control loop mixes them.

    The loop moves a GPU between two steps of its clock, so that it reports what it settles at on average.
    """
    silicon = replace(fleet.silicon, cap_w=np.minimum(fleet.silicon.cap_w, limit_w))
    capped, bins = replace(fleet, silicon=silicon), fleet.model.clocks_mhz
    steady = capped.steady(replace(work, noise=0.0))
    following = bins[np.minimum(np.searchsorted(bins, steady.clock_mhz) + 1, len(bins) - 1)]
    warm = settle(fleet.model, silicon, work, following)[1] > fleet.model.slowdown_c
    free = (following > silicon.ceiling_mhz + 1e-6) | (steady.clock_mhz >= silicon.ceiling_mhz - 1e-6) | warm
    reported = np.where(free, steady.reported_power_w, CAP_SETTLES_AT * silicon.cap_w)
    return 1 / capped.relative_time(work, steady), reported, reported / silicon.sensor, steady.clock_mhz


def jobs_of(setup: Setup, seed: int) -> Iterator[PlannedJob]:
    """Plan for the jobs of a fleet, and say what the plans truly do."""
    model, rng = find_model(setup.model), np.random.default_rng(seed)
    fleet = Fleet.draw(model, GPUS, seed, **setup.draw)

    def measured(speed: Floats, number: int) -> Floats:
        return np.asarray(speed * np.exp(-fleet.noise(setup.work, "run of a plan", number)))

    def read(power_w: Floats) -> Floats:
        return np.asarray(power_w * np.exp(POWER_NOISE * rng.standard_normal(GPUS)))

    now_w = setup.limit * model.power_limit_w
    limits = np.unique(np.append(np.round(np.array(STEPS) * model.power_limit_w / 5) * 5, now_w))
    limits = limits[limits >= model.min_power_limit_w]
    speed, reported, true_w, clock = under(fleet, setup.work, now_w)
    speed_now, power_now = measured(speed, 0), read(reported)
    slow = braked(speed_now)
    columns = [under(fleet, setup.work, limit)[:2] for limit in limits]
    chosen = rng.permutation(np.flatnonzero(~slow))[:CLASS_GPUS]
    runs = ClassRuns(
        limits,
        np.stack([measured(column[0], 1 + number)[chosen] for number, column in enumerate(columns)], axis=1),
        np.stack([read(column[1])[chosen] for column in columns], axis=1),
    )
    uniform_limits = [(limit, under(fleet, setup.work, limit)) for limit in np.arange(now_w, limits[0], -5)]
    for first in range(0, GPUS, PER_JOB):
        part = slice(first, first + PER_JOB)
        held = clock[part] < FULL_CLOCK * model.max_clock_mhz
        job = SyncJob(speed_now[part], power_now[part], np.full(PER_JOB, now_w), held)
        plan = plan_power(job, runs, highest_w=model.power_limit_w)
        names = tuple(np.flatnonzero(slow[part]).tolist()) if job.at_limit else ()
        if plan.refusal is not None or plan.limit_w is None:
            yield PlannedJob(plan, names)
            continue
        limit_w = np.full(GPUS, now_w)
        limit_w[part] = plan.limit_w
        after_speed, _, after_w, _ = (column[part] for column in under(fleet, setup.work, limit_w))
        before = step_energy(speed[part], true_w[part])
        energy, time = step_energy(after_speed, after_w), step_time(after_speed)
        waiting = np.random.default_rng([seed, first]).uniform(*WAITING_RANGE)
        energies = (step_energy(*state, waiting) for state in ((after_speed, after_w), (speed[part], true_w[part])))
        saved_waiting = 1 - float(np.divide(*energies))
        slower = float(time / step_time(speed[part]) - 1)
        reached = [state for _, state in uniform_limits if step_energy(state[0][part], state[2][part]) <= energy]
        uniform = None if not reached else float(step_time(reached[0][0][part]) / step_time(speed[part]) - 1)
        yield PlannedJob(plan, names, float(1 - energy / before), saved_waiting, slower, uniform)


def table_row(name: str, setup: Setup, seeds: Sequence[int]) -> dict[str, Any]:
    """A row of the tables, over the fleets of some seeds: mean, the middle 90 % of jobs, and the most, in %."""
    jobs = [job for seed in seeds for job in jobs_of(setup, seed)]
    planned = [job for job in jobs if job.saved is not None]
    refused = Counter(job.plan.refusal.value for job in jobs if job.plan.refusal is not None)
    row: dict[str, Any] = {"setup": name, "jobs": len(jobs), "planned": len(planned) / len(jobs)}
    row |= {"refused": dict(refused), "braked_named": sum(bool(job.braked) for job in jobs)}
    for figure in ("saved", "slower", "one_limit"):
        values = np.array([value for job in planned if (value := getattr(job, figure)) is not None])
        if len(values):
            figures = (values.mean(), *np.quantile(values, (0.05, 0.95)), values.max())
            labels = zip(("mean", "q05", "q95", "most"), figures, strict=True)
            row[f"{figure}_pct"] = {key: round(100 * float(value), 2) for key, value in labels}
    promised = [(job, job.plan.gains) for job in planned if job.plan.gains is not None]
    if promised:
        row["interval_holds"] = {
            "saved": share_of(
                gains.saved.low <= (job.saved_waiting or 0.0) <= gains.saved.high for job, gains in promised
            ),
            "slower": share_of(
                gains.slower.low - 1e-9 <= (job.slower or 0.0) <= gains.slower.high for job, gains in promised
            ),
        }
    say(f"power plans: {row}")
    return row


def planted(model: str, size: str, seeds: Sequence[int], spacing: int = GPUS) -> dict[str, Any]:
    """A braked GPU in one job of a fleet, or in one of so many GPUs: how often it is named, and another one is."""
    at = {first + 3: f"brake={size}" for first in range(0, GPUS, spacing)}
    fleets = [list(jobs_of(Setup(model, draw={"faults": 0, "at": at}), seed)) for seed in seeds]
    jobs = [job for fleet in fleets for job in fleet[:: spacing // PER_JOB]]
    right, names = sum(3 in job.braked for job in jobs), sum(len(job.braked) for fleet in fleets for job in fleet)
    return {
        "model": model, "size": size, "braked_of_64": GPUS // spacing, "named": share(right, len(jobs)),
        "others_named": names - right,
    }  # fmt: skip


def power_plans(options: BenchOptions) -> dict[str, Any]:
    """Plans under several limits, and braked GPUs."""
    fleets = options.pick(1, 12, 48)
    seeds = range(FIRST_SEED, FIRST_SEED + fleets)
    works, limits = (SGEMM, WORKLOADS["resnet"], WORKLOADS["bert"]), (1.0, 0.75, 0.6)
    setups = {
        f"{model} {work.name} {limit:g}": Setup(model, work, limit)
        for model, work, limit in product(("H100", "V100"), works, limits)
    }
    sizes = (("19.35%", PER_JOB), ("19.35%", GPUS), ("8%", GPUS), ("5%", GPUS))
    return {
        "first_seed": FIRST_SEED,
        "accept": [table_row(name, setup, seeds) for name, setup in list(setups.items())[: options.pick(1, 99, 99)]],
        "braked": [planted("H100", size, seeds, spacing) for size, spacing in sizes],
    }


SECTIONS = {"search": search, "warm_start": warm_start, "power_plans": power_plans}

if __name__ == "__main__":
    run("tune", SECTIONS, packages=("numpy", "scikit-learn"))
