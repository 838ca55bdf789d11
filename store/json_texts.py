"""JSON texts that a store holds: they may be damaged, or made to do harm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import StoreError
from .system.files import parse_json

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from .store import Store

Made = TypeVar("Made")
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)


def read_lists(
    store: Store, table: str, rows: Iterable[Mapping[str, Any]], makers: Mapping[str, Callable[[Any], object]]
) -> list[dict[str, Any]]:
    """Rows of a table, in which the columns of `makers` are tuples of what their JSON lists hold; () for NULL.

    A maker turns an element of a list into what it stands for; it raises ValueError, TypeError or LookupError for one
    of another shape. Raises StoreError, which names the file.
    """

    def made(column: str, text: str | None) -> tuple[object, ...]:
        def elements(parsed: Any) -> tuple[object, ...]:
            if not isinstance(parsed, list):
                raise TypeError("it is no list")
            return tuple(map(makers[column], parsed))

        return () if text is None else read_text(store, table, column, text=text, maker=elements)

    return [{**row, **{column: made(column, row[column]) for column in makers}} for row in rows]


def read_text(store: Store, table: str, column: str, *, text: str, maker: Callable[[Any], Made]) -> Made:
    """What a maker makes of a JSON text. Raises StoreError, which names the file, where it is none or does not fit."""
    try:
        return maker(parse_json(text))
    except _WRONG as error:
        raise StoreError(
            f"{_file_with(store, table, column, text)}: column {column} has a JSON text that whorl cannot read "
            f"({type(error).__name__}: {str(error)[:100]}); restore the file from a backup or move it out of the store"
        ) from None


def require_objects(store: Store, table: str, column: str, texts: pl.Series) -> None:
    """Check that JSON texts are objects. Raises StoreError, which names the file, for one that is not."""
    import polars as pl

    kinds = texts.drop_nulls().cast(pl.String).unique().alias("text")
    # The whole text, or null where Polars can read nothing of it: then Python decides.
    read = kinds.to_frame().select(pl.col("text").str.json_path_match("$")).to_series()
    for text in kinds.filter(~read.fill_null("").str.starts_with("{")):
        read_text(store, table, column, text=text, maker=_object)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("an object is expected")
    return value


def string(value: Any) -> str:
    """A text of a JSON text. Raises TypeError for another value."""
    if not isinstance(value, str):
        raise TypeError("a text is expected")
    return value


def real(value: Any) -> float:
    """A number of a JSON text. Raises TypeError for another value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number is expected")
    return float(value)


def integer(value: Any) -> int:
    """A whole number of a JSON text. Raises TypeError for another value."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("a whole number is expected")
    return value


def _file_with(store: Store, table: str, column: str, text: str) -> Path:
    """The file in which a text stands; the folder of the table where none has it, as in a journal."""
    from .rows.footers import footer
    from .system import light

    for path in store.files(table):
        with contextlib.suppress(OSError, ValueError, LookupError):
            if column in footer(path).shape.schema.names and text in light.read(path, [column])[column].to_pylist():
                return path
    return store.root / table
