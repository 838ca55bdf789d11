"""All GPUs beside each other in one workload: as the judge has them, of every campaign, and what a brush holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest

from whorl.analysis.fleet.side_by_side import (
    Printed,
    beside,
    of_print,
    printed,
    runs_of,
)
from whorl.analysis.fleet.timelines import timelines, trend
from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts.fingerprint import fingerprint, store_fingerprint
from whorl.analysis.verdicts.model import Model
from whorl.store import Store
from whorl.tests.conftest import BuiltOnce
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, RUN_S, stored

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
    columns = ["gpu", "began", "value", "power_w", "model", "node"]
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


def test_figures_of_the_fingerprint_are_apart_from_the_median_of_the_model(two: Store) -> None:
    by_figure = {row.figure: row for row in printed(two, CLUSTER, "gemm-fp32")}
    assert not by_figure.keys() & {"time", "power", "sm_clock"}
    assert by_figure["work_per_joule"].workload == "gemm-fp32"
    assert by_figure["temperature_rise"] == Printed("temperature_rise", None, "K/W", is_ratio=True)
    assert by_figure["idle_power"].workload == "idle", "it is not known in the workload itself"
    rise = of_print(two, CLUSTER, by_figure["temperature_rise"])
    middle = rise["temperature_rise"].median()
    assert isinstance(middle, float)
    for value, apart, low, high in rise.select(
        "temperature_rise", "temperature_rise_apart", "temperature_rise_apart_low", "temperature_rise_apart_high"
    ).iter_rows():
        assert apart == pytest.approx(100 * (value / middle - 1), abs=1e-3)
        assert low < apart < high
    wrong = of_print(two, CLUSTER, by_figure["wrong_results"])
    assert not by_figure["wrong_results"].is_ratio
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


# -- timelines ---------------------------------------------------------------------------------------------------------
# Telemetry of a GPU stands beside that of all GPUs in the same probe, whenever each of them ran it.


LATER = pl.duration(seconds=3 * RUN_S)


def test_a_gpu_that_begins_each_probe_later_is_compared_in_the_same_probe(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 16, 3)
    campaign = probed(store)
    late, calm = campaign.gpus["gpu"][0], campaign.gpus["gpu"][1]
    second = campaign.runs.filter(pl.col("gpu") == late)["began"].sort()[1]

    def delayed(name: str) -> pl.Expr:
        after = (pl.col("gpu") == late) & (pl.col(name) >= second)
        return pl.when(after).then(pl.col(name) + LATER).otherwise(pl.col(name)).alias(name)

    runs = campaign.runs.with_columns(
        delayed("began"), (pl.col("ended") + (delayed("began") - pl.col("began"))).alias("ended")
    )
    moved = SimpleNamespace(scan=lambda table: store.scan(table).with_columns(delayed("ts")), collect=store.collect)
    lines = timelines(cast("Store", moved), replace(campaign, runs=runs), [late, calm])
    assert lines is not None
    compared = 0
    for late_window, others in zip(lines.windows[late], lines.windows[calm], strict=True):
        assert late_window.probe == others.probe
        inside = {
            gpu: (lines.time_s > window.began_s) & (lines.time_s < window.ended_s)
            for gpu, window in ((late, late_window), (calm, others))
        }
        for metric in ("power_w", "temperature_c"):
            late_w, calm_w = (lines.fleet[gpu][metric][inside[gpu]] for gpu in (late, calm))
            late_w, calm_w = late_w[np.isfinite(late_w)], calm_w[np.isfinite(calm_w)]
            assert bool(len(late_w)) is bool(len(calm_w))
            if len(late_w):
                compared += 1
                assert np.median(late_w) == pytest.approx(np.median(calm_w), rel=0.03)
    assert compared > 4
    waiting = (lines.time_s > lines.windows[late][0].ended_s + 1) & (lines.time_s < lines.windows[late][1].began_s - 1)
    assert waiting.any()
    assert np.isnan(lines.fleet[late]["power_w"][waiting]).all(), "no other GPU waited there: nothing to compare with"
