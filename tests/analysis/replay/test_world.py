"""What is true and what is believed: speeds, pieces, limits, wake-ups, users; and that no policy reaches the truth."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from whorl.analysis.replay import (
    Allocation,
    Beliefs,
    Decision,
    Failure,
    Job,
    Options,
    Piece,
    Policy,
    Power,
    View,
    World,
    replay,
)
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import Restless, finishes, flat, job, scored, trace
from whorl.tests.sizes import count


def in_pieces(name: str, submit_s: float, *pieces: Piece, gpus: int = 1) -> Job:
    return Job(name, submit_s, gpus, sum(piece.work_s for piece in pieces), pieces=pieces)


class Noting(Policy):
    """Gives each job a GPU of its own as it comes, and notes what it sees."""

    name = "noting"
    needs_progress = True

    def begin(self, view: View) -> None:
        self.seen: list[tuple[float, dict[int, tuple[float, tuple[Any, ...], float | None]]]] = []

    def decide(self, view: View) -> Decision:
        progress_rows = {n: (row.epochs_done, row.regimes, row.left_s) for n, row in view.progress.items()}
        self.seen.append((view.now_s, progress_rows))
        free = view.free()
        return Decision({n: Allocation((free.pop(0),)) for n in view.waiting()}, view.now_s + 50)


def test_epochs_and_regimes_are_seen_as_they_are_done() -> None:
    jobs = trace(in_pieces("a", 0, Piece(100, 10, 32), Piece(60, 3, 64)))
    policy = Noting()
    outcome = replay(jobs, scored(1, 1, [1.0]), policy)
    assert finishes(outcome) == {"a": 160}
    assert [now_s for now_s, _ in policy.seen] == [0, 50, 100, 150]
    rows = [progress_at[0] for _, progress_at in policy.seen]
    assert rows[1] == (5, ((32, 5, 50),), 110)
    assert rows[2] == (10, ((32, 10, 100),), 60)
    assert rows[3] == (12.5, ((32, 10, 100), (64, 2.5, 50)), 10)
    beliefs = Beliefs(flat(1, 1).rates, knowledge="none")
    policy = Noting()
    replay(jobs, replace(flat(1, 1), beliefs=beliefs), policy)
    assert [progress_at[0][2] for _, progress_at in policy.seen] == [None] * 4


def test_a_limit_ends_a_job_and_its_work_is_wasted() -> None:
    jobs = trace(job("over", 0, 2, 1000, limit_s=500), job("under", 10, 2, 100, limit_s=500))
    outcome = replay(jobs, flat(1, 2))
    assert finishes(outcome) == {"over": 500, "under": 600}
    assert outcome.limit_hit.tolist() == [True, False]
    assert outcome.wasted_gpu_s.tolist() == [1000, 0]
    figures = outcome.metrics()
    assert (figures.limits_hit, figures.wasted_gpu_h) == (1, 1000 / 3600)
    exact = replay(trace(job("just", 0, 1, 500, limit_s=500)), flat(1, 1))
    assert exact.limit_hit.tolist() == [False]


def test_a_start_costs_time_but_not_in_the_first_round_nor_before_the_edge() -> None:
    options = Options(round_s=120, rounds=True, start_s=20)
    jobs = trace(job("first", 0, 1, 300), job("second", 10, 1, 300), job("brief", 20, 1, 90), job("near", 30, 1, 116))
    outcome = replay(jobs, flat(1, 4), options=options)
    assert finishes(outcome) == {"first": 300, "second": 120 + 20 + 300, "brief": 120 + 90, "near": 120 + 20 + 116}
    assert outcome.wasted_gpu_s.tolist() == [0, 20, 0, 20]


def test_a_policy_that_gives_nothing_is_named() -> None:
    class Never(Policy):
        """Gives no job anything."""

        name = "never"

        def decide(self, view: View) -> Decision:
            return Decision()

    with pytest.raises(InputError, match="job a waits for ever: never gives it no GPUs"):
        replay(trace(job("a", 0, 1, 35)), flat(1, 1), Never, options=Options(others=lambda: iter([job("b", 5, 1, 9)])))


def test_a_policy_is_woken_up_when_it_asked_to_be() -> None:
    class Patient(Policy):
        """Starts each job 17 s after it came."""

        name = "patient"

        def decide(self, view: View) -> Decision:
            due = {n: view.requests[n].submit_s + 17 for n in view.waiting()}
            start = {n: Allocation((view.free()[0],)) for n in due if due[n] <= view.now_s}
            return Decision(start, min((at_s for n, at_s in due.items() if n not in start), default=np.inf))

    jobs = trace(job("a", 0, 1, 35), job("b", 60, 1, 5))
    assert replay(jobs, flat(1, 1), Patient).start_s.tolist() == [17, 77]
    by_rounds = replay(jobs, flat(1, 1), Patient, options=Options(round_s=10, rounds=True))
    assert by_rounds.start_s.tolist() == [20, 80]


def test_what_is_known_of_the_work_of_jobs() -> None:
    jobs = trace(*(job(str(n), 0, 1, 1000 + n) for n in range(400)))
    works: dict[str, list[float | None]] = {}

    class Asking(Policy):
        name = "asking"

        def decide(self, view: View) -> Decision:
            works.setdefault(view.beliefs.knowledge, [request.work_s for request in view.requests.values()])
            return Decision({n: Allocation((n,)) for n in view.arrived})

    for knowledge in ("exact", "estimate", "none"):
        beliefs = Beliefs(flat(100, 4).rates, knowledge)
        replay(jobs, replace(flat(100, 4), beliefs=beliefs), Asking)
    assert works["exact"] == [job_of_trace.ideal_s for job_of_trace in jobs.jobs]
    errors = np.log(np.array(works["estimate"], dtype=float) / np.array(works["exact"]))
    assert errors.mean() == pytest.approx(0, abs=4 * 0.3 / 20)
    assert errors.std() == pytest.approx(0.3, rel=0.15)
    assert works["none"] == [None] * 400
    nothing = replace(flat(1, 1), beliefs=Beliefs(flat(1, 1).rates, "none"))
    assert finishes(replay(trace(job("a", 0, 1, 35)), nothing)) == {"a": 35}
    with pytest.raises(InputError, match=r"srtf needs to know the work of jobs, .*use knowledge=exact or"):
        replay(trace(job("a", 0, 1, 35)), nothing, scheduler="srtf")


SCORE, WORK_S, PIECE_S, LATER_S, WATTS, DOWN_S = 1.17171717, 1717.1717, 717.717, 2717.2727, 171.7171, 17.1717
TRUTHS = (SCORE, WORK_S, PIECE_S, WORK_S - PIECE_S, LATER_S, WATTS, DOWN_S)


def reached(root: object) -> Iterator[float]:
    """Every number that attributes lead to: through __dict__, __slots__, containers, bound methods and closures."""
    todo, visited = [root], {id(root): root}
    while todo:
        value = todo.pop()
        further: list[object] = []
        if isinstance(value, (float, int)):
            yield float(value)
        elif isinstance(value, np.ndarray):
            yield from value.ravel().tolist()
        elif isinstance(value, Mapping):
            further = [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple, set, frozenset)):
            further = list(value)
        elif isinstance(value, types.MethodType):
            further = [value.__self__, value.__func__]
        elif isinstance(value, types.FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            further = [*cells, value.__defaults__, value.__kwdefaults__]
        elif not isinstance(value, (type, types.ModuleType, str, bytes, Random)):
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            further = [*vars(value).values()] if hasattr(value, "__dict__") else []
            further += [getattr(value, name) for name in slots if hasattr(value, name)]
        for inner in further:
            if id(inner) not in visited:
                visited[id(inner)] = inner
                todo.append(inner)


class Spy(Policy):
    """Shares GPUs as jobs come, and looks for the truth at each decision."""

    name = "spy"
    needs_progress = True

    def begin(self, view: View) -> None:
        self.found: set[float] = set()
        self._look(view)

    def decide(self, view: View) -> Decision:
        self._look(view)
        changes = {number: Allocation((number % 2,), shared=True) for number in view.arrived}
        return Decision(changes, view.now_s + 400)

    def _look(self, view: View) -> None:
        numbers = np.fromiter(reached(view), dtype=float)
        self.found |= {truth for truth in TRUTHS if np.isclose(numbers, truth, rtol=1e-9).any()}


@pytest.mark.parametrize("knowledge", ["none", "estimate", "exact"])
def test_no_policy_reaches_the_truth(knowledge: str) -> None:
    """Scores, work, jobs to come, power and failures to come have values that nothing else has."""
    scores = {"A": np.array([SCORE, SCORE, 1.0])}
    world = World.regular(3, 1, scores, power=Power({"A": np.array([WATTS, WATTS, 200.0])}, idle_w=20.0))
    world = replace(world, beliefs=replace(world.beliefs, knowledge=knowledge)).flat()
    jobs = (
        Job("a", 0, 1, WORK_S, "A"),
        Job("b", 0, 1, WORK_S, "A", pieces=(Piece(PIECE_S, 3, 8), Piece(WORK_S - PIECE_S, 4, 16))),
        Job("later", 3000, 1, LATER_S, "A"),
    )
    options = Options(
        others=lambda: iter([Job("other", 3500, 1, LATER_S, "A")]),
        failures=(Failure(2, 4000 + DOWN_S, 5000),),
    )
    policy = Spy()
    replay(trace(*jobs), world, policy, options=options)
    works = {WORK_S, LATER_S}
    assert policy.found == (works if knowledge == "exact" else set())


@pytest.mark.parametrize("seed", range(count(40, short=6)))
def test_work_adds_up_whatever_a_policy_does(seed: int) -> None:
    """What a job did, by who held which GPU when and how many shared it, is its work, or what its limit let it do."""
    draw = Random(seed)
    jobs = []
    for number in range(12):
        parts = [
            Piece(draw.uniform(5, 60), draw.randint(1, 4), draw.choice((8, 16))) for _ in range(draw.randint(1, 3))
        ]
        job_in_pieces = in_pieces(str(number), 9.0 * number, *parts, gpus=draw.randint(1, 3))
        limit_s = draw.choice((None, None, job_in_pieces.ideal_s * 1.5))
        jobs.append(replace(job_in_pieces, workload="A", limit_s=limit_s))
    scores = [draw.choice((0.8, 1.0, 1.25)) for _ in range(6)]
    world = scored(2, 3, scores, locality=draw.choice((1.0, 1.5)))
    options = Options(
        record=True, preemption_s=draw.choice((0, 4)), failures=(Failure(1, 60, 90),), on_failure="resume"
    )
    outcome = replay(trace(*jobs), world, Restless, options=options, seed=seed)
    assert outcome.spans is not None
    edges = sorted({edge for span in outcome.spans for edge in (span.began_s, span.ended_s)})
    done = np.zeros(12)
    for begin, end in pairwise(edges):
        now = [span for span in outcome.spans if span.began_s <= begin and span.ended_s >= end]
        tenants = Counter(gpu for span in now for gpu in span.gpus)
        for span in now:
            step = max(scores[gpu] * tenants[gpu] for gpu in span.gpus)
            spans_nodes = len({gpu // 3 for gpu in span.gpus}) > 1
            done[span.job] += (end - begin) / (step * (world.rates.locality if spans_nodes else 1.0))
    for number, job_in_pieces in enumerate(jobs):
        if outcome.limit_hit[number]:
            assert outcome.held_s[number] == pytest.approx(job_in_pieces.limit_s)
            assert outcome.wasted_gpu_s[number] == pytest.approx(outcome.gpu_seconds[number])
        elif not options.preemption_s:
            assert done[number] == pytest.approx(job_in_pieces.ideal_s)
            assert outcome.wasted_gpu_s[number] == 0
        else:
            assert done[number] >= job_in_pieces.ideal_s - 1e-6
