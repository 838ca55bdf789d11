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
from whorl.analysis.verdicts.fingerprint import fingerprint, fingerprints
from whorl.analysis.verdicts.judgements import record
from whorl.analysis.verdicts.model import Model
from whorl.analysis.verdicts.verdict import Action
from whorl.dashboards import terminal
from whorl.dashboards.documents import variability
from whorl.dashboards.documents.followup import reason
from whorl.store import Store
from whorl.store.schema import FINGERPRINTS, arrow_rows, arrow_schema
from whorl.tests.cli.test_verdicts import AT, document, whorl
from whorl.tests.conftest import BuiltOnce
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, DAY_NS, MODEL, WORKLOADS, judged_store, uuid
from whorl.tests.probed_fleet import stored

pytestmark = pytest.mark.usefixtures("stores_stay_open")

SLOW, MOVED = 5, 9


def moves(gpu: int, day: float) -> float:
    """All GPUs are 2 % slower from day 10 on, and one 6 % more."""
    return 1.0 if day < 10 else 1.02 * (1.06 if gpu == MOVED else 1.0)


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> str:
    """32 GPUs on four days; one is slow from the start, and one moves against the others."""
    days = (0, 2, 12, 14)
    built = built_once(
        "diff-fleet", lambda folder: judged_store(folder / "S", 32, days, slow={SLOW: 0.12}, time=moves, noise=0.001)
    )
    return str(built / "S")


# -- fingerprints -----------------------------------------------------------------------------------------------


def test_run_ids_with_quotation_marks_are_evidence_as_they_are(tmp_path: Path) -> None:
    campaign = probed(judged_store(tmp_path / "S", 4, (0,)), cluster=CLUSTER, every=True)
    quoted = campaign.runs.with_columns(pl.lit('"\\,"\n').alias("run_id"))
    rows = fingerprint(Model(replace(campaign, runs=quoted)))
    assert {name for names in rows["evidence"].drop_nulls() for name in names} == {'"\\,"\n'}


@pytest.mark.long
def test_fingerprints_stand_beside_each_other_and_survive_a_move(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 9, (0, 2))
    for _ in range(2):
        document("verdicts", "fingerprint", "--store", str(store.root))
    made = "select count(distinct made_at) as n, count(*) as rows from fingerprints"
    [first] = store.sql(made).to_pylist()
    assert first["n"] == 1
    judged_store(tmp_path / "S", 9, (5,), seed=2)
    moved = {"cluster": [CLUSTER], "gpu": [uuid(5)], "uuid": [uuid(5)], "node": ["n09"], "slot": [0]}
    store.append({"gpus": arrow_rows("gpus", moved | {"first_seen": [BEGAN_NS + 9 * DAY_NS]})}, "moved")
    ahead = store.sql("select * replace (made_at + interval 20 years as made_at) from fingerprints")
    store.append({"fingerprints": ahead.cast(arrow_schema("fingerprints").remove_metadata())}, "ahead")
    document("verdicts", "fingerprint", "--store", str(store.root))
    [second] = store.sql(made).to_pylist()
    assert (second["n"], second["rows"]) == (3, 3 * first["rows"])
    now = "select name, n from fingerprints_now join gpus_now using (cluster, gpu) where figure = 'time' "
    now += "and workload = 'gemm-fp32'"
    assert {(row["name"], row["n"]) for row in store.sql(now).to_pylist()} >= {("n09/0", 3), ("n01/0", 3)}


def test_the_work_per_joule_allows_for_other_weeks_as_the_time_in_it_does(tmp_path: Path) -> None:
    rows = fingerprint(Model(probed(judged_store(tmp_path / "S", 9, (0, 2)), every=True))).filter(
        pl.col("workload") != ""
    )
    wide = rows.with_columns((pl.col("high") / pl.col("low")).log().alias("wide"))
    of = {name: wide.filter(pl.col("figure") == name) for name in ("time", "work_per_joule")}
    both = of["time"].join(of["work_per_joule"], on=["gpu", "workload"], suffix="_of_work")
    assert both.height >= 9
    assert (both["wide_of_work"] >= 0.9 * both["wide"]).all()


def test_a_campaign_of_probes_has_every_class_and_the_gpus_own_figures(tmp_path: Path) -> None:
    store, _ = stored(tmp_path / "S", gpus=16, telemetry=False)
    rows = fingerprint(Model(probed(store, every=True)))
    assert rows.columns == FINGERPRINTS.names
    assert {"compute", "memory", "path", "power"} <= set(rows["class"])
    of_gpu = rows.filter(pl.col("gpu") == rows["gpu"][0])
    assert {"idle_power", "temperature_rise", "power_at_fixed_clock"} <= set(of_gpu["figure"])
    assert of_gpu.select("class", "workload", "figure").is_unique().all()
    assert rows["low"].null_count() == rows.height  # there is one sitting: nobody knows what another one brings


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        (5, "none can be named: `whorl verdicts` needs 8"),
        (2, "which of the two is odd cannot be said"),
        (8, None),
    ],
)
def test_few_gpus_are_shown_with_what_cannot_be_concluded(gpus: int, says: str | None, tmp_path: Path) -> None:
    store = str(judged_store(tmp_path / "S", gpus, (0,)).root)
    found = fingerprints(store)
    for given in (found, replace(found, gpu=uuid(0))):
        said = terminal.text(variability.fingerprints(given, store))
        assert says is None or says in said
        assert says is not None or ("cannot be said" not in said and "none can be named" not in said)


# -- what changed -----------------------------------------------------------------------------------------------


def test_the_step_of_the_fleet_comes_first_then_who_moved_against_it(fleet: str) -> None:
    found = document("verdicts", "diff", "--store", fleet, "--before", "2026-09-05", "--after", "2026-09-10")
    assert found["schema"] == "whorl.diff/1"
    for step in found["steps"]:
        assert step["low_pct"] < 2 < step["high_pct"]
        assert (step["n"], step["why"]) == (32, None)
    assert {one["name"] for one in found["moved"]} == {"n03/1"}
    for one in found["moved"]:
        assert one["low_pct"] < 6 < one["high_pct"]
        assert one["change_pct"] == pytest.approx(8.1, abs=0.7)
    assert (found["new"], found["gone"], found["identity"]) == ([], [], {})
    shown = whorl("verdicts", "diff", "--store", fleet, "--before", "2026-09-05", "--after", "2026-09-10")
    assert "1 GPU moved against the fleet" in shown.output
    assert "whorl explain n03/1" in shown.output


def test_new_gone_and_changed_gpus_are_named(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 10, (0, 12), runs=lambda gpu: 1, time=lambda gpu, day: 1.0)
    gone = store.sql(f"select run_id from runs where gpu = '{uuid(3)}' and began > '2026-09-05'").to_pylist()
    assert gone
    new = judged_store(
        tmp_path / "T", 10, (0, 12), time=lambda gpu, day: float("nan") if (gpu, day) in {(3, 12), (4, 0)} else 1.0
    )
    identity = {"cluster": [CLUSTER], "gpu": [uuid(5)], "uuid": [uuid(5)], "driver": ["580.2"]}
    new.append({"gpus": arrow_rows("gpus", identity | {"first_seen": [BEGAN_NS + 9 * DAY_NS]})}, "driver")
    found = document("verdicts", "diff", "--store", str(new.root), "--before", "2026-09-05", "--after", "2026-09-10")
    assert (found["new"], found["gone"], found["identity"]) == (["n02/0"], ["n01/3"], {"driver": 1})


def test_dates_that_hold_no_runs_are_refused(fleet: str) -> None:
    for before, after, says in (
        ("2026-10-01", "2026-09-01", "must not be later"),
        ("2026-01-01", "2026-09-01", "has no runs before 2026-01-01 00:00; it has runs from 2026-09-01 to 2026-09-15"),
        ("2026-09-05", "2027-01-01", "has no runs after 2027-01-01"),
    ):
        refused = whorl("verdicts", "diff", "--store", fleet, "--before", before, "--after", after)
        assert refused.exit_code == 2
        assert says in refused.output


def test_runs_without_dates_are_said(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("board,ms\n" + "".join(f"GPU-{n:08},{100 + n}\n" for n in range(9)))
    store, maps = str(tmp_path / "S"), ("--map", "ms=time:ms", "--map", "board=gpu", "--workload", "sgemm")
    assert whorl("import", "--store", store, *maps, str(tmp_path / "runs.csv")).exit_code == 0
    refused = whorl("verdicts", "diff", "--store", store, "--before", "2026-09-05", "--after", "2026-09-10")
    assert refused.exit_code == 2
    assert "has no runs before 2026-09-05 00:00; none of its runs has a date" in refused.output


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("workloads", "days", "named"), [(1, (0, 12), []), (2, (0, 12), ["n02/2"]), (1, (0, 2, 12, 14), [])]
)
def test_one_run_alone_names_no_gpu(tmp_path: Path, workloads: int, days: tuple[int, ...], named: list[str]) -> None:
    """A GPU takes 30 % longer on one day: in one run of one workload that may be anything."""
    judged_store(
        tmp_path / "S", 32, days, time=lambda gpu, day: 1.3 if (gpu, day) == (6, 12) else 1.0,
        workloads=tuple(WORKLOADS)[:workloads],
    )  # fmt: skip
    found = document(
        "verdicts", "diff", "--store", str(tmp_path / "S"), "--before", "2026-09-05", "--after", "2026-09-10"
    )
    assert sorted({one["name"] for one in found["moved"]}) == named
    told = "not named, as one run alone shows that it moved: 1 GPU (n02/2); measure again to know"
    assert (told in found["notes"]) == (not named and len(days) == 2)


# -- what to measure next ---------------------------------------------------------------------------------------


def plan(store: Store, *arguments: str, now: str = "2026-09-20") -> Any:
    at = datetime.fromisoformat(now)
    from whorl.analysis.verdicts.plan import planned

    budget = float(arguments[0]) if arguments else 1e6
    return planned(store, ("gemm-fp32", "stream-triad"), budget_s=budget, seconds=14.0, now=at)


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
    found = plan(store)
    assert [(one.name, one.why) for one in found.gpus] == [
        ("n03/0", "suspected"), ("n01/3", "never measured"), ("n02/3", "never measured"),
    ]  # fmt: skip
    assert [reason(one, 3.0) for one in found.gpus] == ["slow, suspected: measure again"] + ["never measured"] * 2
    assert found.decided == {"fine": 9}
    assert found.gpus[1].bits > 0
    assert found.gpus[1].last is None


@pytest.mark.long
def test_a_decided_gpu_comes_back_when_its_sittings_are_old(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 12, (0, 2, 4), slow={5: 0.12})
    fresh, old = plan(store), plan(store, now="2027-01-20")
    assert (fresh.gpus, fresh.decided) == ((), {"fine": 11, "slow": 1})
    assert {one.why for one in old.gpus} == {"measured long ago"}
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
    found = plan(store)
    assert found.gpus[0].name == "n02/1"
    assert {reason(one, 3.0) for one in found.gpus} == {"one sitting: another one is needed"}
    again = plan(judged_store(tmp_path / "T", 32, (0, 2), noise=0.02))
    assert again.gpus
    assert all(" [" in reason(one, 3.0) and reason(one, 3.0).endswith("too near to 3 %") for one in again.gpus)
    assert all(one.why == "not decided yet" for one in found.gpus)
    by_name = {one.name: one for one in found.gpus}
    assert by_name["n02/2"].slow_chance > 0.9
    assert by_name["n02/1"].bits > by_name["n02/2"].bits
    assert by_name["n01/0"].slow_chance < 0.1


@pytest.mark.long
def test_the_budget_is_kept_and_the_commands_name_the_nodes(tmp_path: Path) -> None:
    judged_store(tmp_path / "S", 12, (0,), runs=lambda gpu: 0)
    found = document("verdicts", "plan", "--store", str(tmp_path / "S"), "--budget", "1min")
    assert found["schema"] == "whorl.plan/1"
    each = found["gpus"][0]["seconds"]
    assert len(found["gpus"]) == int(60 / each)
    assert len(found["gpus"]) + found["left_out"] == 12
    assert [one["node"] for one in found["commands"]] == ["n01"]
    shown = whorl("verdicts", "plan", "--store", str(tmp_path / "S"), "--budget", "1min")
    assert "On n01:" in shown.output
    assert "whorl probe run gemm-fp32 stream-triad --suite quick" in shown.output
    assert "--gpu n01/0 --gpu n01/1" in shown.output
    assert (
        "longer than the budget" in whorl("verdicts", "plan", "--store", str(tmp_path / "S"), "--budget", "1s").output
    )


def test_a_large_plan_lists_some_commands_and_says_how_many_more(tmp_path: Path) -> None:
    judged_store(tmp_path / "S", 44, ())
    said = whorl("verdicts", "plan", "--store", str(tmp_path / "S"), "--budget", "10h").output
    assert said.count("whorl probe run") == 10
    assert "and 24 more: --json has all" in said
    assert "and 1 command more: --json has all" in said


# -- bad input --------------------------------------------------------------------------------------------------


def test_one_gpu_has_nothing_to_compare_with(tmp_path: Path) -> None:
    judged_store(tmp_path / "S", 1)
    shown = whorl("verdicts", "fingerprint", "--store", str(tmp_path / "S"))
    assert "nothing to compare with" in shown.output
