"""Power plans of synchronous jobs: the formulas, and what plans truly do in simulated fleets."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from whorl.analysis.tuning.power_plan import (
    ClassRuns,
    PlanRefusal,
    SyncJob,
    braked,
    expected_power,
    plan_limits,
    plan_power,
    step_energy,
    step_time,
)
from whorl.benchmarks.tune import Setup, jobs_of, planted
from whorl.tests.analysis.longhorn import needs_longhorn, raw
from whorl.tests.sizes import count

LIMITS = np.array([300.0, 400.0, 500.0])
RUNS = ClassRuns(LIMITS, np.outer([0.98, 1.0, 1.03], [0.8, 0.9, 1.0]), np.outer([1.0, 1.0, 1.0], LIMITS - 5))
"""A class whose GPUs have the same curve: 10 % of the speed for 100 W."""


def job(speed: list[float], limit_w: float = 500.0, held: bool = True) -> SyncJob:
    median = np.interp(limit_w, LIMITS, [0.8, 0.9, 1.0])
    gpus = len(speed)
    return SyncJob(
        np.array(speed) * median, np.full(gpus, limit_w - 5), np.full(gpus, limit_w), np.full(gpus, fill_value=held)
    )


def test_every_gpu_gets_the_lowest_limit_at_which_it_is_as_fast_as_the_slowest() -> None:
    gang = job([1.0, 1.04, 1.1])
    limit_w = plan_limits(gang, RUNS)
    assert limit_w is not None
    # 1 / 1.04 = 0.9615 of the speed is that at 461.5 W, 1 / 1.1 = 0.9091 at 409.1 W; steps of 5 W
    assert limit_w.tolist() == [500, 465, 410]
    assert expected_power(gang, RUNS, limit_w).tolist() == pytest.approx([495, 460, 405])
    lowest = plan_limits(job([1.0, 2.0]), RUNS)
    assert lowest is not None
    assert lowest.tolist() == [500, 300], "no limit below those that were measured"


def test_energy_of_a_step_with_gpus_that_wait() -> None:
    speed, power_w = np.array([1.0, 2.0]), np.array([100.0, 300.0])
    assert step_time(speed) == 1.0
    assert step_energy(speed, power_w) == pytest.approx(100 * 1 + 300 * 0.5 + 0.45 * 300 * 0.5)
    assert step_energy(speed, power_w, 0.0) == pytest.approx(250)


@pytest.mark.parametrize("budget_w", [950, 1100, 1283, 1400, 2000])
def test_no_combination_of_limits_within_the_budget_is_faster(budget_w: float) -> None:
    ratio = np.array([1.0, 1.03, 0.95])
    gang = job(ratio.tolist(), limit_w=400)
    limit_w = plan_limits(gang, RUNS, budget_w=budget_w, highest_w=500)
    assert limit_w is not None
    assert expected_power(gang, RUNS, limit_w).sum() <= budget_w
    steps = np.arange(300, 501, 5.0)
    all_settings = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(-1, 3)
    fits = all_settings[(all_settings - 5).sum(axis=1) <= budget_w]
    speed = np.interp(np.vstack([limit_w, fits]), LIMITS, [0.8, 0.9, 1.0]) * ratio
    assert speed[0].min() == pytest.approx(speed[1:].min(axis=1).max())


def noisy(sd: float) -> ClassRuns:
    factors = np.exp(sd * np.random.default_rng(5).standard_normal((200, 3)))
    return ClassRuns(LIMITS, factors * RUNS.speed[1], factors * RUNS.power_w[1])


def test_plans_are_refused_where_they_would_not_pay() -> None:
    different = [1.0, 1.04, 1.1, 1.02]
    assert plan_power(job(different, held=False), RUNS).refusal is PlanRefusal.NOT_HELD
    assert plan_power(job(different), noisy(0.004)).refusal is PlanRefusal.NOISY
    assert plan_power(job([1.0] * 4), RUNS).refusal is PlanRefusal.NO_GAIN
    assert plan_power(job(different), RUNS, budget_w=700).refusal is PlanRefusal.OVER_BUDGET
    assert plan_power(job(different), noisy(0.002)).refusal is None


def test_the_interval_of_the_saving_holds_the_range_of_waiting_power() -> None:
    gang = job([1.0, 1.1, 1.1, 1.1])
    plan = plan_power(gang, RUNS)
    assert plan.gains is not None
    assert plan.limit_w is not None
    speed = np.interp(plan.limit_w, LIMITS, [0.8, 0.9, 1.0]) * [1.0, 1.1, 1.1, 1.1]
    saved = [
        1 - step_energy(speed, plan.limit_w - 5, waiting) / step_energy(gang.speed, gang.power_w, waiting)
        for waiting in (0.31, 0.45, 0.59)
    ]
    assert plan.gains.saved.low <= min(saved) < max(saved) <= plan.gains.saved.high
    assert plan.gains.saved.value == pytest.approx(saved[1], abs=1e-3)
    assert plan.gains.slower.value == pytest.approx(0, abs=1e-5)


def test_a_braked_gpu_stands_out_of_its_class_and_the_slowest_of_a_class_does_not() -> None:
    speed = np.exp(0.016 * np.random.default_rng(1).standard_normal(64))
    assert not braked(speed).any()
    speed[7] *= 0.85
    assert np.flatnonzero(braked(speed)).tolist() == [7]
    near_equal = np.append(np.exp(1e-4 * np.arange(20)), 0.985)
    assert not braked(near_equal).any(), "1.5 % is no brake, however alike the others are"
    assert not braked(speed[5:8]).any(), "three GPUs say nothing"


@needs_longhorn
def test_of_392_real_gpus_the_one_whose_power_stood_at_250_w_is_the_braked_one() -> None:
    gpus = raw("sgemm").filter(pl.col("perf") > 0).group_by("uuid").agg(pl.col("perf", "pwr").median())
    slow = gpus.filter(pl.Series(braked(1 / gpus["perf"].to_numpy())))
    assert gpus.height == 392
    assert slow["pwr"].round().to_list() == [250.0]
    assert slow["perf"][0] / gpus["perf"].median() > 1.2
    pages = raw("pagerank").filter(pl.col("perf") > 0).group_by("uuid").agg(pl.col("perf").median())
    assert not braked(1 / pages["perf"].to_numpy()).any()


def test_simulated_jobs_save_energy_at_nearly_the_same_speed() -> None:
    """The customer's bounds on H100 under the highest limit; `benchmarks.tune` has more fleets and setups."""
    jobs = [done for seed in range(700, 700 + count(48, short=6)) for done in jobs_of(Setup(), seed)]
    saved, slower = (np.array([getattr(done, name) for done in jobs], np.float64) for name in ("saved", "slower"))
    assert np.isfinite(saved).all(), "no job is refused"
    assert saved.mean() >= 0.04
    assert slower.mean() <= 0.003
    assert np.quantile(slower, 0.95) <= 0.007
    inside = [
        [
            gains.saved.low <= done.saved_waiting <= gains.saved.high,
            gains.slower.low - 1e-9 <= done.slower <= gains.slower.high,
        ]
        for done in jobs
        if (gains := done.plan.gains) is not None and done.saved_waiting is not None and done.slower is not None
    ]
    assert np.mean(inside, axis=0).min() >= 0.9
    assert not any(done.braked for done in jobs)


def test_a_planted_brake_is_named_in_every_job() -> None:
    row = planted("H100", "19.35%", (700, 701), spacing=8)
    assert row["named"]["share"] == 1
    assert row["others_named"] == 0
