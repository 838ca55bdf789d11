"""Which statements `whorl sql` runs: queries, and nothing that changes or reaches something else.

DuckDB could also write to the files that it may read, and a statement of type SELECT can hold a COPY (`WITH a AS (COPY
... TO ...) SELECT ...`). So the statement's type is not enough: the syntax tree decides. Every query in it must be a
plain one, and no function in it may run SQL from a string, because the tree does not show such SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

try:  # as in `query`
    import _duckdb as duckdb
except ImportError:
    import duckdb  # type: ignore[no-redef]

from ...errors import QueryError

Tree = dict[str, Any]
"""A statement as DuckDB's `json_serialize_sql` gives it."""

# No quote and no comment may stand before what is explained: they could hide it.
_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?(\s*\([a-z_,\s]*\))?\s", re.IGNORECASE)
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_RUN_STRINGS = {"query", "json_execute_serialized_sql"}


def checked(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement, but: str) -> Tree:
    """The syntax tree of a query; that of the query in an EXPLAIN is empty.

    Raises QueryError for anything else, whose sentence ends with `but`.
    """
    kind = _kind(statement)
    name = "a statement of this kind" if kind is None else str(kind).rpartition(".")[2]
    if kind == duckdb.StatementType.EXPLAIN:
        start = _EXPLAIN.match(statement.query)
        inner = duckdb.extract_statements(statement.query[start.end() :]) if start else []
        if len(inner) == 1 and _kind(inner[0]) != duckdb.StatementType.EXPLAIN:
            checked(connection, inner[0], but)
            return {}
    elif kind == duckdb.StatementType.SELECT:
        tree = _tree(connection, statement.query)
        found = str(tree.get("error_message", "a statement that cannot be parsed")) if tree["error"] else _refused(tree)
        if found is None:
            return tree
        name = found
    if name == "MULTI":
        raise QueryError("PIVOT needs its values listed: PIVOT ... ON column IN ('a', 'b') ...")
    raise QueryError(f"{name} is not run: only queries (SELECT and the like) are answered, and nothing is changed{but}")


def nodes(tree: Any) -> Iterator[Tree]:
    """Every object in a JSON document."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _kind(statement: duckdb.Statement) -> duckdb.StatementType | None:
    """What kind of statement it is; None for kinds that DuckDB's Python package has no name for."""
    try:
        return statement.type
    except ValueError:
        return None


def _tree(connection: duckdb.DuckDBPyConnection, text: str) -> Tree:
    ((answer,),) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchall()
    found: Tree = json.loads(answer)
    return found


def _refused(tree: Tree) -> str | None:
    """What a SELECT statement holds besides plain queries; None if nothing."""
    for node in nodes(tree):
        kind, function = node.get("type"), node.get("function_name")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERIES:
            return kind.removesuffix("_QUERY_NODE")
        if isinstance(function, str) and function.lower() in _RUN_STRINGS:
            return f"{function}()"
    return None
