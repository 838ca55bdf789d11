"""`whorl energy` where there is no honest figure: a reason for each, and a row of `reconcile`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.analysis.energy.attributing import JobProblem, JobReason
from whorl.analysis.energy.metering import Problem, Reason
from whorl.cli import cli
from whorl.store.outcomes import Code
from whorl.tests.analysis.energy.stored import gpu, job, readings, store_of
from whorl.tests.conftest import BuiltOnce


def whorl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["energy", *arguments], catch_exceptions=False)


def document(*arguments: str) -> dict[str, Any]:
    result = whorl(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def bad(built_once: BuiltOnce) -> Path:
    """One GPU read for ten minutes with a hole of five, one that nobody read, and jobs with everything wrong."""

    def build(folder: Path) -> None:
        seconds = [*range(150), *range(450, 600)]
        store_of(
            folder / "store",
            [gpu("GPU-read"), gpu("GPU-unread")],
            [readings("GPU-read", seconds, [50.0 if s < 20 else 200.0 for s in seconds])],
            [
                job("whole", "GPU-read", 20, 140),
                job("hole", "GPU-read", 160, 440),
                job("unread", "GPU-unread", 0, 600),
                job("unknown", "GPU-of-nobody", 0, 600),
                job("backward", "GPU-read", 500, 400),
                job("crowd", "GPU-read", 100, 140),
                job("running", "GPU-read", 560, None, state="RUNNING"),
            ],
        )

    return built_once("bad-energy", build) / "store"


def test_each_job_without_an_honest_figure_has_a_reason_and_no_energy(bad: Path) -> None:
    rows = {row["job_id"]: row for row in document("--store", str(bad))["rows"] if row["kind"] == "job"}
    reasons = {name: row["reason"] for name, row in rows.items() if row["energy_j"] is None}
    assert set(reasons) == {"hole", "unread", "unknown", "backward"}
    assert reasons["unread"] == reasons["unknown"] == "no telemetry"
    assert reasons["backward"] == "ends before it begins"
    for name in reasons:
        assert {rows[name][key] for key in ("low_j", "high_j", "co2e_g", "cost")} == {None}
    for name in ("whole", "crowd", "running"):
        assert rows[name]["reason"] is None
        assert rows[name]["energy_j"] > 0
    assert rows["running"]["ended"] is None
    assert rows["running"]["energy_j"] == pytest.approx(200 * 39, rel=1e-6)  # up to the last reading


def test_no_row_says_zero_where_nothing_is_known(bad: Path) -> None:
    for by in ("job", "user", "account", "gpu", "node", "day"):
        for row in document("--store", str(bad), "--by", by)["rows"]:
            assert row["energy_j"] is None or row["energy_j"] > 0, row
            assert (row["reason"] is None) == (row["energy_j"] is not None), row


def test_what_is_wrong_is_a_sentence_and_a_row(bad: Path) -> None:
    found = json.loads(whorl("reconcile", "--store", str(bad), "--json").stdout)
    assert found["balances"] is True
    problems = {(row["problem"], row["job_id"]): row["sentence"] for row in found["problems"]}
    assert ("gap", None) in problems
    assert "job backward" in problems["ends before it begins", "backward"]
    assert "job unread" in problems["no telemetry of the GPU", "unread"]
    assert "GPU-of-nobody" in problems["unknown GPU", "unknown"]
    [overlap] = [text for (problem, _), text in problems.items() if problem == "overlap"]
    assert "job whole and job crowd" in overlap or "job crowd and job whole" in overlap
    shown = whorl("reconcile", "--store", str(bad)).stdout
    assert "the books balance" in shown
    for problem in {problem for problem, _ in problems}:
        assert f"\n{problem}, " in shown


def test_a_job_without_telemetry_says_so_for_people(bad: Path) -> None:
    result = whorl("--store", str(bad), "--job", "unread")
    assert result.exit_code == 0
    assert "n/a" in result.stdout
    assert "there is no reading of this GPU in this time" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--since", "2026-11-03", "--until", "2026-11-02"), "--until must be later than --since"),
        (("--since", "2026-12-01"), "has no telemetry in this time: it has some from 2026-11-02 12:00"),
        (("--cluster", "elsewhere"), "has no telemetry of cluster elsewhere"),
        (("--settings", "/nowhere.toml"), "/nowhere.toml: there is no such file"),
        (("--json", "--csv"), "--json and --csv cannot be used together"),
        (("--job", "whole", "reconcile"), "--job must follow reconcile"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(bad: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = whorl("--store", str(bad), *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize("codes", [Reason, JobReason, Problem, JobProblem])
def test_each_code_stands_in_the_documentation(codes: type[Code]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "energy.md").read_text()
    assert [code for code in codes if f"| {code} | " not in page] == []
