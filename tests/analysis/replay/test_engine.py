"""The replay's clock and arithmetic: hand-computed cases, and properties of any replay."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import count as numbers
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.analysis.replay import (
    POLICIES,
    SCHEDULERS,
    Failure,
    Fleet,
    Job,
    Options,
    Queued,
    Trace,
    World,
    replay,
)
from whorl.analysis.replay.fleet import drawn_failures
from whorl.analysis.replay.power import Energy
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import (
    Excluded,
    advised_by,
    finishes,
    flat,
    job,
    scored,
    sound,
    trace,
    work_done,
)
from whorl.tests.analysis.replay.plain import Plain, Task
from whorl.tests.sizes import count


def test_rounds_of_no_whole_seconds_come_to_an_end() -> None:
    jobs = trace(*(job(str(i), i * 0.37, 1, 0.73 + i / 7) for i in range(40)))
    for quantised in (False, True):
        outcome = replay(jobs, flat(1, 2), options=Options(round_s=0.1, rounds=True, quantised=quantised))
        assert np.isfinite(outcome.finish_s).all()
        late = outcome.start_s - np.floor(outcome.start_s / 0.1 + 0.5) * 0.1
        assert np.abs(late).max() < 1e-9


def test_jobs_after_the_trace_load_the_fleet_and_are_not_measured() -> None:
    def stream() -> Iterator[Job]:
        return (Job(f"more {i}", 15.0 + 10 * i, 1, 10.0) for i in numbers())

    jobs = trace(job("a", 0, 1, 20), job("b", 10, 1, 20))
    outcome = replay(jobs, flat(1, 1), options=Options(others=stream, record=True))
    assert finishes(outcome) == {"a": 20, "b": 40}
    assert outcome.end_s == 40
    assert outcome.others.submit_s.tolist() == [15, 25, 35]
    assert np.isnan(outcome.others.finish_s).all()
    two = Options(others=lambda: islice(stream(), 2))
    shortest = replay(jobs, flat(1, 1), "packed", "srtf", options=two)
    assert finishes(shortest) == {"a": 20, "b": 60}  # those of 15 s and 25 s, 10 s each, go before it
    assert shortest.held_gpu_seconds == 60
    assert shortest.others.finish_s.tolist() == [30, 40]
    assert finishes(replay(jobs, flat(1, 1), options=Options(others=stream))) == finishes(outcome)


@st.composite
def traces(draw: st.DrawFn, widest: int = 8) -> Trace:
    job_count = draw(st.integers(1, 25))
    at = 0.0
    jobs = []
    for number in range(job_count):
        at += draw(st.sampled_from([0.0, 0.0, 1.0, 13.0, 100.0]))
        gpus = draw(st.integers(1, widest))
        ideal = draw(st.floats(1, 500))
        limit = draw(st.one_of(st.none(), st.floats(1, 2000)))
        jobs.append(Job(str(number), at, gpus, ideal, draw(st.sampled_from(["", "A", "B"])), limit))
    return Trace("drawn", tuple(jobs))


@st.composite
def fleets(draw: st.DrawFn) -> World:
    nodes, slots = draw(st.sampled_from([(2, 4), (4, 2), (8, 1), (1, 8), (3, 3)]))
    score = st.sampled_from([0.9, 1.0, 1.004, 1.3, 2.5])
    scores = {name: draw(st.lists(score, min_size=nodes * slots, max_size=nodes * slots)) for name in "AB"}
    return World.regular(nodes, slots, scores, locality=draw(st.sampled_from([1.0, 1.7])))


@pytest.mark.long(short=1)
@pytest.mark.parametrize("policy", [row.name for row in POLICIES if issubclass(row, Queued)])
@settings(max_examples=count(12, short=3), deadline=None)
@given(
    scheduler=st.sampled_from([row.name for row in SCHEDULERS]),
    jobs=traces(),
    world=fleets(),
    quantised=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_replay_is_sound(
    policy: str, scheduler: str, jobs: Trace, world: World, quantised: bool, seed: int
) -> None:
    options = Options(round_s=50, quantised=quantised, record=True)
    outcome = replay(jobs, world, policy, scheduler, options=options, seed=seed)
    sound(outcome, world)
    done = work_done(outcome, world)
    for job_of_row, work, limited in zip(jobs.jobs, done, outcome.limit_hit.tolist(), strict=True):
        if limited:
            assert job_of_row.limit_s is not None
            assert work < job_of_row.ideal_s + 50 / 0.9
        elif quantised:
            assert work >= job_of_row.ideal_s * (1 - 1e-9)
            assert work < job_of_row.ideal_s + 50 / 0.9  # no more than one round
        else:
            assert work == pytest.approx(job_of_row.ideal_s)
    assert outcome.end_s == outcome.finish_s.max()
    if scheduler == "fifo":
        assert (np.diff(outcome.start_s) >= 0).all()
        assert outcome.preemptions.sum() == 0
    again = replay(jobs, world, policy, scheduler, options=options, seed=seed)
    assert again.finish_s.tolist() == outcome.finish_s.tolist()


def test_progress_is_told_and_may_end_the_replay() -> None:
    jobs = trace(*(job(str(i), i, 1, 10) for i in range(2000)))
    steps: list[tuple[int, int, float]] = []
    replay(jobs, flat(2, 8), progress=lambda *now: steps.append(now))
    assert steps[-1] == (2000, 2000, 2009)
    assert len(steps) > 4
    assert all(a[0] <= b[0] and a[2] <= b[2] for a, b in pairwise(steps))

    def interrupt(ended: int, jobs: int, now_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(jobs, flat(2, 8), progress=interrupt)


@pytest.mark.parametrize(
    ("jobs", "sentence"),
    [
        ([], "the trace has no jobs"),
        ([job("a", 0, 5, 1)], "job a asks for 5 GPUs and the fleet has 4; replay it on a larger fleet"),
        ([job("a", 0, 0, 1)], "job a wants 0 GPUs: it must want at least one"),
        ([job("a", 0, 1, 0)], "job a runs for 0 s: it must run for more than 0 s"),
        ([job("a", 0, 1, float("nan"))], "job a runs for nan s"),
        ([job("a", 9, 1, 1), job("b", 3, 1, 1)], "job b comes after a in the trace but was submitted before it"),
        ([job("a", 0, 1, 1), job("a", 3, 1, 1)], "two jobs of the trace are named a"),
        ([job("a", 0, 1, 1, "B")], "job a is of class 'B'; the fleet has scores of: A"),
        ([job("a", -1, 1, 1)], "job a was submitted at -1 s"),
        ([job("a", 0, 1, 1, "", 0)], "job a has a limit of 0 s"),
    ],
)
def test_a_trace_that_cannot_be_replayed(jobs: list[Job], sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        replay(trace(*jobs), scored(1, 4, [1.0] * 4))
    assert str(raised.value).startswith(f"made: {sentence}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"round_s": 0}, "a round must be longer than 0 s"),
        ({"migration_s": -1}, "the cost migration_s must be at least 0 s"),
        ({"backfill": "conservative"}, "backfill must be none or easy, not 'conservative'"),
        ({"on_failure": "cry"}, "a job that lost its node must restart or resume"),
        ({"quantised": True, "rounds": False}, "jobs can end at the edges of rounds only in a replay by rounds"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Options(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gpu_names": ("g", "h", "g", "i")}, "two GPUs of the fleet are named g"),
        ({"node_names": ("n", "n")}, "two nodes of the fleet are named n"),
        ({"node": np.array([0, 1, 0, 1], dtype=np.int32)}, "numbered 0, 1, ... in the order of its GPUs"),
    ],
)
def test_a_fleet_that_cannot_be(change: dict[str, object], sentence: str) -> None:
    good: dict[str, object] = {
        "node": np.array([0, 0, 1, 1], dtype=np.int32),
        "node_names": ("n0", "n1"),
        "gpu_names": ("g0", "g1", "g2", "g3"),
    }
    with pytest.raises(InputError, match=sentence):
        Fleet(**(good | change))  # type: ignore[arg-type]


def test_a_job_that_has_waited_too_long_goes_first_for_good() -> None:
    jobs = trace(job("long", 0, 1, 550), *(job(f"s{i}", 100.0 * i, 1, 100) for i in range(1, 30)))
    starved = replay(jobs, flat(1, 1), "packed", "srtf", options=Options(round_s=100, rounds=True))
    assert finishes(starved)["long"] == 3450
    patient = replay(jobs, flat(1, 1), "packed", "srtf", options=Options(round_s=100, rounds=True, patience_s=500))
    # It runs to 100, and is stopped; from 200 on it waits in whole rounds, and from 700 on it goes first, for 450 s.
    assert finishes(patient)["long"] == 1150
    assert patient.preemptions[0] == 1
    with pytest.raises(InputError, match="the patience of jobs must be more than 0 s, and needs rounds"):
        Options(patience_s=500)


# -- outcome -----------------------------------------------------------------------------------------------------------
# The figures of a replay.


def test_p99_is_interpolated_or_as_published() -> None:
    outcome = replay(trace(*(job(str(i), 0, 1, 1.0 + i) for i in range(160))), flat(40, 4))
    assert outcome.metrics().p99_jct_s == pytest.approx(np.quantile(np.arange(1.0, 161), 0.99))
    assert outcome.metrics(published=True).p99_jct_s == 159


def test_deadlines_limits_waste_and_energy_by_hand() -> None:
    jobs = trace(
        Job("in time", 0, 2, 100, deadline_s=100, limit_s=500),
        Job("late", 0, 2, 100, deadline_s=150),
        Job("ended", 0, 2, 100, limit_s=50, deadline_s=1e6),
        Job("free", 0, 2, 100),
    )
    bare = replay(jobs, flat(1, 2))
    outcome = replace(
        bare,
        limit_hit=np.array([False, False, True, False]),
        wasted_gpu_s=np.array([0.0, 600.0, 1200.0, 0.0]),
        energy=Energy({}, 3.6e6, 1.8e6, None, 0.0, awake_node_s=7200),
    )
    figures = outcome.metrics()
    assert (figures.late, figures.limits_hit, figures.wasted_gpu_h, figures.node_hours) == (2, 1, 0.5, 2)
    assert (figures.energy_kwh, figures.jobs_kwh, figures.idle_kwh, figures.base_kwh) == (1.5, 1, 0.5, None)


# -- failures ----------------------------------------------------------------------------------------------------------
# Nodes that go and come back while jobs run.


LONG = trace(job("a", 0, 2, 100))


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


# -- backfill ----------------------------------------------------------------------------------------------------------
# EASY backfill: who may go past the first in the queue, and that it is never delayed by it.


EASY = Options(backfill="easy", record=True)


@pytest.mark.parametrize(("policy", "scheduler"), [("pal", "fifo"), ("packed", "srtf"), ("random-nonsticky", "fifo")])
def test_backfill_needs_jobs_that_stay(policy: str, scheduler: str) -> None:
    with pytest.raises(InputError, match="backfill needs jobs that"):
        replay(trace(job("a", 0, 1, 1)), flat(1, 1), policy, scheduler, options=EASY)


def test_backfill_by_rounds_and_beside_other_jobs() -> None:
    jobs = trace(job("runs", 0, 3, 100), job("first", 1, 4, 100), job("short", 2, 1, 60))
    by_rounds = replay(jobs, flat(1, 4), options=Options(backfill="easy", rounds=True, round_s=10))
    assert by_rounds.start_s.tolist() == [0, 100, 10]
    beside = replay(jobs, flat(1, 4), options=Options(backfill="easy", others=lambda: iter([job("other", 5, 1, 30)])))
    assert beside.start_s.tolist() == [0, 100, 2]
    assert beside.others.finish_s.tolist() == [92]


# -- against the plain replay ------------------------------------------------------------------------------------------


ROUND_S = 100
COSTS_S = [0, 0, 10, 50, 60, 100, 130, 470]


def compared(seed: int) -> Plain:
    """A trace of some jobs on a small fleet by both, of numbers that floating point holds exactly."""
    draw = random.Random(seed)
    nodes, per_node = draw.choice([(2, 4), (4, 2), (3, 3), (8, 1), (1, 8)])
    scores = [draw.choice([0.5, 1, 1, 1, 2]) for _ in range(nodes * per_node)]
    easy, excludes = draw.choice([(False, False), (False, False), (True, False), (True, True), (False, True)])
    excluded = {name: frozenset(draw.sample(range(nodes), draw.randrange(nodes) * excludes)) for name in "AB"}
    tasks, jobs, at = [], [], 0
    for number in range(draw.randint(3, 40)):
        at += draw.choice([0, 0, 1, 25, 100, 250]) // (1 + easy)
        workload = draw.choice("AB")
        gpus = min(draw.choice([1, 1, 2, 3, 4, 8]), per_node * (nodes - len(excluded[workload])))
        ideal = draw.choice([10, 64, 150, 300, 700]) + number
        limit = ideal * draw.choice([1, 2, 5])
        tasks.append(Task(number, Fraction(at), gpus, Fraction(ideal), Fraction(limit), excluded[workload]))
        jobs.append(job(str(number), at, gpus, ideal, workload, limit))
    failures, down = [], 0
    for _ in range(0 if easy or excludes else draw.choice([0, 0, 1, 3])):
        down += draw.randint(1, 500)
        failures.append((draw.randrange(nodes), down, down + draw.choice([20, 100, 330])))
        down += 400  # so that none overlap
    plain = Plain(
        tasks,
        nodes,
        per_node,
        scores,
        locality=draw.choice([1.0, 2.0]),
        order="fifo" if easy or excludes else draw.choice(["fifo", "las", "srtf"]),
        sticky=easy or excludes or draw.random() < 0.6,
        round_s=draw.choice([None, ROUND_S, ROUND_S]),
        stop_s=draw.choice(COSTS_S),
        move_s=draw.choice(COSTS_S),
        failures=failures,
        resumes=draw.random() < 0.5,
        easy=easy,
    )
    plain.run()
    options = Options(
        round_s=ROUND_S,
        rounds=plain.round_s is not None,
        preemption_s=plain.stop_s,
        migration_s=plain.move_s,
        failures=tuple(Failure(f"n{node}", begin, end) for node, begin, end in failures),
        on_failure="resume" if plain.resumes else "restart",
        backfill="easy" if easy else "none",
        record=True,
    )
    world = World.regular(nodes, per_node, {"A": scores, "B": scores}, locality=plain.locality)
    world = advised_by(world, Excluded(nodes, excluded))
    policy = "advice-exclude" if excludes else "packed" if plain.sticky else "packed-nonsticky"
    outcome = replay(trace(*jobs), world, policy, plain.order, options=options)
    sound(outcome, world)
    for figure, expected in (
        ("start_s", [task.start for task in tasks]),
        ("finish_s", [task.finish for task in tasks]),
        ("gpu_seconds", [task.gpu_seconds for task in tasks]),
        ("preemptions", [task.stops for task in tasks]),
        ("migrations", [task.moves for task in tasks]),
        ("restarts", [task.restarts for task in tasks]),
    ):
        assert getattr(outcome, figure).tolist() == expected, (seed, figure)
    return plain


def test_equals_a_plain_replay() -> None:
    """Times, GPU-seconds, stops, moves and restarts of every job; and all that the rules are about does happen."""
    happened = dict.fromkeys(("stops", "moves", "restarts", "stayed", "spared", "limited", "filled"), 0)
    for seed in range(count(1000, short=100)):
        plain = compared(seed)
        for rule in ("stops", "moves", "restarts"):
            happened[rule] += sum(getattr(task, rule) for task in plain.tasks)
        for rule in ("stayed", "spared", "limited", "filled"):
            happened[rule] += getattr(plain, rule)
    assert min(happened.values()) > 5, happened
