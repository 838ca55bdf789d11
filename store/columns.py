"""What a table is: its columns, each with type, unit and meaning; and a view, which is a query over tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, DuckDB type, unit ("" where none applies) and meaning."""

    name: str
    type: str
    unit: str
    description: str
    encoding: str = ""  # the encoding in Parquet, if measurements found one better than the default dictionary
    kind: Literal["", "gauge", "counter", "mask", "text"] = ""  # for telemetry: how a minute keeps it ("": not at all)


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row is, its columns, and the columns by which its files are sorted."""

    name: str
    row: str
    columns: tuple[Column, ...]
    sorted_by: tuple[str, ...] = ()
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


CLUSTER = Column("cluster", "VARCHAR", "", "name of the cluster, as given at import or in the configuration")
IMPORT = Column("import_id", "VARCHAR", "", "the row of `imports` this came from; NULL where whorl measured it")
