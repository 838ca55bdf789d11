"""A store: a folder of tables that many processes append to and anything can read.

fleet/
  store.toml       format, who made it, when, time zone, where the views point
  whorl.duckdb     views and macros for any DuckDB client (see `catalog`)
  TABLE/*.parquet  immutable files that appear whole (see `files`)
  pending/         commits under way
"""

from __future__ import annotations

import functools
import logging
import os
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FormatError, StoreError
from . import files
from .schema import FORMAT, TABLES, Table, arrow_schema, table

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
        root = Path(path)
        about = root / _ABOUT
        try:
            text = about.read_text(encoding="utf-8")
        except FileNotFoundError:
            what = "there is nothing there" if not root.exists() else f"it holds no {_ABOUT}"
            raise StoreError(f"{root} is not a store ({what}); `whorl import --store {root} FILES` makes one") from None
        except OSError as error:
            raise files.failed("read", about, error) from error
        try:
            known = tomllib.loads(text)
            version = int(known["format"])
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{about} is damaged ({error}); restore it from a backup, or copy the table folders into a new store"
            ) from error
        if version > FORMAT:
            raise FormatError(
                f"{root} has format {version}, made by {known.get('created_by', 'a newer whorl')}; this whorl "
                f"reads up to format {FORMAT}: install a newer whorl"
            )
        store = cls(root)
        files.recover(root)
        if not store._views_point_here(known.get("place")):
            try:
                store._furnish(known.get("created", "unknown"))
            except StoreError as error:
                log.warning("%s; its views still point to %s", error, known.get("place"))
        return store

    @classmethod
    def create(cls, path: str | Path) -> Store:
        """The store at `path`, made where there is none. Raises StoreError where it cannot be made."""
        root = Path(path)
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
        from . import catalog

        for spec in TABLES:
            folder = self.root / spec.name
            try:
                folder.mkdir(exist_ok=True)
                temporary = files.temporary_name(folder / _EMPTY)
                files.write_parquet(temporary, spec, arrow_schema(spec.name).empty_table())
                temporary.replace(folder / _EMPTY)
            except OSError as error:
                raise files.failed("write", folder / _EMPTY, error) from error
        catalog.write(self.root)
        from .. import __version__

        files.write_text(
            self.root / _ABOUT,
            "# A whorl store: append-only tables. `whorl schema` explains every column.\n"
            f"format = {FORMAT}\n"
            f'created_by = "whorl {__version__}"\n'
            f'created = "{created}"\n'
            'time_zone = "UTC"\n'
            f"place = {_toml_string(str(self.root.resolve()))}  # where the views of whorl.duckdb point\n",
        )

    def _views_point_here(self, place: object) -> bool:
        from . import catalog

        if not isinstance(place, str) or not (self.root / catalog.NAME).exists():
            return False
        try:
            return Path(place).samefile(self.root)
        except OSError:
            return False

    # -- writing ------------------------------------------------------------------------------------------

    def append(self, rows: Mapping[str, pa.Table], name: str) -> list[Path]:
        """Append rows to several tables at once, all or nothing, and return the files that were made.

        `rows` maps a table's name to an Arrow table whose columns are some of that table's. `name` names the
        files and must be unique to the content. Raises StoreError where writing fails; nothing is stored then.
        """
        return files.commit(self.root, {table(key): data for key, data in rows.items() if len(data)}, name)

    def writable(self) -> bool:
        """Whether this user may append to the store."""
        return all(os.access(self.root / spec.name, os.W_OK | os.X_OK) for spec in TABLES)

    # -- reading ------------------------------------------------------------------------------------------

    def files(self, name: str) -> list[Path]:
        """The sound files of a table, the empty one first. Skipped files are logged and kept in `skipped`."""
        good = []
        for path in sorted((self.root / name).rglob("*.parquet"), key=lambda p: (p.name != _EMPTY, p)):
            reason = _unsound(path, name, _stamp(path))
            if reason is None:
                good.append(path)
            elif path not in self.skipped:
                self.skipped[path] = reason
                log.warning("skipped %s: %s", path, reason)
        if not good:
            raise StoreError(
                f"{self.root / name} has no readable file, not even {_EMPTY}; open the store once as a user "
                f"who may write there"
            )
        return good

    def check(self) -> dict[Path, str]:
        """Look at every file of every table; returns the unsound ones with the reason."""
        for spec in TABLES:
            self.files(spec.name)
        return self.skipped

    def arrow(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """A table as Arrow, in memory. Raises StoreError where a file turns out to be damaged inside."""
        import pyarrow.dataset as ds

        schema = arrow_schema(name)
        try:
            return ds.dataset(self.files(name), schema=schema, format="parquet").to_table(columns=columns)
        except (OSError, ValueError) as error:
            raise StoreError(f"a file of table {name} in {self.root} is damaged: {error}") from error

    def scan(self, name: str) -> pl.LazyFrame:
        """A table as a lazy Polars frame; a column that a file lacks is null."""
        import polars as pl

        spec = table(name)
        return pl.scan_parquet(
            self.files(name), missing_columns="insert", extra_columns="ignore", hive_partitioning=False
        ).select(spec.names)

    def sql(self, query: str, *, unsafe: bool = False) -> pa.Table:
        """The answer to an SQL query over the tables, as Arrow. Raises QueryError.

        Read-only, with no access to anything outside the store, unless `unsafe`.
        """
        from . import query as sql

        sound = {spec.name: [path.resolve() for path in self.files(spec.name)] for spec in TABLES}
        connection = sql.connect(sound, _columns, unsafe=unsafe)
        try:
            return sql.run(connection, query, unsafe=unsafe)
        finally:
            connection.close()


def _ours(name: str) -> bool:
    """Whether an interrupted `create` may have left this name in a folder."""
    from . import catalog

    own = {spec.name for spec in TABLES} | {catalog.NAME, files.PENDING}
    return name in own or name.startswith(files.TEMPORARY)


def _toml_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of change: files are immutable, so the same stamp means the same content."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=65536)
def _unsound(path: Path, name: str, stamp: tuple[int, int]) -> str | None:  # noqa: ARG001 - part of the key
    """Why a file cannot be read as part of a table, or None where it can."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        return f"it is torn or not a Parquet file ({str(error).splitlines()[0]}); move it out of the store"
    keys = metadata.metadata or {}
    found = keys.get(b"whorl.table", b"").decode("utf-8", "replace")
    if found != name:
        what = f"it belongs to table {found!r}" if found else "whorl did not write it"
        return f"{what}; move it out of {name}/"
    version = keys.get(b"whorl.format", b"").decode("utf-8", "replace")
    if not version.isdigit() or int(version) > FORMAT:
        return f"it has format {version or '?'} and this whorl reads up to {FORMAT}; install a newer whorl"
    return None


@functools.lru_cache(maxsize=65536)
def _columns(path: Path) -> set[str]:
    import pyarrow.parquet as pq

    return set(pq.read_schema(path).names)


__all__ = ["Store", "Table"]
