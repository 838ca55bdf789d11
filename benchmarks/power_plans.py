"""Power plans of synchronous jobs in simulated fleets, against one limit for all: a section of `benchmarks/tune.py`.

    python -m whorl.benchmarks.power_plans

A fleet of 64 GPUs gives 8 jobs of 8. Each GPU is measured once at the present limit, 16 of them also under lower limits
(a step of 5 % of the highest), all with the noise of a run. What a plan does is computed by the physics without noise,
from true power. Columns: `planned`: share of the jobs that got a plan; `saved_pct` and `slower_pct`: mean, 5 and 95 %
quantile over jobs with a plan, and the most; `inside`: how often the true figure lies in the interval, the power
of waiting GPUs being random in the range that is assumed; `one_limit_pct`:
how much slower one limit for all is that saves as much. Jobs of a fleet share its class; fleets are independent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import whorl
from whorl.analysis.tuning.power_plan import (
    FULL_CLOCK,
    WAITING_RANGE,
    ClassRuns,
    Floats,
    PlanRefusal,
    PowerPlan,
    SyncJob,
    braked,
    plan_power,
    step_energy,
    step_time,
)
from whorl.benchmarks.reporting import as_json, say, share
from whorl.simulation.fleet import CAP_SETTLES_AT, Fleet
from whorl.simulation.identity import identities
from whorl.simulation.models import find_model
from whorl.simulation.physics import settle
from whorl.simulation.spread import POPULATIONS, Spread
from whorl.simulation.workloads import SGEMM, WORKLOADS, Workload

if TYPE_CHECKING:
    from whorl.benchmarks.tune import TuneOptions

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
    noise: float | None = None
    """Of a run; None: the workload's."""
    draw: Mapping[str, Any] = field(default_factory=lambda: {"faults": 0})
    class_gpus: int = CLASS_GPUS
    sensor_low: float = 0.0
    """By how much the sensor of the first GPU of each job reads low."""
    same_power: bool = False
    """Whether the plan is for a budget of the present power."""


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
    """How much slower one limit for all makes the job that saves as much, or with a budget uses as much power."""


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


def jobs_of(setup: Setup, seed: int, gpus: int = GPUS) -> Iterator[PlannedJob]:
    """Plan for the jobs of a fleet, and say what the plans truly do."""
    model, rng = find_model(setup.model), np.random.default_rng(seed)
    fleet = Fleet.draw(model, gpus, seed, **setup.draw)
    if setup.sensor_low:
        sensor = fleet.silicon.sensor * np.where(np.arange(gpus) % PER_JOB, 1.0, 1 - setup.sensor_low)
        fleet = replace(fleet, silicon=replace(fleet.silicon, sensor=sensor))
    noisy = setup.work if setup.noise is None else replace(setup.work, noise=setup.noise)

    def measured(speed: Floats, number: int) -> Floats:
        return np.asarray(speed * np.exp(-fleet.noise(noisy, "run of a plan", number)))

    def read(power_w: Floats) -> Floats:
        return np.asarray(power_w * np.exp(POWER_NOISE * rng.standard_normal(gpus)))

    now_w = setup.limit * model.power_limit_w
    limits = np.unique(np.append(np.round(np.array(STEPS) * model.power_limit_w / 5) * 5, now_w))
    limits = limits[limits >= model.min_power_limit_w]
    speed, reported, true_w, clock = under(fleet, setup.work, now_w)
    speed_now, power_now = measured(speed, 0), read(reported)
    slow = braked(speed_now)
    columns = [under(fleet, setup.work, limit)[:2] for limit in limits]
    chosen = rng.permutation(np.flatnonzero(~slow))[: setup.class_gpus]
    runs = ClassRuns(
        limits,
        np.stack([measured(column[0], 1 + number)[chosen] for number, column in enumerate(columns)], axis=1),
        np.stack([read(column[1])[chosen] for column in columns], axis=1),
    )
    ones = [(limit, under(fleet, setup.work, limit)) for limit in np.arange(now_w, limits[0], -5)]
    for first in range(0, gpus, PER_JOB):
        part = slice(first, first + PER_JOB)
        held = clock[part] < FULL_CLOCK * model.max_clock_mhz
        job = SyncJob(speed_now[part], power_now[part], np.full(PER_JOB, now_w), held)
        budget_w = float(job.power_w.sum()) if setup.same_power else None
        plan = plan_power(job, runs, budget_w=budget_w, highest_w=model.power_limit_w)
        names = tuple(np.flatnonzero(slow[part]).tolist()) if job.at_limit else ()
        if plan.refusal is not None or plan.limit_w is None:
            yield PlannedJob(plan, names)
            continue
        limit_w = np.full(gpus, now_w)
        limit_w[part] = plan.limit_w
        after_speed, _, after_w, _ = (column[part] for column in under(fleet, setup.work, limit_w))
        before = step_energy(speed[part], true_w[part])
        energy, time = step_energy(after_speed, after_w), step_time(after_speed)
        waiting = np.random.default_rng([seed, first]).uniform(*WAITING_RANGE)
        energies = (step_energy(*state, waiting) for state in ((after_speed, after_w), (speed[part], true_w[part])))
        saved_waiting = 1 - float(np.divide(*energies))
        slower = float(time / step_time(speed[part]) - 1)
        reached = [state for _, state in ones if step_energy(state[0][part], state[2][part]) <= energy]
        one = None if not reached else float(step_time(reached[0][0][part]) / step_time(speed[part]) - 1)
        yield PlannedJob(plan, names, float(1 - energy / before), saved_waiting, slower, one)


def table_row(name: str, setup: Setup, seeds: Sequence[int]) -> dict[str, Any]:
    """A row of the tables, over the fleets of some seeds."""
    jobs = [job for seed in seeds for job in jobs_of(setup, seed)]
    planned = [job for job in jobs if job.saved is not None]
    refusals = {reason.value: sum(job.plan.refusal is reason for job in jobs) for reason in PlanRefusal}
    row: dict[str, Any] = {
        "setup": name,
        "jobs": len(jobs),
        "planned": len(planned) / len(jobs),
        "refused": {reason: count for reason, count in refusals.items() if count},
    }
    if planned:
        gains = [(job, job.plan.gains) for job in planned if job.plan.gains is not None]
        inside = {
            "saved": [said.saved.low <= (job.saved_waiting or 0.0) <= said.saved.high for job, said in gains],
            "slower": [said.slower.low - 1e-9 <= (job.slower or 0.0) <= said.slower.high for job, said in gains],
        }
        row |= {
            "saved_pct": _quantiles([job.saved for job in planned]),
            "slower_pct": _quantiles([job.slower for job in planned]),
            "said_saved_pct": round(100 * float(np.mean([said.saved.value for _, said in gains])), 2),
            "said_slower_pct": round(100 * float(np.mean([said.slower.value for _, said in gains])), 2),
            "inside": {figure: round(float(np.mean(hits)), 3) for figure, hits in inside.items()},
        }
        ones = [job.one_limit for job in planned if job.one_limit is not None]
        if ones and not setup.same_power:
            row["one_limit_pct"] = round(100 * float(np.mean(ones)), 2)
    row["braked_named"] = sum(bool(job.braked) for job in jobs)
    say(f"power plans: {row}")
    return row


def _quantiles(shares: Sequence[float | None]) -> dict[str, float]:
    values = 100 * np.array(shares, dtype=np.float64)
    low, high = np.quantile(values, (0.05, 0.95))
    figures = {"mean": values.mean(), "q05": low, "q95": high, "most": values.max()}
    return {figure: round(float(value), 2) for figure, value in figures.items()}


def planted(model: str, size: str, seeds: Sequence[int], every: int = GPUS) -> dict[str, Any]:
    """A braked GPU in one job of a fleet, or in one of so many GPUs: how often it is named, and another one is."""
    at = {first + 3: f"brake={size}" for first in range(0, GPUS, every)}
    fleets = [list(jobs_of(Setup(model, draw={"faults": 0, "at": at}), seed)) for seed in seeds]
    jobs = [job for fleet in fleets for job in fleet[:: every // PER_JOB]]
    return {
        "model": model,
        "size": size,
        "braked_of_64": GPUS // every,
        "named": share(sum(3 in job.braked for job in jobs), len(jobs)),
        "others_named": sum(len(job.braked) for fleet in fleets for job in fleet)
        - sum(3 in job.braked for job in jobs),
    }


def by_the_command_line(seeds: Sequence[int], suite: str, neighbours: str) -> dict[str, Any]:
    """Plans that `whorl` makes of stores that `whorl probe run` made of simulated H100s: 4 jobs of 8 a fleet.

    All 32 GPUs run once at the highest limit and once under each of four lower ones, on five days.
    """
    saved, slower, inside, refused = [], [], [], 0
    model = find_model("H100")
    for seed in seeds:
        fleet = Fleet.draw(model, 32, seed, faults=0)
        places = {who.uuid: place for place, who in enumerate(identities(seed, 32, model.name))}
        speed, _, true_w, _ = under(fleet, SGEMM, model.power_limit_w)
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            for limit in (None, 665, 630, 595, 560):
                whorl.measure(
                    store, "gemm-fp32", backend="simulated", model="H100", gpus=32, seed=seed, suite=suite,
                    neighbours=neighbours, power_limit=limit,
                )  # fmt: skip
            for node in range(1, 9, 2):
                plan = whorl.advise_power_plan(store, hosts=f"c001-[{node}-{node + 1}]", workload="gemm-fp32").json()
                if plan["refused"]:
                    refused += 1
                    continue
                limit_w = np.full(32, model.power_limit_w)
                job = [places[row["gpu"]] for row in plan["rows"]]
                limit_w[job] = [row["plan_limit_w"] for row in plan["rows"]]
                after_speed, _, after_w, _ = under(fleet, SGEMM, limit_w)
                gained = 1 - step_energy(after_speed[job], after_w[job]) / step_energy(speed[job], true_w[job])
                later = step_time(after_speed[job]) / step_time(speed[job]) - 1
                saved.append(float(gained))
                slower.append(float(later))
                inside.append(
                    [plan[f"low_{name}_pct"] - 1e-9 <= 100 * figure <= plan[f"high_{name}_pct"]
                     for name, figure in (("saved", gained), ("slower", later))]
                )  # fmt: skip
    rates = np.mean(inside, axis=0) if inside else (float("nan"),) * 2
    row = {
        "suite": suite, "neighbours": neighbours, "jobs": len(saved) + refused, "refused": refused,
        "saved_pct": _quantiles(saved), "slower_pct": _quantiles(slower),
        "inside": {"saved": round(float(rates[0]), 3), "slower": round(float(rates[1]), 3)},
    }  # fmt: skip
    say(f"power plans by the command line: {row}")
    return row


def section(options: TuneOptions | None = None) -> dict[str, Any]:
    """The section `power_plans` of the results."""
    fleets = 48 if options is not None and options.long else 12
    seeds = range(FIRST_SEED, FIRST_SEED + fleets)
    few = seeds[: max(4, fleets // 3)]
    accept = [
        table_row(f"{model} {work.name} {limit:g}", Setup(model, work, limit), seeds)
        for model in ("H100", "V100")
        for work in (SGEMM, WORKLOADS["resnet"], WORKLOADS["bert"])
        for limit in (1.0, 0.75, 0.6)
    ]
    spreads = {
        f"population {name}": Setup(draw={"faults": 0, "spread": spread}) for name, spread in POPULATIONS.items()
    }
    del spreads["population node"]  # hosts and links: no part of a matrix product
    broken = {
        **spreads,
        "one GPU in 8 faulty": Setup(draw={"faults": 8}),
        "noise of a run 0.3 %": Setup(noise=0.003),
        "noise of a run 1 %": Setup(noise=0.01),
        "a sensor in each job reads 5 % low": Setup(sensor_low=0.05),
        "gain of sensors: sd 3 %": Setup(draw={"faults": 0, "spread": Spread(sensor=0.03)}),
        "class of 3 GPUs": Setup(class_gpus=3),
        "class of 6 GPUs": Setup(class_gpus=6),
        "class of 64 GPUs": Setup(class_gpus=GPUS),
    }
    same_power = [
        table_row(f"{model} sgemm {limit:g}, same power", Setup(model, limit=limit, same_power=True), few)
        for model in ("H100", "V100")
        for limit in (0.6, 0.75)
    ]
    return {
        "first_seed": FIRST_SEED,
        "accept": accept,
        "broken": [table_row(name, setup, few) for name, setup in broken.items()],
        "same_power": same_power,
        "braked": [
            planted(model, size, seeds, every)
            for model in ("H100", "V100")
            for size, every in (("19.35%", PER_JOB), ("19.35%", GPUS), ("12%", GPUS), ("8%", GPUS), ("5%", GPUS))
        ],
        "command_line": [
            by_the_command_line(seeds[: max(3, fleets // 4)], suite, neighbours)
            for suite, neighbours in (("full", "busy"), ("standard", "idle"))
        ],
    }


if __name__ == "__main__":
    print(as_json(section()))
