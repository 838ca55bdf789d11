"""The page Fleet without a browser: what a brush means, what is said of it, how much is sent of a large fleet."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from plotly.utils import PlotlyJSONEncoder

from whorl.analysis.fleet.side_by_side import Beside, Comparable, Range, Work, comparable
from whorl.analysis.verdicts import Judgement, Kind, Level, State, Verdict
from whorl.analysis.verdicts.verdict import Action
from whorl.dashboards.app.fleet import page as fleet_page
from whorl.dashboards.app.fleet import view as fleet_view
from whorl.dashboards.app.fleet.page import changed_figures, pointed, whole_figures
from whorl.dashboards.app.fleet.sentences import brush_line, compared, rounded, tip
from whorl.dashboards.app.fleet.view import Choice, View, brushed_state, edges, placed
from whorl.dashboards.app.grid import block
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.shell import make_app
from whorl.dashboards.app.state import State as Address
from whorl.dashboards.app.state import parse
from whorl.dashboards.figures.fleet import GPU_FIGURES, STRIPS, UNIT, Strips, find, signed, strips
from whorl.dashboards.figures.looks import Scale
from whorl.tests.dashboards.asking import Asked as Asked_
from whorl.tests.probed_fleet import stored

MOST_BYTES = 1_000_000
STORE = Path("my fleet")
HOSTILE = "<img src=x onerror=alert(1)>"
_COLUMNS = ("time", "slower_pct", "power_w", "power_pct", "sm_clock_mhz", "clock_pct", "temperature_c", "hotter_c")


def _verdict(name: str) -> Verdict:
    return Verdict(
        Level.GPU, name, (name,), "c", None, ("w",), Kind.SLOW, State.CONFIRMED, 5.0, 4.0, 6.0, None, None, None, (),
        None, None, (), Action.RUN_FULL_SUITE,
    )  # fmt: skip


def _view(gpus: int, figure: str = "time", slow: int = 1) -> View:
    """GPUs on nodes of six and cabinets of eighteen nodes; one has no run, and one name is HTML."""
    random = np.random.default_rng(1)
    number = np.arange(gpus)
    values = {name: random.normal(0 if name.endswith(("pct", "_c")) else 300, 2, gpus) for name in _COLUMNS}
    named = pl.Series([HOSTILE, *(f"n{one // 6:04}/{one % 6}" for one in range(1, gpus))])
    rows = pl.DataFrame(
        {
            "gpu": [f"GPU-{one:08x}-0000-4000-8000-{one:012x}" for one in number],
            "name": named,
            "label": named,
            "node": [f"n{one // 6:04}" for one in number],
            "cabinet": [f"r{one // 108:03}" for one in number],
            "slot": number % 6,
            "model": ["V100"] * gpus,
            "n": [0, *[20] * (gpus - 1)],
            "sittings": [0, *[5] * (gpus - 1)],
            **{
                f"{name}{end}": own + by
                for name, own in values.items()
                for end, by in (("", 0), ("_low", -1), ("_high", 1))
            },
        }
    ).with_columns(pl.when(pl.col("n") > 0).then(pl.col(pl.Float64).cast(pl.Float32)))
    works = (Work("w", gpus),)
    asked = Choice(Comparable("c", works, ()), ("c",), "w", None, find(GPU_FIGURES, figure), GPU_FIGURES, None, None)
    verdicts = tuple(_verdict(name) for name in named[1 : 1 + slow])
    return placed(asked, Beside(rows, 20 * gpus, None, None, ()), Judgement("c", verdicts, (), gpus, 1))


@pytest.fixture(scope="module")
def small() -> View:
    return _view(432)


@pytest.fixture(scope="module")
def large() -> View:
    return _view(27_648, slow=300)


def _bytes(sent: Any) -> int:
    return len(json.dumps(sent, cls=PlotlyJSONEncoder))


# -- a large fleet ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_large_fleet_is_sent_in_less_than_a_megabyte(large: View) -> None:
    names = large.names
    chosen = tuple(names[1:100])
    for state in (Address(), Address(range=(Range("slower_pct", -9.0, 9.0),), gpu=chosen)):
        held, picked = large.held(state), large.picked(state)
        whole = whole_figures(large, held, picked, state)
        assert sum(len(figure.data[0].y) for figure in whole if figure.data[0].y is not None) == 2 * 27_648
        assert _bytes(whole) + _bytes(compared(large, [], STORE)) < MOST_BYTES
        changed = [patch.to_plotly_json() for patch in changed_figures(large, held, picked, state)]
        assert _bytes(changed) < MOST_BYTES
    assert _bytes(changed) < _bytes(whole), "a change sends less than the figures"
    asked = {"startRow": 0, "endRow": 100, "sortModel": [{"colId": "slower_pct", "sort": "desc"}]}
    answer = block(fleet_page.table_rows(large, state), fleet_page.shown_columns(large), asked, "gpu")
    assert answer["rowCount"] == 27_647
    assert _bytes(answer) < 80_000
    drawn = whole_figures(large, None, [], Address())
    assert not any("n0001" in str(figure.to_json()) for figure in drawn), "names are looked up, not sent"


@pytest.mark.long
def test_a_large_map_fits_a_screen(large: View) -> None:
    figure = whole_figures(large, None, [], Address())[1]
    assert figure.layout.height < 800
    assert large.grid.rows <= 256
    assert len(large.grid.cell) == len(set(large.grid.cell.values())) == 27_648


# -- a brush ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", [0.5, -math.inf])
def test_a_brush_of_strips_is_a_range_and_places(low: float, small: View) -> None:
    at = small.strips
    ends = [float(at.scale.bend(max(low, -100.0))), float(at.scale.bend(2.0))]
    state = brushed_state(
        small, Address(gpu=("n0001/2",)), fleet_view.STRIPS, {"x": [-30, 0.2 * UNIT], "y": ends[::-1]}
    )
    (own,) = state.range
    assert own.column == "slower_pct"
    assert [own.low, own.high] == pytest.approx([low, 2.0])
    assert state.place == (f"cabinet:{at.places[0]}",)
    assert state.gpu == ("n0001/2",)
    assert parse(state.search())[0].place == state.place
    held = small.held(state)
    assert held is not None
    expected = (pl.col("cabinet") == at.places[0]) & (pl.col("slower_pct") >= low) & (pl.col("slower_pct") <= 2.0)
    assert held.sum() == small.rows.filter(expected).height > 0


def test_a_brush_over_many_strips_is_a_range_of_their_medians(large: View) -> None:
    places = large.strips.places[5:105]
    state = brushed_state(large, Address(), fleet_view.STRIPS, {"x": [4.8 * UNIT, 104.2 * UNIT], "y": [-5e4, 5e4]})
    assert state.place == ()
    assert [one.column for one in state.range] == ["cabinet_median"]
    held = large.held(parse(state.search())[0])
    assert held is not None
    assert set(large.rows.filter(held)["cabinet"]) == set(places)
    assert "cabinets with a median of" in " ".join(_texts(brush_line(large, state, held, [])))


def test_each_figure_has_its_own_brush_and_they_hold_together(small: View) -> None:
    slower = Range("slower_pct", 0.0, math.inf)
    state = Address(range=(slower,), place=("cabinet:r000",))
    state = brushed_state(small, state, fleet_view.MAP, {"x": [-0.4, 12.3], "y": [0.6, 2.2]})
    assert state.range == (slower, Range("row", 1, 2), Range("column", 0, 12))
    assert state.place == ("cabinet:r000",)
    watts = {"x": [290.0, 310.0], "y": [float(small.powered.scale.bend(y)) for y in (-1.0, 1.0)]}
    state = brushed_state(small, state, fleet_view.POWER, watts)
    assert {one.column for one in state.range} == {"row", "column", "power_w", "slower_pct"}
    held = small.held(state)
    assert held is not None
    inside = small.rows.filter(held)
    assert inside["row"].is_between(1, 2).all()
    assert set(inside["cabinet"]) == {"r000"}
    assert inside["power_w"].is_between(290, 310).all()
    assert inside["slower_pct"].is_between(-1, 1).all()
    assert len(edges(small, state)[fleet_view.MAP]) == len(edges(small, state)[fleet_view.POWER]) == 1
    for figure in fleet_view.FIGURES:
        state = brushed_state(small, state, figure, None)
    assert state == Address()
    assert small.held(state) is None


def test_a_brush_that_holds_everything_is_none(small: View) -> None:
    everything = {"x": [-1e4, 1e6], "y": [-5e4, 5e4]}
    assert brushed_state(small, Address(), fleet_view.STRIPS, everything) == Address()


def test_a_brush_of_power_narrows_the_range_of_the_strips_and_has_no_infinite_end(small: View) -> None:
    strip = Range("slower_pct", 0.5, math.inf)
    over_all = {"x": [290.0, 310.0], "y": [-5e4, 5e4]}
    state = brushed_state(small, Address(range=(strip,)), fleet_view.POWER, over_all)
    assert state.range == (Range("power_w", 290.0, 310.0), strip)
    alone = brushed_state(small, Address(), fleet_view.POWER, over_all)
    assert [one.column for one in alone.range] == ["power_w"]
    held = small.held(alone)
    assert held is not None
    assert "inf" not in " ".join(_texts(brush_line(small, alone, held, [])))
    assert edges(small, alone)[fleet_view.POWER]


def test_what_an_address_names_and_is_not_there_is_said(small: View) -> None:
    state, problems = parse("?range=slower_pct:a:2&range=color:1:2&range=node:1:2&place=room:1&gpu=nobody&gpu=n0001/2")
    assert len(problems) == 1
    assert "'slower_pct:a:2'" in problems[0]
    said = small.problems(state)
    assert [word for one in said for word in ("'color'", "'node'", "'room:1'", "'nobody'") if word in one] == [
        "'color'", "'node'", "'room:1'", "'nobody'",
    ]  # fmt: skip
    assert small.picked(state) == [8]
    assert small.held(state) is not None
    edges(small, state)


def test_the_mouse_is_on_a_gpu(small: View) -> None:
    row, column = small.grid.cell[small.rows["gpu"][17]]
    assert pointed(small, fleet_view.MAP, {"points": [{"x": column, "y": row, "curveNumber": 0}]}) == 17
    assert pointed(small, fleet_view.MAP, {"points": [{"x": 1e6, "y": 0}]}) is None
    assert pointed(small, fleet_view.STRIPS, {"points": [{"curveNumber": 0, "pointNumber": 5}]}) == 5
    assert pointed(small, fleet_view.POWER, {"points": [{"curveNumber": 3, "pointNumber": 0, "customdata": [7]}]}) == 7
    assert pointed(small, fleet_view.POWER, {"points": [{"curveNumber": 0, "pointNumber": 10**9}]}) is None
    assert pointed(small, fleet_view.POWER, None) is None


# -- what is shown ------------------------------------------------------------------------------------------------


def _texts(component: Any) -> list[str]:
    """All text of a component."""
    if isinstance(component, list | tuple):
        return [text for one in component for text in _texts(one)]
    if component is None or isinstance(component, str | int | float):
        return [] if component is None else [str(component)]
    return _texts(getattr(component, "children", None))


def test_the_pointer_says_figure_interval_and_n(small: View) -> None:
    one = small.rows.row(8, named=True)
    said = " | ".join(_texts(tip(small, 8)))
    assert "n0001/2" in said
    assert "{} (95 %: {} to {} %)".format(*(signed(one[f"slower_pct{end}"]) for end in ("", "_low", "_high"))) in said
    assert "20 runs in 5 sittings" in said
    assert "slow, confirmed" in " ".join(_texts(tip(small, 1)))
    unmeasured = " | ".join(_texts(tip(small, 0)))
    assert "n/a (95 %: n/a)" in unmeasured
    assert HOSTILE in unmeasured, "it is text: Dash escapes it"


def test_names_are_no_markup_in_figures(small: View) -> None:
    drawn = [
        strips(small.strips, small.names, {0: small.looks[1]}, [0], live=False),
        *whole_figures(small, None, [0], Address()),
    ]
    ring = fleet_page._rings(small, [0])[fleet_view.MAP]
    assert ring["text"] == ["&lt;img src=x onerror=alert(1)&gt;"]
    assert not any(HOSTILE in str(figure.to_json()) for figure in drawn)


def test_strips_are_sorted_by_their_median_and_hold_every_gpu(small: View) -> None:
    at = small.strips
    medians = dict(small.rows.group_by("cabinet").agg(pl.col("slower_pct").median()).iter_rows())
    assert [medians[place] for place in at.places] == sorted(medians.values(), reverse=True)
    assert np.isnan(at.y).sum() == 1, "the one that has no run"
    for row in (5, 120):
        place = at.places.index(small.rows["cabinet"][row])
        assert abs(at.x[row] - UNIT * place) < UNIT / 2
        assert at.scale.unbend(float(at.y[row])) == pytest.approx(small.rows["slower_pct"][row], rel=1e-3)
    figure = strips(at, small.names, {})
    assert figure.layout.xaxis.autotickangles == (0, 90), "a slanted name of the last place is left out"
    assert figure.data[2].type == "box"
    low, high = figure.layout.yaxis.range
    assert low < np.nanmin(at.y) < np.nanmax(at.y) < high


def test_of_too_many_places_the_ends_are_drawn_and_the_rest_is_counted() -> None:
    rows = pl.DataFrame({"node": [f"n{one}" for one in range(STRIPS + 40)], "slower_pct": np.arange(STRIPS + 40.0)})
    at = Strips.of(rows, GPU_FIGURES[0], "node")
    assert (len(at.places), at.left_out) == (STRIPS, 40)
    assert (at.places[0], at.places[-1]) == (f"n{STRIPS + 39}", "n0")
    assert np.isnan(at.y).sum() == 40
    nowhere = Strips.of(rows.with_columns(pl.lit(None, pl.String).alias("node")), GPU_FIGURES[0], "node")
    assert nowhere.places == ("unknown",)


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


def test_what_a_fleet_is_and_cannot_say_is_said(small: View) -> None:
    said = " ".join(_texts(compared(small, ["There is no figure 'x' here: time is shown."], STORE)))
    assert "n = 431" in said
    assert "There is no figure 'x'" in said
    assert [rounded(one, 3) for one in (8.7691, 290.3486, -2434.787, 66045.578, None)] == [
        "8.769", "290.35", "−2,434.8", "66,046", "n/a",
    ]  # fmt: skip
    unjudged = placed(small.choice, small.beside, None)
    assert "whorl verdicts --store 'my fleet' --cluster c" in " ".join(_texts(compared(unjudged, [], STORE)))
    assert unjudged.rows["finding"].is_null().all()
    assert small.rows["finding"].to_list().count("none") == 431


def _links(line: list[Any]) -> dict[str, str]:
    found: dict[str, str] = {}

    def walk(one: Any) -> None:
        if getattr(one, "href", None):
            found[one.href.partition("?")[0]] = one.href
        children: Any = getattr(one, "children", None)
        for child in children if isinstance(children, list | tuple) else [children]:
            if child is not None and not isinstance(child, str):
                walk(child)

    for one in line:
        walk(one)
    return found


def test_a_brush_leads_on_to_telemetry_and_placement(small: View) -> None:
    state = Address(range=(Range("slower_pct", 1.0, math.inf),), cluster="c", probe="w")
    held = small.held(state)
    line = brush_line(small, state, held, [])
    assert "slower from +1 %" in " ".join(_texts(line))
    links = _links(line)
    assert set(links) == {"telemetry", "placement"}
    handed = parse(links["telemetry"].partition("?")[2])[0]
    assert handed.range == ()
    assert handed.cluster == "c"
    assert held is not None
    slow = set(small.rows.filter(held)["name"])
    assert set(handed.gpu) <= slow
    assert len(handed.gpu) == min(50, len(slow))
    one = brush_line(small, Address(gpu=("n0001/2",)), None, [8])
    assert parse(_links(one)["gpu"].partition("?")[2])[0].gpu == ("n0001/2",)
    nobody = Address(range=(Range("slower_pct", 1e6, math.inf),), cluster="c", probe="w")
    assert _links(brush_line(small, nobody, small.held(nobody), [])) == {}


@pytest.mark.long
def test_choices_that_the_page_sets_one_by_one_change_no_address_and_those_of_a_person_do(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "store", 8, kinds=("pinned",))
    asked = Asked_(make_app(Reading(store)))
    first, second = (one.name for one in comparable(store)[0].works[:2])
    choices = {"cluster": comparable(store)[0].cluster, "probe": first, "figure": "time", "campaign": "", "by": ""}
    values = {f"{fleet_page.choice_id(name)}.value": value or fleet_page.ALL for name, value in choices.items()}

    # The address is of the second probe; the page sets one choice after the other.
    values["url.search"] = f"?probe={second}"
    (told,) = asked.changed(values, f"{fleet_page.choice_id('cluster')}.value")
    assert told["response"] == {}
    probe = f"{fleet_page.choice_id('probe')}.value"
    (told,) = asked.changed({**values, probe: second}, probe)
    assert told["response"] == {}

    (chosen,) = asked.changed(values, probe)
    assert chosen["response"]["url"]["search"] == f"?probe={first}"


def test_choices_say_what_the_address_asks_for(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "store", 8, kinds=("pinned",))
    second = comparable(store)[0].works[1].name
    (told,) = Asked_(make_app(Reading(store))).changed({"url.search": f"?probe={second}"}, f"{fleet_page.DRAWN}.data")
    assert told["sideUpdate"][fleet_page.choice_id("probe")] == {"value": second}
