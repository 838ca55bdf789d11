"""The page Placement as a person uses it: advice and what to copy."""

from __future__ import annotations

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
