"""The page GPU in a real browser, used as a person uses it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from whorl.tests.browser.conftest import Opened

pytestmark = pytest.mark.browser

FIGURES = "#gpu-body .js-plotly-plot .main-svg"
NAMED = "#gpu-body table a"


def pinned(page: Page) -> str:
    """The name of the GPU with a finding, from the list of a page without a GPU."""
    return page.locator(NAMED).first.inner_text()


@pytest.mark.long
def test_a_person_finds_the_odd_gpu_and_sees_why(opened: Opened) -> None:
    page = opened("gpu")
    expect(page.locator("#gpu-body h2")).to_have_text("GPUs with findings, the worst first")
    name = pinned(page)
    page.locator(NAMED).first.click()
    expect(page.locator("#gpu-title")).not_to_have_text("GPU")
    body = page.locator("#gpu-body")
    expect(body.locator(".findings")).to_contain_text("pinned clock, confirmed")
    expect(body.locator(".findings")).to_contain_text("Do: Look for a clock that is set by hand")
    expect(body.locator(".js-plotly-plot").first).to_contain_text("pinned clock")
    expect(page.locator("#gpu-title")).to_have_text(f"GPU {name}")
    page.locator(FIGURES).first.wait_for()
    expect(body).to_contain_text("this GPU, beyond 90 % of its peers")
    expect(body).to_contain_text("its peers on that day")
    expect(page.locator("#gpu-body")).to_contain_text("stream-triad")
    expect(page.locator("#gpu-body")).to_contain_text("GPUs like it")


@pytest.mark.long
def test_a_chart_shows_the_figure_that_is_chosen_and_the_address_says_which(opened: Opened) -> None:
    page = opened("gpu?gpu=c001-1/0")
    chart = page.locator("#gpu-body figure", has=page.get_by_role("heading", name="Its figures in those of its peers"))
    expect(chart.locator(".js-plotly-plot")).to_contain_text("slower than its peers, %")
    chart.locator(".dash-dropdown").click()
    page.get_by_role("option", name="power", exact=True).click()
    expect(chart.locator(".js-plotly-plot")).to_contain_text("more than its peers, %")
    page.wait_for_url("**/gpu?gpu=c001-1%2F0&beside=power")
    past = page.locator("#gpu-body figure", has=page.get_by_role("heading", name="Sitting by sitting"))
    past.locator(".dash-dropdown").click()
    page.get_by_role("option", name="copy-h2d", exact=True).click()
    page.wait_for_url("**/gpu?gpu=c001-1%2F0&beside=power&probe=copy-h2d")
    page.reload()  # a link that somebody was sent
    expect(chart.locator(".js-plotly-plot")).to_contain_text("more than its peers, %")
    expect(past.locator(".dash-dropdown")).to_contain_text("copy-h2d")


@pytest.mark.long
def test_any_gpu_is_found_by_a_part_of_its_names_and_its_neighbours_by_links(opened: Opened) -> None:
    page = opened("gpu?gpu=c001-1/0")
    page.locator("#gpu-choice").click()
    page.keyboard.type("c002-3", delay=20)
    expect(page.get_by_role("option", name="c002-3")).to_have_count(4)
    expect(page.get_by_role("option", name="c001")).to_have_count(0)  # what is typed last has been answered
    page.get_by_role("option", name="c002-3/1").click()
    expect(page.locator("#gpu-title")).to_have_text("GPU c002-3/1")
    page.wait_for_url(re.compile(r"gpu=c002-3%2F1"))
    page.get_by_role("link", name="next ›").click()
    expect(page.locator("#gpu-title")).to_have_text("GPU c002-3/2")
    page.go_back()
    expect(page.locator("#gpu-title")).to_have_text("GPU c002-3/1")
    expect(page.locator("#gpu-body .facts").first).to_contain_text("c002-3")
