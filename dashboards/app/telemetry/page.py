"""The page as a whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dash import html

from ..page import TELEMETRY, Page, heading
from . import controls, live, showing
from .asked import PATH, known

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from ..reading import Reading
    from ..state import State

_SAYS = "Drag across a figure to look closer; double click to go back."


def _layout(reading: Reading, state: State) -> Component:
    return html.Div(
        [heading("Telemetry", _SAYS), controls.inputs(reading, state), live.following_parts(), showing.drawing()],
        className="telemetry",
    )


def _register(app: Dash, reading: Reading) -> None:
    for part in (controls, showing, live):
        part.register(app, reading)


def _ahead(reading: Reading) -> list[Callable[[], object]]:
    return [partial(known, reading), partial(showing.ready, reading)]


PAGE = Page(PATH, "Telemetry", (TELEMETRY,), _layout, _register, _ahead)
