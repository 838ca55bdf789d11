"""A process that appends to a store: `appender.py STORE WHO N` appends N groups; run as a script by the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from whorl.store import Store


def group(name: str, rows: int = 3) -> dict[str, pa.Table]:
    """Rows of three tables that belong together; every value says which group it is of."""
    ids = [f"{name}-{i}" for i in range(rows)]
    return {
        "runs": pa.table({"run_id": ids, "cluster": ["c"] * rows, "import_id": [name] * rows}),
        "results": pa.table({"run_id": ids, "figure": ["time"] * rows, "value": [float(i) for i in range(rows)]}),
        "imports": pa.table({"import_id": [name], "rows": [rows]}),
    }


def _many(root: Path, who: str, number: int) -> None:
    store = Store.create(root)
    for i in range(number):
        store.append(group(f"{who}-{i}"), f"{who}-{i}")


if __name__ == "__main__":
    _many(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
