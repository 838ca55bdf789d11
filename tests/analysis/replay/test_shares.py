"""Whole schedulers that give GPUs in one order."""

from __future__ import annotations

import random

import numpy as np
import pytest

from whorl.analysis.replay import Job, Options, Trace, World, replay
from whorl.analysis.replay.jobs import Piece
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import finishes, first_gpus, flat, job, sound, trace

ROUNDS = Options(round_s=120, rounds=True, start_s=20, record=True)
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
    outcome = replay(jobs, flat(4, 1), policy, options=ROUNDS)
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


def test_a_job_that_does_not_fit_is_skipped_and_the_emptiest_node_comes_first() -> None:
    jobs = trace(job("a", 0, 1, 300), job("wide", 1, 4, 300), job("b", 2, 1, 300), job("c", 3, 1, 300))
    outcome = replay(jobs, flat(2, 2), "fifo", options=Options(record=True))
    assert first_gpus(outcome)["a"] == (0,)
    assert first_gpus(outcome)["b"] == (2,)
    assert finishes(outcome) == pytest.approx({"a": 300, "b": 302, "c": 303, "wide": 603})


def test_work_that_is_not_known_is_demanded() -> None:
    world = World.regular(1, 1)
    unknown = World(world.rates, type(world.beliefs)(world.rates, knowledge="none"))
    with pytest.raises(InputError, match="srtf needs to know the work of jobs"):
        replay(trace(job("a", 0, 1, 300)), unknown, "srtf")
    assert np.isfinite(replay(trace(job("a", 0, 1, 300)), unknown, "las").finish_s).all()
