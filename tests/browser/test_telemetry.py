"""The page Telemetry as a person uses it: choose, look closer, go back, follow what comes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

from whorl.tests.browser.conftest import Opened

pytestmark = pytest.mark.browser

_DRAWN = "#telemetry-graph .js-plotly-plot"
_ONE = "c001-1/0"


def _ready(page: Page, text: str = "n =") -> None:
    page.locator("#telemetry-summary", has_text=text).wait_for()
    page.wait_for_function(f"(document.querySelector('{_DRAWN}')?._fullData || []).length > 0")


def _range(page: Page) -> list[str]:
    box: list[str] = page.evaluate(f"document.querySelector('{_DRAWN}')._fullLayout.xaxis.range")
    return box


def _lines(page: Page) -> dict[str, int]:
    """The points of each line that is drawn, by the name of its GPU."""
    box: dict[str, int] = page.evaluate(
        f"Object.fromEntries(document.querySelector('{_DRAWN}')._fullData.map(one => [one.name, (one.x || []).length]))"
    )
    return box


def _asked(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def _drag(page: Page, began: float, ended: float) -> None:
    box = page.locator(f"{_DRAWN} .nsewdrag").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * began, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * ended, y + 2, steps=3)
    page.mouse.up()


@pytest.mark.long
def test_a_fleet_is_a_band_and_gpus_that_are_chosen_are_lines(opened: Opened) -> None:
    page = opened("telemetry")
    _ready(page, "n = 64 of 64 GPUs")
    assert "median" in _lines(page)
    page.locator("#telemetry-gpus").click()
    page.keyboard.type(_ONE)
    # A click before the list has fewer options would meet the one that moves there.
    page.wait_for_function("document.querySelectorAll('.dash-options-list-option-text').length === 1")
    page.get_by_role("option").get_by_text(_ONE, exact=True).click()
    page.keyboard.press("Escape")
    page.wait_for_url("**gpu=c001-1*")
    _ready(page, "of 1 GPU")
    assert set(_lines(page)) == {_ONE}
    page.locator("#telemetry-meanwhile", has_text="5 runs").wait_for()
    assert page.locator("#telemetry-lanes").get_by_text("gemm-fp32").count() >= 1


@pytest.mark.long
def test_drag_looks_closer_and_double_click_goes_back(opened: Opened) -> None:
    page = opened(f"telemetry?gpu={_ONE}&metric=power_mw")
    _ready(page)
    full_range, points = _range(page), _lines(page)[_ONE]
    _drag(page, 0.4, 0.5)
    page.wait_for_url("**since=*until=*")
    closer = _range(page)
    assert full_range[0] < closer[0] < closer[1] < full_range[1]
    page.wait_for_function(f"document.querySelector('#telemetry-from').value.startsWith('{closer[0][:19]}')")
    assert page.locator("#telemetry-to").input_value().startswith(closer[1][:19])
    page.reload()
    _ready(page)
    assert _range(page) == closer
    _drag(page, 0.2, 0.8)
    # The field is written with the figure; until both stand, the browser is busy and could take one click for two.
    page.wait_for_function(f"document.querySelector('#telemetry-from').value > '{closer[0][:23]}'")
    closest = page.locator("#telemetry-from").input_value()
    page.wait_for_function(
        f"document.querySelector('{_DRAWN}')._fullLayout.xaxis.range[0].startsWith('{closest[:19]}')"
    )
    box = page.locator(f"{_DRAWN} .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + 200, box["y"] + 50)
    page.wait_for_function(f"document.querySelector('{_DRAWN}')._fullLayout.xaxis.range[0] == '{closer[0]}'")
    page.get_by_role("button", name="Last hour").click()
    page.wait_for_function(f"document.querySelector('{_DRAWN}')._fullLayout.xaxis.range[0] == '{full_range[0]}'")
    assert "since" not in _asked(page)
    assert _lines(page)[_ONE] == points


@pytest.mark.long
def test_a_drag_counts_where_the_figure_fits_itself_to_the_page_right_after_it(opened: Opened) -> None:
    page = opened(f"telemetry?gpu={_ONE}&metric=power_mw")
    _ready(page)
    page.evaluate(
        f"() => {{ const fit = () => Plotly.relayout(document.querySelector('{_DRAWN}'), {{autosize: true}}); "
        "addEventListener('mouseup', () => { fit(); setTimeout(fit); }); }"
    )
    _drag(page, 0.4, 0.5)
    page.wait_for_url("**since=*until=*")


@pytest.mark.long
def test_a_double_click_before_the_server_answered_goes_back(opened: Opened) -> None:
    page = opened(f"telemetry?gpu={_ONE}&metric=power_mw")
    _ready(page)
    page.evaluate(
        "() => { const asked = fetch; fetch = (...words) => new Promise("
        "done => setTimeout(() => done(asked(...words)), 1500)); }"
    )
    _drag(page, 0.4, 0.5)
    box = page.locator(f"{_DRAWN} .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + 200, box["y"] + 50)
    page.wait_for_timeout(5000)  # all that was asked is answered, also what an answer asked for
    assert "since" not in _asked(page)


@pytest.mark.long
def test_a_range_is_typed_and_what_is_no_time_is_told(opened: Opened) -> None:
    page = opened(f"telemetry?gpu={_ONE}")
    _ready(page)
    page.locator("#telemetry-from").fill("2026-01-05")
    page.keyboard.press("Enter")
    page.wait_for_url("**since=2026-01-05T00:00:00Z*")
    # When the page has followed, it writes both fields anew.
    page.wait_for_function("document.querySelector('#telemetry-from').value.startsWith('2026-01-05 00:00:00')")
    page.locator("#telemetry-to").fill("<b>tomorrow</b>")
    page.keyboard.press("Enter")
    page.locator("#telemetry-wrong", has_text="is no time: write it as").wait_for()
    assert page.locator("#telemetry-wrong b").count() == 0
    page.get_by_role("button", name="Last hour").click()
    page.wait_for_function("!location.search.includes('since')")
    _ready(page)
    page.get_by_role("button", name="All", exact=True).click()
    page.wait_for_url("**since=*")


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real `whorl collect` that writes all the time."""
    command = (
        sys.executable, "-m", "whorl", "collect", "--store", str(tmp_path / "store"),
        "--backend", "simulated:gpus=2", "--interval", "0.2",
    )  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@pytest.mark.long
def test_a_page_follows_a_collector_and_says_when_it_stopped(
    window: BrowserContext, collector: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whorl.dashboards.app import shell
    from whorl.dashboards.app.access import LIMITS
    from whorl.dashboards.app.reading import Reading
    from whorl.dashboards.serving import Server
    from whorl.store import Store

    monkeypatch.setattr("whorl.analysis.telemetry.lines._PAUSE_NS", 3_000_000_000)
    page = window.new_page()
    sentence: list[str] = []
    page.on("console", lambda message: sentence.append(message.text) if message.type == "error" else None)
    while not list((tmp_path / "store").glob("journal/*.journal")):
        page.wait_for_timeout(100)
    store = Store.open(tmp_path / "store")
    server = Server(shell.make_app(Reading(store)).server, "127.0.0.1", 0, LIMITS)
    server.start()
    try:
        page.goto(f"{server.url}telemetry?live=5m&metric=power_mw")
        _ready(page)
        before, at = _lines(page), _range(page)
        assert len(before) == 2
        page.locator("#telemetry-status", has_text="The newest reading is of").wait_for()
        page.wait_for_function(f"document.querySelector('{_DRAWN}')._fullLayout.xaxis.range[1] > '{at[1]}'")
        page.wait_for_function(f"document.querySelector('{_DRAWN}')._fullData[0].x.length > {max(before.values()) + 5}")
        assert len(_lines(page)) == len(before)
        collector.terminate()
        page.locator("#telemetry-status", has_text="No reading came since").wait_for()
        # The right half: what was collected lies there, however short or long that took.
        _drag(page, 0.5, 0.995)
        page.wait_for_function("!location.search.includes('live')")
        _ready(page)
        assert {"since", "until"} <= _asked(page).keys()
        assert sentence == []
    finally:
        page.close()
        server.close()
        store.close()
