"""`whorl verdicts` and `whorl explain` from the command line, and what they store."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts import Cause, Judgement, Kind, Level, NotJudged, Smallest, State, Verdict
from whorl.analysis.verdicts.judge import judge
from whorl.analysis.verdicts.judgements import newest, record, stored
from whorl.analysis.verdicts.verdict import Action, ComparedWith, Gap
from whorl.cli import cli
from whorl.dashboards import terminal
from whorl.dashboards.answers.mappings import finding as row
from whorl.dashboards.answers.mappings import verdicts as verdicts_document
from whorl.dashboards.documents.verdicts import document as of_verdicts
from whorl.dashboards.words import short_names
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.conftest import BuiltOnce
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, DAY_NS, MODEL, judged_store, uuid

pytestmark = pytest.mark.usefixtures("stores_stay_open")

SLOW = 5
AT = datetime.fromisoformat("2026-09-03T12:00")


def whorl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    result = whorl(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def finding(**other: Any) -> Verdict:
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
    return Verdict(**values | other)


def judgement(*rows: Verdict, why: Gap = Gap.RUN_ONCE) -> Judgement:
    return Judgement(CLUSTER, rows, (NotJudged(CLUSTER, "bert", why),), 16, 32)


@pytest.fixture(scope="module")
def fleet(built_once: BuiltOnce) -> str:
    """32 GPUs, measured on three days; one is 12 % slower."""
    return str(built_once("judged-32", lambda path: judged_store(path / "S", 32, (0, 2, 4), slow={SLOW: 0.12})) / "S")


# -- what is stored ---------------------------------------------------------------------------------------------


def test_a_judgement_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 8)
    told = judgement(finding(), finding(kind=Kind.LOST, effect_pct=None, p=None, n=None, workloads=(), causes=()))
    assert record(store, [told], AT) == ()
    assert newest(store) == [told]
    [first, _] = store.sql("select * from verdicts_now order by place").to_pylist()
    assert [one["gpu"] for one in first["gpus"]] == [uuid(5)]
    assert (first["kind"], first["version"], str(first["first_seen"])[:19]) == ("slow", "0.1.0", "2026-09-01 00:00:05")


def test_the_newest_judgement_counts_and_the_same_again_is_not_stored(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 4)
    record(store, [judgement(finding())], AT)
    record(store, [judgement(finding())], AT.replace(day=4))
    assert store.sql("select count(*) as n from judgements").to_pylist() == [{"n": 1}]
    record(store, [judgement()], AT.replace(day=5))
    assert newest(store) == [judgement()]
    assert store.sql("select count(*) as n from verdicts_now").to_pylist() == [{"n": 0}]
    assert store.sql("select count(*) as n from verdicts").to_pylist() == [{"n": 1}]
    record(store, [judgement(finding())], AT.replace(day=6))
    assert newest(store) == [judgement(finding())]


def test_a_judgement_of_one_campaign_or_since_a_time_is_not_the_newest_of_the_cluster(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 4)
    record(store, [judgement(finding())], AT)
    record(store, [judgement()], AT.replace(day=5), campaign="c1")
    record(store, [judgement()], AT.replace(day=6), since=AT)  # who asks about the last days changes no verdict
    assert newest(store) == [judgement(finding())]
    assert store.sql("select count(*) as n from verdicts_now").to_pylist() == [{"n": 1}]
    record(store, [judgement()], AT.replace(day=7), since=AT.replace(day=2))
    assert store.sql("select count(*) as n from judgements").to_pylist() == [{"n": 3}]


def test_a_judgement_by_a_clock_that_was_ahead_does_not_stay_the_newest(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 4)
    record(store, [judgement(finding())], AT.replace(year=AT.year + 20))
    record(store, [judgement()], AT)
    assert newest(store) == [judgement()]
    assert store.sql("select count(*) as n from verdicts_now").to_pylist() == [{"n": 0}]


def test_a_finding_stays_with_a_card_that_moves(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 8)
    record(store, [judgement(finding())], AT)
    moved = {"cluster": [CLUSTER], "gpu": [uuid(5)], "uuid": [uuid(5)], "node": ["n09"], "slot": [0]}
    store.append({"gpus": arrow_rows("gpus", moved | {"first_seen": [BEGAN_NS + 9 * DAY_NS]})}, "moved")
    joined = store.sql(
        "select g.name from verdicts_now v join gpus_now g on list_contains([one.gpu for one in v.gpus], g.gpu)"
    ).to_pylist()
    assert joined == [{"name": "n09/0"}]


def test_who_may_only_read_the_store_gets_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = judged_store(tmp_path / "S", 4)
    monkeypatch.setattr(Store, "writable", lambda _: False)
    [note] = record(store, [judgement(finding())], AT)
    assert "may only read" in note
    assert newest(store) == []


def test_gpus_to_measure_again_are_stored_and_planned_first(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 8, (0, 2, 4))
    told = replace(judgement(), watch=(finding(name="n01/2", gpus=("n01/2",), state=State.SUSPECTED),))
    record(store, [told], AT)
    assert [one.watch for one in stored(store, CLUSTER)] == [("n01/2",)]
    assert "n01/2" in said_of(told)
    assert document("verdicts", "plan", "--store", str(store.root))["gpus"][0]["name"] == "n01/2"


# -- what is printed --------------------------------------------------------------------------------------------


def said_of(*judgements: Judgement) -> str:
    return terminal.text(of_verdicts(judgements, "S"))


def test_how_many_are_odd_comes_first_then_each_finding_and_what_was_not_judged() -> None:
    batch = finding(level=Level.BATCH, name="VBIOS 2", gpus=("n01/0", "n02/0"), state=State.SUSPECTED, causes=())
    said = said_of(judgement(finding(), batch)).splitlines()
    assert said[:2] == [
        "3 of 16 GPUs stand out. Nothing was found about the other 13 GPUs.",
        "Cluster judged: 16 GPUs judged, 32 comparisons.",
    ]
    assert any(line.startswith("  do:   Set its power limit") for line in said)
    assert "n02/1: slow, confirmed +6.1 % of time [+4.9, +7.2]" in said
    text = "\n".join(said)
    assert "4.0 the power cap [+3.1, +4.9], 1.3 heat [+0.6, +2.0], 0.8 unexplained." in text
    assert "bert        fewer than two GPUs have two runs" in text
    assert "whorl explain n02/1 --store S --cluster judged" in said


def test_findings_beyond_the_worst_are_rows() -> None:
    rows = [finding(name=f"n01/{slot}", gpus=(f"n01/{slot}",)) for slot in range(12)]
    said = said_of(judgement(*rows))
    assert "The other 2 findings" in said
    assert all(f"n01/{slot}" in said for slot in range(12))


def test_times_have_one_form_in_every_document() -> None:
    assert row(finding())["last_seen"] == "2026-09-03T12:00:00Z"
    assert verdicts_document([judgement(finding())])["rows"][0]["first_seen"] == "2026-09-01T00:00:05Z"


def test_uuids_are_cut_where_no_other_gpu_begins_alike() -> None:
    ends = ("d1a1-8021-d92560f30d23", "d1a1-8021-000000000000")
    alike = [f"GPU-87570fdd-b924-{end}" for end in ends]
    other = "GPU-bf17fd1b-650b-c81b-2474-3a5e15a45f0d"
    names = short_names([*alike, other, "n02/1"])
    assert (names[other], names["n02/1"]) == ("GPU-bf17fd1b", "n02/1")
    assert len({names[one] for one in alike}) == 2
    assert all(one.startswith(names[one]) for one in alike)
    assert not alike[1].startswith(short_names(alike[:1], alike)[alike[0]]), "nor one that is not listed"


def test_what_could_not_have_been_named_is_said() -> None:
    one = Smallest("gemm-fp32", MODEL, 2.31, 8.0, 16, 2, None)
    other = replace(one, workload="stream-triad", pct=1.0)
    assert (
        "Too small to see: a GPU slower by less than about 1.0 % in stream-triad (16 GPUs, 2 sittings each) or 2.3 % "
        "in gemm-fp32 (16 GPUs, 2 sittings each)." in said_of(replace(judgement(), smallest=(one, other)))
    )
    none = replace(one, pct=None, any_clock_pct=None, why=Gap.ALONE)
    said = said_of(replace(judgement(), smallest=(none,)))
    assert "No GPU could have been named for one workload alone: most GPUs have one run, which" in said


def test_nothing_found_and_nothing_judged_are_different_sentences() -> None:
    assert "No GPU stands out. Nothing was found about 16 GPUs." in said_of(judgement())
    blank = Judgement(CLUSTER, (), (NotJudged(CLUSTER, CLUSTER, Gap.FEW_GPUS, n=1, total=8),), 0, 0)
    said = said_of(blank)
    assert "Nothing could be judged." in said
    assert "1 GPU ran it without an error; 8 are needed" in said


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_the_terminal(columns: int) -> None:
    long = "GPU-87570fdd-b924-d1a1-8021-d92560f30d23"
    rows = [finding(), *(finding(name=long, gpus=(long,)) for _ in range(11))]
    said = terminal.text(of_verdicts([judgement(*rows)], "S"), columns)
    assert max(map(len, said.splitlines())) <= columns
    assert "+6.1" in said
    assert "heat" in said, "the cause"


# -- the verbs --------------------------------------------------------------------------------------------------


def test_the_slow_gpu_is_found_stored_and_explained(fleet: str) -> None:
    found = document("verdicts", "--store", fleet)
    assert found["schema"] == "whorl.verdicts/1"
    assert set(found) == {"schema", "rows", "not_judged", "watch", "smallest", "changes", "coverage"}
    [row] = [row for row in found["rows"] if row["name"] == "n02/1"]
    assert (row["level"], row["kind"], row["state"], row["model"]) == ("gpu", "slow", "confirmed", MODEL)
    assert row["low_pct"] < 12 < row["high_pct"]
    assert row["first_seen"].endswith("Z")
    assert len(row["runs"]) >= 3
    [stored] = newest(Store.open(fleet))
    assert [one.name for one in stored.rows] == [row["name"] for row in found["rows"]]
    told = document("explain", "n02/1", "--store", fleet)
    assert told["schema"] == "whorl.explain/1"
    assert (told["gpu"], told["name"], told["identity"]["serial"]) == (uuid(SLOW), "n02/1", "S0005")
    assert [one["name"] for one in told["verdicts"]] == ["n02/1"]
    places = {one["workload"]: one for one in told["places"]}
    assert {one["workload"] for one in told["smallest"]} == set(places)
    assert all(1 <= one["pct"] < 12 for one in told["smallest"] if one["pct"] is not None)
    gemm = places["gemm-fp32"]
    assert (gemm["rank"], gemm["peers"], gemm["n"], gemm["sittings"]) == (32, 32, 3, 3)
    assert gemm["low_pct"] < 12 < gemm["high_pct"]
    assert [one["n"] for one in told["history"] if one["workload"] == "gemm-fp32"] == [1, 1, 1]
    said = whorl("explain", "S0005", "--store", fleet).output
    assert said.startswith(f"n02/1 ({uuid(SLOW)}): {MODEL}; cluster judged, node n02, slot 1, serial S0005")
    assert "32 of 32" in said


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("fleet", "name", "of", "gpus"),
    [
        (
            {"slow": dict.fromkeys(range(4, 8), 0.12), "model": lambda gpu: None},
            "n02",
            "8 nodes of the same cluster",
            [f"n02/{slot}" for slot in range(4)],
        ),
        (
            {"time": lambda gpu, day: 0.96 if gpu % 4 == 0 else 1.0, "spread": 0.001},
            "8 GPUs",
            "32 GPUs of the same model",
            [f"n{node:02}/0" for node in range(1, 9)],
        ),
    ],
    ids=["node", "batch"],
)
def test_a_node_or_a_batch_is_explained_by_the_name_of_its_finding(
    tmp_path: Path, fleet: dict[str, Any], name: str, of: str, gpus: list[str]
) -> None:
    store = str(judged_store(tmp_path / "S", 32, **fleet).root)
    told = document("explain", name, "--store", store)
    assert (told["schema"], told["name"], told["gpus"]) == ("whorl.explain.shared/1", name, gpus)
    [row] = told["verdicts"]
    assert row["reference"] == of
    assert whorl("explain", name, "--store", store).exit_code == 0
    kin = f"Its times beside the GPUs of its {of.split()[-1]}"
    assert kin in whorl("explain", gpus[0], "--store", store).stdout
    nothing = whorl("explain", "n03", "--store", store)
    assert nothing.exit_code == 2
    assert "'n03' fits 4 GPUs" in nothing.stderr


def test_a_gpu_that_was_collected_and_never_measured_is_explained(tmp_path: Path) -> None:
    judged_store(tmp_path / "S", 2, ())
    said = whorl("explain", "n01/1", "--store", str(tmp_path / "S"))
    assert said.exit_code == 0, said.output
    assert "nothing can be said of it" in said.output


@pytest.mark.long
def test_a_gpu_that_files_name_by_place_and_by_uuid_is_one(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 8)
    place = {"cluster": [CLUSTER] * 2, "place": ["n02-1"] * 2, "node": ["n02"] * 2, "slot": [1] * 2}
    both = place | {"gpu": [uuid(SLOW), "n02-1"], "uuid": [uuid(SLOW), None]}
    store.append({"gpus": arrow_rows("gpus", both)}, "places")
    assert store.sql("select count(*) as n from gpus_now where name = 'n02/1'").to_pylist() == [{"n": 2}]
    told = document("explain", "n02/1", "--store", str(store.root))
    assert told["gpu"] == uuid(SLOW)
    assert document("explain", "n02-1", "--store", str(store.root))["gpu"] == uuid(SLOW)
    record(store, [judgement(finding())], AT)
    [row] = store.sql("select gpus from verdicts_now").to_pylist()
    assert [one["gpu"] for one in row["gpus"]] == [uuid(SLOW)]
    planned = document("verdicts", "plan", "--store", str(store.root), "--budget", "1h")
    assert len(planned["gpus"]) + planned["left_out"] + sum(planned["decided"].values()) == 8


@pytest.mark.long
def test_two_cards_of_one_slot_have_two_names_everywhere(tmp_path: Path) -> None:
    """A slow card was exchanged for another one, which has the slot's name now; both have runs."""
    path = tmp_path / "S"
    store, new = judged_store(path, 16, (0, 2, 4), slow={SLOW: 0.12}), uuid(40)
    later = {"cluster": [CLUSTER], "gpu": [new], "uuid": [new], "node": ["n02"], "slot": [1], "model": [MODEL]}
    tables = {"gpus": arrow_rows("gpus", later | {"first_seen": [BEGAN_NS + 9 * DAY_NS]})}
    for table in ("runs", "results"):
        alike = store.sql(f"select * from {table} where gpu = '{uuid(6)}'").polars()
        own = alike.with_columns(gpu=pl.lit(new), run_id=pl.format("{}-new", "run_id")).to_dict(as_series=False)
        tables[table] = arrow_rows(table, own)
    store.append(tables, "exchanged")
    [row] = document("verdicts", "--store", str(path))["rows"]
    assert (row["name"], row["gpus"]) == (uuid(SLOW), [uuid(SLOW)])
    assert "slow, confirmed" in whorl("explain", uuid(SLOW), "--store", str(path)).output
    now = whorl("explain", "n02/1", "--store", str(path)).output
    assert now.startswith(f"n02/1 ({new})")
    assert "Nothing was found against it" in now
    rows = document("verdicts", "fingerprint", "--store", str(path))["rows"]
    assert {one["name"] for one in rows if one["gpu"] in (new, uuid(SLOW))} == {"n02/1", uuid(SLOW)}
    found = judge(Store.open(path))
    assert found.by_key(probed(Store.open(path), every=True).gpus).keys() == {uuid(SLOW)}


# -- bad input --------------------------------------------------------------------------------------------------


def test_a_date_after_all_runs_is_said(fleet: str) -> None:
    shown = whorl("verdicts", "--store", fleet, "--since", "2031-01-01")
    assert shown.exit_code == 0
    assert "no run began on 2031-01-01 or later; the newest began on 2026-09-" in shown.output
