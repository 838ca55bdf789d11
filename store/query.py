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
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa

from ..errors import QueryError
from .arranging import KEY
from .catalog import literal, quoted, select_list
from .reading import EMPTY, Rows
from .schema import TABLES, VIEWS, Table, View
from .soundness import stamp

# No quote and no comment may stand before what is explained: they could hide it.
_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?(\s*\([a-z_,\s]*\))?\s", re.IGNORECASE)
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_ROWS = "whorl_rows"  # the schema of rows that are in no file of their table
_ABOUT_TABLES = re.compile(r"show|describe|summarize|pragma|information_schema|duckdb_|pg_|sqlite_")
_KINDS = 8  # so many sets of columns are read apart
_RUN_STRINGS = {"query", "json_execute_serialized_sql"}


class Connection:
    """An in-memory DuckDB with a view per table over its `Rows`; locked down unless `unsafe`.

    Connecting takes longer than many a query, so it is kept: `serves` says whether it still has these files, and
    `refresh` gives it the rows that are in no file.
    """

    def __init__(
        self, tables: Mapping[str, Rows], columns: Callable[[Path, str], frozenset[str]], *, unsafe: bool = False
    ) -> None:
        """`columns` gives the names of the columns in a file of a table. There is no view of a table not given."""
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
        self.tables = frozenset(tables)
        self._unsafe = unsafe
        self._shapes = {name: _shape(rows) for name, rows in tables.items()}
        self._given: dict[tuple[str, str], pa.Table] = {}
        self._connection = duckdb.connect(":memory:", config=config)
        try:
            self._furnish(tables, columns)
        except duckdb.Error as error:
            self.close()
            raise QueryError(_sentence(error)) from error

    def close(self) -> None:
        self._connection.close()

    def serves(self, tables: Mapping[str, Rows]) -> bool:
        """Whether the views of these tables are those of these rows, but for what is in no file."""
        return all(self._shapes.get(name) == _shape(rows) for name, rows in tables.items())

    def refresh(self, tables: Mapping[str, Rows]) -> None:
        """Replace the rows that are in no file of their table."""
        for name, rows in tables.items():
            for part, data in (("late", rows.late), ("live", rows.live)):
                if data is not None and data is not self._given.get((name, part)):
                    self._connection.register("given", data)
                    self._connection.execute(f"CREATE OR REPLACE TABLE {_ROWS}.{name}_{part} AS FROM given")
                    self._connection.unregister("given")
                    self._given[name, part] = data

    def _furnish(self, tables: Mapping[str, Rows], columns: Callable[[Path, str], frozenset[str]]) -> None:
        connection = self._connection
        found = {
            name: replace(rows, free=_resolved(rows.free), contested=_resolved(rows.contested))
            for name, rows in tables.items()
        }
        connection.execute(f"CREATE SCHEMA {_ROWS}")
        self.refresh(tables)
        if not self._unsafe:
            # The pattern and the file that it finds are checked, each by its own spelling.
            every = [path for rows in found.values() for path in rows.files]
            allowed = ", ".join(sorted({quoted(str(path)) for path in every} | {literal(path) for path in every}))
            connection.execute(f"SET allowed_paths = [{allowed}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
        for spec in TABLES:
            if spec.name in found:
                connection.execute(f"CREATE VIEW {spec.name} AS {_select(spec, found[spec.name], columns)}")
        for view in VIEWS:
            if found.keys() >= _used(view):
                connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")

    def run(self, query: str) -> pa.Table:
        """The answer to `query`, as an Arrow table; with `unsafe`, that to the last of its statements.

        Raises QueryError for several statements and for one that is not a query (unless `unsafe`), and for every
        error of DuckDB.
        """
        return _run(self._connection, query, unsafe=self._unsafe)


def _shape(rows: Rows) -> tuple[object, ...]:
    files = tuple((path, stamp(path)) for path in rows.free)
    return files, tuple(rows.contested), rows.late is None, rows.live is None


def _used(view: View) -> set[str]:
    return {spec.name for spec in TABLES if re.search(rf"\b{spec.name}\b", view.sql)}


def mentioned(query: str, *, unsafe: bool = False) -> list[str]:
    """The tables that a query may read: listing the files of all takes longer than many a query."""
    text = query.lower()
    if unsafe or _ABOUT_TABLES.search(text):
        return [spec.name for spec in TABLES]
    through = {name for view in VIEWS if view.name in text for name in _used(view)}
    return [spec.name for spec in TABLES if spec.name in text or spec.name in through]


def _resolved(paths: Sequence[Path]) -> list[Path]:
    return [path.resolve() for path in paths]


def _select(spec: Table, rows: Rows, columns: Callable[[Path, str], frozenset[str]]) -> str:
    """The rows of a table: its files, less those that late rows replace, with the late and the live ones."""
    every = select_list(spec)
    parts = []
    if rows.free:
        parts.append(_files(spec, rows.free, columns))
    if rows.late is not None:
        if rows.contested:
            same = " AND ".join(f"s.{name} IS NOT DISTINCT FROM l.{name}" for name in KEY)
            files = _files(spec, rows.contested, columns)
            parts.append(f"SELECT {every} FROM ({files}) s ANTI JOIN {_ROWS}.{spec.name}_late l ON {same}")
        parts.append(f"SELECT {every} FROM {_ROWS}.{spec.name}_late")
    if rows.live is not None:
        parts.append(f"SELECT {every} FROM {_ROWS}.{spec.name}_live")
    return " UNION ALL ".join(parts) or f"SELECT {select_list(spec, frozenset())} FROM range(0)"


def _files(spec: Table, paths: Sequence[Path], columns: Callable[[Path, str], frozenset[str]]) -> str:
    """The rows of some files. Those with the same columns are read together: DuckDB then looks at the first only."""
    alike: dict[frozenset[str], list[Path]] = {}
    for path in paths:
        if path.name != EMPTY or len(paths) == 1:
            alike.setdefault(columns(path, spec.name), []).append(path)
    if len(alike) > _KINDS:
        alike = {frozenset[str]().union(*alike): list(paths)}
        return _read(spec, *alike.popitem(), by_name=True)
    return " UNION ALL ".join(_read(spec, present, group) for present, group in alike.items())


def _read(spec: Table, present: frozenset[str], paths: Sequence[Path], *, by_name: bool = False) -> str:
    listed = ", ".join(literal(path) for path in paths)
    source = f"read_parquet([{listed}], union_by_name = {str(by_name).lower()}, hive_partitioning = false)"
    return f"SELECT {select_list(spec, present)} FROM {source}"


def _run(connection: duckdb.DuckDBPyConnection, query: str, *, unsafe: bool) -> pa.Table:
    try:
        query.encode()
        statements = duckdb.extract_statements(query)
        if not statements or "\0" in query:
            raise QueryError('there is no SQL statement to run: give one, for example "select count(*) from runs"')
        if not unsafe:
            if len(statements) > 1:
                raise QueryError(
                    f"there are {len(statements)} statements: give one (--unsafe runs several and answers the last)"
                )
            _refuse_unless_query(connection, statements[0])
        return _interruptible(connection, lambda: _answer(connection, statements))
    except UnicodeEncodeError as error:
        raise QueryError("the query is not UTF-8 text") from error
    except RecursionError as error:
        raise QueryError("the query is nested too deeply") from error
    except (duckdb.Error, pa.ArrowException, RuntimeError) as error:
        raise QueryError(_sentence(error)) from error


def _answer(connection: duckdb.DuckDBPyConnection, statements: Sequence[duckdb.Statement]) -> pa.Table:
    for statement in statements[:-1]:
        connection.execute(statement).fetchall()  # DuckDB keeps a connection busy until all rows are fetched
    answer = connection.sql(statements[-1].query)
    return pa.table({}) if answer is None else answer.to_arrow_table()


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], pa.Table]) -> pa.Table:
    """Run `work` in a thread, so that Ctrl-C ends it: DuckDB in the main thread looks for signals between tasks only,
    and one task may take minutes."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        try:
            while not running.done():  # an interrupt that another thread was given is seen at the end of a wait
                wait([running], 0.5)
            return running.result()
        except KeyboardInterrupt:
            while not running.done():  # an interrupt before the statement begins is forgotten by DuckDB
                connection.interrupt()
                wait([running], 0.05)
            raise


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
    if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
        names = ", ".join([*(view.name for view in VIEWS), *(spec.name for spec in TABLES)])
        text += f"\nThe tables are {names}; `whorl schema TABLE` explains one"
    return text
