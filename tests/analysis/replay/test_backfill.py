"""EASY backfill: who may go past the first in the queue, and that it is never delayed by it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.analysis.replay import Arrivals, Options, Trace, replay
from whorl.analysis.replay.policies.queue import PlannedEnds
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import flat, job, sound, trace
from whorl.tests.sizes import count

EASY = Options(backfill="easy", record=True)


def starts(jobs: Trace, gpus: int, options: Options = EASY) -> dict[str, float]:
    outcome = replay(jobs, flat(1, gpus), options=options)
    sound(outcome, flat(1, gpus))
    return {job_of_row.name: at for job_of_row, at in zip(outcome.jobs, outcome.start_s.tolist(), strict=True)}


def test_a_job_without_end_is_planned_for() -> None:
    endless = float("inf")
    jobs = trace(job("runs", 0, 3, 100, limit_s=endless), job("first", 1, 4, 10), job("b", 2, 1, 5, limit_s=endless))
    assert starts(jobs, 4) == {"runs": 0, "b": 2, "first": 100}
    crowd = trace(*(job(str(i), 0, 1, 10.0 + i, limit_s=endless) for i in range(600)), job("wide", 1, 600, 1))
    assert starts(crowd, 600)["wide"] == 609


@pytest.mark.parametrize(("policy", "scheduler"), [("pal", "fifo"), ("packed", "srtf"), ("random-nonsticky", "fifo")])
def test_backfill_needs_jobs_that_stay(policy: str, scheduler: str) -> None:
    with pytest.raises(InputError, match="backfill needs jobs that"):
        replay(trace(job("a", 0, 1, 1)), flat(1, 1), policy, scheduler, options=EASY)


@settings(max_examples=count(40, short=10), deadline=None)
@given(seed=st.integers(0, 10**6), many=st.sampled_from([5, 300, 900]))
def test_planned_ends_are_a_sorted_list(seed: int, many: int) -> None:
    draw = random.Random(seed)
    planned, plain = PlannedEnds(), list[tuple[float, int, int]]()
    for number in range(many * 2):
        if plain and draw.random() < (0.2 if number < many else 0.9):
            entry = plain.pop(draw.randrange(len(plain)))
            planned.remove(entry[1])
        else:
            entry = (float(draw.randint(0, 40)), number, draw.randint(1, 9))
            plain.append(entry)
            planned.add(entry[0], number, tuple(range(entry[2])))
        if number % 7:
            continue
        lacking = draw.randint(1, 1 + sum(planned[2] for planned in plain))
        end, returned, total = float("inf"), 0, 0
        for one in sorted(plain):
            total += one[2]
            if total >= lacking:
                end = one[0]
                break
        returned = sum(planned[2] for planned in plain if planned[0] <= end)
        assert planned.reservation(lacking, len) == (end, returned)


def test_backfill_by_rounds_and_beside_users() -> None:
    jobs = trace(job("runs", 0, 3, 100), job("first", 1, 4, 100), job("short", 2, 1, 60))
    by_rounds = replay(jobs, flat(1, 4), options=Options(backfill="easy", rounds=True, round_s=10))
    assert by_rounds.start_s.tolist() == [0, 100, 10]
    users = (lambda: Arrivals(iter([job("other", 5, 1, 30)])),)
    beside = replay(jobs, flat(1, 4), options=Options(backfill="easy", users=users))
    assert beside.start_s.tolist() == [0, 100, 2]
    assert beside.others.finish_s.tolist() == [92]


def test_backfill_and_patience() -> None:
    jobs = trace(job("runs", 0, 3, 100), job("first", 1, 4, 100), job("short", 2, 1, 60))
    with pytest.raises(InputError, match="backfill needs jobs that are not stopped"):
        replay(jobs, flat(1, 4), options=Options(backfill="easy", rounds=True, patience_s=1000))
