"""Power limits for the GPUs of a synchronous job, whose steps wait for its slowest GPU.

With R a GPU's speed (1 / time), P its reported power, c0 its present limit, and R_med(c), P_med(c) those of the median
GPU of its class (model) under a limit c:

    r_g = R_g(c0) / R_med(c0)      p_g = P_g(c0) / P_med(c0)
    same speed:    c_g = the lowest c <= c0 with R_med(c) r_g >= r*,   r* = min_g R_g(c0)
    within power:  the largest r* with sum_g P_med(c_g) p_g <= budget
    energy of a step:  sum_g P_g / R_g + w P_g (T - 1 / R_g),   T = 1 / min_g R_g

w is the power of a GPU that waits, as a share of its power at work: assumed, so intervals take a range of it. A limit
regulates reported power, so p_g compares a sensor with itself only. A clock moves in steps, a plan between them: the
speeds must be means over a time in which the driver moves the clock, and the class's curve is a line between limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import ceil, floor, hypot, inf

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

STEP_W = 5.0
"""Limits of a plan are multiples of this."""
WAITING, WAITING_RANGE = 0.45, (0.3, 0.6)
"""w: power of a GPU that waits for others over that at work (assumed), and the range that intervals take it from."""
FULL_CLOCK = 0.98
"""A GPU whose median clock is at least this share of its highest is not held down by its power limit."""
MOST_NOISE = 0.003
"""Standard deviation of ln time from run to run above which speeds of single runs give no plan."""
FEWEST_GPUS = 3
"""GPUs of the class under several limits that a curve needs."""
BRAKED_SD, BRAKED_SHARE = 4.5, 0.03
"""A GPU is braked that is slower than the class's median by more than both: robust standard deviations, and a share."""
FEWEST_BESIDE = 5
"""GPUs at one limit that it takes to call one of them braked."""
COLDER_SD = 0.006
"""Standard deviation of ln speed between a short run beside idle GPUs and long work beside busy ones (simulated)."""
_DRAWS = 2000
_MAD_SD = 1.4826  # of normal values: standard deviation over median absolute deviation


class PlanRefusal(StrEnum):
    """Why there is no plan."""

    NOT_HELD = "not at its limit"
    NOISY = "noise"
    NO_GAIN = "no gain"
    OVER_BUDGET = "budget too low"
    INDEPENDENT = "independent jobs"


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SyncJob:
    """The GPUs of a job at their present limits: arrays of shape (gpus,)."""

    speed: Floats
    """1 / time of the work."""
    power_w: Floats
    """Reported power."""
    limit_w: Floats
    held: Flags
    """Whether the power limit holds the clock down."""
    colder: float = 0.0
    """Standard deviation by which ln speeds in the job differ from these because the GPUs were colder here."""

    @property
    def at_limit(self) -> bool:
        """Whether at least half of the GPUs are held by their limit: else lower limits buy their saving with time."""
        return bool(self.held.mean() >= 0.5)


@dataclass(frozen=True)
class ClassRuns:
    """GPUs of one model under several power limits; NaN where a GPU did not run under a limit."""

    limits_w: Floats
    """(limits,) rising."""
    speed: Floats
    """(gpus, limits)."""
    power_w: Floats
    """(gpus, limits) reported."""

    @cached_property
    def reference(self) -> int:
        """The limit that most GPUs ran under, the highest of these: its place in `limits_w`."""
        counts = np.isfinite(self.speed).sum(axis=0)
        return int(np.flatnonzero(counts == counts.max())[-1])

    @cached_property
    def speed_shapes(self) -> Floats:
        """(gpus, limits) the speed of each GPU that ran under the reference limit, over that there."""
        return _shapes(self.speed, self.reference, self.limits_w)

    @cached_property
    def power_shapes(self) -> Floats:
        """(gpus, limits) the power likewise."""
        return _shapes(self.power_w, self.reference, self.limits_w)

    def median_speed(self, limit_w: Floats) -> Floats:
        """R_med at limits: of the GPUs' median shape, which never falls with the limit."""
        shape = np.maximum.accumulate(np.median(self.speed_shapes, axis=0))
        return np.nanmedian(self.speed[:, self.reference]) * np.interp(limit_w, self.limits_w, shape)

    def median_power(self, limit_w: Floats) -> Floats:
        """P_med at limits, W."""
        shape = np.median(self.power_shapes, axis=0)
        return np.nanmedian(self.power_w[:, self.reference]) * np.interp(limit_w, self.limits_w, shape)

    def noise(self) -> float:
        """The standard deviation of ln time from run to run, at most; NaN where too few GPUs ran under two limits.

        It is how GPUs change beside each other from one limit to the next, the median of all pairs of neighbours. GPUs
        truly respond differently too, which is in it.
        """
        changes = np.diff(np.log(self.speed), axis=1)
        changes = changes[:, np.isfinite(changes).sum(axis=0) >= FEWEST_GPUS]
        if not changes.shape[1]:
            return float("nan")
        return float(np.median(np.nanstd(changes, axis=0, ddof=1)) / np.sqrt(2))


def _shapes(values: Floats, reference: int, limits_w: Floats) -> Floats:
    """Rows over their value at the reference; what is missing lies on the line of the others' median."""
    rows = values[np.isfinite(values[:, reference])]
    ratios = np.log(rows / rows[:, [reference]])
    middle = np.nanmedian(ratios, axis=0)
    off = ratios - middle
    filled = [np.interp(limits_w, limits_w[np.isfinite(row)], row[np.isfinite(row)]) for row in off]
    return np.asarray(np.exp(middle + np.array(filled)))


def same_speed(job: SyncJob, runs: ClassRuns) -> Floats:
    """(gpus,) the limits with which every GPU is as fast as the slowest is at its present limit, W."""
    return _limits_for(float(job.speed.min()), job, runs, job.limit_w)


def within_budget(job: SyncJob, runs: ClassRuns, budget_w: float, highest_w: float) -> Floats | None:
    """(gpus,) the limits of the fastest job whose reported power is at most `budget_w`; None where no limits fit.

    No GPU gets more than `highest_w` or the highest limit of the class's curve.
    """
    tops = np.full(len(job.speed), min(highest_w, float(runs.limits_w[-1])))
    low, high = (float((_ratio(job, runs) * runs.median_speed(at)).min()) for at in (tops * 0 + runs.limits_w[0], tops))

    def limits(speed: float) -> Floats | None:
        fitted_w = _limits_for(speed, job, runs, tops)
        return fitted_w if expected_power(job, runs, fitted_w).sum() <= budget_w else None

    if (fastest := limits(high)) is not None:
        return fastest
    if (best := limits(low)) is None:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        if (fitting := limits(middle)) is None:
            high = middle
        else:
            low, best = middle, fitting
    return best


def _ratio(job: SyncJob, runs: ClassRuns) -> Floats:
    return job.speed / runs.median_speed(job.limit_w)


def _limits_for(speed: float, job: SyncJob, runs: ClassRuns, tops: Floats) -> Floats:
    """The lowest limits, up to `tops`, at which each GPU reaches a speed; the top where it does not."""
    limits_w = tops.copy()
    lowest = ceil(runs.limits_w[0] / STEP_W) * STEP_W
    for gpu, ratio in enumerate(_ratio(job, runs)):
        grid = np.arange(lowest, floor(tops[gpu] / STEP_W) * STEP_W + STEP_W / 2, STEP_W)
        fast = np.flatnonzero(runs.median_speed(grid) * ratio >= speed * (1 - 1e-9))
        if len(fast):
            limits_w[gpu] = grid[fast[0]]
    return limits_w


def expected_power(job: SyncJob, runs: ClassRuns, limit_w: Floats) -> Floats:
    """(gpus,) the power that each GPU will report at work under its limit, W."""
    ratio = job.power_w / runs.median_power(job.limit_w)
    return np.asarray(runs.median_power(limit_w) * ratio)


def step_time(speed: Floats) -> Floats:
    """Time of a step, of the slowest of the last axis."""
    return np.asarray(1 / speed.min(axis=-1))


def step_energy(speed: Floats, power_w: Floats, waiting: Floats | float = WAITING) -> Floats:
    """Energy of a step, of all GPUs on the last axis; `waiting` is w."""
    busy = power_w / speed
    idle = power_w * (step_time(speed)[..., None] - 1 / speed)
    return np.asarray(busy.sum(axis=-1) + waiting * idle.sum(axis=-1))


@dataclass(frozen=True)
class StepGains:
    """What a change does to a step of a job, as shares of what was before: energy saved, and time added."""

    saved: Estimate
    slower: Estimate


@dataclass(frozen=True)
class PowerPlan:
    """A limit for each GPU of a job, with what it does; or the reason why there is none."""

    refusal: PlanRefusal | None
    limit_w: Floats | None = None
    """(gpus,)"""
    power_w: Floats | None = None
    """(gpus,) the power that each will report at work."""
    gains: StepGains | None = None
    """Against the present limits. Also of a plan that is refused because it gains nothing."""


State = tuple[Floats, Floats]
"""(draws, gpus) speed and reported power of the GPUs of a job."""


class Draws:
    """What the GPUs of a job may truly be, given one run each: their noise, and the curve of a random GPU of the class.

    A GPU's own curve is that of a random GPU of the class, drawn from a bootstrap sample of the class, so that a class
    of few GPUs gives wider intervals. `noise`: standard deviation of ln time of the measured speeds.
    """

    def __init__(self, job: SyncJob, runs: ClassRuns, noise: float, seed: int = 0) -> None:
        self._job, self._runs, self._rng = job, runs, np.random.default_rng(seed)
        gpus, beside = len(job.speed), len(runs.speed_shapes)
        sample = self._rng.integers(beside, size=(_DRAWS, beside))
        self._like = np.take_along_axis(sample, self._rng.integers(beside, size=(_DRAWS, gpus)), axis=1)
        self._waiting = self._rng.uniform(*WAITING_RANGE, _DRAWS)
        speed = job.speed * np.exp(hypot(noise, job.colder) * self._rng.standard_normal((_DRAWS, gpus)))
        self.present: State = speed, np.broadcast_to(job.power_w, speed.shape)

    def under(self, limit_w: Floats) -> State:
        """The GPUs under other limits, (gpus,)."""
        speed, power_w = self.present
        shapes = self._runs.speed_shapes, self._runs.power_shapes
        return speed * self._change(shapes[0], limit_w), power_w * self._change(shapes[1], limit_w)

    def _change(self, shapes: Floats, limit_w: Floats) -> Floats:
        limits, now_w = self._runs.limits_w, self._job.limit_w
        change = np.array([np.interp(limit_w, limits, row) / np.interp(now_w, limits, row) for row in shapes])
        return np.asarray(np.take_along_axis(change, self._like, axis=0))

    def exchanged(self, gpus: Flags, ratio: Floats) -> State:
        """The job with other GPUs of the class in place of some, (gpus,), under the same limits.

        Their speeds over that of the class's median GPU are drawn from `ratio`, (class,); their power is the median's.
        """
        limit_w, drawn = self._job.limit_w, self._rng.choice(ratio, self._like.shape)
        speed = np.where(gpus, self._runs.median_speed(limit_w) * drawn, self.present[0])
        return speed, np.where(gpus, self._runs.median_power(limit_w), self.present[1])

    def gains(self, after: State, before: State) -> StepGains:
        """What a step saves and how much longer it takes than one before."""
        saved = 1 - step_energy(*after, self._waiting) / step_energy(*before, self._waiting)
        return StepGains(_estimate(saved), _estimate(step_time(after[0]) / step_time(before[0]) - 1))


def _estimate(draws: Floats) -> Estimate:
    low, high = np.quantile(draws, (0.025, 0.975))
    return Estimate(float(draws.mean()), float(low), float(high))


def plan_power(
    job: SyncJob, runs: ClassRuns, noise: float, *, budget_w: float | None = None, highest_w: float = inf, seed: int = 0
) -> PowerPlan:
    """The plan of a job: the speed of its slowest GPU for all, or with a budget the highest speed within it.

    Refused where fewer than half of the GPUs are held by their limit, where `noise` is above `MOST_NOISE` or unknown
    (NaN), where no limits fit the budget, and without a budget where the interval of the saving reaches 0.
    """
    if not job.at_limit:
        return PowerPlan(PlanRefusal.NOT_HELD)
    if not noise <= MOST_NOISE:
        return PowerPlan(PlanRefusal.NOISY)
    limit_w = same_speed(job, runs) if budget_w is None else within_budget(job, runs, budget_w, highest_w)
    if limit_w is None:
        return PowerPlan(PlanRefusal.OVER_BUDGET)
    draws = Draws(job, runs, noise, seed)
    gains = draws.gains(draws.under(limit_w), draws.present)
    worthless = budget_w is None and gains.saved.low <= 0
    return PowerPlan(PlanRefusal.NO_GAIN if worthless else None, limit_w, expected_power(job, runs, limit_w), gains)


def braked(speed: Floats, beside: Floats) -> Flags:
    """(gpus,) which GPUs of these speeds are clearly slower than their class.

    `beside`: the speeds of the class, these GPUs among them. A GPU is braked whose ln speed lies more than `BRAKED_SD`
    robust standard deviations (from the median absolute deviation) and more than `BRAKED_SHARE` below their median;
    nobody where there are fewer than `FEWEST_BESIDE`.
    """
    if len(beside) < FEWEST_BESIDE:
        return np.zeros(len(speed), dtype=np.bool_)
    logs = np.log(beside)
    middle = np.median(logs)
    scale = _MAD_SD * np.median(np.abs(logs - middle))
    below = middle - np.log(speed)
    return np.asarray((below > BRAKED_SD * scale) & (below > -np.log(1 - BRAKED_SHARE)))
