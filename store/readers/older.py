"""Read rows that an older whorl wrote as rows of this version. `Column.reads` says how, once, in SQL.

DuckDB and Polars both run this SQL. The stored files do not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

from ..schema import Table, arrow_schema

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


def as_sql(spec: Table, rows: str) -> str:
    """A query for the rows of a table, made from a query for the rows as they were stored."""
    if not spec.reads:
        return rows
    replaced = ", ".join(f'{sql} AS "{name}"' for name, sql in spec.reads.items())
    return f"SELECT * REPLACE ({replaced}) FROM ({rows})"


def as_frame(spec: Table, rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of a table, made from the rows as they were stored."""
    return rows.with_columns(**_expressions(spec)) if spec.reads else rows


def needed(spec: Table, columns: Sequence[str]) -> list[str]:
    """The columns that `as_arrow` needs to give `columns`."""
    converted = spec.reads.keys() & set(columns)
    if not converted or not _has_polars():
        return list(columns)
    more = {name for column, one in _expressions(spec).items() if column in converted for name in one.meta.root_names()}
    return [*columns, *sorted(more - set(columns))]


def as_arrow(spec: Table, rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """`columns` of a table, from its rows with the columns that `needed` names.

    Without Polars (a node that only measures has none) they are as they were stored.
    """
    converted = spec.reads.keys() & set(columns)
    if not converted or not _has_polars():
        return rows.select(columns)
    import polars as pl
    import pyarrow as pa

    schema = arrow_schema(spec.name)
    read = [one for name, one in _expressions(spec).items() if name in converted]
    frame = cast("pl.DataFrame", pl.from_arrow(rows)).with_columns(read).select(columns)
    kept = pa.schema([schema.field(name) for name in columns], rows.schema.metadata)
    return frame.to_arrow().cast(kept)


def _expressions(spec: Table) -> dict[str, pl.Expr]:
    import polars as pl

    return {name: pl.sql_expr(sql).alias(name) for name, sql in spec.reads.items()}


def _has_polars() -> bool:
    return find_spec("polars") is not None
