"""The Parquet files of a store: encoded whole, written once, and verified by whoever first reads them.

The name of a file ends in a check sum of its content, so one changed bit anywhere is found before a value is believed.
A sound file is remembered by its size, time of change and inode, in this process and, where this user may write, in
`verified.log` of the store.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from . import file_names
from .formats import other_format
from .schema import DERIVED, TELEMETRY, Column, Table, arrow_schema
from .system import files

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

WRITTEN = "written"
"""A column of ns since 1970 that rows have until no other writer can contradict them."""

_SPECIAL = re.compile(r"([\[*?])")
_LOG = "verified.log"
_MOST_LOG = 1 << 24  # bytes
_PIECE = 1 << 22
_LARGE = 1 << 30  # bytes
# Rows: DuckDB gives a group to one thread, and for the rows of one GPU it decodes a whole group.
_ROW_GROUP = 61_440
_DIFFERENCES = "DELTA_BINARY_PACKED"
_HARDLY_REPEATED = {"mW", "mJ", "degC", "B/s", "us", "ns"}  # units
_FRESH = {"compression": "zstd", "compression_level": 3}
_COLD = {"compression": "zstd", "compression_level": 12}

Stamp = tuple[int, int, int]
"""Size, time of change (ns) and inode of a file. Files are never changed in place, so it names their content."""


def pattern(path: Path | str) -> str:
    """`path` for `read_parquet`, escaped so that it names one file."""
    return _SPECIAL.sub(r"[\1]", str(path))


def encode(spec: Table, rows: pa.Table, *, codec: str = "fresh", about: Mapping[str, str] | None = None) -> bytes:
    """Rows as the content of a file, tuned for their table, with every column of it (and `written`, if they have it).

    `codec`: "fresh" for files that are soon joined with others, "warm" for quick queries, "cold" for what is read
    seldom. `about` is added to the metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = arrow_schema(spec.name)
    names = [*schema.names, *([WRITTEN] if WRITTEN in rows.column_names and WRITTEN not in schema.names else [])]
    filled_names = [name for name in names if name in rows.column_names and rows[name].null_count < len(rows)]
    metadata = {**(schema.metadata or {}), b"whorl.columns": ",".join(filled_names).encode()}
    metadata |= {key.encode(): text.encode() for key, text in (about or {}).items()}
    full_table = complete(spec, rows, names).replace_schema_metadata(metadata)
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(out, full_table.schema, **_codecs(spec, full_table, codec)) as writer:
        writer.write_table(full_table, row_group_size=_ROW_GROUP)
    return bytes(out.getvalue())


def complete(spec: Table, rows: pa.Table, names: Iterable[str] | None = None) -> pa.Table:
    """Rows with every column of their table (or these names) in order; what they lack is NULL."""
    import pyarrow as pa

    schema = arrow_schema(spec.name)
    columns, fields = [], []
    nulls = functools.cache(lambda kind: pa.nulls(len(rows), kind))  # columns of a type share one, which takes memory
    for name in names or schema.names:
        field = schema.field(name) if name in schema.names else pa.field(WRITTEN, pa.int64())
        fields.append(field)
        columns.append(rows[name] if name in rows.column_names else nulls(field.type))
    return pa.table(columns, schema=pa.schema(fields, schema.metadata))


def _codecs(spec: Table, rows: pa.Table, codec: str) -> dict[str, Any]:
    """How the columns are encoded and compressed, as options of Arrow's writer.

    Warm telemetry, and what is derived of it, is written for quick queries: differences uncompressed, other columns
    with LZ4. That takes 1.5 times the space of zstd.
    """
    encoded = {column.name: code for column in spec.columns if (code := _encoding(column))}
    encoded = {name: code for name, code in encoded.items() if name in rows.column_names}
    if WRITTEN in rows.column_names:
        encoded[WRITTEN] = _DIFFERENCES
    nested = [field.name for field in rows.schema if field.type.num_fields]
    dictionary = [name for name in rows.column_names if name not in encoded and name not in nested]
    sorted_by = [*spec.sorted_by[:3], "cluster"]
    options: dict[str, Any] = {
        "use_dictionary": dictionary, "column_encoding": encoded or None,
        "write_statistics": sorted(set(sorted_by) & set(rows.column_names)) or False,
        "max_rows_per_page": _ROW_GROUP, "store_schema": True,
    }  # fmt: skip
    if codec == "warm" and spec in (TELEMETRY, *DERIVED):
        plain = {name for name, code in encoded.items() if code == _DIFFERENCES}
        return options | {"compression": {name: "none" if name in plain else "lz4" for name in rows.column_names}}
    return options | (_COLD if codec == "cold" or spec != TELEMETRY else _FRESH)


def _encoding(column: Column) -> str:
    """How a column is encoded, if not as a dictionary: whole numbers with many values as differences, which every
    engine reads; fractions that hardly repeat as they are."""
    if column.type == "FLOAT" or (column.type == "DOUBLE" and column.unit == "J"):
        return "PLAIN"
    hardly_repeated = column.type == "BIGINT" and (column.kind == "counter" or column.unit in _HARDLY_REPEATED)
    return _DIFFERENCES if hardly_repeated or column.type == "TIMESTAMP" else ""


# -- reading --------------------------------------------------------------------------------------------------


class DamagedError(StoreError):
    """A file is damaged inside: it stays as it is."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}; restore it from a backup or move it out of the store")
        self.reason = reason


def read(path: Path, columns: Iterable[str] | None = None, *, only: Any = None) -> pa.Table:
    """The rows of a verified file: some columns, those that it has; `only` is a filter of `pyarrow.dataset`.

    Columns that hold only NULL are left out unless they are asked for by name. Raises FileNotFoundError and
    DamagedError.
    """
    with _damage_named(path), _opened(path) as file:
        names = {*file.schema_arrow.names}
        chosen = [name for name in (filled_in(file) if columns is None else columns) if name in names]
        if only is None:
            return file.read(columns=chosen, use_threads=False).replace_schema_metadata()
        import pyarrow.dataset as ds  # a collector does without

        dataset = ds.dataset(str(path.absolute()), format="parquet")
        return dataset.to_table(columns=chosen, filter=only, use_threads=False).replace_schema_metadata()


def read_in_turn(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """As `read`, some rows at a time: a large file takes little memory."""
    with _damage_named(path), _opened(path) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns, use_threads=False)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow.parquet as pq

    with files.opened(path) as source, pq.ParquetFile(source) as file:
        yield file


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        raise DamagedError(path, str(error).splitlines()[0] if str(error) else repr(error)) from error


def filled_in(file: pq.ParquetFile) -> list[str]:
    """The columns of a file that are not NULL in every row, as it says."""
    return str((file.metadata.metadata or {}).get(b"whorl.columns", b"").decode()).split(",")


def stated_in(about: Mapping[bytes, bytes] | None) -> tuple[str, str]:
    """The table and the format that the metadata of a file state; "" where they do not."""
    table, version = ((about or {}).get(key, b"") for key in (b"whorl.table", b"whorl.format"))
    return table.decode("utf-8", "replace"), version.decode("utf-8", "replace")


def rows_in(path: Path) -> int:
    """How many rows a verified file has. Raises OSError and pyarrow.ArrowException."""
    import pyarrow.parquet as pq

    with files.opened(path) as source:
        return int(pq.read_metadata(source).num_rows)


# -- verifying ------------------------------------------------------------------------------------------------


def stamp(path: Path) -> Stamp:
    """Size, time of change and inode. Raises OSError."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        reason = "it is a link and not a regular file; put what it leads to in its place"
        raise OSError(errno.EINVAL, reason if stat.S_ISLNK(status.st_mode) else "it is not a regular file")
    return status.st_size, status.st_mtime_ns, status.st_ino


class Verified:
    """Which files of a store are sound: asked of each file before it is read.

    Without `use_log` each is looked at, which takes less than to read what others found where only a few are asked for.
    """

    def __init__(self, root: Path, *, use_log: bool = True) -> None:
        self._root = root
        self._reasons: dict[Path, tuple[Stamp, str | None]] = {}
        self._logged: dict[str, Stamp] | None = None if use_log else {}
        self._fresh: list[str] = []

    def reason(self, path: Path, spec: Table) -> str | None:
        """Why a file cannot be read as part of a table; None if it can. Raises FileNotFoundError."""
        try:
            now = stamp(path)
            then = self._reasons.get(path)
            if then is None or then[0] != now:
                then = now, self._look(path, spec, now)
                self._reasons[path] = then
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                return "this user has no permission to read it"
            return files.unreadable(error)
        return then[1]

    def _look(self, path: Path, spec: Table, now: Stamp) -> str | None:
        file_name = file_names.parse(path.name)
        if file_name is None or file_name.dated != spec.partitioned:
            return f"its name is not one that whorl gives; move it out of {spec.name}/"
        place = path.relative_to(self._root).as_posix()
        if self._log().get(place) == now:
            return None
        crc = file_names.check_sum(spec.name)
        with files.opened(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > _LARGE and status.st_blocks * 512 < status.st_size // 64:  # it would take hours
                return (
                    "it is damaged: most of it was never written; restore it from a backup or move it out of the store"
                )
            while piece := file.read(_PIECE):
                crc = file_names.check_sum(spec.name, piece, crc)
        if crc != file_name.crc:
            return _misfit(path, spec)
        self._fresh.append(f"{place}\t{now[0]}\t{now[1]}\t{now[2]}\n")
        return None

    def _log(self) -> dict[str, Stamp]:
        """What others of this store found sound."""
        if self._logged is None:
            self._logged = {}
            with contextlib.suppress(OSError, ValueError):
                if not files.own(self._root / _LOG):  # another user could vouch for what he made
                    return self._logged
                for line in files.read_small(self._root / _LOG, _MOST_LOG).splitlines():
                    with contextlib.suppress(ValueError):
                        place, *numbers = line.split("\t")
                        size, changed, inode = map(int, numbers)
                        self._logged[place] = size, changed, inode
        return self._logged

    def save(self) -> None:
        """Write down what was found sound, if this user owns the store. A failure costs others a second look."""
        fresh, self._fresh = self._fresh, []
        if not fresh or not files.own(self._root):
            return
        with contextlib.suppress(OSError), files.held(self._root, below=False) as folder:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(_LOG, flags, 0o644, dir_fd=folder)
            try:
                status = os.fstat(handle)
                if stat.S_ISREG(status.st_mode) and status.st_size < _MOST_LOG:
                    os.write(handle, "".join(fresh).encode())
            finally:
                os.close(handle)

    def forget(self, paths: Iterable[Path]) -> None:
        """Look at files anew: one of them could not be read after all."""
        for path in paths:
            self._reasons.pop(path, None)
            if self._logged is not None:
                self._logged.pop(path.relative_to(self._root).as_posix(), None)


def shorten_log(root: Path) -> None:
    """Forget in `verified.log` the files that are gone. For the compactor."""
    with contextlib.suppress(OSError, ValueError):
        lines = files.read_small(root / _LOG, 2 * _MOST_LOG).splitlines(keepends=True)
        kept_lines = [line for line in dict.fromkeys(lines) if (root / line.partition("\t")[0]).exists()]
        if len(kept_lines) < len(lines):
            files.put(root / _LOG, "".join(kept_lines).encode(), below=False)


def _misfit(path: Path, spec: Table) -> str:
    """Why the content of a file of a table is not what its name adds up to."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    damaged = "it is damaged (its content does not fit its name); restore it from a backup or move it out of the store"
    try:
        with files.opened(path) as source:
            belongs, version = stated_in(pq.read_metadata(source).metadata)
    except (OSError, ValueError, OverflowError, MemoryError, pa.ArrowException):
        return damaged
    if belongs != spec.name:
        reason = f"it belongs to table {belongs!r}" if belongs else "whorl did not write it"
        return f"{reason}; move it out of {spec.name}/"
    return other_format(version) or damaged


def looks_whole(path: Path) -> bool:
    """Whether a file begins and ends like a Parquet file: enough for one that can be made again. Raises OSError."""
    with files.opened(path) as file:
        begin, size = file.read(4), file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        end = file.read(8)
    return size >= 12 and begin == end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") <= size - 12


def paths_in(root: Path, spec: Table, bounds: file_names.Bounds) -> Iterator[Path]:
    """The files in a table's folder that can hold rows within the bounds, by their names; no temporary ones, and not
    the empty one.

    Links to folders are among them: as files that cannot be read they are named. Raises OSError.
    """
    folder = root / spec.name
    if not spec.partitioned:
        yield from _paths_in(folder, bounds)
        return
    try:
        with os.scandir(folder) as entries:
            named = [entry for entry in entries if entry.name != file_names.DELTA_LOG]
            days = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in named)
    except FileNotFoundError:
        return
    for day, is_folder in days:
        if is_folder and file_names.bounds_of_day(day).overlap(bounds):
            yield from _paths_in(folder / day, bounds)
        elif not is_folder and (day.startswith("day=") or (day.endswith(".parquet") and day != file_names.EMPTY)):
            yield folder / day


def _paths_in(folder: Path, bounds: file_names.Bounds) -> Iterator[Path]:
    for name in sorted(
        name for name in files.names_in(folder) if _is_table(name) and file_names.may_hold(name, bounds)
    ):
        yield folder / name


def _is_table(name: str) -> bool:
    return name.endswith(".parquet") and name != file_names.EMPTY and not name.startswith(files.TEMPORARY)
