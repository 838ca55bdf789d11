"""The page Placement says what `whorl advise` says, and draws it; a replay takes the jobs that the store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pytest
from click.testing import CliRunner

from whorl.analysis.placement.advice import AVOIDED, EXCLUDED, PREFERRED
from whorl.analysis.verdicts import NO_FINDING
from whorl.analysis.verdicts.judgements import conclude
from whorl.cli import cli
from whorl.cli.answers.advice import Advisor
from whorl.dashboards.app.placement import PAGE
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.shell import make_app
from whorl.dashboards.app.state import State
from whorl.dashboards.document import Section, Table
from whorl.dashboards.documents.placement import PlacementAnswer, PlacementQuestion
from whorl.dashboards.figures.placement import nodes_by_score
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.advised_fleet import write_store
from whorl.tests.dashboards.asking import Asked
from whorl.tests.judged_fleet import CLUSTER, judged_store
from whorl.tests.stores import new_store

HOSTILE = "<img src=x onerror=alert(1)>"
_S = 1_000_000_000
_AT = 1_790_000_000 * _S


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(write_store(tmp_path_factory.mktemp("placement")))


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return Advisor()


def _told(store: Store, advisor: Advisor, workload: str = "sgemm", gpus: int = 4) -> PlacementAnswer:
    return advisor(store, 1, PlacementQuestion("small", workload, None, gpus), lambda _: None)


@pytest.mark.long
def test_who_stands_out_is_said_by_the_judge_alone(tmp_path: Path) -> None:
    judged = judged_store(tmp_path / "S", slow={5: 0.3})
    question = PlacementQuestion(CLUSTER, "gemm-fp32", None, 1)
    assert Advisor()(judged, 1, question, lambda _: None).gpus["finding"].is_null().all(), "nobody has judged"
    [judgement] = conclude(judged).judgements
    text = Advisor()(judged, 2, question, lambda _: None).gpus
    standing_out = dict(text.filter(pl.col("finding") != NO_FINDING).select("name", "finding").iter_rows())
    expected = {
        row.name: f"{row.kind}, {row.state}" for row in reversed(judgement.rows) if row.name in set(text["name"])
    }
    assert standing_out == expected
    assert "n02/1" in expected


def test_nodes_are_marked_as_the_advice_says_and_drawn_with_their_interval(store: Store, advisor: Advisor) -> None:
    nodes = _told(store, advisor).nodes["sgemm"]
    marks = dict(nodes.select("node", "mark").iter_rows())
    assert (marks["n02"], marks["n05"]) == (EXCLUDED, AVOIDED)
    assert PREFERRED in marks.values()
    assert nodes["score"].is_sorted()
    worst = nodes.row(by_predicate=pl.col("node") == "n02", named=True)
    assert worst["low"] < worst["score"] < worst["high"]
    assert (worst["worst"], worst["gpus"]) == ("n02/1", 4)
    figure: Any = nodes_by_score(nodes, hard=1.1, soft=1.05)
    assert figure.layout.xaxis.autotickangles == (0, 90), "a slanted name of the slowest node is left out on a phone"
    (drawn,) = [trace for trace in figure.data if trace.name == "exclude"]
    assert drawn.y[0] == pytest.approx(worst["score"], rel=1e-5)
    assert drawn.error_y.array[0] == pytest.approx(worst["high"] - worst["score"], abs=1e-4)
    assert list(figure.layout.xaxis.ticktext) == nodes["node"].to_list()


@pytest.mark.long
def test_gpus_of_several_models_have_nodes_of_their_own(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    gpus = [f"g{row}" for row in range(16)]
    models = ["V100"] * 8 + ["A100"] * 8
    nodes_of = {"cluster": ["small"] * 16, "gpu": gpus}
    store.append(
        {
            "gpus": arrow_rows("gpus", nodes_of | {"model": models, "node": [f"n{row // 4}" for row in range(16)]}),
            "runs": arrow_rows("runs", nodes_of | {"run_id": gpus, "workload": ["sgemm"] * 16, "began": [_AT] * 16}),
            "results": arrow_rows(
                "results",
                nodes_of
                | {"run_id": gpus, "workload": ["sgemm"] * 16, "figure": ["time"] * 16, "unit": ["ms"] * 16}
                | {"value": [10.0 + row for row in range(16)]},
            ),
        },
        "runs",
    )
    advisor = Advisor()
    sentence = _told(store, advisor, gpus=1)
    assert {kind: rows["node"].to_list() for kind, rows in sentence.nodes.items()} == {
        "V100": ["n0", "n1"],
        "A100": ["n2", "n3"],
    }
    row = advisor(store, 1, PlacementQuestion("small", "sgemm", "A100", 1), lambda _: None)
    assert [rows["node"].to_list() for rows in row.nodes.values()] == [["n2", "n3"]]


def test_a_large_fleet_is_a_band_and_few_bytes() -> None:
    n = 4_608
    rows = pl.DataFrame(
        {
            "node": ["<b>n</b>", *(f"n{number}" for number in range(1, n))], "gpus": [6] * n, "worst": ["g"] * n,
            "runs": [5] * n, "score": [1 + number / n / 10 for number in range(n)], "low": [0.9] * n,
            "high": [None, *([1.2] * (n - 1))],
            "mark": [""] * (n - 1) + ["excluded"],
        }
    )  # fmt: skip
    figure: Any = nodes_by_score(rows)
    assert [trace.name for trace in figure.data] == [None, "90 % interval", "no advice", "exclude"]
    text = figure.to_json()
    assert len(text) < 500_000
    assert "<b>n</b>" not in text


def test_all_gpus_have_their_score_and_n_the_slowest_first(store: Store, advisor: Advisor) -> None:
    gpus = _told(store, advisor).gpus
    assert gpus.height == 24
    assert gpus.row(0, named=True)["name"] == "n02/1"
    assert gpus["score"].is_sorted(descending=True)
    assert gpus["runs"].to_list() == [6] * 24
    assert _told(store, advisor, "pagerank", 8).gpus["score"].to_list() == [1.0] * 24


def test_another_number_of_gpus_needs_no_new_scores(
    store: Store, advisor: Advisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    _told(store, advisor)
    monkeypatch.setattr("whorl.jobs.steering._scores", None)
    assert _told(store, advisor, gpus=2).advice.gpus == 2
    with pytest.raises(TypeError):  # scores of the store as it was do not serve
        advisor(store, 2, PlacementQuestion("small", "sgemm", None, 4), lambda _: None)


def test_it_opens_with_the_workload_that_gains_most(store: Store, advisor: Advisor) -> None:
    answer = advisor(store, 1, PlacementQuestion("small", None, None, 4), lambda _: None)
    first, *parts = answer.document.parts
    assert str(first).startswith("sgemm gains most of 2 workloads: the best 4 packed GPUs save ")
    assert str(first).endswith(" (n = 24 GPUs, 144 runs).")
    [gains] = [part for part in parts if isinstance(part, Section) and part.title.endswith("gains, by workload")]
    [table] = gains.parts
    assert isinstance(table, Table)
    rows = table.texts()
    assert [row[0] for row in rows] == ["sgemm", "pagerank"]
    assert rows[1][1] == "n/a", "what does not repeat is no gain of 0"
    assert "--workload sgemm" in answer.lines[0].command
    (request,) = [advisor(store, 1, PlacementQuestion("small", "sgemm", None, 4), lambda _: None)]
    assert request.advice.gains == answer.advice.gains


def test_too_large_a_job_is_a_sentence(store: Store, advisor: Advisor) -> None:
    with pytest.raises(InputError, match="the job needs 99 GPUs, but only 24 GPUs on small were measured"):
        _told(store, advisor, gpus=99)


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("search", "says"),
    [
        (f"gpus=-1&without={quote(HOSTILE)}&without=n01/0", ["gpus='-1' in the address is no number", "Not excluded"]),
        (
            "probe=sgemm&gpus=4",
            ["n = 24 GPUs", "gpu?cluster=small&gpu=", "--format exclude", "n02", "the best 4 packed GPUs save"],
        ),
        ("gpus=90000", ["the job needs 90000 GPUs, but only 24 GPUs"]),
        (f"probe={quote(HOSTILE)}&cluster=%ff&model=%ff", ["There are no times of"]),
    ],
)
def test_a_page_has_the_advice_and_tells_what_an_address_says_wrongly(
    search: str, says: list[str], store: Store, advisor: Advisor
) -> None:
    sentence = Asked(make_app(Reading(store, advise=advisor))).said(f"placement?{search}")
    assert [fragment for fragment in says if fragment not in sentence] == []


def test_a_store_without_times_says_what_to_do(tmp_path: Path, advisor: Advisor) -> None:
    store = new_store(tmp_path / "store")
    untimed = {"cluster": ["c"], "gpu": ["g"], "run_id": ["1"], "workload": ["idle"], "began": [_AT]}
    store.append({"runs": arrow_rows("runs", untimed)}, "runs")
    text = str(PAGE.layout(Reading(store, advise=advisor), State(probe="idle", gpus="4")))
    assert "No run of this store has a time, so there are no scores." in text
    assert f"whorl probe run --store {store.root}" in text


@pytest.mark.long
def test_nodes_that_a_person_excludes_are_excluded_too(store: Store, advisor: Advisor) -> None:
    sentence = advisor(store, 1, PlacementQuestion("small", "sgemm", None, 4, ("n01", "n03")), lambda _: None)
    first, packed = sentence.lines[:2]
    words = ["advise", "--store", str(store.root), "--no-scheduler", "--workload", "sgemm", "--gpus", "4"]
    printed = CliRunner().invoke(cli, [*words, "--format", "exclude", "--set", "and=n[01,03]"]).stdout.strip()
    assert first.text == printed == "n[01-03]"
    assert first.command.endswith("--format exclude --set 'and=n[01,03]'")
    assert packed.text not in ("n01", "n03")
    assert packed.command == ""
    with pytest.raises(InputError, match="no node that the job can use was measured"):
        advisor(
            store, 1, PlacementQuestion("small", "sgemm", None, 4, tuple(f"n0{n}" for n in range(1, 7))), lambda _: None
        )
