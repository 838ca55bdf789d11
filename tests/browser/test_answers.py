"""The pages GPU, Jobs and energy, and Placement in a real browser, used as a person uses them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from playwright.sync_api import expect

from whorl.cli import cli
from whorl.tests.browser.conftest import GPUS

if TYPE_CHECKING:
    from pathlib import Path

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


# -- Jobs and energy: by user, by job, one job in full, back -----------------------------------------------------------


def _open(opened: Opened, path: str, **options: int) -> Page:
    page = opened(path, height=2400, **options)
    page.wait_for_selector("#energy-body .tiles")
    return page


@pytest.mark.long
def test_from_users_to_jobs_to_one_job_and_back(opened: Opened) -> None:
    page = _open(opened, "energy")
    assert "Wh" in page.locator("#energy-body .tiles dd").first.inner_text()
    assert re.search(r"as of \d{4}-\d\d-\d\d", page.locator("#energy-made").inner_text())
    page.wait_for_selector("#energy-body .js-plotly-plot .bars")
    page.wait_for_selector("#energy-body td:has-text('alice')")
    page.locator("#energy-by").click()
    page.get_by_role("option", name="job", exact=True).click()
    page.wait_for_url(re.compile(r"by=job"))
    page.locator("#energy-body a:has-text('1003')").click()
    page.wait_for_url(re.compile(r"job=1003"))
    page.wait_for_selector("h2:has-text('Job 1003 of bob (physics)')")
    page.wait_for_selector("#energy-body .js-plotly-plot .points")
    assert page.locator("#energy-body section section table").first.locator("tbody tr").count() == 4
    assert page.locator("#energy-since").is_hidden()
    page.reload()
    page.wait_for_selector("h2:has-text('Job 1003 of bob (physics)')")
    page.get_by_role("link", name="All jobs").click()
    page.wait_for_url(re.compile(r"energy(\?(?!.*job=).*)?$"))
    page.wait_for_selector("#energy-body .js-plotly-plot .bars")


# -- Placement: advice and what to copy --------------------------------------------------------------------------------


FINDING = "#placement-body > div > .finding"


def _finding(page: Page) -> str:
    page.locator(FINDING).wait_for()
    return page.locator(FINDING).inner_text()


def _printed(store: Path, *words: str) -> str:
    arguments = ["advise", "--store", str(store), "--no-scheduler", "--workload", "gemm-fp32", "--gpus", "8", *words]
    return CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout


@pytest.mark.long
def test_the_page_says_and_copies_what_the_command_prints(opened: Opened, filled: Path) -> None:
    page = opened("placement?probe=gemm-fp32&gpus=8")
    finding = _finding(page)
    printed = " ".join(_printed(filled).split())
    assert finding in printed
    evidence = page.locator("section", has=page.get_by_role("heading", name="Evidence, sets, cost and age"))
    for cell in evidence.locator("td").all_inner_texts():
        assert cell in printed
    page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve(); }")
    for title, form in (("Slurm: nodes to exclude", "exclude"), ("Kubernetes: labels", "kubernetes")):
        part = page.locator(".copies details", has_text=title)
        if part.get_attribute("open") is None:
            part.locator("summary").click()
        assert f"--format {form}" in part.inner_text()
        expected = _printed(filled, "--format", form).strip()
        if expected:
            part.get_by_role("button", name="Copy").click()
            page.wait_for_function("text => (window.copied || '').trim() === text", arg=expected)
        else:
            assert part.get_by_role("button", name="Copy").count() == 0
    expect(page.locator("#placement-body")).to_contain_text(f"n = {GPUS} GPUs")
    page.locator("#placement-body .js-plotly-plot .main-svg").first.wait_for()
