"""What a function of whorl replies: it shows itself in a notebook and at a prompt, as a frame and as JSON."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from ...errors import InputError
from ..table import Line, Table, printable

if TYPE_CHECKING:
    import polars as pl

    from ...analysis.engines import Coverage
    from ...store import Store

P = ParamSpec("P")
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
        document: Callable[[], Mapping[str, Any]],
        parts: Callable[[], Iterable[str | Table]],
        *,
        rows: RowList = RowList(),
        frame: pl.DataFrame | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """`frame`: the rows, where they are a frame already."""
        self.result, self.notes, self._rows = result, tuple(notes), rows
        self.coverage: Coverage | None = None
        self._document, self._parts = document, parts
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

    def document(self) -> Mapping[str, Any]:
        """The document, with the key `schema`; times are datetimes."""
        if self.coverage is None:
            return self._document()
        failed = [{"name": failure.name, "reason": failure.reason} for failure in self.coverage.failures]
        return {**self._document(), "coverage": {"parts": self.coverage.parts, "failed": failed}}

    def parts(self) -> Iterable[str | Table]:
        """What people read: sentences and tables."""
        return self._parts()

    def json(self) -> dict[str, Any]:
        """The document that the verb prints with `--json`: of numbers, texts, lists and dictionaries."""
        return {str(key): plain(value) for key, value in self.document().items()}

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The rows of the document as a Polars frame; docs/cli.md explains the columns."""
        import polars as pl

        document = self.document()
        whole = {key: value for key, value in document.items() if key != "schema"}
        rows = list(document[self._rows.key]) if self._rows.key else [whole]
        if not rows and self._rows.of is not None:
            of = self._rows.of
            return pl.DataFrame(schema=of if isinstance(of, tuple) else [field.name for field in fields(of)])
        return pl.DataFrame(rows, infer_schema_length=None, strict=False)

    def _with_notes(self) -> Iterable[str | Table]:
        yield from self.parts()
        yield from (f"note: {note}" for note in self.notes)

    def __repr__(self) -> str:
        lines: list[str] = []
        for part in self._with_notes():
            lines += [printable(line) for line in (part.lines() if isinstance(part, Table) else [part])]
        return "\n".join(lines).strip("\n")

    def _repr_html_(self) -> str:
        return f'<div class="whorl">{"".join(map(_html, self._with_notes()))}</div>'


def _missing(coverage: Coverage) -> tuple[str, ...]:
    """A sentence about the parts that are not in an answer; none where all are."""
    if not coverage.failures:
        return ()
    named = "; ".join(f"{failure.name} ({failure.reason})" for failure in coverage.failures[:_NAMED])
    others = len(coverage.failures) - _NAMED
    more = f"; and {others} more" if others > 0 else ""
    return (f"the answer has {coverage.done:,} of {coverage.parts:,} parts, and lacks {named}{more}",)


def replying(
    function: Callable[P, Result], reply: Callable[[Result, str], Reply[Result]]
) -> Callable[P, Reply[Result]]:
    """The function, with the same arguments, that replies; `reply` takes its result and how the store is spelled."""

    @wraps(function)
    def replies(*arguments: P.args, **options: P.kwargs) -> Reply[Result]:
        store: Any = arguments[0] if arguments else options["store"]
        return reply(function(*arguments, **options), folder(store))

    return replies


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


def _html(part: str | Table) -> str:
    """A sentence, a command or a table as HTML."""
    if isinstance(part, Table):
        cells = [_row("th", part.header), *(_row("td", row) for row in part.rows)]
        caption = f"<caption>{_text(part.title)}</caption>" if part.title else ""
        below = f"<p>{_text(part.says)}</p>" if part.says else ""
        return f"<table>{caption}{''.join(cells)}</table>{below}"
    if isinstance(part, Line):
        return f"<pre>{_text(part)}</pre>"
    return f"<p>{_text(part)}</p>" if part else ""


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return escape(printable(text))


# An option of the command line, with the word in capitals that stands for its value; none of a command in backticks.
_OPTION = re.compile(r"(`[^`]*`)|--backend ([a-z]+)|--([a-z][a-z-]*)(?: [A-Z]+\b(?:\.\.\.)?)?")


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
