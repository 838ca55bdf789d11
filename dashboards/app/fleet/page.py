"""The page Fleet: every GPU in one figure after another, linked by a brush; a table of all; the trend of the fleet.

The mouse writes into the address, and every part of the page follows the address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import Input, Output, Patch, State, ctx, dcc, html, no_update, set_props

from ...figures.drawing import Figure, figure_of, typed
from ...figures.fleet import (
    GPU_FIGURES,
    LINES,
    GpuFigure,
    against_power,
    over_campaigns,
    ring,
    strips,
)
from ...figures.looks import chosen, points
from ...figures.machine import heat_map
from ...style import layout, nothing
from ...words import many
from ..drawing import graph
from ..grid import GridColumn, definitions, serve, table
from ..page import RUNS, Page, following, heading, section, told
from ..state import MOST_GPUS, URL, parse
from .sentences import CLEAR, brush_line, compared, tip
from .view import FIGURES, LEVELS, MAP, POWER, STRIPS, Choice, View, brushed_state, choose, edges, runs, trend_of, view

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from ..reading import Reading
    from ..state import State as Address

PATH = "fleet"
TREND, TABLE = "fleet-trend", "fleet-table"
HEAD, SAID, BRUSH = "fleet-head", "fleet-said", "fleet-brush"
BRUSHED, DRAWN, FOLLOWED = "fleet-brushed", "fleet-drawn", "fleet-followed"
CHOICES = ("cluster", "probe", "figure", "campaign", "by")
ALL = ""
FADED = 0.2  # the map, where a brush holds only a part of it
_DIGITS = 5  # significant ones, of a time
_ROWS = 14  # of the table, that are seen at once
_ODD = 4  # GPUs with findings whose trend is drawn where none is chosen
_LONG_S = 0.3  # a person notices it: the other probes are read before somebody asks for them
_AHEAD = 12
_EMPTY = {"layout": {"height": 430, "xaxis": {"visible": False}, "yaxis": {"visible": False}}}

_WHO: tuple[GridColumn, ...] = (
    GridColumn("chosen", "chosen", says="Choose a GPU: click the cell, or press Enter on it.", width=80),
    GridColumn("label", "GPU", link="gpu", asks={"gpu": "gpu", "cluster": "cluster"}, width=150),
    GridColumn("finding", "finding", says="The worst verdict about the GPU or its node, of whorl verdicts", width=216),
)
_MEASURED: tuple[GridColumn, ...] = (
    GridColumn("slower_pct", "slower", "percent", 2, says="Its time against the median GPU of its model"),
    GridColumn("slower_pct_low", "slower, 95 %", "interval", 2, high="slower_pct_high", unit="%"),
    GridColumn("time", "time", "number", 4, unit="ms"),
    GridColumn("power_w", "power", "number", 1, unit="W"),
    GridColumn("sm_clock_mhz", "SM clock", "number", 0, unit="MHz"),
    GridColumn("temperature_c", "temperature", "number", 1, unit="°C"),
    GridColumn("n", "runs", "number"),
    GridColumn("sittings", "sittings", "number", says="Runs without a pause of 6 hours: what shows how far it repeats"),
    GridColumn("node", "node"),
    GridColumn("cabinet", "cabinet"),
    GridColumn("model", "model"),
)
_REDUCED = """
(one, two, three, before) => {
  const by = window.dash_clientside.callback_context.triggered[0];
  if (!by || !by.prop_id.endsWith(".selectedData")) return window.dash_clientside.no_update;
  const range = by.value && by.value.range ? by.value.range : null;
  if (by.value && !range) return window.dash_clientside.no_update;
  return {figure: by.prop_id.split(".")[0], range, n: (before ? before.n : 0) + 1};
}
"""
Find = Callable[[str | None], tuple[View, "Address"]]
"""The view and the state of an address."""


# -- the page without what depends on the brush -------------------------------------------------------------------


def _layout(reading: Reading, state: Address) -> Component:
    choice, _ = choose(reading, state)
    if choice is None:
        none = "No run says its cluster, workload and GPU: there is nothing to compare."
        return html.Div([heading("Fleet"), told(html.P(none), kind="empty")])
    lead = "How every GPU compares with the others of its model. Drag a rectangle in a figure to brush GPUs."
    trend = (
        "Medians with their 95 % interval, of the fleet and of the chosen GPUs, or of those with the worst findings; "
        "against the median GPU of all campaigns."
    )
    cells = "A cell is a GPU, a row a node, a block a cabinet. A GPU without this figure is a gap."
    power = "Slow at little power: something holds it back. Slow at much power: its silicon is poor."
    rows = "Those that the brush holds. Sort by a click on a head, by several with Ctrl."
    halves = [
        section("Time against power", _brushable(POWER, "time against power"), says=power),
        section("Over the campaigns", graph(_EMPTY, "the fleet over its campaigns", id=TREND), says=trend),
    ]
    grid = table(TABLE, columns_of(choice.figure), None, key="gpu", label="all GPUs")
    return html.Div(
        [
            heading("Fleet", lead),
            head(choice),
            html.Div(id=SAID),
            html.Div(id=BRUSH, role="status"),
            section("By place", _brushable(STRIPS, "every GPU by place")),
            section("The machine", _brushable(MAP, "map of the machine"), says=cells),
            html.Div(halves, className="halves"),
            section("All GPUs", grid, says=rows),
            *(dcc.Store(id=name) for name in (BRUSHED, DRAWN, FOLLOWED)),
        ],
        className="fleet",
    )


def _brushable(name: str, label: str) -> Component:
    pointer = dcc.Tooltip(id=tip_id(name), show=False)
    buttons = {"modeBarButtonsToRemove": ["autoScale2d", "lasso2d"]}
    return graph(_EMPTY, label, pointer, config=buttons, id=name, clear_on_unhover=True)


def tip_id(figure: str) -> str:
    """The id of the words beside the pointer in a figure."""
    return f"{figure}-tip"


def choice_id(name: str) -> str:
    """The id of a field in the head."""
    return f"fleet-choose-{name}"


def head(choice: Choice) -> Component:
    """What a person chooses from."""
    probes = {work.name: f"{work.name} ({many(work.gpus, 'GPU')})" for work in choice.cluster.works}
    campaigns = {ALL: "all runs"} | {
        campaign.name: campaign.name + ("" if campaign.began is None else f" ({campaign.began:%Y-%m-%d})")
        for campaign in choice.cluster.campaigns
    }
    options: dict[str, tuple[str, dict[str, str]]] = {
        "cluster": ("Cluster", {name: name for name in choice.clusters}),
        "probe": ("Probe", probes),
        "figure": ("Figure", {figure.key: figure.name for figure in choice.figures}),
        "campaign": ("Campaign", campaigns),
        "by": ("Strips by", {ALL: "automatic"} | {level: level for level in LEVELS}),
    }
    values = _values(choice)
    fields = []
    for name, (label, texts) in options.items():
        listed = [{"label": text, "value": value} for value, text in texts.items()]
        field = dcc.Dropdown(listed, values[name], id=choice_id(name), clearable=False)
        hidden = {"display": "none"} if name == "cluster" and len(choice.clusters) == 1 else None
        fields.append(html.Label([html.Span(label), field], style=hidden))
    return html.Div(fields, id=HEAD, className="choices")


def _values(choice: Choice) -> dict[str, str]:
    """What the fields of the head say."""
    values = choice.cluster.cluster, choice.workload, choice.figure.key, choice.campaign or ALL, choice.by or ALL
    return dict(zip(CHOICES, values, strict=True))


# -- the table ----------------------------------------------------------------------------------------------------


def columns_of(figure: GpuFigure, typical_ms: float | None = None) -> list[GridColumn]:
    """The columns of the table; a figure of the fingerprint is one more. The slowest, or the highest, comes first.

    `typical_ms`: of the times, which have as many digits as it needs.
    """
    printed = [
        GridColumn(figure.value, figure.name, "number", figure.digits, unit=figure.unit),
        GridColumn(
            f"{figure.value}_low", f"{figure.name}, 95 %", "interval", figure.digits, high=f"{figure.value}_high"
        ),
        GridColumn(f"{figure.key}_n", "its runs", "number"),
    ]
    columns = [*_WHO, *(() if figure in GPU_FIGURES else printed), *_MEASURED]
    first = figure.apart if figure is GPU_FIGURES[0] else figure.value
    digits = 4 if not typical_ms else min(max(_DIGITS - 1 - floor(log10(typical_ms)), 0), 9)
    columns = [replace(column, digits=digits) if column.name == "time" else column for column in columns]
    return [replace(column, sort="desc") if column.name == first else column for column in columns]


def shown_columns(fleet: View) -> list[GridColumn]:
    """The columns of the table for what is shown."""
    typical = fleet.rows["time"].median()
    return columns_of(fleet.choice.figure, typical if isinstance(typical, float) else None)


def table_rows(fleet: View, state: Address) -> pl.DataFrame:
    """The GPUs that the brush holds, as the table shows them."""
    held = fleet.held(state)
    picked = pl.Series(fleet.picked(state), dtype=pl.Int64).implode()
    rows = fleet.rows.with_row_index("number").with_columns(
        pl.when(pl.col("number").cast(pl.Int64).is_in(picked)).then(pl.lit("☑")).otherwise(pl.lit("☐")).alias("chosen"),
        pl.lit(fleet.choice.cluster.cluster).alias("cluster"),
    )
    return rows if held is None else rows.filter(held)


def _table_style(held: pl.Series | None) -> dict[str, str]:
    """The look of the table: no higher than its rows."""
    rows = _ROWS if held is None else max(3, min(int(held.sum()), _ROWS))
    return {"height": f"{100 + 34 * rows}px", "width": "100%"}


# -- figures ------------------------------------------------------------------------------------------------------


def whole_figures(fleet: View, held: pl.Series | None, picked: Sequence[int], state: Address) -> list[Figure]:
    """The three that can be brushed."""
    figure, names = fleet.choice.figure, fleet.names
    marked = {fleet.rows["gpu"][row]: look for row, look in fleet.looks.items()}
    figures = {
        STRIPS: strips(fleet.strips, names, fleet.looks, picked),
        MAP: heat_map(fleet.grid, fleet.shades(), figure.difference, figure.apart_unit, marked, end=fleet.end),
        POWER: against_power(fleet.powered, names, fleet.looks, picked, live=True),
    }
    shapes = edges(fleet, state)
    for name, drawn in figures.items():
        drawn.layout.update(
            dragmode="select",
            uirevision="/".join(map(str, fleet.choice.key)),
            selectionrevision=state.search(),
            shapes=shapes[name],
        )
        if name != MAP:
            drawn.data[0]["marker"] = _points(fleet, held)
    heat = figures[MAP]
    heat.data[2].update(_rings(fleet, picked)[MAP])
    if held is not None:
        heat.data[0]["opacity"] = FADED
        heat.data[1].update(z=fleet.cells_of(held), visible=True)
    return list(figures.values())


def changed_figures(fleet: View, held: pl.Series | None, picked: Sequence[int], state: Address) -> list[Patch]:
    """What a change of the brush or of the choice changes in the figures."""
    rings, shapes = _rings(fleet, picked), edges(fleet, state)
    patches = []
    for name in FIGURES:
        patch = Patch()
        for place in range(_traces(fleet, name)):  # the mouse has faded what it does not hold
            patch["data"][place]["selectedpoints"] = None
        if name == MAP:
            patch["data"][0]["opacity"] = 1 if held is None else FADED
            patch["data"][1]["visible"] = held is not None
            if held is not None:
                patch["data"][1]["z"] = typed(fleet.cells_of(held))
            patch["data"][2] = rings[name]
        else:
            patch["data"][0]["marker"] = _points(fleet, held)
            patch["data"][1] = rings[name]
        patch["layout"]["shapes"] = shapes[name]
        patch["layout"]["selections"] = []
        patch["layout"]["selectionrevision"] = state.search()
        patches.append(patch)
    return patches


def _points(fleet: View, held: pl.Series | None) -> dict[str, Any]:
    """The marker of the points of a figure."""
    return points(None if held is None else held.to_numpy(), fleet.strips.usual)


def _traces(fleet: View, figure: str) -> int:
    """How many traces a figure has."""
    if figure == MAP:
        return 3 + len(set(fleet.looks.values()))
    y = fleet.strips.y if figure == STRIPS else fleet.powered.y
    return (3 if figure == STRIPS else 2) + len({look for row, look in fleet.looks.items() if isfinite(y[row])})


def _rings(fleet: View, picked: Sequence[int]) -> dict[str, Any]:
    """The traces of the chosen GPUs, by figure."""
    cells = [fleet.grid.cell[fleet.rows["gpu"][row]] for row in picked]
    names = [fleet.names[row] for row in picked]
    return {
        STRIPS: ring(fleet.strips, fleet.names, picked),
        MAP: chosen([column for _, column in cells], [row for row, _ in cells], names),
        POWER: ring(fleet.powered, fleet.names, picked),
    }


def _trend_figure(reading: Reading, fleet: View, state: Address) -> Figure:
    """The fleet over its campaigns, with the chosen GPUs or the worst."""
    trend = trend_of(reading, fleet.choice.cluster.cluster, fleet.choice.workload)
    if trend is None:
        axis, why = {"visible": False}, "No run with a time says when it began."
        return figure_of([], layout(160, xaxis=axis, yaxis=axis, annotations=[nothing(why)]))
    gpus = [fleet.rows["gpu"][row] for row in fleet.picked(state)[:LINES]] or list(fleet.verdicts)[:_ODD]
    names = fleet.rows.filter(pl.col("gpu").is_in(gpus)).select("gpu", "label")
    return over_campaigns(trend, gpus, dict(names.iter_rows()))


# -- what follows the address -------------------------------------------------------------------------------------


def _register(app: Dash, reading: Reading) -> None:
    def find(search: str | None) -> tuple[View, Address]:
        state, _ = parse(search)
        choice, _ = choose(reading, state)
        assert choice is not None  # else the page has no such part
        return view(reading, choice), state

    _following(app, reading, find)
    _brushing(app, find)
    _choosing(app, find)
    for figure in FIGURES:
        _hovering(app, figure, find)
    serve(
        app,
        TABLE,
        lambda search: shown_columns(find(search)[0]),
        lambda search: table_rows(*find(search)),
        key="gpu",
        follows=("cluster", "probe", "figure", "campaign", "range", "place", "gpu"),
        file="gpus.csv",
    )


def _following(app: Dash, reading: Reading, find: Find) -> None:
    @following(
        app,
        PATH,
        *(Output(name, "figure") for name in FIGURES),
        Output(SAID, "children"),
        Output(BRUSH, "children"),
        Output(TABLE, "columnDefs"),
        Output(TABLE, "style"),
        Output(DRAWN, "data"),
        Input(URL, "search"),
        State(DRAWN, "data"),
    )
    def draw(search: str | None, drawn: Any) -> Any:
        began = time.perf_counter()
        fleet, state = find(search)
        if time.perf_counter() - began > _LONG_S:
            reading.ahead(_other_probes(reading, state))
        held, picked = fleet.held(state), fleet.picked(state)
        now = [list(fleet.choice.key), [str(version) for version in reading.version()]]
        new = drawn != now
        return (
            *(whole_figures if new else changed_figures)(fleet, held, picked, state),
            compared(fleet, [*choose(reading, state)[1], *fleet.problems(state)], reading.store.root),
            brush_line(fleet, state, held, picked),
            definitions(shown_columns(fleet)) if new else no_update,
            _table_style(held),
            now if new else no_update,
        )

    # The choices show the address of now: a person may have chosen something else while the figures were drawn.
    @app.callback(Input(DRAWN, "data"), State(URL, "search"), prevent_initial_call=True)
    def set_choices(_: Any, search: str | None) -> None:
        choice, _problems = choose(reading, parse(search)[0])
        for name, value in _values(choice).items() if choice is not None else ():
            set_props(choice_id(name), {"value": value})

    @following(
        app, PATH, Output(TREND, "figure"), Output(FOLLOWED, "data"), Input(URL, "search"), State(FOLLOWED, "data")
    )
    def follow(search: str | None, followed: Any) -> Any:
        fleet, state = find(search)
        versions = [str(version) for version in reading.version()]
        now = [fleet.choice.cluster.cluster, fleet.choice.workload, list(state.gpu), versions]
        return (no_update, no_update) if now == followed else (_trend_figure(reading, fleet, state), now)


def _other_probes(reading: Reading, state: Address) -> Iterator[Callable[[], object]]:
    """What the page would read for the probe of an address, and for the other probes."""
    choice, _ = choose(reading, state)
    if choice is not None:
        cluster, first = choice.cluster, choice.workload
        for name in [first, *(work.name for work in cluster.works if work.name != first)][:_AHEAD]:
            yield partial(_read_probe, reading, replace(state, cluster=cluster.cluster, probe=name))


def _read_probe(reading: Reading, state: Address) -> None:
    choice, _ = choose(reading, state)
    if choice is not None:
        cluster, workload = choice.cluster.cluster, choice.workload
        read = cache(partial(runs, reading, cluster, workload, choice.campaign))  # at most once
        view(reading, choice, read)
        trend_of(reading, cluster, workload, read if choice.campaign is None else None)


# -- what writes into the address ---------------------------------------------------------------------------------


def _brushing(app: Dash, find: Find) -> None:
    # Only the edges of a brush are sent: the points in it would be megabytes.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        _REDUCED,
        Output(BRUSHED, "data"),
        *(Input(name, "selectedData") for name in FIGURES),
        State(BRUSHED, "data"),
        prevent_initial_call=True,
    )

    @_writing(app, Input(BRUSHED, "data"))
    def brush(search: str | None, brushed: dict[str, Any] | None) -> Address | None:
        if not brushed:
            return None
        fleet, state = find(search)
        return brushed_state(fleet, state, brushed["figure"], brushed["range"])

    @_writing(app, Input(CLEAR, "n_clicks"))
    def clear(search: str | None, clicks: int | None) -> Address | None:
        return replace(parse(search)[0], range=(), place=(), gpu=()) if clicks else None


def _choosing(app: Dash, find: Find) -> None:
    @_writing(app, *(Input(choice_id(name), "value") for name in CHOICES))
    def choose_value(search: str | None, *values: str | None) -> Address | None:
        fleet, state = find(search)
        now = _values(fleet.choice)
        changes: dict[str, Any] = {
            name: value or None
            for name, value in zip(CHOICES, values, strict=True)
            if value is not None and value != now[name]
        }
        # Only a choice that changed just now counts. The page sets one choice after the other: what it has not yet set
        # differs from the address too, and nobody chose that.
        if not any(choice_id(name) in ctx.triggered_prop_ids.values() for name in changes):
            return None
        if "cluster" in changes:  # nothing of another cluster fits
            changes |= {"probe": None, "campaign": None, "range": (), "place": (), "gpu": ()}
        elif changes.keys() & {"probe", "figure", "by"}:  # these ranges are of what was shown; the map stays
            changes["range"] = tuple(span for span in state.range if span.column in ("row", "column"))
        return replace(state, **changes)

    @_writing(app, *(Input(name, "clickData") for name in FIGURES), Input(TABLE, "cellClicked"))
    def click(search: str | None, *_: Any) -> Address | None:
        fleet, state = find(search)
        clicked = ctx.triggered[0]["value"]
        if ctx.triggered_id == TABLE:
            cell = clicked or {}
            row = fleet.numbers.get(str(cell.get("rowId"))) if cell.get("colId") == "chosen" else None
        else:
            row = pointed(fleet, str(ctx.triggered_id), clicked)
        if row is None:
            return None
        name = fleet.called(row)
        without = tuple(gpu for gpu in state.gpu if fleet.numbers.get(gpu) != row)
        gpus = without if row in fleet.picked(state) else (*state.gpu, name)
        return replace(state, gpu=gpus[-MOST_GPUS:])


def _writing(app: Dash, *inputs: Input) -> Callable[[Callable[..., Address | None]], None]:
    """Register a function that gets the address and these inputs, and gives a new state; None leaves it as it is."""

    def add(function: Callable[..., Address | None]) -> None:
        @app.callback(
            Output(URL, "search", allow_duplicate=True), *inputs, State(URL, "search"), prevent_initial_call=True
        )
        def write(*arguments: Any) -> Any:
            *values, search = arguments
            state = function(search, *values)
            new = None if state is None else state.search()
            return no_update if new is None or new == (search or "") else new

    return add


def _hovering(app: Dash, figure: str, find: Find) -> None:
    name = tip_id(figure)

    @app.callback(
        Output(name, "show"),
        Output(name, "bbox"),
        Output(name, "children"),
        Input(figure, "hoverData"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def hover(data: Any, search: str | None) -> Any:
        fleet, _ = find(search)
        row = pointed(fleet, figure, data)
        return (False, no_update, no_update) if row is None else (True, data["points"][0]["bbox"], tip(fleet, row))


def pointed(fleet: View, figure: str, data: dict[str, Any] | None) -> int | None:
    """The row of the GPU that the mouse is on."""
    places = (data or {}).get("points") or []
    if not places:
        return None
    point = places[0]
    if figure == MAP:
        return fleet.cells.get((round(point["y"]), round(point["x"])))
    row = point.get("customdata") if point.get("curveNumber") else point.get("pointNumber")
    row = row[0] if isinstance(row, list) else row
    return row if isinstance(row, int) and 0 <= row < fleet.rows.height else None


PAGE = Page(PATH, "Fleet", (RUNS,), _layout, _register, lambda reading: _other_probes(reading, parse(None)[0]))
