"""What stands on the page: the query, its answer, and the tables that can be asked."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from dash import dcc, html

from ....analysis.example_queries import EXAMPLES
from ...figures.queried import KINDS
from ..page import heading, labelled
from .processes import AT_ONCE

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading
    from ..state import State
    from .processes import QueryLimits

TEXT, RUN, STOP, BUSY, SAID = "sql-text", "sql-run", "sql-stop", "sql-busy", "sql-said"
WHO, ANSWER, RAN, WANTED = "sql-who", "sql-answer", "sql-ran", "sql-wanted"
EXAMPLE, OWN, OWNS, NAME, KEEP, DROP = "sql-example", "sql-own", "sql-owns", "sql-name", "sql-keep", "sql-drop"
RESULT, TABLE, CHART, AXES = "sql-result", "sql-table", "sql-chart", "sql-axes"
VIEW, X, Y, COLOUR = "sql-view", "sql-x", "sql-y", "sql-colour"
CSV, PARQUET, SAVING, FILE, FETCH = "sql-csv", "sql-parquet", "sql-saving", "sql-file", "sql-fetch"
TABLES, LISTED, FIND = "sql-tables", "sql-listed", "sql-find"
VIEWS = ("table", *KINDS)


def layout(reading: Reading, state: State) -> Component:
    return html.Div(
        [
            heading("SQL", _about(reading.limits)),
            dcc.Store(id=WHO, data=secrets.token_hex(8)),
            dcc.Store(id=ANSWER),
            dcc.Store(id=WANTED, data={"chart": state.chart, "x": state.x, "y": state.y, "colour": state.colour}),
            dcc.Store(id=RAN, storage_type="session"),
            dcc.Store(id=OWNS, storage_type="local", data={}),
            dcc.Store(id=FETCH),
            dcc.Store(id=LISTED),
            html.Div([html.Div([*_editor(state), _result(reading.limits)]), _beside()], className="console"),
        ]
    )


def _about(limits: QueryLimits) -> str:
    return (
        f"A query reads this store and nothing else. It may take {limits.seconds:g} s and {limits.memory_mb:,} MB of "
        f"memory; {AT_ONCE} queries run at once. Ctrl+Enter runs it. A link with a query shows it, and waits for Run."
    )


def _editor(state: State) -> list[Component]:
    examples: Any = [{"label": one.title, "value": place} for place, one in enumerate(EXAMPLES)]
    text = dcc.Textarea(
        id=TEXT, value=state.query or EXAMPLES[0].query, className="editor", spellCheck=False, maxLength=20_000
    )
    return [
        html.Div(
            [
                html.Label(["Example", dcc.Dropdown(examples, id=EXAMPLE, placeholder="Choose an example")]),
                html.Label(["My queries", dcc.Dropdown([], id=OWN, placeholder="Kept in this browser")]),
            ],
            className="choices",
        ),
        html.Label([html.Span("The query", className="unseen"), text]),
        html.Div(
            [
                html.Button("Run", id=RUN, type="button", n_clicks=0, className="main", title="Ctrl+Enter"),
                html.Button("Stop", id=STOP, type="button", n_clicks=0, disabled=True),
                html.Button("Copy link", type="button", className="copy-query"),
                html.Span(className="soft", role="status", id="sql-copied"),
                html.Span(
                    [
                        html.Label(
                            [
                                html.Span("Name of my query", className="unseen"),
                                dcc.Input(id=NAME, type="text", placeholder="Name", maxLength=60),
                            ]
                        ),
                        html.Button("Keep", id=KEEP, type="button", n_clicks=0, title="Keep it in this browser"),
                        html.Button(
                            "Forget", id=DROP, type="button", n_clicks=0, title="Forget the one that is chosen"
                        ),
                    ],
                    className="keep",
                ),
            ],
            className="buttons",
        ),
    ]


def _result(limits: QueryLimits) -> Component:
    views: Any = [{"label": one.capitalize(), "value": one} for one in VIEWS]
    axes = [("Horizontal", X), ("Vertical", Y), ("Colour", COLOUR)]
    most = f"{limits.file_bytes / 1e6:,g} MB"
    return html.Div(
        [
            html.Div("Running...", id=BUSY, hidden=True, role="status", className="told note"),
            html.Div(id=SAID, role="status"),
            html.Div(
                [
                    html.Div(
                        [
                            html.Div(
                                dcc.RadioItems(views, "table", id=VIEW, inline=True, className="views"),
                                role="group",
                                **labelled("Show the answer as"),
                            ),
                            html.Div(
                                [
                                    html.Label(
                                        [says, dcc.Dropdown([], id=name, clearable=name == COLOUR)], id=f"{name}-label"
                                    )
                                    for says, name in axes
                                ],
                                id=AXES,
                                className="choices",
                                hidden=True,
                            ),
                        ]
                    ),
                    html.Div(id=CHART),
                    html.Div(id=TABLE),
                    html.Div(
                        [
                            html.Span(f"Save the whole answer, up to {most}:"),
                            html.Button("CSV", id=CSV, type="button", n_clicks=0),
                            html.Button("Parquet", id=PARQUET, type="button", n_clicks=0),
                            html.Span("Writing the file...", id=SAVING, hidden=True, className="soft"),
                            html.Span(id=FILE, role="status"),
                        ],
                        className="buttons",
                    ),
                ],
                id=RESULT,
                hidden=True,
            ),
        ]
    )


def _beside() -> Component:
    """Every view and table with its columns. The browser draws them: as components of Dash they would take seconds."""
    return html.Aside(
        [
            html.H2("Tables"),
            html.Label(
                [
                    html.Span("Find a table or column", className="unseen"),
                    dcc.Input(id=FIND, type="search", placeholder="Find a table or column"),
                ]
            ),
            html.Div(id=TABLES),
        ],
        className="tables",
        tabIndex=0,
        **labelled("Tables and their columns"),
    )
