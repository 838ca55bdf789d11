"""GPUs are chosen by name, key, node or cabinet; and what happened to them is found."""

from __future__ import annotations

from typing import Any

import pytest

from whorl.analysis.telemetry.choosing import boards, choose, matching
from whorl.analysis.telemetry.happened import happened
from whorl.store import Store
from whorl.store.schema import arrow_rows

S = 1_000_000_000
BEGAN = 1_790_000_000 * S


def _append(store: Store, table: str, name: str, rows: Any) -> None:
    store.append({table: arrow_rows(table, rows)}, name)


@pytest.fixture
def fleet(store: Store) -> Store:
    """Two nodes of two GPUs in two cabinets, one GPU without a place, one of which only readings are known."""
    gpus = {
        "cluster": ["c"] * 4 + ["d"], "gpu": ["GPU-0", "GPU-1", "GPU-2", "GPU-3", "<b>x</b>"],
        "node": ["n1", "n1", "n2", "n2", None], "slot": [0, 1, 0, 1, None], "cabinet": ["r1", "r1", "r2", "r2", None],
        "first_seen": [BEGAN] * 5,
    }  # fmt: skip
    _append(store, "gpus", "g", gpus)
    columns = {"ts": [BEGAN] * 2, "cluster": ["c", None], "gpu": ["GPU-0", "lonely"], "power_mw": [1, 2]}
    _append(store, "telemetry", "t", columns)
    return store


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("options", "chosen", "unknown"),
    [
        ({}, ["lonely", "n1/0", "n1/1", "n2/0", "n2/1", "<b>x</b>"], ()),
        ({"gpus": ["n9/9"], "nodes": ["n1"]}, ["n1/0", "n1/1"], ("GPU n9/9",)),
        ({"cluster": "c"}, ["n1/0", "n1/1", "n2/0", "n2/1"], ()),
        ({"gpus": ["n2/1", "GPU-0", "n1/0"]}, ["n2/1", "n1/0"], ()),
        ({"nodes": ["n2"]}, ["n2/0", "n2/1"], ()),
        ({"cabinets": ["r1"], "gpus": ["lonely"]}, ["lonely", "n1/0", "n1/1"], ()),
        ({"cluster": "nowhere"}, [], ("cluster nowhere",)),
        ({"cluster": "d", "nodes": ["n1"]}, [], ("node n1",)),
    ],
)
def test_gpus_are_chosen(fleet: Store, options: Any, chosen: list[str], unknown: tuple[str, ...]) -> None:
    choice = choose(boards(fleet), **options)
    assert sorted(board.name for board in choice.boards) == sorted(chosen)
    assert choice.unknown == unknown
    assert choice.everything == (options.keys() <= {"cluster"})


def test_letters_find_cabinets_nodes_and_gpus(fleet: Store) -> None:
    fleet_boards = boards(fleet)
    assert matching(fleet_boards, "n1", 9) == ([], ["n1"], ["n1/0", "n1/1"])
    assert matching(fleet_boards, "R2", 9) == (["r2"], [], [])
    assert matching(fleet_boards, "gpu-3", 9) == ([], [], ["n2/1"])
    assert [len(matches) for matches in matching(fleet_boards, "", 2)] == [2, 2, 2]
    assert matching(fleet_boards, "<b>", 9)[2] == ["<b>x</b>"]


@pytest.fixture
def busy(fleet: Store) -> Store:
    runs = {
        "run_id": ["1", "2", "3"], "cluster": ["c"] * 3, "campaign": ["week-1"] * 3,
        "workload": ["gemm", "gemm", "spmv"],
        "gpu": ["GPU-0", "GPU-1", "GPU-0"], "began": [BEGAN, BEGAN + 2 * S, BEGAN + 10 * S],
        "ended": [BEGAN + 5 * S, BEGAN + 7 * S, BEGAN + 15 * S], "status": ["ok"] * 3,
    }  # fmt: skip
    jobs = {
        "cluster": ["c"] * 2, "allocation": ["7"] * 2, "job_id": ["7"] * 2, "user": ["alice"] * 2, "node": ["n1"] * 2,
        "gpu": ["GPU-0", "GPU-1"], "gpu_from": ["file"] * 2, "began": [BEGAN - 100 * S] * 2, "ended": [None, None],
        "recorded": [BEGAN] * 2,
    }  # fmt: skip
    events = {
        "ts": [BEGAN + 1 * S, BEGAN + 2 * S, BEGAN + 3 * S, BEGAN + 4 * S], "cluster": ["c"] * 4,
        "gpu": ["GPU-0", None, "GPU-2", "GPU-0"], "node": ["n1", "n1", "n2", "n1"],
        "kind": ["xid", "missed_ticks", "xid", "not_supported"], "detail": ["XID 79", "2 ticks", "XID 48", "no"],
    }  # fmt: skip
    for table, rows in (("runs", runs), ("jobs", jobs), ("events", events)):
        _append(fleet, table, table, rows)
    return fleet


def test_what_happened_to_a_gpu_is_its_runs_jobs_and_events_and_those_of_its_node(busy: Store) -> None:
    happenings = happened(busy, [("c", "GPU-0")], BEGAN, BEGAN + 12 * S, apart=True)
    assert [(run.name, run.says, run.key) for run in happenings.runs] == [
        ("gemm", "week-1, ok", ("c", "GPU-0")), ("spmv", "week-1, ok", ("c", "GPU-0")),
    ]  # fmt: skip
    assert [(job.name, job.says, job.ended) for job in happenings.jobs] == [("7", "alice", None)]
    assert [(mark.kind, mark.key, mark.says) for mark in happenings.marks] == [
        ("xid", ("c", "GPU-0"), "XID 79"), ("missed_ticks", None, "2 ticks"),
    ]  # fmt: skip
    assert (happenings.all_runs, happenings.all_jobs, happenings.all_events) == (2, 1, 2)
    before = happened(busy, [("c", "GPU-0")], BEGAN - 10 * S, BEGAN - S, apart=True)
    assert (before.runs, len(before.jobs), before.marks) == ((), 1, ())


@pytest.mark.long
def test_what_happened_to_many_gpus_is_put_together(busy: Store) -> None:
    for which in (None, "c"):
        happenings = happened(busy, which, BEGAN, BEGAN + 12 * S, apart=False)
        assert [(run.name, run.gpus, run.key) for run in happenings.runs] == [("gemm", 2, None), ("spmv", 1, None)]
        assert happenings.runs[0].ended == BEGAN + 7 * S
        assert [(job.name, job.gpus, job.ended) for job in happenings.jobs] == [("7", 2, None)]
        assert sorted(mark.kind for mark in happenings.marks) == ["missed_ticks", "xid", "xid"]


def test_bars_and_marks_are_capped_and_counted(busy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whorl.analysis.telemetry.happened.MOST", 1)
    happenings = happened(busy, None, BEGAN, BEGAN + 12 * S, apart=True)
    assert (len(happenings.runs), happenings.all_runs, len(happenings.marks), happenings.all_events) == (1, 3, 1, 3)
    assert [mark.kind for mark in happenings.marks] == ["missed_ticks"], "the rarest kind is kept"
