"""What `sacct -P` prints, and files of other programs with a header and a delimiter, cut into columns of text."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence

import polars as pl

from ...errors import InputError
from .content import LINE, Refused

UNKNOWN = ("", "Unknown", "None", "N/A", "None assigned", "(null)", "INVALID")
"""What sacct prints where nothing is known."""
FREE_TEXT = frozenset(
    {"JobName", "Comment", "AdminComment", "SystemComment", "SubmitLine", "WorkDir", "Container", "WCKey", "Extra"}
    | {"Constraints", "Reservation", "Reason", "Licenses", "FailedNode", "StdOut", "StdErr", "StdIn"}
)
"""Fields that may hold whatever somebody wrote."""
_DELIMITERS = "\x1f|;,\t"


def rows(
    text: str,
    name: str,
    refused: Refused,
    *,
    save: str,
    notes: list[str],
    check: Callable[[str, Sequence[str]], None] | None = None,
) -> pl.DataFrame:
    """The lines of the file `name` below its header as columns of text, with `LINE`, the number of the line.

    They are cut where the header's most frequent delimiter is; lines with another number of fields are `refused`.
    `save` is the command of messages that say how to save the file again. `check` is called with the header and the
    names of the columns, and may raise. Raises InputError for an empty file and for a column that it has twice.
    """
    lines = pl.DataFrame({"text": text.split("\n")}).with_columns(pl.int_range(1, pl.len() + 1).alias(LINE))
    lines = lines.with_columns(pl.col("text").str.strip_chars_end("\r"))
    lines = lines.filter(pl.col("text").str.strip_chars(" \t") != "")
    if not lines.height:
        raise InputError(f"{name} is empty; save it again, for example with: {save}")
    header = lines["text"][0].lstrip("\ufeff")
    if "\0" in header:  # UTF-16, as PowerShell redirects output
        raise InputError(f"{name} is not text in UTF-8 (it holds zero bytes); save it in UTF-8")
    delimiter = max(_DELIMITERS, key=header.count)
    names = [column.strip().strip('"') for column in header.split(delimiter)]
    if names[-1] == "":  # sacct -p ends each line with the delimiter
        names.pop()
        lines = lines.with_columns(pl.col("text").str.strip_suffix(delimiter))
    if check is not None:
        check(header, names)
    twice = next((column for column in names if names.count(column) > 1), None)
    if twice is not None:
        raise InputError(f"{name} has the column {twice} twice; save it with: {save}")
    lines = lines.slice(1)
    cells = lines.select(LINE, pl.col("text").str.split(delimiter).alias("cells"))
    if delimiter in ",;\t" and lines["text"].str.contains('"', literal=True).any():  # a spreadsheet or pandas wrote it
        quoted = [_quoted(line, delimiter) for line in lines["text"]]
        cells = lines.select(LINE, pl.Series("cells", quoted, pl.List(pl.String)))
    if delimiter == "," and len(cells) and (cells["cells"].list.len() > len(names)).all():
        raise InputError(f"{name} is parted by commas, which stand in its fields too; save it with: {save}")
    return _even(cells, names, delimiter, refused, notes=notes)


def known(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The frame with these columns of text, NULL where nothing is known, also those that it lacks."""
    texts = [pl.col(name) for name in frame.columns if name != LINE]
    frame = frame.with_columns(pl.when(~text.is_in(UNKNOWN)).then(text) for text in texts)
    return frame.with_columns(pl.lit(None, pl.String).alias(name) for name in columns if name not in frame.columns)


def _quoted(line: str, delimiter: str) -> list[str]:
    """The fields of a line by the rules of CSV; the line as one field where it breaks them."""
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error:
        return [line]


def _even(cells: pl.DataFrame, names: list[str], delimiter: str, refused: Refused, *, notes: list[str]) -> pl.DataFrame:
    """Rows of as many fields as the header has. Text that a user chose may hold the delimiter or a line break."""
    free = [column for column in names if column in FREE_TEXT]
    if free:
        notes.append(
            f"the column {free[0]} holds text that users choose: a line break in it can pass for a job of somebody "
            "else; save the file without it"
        )
    count = pl.col("cells").list.len().cast(pl.Int64)
    if len(free) == 1:  # what is too much belongs to it
        place, extra = names.index(free[0]), count - len(names)
        joined = pl.concat_list(
            pl.col("cells").list.head(place),
            pl.col("cells").list.slice(place, extra + 1).list.join(delimiter),
            pl.col("cells").list.slice(place + extra + 1),
        )
        cells = cells.with_columns(pl.when(extra > 0).then(joined).otherwise("cells").alias("cells"))
    lengths = cells["cells"].list.len().unique().sort().to_list()
    wrong = [length for length in lengths if length != len(names)]
    rules = [(count == length, f"it has {length} fields, but the header names {len(names)}") for length in wrong]
    even = refused.take(cells, rules) if rules else cells
    columns = (pl.col("cells").list.get(i).str.strip_chars().alias(column) for i, column in enumerate(names))
    return even.select(LINE, *columns)
