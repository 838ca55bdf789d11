"""What a page of the dashboard is, and the parts that all pages are made of."""

from __future__ import annotations

import logging
import shlex
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dash import State as Also
from dash import dcc, html
from dash.exceptions import PreventUpdate

from ...errors import WhorlError
from ..table import MISSING, cut, minus

if TYPE_CHECKING:
    from pathlib import Path

    from dash import Dash
    from dash.development.base_component import Component

    from ..figures.drawing import Figure
    from .reading import Reading
    from .state import State

log = logging.getLogger(__name__)

URL = "url"
"""Id of the address (`dcc.Location`): its `search` is the state. A page that changes the state writes it there, with
`Output(URL, "search", allow_duplicate=True)`, and follows it with `Input(URL, "search")` in `following`."""
PROBLEM = "problem"
"""Id of the line above each page that says what failed."""


def following(app: Dash, path: str, *parts: Any, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `app.callback(*parts, **more)`, for a page that follows the address; `path` is its own.

    A person who leaves the page changes the address too. Without this, the page would answer that of the next one.
    """

    def add(answer: Callable[..., Any]) -> Callable[..., Any]:
        @app.callback(*parts, Also(URL, "pathname"), **more)
        def asked(*given: Any) -> Any:
            *own, now = given
            if (now or "").rpartition("/")[2] != path:
                raise PreventUpdate
            return answer(*own)

        return answer

    return add


@dataclass(frozen=True)
class Need:
    """A table that must have rows before a page can show something."""

    table: str
    fill: str
    """The command that fills it, after `whorl`: `verdicts --store {store}`."""

    def command(self, store: Path, cluster: str | None = None) -> Component:
        """The command that fills it in a store, or for one cluster of a store; to copy."""
        of = "" if cluster is None else f" --cluster {shlex.quote(cluster)}"
        return command(f"whorl {self.fill.format(store=shlex.quote(str(store)))}{of}")


@dataclass(frozen=True)
class Page:
    """A page. `path` is the last part of its address; the first page has ""."""

    path: str
    title: str
    needs: Sequence[Need]
    layout: Callable[[Reading, State], Component]
    register: Callable[[Dash, Reading], None]
    """Adds its callbacks to the app, once."""
    ahead: Callable[[Reading], Iterable[Callable[[], object]]] = lambda _: ()
    """What of a large store is better read before somebody opens the page."""


RUNS = Need("runs", "probe run --store {store} --suite quick")
TELEMETRY = Need("telemetry", "collect --store {store}")
VERDICTS = Need("judgements", "verdicts --store {store}")


def labelled(label: str) -> dict[str, Any]:
    """What an element is, for who cannot see it: give it as `**labelled("Pages")`."""
    return {"aria-label": label}


def heading(title: str, says: str = "") -> Component:
    """The head of a page, and a sentence under it."""
    return html.Header([html.H1(title), *([html.P(says, className="soft")] if says else [])])


def section(title: str, *inside: Any, says: str = "", **more: Any) -> Component:
    """A part of a page, under its own head. `more` goes to the element: `id`."""
    under = [html.P(says, className="soft")] if says else []
    return html.Section([html.H2(title), *under, *inside], **more)


def tiles(figures: Sequence[tuple[str, str]]) -> Component:
    """A few large figures side by side: each its value and what it is."""
    return html.Dl(
        [html.Div([html.Dt(minus(says)), html.Dd(minus(value))]) for value, says in figures], className="tiles"
    )


def graph(
    figure: Figure | dict[str, Any], label: str, *inside: Any, config: Mapping[str, Any] | None = None, **more: Any
) -> Component:
    """A figure. `label` says what it shows to who cannot see it, and names the file that is saved. `more`: `id`.

    An empty figure, which a callback fills, may be a plain dictionary: Plotly does not check it.
    `config`: what Plotly shall do otherwise than in other figures. `inside`: what stands within it, as a `dcc.Tooltip`.
    """
    settings: Any = {
        "displaylogo": False,
        "responsive": True,
        "modeBarButtonsToRemove": ["autoScale2d"],
        "toImageButtonOptions": {"format": "png", "scale": 2, "filename": "whorl"},
        **(config or {}),
    }
    drawn = dcc.Graph(figure=figure, config=settings, **more)
    svg = html.Button(
        "SVG", type="button", className="svg", title="Save this figure as SVG", **labelled(f"SVG: {label}")
    )
    return html.Div([drawn, svg, *inside], role="group", className="figure", **labelled(label))


def prose(text: str) -> Component:
    """A sentence with what stands between two backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one that has no partner is a part of a name
        return html.Span(minus(text))
    return html.Span([html.Code(part) if place % 2 else minus(part) for place, part in enumerate(parts)])


def told(*inside: Any, kind: str = "note") -> Component:
    """A box with a sentence: `kind` is "note", "empty" or "problem"."""
    return html.Div(inside, className=f"told {kind}", role="alert" if kind == "problem" else "note")


def failure(error: Exception) -> str:
    """What a person is told of an error; the log says more of one that nobody expected."""
    if isinstance(error, WhorlError):
        return cut(str(error))
    at = traceback.extract_tb(error.__traceback__)[-1]
    log.error("a page failed: %s: %s (%s, line %s)", type(error).__name__, error, at.filename, at.lineno)
    log.debug("a page failed", exc_info=error)
    return f"This did not work ({type(error).__name__}). The log of whorl dashboard says more. Load the page again."


def command(text: str) -> Component:
    """A command to copy."""
    return html.Pre(html.Code(text), className="command", tabIndex=0)


def rows(
    head: Sequence[str],
    cells: Sequence[Sequence[Any]],
    *,
    right: Sequence[int] = (),
    wrapped: Sequence[int] = (),
    cards: bool = False,
    label: str,
) -> Component:
    """A small table. None is shown as n/a. Large ones are a dash-ag-grid. `wrapped`: columns of sentences. `cards`: on
    a telephone, each row is a card."""

    def look(place: int) -> str:
        return "r" if place in right else "w" if place in wrapped else ""

    def shown(cell: Any) -> Any:
        return MISSING if cell is None else minus(cell) if isinstance(cell, str) else cell

    top = [html.Th(name, scope="col", className=look(place)) for place, name in enumerate(head)]
    named: list[dict[str, Any]] = [{"data-head": name} if cards else {} for name in head]
    body = [
        html.Tr([html.Td(shown(cell), className=look(place), **named[place]) for place, cell in enumerate(row)])
        for row in cells
    ]
    table = html.Table([html.Thead(html.Tr(top)), html.Tbody(body)])
    return html.Div(table, className="wide cards" if cards else "wide", role="region", tabIndex=0, **labelled(label))
