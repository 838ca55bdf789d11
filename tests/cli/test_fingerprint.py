"""`whorl verdicts fingerprint`, `whorl verdicts diff` and `whorl verdicts plan` from the command line."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts import Judgement, Kind, Level, State, Verdict
from whorl.analysis.verdicts.fingerprint import fingerprint
from whorl.analysis.verdicts.judgements import record
from whorl.analysis.verdicts.model import Model
from whorl.analysis.verdicts.plan import Planned, planned
from whorl.analysis.verdicts.verdict import Action
from whorl.dashboards.documents.followup import reason
from whorl.store import Store
from whorl.store.schema import arrow_rows, arrow_schema
from whorl.tests.cli.calling import document, refusal, whorl
from whorl.tests.cli.test_verdicts import AT
from whorl.tests.conftest import BuiltOnce
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, DAY_NS, MODEL, WORKLOADS, judged_store, uuid

pytestmark = pytest.mark.usefixtures("stores_stay_open")

SLOW, MOVED = 5, 9


def moves(gpu: int, day: float) -> float:
    """All GPUs are 2 % slower from day 10 on, and one 6 % more."""
    return 1.0 if day < 10 else 1.02 * (1.06 if gpu == MOVED else 1.0)


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> Path:
    """32 GPUs on four days; one is slow from the start, and one moves against the others."""

    def build(folder: Path) -> None:
        judged_store(folder / "S", 32, (0, 2, 12, 14), slow={SLOW: 0.12}, time=moves, noise=0.001)

    return built_once("diff-fleet", build) / "S"


def diff(store: object, *options: str, before: str = "2026-09-05", after: str = "2026-09-10") -> tuple[Any, ...]:
    return ("verdicts diff --store", store, "--before", before, "--after", after, *options)


@pytest.mark.long
def test_fingerprints_stand_beside_each_other_and_survive_a_move(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 9, (0, 2))
    for _ in range(2):
        document("verdicts fingerprint --store", store.root)
    query = "select count(distinct made_at) as n, count(*) as rows from fingerprints"
    [first] = store.sql(query).to_pylist()
    assert first["n"] == 1
    judged_store(tmp_path / "S", 9, (5,), seed=2)
    moved = {"cluster": [CLUSTER], "gpu": [uuid(5)], "uuid": [uuid(5)], "node": ["n09"], "slot": [0]}
    store.append({"gpus": arrow_rows("gpus", moved | {"first_seen": [BEGAN_NS + 9 * DAY_NS]})}, "moved")
    ahead = store.sql("select * replace (made_at + interval 20 years as made_at) from fingerprints")
    store.append({"fingerprints": ahead.cast(arrow_schema("fingerprints").remove_metadata())}, "ahead")
    document("verdicts fingerprint --store", store.root)
    [second] = store.sql(query).to_pylist()
    assert (second["n"], second["rows"]) == (3, 3 * first["rows"])
    newest = "select name, n from fingerprints_now join gpus_now using (cluster, gpu) where figure = 'time' "
    newest += "and workload = 'gemm-fp32'"
    assert {(row["name"], row["n"]) for row in store.sql(newest).to_pylist()} >= {("n09/0", 3), ("n01/0", 3)}


def test_the_work_per_joule_allows_for_other_weeks_as_the_time_in_it_does(tmp_path: Path) -> None:
    rows = fingerprint(Model(probed(judged_store(tmp_path / "S", 9, (0, 2)), every=True)))
    wide = rows.filter(pl.col("workload") != "").with_columns((pl.col("high") / pl.col("low")).log().alias("wide"))
    times, works = (wide.filter(pl.col("figure") == name) for name in ("time", "work_per_joule"))
    joined = times.join(works, on=["gpu", "workload"], suffix="_of_work")
    assert joined.height >= 9
    assert (joined["wide_of_work"] >= 0.9 * joined["wide"]).all()


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        (5, "none can be named: `whorl verdicts` needs 8"),
        (2, "which of the two is odd cannot be said"),
        (8, ""),
    ],
)
def test_few_gpus_are_shown_with_what_cannot_be_concluded(gpus: int, sentence: str, tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", gpus, (0,)).root
    for options in ([], ["--gpu", uuid(0)]):
        text = " ".join(whorl("verdicts fingerprint --store", store, *options).output.split())
        assert sentence in text
        assert sentence or ("cannot be said" not in text and "none can be named" not in text)


def test_the_step_of_the_fleet_comes_first_then_who_moved_against_it(fleet: Path) -> None:
    answer = document(*diff(fleet), schema="diff")
    for step in answer["steps"]:
        assert step["low_pct"] < 2 < step["high_pct"]
        assert (step["n"], step["why"]) == (32, None)
    assert {move["name"] for move in answer["moved"]} == {"n03/1"}
    for move in answer["moved"]:
        assert move["low_pct"] < 6 < move["high_pct"]
        assert move["change_pct"] == pytest.approx(8.1, abs=0.7)
    assert (answer["new"], answer["gone"], answer["identity"]) == ([], [], {})
    text = whorl(*diff(fleet)).output
    assert "1 GPU moved against the fleet" in text
    assert "whorl explain n03/1" in text


def test_new_gone_and_changed_gpus_are_named(tmp_path: Path) -> None:
    unmeasured = {(3, 12), (4, 0)}
    store = judged_store(
        tmp_path / "S", 10, (0, 12), time=lambda gpu, day: float("nan") if (gpu, day) in unmeasured else 1.0
    )
    identity = {"cluster": [CLUSTER], "gpu": [uuid(5)], "uuid": [uuid(5)], "driver": ["580.2"]}
    store.append({"gpus": arrow_rows("gpus", identity | {"first_seen": [BEGAN_NS + 9 * DAY_NS]})}, "driver")
    answer = document(*diff(store.root))
    assert (answer["new"], answer["gone"], answer["identity"]) == (["n02/0"], ["n01/3"], {"driver": 1})


def test_dates_that_hold_no_runs_are_refused(fleet: Path, tmp_path: Path) -> None:
    for before, after, sentence in (
        ("2026-10-01", "2026-09-01", "must not be later"),
        ("2026-01-01", "2026-09-01", "has no runs before 2026-01-01 00:00; it has runs from 2026-09-01 to 2026-09-15"),
        ("2026-09-05", "2027-01-01", "has no runs after 2027-01-01"),
    ):
        assert sentence in refusal(*diff(fleet, before=before, after=after))
    (tmp_path / "runs.csv").write_text("board,ms\n" + "".join(f"GPU-{n:08},{100 + n}\n" for n in range(9)))
    undated = ("import --map ms=time:ms --map board=gpu --workload sgemm --store", tmp_path / "S")
    assert whorl(*undated, tmp_path / "runs.csv").exit_code == 0
    assert "has no runs before 2026-09-05 00:00; none of its runs has a date" in refusal(*diff(tmp_path / "S"))


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("workloads", "days", "names"), [(1, (0, 12), []), (2, (0, 12), ["n02/2"]), (1, (0, 2, 12, 14), [])]
)
def test_one_run_alone_names_no_gpu(tmp_path: Path, workloads: int, days: tuple[int, ...], names: list[str]) -> None:
    """A GPU takes 30 % longer on one day: in one run of one workload that may be anything."""
    judged_store(
        tmp_path / "S", 32, days, time=lambda gpu, day: 1.3 if (gpu, day) == (6, 12) else 1.0,
        workloads=tuple(WORKLOADS)[:workloads],
    )  # fmt: skip
    answer = document(*diff(tmp_path / "S"))
    assert sorted({move["name"] for move in answer["moved"]}) == names
    note = "not named, as one run alone shows that it moved: 1 GPU (n02/2); measure again to know"
    assert (note in answer["notes"]) == (not names and len(days) == 2)


def plan(store: Store, now: str = "2026-09-20") -> Planned:
    workloads = ("gemm-fp32", "stream-triad")
    return planned(store, workloads, budget_s=1e6, seconds=14.0, now=datetime.fromisoformat(now))


def suspected(gpu: int) -> Verdict:
    name = f"n{gpu // 4 + 1:02}/{gpu % 4}"
    return Verdict(
        Level.GPU, name, (name,), CLUSTER, MODEL, ("gemm-fp32",), Kind.SLOW, State.SUSPECTED, 4.0, None, None, None,
        None, None, (), None, None, (), Action.RUN_FULL_SUITE,
    )  # fmt: skip


@pytest.mark.long
def test_suspected_gpus_come_first_then_those_never_measured(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 12, (0, 2, 4), runs=lambda gpu: 0 if gpu in (3, 7) else 1)
    record(store, [Judgement(CLUSTER, (suspected(8),), (), 12, 12)], AT)
    reply = plan(store)
    assert [(entry.name, entry.why) for entry in reply.gpus] == [
        ("n03/0", "suspected"), ("n01/3", "never measured"), ("n02/3", "never measured"),
    ]  # fmt: skip
    assert [reason(entry, 3.0) for entry in reply.gpus] == ["slow, suspected: measure again"] + ["never measured"] * 2
    assert reply.decided == {"fine": 9}
    assert reply.gpus[1].bits > 0
    assert reply.gpus[1].last is None


@pytest.mark.long
def test_a_decided_gpu_comes_back_when_its_sittings_are_old(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 12, (0, 2, 4), slow={5: 0.12})
    fresh, old = plan(store), plan(store, now="2027-01-20")
    assert (fresh.gpus, fresh.decided) == ((), {"fine": 11, "slow": 1})
    assert {entry.why for entry in old.gpus} == {"measured long ago"}
    assert len(old.gpus) == 12
    assert (old.gpus[0].name, reason(old.gpus[0], 3.0)) == ("n02/1", "slow 137 days ago: still so?")
    assert reason(old.gpus[1], 3.0) == "fine, but measured 137 days ago"
    record(store, [Judgement(CLUSTER, (replace(suspected(5), state=State.CONFIRMED),), (), 12, 12)], AT)
    first = plan(store, now="2027-01-20").gpus[0]
    assert (first.name, first.why) == ("n02/1", "found before")
    assert reason(first, 3.0) == "slow, confirmed 137 days ago: repaired since?"


@pytest.mark.long
def test_a_gpu_near_the_threshold_tells_more_than_one_that_is_clear(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 32, (0,), slow={5: 0.03, 6: 0.4}, noise=0.001)
    reply = plan(store)
    assert reply.gpus[0].name == "n02/1"
    assert {reason(entry, 3.0) for entry in reply.gpus} == {"one sitting: another one is needed"}
    again = plan(judged_store(tmp_path / "T", 32, (0, 2), noise=0.02))
    assert again.gpus
    assert all(" [" in reason(entry, 3.0) and reason(entry, 3.0).endswith("too near to 3 %") for entry in again.gpus)
    assert all(entry.why == "not decided yet" for entry in reply.gpus)
    by_name = {entry.name: entry for entry in reply.gpus}
    assert by_name["n02/2"].slow_chance > 0.9
    assert by_name["n02/1"].bits > by_name["n02/2"].bits
    assert by_name["n01/0"].slow_chance < 0.1


@pytest.mark.long
def test_the_budget_is_kept_and_the_commands_name_the_nodes(tmp_path: Path) -> None:
    judged_store(tmp_path / "S", 12, (0,), runs=lambda gpu: 0)
    request = ("verdicts plan --store", tmp_path / "S", "--budget")
    answer = document(*request, "1min", schema="plan")
    assert len(answer["gpus"]) == int(60 / answer["gpus"][0]["seconds"])
    assert len(answer["gpus"]) + answer["left_out"] == 12
    assert [command["node"] for command in answer["commands"]] == ["n01"]
    text = whorl(*request, "1min").output
    for words in ("On n01:", "whorl probe run gemm-fp32 stream-triad --suite quick", "--gpu n01/0 --gpu n01/1"):
        assert words in text
    assert "longer than the budget" in whorl(*request, "1s").output


def test_a_large_plan_lists_some_commands_and_says_how_many_more(tmp_path: Path) -> None:
    judged_store(tmp_path / "S", 44, ())
    text = whorl("verdicts plan --budget 10h --store", tmp_path / "S").output
    assert text.count("whorl probe run") == 10
    assert "and 24 more: --json has all" in text
    assert "and 1 command more: --json has all" in text
