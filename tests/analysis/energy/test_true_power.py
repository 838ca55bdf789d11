"""The generator that judges the meter: true power, sensors and polling, against what is known of them by arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.benchmarks.energy_sensors import SENSORS, Error, poll
from whorl.benchmarks.energy_truth import Truth

EXACT = Error(0.0, 0.0)


def constant(watts: float, length: int = 20_000) -> Truth:
    return Truth(np.full(length, watts), np.ones(length))


def wave(period_ms: int, length: int = 60_000) -> Truth:
    on = np.arange(length) % period_ms < period_ms // 2
    return Truth(np.where(on, 200.0, 60.0), on.astype(float))


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
