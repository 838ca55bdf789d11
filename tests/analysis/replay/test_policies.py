"""Placement policies: what each gives on fleets small enough to see, and policies that come from outside."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from whorl.analysis.replay import (
    Allocation,
    Decision,
    Failure,
    Job,
    Options,
    Outcome,
    Policy,
    Power,
    Queued,
    Request,
    Trace,
    View,
    World,
    replay,
)
from whorl.analysis.replay.policies import placements
from whorl.analysis.replay.tables import ANY_WIDTH, Pairs, StepCurves
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import choice, finishes, first_gpus, flat, job, scored, sound, trace

RECORD = Options(record=True)
ODD: Any = "odd"


def test_weights_go_by_the_worst_gpu_of_a_node() -> None:
    world = scored(3, 2, [1.0, 1.5, 1.1, 1.1, 1.2, 0.9])  # nodes of 1.5, 1.1, 1.2
    assert choice("weights", world, [], 1) == [2]
    assert choice("weights", world, [2], 2) == [4, 5]  # the first node in order that holds it
    assert choice("weights", world, [], 3) == [2, 3, 4]
    assert choice("packed", world, [], 1) == [0]


def test_weights_see_the_classes_of_the_trace_only() -> None:
    world = World.regular(2, 1, {"A": [1.0, 2.0], "B": [2.0, 1.0]})
    for workload, gpu in (("A", 0), ("B", 1)):
        outcome = replay(trace(job("j", 0, 1, 10, workload)), world, "weights", options=RECORD)
        assert first_gpus(outcome) == {"j": (gpu,)}


def nodes_given(outcome: Outcome, world: World) -> set[int]:
    """The nodes that any job held a GPU of; of a recorded replay."""
    assert outcome.spans is not None
    return {int(world.fleet.node[gpu]) for span in outcome.spans for gpu in span.gpus}


@pytest.mark.parametrize(
    ("planted", "drained"),
    [
        ({}, set()),
        ({5: 2.8}, {1}),
        ({5: 2.0, 17: 1.4}, {1, 4}),  # mean + 3 sd is 1.6: the slow one would hide the other
        ({5: 2.0, 6: 1.4}, {1}),
        (dict.fromkeys((1, 9, 17, 25), 1.4), {0, 2, 4, 6}),  # mean + 3 sd is 1.45
        ({5: 1.08}, set()),  # nobody drains a node for this
    ],
)
def test_the_nodes_of_gpus_that_are_far_off_are_drained(planted: dict[int, float], drained: set[int]) -> None:
    scores = [planted.get(gpu, 1.0 + 0.001 * (gpu % 3)) for gpu in range(32)]
    world = scored(8, 4, scores)
    jobs = trace(*(job(str(i), i, 1 + i % 5, 100, "A") for i in range(60)))
    outcome = replay(jobs, world, "drain-outliers", options=RECORD)
    assert nodes_given(outcome, world) == set(range(8)) - drained
    assert nodes_given(replay(jobs, world, options=RECORD), world) == set(range(8))


def test_a_slower_board_variant_is_not_drained() -> None:
    variant = np.where(np.arange(40) < 12, 1.3, 1.0)
    scores = variant * (1 + 0.002 * (np.arange(40) % 4))
    scores[5] *= 1.5
    world = scored(10, 4, scores.tolist())
    of_like = replace(world.beliefs, usual={"A": variant})
    assert set(world.fleet.node[placements.on_drained_nodes(of_like, {"A"}, 1)].tolist()) == {1}
    assert set(world.fleet.node[placements.on_drained_nodes(world.beliefs, {"A"}, 1)].tolist()) == {0, 1, 2}


def test_draining_leaves_enough_for_the_widest_job_and_half_of_the_nodes() -> None:
    scores = [1.0] * 40
    scores[5], scores[14] = 8.0, 9.0
    world = scored(10, 4, scores)
    for wide, drained in ((32, {1, 3}), (33, {3}), (36, {3}), (37, set())):
        outcome = replay(trace(job("wide", 0, wide, 10, "A")), world, "drain-outliers", options=RECORD)
        assert nodes_given(outcome, world).isdisjoint(drained)
        assert set(world.fleet.node[placements.on_drained_nodes(world.beliefs, {"A"}, wide)].tolist()) == drained
    scores = [1.0, 1.0, 1.0, 2.0] * 3 + [1.0] * 8
    assert placements.on_drained_nodes(scored(5, 4, scores).beliefs, {"A"}, 1).tolist() == [True] * 8 + [False] * 12


def test_the_class_that_varies_most_chooses_first() -> None:
    world = World.regular(2, 1, {"calm": [1.0, 1.01], "wild": [1.0, 2.0]})
    jobs = trace(job("none", 0, 1, 10), job("wild", 0, 1, 10, "wild"))
    assert finishes(replay(jobs, world, "pal")) == {"none": 10, "wild": 10}
    jobs = trace(job("calm", 0, 1, 10, "calm"), job("wild", 0, 1, 10, "wild"))
    assert finishes(replay(jobs, world, "pal")) == pytest.approx({"calm": 10.1, "wild": 10})
    stated = Options(class_order=("calm", "wild"))
    assert finishes(replay(jobs, world, "pal", options=stated)) == pytest.approx({"calm": 10, "wild": 20})
    assert finishes(replay(jobs, world, "pal-sticky")) == pytest.approx({"calm": 10, "wild": 20})


class Linear(StepCurves):
    """Every job is as fast as it has GPUs."""

    def __init__(self) -> None:
        pass

    def __contains__(self, model: str) -> bool:
        return True

    def speed(self, application: str, placement: Sequence[int], gpus: int, batch: int | None) -> float:
        return sum(placement) / gpus


class EqualShares(Policy):
    """Elastic: every job has the same number of GPUs, at most its own width."""

    name = "equal shares"

    def decide(self, view: View) -> Decision:
        free = np.flatnonzero(view.up).tolist()
        share = max(1, len(free) // max(1, len(view.requests)))
        changes: dict[int, Allocation | None] = dict.fromkeys(view.running)
        for number, request in view.requests.items():
            count = min(share, request.gpus)
            if count <= len(free):
                changes[number] = Allocation(tuple(free[:count]))
                free = free[count:]
        return Decision(changes)


class TwoToAGpu(Policy):
    """Co-location: jobs of one GPU, two on each."""

    name = "two to a GPU"

    def decide(self, view: View) -> Decision:
        gpus = np.flatnonzero(view.up).tolist()
        changes: dict[int, Allocation | None] = dict.fromkeys(view.running)
        for place, number in enumerate(list(view.requests)[: 2 * len(gpus)]):
            changes[number] = Allocation((gpus[place // 2],), shared=True)
        return Decision(changes)


def elastic(world: World) -> World:
    return replace(world, rates=replace(world.rates, curves=Linear()))


def paired(world: World, share: float) -> World:
    """Every pair keeps this share of its solo speed."""
    name = ("", ANY_WIDTH)
    return replace(world, rates=replace(world.rates, pairs=Pairs({(name, name): share})))


def widely(*jobs: Job) -> Trace:
    return trace(*(replace(job_of_trace, widths=(1, job_of_trace.gpus)) for job_of_trace in jobs))


def test_an_elastic_policy_changes_gpu_counts_while_jobs_run() -> None:
    jobs, world = widely(job("a", 0, 4, 100), job("b", 50, 4, 100)), elastic(flat(1, 4))
    outcome = replay(jobs, world, EqualShares, options=RECORD)
    # a: 50 s on 4 and then 100 s on 2; b: 100 s on 2 is half of it, then 50 s on 4.
    assert finishes(outcome) == {"a": 150, "b": 200}
    assert outcome.gpu_seconds.tolist() == [400, 400]
    assert outcome.migrations.tolist() == [1, 1]
    assert outcome.spans is not None
    assert [(span.job, len(span.gpus), span.began_s, span.ended_s) for span in outcome.spans] == [
        (0, 4, 0, 50),
        (0, 2, 50, 150),
        (1, 2, 50, 150),
        (1, 4, 150, 200),
    ]
    sound(outcome, world)
    late = replay(jobs, world, EqualShares, options=Options(migration_s=10))
    assert finishes(late) == {"a": 160, "b": 215}
    assert late.wasted_gpu_s.tolist() == [20, 40]


def test_a_co_location_policy_puts_two_jobs_on_a_gpu() -> None:
    jobs = trace(job("a", 0, 1, 60), job("b", 0, 1, 90))
    outcome = replay(jobs, paired(flat(1, 1), 0.6), TwoToAGpu, options=RECORD)
    # Both at 0.6 until a ends at 100 with b at 60 of 90; then b alone.
    assert finishes(outcome) == pytest.approx({"a": 100, "b": 130})
    assert outcome.migrations.sum() == 0
    assert outcome.spans is not None
    assert {span.gpus for span in outcome.spans} == {(0,)}
    world = World.regular(1, 1, {"A": [1.0]}, power=Power({"A": np.array([200.0])}))
    jobs = trace(job("a", 0, 1, 60, "A"), job("b", 0, 1, 90, "A"))
    shared = replay(jobs, paired(world, 0.6), TwoToAGpu)
    assert shared.energy_j.tolist() == pytest.approx([100 * 100, 100 * 100 + 30 * 200])  # a shared GPU counts once


def test_speed_is_the_worlds_to_say() -> None:
    """Twelve jobs of two GPUs on GPUs 0 and 1: without a table of pairs they share equally."""

    class AllOnTwo(Policy):
        name = "all on two"

        def decide(self, view: View) -> Decision:
            return Decision({number: Allocation((0, 1), shared=True) for number in view.arrived})

    jobs = trace(*(job(str(number), 0, 2, 1000) for number in range(12)))
    outcome = replay(jobs, flat(4, 8), AllOnTwo)
    assert outcome.finish_s.tolist() == pytest.approx([12_000] * 12)
    with pytest.raises(TypeError):
        Allocation((0, 1), rate=10.0)  # type: ignore[call-arg]


def test_a_pair_that_does_not_fit_is_refused_with_names_and_time() -> None:
    world = paired(flat(1, 1), 0.0)
    with pytest.raises(InputError, match=r"two to a GPU gives job b at 5 s GPUs \[0\]: .*do not fit"):
        replay(trace(job("a", 0, 1, 60), job("b", 5, 1, 90)), world, TwoToAGpu)


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({0: Allocation((0,)), 1: Allocation((0,))}, "gives job b at 0 s the GPU 0, which job a holds"),
        ({0: Allocation((0,), shared=True), 1: Allocation((0,))}, "the GPU 0, which job a holds, and they do not both"),
        ({0: Allocation((9,))}, "gives job a at 0 s the GPU 9; the fleet has 0 to 3"),
        ({0: Allocation((-1,))}, "gives job a at 0 s the GPU -1; the fleet has 0 to 3"),
        ({0: Allocation((3,))}, "gives job a at 0 s the GPU 3, which is on a node that is down"),
        ({0: Allocation((0, 1))}, "gives job a at 0 s 2 GPUs; it wants 1"),
        ({0: Allocation((0, 0))}, "gives job a at 0 s the GPU 0 twice"),
        ({0: Allocation(())}, "gives job a at 0 s no GPUs"),
        ({0: Allocation((ODD,))}, r"gives job a at 0 s \('odd',\), which is no list of GPU numbers"),
        ({0: Allocation(ODD)}, "gives job a at 0 s 'odd', which is no list of GPU numbers"),
        ({0: (0,)}, r"gives job a at 0 s \(0,\), which is neither an Allocation nor None"),
        ({0: Allocation((0,), clocks=(NAN,))}, "gives job a at 0 s the clock nan: it must be a number > 0"),
        ({0: Allocation((0,), clocks=(10.0,))}, "gives job a at 0 s the clock 10.0: it must be a number > 0 and <= 1"),
        ({0: Allocation((0,), clocks=(1.0, 1.0))}, "the clocks .*one for each of its GPUs"),
        ({0: Allocation((0,), clocks=None)}, "the clocks None; there must be one for each of its GPUs"),  # type: ignore[arg-type]
        (np.zeros(2), r"decides array\(\[0., 0.\]\) at 0 s; changes must be a dict"),
        (None, "decides None at 0 s; changes must be a dict"),
        ({0: Allocation((0,), depths=(NAN,))}, "gives job a at 0 s the depth nan: it must be a number > 0 and <= 1"),
        ({0: Allocation((0,), depths=(0.5,))}, "gives job a at 0 s depths of at most 0.5: the deepest must be 1"),
        ({7: Allocation((0,))}, "gives GPUs to job number 7 at 0 s, which is not in the system"),
        ([Allocation((0,))], r"decides \[Allocation\(.*\)\] at 0 s; changes must be a dict"),
    ],
)
def test_what_a_policy_may_not_change(changes: Any, sentence: str) -> None:
    away = Options(failures=(Failure("n1", 0, 50),))
    with pytest.raises(InputError, match=f"^made: the policy foreign .*{sentence}"):
        replay(trace(job("a", 0, 1, 1), job("b", 0, 1, 1)), flat(2, 2), always(Decision(changes)), options=away)


def always(decision: Any) -> type[Policy]:
    class Foreign(Policy):
        name = "foreign"

        def decide(self, view: View) -> Decision:
            answer: Decision = decision(view) if callable(decision) else decision
            return answer

    return Foreign


@pytest.mark.parametrize(
    ("decision", "sentence"),
    [
        (Decision({}, again_s=0.0), "asks at 0 s to be woken up at 0.0: it must be a later time"),
        (Decision({}, again_s=-5), "woken up at -5: it must be a later time"),
        (Decision({}, again_s=NAN), "woken up at nan: it must be a later time"),
        (Decision({}, again_s=ODD), "woken up at 'odd': it must be a later time"),
        (None, "decides None at 0 s, which is no Decision"),
        (Decision({}, again_s=np.ones(2)), r"woken up at array"),  # type: ignore[arg-type]
        (lambda view: view.requests[5], "fails at 0 s: KeyError: 5"),
        (lambda view: view.requests.clear(), "fails at 0 s: AttributeError"),
        (lambda _: sys.exit(0), "fails at 0 s: SystemExit: 0"),
    ],
)
def test_what_a_policy_may_not_answer(decision: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=f"^made: the policy foreign .*{sentence}"):
        replay(trace(job("a", 0, 1, 1)), flat(1, 1), always(decision))


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        ([0], "1 GPUs; it wants 2"),
        ([0, 0], "the GPU 0 twice"),
        ([1, 2], "the GPU 2, which is not free"),
        (range(1, 3), "the GPU 2, which is not free"),
        ([1, 4], "the GPU 4, which is not free"),
        ([1, 6], "the GPU 6; the fleet has 0 to 5"),
        ([-1, 1], "the GPU -1; the fleet has 0 to 5"),
        ([0.0, 1.0], r"\[0.0, 1.0\], which is no list of GPU numbers"),
        (2, "2, which is no list of GPU numbers"),
    ],
)
@pytest.mark.parametrize("keeps", [True, False])
def test_what_a_placement_may_not_give(gpus: Any, sentence: str, keeps: bool) -> None:
    class Foreign(Queued):
        name = "foreign"
        sticky = keeps

        def place(self, request: Request) -> Any:
            return [2] if request.name == "first" else gpus

    away = Options(failures=(Failure("n1", 0, 50),))
    with pytest.raises(InputError, match=f"^made: the policy foreign gives job a at 0 s {sentence}"):
        replay(trace(job("first", 0, 1, 100), job("a", 0, 2, 1)), flat(2, 3), Foreign, options=away)


def test_whatever_a_policy_raises_is_one_sentence() -> None:
    class Unmade(Policy):
        name = "unmade"

        def __init__(self) -> None:
            raise ValueError

    class Unbegun(Policy):
        name = "unbegun"

        def begin(self, view: View) -> None:
            raise ValueError("no table")

    jobs = trace(job("a", 0, 1, 1))
    with pytest.raises(InputError, match=r"the policy unmade cannot be made without arguments: ValueError$"):
        replay(jobs, flat(1, 1), Unmade)
    with pytest.raises(InputError, match=r"^made: the policy unbegun fails at 0 s: ValueError: no table"):
        replay(jobs, flat(1, 1), Unbegun)


def test_jobs_are_stopped_for_what_a_placement_waits_for() -> None:
    """It wants one node. The last in the order is on another: the job before it is stopped too, and goes there."""

    class OneNode(Queued):
        name = "one node"

        def place(self, request: Request) -> Any:
            nodes = [node for node, count in enumerate(self.cluster.counts.tolist()) if count >= request.gpus]
            return self.cluster.first_free(nodes[0], request.gpus) if nodes else None

    jobs = trace(job("first", 0, 1, 20), job("last", 0, 1, 900), job("before", 1, 1, 800), job("new", 10, 2, 100))
    outcome = replay(jobs, flat(2, 2), OneNode, "srtf")
    assert finishes(outcome) == {"first": 20, "last": 910, "new": 110, "before": 801}
    assert outcome.preemptions.tolist() == [0, 1, 0, 0]
    assert outcome.migrations.tolist() == [0, 0, 1, 0]


def test_a_policy_may_give_what_counts_as_numbers() -> None:
    """Arrays of numpy as well; to the replay they are plain numbers."""
    arrays = always(lambda view: Decision({n: Allocation(np.array([3, 1])) for n in view.arrived}))  # type: ignore[arg-type]
    outcome = replay(trace(job("a", 0, 2, 10)), flat(1, 4), arrays, options=RECORD)
    assert first_gpus(outcome) == {"a": (3, 1)}  # in the order of their roles
    assert all(type(gpu) is int for gpu in first_gpus(outcome)["a"])
    soon: Any = np.float32(5)
    late = always(lambda view: Decision({0: Allocation((0,))}) if view.now_s else Decision({}, soon))
    assert finishes(replay(trace(job("a", 0, 1, 10)), flat(1, 1), late)) == {"a": 15}


@pytest.mark.long
def test_a_policy_that_stops_jobs_before_they_work_is_told_of() -> None:
    """Each round another of two jobs has the one GPU, and a round is what a start costs."""

    class Turns(Policy):
        name = "turns"
        by_rounds = True

        def decide(self, view: View) -> Decision:
            changes: dict[int, Allocation | None] = dict.fromkeys(view.running)
            turn = int(view.now_s // 100) % 2
            changes |= {number: Allocation((0,)) for number in view.requests if number == turn}
            return Decision(changes, view.edge_s)

    jobs = trace(job("a", 0, 1, 500), job("b", 0, 1, 500))
    assert replay(jobs, flat(1, 1), Turns, options=Options(round_s=100)).end_s == 1000
    with pytest.raises(InputError, match=r"job a never ends: at .* the policy turns has stopped or moved it"):
        replay(jobs, flat(1, 1), Turns, options=Options(round_s=100, preemption_s=100))
