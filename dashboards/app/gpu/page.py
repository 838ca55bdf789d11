"""The page as a whole: what stands where, and what follows the address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dash import Dash, Input, Output, dcc, html, no_update
from dash import State as Also

from ....errors import WhorlError
from ..page import URL, Need, Page, following, told
from ..state import State, parse
from . import chooser, sections
from .asked import Row, ahead, row_of

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ..reading import Reading

PATH = "gpu"
_PARTS: dict[str, tuple[Callable[[Reading, Row, State], Any], tuple[str, ...]]] = {
    "gpu-head": (sections.head, ()),
    "gpu-bands": (sections.beside_peers, ("figure",)),
    "gpu-past": (sections.its_past, ("probe",)),
    "gpu-clock": (sections.its_clock, ("since", "until")),
    "gpu-runs": (sections.its_runs, ()),
    "gpu-alike": (sections.like_it, ()),
}
"""By id: what makes a part, and the names in the address that it depends on besides the GPU."""
_TITLE, _CHOOSER = "gpu-title", "gpu-chooser"


def _layout(*_: Any) -> Component:
    parts: list[Component] = [
        dcc.Loading(
            html.Div(id=name, className="part"), delay_show=400, type="dot", overlay_style={"visibility": "visible"}
        )
        for name in _PARTS
    ]
    parts += [dcc.Store(_shown(name)) for name in (_CHOOSER, *_PARTS)]
    return html.Div([html.H1("GPU", id=_TITLE), html.Div(id=_CHOOSER), *parts], className="gpu")


def _register(app: Dash, reading: Reading) -> None:
    chooser.register(app, reading)

    @following(
        app,
        PATH,
        Output(_TITLE, "children"),
        Output(_CHOOSER, "children"),
        Output(_shown(_CHOOSER), "data"),
        Input(URL, "search"),
        Also(_shown(_CHOOSER), "data"),
    )
    def choose(search: str | None, before: Any) -> tuple[Any, Any, Any]:
        state, _ = parse(search)
        row, _ = _row(reading, state)
        asked = {"gpu": None if row is None else [row["cluster"], row["gpu"]], "cluster": state.cluster}
        if asked == before:  # a list that is open stays open
            return no_update, no_update, no_update
        title = "GPU" if row is None else f"GPU {row['name']}"
        return title, chooser.chooser(reading, row, state), asked

    def follow(name: str, make: Callable[[Reading, Row, State], Any], fields: tuple[str, ...]) -> None:
        @following(
            app,
            PATH,
            Output(name, "children"),
            Output(_shown(name), "data"),
            Input(URL, "search"),
            Also(_shown(name), "data"),
        )
        def show(search: str | None, before: Any) -> tuple[Any, Any]:
            state, _ = parse(search)
            row, wrong = _row(reading, state)
            asked: dict[str, Any] = {"fields": [getattr(state, one) for one in fields], "wrong": wrong}
            asked["gpu"] = None if row is None else [row["cluster"], row["gpu"]]
            if asked == before:
                return no_update, no_update
            if row is not None:
                return make(reading, row, state), asked
            if name != "gpu-head":
                return None, asked
            nothing = told(html.P(wrong), kind="problem") if wrong else sections.nothing_chosen(reading)
            return nothing, asked

    for name, (make, fields) in _PARTS.items():
        follow(name, make, fields)

    def control(name: str, changed: Callable[[State, str], State]) -> None:
        @app.callback(
            Output(URL, "search", allow_duplicate=True),
            Input(name, "value"),
            Also(sections.is_shown(name), "data"),
            Also(URL, "search"),
            prevent_initial_call=True,
        )
        def change(value: str | None, shown: str | None, search: str | None) -> Any:
            if value is None or value == shown:  # it was just drawn
                return no_update
            return changed(parse(search)[0], value).search()

    control(sections.FIGURE, lambda state, value: replace(state, figure=value))
    control(sections.WORKLOAD, lambda state, value: replace(state, probe=value))


def _shown(name: str) -> str:
    """The id of what a part shows."""
    return f"{name}-shown"


def _row(reading: Reading, state: State) -> tuple[Row | None, str]:
    """The GPU of the address, and why there is none."""
    try:
        return row_of(reading, state), ""
    except WhorlError as error:
        return None, str(error)


PAGE = Page(PATH, "GPU", (Need("gpus", "probe run --store {store} --suite quick"),), _layout, _register, ahead)
