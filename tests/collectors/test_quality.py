"""The marks of power sensors: given to stuck, quantised and slow ones, and not to healthy ones."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.collectors.quality import Quality
from whorl.store.events import Event
from whorl.tests.sizes import sample

INTERVAL = 0.1
Floats = NDArray[np.float64]


def readings(power: Floats, *, busy: Floats | None = None, energy: Floats | None = None) -> Floats:
    """Shape (ticks, 5, 1), as quality.READ has them: instantaneous and reported power mW, utilisation, clock, energy.

    Reported power is not known.
    """
    n = len(power)
    share = np.ones(n) if busy is None else busy
    clock = 1000 + 900 * share
    total = np.cumsum(300_000 * INTERVAL * (0.2 + 0.8 * share)) if energy is None else energy
    return np.stack([power, np.full(n, np.nan), 100 * share, clock, total], axis=1)[:, :, None]


def judged(
    rows: Floats, *, interval: float = INTERVAL, period: float = 0.1, times: Floats | None = None
) -> tuple[list[Event], str | None]:
    """What is found over all the readings, and the marks at their end. `times` in s; by default every `interval`."""
    at = interval * np.arange(len(rows), dtype=np.float64) if times is None else times
    quality = Quality("GPU-1", interval_s=interval, period_s=period, window_s=60.0)
    found: list[Event] = []
    for seconds, row in zip(at, rows[:, :, 0], strict=True):
        known = sum(1 << place for place, value in enumerate(row) if not np.isnan(value))
        quality.note(round(seconds * 1e9), np.nan_to_num(row).astype(np.int64).tolist(), known)
        found += quality.judge()
    return found, quality.text


def waves(n: int, period: int = 100) -> Floats:
    return (np.arange(n) % period < 0.7 * period).astype(float)


def noise(seed: int, n: int, sd: float = 1500.0) -> Floats:
    return np.random.default_rng(seed).normal(0, sd, n)


def test_a_stuck_sensor() -> None:
    busy = waves(2000)
    power = np.rint(100_000 + 500_000 * busy + noise(1, 2000))
    power[600:1500] = power[600]
    found, mark = judged(readings(power, busy=busy))
    assert [f.kind for f in found] == ["stuck_sensor", "sensor_recovered"]
    assert "while utilisation moved by 100 points" in found[0].detail
    assert mark is None
    assert judged(readings(power[:1500], busy=busy[:1500]))[1] == "power_stuck"


def test_a_stuck_sensor_that_only_the_energy_counter_gives_away() -> None:
    n = 1500
    watts = np.where(np.arange(n) % 600 < 300, 80.0, 500.0)
    energy = np.cumsum(watts * 1000 * INTERVAL)
    rows = readings(np.full(n, 80_000.0), energy=energy)
    rows[:, 2:4] = np.nan  # no utilisation and clock, as under MIG
    found, mark = judged(rows)
    assert mark == "power_stuck"
    assert "the energy counter shows" in found[0].detail


def test_an_idle_gpu_whose_power_does_not_move_is_not_stuck() -> None:
    n = 1500
    rows = readings(np.full(n, 45_123.0), busy=np.zeros(n), energy=np.cumsum(np.full(n, 4_500.0)))
    assert judged(rows) == ([], None)


@pytest.mark.parametrize(("step", "noisy"), [(1000, 3000.0), (10_000, 20_000.0)])
def test_a_quantised_sensor(step: int, noisy: float) -> None:
    power = np.rint((400_000 + noise(2, 1000, noisy)) / step) * step
    found, mark = judged(readings(power))
    assert mark == "power_quantised"
    assert [f.kind for f in found] == ["quantised_sensor"]
    assert f"multiples of {step // 1000} W" in found[0].detail


def test_a_sensor_that_reads_0_w() -> None:
    power = np.zeros(2000)
    power[1200:] = 50_000 + noise(4, 800)
    found, mark = judged(readings(power, busy=np.zeros(2000)))
    assert [(one.kind, one.quality) for one in found] == [
        ("zero_power", "power_zero"),
        ("sensor_recovered", "power_zero"),
    ]
    assert mark is None
    assert judged(readings(np.zeros(700), busy=waves(700)))[1] == "power_zero"  # and not stuck as well


def test_a_quantised_sensor_stays_marked_where_its_readings_say_little() -> None:
    power = np.rint((400_000 + noise(2, 2000, 20_000.0)) / 10_000) * 10_000
    power[1000:] = 400_000
    assert judged(readings(power))[1] == "power_quantised"


@pytest.mark.parametrize("every", [6, 10, 40])
def test_a_slow_sensor_and_its_period(every: int) -> None:
    n = 2000
    power = np.rint(np.repeat(400_000 + noise(3, n // every + 1), every)[:n])
    found, mark = judged(readings(power))
    assert mark == "power_slow"
    assert [f.kind for f in found] == ["slow_sensor"]
    assert f"every {every * INTERVAL:.2g} s" in found[0].detail


def test_a_sensor_that_recovers_is_told() -> None:
    n = 1000
    power = np.concatenate([np.repeat(400_000 + noise(4, 100), 10), 400_000 + noise(5, 2 * n)])
    found, mark = judged(readings(np.rint(power)))
    assert [f.kind for f in found] == ["slow_sensor", "sensor_recovered"]
    assert mark is None


def test_readings_that_come_late_now_and_then_do_not_end_the_mark_of_a_slow_sensor() -> None:
    """A busy node holds the reader up: the gaps between new values are no longer alike."""
    n, every = 2000, 10
    power = np.rint(np.repeat(400_000 + noise(7, n // every), every))
    late = np.random.default_rng(8).random(n) < 0.05
    times = INTERVAL * np.cumsum(np.where((np.arange(n) > n // 2) & late, 12, 1))
    found, mark = judged(readings(power), times=times)
    assert mark == "power_slow"
    assert [f.kind for f in found] == ["slow_sensor"]


@pytest.mark.long(short=4)
@pytest.mark.parametrize("seed", sample(range(2), short=1))
@pytest.mark.parametrize("load", ["steady", "waves", "idle"])
@pytest.mark.parametrize(("interval", "period"), [(0.1, 0.1), (0.02, 0.1), (1.0, 0.02)])
def test_a_healthy_sensor_has_no_mark(seed: int, load: str, interval: float, period: float) -> None:
    """Noise of 0.1 W at idle and 1.5 W under load, in mW; read faster and slower than the sensor ticks."""
    n = 4000
    busy = {"steady": np.ones(n), "waves": waves(n, 100), "idle": np.zeros(n)}[load]
    repeats = max(1, round(period / interval))
    fresh = noise(seed, n, 1.0) * np.where(busy > 0, 1500, 100)
    held = np.arange(n) // repeats * repeats
    power = np.rint(60_000 + 400_000 * busy[held] + fresh[held])
    found, mark = judged(readings(power, busy=busy), interval=interval, period=period)
    assert (found, mark) == ([], None)


def test_readings_that_are_missing_are_no_evidence() -> None:
    n = 1500
    rows = readings(np.rint(400_000 + noise(6, n)))
    rows[300:] = np.nan
    assert judged(rows) == ([], None)
