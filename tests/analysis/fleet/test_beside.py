"""All GPUs beside each other in one workload: as the judge has them, of every campaign, and what a brush holds."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from whorl.analysis.fleet.side_by_side import (
    Printed,
    beside,
    is_ratio,
    of_print,
    printed,
    runs_of,
)
from whorl.analysis.fleet.timelines import MOST_PERIODS, trend
from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts.fingerprint import fingerprint, store_fingerprint
from whorl.analysis.verdicts.model import Model
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.conftest import BuiltOnce
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, stored
from whorl.tests.stores import new_store

DAY_NS = 86_400_000_000_000
GPUS = 16


def _build(folder: Path) -> None:
    """Two campaigns of 16 GPUs, one of which is pinned, and the fingerprints of their GPUs."""
    store, _ = stored(folder / "store", GPUS, kinds=("pinned",), telemetry=False)
    stored(folder, GPUS, kinds=("pinned",), telemetry=False, campaign="made-2", began_ns=BEGAN_NS + DAY_NS, into=store)
    store_fingerprint(store, fingerprint(Model(probed(store, every=True))))


@pytest.fixture(scope="module")
def two(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("beside", _build) / "store")


@pytest.mark.long(short=1)
@pytest.mark.parametrize("campaign", [None, "made-2"])
def test_the_runs_of_one_workload_are_those_that_are_judged(campaign: str | None, two: Store) -> None:
    campaign_runs = probed(two, campaign, every=campaign is None)
    workload_runs = runs_of(two, CLUSTER, "pagerank", campaign=campaign)
    columns = ["gpu", "began", "value", "power_w", "model", "cabinet"]
    expected = campaign_runs.sound.filter(pl.col("workload") == "pagerank").select(columns)
    assert workload_runs.sound.select(columns).sort("gpu", "began").equals(expected.sort("gpu", "began"))


def test_levels_and_intervals_are_those_of_the_fingerprint(two: Store) -> None:
    comparison = beside(runs_of(two, CLUSTER, "gemm-fp32"))
    assert (comparison.measured, comparison.runs) == (GPUS, 2 * GPUS)
    assert comparison.notes == ()
    printed_ = two.sql(
        "SELECT gpu, figure, value, low, high, ratio, ratio_high, n, sittings FROM fingerprints_now "
        "WHERE workload = 'gemm-fp32'"
    ).polars()
    for figure, name, apart in (
        ("time", "time", "slower_pct"), ("power", "power_w", "power_pct"), ("sm_clock", "sm_clock_mhz", "clock_pct"),
    ):  # fmt: skip
        joined = comparison.rows.join(printed_.filter(pl.col("figure") == figure), on="gpu", suffix="_printed")
        assert joined.height == GPUS
        for row in joined.iter_rows(named=True):
            assert (row["n"], row["sittings"]) == (row["n_printed"], row["sittings_printed"]) == (2, 2)
            assert row[name] == pytest.approx(row["value"], rel=1e-5)
            assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx((row["low"], row["high"]), rel=1e-5)
            assert row[apart] == pytest.approx(100 * (row["ratio"] - 1), abs=1e-3)
            assert row[f"{apart}_high"] == pytest.approx(100 * (row["ratio_high"] - 1), abs=1e-3)


def _imported(path: Path, rows: list[tuple[str, str, str | None, float, int]]) -> Store:
    """Runs of one workload that belong to no campaign, each (gpu, model, node, ms, day)."""
    store = new_store(path)
    gpus = list(dict.fromkeys((gpu, model, node) for gpu, model, node, *_ in rows))
    ids = [f"r{number}" for number in range(len(rows))]
    same = {"cluster": ["c"] * len(rows), "workload": ["w"] * len(rows), "gpu": [row[0] for row in rows]}
    store.append(
        {
            "gpus": arrow_rows(
                "gpus",
                {"cluster": ["c"] * len(gpus), "gpu": [row[0] for row in gpus], "model": [row[1] for row in gpus]}
                | {"node": [row[2] for row in gpus], "first_seen": [0] * len(gpus)},
            ),
            "runs": arrow_rows("runs", same | {"run_id": ids, "began": [BEGAN_NS + row[4] * DAY_NS for row in rows]}),
            "results": arrow_rows(
                "results",
                same
                | {"run_id": ids, "repeat": [0] * len(rows), "figure": ["time"] * len(rows), "unit": ["ms"] * len(rows)}
                | {"value": [row[3] for row in rows]},
            ),
        },
        "made",
    )
    return store


def test_figures_of_the_fingerprint_are_apart_from_the_median_of_the_model(two: Store) -> None:
    by_figure = {row.figure: row for row in printed(two, CLUSTER, "gemm-fp32")}
    assert not by_figure.keys() & {"time", "power", "sm_clock"}
    assert by_figure["work_per_joule"].workload == "gemm-fp32"
    assert by_figure["temperature_rise"] == Printed("temperature_rise", None, "K/W")
    assert by_figure["idle_power"].workload == "idle", "it is not known in the workload itself"
    rise = of_print(two, CLUSTER, by_figure["temperature_rise"])
    assert is_ratio(two, CLUSTER, by_figure["temperature_rise"])
    middle = rise["temperature_rise"].median()
    assert isinstance(middle, float)
    for value, apart, low, high in rise.select(
        "temperature_rise", "temperature_rise_apart", "temperature_rise_apart_low", "temperature_rise_apart_high"
    ).iter_rows():
        assert apart == pytest.approx(100 * (value / middle - 1), abs=1e-3)
        assert low < apart < high
    wrong = of_print(two, CLUSTER, by_figure["wrong_results"])
    assert not is_ratio(two, CLUSTER, by_figure["wrong_results"])
    assert wrong["wrong_results_apart"].to_list() == wrong["wrong_results"].to_list(), "0 is the median: a difference"
    assert wrong["wrong_results_low"].is_null().all()


def test_the_trend_has_each_campaign_beside_all_of_them(two: Store) -> None:
    course = trend(runs_of(two, CLUSTER, "gemm-fp32"))
    assert course is not None
    assert (course.by, course.periods["period"].to_list()) == ("campaign", ["made-1", "made-2"])
    assert course.periods.select("gpus", "runs").rows() == [(GPUS, GPUS)] * 2
    all_runs = beside(runs_of(two, CLUSTER, "gemm-fp32")).rows
    for gpu, slower in all_runs.select("gpu", "slower_pct").iter_rows():
        of_gpu = course.of(gpu)
        assert of_gpu["period"].to_list() == ["made-1", "made-2"]
        assert of_gpu["slower_pct"].mean() == pytest.approx(slower, abs=0.5)
    for p5, p25, median, p75, p95, low, high in course.periods.select(
        "p5", "p25", "median", "p75", "p95", "low", "high"
    ).iter_rows():
        assert p5 <= p25 <= median <= p75 <= p95
        assert low < median < high
    assert course.of("nobody").is_empty()


def test_runs_of_no_campaign_are_put_together_by_time(tmp_path: Path) -> None:
    days = MOST_PERIODS + 5
    store = _imported(
        tmp_path / "s", [(f"g{gpu}", "A", None, 10.0 + day / 10, day) for gpu in range(8) for day in range(days)]
    )
    course = trend(runs_of(store, "c", "w"))
    assert course is not None
    assert course.by == "week"
    assert course.periods["runs"].sum() == 8 * days
    medians = course.periods["median"].to_list()
    assert medians == sorted(medians), "each week is slower than the one before"
    undated = runs_of(store, "c", "w")
    undated.runs.replace_column(
        undated.runs.columns.index("began"), pl.Series("began", [None] * 8 * days, pl.Datetime("ns"))
    )
    assert trend(undated) is None
