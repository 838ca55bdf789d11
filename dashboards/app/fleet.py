"""The page Fleet: every GPU in one figure after another, linked by a brush; a table of all.

The mouse writes into the address, and every part of the page follows the address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import Input, Output, State, ctx, dcc, html, no_update

from ...analysis.verdicts import NO_FINDING, Level
from ..document import Table
from ..documents.evidence import why_not
from ..figures.fleet import signed
from ..words import MISSING, listed, many, minus
from .brush import CHOICES, FIGURES, MAP, POWER, STRIPS, Brush, FleetView, brushes, choose, view
from .grid import MOST, GridOptions, definitions, grid, grid_rows
from .page import RUNS, VERDICTS, Page, following, graph, heading, section, told, writing
from .state import MOST_GPUS, URL, parse

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from .brush import FleetChoice
    from .reading import Reading
    from .state import State as Address

PATH = "fleet"
TABLE, SAID, BRUSH, CLEAR = "fleet-table", "fleet-said", "fleet-brush", "fleet-clear"
_DIGITS = 5  # significant ones, of a number
_ROWS = 14  # of the table, that are seen at once
_AHEAD = 12  # probes that are read before somebody asks for them
_LINKED = 50  # GPUs that a link hands on
_NAMED = 6
_EMPTY = {"layout": {"height": 430, "xaxis": {"visible": False}, "yaxis": {"visible": False}}}
# Only the edges of a brush are sent: the points in it would be megabytes.
_EDGES = """
(...figures) => {
  const [by] = window.dash_clientside.callback_context.triggered, before = figures[figures.length - 1];
  if (!by || !by.prop_id.endsWith(".selectedData")) return window.dash_clientside.no_update;
  const range = by.value && by.value.range ? by.value.range : null;
  if (by.value && !range) return window.dash_clientside.no_update;
  return {figure: by.prop_id.split(".")[0], range, n: (before ? before.n : 0) + 1};
}
"""


# -- sentences ----------------------------------------------------------------------------------------------------


def compared(fleet: FleetView, problems: Sequence[str], store: object) -> list[Component]:
    """What is compared, in a few numbers, and what cannot be."""
    choice, gpus, figure = fleet.choice, fleet.beside, fleet.choice.figure
    values = fleet.rows[figure.apart].drop_nulls()
    dates = "" if gpus.began is None or gpus.ended is None else f", {gpus.began:%Y-%m-%d} to {gpus.ended:%Y-%m-%d}"
    text = f"{many(gpus.measured, 'GPU')} in {many(gpus.runs, 'run')} of {choice.workload}{dates}."
    if n := len(values):
        middle = f"{rounded(fleet.rows[figure.value].median(), figure.digits)} {figure.unit}".rstrip()
        low, high = (figure.text(values.quantile(quantile, "linear")) for quantile in (0.05, 0.95))
        text += f" {figure.name.capitalize()}: the {'median' if n > 1 else 'only'} GPU has {middle}"
        text += f"; 90 % of the GPUs are {low} to {high} away from the median of their model" if n > 1 else ""
        text += f" (n = {n:,})."
    parts: list[Component] = [html.P(text)]
    if fleet.judgement is None:
        todo = html.P("Nobody has judged these GPUs yet, so none is marked. This command does:")
        parts.append(told(todo, VERDICTS.command(store, choice.cluster.cluster), kind="empty"))
    notes = [*problems, *gpus.notes, *_notes(fleet)]
    return [*parts, *([told(*(html.P(note) for note in notes))] if notes else [])]


def _notes(fleet: FleetView) -> Iterator[str]:
    """What the judge and the figures leave out."""
    choice = fleet.choice
    if fleet.judgement is not None:
        for gap in fleet.judgement.not_judged:
            if gap.subject == choice.workload:
                yield f"Not judged in {choice.workload}: {why_not(gap)}."
        if batches := [verdict.name for verdict in fleet.judgement.rows if verdict.level is Level.BATCH]:
            yield (
                f"The judge compares the GPUs of a batch ({listed(batches, 3)}) with each other only; here they stand "
                "beside all."
            )
    if choice.printed is not None and choice.printed.workload not in (None, choice.workload):
        yield f"This figure is known in {choice.printed.workload}, not in {choice.workload}."
    if left_out := fleet.strips.left_out:
        drawn = f"{len(fleet.strips.places)} {fleet.level}s are drawn, the slowest and the fastest"
        yield f"By place, {drawn}; {left_out:,} are left out there."


def problems_of(fleet: FleetView, state: Address) -> list[str]:
    """What a brush or a choice names and is not there, in sentences."""
    sentences = [
        f"brush={text[:60]!r} in the address is no rectangle in a figure: it is left out."
        for text in state.brush
        if Brush.parse(text) is None
    ]
    if unknown := [gpu for gpu in state.gpu if gpu not in fleet.numbers]:
        sentences.append(f"Cluster {fleet.choice.cluster.cluster} has no GPU {unknown[0][:60]!r}.")
    return sentences


def rounded(value: Any, digits: int) -> str:
    """A number with so many digits behind the point, fewer of a large one."""
    if value is None:
        return MISSING
    before = len(str(int(abs(value))))
    return minus(f"{value:,.{max(0, min(digits, _DIGITS - before))}f}")


def brush_line(fleet: FleetView, state: Address) -> list[Any]:
    """What the brush holds and which GPUs are chosen, with what to do with them."""
    held, picked, figure = fleet.held(state), fleet.picked(state), fleet.choice.figure
    if held is None and not picked:
        cut = f"The table shows the {MOST:,} GPUs that are farthest from the median."
        return [html.P(cut, className="soft")] if fleet.rows.height > MOST else []
    parts: list[Any] = []
    if held is not None:
        words = {STRIPS: (figure.more, figure.apart_unit), POWER: ("slower", "%")}
        ends = [
            minus(f"{words[name][0]} {brush.y0:+.3g} to {brush.y1:+.3g} {words[name][1]}".rstrip())
            if name in words
            else "a part of the map"
            for name, brush in brushes(state).items()
        ]
        subject = html.Strong(f"{int(held.sum()):,} of {fleet.rows.height:,} GPUs")
        parts.append(html.P([subject, f" are brushed: {', '.join(ends)}."]))
    if picked:
        names = listed([fleet.rows["label"][row] for row in picked], _NAMED)
        parts.append(html.P([html.Strong("Chosen: "), f"{names}."]))
    rows = picked or farthest(fleet, held)
    cut = "" if held is None or picked or len(rows) == int(held.sum()) else f" (the {len(rows)} farthest out)"
    pages = [("telemetry", "Compare their telemetry", "gpu"), ("placement", "Exclude them in placement", "without")]
    pages += [("gpu", "Look at this GPU", "gpu")] if len(rows) == 1 else []
    to: dict[str, Any] = {"cluster": fleet.choice.cluster.cluster, "brush": ()}
    gpus = tuple(map(fleet.called, rows))
    links = [
        dcc.Link(f"{text}{cut}", href=state.href(path, **to, **{name: gpus})) for path, text, name in pages if rows
    ]
    clear = html.Button("Clear", id=CLEAR, type="button", n_clicks=0)
    return [html.Div([html.Div(parts), html.Div([*links, clear], className="links")], className="told brush")]


def farthest(fleet: FleetView, held: pl.Series | None) -> list[int]:
    """Of the brushed GPUs those that are farthest from the median, or have a finding."""
    rows = fleet.rows.with_row_index("number")
    rows = rows if held is None else rows.filter(held)
    far = pl.col(fleet.choice.figure.apart).abs()
    first = rows.sort(pl.col("finding") == NO_FINDING, far, descending=[False, True], nulls_last=True)
    return sorted(first.head(_LINKED)["number"].to_list())


def tip(fleet: FleetView, row: int) -> Component:
    """The words beside the pointer: a GPU and its figure, with interval and n."""
    gpu, figure = fleet.rows.row(row, named=True), fleet.choice.figure
    apart, low, high = (gpu[f"{figure.apart}{end}"] for end in ("", "_low", "_high"))
    ends = MISSING if low is None or high is None else f"{signed(low)} to {signed(high)} {figure.apart_unit}"
    lines = [
        ", ".join(str(gpu[name]) for name in ("node", "cabinet") if gpu[name]),
        f"{figure.name}: {rounded(gpu[figure.value], figure.digits)} {figure.unit}",
        f"{figure.difference}: {MISSING if apart is None else signed(apart)} (95 %: {ends})",
        f"{many(gpu.get(f'{figure.key}_n') or gpu['n'], 'run')} in {many(gpu['sittings'], 'sitting')}",
        gpu["finding"] if gpu["finding"] != NO_FINDING else "",
    ]
    return html.Div([html.Strong(gpu["label"]), *(html.Span(line) for line in lines if line)], className="tip")


# -- the page -----------------------------------------------------------------------------------------------------


def _layout(reading: Reading, state: Address) -> Component:
    choice, _ = choose(reading, state)
    if choice is None:
        none = "No run says its cluster, workload and GPU: there is nothing to compare."
        return html.Div([heading("Fleet"), told(html.P(none), kind="empty")])
    lead = "How every GPU compares with the others of its model. Drag a rectangle in a figure to brush GPUs."
    cells = (
        "A cell is a GPU, a row a node, a block a cabinet where cabinets are known. A GPU without this figure is a gap."
    )
    power = "Slow at little power: something holds it back. Slow at much power: its silicon is poor."
    rows = "Where something is brushed, those that the brush holds. Sort by a click on a head, by several with Ctrl."
    return html.Div(
        [
            heading("Fleet", lead),
            html.Div([*_fields(choice)], className="choices"),
            html.Div(id=SAID),
            html.Div(id=BRUSH, role="status"),
            section("By place", _brushable(STRIPS, "every GPU by place")),
            section("The machine", _brushable(MAP, "map of the machine"), says=cells),
            section("Time against power", _brushable(POWER, "time against power"), says=power),
            section("All GPUs", grid(Table([], []), name=TABLE, options=GridOptions(keys=[""])), says=rows),
            dcc.Store(id="fleet-brushed"),
        ],
        className="fleet",
    )


def _brushable(name: str, label: str) -> Component:
    pointer = dcc.Tooltip(id=f"{name}-tip", show=False)
    buttons = {"modeBarButtonsToRemove": ["autoScale2d", "lasso2d"]}
    return graph(_EMPTY, label, pointer, config=buttons, id=name, clear_on_unhover=True)


def _fields(choice: FleetChoice) -> Iterator[Component]:
    """What a person chooses from."""
    dates = {campaign.name: campaign.began for campaign in choice.cluster.campaigns}
    options = {
        "cluster": {name: name for name in choice.clusters},
        "probe": {work.name: f"{work.name} ({many(work.gpus, 'GPU')})" for work in choice.cluster.works},
        "figure": {figure.key: figure.name for figure in choice.figures},
        "campaign": {"": "all runs"}
        | {name: name if began is None else f"{name} ({began:%Y-%m-%d})" for name, began in dates.items()},
    }
    for name, texts in options.items():
        offered = [{"label": text, "value": value} for value, text in texts.items()]
        field = dcc.Dropdown(offered, choice.values[name], id=choice_id(name), clearable=False)
        hidden = {"display": "none"} if name == "cluster" and len(choice.clusters) == 1 else None
        yield html.Label([html.Span(name.capitalize()), field], style=hidden)


def choice_id(name: str) -> str:
    """The id of a field in the head."""
    return f"fleet-choose-{name}"


def _ahead(reading: Reading) -> Iterator[Callable[[], object]]:
    """What the page would read for each probe of the first cluster."""
    choice, _ = choose(reading, parse(None)[0])
    if choice is not None:
        names = [choice.workload, *(work.name for work in choice.cluster.works if work.name != choice.workload)]
        for name in names[:_AHEAD]:
            yield partial(view, reading, replace(choice, workload=name))


def _register(app: Dash, reading: Reading) -> None:
    def find(state: Address) -> FleetView:
        choice, _ = choose(reading, state)
        assert choice is not None  # else the page has no such part
        return view(reading, choice)

    @following(
        app,
        PATH,
        *(Output(name, "figure") for name in FIGURES),
        Output(SAID, "children"),
        Output(BRUSH, "children"),
        Output(TABLE, "columnDefs"),
        Output(TABLE, "rowData"),
        Output(TABLE, "style"),
        Input(URL, "search"),
        State(TABLE, "columnDefs"),
    )
    def draw(search: str | None, before: Any) -> Any:
        state, _ = parse(search)
        fleet = find(state)
        (table, options), keys = fleet.table(state), dict(fleet.rows.select("label", "gpu").iter_rows())
        columns, rows = definitions(table, options), max(3, min(len(table.rows), _ROWS))
        same = before and [column["field"] for column in columns] == [column["field"] for column in before]

        def address(page: str, name: str, _: str | None) -> str:
            return state.href(page, gpu=(keys[name],), cluster=fleet.choice.cluster.cluster, brush=())

        return (
            *fleet.figures(state),
            compared(fleet, [*choose(reading, state)[1], *problems_of(fleet, state)], reading.store.root),
            brush_line(fleet, state),
            no_update if same else columns,  # other columns forget how a person sorted them
            grid_rows(table, address, options),
            {"height": f"{100 + 34 * rows}px", "width": "100%"},
        )

    @following(app, PATH, *(Output(choice_id(name), "value") for name in CHOICES), Input(URL, "search"))
    def set_choices(search: str | None) -> Any:
        choice, _ = choose(reading, parse(search)[0])
        return [no_update] * len(CHOICES) if choice is None else list(choice.values.values())

    _write_address(app, find)
    for figure in FIGURES:
        _hover(app, figure, find)


def _write_address(app: Dash, find: Callable[[Address], FleetView]) -> None:
    """What a person does writes into the address."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        _EDGES,
        Output("fleet-brushed", "data"),
        *(Input(name, "selectedData") for name in FIGURES),
        State("fleet-brushed", "data"),
        prevent_initial_call=True,
    )

    @writing(app, Input("fleet-brushed", "data"))
    def brush(state: Address, edges: dict[str, Any] | None) -> Address | None:
        return find(state).brushed(state, edges["figure"], edges["range"]) if edges else None

    @writing(app, Input(CLEAR, "n_clicks"))
    def clear(state: Address, clicks: int | None) -> Address | None:
        return replace(state, brush=(), gpu=()) if clicks else None

    @writing(app, *(Input(choice_id(name), "value") for name in CHOICES))
    def choose_value(state: Address, *values: str | None) -> Address | None:
        now = find(state).choice.values
        chosen = {name: value for name, value in zip(CHOICES, values, strict=True) if value not in (None, now[name])}
        # Only a choice that changed just now counts: another that the page has not yet set differs too, and nobody
        # chose that.
        if not any(choice_id(name) in ctx.triggered_prop_ids.values() for name in chosen):
            return None
        changes: dict[str, Any] = {name: value or None for name, value in chosen.items()}
        if "cluster" in changes:  # nothing of another cluster fits
            changes |= {"probe": None, "campaign": None, "brush": (), "gpu": ()}
        elif changes.keys() & {"probe", "figure"}:  # the other brushes are of what was shown
            changes["brush"] = tuple(text for text in state.brush if text.startswith("map:"))
        return replace(state, **changes)

    @writing(app, *(Input(name, "clickData") for name in FIGURES), Input(TABLE, "cellClicked"))
    def click(state: Address, *_: Any) -> Address | None:
        fleet = find(state)
        clicked = ctx.triggered[0]["value"]
        if ctx.triggered_id == TABLE:
            cell = clicked or {}
            row = fleet.numbers.get(str(cell.get("rowId"))) if cell.get("colId") == "chosen" else None
        else:
            row = fleet.pointed(str(ctx.triggered_id), clicked)
        if row is None:
            return None
        without = tuple(gpu for gpu in state.gpu if fleet.numbers.get(gpu) != row)
        gpus = without if row in fleet.picked(state) else (*state.gpu, fleet.called(row))
        return replace(state, gpu=gpus[-MOST_GPUS:])


def _hover(app: Dash, figure: str, find: Callable[[Address], FleetView]) -> None:
    name = f"{figure}-tip"

    @app.callback(
        Output(name, "show"),
        Output(name, "bbox"),
        Output(name, "children"),
        Input(figure, "hoverData"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def hover(event: Any, search: str | None) -> Any:
        fleet = find(parse(search)[0])
        row = fleet.pointed(figure, event)
        return (False, no_update, no_update) if row is None else (True, event["points"][0]["bbox"], tip(fleet, row))


PAGE = Page(PATH, "Fleet", (RUNS,), _layout, _register, _ahead)
