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
    against,
    beside,
    by_place,
    labels,
    level_of,
    of_print,
    printed,
    runs_of,
)
from whorl.analysis.fleet.timelines import timelines, trend
from whorl.analysis.runs.probing import Probed, probed
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


# -- places, names and notes ------------------------------------------------------------------------------------------


def test_places_are_ordered_by_the_median_of_their_gpus() -> None:
    """Two GPUs a cabinet; of the last one only the power is known, and one GPU stands nowhere."""
    cabinets = ["r2", "r2", "r10", "r10", "r1", "r1", None]
    slower = [1.0, 3.0, 2.0, 2.0, None, None, 9.0]
    rows = pl.DataFrame({"workload": ["w"] * 7, "cabinet": cabinets, "slower_pct": slower, "power_w": [300.0] * 7})
    places = by_place(rows, "cabinet", ("slower_pct", "power_w"))
    assert places.select("workload", "place", "n").rows() == [("w", "r2", 2), ("w", "r10", 2), ("w", "r1", 2)]
    assert places["slower_pct"].to_list() == [pytest.approx([1.1, 1.5, 2.0, 2.5, 2.9]), [2.0] * 5, None]
    assert places["power_w"].to_list() == [[300.0] * 5] * 3
    assert (level_of(rows), level_of(rows.filter(pl.col("cabinet") != "r1"))) == ("cabinet", "node")


def test_short_names_stay_apart() -> None:
    keys = ["GPU-aaaaaaaa-1111-2222-3333-000000000001", "GPU-aaaaaaaa-1111-2222-3333-000000000002", "GPU-b", "GPU-c"]
    gpus = pl.DataFrame({"gpu": keys, "name": [keys[0], "n1/0", "GPU-b", "n1/0"]})
    assert list(labels(gpus).values()) == ["GPU-aaaaaaaa", keys[1], "GPU-b", "GPU-c"], "n1/0 is the name of two"


def test_a_gpu_is_held_against_its_own_model() -> None:
    """8 GPUs of one model take 10 ms and 2 of another 20; one of the first takes 11, and a run has no time."""
    model = ["A"] * 8 + ["B"] * 2 + ["A"]
    runs = pl.DataFrame({
        "workload": ["w"] * 11, "gpu": [f"g{number}" for number in range(10)] + ["g0"], "model": model,
        "value": [10.0] * 7 + [11.0, 20.0, 20.0, 0.0], "began": [None] * 11, "status": ["ok"] * 11,
        "conditions": [None] * 11,
    })  # fmt: skip
    campaign = Probed("c", "", pl.DataFrame(), runs, pl.DataFrame())
    (probe,) = against(campaign, {f"g{number}": f"n{number}" for number in range(10)})
    assert (probe.probe, probe.gpus[-1], probe.labels[-1], probe.typical_ms) == ("w", "g7", "n7", 10.0)
    assert probe.excess_pct.tolist() == pytest.approx([0.0] * 9 + [10.0])


@pytest.mark.parametrize(
    ("runs", "values", "note"),
    [
        (1, True, "Each GPU ran it once, so nobody knows how far a figure repeats"),
        (2, False, "These runs measure no time: look at power, clock or temperature."),
        (2, True, "Too few GPUs ran it twice to know how far a figure repeats"),
    ],
)
def test_a_page_says_what_runs_cannot_tell(two: Store, runs: int, values: bool, note: str) -> None:
    """Seven GPUs of one model and one of another ran it; eight others did not."""
    fleet = runs_of(two, CLUSTER, "gemm-fp32", campaign=None if runs == 2 else "made-2")
    chosen = fleet.gpus["gpu"].to_list()[:8]
    model = pl.when(pl.col("gpu") == chosen[0]).then(pl.lit("other")).otherwise("model").alias("model")
    value = pl.when(values).then("value").alias("value")
    rows = fleet.runs.filter(pl.col("gpu").is_in(chosen)).with_columns(model, value)
    notes = beside(replace(fleet, runs=rows, gpus=fleet.gpus.with_columns(model))).notes
    assert notes[0] == "8 of 16 GPUs have no sound run of it, and are shown as n/a."
    assert "Only 1 GPU of other: too few to tell who differs." in notes
    assert any(text.startswith("Only 7 GPUs of ") for text in notes)
    assert len(notes) == 4
    assert notes[-1].startswith(note)


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
