"""Makes the pictures of docs/dashboard.md: every page of the dashboard over the demo's fleet.

    whorl demo --backend simulated --out demo
    whorl verdicts --store demo/store
    python docs/pictures.py demo/store

It needs the packages of whorl's development group and a chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

from whorl.dashboards.app.make import make_app
from whorl.dashboards.app.pages import PAGES
from whorl.dashboards.app.serving import Server
from whorl.store import Store

FOLDER = Path(__file__).parent / "pictures"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def make(path: str) -> None:
    store = Store.open(path)
    server = Server(make_app(store).server, "127.0.0.1", 0)
    server.start()
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=["--no-sandbox"],
        )
        for page in PAGES:
            for scheme in SCHEMES:
                shown = browser.new_page(viewport={"width": 1100, "height": 560}, color_scheme=scheme)
                shown.goto(f"{server.url}{page.path}")
                shown.wait_for_selector("h1")
                shown.wait_for_load_state("networkidle")
                shown.screenshot(path=FOLDER / f"{page.path or 'overview'}-{scheme}.png")
                shown.close()
        browser.close()
    server.close()
    store.close()


if __name__ == "__main__":
    make(sys.argv[1])
