"""SQL over a store's tables: read-only, without access to anything outside the store.

The connection lives in memory and sees the tables as views over files that were checked beforehand. Unless `unsafe` is
asked for, DuckDB may open what is in the folders of the tables and nothing else (no other file, no network, no
extension), the configuration is locked, and only queries are run: COPY, ATTACH, INSTALL, SET, PRAGMA and the like are
refused before anything executes. DuckDB could also write to the files that it may read, and a statement of type SELECT
can hold a COPY (`WITH a AS (COPY ... TO ...) SELECT ...`) or call a function that opens files, changes settings or runs
SQL from a string. So the statement's type is not enough: every query in the syntax tree must be a plain one, and every
function in a FROM clause one of `_HARMLESS`.

The bounds of rows, from when to when and of which GPUs, let a question about one GPU's day read the files of that day,
however many days a store has. A condition counts for a table only where it certainly holds for every row of it that
matters: it stands in the WHERE, or in the ON of a join, of the SELECT whose FROM names the table, not under an OR, and
compares the table's own column with a constant. Whatever is not understood gives no bound.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import uuid4

import duckdb

from ..errors import QueryError
from .catalog import quoted, read
from .file_names import EVER, Bounds, gpu_hashes
from .instants import nanoseconds
from .keys import KEY_RECORD
from .parquet import pattern
from .schema import MINUTES, TABLES, TELEMETRY, Table, table
from .views import FIND, HISTORY, TELEMETRY_OF_JOB, VIEWS, WINDOWS, View

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


# -- which statements may run ----------------------------------------------------------------------------------------

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
