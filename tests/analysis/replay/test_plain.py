"""The engine against the plain replay: jobs that are stopped, moved, filled in, kept off nodes, struck by failures."""

from __future__ import annotations

import random
from fractions import Fraction

from whorl.analysis.replay import Failure, Options, World, replay
from whorl.tests.analysis.replay.making import Excluded, advised_by, job, sound, trace
from whorl.tests.analysis.replay.plain import Plain, Task
from whorl.tests.sizes import count

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
