"""Makes the pictures of docs/dashboard.md: every page of the dashboard over the demo's fleet, light and dark.

    whorl demo --backend simulated --out demo
    whorl fingerprint --store demo/store
    python docs/pictures.py demo/store

It needs the packages of whorl's development group and a chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from whorl.analysis.one_gpu.found import named
from whorl.cli.advising import Advisor
from whorl.dashboards.app.access import LIMITS
from whorl.dashboards.app.make import make_app
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.serving import Server
from whorl.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parent / "pictures"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
WIDTH, HEIGHT = 1280, 1000
QUERY = """select workload, count(*) as gpus, median(ms) as median_ms, max(ms) / median(ms) as slowest
from (select workload, gpu, median(value) as ms from measurements where figure = 'time' group by all)
group by workload order by slowest desc"""
_QUIET = "!/Scoring every GPU|Adding up the energy|looking for/.test(document.body.innerText)"


def addresses(store: Store) -> dict[str, str]:
    """The address of each picture, by its name."""
    worst = quote(named(store)[0].name)
    return {
        "overview": "",
        "fleet": "fleet?probe=gemm-fp32",
        "gpu": f"gpu?gpu={worst}",
        "telemetry": "telemetry",
        "energy": "energy",
        "placement": "placement?probe=gemm-fp32&gpus=4",
        "sql": f"sql?query={quote(QUERY)}",
    }


def shown(page: Page, url: str) -> None:
    """Open a page, and wait until everything on it is there."""
    page.goto(url)
    page.wait_for_selector("h1")
    page.wait_for_load_state("networkidle")
    if "/sql" in url:
        page.locator("#sql-run").click()
        page.locator("#sql-table .ag-row").first.wait_for()
    page.wait_for_function(_QUIET, timeout=120_000)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1000)  # figures fade in


def make(path: str) -> None:
    store = Store.open(path)
    server = Server(make_app(Reading(store, advise=Advisor())).server, "127.0.0.1", 0, LIMITS)
    server.start()
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=["--no-sandbox"],
        )
        for name, address in addresses(store).items():
            for scheme in SCHEMES:
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
                shown(page, f"{server.url}{address}")
                page.screenshot(path=FOLDER / f"{name}-{scheme}.png")
                page.close()
        browser.close()
    server.close()
    store.close()


if __name__ == "__main__":
    make(sys.argv[1])
