"""The tables of a store in open table logs, so that Spark, Trino, Databricks, Polars and DuckDB read them as tables.

A log names the files of a table that count; no file is copied. Each table of a store is a table of its own in the log,
and moves from one state to the next in one version: what readers of the store saw of its sealed files at one instant.
Rows in journals are not in it. Rows that replace others are in the log's table `late` until a compaction puts them in
place. `replacing` keeps replaced files until the log has moved on.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from . import file_names, folder, parquet, replacing, snapshot
from .parquet import WRITTEN
from .replacing import Compactor, LogStatus, TableLog
from .schema import COLUMNS, FORMAT, LATE, LATEST, REPLACED, TABLES, TELEMETRY, Table, arrow_schema
from .system import files

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import CreateTableTransaction
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.metadata import TableMetadata

    from .store import Store

_WAIT_S = 60.0
_TABLES = (*(spec for spec in TABLES if spec != LATEST), LATE)
"""Tables that are in logs, in the order of their versions. The files of `latest` hold more rows than count. A row that
goes from `late` into telemetry stays in `late` until telemetry has it: who reads `late` first misses none."""
_DAY = "day"  # a column of Delta tables that is in no file


@dataclass
class LoggedTable:
    """A table in a log: its files, how many came and went with this version, and what engines open."""

    table: str
    location: str
    files: int
    added: int = 0
    removed: int = 0


@dataclass
class MovedOn:
    """A log whose tables are those of the store, where there is no `failure`."""

    log: str
    tables: list[LoggedTable] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    """Files that are damaged and not in the log, with the reason."""
    failure: str | None = None
    """Why the log could not be brought to the files of the store."""
    has_library: bool = True
    status: LogStatus | None = None
    """Replaced files that stay for the log, and since when."""


class LibraryError(StoreError):
    """The library that a log needs is not installed."""


def register(store: Store, log: str, *, progress: Callable[[str], None] = lambda _: None) -> MovedOn:
    """Bring a log ("delta" or "iceberg") to the files of the store, one version for each table that changed.

    Where the store has no such log it is made. A process that is killed leaves each table at one version or the next.
    `progress` is called with the table that is next. Raises StoreError, also where another process replaces files, or
    brings a log up to date.
    """
    root = store.root
    tables = _KINDS[log](root)
    tables.check()
    with files.readable(root), Compactor(root, replacing.pace_of(root), wait_s=_WAIT_S) as compactor:
        place = str(root.resolve())
        before = compactor.note.logs.get(log)
        if before is None:
            before = TableLog(place=place)
            compactor.set_log(log, before)  # from here on no file goes that the log is about to name
            folder.write_views(root, folder.read_about(root))  # those of an older store would read the log's own files
        elif tables.bound_to_place and before.place != place:
            tables.forget()
        listing = snapshot.take(root, [spec.name for spec in _TABLES], store.skip)
        sound = {spec: store.sound(spec.name, listing.files[spec.name]) for spec in _TABLES}
        moved = MovedOn(log, unreadable=[f"{path}: {reason}" for path, reason in store.skipped.items()])
        for spec, paths in sound.items():
            progress(spec.name)
            compactor.beat()
            try:
                moved.tables.append(tables.move_on(spec, paths))
            except StoreError:
                raise
            except Exception as error:  # those of SQLAlchemy, Avro, pydantic and the libraries have no class in common
                raise _failed(root, log, tables.place_of(spec), error) from error
        now_s = files.clock(root / REPLACED.name)
        released = {name: before.released.get(name, now_s) for name in compactor.note.old}
        compactor.set_log(log, TableLog(now_s, released, place))
    return moved


def move_on(store: Store, *, progress: Callable[[str], None] = lambda _: None) -> list[MovedOn]:
    """Bring every log that the store has to its files, as `register`; one that cannot is there with its failure."""
    root = store.root
    moved: list[MovedOn] = []
    with files.readable(root):
        for log in sorted(_KINDS.keys() & replacing.newest_note(root).logs.keys()):
            try:
                moved.append(register(store, log, progress=progress))
            except StoreError as error:
                moved.append(MovedOn(log, failure=str(error), has_library=not isinstance(error, LibraryError)))
        states = {state.log: state for state in replacing.statuses(root, replacing.newest_note(root))}
    for moved_log in moved:
        moved_log.status = states.get(moved_log.log)
    return moved


def forget(root: Path, log: str) -> None:
    """Remove a log, so that compaction no longer keeps files for it. The store's own files stay. Raises StoreError."""
    with files.readable(root):
        if log not in replacing.newest_note(root).logs:
            raise StoreError(f"{root} has no {log} log")
    try:
        with Compactor(root, replacing.pace_of(root), wait_s=_WAIT_S) as compactor:
            _KINDS[log](root).forget()
            compactor.set_log(log, None)
    except OSError as error:
        raise files.failed("remove", Path(error.filename or root), error) from error


# -- what a log says of a file -------------------------------------------------------------------------------------


def _load(library: str, log: str) -> None:
    try:
        importlib.import_module(library)
    except ImportError as error:
        raise LibraryError(
            f"{library} is not installed, which the {log} log needs: pip install 'whorl[{log}]'"
        ) from error


# -- Delta ---------------------------------------------------------------------------------------------------------


class _Delta:
    """`TABLE/_delta_log` of each table. Paths in it are relative, so a store may be moved and copied."""

    bound_to_place = False

    def __init__(self, root: Path) -> None:
        self.root = root

    def check(self) -> None:
        """Raise LibraryError without the library of the log, and StoreError for a store that it cannot have."""
        _load("deltalake", "delta")
        if "%" in str(self.root.resolve()):  # the library takes it for a URL and finds another folder
            raise StoreError(f"{self.root} can have no Delta log, as its path has a %: choose another path")

    def move_on(self, spec: Table, paths: Sequence[Path]) -> LoggedTable:
        """Make a version of a table that has these files, where the newest has not.

        Raises StoreError, and what the library raises.
        """
        from deltalake import DeltaTable, Schema
        from deltalake.transaction import create_table_with_add_actions

        place = self.root / spec.name
        in_folder = {path.relative_to(place).as_posix(): path for path in paths}
        schema = Schema.from_arrow(_delta_schema(spec))
        days = [_DAY] if spec.partitioned else []
        files.make_folder(self.place_of(spec))
        before = {*files.names_in(self.place_of(spec))}
        if not any(_VERSION.fullmatch(name) for name in before):
            added = [_addition(name, path) for name, path in in_folder.items()]
            create_table_with_add_actions(
                str(place), schema, added, mode="error", partition_by=days, name=spec.name,
                description=f"one row: {spec.row}", configuration={"delta.deletedFileRetentionDuration": _LONG},
            )  # fmt: skip
            _make_durable(self.place_of(spec), before)
            return LoggedTable(spec.name, str(place), len(added), len(added))
        latest = DeltaTable(str(place))
        fields = {column.name: column for column in latest.schema().fields}
        if new_fields := [column for column in schema.fields if fields.get(column.name) != column]:
            latest.alter.add_columns(new_fields)
            latest = DeltaTable(str(place))
        removals = _removals(latest)
        added = [_addition(name, path) for name, path in in_folder.items() if name not in removals]
        removed = [removal for name, removal in removals.items() if name not in in_folder]
        if added or removed:
            latest.create_write_transaction([*removed, *added], "append", schema, days)
        _make_durable(self.place_of(spec), before)
        return LoggedTable(spec.name, str(place), len(paths), len(added), len(removed))

    def place_of(self, spec: Table) -> Path:
        """Where the log of a table is."""
        return self.root / spec.name / file_names.DELTA_LOG

    def forget(self) -> None:
        """Remove all that the log consists of. Raises OSError."""
        for spec in _TABLES:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.place_of(spec))


_VERSION = re.compile(r"\d{20}\.json")
_LONG = "interval 30 days"  # others that clean the log up keep every file that whorl may not have added yet


def _delta_schema(spec: Table) -> pa.Schema:
    import pyarrow as pa

    schema = arrow_schema(spec.name).remove_metadata()
    return schema.append(pa.field(_DAY, pa.date32())) if spec.partitioned else schema


def _removals(latest: DeltaTable) -> dict[str, RemoveAction]:
    """The files of a version, by their paths in the table's folder, each with what removes it."""
    import pyarrow as pa
    from deltalake.transaction import RemoveAction

    now_ms = time.time_ns() // 10**6
    actions = pa.table(latest.get_add_actions(flatten=True))
    columns = [actions[name].to_pylist() for name in ("path", "size_bytes")]
    day_column = f"partition.{_DAY}"
    by_days = day_column in actions.column_names
    days = actions[day_column].to_pylist() if by_days else [None] * len(actions)
    return {
        path: RemoveAction(path, True, now_ms, size, {_DAY: day and day.isoformat()} if by_days else {})
        for path, size, day in zip(*columns, days, strict=True)
    }


def _addition(name: str, path: Path) -> AddAction:
    """What a Delta log says of a file, whose path in the table's folder is `name`. Raises OSError."""
    import numpy as np
    from deltalake.transaction import AddAction

    status = path.stat()
    statistics: dict[str, Any] = {"numRecords": parquet.rows_in(path)}
    day, stated = _date_of(path.parent.name), file_names.parse(path.name)
    if day is not None and stated is not None:  # so that a bound in time leaves out files
        ends = {"minValues": stated.bounds.first_us, "maxValues": stated.bounds.last_us}
        statistics |= {key: {"ts": str(np.datetime64(us, "us"))} for key, us in ends.items()}
    made_ms = status.st_mtime_ns // 10**6
    values = {_DAY: day} if "/" in name else {}
    return AddAction(name, status.st_size, values, made_ms, True, json.dumps(statistics))


def _date_of(day_folder: str) -> str | None:
    """The date of the folder of a day; None of one beyond the years 1 to 9999, which few engines read."""
    text = day_folder.removeprefix("day=")
    return text if _DATE.fullmatch(text) else None


_DATE = re.compile(r"(?!0000)\d{4}-\d\d-\d\d")


# -- Iceberg -------------------------------------------------------------------------------------------------------


class _Iceberg:
    """`iceberg/`: a catalogue in SQLite with a table `whorl.NAME` for each table of the store, and their metadata.

    Paths in it are absolute: of a store that was moved or copied the log is made anew. Methods as those of `_Delta`.
    """

    bound_to_place = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folder = root.resolve() / replacing.ICEBERG

    def check(self) -> None:
        _load("pyiceberg.catalog.sql", "iceberg")
        if _NO_LOCATION.search(str(self._folder)):
            raise StoreError(f"{self.root} can have no Iceberg log, as its path has a %, ? or #: choose another path")
        if self._folder.exists() and not files.own(self._folder):  # its metadata may name classes to load
            raise StoreError(f"another user made the Iceberg log of {self.root}, and only that user can continue it")

    def move_on(self, spec: Table, paths: Sequence[Path]) -> LoggedTable:
        by_location = {f"file://{path.resolve()}": path for path in paths}
        place = self._folder / spec.name / "metadata"
        before = {*files.names_in(place)}
        with self._catalog() as catalog:
            name = f"whorl.{spec.name}"
            latest = catalog.load_table(name) if catalog.table_exists(name) else None
            data_files = (
                {} if latest is None else {task.file.file_path: task.file for task in latest.scan().plan_files()}
            )
            added = [(location, path) for location, path in by_location.items() if location not in data_files]
            removed = [data_file for location, data_file in data_files.items() if location not in by_location]
            is_current = latest is not None and latest.properties.get(_COLUMNS) == _GENERATION
            if added or removed or latest is None or not is_current:
                version = self._begun(catalog, spec) if latest is None else latest.transaction()
                if not is_current:
                    with version.update_schema() as columns:
                        columns.union_by_name(_iceberg_schema(spec))
                    version.set_properties({_COLUMNS: _GENERATION})
                with version.update_snapshot().overwrite() as changes:
                    for data_file in removed:
                        changes.delete_data_file(data_file)
                    for location, path in added:
                        changes.append_data_file(_data_file(version.table_metadata, location, path))
                version.commit_transaction()
                _expire(catalog.load_table(name))
                latest = catalog.load_table(name)
                _make_durable(place, before)
                hint = Path(latest.metadata_location).name.removesuffix(".metadata.json")
                files.put(place / "version-hint.text", hint.encode())  # for engines that open the folder of the table
            location = latest.metadata_location.removeprefix("file://")
        return LoggedTable(spec.name, location, len(paths), len(added), len(removed))

    def forget(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

    def place_of(self, spec: Table) -> Path:  # noqa: ARG002 - one catalogue has all tables
        return self._folder

    @contextlib.contextmanager
    def _catalog(self) -> Iterator[SqlCatalog]:
        """The catalogue, made if it is missing."""
        from pyiceberg.catalog.sql import SqlCatalog

        self._folder.mkdir(mode=0o755, exist_ok=True)
        place = f"sqlite:///{self._folder / 'catalog.db'}"
        with contextlib.closing(SqlCatalog("whorl", uri=place, warehouse=f"file://{self._folder}")) as catalog:
            catalog.create_namespace_if_not_exists("whorl")
            yield catalog

    def _begun(self, catalog: SqlCatalog, spec: Table) -> CreateTableTransaction:
        """A new table without files, to be committed."""
        from pyiceberg.transforms import DayTransform

        properties = {
            "format-version": "2",
            "comment": f"one row: {spec.row}",
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "20",
        }
        place = f"file://{self._folder / spec.name}"
        version = catalog.create_table_transaction(
            f"whorl.{spec.name}", _iceberg_schema(spec), location=place, properties=properties
        )
        if spec.partitioned:
            with version.update_spec() as partitions:
                partitions.add_field("ts", DayTransform(), _DAY)
        mapping = version.table_metadata.schema().name_mapping  # files of Parquet have names, and no ids of Iceberg
        version.set_properties({"schema.name-mapping.default": mapping.model_dump_json()})
        return version


_NO_LOCATION = re.compile(r"[%?#]")
_STALE_S = 86_400
_COLUMNS = "whorl.columns"  # a property of tables: which generation of columns they have
_GENERATION = f"{FORMAT}/{COLUMNS}"


def _iceberg_schema(spec: Table) -> pa.Schema:
    """The columns of a table, and of telemetry one more that files may have: readers need every column of a file."""
    import pyarrow as pa

    schema = arrow_schema(spec.name).remove_metadata()
    return schema.append(pa.field(WRITTEN, pa.int64())) if spec == TELEMETRY else schema


def _data_file(about: TableMetadata, location: str, path: Path) -> DataFile:
    """What an Iceberg log says of a file. Raises OSError.

    pyiceberg's own functions (`add_files`) take 2.5 times the CPU, warn of each column without statistics, and fail at
    times beyond the years 1 to 9999.
    """
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    day = file_names.day_number(path.parent.name) if _date_of(path.parent.name) else None
    return DataFile.from_args(
        content=DataFileContent.DATA, file_path=location, file_format=FileFormat.PARQUET,
        partition=Record(day) if about.spec().fields else Record(), spec_id=about.default_spec_id,
        record_count=parquet.rows_in(path), file_size_in_bytes=path.stat().st_size,
    )  # fmt: skip


def _expire(latest: IcebergTable) -> None:
    """Forget versions of a table that are a day old, whose files are gone, and remove what only they need."""
    limit, current = datetime.now(UTC) - timedelta(seconds=_STALE_S), latest.current_snapshot()
    versions = [past for past in latest.snapshots() if current is None or past.snapshot_id != current.snapshot_id]
    if not any(past.timestamp_ms < limit.timestamp() * 1000 for past in versions):
        return
    latest.maintenance.expire_snapshots().older_than(limit).commit()
    staying = latest.snapshots()
    stale = [past for past in versions if past not in staying]
    needed = {manifest.manifest_path for past in staying for manifest in past.manifests(latest.io)}
    unneeded = {manifest.manifest_path for past in stale for manifest in past.manifests(latest.io)} - needed
    for location in [*unneeded, *(past.manifest_list for past in stale)]:
        latest.io.delete(location)


# -- files of logs -------------------------------------------------------------------------------------------------


def _make_durable(place: Path, before: Container[str]) -> None:
    """Make new files in a folder durable: libraries leave that to the system. Raises OSError."""
    for name in files.names_in(place):
        if name not in before:
            with files.opened(place / name) as file:
                os.fsync(file.fileno())
    files.sync_folder(place)


def _failed(root: Path, log: str, place: Path, error: Exception) -> StoreError:
    """The sentence for a library that failed; some give no number of the error, or lines in colours."""
    kind = type(error).__name__
    if kind in ("CommitFailedError", "CommitFailedException"):
        return StoreError(f"somebody else wrote to {place} just now: run the command again")
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, FileNotFoundError):
        return files.failed("write", place, error)
    text = " ".join(re.sub(r"\x1b\[\d*m|↳", "", str(error).split("\n[SQL")[0]).split())
    if kind == "OperationalError" or (isinstance(error, OSError) and error.errno is None):  # of SQLite: no space
        return StoreError(
            f"cannot write {place} ({text}): the store has everything; see that there is space and that nobody else "
            "writes the log, and run the command again"
        )
    return StoreError(
        f"the {log} log in {place} cannot be continued ({text or kind}): remove it with `whorl store register --store "
        f"{root} --forget {log}`, and make it anew with --{log}"
    )


_KINDS: Mapping[str, type[_Delta] | type[_Iceberg]] = {"delta": _Delta, "iceberg": _Iceberg}
