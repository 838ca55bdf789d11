"""What a table is: its columns, each with type, unit and meaning; and a view, which is a query over tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_SHORT = 300  # characters of a type
_MANY = {"mW", "mJ", "degC", "B/s", "us", "ns"}  # units of columns that hardly repeat a value


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, type as DuckDB spells it, unit ("" where none applies) and meaning."""

    name: str
    type: str
    unit: str
    description: str
    kind: Literal["", "gauge", "counter", "mask", "text"] = ""  # for telemetry: how a minute keeps it ("": not at all)

    @property
    def encoding(self) -> str:
        """Its encoding in Parquet where that is not a dictionary: whole numbers with many values are written as
        differences, which every engine reads."""
        many = self.type == "TIMESTAMP" or (self.type == "BIGINT" and (self.kind == "counter" or self.unit in _MANY))
        return "DELTA_BINARY_PACKED" if many else ""

    @property
    def short_type(self) -> str:
        """The type for people: without the fields of a record that has many."""
        return self.type if len(self.type) <= _SHORT else "STRUCT(...)"


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row is, its columns, and the columns by which its files are sorted."""

    name: str
    row: str
    columns: tuple[Column, ...]
    sorted_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()  # columns that say in a merge whether rows are stored; none: a row is its own key
    partitioned: bool = False  # files lie in day=YYYY-MM-DD folders, by `ts`
    made: bool = False  # whorl makes its rows from other tables; nobody else appends to it

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


@dataclass(frozen=True, slots=True)
class View:
    """A query over tables that is named in every store; `sql` selects from tables by name.

    `made`: the columns that no table has.
    """

    name: str
    row: str
    sql: str
    made: tuple[Column, ...] = ()


def record(fields: Mapping[str, str]) -> str:
    """The type of a record, from the types of its fields by name."""
    named = (f'"{name}" {kind}' if name in _KEYWORDS else f"{name} {kind}" for name, kind in fields.items())
    return f"STRUCT({', '.join(named)})"


_KEYWORDS = frozenset({"at", "each", "input", "load", "name", "precision", "values"})
"""Names of fields that SQL knows as words of its own: DuckDB writes them in quotes."""

CLUSTER = Column("cluster", "VARCHAR", "", "name of the cluster, as given at import or in the configuration")
IMPORT = Column("import_id", "VARCHAR", "", "the row of `imports` this came from; NULL where whorl measured it")
