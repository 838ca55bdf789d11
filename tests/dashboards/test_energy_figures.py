"""The figures and frames of energy: what they show is what the answers say, and nothing missing becomes 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.energy.answers import By, EnergySummary, summary
from whorl.analysis.energy.one_job import OneJob, one_job
from whorl.dashboards.energy_table import Unit, energy_frame, gpu_frame, problem_frame
from whorl.dashboards.energy_words import TO_DO, name_of
from whorl.dashboards.figures.energy_books import PARTS, books
from whorl.dashboards.figures.energy_users import largest
from whorl.store import Store
from whorl.tests.analysis.energy.stored import gpu, job, readings, store_of

HOSTILE = "<b>ann</b>"
DAY = 86_400


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Four GPUs over two days; jobs of 20 users, one with HTML in the name. One GPU reads 0 W, one job's is unknown."""
    seconds = np.arange(0, 1.5 * DAY, 60.0)
    busy = np.where((seconds // 3600) % 2 == 0, 250.0, 50.0)
    jobs = [job(one, "abc"[one % 3], one * 3600, one * 3600 + 3000, user=f"u{one:02d}") for one in range(17)]
    jobs += [job("h", "a", 20 * 3600, 21 * 3600, user=HOSTILE), job("zero", "z", 0, 3600, user="zero")]
    jobs.append(job("lost", "GPU-lost", 0, 3600, user="lost"))
    telemetry = [readings(one, seconds.tolist(), busy.tolist()) for one in "abc"]
    telemetry.append(readings("z", seconds.tolist(), np.zeros_like(seconds).tolist()))
    return store_of(tmp_path_factory.mktemp("energy") / "s", [gpu(one) for one in "abcz"], telemetry, jobs)


@pytest.fixture(scope="module")
def found(store: Store) -> EnergySummary:
    return summary(store)


@pytest.fixture(scope="module")
def one(store: Store) -> OneJob:
    return one_job(store, "h")


@pytest.mark.long(short=1)
@pytest.mark.parametrize("days", [2, 6])
def test_the_bars_of_a_day_are_its_parts_and_the_line_its_interval(days: int, found: EnergySummary) -> None:
    rows = _days(found, days)
    figure = books(rows)
    day, energy = ("y", "x") if days == 2 else ("x", "y")  # few lie, many stand
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert [bar.name for bar in bars] == [what for _, what, _ in PARTS.values()]
    for bar, (column, _, _) in zip(bars, PARTS.values(), strict=True):
        assert [str(one) for one in bar[day]] == [str(one) for one in rows["day"]]
        assert list(bar[energy]) == pytest.approx((rows[column] / 3.6e6).to_list())
    (line,) = [trace for trace in figure.data if trace.type == "scatter"]
    tops = np.array(line[energy]) + np.array(line[f"error_{energy}"].array)
    assert tops.tolist() == pytest.approx((rows["high_j"] / 3.6e6).to_list())
    assert sum(np.array(bar[energy]) for bar in bars) == pytest.approx(line[energy])
    assert "3 GPUs" in line.text[0]
    assert figure.layout[f"{energy}axis"].title.text == "kWh"


@pytest.mark.parametrize("days", [2, 6])
def test_a_day_without_a_figure_is_marked_and_has_no_bar(days: int, found: EnergySummary) -> None:
    rows = _days(found, days)
    parts = [column for column, _, _ in PARTS.values()]
    gone = rows.with_columns(
        pl.when(pl.col("day") == rows["day"][0]).then(None).otherwise(name).alias(name)
        for name in ("energy_j", "low_j", "high_j", *parts)
    )
    figure = books(gone)
    day, energy = ("y", "x") if days == 2 else ("x", "y")
    assert all(trace[energy][0] is None for trace in figure.data if trace.type == "bar")
    (marked,) = [trace for trace in figure.data if trace.type == "scatter" and trace.mode == "text"]
    assert ([str(one) for one in marked[day]], list(marked.text)) == ([str(rows["day"][0])], ["n/a"])


def _days(found: EnergySummary, days: int) -> pl.DataFrame:
    """The first day, so many times."""
    row = found.answers[By.DAY].rows.head(1)
    return pl.concat([row.with_columns(pl.col("day") + pl.duration(days=one)) for one in range(days)])


def test_each_cluster_has_a_panel(found: EnergySummary) -> None:
    rows = found.answers[By.DAY].rows
    figure = books(pl.concat([rows, rows.with_columns(cluster=pl.lit(HOSTILE))]))
    assert [one.text for one in figure.layout.annotations] == ["&lt;b&gt;ann&lt;/b&gt;", "c"]
    assert len([trace for trace in figure.data if trace.type == "bar"]) == 6
    assert len([trace for trace in figure.data if trace.showlegend]) == 3
    inside = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    assert (figure.layout.legend.y - 1) * inside > 20, "the legend stands above the name of the first cluster"


def test_the_largest_have_a_bar_each_and_all_others_one(found: EnergySummary) -> None:
    rows = found.answers[By.USER].rows
    figure = largest(By.USER, rows, 15, found.beyond[By.USER])
    (bars,) = figure.data
    names = list(figure.layout.yaxis.ticktext)
    people = rows.filter(pl.col("kind") == "job")
    first = people.head(15)
    assert people.height == 20
    assert names[15:] == ["3 others (2 more n/a)", "(idle)", "(unattributed)"]
    assert "&lt;b&gt;ann&lt;/b&gt;" in names
    assert HOSTILE not in str(bars.hovertext)
    assert list(bars.x[:15]) == pytest.approx((first["energy_j"] / 3.6e6).to_list())
    beyond: Any = found.beyond[By.USER]
    assert bars.x[15] == pytest.approx(beyond["energy_j"] / 3.6e6)
    assert bars.error_x.array[15] == pytest.approx((beyond["high_j"] - beyond["energy_j"]) / 3.6e6)


def test_a_bar_that_is_far_longer_than_the_others_is_cut_and_says_how_long_it_is(found: EnergySummary) -> None:
    rows = found.answers[By.USER].rows
    beyond = {**dict(found.beyond[By.USER] or {}), "energy_j": 3.6e9, "low_j": 3.5e9, "high_j": 3.8e9}
    figure = largest(By.USER, rows, 15, beyond)
    (bars,) = figure.data
    assert bars.text[15] == "1,000 kWh<br>[972.2, 1,056]", "in two lines, so that a phone has room for them"
    assert set(bars.text[:15]) == {""}
    assert figure.layout.xaxis.range[1] == pytest.approx(1.1 * float(rows["high_j"][0]) / 3.6e6)


def test_what_has_no_figure_has_no_bar_and_says_why(found: EnergySummary) -> None:
    figure = largest(By.GPU, found.answers[By.GPU].rows, 15, None)
    bars, missing = figure.data
    assert list(bars.y) == [0, 1, 2]
    assert (list(missing.y), missing.text[0].strip()) == ([3], "n/a")
    assert "0 W" in missing.hovertext[0]


@pytest.mark.parametrize("by", list(By))
def test_a_frame_has_the_names_and_figures_of_the_answer(by: By, found: EnergySummary) -> None:
    answer = found.answers[by]
    frame = energy_frame(answer)
    assert frame.rows["what"].fill_null("n/a").to_list() == [name_of(by, row) for row in answer.rows.to_dicts()]
    column = frame.energy.column("energy")
    assert (frame.rows[column] * frame.energy.size).to_list() == pytest.approx(answer.rows["energy_j"].to_list())
    assert frame.rows.filter(pl.col(column).is_null())["why"].null_count() == 0
    assert frame.rows["idle"].drop_nulls().is_between(0, 100).all()


@pytest.mark.long
def test_the_gpus_of_a_job_are_shown_with_what_is_not_known_as_missing(one: OneJob) -> None:
    frame = gpu_frame(one)
    (row,) = frame.rows.to_dicts()
    assert row["what"] == "a"
    assert row["energy_kwh"] * 3.6e6 == pytest.approx(one.gpus["energy_j"][0])
    assert (row["rank"], row["slower_pct"], row["lost_s"], row["verdicts"]) == (None, None, None, None)
    assert "whorl campaign" in row["lost_why"]


def test_each_problem_says_what_to_do(found: EnergySummary) -> None:
    rows = problem_frame(found.balance)
    assert {"zero watts", "unknown GPU"} <= set(rows["problem"])
    assert rows["do"].null_count() == 0
    assert set(rows["do"]) <= {one.replace("`", "") for one in TO_DO.values()}
    assert rows.filter(pl.col("problem") == "unknown GPU")["about"][0].startswith("GPU GPU-lost job lost, ")


@pytest.mark.parametrize(("most", "digits"), [(0.0, 0), (13.7 * 3600, 2), (4.3e9, 0), (3600.0, 3), (7.0, 3)])
def test_a_unit_shows_four_digits_of_the_largest(most: float, digits: int) -> None:
    assert Unit.of([None, most / 7, most]).digits == digits


def test_an_empty_answer_gives_empty_figures(found: EnergySummary, tmp_path: Path) -> None:
    assert largest(By.USER, found.answers[By.USER].rows.clear(), 15, None).data[0].x == ()
    assert not [trace for trace in books(found.answers[By.DAY].rows.clear()).data if trace.type == "bar"]
