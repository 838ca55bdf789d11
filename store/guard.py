"""Which statements `whorl sql` runs: queries, and nothing that changes or reaches something else.

DuckDB could also write to the files that it may read, and a statement of type SELECT can hold a COPY (`WITH a AS (COPY
... TO ...) SELECT ...`) or call a function that opens files, changes settings or runs SQL from a string. So the
statement's type is not enough: the syntax tree decides. Every query in it must be a plain one, and every function in a
FROM clause one of `_HARMLESS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import duckdb

from ..errors import QueryError

Tree = dict[str, Any]
"""A statement, or a part of one, as DuckDB's `json_serialize_sql` gives it."""

# No quote and no comment may stand before what is explained: they could hide it.
_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?(\s*\([a-z_,\s]*\))?\s", re.IGNORECASE)
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_HARMLESS = {
    "range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree", "histogram",
    "histogram_values", "summary", "duckdb_columns", "duckdb_functions", "duckdb_keywords", "duckdb_settings",
    "duckdb_tables", "duckdb_types", "duckdb_views", "pragma_table_info", "pragma_version", "test_all_types",
}  # fmt: skip


def checked(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement, but: str) -> list[Tree]:
    """Every part of the syntax tree of a query, or of the query that an EXPLAIN explains.

    Raises QueryError for anything else, whose sentence ends with `but`.
    """
    kind = _kind(statement)
    refused = "a statement of this kind" if kind is None else str(kind).rpartition(".")[2]
    if kind == duckdb.StatementType.EXPLAIN:
        start = _EXPLAIN.match(statement.query)
        explained = duckdb.extract_statements(statement.query[start.end() :]) if start else []
        if len(explained) == 1 and _kind(explained[0]) != duckdb.StatementType.EXPLAIN:
            return checked(connection, explained[0], but)
    elif kind == duckdb.StatementType.SELECT:
        answer = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [statement.query]).fetchall()[0][0]
        tree: Tree = json.loads(answer)
        parts = [*_parts(tree)]
        refused = str(tree.get("error_message", "a statement that cannot be parsed")) if tree["error"] else _harm(parts)
        if not refused:
            return parts
    if refused == "MULTI":
        raise QueryError("PIVOT needs its values listed: PIVOT ... ON column IN ('a', 'b') ...")
    if refused.endswith("()"):
        raise QueryError(f"{refused} is not run: a query reads only the store{but}")
    raise QueryError(
        f"{refused} is not run: only queries (SELECT and the like) are answered, and nothing is changed{but}"
    )


def _parts(tree: Tree) -> Iterator[Tree]:
    """Every object in a JSON document."""
    waiting: list[Any] = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _kind(statement: duckdb.Statement) -> duckdb.StatementType | None:
    """What kind of statement it is; None for kinds that DuckDB's Python package has no name for."""
    try:
        return statement.type
    except ValueError:
        return None


def _harm(parts: Iterable[Tree]) -> str:
    """What a SELECT statement holds besides plain queries: a kind of statement or a function; "" if nothing."""
    for node in parts:
        kind = node.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERIES:
            return kind.removesuffix("_QUERY_NODE")
        if kind == "TABLE_FUNCTION":
            name = str((node.get("function") or {}).get("function_name"))
            if name.lower() not in _HARMLESS:
                return f"{name}()"
    return ""
