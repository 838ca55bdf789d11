"""What can be asked of every store: its tables and views with their columns, types, units and meaning."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..columns import View
from ..schema import TABLES
from ..views import VIEWS


@dataclass(frozen=True)
class Explained:
    """A column; `meaning` is "" where a view computes it."""

    name: str
    type: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Asked:
    """A table or view: what one of its rows is, and its columns."""

    name: str
    row: str
    view: bool
    columns: tuple[Explained, ...]


@functools.cache
def askable() -> tuple[Asked, ...]:
    """The views of a store, which answer most questions, and then its tables."""
    columns = _columns_of_views()
    tables = [
        Asked(one.name, one.row, False, tuple(Explained(c.name, c.type, c.unit, c.description) for c in one.columns))
        for one in TABLES
    ]
    return (*(_view(view, columns[view.name]) for view in VIEWS), *tables)


def _view(view: View, columns: Sequence[tuple[str, str]]) -> Asked:
    """A view. A column of it that is one of a table it reads has that meaning."""
    words = re.findall(r"\w+", view.sql)
    sources = sorted((one for one in TABLES if one.name in words), key=lambda one: words.index(one.name))
    known = {column.name: (column.unit, column.description) for one in reversed(sources) for column in one.columns}
    return Asked(
        view.name, view.row, True, tuple(Explained(name, kind, *known.get(name, ("", ""))) for name, kind in columns)
    )


def _columns_of_views() -> dict[str, list[tuple[str, str]]]:
    """The names and types that DuckDB finds, in tables without rows: a store with many files takes longer."""
    import duckdb

    found: dict[str, list[tuple[str, str]]] = {}
    with duckdb.connect(":memory:") as connection:
        for spec in TABLES:
            columns = ", ".join(f'"{column.name}" {column.type}' for column in spec.columns)
            connection.execute(f"CREATE TABLE {spec.name} ({columns})")
        for view in VIEWS:
            connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")
            described = connection.execute(f"DESCRIBE {view.name}").fetchall()
            found[view.name] = [(str(name), str(kind)) for name, kind, *_ in described]
    return found
