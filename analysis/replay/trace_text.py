"""A file as rows of text with their line numbers, and its columns as checked numbers and times."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from ...errors import InputError
from ...store.importing.content import load

LINE = "=line"  # The column of line numbers. Columns that begin with `=` are ours; no file may have one.
CALENDAR_S = 1e8  # three years: a time beyond is one since 1970, as nothing in a trace begins so long after its start
UNKNOWN = (
    *("", "Unknown", "None", "N/A", "nan", "NaN", "NULL", "null", r"\N"),
    *("Partition_Limit", "UNLIMITED", "INVALID"),
)
"""How accounts of clusters spell a value that they do not have."""


@dataclass
class TraceText:
    """Rows of a file: `frame` has a column of text for each name of the header, without white space around, and `LINE`.

    What is left out of it stands in `notes`, in sentences. A cell that is not what a column is read as is an
    InputError that names its line; cells that are spelled as one of `unknown` are null.
    """

    file: str
    frame: pl.DataFrame
    notes: list[str] = field(default_factory=list)
    place: str = "line"  # what the numbers in `LINE` count: lines of the file, or jobs of a list in it

    @property
    def names(self) -> list[str]:
        """The columns of the file."""
        return [name for name in self.frame.columns if not name.startswith("=")]

    def need(self, *names: str, do: str = "Export the file again with them, or say --world trace-format=NAME") -> None:
        """Stop with one sentence where columns are missing; `do` says what to do."""
        missing = [name for name in names if name not in self.frame.columns]
        if missing:
            raise InputError(f"{self.file} has no column {', '.join(missing)}; it has {', '.join(self.names)}. {do}")

    def add(self, *columns: pl.Expr | pl.Series) -> None:
        """Add columns; one of a name that is there takes its place."""
        self.frame = self.frame.with_columns(columns)

    def add_absent(self, *names: str) -> None:
        """Add those of these columns that are not there, with empty cells."""
        self.add(*(pl.lit("").alias(name) for name in names if name not in self.frame.columns))

    def number(self, name: str, unknown: Sequence[str] = ()) -> pl.Series:
        """(rows,) a column as finite numbers."""
        return self._strict(name, pl.col(name).cast(pl.Float64, strict=False), "a finite number", unknown)

    def nonnegative(self, name: str, unknown: Sequence[str] = ()) -> pl.Series:
        """(rows,) a column as numbers of at least 0."""
        numbers = self.number(name, unknown)
        self.check(pl.lit(numbers) < 0, f"{name} is {{{name}}}; it must be at least 0")
        return numbers

    def instant(self, name: str, unknown: Sequence[str] = ()) -> pl.Series:
        """(rows,) a column as seconds: ISO 8601 with an offset from UTC or without, or a number."""
        return self._strict(name, seconds(name), "a time such as 2026-01-31T12:00:00 or a number", unknown)

    def span(self, name: str, unknown: Sequence[str] = (), unit: float = 1.0) -> pl.Series:
        """(rows,) a column of `[DD-]HH:MM:SS`, `MM:SS`, or numbers of `unit` seconds, as seconds."""
        parts = pl.col(name).str.extract_groups(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?$")
        days, hours, minutes, full_seconds = (parts.struct.field(str(i)).cast(pl.Float64) for i in range(1, 5))
        clock = 86400 * days.fill_null(0) + 3600 * hours.fill_null(0) + 60 * minutes + full_seconds
        span = pl.coalesce(clock, unit * pl.col(name).cast(pl.Float64, strict=False))
        return self._strict(name, span, "a time such as 1-02:03:04", unknown)

    def _strict(self, name: str, value: pl.Expr, kind: str, unknown: Sequence[str]) -> pl.Series:
        """(rows,) `value` of the cells of a column that are not `unknown`; one that has none stops the reading."""
        if self.frame[name].dtype != pl.String:
            return self.frame[name]
        blank = pl.col(name).is_null() | pl.col(name).is_in(list(unknown))
        values = self.frame.select(pl.when(~blank & value.is_finite()).then(value).alias(name)).to_series()
        self.check(~blank & pl.lit(values).is_null(), f"{name} is {{{name}!r}}, which is not {kind}")
        return values

    def check(self, bad: pl.Expr, why: str) -> None:
        """Stop at the first row where `bad` holds; `{name}` in `why` is that row's cell."""
        rows = self._holds(bad).arg_true()
        if len(rows):
            row = self.frame.row(rows[0], named=True)
            raise InputError(f"{self.file}, {self.place} {row[LINE]}: {why.format_map(row)}")

    def leave_out(self, bad: pl.Expr, why: str) -> None:
        """Take the rows where `bad` holds out, and say how many and why."""
        holds = self._holds(bad)
        if n := int(holds.sum()):
            self.notes.append(f"{jobs(n)} left out: {why}")
            self.frame = self.frame.filter(~holds)

    def count(self, condition: pl.Expr, note: str) -> None:
        """Say in how many rows a condition holds, if in any; `{}` in `note` is "3 jobs"."""
        if n := int(self._holds(condition).sum()):
            self.notes.append(note.format(jobs(n)))

    def _holds(self, condition: pl.Expr) -> pl.Series:
        return self.frame.select(condition.fill_null(value=False)).to_series()


def jobs(n: int) -> str:
    return f"{n:,} job{'s' if n != 1 else ''}"


def seconds(name: str) -> pl.Expr:
    """A column of times or numbers as seconds, null where a cell is neither."""
    text = (
        pl.col(name).str.replace(" ", "T", literal=True).str.replace(r"Z$", "+0000").str.replace(r"(:\d+)\.\d+", "$1")
    )
    text = text.str.replace(r"([+-]\d{2}):(\d{2})$", "$1$2")
    local = text.str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False, time_unit="ms").dt.epoch("s")
    zoned = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%z", strict=False, time_unit="ms", time_zone="UTC").dt.epoch("s")
    return pl.coalesce(local, zoned, pl.col(name).cast(pl.Float64, strict=False))


def text_of(path: Path) -> str:
    """The text of a file, plain or compressed. InputError where it cannot be read, is damaged, or is no text."""
    try:
        return load(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: byte {error.start:,} cannot be read") from error


def first_line(text: str) -> str:
    """The first line that is not empty; "" where there is none."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def headings(first: str) -> set[str]:
    """The names that the first line of a CSV may hold, quoted or not."""
    return {name.strip().strip('"').strip() for name in first.split(_delimiter(first))}


def _delimiter(first: str) -> str:
    """What parts the names in the first line of a CSV: a comma, a semicolon or a tab."""
    return max(",;\t", key=first.count)


def delimited(
    path: Path, text: str, delimiter: str = "", *, quoting: bool = True, names: Sequence[str] = ()
) -> TraceText:
    """The rows below a header line, which tells the `delimiter` where none is given; `names` where there is no header.

    A row with fewer fields than the header stops the reading: a file that was cut off looks so. One with more
    is left out and counted where there is no quoting, since a name may hold the delimiter; else it stops too.

    Raises:
        InputError: no rows, a name twice in the header, a row of the wrong length.
    """
    delimiter = delimiter or _delimiter(first_line(text))
    # Strict, or a quote that is never closed would swallow the rows after it.
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE,
        strict=True,
    )
    header = list(names)
    rows: list[Sequence[str]] = []
    lines: list[int] = []
    too_long = 0
    line = 1
    try:
        for cells in reader:
            line = reader.line_num + 1
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if not header:
                header = [cell.strip() for cell in cells]
            elif len(cells) > len(header) and not quoting:
                too_long += 1
            elif len(cells) != len(header):
                hint = "; the file looks cut off: copy it again, or delete that line" * (len(cells) < len(header))
                fields = f"{len(cells)} field{'s' if len(cells) != 1 else ''} where {len(header)} are expected{hint}"
                raise InputError(f"{path}, line {reader.line_num}: {fields}")
            else:
                rows.append(cells)
                lines.append(reader.line_num)
    except csv.Error as error:  # of the row that begins at `line`
        raise InputError(f"{path}, line {line}: the row cannot be read: {error}; is a quote not closed?") from error
    if not rows:
        raise InputError(f"{path} has no rows")
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"{path} has the column {name!r} twice; remove one")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(header, pl.String), orient="row")
    table = TraceText(str(path), frame.select(pl.all().str.strip_chars(), pl.Series(LINE, lines, pl.Int64)))
    if too_long:
        table.notes.append(
            f"{jobs(too_long)} left out: the line has more fields than the header (a name with {delimiter})"
        )
    return table


def csv_of(path: Path, *columns: str, do: str = "Name its columns so") -> TraceText:
    """The rows of a CSV, plain or compressed, that has these columns; `do` says what to do where it lacks one."""
    table = delimited(path, text_of(path))
    table.need(*columns, do=do)
    return table
