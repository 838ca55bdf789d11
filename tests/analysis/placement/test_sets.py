"""Sets of GPUs against every set there is."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from whorl.analysis.placement import sets

NODE = np.array([0, 0, 0, 1, 1, 1, 2, 2, -1])
TIMES = np.random.default_rng(3).lognormal(0.0, 0.3, (5, 9)).astype(np.float32)


def _packings(ground: sets.NodeLayout, gpus: int) -> dict[frozenset[int], float]:
    """Every packed set with its chance: nodes in random order, each filled by random GPUs before the next."""
    members = [part.tolist() for part in ground.members()]
    fits = [part for part in members if len(part) >= gpus]
    times_found: dict[frozenset[int], float] = {}
    if fits:
        for part in fits:
            sets_there = list(combinations(part, gpus))
            for gpu_set in sets_there:
                times_found[frozenset(gpu_set)] = times_found.get(frozenset(gpu_set), 0.0) + 1 / len(fits) / len(
                    sets_there
                )
        return times_found
    orders = list(permutations(members))
    for order in orders:
        chosen: list[int] = []
        for part in order:
            missing = gpus - len(chosen)
            if missing <= len(part):
                sets_there = list(combinations(part, missing))
                for gpu_set in sets_there:
                    key = frozenset(chosen + list(gpu_set))
                    times_found[key] = times_found.get(key, 0.0) + 1 / len(orders) / len(sets_there)
                break
            chosen += part
    return times_found


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 5, 6, 7, 8])
def test_the_best_packed_set_is_the_fastest_on_as_few_nodes_as_can_be(gpus: int) -> None:
    ground = sets.NodeLayout(NODE)
    for score in TIMES.astype(np.float64):
        chosen = sets.best_packed(score, ground, gpus)
        assert chosen is not None
        assert len(set(chosen.tolist())) == gpus
        homed = np.flatnonzero(NODE >= 0)
        sets_there = [np.array(gpu_set) for gpu_set in combinations(homed, gpus)]
        fewest = min(len(set(NODE[gpu_set])) for gpu_set in sets_there)
        best = min(score[gpu_set].max() for gpu_set in sets_there if len(set(NODE[gpu_set])) == fewest)
        assert len(set(NODE[chosen])) == fewest
        assert score[chosen].max() == pytest.approx(best)


def test_no_packed_set_is_larger_than_the_nodes() -> None:
    assert sets.best_packed(TIMES[0].astype(np.float64), sets.NodeLayout(NODE), 9) is None
    assert sets.random_packed(TIMES, sets.NodeLayout(NODE), 9, np.random.default_rng(0)) is None


@pytest.mark.parametrize("locality", [1.0, 1.7])
@pytest.mark.parametrize("gpus", [1, 2, 3, 5, 9])
def test_a_random_set_takes_the_mean_over_all_sets(gpus: int, locality: float) -> None:
    ground = sets.NodeLayout(NODE, locality)
    sets_there = [np.array(gpu_set) for gpu_set in combinations(range(9), gpus)]
    mean = np.mean([sets.time_of(TIMES, ground, gpu_set) for gpu_set in sets_there], axis=0)
    assert sets.random_spread(TIMES, ground, gpus) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_a_random_packed_set_on_one_node_is_exact(gpus: int) -> None:
    ground = sets.NodeLayout(NODE, 1.7)
    chances = _packings(ground, gpus)
    mean = sum(p * sets.time_of(TIMES, ground, np.array(sorted(gpu_set))) for gpu_set, p in chances.items())
    assert sets.random_packed(TIMES, ground, gpus, np.random.default_rng(0)) == pytest.approx(mean, rel=1e-6)


def test_a_random_packed_set_of_whole_equal_nodes_is_exact() -> None:
    ground = sets.NodeLayout(np.repeat(np.arange(4), 2), 1.2)
    times = TIMES[:, :8]
    chances = _packings(ground, 4)
    mean = sum(p * sets.time_of(times, ground, np.array(sorted(gpu_set))) for gpu_set, p in chances.items())
    assert sets.random_packed(times, ground, 4, np.random.default_rng(0)) == pytest.approx(mean, rel=1e-6)


@pytest.mark.parametrize("gpus", [4, 5, 7])
def test_other_random_packed_sets_are_near_the_mean_over_all(gpus: int) -> None:
    ground = sets.NodeLayout(NODE, 1.2)
    chances = _packings(ground, gpus)
    sets_there = np.array([sets.time_of(TIMES, ground, np.array(sorted(gpu_set))) for gpu_set in chances])
    weight = np.array(list(chances.values()))
    mean = weight @ sets_there
    sd = np.sqrt(weight @ (sets_there - mean) ** 2)
    times_found = sets.random_packed(TIMES, ground, gpus, np.random.default_rng(0))
    assert times_found is not None
    assert (np.abs(times_found - mean) <= 4.0 * sd / np.sqrt(400) + 1e-6).all()


@pytest.mark.long
@pytest.mark.parametrize("unlike", [False, True])
def test_a_slow_gpu_of_many_counts_as_often_as_it_is_met(unlike: bool) -> None:
    """A job of 6 GPUs on 16 nodes of 4 meets the slow one in one set of eleven: few orders would count it by luck."""
    times = 1.0 + 0.001 * np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    times[:, 13] = 1.5
    present = np.ones(64, dtype=np.bool_)
    present[63] = not unlike  # then one node has three
    ground, times_there = sets.NodeLayout(np.repeat(np.arange(16), 4)).only(present), times[:, present]
    mean = np.zeros(8)
    for first, second in permutations(ground.members(), 2):
        partners = list(combinations(second.tolist(), 6 - len(first)))
        mean += sum(times_there[:, [*first, *gpu_set]].max(axis=1) for gpu_set in partners) / len(partners) / (16 * 15)
    for seed in range(3):
        times_found = sets.random_packed(times_there, ground, 6, np.random.default_rng(seed))
        assert times_found == pytest.approx(mean, abs=0.002), seed


def test_only_sets_over_several_nodes_pay_for_it() -> None:
    ground = sets.NodeLayout(NODE, 2.0)
    assert not ground.spans(np.array([0, 1, 2]))
    assert ground.spans(np.array([0, 3]))
    assert ground.spans(np.array([0, 8]))  # nobody knows where the last one stands
    assert not ground.spans(np.array([8]))
