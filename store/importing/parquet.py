"""Read a Parquet file as columns of text, so that it is handled like every other file."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from ...errors import InputError


def as_text(data: bytes, path: Path) -> pl.DataFrame:
    """The columns of a Parquet file as text; what is missing is "". Raises InputError where it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:  # Arrow's reader, because a damaged file makes Polars' panic
        names = pq.read_schema(pa.BufferReader(data)).names
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise InputError(f"{path}: two columns are named {min(twice)!r}; rename one of them")
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        table.validate(full=True)
        return pl.DataFrame([_text(pl.Series(name, table[name])) for name in table.column_names])
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{path}: the Parquet file is damaged ({str(error).splitlines()[0]}); fetch it again"
        ) from error


def _text(column: pl.Series) -> pl.Series:
    kind = column.dtype
    if isinstance(kind, pl.Duration):
        text = column.dt.total_nanoseconds().cast(pl.String) + " ns"
    elif isinstance(kind, pl.Datetime) and kind.time_zone is not None:
        text = column.dt.convert_time_zone("UTC").cast(pl.String)
    elif kind.is_nested() or kind in (pl.Binary, pl.Object):
        text = pl.Series(column.name, [None if value is None else str(value) for value in column.to_list()], pl.String)
    else:
        text = column.cast(pl.String)
    return text.str.strip_chars().fill_null("")
