"""Read a Parquet file as columns of text, so that it is handled like every other file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from . import unpacking

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE = 4096  # rows that are read at once
_STRANGE = "out of range"
_NS = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}


def names(data: bytes, path: Path) -> list[str]:
    """The names of the columns of a Parquet file. Raises InputError where it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(pa.BufferReader(data)).names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error


def as_text(data: bytes, path: Path) -> pl.DataFrame:
    """The columns of a Parquet file as text; what is missing is "". Their names must differ.

    Raises InputError where the file is damaged, or becomes too large.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:  # Arrow's reader, because a damaged file makes Polars' panic
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            schema = file.schema_arrow
            parts, room = [], unpacking.most(len(data))
            for part in file.iter_batches(_PIECE):
                room -= sum(map(_bytes, part.columns))
                if room < 0:
                    raise unpacking.too_much(path)
                parts.append(part)
        table = pa.Table.from_batches(parts, schema=schema)
        table.validate(full=True)
        return pl.DataFrame([_column(name, table[name]) for name in table.column_names])
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError, ValueError, OverflowError, TypeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: the Parquet file is damaged ({str(error).splitlines()[0]}); fetch it again")


def _bytes(column: pa.Array) -> int:
    """The size of a part of a column. All parts of a column of codes may share what the codes mean."""
    import pyarrow as pa

    return int(column.indices.nbytes if pa.types.is_dictionary(column.type) else column.nbytes)


def _column(name: str, column: pa.ChunkedArray) -> pl.Series:
    """A column as text. A time that no calendar has becomes a text that cannot be read, as Arrow writes it."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_duration(kind):
        factor = _NS[kind.unit]
        numbers = column.cast(pa.int64()).to_pylist()
        return pl.Series(name, ["" if n is None else f"{n * factor} ns" for n in numbers], pl.String)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        try:
            values = column.to_pylist()
        except (ValueError, OverflowError):  # a time that Python does not have
            values = [_STRANGE] * len(column)
        return pl.Series(name, ["" if value is None else str(value) for value in values], pl.String)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit, "UTC"))
    return pl.Series(name, column.cast(pa.string())).str.strip_chars().fill_null("")
