"""Verbs agree with each other, and say what there is where they cannot answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from whorl.tests.contract.harness import InputFolder, done, run
from whorl.tests.sizes import sample

pytestmark = pytest.mark.usefixtures("bare_machine", "stores_are_copied", "stores_stay_open")

SELECT = "select gpu, node, slot, power_limit_mw from gpus_now order by gpu"


@pytest.fixture
def mixed(input_folder: InputFolder) -> Path:
    return input_folder("mixed") / "store"


@pytest.mark.parametrize(
    "words",
    sample(
        [("energy", "--by", "user"), ("energy", "--by", "gpu"), ("energy", "excess", "--by", "node"), ("sql", SELECT)],
        short=1,
    ),
)
def test_csv_has_the_rows_of_json(words: tuple[str, ...], mixed: Path) -> None:
    rows = done(*words, "--store", mixed, "--json").json()["rows"]
    listed = done(*words, "--store", mixed, "--csv").rows()
    assert len(rows) == len(listed) > 1
    for row, line in zip(rows, listed, strict=True):
        numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
        assert {key: line[key] for key in numbers} == numbers
        assert [key for key, value in row.items() if value is None and line.get(key) is not None] == []


@pytest.mark.long
def test_the_report_names_every_gpu_that_the_verdicts_name(mixed: Path, tmp_path: Path) -> None:
    rows = done("verdicts", "--store", mixed, "--json").json()["rows"]
    done("report", "--store", mixed, "--cluster", "mixed", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
    assert len(rows) > 1
    assert [row["name"] for row in rows if row["name"] not in page] == []


@pytest.mark.parametrize(
    "words",
    [
        ("verdicts",), ("verdicts", "fingerprint"), ("verdicts", "variability"), ("verdicts", "plan"),
        ("report", "--out", "page.html"),
        ("advise", "--workload", "sgemm"),
        ("verdicts", "diff", "--before", "2026-01-05T12:00", "--after", "2026-01-06"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_cluster_that_is_not_there_is_refused_with_the_one_that_is(words: tuple[str, ...], mixed: Path) -> None:
    answer = run(*words, "--store", mixed, "--cluster", "mars")
    assert (answer.status, answer.stdout) == (2, "")
    assert "mixed" in answer.stderr.replace(str(mixed), "")
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("verdicts",), ("verdicts", "fingerprint"), ("verdicts", "variability"), ("verdicts", "plan"),
        ("energy",), ("energy", "reconcile"),
        ("energy", "excess"), ("energy", "quote", "--job", "1"), ("report", "--out", "page.html"), ("advise",),
        ("explain", "a02/1"), ("verdicts", "diff", "--before", "2026-01-05T12:00", "--after", "2026-01-06"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_empty_store_is_refused_with_a_command_that_adds_what_is_missing(
    words: tuple[str, ...], input_folder: InputFolder
) -> None:
    answer = run(*words, "--store", input_folder("none") / "store")
    assert (answer.status, answer.stdout) == (2, "")
    assert "`whorl " in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_verdicts_since_a_day_of_runs_without_a_date_are_none_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text("board,ms\na,10\nb,11\n")
    meanings = ("--map", "board=gpu", "--map", "ms=time:ms", "--workload", "w")
    done("import", "--store", tmp_path / "S", *meanings, tmp_path / "times.csv")
    answer = run("verdicts", "--store", tmp_path / "S", "--since", "30d")
    assert (answer.status, answer.stderr) == (0, "")
    assert "no run has a date" in answer.stdout
