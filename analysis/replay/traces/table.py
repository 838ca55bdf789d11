"""A trace file as rows of text with line numbers, and columns of it as checked numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import polars as pl

from ....errors import InputError
from ....store.importing.content import load

if TYPE_CHECKING:
    from _csv import Reader as CsvReader

MOST_GPUS = 10_000_000  # of a job; more is a slip of the pen, or a number of something else
CALENDAR_S = 1e8  # three years: a time beyond is one since 1970, as nothing in a trace begins so long after its start
LINE = "=line"  # the line number; no column of a file may be called so


@dataclass(frozen=True)
class Reading:
    """What the person says about a file that the file does not."""

    duration_unit: str = "auto"  # of the CSV: "seconds", "iterations", or "auto" to go by the model
    processors_per_gpu: int = 1  # of SWF, which counts processors


@dataclass
class Sheet:
    """Rows of a file as text: `frame` has one text column per name of the header, and `LINE`."""

    file: str
    frame: pl.DataFrame
    notes: list[str] = field(default_factory=list)

    def fail(self, line: int, what: str) -> NoReturn:
        raise InputError(f"{self.file}, line {line}: {what}")

    def need(self, *names: str, do: str = "Export the file again with them, or give the right --trace-format") -> None:
        """Stop with one sentence where columns are missing; `do` says what to do."""
        missing = [name for name in names if name not in self.frame.columns]
        if missing:
            columns = "columns" if len(missing) > 1 else "column"
            raise InputError(f"{self.file} has no {columns} {', '.join(missing)}; it has {', '.join(self.names)}. {do}")

    @property
    def names(self) -> list[str]:
        return [name for name in self.frame.columns if name != LINE]

    def numbers(self, name: str, *, unknown: Sequence[str] = ()) -> pl.Series:
        """A column as numbers; `unknown` spellings and empty cells, where any are allowed, become null.

        Raises:
            InputError: a cell is no finite number; names the line.
        """
        text = self.frame[name].str.strip_chars()
        if unknown:
            text = text.to_frame().select(pl.when(~pl.col(name).is_in(list(unknown))).then(pl.col(name))).to_series()
        values = text.cast(pl.Float64, strict=False)
        wrong = (text.is_not_null() & ~values.is_finite().fill_null(False)).arg_true()
        if len(wrong):
            row = wrong[0]
            self.fail(self.frame[LINE][row], f"{name} is {text[row]!r}, which is not a finite number")
        return values

    def check(self, bad: pl.Series, what: str, *names: str) -> None:
        """Stop at the first row where `bad` holds; `{name}` in `what` is that row's cell."""
        rows = bad.fill_null(False).arg_true()
        if len(rows):
            row = self.frame.row(rows[0], named=True)
            self.fail(row[LINE], what.format(**{name: row[name] for name in names}))

    def leave_out(self, bad: pl.Series, why: str) -> None:
        """Take the rows where `bad` holds out, and say how many and why."""
        bad = bad.fill_null(False)
        if n := int(bad.sum()):
            self.notes.append(f"{jobs(n)} left out: {why}")
            self.frame = self.frame.filter(~bad)


def jobs(n: int) -> str:
    return f"{n:,} job{'s' if n != 1 else ''}"


def headings(first: str) -> set[str]:
    """The names that the first line of a CSV may hold, quoted or not."""
    return {name.strip().strip('"').strip() for name in first.split(delimiter_of(first))}


def delimiter_of(first: str) -> str:
    """What parts the names in the first line of a CSV: a comma, a semicolon or a tab."""
    return max(",;\t", key=first.count)


def text_of(path: Path) -> str:
    """The text of a file, plain or compressed. InputError where it cannot be read, is damaged, or is no text."""
    try:
        text = load(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: byte {error.start:,} cannot be read") from error
    if "\0" in text:
        raise InputError(f"{path} is not text: it contains NUL characters")
    return text


def sheet(path: Path, text: str, delimiter: str = "", *, quoting: bool = True, names: Sequence[str] = ()) -> Sheet:
    """The rows below a header line, which tells the `delimiter` where none is given; `names` where there is no header.

    A row with fewer fields than the header stops the reading: a file that was cut off looks so. One with more
    is left out and counted where there is no quoting, since a name may hold the delimiter; else it stops too.

    Raises:
        InputError: no rows, a name twice in the header, a row of the wrong length.
    """
    delimiter = delimiter or delimiter_of(next((line for line in text.splitlines() if line.strip()), ""))
    lines_of = io.StringIO(text, newline="")
    # Strict, or a quote that is never closed would swallow the rows after it.
    reader = csv.reader(
        lines_of, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE, strict=True
    )
    header = list(names)
    rows: list[Sequence[str]] = []
    lines: list[int] = []
    long = 0
    for cells in _cells(path, reader):
        if not cells or (len(cells) == 1 and not cells[0].strip()):
            continue
        if not header:
            header = [cell.strip() for cell in cells]
            continue
        if len(cells) > len(header) and not quoting:
            long += 1
            continue
        if len(cells) != len(header):
            raise InputError(_wrong_length(path, reader.line_num, len(cells), len(header)))
        rows.append(cells)
        lines.append(reader.line_num)
    found = _sheet(path, header, rows, lines)
    if long:
        found.notes.append(f"{jobs(long)} left out: the line has more fields than the header (a name with {delimiter})")
    return found


def _cells(path: Path, reader: CsvReader) -> Iterator[list[str]]:
    """The rows of a reader; what it cannot read is an error with the line at which the row began."""
    line = 1
    try:
        for cells in reader:
            yield cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: the row cannot be read: {error}; is a quote not closed?") from error


def _wrong_length(path: Path, line: int, fields: int, expected: int) -> str:
    hint = "; the file looks cut off: copy it again, or delete that line" if fields < expected else ""
    return f"{path}, line {line}: {fields} field{'s' if fields != 1 else ''} where {expected} are expected{hint}"


def spaced(path: Path, text: str, names: Sequence[str], comment: str) -> Sheet:
    """Rows of fields parted by white space, without a header; lines that begin with `comment` are skipped.

    Raises:
        InputError: no rows, or a row with another number of fields.
    """
    rows: list[Sequence[str]] = []
    lines: list[int] = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = line.split()
        if not cells or cells[0].startswith(comment):
            continue
        if len(cells) != len(names):
            raise InputError(_wrong_length(path, number, len(cells), len(names)))
        rows.append(cells)
        lines.append(number)
    return _sheet(path, list(names), rows, lines)


def _sheet(path: Path, names: list[str], rows: Sequence[Sequence[str]], lines: Iterable[int]) -> Sheet:
    if not rows:
        raise InputError(f"{path} has no rows")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{path} has the column {twice[0]!r} twice; remove one")
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    frame = pl.DataFrame(columns, schema=dict.fromkeys(names, pl.String), strict=False)
    return Sheet(str(path), frame.with_columns(pl.Series(LINE, lines, pl.Int64)))
