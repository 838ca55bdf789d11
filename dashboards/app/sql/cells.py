"""The rows of an answer as cells that a browser can show exactly, and as columns that can be drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from ...answers.texts import values_of

if TYPE_CHECKING:
    import pyarrow as pa

Cell: TypeAlias = str | None
"""A value as text, since JSON and doubles would change some numbers; None is NULL."""
_LONGEST = 400  # of a cell, in characters
_LONGEST_NAME = 40  # of a text in a figure
_NAME = 8  # bytes of the name that goes with each cell

_ENDLESS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def cells(column: Any) -> tuple[list[Cell], int]:
    """The values of a column as cells, and how many of them were cut because they are long."""
    column, long = _short(column)
    row = texts(column)
    for place, cell in enumerate(row):
        if cell is not None and (len(cell) > _LONGEST or place in long):
            row[place] = f"{cell[:_LONGEST]}…"
            long.add(place)
    return row, len(long)


def _short(column: Any) -> tuple[Any, set[int]]:
    """A column of texts or bytes without the end of long ones, and the places of these."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not (texts or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)):
        return column, set()
    large = column.cast(pa.large_string() if texts else pa.large_binary())
    length = pc.utf8_length(large) if texts else pc.binary_length(large)
    long = set(pc.indices_nonzero(pc.fill_null(pc.greater(length, _LONGEST), False)).to_pylist())
    short = pc.utf8_slice_codeunits(large, 0, _LONGEST) if texts else pc.binary_slice(large, 0, _LONGEST)
    return short, long


def _text(value: Any) -> str:
    """A value in text, exactly: what has parts as JSON would be, if JSON had all numbers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _ENDLESS[str(value)]
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_part(str(name))}: {_part(part)}' for name, part in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_part, value))}]"
    return str(value)


def _part(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    return _text(value)


def texts(column: Any) -> list[Cell]:
    """The values of a column in text, exactly and whole."""
    import pyarrow as pa

    kind, values = column.type, values_of(column)
    if pa.types.is_float32(kind) or pa.types.is_float16(kind):
        narrow = kind.to_pandas_dtype()  # whose own text is short: 0.1, and not 0.10000000149011612
        values = [float(str(narrow(x))) if x is not None and math.isfinite(x) else x for x in values]
    return [None if value is None else _text(value) for value in values]


def drawable(table: pa.Table) -> pa.Table:
    """The columns of a table that a figure can have: numbers as doubles, times in microseconds, short texts."""
    import pyarrow as pa

    columns = {name: _drawn(column) for name, column in zip(table.column_names, table.columns, strict=True)}
    return pa.table({name: column for name, column in columns.items() if column is not None})


def _drawn(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pc.cast(column, pa.float64(), safe=False)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pc.cast(column, pa.timestamp("us"), safe=False)
    if pa.types.is_boolean(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_dictionary(kind):
        column = pc.cast(column, kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pc.utf8_slice_codeunits(pc.cast(column, pa.large_string()), 0, _LONGEST_NAME)
    return None


def fitting(columns: Sequence[Sequence[Cell]], most_bytes: int) -> int:
    """How many rows of these columns are at most so many bytes of JSON."""
    free = most_bytes
    for number, row in enumerate(zip(*columns, strict=True)):
        free -= sum(4 if cell is None else len(json.dumps(cell, ensure_ascii=False).encode()) + _NAME for cell in row)
        if free < 0:
            return number
    return len(columns[0]) if columns else 0
