"""What a function of whorl replies: it shows itself in a notebook and at a prompt, as a frame and as JSON."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ...errors import InputError
from .. import terminal
from ..document import Document

if TYPE_CHECKING:
    import polars as pl

    from ...analysis.engines import Coverage
    from ...store import Store

Result = TypeVar("Result")
_NAMED = 5  # parts that failed, in a sentence


@dataclass(frozen=True)
class RowList:
    """Which list of a document its frame has, and the columns of no rows: the fields of a dataclass, or their names.

    Without a key the document is the one row.
    """

    key: str = "rows"
    of: type | tuple[str, ...] | None = None


class Reply(Generic[Result]):
    """The reply of one function: `result` is the typed answer, whose attributes the reply has too.

    `notes` are sentences about how it was made.
    """

    def __init__(
        self,
        result: Result,
        mapping: Callable[[Result], Mapping[str, Any]],
        document: Callable[[Result], Document],
        *,
        rows: RowList = RowList(),
        frame: pl.DataFrame | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """`mapping` makes the answer for programs of the result, with the key `schema`, and `document` that for people;
        `frame`: the rows, where they are a frame already."""
        self.result, self.notes, self._rows = result, tuple(notes), rows
        self.coverage: Coverage | None = None
        self._mapping, self._document = mapping, document
        if frame is not None:
            self.frame = frame

    def covering(self, coverage: Coverage) -> Self:
        """The same reply, of an answer that was made in parts: with a note if some are missing."""
        self.coverage = coverage
        self.notes += _missing(coverage)
        return self

    def __getattr__(self, name: str) -> Any:
        """What is an attribute of the result is one of the reply."""
        if name.startswith("_") or name == "result":  # while it is copied, or asked for by a protocol
            raise AttributeError(name)
        return getattr(self.result, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in dir(self.result) if not name.startswith("_"))})

    def mapping(self) -> Mapping[str, Any]:
        """The answer for programs, with the key `schema`; times are datetimes."""
        if self.coverage is None:
            return self._mapping(self.result)
        failed = [{"name": failure.name, "reason": failure.reason} for failure in self.coverage.failures]
        return {**self._mapping(self.result), "coverage": {"parts": self.coverage.parts, "failed": failed}}

    def document(self) -> Document:
        """The answer for people: sections, sentences, findings, tables and figures."""
        document = self._document(self.result)
        return replace(document, notes=(*document.notes, *self.notes))

    def json(self) -> dict[str, Any]:
        """The answer that the verb prints with `--json`: of numbers, texts, lists and dictionaries."""
        return {str(key): plain(value) for key, value in self.mapping().items()}

    def csv(self) -> str:
        """The rows as CSV, with a header; a missing value is an empty field."""

        def cell(value: Any) -> Any:
            if isinstance(value, dt.datetime):
                return value.isoformat() + "Z"
            return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value

        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(self.frame.columns)
        writer.writerows([cell(value) for value in row] for row in self.frame.iter_rows())
        return lines.getvalue()

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The rows of the answer as a Polars frame; docs/json.md explains the columns."""
        import polars as pl

        mapping = self.mapping()
        whole = {key: value for key, value in mapping.items() if key != "schema"}
        rows = list(mapping[self._rows.key]) if self._rows.key else [whole]
        if not rows and self._rows.of is not None:
            of = self._rows.of
            return pl.DataFrame(schema=of if isinstance(of, tuple) else [field.name for field in fields(of)])
        return pl.DataFrame(rows, infer_schema_length=None, strict=False)

    def __repr__(self) -> str:
        return terminal.text(_with_notes(self.document()))

    def _repr_html_(self) -> str:
        from ..html import fragment

        return fragment(_with_notes(self.document()).parts)


def _with_notes(document: Document) -> Document:
    """The document with its notes as its last sentences."""
    return replace(document, parts=[*document.parts, *(f"note: {note}" for note in document.notes)])


def _missing(coverage: Coverage) -> tuple[str, ...]:
    """A sentence about the parts that are not in an answer; none where all are."""
    if not coverage.failures:
        return ()
    named = "; ".join(f"{failure.name} ({failure.reason})" for failure in coverage.failures[:_NAMED])
    others = len(coverage.failures) - _NAMED
    more = f"; and {others} more" if others > 0 else ""
    return (f"the answer has {coverage.done:,} of {coverage.parts:,} parts, and lacks {named}{more}",)


def opened(store: Store | str | Path) -> Store:
    """The store itself, or the one in this folder. StoreError where there is none."""
    from ...store import Store

    return store if isinstance(store, Store) else Store.open(store)


def folder(store: Store | str | Path) -> str:
    """How commands for people spell the store."""
    return str(store) if isinstance(store, str | Path) else str(store.root)


def plain(value: Any) -> Any:
    """A value as JSON knows it: times as ISO 8601 in UTC, what is no number as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.datetime):
        return value.isoformat() + ("Z" if value.tzinfo is None else "")
    if isinstance(value, (dt.date, dt.time, dt.timedelta)):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


# An option of the command line, with the word in capitals that stands for its value; none of a command in backticks.
_OPTION = re.compile(r"(`[^`]*`)|--backend ([a-z]+)|--(?:(?:set|world) )?([a-z][a-z-]*)(?:[= ][A-Z]+\b(?:\.\.\.)?)?")


def in_python(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as Python calls it: an error names the arguments of Python, not the options of the command line."""

    def argument(match: re.Match[str]) -> str:
        command, backend, option = match.groups()
        if option is None:
            return command or f'backend="{backend}"'
        return "classes" if option == "class" else option.replace("-", "_")

    @wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except InputError as error:
            error.args = (_OPTION.sub(argument, str(error)), *error.args[1:])
            raise

    return called
