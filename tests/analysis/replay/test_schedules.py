"""Whole schedulers that give GPUs in one order."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from whorl.analysis.replay import Job, Options, Trace, World, replay
from whorl.analysis.replay.fleet import Floats, Ints
from whorl.analysis.replay.jobs import Piece
from whorl.analysis.replay.policies import shockwave
from whorl.analysis.replay.policies.shares import Tiresias
from whorl.analysis.replay.policies.shockwave import LOGS, POINTS, Candidates, Course, FairFinish, Window, schedule
from whorl.analysis.replay.tables import read_curves
from whorl.analysis.replay.world import Progress, Request
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import finishes, flat, job, sound, trace
from whorl.tests.sizes import count

BY_ROUNDS = Options(round_s=120, rounds=True, start_s=20, record=True)
POLICIES = ("fifo", "las", "srtf", "lrtf", "ftf", "shockwave")


def with_pieces(jobs: int, seed: int) -> Trace:
    """Jobs of one to four GPUs that train with several batch sizes."""
    draw = random.Random(seed)
    pools = []
    for number in range(jobs):
        pieces = tuple(
            Piece(epochs * draw.uniform(5, 90), epochs, draw.choice((32, 64, 128)))
            for epochs in draw.sample(range(1, 25), draw.randint(1, 3))
        )
        work_s = sum(piece.work_s for piece in pieces)
        pools.append(Job(str(number), number * 50.0, draw.choice((1, 1, 2, 4)), work_s, pieces=pieces))
    return Trace("made", tuple(pools))


@pytest.mark.long(short=2)
@pytest.mark.parametrize("policy", POLICIES)
def test_no_work_is_lost_or_given_and_no_gpu_is_given_twice(policy: str) -> None:
    jobs = with_pieces(9, seed=3)
    outcome = replay(jobs, flat(4, 1), policy, options=BY_ROUNDS)
    work = [job.gpus * job.ideal_s for job in jobs.jobs]
    assert outcome.gpu_seconds - outcome.wasted_gpu_s == pytest.approx(work)
    sound(outcome, flat(4, 1))


def test_each_has_its_order() -> None:
    jobs = trace(job("held", 0, 1, 240), job("first", 10, 1, 600), job("short", 20, 1, 120), job("long", 30, 1, 1200))
    order = {p: sorted(finishes(replay(jobs, flat(1, 1), p)).items(), key=lambda end: end[1]) for p in POLICIES[:5]}
    names = {policy: [name for name, _ in ends] for policy, ends in order.items()}
    assert names["fifo"] == ["held", "first", "short", "long"]
    assert names["srtf"] == ["short", "held", "first", "long"]
    assert names["las"] == ["held", "short", "first", "long"]  # in rounds of 360 s
    assert names["lrtf"] == ["held", "first", "short", "long"]
    assert names["ftf"] == ["held", "short", "first", "long"]


# -- tiresias ----------------------------------------------------------------------------------------------------------
# Tiresias on the workloads of Pollux's simulator, with jobs that run by the measured curves.


POLLUX = Path(__file__).resolve().parents[4] / "shared" / "data" / "schedulers" / "pollux"

ALONE_S = {
    ("ncf", 1): 47.0,
    ("cifar10", 6): 910.0,
    ("cifar10", 8): 865.0,
    ("cifar10", 12): 624.0,
    ("cifar10", 16): 482.0,
    ("deepspeech2", 6): 4142.0,
    ("deepspeech2", 8): 3530.0,
    ("deepspeech2", 12): 2477.0,
    ("bert", 6): 3092.0,
    ("bert", 8): 2459.0,
    ("bert", 12): 1594.0,
    ("bert", 16): 1324.0,
    ("yolov3", 4): 14102.0,
    ("imagenet", 24): 32000.0,
    ("imagenet", 32): 27350.0,
    ("imagenet", 48): 20100.0,
}
"""(application, GPUs) -> seconds alone. The workloads do not say how long jobs run: these are the most frequent
published completion times under Tiresias, less the wait for the next round and 30 s for the start. Jobs of imagenet
never ran alone: theirs are fitted to the workloads 1 and 2."""


def workload(name: str) -> Trace:
    jobs = []
    with (POLLUX / f"{name}.csv").open() as lines:
        for row in csv.DictReader(lines):
            gpus, batch, application = int(row["num_replicas"]), int(row["batch_size"]), row["application"]
            alone_s = ALONE_S[application, gpus]
            pieces = (Piece(alone_s, batch=batch),)
            jobs.append(Job(row["name"], float(row["time"]), gpus, alone_s, model=application, pieces=pieces))
    return Trace(name, tuple(jobs))


@pytest.mark.skipif(not POLLUX.is_dir(), reason=f"the workloads are not in {POLLUX}")
@pytest.mark.long
@pytest.mark.parametrize("name", ["workload-1", "workload-2", "workload-3", "workload-6"])
def test_the_published_completion_times(name: str) -> None:
    world = World.regular(16, 4)
    world = replace(world, rates=replace(world.rates, curves=read_curves(POLLUX / "step_times.csv.gz")))
    outcome = replay(workload(name), world, Tiresias, options=Options(round_s=60, start_s=30, migration_s=30))
    published = json.loads((POLLUX / "jct_tiresias.json").read_text())[name]
    assert outcome.metrics().avg_jct_s == pytest.approx(sum(published.values()) / len(published), rel=0.02)


# -- programs ----------------------------------------------------------------------------------------------------------
# Shockwave's programs against all plans there are, on instances small enough to try them.


JOBS, PLANNED_ROUNDS = 4, 4


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
    window = Window(int(random.integers(3, 9)), PLANNED_ROUNDS, makespan_weight=float(10 ** random.uniform(-4, -1)))
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
    return float(weights @ utility) / (JOBS * PLANNED_ROUNDS) - window.makespan_weight * makespan_s


def all_lengths(window: Window, widths: Ints) -> Ints:
    """(plans, jobs) the rounds that jobs can get in any plan which the fleet holds."""
    rounds = [np.array(runs) for runs in product((0, 1), repeat=JOBS) if widths @ runs <= window.gpus]
    return np.unique([sum(plan) for plan in combinations_with_replacement(rounds, PLANNED_ROUNDS)], axis=0)


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


# -- shockwave ---------------------------------------------------------------------------------------------------------
# Shockwave: its forecast, and when it asks the solver. Its published results: tests/cli/test_replay.py.


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


@pytest.mark.parametrize(("ideal_s", "is_asked"), [(3000.0, True), (600.0, False)])
def test_the_fair_program_is_not_solved_where_it_cannot_be(
    ideal_s: float, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a fair end lies within the 20 rounds, no job can be sure of it, and no solver is asked."""
    fair: list[bool] = []

    def schedule(window: Any, jobs: Any, weights: Any, least_s: Any = None) -> Any:
        fair.append(least_s is not None)
        return solve(window, jobs, weights, least_s)

    solve = shockwave.schedule
    monkeypatch.setattr(shockwave, "schedule", schedule)
    outcome = replay(
        trace(job("a", 0, 1, ideal_s), job("b", 0, 1, ideal_s)), flat(1, 1), "shockwave", options=BY_ROUNDS
    )
    assert fair[0] == is_asked
    assert outcome.finish_s.max() >= 2 * ideal_s


def test_a_solver_that_fails_ends_the_replay_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(x=None, status=4, message="Numerical difficulties")
    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: answer)
    jobs = trace(job("a", 130, 1, 600), job("b", 130, 1, 600))
    with pytest.raises(InputError, match=r"shockwave has no plan for the 2 jobs at 240 s: .* Numerical difficulties"):
        replay(jobs, flat(1, 1), "shockwave", options=BY_ROUNDS)
