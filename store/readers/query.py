"""SQL over a store's tables: read-only, without access to anything outside the store.

The connection lives in memory and sees the tables as views over files that were checked beforehand. Unless `unsafe` is
asked for, DuckDB may open these files, whatever else is in the folder of telemetry, and nothing else (no other file, no
network, no extension), the configuration is locked, and only queries are run: COPY, ATTACH, INSTALL, SET, PRAGMA and
the like are refused before anything executes (see `guard`).
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import json
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import uuid4

try:  # the package around it builds relations and expressions: 0.2 s of CPU, for what no query on the way to text needs
    import _duckdb as duckdb
except ImportError:  # a release of DuckDB has moved it
    import duckdb  # type: ignore[no-redef]

from ...errors import QueryError
from ..columns import View
from ..rows.arranging import KEY
from ..rows.footers import is_intact, stamp
from ..rows.soundness import State, known, remember
from ..schema import TABLES, Table, other_format, table
from ..views import VIEWS
from . import asked, guard
from .catalog import literal, pattern, quoted, select_list
from .reading import EMPTY, FEW, Rows, holding, part_of

if TYPE_CHECKING:
    import pyarrow as pa

_LISTED = "whorl_files_"  # begins the variables that list files
_ROWS = "whorl_rows"  # the schema of rows that are in no file of their table
_ABOUT_TABLES = re.compile(r"show|describe|summarize|pragma|information_schema|duckdb_|pg_|sqlite_")
_LONGEST = 400  # of a sentence about an error, in characters
_PART = 10_000  # rows that are read at once of an answer
_KINDS = 8  # up to this many sets of columns are read separately
_MOST = 256  # queries, and views for them, that are remembered
_PATIENCE_S = 0.5
_INTEGERS = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG", "HUGE")} | {"UINTEGER"}
_NUMBERS = _INTEGERS | {"INTEGER", "FLOAT", "DOUBLE"}
_PLAIN = _NUMBERS | {"BOOLEAN", "VARCHAR"}


_PASSED: dict[asked.Pieces, asked.Asked] = {}
"""Queries that were run, by any connection: their like is not checked again."""
TOO_LARGE = "the query needs more memory than it may use: ask for fewer rows or columns at once"


@dataclass(frozen=True)
class Plain:
    """An answer of numbers, texts and truth values: its columns' names, which of them are numbers, and its rows."""

    names: list[str]
    numeric: list[bool]
    rows: list[tuple[Any, ...]]


Answer: TypeAlias = "pa.Table | Plain"
T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """What queries may use of this machine: of somebody who asks from elsewhere, and must not use up this machine.

    DuckDB keeps to `memory_mb` where it holds rows, and not where a function makes a huge text: `store/console` has a
    limit that nothing passes. Nothing is written to a disk: what does not fit fails.
    """

    memory_mb: int
    threads: int


class Stream:
    """An answer that is not computed before it is read."""

    def __init__(self, relation: Any) -> None:
        self._relation = relation
        self.types = [str(kind) for kind in relation.types]
        """DuckDB's name of the type of each column."""

    def parts(self) -> pa.RecordBatchReader:
        """Its rows."""
        return self._relation.to_arrow_reader(_PART)

    def count(self) -> int:
        """How many rows it has, counted without making them where that is possible."""
        return int(self._relation.aggregate("count(*)").fetchall()[0][0])


class Connection:
    """An in-memory DuckDB; `furnish` gives it a view per table over its `Rows`, and locks it down unless `unsafe`.

    Connecting takes longer than many queries, so the connection is kept. `serves` says whether it still has these
    files; `refresh` gives it the rows that are in no file.
    """

    def __init__(self, *, unsafe: bool = False, share: Share | None = None) -> None:
        # Sorting more than fits into memory uses this folder; the default, `.tmp` where the user happens to be,
        # would also be a folder that a query may read.
        spill = ""
        with contextlib.suppress(FileNotFoundError):  # no folder has room: only a query that needs it fails
            spill = str(Path(tempfile.gettempdir(), f"whorl-sql-{uuid4().hex}"))
        config: dict[str, str | bool | int | float | list[str]] = {
            "preserve_insertion_order": True,
            "python_enable_replacements": False,  # `select * from x` must not find a variable x
            "temp_directory": spill,
        }
        if not unsafe:
            config |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        if share is not None:
            config |= {"memory_limit": f"{share.memory_mb}MB", "threads": share.threads, "temp_directory": ""}
            config |= {"errors_as_json": True}
        self.tables: frozenset[str] = frozenset()
        self._unsafe, self._limited = unsafe, share is not None
        self._shapes: dict[str, tuple[object, ...]] = {}
        self._given: dict[tuple[str, str], pa.Table] = {}
        self._tables: dict[str, Rows] = {}
        self._sources: dict[tuple[object, ...], str] = {}  # views that stand for a table in a query
        self._views: set[str] = set()  # those of `VIEWS` that were made
        self._number, self._lists = itertools.count(), 0  # of the lists of files; how many of them views have
        self._pool = ThreadPoolExecutor(1)
        self._connection = duckdb.connect(":memory:", config=config)
        if share is not None:
            self._connection.execute("SET enable_progress_bar = false")  # it would be drawn in the log of a server

    def furnish(self, tables: Mapping[str, Rows]) -> None:
        """Make the views over files that `soundness` has looked at. Raises QueryError."""
        self.tables = frozenset(tables)
        self._shapes = {name: _shape(name, rows) for name, rows in tables.items()}
        self._tables = dict(tables)
        try:
            self._furnish(tables)
        except duckdb.Error as error:
            self.close()
            raise QueryError(_sentence(error)) from error

    def look(self, name: str, paths: Sequence[Path]) -> None:
        """Note which files of a table are sound, all at once: for a few files this is quicker than loading pyarrow.

        Files that are not noted here are checked in `soundness`, which says what is wrong with them. Where pyarrow is
        loaded already, that is quicker.
        """
        if len(paths) > FEW or "pyarrow._parquet" in sys.modules:
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
            sound = belongs == name and other_format(version or "") is None
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
                connection.execute(f"CREATE VIEW {spec.name} AS {self._select(spec, tables[spec.name])}")
        self._lists = next(self._number)
        if not self._unsafe:
            connection.execute("SET lock_configuration = true")

    def _select(self, spec: Table, rows: Rows, names: frozenset[str] | None = None) -> str:
        """The rows of a table, or some columns of them: those of its files that no late row replaces, the late rows,
        and the live rows."""
        every = select_list(spec, names=names)
        parts = []
        if rows.free:
            parts.append(self._files(spec, rows.free, names))
        if rows.late is not None:
            if rows.contested:
                same = " AND ".join(f"s.{name} IS NOT DISTINCT FROM l.{name}" for name in KEY)
                files = self._files(spec, rows.contested, None if names is None else names.union(KEY))
                parts.append(f"SELECT {every} FROM ({files}) s ANTI JOIN {_ROWS}.{spec.name}_late l ON {same}")
            parts.append(f"SELECT {every} FROM {_ROWS}.{spec.name}_late")
        if rows.live is not None:
            parts.append(f"SELECT {every} FROM {_ROWS}.{spec.name}_live")
        return " UNION ALL ".join(parts) or f"SELECT {select_list(spec, frozenset(), names)} FROM range(0)"

    def _files(self, spec: Table, paths: Sequence[Path], names: frozenset[str] | None = None) -> str:
        """The rows of some files. Those with the same columns are read together: DuckDB looks at the first only."""
        alike: dict[frozenset[str], list[Path]] = {}
        for path in paths:
            if path.name != EMPTY or len(paths) == 1:
                present = known(path, spec.name).columns
                alike.setdefault(present if names is None else present & names, []).append(path)
        if len(alike) > _KINDS:
            alike = {frozenset[str]().union(*alike): list(paths)}
            return self._read(spec, *alike.popitem(), names, by_name=True)
        return " UNION ALL ".join(self._read(spec, present, group, names) for present, group in alike.items())

    def _read(
        self, spec: Table, present: frozenset[str], paths: Sequence[Path], names: frozenset[str] | None, *,
        by_name: bool = False,
    ) -> str:  # fmt: skip
        """Thousands of files are listed in a variable: DuckDB would parse and bind their names for every query."""
        listed = f"{_LISTED}{next(self._number)}"
        self._connection.execute(f"SET VARIABLE {listed} = $1", [[pattern(path) for path in _full(paths)]])
        how = f"union_by_name = {str(by_name).lower()}, hive_partitioning = false"
        return f"SELECT {select_list(spec, present, names)} FROM read_parquet(getvariable('{listed}'), {how})"

    def run(self, query: str, *, plain: bool = False) -> Answer:
        """The answer to `query` as an Arrow table; with `unsafe`, the answer to its last statement.

        With `plain`, an answer of numbers, texts and truth values is `Plain` instead.

        Raises QueryError for every error of DuckDB and, unless `unsafe`, for several statements and for a statement
        that is not a query.
        """
        with self._told(query):
            text = query.encode()
            pieces, constants = asked.pieces_of(text)
            again = pieces in _PASSED
            statements = self._checked(query)
            before = None if plain or self._unsafe else _PASSED.get(pieces)
            if before is not None and (again or before.of_gpus):
                with contextlib.suppress(duckdb.Error):  # for an error that shows the query as it was written
                    short = self._shortened(before, list(pieces), constants)
                    return self._interruptible(lambda: _arrow(self._connection, short))
            return self._interruptible(lambda: _answer(self._connection, statements, plain=plain))

    def stream(self, query: str, read: Callable[[Stream], T]) -> T:
        """What `read` makes of the answer to a query, which it reads part by part. Raises as `run`."""
        with self._told(query):
            (statement,) = self._checked(query)
            _know_arrow()
            return read(Stream(self._bound(statement.query)))

    def _bound(self, text: str) -> Any:
        try:
            return self._connection.sql(text)
        except duckdb.Error:
            self._connection.execute(text)  # fails in the same way, and only this says where in the text
            raise

    def _checked(self, query: str) -> list[duckdb.Statement]:
        """The statements of a query that may run. Queries that differ in texts only are not looked through again."""
        text = query.encode()
        pieces, _ = asked.pieces_of(text)
        self._make_views(query)
        statements = self._connection.extract_statements(query)
        if not statements or "\0" in query:
            raise QueryError('there is no SQL statement to run: give one, for example "select count(*) from runs"')
        if not (self._unsafe or pieces in _PASSED):
            if len(statements) > 1:
                raise QueryError(f"there are {len(statements)} statements: give only one{self._but(' ({} several)')}")
            tree = guard.checked(self._connection, statements[0], self._but("; {} it all the same"))
            if len(_PASSED) >= _MOST:
                _PASSED.clear()
            _PASSED[pieces] = asked.asked(tree, text, statements[0].query.encode())
        return statements

    def _make_views(self, query: str) -> None:
        """Make the views of `VIEWS` that a query may name: to make all of them takes longer than many queries."""
        text = query.lower()
        every = self._unsafe or _ABOUT_TABLES.search(text)
        for view in VIEWS:
            if view.name not in self._views and (every or view.name in text) and self.tables >= _used(view):
                self._connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
                self._views.add(view.name)

    def _but(self, how: str) -> str:
        """What a person at this machine may do all the same."""
        return "" if self._limited else how.format("--unsafe allows")

    @contextlib.contextmanager
    def _told(self, query: str) -> Iterator[None]:
        """Make a QueryError of what goes wrong."""
        try:
            yield
        except UnicodeEncodeError as error:
            raise QueryError("the query is not UTF-8 text") from error
        except RecursionError as error:
            raise QueryError("the query is nested too deeply") from error
        except MemoryError:
            raise QueryError(TOO_LARGE) from None
        except (duckdb.Error, RuntimeError, OSError, ValueError) as error:  # the last two: an Arrow stream that breaks
            sentence = _in_one(error, query) if self._limited else _sentence(error)
            raise QueryError(sentence) from (None if sentence is TOO_LARGE else error)  # no file is at fault then

    def _shortened(self, before: asked.Asked, pieces: list[bytes], constants: list[bytes]) -> str:
        """A query that reads only the columns that it names, and only the files that can hold its GPUs."""
        if len(self._sources) >= _MOST:
            self._sources.clear()
            self._number = itertools.count(self._lists)  # these views and their lists of files are replaced
        for spot in sorted(before.spots, key=lambda spot: (spot.piece, spot.begin), reverse=True):
            spec, piece = table(spot.table), pieces[spot.piece]
            gpus = None if spot.gpus is None else [constants[number][1:-1].decode() for number in spot.gpus]
            named = b"" if spot.named else b" AS " + piece[spot.begin : spot.end]
            source = self._source(spec, before.columns, gpus).encode()
            pieces[spot.piece] = piece[: spot.begin] + source + named + piece[spot.end :]
        return asked.joined(pieces, constants).decode()

    def _source(self, spec: Table, columns: frozenset[str], gpus: Sequence[str] | None) -> str:
        """The view that stands for a table in a query."""
        rows = self._tables[spec.name]
        names = columns.intersection(spec.names) or frozenset(spec.names[:1])
        held = None if gpus is None else holding(rows, gpus)
        found = self._sources.get((spec.name, names, held))
        if found is None:
            if held is not None:
                rows = part_of(rows, held)
            rows_of, found = self._select(spec, rows, names), f"{_ROWS}.view_{next(self._number)}"
            self._connection.execute(f"CREATE OR REPLACE VIEW {found} AS {rows_of}")
            self._sources[spec.name, names, held] = found
        return found

    def _interruptible(self, work: Callable[[], Answer]) -> Answer:
        """Run `work` so that Ctrl-C ends it: beside the main thread.

        In the main thread, DuckDB looks for signals only between tasks, and one task may take minutes.
        """
        if threading.current_thread() is not threading.main_thread():
            return work()
        running = self._pool.submit(work)
        try:
            while not running.done():  # another thread may get the interrupt; it is seen when a wait ends
                with contextlib.suppress(TimeoutError):
                    return running.result(_PATIENCE_S)
            return running.result()
        except KeyboardInterrupt:
            while not running.done():  # DuckDB forgets an interrupt that comes before the statement begins
                self._connection.interrupt()
                wait([running], 0.05)
            raise


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
            folders |= {quoted(f"{one}/") for one in (home.resolve(), pattern(home.resolve()))}  # as of single files
        else:  # DuckDB checks both the pattern and the file that it finds, so both spellings are allowed
            paths |= {quoted(one) for path in _full(rows.files) for one in (path, pattern(path))}
    return {"directories": folders, "paths": paths}


def _answer(connection: duckdb.DuckDBPyConnection, statements: Sequence[duckdb.Statement], *, plain: bool) -> Answer:
    for statement in statements[:-1]:
        connection.execute(statement).fetchall()  # DuckDB keeps a connection busy until all rows are fetched
    last = statements[-1]
    if last.type != duckdb.StatementType.SELECT:
        _know_arrow()
        import pyarrow as pa

        answer = connection.sql(last.query)
        return pa.table({}) if answer is None else answer.to_arrow_table()
    if plain:
        connection.execute(last)
        kinds = [str(column[1]) for column in connection.description]
        if _PLAIN.issuperset(kinds):
            names = [column[0] for column in connection.description]
            return Plain(names, [kind in _NUMBERS for kind in kinds], connection.fetchall())
        _know_arrow()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it makes a copy of the rows
            return connection.to_arrow_table()
    return _arrow(connection, last.query)


def _arrow(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    """The answer to a query. `sql` of DuckDB's Python package does the same, but prepares every query twice."""
    import pyarrow as pa

    submit = getattr(connection, "_submit", None)
    try:
        if submit is not None:
            return submit(query, None, "arrow").arrow_table()
        _know_arrow()
        return connection.sql(query).to_arrow_table()
    except pa.ArrowException as error:
        raise QueryError(_sentence(error)) from error


def _know_arrow() -> None:
    """Let connections take and give Arrow tables. The Python package around DuckDB adds that."""
    import_module("duckdb")


def at_fault(error: QueryError) -> bool:
    """Whether the query itself is wrong, so that no damaged file can be behind the error."""
    wrong = (
        duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.PermissionException,
        duckdb.ConversionException, duckdb.OutOfRangeException,
    )  # fmt: skip
    return error.__cause__ is None or isinstance(error.__cause__, wrong)


def _in_one(error: Exception, query: str) -> str:
    """DuckDB's message in one sentence, with the place in the query where it names one."""
    start = str(error).find("{")
    try:
        said = json.loads(str(error)[start:]) if start >= 0 else {}
    except json.JSONDecodeError:
        said = {}
    if not isinstance(said, dict) or "exception_message" not in said:
        return " ".join(str(error).split())
    kind, text = said.get("exception_type"), str(said["exception_message"])
    if kind == "Out of Memory":
        return TOO_LARGE
    if kind == "Permission":
        text = f"only the tables of the store can be read ({text})"
    if kind == "Catalog" and said.get("type") == "Table":
        text = _no_table(str(said.get("name")))
    for unasked in ("\n\nLINE ", "\n\tCandidate functions"):
        text = text.partition(unasked)[0]
    sentence = " ".join(text.split())
    sentence = sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}..."
    at = said.get("position")
    if at is not None and str(at).isdecimal() and int(at) <= len(query.encode()):
        before = query.encode()[: int(at)].decode(errors="ignore")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        sentence += f" (line {line}, character {column})"
    return sentence


def _no_table(name: str) -> str:
    there = [*(view.name for view in VIEWS), *(spec.name for spec in TABLES)]
    near = difflib.get_close_matches(name, there, n=1)
    return f"there is no table {name}" + (f"; there is {near[0]}" if near else "")


def _sentence(error: Exception) -> str:
    """DuckDB's message; if whorl's own protection caused it, also what to do."""
    text = str(error).strip()
    if "disabled by configuration" in text or "configuration has been locked" in text:
        text += "\n`whorl sql` reads only the store; --unsafe lets a query reach other files and the network"
    if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
        names = ", ".join([*(view.name for view in VIEWS), *(spec.name for spec in TABLES)])
        text += f"\nThe tables are {names}; `whorl schema TABLE` explains one"
    return text
