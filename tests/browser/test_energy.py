"""The page Jobs and energy as a person uses it: by user, by job, one job in full, back; the address keeps it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from whorl.tests.browser.conftest import Opened

pytestmark = pytest.mark.browser


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
