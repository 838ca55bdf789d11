"""Read a Parquet file as columns of text, so that it is handled like every other file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from . import unpacking

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE = 4096  # rows that are read at once
_STRANGE = "out of range"
_DAYS = (-719_162, 2_932_896)  # of the years 1 to 9999, since 1970
_PER_DAY = {"ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_PER_UNIT = {"ms": 1_000_000, "us": 1000, "ns": 1}  # ns
_LARGEST = 2**63 - 1


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
            parts, left = [], unpacking.most(len(data))
            for part in file.iter_batches(_PIECE):
                left -= sum(map(_bytes, part.columns))
                if left < 0:
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
    import pyarrow as pa

    if pa.types.is_nested(column.type) or pa.types.is_decimal256(column.type):  # Polars panics at some of these
        try:
            return _plain(name, column.to_pylist())
        except (ValueError, OverflowError):  # a time that Python does not have
            return _plain(name, [_STRANGE] * len(column))
    return _text(pl.Series(name, column))


def _plain(name: str, values: Sequence[object]) -> pl.Series:
    return pl.Series(name, ["" if value is None else str(value) for value in values], pl.String)


def _text(column: pl.Series) -> pl.Series:
    kind = column.dtype
    if kind in (pl.Binary, pl.Object):
        return _plain(column.name, column.to_list())
    if isinstance(kind, pl.Date):
        text = _within(column, _DAYS)
    elif isinstance(kind, pl.Datetime):
        text = _within(column, tuple(day * _PER_DAY[kind.time_unit] for day in _DAYS))
    elif isinstance(kind, pl.Duration):
        most = _LARGEST // _PER_UNIT[kind.time_unit]
        text = _within(column, (-most, most))
    else:
        text = column.cast(pl.String)
    return text.str.strip_chars().fill_null("")


def _within(column: pl.Series, limits: tuple[int, ...]) -> pl.Series:
    """Times as text. Polars panics where one is too far away for a calendar, or wraps round without an error."""
    low, high = max(limits[0], -_LARGEST), min(limits[1], _LARGEST)
    far = ~column.to_physical().is_between(low, high).fill_null(True)
    near = column.set(far, None) if far.any() else column
    if isinstance(near.dtype, pl.Duration):
        text = near.dt.total_nanoseconds().cast(pl.String) + " ns"
    elif isinstance(near.dtype, pl.Datetime) and near.dtype.time_zone is not None:
        text = near.dt.convert_time_zone("UTC").cast(pl.String)
    else:
        text = near.cast(pl.String)
    return text.set(far, _STRANGE) if far.any() else text
