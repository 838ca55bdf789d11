"""Runs of a day that are near-copies of each other, and what is made of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.placement import advise, scores
from whorl.analysis.placement.units import sittings_alike
from whorl.analysis.runs.sittings import UNKNOWN
from whorl.analysis.statistics.ordering import Floats, Ints
from whorl.tests.analysis.placement.fleets import BEGAN, Fleet
from whorl.tests.sizes import count

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


def test_of_one_day_the_hours_are_looked_at() -> None:
    began = np.array([2 * HOUR * sitting + HOUR // 10 * run for sitting in range(3) for run in range(4)])
    length, _, number = _sittings(_runs(32, 3, 4, 0.02, 0.004), began)
    assert length == "hour"
    assert len(np.unique(number)) == 32 * 3


def test_one_broken_run_hides_nothing() -> None:
    x = _runs(32, 4, 3, 0.02, 0.01)
    x[5, 7] += 5.0
    assert _sittings(x, _began(4, 3))[0] == "day"


@pytest.mark.parametrize("dated", [True, False])
def test_equal_times_and_unknown_ones_say_nothing(dated: bool) -> None:
    assert _sittings(np.zeros((8, 6)), _began(2, 3), dated)[0] is None
    assert _sittings(_runs(8, 2, 3, 0.02, 0.0), _began(2, 3), dated)[0] == ("day" if dated else None)


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
