"""The tables of the dashboard in a real browser: what they show, sort, filter and save, by mouse and by keyboard."""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING

import pytest

from whorl.tests.browser.conftest import FORMULA, HOSTILE
from whorl.tests.browser.test_pages import faults

if TYPE_CHECKING:
    from playwright.sync_api import Download, Page

    from whorl.tests.browser.conftest import Opened

pytestmark = pytest.mark.browser


def _cell(page: Page, grid: str, row: int, column: str) -> str:
    """What a cell shows, once its row is there."""
    cell = page.locator(f"#{grid} .ag-row[row-index='{row}'] [col-id='{column}']")
    cell.filter(has_not_text=re.compile("^…?$")).wait_for()
    return cell.inner_text()


def _sort(page: Page, grid: str, direction: str) -> None:
    page.locator(f"#{grid} [role=columnheader][col-id=slower]").click()
    page.wait_for_selector(f"#{grid} [role=columnheader][col-id=slower][aria-sort={direction}]")
    first = "0.0 %" if direction == "ascending" else "+0.4 %"
    page.locator(f"#{grid} .ag-row[row-index='0'] [col-id=slower]").filter(has_text=first).wait_for()


def _saved(page: Page, label: str) -> list[dict[str, str]]:
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Copy: {label}").click()
        page.get_by_role("menuitem", name="Save as CSV").click()
    got: Download = download.value
    return list(csv.DictReader(got.path().read_text(encoding="utf-8-sig").splitlines()))


def test_a_table_shows_sorts_filters_and_saves(opened: Opened) -> None:
    page, grid, rows, label = opened("tables", scheme="dark", height=1300), "small", 40, "Forty"
    assert _cell(page, grid, 0, "gpu") == HOSTILE
    assert page.locator("main img").count() == 0
    assert _cell(page, grid, 3, "slower") == "n/a"
    assert _cell(page, grid, 2, "low") == "[0.0, 1.0] %"
    assert _cell(page, grid, 5, "a.b") == "5 W"
    _sort(page, grid, "ascending")
    _sort(page, grid, "descending")
    saved = _saved(page, label)
    assert list(saved[0]) == ["gpu", "slower", "low", "95 %, up to", "a.b"]
    assert len(saved) == rows
    assert {HOSTILE, f"'{FORMULA}", "n0000/2"} <= {row["gpu"] for row in saved}
    values = [row["slower"] for row in saved]
    names = [float(value) for value in values if value]
    assert names == sorted(names, reverse=True)
    assert values[len(names) :] == [""] * (rows - len(names)), "what is missing comes last"
    page.get_by_role("group", name=label).get_by_role("textbox", name=re.compile("^GPU")).fill("n0003")
    page.wait_for_function(
        "grid => document.querySelectorAll(`#${grid} .ag-center-cols-container .ag-row`).length === 4", arg=grid
    )
    assert {row["gpu"] for row in _saved(page, label)} == {f"n0003/{place}" for place in range(4)}
    assert page.title() != "gone"


@pytest.mark.long
def test_a_table_is_used_by_keyboard_and_read_by_a_screen_reader(opened: Opened) -> None:
    page = opened("tables", height=1300)
    _cell(page, "small", 1, "gpu")
    assert faults(page) == []
    page.locator("#small .ag-row[row-index='1'] [col-id=gpu]").click(position={"x": 2, "y": 2})
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/node/7/figure\?gpu=n0000%2F2$"))
    page.wait_for_selector("h1:has-text('Figure')")
