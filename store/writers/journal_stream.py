"""One file of a journal, open for appending. A write that fails is taken back."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import StoreError
from ..rows import journal_file, placing
from ..system import files

if TYPE_CHECKING:
    import pyarrow as pa


class Stream:
    """One part of a journal, open for appending."""

    def __init__(
        self, path: Path, table: str, number: int, columns: list[str], gpus: set[tuple[Any, Any]],
        writer: journal_file.Writer,
    ) -> None:  # fmt: skip
        self.path, self.table, self.number, self.gpus = path, table, number, gpus
        self.schema = journal_file.schema_of(table, columns, writer, placing.as_text(placing.hashes(gpus)))
        self.columns = self.schema.names[:-2]
        unknown = set(columns) - set(self.columns)
        if unknown:
            raise StoreError(f"table {table} has no column {', '.join(sorted(unknown))}")
        self._seen: tuple[list[str], list[pa.Array]] | None = None
        self.broken = False
        self.behind = False  # whether something was written since the last flush ended or began
        try:
            self.handle = files.create(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise failed_append(path, error) from error
        try:
            _write(self.handle, self.schema.serialize())
            self._good = self._end = os.fstat(self.handle).st_size
            files.sync(self.handle)
            files.sync_folder(path.parent)
        except OSError as error:
            self.close()
            files.remove(path)
            raise failed_append(path, error) from error

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether the header names every column and GPU of the batch."""
        if self.broken:
            return False
        names = batch.schema.names
        who = [batch.column(i) for i, name in enumerate(names) if name in ("cluster", "gpu")]
        seen = self._seen
        if seen and names == seen[0] and all(one.equals(other) for one, other in zip(who, seen[1], strict=True)):
            return True
        fits = set(names) <= set(self.columns) and gpus_of(batch) <= self.gpus
        if fits:  # a copy: the caller may fill its buffers anew
            import pyarrow as pa

            self._seen = names, [pa.array(one.to_pylist(), one.type) for one in who]
        return fits

    def encode(self, batch: pa.RecordBatch, written: int) -> bytearray:
        return journal_file.encode(self._arranged(batch), self.schema, written)

    def write(self, message: bytearray) -> None:
        if not os.fstat(self.handle).st_nlink:  # what is written to a removed file is nowhere
            self.broken = True
            raise _gone(self.path)
        _write(self.handle, message)
        self._end += len(message)

    def _arranged(self, batch: pa.RecordBatch) -> list[pa.Array]:
        import pyarrow as pa

        names, rows = batch.schema.names, len(batch)
        columns: list[pa.Array] = []
        for field in self.schema:
            if len(columns) == len(self.columns):
                break
            if field.name not in names:
                columns.append(pa.nulls(rows, field.type))
                continue
            column = batch.column(names.index(field.name))
            if column.type != field.type:
                try:
                    column = column.cast(field.type)
                except pa.ArrowException as error:
                    raise StoreError(f"table {self.table}, column {field.name}: {error}") from error
            if field.name == "ts" and column.null_count:
                raise StoreError(f"{column.null_count} rows of table {self.table} have no ts, so they belong to no day")
            columns.append(column)
        return columns

    def acknowledge(self) -> None:
        self._good = self._end

    def sync(self) -> None:
        """Make what was written durable. Raises OSError, also where the file is no longer in its place."""
        files.sync(self.handle)
        self.behind = False
        try:
            there = os.path.samestat(os.fstat(self.handle), self.path.lstat())
        except FileNotFoundError:
            there = False
        if not there:
            self.broken = True
            raise _gone(self.path)

    def undo(self) -> None:
        """Remove what a failed write left. If that fails, the next rows go to a new part."""
        try:
            os.ftruncate(self.handle, self._good)
            self._end = self._good
        except OSError:
            self.broken = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.handle)
        self.handle = -1


def _gone(path: Path) -> OSError:
    what = "it is gone, with rows that were stored: leave a store in its place while collectors write to it"
    return OSError(errno.ENOENT, what, str(path))


def _write(handle: int, content: Any) -> None:
    view = memoryview(content)
    while len(view):
        view = view[os.write(handle, view) :]


def gpus_of(batch: pa.RecordBatch) -> set[tuple[Any, Any]]:
    """The (cluster, gpu) pairs of a batch."""
    names, none = batch.schema.names, [None] * len(batch)
    clusters, gpus = (batch.column(names.index(n)).to_pylist() if n in names else none for n in ("cluster", "gpu"))
    return set(zip(clusters, gpus, strict=True))


def failed_append(path: Path, error: OSError) -> StoreError:
    """The sentence for a journal that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreError(
            f"cannot write {path}: no space is left there; these rows were not stored, those acknowledged before "
            f"are: free some space"
        )
    return files.failed("write", path, error)
