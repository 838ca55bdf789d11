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
from whorl.analysis.energy.idle import IdleSource
from whorl.analysis.energy.sensor import PowerSource, Problem, Readings
from whorl.benchmarks.metered import (
    FOR_EVER,
    Judged,
    MeteredStream,
    compared,
    judged_windows,
    stored,
    streams,
    streams_of_known_load,
    summed,
    trial,
)
from whorl.tests.analysis.energy.stored import at, build, gpu, job, readings, store_of
from whorl.tests.sizes import count, is_long, sample
from whorl.tests.stores import copied_stores, new_store

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
    read_ms = np.arange(1200, len(works) - 200, sensor.every_s * 1000).astype(int)
    read_ms += random.integers(-3, 4, len(read_ms))
    reported = read_ms // 100 * 100

    def mean(milliseconds: int) -> np.ndarray:
        watts = (upto[reported] - upto[reported - milliseconds]) * 1000 / milliseconds
        return np.where(
            random.random(len(read_ms)) < sensor.missing, np.nan, watts + random.normal(0, 0.5, len(read_ms))
        )

    used = np.round((busy_upto[read_ms] - busy_upto[read_ms - 167]) / 1.67) / 100
    return Readings(
        ts_ns=at(0) + read_ms * 1_000_000,
        stuck=np.zeros(len(read_ms), bool),
        power_w=mean(round(sensor.window_s * 1000)),
        instant_w=mean(25) if sensor.instant else None,
        counter_j=upto[reported] if sensor.counter else None,
        utilization=np.where(random.random(len(read_ms)) < sensor.missing, np.nan, used),
        window_s=np.full(len(read_ms), sensor.window_s),
        limit_w=np.full(len(read_ms), 700.0),
    )


LOADS = [*product((0.1, 0.3, 0.5, 0.7, 0.9, 0.95), (0.2, 1, 2, 5, 20))]
SENSORS = [*product((0.025, 0.1, 1.0), (0.1, 0.2, 0.5, 1, 2, 10))]


@pytest.mark.parametrize(("window_s", "every_s"), sample(SENSORS, short=1))
@pytest.mark.parametrize("reading_options", [{}, {"instant": True}, {"counter": True}, {"missing": 0.02}])
def test_idle_power_is_right_or_its_interval_is_wide(
    window_s: float, every_s: float, reading_options: dict[str, Any]
) -> None:
    seconds = max(240.0, 150 * every_s)  # so many readings that some see the load
    for busy, period_s in sample(LOADS, short=3):
        read = square(busy, period_s, Sensor(window_s, every_s, **reading_options), seconds)
        among = build("c", "g", read, model="H100").among
        mean = IDLE_W + busy * (WORK_W - IDLE_W)
        low, high = among["idle_low_w"][0], among["idle_high_w"][0]
        if np.isnan(among["idle_w"][0]):
            assert among["idle_source"][0] == IdleSource.BOUNDED
        else:
            assert abs(among["idle_w"][0] - IDLE_W) / mean < 0.1, (busy, period_s)
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
    among = build("c", "g", square(busy, period_s, sensor), model="NVIDIA H100 80GB HBM3").among
    assert among["idle_source"][0] == source
    assert np.isnan(among["idle_w"][0]) == (source == IdleSource.BOUNDED)


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
    telemetry = [readings(name, seconds, [50.0] * 120, energy_mj=[50 * count for count in counter])
                 for name in names if name != "read-b"]  # fmt: skip
    # A job had a GPU meanwhile, or another GPU of the node was read: somebody should know.
    jobs = [job(1, "calm-a", 0, 60), job(2, "held-a", 0, 3600)]
    telemetry.append(readings("read-b", range(0, 3660, 10), [50.0] * 366))
    # Rows without power are readings.
    telemetry.append(readings("silent-a", range(70, 3590, 10), [50.0] * 352, power_mw=[None] * 352))
    boards = [gpu(name, node=name[:-2]) for name in names]
    balance = reconcile(store_of(tmp_path / "S", boards, telemetry, jobs))
    assert balance.balances
    gpu_names = ("held-a", "read-a", "silent-a", "silent-b")
    problems = (Problem.COUNTER_RESET, Problem.GAP)
    assert set(balance.problems.select("gpu", "problem").rows()) == {
        (name, count) for name in gpu_names for count in problems
    }


# -- interval holds ----------------------------------------------------------------------------------------------------
# The interval of an energy holds what an external power meter would say: a part of `benchmarks.energy`, as a test.


DATA = Path(__file__).parents[4] / "shared" / "data" / "power"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Judged]:
    """Windows of boards of all kinds; with `--long` many, and up to ten minutes."""
    folder, rng = tmp_path_factory.mktemp("boards"), np.random.default_rng(5)
    drawn = [trial(rng, number, longest_ms=6e5 if is_long() else 3e4) for number in range(48 if is_long() else 12)]
    streams = [board for board in drawn if board.says["source"] != "rows"][: count(4, short=1)]  # slow to import
    boards = [board for board in drawn if board.says["source"] == "rows"] + streams
    store = new_store(folder / "store")
    stored(store, boards, folder)
    return [row for row in compared(store, boards) if row.says["load"] not in FOR_EVER]


def held(rows: list[Judged]) -> float:
    with_figure = [row for row in rows if not np.isnan(row.best_j)]
    return float(np.mean([row.low_j <= row.true_j <= row.high_j for row in with_figure]))


def least(rows: list[Judged]) -> float:
    """What share must hold: 95 %, less three standard errors; windows of one board are not independent."""
    return 0.95 - 3.0 * float(np.sqrt(0.05 * 0.95 / len({row.gpu for row in rows})))


def test_intervals_hold_the_true_energy(judged: list[Judged]) -> None:
    assert held(judged) >= least(judged)
    near = np.mean([abs(row.trapezoid_j - row.true_j) <= 0.05 * row.trapezoid_j for row in judged])
    assert near < 0.75  # where a plain 5 % holds as often, these boards judge nothing


def test_they_hold_for_each_kind_of_polling_and_window(judged: list[Judged]) -> None:
    for group in ("polling", "window", "source", "gaps"):
        for kind in {row.says[group] for row in judged}:
            rows_of_kind = [row for row in judged if row.says[group] == kind]
            assert held(rows_of_kind) >= least(rows_of_kind), (group, kind)


def test_they_are_no_wider_than_needed(judged: list[Judged]) -> None:
    close = [row for row in judged if row.says["polling"] in ("8-20 ms", "50-200 ms") and not np.isnan(row.best_j)]
    half = np.median([(row.high_j - row.low_j) / 2 / row.true_j for row in close])
    assert 0.05 < half < 0.35


def test_the_sum_of_boards_is_known_better_than_each(judged: list[Judged]) -> None:
    sums = summed(judged, 4)
    assert sums["sums"] >= 1
    assert sums["covered_pct"] >= 90
    alone = np.median([(row.high_j - row.low_j) / 2 / row.true_j for row in judged if not np.isnan(row.best_j)])
    assert sums["half_width_pct"][0] < 100 * alone


def real() -> list[MeteredStream]:
    return [*streams(DATA / "metered", {"metered": "NVIDIA RTX A5000"}), *streams_of_known_load(DATA)]


@pytest.mark.long
@pytest.mark.skipif(not DATA.is_dir(), reason="the streams of real GPUs are not beside the clone")
@pytest.mark.parametrize("number", range(3))
def test_windows_of_a_real_gpu_hold_what_its_meter_measured(number: int) -> None:
    with copied_stores():
        windows = [row for with_model in (True, False) for row in judged_windows(real()[number], with_model=with_model)]
    assert all(row["low_j"] <= row["true_j"] <= row["high_j"] for row in windows)
    half = [(row["high_j"] - row["low_j"]) / 2 / row["true_j"] for row in windows]
    assert np.median(half) < 0.35
    near = [abs(row["trapezoid_j"] - row["true_j"]) <= 0.05 * row["true_j"] for row in windows]
    assert np.mean(near) < 0.7  # where a plain 5 % holds as often, this stream judges nothing
