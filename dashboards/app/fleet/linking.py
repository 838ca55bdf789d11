"""What links the parts of the page: the mouse writes into the address, and every part follows the address."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dash import Input, Output, Patch, State, ctx, html, no_update, set_props

from ....analysis.fleet.beside import Range
from ...figures.looks import typed
from ..grid import definitions, serve
from ..page import RUNS, URL, Page, following, heading, told
from ..state import MOST_GPUS, parse
from . import parts
from .view import Asked, View, ask, runs, trend_of, view

if TYPE_CHECKING:
    import polars as pl
    from dash import Dash
    from dash.development.base_component import Component

    from ..reading import Reading
    from ..state import State as Address

PATH = "fleet"
_NAMED = 12  # places that an address names; more are a range of their medians
_LONG_S = 0.3  # a person notices it: the other probes are read before somebody asks for them
_AHEAD = 12
_EDGE = 0.015  # of an axis: a brush that ends so near to the edge has no end there

_REDUCED = """
(one, two, three, before) => {
  const by = window.dash_clientside.callback_context.triggered[0];
  if (!by || !by.prop_id.endsWith(".selectedData")) return window.dash_clientside.no_update;
  const range = by.value && by.value.range ? by.value.range : null;
  if (by.value && !range) return window.dash_clientside.no_update;
  return {figure: by.prop_id.split(".")[0], range, n: (before ? before.n : 0) + 1};
}
"""


def _layout(reading: Reading, state: Address) -> Component:
    asked, _ = ask(reading, state)
    if asked is None:
        nothing = "No run says its cluster, workload and GPU: there is nothing to compare."
        return html.Div([heading("Fleet"), told(html.P(nothing), kind="empty")])
    return parts.frame(asked)


def _register(app: Dash, reading: Reading) -> None:
    def seen(search: str | None) -> tuple[View, Address]:
        state, _ = parse(search)
        asked, _ = ask(reading, state)
        assert asked is not None  # else the page has no such part
        return view(reading, asked), state

    _drawing(app, reading, seen)
    _brushing(app, seen)
    _choosing(app, seen)
    serve(
        app,
        parts.TABLE,
        lambda search: parts.shown_columns(seen(search)[0]),
        lambda search: parts.table_rows(*seen(search)),
        key="gpu",
        follows=("cluster", "probe", "figure", "campaign", "range", "place", "gpu"),
        file="gpus.csv",
    )


# -- what follows the address -------------------------------------------------------------------------------------


def _drawing(app: Dash, reading: Reading, seen: Any) -> None:
    @following(
        app,
        PATH,
        *(Output(name, "figure") for name in parts.FIGURES),
        Output(parts.SAID, "children"),
        Output(parts.BRUSH, "children"),
        Output(parts.TABLE, "columnDefs"),
        Output(parts.TABLE, "style"),
        Output(parts.DRAWN, "data"),
        Input(URL, "search"),
        State(parts.DRAWN, "data"),
    )
    def draw(search: str | None, drawn: Any) -> Any:
        began = time.perf_counter()
        of, state = seen(search)
        if time.perf_counter() - began > _LONG_S:
            reading.ahead(_others(reading, state))
        held, picked = of.held(state), of.picked(state)
        now = [list(of.asked.key), [str(one) for one in reading.version()]]
        new = drawn != now
        figures = _whole(of, held, picked, state) if new else _changed(of, held, picked, state)
        return (
            *figures,
            parts.said(of, [*ask(reading, state)[1], *of.problems(state)], reading.store.root),
            parts.brush_line(of, state, held, picked),
            definitions(parts.shown_columns(of)) if new else no_update,
            parts.height(held),
            now if new else no_update,
        )

    # The choices show the address of now: a person may have chosen something else while the figures were drawn.
    @app.callback(Input(parts.DRAWN, "data"), State(URL, "search"), prevent_initial_call=True)
    def tell(_: Any, search: str | None) -> None:
        asked, _problems = ask(reading, parse(search)[0])
        for name, value in _chosen(asked).items() if asked is not None else ():
            set_props(parts.choice_id(name), {"value": value})

    @following(
        app,
        PATH,
        Output(parts.TREND, "figure"),
        Output(parts.FOLLOWED, "data"),
        Input(URL, "search"),
        State(parts.FOLLOWED, "data"),
    )
    def follow(search: str | None, followed: Any) -> Any:
        state, _ = parse(search)
        asked, _ = ask(reading, state)
        assert asked is not None
        now = [asked.cluster.cluster, asked.workload, list(state.gpu), [str(one) for one in reading.version()]]
        return (no_update, no_update) if now == followed else (parts.trend_figure(reading, *seen(search)), now)


def _others(reading: Reading, state: Address) -> Iterator[Callable[[], object]]:
    """What the page would read for the probe of an address, and for the other probes."""
    asked, _ = ask(reading, state)
    if asked is not None:
        cluster, first = asked.cluster, asked.workload
        for name in [first, *(work.name for work in cluster.works if work.name != first)][:_AHEAD]:
            yield partial(_look, reading, replace(state, cluster=cluster.cluster, probe=name))


def _look(reading: Reading, state: Address) -> None:
    asked, _ = ask(reading, state)
    if asked is not None:
        cluster, workload = asked.cluster.cluster, asked.workload
        read = cache(partial(runs, reading, cluster, workload, asked.campaign))  # at most once
        view(reading, asked, read)
        trend_of(reading, cluster, workload, read if asked.campaign is None else None)


def _chosen(asked: Asked) -> dict[str, str]:
    """What the choices of the page say."""
    values = (
        asked.cluster.cluster,
        asked.workload,
        asked.figure.key,
        asked.campaign or parts.ALL,
        asked.by or parts.ALL,
    )
    return dict(zip(parts.CHOICES, values, strict=True))


def _whole(of: View, held: pl.Series | None, picked: Sequence[int], state: Address) -> list[Any]:
    figures, edges = parts.figures(of, picked), parts.boxes(of, state)
    for name, figure in figures.items():
        figure.layout.update(
            dragmode="select",
            uirevision="/".join(map(str, of.asked.key)),
            selectionrevision=state.search(),
            shapes=edges[name],
        )
        if name != parts.MAP:
            figure.data[0]["marker"] = parts.points_of(of, held)
    if held is not None:
        heat = figures[parts.MAP]
        heat.data[0]["opacity"] = parts.FADED
        heat.data[1].update(z=of.cells_of(held), visible=True)
    heat = figures[parts.MAP]
    heat.data[2].update(parts.rings(of, picked)[parts.MAP])
    return list(figures.values())


def _changed(of: View, held: pl.Series | None, picked: Sequence[int], state: Address) -> list[Any]:
    """What a change of the brush or of the choice changes in the figures."""
    rings, edges = parts.rings(of, picked), parts.boxes(of, state)
    found = []
    for name in parts.FIGURES:
        patch = Patch()
        for place in range(parts.traces(of, name)):  # the mouse has faded what it does not hold
            patch["data"][place]["selectedpoints"] = None
        if name == parts.MAP:
            patch["data"][0]["opacity"] = 1 if held is None else parts.FADED
            patch["data"][1]["visible"] = held is not None
            if held is not None:
                patch["data"][1]["z"] = typed(of.cells_of(held))
            patch["data"][2] = rings[name]
        else:
            patch["data"][0]["marker"] = parts.points_of(of, held)
            patch["data"][1] = rings[name]
        patch["layout"]["shapes"] = edges[name]
        patch["layout"]["selections"] = []
        patch["layout"]["selectionrevision"] = state.search()
        found.append(patch)
    return found


# -- what writes into the address ---------------------------------------------------------------------------------


def _brushing(app: Dash, seen: Any) -> None:
    # Only the edges of a brush are sent: the points in it would be megabytes.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        _REDUCED,
        Output(parts.BRUSHED, "data"),
        *(Input(name, "selectedData") for name in parts.FIGURES),
        State(parts.BRUSHED, "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Input(parts.BRUSHED, "data"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def brush(brushed: dict[str, Any] | None, search: str | None) -> Any:
        if not brushed:
            return no_update
        of, state = seen(search)
        return _written(search, brushed_state(of, state, brushed["figure"], brushed["range"]))

    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        Input(parts.CLEAR, "n_clicks"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def clear(clicks: int | None, search: str | None) -> Any:
        if not clicks:
            return no_update
        return _written(search, replace(parse(search)[0], range=(), place=(), gpu=()))


def brushed_state(of: View, state: Address, figure: str, range_: dict[str, list[float]] | None) -> Address:
    """The state after a brush in a figure: it takes the place of the earlier brush there, and leaves the others'.

    `range_`: the ends on both axes, "x" and "y", as they are drawn; None takes the brush away.
    """
    apart = of.asked.figure.apart
    owned = {
        parts.STRIPS: (apart, f"{of.level}_median"),
        parts.POWER: ("power_w", "slower_pct"),
        parts.MAP: ("row", "column"),
    }
    kept = tuple(one for one in state.range if one.column not in owned[figure])
    place = () if figure == parts.STRIPS else state.place
    if range_ is None:
        return replace(state, range=kept, place=place)
    (left, right), (low, high) = (sorted(range_[axis][:2]) for axis in ("x", "y"))
    if figure == parts.MAP:
        new = [Range("row", math.ceil(low), math.floor(high)), Range("column", math.ceil(left), math.floor(right))]
    elif figure == parts.POWER:
        watts = Range("power_w", round(left, 1), round(right, 1))
        slower = Range("slower_pct", *_unbent(of.powered.scale, low, high, of.powered.y))
        if not any(one.column == "power_w" for one in state.range):  # an earlier range of times is that of the strips
            slower = _narrowed(slower, next((one for one in state.range if one.column == "slower_pct"), slower))
        new = [watts, slower]
    else:
        new = [Range(apart, *_unbent(of.strips.scale, low, high, of.strips.y))]
        some = of.strips.places_between(left, right)
        if some is not None and len(some) <= _NAMED:
            place = tuple(f"{of.level}:{name}" for name in some)
        elif some is not None:  # the strips are in the order of their medians
            new.append(Range(f"{of.level}_median", *of.strips.medians(some)))
    new = [one for one in new if not (math.isinf(one.low) and math.isinf(one.high))]
    return replace(state, range=(*kept, *(one for one in new if one.low <= one.high)), place=place)


def _narrowed(one: Range, by: Range) -> Range:
    """What is in both ranges; the first where nothing is."""
    low, high = max(one.low, by.low), min(one.high, by.high)
    return Range(one.column, low, high) if low <= high else one


def _unbent(scale: Any, low: float, high: float, drawn: Any) -> tuple[float, float]:
    """The values between two ends on an axis; no end where there is nothing beyond it."""
    import numpy as np

    known = drawn[np.isfinite(drawn)]
    least, most = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    near = _EDGE * (most - least)
    return (
        -math.inf if low <= least - near else scale.unbend(low),
        math.inf if high >= most + near else scale.unbend(high),
    )


def _choosing(app: Dash, seen: Any) -> None:
    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        *(Input(parts.choice_id(name), "value") for name in parts.CHOICES),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def choose(*given: Any) -> Any:
        *values, search = given
        of, state = seen(search)
        now = _chosen(of.asked)
        changes = {
            name: value or None
            for name, value in zip(parts.CHOICES, values, strict=True)
            if value is not None and value != now[name]
        }
        # Only a choice that changed just now counts. `tell` sets one choice after the other: what it has not yet set
        # differs from the address too, and nobody chose that.
        if not any(parts.choice_id(name) in ctx.triggered_prop_ids.values() for name in changes):
            return no_update
        if "cluster" in changes:  # nothing of another cluster fits
            changes |= {"probe": None, "campaign": None, "range": (), "place": (), "gpu": ()}
        elif changes.keys() & {"probe", "figure", "by"}:  # these ranges are of what was shown; the map stays
            changes["range"] = tuple(one for one in state.range if one.column in ("row", "column"))
        return _written(search, replace(state, **changes))

    @app.callback(
        Output(URL, "search", allow_duplicate=True),
        *(Input(name, "clickData") for name in parts.FIGURES),
        Input(parts.TABLE, "cellClicked"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def click(*given: Any) -> Any:
        search = given[-1]
        of, state = seen(search)
        if ctx.triggered_id == parts.TABLE:
            cell = ctx.triggered[0]["value"] or {}
            row = of.numbers.get(cell.get("rowId")) if cell.get("colId") == "chosen" else None
        else:
            row = _pointed(of, str(ctx.triggered_id), ctx.triggered[0]["value"])
        if row is None:
            return no_update
        name = of.called(row)
        same = {of.called(one) for one in of.picked(state)}
        gpus = tuple(one for one in state.gpu if of.numbers.get(one) != row) if name in same else (*state.gpu, name)
        return _written(search, replace(state, gpu=gpus[-MOST_GPUS:]))

    for figure in parts.FIGURES:
        _hovering(app, figure, seen)


def _hovering(app: Dash, figure: str, seen: Any) -> None:
    tip = parts.tip_id(figure)

    @app.callback(
        Output(tip, "show"),
        Output(tip, "bbox"),
        Output(tip, "children"),
        Input(figure, "hoverData"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def hover(data: Any, search: str | None) -> Any:
        of, _ = seen(search)
        row = _pointed(of, figure, data)
        if row is None:
            return False, no_update, no_update
        return True, data["points"][0]["bbox"], parts.tip(of, row)


def _pointed(of: View, figure: str, data: dict[str, Any] | None) -> int | None:
    """The row of the GPU that the mouse is on."""
    points = (data or {}).get("points") or []
    if not points:
        return None
    point = points[0]
    if figure == parts.MAP:
        return of.cells.get((round(point["y"]), round(point["x"])))
    row = point.get("customdata") if point.get("curveNumber") else point.get("pointNumber")
    row = row[0] if isinstance(row, list) else row
    return row if isinstance(row, int) and 0 <= row < of.rows.height else None


def _written(search: str | None, state: Address) -> Any:
    """The address of a state; nothing where it is the same."""
    new = state.search()
    return no_update if new == (search or "") else new


PAGE = Page(PATH, "Fleet", (RUNS,), _layout, _register, lambda reading: _others(reading, parse(None)[0]))
