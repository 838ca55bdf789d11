"""The page Fleet without a browser: what a brush holds, what is said of it, how much is sent of a large fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from plotly.utils import PlotlyJSONEncoder

from whorl.analysis.fleet.side_by_side import Beside, Comparable, Work, comparable
from whorl.analysis.verdicts import Judgement, Kind, Level, State, Verdict
from whorl.analysis.verdicts.verdict import Action
from whorl.dashboards.app import fleet as page
from whorl.dashboards.app.brush import MAP, POWER, STRIPS, FleetChoice, FleetView, placed
from whorl.dashboards.app.fleet import brush_line, compared, problems_of, rounded, tip
from whorl.dashboards.app.grid import MOST
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.shell import make_app
from whorl.dashboards.app.state import State as Address
from whorl.dashboards.app.state import parse
from whorl.dashboards.figures import fleet as figures
from whorl.dashboards.figures.drawing import Look, Scale
from whorl.dashboards.figures.fleet import GPU_FIGURES, Marks, Strips, signed, strips
from whorl.dashboards.figures.machine import Grid
from whorl.tests.dashboards.asking import Asked
from whorl.tests.probed_fleet import stored

MOST_BYTES = 1_500_000
STORE = Path("my fleet")
HOSTILE = "<img src=x onerror=alert(1)>"
_COLUMNS = ("time", "slower_pct", "power_w", "power_pct", "sm_clock_mhz", "clock_pct", "temperature_c", "hotter_c")


def _verdict(name: str) -> Verdict:
    return Verdict(
        Level.GPU, name, (name,), "c", None, ("w",), Kind.SLOW, State.CONFIRMED, 5.0, 4.0, 6.0, None, None, None, (),
        None, None, (), Action.RUN_FULL_SUITE,
    )  # fmt: skip


def _view(gpus: int, slow: int = 1) -> FleetView:
    """GPUs on nodes of six and cabinets of eighteen nodes; one has no run, and one name is HTML."""
    random = np.random.default_rng(1)
    number = np.arange(gpus)
    values = {name: random.normal(0 if name.endswith(("pct", "_c")) else 300, 2, gpus) for name in _COLUMNS}
    names = pl.Series([HOSTILE, *(f"n{row // 6:04}/{row % 6}" for row in range(1, gpus))])
    rows = pl.DataFrame(
        {
            "gpu": [f"GPU-{row:08x}-0000-4000-8000-{row:012x}" for row in number],
            "name": names,
            "label": names,
            "node": [f"n{row // 6:04}" for row in number],
            "cabinet": [f"r{row // 108:03}" for row in number],
            "slot": number % 6,
            "model": ["V100"] * gpus,
            "n": [0, *[20] * (gpus - 1)],
            "sittings": [0, *[5] * (gpus - 1)],
            **{
                f"{name}{end}": of_gpu + by
                for name, of_gpu in values.items()
                for end, by in (("", 0), ("_low", -1), ("_high", 1))
            },
        }
    ).with_columns(pl.when(pl.col("n") > 0).then(pl.col(pl.Float64).cast(pl.Float32)))
    choice = FleetChoice(Comparable("c", (Work("w", gpus),), ()), ("c",), "w", None, GPU_FIGURES[0], GPU_FIGURES, None)
    verdicts = tuple(_verdict(name) for name in names[1 : 1 + slow])
    comparison = Beside(rows, 20 * gpus, None, None, ())
    return placed(choice, comparison, Grid.of(rows), Judgement("c", verdicts, (), gpus, 1))


@pytest.fixture(scope="module")
def small() -> FleetView:
    return _view(432)


def _texts(component: Any) -> list[str]:
    """All text of a component."""
    if isinstance(component, list | tuple):
        return [text for part in component for text in _texts(part)]
    if component is None or isinstance(component, str | int | float):
        return [] if component is None else [str(component)]
    return _texts(getattr(component, "children", None))


@pytest.mark.long
def test_a_large_fleet_is_sent_in_little_more_than_a_megabyte_and_its_map_fits_a_screen() -> None:
    large = _view(27_648, slow=300)
    state = Address(brush=("strips:-1:400:-9:9",), gpu=tuple(large.rows["label"][1:100]))
    for address in (Address(), state):
        drawn = large.figures(address)
        assert sum(len(figure.data[0].y) for figure in drawn if figure.data[0].y is not None) == 2 * 27_648
        assert len(json.dumps(drawn, cls=PlotlyJSONEncoder)) < MOST_BYTES
    assert not any("n0009" in str(figure.to_json()) for figure in large.figures(Address())), "names are looked up"
    assert len(large.table(state)[0].rows) == MOST
    assert drawn[1].layout.height < 800
    assert len(set(large.grid.cell.values())) == 27_648


def test_each_figure_has_a_brush_and_they_hold_together(small: FleetView) -> None:
    at, bent = small.strips, small.strips.scale.bend
    inside = {"x": [-0.5, 0.5], "y": [float(bent(2.0)), float(bent(0.5))]}
    state = small.brushed(Address(gpu=("n0001/2",)), STRIPS, inside)
    assert parse(state.search())[0] == state
    assert state.gpu == ("n0001/2",)
    held = small.held(state)
    assert held is not None
    expected = (pl.col("cabinet") == at.places[0]) & pl.col("slower_pct").is_between(0.5, 2.0)
    assert small.rows.filter(held)["gpu"].to_list() == small.rows.filter(expected)["gpu"].to_list() != []
    state = small.brushed(Address(), MAP, {"x": [-0.4, 12.3], "y": [0.6, 2.2]})
    watts = {"x": [290.0, 310.0], "y": [float(small.powered.scale.bend(y)) for y in (-1.0, 1.0)]}
    state = small.brushed(state, POWER, watts)
    held = small.held(state)
    assert held is not None
    rows = small.rows.filter(held)
    assert rows.height
    assert rows["row"].is_between(1, 2).all()
    assert rows["column"].is_between(0, 12).all()
    assert rows["power_w"].is_between(290, 310).all()
    assert rows["slower_pct"].is_between(-1, 1).all()
    shapes = [len(figure.layout.shapes) for figure in small.figures(state)]
    assert shapes == [0, 1, 1]
    full = small.figures(state)[0].data[0].marker.color
    assert np.flatnonzero(full).tolist() == np.flatnonzero(held).tolist()
    again = small.brushed(state, POWER, {"x": [0, 1], "y": [0, 1]})
    assert len(again.brush) == 2, "a brush takes the place of the earlier one"
    for figure in (MAP, POWER):
        state = small.brushed(state, figure, None)
    assert state == Address()
    assert small.held(state) is None


def test_what_an_address_names_and_is_not_there_is_said(small: FleetView) -> None:
    state, _ = parse("?brush=strips:a:2:1:1&brush=room:1:2:1:2&brush=map:0:nan:1:2&gpu=nobody&gpu=n0001/2")
    assert [text in " ".join(problems_of(small, state)) for text in ("'strips:a", "'room:1", "'map:0", "'nobody'")] == [
        True
    ] * 4
    assert small.picked(state) == [8]
    assert small.held(state) is None
    small.figures(state)


def test_the_mouse_is_on_a_gpu(small: FleetView) -> None:
    row, column = small.grid.cell[small.rows["gpu"][17]]
    assert small.pointed(MAP, {"points": [{"x": column, "y": row, "curveNumber": 0}]}) == 17
    assert small.pointed(MAP, {"points": [{"x": 1e6, "y": 0}]}) is None
    assert small.pointed(STRIPS, {"points": [{"curveNumber": 0, "pointNumber": 5}]}) == 5
    assert small.pointed(POWER, {"points": [{"curveNumber": 3, "pointNumber": 0, "customdata": [7]}]}) == 7
    assert small.pointed(POWER, {"points": [{"curveNumber": 0, "pointNumber": 10**9}]}) is None
    assert small.pointed(POWER, None) is None


def test_the_pointer_says_figure_interval_and_n_and_names_are_no_markup(small: FleetView) -> None:
    gpu = small.rows.row(8, named=True)
    joined = " | ".join(_texts(tip(small, 8)))
    assert "n0001/2" in joined
    assert "{} (95 %: {} to {} %)".format(*(signed(gpu[f"slower_pct{end}"]) for end in ("", "_low", "_high"))) in joined
    assert "20 runs in 5 sittings" in joined
    assert "slow, confirmed" in " ".join(_texts(tip(small, 1)))
    unmeasured = " | ".join(_texts(tip(small, 0)))
    assert "n/a (95 %: n/a)" in unmeasured
    assert HOSTILE in unmeasured, "it is text: Dash escapes it"
    drawn = [
        strips(small.strips, Marks(small.rows["label"].to_list(), {0: small.looks[1]})),
        *small.figures(Address(gpu=(HOSTILE,))),
    ]
    texts = [str(figure.to_json()) for figure in drawn]
    assert "&lt;img" in texts[2]
    assert not any(HOSTILE in text for text in texts)


def test_strips_are_sorted_by_their_median_and_hold_every_gpu(small: FleetView) -> None:
    at = small.strips
    medians = dict(small.rows.group_by("cabinet").agg(pl.col("slower_pct").median()).iter_rows())
    assert [medians[place] for place in at.places] == sorted(medians.values(), reverse=True)
    assert np.isnan(at.y).sum() == 1, "the one that has no run"
    for row in (5, 120):
        place = at.places.index(small.rows["cabinet"][row])
        assert abs(at.x[row] - place) < 0.5
        assert at.scale.unbend(float(at.y[row])) == pytest.approx(small.rows["slower_pct"][row], rel=1e-3)
    low, high = small.figures(Address())[0].layout.yaxis.range
    assert low < np.nanmin(at.y) < np.nanmax(at.y) < high
    rows = pl.DataFrame({"node": [f"n{n}" for n in range(figures.STRIPS + 40)]})
    number = Strips.of(rows.with_columns(slower_pct=pl.int_range(pl.len()).cast(pl.Float64)), GPU_FIGURES[0], "node")
    assert (len(number.places), number.left_out, np.isnan(number.y).sum()) == (figures.STRIPS, 40, 40)
    assert (number.places[0], number.places[-1]) == (f"n{figures.STRIPS + 39}", "n0")


def test_a_report_draws_part_of_a_large_fleet_on_strips_whose_boxes_are_of_all_gpus() -> None:
    """Cabinets of 30 GPUs each: some points are drawn, those that stand out among them, and each box is of all 30."""
    n = 10 * figures.STRIP_POINTS
    slower = np.random.default_rng(1).normal(size=n)
    rows = pl.DataFrame({"cabinet": [f"c{gpu // 30}" for gpu in range(n)], "slower_pct": slower})
    strip = Strips.of(rows, GPU_FIGURES[0], "cabinet")
    on_strips = np.flatnonzero(np.isfinite(strip.y)).tolist()
    marked = [on_strips[1], on_strips[-2]]
    names = [f"gpu{gpu}" for gpu in range(n)]
    points, found, boxes = strips(strip, Marks(names, dict.fromkeys(marked, Look("red", "star", "hot")))).data
    assert figures.STRIP_POINTS <= len(points.y) <= figures.STRIP_POINTS + len(marked)
    assert {names[gpu] for gpu in marked} <= {text.partition("<br>")[0] for text in points.text}
    assert np.allclose(found.y, strip.y[marked])
    medians = dict(rows.group_by("cabinet").agg(pl.col("slower_pct").median()).iter_rows())
    assert np.allclose(
        strip.scale.values(np.array(boxes.median)), [medians[place] for place in strip.places], atol=1e-3
    )


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [-0.2, 0.1, 0.3], [-3.0, 2.0, 45.0], [1e-5], [4e4, -2.0]])
def test_a_scale_keeps_order_and_has_ticks(values: list[float]) -> None:
    scale = Scale.of(values)
    for value in values:
        assert scale.unbend(float(scale.bend(value))) == pytest.approx(value, abs=1e-9)
    axis = scale.axis(values, "x")
    low, high = axis["range"]
    assert all(low <= tick <= high for tick in axis["tickvals"])
    assert axis["tickvals"] == sorted(axis["tickvals"])
    assert "0" in axis["ticktext"]
    assert len(axis["tickvals"]) >= 3
    assert all(low < float(scale.bend(value)) < high for value in values)


def test_what_a_fleet_is_and_cannot_say_is_said(small: FleetView) -> None:
    assert "n = 431" in " ".join(_texts(compared(small, [], STORE)))
    numbers = [rounded(value, 3) for value in (8.7691, 290.3486, -2434.787, 66045.578, None)]
    assert numbers == ["8.769", "290.35", "−2,434.8", "66,046", "n/a"]
    unjudged = placed(small.choice, small.beside, small.grid, None)
    assert "whorl verdicts --store 'my fleet' --cluster c" in " ".join(_texts(compared(unjudged, [], STORE)))
    assert unjudged.rows["finding"].is_null().all()
    assert small.rows["finding"].to_list().count("none") == 431


def _links(line: list[Any]) -> dict[str, str]:
    text = json.dumps(line, cls=PlotlyJSONEncoder)
    hrefs = [part["props"]["href"] for part in json.loads(text)[0]["props"]["children"][1]["props"]["children"][:-1]]
    return {href.partition("?")[0]: href for href in hrefs}


def test_a_brush_leads_on_to_telemetry_and_placement(small: FleetView) -> None:
    state = Address(brush=("strips:-1:99:1:90",), cluster="c", probe="w")
    line = brush_line(small, state)
    assert "slower +1 to +90 %" in " ".join(_texts(line))
    links = _links(line)
    assert set(links) == {"telemetry", "placement"}
    handed = parse(links["telemetry"].partition("?")[2])[0]
    assert (handed.brush, handed.cluster) == ((), "c")
    held = small.held(state)
    assert held is not None
    slow = set(small.rows.filter(held)["name"])
    assert set(handed.gpu) <= slow
    assert len(handed.gpu) == min(50, len(slow))
    assert parse(_links(brush_line(small, Address(gpu=("n0001/2",))))["gpu"].partition("?")[2])[0].gpu == ("n0001/2",)
    assert _links(brush_line(small, Address(brush=("strips:-1:99:1e6:1e7",)))) == {}


@pytest.mark.long
def test_the_fields_follow_the_address_and_only_what_a_person_chooses_changes_it(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "store", 8, kinds=("pinned",))
    request = Asked(make_app(Reading(store)))
    first, second = (work.name for work in comparable(store)[0].works[:2])
    assert f'"{page.choice_id("probe")}": {{"value": "{second}"}}' in request.said(f"fleet?probe={second}")
    choices = {"cluster": comparable(store)[0].cluster, "probe": first, "figure": "time", "campaign": ""}
    values = {f"{page.choice_id(name)}.value": value for name, value in choices.items()}
    values["url.search"] = f"?probe={second}"
    (sentence,) = request.changed(values, f"{page.choice_id('cluster')}.value")
    assert sentence["response"] == {}, "the page sets one choice after the other"
    (chosen,) = request.changed(values, f"{page.choice_id('probe')}.value")
    assert chosen["response"]["url"]["search"] == f"?probe={first}"
