"""`whorl schema`: every table and column, with unit and meaning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ..errors import InputError
from .options import exclusive, json_option

if TYPE_CHECKING:
    from ..dashboards.document import Table as Cells
    from ..store.schema import Column, Table
    from ..store.views import View

_METRICS_HEADER = ("metric", "kind", "read", "NVML", "DCGM", "dcgm-exporter (DCGM_FI_)", "nvidia-smi")
_UNUSUAL = ("BOOLEAN", "MAP", "STRUCT")
"""What the type of a column begins with that its unit does not tell; lists are unusual, too."""
_SEVERAL = 3
"""Tables of which a column is explained once, for all, in docs/tables.md."""
_BY_NAME = ("campaigns", "imports", "truth", "operations", "spans_open")
"""Tables that people hardly ask: docs/tables.md has the names of their columns."""
_WITHIN = ("judgements", "levels", "day_levels", "calibrations", "energy_minutes", "energy_days")
"""Tables between the steps of whorl's own answers: docs/tables.md has what a row is."""
_OF_A_MINUTE = (
    " `ts` is when the minute began. A gauge `x` of `telemetry` has `x_min`, `x_mean` and `x_max`, a counter `x_first` "
    "and `x_last`, a mask every bit that was set, `quality` any mark. The other columns:"
)
_LONGEST_TYPE = 300  # characters


def _type(column: Column) -> str:
    """The type for people: without the fields of a record that has many."""
    return column.type if len(column.type) <= _LONGEST_TYPE else "STRUCT(...)"


@click.command("schema", short_help="Explain every table and column.")
@json_option
@click.option("--markdown", "as_markdown", is_flag=True, hidden=True, help="Print the text of docs/tables.md.")
@click.argument("tables", nargs=-1)
def schema(as_json: bool, as_markdown: bool, tables: tuple[str, ...]) -> None:
    """Explain every column of TABLES (all tables if you name none): type, unit, meaning.

    \b
    whorl schema
    whorl schema runs gpus_now
    """
    from ..store.catalog import columns_of_views
    from ..store.schema import FORMAT, TABLES
    from ..store.views import VIEWS
    from ..store.vocabulary import VOCABULARIES
    from .output import print_json, say, show

    exclusive(as_json=as_json, as_markdown=as_markdown)
    names = [table.name for table in TABLES] + [view.name for view in VIEWS]
    unknown = [name for name in tables if name not in names]
    if unknown:
        raise InputError(f"there is no table {unknown[0]!r}; there are {', '.join(names)}")
    chosen = [table for table in TABLES if not tables or table.name in tables]
    views = [view for view in VIEWS if not tables or view.name in tables]
    columns = columns_of_views() if as_json or as_markdown or (views and tables) else {}
    words = [vocabulary for vocabulary in VOCABULARIES if vocabulary.table in {table.name for table in chosen}]
    if as_json:
        print_json(
            {
                "schema": "whorl.schema/1",
                "format": FORMAT,
                "tables": [
                    {"name": table.name, "row": table.row, "columns": _dicts(table.columns)} for table in chosen
                ],
                "views": [
                    {"name": v.name, "row": v.row, "columns": _dicts(columns[v.name]), "sql": v.sql} for v in views
                ],
                "codes": [
                    {
                        "table": vocabulary.table,
                        "column": vocabulary.column,
                        "rows": [dict(zip(vocabulary.header, row, strict=True)) for row in vocabulary.rows],
                    }
                    for vocabulary in words
                ],
            }
        )
        return
    if as_markdown:
        click.echo(as_document(chosen, views, columns))
        return
    for table in chosen:
        show([_cells(table.columns, f"{table.name}: one row is {table.row}"), ""])
        if tables and table.name == "telemetry":
            show([_table(_METRICS_HEADER, _metrics(), "How each metric is read:"), ""])
        for vocabulary in words:
            if vocabulary.table == table.name:
                show([_table(vocabulary.header, vocabulary.rows, f"{vocabulary.title} holds:"), ""])
    for view in views:
        title = f"{view.name} (view): one row is {view.row}"
        if tables:
            show([_cells(columns[view.name], title), "", "Its SQL:", ""])
            say(view.sql, "  ", "  ")
        else:
            say(title)
            say(f"`whorl schema {view.name}` shows its columns and its SQL", "  ", "  ")
        click.echo()


def as_document(tables: list[Table], views: list[View], columns: Mapping[str, Sequence[Column]]) -> str:
    """The tables and the views as a Markdown document: a line for each column."""
    from ..store.schema import MINUTES, OF_TELEMETRY, TELEMETRY

    times = Counter(column for table in tables for column in table.columns if not _is_key(column))
    common = {column for column, n in times.items() if n >= _SEVERAL}
    parts = [_TABLES_HEAD, *(_line(column) for column in sorted(common, key=lambda column: column.name))]
    for table in tables:
        parts += ["", f"## {table.name}", "", f"One row is {table.row}."]
        listed_columns = list(table.columns)
        if table is MINUTES:
            parts[-1] += _OF_A_MINUTE
            listed_columns = [column for column in listed_columns if column.name not in OF_TELEMETRY]
        for earlier in tables[: tables.index(table)]:
            if set(earlier.names) <= {column.name for column in listed_columns}:
                parts[-1] += f" It has all columns of `{earlier.name}`."
                listed_columns = [column for column in listed_columns if column.name not in earlier.names]
        if table.name in _WITHIN:
            continue
        if table.name in _BY_NAME:
            names = ", ".join(f"`{column.name}`" for column in listed_columns if not _is_key(column))
            parts[-1] += f" Its columns: {names}." if names else ""
            continue
        parts[-1] += _explained(column for column in listed_columns if column in common)
        listed_columns = [column for column in listed_columns if column not in common and not _is_key(column)]
        counters = [column for column in listed_columns if column.kind == "counter"]
        others = [column for column in listed_columns if column.kind != "counter"]
        parts += ["", *map(_line, others)] if others else []
        parts += ["", "Counters; most begin anew with the driver:", "", *map(_line, counters)] if counters else []
    explained = {(column.name, column.description) for table in tables for column in table.columns}
    for view in views:
        parts += ["", f"## {view.name} (view)", "", f"One row is {view.row}."]
        view_columns = list(columns[view.name])
        for whole_table in (*tables, MINUTES, TELEMETRY):
            missing = set(whole_table.names) - {column.name for column in view_columns}
            if missing <= {"import_id"}:
                parts[-1] += f" It has all columns of `{whole_table.name}`{' but `import_id`' if missing else ''}."
                view_columns = [column for column in view_columns if column.name not in whole_table.names]
        own_columns = [column for column in view_columns if (column.name, column.description) not in explained]
        parts[-1] += _explained(column for column in view_columns if column not in own_columns)
        if own_columns:
            parts += ["", *map(_line, own_columns)]
        explained |= {(column.name, column.description) for column in own_columns}
    return "\n".join(parts)


_TABLES_HEAD = """\
# The tables of a store

Made by `whorl schema --markdown`. `cluster` and `gpu` are the key of a GPU: `gpu` is its UUID, else its place \
(cabinet-node-device), else its name. Missing or unknown is NULL, never 0; times are UTC. Brackets hold the unit, and \
the type of a list, map, record or truth value; other columns are texts (VARCHAR), numbers (BIGINT or DOUBLE) and \
times (TIMESTAMP). *Also* names columns that are explained above. `whorl schema NAME` explains every column, with its \
type, its codes, the SQL of a view, and of `telemetry` how NVML, DCGM, dcgm-exporter and nvidia-smi spell each metric.

## Columns of several tables
"""


def _explained(columns: Iterable[Column]) -> str:
    """The names of columns that the page explains above, as a sentence; empty without any."""
    names = [f"`{column.name}`" for column in columns if not _is_key(column)]
    return f" Also {', '.join(names)}." if names else ""


def _is_key(column: Column) -> bool:
    return column.name in ("cluster", "gpu")


def _line(column: Column) -> str:
    """A column in a line: its type where that is unusual, its unit, its meaning."""
    about = [word for word in (_unusual(column.type), column.unit) if word and word != "UTC"]
    kind = f" ({', '.join(about)})" if about else ""
    return f"- `{column.name}`{kind}: {_UNKNOWN.sub('', column.description)}"


_UNKNOWN = re.compile(r"; NULL(:| where| while| if) (it is )?(unknown|not known|nothing is known|it is not)$")
"""What the head of the page says of every column."""


def _unusual(spelled: str) -> str:
    """A type that a unit does not tell, without the types of its fields; empty for a text, a number or a time."""
    if not spelled.startswith(_UNUSUAL) and not spelled.endswith("[]"):
        return ""
    if spelled.startswith("MAP"):
        return "MAP"
    return _FIELD_TYPES.sub(r"\1", spelled) if len(spelled) <= _LONGEST_TYPE else spelled.partition("(")[0]


_FIELD_TYPES = re.compile(r"(?<=[(, ])\"?(\w+)\"? (?:VARCHAR(?:\[\])?|DOUBLE|BIGINT|TIMESTAMP|BOOLEAN)(?=[,)])")


def _cells(columns: Iterable[Column], title: str) -> Cells:
    rows = [[column.name, _type(column), column.unit, column.description] for column in columns]
    return _table(("column", "type", "unit", "meaning"), rows, title)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> Cells:
    from ..dashboards.document import Column as Head
    from ..dashboards.document import Table as Cells

    sentences, first_to_drop = ("columns", "meaning"), ("counter", "type")
    columns = [
        Head(head, "sentence" if head in sentences else "text", drops=int(head in first_to_drop)) for head in heads
    ]
    return Cells(columns, rows, title=title)


def _metrics() -> list[list[str]]:
    """How each metric is read: rows of `store/metrics.py`."""
    from ..store.metrics import METRICS

    return [
        [
            *(m.name, m.kind, m.tier, str(m.nvml or "").replace("nvmlDevice", ""), str(m.dcgm or "")),
            ", ".join(m.prometheus).replace("DCGM_FI_", ""),
            ", ".join(m.smi),
        ]
        for m in METRICS
    ]


def _dicts(columns: Iterable[Column]) -> list[dict[str, str | None]]:
    return [
        {"name": c.name, "type": c.type, "unit": c.unit or None, "description": c.description or None} for c in columns
    ]
