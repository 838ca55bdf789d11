"""What a statement of SQL may do, and which rows of telemetry matter to it, both by its syntax tree.

Only queries are run, and nothing that changes or reaches something else. DuckDB could also write to the files that it
may read, and a statement of type SELECT can hold a COPY (`WITH a AS (COPY ... TO ...) SELECT ...`) or call a function
that opens files, changes settings or runs SQL from a string. So the statement's type is not enough: every query in the
tree must be a plain one, and every function in a FROM clause one of `_HARMLESS`.

The bounds of rows, from when to when and of which GPUs, let a question about one GPU's day read the files of that day,
however many days a store has. A condition counts for a table only where it certainly holds for every row of it that
matters: it stands in the WHERE, or in the ON of a join, of the SELECT whose FROM names the table, not under an OR, and
compares the table's own column with a constant. Whatever is not understood gives no bound.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import duckdb

from ..errors import QueryError
from .file_names import EVER, Bounds, gpu_hashes
from .instants import nanoseconds
from .schema import MINUTES, TELEMETRY
from .views import HISTORY, TELEMETRY_OF_JOB, VIEWS

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


# -- bounds ---------------------------------------------------------------------------------------------------

_SAME_COLUMNS = {TELEMETRY.name, MINUTES.name, HISTORY.name, TELEMETRY_OF_JOB.name}
"""Their `ts` and `gpu` are those of rows of telemetry, one by one."""
_READ_TELEMETRY = _SAME_COLUMNS | {view.name for view in VIEWS if TELEMETRY.name in view.sql}
# Whether an ON holds for the rows of the left and of the right table that matter. An ASOF join is none of these: which
# row it takes depends on the others.
_JOINS = {"INNER": (True, True), "LEFT": (False, True), "RIGHT": (True, False), "OUTER": (False, False)}
_AFTER = {"COMPARE_EQUAL", "COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"}
_BEFORE = {"COMPARE_EQUAL", "COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?Z?)?", re.ASCII)


def _both(first: Bounds, second: Bounds) -> Bounds:
    """What holds where both hold."""
    gpus = second.gpus if first.gpus is None else first.gpus if second.gpus is None else first.gpus & second.gpus
    return Bounds(max(first.first_us, second.first_us), min(first.last_us, second.last_us), gpus)


def _either(first: Bounds, second: Bounds) -> Bounds:
    """What holds where one of both holds."""
    gpus = None if first.gpus is None or second.gpus is None else first.gpus | second.gpus
    return Bounds(min(first.first_us, second.first_us), max(first.last_us, second.last_us), gpus)


def bounds(parts: Sequence[Tree]) -> Bounds:
    """The bounds of the rows of telemetry that matter to a query, by the parts of its syntax tree."""
    needed = [part for part in parts if part.get("type") == "BASE_TABLE" and _table(part) in _READ_TELEMETRY]
    if not needed:
        return EVER
    understood = {}
    for part in parts:
        if part.get("type") == "SELECT_NODE" and not part.get("sample"):  # which is drawn before the WHERE
            source = part["from_table"]
            for reference, conditions in _references(source, list(_conjuncts(part.get("where_clause")))):
                understood[id(reference)] = _of_reference(reference, conditions, alone=reference is source)
    return functools.reduce(_either, (understood.get(id(part), EVER) for part in needed))


def _table(reference: Tree) -> str:
    return str(reference.get("table_name")).lower()


def _conjuncts(condition: Tree | None) -> Iterator[Tree]:
    """The conditions that hold where a condition holds."""
    if condition and condition["type"] == "CONJUNCTION_AND":
        for child in condition["children"]:
            yield from _conjuncts(child)
    elif condition:
        yield condition


def _references(source: Tree, conditions: Sequence[Tree]) -> Iterator[tuple[Tree, Sequence[Tree]]]:
    """The tables of a FROM clause, and the conditions that their rows meet if they matter.

    Where an outer join fills columns with NULL, a comparison with them does not hold: so a condition on the joined
    rows is one on the table's own.
    """
    if source["type"] == "BASE_TABLE":
        yield source, conditions
    elif source["type"] == "JOIN" and source["ref_type"] in ("REGULAR", "CROSS") and source["join_type"] in _JOINS:
        joined = [*conditions, *_conjuncts(source.get("condition"))]
        for side, held in zip(("left", "right"), _JOINS[source["join_type"]], strict=True):
            yield from _references(source[side], joined if held else conditions)


def _of_reference(reference: Tree, conditions: Sequence[Tree], *, alone: bool) -> Bounds:
    """What conditions say of one table; `alone`: no other relation can have a column that they name."""
    table = _table(reference)
    if table not in _SAME_COLUMNS or reference.get("column_name_alias") or reference.get("sample"):
        return EVER
    name = str(reference.get("alias") or table).lower()

    def is_column(node: Tree, column: str) -> bool:
        path = [part.lower() for part in node.get("column_names", ())]
        return path == [name, column] or (alone and path == [column])

    total = EVER
    for condition in conditions:
        kind = condition["type"]
        if kind == "COMPARE_BETWEEN" and is_column(condition["input"], "ts"):
            total = _both(total, _span(_instant(condition["lower"]), _instant(condition["upper"])))
        elif kind == "COMPARE_IN" and is_column(condition["children"][0], "gpu"):
            total = _both(total, _of_gpus(condition["children"][1:]))
        elif kind in _AFTER | _BEFORE:
            compared, constant = condition["left"], condition["right"]
            after, before = kind in _AFTER, kind in _BEFORE
            if "column_names" in constant:
                compared, constant, after, before = constant, compared, before, after
            if is_column(compared, "ts"):
                at = _instant(constant)
                total = _both(total, _span(at if after else None, at if before else None))
            elif is_column(compared, "gpu") and after and before:
                total = _both(total, _of_gpus([constant]))
    return total


def _span(since_ns: int | None, until_ns: int | None) -> Bounds:
    """DuckDB may round a constant to a microsecond."""
    first_us = EVER.first_us if since_ns is None else since_ns // 1000 - 1
    return Bounds(first_us, EVER.last_us if until_ns is None else -(-until_ns // 1000) + 1)


def _of_gpus(constants: Sequence[Tree]) -> Bounds:
    texts = [_text(constant) for constant in constants]
    return EVER if None in texts else Bounds(gpus=gpu_hashes(texts))


def _text(constant: Tree) -> str | None:
    literal = constant.get("literal") or {}
    return str(literal["text"]) if literal.get("kind") == "STRING" else None


def _instant(constant: Tree) -> int | None:
    """The time that a text in quotes is, also after a cast, in ns since 1970; None for anything else."""
    kind = "TIMESTAMP"
    if constant["type"] == "OPERATOR_CAST":
        kind, constant = _type(constant), constant["child"]
    match = _TIME.fullmatch(_text(constant) or "")
    if match is None or kind not in ("TIMESTAMP", "TIMESTAMP_NS", "DATE") or (kind == "DATE" and match[2]):
        return None
    try:
        return nanoseconds(datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}")) + int(f"{match[3] or '':0<9}")
    except ValueError:  # there is no such day: DuckDB will say so
        return None


def _type(cast: Tree) -> str:
    kind = cast.get("type_expr") or {}
    return "" if kind.get("children") else str(kind.get("type_name")).upper()
