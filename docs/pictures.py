"""Makes the pictures of the documentation.

Pages of the dashboard over the demo's fleet:

    whorl demo --backend simulated --out demo
    whorl verdicts fingerprint --store demo/store
    python docs/pictures.py demo/store

The trials of one `whorl tune` on a simulated H100:

    python docs/pictures.py tune

It needs the packages of whorl's development group and a chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright
from plotly import graph_objects

import whorl
from whorl.analysis.one_gpu.explain import named
from whorl.cli.answers.advice import Advisor
from whorl.dashboards.app.access import LIMITS
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.shell import make_app
from whorl.dashboards.serving import Server
from whorl.dashboards.style import BLUE, GREEN, GREY, RED, layout
from whorl.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parent / "pictures"
WIDTH, HEIGHT = 1280, 1000
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
    }


def load(page: Page, url: str) -> None:
    """Open a page, and wait until everything on it is there."""
    page.goto(url)
    page.wait_for_selector("h1")
    page.wait_for_load_state("networkidle")
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
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            load(page, f"{server.url}{address}")
            page.screenshot(path=FOLDER / f"{name}.png")
            page.close()
        browser.close()
    server.close()
    store.close()


def tuned_figure(answer: Any) -> graph_objects.Figure:
    """Energy against slowdown of the trials of one search, with the bound and the answer: those up to thrice the bound.

    The answer is drawn first, as other trials may lie on it.
    """
    default, slowdown = answer.trials[0], 100 * answer.bound.max_slowdown
    groups: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {("the answer", GREEN, "star", 22): []}
    further = 0
    for trial in answer.trials:
        slower, energy = (100 * (getattr(trial, name) / getattr(default, name) - 1) for name in ("time_s", "energy_j"))
        if trial.setting == default.setting:
            look = ("the default", GREY, "square", 10)
        elif trial.setting == answer.setting:
            look = ("the answer", GREEN, "star", 22)
        elif answer.is_over(trial):
            look = ("over the bound", RED, "x", 10)
        else:
            look = ("within the bound", BLUE, "circle", 8)
        if slower > 3 * slowdown:
            further += 1
        else:
            groups.setdefault(look, []).append((slower, energy))
    figure = graph_objects.Figure(layout=layout(420, template="plotly_white"))
    for (name, colour, symbol, size), trials in groups.items():
        x, y = zip(*trials, strict=True)
        figure.add_scatter(
            x=x,
            y=y,
            name=name,
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": size, "opacity": 0.7},
        )
    margin_pct = 100 * ((1 + answer.bound.max_slowdown) * (1 - answer.margin) - 1)
    figure.add_vline(x=slowdown, line={"color": RED, "dash": "dash"}, annotation={"text": "bound"})
    figure.add_vline(
        x=margin_pct,
        line={"color": GREEN, "dash": "dot"},
        annotation={"text": "with margin"},
        annotation_position="top left",
    )
    figure.add_annotation(
        x=1, y=0, xref="paper", yref="paper", xanchor="right", yanchor="bottom", showarrow=False,
        text=f"{further} of {len(answer.trials)} trials are further right",
    )  # fmt: skip
    figure.update_xaxes(title="slower than the default, %", range=[-1, 3 * slowdown])
    figure.update_yaxes(title="energy against the default, %")
    return figure


def make_tune() -> None:
    with TemporaryDirectory() as folder:
        answer = whorl.tune(
            "gemm-fp16", store=folder + "/S", backend="simulated", model="H100", gpus=8, max_slowdown=0.05
        ).result
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=["--no-sandbox"],
        )
        page = browser.new_page(viewport={"width": 800, "height": 440}, color_scheme="light")
        page.set_content(tuned_figure(answer).to_html(config={"displayModeBar": False}))
        page.locator(".main-svg").first.wait_for()
        page.screenshot(path=FOLDER / "tune.png")
        browser.close()


if __name__ == "__main__":
    make_tune() if sys.argv[1] == "tune" else make(sys.argv[1])
