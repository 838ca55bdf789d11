"""All GPUs beside each other in one workload: as the judge has them, of every campaign, and what a brush holds."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from whorl.analysis.fleet.side_by_side import (
    Printed,
    Range,
    beside,
    comparable,
    held,
    is_ratio,
    of_print,
    printed,
    runs_of,
)
from whorl.analysis.fleet.timelines import MOST_PERIODS, trend, trend_of
from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts.fingerprint import fingerprint, store_fingerprint
from whorl.analysis.verdicts.model import Model
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.conftest import BuiltOnce
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, PROBES, stored
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


@pytest.mark.long
def test_what_can_be_compared_is_what_the_store_has(two: Store) -> None:
    (one,) = comparable(two)
    assert one.cluster == CLUSTER
    assert [(work.name, work.gpus) for work in one.works] == sorted((probe.name, GPUS) for probe in PROBES)
    assert [campaign.name for campaign in one.campaigns] == ["made-2", "made-1"]


def test_a_store_without_runs_has_nothing_to_compare(store: Store) -> None:
    assert comparable(store) == ()
    with pytest.raises(InputError, match="no runs of 'gemm'"):
        runs_of(store, "c", "gemm")


@pytest.mark.long(short=1)
@pytest.mark.parametrize("campaign", [None, "made-2"])
def test_the_runs_of_one_workload_are_those_that_are_judged(campaign: str | None, two: Store) -> None:
    whole = probed(two, campaign, every=campaign is None)
    own = runs_of(two, CLUSTER, "pagerank", campaign)
    columns = ["gpu", "began", "value", "power_w", "model", "cabinet"]
    expected = whole.sound.filter(pl.col("workload") == "pagerank").select(columns)
    assert own.sound.select(columns).sort("gpu", "began").equals(expected.sort("gpu", "began"))


def test_levels_and_intervals_are_those_of_the_fingerprint(two: Store) -> None:
    found = beside(runs_of(two, CLUSTER, "gemm-fp32"))
    assert (found.measured, found.runs) == (GPUS, 2 * GPUS)
    assert found.notes == ()
    printed_ = two.sql(
        "SELECT gpu, figure, value, low, high, ratio, ratio_high, n, sittings FROM fingerprints_now "
        "WHERE workload = 'gemm-fp32'"
    ).polars()
    for figure, name, apart in (
        ("time", "time", "slower_pct"), ("power", "power_w", "power_pct"), ("sm_clock", "sm_clock_mhz", "clock_pct"),
    ):  # fmt: skip
        both = found.rows.join(printed_.filter(pl.col("figure") == figure), on="gpu", suffix="_printed")
        assert both.height == GPUS
        for row in both.iter_rows(named=True):
            assert (row["n"], row["sittings"]) == (row["n_printed"], row["sittings_printed"]) == (2, 2)
            assert row[name] == pytest.approx(row["value"], rel=1e-5)
            assert (row[f"{name}_low"], row[f"{name}_high"]) == pytest.approx((row["low"], row["high"]), rel=1e-5)
            assert row[apart] == pytest.approx(100 * (row["ratio"] - 1), abs=1e-3)
            assert row[f"{apart}_high"] == pytest.approx(100 * (row["ratio_high"] - 1), abs=1e-3)


def test_one_run_of_each_gpu_has_no_interval_and_that_is_said(two: Store) -> None:
    found = beside(runs_of(two, CLUSTER, "gemm-fp32", "made-1"))
    assert found.runs == GPUS
    assert found.rows["slower_pct"].is_not_null().all()
    assert found.rows["slower_pct_low"].is_null().all()
    assert any("no intervals" in note for note in found.notes)
    untimed = beside(runs_of(two, CLUSTER, "idle"))
    assert untimed.rows["time"].is_null().all()
    assert untimed.rows["power_pct_low"].is_not_null().all()
    assert any("measure no time" in note for note in untimed.notes)


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
                {"cluster": ["c"] * len(gpus), "gpu": [one[0] for one in gpus], "model": [one[1] for one in gpus]}
                | {"node": [one[2] for one in gpus], "first_seen": [0] * len(gpus)},
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


def test_models_are_kinds_of_a_workload_and_few_gpus_are_said(tmp_path: Path) -> None:
    rows: list[tuple[str, str, str | None, float, int]] = [(f"a{gpu}", "A", "n1", 10.0 + gpu, 0) for gpu in range(9)]
    rows.append(("b0", "B", None, 99.0, 0))
    store = _imported(tmp_path / "s", rows)
    (one,) = comparable(store)
    assert [(work.name, work.gpus) for work in one.works] == [("w [A]", 9), ("w [B]", 1)]
    assert one.campaigns == ()
    found = beside(runs_of(store, "c", "w [B]"))
    assert found.measured == 1
    assert found.rows.height == 10, "every GPU has a row"
    assert found.rows.filter(pl.col("gpu") == "a0").select("n", "time", "slower_pct").row(0) == (0, None, None)
    assert [note.partition(":")[0] for note in found.notes[:2]] == [
        "9 of 10 GPUs have no sound run of it, and are shown as n/a.",
        "Only 1 GPU of B",
    ]
    assert found.rows.filter(pl.col("gpu") == "b0")["slower_pct"].to_list() == [0.0]


def test_figures_of_the_fingerprint_are_apart_from_the_median_of_the_model(two: Store) -> None:
    known = {one.figure: one for one in printed(two, CLUSTER, "gemm-fp32")}
    assert not known.keys() & {"time", "power", "sm_clock"}
    assert known["work_per_joule"].workload == "gemm-fp32"
    assert known["temperature_rise"] == Printed("temperature_rise", None, "K/W")
    assert known["idle_power"].workload == "idle", "it is not known in the workload itself"
    rise = of_print(two, CLUSTER, known["temperature_rise"])
    assert is_ratio(two, CLUSTER, known["temperature_rise"])
    middle = rise["temperature_rise"].median()
    assert isinstance(middle, float)
    for value, apart, low, high in rise.select(
        "temperature_rise", "temperature_rise_apart", "temperature_rise_apart_low", "temperature_rise_apart_high"
    ).iter_rows():
        assert apart == pytest.approx(100 * (value / middle - 1), abs=1e-3)
        assert low < apart < high
    wrong = of_print(two, CLUSTER, known["wrong_results"])
    assert not is_ratio(two, CLUSTER, known["wrong_results"])
    assert wrong["wrong_results_apart"].to_list() == wrong["wrong_results"].to_list(), "0 is the median: a difference"
    assert wrong["wrong_results_low"].is_null().all()


def test_a_brush_holds_what_is_in_all_ranges_and_at_one_of_the_places() -> None:
    rows = pl.DataFrame(
        {"x": [1.0, 2.0, 3.0, None], "y": [1, 2, 3, 4], "node": ["a", "b", None, "a"], "cabinet": ["c", "c", "d", None]}
    )

    def numbers(ranges: list[Range], places: list[tuple[str, str]]) -> list[int]:
        return held(rows, ranges, places).arg_true().to_list()

    assert numbers([], []) == [0, 1, 2, 3]
    assert numbers([Range("x", 2.0, float("inf"))], []) == [1, 2], (
        "an end belongs to it; what is missing is in no range"
    )
    assert numbers([Range("x", 1, 2), Range("y", 2, 9)], []) == [1]
    assert numbers([], [("node", "a"), ("cabinet", "d")]) == [0, 2, 3]
    assert numbers([Range("x", 0, 9)], [("node", "a")]) == [0]
    assert numbers([Range("gone", 0, 1), Range("node", 0, 1)], [("uuid", "a")]) == [0, 1, 2, 3]


def test_the_trend_has_each_campaign_beside_all_of_them(two: Store) -> None:
    found = trend_of(two, CLUSTER, "gemm-fp32")
    assert found is not None
    assert (found.by, found.periods["period"].to_list()) == ("campaign", ["made-1", "made-2"])
    assert found.periods.select("gpus", "runs").rows() == [(GPUS, GPUS)] * 2
    all_runs = beside(runs_of(two, CLUSTER, "gemm-fp32")).rows
    for gpu, slower in all_runs.select("gpu", "slower_pct").iter_rows():
        mine = found.of(gpu)
        assert mine["period"].to_list() == ["made-1", "made-2"]
        assert mine["slower_pct"].mean() == pytest.approx(slower, abs=0.5)
    for p5, p25, median, p75, p95, low, high in found.periods.select(
        "p5", "p25", "median", "p75", "p95", "low", "high"
    ).iter_rows():
        assert p5 <= p25 <= median <= p75 <= p95
        assert low < median < high
    assert found.of("nobody").is_empty()


def test_runs_of_no_campaign_are_put_together_by_time(tmp_path: Path) -> None:
    days = MOST_PERIODS + 5
    store = _imported(
        tmp_path / "s", [(f"g{gpu}", "A", None, 10.0 + day / 10, day) for gpu in range(8) for day in range(days)]
    )
    found = trend_of(store, "c", "w")
    assert found is not None
    assert found.by == "week"
    assert found.periods["runs"].sum() == 8 * days
    medians = found.periods["median"].to_list()
    assert medians == sorted(medians), "each week is slower than the one before"
    undated = runs_of(store, "c", "w")
    undated.runs.replace_column(
        undated.runs.columns.index("began"), pl.Series("began", [None] * 8 * days, pl.Datetime("ns"))
    )
    assert trend(undated) is None


@pytest.mark.long
def test_the_trend_says_the_interval_that_all_other_answers_say(tmp_path: Path) -> None:
    rows: list[tuple[str, str, str | None, float, int]] = [
        (f"g{gpu}", "A", None, float(200 + (gpu + run) // 2), 0) for gpu in range(12) for run in range(3)
    ]
    store = _imported(tmp_path / "s", rows)
    other = beside(runs_of(store, "c", "w")).rows
    found = trend_of(store, "c", "w")
    assert found is not None
    for gpu, low, high in other.select("gpu", "slower_pct_low", "slower_pct_high").iter_rows():
        ends = found.of(gpu).select("low", "high").row(0)
        assert ends == pytest.approx((low, high), abs=1e-3), "one day, whole milliseconds"


def test_days_of_one_run_tell_each_others_interval_in_a_trend(tmp_path: Path) -> None:
    rows: list[tuple[str, str, str | None, float, int]] = [
        (f"g{gpu}", "A", None, 200.0 + gpu + (0.9, 0.1, 0.6, 0.3)[(gpu + day) % 4], day)
        for gpu in range(12)
        for day in range(4)
    ]
    found = trend_of(_imported(tmp_path / "s", rows), "c", "w")
    assert found is not None
    for gpu in range(12):
        mine = found.of(f"g{gpu}")
        assert mine["n"].to_list() == [1, 1, 1, 1]
        assert mine["low"].max() < mine["slower_pct"].min(), "each holds the other days"  # type: ignore[operator]
        assert mine["slower_pct"].max() < mine["high"].min()  # type: ignore[operator]
