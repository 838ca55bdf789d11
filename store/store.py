"""A store: a folder of tables that many processes append to and anything can read.

fleet/
  store.toml       format, who made it, when, time zone, where the views point
  whorl.duckdb     views and macros for any DuckDB client (see `catalog`)
  TABLE/*.parquet  immutable files that appear whole (see `commits`, `sealing` and `replacing`)
  journal/         the last minutes of writers
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import InputError, QueryError, StoreError
from . import commits, file_names, folder, keys, replacing, snapshot
from .file_names import EVER, Bounds
from .parquet import Verified
from .replacing import retried, too_fast
from .schema import COLUMNS, KEY, LATE, LATEST, TABLES, TELEMETRY, arrow_schema, table
from .snapshot import Rows
from .system import files

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from . import compaction, derived, retention
    from .journal import Journal
    from .snapshot import TablePart
    from .sql import Answer, Connection, Query, Share, Stream

log = logging.getLogger(__name__)

_TRIES = 20

T = TypeVar("T")
Gpus = Sequence[tuple[str, str]]  # cluster and GPU of each


class Store:
    """A store opened for reading and appending: `Store("fleet")`; `Store.create` makes one.

    Rows come in with `append` and `journal`, and rows of telemetry are replaced with `correct`. Reading gives Arrow
    (`arrow`, `latest`), Polars (`scan`, lazy) or the answer to SQL (`sql`). `compact` and `prune` make a store smaller.
    A file that is torn, changed, not whorl's, or of another format is left out: a warning names it, and `skipped` lists
    it with the reason.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the store at `path`. Raises StoreError if there is none, FormatError if it has another format."""
        self.root = folder.checked_path(path)
        self.skipped: dict[Path, str] = {}
        self.share: Share | None = None
        """What queries may use of this machine; set it before the first one."""
        self.verified = Verified(self.root)
        self._connection: Connection | None = None  # to DuckDB; one query at a time uses it
        self._querying = threading.Lock()
        about = folder.read_about(self.root)
        if files.own(self.root):  # a reader repairs nothing in another user's store
            self._repair(about)

    # -- opening ------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """The store at `path`, as `Store(path)`."""
        return cls(path)

    def _repair(self, about: Mapping[str, Any]) -> None:
        """Put in order what dead processes left, and write the views and empty files anew where that is needed."""
        commits.finish(self.root)
        replacing.tidy(self.root)
        if folder.is_furnished(self.root, about.get("place")) or not os.access(self.root, os.W_OK):
            return
        for path in folder.missing_folders(self.root, about):
            log.warning("%s is missing, and with it its rows: restore it from a copy; it is made again empty", path)
        try:
            folder.furnish(self.root, about)
        except StoreError as error:
            log.warning("%s; until then other DuckDB clients may be unable to read it", error)

    @classmethod
    def find(cls, path: str | Path) -> Store | None:
        """The store at `path`; None where `create` would make it. Raises StoreError where it could not."""
        root = folder.checked_path(path)
        return cls(root) if folder.is_store(root) else None

    @classmethod
    def create(cls, path: str | Path) -> Store:
        """The store at `path`, made where there is none. Raises StoreError where it cannot be made."""
        root = folder.checked_path(path)
        if not folder.is_store(root):
            try:
                files.make_root(root)
            except OSError as error:
                raise files.failed("make", root, error) from error
            created = datetime.now(UTC).isoformat(timespec="microseconds")
            folder.furnish(root, {"created": created, "columns": COLUMNS})
        return cls(root)

    def close(self) -> None:
        """Let go of the connection to DuckDB; the next query makes another one."""
        with self._querying:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    # -- writing ------------------------------------------------------------------------------------------

    def append(self, rows: Mapping[str, pa.Table], name: str) -> list[Path]:
        """Append rows to several tables at once, all or nothing, and return the files that were made.

        `rows` maps a table's name to an Arrow table whose columns are some of that table's (`whorl schema` lists them,
        with units); a column that is absent is NULL. `name` begins the names of the files: letters, digits, '.', '_'
        and '-', unique to the content. On return the rows are durable, and every reader sees them. Telemetry with the
        key (`cluster`, `gpu`, `ts`) of a stored row takes its place. Raises StoreError where the rows do not fit or
        writing fails: nothing is stored then, unless the message says "stored".
        """
        made_tables = [key for key in rows if table(key).made]
        if made_tables:
            raise StoreError(f"the rows of table {made_tables[0]} are made from telemetry: append to telemetry")
        filled = {table(key): table_rows for key, table_rows in rows.items() if len(table_rows)}
        return commits.commit(self.root, filled, name) if filled else []

    def correct(self, rows: pa.Table, name: str) -> int:
        """Replace stored rows of telemetry by `rows`, and return how many; `name` as in `append`.

        `rows` has the columns `cluster`, `gpu` and `ts`, which name the rows to replace, and others of telemetry; a
        column that is absent becomes NULL. Raises StoreError, and nothing is changed, where a row is not stored.
        """
        if set(KEY) - set(rows.column_names):
            raise StoreError(f"rows that correct telemetry need the columns {', '.join(KEY)}")
        if not len(rows):
            return 0
        chosen = keys.conform(TELEMETRY, rows.select(list(KEY)))
        with self.exclusive():
            stored = self.arrow(TELEMETRY.name, list(KEY), within=keys.bounds_of(chosen))
            unknown = keys.without(chosen, stored)
            if len(unknown):
                first = ", ".join(f"{column} {unknown[column][0].as_py()}" for column in KEY)
                raise StoreError(f"{len(unknown)} of {len(rows)} rows to correct are not stored (first: {first})")
            self.append({TELEMETRY.name: rows}, name)
        return len(rows)

    def journal(
        self, name: str, *, durable_s: float | None = None, background: bool = True, offline: bool = False
    ) -> Journal:
        """The journal called `name` for rows that come one after another, as of a collector; see `Journal`.

        With `background` child processes seal it; else `seal` is the caller's. `offline`: nobody else uses the store,
        so that nothing waits for readers. Raises StoreError where another process has the name.
        """
        from .journal import Journal

        return Journal(self.root, name, durable_s=durable_s, background=background, offline=offline)

    # -- looking after it -------------------------------------------------------------------------------------

    def compact(
        self, *, offline: bool = False, now: int | None = None, progress: Callable[[str], None] = lambda _: None
    ) -> compaction.Done:
        """Join small files, seal journals of dead writers, put late rows in place; returns what was done, in counts.

        `offline`: nobody else uses the store, so that nothing waits for readers. Only periods that are over at `now`
        (UTC ns; None: by the clock) are joined. `progress` is called with what is done next. It may be killed: the next
        call begins anew. Raises StoreError, also where another process compacts.
        """
        from . import compaction

        return compaction.compact(self.root, offline=offline, now=now, progress=progress)

    def prune(
        self, keep: str | None = None, *, dry_run: bool = False, offline: bool = False, now: int | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> retention.Pruned:  # fmt: skip
        """Make one row a minute of telemetry that is older than `keep` ("90d", "12h", "2w"; None: as store.toml says).

        Returns what was done, or with `dry_run` would be, in rows and bytes. `offline`, `now` and `progress` as in
        `compact`. Raises InputError for no time to keep or a wrong one, StoreError as `compact`.
        """
        from . import retention

        keep = keep or retention.configured(self.root)
        if keep is None:
            about = self.root / folder.ABOUT
            raise InputError(f'give the time to keep at full rate: --keep 90d, or keep = "90d" in {about}')
        return retention.prune(
            self.root, retention.seconds(keep), offline=offline, now=now, dry_run=dry_run, progress=progress
        )

    def states_of_days(self, since: int, until: int) -> dict[int, derived.DayState | None]:
        """What each day (since 1970) has of telemetry between two times (ns since 1970): rows that come later change
        it, compaction and pruning do not. None of a day that is not over. Raises StoreError."""
        from . import derived

        return derived.states(self.root, self.skip, since // 1000, until // 1000)

    def derive(self, *, offline: bool = False) -> derived.Derivation:
        """A context in which rows of `schema.DERIVED` replace those of their day; `offline` as in `compact`."""
        from . import derived

        return derived.Derivation(self.root, replacing.pace_of(self.root, offline=offline))

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """A lock for code that appends only what the store does not have. Hold it from the check to the append."""
        return commits.exclusive(self.root)

    def writable(self) -> bool:
        """Whether this user may append to the store."""
        return folder.is_writable(self.root)

    def check(self) -> dict[Path, str]:
        """Read every file of every table, anew; returns the unsound ones with the reason. Raises StoreError."""
        from . import checking

        return checking.check(self.root)

    # -- reading ------------------------------------------------------------------------------------------

    def files(self, name: str) -> list[Path]:
        """The sound files of a table. Files that cannot be read are logged and kept in `skipped`."""
        return self.rows([name])[name].files

    def sound(self, name: str, paths: Iterable[Path]) -> list[Path]:
        """Those files of a table that can be read. Raises FileNotFoundError where one was replaced by others."""
        return snapshot.sound(table(name), paths, self.verified, self.skip)

    def left_out(self, name: str, within: Bounds = EVER) -> dict[Path, str]:
        """The files of a table that cannot be read, as far as this was noticed, with the reason; of those that can have
        rows within bounds. Of telemetry also those whose rows take the place of others."""
        folders = [self.root / table_name for table_name in ([name, LATE.name] if name == TELEMETRY.name else [name])]
        return {
            path: reason
            for path, reason in self.skipped.items()
            if any(map(path.is_relative_to, folders)) and file_names.may_hold(path.name, within)
        }

    def skip(self, path: Path, reason: str) -> None:
        """Note, and log once, that a file cannot be read."""
        if path not in self.skipped:
            self.skipped[path] = reason
            log.warning("skipped %s: %s", path, reason)

    def rows(self, names: Collection[str], bounds: Bounds = EVER) -> dict[str, Rows]:
        """These tables at one instant; of tables by time only files that can hold rows within the bounds.

        Raises StoreError.
        """

        def look() -> dict[str, Rows]:
            listing = snapshot.take(self.root, names, self.skip, bounds)
            return {name: snapshot.rows_of(name, listing, self.verified, self.skip, bounds) for name in names}

        return retried(self.root, look)

    def arrow(
        self, name: str, columns: list[str] | None = None, gpus: Gpus | None = None, *, within: Bounds = EVER
    ) -> pa.Table:
        """A table as Arrow, in memory: all of it, or only the rows of some `gpus` (cluster and GPU of each).

        `within`: files that hold no rows within these bounds are left out, those of other rows need not be. Raises
        StoreError, which names the file, where one is damaged inside.
        """
        import pyarrow.dataset as ds

        only = None if gpus is None else ds.field("gpu").isin([gpu for _, gpu in gpus])
        if gpus is not None:
            within = Bounds(within.first_us, within.last_us, file_names.gpu_hashes(gpu for _, gpu in gpus))
        return self.read(name, lambda rows: snapshot.read_rows(name, rows, columns, only=only), within)

    def read(self, name: str, read: Callable[[Rows], T], within: Bounds = EVER) -> T:
        """What `read` makes of the rows of a table within bounds; it begins again where others replaced a file
        meanwhile. A file that is damaged is left out (`left_out`). Raises StoreError."""
        import pyarrow as pa

        try:
            return self._again([name], within, lambda rows: read(rows[name]), (OSError, pa.ArrowException))
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"cannot read {name} in {self.root}: {str(error).splitlines()[0]}") from error

    def scan(self, name: str, gpus: Collection[str] | None = None, *, within: Bounds = EVER) -> pl.LazyFrame:
        """A table as a lazy Polars frame. `gpus`: without files that hold none of these, `within`: or no rows within
        these bounds; other rows of the same files are there.

        Collect it with `Store.collect`: if a file is damaged inside, its error names the file. Polars' own `collect`
        raises `polars.exceptions.PolarsError` then.
        """
        import polars as pl

        spec, types = table(name), _frame_schema(name)
        if gpus is not None and spec.partitioned:
            within = Bounds(within.first_us, within.last_us, file_names.gpu_hashes(gpus))
        rows = self.rows([name], within)[name]

        def frame(beside: pa.Table) -> pl.LazyFrame:
            absent = [pl.lit(None, kind).alias(key) for key, kind in types.items() if key not in beside.column_names]
            return cast("pl.DataFrame", pl.from_arrow(beside)).lazy().with_columns(absent).select(spec.names)

        def read(paths: list[Path]) -> pl.LazyFrame:
            return pl.scan_parquet(
                [path.absolute() for path in paths], schema=types, glob=False,
                missing_columns="insert", extra_columns="ignore", hive_partitioning=False,
                cast_options=pl.ScanCastOptions(missing_struct_fields="insert", extra_struct_fields="ignore"),
            ).select(spec.names)  # fmt: skip

        frames = [read(rows.free)] if rows.free else []
        if rows.contested and rows.late is not None:
            frames.append(read(rows.contested).join(frame(rows.late), on=list(KEY), how="anti", nulls_equal=True))
        frames += [frame(rows.late)] if rows.late is not None else []
        return pl.concat(frames or [frame(arrow_schema(name).empty_table())])

    def latest(self, gpus: Gpus | None = None) -> ArrowAnswer:
        """The last reading of every GPU, one row each, or of some `gpus` (cluster and GPU of each).

        Its columns are those of telemetry and `written`, when it was stored. A metric that this reading did not measure
        is NULL. Raises StoreError, which names the file, where one is damaged inside.
        """
        return ArrowAnswer(self.arrow(LATEST.name, gpus=gpus))

    def parts(self, name: str, since: int | None = None, until: int | None = None) -> list[TablePart]:
        """The pieces of a table that can be worked on apart, with all rows of since <= ts <= until (ns since 1970); a
        piece may have other rows of its day, too.

        No GPU of a day is in two pieces of this day, so a figure of a GPU and a day needs one piece. See `TablePart`.
        """
        bounds = Bounds(
            EVER.first_us if since is None else -(-since // 1000), EVER.last_us if until is None else until // 1000
        )
        return snapshot.parts_of(name, self.rows([name], bounds)[name])

    def readings_by_day(self, within: Bounds = EVER) -> dict[int, int]:
        """About how many readings of telemetry each day (since 1970) has within bounds, by what manifests and the sizes
        of files say: none is opened. Those in journals are not counted. Raises StoreError."""
        with files.readable(self.root):
            return snapshot.rows_by_day(snapshot.visible_now(self.root, TELEMETRY, within), within.gpus)

    def collect(self, frame: pl.LazyFrame) -> pl.DataFrame:
        """The rows of a frame made from `scan`. If a file is damaged or cannot be read, raises StoreError, which names
        it."""
        import polars as pl

        try:
            return frame.collect()
        except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            before = {*self.skipped}
            all_rows = self.rows([spec.name for spec in TABLES])
            changed = {path: reason for path, reason in self.skipped.items() if path not in before}
            for path, reason in (changed | self._damaged(all_rows)).items():
                raise StoreError(f"{path}: {reason}; run the command again, which leaves it out") from error
            if isinstance(error, OSError):  # others have replaced a file since, or the disk failed for a moment
                raise StoreError(f"cannot read {self.root}: {str(error).splitlines()[0]}; run it again") from error
            raise

    # -- SQL ----------------------------------------------------------------------------------------------

    def sql(self, query: str, *, unsafe: bool = False) -> ArrowAnswer:
        """The answer to an SQL query over the tables: an Arrow table that shows itself. Raises QueryError.

        Read-only, with no access to anything outside the store, unless `unsafe`. A file that is damaged inside is
        skipped; with `unsafe`, where a statement may have had effects, StoreError names it.
        """
        answer = self._ask(query, lambda connection, parsed: connection.run(parsed), unsafe=unsafe)
        return ArrowAnswer(cast("pa.Table", answer))

    def answer(self, query: str, *, unsafe: bool = False) -> Answer:
        """As `sql`, but an answer of only numbers, texts and truth values is `sql.Plain`, which needs no pyarrow."""
        return self._ask(query, lambda connection, parsed: connection.run(parsed, plain=True), unsafe=unsafe)

    def stream(self, query: str, read: Callable[[Stream], T]) -> T:
        """What `read` makes of the answer to an SQL query, which it reads part by part, so that memory does not grow.

        Only one statement, with the rights of `sql`. `read` begins again where a file went while it read. Raises
        QueryError.
        """
        return self._ask(query, lambda connection, parsed: connection.stream(parsed, read))

    def ready(self, tables: Iterable[str]) -> None:
        """Prepare for queries over these tables: look at their files, and connect to DuckDB."""
        with self._querying:
            connection = self._connect(unsafe=False)
            connection.furnish(self.rows(sorted(tables)))
            self._connection = connection

    def _connect(self, *, unsafe: bool) -> Connection:
        from .sql import Connection

        if unsafe or self._connection is None:
            complete = folder.has_all_columns(self.root)
            return Connection(self.root, unsafe=unsafe, share=self.share, complete=complete)
        return self._connection

    def _ask(self, query: str, ask: Callable[[Connection, Query], T], *, unsafe: bool = False) -> T:
        from .sql import at_fault

        with self._querying:
            connection = self._connect(unsafe=unsafe)

            def answer(rows: Mapping[str, Rows]) -> T:
                connection.furnish(rows)
                return ask(connection, parsed)

            try:
                parsed = connection.parse(query)
                names = sorted(parsed.tables)
                if not unsafe:
                    return self._again(names, parsed.near, answer, QueryError, at_fault)
                rows = self.rows(names, parsed.near)
                try:
                    return answer(rows)
                except QueryError as error:  # it may have had effects: it is not repeated
                    for path, reason in {} if at_fault(error) else self._damaged(rows).items():
                        raise StoreError(f"{path}: {reason}; run the command again, which leaves it out") from error
                    raise
            finally:
                if unsafe:
                    connection.close()
                else:
                    self._connection = connection

    def _again(
        self, names: Collection[str], within: Bounds, work: Callable[[dict[str, Rows]], T],
        faults: type[Exception] | tuple[type[Exception], ...],
        is_final: Callable[[Any], bool] = lambda _: False,
    ) -> T:  # fmt: skip
        """What `work` makes of the rows of tables: again where others replaced a file meanwhile, and without a file
        that turned out to be damaged. An error of `faults` that neither explains, or that `is_final`, is raised."""
        for _ in range(_TRIES):
            rows = self.rows(names, within)
            try:
                return work(rows)
            except faults as error:
                if self._all_there(rows.values()) and (is_final(error) or not self._damaged(rows)):
                    raise
        raise too_fast(self.root)

    def _all_there(self, tables: Iterable[Rows]) -> bool:
        """Whether no file was replaced by others since these rows were listed."""
        return all(os.path.lexists(path) for rows in tables for path in rows.files)

    def _damaged(self, tables: Mapping[str, Rows]) -> dict[Path, str]:
        """After reading failed, the files that are no longer what was verified. They are left out from now on."""
        reasons = {}
        for name, rows in tables.items():
            self.verified.forget(rows.files)
            for path in rows.files:
                with contextlib.suppress(FileNotFoundError):
                    reason = self.verified.reason(path, table(name))
                    if reason is not None:
                        reasons[path] = reason
                        self.skip(path, reason)
        return reasons


@functools.cache
def _frame_schema(name: str) -> pl.Schema:
    """The columns of a table as Polars has them: to make them takes as long as the rest of a scan."""
    import polars as pl

    return cast("pl.DataFrame", pl.from_arrow(arrow_schema(name).empty_table())).schema


class ArrowAnswer:
    """The answer of `Store.sql`: an Arrow table that shows itself in a notebook and at a prompt.

    It has every attribute of a `pyarrow.Table`, and every reader of Arrow reads it. `table` is the Arrow table itself.
    `polars()` gives a Polars frame; `to_pandas()` a pandas frame, if pandas is installed.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def polars(self) -> pl.DataFrame:
        """The answer as a Polars frame."""
        import polars as pl

        return cast("pl.DataFrame", pl.from_arrow(self.table))

    def equals(self, another: Any, *arguments: Any, **options: Any) -> bool:
        """Whether another table or answer has the same content."""
        return bool(self.table.equals(getattr(another, "table", another), *arguments, **options))

    def __eq__(self, another: object) -> bool:
        return self.equals(another)

    __hash__ = None  # type: ignore[assignment]  # as of a table

    def __getattr__(self, name: str) -> Any:
        if name == "table" or name.startswith("_"):  # while it is unpickled, or asked for by a protocol
            raise AttributeError(name)
        return getattr(self.table, name)

    def __getitem__(self, key: Any) -> Any:
        return self.table[key]

    def __len__(self) -> int:
        return len(self.table)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return self._text("__repr__")

    def _repr_html_(self) -> str:
        return self._text("_repr_html_")

    def _text(self, method: str) -> str:
        try:
            return str(getattr(self.polars(), method)())
        except Exception:  # a type that Polars does not have, such as an interval
            return str(self.table)
