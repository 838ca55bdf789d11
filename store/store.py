"""A store: a folder of tables that many processes append to and anything can read.

fleet/
  store.toml       format, who made it, when, time zone, where the views point
  whorl.duckdb     views and macros for any DuckDB client (see `catalog`)
  TABLE/*.parquet  immutable files that appear whole (see `commits`)
  pending/         commits under way
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import logging
import os
import threading
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from ..errors import FormatError, InputError, QueryError, StoreError
from .readers import reading
from .rows import arranging, journal_file, placing, replacing, writing
from .rows.arranging import KEY
from .rows.footers import stamp
from .rows.soundness import damage, forget, looks_whole, reason_to_skip
from .schema import BOOKKEEPING, CATALOG, FORMAT, LATEST, TABLES, TELEMETRY, arrow_schema, table
from .system import files
from .writers import commits

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from . import compaction, retention
    from .journal import Journal
    from .readers import query
    from .readers.answer import ArrowAnswer

log = logging.getLogger(__name__)

_ABOUT = "store.toml"
_DEMO = "store"  # in the folder of a demo, beside its report
_EMPTY = reading.EMPTY
_FOLDERS = {spec.name for spec in (*TABLES, *BOOKKEEPING)} | {commits.PENDING, journal_file.FOLDER}
_MAKING_S = 3.0  # to make a store takes a third of a second
_TRIES = 20

T = TypeVar("T")
Look = Callable[[str, Sequence[Path]], None]  # checks files of a table all at once
Gpus = Sequence[tuple[str, str]]  # cluster and GPU of each


class _Gone(FileNotFoundError):  # noqa: N818 - never leaves this package
    """A listed file was replaced by others."""


class Store:
    """A store opened for reading and appending: `Store("fleet")`; `Store.create` makes one.

    Rows come in with `append` and `journal`, and rows of telemetry are replaced with `correct`. Reading gives Arrow
    (`arrow`, `latest`), Polars (`scan`, lazy) or the answer to SQL (`sql`). `compact` and `prune` make a store smaller.
    A file that is torn, not whorl's, or of another format is skipped: a warning names it, and `skipped` lists it with
    the reason.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the store at `path`. Raises StoreError if there is none, FormatError if it has another format."""
        self.root = _root(path)
        self.skipped: dict[Path, str] = {}
        self._damaged: dict[
            Path, tuple[tuple[int, int], str]
        ] = {}  # inside, with their stamps; found when reading failed
        self.share: query.Share | None = None
        """What queries may use of this machine; set it before the first one."""
        self._kept: query.Connection | None = None  # the connection to DuckDB; one query at a time uses it
        self._querying = threading.Lock()
        self._opened()

    # -- opening ------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """The store at `path`, as `Store(path)`."""
        return cls(path)

    def _opened(self) -> None:
        root = self.root
        about = root / _ABOUT
        last = time.monotonic() + _MAKING_S
        try:
            while not about.exists() and _half_made(root) and time.monotonic() < last:
                time.sleep(0.1)  # somebody makes it just now
            text = files.read_small(about)
            strange = files.strange_folders(root, _FOLDERS)
        except FileNotFoundError:
            if _half_made(root):
                raise StoreError(
                    f"{root} is a store that was interrupted while it was made; run the command that made it again"
                ) from None
            what = "it does not exist" if not root.exists() else f"it has no {_ABOUT}"
            within = root / _DEMO
            if (within / _ABOUT).is_file():
                raise StoreError(f"{root} is not a store ({what}); the store is in {within}") from None
            raise StoreError(
                f"{root} is not a store ({what}); `whorl import --store {root} FILES` or `whorl probe run --store "
                f"{root} --suite quick` makes one"
            ) from None
        except OSError as error:
            raise files.failed("read", about, error) from error
        except ValueError as error:
            raise _damaged(
                about, "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
            ) from error
        try:
            known = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also of a number of thousands of digits
            raise _damaged(about, str(error)) from error
        version = known.get("format")
        if type(version) is not int or version < 1:
            raise _damaged(about, "it has no format number")
        if version < FORMAT:
            raise FormatError(
                f"{root} has format {version}, from before the first release of whorl; this whorl reads format "
                f"{FORMAT}: import or measure again into a new store"
            )
        if version > FORMAT:
            raise FormatError(
                f"{root} has format {version}, made by {known.get('created_by', 'a newer whorl')}; this whorl "
                f"reads format {FORMAT}: install a newer whorl"
            )
        if strange:  # what is repaired, removed or locked in it could be another store's
            raise StoreError(
                f"{root / strange[0]} is a link or a file, and no folder of a store: put the folder itself in its place"
            )
        if not files.own(root):  # a reader repairs nothing in another user's store
            return
        commits.recover(root)
        replacing.recover(root)
        whole = self._views_point_here(known.get("place")) and self._shaped()
        if not whole and os.access(root, os.W_OK):
            for name in missing_folders(root):
                log.warning("%s is missing, and with it its rows: restore it from a copy; it is made again empty", name)
            try:
                _furnish(root, known.get("created", "unknown"), known.get("keep"))
            except StoreError as error:
                log.warning("%s; until then other DuckDB clients may be unable to read it", error)

    @classmethod
    def find(cls, path: str | Path) -> Store | None:
        """The store at `path`; None where `create` would make it. Raises StoreError where it could not."""
        root = _root(path)
        with files.readable(root):
            if (root / _ABOUT).exists():
                return cls.open(root)
            if root.exists() and not root.is_dir():
                raise StoreError(f"{root} is a file, but a store is a folder: choose another path")
            if root.is_dir() and not all(_ours(p.name) for p in root.iterdir()):
                raise StoreError(
                    f"{root} has other contents and no {_ABOUT}; choose an empty or a new folder for a store"
                )
        return None

    @classmethod
    def create(cls, path: str | Path) -> Store:
        """The store at `path`, made where there is none. Raises StoreError where it cannot be made."""
        root = _root(path)
        if found := cls.find(root):
            return found
        try:
            if not root.exists():
                files.make_root(root)
        except OSError as error:
            raise files.failed("make", root, error) from error
        _furnish(root, datetime.now(UTC).isoformat(timespec="microseconds"))
        return cls(root)

    def _views_point_here(self, place: object) -> bool:
        if not _has_duckdb():
            return True  # a compute node that only appends has no DuckDB: the next command that has it writes the views
        if not isinstance(place, str) or not files.is_seen(self.root / CATALOG):
            return False
        try:
            return Path(place).samefile(self.root)
        except (OSError, ValueError):  # the latter of a zero byte
            return False

    def _shaped(self) -> bool:
        """Whether every table has its empty file, without which other DuckDB clients cannot read it."""
        try:
            return all(looks_whole(self.root / spec.name / _EMPTY) for spec in (*TABLES, *BOOKKEEPING))
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the connection to DuckDB; the next query makes another one."""
        with self._querying:
            kept, self._kept = self._kept, None
            if kept is not None:
                kept.close()

    # -- writing ------------------------------------------------------------------------------------------

    def append(self, rows: Mapping[str, pa.Table], name: str) -> list[Path]:
        """Append rows to several tables at once, all or nothing, and return the files that were made.

        `rows` maps a table's name to an Arrow table whose columns are some of that table's (`whorl schema` lists them,
        with units); a column that is absent is NULL. `name` names the files: letters, digits, '.', '_' and '-', unique
        to the content. On return the rows are durable, and every reader sees them. Telemetry with the key (`cluster`,
        `gpu`, `ts`) of a stored row takes its place. Raises StoreError where the rows do not fit or writing fails:
        nothing is stored then, unless the message says "stored".
        """
        made = [key for key in rows if table(key).made]
        if made:
            raise StoreError(f"the rows of table {made[0]} are made from telemetry: append to telemetry")
        return commits.commit(self.root, {table(key): data for key, data in rows.items() if len(data)}, name)

    def correct(self, rows: pa.Table, name: str) -> int:
        """Replace stored rows of telemetry by `rows`, and return how many; `name` as in `append`.

        `rows` has the columns `cluster`, `gpu` and `ts`, which name the rows to replace, and others of telemetry; a
        column that is absent becomes NULL. Raises StoreError, and nothing is changed, where a row is not stored.
        """
        import polars as pl

        missing = set(KEY) - set(rows.column_names)
        if missing:
            raise StoreError(f"rows that correct telemetry need the columns {', '.join(KEY)}")
        if not len(rows):
            return 0
        keys = arranging.conform(TELEMETRY, rows.select(list(KEY)), lean=True)
        wanted = cast("pl.DataFrame", pl.from_arrow(keys))
        with self.exclusive():
            near = pl.col("ts").is_between(wanted["ts"].min(), wanted["ts"].max())
            stored = self.scan(TELEMETRY.name).select(KEY).filter(near)
            unknown = self.collect(wanted.lazy().join(stored, on=KEY, how="anti", nulls_equal=True))
            if len(unknown):
                first = ", ".join(f"{column} {value}" for column, value in unknown.row(0, named=True).items())
                raise StoreError(f"{len(unknown)} of {len(rows)} rows to correct are not stored (first: {first})")
            self.append({TELEMETRY.name: rows}, name)
        return len(rows)

    def journal(
        self, name: str, *, durable_s: float | None = None, background: bool = True, offline: bool = False
    ) -> Journal:
        """The journal called `name` for rows that come one after another, as of a collector; see `Journal`.

        With `background` a thread publishes and seals it; else `publish` and `seal` are the caller's. `offline`: nobody
        else uses the store, so that nothing waits for readers. Raises StoreError where another process has the name.
        """
        from .journal import Journal

        pause_s = 0.0 if offline else None
        return Journal(self.root, name, durable_s=durable_s, settle_s=pause_s, grace_s=pause_s, thread=background)

    # -- looking after it -------------------------------------------------------------------------------------

    def compact(
        self, *, offline: bool = False, now: int | None = None, progress: Callable[[str], None] = lambda _: None
    ) -> compaction.Done:
        """Join small files, seal journals of dead writers, put late rows in place; returns what was done, in counts.

        `offline`: nobody else uses the store, so that nothing waits for readers. Only periods that are over at `now`
        (UTC ns; None: by the clock) are joined. `progress` is called with what is done next. It may be killed: the next
        call goes on. Raises StoreError, also where another process compacts.
        """
        from . import compaction

        return compaction.compact(self.root, pace=_pace(offline), now=now, progress=progress)

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
            raise InputError(f'give the time to keep at full rate: --keep 90d, or keep = "90d" in {self.root / _ABOUT}')
        return retention.prune(
            self.root, retention.seconds(keep), pace=_pace(offline), now=now, dry_run=dry_run, progress=progress
        )

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """A lock for code that appends only what the store does not have. Hold it from the check to the append."""
        return commits.exclusive(self.root)

    def writable(self) -> bool:
        """Whether this user may append to the store."""
        return all(os.access(self.root / spec.name, os.W_OK | os.X_OK) for spec in TABLES)

    # -- reading ------------------------------------------------------------------------------------------

    def files(self, name: str) -> list[Path]:
        """The sound files of a table, the empty one first. Skipped files are logged and kept in `skipped`."""
        for _ in range(_TRIES):
            with contextlib.suppress(_Gone):
                return self.sound(name, reading.snapshot(self.root, [table(name).name]).files[name])
        raise self._too_fast()

    def sound(self, name: str, paths: Iterable[Path]) -> list[Path]:
        good = []
        for path in paths:
            try:
                reason = reason_to_skip(path, name)
                if path in self._damaged and self._damaged[path][0] == stamp(path):
                    reason = self._damaged[path][1]
            except FileNotFoundError as error:
                raise _Gone from error
            except OSError as error:
                reason = f"it cannot be read ({error.strerror}); repair it or move it out of the store"
                if path.is_symlink():
                    reason = (
                        "it cannot be read (it is a link and not a regular file); put what it leads to in its place"
                    )
            if reason is None:
                good.append(path)
            else:
                self.skip(path, reason)
        return good

    def skip(self, path: Path, reason: str) -> None:
        """Note, and log once, that a file cannot be read."""
        if path not in self.skipped:
            self.skipped[path] = reason
            log.warning("skipped %s: %s", path, reason)

    def _rows(
        self,
        names: Sequence[str],
        look: Look | None = None,
        *,
        trusting: bool = False,
        gpus: frozenset[int] | None = None,
    ) -> dict[str, reading.Rows]:
        """These tables at one instant. If a file was replaced by others meanwhile, the listing is made again.

        Files whose names say that they hold no row of `gpus` (as `placing.hashes`) are left out.
        """
        if not names:
            return {}
        needed = [TELEMETRY.name] if LATEST.name in names else []
        for _ in range(_TRIES):
            found = reading.snapshot(self.root, names, trusting=trusting)
            if gpus is not None:
                found = reading.only(found, gpus)
            with contextlib.suppress(FileNotFoundError):
                if look is not None:
                    for name, paths in found.files.items():
                        look(name, paths)
                live = reading.tails(found, {*names, *needed}, self.skip)
                if live is not None:
                    return {name: reading.rows_of(name, found, live, self.sound, self.skip) for name in names}
        raise self._too_fast()

    def check(self) -> dict[Path, str]:
        """Read every file of every table, checksums included; returns the unsound ones with the reason.

        Slow: it reads the whole store. Reading through `sql` and `scan` notices damage inside a file only where
        the file cannot be decoded; this notices every changed byte of data, as does `arrow`.
        """
        from .readers import checking

        return checking.check(self)

    def arrow(self, name: str, columns: list[str] | None = None, gpus: Gpus | None = None) -> pa.Table:
        """A table as Arrow, in memory: all of it, or only the rows of some `gpus` (cluster and GPU of each).

        Raises StoreError, which names the file, where one is damaged inside.
        """
        import pyarrow as pa
        import pyarrow.dataset as ds

        verified = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        wanted = columns or table(name).names
        only = None if gpus is None else ds.field("gpu").isin([gpu for _, gpu in gpus])
        hashed = None if gpus is None else placing.hashes(gpus)

        def read(paths: list[Path], names: list[str]) -> pa.Table:
            whole = ds.dataset([str(path.absolute()) for path in paths], schema=arrow_schema(name), format=verified)
            return whole.to_table(columns=names, filter=only)

        def some(rows: pa.Table) -> pa.Table:
            return rows if only is None else rows.filter(only)

        def read_all(rows: reading.Rows) -> pa.Table:
            parts = [read(rows.free, wanted)]
            if rows.late is not None:
                keys = [*KEY, *(c for c in wanted if c not in KEY)]
                kept = reading.without_late(read(rows.contested, keys), rows.late)
                parts += [kept.select(wanted), some(rows.late).select(wanted)]
            if rows.live is not None:
                parts.append(some(rows.live).select(wanted))
            return parts[0] if len(parts) == 1 else pa.concat_tables(parts)

        for _ in range(_TRIES):
            rows = self._rows([name], gpus=hashed)[name]
            try:
                return read_all(rows)
            except (OSError, pa.ArrowException) as error:
                if _all_there([rows]) and not self._newly_damaged([name]):
                    raise StoreError(f"cannot read {name} in {self.root}: {str(error).splitlines()[0]}") from error
        raise self._too_fast()

    def scan(self, name: str, gpus: Collection[str] | None = None) -> pl.LazyFrame:
        """A table as a lazy Polars frame; a column that a file lacks is null. `gpus`: without files that hold none of
        these; the rows of others that are in the same files are there.

        Collect it with `Store.collect`: if a file is damaged inside, its error names the file. Polars' own `collect`
        raises `polars.exceptions.PolarsError` then.
        """
        import polars as pl

        spec = table(name)
        rows = self._rows([name])[name]
        held = None if gpus is None else reading.holding(rows, gpus)
        rows = rows if held is None else reading.part_of(rows, held)
        shape = _frame_schema(name)

        def frame(data: pa.Table) -> pl.LazyFrame:
            return cast("pl.DataFrame", pl.from_arrow(data)).lazy().select(spec.names)

        def read(paths: list[Path]) -> pl.LazyFrame:
            return pl.scan_parquet(
                [path.absolute() for path in paths],
                schema=shape,
                glob=False,
                missing_columns="insert",
                extra_columns="ignore",
                hive_partitioning=False,
            ).select(spec.names)

        parts = [read(rows.free)] if rows.free else []
        if rows.late is not None:
            late = frame(rows.late)
            if rows.contested:
                parts.append(read(rows.contested).join(late, on=list(KEY), how="anti", nulls_equal=True))
            parts.append(late)
        if rows.live is not None:
            parts.append(frame(rows.live))
        if not parts:
            return frame(arrow_schema(name).empty_table())
        return parts[0] if len(parts) == 1 else pl.concat(parts)

    def latest(self, gpus: Gpus | None = None) -> ArrowAnswer:
        """The last reading of every GPU, one row each, or of some `gpus` (cluster and GPU of each).

        Its columns are those of telemetry and `written`, when it was stored. A metric that this reading did not measure
        is NULL. Raises StoreError, which names the file, where one is damaged inside.
        """
        from .readers.answer import ArrowAnswer

        return ArrowAnswer(self.arrow(LATEST.name, gpus=gpus))

    def collect(self, frame: pl.LazyFrame) -> pl.DataFrame:
        """The rows of a frame made from `scan`. If a file is damaged or cannot be read, raises StoreError, which names
        it."""
        import polars as pl

        try:
            return frame.collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            for path, reason in self._newly_damaged([spec.name for spec in TABLES]).items():
                raise StoreError(f"{path}: {reason}; run the command again, which leaves it out") from error
            if isinstance(error, OSError):  # others have replaced a file since, or the disk failed for a moment
                raise StoreError(f"cannot read {self.root}: {str(error).splitlines()[0]}; run it again") from error
            raise

    def sql(self, query: str, *, unsafe: bool = False) -> ArrowAnswer:
        """The answer to an SQL query over the tables: an Arrow table that shows itself. Raises QueryError.

        Read-only, with no access to anything outside the store, unless `unsafe`. A file that is damaged inside is
        skipped; with `unsafe`, where a statement may have had effects, StoreError names it.
        """
        from .readers.answer import ArrowAnswer

        return ArrowAnswer(cast("pa.Table", self._asked(query, lambda one: one.run(query), unsafe=unsafe)))

    def answer(self, query: str, *, unsafe: bool = False) -> query.Answer:
        """As `sql`, but an answer of only numbers, texts and truth values is `query.Plain`, which needs no pyarrow."""
        return self._asked(query, lambda one: one.run(query, plain=True), unsafe=unsafe)

    def stream(self, query: str, read: Callable[[query.Stream], T]) -> T:
        """What `read` makes of the answer to an SQL query, which it reads part by part, so that memory does not grow.

        Only one statement, with the rights of `sql`. `read` begins again where a file went while it read. Raises
        QueryError.
        """
        return self._asked(query, lambda one: one.stream(query, read))

    def ready(self, tables: Iterable[str]) -> None:
        """Prepare for queries over these tables, once for all: each query over another table prepares anew."""
        with self._querying:
            self._kept, _ = self._connected(set(tables), unsafe=False)

    def _asked(self, query: str, ask: Callable[[query.Connection], T], *, unsafe: bool = False) -> T:
        from .readers import query as sql

        for _ in range(_TRIES):
            with self._querying:
                kept, rows = self._connected(set(sql.mentioned(query, unsafe=unsafe)), unsafe=unsafe)
                try:
                    return ask(kept)
                except QueryError as error:
                    if sql.at_fault(error) and (unsafe or _all_there(rows.values())):
                        raise
                    damaged = self._newly_damaged(rows)
                    for path, reason in damaged.items() if unsafe else ():
                        raise StoreError(f"{path}: {reason}; run the command again, which leaves it out") from error
                    if unsafe or (_all_there(rows.values()) and not damaged):
                        raise
                finally:
                    if unsafe:
                        kept.close()
                    else:
                        self._kept = kept
        raise self._too_fast()

    def _connected(self, names: set[str], *, unsafe: bool) -> tuple[query.Connection, dict[str, reading.Rows]]:
        """A connection to DuckDB that has the rows of this moment: the kept one if its files are still the same."""
        from .readers import query as sql

        for _ in range(_TRIES):
            kept, self._kept = self._kept, None
            made = None
            if kept is None:
                made = sql.Connection(unsafe=unsafe, share=self.share)
            rows = self._rows(sorted(names), made.look if made else None, trusting=True)
            try:
                if not unsafe and kept is not None and kept.serves(rows):
                    kept.refresh(rows)
                    return kept, rows
                if kept is not None:
                    kept.close()
                    rows |= {} if unsafe else self._rows(sorted(kept.tables - names), trusting=True)
                made = made or sql.Connection(unsafe=unsafe, share=self.share)
                made.furnish(rows)
            except (FileNotFoundError, QueryError) as error:
                if _all_there(rows.values()) and not self._newly_damaged(rows):
                    raise QueryError(str(error)) from error
            else:
                return made, rows
        raise self._too_fast()

    def _too_fast(self) -> StoreError:
        return StoreError(f"the files of {self.root} change faster than they can be read; run the command again")

    def _newly_damaged(self, names: Iterable[str]) -> dict[Path, str]:
        """After reading failed, find the files of some tables that are damaged inside. They are skipped from now on."""
        found = {}
        for name in names:
            for path in self.files(name):
                with contextlib.suppress(FileNotFoundError):
                    when, reason = stamp(path), damage(path)
                    if reason is not None:
                        found[path] = f"it is damaged ({reason}); restore it from a backup or move it out of the store"
                        self._damaged[path] = when, found[path]
                        forget(path, name)
                        self.skip(path, found[path])
        return found


def _pace(offline: bool) -> replacing.Pace | None:
    """How long a replacement of files waits for readers; None: as the file system needs it."""
    return replacing.OFFLINE if offline else None


def _all_there(rows: Iterable[reading.Rows]) -> bool:
    """Whether no file was replaced by others since these rows were listed."""
    return all(files.is_seen(path) for one in rows for path in one.files)


def _has_duckdb() -> bool:
    return importlib.util.find_spec("duckdb") is not None


def _ours(name: str) -> bool:
    """Whether an interrupted `create` can have left a file or folder of this name."""
    own = {spec.name for spec in (*TABLES, *BOOKKEEPING)} | {
        CATALOG,
        commits.PENDING,
        commits.LOCK,
        placing.LOCK,
        _ABOUT,
    }
    return name in own or name.startswith(files.TEMPORARY)


def missing_folders(root: Path) -> list[Path]:
    """The folders of tables that a store had when it was made, and has not."""
    return [folder for spec in TABLES if not (folder := root / spec.name).is_dir()]


def _half_made(root: Path) -> bool:
    """Whether `create` was interrupted here: the folder holds what it writes first, and no facts."""
    if not root.is_dir() or not any(root.iterdir()) or not all(_ours(p.name) for p in root.iterdir()):
        return False
    return all(path.name == _EMPTY for spec in TABLES for path in (root / spec.name).rglob("*.parquet"))


@functools.cache
def _frame_schema(name: str) -> pl.Schema:
    """The columns of a table as Polars has them: to make them takes as long as the rest of a scan."""
    import polars as pl

    return cast("pl.DataFrame", pl.from_arrow(arrow_schema(name).empty_table())).schema


def _furnish(root: Path, created: object, keep: object = None) -> None:
    """Write what a store holds besides facts. `store.toml` comes last: it makes the folder a store."""
    from .. import __version__

    for spec in (*TABLES, *BOOKKEEPING):
        writing.replace_parquet(root / spec.name / _EMPTY, spec, arrow_schema(spec.name).empty_table())
    if _has_duckdb():
        from .readers import catalog

        catalog.write(root)

    about = (
        "# A whorl store: append-only tables. `whorl schema` explains every column.\n"
        f"format = {FORMAT}\n"
        f'created_by = "whorl {__version__}"\n'
        f"created = {_toml_string(str(created))}\n"
        'time_zone = "UTC"\n'
        f"place = {_toml_string(str(root.resolve()))}  # where the views of whorl.duckdb point\n"
    )
    if keep is not None:
        about += f"keep = {_toml_string(str(keep))}  # how long telemetry stays at full rate\n"
    files.write_bytes(root / _ABOUT, about.encode())


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _root(path: str | Path) -> Path:
    """The folder of a store. Raises StoreError for a path that DuckDB or Arrow cannot take."""
    root = Path(path)
    full = str(root.absolute())
    if "\\" in full or full != full.encode(errors="replace").decode():
        raise StoreError(f"{full!r} cannot hold a store: choose a path in UTF-8 and without a backslash")
    return root


def _damaged(about: Path, reason: str) -> StoreError:
    return StoreError(
        f"{about} is damaged ({reason}); restore it from a backup, or copy the table folders into a new store"
    )


def made_at(root: Path) -> str | None:
    """When the store at `root` was made, as it says: the same on all machines. None where it says nothing."""
    try:
        created = tomllib.loads(files.read_small(root / _ABOUT)).get("created")
    except (OSError, ValueError, RecursionError):
        return None
    return created if isinstance(created, str) and created != "unknown" else None
