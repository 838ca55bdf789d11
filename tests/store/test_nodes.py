"""The node side: a compute node has numpy, pyarrow and click, and neither duckdb nor polars."""

from __future__ import annotations

from pathlib import Path

import duckdb

from whorl.store import Store
from whorl.tests.without import NODE, run_without

APPEND = """
import sys
import pyarrow as pa
from whorl.store import Store

store = Store.create(sys.argv[1])
store.append({"events": pa.table({"gpu": [sys.argv[2]], "kind": ["gap"]})}, sys.argv[2])
Store.open(sys.argv[1])
assert not {"duckdb", "polars"} & set(sys.modules)
"""


def _on_a_node(store: Path, gpu: str) -> None:
    done = run_without(NODE, APPEND, store, gpu)
    assert done.returncode == 0, done.stderr


def test_a_node_without_duckdb_makes_and_appends_to_a_store(tmp_path: Path) -> None:
    root = tmp_path / "S"
    _on_a_node(root, "a")
    assert not (root / "whorl.duckdb").exists()
    # The first command where DuckDB is installed makes the views.
    assert Store.open(root).sql("select gpu from events").to_pylist() == [{"gpu": "a"}]
    _on_a_node(root, "b")
    with duckdb.connect(str(root / "whorl.duckdb"), read_only=True) as client:
        assert client.execute("select gpu from events order by 1").fetchall() == [("a",), ("b",)]
