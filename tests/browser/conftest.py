"""One dashboard and one real browser for all tests of pages; each test has a page of its own that is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from playwright.sync_api import sync_playwright

from whorl.tests.dashboards.browser import CHROMIUM

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

    from whorl.dashboards.app.page import Page as DashPage
    from whorl.tests.conftest import BuiltOnce

GPUS = 64
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip


def _fill(folder: Path) -> None:
    """A campaign on 64 GPUs with telemetry, of which one is pinned to a low clock, and what was found about it."""
    from whorl.analysis.verdicts.recording import conclude
    from whorl.tests.probed_fleet import stored

    store, _ = stored(folder / "store", GPUS, kinds=("pinned",))
    conclude(store)


def _one_figure() -> DashPage:
    """A page with one figure and the inputs that pages have."""
    import plotly.graph_objects as go
    from dash import dcc, html

    from whorl.dashboards.app.page import Page, graph, heading

    drawn = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="a"), {"template": "none", "title": "Two points"})
    chosen = html.Label(["Probe", dcc.Dropdown(["a", "b"], "a", id="chosen")])
    inside = html.Div([heading("Figure"), chosen, graph(drawn, "two points", id="drawn")])
    return Page("figure", "Figure", (), lambda *_: inside, lambda *_: None)


@pytest.fixture(scope="package")
def dashboard(built_once: BuiltOnce) -> Iterator[str]:
    """The address of a dashboard under a prefix, over a store of 64 GPUs, with one page more: "figure"."""
    from whorl.dashboards.app import make, pages
    from whorl.dashboards.app.serving import Server
    from whorl.store import Store

    store = Store.open(built_once("dashboard", _fill) / "store")
    with pytest.MonkeyPatch.context() as patch:
        shown = (*pages.PAGES, _one_figure())
        for module in (make, pages):
            patch.setattr(module, "PAGES", shown)
        server = Server(make.make_app(store, prefix="/node/7/").server, "127.0.0.1", 0, "/node/7/")
        server.start()
        yield server.url
        server.close()
    store.close()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium or chrome on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        yield browser
        browser.close()


Opened = Callable[..., "Page"]


@pytest.fixture
def opened(chromium: Browser, dashboard: str) -> Iterator[Opened]:
    """Opens a page of the dashboard, and waits until it is there: `opened("gpu?gpu=n1/0", width=1024, scheme="dark")`.

    At the end of the test no page may have said an error, asked another host, or met a request that failed.
    """
    pages: list[Page] = []
    said: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            said.append(f"console: {message.text}")

    def look(request: Request) -> None:
        if not request.url.startswith((dashboard, "data:", "blob:")):
            said.append(f"asked {request.url}")

    def open_page(
        path: str = "", *, width: int = 1440, height: int = 900, scheme: Literal["light", "dark"] = "light"
    ) -> Page:
        page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        pages.append(page)
        page.on("console", note)
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", look)
        page.on("requestfailed", lambda request: said.append(f"failed: {request.url} {request.failure}"))
        page.goto(f"{dashboard}{path}")
        page.wait_for_selector("h1")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not [one for one in said if "ERR_ABORTED" not in one]  # what the page itself gave up when it was left
