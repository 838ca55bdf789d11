"""SQL over a store's tables: read-only, without access to anything outside the store.

The connection lives in memory and sees the tables as views over files that were checked beforehand. Unless `unsafe` is
asked for, DuckDB may open these files, whatever else is in the folder of telemetry, and nothing else (no other file, no
network, no extension), the configuration is locked, and only queries are run: COPY, ATTACH, INSTALL, SET, PRAGMA and
the like are refused before anything executes.

DuckDB could also write to the files that it may read, and a statement of type SELECT can hold a COPY (`WITH a AS (COPY
... TO ...) SELECT ...`). So the statement's type is not enough: the syntax tree decides. Every query in it must be a
plain one, and no function in it may run SQL from a string, because the tree does not show such SQL.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

try:  # the package around it builds relations and expressions: 0.2 s of CPU, for what no query on the way to text needs
    import _duckdb as duckdb
except ImportError:  # a release of DuckDB has moved it
    import duckdb  # type: ignore[no-redef]

from ...errors import QueryError
from ..rows.arranging import KEY
from ..rows.footers import is_intact, stamp
from ..rows.soundness import State, known, remember
from ..schema import FORMAT, TABLES, VIEWS, Table, View, table
from .catalog import literal, pattern, quoted, select_list
from .older import as_sql
from .reading import EMPTY, Rows

if TYPE_CHECKING:
    import pyarrow as pa

# No quote and no comment may stand before what is explained: they could hide it.
_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?(\s*\([a-z_,\s]*\))?\s", re.IGNORECASE)
_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_LISTED = "whorl_files_"  # begins the variables that list files
_ROWS = "whorl_rows"  # the schema of rows that are in no file of their table
_ABOUT_TABLES = re.compile(r"show|describe|summarize|pragma|information_schema|duckdb_|pg_|sqlite_")
_FEW = 500  # up to so many files, DuckDB checks them sooner than pyarrow is loaded
_KINDS = 8  # up to this many sets of columns are read separately
_RUN_STRINGS = {"query", "json_execute_serialized_sql"}
_INTEGERS = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG", "HUGE")} | {"UINTEGER"}
_NUMBERS = _INTEGERS | {"INTEGER", "FLOAT", "DOUBLE"}
_PLAIN = _NUMBERS | {"BOOLEAN", "VARCHAR"}


@dataclass(frozen=True)
class Plain:
    """An answer of numbers, texts and truth values: its columns' names, which of them are numbers, and its rows."""

    names: list[str]
    numeric: list[bool]
    rows: list[tuple[Any, ...]]


Answer: TypeAlias = "pa.Table | Plain"


class Connection:
    """An in-memory DuckDB; `furnish` gives it a view per table over its `Rows`, and locks it down unless `unsafe`.

    Connecting takes longer than many queries, so the connection is kept. `serves` says whether it still has these
    files; `refresh` gives it the rows that are in no file.
    """

    def __init__(self, *, unsafe: bool = False) -> None:
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
        self.tables: frozenset[str] = frozenset()
        self._unsafe = unsafe
        self._shapes: dict[str, tuple[object, ...]] = {}
        self._given: dict[tuple[str, str], pa.Table] = {}
        self._passed: str | None = None  # the last query that was run: the same query is not checked again
        self._number = itertools.count()  # of the lists of files
        self._pool = ThreadPoolExecutor(1)
        self._connection = duckdb.connect(":memory:", config=config)

    def furnish(self, tables: Mapping[str, Rows]) -> None:
        """Make the views over files that `soundness` has looked at. Raises QueryError."""
        self.tables = frozenset(tables)
        self._shapes = {name: _shape(name, rows) for name, rows in tables.items()}
        try:
            self._furnish(tables)
        except duckdb.Error as error:
            self.close()
            raise QueryError(_sentence(error)) from error

    def look(self, name: str, paths: Sequence[Path]) -> None:
        """Note which files of a table are sound, all at once: for a few files this is quicker than loading pyarrow.

        Files that are not noted here are checked in `soundness`, which says what is wrong with them.
        """
        if len(paths) > _FEW:
            return
        spec, stamps = table(name), {}
        for path in paths:
            with contextlib.suppress(OSError):
                now = stamp(path)
                if is_intact(path):
                    stamps[str(path.absolute())] = path, now
        listed = f"[{', '.join(literal(Path(file)) for file in stamps)}]"
        if not stamps:
            return
        types = {column.name: column.type for column in spec.columns}
        try:
            said = "max(decode(value)) FILTER (key = 'whorl.{}'::BLOB)"
            formats = self._connection.execute(
                f"SELECT file_name, {said.format('table')}, {said.format('format')} "
                f"FROM parquet_kv_metadata({listed}) GROUP BY ALL"
            ).fetchall()
            shapes = dict(
                self._connection.execute(
                    f"SELECT file_name, list(name || ' ' || duckdb_type) FROM parquet_schema({listed}) "
                    "WHERE num_children IS NULL GROUP BY ALL"
                ).fetchall()
            )
        except duckdb.Error:
            return  # one of them is torn
        for file, belongs, version in formats:
            found = dict(text.rsplit(" ", 1) for text in shapes.get(file, ()))
            sound = belongs == name and (version or "").isdecimal() and int(version) <= FORMAT
            if sound and file in stamps and all(types.get(column, kind) == kind for column, kind in found.items()):
                remember(stamps[file][0], name, State(stamps[file][1], None, frozenset(found)))

    def close(self) -> None:
        self._connection.close()
        self._pool.shutdown()

    def serves(self, tables: Mapping[str, Rows]) -> bool:
        """Whether the views of these tables still fit these rows, apart from rows that are in no file."""
        return all(self._shapes.get(name) == _shape(name, rows) for name, rows in tables.items())

    def refresh(self, tables: Mapping[str, Rows]) -> None:
        """Replace the rows that are in no file of their table."""
        for name, rows in tables.items():
            for part, data in (("late", rows.late), ("live", rows.live)):
                if data is not None and data is not self._given.get((name, part)):
                    _know_arrow()
                    self._connection.register("given", data)
                    self._connection.execute(f"CREATE OR REPLACE TABLE {_ROWS}.{name}_{part} AS FROM given")
                    self._connection.unregister("given")
                    self._given[name, part] = data

    def _furnish(self, tables: Mapping[str, Rows]) -> None:
        connection = self._connection
        connection.execute("SET parquet_metadata_cache = true")
        connection.execute(f"CREATE SCHEMA {_ROWS}")
        self.refresh(tables)
        if not self._unsafe:
            allowed = _allowed(tables)
            for kind, paths in allowed.items():
                connection.execute(f"SET allowed_{kind} = [{', '.join(sorted(paths))}]")
            connection.execute("SET enable_external_access = false")
        for spec in TABLES:
            if spec.name in tables:
                rows_of = self._select(spec, tables[spec.name])
                connection.execute(f"CREATE VIEW {spec.name} AS {as_sql(spec, rows_of)}")
        for view in VIEWS:
            if tables.keys() >= _used(view):
                connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
        if not self._unsafe:
            connection.execute("SET lock_configuration = true")

    def _select(self, spec: Table, rows: Rows) -> str:
        """The rows of a table: those of its files that no late row replaces, the late rows, and the live rows."""
        every = select_list(spec)
        parts = []
        if rows.free:
            parts.append(self._files(spec, rows.free))
        if rows.late is not None:
            if rows.contested:
                same = " AND ".join(f"s.{name} IS NOT DISTINCT FROM l.{name}" for name in KEY)
                files = self._files(spec, rows.contested)
                parts.append(f"SELECT {every} FROM ({files}) s ANTI JOIN {_ROWS}.{spec.name}_late l ON {same}")
            parts.append(f"SELECT {every} FROM {_ROWS}.{spec.name}_late")
        if rows.live is not None:
            parts.append(f"SELECT {every} FROM {_ROWS}.{spec.name}_live")
        return " UNION ALL ".join(parts) or f"SELECT {select_list(spec, frozenset())} FROM range(0)"

    def _files(self, spec: Table, paths: Sequence[Path]) -> str:
        """The rows of some files. Those with the same columns are read together: DuckDB looks at the first only."""
        alike: dict[frozenset[str], list[Path]] = {}
        for path in paths:
            if path.name != EMPTY or len(paths) == 1:
                alike.setdefault(known(path, spec.name).columns, []).append(path)
        if len(alike) > _KINDS:
            alike = {frozenset[str]().union(*alike): list(paths)}
            return self._read(spec, *alike.popitem(), by_name=True)
        return " UNION ALL ".join(self._read(spec, present, group) for present, group in alike.items())

    def _read(self, spec: Table, present: frozenset[str], paths: Sequence[Path], *, by_name: bool = False) -> str:
        """Thousands of files are listed in a variable: DuckDB would parse and bind their names for every query."""
        listed = f"{_LISTED}{next(self._number)}"
        self._connection.execute(f"SET VARIABLE {listed} = $1", [[pattern(path) for path in _full(paths)]])
        how = f"union_by_name = {str(by_name).lower()}, hive_partitioning = false"
        return f"SELECT {select_list(spec, present)} FROM read_parquet(getvariable('{listed}'), {how})"

    def run(self, query: str, *, plain: bool = False) -> Answer:
        """The answer to `query` as an Arrow table; with `unsafe`, the answer to its last statement.

        With `plain`, an answer of numbers, texts and truth values is `Plain` instead.

        Raises QueryError for every error of DuckDB and, unless `unsafe`, for several statements and for a statement
        that is not a query.
        """
        passed = query == self._passed or self._unsafe
        answer, self._passed = _run(self._connection, self._pool, query, passed=passed, plain=plain), query
        return answer


def _shape(name: str, rows: Rows) -> tuple[object, ...]:
    files = tuple((path, known(path, name).stamp) for path in rows.free)
    return files, tuple(rows.contested), rows.late is None, rows.live is None


@functools.cache
def _used(view: View) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", view.sql)) & {spec.name for spec in TABLES}


def mentioned(query: str, *, unsafe: bool = False) -> list[str]:
    """The tables that a query may read. Listing the files of all tables would take longer than many queries."""
    text = query.lower()
    if unsafe or _ABOUT_TABLES.search(text):
        return [spec.name for spec in TABLES]
    through = {name for view in VIEWS if view.name in text for name in _used(view)}
    return [spec.name for spec in TABLES if spec.name in text or spec.name in through]


def _full(paths: Iterable[Path]) -> list[str]:
    """Files as DuckDB finds them: their folders without links and from the root on."""
    folders: dict[str, str] = {}
    found = []
    for path in paths:
        folder, slash, name = str(path).rpartition("/")
        known = folders.get(folder)
        if known is None:
            known = folders[folder] = str(Path(folder or slash or ".").resolve()).rstrip("/")
        found.append(f"{known}/{name}")
    return found


def _allowed(tables: Mapping[str, Rows]) -> dict[str, set[str]]:
    """What a query may open: files, and the folder of a table that has one for each day.

    For thousands of single files DuckDB takes a second.
    """
    folders, paths = set(), set()
    for name, rows in tables.items():
        if table(name).partitioned and rows.files:
            home = next(folder for folder in rows.files[0].parents if folder.name == name)
            folders.add(quoted(f"{home.resolve()}/"))
        else:  # DuckDB checks both the pattern and the file that it finds, so both spellings are allowed
            paths |= {quoted(one) for path in _full(rows.files) for one in (path, pattern(path))}
    return {"directories": folders, "paths": paths}


def _run(
    connection: duckdb.DuckDBPyConnection, pool: ThreadPoolExecutor, query: str, *, passed: bool, plain: bool
) -> Answer:
    try:
        query.encode()
        statements = connection.extract_statements(query)
        if not statements or "\0" in query:
            raise QueryError('there is no SQL statement to run: give one, for example "select count(*) from runs"')
        if not passed:
            if len(statements) > 1:
                raise QueryError(f"there are {len(statements)} statements: give only one (--unsafe allows several)")
            _refuse_unless_query(connection, statements[0])
        return _interruptible(connection, pool, lambda: _answer(connection, statements, plain=plain))
    except UnicodeEncodeError as error:
        raise QueryError("the query is not UTF-8 text") from error
    except RecursionError as error:
        raise QueryError("the query is nested too deeply") from error
    except (duckdb.Error, RuntimeError) as error:
        raise QueryError(_sentence(error)) from error


def _answer(connection: duckdb.DuckDBPyConnection, statements: Sequence[duckdb.Statement], *, plain: bool) -> Answer:
    for statement in statements[:-1]:
        connection.execute(statement).fetchall()  # DuckDB keeps a connection busy until all rows are fetched
    last = statements[-1]
    if plain and last.type == duckdb.StatementType.SELECT:
        connection.execute(last)
        kinds = [str(column[1]) for column in connection.description]
        if _PLAIN.issuperset(kinds):
            names = [column[0] for column in connection.description]
            return Plain(names, [kind in _NUMBERS for kind in kinds], connection.fetchall())
    _know_arrow()
    import pyarrow as pa

    try:
        if plain and last.type == duckdb.StatementType.SELECT:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # it makes a copy of the rows
                return connection.to_arrow_table()
        answer = connection.sql(last.query)
        return pa.table({}) if answer is None else answer.to_arrow_table()
    except pa.ArrowException as error:
        raise QueryError(_sentence(error)) from error


def _know_arrow() -> None:
    """Let connections take and give Arrow tables. The Python package around DuckDB adds that."""
    import_module("duckdb")


def _interruptible(
    connection: duckdb.DuckDBPyConnection, pool: ThreadPoolExecutor, work: Callable[[], Answer]
) -> Answer:
    """Run `work` in the thread of `pool`, so that Ctrl-C ends it.

    In the main thread, DuckDB looks for signals only between tasks, and one task may take minutes.
    """
    running = pool.submit(work)
    try:
        while not running.done():  # another thread may get the interrupt; it is seen when a wait ends
            wait([running], 0.5)
        return running.result()
    except KeyboardInterrupt:
        while not running.done():  # DuckDB forgets an interrupt that comes before the statement begins
            connection.interrupt()
            wait([running], 0.05)
        raise


def _refuse_unless_query(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    kind = _kind(statement)
    name = "a statement of this kind" if kind is None else str(kind).rpartition(".")[2]
    if kind == duckdb.StatementType.EXPLAIN:
        start = _EXPLAIN.match(statement.query)
        inner = duckdb.extract_statements(statement.query[start.end() :]) if start else []
        if len(inner) == 1 and _kind(inner[0]) != duckdb.StatementType.EXPLAIN:
            _refuse_unless_query(connection, inner[0])
            return
    elif kind == duckdb.StatementType.SELECT:
        found = _no_plain_query(connection, statement.query)
        if found is None:
            return
        name = found
    if name == "MULTI":
        raise QueryError("PIVOT needs its values listed: PIVOT ... ON column IN ('a', 'b') ...")
    raise QueryError(
        f"{name} is not run: `whorl sql` answers queries (SELECT and the like) and changes nothing; "
        "to run it all the same, give --unsafe"
    )


def _kind(statement: duckdb.Statement) -> duckdb.StatementType | None:
    """What kind of statement it is; None for kinds that DuckDB's Python package has no name for."""
    try:
        return statement.type
    except ValueError:
        return None


def _no_plain_query(connection: duckdb.DuckDBPyConnection, text: str) -> str | None:
    """What a SELECT statement holds besides plain queries; None if nothing."""
    ((answer,),) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [text]).fetchall()
    tree = json.loads(answer)
    if tree["error"]:
        return str(tree.get("error_message", "a statement that cannot be parsed"))
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
    """DuckDB's message; if whorl's own protection caused it, also what to do."""
    text = str(error).strip()
    if "disabled by configuration" in text or "configuration has been locked" in text:
        text += "\n`whorl sql` reads only the store; --unsafe lets a query reach other files and the network"
    if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
        names = ", ".join([*(view.name for view in VIEWS), *(spec.name for spec in TABLES)])
        text += f"\nThe tables are {names}; `whorl schema TABLE` explains one"
    return text
