"""What a store answers, in a form that is the same for ever: counts, sums, and a digest of all rows, by each reader."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from whorl.store import Store

HERE = Path(__file__).parent
FROZEN, ANSWERS = HERE / "store4.tar.xz", HERE / "answers4.json"
_SHOWN = 2


def answers(store: Store) -> dict[str, Any]:
    """By table and reader, what the store answers of the tables and columns that every format has so far."""
    import pyarrow as pa

    from whorl.store.schema import TABLES

    told: dict[str, Any] = {}
    for spec in (spec for spec in TABLES if not spec.added):
        names = sorted({column.name for column in spec.columns if not column.added} - _RENAMED)
        rows = store.arrow(spec.name, names)
        parts = [part.arrow(names) for part in store.parts(spec.name)]
        of_parts = pa.concat_tables(parts) if parts else rows.slice(0, 0)
        columns = ", ".join(f'"{name}"' for name in names)
        queried = store.sql(f"select {columns} from {spec.name}")
        assert _digest(queried.to_pylist()) == _digest(rows.to_pylist()) == _digest(of_parts.to_pylist()), spec.name
        scanned = store.collect(store.scan(spec.name).select(names))
        numbers = [field.name for field in rows.schema if pa.types.is_primitive(field.type)]
        assert _sums(scanned.to_arrow().select(numbers)) == _sums(rows.select(numbers)), spec.name
        ordered = sorted(rows.to_pylist(), key=_text)
        told[spec.name] = {
            "rows": len(rows), "sums": _sums(rows), "digest": _digest(ordered),
            "first": [json.loads(_text(row)) for row in ordered[:_SHOWN]],
        }  # fmt: skip
    told["gpus_now"] = sorted(map(_text, store.sql("select cluster, gpu, name, node, slot from gpus_now").to_pylist()))
    told["skipped"] = sorted(path.name for path in store.skipped)
    return told


_RENAMED = {"read_us", "answer_us", "fans_rpm", "vbios", "firmware"} | {
    f"{name}_{part}" for name in ("read_us", "answer_us", "fans_rpm") for part in ("min", "mean", "max")
}
"""Columns that the made format of these tests names otherwise."""


def _text(row: dict[str, Any]) -> str:
    from whorl.store.vocabulary import CONDITIONS

    added = {condition.name for condition in CONDITIONS if condition.added}
    if conditions := row.get("conditions"):
        row = row | {"conditions": {name: value for name, value in conditions.items() if name not in added}}
    return json.dumps(row, sort_keys=True, default=str)


def _digest(rows: list[dict[str, Any]]) -> str:
    return hashlib.sha256("\n".join(sorted(map(_text, rows))).encode()).hexdigest()


def _sums(rows: pa.Table) -> dict[str, float]:
    """Of each column of numbers the sum; of times, that of their microseconds."""
    import pyarrow as pa

    sums = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            sums[name] = math.fsum(value for value in column.to_pylist() if value is not None)
    return sums
