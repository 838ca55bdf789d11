"""What the browser of `dashboard.py` does, step by step, as a person would."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage

_WAIT_MS = 60_000
_QUIET_MS = 250


class Browsing:
    """A window of a real browser over a dashboard, and what it said."""

    def __init__(self, browser: Any, url: str) -> None:
        self.url = url
        self.errors: list[str] = []
        self.page = browser.new_page(viewport={"width": 1440, "height": 900})
        self.page.set_default_timeout(_WAIT_MS)
        self._under_way = 0
        self.came_s = 0.0
        self.page.on("console", self._said)
        self.page.on("request", lambda _: self._count(1))
        self.page.on("requestfinished", lambda _: self._count(-1))
        self.page.on("requestfailed", lambda _: self._count(-1))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text[:200])

    def _count(self, more: int) -> None:
        self._under_way += more

    def open(self, path: str, there: str = "h1") -> None:
        """Open a page by its address and wait until this part of it is there, and nothing is under way."""
        self.page.goto(f"{self.url}{path}")
        self.page.wait_for_selector(there)
        self.came_s = time.perf_counter()
        self.settle()

    def settle(self) -> None:
        """Wait until no request is under way for a moment."""
        while True:
            self.page.wait_for_timeout(_QUIET_MS)
            if self._under_way <= 0:
                return

    def close(self) -> None:
        """Close the window."""
        self.page.close()

    def go(self, path: str) -> None:
        """Follow a link of the page to another address: no page is loaded."""
        self.page.evaluate(
            "path => { history.pushState({}, '', path); dispatchEvent(new CustomEvent('_dashprivate_pushstate')); }",
            path,
        )
        self.settle()

    def drag(self, inside: str, left: float, top: float, right: float, bottom: float) -> None:
        """A rectangle with the mouse, in shares of a figure's inside."""
        figure = self.page.locator(f"{inside} .nsewdrag").first
        figure.scroll_into_view_if_needed()
        box = figure.bounding_box()
        assert box is not None
        x, y, width, height = (box[name] for name in ("x", "y", "width", "height"))
        self.page.mouse.move(x + left * width, y + top * height)
        self.page.mouse.down()
        self.page.mouse.move(x + (left + right) / 2 * width, y + (top + bottom) / 2 * height, steps=3)
        self.page.mouse.move(x + right * width, y + bottom * height, steps=3)
        self.page.mouse.up()
        self.settle()

    def click(self, what: str) -> None:
        """Click on the first element that this selector finds."""
        self.page.locator(what).first.click()
        self.settle()

    def sql(self, query: str) -> None:
        """Write a query, and run it."""
        self.page.locator("#sql-text").fill(query)
        self.page.locator("#sql-text").press("Control+Enter")
        self.page.wait_for_timeout(_QUIET_MS)
        self.page.locator("#sql-run:enabled").wait_for()
        self.settle()


Step = Callable[[Browsing], None]
_EIGHT = "".join(f"&gpu=h{node:04d}/0" for node in range(100, 108))
_BY_NAME = (
    "select name, median(value) as ms, count(*) as n from measurements where workload = 'gemm' and figure = 'time' "
    "group by name order by ms desc limit 20"
)
STEPS: dict[str, Step] = {
    "open overview": lambda one: one.open(""),
    "overview: all findings": lambda one: one.click("#overview-found a[href*='findings=all']"),
    "overview: sort the findings": lambda one: one.click("#findings .ag-header-cell[col-id=n] .ag-header-cell-label"),
    "open fleet": lambda one: one.open("fleet?probe=gemm", there="#fleet-trend .nsewdrag"),
    "fleet: another workload": lambda one: one.go("fleet?probe=spmv"),
    "fleet: brush the slow ones": lambda one: one.drag("#fleet-strips", 0.01, 0.02, 0.99, 0.5),
    "fleet: brush a part of the map": lambda one: one.drag("#fleet-map", 0.1, 0.1, 0.6, 0.5),
    "fleet: clear": lambda one: one.click("#fleet-brush button"),
    "fleet: sort the table": lambda one: one.click(
        "#fleet-table .ag-header-cell[col-id=slower_pct] .ag-header-cell-label"
    ),
    "open gpu": lambda one: one.open("gpu?gpu=h2783/2"),
    "gpu: another GPU": lambda one: one.go("gpu?gpu=h2783/3"),
    "gpu: another workload": lambda one: one.go("gpu?gpu=h2783/3&probe=spmv"),
    "open telemetry": lambda one: one.open("telemetry?gpu=h2783/2&gpu=h2783/3", there="#telemetry-graph .nsewdrag"),
    "telemetry: look closer": lambda one: one.drag("#telemetry-graph", 0.4, 0.5, 0.6, 0.5),
    "telemetry: back": lambda one: one.click("#telemetry-back"),
    "telemetry: eight GPUs": lambda one: one.go(f"telemetry?{_EIGHT[1:]}"),
    "telemetry: a node": lambda one: one.go("telemetry?node=h0100"),
    "open energy": lambda one: one.open("energy"),
    "energy: by job": lambda one: one.go("energy?by=job"),
    "energy: by node": lambda one: one.go("energy?by=node"),
    "open placement": lambda one: one.open("placement?probe=gemm"),
    "placement: another workload": lambda one: one.go("placement?probe=spmv"),
    "open sql": lambda one: one.open("sql"),
    "sql: run": lambda one: one.sql(_BY_NAME),
}
