"""The bytes of a file without their compression, and the columns of a Parquet file.

A few kilobytes can hold more than any memory: that is refused.
"""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_RATIO, _LEAST = 100, 64 << 20  # bytes
_PIECE, _PIECE_ROWS = 1 << 20, 4096  # bytes, rows that are read at once
_TAR = slice(257, 262)  # where a tar archive says that it is one
_ARCHIVES = ((b"PK\x03\x04", "zip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"))
_NS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}


def load(path: Path) -> bytes:
    """The content of the file at `path`, without its compression (gzip, zstd; told by content, not by name).

    Raises InputError where there is no such file, it may not be read, or it is torn.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise InputError(f"{path} is a device, which may never end; name a file of measurements")
        content = _unpacked(path.read_bytes(), path)
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name the files in it, for example {path}/*.csv") from None
    except PermissionError:
        raise InputError(f"{path} cannot be read: this user has no permission to read it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError:
        raise InputError(f"{path} does not fit into memory; split it") from None
    if content[_TAR] == b"ustar":
        raise InputError(f"{path} is a tar archive; unpack it first, for example with tar -xf {path.name}")
    return content


def _unpacked(packed: bytes, path: Path) -> bytes:
    content = packed
    try:
        if packed[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
                content = _limited(stream, packed, path)
        elif packed[:4] == b"\x28\xb5\x2f\xfd":
            import pyarrow as pa

            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                content = _limited(stream, packed, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: the compressed file is damaged or cut short ({error}); fetch it again") from error
    for magic, archive in _ARCHIVES:
        if content.startswith(magic):
            raise InputError(f"{path} is a {archive} file; unpack it first (whorl reads plain, .gz and .zst files)")
    return content


def _limited(stream: Any, packed: bytes, path: Path) -> bytes:
    """What a compressed stream holds."""
    parts, size = [], 0
    while part := stream.read(_PIECE):
        parts.append(part)
        size += len(part)
        _check_size(size, packed, path)
    return b"".join(parts)


def _check_size(size: int, packed: bytes, path: Path) -> None:
    """Raise InputError where a small file becomes huge: files of measurements do not."""
    if size > max(_LEAST, _RATIO * len(packed)):
        raise InputError(
            f"{path} unpacks to more than {_RATIO} times its size, unlike any measurements; "
            "if the file is right, unpack it first and import the result"
        )


def parquet(content: bytes, path: Path) -> list[tuple[str, pl.Series]]:
    """The columns of a Parquet file with their names, as text; what is missing is "".

    Raises InputError where the file is damaged, or becomes too large.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:  # Arrow's reader, because a damaged file makes Polars' panic
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
            parts, size = [], 0
            for part in file.iter_batches(_PIECE_ROWS):
                # All parts of a column of codes may share what the codes mean.
                size += sum(getattr(column, "indices", column).nbytes for column in part.columns)
                _check_size(size, content, path)
                parts.append(part)
            table = pa.Table.from_batches(parts, schema=file.schema_arrow)
        table.validate(full=True)
        return [(name, _texts(column)) for name, column in zip(table.column_names, table.columns, strict=True)]
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError, ValueError, OverflowError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{path}: the Parquet file is damaged ({why}); fetch it again") from error


def _texts(column: pa.ChunkedArray) -> pl.Series:
    """A column as text. A time that no calendar has becomes a text that cannot be read, as Arrow writes it."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_duration(kind):
        factor = _NS[kind.unit]
        column = [None if n is None else f"{n * factor} ns" for n in column.cast(pa.int64()).to_pylist()]
    elif pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            column = [None if value is None else str(value) for value in column.to_pylist()]
        except (ValueError, OverflowError):  # a time that Python does not have
            column = ["out of range"] * len(column)
    else:
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            column = column.cast(pa.timestamp(kind.unit, "UTC"))
        column = column.cast(pa.string())
    return pl.Series(column, dtype=pl.String).str.strip_chars().fill_null("")
