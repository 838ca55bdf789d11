"""`whorl explain` from a stored judgement: it says what was judged, names newer runs, and copes with damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whorl.analysis.verdicts import judge as judging
from whorl.dashboards.answers.report import report
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import EventKind
from whorl.tests.cli.test_verdicts import document, whorl
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, DAY_NS, judged_store, uuid

SLOW = 5


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """16 GPUs on three days; one is 12 % slower. Nobody judged them."""
    return judged_store(tmp_path / "S", 16, (0, 2, 4), slow={SLOW: 0.12})


def without_date_of_judging(store: Store, name: str = "n02/1") -> dict[str, Any]:
    told = document("explain", name, "--store", str(store.root))
    assert told["judged"].pop("at") is None or told["judged"]
    return told


def forbid_judging(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(*_: object, **__: object) -> None:
        raise AssertionError("the GPUs are judged again")

    monkeypatch.setattr(judging, "judged", judged)


def test_what_is_stored_says_what_was_judged_and_is_not_judged_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = without_date_of_judging(store)
    assert [verdict["kind"] for verdict in made["verdicts"]] == ["slow"]
    forbid_judging(monkeypatch)
    assert without_date_of_judging(store) == made
    assert made["judged"] == {"gpus": 16, "newer_runs": 0, "newer_events": 0}
    healthy = without_date_of_judging(store, uuid(2))
    assert healthy["verdicts"] == []
    assert len(healthy["places"]) == 2
    assert len(healthy["history"]) == 6
    shared = store.sql("select count(distinct judgement) n, count(*) from levels").to_pylist()
    assert shared == [{"n": 1, "count_star()": 32}]


@pytest.mark.long
def test_newer_runs_are_named_until_it_is_judged_again(store: Store) -> None:
    root = str(store.root)
    assert "since" not in whorl("explain", "n02/1", "--store", root).stdout
    more = judged_store(store.root.parent / "more", 16, (6,))
    store.append({name: more.arrow(name) for name in ("runs", "results")}, "more")
    told = document("explain", "n02/1", "--store", root)
    assert told["judged"]["newer_runs"] == 32
    gemm = [sitting for sitting in told["history"] if sitting["workload"] == "gemm-fp32"]
    assert len(gemm) == 4
    assert (gemm[-1]["that_day_pct"], gemm[0]["that_day_pct"] is not None) == (None, True)
    assert f"whorl verdicts --store {root} --cluster judged" in whorl("explain", "n02/1", "--store", root).stdout
    assert "32 runs of its cluster came since" in whorl("explain", "n02/1", "--store", root).stdout
    assert whorl("verdicts", "--store", root).exit_code == 0
    assert document("explain", "n02/1", "--store", root)["judged"]["newer_runs"] == 0


@pytest.mark.long
def test_report_answers_from_what_is_stored_and_names_newer_runs(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, page = str(store.root), str(tmp_path / "report.html")
    judged = document("verdicts", "--store", root)
    forbid_judging(monkeypatch)
    assert judged.pop("coverage") == {"parts": 2, "failed": []}  # of what is stored nothing is read in parts
    assert report(root, page).json() == judged
    more = judged_store(tmp_path / "more", 16, (6,))
    store.append({name: more.arrow(name) for name in ("runs", "results")}, "more")
    assert "32 runs of its cluster came since" in whorl("report", "--store", root, "--out", page).stdout
    assert "32 runs of its cluster came since" in Path(page).read_text()
    assert whorl("report", "--gpu", "n02/1", "--store", root, "--out", page).exit_code == 0
    assert "32 runs of its cluster came since" in Path(page).read_text()


@pytest.mark.long
def test_a_lost_gpu_after_the_judging_is_named_as_newer(store: Store) -> None:
    root = str(store.root)
    assert without_date_of_judging(store)["judged"]["newer_events"] == 0
    lost = {"cluster": [CLUSTER], "gpu": [uuid(3)], "ts": [BEGAN_NS + 9 * DAY_NS], "kind": [EventKind.LOST.value]}
    store.append({"events": arrow_rows("events", lost)}, "lost")
    assert without_date_of_judging(store)["judged"]["newer_events"] == 1
    assert "1 event of its cluster came since" in whorl("explain", uuid(3), "--store", root).stdout
    assert whorl("verdicts", "--store", root).exit_code == 0
    told = document("explain", uuid(3), "--store", root)
    assert (told["verdicts"][0]["kind"], told["judged"]["newer_events"]) == ("lost", 0)
    shown = " ".join(whorl("explain", uuid(3), "--store", root).stdout.split())
    assert "lost the GPU does not answer any more" in shown


@pytest.mark.long
def test_a_store_that_may_only_be_read_is_judged_each_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "writable", lambda _: False)
    assert without_date_of_judging(store) == without_date_of_judging(store)
    assert store.sql("select * from levels").to_pylist() == []
    monkeypatch.undo()
    made = document("explain", "n02/1", "--store", str(store.root))
    assert made["judged"]["at"] is None
    assert document("explain", "n02/1", "--store", str(store.root))["judged"]["at"] is not None


@pytest.mark.long
@pytest.mark.parametrize("table", ["levels", "judgements", "verdicts"])
def test_a_damaged_judgement_is_made_again(store: Store, table: str) -> None:
    made = without_date_of_judging(store)
    [path] = [path for path in (store.root / table).glob("*.parquet") if not path.name.startswith("_")]
    path.write_bytes(path.read_bytes()[:-40])
    assert without_date_of_judging(store) == made
    assert len(Store.open(store.root).sql("select * from levels").to_pylist()) >= 32


@pytest.mark.long
def test_a_name_in_two_clusters_is_asked_for_also_where_one_has_a_finding(store: Store) -> None:
    document("explain", "n02/1", "--store", str(store.root))
    identity = {"cluster": ["other"], "gpu": ["GPU-other"], "node": ["n02"], "slot": [1]}
    store.append({"gpus": arrow_rows("gpus", identity)}, "more")
    refused = whorl("explain", "n02/1", "--store", str(store.root))
    assert (refused.exit_code, "fits 2 GPUs" in refused.stderr, "--cluster" in refused.stderr) == (2, True, True)
