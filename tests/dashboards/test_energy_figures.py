"""The figures and tables of energy: what they show is what the answers say, and nothing missing becomes 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.energy.answers import By, EnergySummary, summary
from whorl.analysis.energy.quote import OneJob, one_job
from whorl.dashboards.document import Chart, Section, Table
from whorl.dashboards.documents.books import TO_DO, balance_document
from whorl.dashboards.documents.energy import days_chart, largest_chart, name_of, rows_table
from whorl.dashboards.documents.job import job_document
from whorl.dashboards.figures.energy import PARTS, books
from whorl.store import Store
from whorl.tests.analysis.energy.stored import gpu, job, readings, store_of

HOSTILE = "<b>ann</b>"
DAY = 86_400


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Four GPUs over two days; jobs of 20 users, one with HTML in the name. One GPU reads 0 W, one job's is unknown."""
    seconds = np.arange(0, 1.5 * DAY, 60.0)
    busy = np.where((seconds // 3600) % 2 == 0, 250.0, 50.0)
    jobs = [
        job(number, "abc"[number % 3], number * 3600, number * 3600 + 3000, user=f"u{number:02d}")
        for number in range(17)
    ]
    jobs += [job("h", "a", 20 * 3600, 21 * 3600, user=HOSTILE), job("zero", "z", 0, 3600, user="zero")]
    jobs.append(job("lost", "GPU-lost", 0, 3600, user="lost"))
    telemetry = [readings(number, seconds.tolist(), busy.tolist()) for number in "abc"]
    telemetry.append(readings("z", seconds.tolist(), np.zeros_like(seconds).tolist()))
    return store_of(tmp_path_factory.mktemp("energy") / "s", [gpu(number) for number in "abcz"], telemetry, jobs)


@pytest.fixture(scope="module")
def energy_summary(store: Store) -> EnergySummary:
    return summary(store)


@pytest.fixture(scope="module")
def single_job(store: Store) -> OneJob:
    return one_job(store, "h")


def _days(energy_summary: EnergySummary) -> pl.DataFrame:
    """The first day, six times."""
    row = energy_summary.answers[By.DAY].rows.head(1)
    return pl.concat([row.with_columns(pl.col("day") + pl.duration(days=number)) for number in range(6)])


def test_the_bars_of_a_day_are_its_parts_and_the_line_its_interval(energy_summary: EnergySummary) -> None:
    rows = _days(energy_summary)
    figure = books(rows)
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == [part for _, part, _ in PARTS.values()]
    for bar, (column, _, _) in zip(bars, PARTS.values(), strict=True):
        assert [str(row) for row in bar.x] == [str(row) for row in rows["day"]]
        assert list(bar.y) == pytest.approx((rows[column] / 3.6e6).to_list())
    (line,) = [trace for trace in figure.data if trace.type == "scatter"]
    tops = np.array(line.y) + np.array(line.error_y.array)
    assert tops.tolist() == pytest.approx((rows["high_j"] / 3.6e6).to_list())
    assert sum(np.array(bar.y) for bar in bars) == pytest.approx(line.y)
    assert "3 GPUs" in line.text[0]
    assert figure.layout.yaxis.title.text == "kWh"


def test_a_day_without_a_figure_is_marked_and_has_no_bar(energy_summary: EnergySummary) -> None:
    rows = _days(energy_summary)
    parts = [column for column, _, _ in PARTS.values()]
    gone = rows.with_columns(
        pl.when(pl.col("day") == rows["day"][0]).then(None).otherwise(name).alias(name)
        for name in ("energy_j", "low_j", "high_j", *parts)
    )
    figure = books(gone)
    assert all(trace.y[0] is None for trace in figure.data if trace.type == "bar")
    (marked,) = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "text"]
    assert ([str(row) for row in marked.x], list(marked.text)) == ([str(rows["day"][0])], ["n/a"])


def _largest(energy_summary: EnergySummary, by: By) -> Any:
    (figure,) = largest_chart(energy_summary, (by,)).figures.values()
    return figure


def test_the_largest_have_a_bar_each(energy_summary: EnergySummary) -> None:
    figure = _largest(energy_summary, By.USER)
    (bars,) = figure.data
    first = energy_summary.answers[By.USER].rows.filter(pl.col("kind") == "job").head(15)
    assert "&lt;b&gt;ann&lt;/b&gt;" in figure.layout.yaxis.ticktext
    assert HOSTILE not in str(bars.hovertext)
    assert list(bars.x) == pytest.approx((first["energy_j"] / 3600).to_list())
    assert figure.layout.xaxis.title.text == "Wh"


def test_what_has_no_figure_has_no_bar_and_says_why(energy_summary: EnergySummary) -> None:
    bars, missing = _largest(energy_summary, By.GPU).data
    assert list(bars.y) == [0, 1, 2]
    assert (list(missing.y), missing.text[0].strip()) == ([3], "n/a")
    assert "0 W" in missing.hovertext[0]


@pytest.mark.parametrize("by", list(By))
def test_a_table_has_the_names_and_figures_of_the_answer(by: By, energy_summary: EnergySummary) -> None:
    answer = energy_summary.answers[by]
    rows = answer.rows.reverse().to_dicts() if by is By.DAY else answer.rows.to_dicts()
    table = rows_table(answer)
    heads = [column.head for column in table.heads]
    energy = heads.index("energy")
    assert [row[0] for row in table.rows] == [name_of(by, row) for row in rows]
    for cells, row in zip(table.rows, rows, strict=True):
        if row["energy_j"] is None:
            assert (cells[energy], table.heads[energy].text(cells[energy])) == (None, "n/a")
            assert row["reason"] in str(cells[heads.index("why n/a")])
        else:
            assert cells[energy] == pytest.approx((row["energy_j"], row["low_j"], row["high_j"]))


@pytest.mark.long
def test_the_gpus_of_a_job_are_shown_with_what_is_not_known_as_missing(single_job: OneJob) -> None:
    (section,) = job_document(single_job).parts
    assert isinstance(section, Section)
    gpus = next(part for part in section.parts if isinstance(part, Section))
    (table,) = [part for part in gpus.parts if isinstance(part, Table)]
    assert [column.head for column in table.heads] == [
        "GPU",
        "model",
        "share",
        "time",
        "energy",
        "idle %",
        "measured %",
        "by",
        "verdicts",
    ]
    ((name, *_, verdicts),) = table.rows
    assert (name, verdicts) == ("a", None)
    assert not [part for part in gpus.parts if isinstance(part, Chart)]
    assert any("`whorl campaign`" in part for part in gpus.parts if isinstance(part, str))


def test_each_problem_says_what_to_do(energy_summary: EnergySummary) -> None:
    kinds, apiece = list(balance_document(energy_summary.balance).tables())[1:]
    assert {"zero watts", "unknown GPU"} <= {row[0] for row in kinds.rows}
    assert {row[4] for row in kinds.rows} <= set(TO_DO.values())
    (about,) = [row[1] for row in apiece.rows if row[0] == "unknown GPU"]
    assert str(about).startswith("GPU GPU-lost job lost, ")


def test_an_empty_answer_gives_empty_figures(energy_summary: EnergySummary) -> None:
    answers = {by: replace(answer, rows=answer.rows.clear()) for by, answer in energy_summary.answers.items()}
    empty = replace(energy_summary, answers=answers)
    assert _largest(empty, By.USER).data[0].x == ()
    assert not days_chart(empty).figures
