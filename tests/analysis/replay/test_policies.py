"""Placement policies: what each gives on fleets small enough to see, and two that come from outside."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.analysis.replay import POLICIES, Allocation, Failure, Fleet, Job, Options, Outcome, Policy, View, replay
from whorl.analysis.replay.cluster import Cluster
from whorl.analysis.replay.policies import packed
from whorl.errors import InputError
from whorl.tests.analysis.replay.making import finishes, first_gpus, flat, job, scored, sound, trace, work_done
from whorl.tests.sizes import count

RECORD = Options(record=True)
ODD: Any = "odd"


def view(fleet: Fleet, held: Sequence[int] = (), *, options: Options | None = None, ranks: bool = False) -> View:
    """What a policy sees when these GPUs are held."""
    weights = packed.node_weights(fleet, set(fleet.belief)) if ranks else None
    cluster = Cluster(fleet.node, None, weights)
    cluster.take(held)
    return View(fleet, cluster, options or Options(), random.Random(0))


def placed(policy: str, fleet: Fleet, held: Sequence[int], wanted: int, workload: str = "A") -> list[int] | None:
    row = next(one for one in POLICIES if one.name == policy)
    assert row.place is not None
    found = row.place(view(fleet, held, ranks=policy == "weights"), job("j", 0, wanted, 1, workload))
    return None if found is None else sorted(found)


# Packed


def test_weights_go_by_the_worst_gpu_of_a_node() -> None:
    fleet = scored(3, 2, [1.0, 1.5, 1.1, 1.1, 1.2, 0.9])  # nodes of 1.5, 1.1, 1.2
    assert placed("weights", fleet, [], 1) == [2]
    assert placed("weights", fleet, [2], 2) == [4, 5]  # the first node in order that holds it
    assert placed("weights", fleet, [], 3) == [2, 3, 4]
    assert placed("packed", fleet, [], 1) == [0]


def test_weights_see_the_classes_of_the_trace_only() -> None:
    fleet = Fleet.regular(2, 1, {"A": [1.0, 2.0], "B": [2.0, 1.0]})
    for workload, gpu in (("A", 0), ("B", 1)):
        outcome = replay(trace(job("j", 0, 1, 10, workload)), fleet, "weights", options=RECORD)
        assert first_gpus(outcome) == {"j": (gpu,)}


def nodes_given(outcome: Outcome, fleet: Fleet) -> set[int]:
    """The nodes that any job held a GPU of; of a recorded replay."""
    assert outcome.spans is not None
    return {int(fleet.node[gpu]) for span in outcome.spans for gpu in span.gpus}


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
    fleet = scored(8, 4, scores)
    jobs = trace(*(job(str(i), i, 1 + i % 5, 100, "A") for i in range(60)))
    outcome = replay(jobs, fleet, "drain-outliers", options=RECORD)
    assert nodes_given(outcome, fleet) == set(range(8)) - drained
    assert nodes_given(replay(jobs, fleet, options=RECORD), fleet) == set(range(8))


def test_a_slower_board_variant_is_not_drained() -> None:
    variant = np.where(np.arange(40) < 12, 1.3, 1.0)
    scores = variant * (1 + 0.002 * (np.arange(40) % 4))
    scores[5] *= 1.5
    fleet = scored(10, 4, scores.tolist())
    of_like = replace(fleet, usual={"A": variant})
    assert set(fleet.node[packed.on_drained_nodes(of_like, {"A"}, 1)].tolist()) == {1}
    assert set(fleet.node[packed.on_drained_nodes(fleet, {"A"}, 1)].tolist()) == {0, 1, 2}


def test_gpus_that_differ_much_are_not_all_far_off() -> None:
    spread = np.exp(0.08 * np.random.default_rng(1).standard_normal(400))
    assert np.count_nonzero(spread > 1.1) > 20
    assert not packed.far_off(spread).any()
    assert packed.far_off(np.append(spread, 1.4))[-1]


def test_draining_leaves_enough_for_the_widest_job_and_half_of_the_nodes() -> None:
    scores = [1.0] * 40
    scores[5], scores[14] = 8.0, 9.0
    fleet = scored(10, 4, scores)
    for wide, drained in ((32, {1, 3}), (33, {3}), (36, {3}), (37, set())):
        outcome = replay(trace(job("wide", 0, wide, 10, "A")), fleet, "drain-outliers", options=RECORD)
        assert nodes_given(outcome, fleet).isdisjoint(drained)
        assert set(fleet.node[packed.on_drained_nodes(fleet, {"A"}, wide)].tolist()) == drained
    scores = [1.0, 1.0, 1.0, 2.0] * 3 + [1.0] * 8
    assert packed.on_drained_nodes(scored(5, 4, scores), {"A"}, 1).tolist() == [True] * 8 + [False] * 12


# By scores


def test_pm_first_takes_the_fastest_anywhere_and_then_the_fitting_node() -> None:
    fleet = scored(3, 2, [1.0, 1.2, 0.9, 1.2, 1.2, 1.2])
    assert placed("pm-first", fleet, [], 2) == [0, 2]
    # of the alike 1.2: node 0 has one, node 1 one, node 2 two; a job of 4 needs two of them, and 4 is nearest to 2.
    assert placed("pm-first", fleet, [], 4) == [0, 2, 4, 5]
    # a job of one wants a node with one such GPU
    assert placed("pm-first", fleet, [0, 2], 1) == [1]


def test_pal_trades_scores_for_one_node() -> None:
    scores = [1.0, 1.4, 1.0, 1.4]
    assert placed("pal", scored(2, 2, scores, 1.7), [], 2) == [0, 1]  # 1.4 within a node, 1.7 across
    assert placed("pal", scored(2, 2, scores, 1.2), [], 2) == [0, 2]  # 1.4 against 1.2
    assert placed("pal", scored(2, 2, scores, 1.4), [], 2) == [0, 2]  # equal: the entry of the lower score is first
    assert placed("pal", scored(2, 2, [1.0] * 4, 1.0), [], 2) == [0, 1]  # equal scores, equal: within is first
    assert placed("pal", scored(2, 2, scores, 1.7), [], 1) == [0]
    assert placed("pal", scored(2, 2, scores, 1.7), [], 3) == [0, 1, 2]


def test_policies_see_beliefs_and_jobs_run_at_what_is_so() -> None:
    fleet = Fleet.regular(2, 1, {"A": [1.0, 2.0]}, {"A": [2.0, 1.0]})
    outcome = replay(trace(job("a", 0, 1, 100, "A")), fleet, "pm-first-sticky", options=RECORD)
    assert first_gpus(outcome) == {"a": (1,)}
    assert finishes(outcome) == {"a": 200}


def test_scores_that_differ_by_less_than_a_hundredth_are_alike() -> None:
    fleet = scored(2, 2, [1.001, 0.999, 0.998, 1.5])
    assert placed("pm-first", fleet, [], 2) == [0, 1]  # not 1 and 2: node 0 has two alike


def test_the_class_that_varies_most_chooses_first() -> None:
    fleet = Fleet.regular(2, 1, {"calm": [1.0, 1.01], "wild": [1.0, 2.0]})
    jobs = trace(job("none", 0, 1, 10), job("wild", 0, 1, 10, "wild"))
    assert finishes(replay(jobs, fleet, "pal")) == {"none": 10, "wild": 10}
    jobs = trace(job("calm", 0, 1, 10, "calm"), job("wild", 0, 1, 10, "wild"))
    assert finishes(replay(jobs, fleet, "pal")) == pytest.approx({"calm": 10.1, "wild": 10})
    stated = Options(class_order=("calm", "wild"))
    assert finishes(replay(jobs, fleet, "pal", options=stated)) == pytest.approx({"calm": 10, "wild": 20})
    assert finishes(replay(jobs, fleet, "pal-sticky")) == pytest.approx({"calm": 10, "wild": 20})


# Drawn


def test_random_draws_by_its_seed_and_non_sticky_in_every_round() -> None:
    jobs = trace(job("a", 0, 2, 1000))
    fleet = flat(8, 4)
    kept = replay(jobs, fleet, "random", options=RECORD, seed=1)
    assert kept.migrations.sum() == 0
    assert first_gpus(kept) == {"a": tuple(sorted(random.Random(1).sample(range(32), 2)))}
    moving = replay(jobs, fleet, "random-nonsticky", options=Options(round_s=10, record=True), seed=1)
    assert 90 <= moving.migrations.sum() <= 99  # of 99 rounds after the first
    own = random.Random(1)
    assert first_gpus(replay(jobs, fleet, "random", options=RECORD, seed=own)) == first_gpus(kept)
    assert first_gpus(replay(jobs, fleet, "random", options=RECORD, seed=own)) != first_gpus(kept)


# Policies from outside


def equal_shares(view: View) -> Mapping[int, Allocation]:
    """Elastic: every job has the same number of GPUs, at most what it wants, and works in proportion to them."""
    free = np.flatnonzero(view.available()).tolist()
    share = max(1, len(free) // max(1, len(view.order)))
    found = {}
    for number in view.order:
        wanted = view.job(number).gpus
        count = min(share, wanted)
        if count <= len(free):
            found[number] = Allocation(tuple(free[:count]), rate=count / wanted)
            free = free[count:]
    return found


def two_to_a_gpu(view: View) -> Mapping[int, Allocation]:
    """Co-location: jobs of one GPU, two on each, where each works at 0.6 of its speed beside another."""
    gpus = np.flatnonzero(view.available()).tolist()
    found = {}
    for place, number in enumerate(view.order[: 2 * len(gpus)]):
        beside = place ^ 1
        alone = beside >= min(len(view.order), 2 * len(gpus))
        found[number] = Allocation((gpus[place // 2],), 1.0 if alone else 0.6, shared=not alone)
    return found


ELASTIC = Policy("elastic", "equal shares", decide=equal_shares)
BESIDE = Policy("beside", "two to a GPU", decide=two_to_a_gpu)


def test_an_elastic_policy_changes_gpu_counts_while_jobs_run() -> None:
    outcome = replay(trace(job("a", 0, 4, 100), job("b", 50, 4, 100)), flat(1, 4), ELASTIC, options=RECORD)
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
    sound(outcome, flat(1, 4))
    assert work_done(outcome, flat(1, 4)) == pytest.approx([100, 100])
    late = replay(
        trace(job("a", 0, 4, 100), job("b", 50, 4, 100)), flat(1, 4), ELASTIC, options=Options(migration_s=10)
    )
    assert finishes(late) == {"a": 160, "b": 215}


def test_a_co_location_policy_puts_two_jobs_on_a_gpu() -> None:
    jobs = trace(job("a", 0, 1, 60), job("b", 0, 1, 90))
    outcome = replay(jobs, flat(1, 1), BESIDE, options=RECORD)
    # Both at 0.6 until a ends at 100 with b at 60 of 90; then b alone.
    assert finishes(outcome) == pytest.approx({"a": 100, "b": 130})
    assert work_done(outcome, flat(1, 1)) == pytest.approx([60, 90])
    assert outcome.migrations.sum() == 0
    assert outcome.spans is not None
    assert {span.gpus for span in outcome.spans} == {(0,)}
    powered = Fleet.regular(1, 1, {"A": [1.0]}, power_w={"A": [200.0]})
    shared = replay(trace(job("a", 0, 1, 60, "A"), job("b", 0, 1, 90, "A")), powered, BESIDE)
    assert np.isnan(shared.energy_j).all()  # whose the power of a shared GPU is, is not known


def test_a_shared_gpu_is_busy_once() -> None:
    jobs = trace(*(job(str(number), 0, 1, 60) for number in range(31)))
    outcome = replay(jobs, flat(4, 4), BESIDE, options=RECORD)
    assert outcome.series is not None
    assert outcome.series.busy[0] == 16
    # 30 jobs at 0.6 in pairs until 100 s, one alone until 60 s.
    assert outcome.held_gpu_seconds == pytest.approx(15 * 100 + 60)
    assert outcome.gpu_seconds.sum() == pytest.approx(30 * 100 + 60)  # what each job held
    assert outcome.utilisation == pytest.approx((15 * 100 + 60) / (16 * 100))
    sound(outcome, flat(4, 4), shared=True)


@settings(max_examples=count(30, short=10), deadline=None)
@given(seed=st.integers(0, 10**6), by_rounds=st.booleans())
def test_foreign_policies_conserve_work(seed: int, by_rounds: bool) -> None:
    draw = random.Random(seed)
    jobs = trace(
        *(Job(str(i), i * draw.choice((0.0, 7.0)) + 1000 * (i > 9), 1, draw.uniform(1, 90)) for i in range(20))
    )
    fleet = flat(2, 3, 1.5)
    options = Options(round_s=10, rounds=by_rounds, record=True, failures=(Failure(1, 5.0, 40.0),), on_failure="resume")
    for policy, shared in ((ELASTIC, False), (BESIDE, True)):
        jobs = trace(*sorted(jobs.jobs, key=lambda one: one.submit_s))
        outcome = replay(jobs, fleet, policy, options=options)
        sound(outcome, fleet, shared=shared)
        assert work_done(outcome, fleet) == pytest.approx([one.ideal_s for one in jobs.jobs])


@pytest.mark.parametrize(
    ("decided", "sentence"),
    [
        ({0: Allocation((0,)), 1: Allocation((0,))}, "gives GPU 0 to jobs a and b"),
        ({0: Allocation((0,), shared=True), 1: Allocation((0,))}, "gives GPU 0 to jobs a and b"),
        ({0: Allocation((9,))}, "gives job a the GPU 9, which is not available"),
        ({0: Allocation(())}, "gives job a no GPUs, or not in ascending order"),
        ({0: Allocation((1, 0))}, "gives job a no GPUs, or not in ascending order"),
        ({0: Allocation((0,), rate=0.0)}, "gives job a the rate 0.0: it must be a number > 0"),
        ({0: Allocation((0,), rate=float("nan"))}, "gives job a the rate nan: it must be a number > 0"),
        ({0: Allocation((0,), rate=ODD)}, "gives job a the rate odd: it must be a number > 0"),
        ({0: Allocation((ODD,))}, r"gives job a \('odd',\), which is no list of GPU numbers"),
        ({0: Allocation(ODD)}, "gives job a 'odd', which is no list of GPU numbers"),
        ({0: (0,)}, r"gives job a \(0,\), which is no Allocation"),
        ({7: Allocation((0,))}, "gives GPUs to job number 7, which is not in the system"),
        ([Allocation((0,))], r"decides \[Allocation\(.*\)\]; it must give a dict of job numbers and allocations"),
        (None, "decides None; it must give a dict"),
    ],
)
def test_what_a_policy_may_not_decide(decided: Any, sentence: str) -> None:
    policy = Policy("foreign", "", decide=lambda view: decided)
    with pytest.raises(InputError, match=f"the policy foreign {sentence}"):
        replay(trace(job("a", 0, 1, 1), job("b", 0, 1, 1)), flat(1, 2), policy)


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        ([0], "1 GPUs; it wants 2"),
        ([0, 0], "the GPU 0 twice"),
        ([1, 2], "the GPU 2, which another job holds"),
        (range(1, 3), "the GPU 2, which another job holds"),
        ([1, 4], "the GPU 4, which is not available"),
        ([1, 6], "the GPU 6; the fleet has 0 to 5"),
        ([-1, 1], "the GPU -1; the fleet has 0 to 5"),
        ([0.0, 1.0], r"\[0.0, 1.0\], which is no list of GPU numbers"),
        (2, "2, which is no list of GPU numbers"),
    ],
)
@pytest.mark.parametrize("sticky", [True, False])
def test_what_a_policy_may_not_place(gpus: Any, sentence: str, sticky: bool) -> None:
    policy = Policy("foreign", "", place=lambda view, job: [2] if job.name == "first" else gpus, sticky=sticky)
    away = Options(failures=(Failure("n1", 0, 50),))
    with pytest.raises(InputError, match=f"^made: the policy foreign gives job a {sentence}"):
        replay(trace(job("first", 0, 1, 100), job("a", 0, 2, 1)), flat(2, 3), policy, options=away)


def test_jobs_are_stopped_for_what_a_policy_waits_for() -> None:
    """It wants one node. The last in the order is on another: the job before it is stopped too, and goes there."""

    def one_node(view: View, job: Job) -> Sequence[int] | None:
        nodes = [node for node, count in enumerate(view.cluster.counts) if count >= job.gpus]
        return view.cluster.first_free(nodes[0], job.gpus) if nodes else None

    jobs = trace(job("first", 0, 1, 20), job("last", 0, 1, 900), job("before", 1, 1, 800), job("new", 10, 2, 100))
    outcome = replay(jobs, flat(2, 2), Policy("one node", "", place=one_node), "srtf")
    assert finishes(outcome) == {"first": 20, "last": 910, "new": 110, "before": 801}
    assert outcome.preemptions.tolist() == [0, 1, 0, 0]
    assert outcome.migrations.tolist() == [0, 0, 1, 0]


def test_what_a_policy_may_not_arrange() -> None:
    policy = Policy("foreign", "", place=packed.pack, sticky=False, arrange=lambda view, jobs: [5, *jobs])
    with pytest.raises(InputError, match=r"the policy foreign arranges jobs number \[5, 0\]; it was asked for \[0\]"):
        replay(trace(job("a", 0, 1, 1)), flat(1, 1), policy)


def test_a_policy_may_give_what_counts_as_numbers() -> None:
    """Arrays of numpy as well; an answer is a dict of plain numbers to the replay."""

    def last(view: View, job: Job) -> Any:
        return np.flatnonzero(view.free)[::-1][: job.gpus]

    arrays = Policy("arrays", "", place=last)
    outcome = replay(trace(job("a", 0, 2, 10)), flat(1, 4), arrays, options=RECORD)
    assert first_gpus(outcome) == {"a": (2, 3)}
    assert all(type(gpu) is int for gpu in first_gpus(outcome)["a"])
    granted = Policy("granted", "", decide=lambda view: {0: Allocation(np.array([1, 3]))})  # type: ignore[arg-type]
    assert first_gpus(replay(trace(job("a", 0, 2, 10)), flat(1, 4), granted, options=RECORD)) == {"a": (1, 3)}


@pytest.mark.long
def test_a_policy_that_stops_jobs_before_they_work_is_told_of() -> None:
    """Each round another of two jobs has the one GPU, and a round is what a start costs."""
    turns = Policy("turns", "", decide=lambda view: {int(view.now_s // 100) % 2: Allocation((0,))}, by_rounds=True)
    jobs = trace(job("a", 0, 1, 500), job("b", 0, 1, 500))
    assert replay(jobs, flat(1, 1), turns, options=Options(round_s=100)).end_s == 1000
    with pytest.raises(InputError, match="job a never ends: the policy turns stops or moves it, round after round"):
        replay(jobs, flat(1, 1), turns, options=Options(round_s=100, preemption_s=100))


@pytest.mark.long
@pytest.mark.parametrize("by_rounds", [False, True])
def test_a_policy_that_gives_nothing_is_told_of(by_rounds: bool) -> None:
    never = Policy("never", "", place=lambda view, job: None)
    nothing = Policy("nothing", "", decide=lambda view: {})
    for policy in (never, nothing):
        with pytest.raises(InputError, match=f"job a waits for ever: {policy.name} gives it no GPUs"):
            replay(trace(job("a", 0, 1, 1)), flat(1, 1), policy, options=Options(rounds=by_rounds))


def test_a_policy_is_one_function() -> None:
    with pytest.raises(InputError, match="the policy both must have either place or decide"):
        replay(trace(job("a", 0, 1, 1)), flat(1, 1), Policy("both", ""))
