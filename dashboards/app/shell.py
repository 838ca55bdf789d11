"""The dashboard as a Dash application: its pages, navigation, the page of an address, and what stands in for one that
fails."""

from __future__ import annotations

import re
import shlex
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dash import Dash, Input, Output, State, ctx, dcc, html, set_props
from flask import request

from ...errors import WhorlError
from ..document import Command
from .access import protect, without_prefix
from .energy import PAGE as ENERGY
from .fleet import PAGE as FLEET
from .gpu import PAGE as GPU
from .overview import PAGE as OVERVIEW
from .page import PROBLEM, RUNS, URL, Need, Page, component, failure, follow_charts, heading, labelled, told
from .placement import PAGE as PLACEMENT
from .reading import Visitors
from .reading import ahead as read_ahead
from .sql import PAGE as SQL
from .state import parse
from .telemetry import PAGE as TELEMETRY

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ...store import Store
    from .reading import Reading
    from .state import State as Address

PAGES: tuple[Page, ...] = (OVERVIEW, FLEET, GPU, TELEMETRY, ENERGY, PLACEMENT, SQL)
"""In the order of the navigation."""

_PAGE, _NAVIGATION = "page", "navigation"
_COPIES = "copies"  # where a table asks for the command and the query that print the same
_FIRST_S, _QUIET_S = 10.0, 2.0
"""Reading ahead waits until nobody opens a page for so long: after the start, and from then on."""
_GRID = "_dash-component-suites/dash_ag_grid/async-community.js"
"""What draws tables. Dash would load it when the first table comes, after all else; the first page needs none."""
_LOOK = Path(__file__).parents[1] / "document.css"
"""What the report and the pages share."""
_FOR_OLD_BROWSERS = re.compile(r"<script[^>]*/polyfill@[^>]*></script>")


class _App(Dash):
    """Dash without what it loads for old browsers: that took a fifth of the time until the first page is there, and
    made figures of large fleets slow."""

    def interpolate_index(self, *, scripts: str = "", **parts: str) -> str:  # type: ignore[override]
        return super().interpolate_index(scripts=_FOR_OLD_BROWSERS.sub("", scripts), **parts)  # type: ignore[no-untyped-call, no-any-return]


def make_app(reading: Reading, *, prefix: str = "/", token: str | None = None, ahead: bool = False) -> Dash:
    """The application over the store of `reading`.

    `prefix`: where a proxy shows it, as /node/7/; with and without it in the request's path. `token`: what every
    request must bring; without one, only requests that name this machine by its address or as localhost are answered.
    `ahead`: read what pages of a large fleet take long to read while nobody opens one.
    """
    app = _App(
        "whorl",
        title="whorl",
        update_title="",
        assets_folder=str(Path(__file__).parent / "assets"),
        requests_pathname_prefix=prefix,
        routes_pathname_prefix="/",
        serve_locally=True,
        suppress_callback_exceptions=True,
        on_error=_say_failure,
        index_string=_INDEX.replace("{grid}", prefix + _GRID).replace("{look}", _LOOK.read_text(encoding="utf-8")),
    )
    visitors = Visitors(_QUIET_S, first_s=_FIRST_S)
    app.server.before_request(visitors.came)  # first, so that whoever is refused came, too
    app.server.teardown_request(lambda _: visitors.left())
    protect(app.server, token=token, prefix=prefix)
    app.server.wsgi_app = without_prefix(app.server.wsgi_app, prefix)
    app.layout = _shell(reading.store)
    follow_charts(app)
    for page in PAGES:
        page.register(app, reading)

    @app.callback(
        Output(_PAGE, "children"),
        Output(_NAVIGATION, "children"),
        Output(PROBLEM, "children"),
        Input(URL, "pathname"),
        State(URL, "search"),
    )
    def show(path: str | None, search: str | None) -> tuple[Component, list[Component], Any]:
        page = find_page(path)
        return _page(page, reading, search), _links(page, reading, search), None

    def copies() -> dict[str, str]:
        state, _ = parse(request.query_string.decode(errors="replace"))
        page = find_page(request.args.get("page"))
        return {} if page is None else same_answer(page.path, state, reading.store.root)

    app.server.add_url_rule(f"/{_COPIES}", _COPIES, copies)

    if ahead:
        read_ahead(chain.from_iterable(page.ahead(reading) for page in PAGES), visitors)
    return app


def find_page(path: str | None) -> Page | None:
    """The page of an address, under whatever prefix: its last part counts."""
    last = (path or "").rpartition("/")[2]
    return next((page for page in PAGES if page.path == last), None)


def same_answer(path: str, state: Address, store: Path) -> dict[str, str]:
    """The command that prints what a page shows, and a query over the tables that it shows, where there is one."""
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in state.gpu)
    gpus = f" where gpu in ({names}) or name in ({names})" if names else ""
    readings = f"select name, telemetry.* from telemetry join gpus_now using (cluster, gpu){gpus} order by ts"
    fleet = "select name, workload, figure, median(value) as median, count(*) as n from measurements group by all"
    options: dict[str, str | None] = {}
    if path == "":
        words, query = ["verdicts"], "select * from verdicts_now"
    elif path == "fleet":
        words, query, options = ["verdicts", "variability"], fleet, {"--workload": state.probe}
    elif path == "gpu":
        words, query = ["explain", next(iter(state.gpu), "GPU")], f"select * from measurements{gpus} order by began"
    elif path == "telemetry":
        words, query = ["sql", readings], readings
    elif path == "energy":
        words, query, options = ["energy"], "", {"--by": state.by, "--job": state.job}
    elif path == "placement":
        options = {"--workload": state.probe, "--gpus": state.gpus, "--model": state.model}
        words, query = ["advise"], ""
    else:
        words, query = ["sql", state.query or "select * from gpus_now"], state.query or ""
    if words[0] != "sql":
        options["--cluster"] = state.cluster
    chosen = [word for name, value in options.items() if value is not None for word in (name, value)]
    return {"command": shlex.join(["whorl", *words, *chosen, "--store", str(store)]), "query": query}


def _shell(store: Store) -> Component:
    """What stands around every page."""
    name = store.root.resolve()
    waiting = html.Div(html.Span("Reading the store"), className="reading", role="status")
    return html.Div(
        [
            dcc.Location(id=URL, refresh="callback-nav"),
            html.A("Skip to the page", href="#main", className="skip"),
            html.Header(
                [
                    html.Strong("whorl", className="brand"),
                    html.Nav(id=_NAVIGATION, **labelled("Pages")),
                    html.Span(name.name, title=str(name), className="store"),
                    html.Button("Times: UTC", id="zone", type="button", title="Times in UTC, or as this computer has"),
                    html.Button("Theme", id="theme", type="button"),
                    html.Button("Keys", id="keys", type="button", title="What keys do: ?"),
                ],
                className="top",
            ),
            html.Main(
                [
                    html.Div(id=PROBLEM, role="alert"),
                    dcc.Loading(
                        html.Div(id=_PAGE),
                        target_components=cast("Any", {_PAGE: "children"}),  # a part that asks does not cover the rest
                        delay_show=400,
                        custom_spinner=waiting,
                        overlay_style={"visibility": "visible"},
                    ),
                ],
                id="main",
                tabIndex=-1,
            ),
        ]
    )


def _links(current: Page | None, reading: Reading, search: str | None) -> list[Component]:
    """The navigation. A page that has nothing to show yet is pale; it says which command fills it."""
    state, _ = parse(search)
    links: list[Component] = []
    for page in PAGES:
        missing = [need.table for need in _missing(page, reading)]
        classes = [*(["here"] if page is current else []), *(["bare"] if missing else [])]
        hint = f"nothing to show yet: {' and '.join(missing)} has no rows" if missing else None
        links.append(dcc.Link(page.title, href=state.href(page.path), className=" ".join(classes), title=hint))
    return links


def _missing(page: Page, reading: Reading) -> list[Need]:
    """What the page needs and the store does not have."""
    return [need for need in page.needs if not reading.has(need.table)]


def _page(page: Page | None, reading: Reading, search: str | None) -> Component:
    """The page, or what says why it is not there."""
    if page is None:
        return html.Div([heading("No such page"), told(html.P("Choose a page above."), kind="empty")])
    if not reading.made():
        gone = f"The store {reading.store.root} is not there any more. Was it moved or deleted, or is its disk away?"
        again = "Load the page again when it is back, or start whorl dashboard with another store."
        return html.Div([heading(page.title), told(html.P(gone), html.P(again), kind="problem")])
    try:
        state, problems = parse(search)
        missing = _missing(page, reading)
        if missing:
            parts: list[Any] = [html.P(f"This page needs the table {' and '.join(need.table for need in missing)}.")]
            parts.append(html.P("Fill it with this, and load the page again:"))
            parts += [need.command(reading.store.root) for need in missing]
            if RUNS in missing:
                line = f"whorl import --store {shlex.quote(str(reading.store.root))} FILE..."
                parts += [html.P("Or import results that you have:"), component(Command(line))]
            full = [further for further in PAGES if further.needs and not _missing(further, reading)]
            if full:
                links = [html.Li(dcc.Link(further.title, href=state.href(further.path))) for further in full]
                parts += [html.P("These pages have something to show now:"), html.Ul(links)]
            return html.Div([heading(page.title), told(*parts, kind="empty")])
        notes = [told(html.P(sentence)) for sentence in problems]
        return html.Div([*notes, page.layout(reading, state)])
    except WhorlError as error:
        return html.Div([heading(page.title), told(html.P(failure(error)), kind="problem")])


def _say_failure(error: Exception) -> None:
    """Say on the page what a callback could not do. A page that asked by itself does not ask again: a person does."""
    set_props(PROBLEM, {"children": told(html.P(failure(error)), kind="problem")})
    for changed in ctx.triggered_prop_ids:
        name, _, changed_property = changed.rpartition(".")
        if changed_property == "n_intervals":
            set_props(name, {"disabled": True})


_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{%title%}</title>
<link rel="icon" href="data:,">
<style>
{look}</style>
{%css%}
</head>
<body>
{%app_entry%}
<div id="unanswered" role="alert" hidden></div>
<footer>{%config%}
<link rel="prefetch" as="script" href="{grid}">
<script>
// Of what Dash brings for old browsers, its own parts use this alone. See _App.
window.regeneratorRuntime = {mark: one => one, wrap: steps => {
  const at = {prev: 0, next: 0, done: false, stop() { at.done = true; }};
  return {next(sent) { at.sent = sent; return {value: steps(at), done: at.done}; }, throw(error) { throw error; }};
}};
</script>
{%scripts%}
{%renderer%}</footer>
</body>
</html>
"""
