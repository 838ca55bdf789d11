"""One dashboard and one real browser for all tests of pages; each test has a page of its own that is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from playwright.sync_api import expect, sync_playwright

from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.state import State
from whorl.dashboards.figures import drawing
from whorl.tests.dashboards.browser import CHROMIUM

if TYPE_CHECKING:
    import pyarrow as pa
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request

    from whorl.dashboards.app.page import Page as DashPage
    from whorl.store import Store
    from whorl.tests.conftest import BuiltOnce

GPUS = 64
TOKEN = "0123456789abcdef-token"
PATIENCE_MS = 90_000  # the machine may be busy
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip


def _fill(folder: Path) -> None:
    """Three campaigns, days apart, on 64 GPUs, of which one is pinned to a low clock; their jobs; what was found."""
    from whorl.analysis.verdicts.fingerprint import fingerprints
    from whorl.analysis.verdicts.judgements import conclude
    from whorl.tests.probed_fleet import BEGAN_NS, stored

    store, _ = stored(folder / "store", GPUS, kinds=("pinned",))
    for columns in (1, 2):
        began = BEGAN_NS + columns * 86_400_000_000_000
        stored(folder, GPUS, kinds=("pinned",), campaign=f"made-{columns + 1}", began_ns=began, into=store)
    store.append({"jobs": _jobs(store)}, "jobs")
    conclude(store)
    fingerprints(store)


def _jobs(store: Store) -> pa.Table:
    """Of each node one job, that had all its GPUs while the first campaign ran; of two users, in turn."""
    from whorl.store.schema import arrow_rows

    rows = store.sql(
        "SELECT r.cluster, r.gpu, g.node, min(r.began) AS began, max(r.ended) AS ended FROM runs r JOIN gpus_now g "
        "USING (cluster, gpu) WHERE r.campaign = 'made-1' GROUP BY ALL ORDER BY node, gpu"
    ).to_pydict()
    nodes = list(dict.fromkeys(rows["node"]))
    at = [nodes.index(node) for node in rows["node"]]
    per_gpu = len(at) // len(nodes)
    tables = {
        "allocation": [str(1000 + number) for number in at], "job_id": [str(1000 + number) for number in at],
        "user": [("alice", "bob")[number % 2] for number in at], "account": ["physics"] * len(at),
        "state": ["COMPLETED"] * len(at), "gpu_from": ["file"] * len(at), "share": [1.0] * len(at),
        "node_gpus": [1] * len(at), "job_gpus": [per_gpu] * len(at), "job_nodes": [1] * len(at),
        "source": ["csv"] * len(at), "recorded": rows["ended"],
    }  # fmt: skip
    return arrow_rows("jobs", rows | tables)


def _one_figure() -> DashPage:
    """A page with one figure and the inputs that pages have."""
    import plotly.graph_objects as go
    from dash import dcc, html

    from whorl.dashboards.app.page import Page, graph, heading, prose

    drawn = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="a"), {"template": "none", "title": "Two points"})
    chosen = html.Label(["Probe", dcc.Dropdown(["a", "b"], "a", id="chosen")])
    noticed = html.P(prose("Read at 2026-01-05 12:00 UTC."))
    inside = html.Div([heading("Figure"), noticed, chosen, graph(drawn, "two points", id="drawn")])
    return Page("figure", "Figure", (), lambda *_: inside, lambda *_: None)


HOSTILE = """<img src=x onerror="document.title='gone'">"""
FORMULA = "=1+2"


def _tables() -> DashPage:
    """A page with a table of 40 rows: a name is HTML, one a formula, some values are missing."""
    import polars as pl
    from dash import html

    from whorl.dashboards.app.grid import GridOptions, frame_table, grid
    from whorl.dashboards.app.page import Page, heading
    from whorl.dashboards.document import Column

    columns = {
        "gpu": Column("GPU", page="figure"),
        "slower": Column("slower", "percent", 1),
        "low high": Column("95 %", "interval", 1, "%"),
        "a.b": Column("watts", "number", 0, "W"),
    }
    place = pl.int_range(40, eager=True)
    rows = pl.DataFrame(
        {
            "gpu": [HOSTILE, FORMULA, *(f"n{number // 4:04}/{number % 4}" for number in range(2, 40))],
            "slower": (place % 1000 / 100).set(place % 7 == 3, None),
            "low": place / 100.0,
            "high": place / 100 + 1,
            "a.b": place,
        }
    )

    def address(page: str, name: str, _: str | None) -> str:
        return State().href(page, gpu=(name,))

    table = frame_table(rows, columns, "Forty")
    inside = html.Div([heading("Tables"), grid(table, address, "small", GridOptions(list(columns)))])
    return Page("tables", "Tables", (), lambda *_: inside, lambda *_: None)


@pytest.fixture(scope="package")
def filled(built_once: BuiltOnce) -> Path:
    """The folder of the store."""
    return built_once("dashboard", _fill) / "store"


@pytest.fixture(scope="package")
def dashboard(filled: Path) -> Iterator[str]:
    """The address of a dashboard under a prefix, over a store of 64 GPUs, with the pages "figure" and "tables" more."""
    from whorl.cli.answers.advice import Advisor
    from whorl.dashboards.app import shell
    from whorl.dashboards.app.access import LIMITS
    from whorl.dashboards.serving import Server
    from whorl.store import Store

    store = Store.open(filled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shell, "PAGES", (*shell.PAGES, _one_figure(), _tables()))
        app = shell.make_app(Reading(store, advise=Advisor()), prefix="/node/7/", token=TOKEN)
        server = Server(app.server, "127.0.0.1", 0, LIMITS, path="/node/7/")
        server.start()
        yield server.url
        server.close()
    store.close()


@pytest.fixture(scope="package")
def window(dashboard: str) -> Iterator[BrowserContext]:
    """A window of a browser. While its first page stays open, all share its process, which has read the scripts.

    To read Dash's and Plotly's scripts takes five times as long as all else that a page does.
    """
    if CHROMIUM is None:
        pytest.skip("there is no chromium or chrome on this machine")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*_FLAGS, "--process-per-site"])
        window = browser.new_context()
        window.set_default_timeout(PATIENCE_MS)
        page = window.new_page()
        page.goto(f"{dashboard}?token={TOKEN}")
        assert page.url == dashboard, "the token leaves the address"
        yield window
        browser.close()


Opened = Callable[..., "Page"]


@pytest.fixture
def opened(window: BrowserContext, dashboard: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    """Opens a page of the dashboard, and waits until it is there: `opened("gpu?gpu=n1/0", width=1024, scheme="dark")`.

    Figures are as readers get them: Plotly does not check them, as it does in all other tests.

    At the end of the test no page may have said an error, asked another host, or met a request that failed.
    """
    monkeypatch.setattr(drawing, "checked", False)
    pages: list[Page] = []
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"console: {message.text}")

    def look(request: Request) -> None:
        if not request.url.startswith((dashboard, "data:", "blob:")):
            errors.append(f"asked {request.url}")

    def open_page(
        path: str = "", *, width: int = 1440, height: int = 900, scheme: Literal["light", "dark"] = "light"
    ) -> Page:
        page = window.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(f"error: {error}"))
        page.on("request", look)
        page.on("requestfailed", lambda request: errors.append(f"failed: {request.url} {request.failure}"))
        page.goto(f"{dashboard}{path}")
        page.wait_for_selector("h1")
        return page

    yield open_page
    for page in pages:
        page.close()
    window.pages[0].evaluate("localStorage.clear()")
    assert not [row for row in errors if "ERR_ABORTED" not in row]  # what the page itself gave up when it was left
