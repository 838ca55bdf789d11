"""The page Fleet as a person uses it: a brush in one figure holds in the others, in the table and in the address."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from whorl.tests.browser.conftest import GPUS

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from whorl.tests.browser.conftest import Opened

pytestmark = pytest.mark.browser


def _open(opened: Opened, path: str = "fleet?probe=gemm-fp32", **options: int) -> Page:
    page = opened(path, height=2400, **options)
    _drawn(page)
    return page


def _drawn(page: Page) -> None:
    page.wait_for_selector("#fleet-said p")
    for figure in ("strips", "map", "power"):
        page.wait_for_function(
            f"() => document.querySelector('#fleet-{figure} .js-plotly-plot')?._fullData?.length > 1"
        )
    page.wait_for_selector("#fleet-table .ag-row a")


def _drag(page: Page, figure: str, left_edge: float, top: float, right: float, bottom: float) -> None:
    """A rectangle with the mouse, in shares of the figure's inside."""
    box = page.locator(f"#{figure} .nsewdrag").first.bounding_box()
    assert box is not None
    x, y, width, height = (box[name] for name in ("x", "y", "width", "height"))
    page.mouse.move(x + left_edge * width, y + top * height)
    page.mouse.down()
    page.mouse.move(x + (left_edge + right) / 2 * width, y + (top + bottom) / 2 * height, steps=3)
    page.mouse.move(x + right * width, y + bottom * height, steps=3)
    page.mouse.up()


def _brushed(page: Page, n: int | None = None) -> int:
    """How many GPUs the page says are brushed; it waits until the table shows as many."""
    page.wait_for_selector(f"#fleet-brush strong:has-text('{'' if n is None else n} of {GPUS} GPUs')")
    count = int(page.locator("#fleet-brush strong").first.inner_text().split()[0])
    page.wait_for_function(
        "many => document.querySelectorAll('#fleet-table .ag-center-cols-container .ag-row').length === many", arg=count
    )
    return count


def _points(page: Page, figure: str) -> list[int]:
    """The points of a figure that are drawn in full."""
    colours = page.evaluate(
        f"() => Array.from(document.querySelector('#{figure} .js-plotly-plot')._fullData[0].marker.color)"
    )
    return [place for place, flag in enumerate(colours) if flag == 1]


@pytest.mark.long
def test_a_brush_holds_in_the_other_figures_the_table_and_the_address(opened: Opened) -> None:
    page = _open(opened)
    assert f"{GPUS} GPUs in" in page.locator("#fleet-said").inner_text()
    _drag(page, "fleet-strips", 0.01, 0.02, 0.99, 0.62)
    page.wait_for_url(re.compile(r"brush=strips:"))
    count = _brushed(page)
    assert 0 < count < GPUS / 2
    held = _points(page, "fleet-strips")
    assert len(held) == count
    assert _points(page, "fleet-power") == held
    text = "document.querySelector('#fleet-map .js-plotly-plot')._fullData[1]"
    cells = page.evaluate(f"() => Array.from({text}.z, row => [...row]).flat().filter(Number.isFinite).length")
    assert cells == count
    slower = page.locator("#fleet-table .ag-row [col-id=slower_pct]").all_inner_texts()
    assert len(slower) == count
    least = float(page.url.partition("brush=strips:")[2].split(":")[2])
    assert all(float(flag.strip("+ %")) >= round(least, 2) for flag in slower)

    copied = page.url
    again = _open(opened, copied.partition("/node/7/")[2])
    assert _brushed(again, count) == count
    assert _points(again, "fleet-power") == held

    _drag(page, "fleet-map", 0.03, 0.06, 0.97, 0.47)
    page.wait_for_url(re.compile("brush=map:"))
    page.wait_for_selector("#fleet-brush:has-text('a part of the map')")
    fewer = _brushed(page)
    assert fewer < count
    page.get_by_role("button", name="Clear").click()
    page.wait_for_url(re.compile(r"fleet\?probe=gemm-fp32$"))
    page.wait_for_selector("#fleet-brush:empty", state="attached")
    page.go_back()
    assert _brushed(page, fewer) == fewer


@pytest.mark.long
def test_a_gpu_is_looked_at_chosen_and_followed(opened: Opened) -> None:
    page = _open(opened, "fleet?probe=gemm-fp32&brush=strips:-1:99:10:99")
    assert _brushed(page) == 1, "the pinned one"
    mark = page.locator("#fleet-power .scatterlayer .trace:last-child .point").first
    mark.hover(force=True)
    tip = page.locator("#fleet-power-tip .tip, .dash-graph--tooltip .tip, .tip").first
    tip.wait_for()
    assert re.search(r"slower, %: \+\d+\.\d+ \(95 %: \+\d+\.\d+ to \+\d+\.\d+ %\)", tip.inner_text())
    assert "3 runs in 3 sittings" in tip.inner_text()
    assert "pinned clock, confirmed" in tip.inner_text()
    mark.click(force=True)
    page.wait_for_url(re.compile("gpu="))
    page.wait_for_selector("#fleet-brush:has-text('Chosen:')")
    name = page.locator("#fleet-table .ag-row a").inner_text()
    assert name in page.locator("#fleet-brush").inner_text()
    cell = page.locator("#fleet-table .ag-row [col-id=chosen]")
    cell.filter(has_text="☑").wait_for()
    cell.click()
    page.wait_for_url(re.compile(r"^(?!.*gpu=)"))
    cell.filter(has_text="☐").wait_for()


@pytest.mark.long
def test_what_is_chosen_in_the_head_is_in_the_address_and_in_the_figures(opened: Opened) -> None:
    page = _open(opened)
    page.locator("#fleet-choose-figure").click()
    page.get_by_role("option", name="temperature rise").click()
    page.wait_for_url(re.compile("figure=temperature_rise"))
    page.wait_for_selector("#fleet-strips .ytitle:has-text('warms more a watt')")
    page.wait_for_selector("#fleet-table [role=columnheader][col-id=temperature_rise]")
    page.locator("#fleet-choose-campaign").click()
    page.get_by_role("option", name="made-2").click()
    page.wait_for_url(re.compile("campaign=made-2"))
    page.wait_for_selector("#fleet-said:has-text('64 runs of gemm-fp32')")
    assert "no intervals" in page.locator("#fleet-said").inner_text()
    assert "The store has no figure 'temperature_rise' here" in page.locator("#fleet-said").inner_text()
    page.go_back()
    page.wait_for_selector("#fleet-said:has-text('192 runs of gemm-fp32')")
    page.locator("#fleet-choose-campaign:has-text('all runs')").wait_for()
