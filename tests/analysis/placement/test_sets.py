"""Sets of GPUs against every set there is."""

from __future__ import annotations

from datetime import timedelta
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.placement import advise, scores, sets
from whorl.analysis.placement.units import sittings_alike
from whorl.analysis.runs.sittings import UNKNOWN
from whorl.analysis.statistics.ordering import Floats, Ints
from whorl.tests.analysis.placement.fleets import BEGAN, Fleet
from whorl.tests.sizes import count

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


# -- sittings ----------------------------------------------------------------------------------------------------------
# Runs of a day that are near-copies of each other, and what is made of them.


HOUR = 3600 * 10**6
DAY = 24 * HOUR
NOW = BEGAN + timedelta(days=20)


def _runs(gpus: int, days: int, a_day: int, day: float, within: float, seed: int = 0) -> Floats:
    """Log times (gpus, runs) of GPUs that do not differ but from day to day."""
    rng = np.random.default_rng(seed)
    return np.repeat(rng.normal(0.0, day, (gpus, days)), a_day, axis=1) + rng.normal(0.0, within, (gpus, days * a_day))


def _sittings(x: Floats, began: Ints, dated: bool = True) -> tuple[str | None, float, Ints]:
    """What a sitting is, its share of the variance, and each run's sitting, (gpus, runs)."""
    gpus, runs = x.shape
    order = np.random.default_rng(3).permutation(x.size)  # rows come in any order
    owner = np.repeat(np.arange(gpus), runs)[order]
    dates = np.tile(began, gpus)[order] / DAY if dated else np.full(x.size, UNKNOWN)
    length, share, number = sittings_alike(x.ravel()[order], owner, dates)
    by_run = np.empty(x.size, dtype=np.intp)
    by_run[order] = number
    return length, share, by_run.reshape(gpus, runs)


def _began(days: int, a_day: int, apart: int = HOUR // 4) -> Ints:
    return np.array([24 * HOUR * day + apart * run for day in range(days) for run in range(a_day)])


def test_near_copies_of_a_day_are_seen_and_how_much_the_days_take() -> None:
    length, share, number = _sittings(_runs(64, 4, 3, 0.02, 0.02), _began(4, 3))
    assert length == "day"
    assert share == pytest.approx(0.5, abs=0.1)
    assert (number == number[:, ::3].repeat(3, axis=1)).all()
    assert len(np.unique(number)) == 64 * 4


def test_runs_that_days_do_not_couple_stay_runs() -> None:
    wrong = sum(
        _sittings(_runs(64, 4, 3, 0.0, 0.02, seed), _began(4, 3))[0] is not None for seed in range(count(40, short=15))
    )
    # One test in thirty errs: seven of forty have a chance of 0.05 %, four of fifteen of 0.1 %.
    assert wrong <= count(6, short=3)


def test_a_sitting_over_midnight_is_one_and_one_that_never_pauses_ends_after_a_day() -> None:
    x = _runs(16, 3, 4, 0.03, 0.003)
    over_midnight = _began(3, 4) + 23 * HOUR + HOUR // 2
    assert len(np.unique(_sittings(x, over_midnight)[2])) == 16 * 3
    length, _, number = _sittings(_runs(16, 3, 24, 0.03, 0.003), _began(3, 24, HOUR))
    assert length == "day"
    assert len(np.unique(number)) == 16 * 3


def test_one_broken_run_hides_nothing() -> None:
    x = _runs(32, 4, 3, 0.02, 0.01)
    x[5, 7] += 5.0
    assert _sittings(x, _began(4, 3))[0] == "day"


def _stored(fleet: Fleet, name: str, x: Floats, true_scores: Floats, a_day: int) -> None:
    for (gpu, run), log_time in np.ndenumerate(x):
        at = BEGAN + timedelta(days=run // a_day, minutes=12 * (run % a_day))
        fleet.add(name, fleet.names[gpu], float(100.0 * true_scores[gpu] * np.exp(log_time)), at)


@pytest.mark.long
def test_a_bad_day_is_no_slow_gpu_however_often_it_was_measured_that_day(tmp_path: Path) -> None:
    """GPUs differ from day to day by 3 % and not otherwise: believed as twelve runs each, all would be told apart."""
    fleet, promised = Fleet(48), 0
    for seed in range(20):
        _stored(fleet, f"w{seed:02d}", _runs(48, 3, 4, 0.03, 0.004, seed), np.ones(48), 4)
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    for workload in fleet_scores.workloads:
        assert (fleet_scores.of[workload].runs == 3).all()
        advice = advise(fleet_scores, workload, gpus=8, now=NOW)
        assert advice.exclude == ()
        promised += any(gain.measurable for gain in advice.gains)
    assert promised <= 4  # of 20 at 5 %, five have a chance of 0.3 %; of 6, three of 0.2 %
    assert any(
        "runs of w00 on one GPU within a day are more alike than others (9" in note for note in fleet_scores.notes
    )


def test_a_gpu_that_is_slow_every_day_is_found_and_one_of_a_single_day_is_not_excluded(tmp_path: Path) -> None:
    fleet = Fleet(80)
    true_scores = np.ones(80)
    true_scores[9] = 1.6
    x = _runs(80, 3, 4, 0.02, 0.004)
    for (gpu, run), log_time in np.ndenumerate(x):
        if gpu == 33 and run >= 4:
            continue  # eight runs less: one day
        slow = 1.6 if gpu == 33 else true_scores[gpu]
        at = BEGAN + timedelta(days=run // 4, minutes=12 * (run % 4))
        fleet.add("w", fleet.names[gpu], float(100.0 * slow * np.exp(log_time)), at)
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    assert fleet_scores.of["w"].runs[[9, 33]].tolist() == [3, 1]
    advice = advise(fleet_scores, "w", now=NOW, max_share=1.0)
    assert advice.exclude == ("n0002",)
    assert len(advice.nodes[0].run_ids) == 12


def test_where_all_runs_are_of_one_day_that_is_said(tmp_path: Path) -> None:
    fleet = Fleet(8)
    _stored(fleet, "one", _runs(8, 1, 4, 0.02, 0.004), np.ones(8), 4)
    _stored(fleet, "more", _runs(8, 2, 4, 0.02, 0.004), np.ones(8), 4)
    notes = [note for note in scores(fleet.store(tmp_path / "S")).notes if "different days" in note]
    assert len(notes) == 1
    assert "hardly any GPU has runs of one from different days" in notes[0]
