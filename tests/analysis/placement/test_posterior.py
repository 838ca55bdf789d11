"""Scores from runs of fleets whose scores are known."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.placement.posterior import (
    LogTimes,
    Posterior,
    RunNoise,
    core_scale,
    permutation_test,
    posterior,
    run_noises,
)
from whorl.tests.analysis.placement.fleets import Floats


def _log_times(values: Floats) -> LogTimes:
    """Log times (gpus, runs) about the median GPU."""
    gpus, runs = values.shape
    level = np.median(np.median(values, axis=1))
    starts = np.arange(gpus + 1) * runs
    return LogTimes((values - level).ravel(), starts, np.full(gpus * runs, -1))


def _scored(seed: int, log_score: Floats, runs: int, sd: float, glitches: float = 0.0) -> Posterior:
    rng = np.random.default_rng(seed)
    values = log_score[:, None] + rng.normal(0.0, sd, (len(log_score), runs))
    values += np.where(rng.random(values.shape) < glitches, np.log(1.5), 0.0)
    return posterior(_log_times(values), rng)


def test_the_density_of_the_noise_is_one_density_with_far_runs_too() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.0, 0.02, (300, 5)) + np.where(rng.random((300, 5)) < 0.1, np.log(1.5), 0.0)
    log_times = _log_times(values)
    scale = core_scale(log_times)
    assert scale is not None
    result = run_noises(log_times, scale, 1.0)[0]
    at = np.arange(-1.0, 1.0, result.step)
    density = np.exp(result.log_density(at))
    assert density.sum() * result.step == pytest.approx(1.0, abs=0.02)
    # A run half as long again is no wonder here, one a third as short is.
    far, never = (float(result.log_density(np.array([at]))[0]) for at in (np.log(1.5), -np.log(1.5)))
    assert far > never + 5.0
    plain = RunNoise.of(scale, np.empty(0), 0.0, 1.0)
    assert far > float(plain.log_density(np.array([np.log(1.5)]))[0]) + 5.0


@pytest.mark.long
def test_shrinks_as_far_as_it_should() -> None:
    """Against the best that anybody could do who knew both standard deviations (normal-normal)."""
    errors = []
    for seed in range(10):
        rng = np.random.default_rng([seed, 1])
        log_score = rng.normal(0.0, 0.02, 300)
        values = log_score[:, None] + rng.normal(0.0, 0.03, (300, 4))
        result = posterior(_log_times(values), rng)
        actual = log_score - np.median(log_score)
        mean = values.mean(axis=1) - np.median(values.mean(axis=1))
        weight = 0.02**2 / (0.02**2 + 0.03**2 / 4)
        errors.append([np.std(np.log(result.belief) - actual), np.std(weight * mean - actual), np.std(mean - actual)])
    error, best, raw = np.mean(errors, axis=0)
    assert error < best * 1.06
    assert best < raw * 0.85  # so there was something to shrink


def test_with_nothing_that_comes_back_every_belief_is_exactly_one() -> None:
    repeatable = 0
    for seed in range(12):
        result = _scored(seed, np.zeros(100), runs=4, sd=0.03, glitches=0.1 if seed % 2 else 0.0)
        repeatable += result.repeatable
        if not result.repeatable:
            assert (result.belief == 1.0).all()
            assert result.reason is not None
            assert not result.standing_out.any()
    # One in twenty is the level: 4 or more of 12 has a chance of 0.2 %.
    assert repeatable <= 3


@pytest.mark.parametrize(
    ("times", "low", "high"), [([1.8, 3.1, 2.2, 4.0, 2.6, 3.3], 2.3, 3.3), ([1.1, 1.45, 1.35, 1.2], 1.15, 1.35)]
)
def test_a_gpu_whose_runs_disagree_has_a_wide_interval(times: list[float], low: float, high: float) -> None:
    """However narrow those of its fleet are: a prior knows no GPU like it."""
    rng = np.random.default_rng(4)
    values = rng.normal(0.0, 0.02, (100, len(times)))
    values[17] = np.log(times)
    result = posterior(_log_times(values), rng)
    assert result.lower[17] < low
    assert result.upper[17] > high
    assert (result.lower <= result.belief).all()
    assert (result.belief <= result.upper).all()


def test_three_glitches_in_a_row_are_not_a_slow_gpu() -> None:
    """A tenth of the runs takes half as long again: of 300 GPUs with 3 runs, some have nothing else."""
    met = wrong = 0
    for seed in (0, 5, 12, 15, 18, 26):  # in the last four there is such a GPU
        rng = np.random.default_rng([seed, 3])
        log_score = np.zeros(300)
        log_score[0] = np.log(2.8)  # so that something does come back
        far = rng.random((300, 3)) < 0.1
        values = log_score[:, None] + rng.normal(0.0, 0.02, (300, 3)) + np.where(far, np.log(1.5), 0.0)
        result = posterior(_log_times(values), rng)
        met += int(far[1:].all(axis=1).sum())
        wrong += int(((result.lower > 1.2) & result.standing_out)[1:].sum())
        assert result.lower[0] > 1.2
        assert result.standing_out[0]
    assert met >= 3
    assert wrong == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("gpus", "runs", "between", "sd"),
    [(200, 5, 0.03, 0.02), (200, 4, 0.01, 0.02), (60, 12, 0.03, 0.02), (200, 2, 0.03, 0.02)],
)
def test_intervals_hold_what_they_say(gpus: int, runs: int, between: float, sd: float) -> None:
    covered = []
    for seed in range(6):
        rng = np.random.default_rng([seed, 5])
        log_score = rng.normal(0.0, between, gpus)
        result = _scored(seed, log_score, runs, sd)
        actual = np.exp(log_score - np.median(log_score))
        assert result.repeatable
        covered.append(np.mean((result.lower <= actual) & (actual <= result.upper)))
    assert 0.84 <= np.mean(covered) <= 0.96


def test_gpus_that_cannot_be_told_apart_are_drawn_alike_whatever_was_measured_of_them() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(0.0, 0.03, (60, 3))
    log_times = _log_times(values)
    result = posterior(log_times, rng)
    assert not result.repeatable
    draws = np.array([result.draw(rng) for _ in range(3000)])
    lucky, unlucky = int(values.mean(axis=1).argmin()), int(values.mean(axis=1).argmax())
    error = np.hypot(draws[:, lucky].std(), draws[:, unlucky].std()) / np.sqrt(len(draws))
    assert abs(draws[:, lucky].mean() - draws[:, unlucky].mean()) <= 4.0 * error + 1e-9


def test_what_a_job_met_is_not_what_its_gpus_are() -> None:
    """Four GPUs of a node share each job's luck, and no GPU differs; then one does."""
    repeatable = 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 6])
        luck = np.repeat(rng.normal(0.0, 0.05, (25, 3)), 4, axis=0)
        values = luck + rng.normal(0.0, 0.01, (100, 3))
        log_times = _log_times(values)
        job = (np.repeat(np.arange(25), 4)[:, None] * 3 + np.arange(3)).ravel()
        result = permutation_test(LogTimes(log_times.x, log_times.starts, job), rng)
        assert result is not None
        repeatable += result.repeatable
        if seed < 2:
            values[42] += np.log(2.0)
            slow = _log_times(values)
            result = permutation_test(LogTimes(slow.x, slow.starts, job), rng)
            assert result is not None
            assert result.repeatable
            assert result.standing_out.nonzero()[0].tolist() == [42]
    # At the level of one in twenty, 4 or more of 10 has a chance of 0.1 %.
    assert repeatable <= 3


def test_a_gpu_that_changes_its_mind_is_known_less_well_than_its_many_runs_suggest() -> None:
    rng = np.random.default_rng(9)
    values = rng.normal(0.0, 0.03, (100, 1)) + rng.normal(0.0, 0.002, (100, 10))
    values[0] = np.where(np.arange(10) % 2, 0.0, 0.3) + rng.normal(0.0, 0.002, 10)
    result = posterior(_log_times(values), rng)
    width = result.upper - result.lower
    assert width[0] > 10.0 * np.median(width[1:])
    assert result.lower[0] < 1.1


def test_of_very_many_runs_a_few_deals_tell_the_same() -> None:
    """More runs than 50,000 are dealt less often; one slow GPU of 20,000 stands out, and where none is, none does."""
    rng = np.random.default_rng(5)
    values = rng.normal(0.0, 0.01, (20_000, 3))
    equal = permutation_test(_log_times(values), rng)
    assert equal is not None
    assert not equal.repeatable
    values[7] += 0.2
    slow = permutation_test(_log_times(values), rng)
    assert slow is not None
    assert slow.repeatable
    assert slow.standing_out.nonzero()[0].tolist() == [7]
