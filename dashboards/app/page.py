"""What a page of the dashboard is, and the parts that pages have beside those of `drawing`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dash import State as Also
from dash import dcc, html
from dash.exceptions import PreventUpdate

from ..document import Command
from .drawing import component
from .state import URL as URL

if TYPE_CHECKING:
    from pathlib import Path

    from dash import Dash
    from dash.development.base_component import Component

    from .reading import Reading
    from .state import State

PROBLEM = "problem"
"""Id of the line above each page that says what failed."""


@dataclass(frozen=True)
class Need:
    """A table that must have rows before a page can show something."""

    table: str
    fill: str
    """The command that fills it, after `whorl`: `verdicts --store {store}`."""

    def command(self, store: Path, cluster: str | None = None) -> Component:
        """The command that fills it in a store, or for one cluster of a store; to copy."""
        option = "" if cluster is None else f" --cluster {shlex.quote(cluster)}"
        return component(Command(f"whorl {self.fill.format(store=shlex.quote(str(store)))}{option}"))


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


def following(app: Dash, path: str, *parts: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `app.callback(*parts, **options)`, for a page that follows the address; `path` is that of the page.

    A person who leaves the page changes the address too. Without this, the page would answer that of the next one.
    """

    def add(answer: Callable[..., Any]) -> Callable[..., Any]:
        @app.callback(*parts, Also(URL, "pathname"), **options)
        def answer_here(*arguments: Any) -> Any:
            *values, pathname = arguments
            if (pathname or "").rpartition("/")[2] != path:
                raise PreventUpdate
            return answer(*values)

        return answer

    return add


def heading(title: str, lead: str = "") -> Component:
    """The head of a page, and a sentence under it."""
    return html.Header([html.H1(title), *([html.P(lead, className="soft")] if lead else [])])


def section(title: str, *inside: Any, says: str = "", **attributes: Any) -> Component:
    """A part of a page, under its own head. `attributes` go to the element: `id`."""
    under = [html.P(says, className="soft")] if says else []
    return html.Section([html.H2(title), *under, *inside], **attributes)


def choice(name: str, options: Mapping[str, str], value: str) -> Component:
    """A list of a few texts, of which one is always chosen. `options`: by value, the text."""
    labels = [{"label": label, "value": option} for option, label in options.items()]
    return dcc.Dropdown(labels, value, id=name, clearable=False, searchable=False)


def field(name: str, **properties: Any) -> Component:
    """A field for a short text: a time, the number of a job."""
    return dcc.Input(id=name, type="text", className="when", autoComplete="off", **properties)


def told(*inside: Any, kind: str = "note") -> Component:
    """A box with a sentence: `kind` is "note", "empty" or "problem"."""
    return html.Div(inside, className=f"told {kind}", role="alert" if kind == "problem" else "note")
