"""The generator that judges the meter: true power, sensors and polling, against what is known of them by arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.benchmarks.energy_sensors import GAINS, OFFSETS, SENSORS, Error, gaps, poll, polls
from whorl.benchmarks.energy_truth import LOADS, Board, Truth, truth

BOARD = Board(idle_w=55.0, full_w=350.0, limit_w=400.0)
EXACT = Error(0.0, 0.0)


def constant(watts: float, length: int = 20_000) -> Truth:
    return Truth(np.full(length, watts), np.ones(length))


def wave(period_ms: int, length: int = 60_000) -> Truth:
    on = np.arange(length) % period_ms < period_ms // 2
    return Truth(np.where(on, 200.0, 60.0), on.astype(float))


@pytest.mark.parametrize("load", LOADS)
def test_a_load_stays_between_idle_and_a_little_above_full(load: str) -> None:
    true = truth(np.random.default_rng(3), BOARD, load, 30_000, 101.0, job=(5_000, 25_000))
    assert len(true.power) == len(true.busy) == 30_000
    assert true.power.min() > 30
    assert true.power.max() < 1.3 * BOARD.full_w
    assert set(np.unique(true.busy)) <= {0.0, 1.0}
    before = true.joules(np.array([0.0]), np.array([5_000.0]))[0] / 5.0
    assert before == pytest.approx(BOARD.idle_w, rel=0.01)  # nothing runs before the job


def test_true_energy_adds_up_and_is_the_power_between_any_two_times() -> None:
    true = wave(100)
    cuts = np.array([0.0, 0.3, 17.25, 1000.0, 33_333.3, 60_000.0])
    parts = true.joules(cuts[:-1], cuts[1:])
    assert parts.sum() == pytest.approx(true.power.sum() / 1e3, rel=1e-12)
    assert true.joules(np.array([10.5]), np.array([10.75]))[0] == pytest.approx(0.25e-3 * 200.0)


@pytest.mark.parametrize("kind", SENSORS)
def test_every_sensor_reads_a_constant_power_with_its_gain_and_offset(kind: str) -> None:
    sensor = SENSORS[kind]
    read = poll(
        np.random.default_rng(0), constant(200.0), sensor, sensor.period_ms, Error(-0.05, 3.0),
        np.arange(2_000.0, 19_000.0, 10.0), counter=None,
    )  # fmt: skip
    assert np.nanmean(read.power_w) == pytest.approx(0.95 * 200.0 + 3.0, abs=0.5)
    new = np.count_nonzero(np.diff(read.power_w)) / 17.0
    assert new == pytest.approx(1000.0 / sensor.period_ms, rel=0.03)  # a new value each period, none between


def test_the_a100_sees_a_quarter_of_the_time_and_turing_all_of_it() -> None:
    at, rng = np.arange(2_000.0, 59_000.0, 100.0), np.random.default_rng(1)
    seen = poll(rng, wave(100), SENSORS["a100"], 100.0, EXACT, at, counter=None).power_w
    whole = poll(rng, wave(100), SENSORS["turing"], 100.0, EXACT, at, counter=None).power_w
    assert np.nanstd(seen) < 5  # locked to the load, both look steady
    assert np.nanstd(whole) < 5
    assert np.nanmean(whole) == pytest.approx(130.0, abs=1.0)
    drift = poll(rng, wave(100), SENSORS["a100"], 101.7, EXACT, at, counter=None).power_w
    assert np.nanmax(drift) > 195  # the readings beat with the load
    assert np.nanmin(drift) < 65
    assert np.nanmean(drift) == pytest.approx(130.0, abs=10.0)


def test_counters_count_all_or_what_was_read() -> None:
    at, rng = np.arange(2_000.0, 58_000.0, 100.0), np.random.default_rng(2)
    for counter, rel in (("full", 0.01), ("readings", 0.12)):
        joules = poll(rng, wave(100), SENSORS["a100"], 101.7, EXACT, at, counter=counter).energy_j
        assert joules is not None
        assert (np.diff(joules) >= 0).all()
        true = wave(100).joules(at[:1], at[-1:])[0]
        assert joules[-1] - joules[0] == pytest.approx(true, rel=rel)


@pytest.mark.parametrize("interval", [8.0, 100.0, 15_000.0])
def test_polls_grow_and_gaps_take_polls_away(interval: float) -> None:
    rng = np.random.default_rng(5)
    at = polls(rng, 0.0, 1_000 * interval, interval)
    assert (np.diff(at) > 0).all()
    assert 950 <= len(at) <= 1_001
    left = gaps(rng, at, 2)
    assert 0.75 * len(at) < left.sum() < len(at)


def test_the_published_boards_are_nineteen() -> None:
    assert len(GAINS) == len(OFFSETS) == 19
    a100 = 190.0 * GAINS[14] / 100 + OFFSETS[14]
    assert a100 / 190.0 == pytest.approx(-0.052, abs=0.001)  # the error of SC24's A100 at 190 W
