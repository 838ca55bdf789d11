"""`whorl schema`: every table and column, with unit and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ..errors import InputError
from .options import exclusive, json_option

if TYPE_CHECKING:
    from ..store.schema import Column, Table, View
    from ..store.vocabulary import Vocabulary

_HEADER = ("column", "type", "unit", "meaning")
_METRICS_HEADER = ("metric", "kind", "tier", "NVML", "DCGM field", "dcgm-exporter", "nvidia-smi")
_OF_TELEMETRY = {
    "latest": "It has all columns of `telemetry`, and:",
    "telemetry_minutes": "`ts` is when the minute began; `cluster` and `gpu` are those of `telemetry`. A metric `x` of "
    "`telemetry` has the columns `x_min`, `x_mean` (DOUBLE) and `x_max` if it is a gauge, `x_first` and `x_last` if it "
    "is a counter, and `x`, with every bit that was set, if it is a mask. `quality` has any mark of the minute. Units "
    "are those of `telemetry`. The other columns:",
}
"""What a page says in place of the columns that follow from those of telemetry."""


@click.command("schema", short_help="Explain every table and column.")
@json_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown: the text of docs/tables.md.")
@click.argument("tables", nargs=-1)
def schema(as_json: bool, as_markdown: bool, tables: tuple[str, ...]) -> None:
    """Explain every column of TABLES (all tables if you name none): type, unit, meaning."""
    from ..dashboards.table import Table as Cells
    from ..store.catalog import columns_of_views
    from ..store.schema import FORMAT, TABLES
    from ..store.views import VIEWS
    from ..store.vocabulary import VOCABULARIES
    from .output import print_json, print_table, say

    exclusive("as_json", "as_markdown")({"as_json": as_json, "as_markdown": as_markdown})
    known = [table.name for table in TABLES] + [view.name for view in VIEWS]
    unknown = [name for name in tables if name not in known]
    if unknown:
        raise InputError(f"there is no table {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [table for table in TABLES if not tables or table.name in tables]
    views = [view for view in VIEWS if not tables or view.name in tables]
    columns = columns_of_views() if as_json or as_markdown or (views and tables) else {}
    words = [one for one in VOCABULARIES if one.table in {table.name for table in chosen}]
    if as_json:
        print_json(
            {
                "schema": "whorl.schema/1",
                "format": FORMAT,
                "tables": [{"name": one.name, "row": one.row, "columns": _dicts(one.columns)} for one in chosen],
                "views": [
                    {"name": v.name, "row": v.row, "columns": _dicts(columns[v.name]), "sql": v.sql} for v in views
                ],
                "codes": [
                    {
                        "table": one.table,
                        "column": one.column,
                        "rows": [dict(zip(one.header, row, strict=True)) for row in one.rows],
                    }
                    for one in words
                ],
            }
        )
        return
    if as_markdown:
        click.echo(as_document(chosen, views, words, columns))
        return
    for table in chosen:
        rows = _cells(table.columns)
        print_table(Cells(_HEADER, rows, title=f"{table.name}: one row is {table.row}", wrapped=(3,), leaves=(1,)))
        click.echo()
        for one in words:
            if one.table == table.name:
                sentences = [place for place, head in enumerate(one.header) if head in ("columns", "meaning")]
                drop = [place for place, head in enumerate(one.header) if head in ("counter", "type")]
                print_table(Cells(one.header, one.rows, title=f"{one.title} holds:", wrapped=sentences, leaves=drop))
                click.echo()
    for view in views:
        if tables:
            title = f"{view.name} (view): one row is {view.row}"
            print_table(Cells(_HEADER, _cells(columns[view.name]), title=title, wrapped=(3,), leaves=(1,)))
            click.echo("\nIts SQL:\n")
            say(view.sql, "  ", "  ")
        else:
            say(f"{view.name} (view): one row is {view.row}")
            say(f"`whorl schema {view.name}` shows its columns and its SQL", "  ", "  ")
        click.echo()


def as_document(
    tables: list[Table], views: list[View], words: list[Vocabulary], columns: Mapping[str, Sequence[Column]]
) -> str:
    """The tables with the codes of their columns, and the views with theirs, as a Markdown document."""
    from ..dashboards.table import Table as Cells
    from ..store.schema import MINUTES, OF_TELEMETRY, TELEMETRY

    parts = [
        "# The tables of a store",
        "",
        "Made by `whorl schema --markdown` from `store/schema.py` and `store/views.py`. A missing value is "
        "NULL, never 0; times are UTC without a zone. The key of a GPU is `gpu`; where it is a place and not a UUID, "
        "it is unique within its `cluster` only. A view is a query over tables: `whorl schema NAME` shows its SQL.",
    ]
    for table in tables:
        rows = _cells(table.columns)
        parts += ["", f"## {table.name}", "", f"One row is {table.row}."]
        if table.name in _OF_TELEMETRY and any(one.name == "telemetry" for one in tables):
            parts[-1] += f" {_OF_TELEMETRY[table.name]}"
            rows = [row for row in rows if row[0] not in OF_TELEMETRY]
        parts += ["", Cells(_HEADER, rows).markdown()]
        if table.name == "telemetry":
            parts += ["", "How the metrics are read and kept:", "", Cells(_METRICS_HEADER, _metrics()).markdown()]
        for one in words:
            if one.table == table.name:
                parts += ["", f"### What `{one.title}` holds", "", Cells(one.header, one.rows).markdown()]
    for view in views:
        parts += ["", f"## {view.name} (view)", "", f"One row is {view.row}."]
        its = list(columns[view.name])
        for whole in (MINUTES, TELEMETRY):  # these have many
            rest = [column for column in its if column.name not in whole.names]
            if len(its) - len(rest) == len(whole.names):
                parts[-1] += f" It has all columns of `{whole.name}`{', and:' if rest else '.'}"
                its = rest
        if its:
            parts += ["", Cells(_HEADER, _cells(its)).markdown()]
    return "\n".join(parts)


def _cells(columns: Iterable[Column]) -> list[list[str]]:
    return [[column.name, column.short_type, column.unit, column.description] for column in columns]


def _metrics() -> list[list[str]]:
    """How each metric is read: rows of `store/metrics.py`."""
    from ..store.metrics import METRICS

    return [
        [m.name, m.kind, m.tier, str(m.nvml or ""), str(m.dcgm or ""), ", ".join(m.prometheus), ", ".join(m.smi)]
        for m in METRICS
    ]


def _dicts(columns: Iterable[Column]) -> list[dict[str, str | None]]:
    return [
        {"name": c.name, "type": c.type, "unit": c.unit or None, "description": c.description or None} for c in columns
    ]
