"""A store: a folder of tables that many processes append to and anything can read.

fleet/
  store.toml       format, who made it, when, time zone, where the views point
  whorl.duckdb     views and macros for any DuckDB client (see `catalog`)
  TABLE/*.parquet  immutable files that appear whole (see `files`)
  pending/         commits under way
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FormatError, QueryError, StoreError
from . import files
from .schema import CATALOG, FORMAT, TABLES, arrow_schema, table
from .soundness import columns as columns_of
from .soundness import damage, reason_to_skip

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

log = logging.getLogger(__name__)

_ABOUT = "store.toml"
_EMPTY = "_schema.parquet"


class Store:
    """A store opened for reading and appending.

    Reading gives Arrow (`arrow`), Polars (`scan`, lazy) or the answer to SQL (`sql`). A file that is torn,
    not whorl's, or of a newer format is skipped: a warning names it, and `skipped` lists it with the reason.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.skipped: dict[Path, str] = {}

    # -- opening ------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """The store at `path`. Raises StoreError where there is none, FormatError where a newer whorl made it."""
        root = _root(path)
        about = root / _ABOUT
        try:
            text = about.read_text(encoding="utf-8")
        except FileNotFoundError:
            if _half_made(root):
                raise StoreError(
                    f"{root} is a store that was interrupted while it was made; run the command that made it again"
                ) from None
            what = "there is nothing there" if not root.exists() else f"it holds no {_ABOUT}"
            raise StoreError(f"{root} is not a store ({what}); `whorl import --store {root} FILES` makes one") from None
        except OSError as error:
            raise files.failed("read", about, error) from error
        except UnicodeDecodeError as error:
            raise _damaged(about, "it is not UTF-8 text") from error
        try:
            known = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise _damaged(about, str(error)) from error
        version = known.get("format")
        if type(version) is not int or version < 1:
            raise _damaged(about, "it states no format")
        if version > FORMAT:
            raise FormatError(
                f"{root} has format {version}, made by {known.get('created_by', 'a newer whorl')}; this whorl "
                f"reads up to format {FORMAT}: install a newer whorl"
            )
        store = cls(root)
        files.recover(root)
        if not (store._views_point_here(known.get("place")) and store._shaped()):
            try:
                store._furnish(known.get("created", "unknown"))
            except StoreError as error:
                log.warning("%s; until then other DuckDB clients may read %s", error, known.get("place"))
        return store

    @classmethod
    def create(cls, path: str | Path) -> Store:
        """The store at `path`, made where there is none. Raises StoreError where it cannot be made."""
        root = _root(path)
        if (root / _ABOUT).exists():
            return cls.open(root)
        if root.exists() and not root.is_dir():
            raise StoreError(f"{root} is a file; a store is a folder: choose another path")
        if root.is_dir() and not all(_ours(p.name) for p in root.iterdir()):
            raise StoreError(f"{root} holds other things and no {_ABOUT}; choose an empty or a new folder for a store")
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.failed("make", root, error) from error
        store = cls(root)
        store._furnish(datetime.now(UTC).isoformat(timespec="seconds"))
        return store

    def _furnish(self, created: object) -> None:
        """Write what a store holds besides facts. `store.toml` comes last: with it, the store exists."""
        from .. import __version__

        for spec in TABLES:
            files.replace_parquet(self.root / spec.name / _EMPTY, spec, arrow_schema(spec.name).empty_table())
        if _has_duckdb():
            from . import catalog

            catalog.write(self.root)

        about = (
            "# A whorl store: append-only tables. `whorl schema` explains every column.\n"
            f"format = {FORMAT}\n"
            f'created_by = "whorl {__version__}"\n'
            f"created = {_toml_string(str(created))}\n"
            'time_zone = "UTC"\n'
            f"place = {_toml_string(str(self.root.resolve()))}  # where the views of whorl.duckdb point\n"
        )
        files.write_bytes(self.root / _ABOUT, about.encode())

    def _views_point_here(self, place: object) -> bool:
        if not _has_duckdb():
            return True  # a compute node that only appends: the next command with DuckDB sees to the views
        if not isinstance(place, str) or not (self.root / CATALOG).exists():
            return False
        try:
            return Path(place).samefile(self.root)
        except OSError:
            return False

    def _shaped(self) -> bool:
        """Whether every table has its sound, empty file, without which other DuckDB clients cannot read it."""
        try:
            return all(reason_to_skip(path, name) is None for path, name in self._empty_files())
        except OSError:
            return False

    def _empty_files(self) -> list[tuple[Path, str]]:
        return [(self.root / spec.name / _EMPTY, spec.name) for spec in TABLES]

    # -- writing ------------------------------------------------------------------------------------------

    def append(self, rows: Mapping[str, pa.Table], name: str) -> list[Path]:
        """Append rows to several tables at once, all or nothing, and return the files that were made.

        `rows` maps a table's name to an Arrow table whose columns are some of that table's. `name` names the
        files and must be unique to the content. Raises StoreError where writing fails; see `files.commit`.
        """
        return files.commit(self.root, {table(key): data for key, data in rows.items() if len(data)}, name)

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        """A lock for those who append only what the store lacks: it is held from the look to the append."""
        return files.exclusive(self.root)

    def writable(self) -> bool:
        """Whether this user may append to the store."""
        return all(os.access(self.root / spec.name, os.W_OK | os.X_OK) for spec in TABLES)

    # -- reading ------------------------------------------------------------------------------------------

    def files(self, name: str) -> list[Path]:
        """The sound files of a table, the empty one first. Skipped files are logged and kept in `skipped`."""
        good = []
        for path in sorted((self.root / name).rglob("*.parquet"), key=lambda p: (p.name != _EMPTY, p)):
            try:
                reason = reason_to_skip(path, name)
            except OSError as error:
                reason = f"it cannot be read ({error.strerror}); see to it or move it out of the store"
            if reason is None:
                good.append(path)
            elif path not in self.skipped:
                self.skipped[path] = reason
                log.warning("skipped %s: %s", path, reason)
        return good

    def check(self) -> dict[Path, str]:
        """Read every file of every table, checksums included; returns the unsound ones with the reason.

        Slow: it reads the whole store. Reading through `sql` and `scan` notices damage inside a file only where
        the file cannot be decoded; this notices every changed byte of data, as does `arrow`.
        """
        found = {}
        for spec in TABLES:
            for path in self.files(spec.name):
                reason = damage(path)
                if reason is not None:
                    found[path] = f"{reason}; restore it from a backup or move it out of the store"
        return self.skipped | found

    def arrow(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """A table as Arrow, in memory. Raises StoreError, which names the file, where one is damaged inside."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        verified = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        )
        paths = [str(path.absolute()) for path in self.files(name)]
        try:
            return ds.dataset(paths, schema=arrow_schema(name), format=verified).to_table(columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise self._damage() or error from error

    def scan(self, name: str) -> pl.LazyFrame:
        """A table as a lazy Polars frame; a column that a file lacks is null.

        `Store.collect` collects it with a sentence where a file is damaged inside; Polars' own `collect` raises
        `polars.exceptions.PolarsError` then.
        """
        import polars as pl

        spec = table(name)
        paths = [path.absolute() for path in self.files(name)]
        if not paths:
            return pl.DataFrame(arrow_schema(name).empty_table()).lazy()
        return pl.scan_parquet(
            paths, glob=False, missing_columns="insert", extra_columns="ignore", hive_partitioning=False
        ).select(spec.names)

    def collect(self, frame: pl.LazyFrame) -> pl.DataFrame:
        """The rows of a frame made from `scan`. Raises StoreError, which names the file, where one is damaged."""
        import polars as pl

        try:
            return frame.collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise self._damage() or error from error

    def sql(self, query: str, *, unsafe: bool = False) -> pa.Table:
        """The answer to an SQL query over the tables, as Arrow. Raises QueryError.

        Read-only, with no access to anything outside the store, unless `unsafe`. Raises StoreError, which names
        the file, where one is damaged inside.
        """
        from . import query as sql

        sound = {spec.name: [path.resolve() for path in self.files(spec.name)] for spec in TABLES}
        try:
            with contextlib.closing(sql.connect(sound, columns_of, unsafe=unsafe)) as connection:
                return sql.run(connection, query, unsafe=unsafe)
        except QueryError as error:
            if sql.at_fault(error):
                raise
            raise self._damage() or error from error

    def _damage(self) -> StoreError | None:
        """The sentence for a damaged file, if one explains that reading failed."""
        for spec in TABLES:
            for path in self.files(spec.name):
                reason = damage(path)
                if reason is not None:
                    return StoreError(
                        f"{path}, a file of table {spec.name}, is damaged: {reason}; restore it "
                        f"from a backup or move it out of the store"
                    )
        return None


def _has_duckdb() -> bool:
    return importlib.util.find_spec("duckdb") is not None


def _ours(name: str) -> bool:
    """Whether an interrupted `create` may have left this name in a folder."""
    own = {spec.name for spec in TABLES} | {CATALOG, files.PENDING, files.LOCK, _ABOUT}
    return name in own or name.startswith(files.TEMPORARY)


def _half_made(root: Path) -> bool:
    """Whether `create` was interrupted here: the folder holds what it writes first, and no facts."""
    if not root.is_dir() or not any(root.iterdir()) or not all(_ours(p.name) for p in root.iterdir()):
        return False
    return all(path.name == _EMPTY for spec in TABLES for path in (root / spec.name).rglob("*.parquet"))


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
