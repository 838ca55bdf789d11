"""Values of an answer as people and JSON know them: exact, and times as ISO text."""

from __future__ import annotations

import re
from typing import Any

FORMULA = r"^\s*[=+\-@]|^[\t\r]"
"""A text that a spreadsheet takes for a formula, unless it is a NUMBER."""
NUMBER = r"^\s*[+\-]?(\d+\.?\d*|\.\d+)([eE][+\-]?\d+)?\s*$"
_WHOLE = re.compile(r"(\.[0-9]*[1-9])0+$|\.0+$")  # the zeros behind a fraction of a second


def values_of(column: Any) -> list[Any]:
    """The values of a column, times as ISO text: Python's own hold neither nanoseconds nor infinity."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_nested(kind):
        return [_value(value) for value in column]
    if pa.types.is_interval(kind):
        return [None if value is None else _duration(*value) for value in column.to_pylist()]
    if not pa.types.is_temporal(kind):
        return list(column.to_pylist())
    if pa.types.is_timestamp(kind) and kind.tz:
        column = column.cast(pa.timestamp(kind.unit))  # drops the zone and keeps the instant, in UTC
    texts = pc.cast(column, pa.string()).to_pylist()
    if pa.types.is_timestamp(kind):
        texts = [None if text is None else _WHOLE.sub(r"\1", text).replace(" ", "T", 1) + "Z" for text in texts]
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return list(texts)
    last = 2 ** (kind.bit_width - 1) - 1  # how DuckDB stores infinity
    infinite = {last: "infinity", -last: "-infinity"}
    numbers = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    return [infinite.get(number, text) for number, text in zip(numbers, texts, strict=True)]


def _value(value: Any) -> Any:
    """A value inside a list, a structure or a map, as `values_of` gives it."""
    import pyarrow as pa

    if not value.is_valid:
        return None
    kind = value.type
    if pa.types.is_struct(kind):
        return {name: _value(part) for name, part in value.items()}
    if pa.types.is_map(kind):
        keys, values = (values_of(value.values.field(i)) for i in range(2))
        return {str(key): value for key, value in zip(keys, values, strict=True)}
    if pa.types.is_union(kind):
        return _value(value.value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return values_of(value.values)
    return values_of(pa.array([value], kind))[0] if pa.types.is_temporal(kind) else value.as_py()


def _duration(months: int, days: int, nanoseconds: int) -> str:
    """An interval as ISO 8601 writes it: P1M2DT3.5S."""
    sign = "-" if nanoseconds < 0 else ""
    seconds, fraction = divmod(abs(nanoseconds), 10**9)
    exact = f"{sign}{seconds}" + (f".{fraction:09d}".rstrip("0") if fraction else "")
    return f"P{months}M{days}DT{exact}S"


def distinct(names: list[str]) -> list[str]:
    """Column names made unique: a second `a` becomes `a:1`."""
    counts: dict[str, int] = {}
    out = []
    for name in names:
        number = counts.get(name, 0)
        out.append(f"{name}:{number}" if number else name)
        counts[name] = number + 1
    return out


def is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
