"""What the place of jobs cost: levels from fingerprints, and the excess of jobs, GPUs and nodes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.energy.attribute import PIECES
from whorl.analysis.energy.excess import BUSY, add_excess, busy, excess, waiting
from whorl.analysis.energy.levels import Measure, levels
from whorl.benchmarks.energy_fleets import LIMIT_W, excess_fleet
from whorl.store import Store
from whorl.store.schema import arrow_rows

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC).replace(tzinfo=None)
WORK = {"gemm": ("compute", 250.0), "fma": ("compute", 200.0), "stream": ("memory", 150.0)}
"""Class and usual power (W)."""


def gpu_name(number: int) -> str:
    return f"GPU-{number:02}"


def fingerprints(
    time: dict[int, float] | None = None,
    power: dict[int, float] | None = None,
    *,
    gpus: int = 16,
    spread: float = 0.001,
    repeats: float | None = 0.004,
    workloads: dict[str, tuple[str, float]] | None = None,
) -> pl.DataFrame:
    """Rows of `fingerprints_now`: GPUs that are alike but for factors of time and power; readings of power `spread`."""
    rows: list[dict[str, Any]] = []

    def row(gpu: int, kind: str, workload: str, figure: str, value: float) -> None:
        high = None if repeats is None else value * math.exp(repeats)
        rows.append(
            {"cluster": "c", "gpu": gpu_name(gpu), "model": "A100", "class": kind, "workload": workload,
             "figure": figure, "value": value, "high": high, "n": 4, "sittings": 2}
        )  # fmt: skip

    for gpu in range(gpus):
        wave = spread * math.sqrt(2) * math.cos(2 * math.pi * gpu / gpus)
        for workload, (kind, watts) in (workloads or WORK).items():
            seconds = 1.0 * (time or {}).get(gpu, 1.0)
            drawn = watts * (power or {}).get(gpu, 1.0) * math.exp(wave)
            row(gpu, kind, workload, "time", 1e3 * seconds)
            row(gpu, kind, workload, "power", drawn)
            row(gpu, kind, workload, "work_per_joule", 1 / (seconds * drawn))
        row(gpu, "power", "idle", "idle_power", 50.0 * (power or {}).get(gpu, 1.0))
    return pl.DataFrame(rows, schema_overrides={"high": pl.Float64})


def limits(watts: float = 400.0, gpus: int = 16) -> pl.DataFrame:
    return pl.DataFrame(
        {"cluster": ["c"] * gpus, "gpu": [gpu_name(number) for number in range(gpus)], "limit_w": watts}
    )


def job(gpu: int, allocation: str, s: float = 3600, watts: float = 250, **options: Any) -> dict[str, Any]:
    row = dict.fromkeys(PIECES) | {
        "cluster": "c", "gpu": gpu_name(gpu), "node": f"n{gpu // 4}", "kind": "job", "allocation": allocation,
        "share": 1.0, "began": NOON, "ended": NOON + timedelta(seconds=s), "energy_j": watts * s, "idle_j": 50 * s,
        "below_j": 0.0, "above_j": 0.0, "variance_j2": 0.0, "sensed_j": watts * s, "sensed_s": s, "measured_s": s,
        "method": "power",
    }  # fmt: skip
    return row | options


def pieces(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=PIECES)


def use(*rows: tuple[int, str, float | None, float | None]) -> pl.DataFrame:
    """GPU, allocation, share of the time with a kernel, share with memory traffic."""
    full = [("c", gpu_name(gpu), allocation, share, memory, None) for gpu, allocation, share, memory in rows]
    return pl.DataFrame(full, schema=BUSY, orient="row")


def level(level_rows: pl.DataFrame, gpu: int, measure: Measure, **options: str) -> dict[str, Any]:
    return level_rows.filter(gpu=gpu_name(gpu), measure=measure.value, **options).row(0, named=True)


def test_levels_are_relative_to_the_median_gpu_in_each_workload_and_use() -> None:
    level_rows = levels(fingerprints({3: 1.2}, {5: 1.1}), limits())
    assert level(level_rows, 3, Measure.TIME, workload="gemm")["x"] == pytest.approx(math.log(1.2))
    assert level(level_rows, 3, Measure.TIME, use="compute")["x"] == pytest.approx(math.log(1.2))
    assert level(level_rows, 3, Measure.ENERGY, use="memory")["x"] == pytest.approx(math.log(1.2), abs=0.004)
    assert level(level_rows, 5, Measure.TIME, use="any")["x"] == pytest.approx(0)
    assert level(level_rows, 5, Measure.ENERGY, use="both")["x"] == pytest.approx(math.log(1.1), abs=0.004)
    assert level(level_rows, 5, Measure.IDLE)["x"] == pytest.approx(math.log(1.1))


def test_the_error_of_sensors_is_the_spread_of_readings_below_the_limit_and_else_that_of_measured_boards() -> None:
    near, far = (levels(fingerprints(spread=spread, gpus=64), limits(gpus=64)) for spread in (0.001, 0.03))
    assert level(near, 3, Measure.ENERGY, use="compute")["sensor_sd"] < 0.003
    assert level(far, 3, Measure.ENERGY, use="compute")["sensor_sd"] == pytest.approx(0.03, rel=0.7)
    held = levels(fingerprints(spread=0.001, workloads={"gemm": ("compute", 250.0)}), limits(255.0))
    assert 0.02 < level(held, 3, Measure.ENERGY, use="compute")["sensor_sd"] < 0.06
    assert level(held, 3, Measure.TIME, use="compute")["sensor_sd"] == 0
    few = fingerprints(gpus=6)  # nothing but what is known of the model: boards for data centres do not bend
    bent = levels(few.with_columns(model=pl.lit("Quadro P4000")), limits(gpus=6))
    assert (
        level(levels(few, limits(gpus=6)), 3, Measure.IDLE)["sensor_sd"]
        < 0.8 * level(bent, 3, Measure.IDLE)["sensor_sd"]
    )


def test_the_excess_of_a_slow_gpu_is_of_its_busy_time_and_energy_only() -> None:
    level_rows = levels(fingerprints({3: 1.25}), limits())
    rows = excess(pieces(job(3, "a", watts=200)), level_rows, use((3, "a", 0.5, 0.02)))
    row = rows.row(0, named=True)
    assert row["excess_s"] == pytest.approx(0.5 * 3600 * 0.2)
    busy_j = 200 * 3600 - 50 * 0.5 * 3600
    assert row["excess_j"] == pytest.approx(busy_j * 0.2, rel=0.01)
    assert row["excess_j_low"] < 0.2 * busy_j < row["excess_j_high"]
    assert row["basis"] == "compute"
    [gpu] = add_excess(rows, ["cluster", "gpu"]).to_dicts()
    assert gpu["excess_s_shown"]
    assert gpu["excess_j_shown"]
    hungry = levels(fingerprints(power={5: 1.2}), limits())  # with and without work
    [row] = excess(pieces(job(5, "b", watts=200)), hungry, use((5, "b", 0.5, 0.02))).to_dicts()
    assert row["excess_j"] == pytest.approx(200 * 3600 / 6, rel=0.01)


def test_gpus_nodes_and_jobs_add_up_to_the_same_excess() -> None:
    random = np.random.default_rng(1)
    level_rows = levels(fingerprints({1: 1.1, 6: 0.95}, {2: 1.2}), limits())
    jobs = [(gpu, f"j{random.integers(5)}") for gpu in range(16)]
    rows = excess(
        pieces(*(job(gpu, name, watts=float(random.uniform(100, 300))) for gpu, name in jobs)), level_rows,
        use(*((gpu, name, float(random.random()), 0.1) for gpu, name in jobs)),
    )  # fmt: skip
    sums = [add_excess(rows, ["cluster", by]).select(pl.col("excess_j", "excess_s").sum()).row(0)
            for by in ("gpu", "node", "allocation")]  # fmt: skip
    assert sums[1] == pytest.approx(sums[0])
    assert sums[2] == pytest.approx(sums[0])
    total = add_excess(rows, ["cluster"]).row(0, named=True)
    assert total["excess_j"] == pytest.approx(sums[0][0])
    gpus = add_excess(rows, ["cluster", "gpu"])
    apart = (gpus["excess_high_j"] - gpus["excess_j"]).to_numpy()
    assert math.sqrt((apart**2).sum()) * 0.9 < total["excess_high_j"] - total["excess_j"] < apart.sum()


def test_the_others_of_a_job_wait_for_its_slowest_gpu_at_most_as_long_as_it_is_slower() -> None:
    level_rows = levels(fingerprints({3: 1.25, 4: 1.1}), limits())
    shares = use(*((gpu, "a", 0.5, 0.1) for gpu in (2, 3, 4)), (1, "b", 0.5, 0.1), (3, "c", 0.5, 0.1))
    late = NOON + timedelta(hours=5)
    had = pieces(
        job(2, "a"), job(3, "a"), job(4, "a"), job(1, "b"),
        job(3, "c", began=late, ended=late + timedelta(hours=1)),
    )  # fmt: skip
    jobs = pl.DataFrame({"cluster": ["c"] * 3, "allocation": ["a", "b", "c"], "job_id": ["1", "2", "2"]})
    slow = pl.DataFrame({"cluster": ["c", "c"], "gpu": [gpu_name(3), gpu_name(4)]})
    rows = excess(had, level_rows, shares)
    [row] = waiting(rows, slow, jobs, had).to_dicts()  # GPU 4 waits for 3 as well; job 2 had 1 and 3 at other times
    assert row["gpu"] == gpu_name(3)
    assert row["held_s"] == pytest.approx(1800 * (1 - 1 / 1.25) + 1800 * (1 - 1.1 / 1.25))
    assert row["held_j"] == pytest.approx(250 * 3600 * ((1 - 1 / 1.25) + (1 - 1.1 / 1.25)))
    assert waiting(rows, slow.clear(), jobs, had).is_empty()


@pytest.mark.long
@pytest.mark.parametrize("population", ["normal", "held by the limit"])
def test_planted_gpus_are_found_and_the_interval_holds_the_true_excess(population: str) -> None:
    fleet = excess_fleet(np.random.default_rng(7), 64, population, 0.05)
    gpus = fleet.pieces.select("cluster", "gpu").unique().with_columns(limit_w=pl.lit(LIMIT_W))
    excess_rows = add_excess(
        excess(fleet.pieces, levels(fleet.fingerprints, gpus), fleet.busy), ["cluster", "gpu"]
    ).sort("gpu")
    shown_s = excess_rows["excess_s_shown"].to_numpy()
    assert shown_s[fleet.slow].all()
    assert (fleet.time_s[shown_s] > 0).all()
    for name, truth in (("s", fleet.time_s), ("j", fleet.energy_j)):
        inside = (excess_rows[f"excess_low_{name}"].to_numpy() <= truth) & (
            truth <= excess_rows[f"excess_high_{name}"].to_numpy()
        )
        assert inside.mean() > 0.9
    sum_j = excess_rows["excess_j"].to_numpy()[fleet.hungry].sum()
    assert sum_j == pytest.approx(fleet.energy_j[fleet.hungry].sum(), rel=0.4)


def test_use_comes_from_the_telemetry_of_each_job(store: Store) -> None:
    at = [NOON + timedelta(seconds=10 * second) for second in range(60)]
    columns: dict[str, Any] = {
        "ts": at, "cluster": ["c"] * 60, "gpu": [gpu_name(1)] * 60, "utilization": [100] * 30 + [50] * 30,
        "memory_utilization": [80] * 30 + [None] * 30,
    }  # fmt: skip
    ran: dict[str, Any] = {"run_id": ["r"], "workload": ["gemm"], "job_id": ["7"]}
    had: dict[str, Any] = {"allocation": ["a"], "job_id": ["7"], "began": [NOON], "recorded": [NOON]}
    for rows in (ran, had):
        rows |= {"cluster": ["c"], "gpu": [gpu_name(1)]}
    tables = {"telemetry": columns, "runs": ran, "jobs": had}
    store.append({name: arrow_rows(name, rows) for name, rows in tables.items()}, "use")
    later = NOON + timedelta(seconds=300)
    busy_rows = busy(store, pieces(
        job(1, "a", s=300), job(1, "b", s=300, began=later, ended=later + timedelta(seconds=300)), job(2, "c"),
    )).sort("allocation").to_dicts()  # fmt: skip
    assert [row["busy"] for row in busy_rows] == [1.0, 0.5]
    assert [row["memory"] for row in busy_rows] == [0.8, None]
    assert [row["workload"] for row in busy_rows] == ["gemm", None]
