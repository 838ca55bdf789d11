"""Figures say what the store holds: the map, centred on the median."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest

from whorl.analysis.fleet import side_by_side
from whorl.analysis.probing import Probed, probed
from whorl.analysis.verdicts import judged
from whorl.dashboards.figures.looks import Look, looks
from whorl.dashboards.figures.map import Grid, maps, shade
from whorl.tests.probed_fleet import stored


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Probed, pl.DataFrame, dict[str, Look]]:
    store, _ = stored(tmp_path_factory.mktemp("figures") / "s", 64, 3, kinds=("pinned", "slow_memory"))
    campaign = probed(store)
    return campaign, side_by_side(campaign), looks(judged(campaign, store).by_key(campaign.gpus))


def test_figures_beside_each_other_are_those_of_the_runs(faulty: tuple[Probed, pl.DataFrame, dict[str, Look]]) -> None:
    campaign, beside, _ = faulty
    assert beside["workload"].unique(maintain_order=True).to_list() == [
        probe for probe in campaign.probes if probe in set(campaign.sound["workload"])
    ]
    one = beside.row(by_predicate=(pl.col("workload") == "pagerank") & (pl.col("gpu") == beside["gpu"][7]), named=True)
    peers = (
        campaign.sound.filter(pl.col("workload") == "pagerank")
        .group_by("gpu")
        .agg(pl.col("value", "power_w", "temperature_c").median())
    )
    mine = peers.row(by_predicate=pl.col("gpu") == one["gpu"], named=True)
    for name, own, called in (("value", "time", "slower_pct"), ("power_w", "power_w", "power_pct")):
        middle = peers[name].median()
        assert isinstance(middle, float)
        assert one[own] == pytest.approx(mine[name])
        assert one[called] == pytest.approx(100 * (mine[name] / middle - 1))
    assert one["hotter_c"] == pytest.approx(mine["temperature_c"] - peers["temperature_c"].median())


def test_a_map_shows_one_figure_and_healthy_cells_stay_pale(
    faulty: tuple[Probed, pl.DataFrame, dict[str, Look]],
) -> None:
    campaign, beside, drawn = faulty
    found = maps(beside, campaign.gpus, drawn)
    probes = beside["workload"].unique(maintain_order=True).to_list()
    assert list(found)[: len(probes)] == [f"time: {probe}" for probe in probes]
    assert [name.partition(":")[0] for name in list(found)[len(probes) :]] == ["power", "SM clock", "temperature"]
    grid = Grid.of(campaign.gpus)
    times = dict(beside.filter(pl.col("workload") == "pagerank").select("gpu", "slower_pct").iter_rows())
    heat: Any = found["time: pagerank"].data[0]
    shown = {gpu: float(heat.z[row][column]) for gpu, (row, column) in grid.cell.items()}
    for gpu, value in times.items():
        assert math.copysign(1, shown[gpu]) == math.copysign(1, value) or abs(value) < 0.01
        row, column = grid.cell[gpu]
        assert heat.text[row][column] == f"{grid.name[gpu]}<br>{value:+.2f} %"
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
