"""Power limits for the GPUs of a synchronous job, whose steps wait for its slowest GPU.

With R a GPU's speed (1 / time), P its reported power, c0 its present limit, and R_med(c), P_med(c) those of the median
GPU of its class (model) under a limit c:

    same speed:    c_g = the lowest c <= c0 with R_g(c0) R_med(c) / R_med(c0) >= r*,   r* = min_g R_g(c0)
    within power:  the largest r* with sum_g P_g(c0) P_med(c_g) / P_med(c0) <= budget
    energy of a step:  sum_g P_g / R_g + w P_g (T - 1 / R_g),   T = 1 / min_g R_g

w is the power of a GPU that waits, as a share of its power at work: assumed, so intervals take a range of it. A limit
regulates reported power, so a sensor is compared with itself only. A clock moves in steps, a plan between them: the
speeds must be means over a time in which the driver moves the clock, and the class's curve is a line between limits.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf, pi

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

STEP_W = 5.0  # limits of a plan are multiples of this
WAITING, WAITING_RANGE = 0.45, (0.3, 0.6)
"""w: power of a GPU that waits for others over that at work (assumed), and the range that intervals take it from."""
FULL_CLOCK = 0.98  # a GPU whose median clock is at least this share of its highest is not held down by its power limit
MOST_NOISE = 0.003  # standard deviation of ln time from run to run above which speeds of single runs give no plan
FEWEST_GPUS = 3  # GPUs of the class under a limit that a curve needs
BRAKED_SD, BRAKED_SHARE = 4.5, 0.03
"""A GPU is braked that is slower than the class's median by more than both: robust standard deviations, and a share."""
FEWEST_BESIDE = 5  # GPUs at one limit that it takes to call one of them braked
_DRAWS = 2000
_MAD_SD = 1.4826  # of normal values: standard deviation over median absolute deviation


State = tuple[Floats, Floats]  # (draws, gpus) speed and reported power of the GPUs of a job


class PlanRefusal(StrEnum):
    """Why there is no plan."""

    NOT_HELD = "not at its limit"
    NOISY = "noise"
    NO_GAIN = "no gain"
    OVER_BUDGET = "budget too low"


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class StepGains:
    """What a change does to a step of a job, as shares of what was before: energy saved, and time added."""

    saved: Estimate
    slower: Estimate


@dataclass(frozen=True)
class SyncJob:
    """The GPUs of a job at their present limits: arrays of shape (gpus,)."""

    speed: Floats  # 1 / time of the work
    power_w: Floats  # reported power
    limit_w: Floats
    held: Flags  # whether the power limit holds the clock down

    @property
    def at_limit(self) -> bool:
        """Whether at least half of the GPUs are held by their limit: else lower limits buy their saving with time."""
        return bool(self.held.mean() >= 0.5)


@dataclass(frozen=True)
class ClassRuns:
    """GPUs of one model under several power limits; NaN where a GPU did not run under a limit.

    `FEWEST_GPUS` or more ran under each limit, and all of them under limits up to the job's present ones or higher.
    """

    limits_w: Floats  # (limits,) rising
    speed: Floats  # (gpus, limits)
    power_w: Floats  # (gpus, limits) reported

    def noise(self) -> float:
        """The standard deviation of ln time from run to run, at most; NaN where too few GPUs ran under two limits.

        It is how GPUs change beside each other from one limit to the next, the median of all pairs of neighbours. GPUs
        truly respond differently too, which is in it.
        """
        changes = np.diff(np.log(self.speed), axis=1)
        changes = changes[:, np.isfinite(changes).sum(axis=0) >= FEWEST_GPUS]
        return float(np.median(np.nanstd(changes, axis=0, ddof=1)) / np.sqrt(2)) if changes.size else float("nan")

    def changes(self, values: Floats, job: SyncJob, limit_w: Floats) -> Floats:
        """(class, ..., gpus) `values` of each GPU of the class under limits (..., gpus), over those under the job's.

        NaN outside the limits that a GPU ran under.
        """

        def under(row: Floats, watts: Floats) -> Floats:
            ran = np.isfinite(row)
            return np.interp(watts, self.limits_w[ran], row[ran], left=np.nan, right=np.nan)

        return np.array([under(row, limit_w) / under(row, job.limit_w) for row in values])


def expected_speed(job: SyncJob, runs: ClassRuns, limit_w: Floats) -> Floats:
    """(..., gpus) the speeds under limits of that shape: R_g(c0) R_med(c) / R_med(c0)."""
    return np.asarray(job.speed * np.nanmedian(runs.changes(runs.speed, job, limit_w), axis=0))


def expected_power(job: SyncJob, runs: ClassRuns, limit_w: Floats) -> Floats:
    """(..., gpus) the power at work that will be reported under limits of that shape, W."""
    return np.asarray(job.power_w * np.nanmedian(runs.changes(runs.power_w, job, limit_w), axis=0))


def plan_limits(
    job: SyncJob, runs: ClassRuns, *, budget_w: float | None = None, highest_w: float = inf
) -> Floats | None:
    """(gpus,) the limits with which every GPU is as fast as the slowest is at its present limit, W.

    With a budget those of the fastest job whose reported power is at most that, where no GPU gets more than `highest_w`
    or the highest limit of the class's curve; None where no limits fit.
    """
    highest_w = min(highest_w, float(runs.limits_w[-1]))
    tops_w = job.limit_w if budget_w is None else np.full(len(job.speed), highest_w)
    steps_w = np.arange(ceil(runs.limits_w[0] / STEP_W) * STEP_W, tops_w.max() + STEP_W / 2, STEP_W)
    limits_w = np.broadcast_to(steps_w[:, None], (len(steps_w), len(tops_w)))
    speeds = np.maximum.accumulate(expected_speed(job, runs, limits_w))
    speeds = np.where(limits_w <= tops_w, speeds, np.nan)

    def lowest(speed: float) -> Floats:
        """The lowest limits at which each GPU reaches a speed; the top where it does not."""
        fast = speeds >= speed * (1 - 1e-9)
        return np.where(fast.any(axis=0), steps_w[fast.argmax(axis=0)], tops_w)

    if budget_w is None:
        return lowest(job.speed.min())
    reachable = np.unique(speeds[speeds <= np.nanmax(speeds, axis=0).min()])
    fitting = bisect_right(reachable, budget_w, key=lambda speed: expected_power(job, runs, lowest(speed)).sum())
    return lowest(reachable[fitting - 1]) if fitting else None


def step_time(speed: Floats) -> Floats:
    """Time of a step, of the slowest of the last axis."""
    return np.asarray(1 / speed.min(axis=-1))


def step_energy(speed: Floats, power_w: Floats, waiting: Floats | float = WAITING) -> Floats:
    """Energy of a step, of all GPUs on the last axis; `waiting` is w."""
    busy = power_w / speed
    idle = power_w * (step_time(speed)[..., None] - 1 / speed)
    return np.asarray(busy.sum(axis=-1) + waiting * idle.sum(axis=-1))


def step_gains(before: State, after: State) -> StepGains:
    """What a step of a job gains by a change; the draws are in no order."""
    waiting = np.linspace(*WAITING_RANGE, _DRAWS)
    saved = 1 - step_energy(*after, waiting) / step_energy(*before, waiting)
    figures = saved, step_time(after[0]) / step_time(before[0]) - 1
    return StepGains(
        *(Estimate(float(part.mean()), *map(float, np.quantile(part, (0.025, 0.975)))) for part in figures)
    )


def _present(job: SyncJob, noise: float, rng: np.random.Generator) -> State:
    """What the GPUs may truly be, whose speeds have the noise of a run."""
    shape = _DRAWS, len(job.speed)
    return job.speed * np.exp(noise * rng.standard_normal(shape)), np.broadcast_to(job.power_w, shape)


def plan_gains(job: SyncJob, runs: ClassRuns, limit_w: Floats) -> StepGains:
    """The gains of limits, (gpus,): each GPU changes as a random one of the class, its present speed has a run's noise.

    The median of the class's changes is off by an error that all GPUs have in common, whose variance is pi / 2 times
    that of a mean (of normal values). The noise of two runs, which is in these changes, makes intervals a little wide.
    """
    rng = np.random.default_rng(0)
    present = speed, power_w = _present(job, runs.noise(), rng)

    def change(values: Floats) -> Floats:
        changes = np.log(runs.changes(values, job, limit_w))
        gpus, sd = np.isfinite(changes).sum(axis=0), np.nanstd(changes, axis=0, ddof=1)
        own = rng.standard_t(gpus - 1, speed.shape)
        common = np.sqrt(pi / 2 / gpus) * rng.standard_normal((_DRAWS, 1))
        return np.asarray(np.exp(np.nanmedian(changes, axis=0) + sd * (own + common)))

    return step_gains(present, (speed * change(runs.speed), power_w * change(runs.power_w)))


def exchange_gains(job: SyncJob, slow: Floats, usual: Floats, noise: float) -> StepGains:
    """What random other GPUs of the class in place of some do to a step, under the same limits.

    `slow`: (gpus, 2) speed and power of the GPUs that go, over the class's median; NaN of those that stay. `usual`:
    (class, 2) those of the GPUs of the class. `noise`: of a run.
    """
    rng = np.random.default_rng(0)
    present = speed, power_w = _present(job, noise, rng)
    change = usual[rng.integers(len(usual), size=speed.shape)] / slow
    change[:, np.isnan(slow)] = 1.0
    return step_gains(present, (speed * change[..., 0], power_w * change[..., 1]))


@dataclass(frozen=True)
class PowerPlan:
    """A limit for each GPU of a job, with what it does; or the reason why there is none."""

    refusal: PlanRefusal | None
    limit_w: Floats | None = None  # (gpus,)
    power_w: Floats | None = None  # (gpus,) the power that each will report at work
    gains: StepGains | None = None
    """Against the present limits. Also of a plan that is refused because it gains nothing."""


def plan_power(job: SyncJob, runs: ClassRuns, *, budget_w: float | None = None, highest_w: float = inf) -> PowerPlan:
    """The plan of a job: the speed of its slowest GPU for all, or with a budget the highest speed within it.

    Refused where fewer than half of the GPUs are held by their limit, where the noise of a run is above `MOST_NOISE` or
    unknown, where no limits fit the budget, and without a budget where the interval of the saving reaches 0.
    """
    if not job.at_limit:
        return PowerPlan(PlanRefusal.NOT_HELD)
    if not runs.noise() <= MOST_NOISE:
        return PowerPlan(PlanRefusal.NOISY)
    limit_w = plan_limits(job, runs, budget_w=budget_w, highest_w=highest_w)
    if limit_w is None:
        return PowerPlan(PlanRefusal.OVER_BUDGET)
    gains = plan_gains(job, runs, limit_w)
    worthless = budget_w is None and gains.saved.low <= 0
    return PowerPlan(PlanRefusal.NO_GAIN if worthless else None, limit_w, expected_power(job, runs, limit_w), gains)


def braked(speed: Floats) -> Flags:
    """(gpus,) which GPUs of a class, of which these are all speeds, are clearly slower than it.

    A GPU is braked whose ln speed lies more than `BRAKED_SD` robust standard deviations (from the median absolute
    deviation) and more than `BRAKED_SHARE` below their median; nobody where there are fewer than `FEWEST_BESIDE`.
    """
    below = np.median(np.log(speed)) - np.log(speed)
    scale = _MAD_SD * np.median(np.abs(below))
    slow = (below > BRAKED_SD * scale) & (below > -np.log(1 - BRAKED_SHARE))
    return np.asarray(slow & (len(speed) >= FEWEST_BESIDE))
