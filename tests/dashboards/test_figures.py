"""Figures say what the store holds: the map, places beside each other, time against power."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.fleet.side_by_side import Against, runs_of, side_by_side
from whorl.analysis.fleet.timelines import Timelines, Window, trend
from whorl.analysis.runs.probing import Probed, probed
from whorl.analysis.verdicts.judge import judged
from whorl.dashboards.documents.fleet import cells_of
from whorl.dashboards.figures import drawing
from whorl.dashboards.figures.drawing import Look, Scatter, figure_of, looks
from whorl.dashboards.figures.fleet import (
    POINTS,
    Marks,
    Powered,
    against_power,
    closely,
    over_campaigns,
    over_time,
    overview,
    signed,
)
from whorl.dashboards.figures.machine import Grid, heat_map, maps, picture, shade
from whorl.dashboards.style import room
from whorl.tests.probed_fleet import BEGAN_NS, CLUSTER, stored

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


Faulty = tuple[Probed, pl.DataFrame, dict[str, Look]]
"""A campaign, its GPUs side by side, and the looks of those with findings."""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    store, _ = stored(tmp_path_factory.mktemp("figures") / "s", 64, 3, kinds=("pinned", "slow_memory"))
    campaign = probed(store)
    return campaign, side_by_side(campaign), looks(judged(campaign, store).by_key(campaign.gpus))


def test_the_numbers_of_a_map_have_room_on_a_phone() -> None:
    gpus = pl.DataFrame({"gpu": ["a", "b"], "name": ["a", "b"], "node": ["n", "n"], "cabinet": ["c", "c"]})
    for farthest in (5.0, 22.0, 45.6, 50.0):
        figure = heat_map(Grid.of(gpus), {"a": 0.0, "b": farthest}, "slower, %", "%", {}, end=farthest)
        bar, margin = figure.data[0].colorbar, figure.layout.margin
        wide = (390 - 2 * 12 - margin.l - margin.r) * (1 if bar.len is None else bar.len)
        apart = np.diff(bar.tickvals).min() / 2 * wide
        assert apart > 24, farthest  # pixels of "+20"


def test_cabinets_are_blocks_whose_nodes_line_up_and_gpus_of_no_known_node_have_a_block_of_their_own() -> None:
    nodes = [(cabinet, node) for cabinet in range(3) for node in range(5)]
    rows: list[Any] = [
        (f"g{cabinet}{node}{slot}", f"n{node}", f"c{cabinet}") for cabinet, node in nodes for slot in "0123"
    ]
    rows += [("x", None, None), ("y", "n9", None)]
    columns = ["gpu", "node", "cabinet"]
    grid = Grid.of(pl.DataFrame(rows, schema=columns, orient="row").with_columns(slot=pl.lit(0)))
    assert grid.gpus == len(rows)
    for node in range(5):
        assert len({grid.cell[f"g{cabinet}{node}0"][0] for cabinet in range(3)}) == 1
    assert [grid.cell[f"g0{node}0"][1] for node in range(5)] == [0] * 5
    assert [name for name, _, _ in grid.blocks] == ["c0", "c1", "c2", "unknown"]
    summit = [(f"{gpu}", f"n{gpu // 6}", f"c{gpu // 108:03}") for gpu in range(27_648)]
    large = Grid.of(pl.DataFrame(summit, schema=columns, orient="row").with_columns(name=pl.col("gpu"), slot=0))
    all_cells = picture(large, {"100": Look("#d55e00", "star", "hot")})
    assert len(all_cells.svg) < 15_000, "cabinets with nothing found are a rectangle each"
    assert 1.5 < large.columns / large.rows < 4
    alone = Grid.of(pl.DataFrame([("a", None, None)], schema=columns, orient="row").with_columns(slot=0))
    assert (alone.gpus, picture(alone, {}).svg.count("M")) == (1, 1)
    no_cabinets = Grid.of(pl.DataFrame(summit, schema=columns, orient="row").with_columns(cabinet=None, slot=0))
    assert [machine.by_cabinet for machine in (grid, large, alone, no_cabinets)] == [True, True, False, False]
    assert (cells_of(large).endswith("a block a cabinet"), cells_of(no_cabinets).endswith("a row a node")) == (
        True,
        True,
    )


def test_a_picture_marks_and_names_the_odd_gpus_and_tells_who_was_not_judged() -> None:
    rows = [(f"g{slot}", "n", "c") for slot in range(4)]
    gpus = pl.DataFrame(rows, schema=["gpu", "node", "cabinet"], orient="row").with_columns(name=pl.col("gpu"))
    all_cells = picture(Grid.of(gpus), {"g1": Look("#d55e00", "star", "hot")}, {"g0": True, "g1": True, "g2": False})
    assert [name for name, _ in all_cells.legend] == ["nothing found", "not judged", "hot"]
    paths = [path.count("M") for path in re.findall(r" d='([^']*)'", all_cells.svg)]
    assert (paths, all_cells.svg.count("<use")) == ([2, 2], 1), "two cells judged, two not, a mark"
    assert [(label.text, label.gpu) for label in all_cells.labels if label.gpu] == [("g1", "g1")]


@pytest.mark.long
def test_a_map_shows_one_figure_and_healthy_cells_stay_pale(faulty: Faulty) -> None:
    campaign, beside, drawn = faulty
    drawn_figures = maps(beside, Grid.of(campaign.gpus), drawn)
    probes = beside.drop_nulls("time")["workload"].unique(maintain_order=True).to_list()
    assert list(drawn_figures)[: len(probes)] == [f"time: {probe}" for probe in probes]
    assert [name.partition(":")[0] for name in list(drawn_figures)[len(probes) :]] == [
        "power",
        "SM clock",
        "temperature",
    ]
    grid = Grid.of(campaign.gpus)
    times = dict(beside.filter(pl.col("workload") == "pagerank").select("gpu", "slower_pct").iter_rows())
    heat: Any = drawn_figures["time: pagerank"].data[0]
    displayed = {gpu: float(heat.z[row][column]) for gpu, (row, column) in grid.cell.items()}
    for gpu, value in times.items():
        assert math.copysign(1, displayed[gpu]) == math.copysign(1, value) or abs(value) < 0.01
        row, column = grid.cell[gpu]
        assert heat.text[row][column] == f"{grid.name[gpu]}<br>{signed(value)} %"
    assert min(displayed.values()) < 0 < max(displayed.values()), "the median is in the middle"
    slow = max(times, key=lambda gpu: times[gpu])
    assert slow in drawn
    assert all(abs(displayed[gpu]) < 0.45 for gpu in times if abs(times[gpu]) < 3)
    all_gpus = {
        tuple(figure.data[0].colorbar.tickvals) for name, figure in drawn_figures.items() if name.startswith("time")
    }
    assert all_gpus == {tuple(heat.colorbar.tickvals)}, "all times have the same colours"
    marked = {text.split("<br>")[0] for trace in drawn_figures["time: pagerank"].data[1:] for text in trace.text}
    assert marked == {grid.name[gpu] for gpu in drawn}


def test_colours_do_not_saturate_before_the_farthest_gpu() -> None:
    assert shade(45.0, 45.0) == -shade(-45.0, 45.0) == 1
    assert 0 == shade(0, 45.0) < shade(1, 45.0) < shade(3, 45.0) < 0.25 < shade(20, 45.0) < 1


def test_gpus_without_a_figure_are_a_gap_and_their_mark_says_so(faulty: Faulty) -> None:
    campaign, beside, drawn = faulty
    lost, grid = next(iter(drawn)), Grid.of(campaign.gpus)
    drawn_figures = maps(beside.filter(pl.col("gpu") != lost), grid, drawn)["time: pagerank"]
    row, column = grid.cell[lost]
    assert math.isnan(drawn_figures.data[0].z[row][column])
    assert any("<br>n/a<br>" in text for trace in drawn_figures.data[1:] for text in trace.text)


def test_points_are_at_their_power_and_those_with_findings_are_never_left_out(faulty: Faulty) -> None:
    campaign, beside, drawn = faulty
    names = dict(campaign.gpus.select("gpu", "name").iter_rows())
    rows = beside.filter(pl.col("workload") == "pagerank")
    unknown = next(gpu for gpu in rows["gpu"] if gpu not in drawn)
    watts = pl.when(pl.col("gpu") != unknown).then(pl.col("power_w")).alias("power_w")
    at_power = Powered.of(rows.with_columns(watts))
    labels = [names[gpu] for gpu in rows["gpu"]]
    numbers = {row: drawn[gpu] for row, gpu in enumerate(rows["gpu"]) if gpu in drawn}
    calm, *marked = against_power(at_power, Marks(labels, numbers)).data
    assert len(calm.x) == rows.height - 1, "a power that is not known is not drawn as 0"
    assert {text.split("<br>")[0] for trace in marked for text in trace.text} == {names[gpu] for gpu in drawn}
    at = {text.split("<br>")[0]: (x, y) for x, y, text in zip(calm.x, calm.y, calm.text, strict=True)}
    for gpu, power, slower in rows.select("gpu", "power_w", "slower_pct").iter_rows():
        if gpu not in drawn and gpu != unknown:
            x, y = at[names[gpu]]
            assert (x, at_power.scale.unbend(y)) == pytest.approx((power, slower), abs=0.06)

    frame = pl.concat([rows.with_columns(pl.col("gpu") + f"-{copy}") for copy in range(20)])
    drawn_many = against_power(Powered.of(frame), Marks(frame["gpu"].to_list(), {7: Look("red", "x", "hot")}))
    assert [len(trace.x) for trace in drawn_many.data] in ([POINTS, 1], [POINTS + 1, 1])
    on_page = Marks(frame["gpu"].to_list(), {7: Look("red", "x", "hot")}, live=True, picked=[3])
    live = against_power(Powered.of(frame), on_page).data
    assert len(live[0].x) == frame.height
    assert live[0].text is None, "a page looks names up"
    assert live[1].text == (frame["gpu"][3],)


def test_a_trend_shows_the_fleet_its_interval_and_the_gpus_that_were_asked_for(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "s", 16, kinds=("pinned",), telemetry=False)
    later = BEGAN_NS + 86_400 * 10**9
    stored(tmp_path, 16, kinds=("pinned",), telemetry=False, campaign="made-2", began_ns=later, into=store)
    drawn_figures = trend(runs_of(store, CLUSTER, "gemm-fp32"))
    assert drawn_figures is not None
    drawn_figures = replace(
        drawn_figures, periods=drawn_figures.periods.with_columns(pl.col("period").replace("made-2", "<b>2"))
    )
    gpu = drawn_figures.gpus["gpu"][3]
    figure = over_campaigns(drawn_figures, [gpu, "nobody"], {gpu: "n1/0"})
    *bands, median, of_gpu = figure.data
    assert [band.name for band in bands] == ["90 % of the GPUs", "half of the GPUs"]
    low, high, n = drawn_figures.periods.row(1, named=True)["low"], drawn_figures.periods.row(1, named=True)["high"], 16
    assert median.text[1].startswith("&lt;b&gt;2: median ")
    assert f"[{signed(low)}, {signed(high)}]<br>n = {n} GPUs, 16 runs" in median.text[1]
    assert all(value > 0 for value in (*median.error_y.array, *median.error_y.arrayminus))
    assert of_gpu.name == "n1/0"
    slower = drawn_figures.of(str(gpu))["slower_pct"].to_list()
    assert [f"{signed(value)} %" in text for value, text in zip(slower, of_gpu.text, strict=True)] == [True, True]
    assert "n = 1 run" in of_gpu.text[0]
    assert all(value > 0 for value in of_gpu.error_y.array), "two campaigns of one run tell how they differ"
    alone = replace(
        drawn_figures, gpus=drawn_figures.gpus.with_columns(low=pl.lit(None, pl.Float32), high=pl.lit(None, pl.Float32))
    )
    assert set(over_campaigns(alone, [gpu], {}).data[-1].error_y.array) == {0.0}, "nothing tells it"
    assert list(figure.layout.xaxis.ticktext) == ["made-1", "&lt;b&gt;2"]
    dated = over_campaigns(replace(drawn_figures, by="day"), [gpu], {}).layout.xaxis
    assert (dated.title.text, dated.automargin) == ("UTC", True), "slanted dates on a phone are not cut"


def test_a_figure_without_points_says_so_and_shows_no_numbers() -> None:
    rows = pl.DataFrame({"power_w": [None, None], "slower_pct": [0.0, 1.0]}, schema_overrides={"power_w": pl.Float64})
    drawn = against_power(Powered.of(rows), Marks(["a", "b"], {}, live=True))
    assert [annotation.text for annotation in drawn.layout.annotations] == ["n/a: no run has both a time and a power"]
    assert drawn.layout.xaxis.visible is drawn.layout.yaxis.visible is False
    with_values = against_power(
        Powered.of(rows.with_columns(power_w=pl.Series([100.0, 110.0]))), Marks(["a", "b"], {}, live=True)
    )
    assert not with_values.layout.annotations
    assert with_values.layout.xaxis.visible is True


def test_around_a_single_time_an_axis_shows_half_a_day_and_no_milliseconds() -> None:
    noon = datetime(2026, 11, 1, 12)  # noqa: DTZ001  as times in tables
    assert room([noon, noon]) == {"range": [datetime(2026, 11, 1), datetime(2026, 11, 2)]}  # noqa: DTZ001
    assert room([noon, datetime(2026, 11, 2)]) == room([]) == {}  # noqa: DTZ001


def _of_names(names: str) -> list[Figure]:
    """Figures with this name in them."""
    against = Against(names, ("a", "b", "c"), (names, "b", "c"), np.array([-1.0, 0.0, 90.0]), 1.0)
    look = {"a": Look("#000", "star", "slow")}
    times = np.arange(4.0)
    of_gpu = {"power_w": times, "sm_clock_mhz": times, "temperature_c": times}
    lines = Timelines(1.0, times, {"a": of_gpu}, {"a": of_gpu}, {"a": (Window(names, 0.0, 2.0),)}, 2)
    return [overview([against], look), closely(against, look), over_time(lines, "a", names)]


def test_names_in_figures_of_the_report_stay_text() -> None:
    for drawn in _of_names("<u>x</u><br><a href='https://evil.example'>y</a>"):
        text = json.dumps(drawn.to_plotly_json(), default=list)
        assert "&lt;u&gt;" in text
        assert "<u>" not in text


def test_a_figure_is_the_same_whether_plotly_checks_it_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [Scatter(x=[1], y=[2], mode="lines", wrong=3)]
    with pytest.raises(ValueError, match="wrong"):
        figure_of(wrong, {})
    checked = [json.loads(str(drawn.to_json())) for drawn in _of_names("n1")]
    monkeypatch.setattr(drawing, "checked", False)
    readers = [json.loads(str(drawn.to_json())) for drawn in _of_names("n1")]
    for row in (*checked, *readers):  # what is empty is left out, or filled with nothing, where a figure is checked
        row["layout"] = {name: value for name, value in row["layout"].items() if value != [] and name != "template"}
    assert readers == checked
    assert figure_of(wrong, {}).to_plotly_json()["data"] == wrong
