"""Policies that follow the advice: what it excludes and weighs is what `whorl advise` says, node by node."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from whorl.analysis.placement import Scores, scores
from whorl.analysis.replay import Beliefs, Fleet, Options, Outcome, Rates, World, replay
from whorl.analysis.replay.from_store import MeasuredFleets
from whorl.analysis.replay.world import Advised
from whorl.jobs.formats import HARD, SOFT
from whorl.jobs.steering import advise
from whorl.store import Store
from whorl.tests.analysis.replay.making import Excluded, advised_by, choice, finishes, job, sound, trace
from whorl.tests.analysis.replay.measured_fleet import GPUS_PER_NODE, NAMES, NODES, fleet_store
from whorl.tests.sizes import count

RECORD = Options(record=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """n02 is twice as slow in gemm and n04 1.4 times, n05 a little; n01 is slow in stream, n02 a little."""
    rng = np.random.default_rng(0)
    gemm = np.exp(0.02 * rng.standard_normal(len(NAMES)))
    gemm[[9, 17, 20]] = 2.0, 1.4, 1.075
    stream = np.exp(0.003 * rng.standard_normal(len(NAMES)))
    stream[[5, 9]] = 1.3, 1.075
    return fleet_store(tmp_path_factory.mktemp("advised"), {"gemm": gemm, "stream": stream})


@pytest.fixture(scope="module")
def known_scores(store: str) -> Scores:
    return scores(Store.open(store))


def nodes_of(outcome: Outcome, world: World, workload: str) -> set[str]:
    """The nodes on which jobs of a workload were; of a recorded replay."""
    assert outcome.spans is not None
    return {
        world.fleet.node_names[world.fleet.node[gpu]]
        for span in outcome.spans
        if outcome.jobs[span.job].workload == workload
        for gpu in span.gpus
    }


def busy(seed: int, jobs: int = 80) -> list[tuple[float, int, float, str]]:
    draw = random.Random(seed)
    return [
        (20.0 * n, draw.choice((1, 2, 4, 6)), draw.uniform(50, 400), draw.choice(("gemm", "stream", "")))
        for n in range(jobs)
    ]


@pytest.mark.long
def test_it_is_the_advice_that_whorl_advise_gives(store: str, known_scores: Scores) -> None:
    world = MeasuredFleets(known_scores, ["gemm", "stream"]).draw(3)
    assert world.beliefs.advised is not None
    names = np.array(world.fleet.node_names)
    tiers: dict[str, int] = {}
    for workload in ("gemm", "stream"):
        advices = {gpus: advise(store, workload, gpus=gpus, no_scheduler=True) for gpus in (1, 14, 15)}
        assert [len(advice.exclude) for advice in advices.values()] == [1, 1, 0]  # without it, 28 GPUs are left
        for gpus, advice in advices.items():
            assert sorted(names[world.beliefs.advised.barred(workload, gpus)]) == sorted(advice.exclude)
        for node, tier in advices[1].tiers.items():
            tiers[node] = max(tiers.get(node, 0), {HARD: 2, SOFT: 1}[tier])
    assert tiers == {"n01": 2, "n02": 2, "n04": 2, "n05": 1}
    assert (
        dict(zip(names.tolist(), world.beliefs.advised.weights.tolist(), strict=True))
        == dict.fromkeys(names, 0) | tiers
    )
    assert not world.beliefs.advised.barred("", 1).any()
    assert not world.beliefs.advised.barred("gemm", 33).any()  # no such advice is given: more GPUs than there are


def test_a_job_is_kept_off_what_is_slow_for_it(known_scores: Scores) -> None:
    world = MeasuredFleets(known_scores, ["gemm", "stream"]).draw(1)
    jobs = trace(*(job(str(n), *fields) for n, fields in enumerate(busy(4))))
    outcome = replay(jobs, world, "advice-exclude", options=RECORD)
    sound(outcome, world)
    everywhere = set(world.fleet.node_names)
    # n04 is slow beyond doubt, too, but of 8 nodes one at most is excluded unless more is allowed.
    assert nodes_of(outcome, world, "gemm") == everywhere - {"n02"}
    assert nodes_of(outcome, world, "stream") == everywhere - {"n01"}
    assert nodes_of(outcome, world, "") >= {"n01", "n02"}
    for gpus, kept_off in ((14, {"n02"}), (32, set())):
        wide = replay(trace(job("wide", 0, gpus, 10, "gemm")), world, "advice-exclude", options=RECORD)
        assert nodes_of(wide, world, "gemm").isdisjoint(kept_off)


def test_the_advice_gains_where_a_gpu_is_slow_and_nothing_where_none_is(known_scores: Scores, tmp_path: Path) -> None:
    jobs = trace(*(job(str(n), 150.0 * n, 1 + n % 4, 900, "gemm") for n in range(60)))
    fleets = (MeasuredFleets(known_scores, ["gemm"]).draw(seed) for seed in range(100))
    world = next(
        fleet for fleet in fleets if fleet.fleet.node_names[0] == "n02"
    )  # packed takes the first node that fits
    packed, *advised = (
        replay(jobs, world, name).jct_s.mean() for name in ("packed", "advice-exclude", "advice-weights")
    )
    assert max(advised) < packed
    noise = fleet_store(tmp_path, {"gemm": np.ones(len(NAMES))}, noise=0.05)
    level = MeasuredFleets(scores(Store.open(noise)), ["gemm"]).draw(0)
    for name in ("advice-exclude", "advice-weights"):
        for even_world in (level, world.flat(), World.regular(NODES, GPUS_PER_NODE, {"gemm": [1.0] * len(NAMES)})):
            assert replay(jobs, even_world, name).finish_s.tolist() == replay(jobs, even_world).finish_s.tolist()


def test_a_drawn_fleet_is_advised_by_its_own_nodes(known_scores: Scores) -> None:
    world = MeasuredFleets(known_scores, ["gemm", "stream"], nodes=60, gpus_per_node=4).draw(2)
    assert world.beliefs.advised is not None
    for workload, slow in (("gemm", 1.35), ("stream", 1.25)):
        worst = np.zeros(60)
        np.maximum.at(worst, world.fleet.node, world.beliefs.rates.scores[workload])
        barred = world.beliefs.advised.barred(workload, 4)
        assert barred.sum() == 3  # 5 % of the nodes
        assert sorted(worst[barred]) == pytest.approx(sorted(worst)[-3:])
        assert (world.beliefs.advised.weights[worst > slow] == 2).all()
    single = MeasuredFleets(known_scores, ["gemm"], nodes=10, gpus_per_node=3).draw(2)  # drawn one by one
    assert single.beliefs.advised is not None
    barred = single.beliefs.advised.barred("gemm", 2)
    assert single.fleet.node[np.argmax(single.beliefs.rates.scores["gemm"])] in np.flatnonzero(barred)
    same = MeasuredFleets(known_scores, ["gemm"], nodes=10, gpus_per_node=3).draw(2)
    assert same.beliefs.advised is not None
    assert same.beliefs.advised.barred("gemm", 2).tolist() == barred.tolist()


class Told(Advised):
    """Advice that a test states."""

    def __init__(self, weights: Sequence[int]) -> None:
        self.weights = np.array(weights, dtype=np.int32)

    def barred(self, workload: str, gpus: int) -> NDArray[np.bool_]:
        return np.asarray(self.weights > 1)


def plain_pack(free: Sequence[Sequence[int]], weight: Sequence[int], gpus_wanted: int) -> list[int] | None:
    """A node of the least weight that holds the job, the snuggest of these; else the least weight first, emptiest."""
    holding = [node for node in range(len(free)) if len(free[node]) >= gpus_wanted]
    if holding:
        return list(free[min(holding, key=lambda node: (weight[node], len(free[node]), node))][:gpus_wanted])
    if sum(map(len, free)) < gpus_wanted:
        return None
    order = sorted(range(len(free)), key=lambda node: (weight[node], -len(free[node]), node))
    return sorted([gpu for node in order for gpu in free[node]][:gpus_wanted])


@settings(max_examples=count(150, short=30), deadline=None)
@given(
    nodes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=8),
    gpus_wanted=st.integers(1, 16),
    seed=st.integers(0, 10**6),
)
def test_placing_is_as_it_is_said(nodes: list[tuple[int, int]], gpus_wanted: int, seed: int) -> None:
    draw = random.Random(seed)
    node = [number for number, (size, _) in enumerate(nodes) for _ in range(size)]
    weight = [node_weight for _, node_weight in nodes]
    names = tuple(f"n{n}" for n in range(len(nodes)))
    gpus = tuple(map(str, range(len(node))))
    rates = Rates(Fleet(np.array(node, dtype=np.int32), names, gpus), {"A": np.ones(len(node))})
    world = World(rates, Beliefs(rates, advised=Told(weight)))
    held = [gpu for gpu in range(len(node)) if draw.random() < 0.4]
    free = [[gpu for gpu in range(len(node)) if node[gpu] == n and gpu not in held] for n in range(len(nodes))]
    assert choice("advice-weights", world, held, gpus_wanted) == plain_pack(free, weight, gpus_wanted)
    usable = [[] if weight[n] > 1 else free[n] for n in range(len(nodes))]
    assert choice("advice-exclude", world, held, gpus_wanted) == plain_pack(usable, [0] * len(nodes), gpus_wanted)


def kept_off(excluded: Mapping[str, set[int]], nodes: int, size: int, scores: Mapping[str, Sequence[float]]) -> World:
    return advised_by(World.regular(nodes, size, scores), Excluded(nodes, excluded))


def test_others_go_past_a_job_that_waits_for_the_nodes_left_to_it() -> None:
    world = kept_off({"A": {1}}, 2, 2, {"A": [1.0] * 4, "B": [1.0] * 4})
    jobs = trace(
        job("first", 0, 2, 100, "B"),  # on node 0
        job("second", 1, 2, 50, "A"),  # waits for node 0, though node 1 is free
        job("long", 2, 1, 500, "B"),  # on node 1, where "second" never goes
        job("short", 3, 1, 90, "B"),
    )
    outcome = replay(jobs, world, "advice-exclude", options=Options(record=True, backfill="easy"))
    assert outcome.start_s.tolist() == [0, 100, 2, 3]
    assert replay(jobs, world, "advice-exclude").start_s.tolist() == [0, 100, 100, 100]


def test_nobody_is_stopped_on_nodes_that_do_not_help() -> None:
    world = kept_off({"A": {0}}, 2, 2, {"A": [1.0] * 4, "B": [1.0] * 4})
    jobs = trace(
        job("last", 0, 2, 1000, "B"),  # on node 0, where "a" never goes
        job("next", 1, 2, 900, "A"),  # on node 1
        job("a", 10, 2, 20, "A"),
    )
    outcome = replay(jobs, world, "advice-exclude", "srtf", options=RECORD)
    assert outcome.preemptions.tolist() == [0, 1, 0]
    assert finishes(outcome) == {"last": 1000, "next": 921, "a": 30}
