"""SQL over a store's tables: read-only, and blind to everything outside the store.

The connection lives in memory and sees the tables as views over files that were checked beforehand. Unless
`unsafe` is asked for, DuckDB may open these files and nothing else (no other file, no network, no extension),
the configuration is locked, and only queries are run: COPY, ATTACH, INSTALL, SET, PRAGMA and the like are
refused before anything executes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from ..errors import QueryError
from .catalog import quoted, select_list
from .schema import TABLES, VIEWS

_EXPLAIN = re.compile(r"^\s*explain(\s+analyze)?(\s*\([^)]*\))?\s", re.IGNORECASE)


def connect(
    files: Mapping[str, Sequence[Path]],
    columns: Callable[[Path], set[str]],
    *,
    unsafe: bool = False,
) -> duckdb.DuckDBPyConnection:
    """An in-memory connection with a view per table over `files`; locked down unless `unsafe`.

    Every table must have at least one file; `columns` gives the names of the columns in a file.
    """
    config: dict[str, str | bool | int | float | list[str]] = {"preserve_insertion_order": True}
    if not unsafe:
        config |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    connection = duckdb.connect(":memory:", config=config)
    if not unsafe:
        allowed = ", ".join(quoted(str(path)) for paths in files.values() for path in paths)
        connection.execute(f"SET allowed_paths = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    for spec in TABLES:
        paths = files[spec.name]
        present = set().union(*(columns(path) for path in paths))
        listed = ", ".join(quoted(str(path)) for path in paths)
        connection.execute(
            f"CREATE VIEW {spec.name} AS SELECT {select_list(spec, present)} "
            f"FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
        )
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
    return connection


def run(connection: duckdb.DuckDBPyConnection, query: str, *, unsafe: bool = False) -> pa.Table:
    """The answer to the last statement of `query`, as an Arrow table.

    Raises QueryError for a statement that is not a query (unless `unsafe`) and for every error of DuckDB.
    """
    try:
        statements = duckdb.extract_statements(query)
        if not statements:
            raise QueryError('there is no SQL statement to run: give one, for example "select * from runs limit 5"')
        if not unsafe:
            for statement in statements:
                _refuse_unless_query(statement)
        for statement in statements[:-1]:
            connection.execute(statement)
        answer = connection.sql(statements[-1].query)
        return pa.table({}) if answer is None else answer.to_arrow_table()
    except duckdb.Error as error:
        raise QueryError(_sentence(error)) from error


def _refuse_unless_query(statement: duckdb.Statement) -> None:
    kind = statement.type
    if kind == duckdb.StatementType.EXPLAIN:
        inner = duckdb.extract_statements(_EXPLAIN.sub("", statement.query, count=1))
        if len(inner) == 1 and inner[0].type != duckdb.StatementType.EXPLAIN:
            _refuse_unless_query(inner[0])
            return
    elif kind == duckdb.StatementType.SELECT:
        return
    name = str(kind).rpartition(".")[2]
    if name == "MULTI":
        raise QueryError("PIVOT is run only with its values listed: PIVOT ... ON column IN ('a', 'b') ...")
    raise QueryError(
        f"{name} is not run: `whorl sql` answers queries (SELECT and the like) and changes nothing; "
        f"--unsafe lifts this for a person who means it"
    )


def _sentence(error: duckdb.Error) -> str:
    """DuckDB's message, with the way out where whorl's own protection caused it."""
    text = str(error).strip()
    if "disabled by configuration" in text or "configuration has been locked" in text:
        text += "\n`whorl sql` reads the store only; --unsafe lets a query reach other files and the network"
    return text
