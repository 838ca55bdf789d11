"""The long table of an offline page: sorted, filtered and opened in a real browser, its names text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from whorl.dashboards.listing import Listing, Numbers
from whorl.dashboards.page import Section, page
from whorl.tests.dashboards.browser import CHROMIUM, needs_browser
from whorl.tests.dashboards.test_page import unpacked

HOSTILE = "<img src=x onerror=\"document.title='gone'\">"
MANY = 3_000


def _page(many: int = MANY) -> str:
    names = [HOSTILE, *(f"n{number:04}/0" for number in range(1, many))]
    slower: list[float | None] = [None if number % 7 == 3 else (number % 100) / 10 - 2 for number in range(many)]
    listing = Listing(
        "All GPUs",
        "Says <b>.",
        {"GPU": names, "finding": ["none"] * many},
        [Numbers("slower, %", 1, signed=True), Numbers("runs", 0)],
        {"gemm": [slower, [3.0] * many], "stream": [[float("nan"), *slower[1:]], [None] * many]},
        "probe",
    )
    return page("Title", ["What matters."], [Section("Part", "", [listing])])


def test_rows_are_packed_and_what_is_missing_is_null() -> None:
    text = _page(10)
    (data,) = json.loads(unpacked(text, "listings"))
    assert data["texts"][0][1][0] == HOSTILE
    gemm, stream = data["values"]
    assert gemm == ["gemm", [[-2.0, -1.9, -1.8, None, -1.6, -1.5, -1.4, -1.3, -1.2, -1.1], [3] * 10]]
    assert stream[1][0][0] is None
    assert HOSTILE not in text
    assert "Says &lt;b&gt;." in text
    assert unpacked(text, "bundle") == "", "a table needs no Plotly"
    assert re.findall(r'(?:src|href)\s*=\s*"(?!#)|https?:', text) == []


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_a_reader_sorts_filters_and_opens_rows(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    path = tmp_path / "page.html"
    path.write_text(_page(), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        shown = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme="dark")
        errors: list[str] = []
        shown.on("pageerror", lambda error: errors.append(str(error)))
        shown.goto(path.as_uri())
        rows = shown.locator(".listing .rows tbody tr:not(.gap)")
        rows.first.wait_for()
        told = shown.locator(".listing .controls [role=status]")
        assert told.inner_text() == "3,000 of 3,000"
        assert rows.count() < 60, "only what is seen is drawn"

        def column(place: int) -> list[str]:
            return [one.locator("td").nth(place).inner_text() for one in rows.all()[:8]]

        assert set(column(2)) == {"+7.9"}, "the slowest first"
        head = shown.get_by_role("button", name=re.compile("^slower"))
        head.click()
        assert column(2)[0] == "−2.0"
        shown.locator(".listing .rows").evaluate("one => one.scrollTop = one.scrollHeight")
        shown.wait_for_function("() => document.querySelector('.listing tbody').innerText.includes('n/a')")
        assert shown.locator(".listing tbody tr:not(.gap)").last.locator("td").nth(2).inner_text() == "n/a"
        head.click()
        shown.locator(".listing .rows").evaluate("one => one.scrollTop = one.scrollHeight")
        shown.wait_for_function("() => document.querySelector('.listing tbody').innerText.includes('n/a')")
        shown.get_by_label("slower, % at least").fill("7.8")
        expected = sum(number % 7 != 3 and number % 100 >= 98 for number in range(MANY))
        assert told.inner_text() == f"{expected} of 3,000"
        shown.get_by_label("slower, % at least").fill("")
        shown.get_by_label("with the words").fill("IMG onerror")
        assert told.inner_text() == "1 of 3,000"
        assert column(0) == [HOSTILE]
        rows.first.get_by_role("button").click()
        opened = shown.locator(".listing .opened")
        assert HOSTILE in opened.inner_text()
        assert re.search(r"gemm\s+−2\.0\s+3\s+stream\s+n/a\s+n/a", opened.inner_text())
        assert shown.locator("img").count() == 0
        assert shown.title() == "Title"
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert errors == []
        browser.close()
