"""`whorl sql`: a query over the tables of a store."""

from __future__ import annotations

import csv
import sys
from typing import Any

import click

from .options import exclusive, json_option, store_option


@click.command("sql")
@store_option
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--unsafe", is_flag=True, help="Let the query reach other files, the network and extensions.")
@click.argument("query")
def sql(store: str, as_json: bool, as_csv: bool, unsafe: bool, query: str) -> None:
    """Answer an SQL QUERY over the tables of a store ("-" reads it from standard input).

    `whorl schema` lists the tables. The query can read this store and nothing else, and changes nothing.
    """
    from ..store import Store
    from .output import print_json, print_table

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    text = sys.stdin.read() if query == "-" else query
    answer = Store.open(store).sql(text, unsafe=unsafe)
    names = _distinct(answer.column_names)
    rows = list(zip(*(_column(answer, i) for i in range(len(names))), strict=True)) if names else []
    if as_json:
        print_json({"schema": "whorl.sql/1", "rows": [dict(zip(names, row, strict=True)) for row in rows]})
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([["" if value is None else value for value in row] for row in rows])
    else:
        numeric = [i for i in range(len(names)) if _is_number(answer.schema.field(i).type)]
        print_table(names, [[_text(value) for value in row] for row in rows], right=numeric)
        click.echo(f"({len(rows):,} row{'s' if len(rows) != 1 else ''})", err=True)


def _column(answer: Any, position: int) -> list[Any]:
    """The values of a column; nanosecond times as ISO text, which Python's own times cannot hold."""
    import pyarrow as pa

    column = answer.column(position)
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        text = column.cast(pa.string())
        zone = "" if column.type.tz else "Z"
        return [None if v is None else v.replace(" ", "T").removesuffix(".000000000") + zone for v in text.to_pylist()]
    return list(column.to_pylist())


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
    if isinstance(value, float):
        return f"{value:.10g}"
    return str(value)
