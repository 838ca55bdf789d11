"""The dashboard as a Dash application: navigation, the page of an address, and what stands in for one that fails."""

from __future__ import annotations

import re
import threading
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from dash import Dash, Input, Output, State, ctx, dcc, html, set_props

from ...errors import WhorlError
from . import guard
from .access import without_prefix
from .page import PROBLEM, URL, Need, Page, failure, heading, labelled, told
from .pages import PAGES, find_page
from .state import parse

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from ...store import Store
    from .reading import Reading

_PAGE, _NAVIGATION = "page", "navigation"
_SOON_S = 10.0
_GRID = "_dash-component-suites/dash_ag_grid/async-community.js"
"""What draws tables. Dash would load it when the first table comes, after all else; the first page needs none."""
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
    `ahead`: read beside the pages what those of a large fleet take long to read, when the first page is answered, or
    soon if nobody opens it.
    """
    app = _App(
        "whorl",
        title="whorl",
        update_title="",
        assets_folder=str(guard.ASSETS),
        requests_pathname_prefix=prefix,
        routes_pathname_prefix="/",
        serve_locally=True,
        suppress_callback_exceptions=True,
        on_error=_failed,
        index_string=_INDEX.replace("{grid}", prefix + _GRID),
    )
    guard.install(app.server, token=token, prefix=prefix)
    guard.refuse_strange_questions(app.server, app.callback_map)
    plain = app.server.wsgi_app

    def attended(environ: Any, start: Any) -> Any:
        with reading.attending():
            return plain(environ, start)

    app.server.wsgi_app = without_prefix(attended, prefix)
    app.layout = _shell(reading.store)
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
        shown = find_page(path)
        found = _shown(shown, reading, search), _links(shown, reading, search), None
        if ahead:
            begin()
        return found

    @cache
    def begin() -> None:
        reading.ahead(chain.from_iterable(page.ahead(reading) for page in PAGES))

    if ahead:
        waiting = threading.Timer(_SOON_S, begin)
        waiting.name, waiting.daemon = "ahead", True
        waiting.start()
    return app


def _shell(store: Store) -> Component:
    """What stands around every page."""
    name = store.root.resolve()
    return html.Div(
        [
            dcc.Location(id=URL, refresh="callback-nav"),
            html.A("Skip to the page", href="#main", className="skip"),
            html.Header(
                [
                    html.Strong("whorl", className="brand"),
                    html.Nav(id=_NAVIGATION, **labelled("Pages")),
                    html.Span(name.name, title=str(name), className="store"),
                    html.Button("Theme", id="theme", type="button", n_clicks=0),
                ],
                className="top",
            ),
            html.Main(
                [
                    html.Div(id=PROBLEM, role="alert"),
                    dcc.Loading(
                        html.Div(id=_PAGE),
                        target_components=cast(
                            "Any", {_PAGE: "children"}
                        ),  # a part of a page that asks does not cover the others
                        delay_show=400,
                        type="dot",
                        overlay_style={"visibility": "visible"},
                    ),
                ],
                id="main",
                tabIndex=-1,
            ),
        ]
    )


def _links(shown: Page | None, reading: Reading, search: str | None) -> list[Component]:
    """The navigation. A page that has nothing to show yet is pale; it says which command fills it."""
    state, _ = parse(search)
    found: list[Component] = []
    for page in PAGES:
        missing = [need.table for need in _missing(page, reading)]
        looks = [*(["here"] if page is shown else []), *(["bare"] if missing else [])]
        says = f"nothing to show yet: {' and '.join(missing)} has no rows" if missing else None
        found.append(dcc.Link(page.title, href=state.href(page.path), className=" ".join(looks), title=says))
    return found


def _missing(page: Page, reading: Reading) -> list[Need]:
    """What the page needs and the store does not have."""
    return [need for need in page.needs if not reading.has(need.table)]


def _shown(page: Page | None, reading: Reading, search: str | None) -> Component:
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
            full = [one for one in PAGES if one.needs and not _missing(one, reading)]
            if full:
                links = [html.Li(dcc.Link(one.title, href=state.href(one.path))) for one in full]
                parts += [html.P("These pages have something to show now:"), html.Ul(links)]
            return html.Div([heading(page.title), told(*parts, kind="empty")])
        notes = [told(html.P(sentence)) for sentence in problems]
        return html.Div([*notes, page.layout(reading, state)])
    except WhorlError as error:
        return html.Div([heading(page.title), told(html.P(failure(error)), kind="problem")])


def _failed(error: Exception) -> None:
    """Say on the page what a callback could not do. A page that asked by itself does not ask again: a person does."""
    set_props(PROBLEM, {"children": told(html.P(failure(error)), kind="problem")})
    for asking in ctx.triggered_prop_ids:
        name, _, what = asking.rpartition(".")
        if what == "n_intervals":
            set_props(name, {"disabled": True})


_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{%title%}</title>
<link rel="icon" href="data:,">
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
