"""What happens on the page: a query runs, its answer is drawn and saved."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import ClientsideFunction, Input, Output, State, ctx, html, no_update

from ....analysis.example_queries import EXAMPLES
from ....errors import WhorlError
from ....store.catalog import columns_of_views
from ....store.schema import TABLES, Table, View
from ....store.views import VIEWS
from ...figures.queried import queried
from ...table import many
from .. import grid
from ..page import URL, graph, told
from ..state import parse
from . import console as on
from .answers import Answers

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from ..reading import Reading
    from ..state import State as Asked
    from .worker import FirstRows
    from .writing import Form


def _summary(shown: FirstRows, seconds: float) -> list[Component]:
    rows = len(shown.rows)
    if shown.total is None:
        counted = f"The first {rows:,} rows of more; to count them all takes too long."
    elif rows < shown.total:
        counted = f"The first {rows:,} of {many(shown.total, 'row')}."
    else:
        counted = f"{many(rows, 'row')}."
    said = [f"{counted} {seconds:.1f} s."]
    if shown.all_columns > len(shown.columns):
        said.append(f"The first {len(shown.columns)} of {shown.all_columns:,} columns.")
    if shown.cut:
        said.append(f"{many(shown.cut, 'long value')} cut: a file has them whole.")
    return [html.P(" ".join(said), className="soft")]


def _table(shown: FirstRows) -> Component:
    names = [f"c{place}" for place in range(len(shown.columns))]
    frame = pl.DataFrame(shown.rows, schema=dict.fromkeys(names, pl.String), orient="row")
    columns = [
        grid.Column(name, column.name, kind="exact" if column.numeric else "exact text", says=column.type)
        for name, column in zip(names, shown.columns, strict=True)
    ]
    return grid.table("sql-grid", columns, frame, label="The answer", saved=False, height=520)


def _fitting(shown: FirstRows, wanted: dict[str, Any]) -> tuple[list[str], list[str], dict[str, str | None]]:
    """The columns that can be drawn, those of them that are numbers, and which of them are drawn."""
    drawn = [column.name for column in shown.columns if column.name in shown.drawable]
    numbers = [column.name for column in shown.columns if column.numeric and column.name in shown.drawable]
    x = wanted.get("x") if wanted.get("x") in drawn else next(iter(drawn), None)
    y = wanted.get("y") if wanted.get("y") in numbers else next((one for one in numbers if one != x), None)
    colour = wanted.get("colour") if wanted.get("colour") in drawn else None
    return drawn, numbers, {"x": x, "y": y, "colour": colour}


def _drawn(answers: Answers, name: str, kind: str, chosen: dict[str, str | None]) -> Component:
    answer = answers.find(name)
    points = answer.points()
    x, y, colour = (chosen[one] if chosen[one] in points.columns else None for one in ("x", "y", "colour"))
    if x is None or (y is None and kind != "histogram"):
        return told(html.P("Choose the columns to draw: numbers, times or texts."), kind="empty")
    figure, said = queried(points, kind, x=x, y=y, colour=colour)
    said += "" if answer.whole else f" Of the answer, the first {points.height:,} rows can be drawn."
    what = f"{x}" if kind == "histogram" else f"{y} by {x}"
    return html.Div([graph(figure, f"{kind}: {what}"), html.P(said, className="soft")])


def _address(asked: Asked, kind: str, chosen: dict[str, str | None]) -> str:
    """The part of an address that says what is drawn."""
    if kind == "table":
        return replace(asked, chart=None, x=None, y=None, colour=None).search()
    y = None if kind == "histogram" else chosen["y"]
    return replace(asked, chart=kind, x=chosen["x"], y=y, colour=chosen["colour"]).search()


def register(app: Dash, reading: Reading) -> None:
    answers = Answers(reading.store.root, reading.limits)
    answers.install(app.server)

    @app.callback(Output(on.LISTED, "data"), Input(on.WHO, "data"))
    def explain(_: str) -> list[dict[str, Any]]:
        answers.console.warm()
        views = columns_of_views()
        relations: tuple[Table | View, ...] = (*VIEWS, *TABLES)
        return [
            {
                "name": relation.name,
                "row": relation.row,
                "view": relation.name in views,
                "columns": [
                    {"name": column.name, "type": column.type, "unit": column.unit, "meaning": column.description}
                    for column in (relation.columns if isinstance(relation, Table) else views[relation.name])
                ],
            }
            for relation in relations
        ]

    @app.callback(
        Output(on.SAID, "children"),
        Output(on.RESULT, "hidden"),
        Output(on.TABLE, "children"),
        Output(on.ANSWER, "data"),
        Output(on.RAN, "data"),
        Output(on.VIEW, "value"),
        Output(on.X, "options"),
        Output(on.X, "value"),
        Output(on.Y, "options"),
        Output(on.Y, "value"),
        Output(on.COLOUR, "options"),
        Output(on.COLOUR, "value"),
        Output(on.WANTED, "data"),
        Output(on.FILE, "children"),
        Output(URL, "search", allow_duplicate=True),
        Input(on.RUN, "n_clicks"),
        State(on.TEXT, "value"),
        State(on.WHO, "data"),
        State(on.WANTED, "data"),
        State(on.VIEW, "value"),
        State(on.X, "value"),
        State(on.Y, "value"),
        State(on.COLOUR, "value"),
        State(URL, "search"),
        prevent_initial_call=True,
        running=[
            (Output(on.RUN, "disabled"), True, False),
            (Output(on.STOP, "disabled"), False, True),
            (Output(on.BUSY, "hidden"), False, True),
            (Output(on.RESULT, "className"), "waiting", ""),
        ],
    )
    def run(
        clicks: int, query: str | None, who: str, wanted: Any, view: str, x: Any, y: Any, colour: Any, search: str
    ) -> Any:
        if not clicks:
            return (no_update,) * 15
        began, query = time.monotonic(), query or ""
        asked, _ = parse(search)
        now = {"chart": view, "x": x, "y": y, "colour": colour}
        wanted = {**now, **{name: value for name, value in (wanted or {}).items() if value}}
        try:
            name, shown = answers.ask(query, who)
        except WhorlError as error:
            problem = told(html.P(f"{str(error)[:1].upper()}{str(error)[1:]}."), kind="problem")
            where = replace(asked, query=query).search()
            return problem, True, None, None, *(no_update,) * 10, where
        columns, numbers, chosen = _fitting(shown, wanted)
        kind = wanted["chart"] if wanted["chart"] in on.VIEWS else "table"
        where = _address(replace(asked, query=query), kind, chosen)
        return (
            _summary(shown, time.monotonic() - began), False, _table(shown), name, query, kind,
            columns, chosen["x"], numbers, chosen["y"], columns, chosen["colour"], None, None, where,
        )  # fmt: skip

    @app.callback(Input(on.STOP, "n_clicks"), State(on.WHO, "data"), prevent_initial_call=True)
    def stop(_: int, who: str) -> None:
        answers.console.stop(who)

    @app.callback(
        Output(on.CHART, "children"),
        Output(on.TABLE, "hidden"),
        Output(on.AXES, "hidden"),
        Output(f"{on.Y}-label", "hidden"),
        Output(URL, "search", allow_duplicate=True),
        Input(on.ANSWER, "data"),
        Input(on.VIEW, "value"),
        Input(on.X, "value"),
        Input(on.Y, "value"),
        Input(on.COLOUR, "value"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def draw(name: str | None, view: str, x: str | None, y: str | None, colour: str | None, search: str) -> Any:
        if name is None:
            return (no_update,) * 5
        chosen = {"x": x, "y": y, "colour": colour}
        asked, _ = parse(search)
        where, table = _address(asked, view, chosen), view == "table"
        shown = None if table else _drawn(answers, name, view, chosen)
        return shown, not table, table, view == "histogram", where if where != (search or "") else no_update

    @app.callback(
        Output(on.FILE, "children", allow_duplicate=True),
        Output(on.FETCH, "data"),
        Input(on.CSV, "n_clicks"),
        Input(on.PARQUET, "n_clicks"),
        State(on.ANSWER, "data"),
        State(on.WHO, "data"),
        prevent_initial_call=True,
        running=[
            (Output(on.CSV, "disabled"), True, False),
            (Output(on.PARQUET, "disabled"), True, False),
            (Output(on.SAVING, "hidden"), False, True),
        ],
    )
    def save(csv: int, parquet: int, name: str | None, who: str) -> Any:
        if name is None or not (csv or parquet):
            return no_update, no_update
        form: Form = "csv" if ctx.triggered_id == on.CSV else "parquet"
        try:
            where, written = answers.write(name, form, who)
        except WhorlError as error:
            return html.Span(str(error), className="problem"), no_update
        size = f"{written.size / 1e6:,.1f} MB" if written.size >= 1e5 else f"{written.size / 1e3:,.1f} kB"
        said = f"{many(written.rows, 'row')}, {size}"
        return [html.A(f"answer.{form}", href=where, download=""), f" {said}"], where

    def browser(name: str, *parts: Any) -> None:
        """Done in the browser, by a function of assets/sql.js."""
        app.clientside_callback(ClientsideFunction("sql", name), *parts, prevent_initial_call=True)  # type: ignore[no-untyped-call]

    examples = [
        {"query": one.query, "chart": one.chart, "x": one.x, "y": one.y, "colour": one.colour} for one in EXAMPLES
    ]
    app.clientside_callback(  # type: ignore[no-untyped-call]
        f"place => window.dash_clientside.sql.example(place, {json.dumps(examples)})",
        Output(on.TEXT, "value"),
        Output(on.WANTED, "data", allow_duplicate=True),
        Input(on.EXAMPLE, "value"),
        prevent_initial_call=True,
    )
    browser(
        "own",
        Output(on.TEXT, "value", allow_duplicate=True),
        Output(on.NAME, "value"),
        Input(on.OWN, "value"),
        State(on.OWNS, "data"),
    )
    browser(
        "follow",
        Output(on.TEXT, "value", allow_duplicate=True),
        Output(on.VIEW, "value", allow_duplicate=True),
        Output(on.X, "value", allow_duplicate=True),
        Output(on.Y, "value", allow_duplicate=True),
        Output(on.COLOUR, "value", allow_duplicate=True),
        Input(URL, "search"),
        State(on.ANSWER, "data"),
        State(on.TEXT, "value"),
        State(on.VIEW, "value"),
        State(on.X, "value"),
        State(on.Y, "value"),
        State(on.COLOUR, "value"),
    )
    browser(
        "keep",
        Output(on.OWNS, "data"),
        Output(on.OWN, "options", allow_duplicate=True),
        Output(on.OWN, "value"),
        Input(on.KEEP, "n_clicks"),
        Input(on.DROP, "n_clicks"),
        State(on.NAME, "value"),
        State(on.TEXT, "value"),
        State(on.OWN, "value"),
        State(on.OWNS, "data"),
    )
    browser("fetch", Input(on.FETCH, "data"))
    browser("tables", Input(on.LISTED, "data"), Input(on.FIND, "value"))
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("sql", "names"), Output(on.OWN, "options"), Input(on.OWNS, "data")
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("sql", "again"),
        Output(on.RUN, "n_clicks"),
        Input(on.RAN, "modification_timestamp"),
        State(on.RAN, "data"),
        State(on.TEXT, "value"),
        State(on.RUN, "n_clicks"),
    )
