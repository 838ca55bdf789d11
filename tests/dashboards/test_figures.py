"""Figures say what the store holds: the map, places beside each other, time against power."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.fleet.side_by_side import PLACED, Against, by_place, level_of, side_by_side
from whorl.analysis.fleet.timelines import Timelines, Window
from whorl.analysis.fleet.trend import trend_of
from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.verdicts.judge import judged
from whorl.dashboards.figures import drawing
from whorl.dashboards.figures.campaigns import over_campaigns
from whorl.dashboards.figures.drawing import Scatter, figure_of
from whorl.dashboards.figures.looks import Look, looks
from whorl.dashboards.figures.map import Grid, maps, shade
from whorl.dashboards.figures.places import PLACES, places
from whorl.dashboards.figures.power import POINTS, Powered, against_power
from whorl.dashboards.figures.spread import closely, overview
from whorl.dashboards.figures.timeline import over_time
from whorl.dashboards.report_tables import over_all_campaigns
from whorl.dashboards.style import room
from whorl.dashboards.table import signed
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, stored

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Probed, pl.DataFrame, dict[str, Look]]:
    store, _ = stored(tmp_path_factory.mktemp("figures") / "s", 64, 3, kinds=("pinned", "slow_memory"))
    campaign = probed(store)
    return campaign, side_by_side(campaign), looks(judged(campaign, store).by_key(campaign.gpus))


def test_the_numbers_of_a_map_have_room_on_a_phone() -> None:
    gpus = pl.DataFrame({"gpu": ["a", "b"], "name": ["a", "b"], "node": ["n", "n"], "cabinet": ["c", "c"]})
    assert Grid.of(gpus.with_columns(cabinet=pl.lit("x" * 99)))._axis()["ticktext"] == [f"…{'x' * 13}"]
    for farthest in (5.0, 22.0, 45.6, 50.0):
        drawn = Grid.of(gpus).drawn({"a": 0.0, "b": farthest}, "slower, %", " %", {}, farthest)
        bar, margin = drawn.data[0].colorbar, drawn.layout.margin
        wide = (390 - 2 * 12 - margin.l - margin.r) * (1 if bar.len is None else bar.len)
        apart = np.diff(bar.tickvals).min() / 2 * wide
        assert apart > 24, farthest  # pixels of "+20"


@pytest.mark.long
def test_a_map_shows_one_figure_and_healthy_cells_stay_pale(
    faulty: tuple[Probed, pl.DataFrame, dict[str, Look]],
) -> None:
    campaign, beside, drawn = faulty
    found = maps(beside, campaign.gpus, drawn)
    probes = beside.drop_nulls("time")["workload"].unique(maintain_order=True).to_list()
    assert list(found)[: len(probes)] == [f"time: {probe}" for probe in probes]
    assert [name.partition(":")[0] for name in list(found)[len(probes) :]] == ["power", "SM clock", "temperature"]
    grid = Grid.of(campaign.gpus)
    times = dict(beside.filter(pl.col("workload") == "pagerank").select("gpu", "slower_pct").iter_rows())
    heat: Any = found["time: pagerank"].data[0]
    shown = {gpu: float(heat.z[row][column]) for gpu, (row, column) in grid.cell.items()}
    for gpu, value in times.items():
        assert math.copysign(1, shown[gpu]) == math.copysign(1, value) or abs(value) < 0.01
        row, column = grid.cell[gpu]
        assert heat.text[row][column] == f"{grid.name[gpu]}<br>{signed(value)} %"
    assert min(shown.values()) < 0 < max(shown.values()), "the median is in the middle"
    slow = max(times, key=lambda gpu: times[gpu])
    assert slow in drawn
    assert all(abs(shown[gpu]) < 0.45 for gpu in times if abs(times[gpu]) < 3)
    every = {tuple(figure.data[0].colorbar.tickvals) for name, figure in found.items() if name.startswith("time")}
    assert every == {tuple(heat.colorbar.tickvals)}, "all times have the same colours"
    marked = {text.split("<br>")[0] for trace in found["time: pagerank"].data[1:-1] for text in trace.text}
    assert marked == {grid.name[gpu] for gpu in drawn}
    labelled = found["time: pagerank"].data[-1].text
    assert set(labelled) == set(campaign.gpus["node"])


def test_colours_do_not_saturate_before_the_farthest_gpu() -> None:
    assert shade(45.0, 45.0) == -shade(-45.0, 45.0) == 1
    assert 0 == shade(0, 45.0) < shade(1, 45.0) < shade(3, 45.0) < 0.25 < shade(20, 45.0) < 1


def test_gpus_without_a_figure_are_a_gap_and_their_mark_says_so(
    faulty: tuple[Probed, pl.DataFrame, dict[str, Look]],
) -> None:
    campaign, beside, drawn = faulty
    lost = next(iter(drawn))
    found = maps(beside.filter(pl.col("gpu") != lost), campaign.gpus, drawn)["time: pagerank"]
    row, column = Grid.of(campaign.gpus).cell[lost]
    assert math.isnan(found.data[0].z[row][column])
    assert any("<br>n/a<br>" in text for trace in found.data[1:-1] for text in trace.text)


def test_boxes_are_the_quantiles_of_a_place_and_the_slowest_comes_first(
    faulty: tuple[Probed, pl.DataFrame, dict[str, Look]],
) -> None:
    campaign, beside, drawn = faulty
    level = level_of(beside)
    assert level == ("cabinet" if campaign.gpus["cabinet"].n_unique() > 2 else "node")
    rows = beside.filter(pl.col("workload") == "pagerank")
    quantiles = by_place(beside, level).filter(pl.col("workload") == "pagerank")
    assert quantiles["n"].sum() == rows.height
    for place, n, own in quantiles.select("place", "n", "slower_pct").iter_rows():
        mine = rows.filter(pl.col(level) == place)["slower_pct"].to_list()
        assert (n, own[2]) == (len(mine), pytest.approx(statistics.median(mine)))
        assert own == pytest.approx(list(np.quantile(mine, (0.05, 0.25, 0.5, 0.75, 0.95))))
    middles = quantiles["slower_pct"].list.get(2).to_list()
    assert middles == sorted(middles, reverse=True)

    names = dict(campaign.gpus.select("gpu", "name").iter_rows())
    figure = places(quantiles, rows, level, names, drawn)
    boxes = [trace for trace in figure.data if trace.type == "box"]
    assert len(boxes) == len(PLACED)
    assert list(boxes[0].x) == list(figure.layout.xaxis.categoryarray) == quantiles["place"].to_list()
    assert list(boxes[0].median) == pytest.approx(middles, abs=0.01)
    bottom, top = figure.layout.yaxis.range
    marks = [trace for trace in figure.data if trace.name and trace.yaxis == "y"]
    assert {text.split("<br>")[0] for trace in marks for text in trace.text} == {names[gpu] for gpu in drawn}
    assert all(bottom < value < top for trace in marks for value in trace.y), "one far out is drawn at the edge"
    slow = rows.sort("slower_pct").row(-1, named=True)
    assert any(f"{names[slow['gpu']]}<br>{slow['slower_pct']:,.1f} %" in text for one in marks for text in one.text)


def test_places_that_are_too_many_are_cut_and_figures_that_nobody_has_are_left_out(
    faulty: tuple[Probed, pl.DataFrame, dict[str, Look]],
) -> None:
    one = faulty[1].filter(pl.col("workload") == "pagerank").with_columns(pl.lit(None, pl.Float64).alias("power_w"))
    nodes = pl.Series([f"n{place:03d}" for place in range(one.height)])
    many = one.with_columns(nodes.alias("node"))
    figure = places(by_place(many, "node"), many, "node", {}, {})
    boxes = [trace for trace in figure.data if trace.type == "box"]
    assert len(boxes) == len(PLACED) - 1
    slowest = many.sort("slower_pct", descending=True)["node"].to_list()
    assert set(boxes[0].x) == {*slowest[: PLACES // 2], *slowest[-PLACES // 2 :]}


def test_points_are_at_their_power_and_those_with_findings_are_never_left_out(
    faulty: tuple[Probed, pl.DataFrame, dict[str, Look]],
) -> None:
    campaign, beside, drawn = faulty
    names = dict(campaign.gpus.select("gpu", "name").iter_rows())
    rows = beside.filter(pl.col("workload") == "pagerank")
    unknown = next(gpu for gpu in rows["gpu"] if gpu not in drawn)
    watts = pl.when(pl.col("gpu") != unknown).then(pl.col("power_w")).alias("power_w")
    at_power = Powered.of(rows.with_columns(watts))
    labels = [names[gpu] for gpu in rows["gpu"]]
    numbers = {row: drawn[gpu] for row, gpu in enumerate(rows["gpu"]) if gpu in drawn}
    calm, *marked = against_power(at_power, labels, numbers).data
    assert len(calm.x) == rows.height - len(drawn) - 1, "a power that is not known is not drawn as 0"
    assert {text.split("<br>")[0] for trace in marked for text in trace.text} == {names[gpu] for gpu in drawn}
    at = {text.split("<br>")[0]: (x, y) for x, y, text in zip(calm.x, calm.y, calm.text, strict=True)}
    for gpu, power, slower in rows.select("gpu", "power_w", "slower_pct").iter_rows():
        if gpu not in drawn and gpu != unknown:
            x, y = at[names[gpu]]
            assert (x, at_power.scale.unbend(y)) == pytest.approx((power, slower), abs=0.06)

    many = pl.concat([rows.with_columns(pl.col("gpu") + f"-{copy}") for copy in range(20)])
    drawn_many = against_power(Powered.of(many), many["gpu"].to_list(), {7: Look("red", "x", "hot")})
    assert [len(trace.x) for trace in drawn_many.data] == [POINTS, 1]
    live = against_power(Powered.of(many), many["gpu"].to_list(), {7: Look("red", "x", "hot")}, [3], live=True).data
    assert len(live[0].x) == many.height
    assert live[0].text is None, "a page looks names up"
    assert live[1].text == (many["gpu"][3],)


def test_figures_that_hardly_differ_look_like_that(faulty: tuple[Probed, pl.DataFrame, dict[str, Look]]) -> None:
    rows = faulty[1].filter(pl.col("workload") == "pagerank").with_columns(pl.lit(1530.0).alias("sm_clock_mhz"))
    low, high = places(by_place(rows, "node"), rows, "node", {}, {}).layout.yaxis2.range
    assert low < 1520 < 1540 < high


def test_a_trend_shows_the_fleet_its_interval_and_the_gpus_that_were_asked_for(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 16, kinds=("pinned",), telemetry=False)
    later = BEGAN_NS + 86_400 * 10**9
    stored(tmp_path, 16, kinds=("pinned",), telemetry=False, campaign="made-2", began_ns=later, into=store)
    found = trend_of(store, CLUSTER, "gemm-fp32")
    assert found is not None
    found = replace(found, periods=found.periods.with_columns(pl.col("period").replace("made-2", "<b>2")))
    gpu = found.gpus["gpu"][3]
    figure = over_campaigns(found, [gpu, "nobody"], {gpu: "n1/0"})
    *bands, median, own = figure.data
    assert [band.name for band in bands] == ["90 % of the GPUs", "half of the GPUs"]
    low, high, n = found.periods.row(1, named=True)["low"], found.periods.row(1, named=True)["high"], 16
    assert median.text[1].startswith("&lt;b&gt;2: median ")
    assert f"[{signed(low)}, {signed(high)}]<br>n = {n} GPUs, 16 runs" in median.text[1]
    assert all(value > 0 for value in (*median.error_y.array, *median.error_y.arrayminus))
    assert own.name == "n1/0"
    slower = found.of(str(gpu))["slower_pct"].to_list()
    assert [f"{signed(value)} %" in text for value, text in zip(slower, own.text, strict=True)] == [True, True]
    assert "n = 1 run" in own.text[0]
    assert all(value > 0 for value in own.error_y.array), "two campaigns of one run tell how they differ"
    alone = replace(found, gpus=found.gpus.with_columns(low=pl.lit(None, pl.Float32), high=pl.lit(None, pl.Float32)))
    assert set(over_campaigns(alone, [gpu], {}).data[-1].error_y.array) == {0.0}, "nothing tells it"
    assert list(figure.layout.xaxis.ticktext) == ["made-1", "&lt;b&gt;2"]
    dated = over_campaigns(replace(found, by="day"), [gpu], {}).layout.xaxis
    assert (dated.title.text, dated.automargin) == ("UTC", True), "slanted dates on a phone are not cut"
    page = "".join(map(str, over_all_campaigns([found], {}, {})[0].figures))
    assert page == "gemm-fp32"


def test_a_figure_without_points_says_so_and_shows_no_numbers() -> None:
    rows = pl.DataFrame({"power_w": [None, None], "slower_pct": [0.0, 1.0]}, schema_overrides={"power_w": pl.Float64})
    drawn = against_power(Powered.of(rows), ["a", "b"], {}, live=True)
    assert [one.text for one in drawn.layout.annotations] == ["n/a: no run has both a time and a power"]
    assert drawn.layout.xaxis.visible is drawn.layout.yaxis.visible is False
    known = against_power(Powered.of(rows.with_columns(power_w=pl.Series([100.0, 110.0]))), ["a", "b"], {}, live=True)
    assert not known.layout.annotations
    assert known.layout.xaxis.visible is True


def test_around_a_single_time_an_axis_shows_half_a_day_and_no_milliseconds() -> None:
    noon = datetime(2026, 11, 1, 12)  # noqa: DTZ001  as times in tables
    assert room([noon, noon]) == {"range": [datetime(2026, 11, 1), datetime(2026, 11, 2)]}  # noqa: DTZ001
    assert room([noon, datetime(2026, 11, 2)]) == room([]) == {}  # noqa: DTZ001


def _of_names(named: str) -> list[Figure]:
    """Figures with this name in them."""
    one = Against(named, ("a", "b", "c"), (named, "b", "c"), np.array([-1.0, 0.0, 90.0]), 1.0)
    quantiles = pl.DataFrame({"workload": ["p"], "place": [named], "n": [3]}).with_columns(
        *(pl.Series(name, [[1.0, 2.0, 3.0, 4.0, 5.0]]) for name in PLACED)
    )
    rows = pl.DataFrame({"gpu": ["a"], "node": [named], **{name: [1.0] for name in PLACED}})
    look = {"a": Look("#000", "star", "slow")}
    times = np.arange(4.0)
    own = {"power_w": times, "sm_clock_mhz": times, "temperature_c": times}
    lines = Timelines(1.0, times, {"a": own}, {"a": own}, {"a": (Window(named, 0.0, 2.0),)}, 2)
    return [
        overview([one], look),
        closely(one, look),
        places(quantiles, rows, "node", {"a": named}, look),
        over_time(lines, "a", named),
    ]


def test_names_in_figures_of_the_report_stay_text() -> None:
    for drawn in _of_names("<u>x</u><br><a href='https://evil.example'>y</a>"):
        said = json.dumps(drawn.to_plotly_json(), default=list)
        assert "&lt;u&gt;" in said
        assert "<u>" not in said


def test_a_figure_is_the_same_whether_plotly_checks_it_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [Scatter(x=[1], y=[2], mode="lines", wrong=3)]
    with pytest.raises(ValueError, match="wrong"):
        figure_of(wrong, {})
    ours = [json.loads(str(drawn.to_json())) for drawn in _of_names("n1")]
    monkeypatch.setattr(drawing, "checked", False)
    readers = [json.loads(str(drawn.to_json())) for drawn in _of_names("n1")]
    for one in (*ours, *readers):  # what is empty is left out, or filled with nothing, where a figure is checked
        one["layout"] = {name: value for name, value in one["layout"].items() if value != [] and name != "template"}
    assert readers == ours
    assert figure_of(wrong, {}).to_plotly_json()["data"] == wrong
