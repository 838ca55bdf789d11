"""What a GPU draws without work, from sensors that average: square loads whose idle power is 70 W."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whorl.analysis.energy import answers
from whorl.analysis.energy.answers import reconcile
from whorl.analysis.energy.idle import IDLE_SOURCES, IdleSource
from whorl.analysis.energy.sensor import PowerSource, Problem, Readings
from whorl.tests.analysis.energy.stored import at, build, gpu, job, readings, store_of
from whorl.tests.sizes import sample

IDLE_W, WORK_W = 70.0, 500.0


@dataclass(frozen=True)
class Sensor:
    """What is read, every `every_s`: a new mean over `window_s` every 0.1 s, utilisation of the last sixth of a second,
    and the power of an instant and the counter, if there are any. The share `missing` is NaN."""

    window_s: float = 1.0
    every_s: float = 0.2
    instant: bool = False
    counter: bool = False
    missing: float = 0.0


def square(busy: float, period_s: float, sensor: Sensor, seconds: float = 240) -> Readings:
    """Readings of a load that works for the share `busy` of each period; periods differ by 5 %."""
    random = np.random.default_rng(round(1e4 * busy + 100 * period_s + sensor.every_s * 7))
    works = np.zeros(round(seconds * 1000), bool)
    begins = 0.0
    while begins < seconds:
        lasts = period_s * (1 + 0.05 * random.normal())
        works[round(begins * 1000) : round((begins + busy * lasts) * 1000)] = True
        begins += lasts
    upto = np.concatenate([[0.0], np.cumsum(np.where(works, WORK_W, IDLE_W))]) / 1000
    busy_upto = np.concatenate([[0.0], np.cumsum(works)])
    when = np.arange(1200, len(works) - 200, sensor.every_s * 1000).astype(int)
    when += random.integers(-3, 4, len(when))
    told = when // 100 * 100

    def mean(milliseconds: int) -> np.ndarray:
        watts = (upto[told] - upto[told - milliseconds]) * 1000 / milliseconds
        return np.where(random.random(len(when)) < sensor.missing, np.nan, watts + random.normal(0, 0.5, len(when)))

    used = np.round((busy_upto[when] - busy_upto[when - 167]) / 1.67) / 100
    return Readings(
        ts_ns=at(0) + when * 1_000_000,
        stuck=np.zeros(len(when), bool),
        power_w=mean(round(sensor.window_s * 1000)),
        instant_w=mean(25) if sensor.instant else None,
        counter_j=upto[told] if sensor.counter else None,
        utilization=np.where(random.random(len(when)) < sensor.missing, np.nan, used),
        window_s=np.full(len(when), sensor.window_s),
        limit_w=np.full(len(when), 700.0),
    )


LOADS = [*product((0.1, 0.3, 0.5, 0.7, 0.9, 0.95), (0.2, 1, 2, 5, 20))]
SENSORS = [*product((0.025, 0.1, 1.0), (0.1, 0.2, 0.5, 1, 2, 10))]


@pytest.mark.parametrize(("window_s", "every_s"), sample(SENSORS, short=1))
@pytest.mark.parametrize("more", [{}, {"instant": True}, {"counter": True}, {"missing": 0.02}])
def test_idle_power_is_right_or_its_interval_is_wide(window_s: float, every_s: float, more: dict[str, Any]) -> None:
    seconds = max(240.0, 150 * every_s)  # so many readings that some see the load
    for busy, period_s in sample(LOADS, short=3):
        read = square(busy, period_s, Sensor(window_s, every_s, **more), seconds)
        found = build("c", "g", read, model="H100").among
        mean = IDLE_W + busy * (WORK_W - IDLE_W)
        low, high = found.idle_low_w[0], found.idle_high_w[0]
        if np.isnan(found.idle_w[0]):
            assert IDLE_SOURCES[found.idle_source[0]] == IdleSource.BOUNDED
        else:
            assert abs(found.idle_w[0] - IDLE_W) / mean < 0.1, (busy, period_s)
        assert low - 3 <= IDLE_W <= high + 3, (busy, period_s)


@pytest.mark.parametrize(
    ("busy", "period_s", "sensor", "source"),
    [
        (0.3, 20.0, Sensor(), IdleSource.POWER),
        (0.7, 2.0, Sensor(instant=True), IdleSource.INSTANT),
        (0.7, 2.0, Sensor(counter=True, every_s=0.1), IdleSource.COUNTER),
        (0.7, 2.0, Sensor(every_s=0.1), IdleSource.EXTENDED),
        (0.7, 2.0, Sensor(every_s=2.0), IdleSource.BOUNDED),
        (1.0, 2.0, Sensor(), IdleSource.BOUNDED),
    ],
)
def test_what_idle_power_is_known_from(busy: float, period_s: float, sensor: Sensor, source: IdleSource) -> None:
    found = build("c", "g", square(busy, period_s, sensor), model="NVIDIA H100 80GB HBM3").among
    assert IDLE_SOURCES[found.idle_source[0]] == source
    assert np.isnan(found.idle_w[0]) == (source == IdleSource.BOUNDED)


def test_a_job_with_pauses_shorter_than_the_mean_of_a_second(tmp_path: Path) -> None:
    """Busy for 1.4 of each 2 s at 500 W: 19 % of its energy would have been drawn at 70 W."""
    seconds = np.arange(0, 300, 0.2)
    phase = np.arange(301_000) % 2000
    upto = np.concatenate([[0.0], np.cumsum(np.where(phase < 1400, 500.0, 70.0))])
    now = np.round(seconds * 1000).astype(int) + 1000
    power = (upto[now] - upto[now - 1000]) / 1000
    busy = np.where(phase[now - 1] < 1400, 100, 0)
    stream = readings("GPU-a", seconds.tolist(), power.tolist(), utilization=busy.tolist(),
                      power_window_ms=[1000] * len(now), power_limit_mw=[None] * len(now))  # fmt: skip
    board = gpu("GPU-a", model="NVIDIA H100 80GB HBM3", power_limit_mw=None, power_limit_default_mw=None)
    store = store_of(tmp_path / "S", [board], [stream], [job(7, "GPU-a", 0, 290)])
    answer = answers.energy(store)
    (row,) = answer.rows.filter(kind="job").to_dicts()
    assert row["idle_share"] == pytest.approx(70 / 371, abs=0.02)
    assert row["idle_share_low"] < 0.15
    assert 0.25 < row["idle_share_high"] < 0.5
    assert row["idle_source"] == IdleSource.EXTENDED
    # What nobody had is work of somebody, not idle time; all of it adds up.
    assert set(answer.rows["kind"]) == {"job", "unattributed"}
    assert answer.rows["energy_j"].sum() == pytest.approx(answer.total["energy_j"], rel=1e-9)
    assert reconcile(store).balances


def test_a_grace_hopper_module_is_metered_by_the_power_of_its_gpu(tmp_path: Path) -> None:
    """The counter is of the module, which draws 200 W more."""
    seconds = np.arange(0, 120, 1.0)
    watts = np.where(seconds < 60, 80.0, 400.0)
    stream = readings(
        "GPU-a", seconds.tolist(), watts.tolist(), power_window_ms=[1000] * 120, utilization=[0] * 60 + [100] * 60,
        power_instant_mw=((watts + 200) * 1000).astype(int).tolist(),
        energy_mj=np.cumsum((watts + 200) * 1000).astype(int).tolist(),
    )  # fmt: skip
    store = store_of(tmp_path / "S", [gpu("GPU-a", model="NVIDIA GH200 480GB")], [stream], [])
    (row,) = reconcile(store).gpus.to_dicts()
    assert row["metered_j"] == pytest.approx(60 * 80 + 59 * 400, rel=0.02)
    assert row["power_source"] == PowerSource.GPU_POWER
    assert (row["idle_w"], row["idle_source"]) == (80, IdleSource.POWER)


def test_a_pause_of_the_collector_is_no_problem_of_a_gpu(tmp_path: Path) -> None:
    """Two GPUs of each node, read for a minute in each of two hours; the counter began anew in between."""
    seconds = [*range(60), *range(3600, 3660)]
    counter = [*range(5_000_000, 5_060_000, 1000), *range(0, 60_000, 1000)]
    nodes = ("calm", "held", "read", "silent")
    names = [f"{node}-{slot}" for node in nodes for slot in "ab"]
    telemetry = [readings(name, seconds, [50.0] * 120, energy_mj=[50 * one for one in counter])
                 for name in names if name != "read-b"]  # fmt: skip
    # A job had a GPU meanwhile, or another GPU of the node was read: somebody should know.
    jobs = [job(1, "calm-a", 0, 60), job(2, "held-a", 0, 3600)]
    telemetry.append(readings("read-b", range(0, 3660, 10), [50.0] * 366))
    # Rows without power are readings.
    telemetry.append(readings("silent-a", range(70, 3590, 10), [50.0] * 352, power_mw=[None] * 352))
    boards = [gpu(name, node=name[:-2]) for name in names]
    found = reconcile(store_of(tmp_path / "S", boards, telemetry, jobs))
    assert found.balances
    told = ("held-a", "read-a", "silent-a", "silent-b")
    both = (Problem.COUNTER_RESET, Problem.GAP)
    assert set(found.problems.select("gpu", "problem").rows()) == {(name, one) for name in told for one in both}
