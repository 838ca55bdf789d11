"""What the process that asks and the process that answers say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Cell: TypeAlias = str | None
Form: TypeAlias = Literal["csv", "parquet"]

MOST_ROWS = 1000
"""So many rows of an answer are shown."""
MOST_COLUMNS = 200
"""So many columns of an answer are shown."""
MOST_POINTS = 10_000
"""So many rows of an answer can be drawn."""


@dataclass(frozen=True)
class Show:
    """Show the first rows of an answer, and say how many there are."""

    query: str


@dataclass(frozen=True)
class Write:
    """Write a whole answer to a file, unless that becomes larger than `most_bytes`."""

    query: str
    form: Form
    path: str
    most_bytes: int


@dataclass(frozen=True)
class Column:
    """A column of an answer: its name, DuckDB's name of its type, and whether it holds numbers."""

    name: str
    type: str
    numeric: bool


@dataclass(frozen=True)
class Shown:
    """The first rows of an answer.

    `rows`: the cells, row by row, each as text, since JSON and doubles would change some numbers; None is NULL. `cut`
    of them were longer than what is shown. `points`: `drawn` of the rows for figures, as the bytes of an Arrow stream
    with the `drawable` columns: numbers as doubles, times, and texts. `total`: how many rows the answer has;
    None where counting them took too long.
    """

    columns: tuple[Column, ...]
    all_columns: int
    rows: list[list[Cell]]
    cut: int
    drawable: tuple[str, ...]
    points: bytes
    drawn: int
    total: int | None


@dataclass(frozen=True)
class Written:
    """What was written to a file."""

    rows: int
    size: int


@dataclass(frozen=True)
class Failed:
    """Why there is no answer."""

    sentence: str


@dataclass(frozen=True)
class Rested:
    """All is said, and the process can answer another question; not `fit` if it holds much memory."""

    fit: bool


Said: TypeAlias = Shown | Written | Failed | Rested | int
Question: TypeAlias = Show | Write
