"""The page SQL: a query, its answer as a table or a figure, files of it, and the tables that can be asked.

A query reads the store and nothing else; `console` limits what it may use. `assets/sql.js` is what the browser does.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from dash import ClientsideFunction, Input, Output, State, dcc, html, no_update, set_props
from flask import Response, request, send_file

from ...analysis.example_queries import EXAMPLES
from ...errors import WhorlError
from ...store.catalog import columns_of_views
from ...store.schema import TABLES
from ...store.schema import Table as Schema
from ...store.views import VIEWS, View
from ..document import Column, Table
from ..figures.queried import KINDS, queried
from ..words import capital, many, quantity
from .console import AT_ONCE, Console
from .grid import GridOptions, grid
from .page import Page, graph, heading, labelled, told
from .state import URL, parse

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from .console import KeptAnswer
    from .reading import Reading
    from .state import State as Address
    from .worker import FirstRows, Form

_FILE = "sql-file"  # where a browser gets the files
_FORMS = ("table", *KINDS)
"""How an answer is shown: a table or a figure."""
_AXES = {"x": "Horizontal", "y": "Vertical", "colour": "Colour"}


def _layout(reading: Reading, state: Address) -> Component:
    limits = reading.limits
    lead = (
        f"A query reads this store and nothing else. It may take {limits.seconds:g} s and {limits.memory_mb:,} MB of "
        f"memory; {AT_ONCE} queries run at once. Ctrl+Enter runs it. A link with a query shows it, and waits for Run."
    )
    chart = {"chart": state.chart, "x": state.x, "y": state.y, "colour": state.colour}
    return html.Div(
        [
            heading("SQL", lead),
            dcc.Store(id="sql-who", data=secrets.token_hex(8)),
            dcc.Store(id="sql-answer"),
            dcc.Store(id="sql-wanted", data=chart),
            dcc.Store(id="sql-ran", storage_type="session"),
            dcc.Store(id="sql-owns", storage_type="local", data={}),
            dcc.Store(id="sql-listed"),
            html.Div([html.Div([*_editor(state), _result()]), _tables()], className="console"),
        ]
    )


def _button(text: str, name: str, **attributes: Any) -> Component:
    return html.Button(text, id=name, type="button", n_clicks=0, **attributes)


def _unseen(label: str, field: Component) -> Component:
    """A field whose label only a screen reader says."""
    return html.Label([html.Span(label, className="unseen"), field])


def _editor(state: Address) -> list[Component]:
    examples: Any = [{"label": example.title, "value": place} for place, example in enumerate(EXAMPLES)]
    query = state.query or EXAMPLES[0].query
    text = dcc.Textarea(id="sql-text", value=query, className="editor", spellCheck=False, maxLength=20_000)
    chosen = dcc.Dropdown(examples, id="sql-example", placeholder="Choose an example")
    own_queries = dcc.Dropdown([], id="sql-own", placeholder="Kept in this browser")
    name = dcc.Input(id="sql-name", type="text", placeholder="Name", maxLength=60)
    return [
        html.Div([html.Label(["Example", chosen]), html.Label(["My queries", own_queries])], className="choices"),
        _unseen("The query", text),
        html.Div(
            [
                _button("Run", "sql-run", className="main", title="Ctrl+Enter"),
                _button("Stop", "sql-stop", disabled=True),
                html.Button("Copy link", type="button", className="copy-query"),
                html.Span(className="soft", role="status", id="sql-copied"),
                html.Span(
                    [
                        _unseen("Name of my query", name),
                        _button("Keep", "sql-keep", title="Keep it in this browser"),
                        _button("Forget", "sql-drop", title="Forget the one that is chosen"),
                    ],
                    className="keep",
                ),
            ],
            className="buttons",
        ),
    ]


def _result() -> Component:
    forms: Any = [{"label": form.capitalize(), "value": form} for form in _FORMS]
    radios = dcc.RadioItems(forms, "table", id="sql-view", inline=True, className="views")
    axes = [
        html.Label([text, dcc.Dropdown([], id=f"sql-{axis}", clearable=axis == "colour")], id=f"sql-{axis}-label")
        for axis, text in _AXES.items()
    ]
    return html.Div(
        [
            html.Div("Running...", id="sql-busy", hidden=True, role="status", className="told note"),
            html.Div(id="sql-said", role="status"),
            html.Div(
                [
                    html.Div(radios, role="group", **labelled("Show the answer as")),
                    html.Div(axes, id="sql-axes", className="choices", hidden=True),
                    html.Div(id="sql-chart"),
                    html.Div(id="sql-table"),
                    html.P(id="sql-files"),
                ],
                id="sql-result",
                hidden=True,
            ),
        ]
    )


def _tables() -> Component:
    """Every view and table with its columns. The browser draws them: as components of Dash they would take seconds."""
    find = dcc.Input(id="sql-find", type="search", placeholder="Find a table or column")
    parts = [html.H2("Tables"), _unseen("Find a table or column", find), html.Div(id="sql-tables")]
    return html.Aside(parts, className="tables", tabIndex=0, **labelled("Tables and their columns"))


def _relations() -> list[dict[str, Any]]:
    """What `_tables` lists."""
    views = columns_of_views()
    relations: tuple[Schema | View, ...] = (*VIEWS, *TABLES)
    return [
        {
            "name": relation.name,
            "row": relation.row,
            "view": relation.name in views,
            "columns": [
                {"name": column.name, "type": column.type, "unit": column.unit, "meaning": column.description}
                for column in (relation.columns if isinstance(relation, Schema) else views[relation.name])
            ],
        }
        for relation in relations
    ]


def _summary(first_rows: FirstRows, seconds: float) -> Component:
    rows = len(first_rows.rows)
    if first_rows.total is None:
        counted = f"The first {rows:,} rows of more than {first_rows.points.height:,}."
    elif rows < first_rows.total:
        counted = f"The first {rows:,} of {many(first_rows.total, 'row')}."
    else:
        counted = f"{many(rows, 'row')}."
    sentences = [f"{counted} {seconds:.1f} s."]
    if first_rows.all_columns > len(first_rows.columns):
        sentences.append(f"The first {len(first_rows.columns)} of {first_rows.all_columns:,} columns.")
    if first_rows.cut:
        sentences.append(f"{many(first_rows.cut, 'long value')} cut: a file has them whole.")
    return html.P(" ".join(sentences), className="soft")


def _answer_table(first_rows: FirstRows) -> Component:
    columns = [
        Column(column.name, "number" if column.numeric else "text", explains=column.type)
        for column in first_rows.columns
    ]
    return grid(Table(columns, first_rows.rows, "The answer"), options=GridOptions(height=520))


def _axes_of(first_rows: FirstRows, wishes: Mapping[str, Any]) -> dict[str, tuple[list[str], str | None]]:
    """By axis, the columns that can be drawn on it, and the one that is."""
    columns = first_rows.points.columns
    numbers = [column.name for column in first_rows.columns if column.numeric]
    x = wishes.get("x") if wishes.get("x") in columns else next(iter(columns), None)
    y = wishes.get("y") if wishes.get("y") in numbers else next((name for name in numbers if name != x), None)
    return {
        "x": (columns, x),
        "y": (numbers, y),
        "colour": (columns, wishes.get("colour") if wishes.get("colour") in columns else None),
    }


def _chart(answer: KeptAnswer, kind: str, columns: Mapping[str, str | None]) -> Component:
    points = answer.points
    x, y, colour = (columns[axis] if columns[axis] in points.columns else None for axis in _AXES)
    if x is None or (y is None and kind != "histogram"):
        return told(html.P("Choose the columns to draw: numbers, times or texts."), kind="empty")
    figure, sentence = queried(points, kind, x=x, y=y, colour=colour)
    sentence += "" if answer.complete else f" Of the answer, the first {points.height:,} rows can be drawn."
    label = f"{kind}: {x}" if kind == "histogram" else f"{kind}: {y} by {x}"
    return html.Div([graph(figure, label), html.P(sentence, className="soft")])


def _search(state: Address, kind: str, columns: Mapping[str, str | None]) -> str:
    """The part of an address that says what is drawn."""
    if kind == "table":
        return replace(state, chart=None, x=None, y=None, colour=None).search()
    y = None if kind == "histogram" else columns["y"]
    return replace(state, chart=kind, x=columns["x"], y=y, colour=columns["colour"]).search()


def _register(app: Dash, reading: Reading) -> None:
    console = Console(reading.store.root, reading.limits)
    _serve_files(app, console)
    _do_in_the_browser(app)
    drawn = [State(f"sql-{name}", "value") for name in ("view", *_AXES)]

    @app.callback(Output("sql-listed", "data"), Input("sql-who", "data"))
    def explain(_: str) -> list[dict[str, Any]]:
        console.warm()
        return _relations()

    @app.callback(
        Output("sql-said", "children"),
        Output("sql-result", "hidden"),
        Output("sql-table", "children"),
        Output("sql-answer", "data"),
        Output(URL, "search", allow_duplicate=True),
        Input("sql-run", "n_clicks"),
        State("sql-text", "value"),
        State("sql-who", "data"),
        State("sql-wanted", "data"),
        State(URL, "search"),
        *drawn,
        prevent_initial_call=True,
        running=[
            (Output("sql-run", "disabled"), True, False),
            (Output("sql-stop", "disabled"), False, True),
            (Output("sql-busy", "hidden"), False, True),
            (Output("sql-result", "className"), "waiting", ""),
        ],
    )
    def run(clicks: int, query: str | None, visitor: str, wishes: Any, search: str, *now: Any) -> Any:
        if not clicks:
            return (no_update,) * 5
        began, query = time.monotonic(), query or ""
        state, _ = parse(search)
        wishes = dict(zip(("chart", *_AXES), now, strict=True)) | {
            name: value for name, value in (wishes or {}).items() if value
        }
        try:
            name, first_rows = console.show(query, visitor)
        except WhorlError as error:
            problem = told(html.P(f"{capital(str(error))}."), kind="problem")
            return problem, True, None, None, replace(state, query=query).search()
        axes = _axes_of(first_rows, wishes)
        kind = wishes["chart"] if wishes["chart"] in _FORMS else "table"
        for axis, (columns, chosen) in axes.items():
            set_props(f"sql-{axis}", {"options": columns, "value": chosen})
        set_props("sql-view", {"value": kind})
        set_props("sql-wanted", {"data": None})
        links = [" ", html.A("CSV", href=f"{_FILE}?name={name}&form=csv"), ", "]
        links.append(html.A("Parquet", href=f"{_FILE}?name={name}&form=parquet"))
        largest = quantity(reading.limits.file_bytes, "B")
        set_props("sql-files", {"children": [f"Save the whole answer, up to {largest}:", *links]})
        set_props("sql-ran", {"data": query})
        target = _search(replace(state, query=query), kind, {axis: chosen for axis, (_, chosen) in axes.items()})
        return _summary(first_rows, time.monotonic() - began), False, _answer_table(first_rows), name, target

    @app.callback(Input("sql-stop", "n_clicks"), State("sql-who", "data"), prevent_initial_call=True)
    def stop(_: int, visitor: str) -> None:
        console.stop(visitor)

    @app.callback(
        Output("sql-chart", "children"),
        Output("sql-table", "hidden"),
        Output("sql-axes", "hidden"),
        Output("sql-y-label", "hidden"),
        Output(URL, "search", allow_duplicate=True),
        Input("sql-answer", "data"),
        *[Input(f"sql-{name}", "value") for name in ("view", *_AXES)],
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def draw(name: str | None, view: str, *values: Any) -> Any:
        if name is None:
            return (no_update,) * 5
        *columns, search = values
        chosen = dict(zip(_AXES, columns, strict=True))
        target, is_table = _search(parse(search)[0], view, chosen), view == "table"
        figure = None if is_table else _chart(console.find(name), view, chosen)
        return figure, not is_table, is_table, view == "histogram", target if target != (search or "") else no_update


def _serve_files(app: Dash, console: Console) -> None:
    """Let browsers fetch the files of whole answers."""

    def file() -> Response:
        form: Form = "parquet" if request.args.get("form") == "parquet" else "csv"
        try:
            whole = console.file(request.args.get("name", ""), form)
        except WhorlError as error:
            sentence = f"{capital(str(error))}.\n"
            return Response(sentence, HTTPStatus.BAD_REQUEST, content_type="text/plain; charset=utf-8")
        return send_file(whole, as_attachment=True, download_name=f"answer.{form}")

    app.server.add_url_rule(f"/{_FILE}", _FILE, file)


def _do_in_the_browser(app: Dash) -> None:
    """What functions of `assets/sql.js` answer."""

    def browser(name: str, *parts: Any, first: bool = False) -> None:
        app.clientside_callback(ClientsideFunction("sql", name), *parts, prevent_initial_call=not first)  # type: ignore[no-untyped-call]

    examples = [
        {"query": example.query, "chart": example.chart, "x": example.x, "y": example.y, "colour": example.colour}
        for example in EXAMPLES
    ]
    app.clientside_callback(  # type: ignore[no-untyped-call]
        f"place => window.dash_clientside.sql.example(place, {json.dumps(examples)})",
        Output("sql-text", "value"),
        Output("sql-wanted", "data", allow_duplicate=True),
        Input("sql-example", "value"),
        prevent_initial_call=True,
    )
    text, chosen, owns = Output("sql-text", "value", allow_duplicate=True), "sql-own", State("sql-owns", "data")
    drawn = ("view", *_AXES)
    browser("own", text, Output("sql-name", "value"), Input(chosen, "value"), owns)
    browser(
        "follow",
        text,
        *[Output(f"sql-{name}", "value", allow_duplicate=True) for name in drawn],
        Input(URL, "search"),
        State("sql-answer", "data"),
        *[State(f"sql-{name}", "value") for name in ("text", *drawn)],
    )
    browser(
        "keep",
        Output("sql-owns", "data"),
        Output(chosen, "options", allow_duplicate=True),
        Output(chosen, "value"),
        Input("sql-keep", "n_clicks"),
        Input("sql-drop", "n_clicks"),
        *[State(f"sql-{name}", "value") for name in ("name", "text", "own")],
        owns,
    )
    browser("tables", Input("sql-listed", "data"), Input("sql-find", "value"))
    browser("names", Output(chosen, "options"), Input("sql-owns", "data"), first=True)
    browser(
        "again",
        Output("sql-run", "n_clicks"),
        Input("sql-ran", "modification_timestamp"),
        State("sql-ran", "data"),
        State("sql-text", "value"),
        State("sql-run", "n_clicks"),
        first=True,
    )


PAGE = Page("sql", "SQL", (), _layout, _register)
