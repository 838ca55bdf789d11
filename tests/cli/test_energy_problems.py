"""`whorl energy` where there is no honest figure: a reason for each, and a row of `reconcile`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whorl.tests.analysis.energy.stored import NOON, S, at, gpu, job, readings, store_of
from whorl.tests.cli.calling import refusal
from whorl.tests.cli.energy_answers import document, whorl
from whorl.tests.conftest import BuiltOnce
from whorl.tests.sizes import sample

pytestmark = pytest.mark.usefixtures("stores_stay_open")


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
                job("nowhere", None, 460, 480),
                job("running", "GPU-read", 560, None, state="RUNNING"),
            ],
        )

    return built_once("bad-energy", build) / "store"


@pytest.mark.long
def test_each_job_without_an_honest_figure_has_a_reason_and_no_energy(bad: Path) -> None:
    rows = {row["job_id"]: row for row in document("--store", str(bad))["rows"] if row["kind"] == "job"}
    reasons = {name: row["reason"] for name, row in rows.items() if row["energy_j"] is None}
    assert set(reasons) == {"hole", "unread", "unknown", "backward", "nowhere"}
    assert reasons["nowhere"] == "GPU not known"
    assert reasons["unread"] == reasons["unknown"] == "no telemetry"
    assert reasons["backward"] == "ends before it begins"
    for name in reasons:
        assert {rows[name][key] for key in ("low_j", "high_j", "co2e_g", "cost")} == {None}
    for name in ("whole", "crowd", "running"):
        assert rows[name]["reason"] is None
        assert rows[name]["energy_j"] > 0
    printed = whorl("--store", str(bad), "--by", "user").stdout
    assert "; only 3 of 8 jobs: " in printed
    assert rows["running"]["ended"] is None
    assert rows["running"]["energy_j"] == pytest.approx(200 * 39, rel=1e-6)  # up to the last reading


def test_what_is_wrong_is_a_sentence_and_a_row(bad: Path) -> None:
    answer = json.loads(whorl("reconcile", "--store", str(bad), "--json").stdout)
    assert answer["balances"] is True
    problems = {(row["problem"], row["job_id"]): row["sentence"] for row in answer["problems"]}
    assert ("gap", None) in problems
    assert "job backward" in problems["ends before it begins", "backward"]
    assert "job unread" in problems["no telemetry of the GPU", "unread"]
    assert "node n1 job nowhere" in problems["GPU not known", "nowhere"]
    assert "GPU-of-nobody" in problems["unknown GPU", "unknown"]
    [overlap] = [text for (problem, _), text in problems.items() if problem == "overlap"]
    assert "job whole and job crowd" in overlap or "job crowd and job whole" in overlap
    printed = whorl("reconcile", "--store", str(bad)).stdout
    assert "the books balance" in printed
    for problem in {problem for problem, _ in problems}:
        assert f"\n{problem}  " in printed


def test_a_job_that_the_import_refused_says_so(tmp_path: Path) -> None:
    reply = {"ts": at(5), "cluster": "c", "kind": "job_refused", "job_id": "5", "detail": "job 5 is not stored: line 7"}
    store_of(tmp_path / "S", [gpu("GPU-a")], [readings("GPU-a", range(9), [50.0] * 9)], [], [reply])
    result = whorl("--store", str(tmp_path / "S"), "--job", "5")
    assert result.exit_code == 2
    assert "job 5 is not stored: line 7" in result.stderr
    answer = json.loads(whorl("reconcile", "--store", str(tmp_path / "S"), "--json").stdout)
    assert ["job 5 is not stored: line 7" in row["sentence"] for row in answer["problems"]] == [True]


@pytest.mark.long
def test_a_gpu_of_which_no_reading_counts_is_in_no_sum_and_is_said(tmp_path: Path) -> None:
    seconds = range(600)
    watts = [50.0 if s < 300 else 200.0 for s in seconds]
    dead = readings("GPU-dead", seconds, [0.0] * 600, quality=["power_zero"] * 600)
    jobs = [job(1, "GPU-good", 300, 599), job(2, "GPU-dead", 300, 599)]
    store_of(tmp_path / "S", [gpu("GPU-good"), gpu("GPU-dead")], [readings("GPU-good", seconds, watts), dead], jobs)
    good = {row["gpu"]: row for row in document("--store", str(tmp_path / "S"), "--by", "gpu")["rows"]}["GPU-good"]
    for by in ("node", "day"):
        answer = document("--store", str(tmp_path / "S"), "--by", by)
        for row in (answer["total"], *answer["rows"]):
            for name in ("energy_j", "low_j", "high_j", "gpus", "measured_s"):
                assert row[name] == pytest.approx(good[name], rel=1e-9), name
            assert row["gpus_no_figure"] == 1
    rows = document("--store", str(tmp_path / "S"), "--by", "user")["rows"]
    assert {row["kind"] for row in rows if row["energy_j"] is None} == {"job", "unattributed"}
    rows = {row["job_id"]: row for row in document("--store", str(tmp_path / "S"))["rows"]}
    assert (rows["2"]["energy_j"], rows["2"]["reason"], rows["2"]["co2e_reason"]) == (None, "zero watts", "no energy")
    printed = whorl("--store", str(tmp_path / "S")).stdout
    assert "readings cover 100 % of 9.98 GPU min" in printed
    assert "Not in it: 1 GPU of which no reading counts" in printed
    assert "`whorl energy reconcile --store" in printed


@pytest.mark.long
def test_a_job_that_ends_before_it_begins_leaves_all_other_figures(tmp_path: Path) -> None:
    power = readings("G", range(201), [50.0] * 20 + [200.0] * 181)
    jobs = [job("good", "G", 50, 150), job("backward", "G", 160, 60), job("moment", "G-of-nobody", 60, 60)]
    store_of(tmp_path / "S", [gpu("G")], [power], jobs)
    for by in ("user", "gpu", "day"):
        answer = document("--store", str(tmp_path / "S"), "--by", by)
        assert {row["reason"] for row in answer["rows"]} == {None}, by
        assert answer["total"]["idle_j"] == pytest.approx(50 * 200, rel=0.01)
    [ada] = [row for row in document("--store", str(tmp_path / "S"), "--by", "user")["rows"] if row["kind"] == "job"]
    assert ada["energy_j"] == pytest.approx(200 * 100, rel=1e-6)


@pytest.mark.long
def test_a_job_on_gpus_that_nobody_knows_is_answered_and_counts_no_host_or_board_twice(tmp_path: Path) -> None:
    power = readings("G", range(401), [50.0] * 100 + [200.0] * 301)
    store_of(tmp_path / "S", [gpu("G")], [power], [job("lost", None, 100, 400, node_gpus=1)])
    settings = 'zone = "DE"\nhost_w = 100\n[embodied]\nkg = 150\nyears = 5\nsource = "a report"\n'
    (tmp_path / "S" / "energy.toml").write_text(settings)
    answer = document("--store", str(tmp_path / "S"))
    [lost] = [row for row in answer["rows"] if row["kind"] == "job"]
    assert {lost[name] for name in ("energy_j", "host_j", "embodied_g", "gpus")} == {None}
    for name in ("host_j", "embodied_g"):
        assert sum(row[name] or 0 for row in answer["rows"]) == pytest.approx(answer["total"][name], rel=1e-9)
    [same] = document("--store", str(tmp_path / "S"), "--job", "lost")["rows"]
    assert same["reason"] == "GPU not known"
    assert "on GPUs that nobody knows" in whorl("--store", str(tmp_path / "S"), "--job", "lost").stdout
    assert "On GPUs that nobody knows" in whorl("quote", "--store", str(tmp_path / "S"), "--job", "lost").stdout


NONE_THEN = "in this time: it has some from 2026-11-02 12:00 to 2026-11-02 12:09 UTC"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--since 2026-11-03 --until 2026-11-02", "--until must be later than --since"),
        ("--since 2026-12-01", f"has no telemetry {NONE_THEN}"),
        ("calibrate --since 2026-12-01", f"has no telemetry {NONE_THEN}"),
        ("quote --job whole --since 2026-12-01", f"has no telemetry of cluster c {NONE_THEN}"),
        ("--cluster elsewhere", "has no telemetry of cluster elsewhere; it has c"),
        ("excess --cluster elsewhere", "has no telemetry of cluster elsewhere; it has c"),
        ("--cluster elsewhere --job whole", "has no jobs of cluster elsewhere; it has c"),
        ("--job 9", "knows no job 9; it knows 8 jobs, such as "),
        ("quote --job 9", "knows no job 9"),
        ("--settings /nowhere.toml", "/nowhere.toml: there is no such file"),
        ("--json --csv", "--json and --csv cannot be used together"),
        ("--job whole reconcile", "--job must follow reconcile"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(bad: Path, line: str, sentence: str) -> None:
    assert sentence in refusal("energy --store", bad, *line.split())


@pytest.mark.long
def test_readings_by_a_clock_that_is_centuries_ahead_are_not_counted(tmp_path: Path) -> None:
    seconds, last = range(0, 600, 5), (2**63 - 1 - NOON) / S
    reply = [readings("GPU-a", seconds, [200.0] * 120), readings("GPU-a", [last - 60, last - 30], [200.0] * 2)]
    store_of(tmp_path / "S", [gpu("GPU-a")], reply, [])
    for choice in sample([("--until", "2300-01-01"), (), ("--by", "day")], short=1):
        [row] = document("--store", str(tmp_path / "S"), *choice)["rows"]
        assert row["energy_j"] == pytest.approx(200 * 595, rel=0.01)
