"""SQL over a store's tables: read-only, without access to anything outside the store.

The connection lives in memory and sees the tables as views over files that were checked beforehand. Unless `unsafe` is
asked for, DuckDB may open what is in the folders of the tables and nothing else (no other file, no network, no
extension), the configuration is locked, and only queries are run: COPY, ATTACH, INSTALL, SET, PRAGMA and the like are
refused before anything executes (see `statements`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import uuid4

import duckdb

from ..errors import QueryError
from .catalog import quoted, read
from .file_names import EVER, Bounds
from .keys import KEY_RECORD
from .parquet import pattern
from .schema import TABLES, TELEMETRY, Table, table
from .statements import bounds, checked
from .views import FIND, VIEWS, WINDOWS, View

if TYPE_CHECKING:
    import pyarrow as pa

    from .snapshot import Rows

_EVERYTHING = frozenset(spec.name for spec in TABLES), frozenset(view.name for view in VIEWS)
_NAMES = [*(view.name for view in VIEWS), *(spec.name for spec in TABLES)]
_ROWS = "whorl_rows"  # the schema of rows that are in no file of their table
_ABOUT_TABLES = re.compile(r"\bshow\b|\bdescribe\s*([;)]|$)|information_schema|\b(pragma|duckdb|pg|sqlite)_")
_LONGEST = 400  # of a sentence about an error, in characters
_PART = 10_000  # rows that are read at once of an answer
_PATIENCE_S = 0.5
_INTEGERS = {f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG", "HUGE")} | {"UINTEGER"}
_NUMBERS = _INTEGERS | {"INTEGER", "FLOAT", "DOUBLE"}
_PLAIN = _NUMBERS | {"BOOLEAN", "VARCHAR"}

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

    DuckDB keeps to `memory_mb` where it holds rows, and not where a function makes a huge text: who serves such queries
    needs a limit that nothing passes. Nothing is written to a disk: what does not fit fails.
    """

    memory_mb: int
    threads: int


@dataclass(frozen=True)
class Query:
    """A query that may run, the tables and views that it can read, and the bounds of rows of telemetry that matter."""

    text: str
    tables: frozenset[str]
    views: frozenset[str]
    near: Bounds = EVER


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
    """An in-memory DuckDB over the store at `root`, locked down unless `unsafe`.

    `complete`: all files have all columns, so that DuckDB need not look at all of them first.

    `parse` says what a query needs, `furnish` gives the connection these tables at one instant, and `run` and `stream`
    answer. Connecting takes longer than many queries, so keep the connection: files may change between two queries. One
    query at a time uses it.
    """

    def __init__(self, root: Path, *, unsafe: bool = False, share: Share | None = None, complete: bool = False) -> None:
        # Sorting more than fits into memory uses this folder; the default, `.tmp` where the user happens to be,
        # would also be a folder that a query may read.
        spill = ""
        with contextlib.suppress(FileNotFoundError):  # no folder has room: only a query that needs it fails
            spill = str(Path(tempfile.gettempdir(), f"whorl-sql-{uuid4().hex}"))
        config: dict[str, str | bool | int | float | list[str]] = {
            "preserve_insertion_order": True,
            "python_enable_replacements": False,  # `select * from x` must not find a variable x
            "temp_directory": spill,
            "errors_as_json": True,
        }
        if not unsafe:
            config |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        if share is not None:
            config |= {"memory_limit": f"{share.memory_mb}MB", "threads": share.threads, "temp_directory": ""}
        self._root, self._home = str(root / "_")[:-1], str(root.resolve() / "_")[:-1]  # of `.` the first is empty
        self._complete = complete
        self._unsafe, self._limited = unsafe, share is not None
        self._defined: dict[str, str] = {}  # the views that were made, of tables and of `VIEWS`
        self._listed: dict[str, Sequence[Path]] = {}  # by variable
        self._telemetry: Rows | None = None
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._connection = duckdb.connect(":memory:", config=config)
        self._connection.execute(f"SET parquet_metadata_cache = true; CREATE SCHEMA {_ROWS}")
        if share is not None:
            self._connection.execute("SET enable_progress_bar = false")  # it would be drawn in the log of a server
        if not unsafe:
            # DuckDB checks both the pattern and the file that it finds, so both spellings are allowed.
            folders = {f"{home}{spec.name}/" for spec in TABLES for home in (self._home, pattern(self._home))}
            self._connection.execute(f"SET allowed_directories = [{', '.join(map(quoted, sorted(folders)))}]")
            self._connection.execute("SET enable_external_access = false; SET lock_configuration = true")

    def close(self) -> None:
        """Let go of DuckDB."""
        self._connection.close()
        self._pool.shutdown()

    def parse(self, text: str) -> Query:
        """What a query needs.

        Raises QueryError where it cannot be parsed and, unless `unsafe`, for several statements and for a statement
        that is not a query.
        """
        with self._sentences(text):
            statements = self._connection.extract_statements(text.encode().decode())  # raises where it is no UTF-8
            if not statements or "\0" in text:
                raise QueryError('there is no SQL statement to run: give one, for example "select count(*) from runs"')
            if self._unsafe:
                return Query(text, *_EVERYTHING)
            if len(statements) > 1:
                raise QueryError(f"there are {len(statements)} statements: give only one{self._but(' ({} several)')}")
            parts = checked(self._connection, statements[0], self._but("; {} it all the same"))
            if _ABOUT_TABLES.search(text.lower()):
                return Query(text, *_EVERYTHING)
            names = {str(part["table_name"]).lower() for part in parts if part.get("table_name")}
            tables, views = _EVERYTHING
            views &= names
            tables &= names.union(*(_used(view) for view in VIEWS if view.name in views))
            return Query(text, tables, views, bounds(parts))

    def furnish(self, tables: Mapping[str, Rows]) -> None:
        """Give the connection the rows of some tables; what is as it was costs nothing. Raises QueryError."""
        self._telemetry = tables.get(TELEMETRY.name)
        try:
            for name, rows in tables.items():
                if rows.late is not None:
                    self._hold(f"{name}_late", rows.late)
                self._define(name, self._select(table(name), rows))
        except duckdb.Error as error:
            raise QueryError(_sentence(error)) from error

    def run(self, query: Query, *, plain: bool = False) -> Answer:
        """The answer to a query as an Arrow table; with `unsafe`, the answer to its last statement.

        With `plain`, an answer of numbers, texts and truth values is `Plain` instead. Raises QueryError for every error
        of DuckDB.
        """
        with self._sentences(query.text), self._windows(query):
            return self._interruptible(lambda: self._answer(query, plain=plain))

    def stream(self, query: Query, read: Callable[[Stream], T]) -> T:
        """What `read` makes of the answer to a query, which it reads part by part. Raises as `run`."""
        with self._sentences(query.text), self._windows(query):
            return read(Stream(self._relation(query)))

    def _answer(self, query: Query, *, plain: bool) -> Answer:
        relation = self._relation(query)
        if plain and relation is not None and _PLAIN.issuperset(kinds := [str(kind) for kind in relation.types]):
            return Plain(relation.columns, [kind in _NUMBERS for kind in kinds], relation.fetchall())
        import pyarrow as pa

        return pa.table({}) if relation is None else relation.to_arrow_table()

    def _relation(self, query: Query) -> Any:
        """The answer to a query that is not yet computed; None of a statement that has none."""
        for view in VIEWS:
            if view.name in query.views:  # to make all of them takes longer than many queries
                self._define(view.name, view.sql)
        try:
            return self._connection.sql(query.text)
        except duckdb.Error:
            if not self._unsafe:
                self._connection.execute(query.text)  # fails in the same way, and only this says where in the text
            raise

    @contextlib.contextmanager
    def _windows(self, query: Query) -> Iterator[None]:
        """Have the function of windows while a query needs it; DuckDB complains at exit of one that is still there."""
        rows = self._telemetry
        if rows is None or query.views.isdisjoint(view.name for view in WINDOWS):
            yield
            return
        from .windows import Windows

        Windows(rows, self._stopped).register(self._connection)
        try:
            yield
        finally:
            Windows.remove(self._connection)

    def _define(self, name: str, sql: str) -> None:
        if self._defined.get(name) != sql:
            self._connection.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")
            self._defined[name] = sql

    def _hold(self, name: str, late: pa.Table) -> None:
        """Rows that are in no file become a table: DuckDB reads its own tables faster than those of Arrow."""
        self._connection.register("given", late)
        self._connection.execute(f"CREATE OR REPLACE TABLE {_ROWS}.{name} AS FROM given")
        self._connection.unregister("given")

    def _select(self, spec: Table, rows: Rows) -> str:
        """The rows of a table: those of its files that no late row replaces, and the late rows."""
        columns = ", ".join(f'"{name}"' for name in spec.names)
        parts = []
        if rows.free:
            parts.append(f"SELECT {columns} FROM {self._files(f'{spec.name}_free', rows.free, spec)}")
        late = f"{_ROWS}.{spec.name}_late"
        if rows.contested:
            files = self._files(f"{spec.name}_contested", rows.contested, spec)
            parts.append(f"SELECT {columns} FROM {files} WHERE {KEY_RECORD} NOT IN (SELECT {KEY_RECORD} FROM {late})")
        if rows.late is not None:
            parts.append(f"SELECT {columns} FROM ({spec.nothing} UNION ALL BY NAME FROM {late})")
        return " UNION ALL ".join(parts) or spec.nothing

    def _files(self, variable: str, paths: Sequence[Path], spec: Table) -> str:
        """Thousands of files are listed in a variable: DuckDB would parse and bind their names for every query."""
        if paths != self._listed.get(variable):
            listed = [pattern(self._home + str(path).removeprefix(self._root)) for path in paths]
            self._connection.execute(f"SET VARIABLE {variable} = $1", [listed])
            self._listed[variable] = paths
        return read(f"getvariable('{variable}')", spec, complete=self._complete)

    def _but(self, sentence: str) -> str:
        """What a person at this machine may do all the same."""
        return "" if self._limited else sentence.format("--unsafe allows")

    @contextlib.contextmanager
    def _sentences(self, text: str) -> Iterator[None]:
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
            sentence = _sentence(error, text, self._but("; {} it all the same"))
            raise QueryError(sentence) from (None if sentence is TOO_LARGE else error)  # no file is at fault then

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
            self._stopped.set()
            while not running.done():  # DuckDB forgets an interrupt that comes before the statement begins
                self._connection.interrupt()
                wait([running], 0.05)
            self._stopped.clear()
            raise


@functools.cache
def _used(view: View) -> frozenset[str]:
    """The tables that a view reads."""
    words = {TELEMETRY.name if word == FIND else word for word in re.findall(r"\w+", view.sql)}
    return _EVERYTHING[0] & words


def at_fault(error: QueryError) -> bool:
    """Whether the query itself is wrong, so that no damaged file can be behind the error."""
    wrong = (
        duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.PermissionException,
        duckdb.ConversionException, duckdb.OutOfRangeException,
    )  # fmt: skip
    return error.__cause__ is None or isinstance(error.__cause__, wrong)


def _sentence(error: Exception, query: str = "", but: str = "") -> str:
    """DuckDB's message in one sentence, with the place in the query where it names one, and what to do (`but`)."""
    text = str(error)
    try:
        details = json.loads(text[text.index("{") :])
    except ValueError:
        details = {}
    kind, text = details.get("exception_type"), str(details.get("exception_message", text))
    if kind == "Out of Memory":
        return TOO_LARGE
    if kind == "Permission":
        text = f"only the tables of the store can be read ({text}){but}"
    if kind == "Catalog" and details.get("type") == "Table":
        import difflib

        name = str(details.get("name"))
        near = difflib.get_close_matches(name, _NAMES, n=1)
        text = f"there is no table {name}" + (f"; there is {near[0]}" if near else "; `whorl schema` lists them")
    for needless in ("\n\nLINE ", "\n\tCandidate functions"):
        text = text.partition(needless)[0]
    sentence = " ".join(text.split())
    sentence = sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}..."
    at = str(details.get("position"))
    if at.isdecimal() and int(at) <= len(query.encode()):
        before = query.encode()[: int(at)].decode(errors="ignore")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        sentence += f" (line {line}, character {column})"
    return sentence
