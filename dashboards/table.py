"""A table of text, drawn on a page or printed by a verb, and how numbers are written for people.

It imports nothing, so that a node that only measures can print tables too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

MISSING = "n/a"
GAP = 2
"""Columns of a terminal between two columns of a table."""
_STEERING = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters but the tab, ends of lines, and what turns the direction of a text."""
LONGEST = 2_000
"""Characters of a sentence that is told: an error may name a file or a query of any length."""
_MINUS = re.compile(r"(?<![^\s\[(>])-(?=\.?\d)")


@dataclass(frozen=True)
class Table:
    """Cells of text; `right` are the columns that are aligned to the right. Title and text above it are optional."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    title: str = ""
    says: str = ""
    wrapped: Sequence[int] = ()
    """Columns of sentences, whose lines may break. All other cells stay in one line."""
    cards: bool = False
    """Whether each row is a card on a narrow screen: for few rows of many words."""
    leaves: Sequence[int] = ()
    """Columns that are left out of a terminal that is too narrow, the first of them first."""

    def markdown(self) -> str:
        """The cells as a Markdown table."""
        rule = ["---:" if place in self.right else "---" for place in range(len(self.header))]
        lines = [self.header, rule, *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)

    def lines(self) -> list[str]:
        """The title, the cells in aligned columns, and the text about them, as lines."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        cells = [
            [
                cell.rjust(width) if place in self.right else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            for row in (self.header, *self.rows)
        ]
        aligned = [(" " * GAP).join(row).rstrip() for row in cells]
        return [*filter(None, [self.title]), *aligned, *filter(None, [self.says])]


class Line(str):
    """A line that is printed as it is, such as a command to copy."""

    __slots__ = ()


def printable(text: str, *, lines: bool = False) -> str:
    """A text of one line without control characters, which would steer a terminal: names of files and GPUs may hold
    some. They are shown as in Python: \\n, \\x1b. With `lines` its lines stay, as those of DuckDB's messages."""
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    text = text.encode("utf-8", "backslashreplace").decode()
    return _STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def cut(sentence: str) -> str:
    """A sentence of `LONGEST` characters at most, about: its beginning says what is wrong, its end what to do."""
    left_out = len(sentence) - LONGEST
    if left_out <= 0:
        return sentence
    return f"{sentence[: LONGEST - 500]} [... {left_out:,} characters ...] {sentence[-500:]}"


def number(value: float | None, digits: int = 4, *, suffix: str = "") -> str:
    """A number for people, to this many significant digits; "n/a" if it is missing."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return f"0{suffix}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}{suffix}"


def minus(text: str) -> str:
    """A text for a page, with "−" (U+2212) before its negative numbers, as Plotly and the tables of a browser write
    them. A terminal keeps the hyphen, which programs read."""
    return _MINUS.sub("−", text)


def signed(value: float, digits: int = 2) -> str:
    """A number of a page with its sign, + as well; with so many digits behind the point. What rounds to 0 has none."""
    text = f"{value:+.{digits}f}"
    return minus(text) if re.search("[1-9]", text) else text[1:]


def minute(at: datetime | None) -> str:
    """A time, to the minute."""
    return MISSING if at is None else f"{at:%Y-%m-%d %H:%M}"


def second(at: datetime | None, missing: str = MISSING) -> str:
    """A time, to the second."""
    return missing if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def count(value: int | None) -> str:
    """A whole number for people; "n/a" where it is missing."""
    return MISSING if value is None else f"{value:,}"


def many(value: int, what: str) -> str:
    """A number with its noun: `1 GPU`, `2 GPUs`."""
    return f"{value:,} {what}" + ("" if value == 1 else "s")
