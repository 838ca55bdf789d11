"""`whorl sql`: a query over the tables of a store."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from typing import Any

import click

from .options import exclusive, json_option, store_option

_WHOLE = re.compile(r"(\.[0-9]*[1-9])0+$|\.0+$")  # the zeros behind a fraction of a second


@click.command("sql", short_help="Answer an SQL query over the tables of a store.")
@store_option
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--unsafe", is_flag=True, help="Let the query reach other files, the network and extensions.")
@click.argument("query")
def sql(store: str, as_json: bool, as_csv: bool, unsafe: bool, query: str) -> None:
    """Answer an SQL QUERY over the tables of a store ("-" reads it from standard input).

    `whorl schema` lists the tables and views. The query can read this store and nothing else, and changes nothing.

    \b
    Examples:
      whorl sql --store S "select name, node, model from gpus_now"
      whorl sql --store S "select name, median(value) as ms, count(*) as n
          from measurements where workload = 'gemm-fp32' and figure = 'time'
          group by name order by ms desc limit 5"
      whorl sql --store S "select name, power_mw / 1e3 as watt, ts
          from latest join gpus_now using (cluster, gpu)"
    """
    from ..store import Store
    from ..store.readers.query import Plain
    from ..store.system.memory import uncollected
    from .output import print_json, print_rows

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    with uncollected():
        answer = Store.open(store).answer(_standard_input() if query == "-" else query, unsafe=unsafe)
    if isinstance(answer, Plain):
        names, numeric, rows = _distinct(answer.names), answer.numeric, answer.rows
    else:
        names, numeric = _distinct(answer.column_names), [_is_number(field.type) for field in answer.schema]
        rows = list(zip(*(_column(answer.column(i)) for i in range(len(names))), strict=True)) if names else []
    if as_json:
        print_json({"schema": "whorl.sql/1", "rows": [dict(zip(names, row, strict=True)) for row in rows]})
    elif as_csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if value is None else _cell(value) for value in row] for row in rows])
        click.echo(text.getvalue(), nl=False)
    else:
        right = [i for i, number in enumerate(numeric) if number]
        print_rows(names, [[_text(value) for value in row] for row in rows], right=right)
        click.echo(f"({len(rows):,} row{'s' if len(rows) != 1 else ''})", err=True)


def _standard_input() -> str:
    from ..errors import QueryError

    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise QueryError("the query on standard input is not UTF-8 text") from error


def _column(column: Any) -> list[Any]:
    """The values of a column, times as ISO text: Python's own hold neither nanoseconds nor infinity."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_nested(kind):
        return [_value(item) for item in column]
    if pa.types.is_interval(kind):
        return [None if item is None else _duration(*item) for item in column.to_pylist()]
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


def _value(item: Any) -> Any:
    """A value inside a list, a structure or a map, as `_column` gives it."""
    import pyarrow as pa

    if not item.is_valid:
        return None
    kind = item.type
    if pa.types.is_struct(kind):
        return {name: _value(part) for name, part in item.items()}
    if pa.types.is_map(kind):
        keys, values = (_column(item.values.field(i)) for i in range(2))
        return {str(key): value for key, value in zip(keys, values, strict=True)}
    if pa.types.is_union(kind):
        return _value(item.value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _column(item.values)
    return _column(pa.array([item], kind))[0] if pa.types.is_temporal(kind) else item.as_py()


def _duration(months: int, days: int, nanoseconds: int) -> str:
    """An interval as ISO 8601 writes it: P1M2DT3.5S."""
    sign = "-" if nanoseconds < 0 else ""
    seconds, fraction = divmod(abs(nanoseconds), 10**9)
    exact = f"{sign}{seconds}" + (f".{fraction:09d}".rstrip("0") if fraction else "")
    return f"P{months}M{days}DT{exact}S"


def _distinct(names: list[str]) -> list[str]:
    """Column names made unique: a second `a` becomes `a:1`."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        number = seen.get(name, 0)
        out.append(f"{name}:{number}" if number else name)
        seen[name] = number + 1
    return out


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.10g}" if isinstance(value, float) else str(_cell(value))


def _cell(value: Any) -> Any:
    """A value in one cell: what has parts as JSON, bytes in hexadecimal digits."""
    from .output import plain

    if isinstance(value, (dict, list)):
        return json.dumps(plain(value), ensure_ascii=False)
    return value.hex() if isinstance(value, bytes) else value
