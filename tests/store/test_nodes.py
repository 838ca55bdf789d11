"""The node side: a compute node has numpy, pyarrow and click, and neither duckdb nor polars."""

from __future__ import annotations

from pathlib import Path

from whorl.store import Store
from whorl.tests.stores import new_store, plain_client
from whorl.tests.without import NODE, run_without

APPEND = """
import sys
import pyarrow as pa
from whorl.store import Store

for root in sys.argv[1:]:
    store = Store.create(root)
    store.append({"events": pa.table({"gpu": ["a"], "kind": ["gap"]})}, "a")
    Store.open(root)
assert not {"duckdb", "polars"} & set(sys.modules)
"""


def test_a_node_without_duckdb_makes_and_appends_to_a_store(tmp_path: Path) -> None:
    made_there, made_here = tmp_path / "there", new_store(tmp_path / "here").root
    done = run_without(NODE, APPEND, made_there, made_here)
    assert done.returncode == 0, done.stderr
    assert not (made_there / "whorl.duckdb").exists()
    for root in (made_there, made_here):  # the first command where DuckDB is installed makes the views
        assert Store.open(root).sql("select gpu from events").to_pylist() == [{"gpu": "a"}]
        with plain_client(root) as client:
            assert client.execute("select gpu from events").fetchall() == [("a",)]
