"""Nodes that go and come back while jobs run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from whorl.analysis.replay import Failure, Options, replay
from whorl.analysis.replay.fleet import drawn_failures
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import finishes, flat, job, trace

LONG = trace(job("a", 0, 2, 100))


def test_a_job_that_no_node_is_left_for() -> None:
    for_good = Options(failures=(Failure(1, 50, math.inf),))
    with pytest.raises(
        InputError, match=r"job wide waits for ever: packed gives it no GPUs, and after 50 s .*asks for 2, 1 are up"
    ):
        replay(trace(job("wide", 0, 2, 100)), flat(2, 1), options=for_good)
    assert finishes(replay(trace(job("wide", 0, 2, 40)), flat(2, 1), options=for_good)) == {"wide": 40}
    assert finishes(replay(trace(job("narrow", 0, 1, 100)), flat(2, 1), options=for_good)) == {"narrow": 100}


def test_backfill_while_a_node_is_away() -> None:
    jobs = trace(job("wide", 0, 4, 100), job("b", 20, 2, 1000))
    outcome = replay(jobs, flat(2, 2), options=Options(failures=(Failure(0, 10, 50),), backfill="easy"))
    # When the node comes back nobody can know, so "b" goes ahead and "wide" waits for it.
    assert finishes(outcome) == {"wide": 1120, "b": 1020}


@pytest.mark.parametrize(
    ("failures", "sentence"),
    [
        ((Failure(2, 0, 1),), "a failure names node 2; the fleet has nodes 0 to 1"),
        ((Failure("n7", 0, 1),), "a failure names node n7; the fleet has nodes 0 to 1, and none of that name"),
        ((Failure(0, 5, 5),), "node 0 fails at 5 s and returns at 5 s"),
        ((Failure(0, 5, 9), Failure(0, 7, 11)), "node 0 fails at 7 s, but it is still away"),
        ((Failure("n1", 5, 9), Failure(1, 7, 11)), "node 1 fails at 7 s, but it is still away"),
    ],
)
def test_failures_that_cannot_be(failures: tuple[Failure, ...], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        replay(LONG, flat(2, 1), options=Options(failures=failures))


def test_drawn_failures_have_their_means() -> None:
    failures = drawn_failures(200, 1e7, mtbf_h=100, repair_h=4, random=np.random.default_rng(3))
    expected = 200 * 1e7 / (104 * 3600)
    assert abs(len(failures) - expected) < 4 * math.sqrt(expected)
    assert np.mean([failure.up_s - failure.down_s for failure in failures]) == pytest.approx(4 * 3600, rel=0.05)
    replay(LONG, flat(200, 1), options=Options(failures=failures))  # none overlap
    assert failures == drawn_failures(200, 1e7, mtbf_h=100, repair_h=4, random=np.random.default_rng(3))
