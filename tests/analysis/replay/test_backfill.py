"""EASY backfill: who may go past the first in the queue, and that it is never delayed by it."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.analysis.replay import Job, Options, Trace, replay
from whorl.analysis.replay.backfill import ByWidth, PlannedEnds
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import flat, job, sound, trace
from whorl.tests.sizes import count

EASY = Options(backfill="easy", record=True)


def starts(jobs: Trace, gpus: int, options: Options = EASY) -> dict[str, float]:
    outcome = replay(jobs, flat(1, gpus), options=options)
    sound(outcome, flat(1, gpus))
    return {one.name: at for one, at in zip(outcome.jobs, outcome.start_s.tolist(), strict=True)}


def test_a_job_without_end_is_planned_for() -> None:
    endless = float("inf")
    jobs = trace(job("runs", 0, 3, 100, limit_s=endless), job("first", 1, 4, 10), job("b", 2, 1, 5, limit_s=endless))
    assert starts(jobs, 4) == {"runs": 0, "b": 2, "first": 100}
    many = trace(*(job(str(i), 0, 1, 10.0 + i, limit_s=endless) for i in range(600)), job("wide", 1, 600, 1))
    assert starts(many, 600)["wide"] == 609


@pytest.mark.parametrize(("policy", "scheduler"), [("pal", "fifo"), ("packed", "srtf"), ("random-nonsticky", "fifo")])
def test_backfill_needs_jobs_that_stay(policy: str, scheduler: str) -> None:
    with pytest.raises(InputError, match="backfill needs jobs that"):
        replay(trace(job("a", 0, 1, 1)), flat(1, 1), policy, scheduler, options=EASY)


@st.composite
def limited(draw: st.DrawFn) -> Trace:
    """Jobs whose limits are upper bounds."""
    at, jobs = 0.0, []
    for number in range(draw(st.integers(2, 30))):
        at += draw(st.sampled_from([0.0, 1.0, 5.0, 40.0]))
        ideal = float(draw(st.integers(1, 100)))
        limit = ideal * draw(st.sampled_from([1, 1, 2, 4]))
        jobs.append(Job(str(number), at, draw(st.integers(1, 8)), ideal, "", limit))
    return Trace("drawn", tuple(jobs))


def reserved(outcome_starts: list[float], jobs: Trace, now: float, head: int, gpus: int) -> float:
    """When the head could start at the latest by the limits of what ran at `now`, jobs started at `now` included."""
    running = [
        (start + (one.limit_s or 0), one.gpus)
        for one, start in zip(jobs.jobs, outcome_starts, strict=True)
        if start <= now < start + one.ideal_s
    ]
    free = gpus - sum(width for _, width in running)
    for end, width in sorted(running):
        if free >= jobs.jobs[head].gpus:
            break
        free += width
        now = end
    return now


@settings(max_examples=count(60, short=12), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_search_finds_the_job_that_a_look_at_every_one_does(seed: int) -> None:
    draw = random.Random(seed)
    jobs = [Job(str(i), 0.0, draw.choice((1, 2, 3, 8, 40)), float(draw.randint(1, 30))) for i in range(60)]
    tree = ByWidth(jobs)
    queue: list[tuple[float, int]] = []
    for _ in range(150):
        number = draw.randrange(60)
        if (0.0, number) in queue:
            queue.remove((0.0, number))
            tree.start(number)
        else:
            queue.insert(bisect_right(queue, (0.0, number)), (0.0, number))
            tree.wait(number)
        after, free, spare, time_s = (
            draw.randrange(-1, 60),
            draw.randint(1, 50),
            draw.randint(0, 20),
            draw.randint(0, 30),
        )
        fits = (
            number
            for _, number in queue
            if number > after and (one := jobs[number]).gpus <= free and (one.gpus <= spare or one.ideal_s <= time_s)
        )
        assert tree.next((0.0, after), free, spare, float(time_s)) == next(fits, None)


@settings(max_examples=count(40, short=10), deadline=None)
@given(seed=st.integers(0, 10**6), many=st.sampled_from([5, 300, 900]))
def test_planned_ends_are_a_sorted_list(seed: int, many: int) -> None:
    draw = random.Random(seed)
    planned, plain = PlannedEnds(), list[tuple[float, int, int]]()
    for number in range(many * 2):
        if plain and draw.random() < (0.2 if number < many else 0.9):
            entry = plain.pop(draw.randrange(len(plain)))
            planned.remove(*entry)
        else:
            entry = (float(draw.randint(0, 40)), number, draw.randint(1, 9))
            plain.append(entry)
            planned.add(*entry)
        if number % 7:
            continue
        lacking = draw.randint(1, 1 + sum(one[2] for one in plain))
        end, returned, total = float("inf"), 0, 0
        for one in sorted(plain):
            total += one[2]
            if total >= lacking:
                end = one[0]
                break
        returned = sum(one[2] for one in plain if one[0] <= end)
        assert planned.reservation(lacking) == (end, returned)


def test_backfill_by_rounds_and_not_beside_jobs_to_come() -> None:
    jobs = trace(job("runs", 0, 3, 100), job("first", 1, 4, 100), job("short", 2, 1, 60))
    by_rounds = replay(jobs, flat(1, 4), options=Options(backfill="easy", rounds=True, round_s=10))
    assert by_rounds.start_s.tolist() == [0, 100, 10]
    with pytest.raises(InputError, match="backfill needs to know all jobs"):
        replay(jobs, flat(1, 4), options=Options(backfill="easy", arrivals=lambda: iter(())))


def test_backfill_and_patience() -> None:
    jobs = trace(job("runs", 0, 3, 100), job("first", 1, 4, 100), job("short", 2, 1, 60))
    with pytest.raises(InputError, match="backfill needs jobs that are not stopped"):
        replay(jobs, flat(1, 4), options=Options(backfill="easy", rounds=True, patience_s=1000))
