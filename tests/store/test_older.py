"""A store that an older whorl wrote: sentences where codes stand now, read as codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whorl.analysis import measurements
from whorl.analysis.placement.reading import read as readings_of
from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts import Kind, judged
from whorl.probes.recording import past_of
from whorl.store import Store
from whorl.store.conditions import read
from whorl.store.schema import arrow_schema
from whorl.tests.stores import new_store

# run, ended_by, status as it was written -> status and sentence as they are read
RUNS = {
    "good": ("precise", "ok", ("ok", None)),
    "imported": (None, "ok", ("ok", None)),
    "unknown": (None, None, (None, None)),
    "wrong": (
        "precise",
        "3 of 9 elements of the result are wrong",
        ("wrong_result", "3 of 9 elements of the result are wrong"),
    ),
    "fell": (
        "failed",
        "GPU-fell has fallen off the bus (XID 79)",
        ("failed", "GPU-fell has fallen off the bus (XID 79)"),
    ),
    "simulated": (None, "the GPU was lost", ("failed", "the GPU was lost")),
}
EVENTS = [
    ("xid", "XID 79: the GPU has fallen off the bus", 79, None),
    ("xid", "something else", None, None),
    ("driver_reloaded", "the driver was reloaded, version 560.35.03", None, "560.35.03"),
    ("driver_reloaded", "the driver was reloaded, version unknown", None, None),
    ("lost", "the GPU does not answer any more, version 3", None, None),
]  # fmt: skip
NEW = {
    "runs": {"status_detail"},
    "events": {"workload", "metric", "quality", "code", "before", "value", "n", "duration_ns", "version"},
}


def _write(root: Path, table: str, columns: dict[str, list[Any]]) -> None:
    """A file as the older whorl wrote it: without the columns that are new."""
    whole = arrow_schema(table)
    n = len(next(iter(columns.values())))
    fields = [field for field in whole if field.name not in NEW.get(table, set())]
    data = [pa.array(columns.get(field.name, [None] * n), field.type) for field in fields]
    pq.write_table(pa.table(data, schema=pa.schema(fields, whole.metadata)), root / table / "older.parquet")


@pytest.fixture
def older(tmp_path: Path) -> Store:
    store = new_store(tmp_path / "s")
    clocks = ["free", "not locked", "locked at 1200 MHz", "free", "free", "free"]
    n = len(RUNS)
    _write(store.root, "runs", {
        "run_id": list(RUNS), "cluster": ["c"] * n, "campaign": ["k"] * n, "workload": ["w"] * n,
        "gpu": [f"GPU-{name}" for name in RUNS], "began": list(range(1, n + 1)), "ended": list(range(11, n + 11)),
        "ended_by": [ended_by for ended_by, _, _ in RUNS.values()], "probe_version": ["1"] * n,
        "status": [status for _, status, _ in RUNS.values()],
        "conditions": [json.dumps({"clock": clock, "simulated": clock == "not locked"}) for clock in clocks],
    })  # fmt: skip
    _write(store.root, "results", {
        "run_id": ["good", "imported", "unknown", "wrong"], "cluster": ["c"] * 4, "workload": ["w"] * 4,
        "gpu": ["GPU-good", "GPU-imported", "GPU-unknown", "GPU-wrong"], "repeat": [0] * 4, "figure": ["time"] * 4,
        "unit": ["ms"] * 4, "value": [1.0, 1.0, 1.0, 1.0],
    })  # fmt: skip
    _write(store.root, "events", {
        "ts": list(range(1, len(EVENTS) + 1)), "cluster": ["c"] * len(EVENTS), "gpu": ["GPU-fell"] * len(EVENTS),
        "node": ["n"] * len(EVENTS), "kind": [kind for kind, *_ in EVENTS], "detail": [said for _, said, *_ in EVENTS],
    })  # fmt: skip
    return Store.open(store.root)


def _rows(store: Store, way: str, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    if way == "sql":
        found = store.sql(f"select {', '.join(columns)} from {table}")
    elif way == "arrow":
        found = store.arrow(table, columns)
    elif way == "client":
        import duckdb

        with duckdb.connect(str(store.root / "whorl.duckdb"), read_only=True) as client:
            return client.sql(f"select {', '.join(columns)} from {table}").fetchall()
    else:
        return store.collect(store.scan(table).select(columns)).rows()
    return [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize("way", ["sql", "client", "arrow", "scan"])
def test_a_sentence_in_status_reads_as_a_code_with_the_sentence_beside_it(older: Store, way: str) -> None:
    found = {run: rest for run, *rest in _rows(older, way, "runs", ["run_id", "status", "status_detail"])}
    assert found == {run: list(expected) for run, (_, _, expected) in RUNS.items()}


@pytest.mark.parametrize("way", ["sql", "client", "arrow", "scan"])
def test_numbers_and_versions_are_read_out_of_the_sentences_of_older_events(older: Store, way: str) -> None:
    assert set(_rows(older, way, "events", ["kind", "detail", "code", "version"])) == set(EVENTS)


@pytest.mark.parametrize("way", ["sql", "arrow", "scan"])
def test_a_column_may_be_read_without_those_that_it_is_made_of(older: Store, way: str) -> None:
    assert sorted(_rows(older, way, "runs", ["status"]), key=str) == sorted(
        [(expected[0],) for _, _, expected in RUNS.values()], key=str
    )


def test_analysis_takes_older_runs_as_it_did(older: Store) -> None:
    campaign = probed(older)
    assert set(campaign.sound["gpu"]) == {"GPU-good", "GPU-imported", "GPU-unknown"}
    kinds = {one.name: one.kind for one in judged(campaign).rows if one.name != "GPU-wrong"}
    assert kinds == {"GPU-fell": Kind.LOST, "GPU-simulated": Kind.FAILED}
    (place,) = [one for gpu, one in readings_of(older, [], "c").places.items() if gpu == "GPU-imported"]
    assert place.simulated


def test_older_spellings_of_a_clock_are_read(older: Store) -> None:
    assert read('{"clock": "not locked"}')["clock"] == "free"
    assert read('{"clock": "locked at 1005.5 MHz"}') == {"clock": "locked", "locked_clock_mhz": 1005.5}
    assert read('{"clock": null}') == {"clock": None}
    assert read("[1]") == read(None) == read("{") == {}
    assert set(measurements(older)["workload"]) == {"w [clock not locked]", "w [locked at 1200 MHz]"}
    stored = past_of(older, "c", [f"GPU-{name}" for name in RUNS]).runs_of("k")
    known = {gpu: said[0].get("clock") for (gpu, _), said in stored.items()}
    assert known["GPU-imported"] == "free"
    assert known["GPU-unknown"] == "locked"
