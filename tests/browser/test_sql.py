"""The SQL page as a person uses it: an example, Ctrl+Enter, figures, files, own queries, links of others."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

import pyarrow.parquet as pq
import pytest

from whorl.tests.browser.conftest import GPUS

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from whorl.tests.browser.conftest import Opened

pytestmark = pytest.mark.browser


def _asked(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def _run(page: Page, query: str) -> None:
    page.locator("#sql-text").fill(query)
    page.locator("#sql-text").press("Control+Enter")
    page.locator("#sql-run:enabled").wait_for()


def _column(page: Page, number: int = 0) -> list[str]:
    page.locator(".ag-row").first.wait_for()
    return page.locator(f".ag-cell[col-id=c{number}]").all_inner_texts()


def _choose(page: Page, name: str, label: str) -> None:
    page.locator(f"#{name}").click()
    page.get_by_role("option", name=label, exact=True).click()


def test_an_answer_is_a_table_with_exact_values_and_hostile_ones_stay_text(opened: Opened) -> None:
    page = opened("sql")
    _run(page, "select 9007199254740993 + i as big, 'x' as text, '<img src=x onerror=alert(1)>' as html, null as gone, "
               "'' as nothing from range(3) t(i) order by 1 desc")  # fmt: skip
    page.get_by_text("3 rows.").wait_for()
    assert _column(page) == ["9007199254740995", "9007199254740994", "9007199254740993"]
    assert _column(page, 2)[0] == "<img src=x onerror=alert(1)>"
    assert [_column(page, 3)[0], _column(page, 4)[0]] == ["n/a", ""]
    page.locator(".ag-header-cell[col-id=c0] .ag-header-cell-label").click()
    page.wait_for_function(
        "document.querySelector('.ag-row[row-index=\"0\"]').innerText.startsWith('9007199254740993')"
    )
    assert _asked(page)["query"][0].startswith("select 9007199254740993")


@pytest.mark.long
def test_an_error_says_where_and_leaves_the_query(opened: Opened) -> None:
    page = opened("sql")
    _run(page, "select 1,\n  nothing from runs")
    problem = page.locator(".told.problem")
    problem.wait_for()
    assert "(line 2, character 3)." in problem.inner_text()
    _run(page, "copy runs to 'x'")
    page.get_by_text("COPY is not run").wait_for()
    assert page.locator("#sql-text").input_value() == "copy runs to 'x'"
    _run(page, "select 1 as one")
    page.get_by_text("1 row.").wait_for()
    assert problem.count() == 0


@pytest.mark.long
def test_an_answer_is_drawn_as_the_address_says_and_back_again(opened: Opened) -> None:
    page = opened("sql")
    _choose(page, "sql-example", "Time against power, of the runs of a workload")
    page.locator("#sql-run").click()
    page.locator("#sql-chart .js-plotly-plot .main-svg").first.wait_for()
    assert {name: _asked(page)[name][0] for name in ("chart", "x", "y")} == {
        "chart": "scatter",
        "x": "power_w",
        "y": "time",
    }
    assert "n = " in page.locator("#sql-chart").inner_text()
    page.get_by_role("radio", name="Histogram").click()
    page.wait_for_url("**chart=histogram**")
    assert not page.locator("#sql-y").is_visible()
    _choose(page, "sql-x", "power_w")
    page.get_by_role("radio", name="Table").click()
    page.locator(".ag-row").first.wait_for()
    page.wait_for_function("!location.search.includes('chart')")


@pytest.mark.long
def test_the_whole_answer_is_saved(opened: Opened, tmp_path: Path) -> None:
    page = opened("sql")
    _run(page, "select i, '=1+1' as text from range(2500) t(i)")
    page.get_by_text("The first 1,000 of 2,500 rows.").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    assert download.value.suggested_filename == "answer.csv"
    rows = list(csv.reader(io.StringIO(download.value.path().read_text())))
    assert (len(rows), rows[-1]) == (2501, ["2499", "'=1+1"])
    with page.expect_download() as download:
        page.get_by_role("link", name="Parquet", exact=True).click()
    download.value.save_as(tmp_path / "answer.parquet")
    assert pq.read_table(tmp_path / "answer.parquet").num_rows == 2500


@pytest.mark.long
def test_a_link_of_somebody_else_runs_nothing_and_a_reload_runs_what_was_run(opened: Opened) -> None:
    query = "select count(*) as n from gpus_now"
    page = opened(f"sql?query={quote(query)}")
    page.locator("#sql-tables details").first.wait_for()
    assert page.locator("#sql-text").input_value() == query
    assert page.locator(".ag-row").count() == 0
    page.locator("#sql-run").click()
    assert _column(page) == [str(GPUS)]
    page.reload()
    assert _column(page) == [str(GPUS)]


@pytest.mark.long
def test_own_queries_stay_in_the_browser(opened: Opened) -> None:
    page = opened("sql")
    page.locator("#sql-text").fill("select 42 as mine")
    page.locator("#sql-name").fill("<b>mine</b>")
    page.get_by_role("button", name="Keep").click()
    page.locator("#sql-own").get_by_text("<b>mine</b>").wait_for()
    page.reload()
    _choose(page, "sql-own", "<b>mine</b>")
    page.wait_for_function("document.getElementById('sql-text').value === 'select 42 as mine'")
    page.get_by_role("button", name="Forget").click()
    page.wait_for_function("localStorage.getItem('sql-owns') === '{}'")


@pytest.mark.long
def test_names_of_columns_are_written_into_the_query(opened: Opened) -> None:
    page = opened("sql")
    page.locator("#sql-text").fill("select")
    page.locator("#sql-text").press("End")
    page.locator("#sql-find").fill("vbios")
    page.locator(".tables details", has_text="gpus_now").get_by_role("button", name="vbios", exact=True).click()
    page.locator(".tables details", has_text="gpus_now").get_by_role("button", name="from gpus_now").click()
    assert page.locator("#sql-text").input_value() == "select vbios from gpus_now"
    page.keyboard.press("Control+Enter")
    assert _column(page)


@pytest.mark.long
def test_a_query_is_stopped_and_others_are_answered_meanwhile(opened: Opened) -> None:
    page = opened("sql")
    page.locator("#sql-text").fill("select levenshtein(repeat('a', 1000000), repeat('b', 1000000))")
    page.locator("#sql-run").click()
    page.locator("#sql-stop:enabled").wait_for()
    second_page = opened("sql")
    _run(second_page, "select 1 as one")
    assert _column(second_page) == ["1"]
    page.locator("#sql-stop").click()
    page.get_by_text("The query was stopped.").wait_for()
