"""Jobs that are stopped, moved and struck by failures: against a plain replay, and that none is stopped in vain."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from whorl.analysis.replay import Failure, Options, replay
from whorl.analysis.replay.outcome import Outcome
from whorl.tests.analysis.replay.making import job, scored, sound, trace
from whorl.tests.analysis.replay.plain_stopping import Plain, Task

ROUND_S = 100


def drawn(seed: int) -> tuple[Plain, Outcome]:
    """A trace of some jobs on a small fleet by both, of numbers that floating point holds exactly."""
    draw = random.Random(seed)
    nodes, per_node = draw.choice([(2, 4), (4, 2), (3, 3), (8, 1), (1, 8)])
    score = [draw.choice([0.5, 1, 1, 1, 2]) for _ in range(nodes * per_node)]
    tasks, at = [], 0
    for number in range(draw.randint(3, 22)):
        at += draw.choice([0, 0, 1, 25, 100, 250])
        gpus = min(draw.choice([1, 1, 2, 3, 4, 8]), nodes * per_node)
        tasks.append(Task(number, Fraction(at), gpus, Fraction(draw.choice([10, 64, 150, 300, 700]) + number)))
    failures, down = [], 0
    for _ in range(draw.choice([0, 0, 1, 3])):
        down += draw.randint(1, 500)
        failures.append((draw.randrange(nodes), down, down + draw.choice([20, 100, 330])))
        down += 400  # so that none overlap
    costs = [0, 0, 10, 50, 60, 100, 130, 470]
    plain = Plain(
        tasks,
        nodes,
        per_node,
        score,
        locality=draw.choice([1.0, 2.0]),
        order=draw.choice(["fifo", "las", "srtf"]),
        sticky=draw.random() < 0.6,
        round_s=draw.choice([None, ROUND_S, ROUND_S]),
        stop_s=draw.choice(costs),
        move_s=draw.choice(costs),
        failures=failures,
        resumes=draw.random() < 0.5,
    )
    options = Options(
        round_s=ROUND_S,
        rounds=plain.round_s is not None,
        preemption_s=plain.stop_s,
        migration_s=plain.move_s,
        failures=tuple(Failure(f"n{node}", begin, end) for node, begin, end in failures),
        on_failure="resume" if plain.resumes else "restart",
        record=True,
    )
    jobs = trace(*(job(str(one.number), float(one.submit), one.gpus, float(one.ideal), "A") for one in tasks))
    fleet = scored(nodes, per_node, score, plain.locality)
    outcome = replay(jobs, fleet, "packed" if plain.sticky else "packed-nonsticky", plain.order, options=options)
    sound(outcome, fleet)
    plain.run()
    return plain, outcome


@pytest.mark.long
def test_equals_a_plain_replay() -> None:
    """Times, GPU-seconds, stops, moves and restarts of every job; and all that the rules are about does happen."""
    stops = moves = restarts = stayed = spared = beyond = 0
    for seed in range(1000):
        plain, outcome = drawn(seed)
        tasks = plain.tasks
        assert outcome.start_s.tolist() == [one.start for one in tasks], seed
        assert outcome.finish_s.tolist() == [one.finish for one in tasks], seed
        assert outcome.gpu_seconds.tolist() == [one.gpu_seconds for one in tasks], seed
        assert outcome.preemptions.tolist() == [one.stops for one in tasks], seed
        assert outcome.migrations.tolist() == [one.moves for one in tasks], seed
        assert outcome.restarts.tolist() == [one.restarts for one in tasks], seed
        stops += sum(one.stops for one in tasks)
        moves += sum(one.moves for one in tasks)
        restarts += sum(one.restarts for one in tasks)
        stayed += plain.stayed
        spared += plain.spared
        beyond += plain.round_s is not None and max(plain.stop_s, plain.move_s) >= ROUND_S
    assert min(stops, moves, restarts, stayed, spared, beyond) > 100
