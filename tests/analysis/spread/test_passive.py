"""Passive fingerprints: GPUs ranked by the power of ordinary jobs, and when they cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis import identities, measurements
from whorl.analysis.spread.passive import LONGHORN, passive, passive_fingerprints
from whorl.analysis.spread.variability import linked_names
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.schema import arrow_rows
from whorl.tests.analysis.correlations import spearman
from whorl.tests.analysis.longhorn import FOLDER, needs_longhorn
from whorl.tests.stores import new_store

GPUS, JOBS = 40, 6
SECOND = 10**9


class Fleet:
    """Runs of one workload: every job takes one GPU; its highest power is the GPU's level and the job's noise."""

    def __init__(self, seed: int = 3, gpus: int = GPUS, jobs: int = JOBS, spread: float = 0.03, noise: float = 0.01):
        rng = np.random.default_rng(seed)
        self.level = rng.normal(0, spread, gpus)
        gpu = np.repeat(np.arange(gpus), jobs)
        n = len(gpu)
        self.runs: dict[str, Any] = {
            "run_id": [f"r{i}" for i in range(n)],
            "cluster": ["c"] * n,
            "workload": ["train"] * n,
            "gpu": [f"g{i:03d}" for i in gpu],
            "job_id": [f"j{i}" for i in range(n)],
            "began": np.arange(n) * 3600 * SECOND,
            "ended": (np.arange(n) * 3600 + 100) * SECOND,
            "sm_clock_mhz": np.full(n, 1530.0),
        }
        self.power = 300 * np.exp(self.level[gpu] + rng.standard_t(4, n) * noise)

    def store(self, path: Path, *, figure: str | None = "power_max") -> Store:
        store = new_store(path)
        n = len(self.power)
        keys = {key: self.runs[key] for key in ("run_id", "cluster", "workload", "gpu")}
        tables = {"runs": arrow_rows("runs", self.runs)}
        if figure is not None:
            result = keys | {"figure": [figure] * n, "unit": ["W"] * n, "repeat": [0] * n, "value": self.power}
            tables["results"] = arrow_rows("results", result)
        store.append(tables, "made")
        return store


def scores(store: Store) -> pl.DataFrame:
    return passive_fingerprints(store).sort("gpu")


@pytest.mark.long
def test_the_order_and_the_intervals_are_right(tmp_path: Path) -> None:
    inside = []
    for seed in range(2):
        fleet = Fleet(seed)
        rows = scores(fleet.store(tmp_path / str(seed)))
        assert spearman(rows["score"], fleet.level) > 0.95
        assert rows.sort("rank")["score"].is_sorted()
        assert rows["rank"].min() == 1
        true = 100 * np.expm1(fleet.level - np.median(fleet.level))
        inside += list((rows["low"].to_numpy() <= true) & (true <= rows["high"].to_numpy()))
        assert (rows["runs"].to_list(), rows["jobs"].to_list()) == ([JOBS] * GPUS, [JOBS] * GPUS)
    assert 0.88 < np.mean(inside) <= 1.0


def reduced_clock(fleet: Fleet) -> None:
    fleet.runs["sm_clock_mhz"] = np.linspace(1200, 1500, len(fleet.power))


def no_clock(fleet: Fleet) -> None:
    fleet.runs["sm_clock_mhz"] = [None] * len(fleet.power)


def strange_clock(fleet: Fleet) -> None:
    fleet.runs["sm_clock_mhz"] = np.full(len(fleet.power), np.nan)


def same_power(fleet: Fleet) -> None:
    fleet.power[:] = 300.0


def no_difference(fleet: Fleet) -> None:
    fleet.power = np.random.default_rng(5).normal(300, 3, len(fleet.power))


def one_gpu(fleet: Fleet) -> None:
    fleet.runs["gpu"] = ["g000"] * len(fleet.power)


def unknown_power(fleet: Fleet) -> None:
    fleet.power[:] = np.nan


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (reduced_clock, "the clock is below its highest, 1497 MHz, in most runs"),
        (no_clock, "most runs have no SM clock"),
        (strange_clock, "most runs have no SM clock"),
        (same_power, "the power is the same in every run"),
        (no_difference, "the ranks do not repeat from job to job"),
        (one_gpu, "fewer than two GPUs have two jobs"),
        (unknown_power, "most runs have no power"),
    ],
)
def test_a_workload_that_cannot_rank_says_why(change: Callable[[Fleet], None], reason: str, tmp_path: Path) -> None:
    fleet = Fleet()
    change(fleet)
    figures = passive(fleet.store(tmp_path / "s"))
    assert figures.rows["score"].null_count() == figures.rows.height == len(set(fleet.runs["gpu"]))
    assert all(text.startswith(reason) for text in figures.rows["reason"])
    (worth,) = figures.worth
    assert (worth.gpus, worth.figure, worth.expected) == (0, None, None)
    assert worth.reason is not None
    assert worth.reason.startswith(reason)


def test_a_gpu_that_cannot_be_ranked_says_why(tmp_path: Path) -> None:
    fleet = Fleet()
    gpu = np.array(fleet.runs["gpu"])
    fleet.runs["sm_clock_mhz"][gpu == "g001"] = 1200
    fleet.power[gpu == "g002"] = 301.25
    fleet.runs["job_id"] = ["j" if name == "g003" else job for name, job in zip(gpu, fleet.runs["job_id"], strict=True)]
    rows = scores(fleet.store(tmp_path / "s"))
    reason_by_gpu = {row["gpu"]: row["reason"] for row in rows.iter_rows(named=True) if row["score"] is None}
    assert reason_by_gpu == {
        "g001": "no run with power at full clock (1530 MHz)",
        "g002": "its power never changes: the sensor may be stuck",
        "g003": "only one job: nothing shows how far it repeats",
    }
    assert rows.filter(pl.col("gpu") == "g003")["runs"].item() == JOBS


def test_collected_telemetry_takes_the_place_of_figures(tmp_path: Path) -> None:
    """Readings in the window of a run; those of a sensor that is marked as stuck do not count."""
    fleet = Fleet(gpus=12, jobs=4)
    fleet.runs["sm_clock_mhz"] = [None] * len(fleet.power)
    store = fleet.store(tmp_path / "s", figure=None)
    assert scores(store)["score"].null_count() == 12
    readings: dict[str, list[Any]] = {
        key: [] for key in ("ts", "cluster", "gpu", "power_mw", "sm_clock_mhz", "quality")
    }
    for gpu, began, watts in zip(fleet.runs["gpu"], fleet.runs["began"], fleet.power, strict=True):
        for second in range(-20, 120, 10):
            running = 0 <= second <= 100
            quality = "power_stuck" if gpu == "g011" else None
            row = (int(began) + second * SECOND, "c", gpu, round(1000 * watts) if running else 900_000, 1530, quality)
            for key, value in zip(readings, row, strict=True):
                readings[key].append(value)
    store.append({"telemetry": arrow_rows("telemetry", readings)}, "t")
    figures = passive(store)
    assert figures.worth[0].figure == "power_p95"
    rows = figures.rows.sort("gpu")
    assert rows.filter(pl.col("score").is_null())["gpu"].to_list() == ["g011"]
    assert spearman(rows["score"][:11], fleet.level[:11]) > 0.9


@pytest.mark.long
def test_a_run_that_waited_all_the_time_does_not_count_where_profiling_tells(tmp_path: Path) -> None:
    """Two GPUs wait in half of their jobs, one in all: they draw less, and are no faster for it."""
    fleet = Fleet(gpus=12, jobs=8)
    fleet.runs["sm_clock_mhz"] = [None] * len(fleet.power)
    readings: dict[str, list[Any]] = {
        key: [] for key in ("ts", "cluster", "gpu", "power_mw", "sm_clock_mhz", "sm_active_ppm")
    }
    for at, (gpu, began, watts) in enumerate(zip(fleet.runs["gpu"], fleet.runs["began"], fleet.power, strict=True)):
        waits = (gpu in ("g003", "g004") and at % 8 < 5) or gpu == "g005"
        for second in range(0, 100, 10):
            clock_khz = None if second % 20 else 430_000 if waits else 960_000 - 500 * second
            row = (int(began) + second * SECOND, "c", gpu, round(1000 * watts * (0.6 if waits else 1)), 1530, clock_khz)
            for key, value in zip(readings, row, strict=True):
                readings[key].append(value)
    with_figure, untold = (fleet.store(tmp_path / name, figure=None) for name in ("told", "untold"))
    with_figure.append({"telemetry": arrow_rows("telemetry", readings)}, "t")
    untold.append(
        {"telemetry": arrow_rows("telemetry", readings | {"sm_active_ppm": [None] * len(readings["ts"])})}, "t"
    )
    rows = scores(with_figure)
    assert rows.filter(pl.col("score").is_null())[["gpu", "reason"]].rows() == [
        ("g005", "no run with power at full clock (1530 MHz) and full load")
    ]
    assert rows.filter(pl.col("runs") == 3)["gpu"].to_list() == ["g003", "g004"]
    scored = rows.drop_nulls("score")
    level = np.delete(fleet.level, 5)
    assert spearman(scored["score"], level) > 0.9
    assert scored.filter(pl.col("score").abs() > 15).is_empty()
    assert set(scores(untold).filter(pl.col("score") < -30)["gpu"]) == {"g003", "g004", "g005"}


@pytest.mark.long
@needs_longhorn
def test_longhorn_power_of_2022_ranks_the_speed_of_2020(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    for name in ("pagerank", "sgemm", "resnet50"):
        import_file(store, FOLDER / f"{name}.csv.gz", Options(cluster="longhorn"))
    figures = passive(store)
    identity = linked_names(identities(store), "longhorn").identity
    times = measurements(store, workloads=["sgemm"]).with_columns(pl.col("gpu").cast(pl.String).replace(identity))
    speed = times.group_by("gpu").agg(pl.col("value").median())
    by_workload = {worth.workload: worth for worth in figures.worth}
    for workload, figure in (("resnet", "power_max"), ("pagerank", "power_w")):
        rows = figures.rows.filter(pl.col("workload") == workload).drop_nulls("score").join(speed, on="gpu")
        expected = LONGHORN[figure]
        assert rows.height == expected.n
        assert spearman(rows["score"], rows["value"]) == pytest.approx(expected.spearman, abs=0.006)
        assert by_workload[workload].expected == expected
    assert LONGHORN["power_max"].spearman >= 0.8
    split_half = by_workload["resnet"].split_half
    assert split_half is not None
    assert split_half > 0.9
    assert by_workload["sgemm"].gpus == 0
    of_resnet = figures.rows.filter((pl.col("workload") == "resnet") & pl.col("gpu").str.starts_with("GPU-"))
    assert of_resnet["name"].str.contains("^c[0-9]+-[0-9]+/[0-3]$").all()
