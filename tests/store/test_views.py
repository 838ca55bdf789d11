"""The views for people: one row a GPU, and figures with the name of their GPU."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.errors import QueryError
from whorl.store import Store
from whorl.store.views import PLAIN_VIEWS, VIEWS
from whorl.tests.stores import answers, new_store

# ruff: noqa: DTZ001 - the store's times are UTC without a zone


def day(number: int) -> dt.datetime:
    return dt.datetime(2026, 1, number)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """GPU-1 moved from n1 to n2 and got a new driver; GPU-2 never had a place; GPU-3 is in no row of `gpus`."""
    made = new_store(tmp_path_factory.mktemp("views") / "store")
    gpus = {
        "cluster": ["c"] * 4,
        "gpu": ["GPU-1", "GPU-1", "GPU-1", "GPU-2"],
        "node": ["n1", "n2", None, None],
        "slot": pa.array([3, 0, None, None], pa.int32()),
        "driver": ["550", None, "560", "550"],
        "first_seen": pa.array([day(1), day(2), day(3), None], pa.timestamp("ns")),
    }
    runs = {
        "run_id": ["a", "b", "c"],
        "cluster": ["c"] * 3,
        "gpu": ["GPU-1", "GPU-2", "GPU-3"],
        "workload": ["sgemm"] * 3,
    }
    results = {"run_id": ["a", "b", "c"], "figure": ["time"] * 3, "unit": ["ms"] * 3, "value": [1.0, 2.0, 3.0]}
    made.append({"gpus": pa.table(gpus), "runs": pa.table(runs), "results": pa.table(results)}, "x")
    return made


@pytest.mark.long
def test_a_gpu_has_one_row_with_its_newest_place_and_what_else_is_known_last(store: Store) -> None:
    for found in answers(store, "select name, node, slot, driver, first_seen from gpus_now order by gpu"):
        assert found == [
            {"name": "n2/0", "node": "n2", "slot": 0, "driver": "560", "first_seen": day(1)},
            {"name": "GPU-2", "node": None, "slot": None, "driver": "550", "first_seen": None},
        ]


def test_who_tells_the_node_alone_takes_no_name_from_a_gpu(tmp_path: Path) -> None:
    """GPU-1 keeps its slot of the same node, and not that of another; GPU-3, now in the slot of GPU-2, keeps it too."""
    made = new_store(tmp_path / "S")
    rows = [
        ("GPU-1", "n1", 1, 1), ("GPU-1", "n1", None, 2), ("GPU-2", "n1", 2, 1), ("GPU-3", "n1", 2, 2),
        ("GPU-2", "n1", None, 3), ("GPU-4", "n1", 3, 1), ("GPU-4", "n2", None, 2),
    ]  # fmt: skip
    gpu, node, slot, seen = zip(*rows, strict=True)
    gpus = {"cluster": ["c"] * len(rows), "gpu": gpu, "uuid": gpu, "node": node, "slot": pa.array(slot, pa.int32())}
    gpus["first_seen"] = pa.array([day(number) for number in seen], pa.timestamp("ns"))
    made.append({"gpus": pa.table(gpus)}, "x")
    found = made.sql("select gpu, name, node from gpus_now order by gpu").to_pylist()
    names = [(row["gpu"], row["name"], row["node"]) for row in found]
    assert names == [
        ("GPU-1", "n1/1", "n1"), ("GPU-2", "GPU-2", "n1"), ("GPU-3", "n1/2", "n1"), ("GPU-4", "GPU-4", "n2"),
    ]  # fmt: skip


@pytest.mark.long
def test_of_two_cards_in_one_slot_the_last_one_has_its_name(tmp_path: Path) -> None:
    made = new_store(tmp_path / "store")
    keys = ["GPU-1", "GPU-2", "n1-3", "MIG-1"]  # the third is how a file without UUIDs names whatever is there
    rows = {
        "cluster": ["c"] * 4,
        "gpu": keys,
        "uuid": ["GPU-1", "GPU-2", None, "MIG-1"],
        "parent": [None, None, None, "GPU-2"],
        "node": ["n1"] * 4,
        "slot": pa.array([3] * 4, pa.int32()),
        "first_seen": pa.array([day(1), day(2), None, day(3)], pa.timestamp("ns")),
    }
    made.append({"gpus": pa.table(rows)}, "x")
    for found in answers(made, "select gpu, name from gpus_now"):
        names = {row["gpu"]: row["name"] for row in found}
        assert names == {"GPU-1": "GPU-1", "GPU-2": "n1/3", "n1-3": "n1/3", "MIG-1": "MIG-1"}


def test_a_figure_stands_with_the_name_of_its_gpu(store: Store) -> None:
    for found in answers(store, "select name, value from measurements where figure = 'time' order by value"):
        assert found == [{"name": "n2/0", "value": 1}, {"name": "GPU-2", "value": 2}, {"name": "GPU-3", "value": 3}]


def test_of_two_statements_none_is_answered_in_silence(store: Store) -> None:
    with pytest.raises(QueryError, match="there are 2 statements: give only one"):
        store.sql("select 1; select 2")
    assert store.sql("select 1; select 2 as x", unsafe=True).to_pylist() == [{"x": 2}]


@pytest.mark.long
def test_a_store_of_nothing_has_the_views_too(tmp_path: Path) -> None:
    empty = new_store(tmp_path / "empty")
    for view in PLAIN_VIEWS:
        assert answers(empty, f"select count(*) n from {view.name}") == [[{"n": 0}]] * 2
    for view in VIEWS:
        assert empty.sql(f"from {view.name}").to_pylist() == []
