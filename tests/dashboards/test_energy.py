"""The page Jobs and energy without a browser: its figures are those of the commands, and it waits for slow answers."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from whorl.analysis.energy.answers import By, EnergySummary, summary
from whorl.analysis.energy.options import Ground, ground
from whorl.analysis.energy.quote import OneJob, one_job
from whorl.cli import cli
from whorl.dashboards.app import energy as page
from whorl.dashboards.app import reading
from whorl.dashboards.document import Chart, Section, Table
from whorl.dashboards.documents.books import TO_DO, balance_document
from whorl.dashboards.documents.energy import days_chart, largest_chart, name_of, rows_table
from whorl.dashboards.documents.job import job_document
from whorl.dashboards.figures.energy import PARTS, books
from whorl.store import Store
from whorl.tests.analysis.energy.stored import gpu, job, readings, store_of
from whorl.tests.dashboards.asking import Asked

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two GPUs for an hour; three jobs, of which one runs, one ended before it began, and one names no GPU."""
    seconds = [10.0 * number for number in range(360)]
    watts = [250.0 if 600 <= number < 2400 else 50.0 for number in seconds]
    jobs = [
        job(1, "a", 600, 2400, user=HOSTILE, account=HOSTILE), job("run", "b", 600, None), job("back", "a", 500, 400),
        job("nowhere", None, 600, 700), job("unread", "z", 600, 700, node="n2"),
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("energy-page") / "s"
    return store_of(path, [gpu("a"), gpu("b")], [readings(number, seconds, watts) for number in "ab"], jobs)


@pytest.fixture(scope="module")
def pages(store: Store) -> Asked:
    return Asked(store)


def _asked(pages: Asked, search: str, by: str = "url.search", drawn: Any = None) -> dict[str, Any]:
    """What the page follows an address with."""
    page = {"url.pathname": "/energy", "energy-poll.n_intervals": 1, "energy-again.n_clicks": 0}
    return pages.filled("energy-body", {**page, "url.search": search, "energy-drawn.data": drawn}, by)


def _done(pages: Asked, search: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while not (answers := _asked(pages, search))["energy-poll"]["disabled"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answers


def _words(answers: dict[str, Any]) -> str:
    return json.dumps(answers["energy-body"]["children"], ensure_ascii=False)


def _drawn(part: Any) -> str:
    """The texts of a part of a page, each between > and <."""
    if isinstance(part, dict):
        return _drawn(part.get("props", {}).get("children"))
    return "".join(map(_drawn, part)) if isinstance(part, list) else f">{part}<"


def _figures(tree: Any) -> list[Any]:
    """The Plotly figures in an answer."""
    if isinstance(tree, dict):
        figures = [tree["figure"]] if isinstance(tree.get("figure"), dict) and "data" in tree["figure"] else []
        return figures + [inner for part in tree.values() for inner in _figures(part)]
    return [inner for part in tree for inner in _figures(part)] if isinstance(tree, list) else []


def _printed(store: Store, *arguments: str) -> str:
    done = CliRunner().invoke(cli, ["energy", *arguments, "--store", str(store.root)], catch_exceptions=False)
    return str(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "says"),
    [
        ("run", "It is still running"),
        ("back", "it ends before it begins"),
        ("nowhere", "nobody knows which GPUs it had"),
        ("unread", "there is no reading of this GPU in this time"),
        ("none", "knows no job none"),
    ],
)
def test_what_is_strange_about_a_job_is_told(number: str, says: str, pages: Asked) -> None:
    assert says in _words(_done(pages, f"?job={number}"))


@pytest.mark.long
def test_books_of_which_nothing_is_known_are_na_and_never_0(tmp_path: Path) -> None:
    stuck = readings("a", range(60), [200.0] * 60, quality=["power_stuck"] * 60)
    made_store = store_of(tmp_path / "stuck", [gpu("a")], [stuck], [])
    text = _words(_done(Asked(made_store), ""))
    assert "n/a: the energy of no GPU is known" in text
    assert "The books balance" not in text
    assert '"0 J"' not in text
    assert "0 J metered" not in text
    assert "n/a: the energy of no GPU is known" in _printed(made_store, "reconcile")


def test_from_a_job_that_is_not_there_a_link_leads_back(pages: Asked, store: Store) -> None:
    assert "knows no job none" in _words(_done(pages, "?job=none&by=user"))
    text = Asked(store).said("energy?job=none&by=user").partition('"energy-back"')[2]
    assert '"href": "energy?by=user"' in text


@pytest.mark.long
def test_a_job_without_energy_is_na_and_never_0(pages: Asked, store: Store) -> None:
    assert one_job(store, "unread").answer.total["energy_j"] is None
    tiles = _done(pages, "?job=unread")["energy-body"]["children"]
    assert ">n/a<" in _drawn(tiles)
    assert not re.search(r">0(\.0*)? [kM]?J<", _drawn(tiles))
    assert "Infinity" not in _words(_done(pages, "?by=job"))
    assert "no telemetry" in _words(_done(pages, "?by=job"))


@pytest.mark.long
def test_names_of_people_stay_text(pages: Asked) -> None:
    for by in ("user", "account", "job"):
        text = _words(_done(pages, f"?by={by}"))
        assert "dangerously" not in text
        assert "Markdown" not in text
    by_user = [_figure for _figure in _figures(_done(pages, "?by=user")) if "yaxis" in _figure["layout"]]
    drawn = json.dumps([(_figure["layout"]["yaxis"], _figure["data"]) for _figure in by_user])
    assert "&lt;img" in drawn, "Plotly shows it as text"
    assert "<img" not in drawn


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("search", "says"),
    [
        ("?by=<b>", "by='<b>' in the address is none of"),
        ("?last=0", "last='0' in the address is none of"),
        ("?since=soon&until=&by=node", "Energy by node"),
        ("?job=1%27%20or%201=1", "knows no job 1' or 1=1"),
        ("?cluster=%00", "has no telemetry of cluster"),
        ("?since=2026-11-03T00:00&until=2026-11-02T00:00", "drawn by 2 GPUs"),
        ("?since=1970-01-01T00:00&until=1970-01-02T00:00", "no telemetry in this time"),
    ],
)
def test_what_an_address_says_wrongly_is_told_in_a_sentence(search: str, says: str, pages: Asked) -> None:
    assert says in _words(_done(pages, search)).replace("\u00a0", " ")


@pytest.mark.long
def test_without_telemetry_jobs_or_a_cluster_there_is_a_sentence(pages: Asked, tmp_path: Path) -> None:
    assert "has no telemetry of cluster nowhere" in _words(_done(pages, "?cluster=nowhere"))
    alone = store_of(tmp_path / "a", [gpu("a")], [readings("a", range(99), [200.0] * 99)], [])
    assert "No job is known in this time" in _words(_done(Asked(alone), ""))
    unread = store_of(tmp_path / "b", [gpu("a")], [], [job(1, "a", 600, 2400)])
    text = _words(_done(Asked(unread), ""))
    assert "has no telemetry" in text
    assert "whorl collect" in text


@pytest.mark.long
def test_a_cluster_of_a_bookmark_that_no_list_has_stays_in_the_address_and_is_told(pages: Asked, store: Store) -> None:
    """A list that lacks it has no value, which is not what a person chose: all clusters."""
    result = _done(pages, "?cluster=gone")
    assert "no telemetry of cluster gone" in _words(result)
    assert '"energy-cluster": {"value": null}' in Asked(store).said("energy?cluster=gone")
    answers = Asked(store).changed(
        {"energy-cluster.value": None, "url.search": "?cluster=gone", "energy-by.value": "user"}, "energy-cluster.value"
    )
    assert "search" not in json.dumps(answers)


@pytest.mark.long
def test_what_all_jobs_share_is_read_once_and_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    readings_made = []

    def counted(*request: Any) -> Ground:
        readings_made.append(request)
        return ground(*request)

    monkeypatch.setattr(page, "ground", counted)
    pages = Asked(store)
    text = [_words(_done(pages, f"?job={number}")) for number in ("1", "run")]
    assert len(readings_made) == 1
    again = Asked(store)
    assert _words(_done(again, "?job=run")) == text[1]
    answers = ground(store, "c")
    together, alone = one_job(store, "1", grounds=lambda *_: answers), one_job(store, "1")
    assert together.gpus.equals(alone.gpus)
    assert together.elsewhere is not None
    assert alone.elsewhere is not None
    assert [quote.choice for quote in together.elsewhere.quotes] == [quote.choice for quote in alone.elsewhere.quotes]


@pytest.mark.long
def test_a_slow_answer_is_waited_for_and_stays_until_it_is_loaded_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_WAIT_S", 0.0)
    pages = Asked(store)
    first = _asked(pages, "?by=gpu")
    assert first["energy-poll"]["disabled"] is False
    assert "Adding up" in _words(first)
    done = _done(pages, "?by=gpu")
    assert done["energy-again"]["hidden"] is False
    again = _asked(pages, "?by=gpu", "energy-poll.n_intervals", done["energy-drawn"]["data"])
    assert "energy-body" not in again, "what is on the page is not sent again"
    assert _asked(pages, "?by=job")["energy-made"] == done["energy-made"], "another grouping needs no new reading"
    reloaded = _asked(pages, "?by=gpu", "energy-again.n_clicks", done["energy-drawn"]["data"])
    assert reloaded["energy-poll"]["disabled"] is False
    assert "energy-body" not in reloaded, "the old one is shown meanwhile"


# -- figures and tables: what is missing never becomes 0 ---------------------------------------------------------------


BOLD = "<b>ann</b>"
DAY = 86_400


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Four GPUs over two days; jobs of 20 users, one with HTML in the name. One GPU reads 0 W, one job's is unknown."""
    seconds = np.arange(0, 1.5 * DAY, 60.0)
    busy = np.where((seconds // 3600) % 2 == 0, 250.0, 50.0)
    jobs = [
        job(number, "abc"[number % 3], number * 3600, number * 3600 + 3000, user=f"u{number:02d}")
        for number in range(17)
    ]
    jobs += [job("h", "a", 20 * 3600, 21 * 3600, user=BOLD), job("zero", "z", 0, 3600, user="zero")]
    jobs.append(job("lost", "GPU-lost", 0, 3600, user="lost"))
    telemetry = [readings(number, seconds.tolist(), busy.tolist()) for number in "abc"]
    telemetry.append(readings("z", seconds.tolist(), np.zeros_like(seconds).tolist()))
    return store_of(tmp_path_factory.mktemp("energy") / "s", [gpu(number) for number in "abcz"], telemetry, jobs)


@pytest.fixture(scope="module")
def energy_summary(two_days: Store) -> EnergySummary:
    return summary(two_days)


@pytest.fixture(scope="module")
def single_job(two_days: Store) -> OneJob:
    return one_job(two_days, "h")


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
    assert BOLD not in str(bars.hovertext)
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
