"""JSON texts that a store holds: they may be damaged, or made to do harm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from .system.files import parse_json

if TYPE_CHECKING:
    from pathlib import Path

    from .store import Store


def require_lists(store: Store, table: str, rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Look that columns of rows of a table hold JSON lists or NULL. Raises StoreError, which names the file."""
    names = tuple(columns)
    for row in rows:
        for column in names:
            reason = None if row[column] is None else _reason(row[column])
            if reason is not None:
                raise StoreError(
                    f"{_file_with(store, table, column, row[column])}: column {column} has a text that is no JSON list "
                    f"({reason}); restore the file from a backup or move it out of the store"
                )


def _reason(text: str) -> str | None:
    try:
        return None if isinstance(parse_json(text), list) else "it is another value"
    except ValueError as error:
        return str(error)


def _file_with(store: Store, table: str, column: str, text: str) -> Path:
    """The file in which a text stands; the folder of the table where none has it, as in a journal."""
    from .rows.footers import footer
    from .system import light

    for path in store.files(table):
        with contextlib.suppress(OSError, ValueError, LookupError):
            if column in footer(path).shape.schema.names and text in light.read(path, [column])[column].to_pylist():
                return path
    return store.root / table
