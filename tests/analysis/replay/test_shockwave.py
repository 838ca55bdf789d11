"""Shockwave: its forecast, and when it asks the solver. Its published results: tests/cli/test_replay_policies.py."""

from __future__ import annotations

from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from whorl.analysis.replay import Options, replay
from whorl.analysis.replay.policies import shockwave
from whorl.analysis.replay.policies.shockwave import Course, FairFinish
from whorl.analysis.replay.world import Progress, Request
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import first_gpus, flat, job, scored, trace

ROUNDS = Options(round_s=120, rounds=True, start_s=20, record=True)


def course(epochs: tuple[int, int], epoch_s: tuple[float, float], done: int) -> Course:
    """A job that trains first with a batch of 32 and then with one of 64, after so many epochs."""
    small, large = min(done, epochs[0]), done - epochs[0]
    regimes = ((32, float(small), small * epoch_s[0]), (64, float(large), large * epoch_s[1]))[: 1 + (large >= 0)]
    modes = ((64, epoch_s[1]), (32, epoch_s[0]))
    request = Request(0, "0", 0.0, 1, batch=32, modes=modes, epochs=float(sum(epochs)))
    return Course.of(request, Progress(regimes=regimes))


def test_the_forecast_by_hand() -> None:
    # 10 epochs, 3 done and one running, all with a batch of 32: weights 10/2 + 4 and 10/2, to a sum of 10
    early = course((5, 5), (20.4, 9.6), 3)
    assert (early.done, early.done_s, early.mean_s) == (3, 60.0, 20.0)
    # 90/14 - 4 epochs of 20 s and 50/14 of 10 s, as 6 are left at most 7: int(84/14 + 1)
    assert early.left_s() == pytest.approx((34 / 14 * 20 + 50 / 14 * 10) * 7 / 7)
    # in the eighth epoch 5 of one and 3 of the other were seen
    late = course((5, 5), (20.4, 9.6), 7)
    assert (late.done_s, late.mean_s) == (120.0, 130 / 8)
    assert late.left_s() == pytest.approx(100 / 18 * 20 - 100 + 80 / 18 * 10 - 30)


def test_the_error_of_the_forecast_falls_with_the_epochs_seen() -> None:
    random = np.random.default_rng(0)
    errors: dict[float, list[float]] = {0.1: [], 0.7: [], 0.9: []}
    for _ in range(40):
        first, second = (int(epochs) for epochs in random.integers(20, 200, 2))
        epoch_s = (float(random.uniform(30, 600)), float(random.uniform(30, 600)))
        total_s = first * epoch_s[0] + second * epoch_s[1]
        for share, error in errors.items():
            done = int(share * (first + second))
            done_s = min(done, first) * epoch_s[0] + max(0, done - first) * epoch_s[1]
            error.append(abs(course((first, second), epoch_s, done).left_s() - (total_s - done_s)) / total_s)
    early, later, last = (mean(error) for error in errors.values())
    assert early > later > last
    assert last < 0.04


def test_a_job_without_epochs_counts_by_the_second_and_one_of_unknown_work_is_refused() -> None:
    request = Request(0, "0", 0.0, 1, work_s=1000.0)
    assert Course.of(request, Progress(left_s=400.0)).left_s() == 399
    beyond = Course.of(request, Progress(left_s=-20.0))  # an estimate that was too low
    assert (beyond.epochs, beyond.done) == (1021, 1020)
    with pytest.raises(InputError, match="must know the epochs of job 7"):
        Course.of(Request(0, "7", 0.0, 1), Progress())


def test_the_fair_end_is_the_mean_of_forecasts_by_the_rounds_for_which_they_stood() -> None:
    fair = FairFinish(2, 1000.0)
    assert fair.at(2) == 1000
    fair.forecast(5, 2000.0)
    assert fair.at(6) == pytest.approx(0.9 * (3 * 1000 + 1 * 2000) / 4 + 0.1 * 2000)


@pytest.mark.parametrize(("ideal_s", "asked"), [(3000.0, True), (600.0, False)])
def test_the_fair_program_is_not_solved_where_it_cannot_be(
    ideal_s: float, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a fair end lies within the 20 rounds, no job can be sure of it, and no solver is asked."""
    fair: list[bool] = []

    def schedule(window: Any, jobs: Any, weights: Any, least_s: Any = None) -> Any:
        fair.append(least_s is not None)
        return solve(window, jobs, weights, least_s)

    solve = shockwave.schedule
    monkeypatch.setattr(shockwave, "schedule", schedule)
    outcome = replay(trace(job("a", 0, 1, ideal_s), job("b", 0, 1, ideal_s)), flat(1, 1), "shockwave", options=ROUNDS)
    assert fair[0] == asked
    assert outcome.finish_s.max() >= 2 * ideal_s


def test_a_solver_that_fails_ends_the_replay_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(x=None, status=4, message="Numerical difficulties")
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: answer)
    jobs = trace(job("a", 130, 1, 600), job("b", 130, 1, 600))
    with pytest.raises(InputError, match=r"shockwave has no plan for the 2 jobs at 240 s: .* Numerical difficulties"):
        replay(jobs, flat(1, 1), "shockwave", options=ROUNDS)


def test_of_the_jobs_that_start_the_largest_gets_the_fastest_gpus() -> None:
    world = scored(4, 1, [1.15, 1.0, 1.05, 1.1])
    jobs = trace(*(job(str(n), 0, 1, ideal_s, "A") for n, ideal_s in enumerate((100, 9000, 3000))))
    assert first_gpus(replay(jobs, world, "shockwave", options=ROUNDS)) == {"0": (3,), "1": (1,), "2": (2,)}
    # believed to be alike, or alike: as if there were no scores
    alone = replay(jobs, world.flat(), "shockwave", options=ROUNDS)
    same = replay(jobs, scored(4, 1, [1.0] * 4), "shockwave", options=ROUNDS)
    assert first_gpus(alone) == first_gpus(same) == {"0": (2,), "1": (0,), "2": (1,)}
