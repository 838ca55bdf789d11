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
from whorl.tests.cli.calling import document, whorl
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, DAY_NS, judged_store, uuid

SLOW = 5


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """16 GPUs on three days; one is 12 % slower. Nobody judged them."""
    return judged_store(tmp_path / "S", 16, (0, 2, 4), slow={SLOW: 0.12})


SINCE = "32 runs of its cluster came since"


def asked(store: Store, name: str = "n02/1") -> dict[str, Any]:
    """The answer of `explain`, without the date of judging."""
    answer = document("explain", name, "--store", store.root)
    assert answer["judged"].pop("at") is None or answer["judged"]
    return answer


def printed(store: Store, name: str = "n02/1") -> str:
    return " ".join(whorl("explain", name, "--store", store.root).stdout.split())


def judge(store: Store) -> dict[str, Any]:
    return document("verdicts --store", store.root)


def measure_again(store: Store) -> None:
    larger = judged_store(store.root.parent / "more", 16, (6,))
    store.append({name: larger.arrow(name) for name in ("runs", "results")}, "more")


def forbid_judging(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(*_: object, **__: object) -> None:
        raise AssertionError("the GPUs are judged again")

    monkeypatch.setattr(judging, "judged", judged)


def test_what_is_stored_says_what_was_judged_and_is_not_judged_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = asked(store)
    assert [verdict["kind"] for verdict in explained["verdicts"]] == ["slow"]
    forbid_judging(monkeypatch)
    assert asked(store) == explained
    assert explained["judged"] == {"gpus": 16, "newer_runs": 0, "newer_events": 0}
    healthy = asked(store, uuid(2))
    assert healthy["verdicts"] == []
    assert len(healthy["places"]) == 2
    assert len(healthy["history"]) == 6
    shared = store.sql("select count(distinct judgement) n, count(*) from levels").to_pylist()
    assert shared == [{"n": 1, "count_star()": 32}]


@pytest.mark.long
def test_newer_runs_are_named_until_it_is_judged_again(store: Store) -> None:
    assert "since" not in printed(store)
    measure_again(store)
    answer = asked(store)
    assert answer["judged"]["newer_runs"] == 32
    gemm = [sitting for sitting in answer["history"] if sitting["workload"] == "gemm-fp32"]
    assert len(gemm) == 4
    assert (gemm[-1]["that_day_pct"], gemm[0]["that_day_pct"] is not None) == (None, True)
    assert f"whorl verdicts --store {store.root} --cluster judged" in printed(store)
    assert SINCE in printed(store)
    judge(store)
    assert asked(store)["judged"]["newer_runs"] == 0


@pytest.mark.long
def test_report_answers_from_what_is_stored_and_names_newer_runs(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "report.html"
    judged = judge(store)
    forbid_judging(monkeypatch)
    assert judged.pop("coverage") == {"parts": 2, "failed": []}  # of what is stored nothing is read in parts
    assert report(str(store.root), str(page)).json() == judged
    measure_again(store)
    for line in ("report", "report --gpu n02/1"):
        done = whorl(line, "--store", store.root, "--out", page)
        assert (done.exit_code, SINCE in page.read_text()) == (0, True)
        assert SINCE in done.stdout or "--gpu" in line


@pytest.mark.long
def test_a_lost_gpu_after_the_judging_is_named_as_newer(store: Store) -> None:
    assert asked(store)["judged"]["newer_events"] == 0
    lost = {"cluster": [CLUSTER], "gpu": [uuid(3)], "ts": [BEGAN_NS + 9 * DAY_NS], "kind": [EventKind.LOST.value]}
    store.append({"events": arrow_rows("events", lost)}, "lost")
    assert asked(store)["judged"]["newer_events"] == 1
    assert "1 event of its cluster came since" in printed(store, uuid(3))
    judge(store)
    answer = asked(store, uuid(3))
    assert (answer["verdicts"][0]["kind"], answer["judged"]["newer_events"]) == ("lost", 0)
    assert "lost the GPU does not answer any more" in printed(store, uuid(3))


@pytest.mark.long
def test_a_name_in_two_clusters_is_asked_for_also_where_one_has_a_finding(store: Store) -> None:
    judge(store)
    identity = {"cluster": ["other"], "gpu": ["GPU-other"], "node": ["n02"], "slot": [1]}
    store.append({"gpus": arrow_rows("gpus", identity)}, "more")
    refused = whorl("explain n02/1 --store", store.root)
    assert (refused.exit_code, "fits 2 GPUs" in refused.stderr, "--cluster" in refused.stderr) == (2, True, True)


@pytest.mark.long
def test_a_store_that_may_only_be_read_is_judged_each_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "writable", lambda _: False)
    assert asked(store) == asked(store)
    assert store.sql("select * from levels").to_pylist() == []
    monkeypatch.undo()
    dates = [document("explain n02/1 --store", store.root)["judged"]["at"] for _ in range(2)]
    assert (dates[0], dates[1] is None) == (None, False)


@pytest.mark.long
@pytest.mark.parametrize("table", ["levels", "judgements", "verdicts"])
def test_a_damaged_judgement_is_made_again(store: Store, table: str) -> None:
    explained = asked(store)
    [path] = [path for path in (store.root / table).glob("*.parquet") if not path.name.startswith("_")]
    path.write_bytes(path.read_bytes()[:-40])
    assert asked(store) == explained
    assert len(Store.open(store.root).sql("select * from levels").to_pylist()) >= 32
