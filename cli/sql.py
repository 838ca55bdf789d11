"""`whorl sql`: a query over the tables of a store."""

from __future__ import annotations

import csv
import gc
import io
import json
import sys
from typing import Any

import click

from .options import csv_option, exclusive, json_option, store_option


@click.command("sql", short_help="Answer an SQL query over the tables of a store.")
@store_option
@json_option
@csv_option
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
    from ..dashboards.answers.texts import distinct, is_number, values_of
    from ..dashboards.document import Column, Table
    from ..store import Store
    from ..store.sql import Plain
    from .output import print_json, show

    exclusive(as_json=as_json, as_csv=as_csv)
    gc.disable()  # to look for cycles among the million objects of a large store takes an eighth of a query's time
    try:
        answer = Store.open(store).answer(_standard_input() if query == "-" else query, unsafe=unsafe)
    finally:
        gc.enable()
    if isinstance(answer, Plain):
        names, numeric, rows = distinct(answer.names), answer.numeric, answer.rows
    else:
        names, numeric = distinct(answer.column_names), [is_number(field.type) for field in answer.schema]
        rows = list(zip(*(values_of(answer.column(i)) for i in range(len(names))), strict=True)) if names else []
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
        columns = [Column(name, "number" if place in right else "text") for place, name in enumerate(names)]
        show([Table(columns, [[_text(value) for value in row] for row in rows])])
        click.echo(f"({len(rows):,} row{'s' if len(rows) != 1 else ''})", err=True)


def _standard_input() -> str:
    from ..errors import QueryError

    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise QueryError("the query on standard input is not UTF-8 text") from error


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.10g}" if isinstance(value, float) else str(_cell(value))


def _cell(value: Any) -> Any:
    """A value in one cell: what has parts as JSON, bytes in hexadecimal digits."""
    from ..dashboards.answers.reply import plain

    if isinstance(value, (dict, list)):
        return json.dumps(plain(value), ensure_ascii=False)
    return value.hex() if isinstance(value, bytes) else value
