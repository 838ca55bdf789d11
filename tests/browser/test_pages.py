"""Every page in a real browser: it opens, says no error, asks no other host, and can be used without eyes or mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.base import AXE_SCRIPT

from whorl.dashboards.app.shell import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from whorl.tests.browser.conftest import Opened

pytestmark = pytest.mark.browser


def faults(page: Page) -> list[str]:
    """What axe finds that is serious, and lasts. While a table is drawn, its head has no cells for a moment."""
    page.evaluate(AXE_SCRIPT)
    for _ in range(12):
        page.wait_for_function("[...document.querySelectorAll('.ag-header-row')].every(row => row.children.length)")
        if not (serious := _serious_faults(page)):
            break
        page.wait_for_timeout(500)
    return serious


def _serious_faults(page: Page) -> list[str]:
    # Dash's own list holds an input that screen readers do not see and that takes the focus: that is Dash's to change.
    scope = "{exclude: ['.dash-dropdown-focus-target']}"
    options = "{resultTypes: ['violations'], selectors: false, preload: false}"  # a selector for each node takes long
    result = page.evaluate(f"axe.run({scope}, {options})")["violations"]
    return [
        f"{fault['id']}: {fault['help']}: {fault['nodes'][0]['html'][:200]}"
        for fault in result
        if fault["impact"] in ("serious", "critical")
    ]


_QUERIES = {"fleet": "?probe=gemm-fp32", "telemetry": "?gpu=c001-1/0", "energy": "?by=gpu"}
"""What pages are asked for, so that they show figures and tables."""


def _fits_a_phone(opened: Opened, address: str) -> Page:
    page = opened(address, width=390, scheme="dark")
    if "?" in address:
        page.locator("main .js-plotly-plot .main-svg").first.wait_for()
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.locator(".told.problem").count() == 0
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")  # once its figures have their size
    page.wait_for_function("[...document.querySelectorAll('.wide')].every(box => box.scrollWidth <= box.clientWidth)")
    return page


@pytest.mark.long(short=4)
@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_a_page_opens_and_has_no_serious_fault(path: str, opened: Opened) -> None:
    page = _fits_a_phone(opened, path + _QUERIES.get(path, ""))
    assert page.locator("nav a.here").inner_text() == next(page.title for page in PAGES if page.path == path)
    assert faults(page) == []


@pytest.mark.long
@pytest.mark.parametrize("address", ["gpu?gpu=c001-1/0", "energy?job=1003", "placement?probe=gemm-fp32&gpus=4"])
def test_all_of_a_gpu_a_job_and_advice_fits_a_phone_and_can_be_read(address: str, opened: Opened) -> None:
    assert not [fault for fault in faults(_fits_a_phone(opened, address)) if fault.startswith("color-contrast")]


def test_all_findings_are_a_table_a_click_leads_back_to_the_worst_and_no_address_becomes_a_script(
    opened: Opened,
) -> None:
    page = opened("?findings=all&since=%3Cimg%20src%3Dx%20onerror%3D%22document.title%3D'gone'%22%3E")
    assert "<img src=x" in page.locator(".told").first.inner_text()
    assert page.locator("main img").count() == 0
    assert page.title() != "gone"
    page.locator("#overview-answers :is(td, .ag-row) a").first.wait_for()
    page.get_by_role("link", name="Back to the worst").click()
    page.wait_for_function("!location.search.includes('findings')")
    page.locator("#overview-answers td a").first.wait_for()


def test_the_theme_follows_the_system_until_it_is_chosen(opened: Opened) -> None:
    page = opened(scheme="light")
    assert page.get_attribute("html", "data-theme") == "light"
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.locator("#theme").inner_text() == "Theme: light"
    page.reload()
    page.wait_for_selector("h1")
    assert page.get_attribute("html", "data-theme") == "light"
    assert faults(page) == []
    for name in ("parseFloat", "Number.parseFloat", "parseInt", "Number.parseInt", "String.prototype.trim"):
        assert "[native code]" in page.evaluate(f"String({name})"), "Dash's own, which a large figure waits for"


def test_a_table_is_sorted_and_copied_keys_work_and_times_are_local_on_request(opened: Opened) -> None:
    page = opened("energy?by=user")
    page.locator(".table").first.wait_for()
    page.evaluate("window.whorlCopy = async text => { window.copied = text; return true; }")
    table = page.locator(".table").first
    head = table.get_by_role("button").first
    head.click()
    cells = "th:first-child, td:first-child"
    up = table.locator(cells).all_inner_texts()
    head.click()
    assert table.locator(cells).all_inner_texts() == [up[0].replace("▲", "▼"), *reversed(up[1:])]
    for menu_item, copied in (
        ("Copy as command", "window.copied.startsWith('whorl energy --by user --store ')"),
        ("Copy as CSV", "window.copied.split('\\n').length > 2"),
    ):
        page.wait_for_function("document.querySelector('.table .copies').textContent === 'Copy'")
        table.locator(".copies").focus()
        page.keyboard.press("Enter")
        page.get_by_role("menuitem", name=menu_item).wait_for()
        assert faults(page) == []
        page.get_by_role("menuitem", name=menu_item).click()
        page.wait_for_function(copied)
    page.locator("h1").click()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").wait_for()
    assert faults(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    page.wait_for_selector("nav a.here:has-text('Overview')")


def test_times_are_those_of_the_computer_on_request(opened: Opened) -> None:
    page = opened("figure")
    zone = {"timezoneId": "Asia/Tokyo"}
    page.context.new_cdp_session(page).send("Emulation.setTimezoneOverride", zone)
    page.reload()
    time = page.locator("time")
    assert time.inner_text() == "2026-01-05 12:00 UTC"
    page.get_by_role("button", name="Times: UTC").click()
    page.wait_for_function("document.querySelector('time').textContent === '2026-01-05 21:00 GMT+9'")
    page.get_by_role("button", name="Times: GMT+9").click()
    page.wait_for_function("document.querySelector('time').textContent === '2026-01-05 12:00 UTC'")


@pytest.mark.long
def test_a_figure_shows_on_dark_and_is_saved_as_svg(opened: Opened) -> None:
    page = opened("figure", scheme="dark")
    title = page.locator(".js-plotly-plot .gtitle")
    title.wait_for()
    assert title.evaluate("one => getComputedStyle(one).fill") == "rgb(227, 230, 234)"
    assert faults(page) == []
    page.locator(".figure .svg").focus()
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "whorl.svg"
    assert "Two points" in download.value.path().read_text()


@pytest.mark.long
def test_a_page_says_that_the_server_does_not_answer_or_asks_for_the_token(
    window: BrowserContext, dashboard: str
) -> None:
    page = window.new_page()
    page.goto(dashboard)
    page.wait_for_selector("h1")
    says, link = page.locator("#unanswered"), page.get_by_role("link", name="SQL", exact=True)
    for answer, text in (
        (lambda route: route.abort(), "does not answer"),
        (lambda route: route.fulfill(status=502, body="Bad Gateway"), "does not answer"),  # of a proxy in front
        (lambda route: route.fulfill(status=401, body=""), "token"),
    ):
        page.route("**/_dash-update-component*", answer)
        link.click()
        says.filter(has_text=text).wait_for()
        page.unroute("**/_dash-update-component*")
        page.go_back()
        says.wait_for(state="hidden")
    page.close()


@pytest.mark.long
def test_paper_is_white_and_cuts_no_figure_off(opened: Opened) -> None:
    page = opened("figure", scheme="dark")
    title = page.locator(".js-plotly-plot .gtitle")
    title.wait_for()
    page.emulate_media(media="print", color_scheme="dark")
    assert title.evaluate("one => getComputedStyle(one).fill") == "rgb(29, 33, 39)"
    ends = """() => {
      dispatchEvent(new Event("beforeprint"));
      document.querySelector(".figure").style.width = "400px";
      const axes = [...document.querySelectorAll(".xtick")].map(one => one.getBoundingClientRect().right);
      const found = [Math.max(...axes), document.querySelector(".figure").getBoundingClientRect().right];
      dispatchEvent(new Event("afterprint"));
      return found;
    }"""
    farthest, edge = page.evaluate(ends)
    assert edge / 2 < farthest <= edge
    assert page.locator(".main-svg[viewBox]").count() == 0
