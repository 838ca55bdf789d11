"""`whorl verdicts` and `whorl explain` from the command line, and what they store."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts import Cause, Judgement, Kind, Level, NotJudged, State, Verdict
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.judgements import newest, record, stored
from whorl.analysis.verdicts.verdict import Action, ComparedWith, Gap
from whorl.dashboards import terminal
from whorl.dashboards.documents.verdicts import document as of_verdicts
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.cli.calling import document, refusal, whorl
from whorl.tests.conftest import BuiltOnce
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, DAY_NS, MODEL, judged_store, uuid

pytestmark = pytest.mark.usefixtures("stores_stay_open")

SLOW = 5
AT = datetime.fromisoformat("2026-09-03T12:00")


def finding(**columns: Any) -> Verdict:
    values: dict[str, Any] = {
        "level": Level.GPU, "name": "n02/1", "gpus": ("n02/1",), "cluster": CLUSTER, "model": MODEL,
        "workloads": ("gemm-fp32", "stream-triad"), "kind": Kind.SLOW, "state": State.CONFIRMED, "effect_pct": 6.1,
        "low_pct": 4.9, "high_pct": 7.2, "p": 1e-7, "q": 0.001, "n": 16,
        "causes": (
            Cause("the power cap", 4.0, 3.1, 4.9), Cause("heat", 1.3, 0.6, 2.0), Cause("unexplained", 0.8, None, None)
        ),
        "first_seen": datetime.fromisoformat("2026-09-01T00:00:05"),
        "last_seen": AT,
        "runs": ("a", "b"), "action": Action.SET_POWER_LIMIT, "reference": ComparedWith.GPUS,
    }  # fmt: skip
    return Verdict(**values | columns)


def judgement(*rows: Verdict, why: Gap = Gap.RUN_ONCE) -> Judgement:
    return Judgement(CLUSTER, rows, (NotJudged(CLUSTER, "bert", why),), 16, 32)


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> str:
    """32 GPUs, measured on three days; one is 12 % slower."""
    return str(built_once("judged-32", lambda path: judged_store(path / "S", 32, (0, 2, 4), slow={SLOW: 0.12})) / "S")


def number(store: Store, table: str) -> int:
    """The rows of a table."""
    return int(store.sql(f"select count(*) as n from {table}").to_pylist()[0]["n"])


def test_the_newest_judgement_of_the_cluster_counts_and_the_same_again_is_not_stored(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 4)
    record(store, [judgement(finding())], AT.replace(year=AT.year + 20))  # by a clock that was ahead
    record(store, [judgement()], AT.replace(day=2))
    assert (newest(store), number(store, "verdicts_now")) == ([judgement()], 0)
    for day in (3, 4):
        record(store, [judgement(finding())], AT.replace(day=day))
        assert number(store, "judgements") == 3
    assert newest(store) == [judgement(finding())]
    # Who asks about a campaign or the last days changes no verdict.
    record(store, [judgement()], AT.replace(day=5), campaign="c1")
    record(store, [judgement()], AT.replace(day=6), since=AT)
    assert (newest(store), number(store, "verdicts_now")) == ([judgement(finding())], 1)
    record(store, [judgement()], AT.replace(day=7), since=AT.replace(day=2))
    assert number(store, "judgements") == 5
    record(store, [judgement()], AT.replace(day=8))
    assert (newest(store), number(store, "verdicts_now"), number(store, "verdicts")) == ([judgement()], 0, 2)


def test_a_finding_stays_with_a_card_that_moves(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 8)
    record(store, [judgement(finding())], AT)
    moved = {"cluster": [CLUSTER], "gpu": [uuid(5)], "uuid": [uuid(5)], "node": ["n09"], "slot": [0]}
    store.append({"gpus": arrow_rows("gpus", moved | {"first_seen": [BEGAN_NS + 9 * DAY_NS]})}, "moved")
    joined = "select g.name from verdicts_now v join gpus_now g on list_contains([u.gpu for u in v.gpus], g.gpu)"
    assert store.sql(joined).to_pylist() == [{"name": "n09/0"}]


def test_who_may_only_read_the_store_gets_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = judged_store(tmp_path / "S", 4)
    monkeypatch.setattr(Store, "writable", lambda _: False)
    [note] = record(store, [judgement(finding())], AT)
    assert "may only read" in note
    assert newest(store) == []


def test_gpus_to_measure_again_are_stored_and_planned_first(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 8, (0, 2, 4))
    watching = replace(judgement(), watch=(finding(name="n01/2", gpus=("n01/2",), state=State.SUSPECTED),))
    record(store, [watching], AT)
    assert [conclusion.watch for conclusion in stored(store, CLUSTER)] == [("n01/2",)]
    assert "n01/2" in printed(watching)
    assert document("verdicts plan --store", store.root)["gpus"][0]["name"] == "n01/2"


def printed(*judgements: Judgement, columns: int | None = None) -> str:
    return terminal.text(of_verdicts(judgements, "S"), columns)


def test_how_many_are_odd_comes_first_then_each_finding_and_what_was_not_judged() -> None:
    batch = finding(level=Level.BATCH, name="VBIOS 2", gpus=("n01/0", "n02/0"), state=State.SUSPECTED, causes=())
    text = printed(judgement(finding(), batch))
    lines = text.splitlines()
    assert lines[:2] == [
        "3 of 16 GPUs stand out. Nothing was found about the other 13 GPUs.",
        "Cluster judged: 16 GPUs judged, 32 comparisons.",
    ]
    assert {"n02/1: slow, confirmed +6.1 % of time [+4.9, +7.2]", "whorl explain n02/1 --store S --cluster judged"} <= {
        line.strip() for line in lines
    }
    for words in (
        "\n  do:   Set its power limit",
        "4.0 the power cap [+3.1, +4.9], 1.3 heat [+0.6, +2.0], 0.8 unexplained.",
        "bert        fewer than two GPUs have two runs",
    ):
        assert words in text


def test_the_slow_gpu_is_found_stored_and_explained(fleet: str) -> None:
    judged = document("verdicts --store", fleet, schema="verdicts")
    [row] = [row for row in judged["rows"] if row["name"] == "n02/1"]
    assert (row["level"], row["kind"], row["state"], row["model"]) == ("gpu", "slow", "confirmed", MODEL)
    assert row["low_pct"] < 12 < row["high_pct"]
    assert row["first_seen"].endswith("Z")
    assert len(row["runs"]) >= 3
    [stored] = newest(Store.open(fleet))
    assert [verdict.name for verdict in stored.rows] == [row["name"] for row in judged["rows"]]
    answer = document("explain n02/1 --store", fleet, schema="explain")
    assert (answer["gpu"], answer["name"], answer["identity"]["serial"]) == (uuid(SLOW), "n02/1", "S0005")
    assert [verdict["name"] for verdict in answer["verdicts"]] == ["n02/1"]
    places = {place["workload"]: place for place in answer["places"]}
    assert {row["workload"] for row in answer["smallest"]} == set(places)
    assert all(1 <= row["pct"] < 12 for row in answer["smallest"] if row["pct"] is not None)
    gemm = places["gemm-fp32"]
    assert (gemm["rank"], gemm["peers"], gemm["n"], gemm["sittings"]) == (32, 32, 3, 3)
    assert gemm["low_pct"] < 12 < gemm["high_pct"]
    assert [sitting["n"] for sitting in answer["history"] if sitting["workload"] == "gemm-fp32"] == [1, 1, 1]
    text = whorl("explain S0005 --store", fleet).output
    assert text.startswith(f"n02/1 ({uuid(SLOW)}): {MODEL}; cluster judged, node n02, slot 1, serial S0005")
    assert "32 of 32" in text


NODE: dict[str, Any] = {"slow": dict.fromkeys(range(4, 8), 0.12), "model": lambda gpu: None}
BATCH: dict[str, Any] = {"time": lambda gpu, day: 0.96 if gpu % 4 == 0 else 1.0, "spread": 0.001}


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("fleet", "name", "reference", "gpus"),
    [
        (NODE, "n02", "8 nodes of the same cluster", [f"n02/{slot}" for slot in range(4)]),
        (BATCH, "8 GPUs", "32 GPUs of the same model", [f"n{node:02}/0" for node in range(1, 9)]),
    ],
    ids=["node", "batch"],
)
def test_a_node_or_a_batch_is_explained_by_the_name_of_its_finding(
    tmp_path: Path, fleet: dict[str, Any], name: str, reference: str, gpus: list[str]
) -> None:
    store = judged_store(tmp_path / "S", 32, **fleet).root
    answer = document("explain", name, "--store", store, schema="explain.shared")
    assert (answer["name"], answer["gpus"]) == (name, gpus)
    assert [row["reference"] for row in answer["verdicts"]] == [reference]
    assert whorl("explain", name, "--store", store).exit_code == 0
    kin = f"Its times beside the GPUs of its {reference.split()[-1]}"
    assert kin in whorl("explain", gpus[0], "--store", store).stdout
    assert "'n03' fits 4 GPUs" in refusal("explain n03 --store", store)


def test_a_gpu_that_was_collected_and_never_measured_is_explained(tmp_path: Path) -> None:
    judged_store(tmp_path / "S", 2, ())
    answer = whorl("explain n01/1 --store", tmp_path / "S")
    assert (answer.exit_code, "nothing can be said of it" in answer.output) == (0, True)


@pytest.mark.long
def test_a_gpu_that_files_name_by_place_and_by_uuid_is_one(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 8)
    place = {"cluster": [CLUSTER] * 2, "place": ["n02-1"] * 2, "node": ["n02"] * 2, "slot": [1] * 2}
    both_names = place | {"gpu": [uuid(SLOW), "n02-1"], "uuid": [uuid(SLOW), None]}
    store.append({"gpus": arrow_rows("gpus", both_names)}, "places")
    assert number(store, "gpus_now where name = 'n02/1'") == 2
    for name in ("n02/1", "n02-1"):
        assert document("explain", name, "--store", store.root)["gpu"] == uuid(SLOW)
    record(store, [judgement(finding())], AT)
    [row] = store.sql("select gpus from verdicts_now").to_pylist()
    assert [gpu["gpu"] for gpu in row["gpus"]] == [uuid(SLOW)]
    planned = document("verdicts plan --budget 1h --store", store.root)
    assert len(planned["gpus"]) + planned["left_out"] + sum(planned["decided"].values()) == 8


@pytest.mark.long
def test_two_cards_of_one_slot_have_two_names_everywhere(tmp_path: Path) -> None:
    """A slow card was exchanged for another one, which has the slot's name now; both have runs."""
    path = tmp_path / "S"
    store, new = judged_store(path, 16, (0, 2, 4), slow={SLOW: 0.12}), uuid(40)
    later = {"cluster": [CLUSTER], "gpu": [new], "uuid": [new], "node": ["n02"], "slot": [1], "model": [MODEL]}
    tables = {"gpus": arrow_rows("gpus", later | {"first_seen": [BEGAN_NS + 9 * DAY_NS]})}
    for table in ("runs", "results"):
        rows = store.sql(f"select * from {table} where gpu = '{uuid(6)}'").polars()
        renamed = rows.with_columns(gpu=pl.lit(new), run_id=pl.format("{}-new", "run_id")).to_dict(as_series=False)
        tables[table] = arrow_rows(table, renamed)
    store.append(tables, "exchanged")
    [row] = document("verdicts --store", path)["rows"]
    assert (row["name"], row["gpus"]) == (uuid(SLOW), [uuid(SLOW)])
    assert "slow, confirmed" in whorl("explain", uuid(SLOW), "--store", path).output
    text = whorl("explain n02/1 --store", path).output
    assert text.startswith(f"n02/1 ({new})")
    assert "Nothing was found against it" in text
    rows = document("verdicts fingerprint --store", path)["rows"]
    assert {row["name"] for row in rows if row["gpu"] in (new, uuid(SLOW))} == {"n02/1", uuid(SLOW)}
    judged = judge(Store.open(path))
    assert judged.by_key(probed(Store.open(path), every=True).gpus).keys() == {uuid(SLOW)}


def test_a_date_after_all_runs_is_said(fleet: str) -> None:
    answer = whorl("verdicts --since 2031-01-01 --store", fleet)
    assert answer.exit_code == 0
    assert "no run began on 2031-01-01 or later; the newest began on 2026-09-" in answer.output
