"""What a page of the dashboard is, and how parts of documents are drawn on it: it says what command and report say.

A table that is long, or that a person sorts and filters, is a grid (`grid.py`); a short one is plain HTML, which is
there at once.
"""

from __future__ import annotations

import logging
import re
import shlex
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from dash import MATCH, Input, Output, ctx, dcc, html, no_update
from dash import State as Also
from dash.exceptions import PreventUpdate

from ...errors import InputError, QueryError, WhorlError
from ..document import Chart, Command, Figure, Part, Table
from ..markup import Element, Medium, Node, draw, element
from ..words import capital, cut, minus, printable
from .grid import Address, grid, menu
from .grid import labelled as labelled
from .state import URL as URL
from .state import parse

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

    from .reading import Later, Reading
    from .state import State

log = logging.getLogger(__name__)

_SHORT = 20
"""Rows of a table that is plain HTML: it is there at once, and what draws a grid takes a browser half a second."""
_TIME = re.compile(r"(\b\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?: UTC)?)")

_charts = count(1)


def components(parts: Iterable[Part], address: Address | None = None, chosen: State | None = None) -> list[Component]:
    """Parts as components, in their order. `address`: where names lead to; None draws them as text. `chosen`: the
    address, which says what is chosen in charts."""
    return [component(part, address, chosen) for part in parts]


def component(part: Part, address: Address | None = None, chosen: State | None = None) -> Component:
    """One part as a component."""

    def link(text: Node, page: str, name: str, cluster: str | None) -> Node:
        href = None if address is None else address(page, name, cluster)
        return text if href is None else dcc.Link(_dash(text), href=href)

    def table(part: Table, label: str, rows: Callable[[], Element]) -> Node:
        """A grid that sorts and filters where it is long, otherwise HTML, which sorts by a click on a head."""
        if len(part.rows) > _SHORT and part.most is None:
            return grid(part, address)
        pairs = {"data-command": part.command, "data-query": part.query}
        return element("div", rows(), menu(label, **{name: text for name, text in pairs.items() if text}), look="table")

    def chart(part: Chart) -> tuple[Node, Node]:
        """A figure; of several, that of the address or the first: the browser shows what is chosen after that."""
        names, number = list(part.figures), next(_charts)
        named = getattr(chosen, part.choice) if part.choice else None
        shown = named if named in names else names[0]
        drawn = graph(part.figures[shown], part.title, id={"chart": number, "part": "figure"})
        if len(names) == 1:
            return "", drawn
        choice = dcc.Dropdown(names, shown, id={"chart": number, "part": "choice"}, clearable=False)
        label = html.Label([html.Span(f"{part.title}: which", className="unseen"), choice], className="inputs narrow")
        kept = dcc.Store({"chart": number, "part": "figures"}, data=[part.choice, dict(part.figures)])
        return html.Div([label, kept]), drawn

    medium = Medium(plain=_with_times, link=link, table=table, chart=chart, sorts=True)
    drawn: Component = _dash(draw(part, medium))
    return drawn


_DASH_NAMES = {"class": "className", "tabindex": "tabIndex", "datetime": "dateTime"}


def _dash(node: Node) -> Any:
    """A node as components of Dash; what is one already stays."""
    if not isinstance(node, Element):
        return printable(node) if isinstance(node, str) else node
    inside = list(map(_dash, node.inside))
    attributes = {_DASH_NAMES.get(name, name): value for name, value in node.attributes.items()}
    children = inside if len(inside) > 1 else next(iter(inside), None)
    return getattr(html, node.tag.capitalize())(children, **attributes)


def follow_charts(app: Dash) -> None:
    """Let a person choose among the figures of a chart; the address says what is chosen, for who sends it on."""
    app.clientside_callback(  # type: ignore[no-untyped-call]
        """(name, [field, figures]) => {
          const address = new URL(location.href);
          if (field && figures[name]) {
            address.searchParams.set(field, name);
            history.replaceState(history.state, "", address);
          }
          return figures[name] || window.dash_clientside.no_update;
        }""",
        Output({"chart": MATCH, "part": "figure"}, "figure"),
        Input({"chart": MATCH, "part": "choice"}, "value"),
        Also({"chart": MATCH, "part": "figures"}, "data"),
        prevent_initial_call=True,
    )


def graph(
    figure: Figure | dict[str, Any],
    label: str,
    *inside: Any,
    config: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> Component:
    """A figure. `label` says what it shows to who cannot see it, and names the file that is saved. `attributes`: `id`.

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
    svg = html.Button(
        "SVG", type="button", className="svg", title="Save this figure as SVG", **labelled(f"SVG: {label}")
    )
    parts = [dcc.Graph(figure=figure, config=settings, **attributes), svg, *inside]
    return html.Div(parts, role="group", className="figure", **labelled(label))


def prose(text: str) -> Component:
    """A sentence with what stands between two backticks as code, and times that a reader may have in local time."""
    drawn: Component = _dash(element("span", *Medium(plain=_with_times).prose(text)))
    return drawn


def _with_times(text: str) -> list[Node]:
    """A text with each of its times, which are in UTC, as an element that `assets/page.js` finds."""
    return [
        element("time", piece, datetime=f"{piece[:10]}T{piece[11:].removesuffix(' UTC')}Z")
        if place % 2
        else minus(piece)
        for place, piece in enumerate(_TIME.split(text))
        if piece
    ]


def failure(error: Exception) -> str:
    """The sentence of an error for a person; the log says more of one that nobody expected."""
    if isinstance(error, WhorlError):
        return cut(str(error))
    at = traceback.extract_tb(error.__traceback__)[-1]
    log.error("a page failed: %s: %s (%s, line %s)", type(error).__name__, error, at.filename, at.lineno)
    log.debug("a page failed", exc_info=error)
    return f"This did not work ({type(error).__name__}). The log of whorl dashboard says more. Load the page again."


PROBLEM = "problem"
"""Id of the line above each page that says what failed."""
_POLL_MS = 1000


@dataclass(frozen=True)
class Need:
    """A table that must have rows before a page can show something."""

    table: str
    fill: str
    """The command that fills it, after `whorl`: `verdicts --store {store}`."""

    def command(self, store: object, cluster: str | None = None) -> Component:
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


def writing(
    app: Dash, *inputs: Any, wrong: str = ""
) -> Callable[[Callable[..., State | None]], Callable[..., State | None]]:
    """Let what a person does write the address: a function gets its state and the values of these inputs (and `State`
    of Dash), and gives a new one; None leaves it. `wrong`: the id of what shows why something typed cannot be."""

    def add(change: Callable[..., State | None]) -> Callable[..., State | None]:
        outputs = [Output(URL, "search", allow_duplicate=True), *([Output(wrong, "children")] if wrong else [])]

        @app.callback(outputs, *inputs, Also(URL, "search"), prevent_initial_call=True)
        def write(*arguments: Any) -> list[Any]:
            *values, search = arguments
            state, _problems = parse(search)
            try:
                new = change(state, *values)
            except (InputError, QueryError) as error:
                if not wrong:
                    raise
                return [no_update, told(html.P(str(error)), kind="problem")]
            target = no_update if new in (None, state) or new.search() == (search or "") else new.search()
            return [target, None] if wrong else [target]

        return change

    return add


def slow_parts(path: str) -> list[Component]:
    """Room for an answer that takes long, of the page `path`: `follow_slowly` fills it."""
    made_at = html.Span(id=f"{path}-made", className="soft")
    again = html.Button("Reload", id=f"{path}-again", type="button", n_clicks=0, hidden=True)
    return [
        html.Div([made_at, again, html.Span(id=f"{path}-doing", role="status")], className="made"),
        html.Div(id=f"{path}-body"),
        dcc.Interval(f"{path}-poll", interval=_POLL_MS, disabled=True),
        dcc.Store(f"{path}-drawn"),
    ]


def follow_slowly(
    app: Dash,
    path: str,
    ask: Callable[[State, bool], Later[Any] | None],
    draw: Callable[[Any, State], Any],
    waiting: Callable[[State], Component] = lambda _: html.Div(),
) -> None:
    """Fill `slow_parts`: the page asks again until its answer is there.

    `ask`: of the address, and whether it shall be made again; None where there is nothing to ask. `waiting`: what
    stands there before the answer of `draw`.
    """

    @following(
        app,
        path,
        *(Output(f"{path}-{name}", "children") for name in ("body", "made", "doing")),
        Output(f"{path}-again", "hidden"),
        Output(f"{path}-poll", "disabled"),
        Output(f"{path}-drawn", "data"),
        Input(URL, "search"),
        Input(f"{path}-poll", "n_intervals"),
        Input(f"{path}-again", "n_clicks"),
        Also(f"{path}-drawn", "data"),
    )
    def follow(search: str | None, _: Any, __: Any, before: Any) -> tuple[Any, ...]:
        state, _problems = parse(search)
        try:
            later = ask(state, ctx.triggered_id == f"{path}-again")
        except Exception as error:
            return told(html.P(prose(failure(error))), kind="problem"), None, None, True, True, None
        if later is None:
            return None, None, None, True, True, None
        doing = None if later.doing is None else f"{capital(later.doing)}..."
        now = [state.search(), str(later.made_at), later.newer]
        if now == before:
            return no_update, no_update, doing, no_update, later.doing is None, no_update
        if later.answer is None:
            return waiting(state), None, doing, True, later.doing is None, now
        made = f"as of {later.made_at:%Y-%m-%d %H:%M:%S} UTC" + ("; more was stored since" if later.newer else "")
        return draw(later.answer, state), prose(made), doing, False, later.doing is None, now


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
