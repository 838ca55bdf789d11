"""SQL over a store's tables: read-only, and blind to everything outside the store.

The connection lives in memory and sees the tables as views over files that were checked beforehand. Unless
`unsafe` is asked for, DuckDB may open these files and nothing else (no other file, no network, no extension),
the configuration is locked, and only queries are run: COPY, ATTACH, INSTALL, SET, PRAGMA and the like are
refused before anything executes.

The files that DuckDB may read it could also write, and a statement of type SELECT can hold a COPY
(`WITH a AS (COPY ... TO ...) SELECT ...`). Therefore the syntax tree decides and not the statement's type: every
query in it must be a plain one, and no function in it may run SQL from a string, which the tree does not show.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa

from ..errors import QueryError
from .catalog import literal, quoted, select_list
from .schema import TABLES, VIEWS

# No quote and no comment may stand before what is explained: they could hide it.
_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?(\s*\([a-z_,\s]*\))?\s", re.IGNORECASE)
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_RUN_STRINGS = {"query", "json_execute_serialized_sql"}


def connect(
    files: Mapping[str, Sequence[Path]],
    columns: Callable[[Path, str], frozenset[str]],
    *,
    unsafe: bool = False,
) -> duckdb.DuckDBPyConnection:
    """An in-memory connection with a view per table over `files`; locked down unless `unsafe`.

    `columns` gives the names of the columns in a file of a table. A table without files has no rows.
    """
    # Sorting more than fits into memory uses this folder; the default, `.tmp` where the user happens to be,
    # would also be a folder that a query may read.
    spill = Path(tempfile.gettempdir(), f"whorl-sql-{uuid4().hex}")
    config: dict[str, str | bool | int | float | list[str]] = {
        "preserve_insertion_order": True,
        "python_enable_replacements": False,  # `select * from x` must not find a variable x
        "temp_directory": str(spill),
    }
    if not unsafe:
        config |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    connection = duckdb.connect(":memory:", config=config)
    try:
        _furnish(connection, files, columns, unsafe=unsafe)
    except duckdb.Error as error:
        connection.close()
        raise QueryError(_sentence(error)) from error
    return connection


def _furnish(
    connection: duckdb.DuckDBPyConnection,
    files: Mapping[str, Sequence[Path]],
    columns: Callable[[Path, str], frozenset[str]],
    *,
    unsafe: bool,
) -> None:
    if not unsafe:
        # The pattern and the file that it finds are checked, each by its own spelling.
        every = [path for paths in files.values() for path in paths]
        allowed = ", ".join(sorted({quoted(str(path)) for path in every} | {literal(path) for path in every}))
        connection.execute(f"SET allowed_paths = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    for spec in TABLES:
        paths = files[spec.name]
        present = frozenset[str]().union(*(columns(path, spec.name) for path in paths))
        listed = ", ".join(literal(path) for path in paths)
        source = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false)" if paths else "range(0)"
        connection.execute(f"CREATE VIEW {spec.name} AS SELECT {select_list(spec, present)} FROM {source}")
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")


def run(connection: duckdb.DuckDBPyConnection, query: str, *, unsafe: bool = False) -> pa.Table:
    """The answer to the last statement of `query`, as an Arrow table.

    Raises QueryError for a statement that is not a query (unless `unsafe`) and for every error of DuckDB.
    """
    try:
        query.encode()
        statements = duckdb.extract_statements(query)
        if not statements or "\0" in query:
            raise QueryError('there is no SQL statement to run: give one, for example "select count(*) from runs"')
        if not unsafe:
            for statement in statements:
                _refuse_unless_query(connection, statement)
        for statement in statements[:-1]:
            connection.execute(statement).fetchall()  # DuckDB keeps a connection busy until all rows are fetched
        answer = connection.sql(statements[-1].query)
        return pa.table({}) if answer is None else answer.to_arrow_table()
    except UnicodeEncodeError as error:
        raise QueryError("the query is not UTF-8 text") from error
    except RecursionError as error:
        raise QueryError("the query is nested too deeply") from error
    except (duckdb.Error, pa.ArrowException, RuntimeError) as error:
        raise QueryError(_sentence(error)) from error


def _refuse_unless_query(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    kind = statement.type
    name = str(kind).rpartition(".")[2]
    if kind == duckdb.StatementType.EXPLAIN:
        start = _EXPLAIN.match(statement.query)
        inner = duckdb.extract_statements(statement.query[start.end() :]) if start else []
        if len(inner) == 1 and inner[0].type != duckdb.StatementType.EXPLAIN:
            _refuse_unless_query(connection, inner[0])
            return
    elif kind == duckdb.StatementType.SELECT:
        found = _no_plain_query(connection, statement.query)
        if found is None:
            return
        name = found
    if name == "MULTI":
        raise QueryError("PIVOT is run only with its values listed: PIVOT ... ON column IN ('a', 'b') ...")
    raise QueryError(
        f"{name} is not run: `whorl sql` answers queries (SELECT and the like) and changes nothing; "
        f"--unsafe lifts this for a person who means it"
    )


def _no_plain_query(connection: duckdb.DuckDBPyConnection, text: str) -> str | None:
    """What stands in a SELECT statement besides plain queries; None where nothing does."""
    ((answer,),) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchall()
    tree = json.loads(answer)
    if tree["error"]:
        return str(tree.get("error_message", "what cannot be parsed"))
    for node in _nodes(tree):
        kind, function = node.get("type"), node.get("function_name")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERIES:
            return kind.removesuffix("_QUERY_NODE")
        if isinstance(function, str) and function.lower() in _RUN_STRINGS:
            return f"{function}()"
    return None


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON document."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def at_fault(error: QueryError) -> bool:
    """Whether the query itself is wrong, so that no damaged file can be behind the error."""
    wrong = duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.PermissionException
    return error.__cause__ is None or isinstance(error.__cause__, wrong)


def _sentence(error: Exception) -> str:
    """DuckDB's message, with the way out where whorl's own protection caused it."""
    text = str(error).strip()
    if "disabled by configuration" in text or "configuration has been locked" in text:
        text += "\n`whorl sql` reads the store only; --unsafe lets a query reach other files and the network"
    return text
