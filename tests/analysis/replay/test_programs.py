"""Shockwave's programs against all plans there are, on instances small enough to try them."""

from __future__ import annotations

from itertools import combinations_with_replacement, product

import numpy as np
import pytest

from whorl.analysis.replay.fleet import Floats, Ints
from whorl.analysis.replay.policies.shockwave import LOGS, POINTS, Candidates, Window, schedule
from whorl.tests.sizes import count

JOBS, ROUNDS = 4, 4


def draw(random: np.random.Generator) -> tuple[Window, Candidates, Floats]:
    """A window of four rounds, four jobs that are some way through their epochs, and what they weigh."""
    epochs = random.integers(2, 40, JOBS).astype(float)
    done = np.floor(epochs * random.uniform(0, 0.95, JOBS))
    epoch_s = random.uniform(1, 90, JOBS)
    jobs = Candidates(
        widths=random.integers(1, 5, JOBS).astype(np.int32),
        epochs=epochs,
        done=done,
        epoch_s=epoch_s,
        left_s=(epochs - done) * epoch_s * random.uniform(0.6, 1.4, JOBS),
    )
    window = Window(int(random.integers(3, 9)), ROUNDS, makespan_weight=float(10 ** random.uniform(-4, -1)))
    return window, jobs, random.uniform(1, 1.5, JOBS) ** 12


def work_of(jobs: Candidates, lengths: Ints) -> Floats:
    """(jobs,) seconds of work that jobs do in so many rounds; no more than their epochs."""
    work: Floats = np.minimum(120.0 * lengths, (jobs.epochs - jobs.done) * jobs.epoch_s)
    return work


def worth(window: Window, jobs: Candidates, weights: Floats, lengths: Ints) -> float:
    """What the program maximises, straight from the paper's formula."""
    work_s = work_of(jobs, lengths)
    utility = np.interp((jobs.done + work_s / jobs.epoch_s) / jobs.epochs, POINTS, LOGS)
    makespan_s = max(0.0, float(np.max(jobs.left_s - work_s)))
    return float(weights @ utility) / (JOBS * ROUNDS) - window.makespan_weight * makespan_s


def all_lengths(window: Window, widths: Ints) -> Ints:
    """(plans, jobs) the rounds that jobs can get in any plan which the fleet holds."""
    rounds = [np.array(runs) for runs in product((0, 1), repeat=JOBS) if widths @ runs <= window.gpus]
    return np.unique([sum(plan) for plan in combinations_with_replacement(rounds, ROUNDS)], axis=0)


@pytest.mark.parametrize("seed", range(count(300, short=10)))
def test_the_plan_is_as_good_as_the_best_of_all_and_fits(seed: int) -> None:
    random = np.random.default_rng(seed)
    window, jobs, weights = draw(random)
    lengths = all_lengths(window, jobs.widths)
    best = max(worth(window, jobs, weights, tried) for tried in lengths)
    planned = schedule(window, jobs, weights, gap=1e-9)
    assert planned is not None
    assert set(np.unique(planned)) <= {0, 1}
    assert (jobs.widths @ planned <= window.gpus).all()
    assert worth(window, jobs, weights, planned.sum(axis=1)) == pytest.approx(best, rel=1e-6, abs=1e-9)

    least_s = np.where(random.random(JOBS) < 0.5, 0.7 * jobs.left_s, -1.0)
    fair = [tried for tried in lengths if (work_of(jobs, tried) >= least_s).all()]
    planned = schedule(window, jobs, weights, least_s, gap=1e-9)
    assert (planned is None) == (not fair)
    if planned is not None:
        best = max(worth(window, jobs, weights, tried) for tried in fair)
        assert (jobs.widths @ planned <= window.gpus).all()
        assert worth(window, jobs, weights, planned.sum(axis=1)) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_a_job_that_weighs_more_runs_sooner() -> None:
    equal_w = np.full(2, 10.0)
    jobs = Candidates(np.ones(2, dtype=np.int32), equal_w, 0 * equal_w, 24 * equal_w / 10, 24 * equal_w)
    planned = schedule(Window(1, rounds=4), jobs, np.array([1.0, 5.0]))
    assert planned is not None
    assert planned.tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]


def test_a_wide_job_that_leaves_a_narrow_one_no_room_waits() -> None:
    """Their rounds would add up to no more than the fleet has, but the narrow job needs each round to itself."""
    jobs = Candidates(
        widths=np.array([4, 2, 2], dtype=np.int32),
        epochs=np.full(3, 4.0),
        done=np.zeros(3),
        epoch_s=np.full(3, 120.0),
        left_s=np.full(3, 480.0),
    )
    planned = schedule(Window(4, rounds=4), jobs, np.array([1.0, 100.0, 1.0]))
    assert planned is not None
    assert planned.sum(axis=1).tolist() == [0, 4, 4]
