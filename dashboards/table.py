"""A table of text, drawn on a page or printed by a verb, and how numbers are written for people.

It imports nothing, so that a node that only measures can print tables too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import document
from .words import MISSING as MISSING
from .words import count as count
from .words import cut as cut
from .words import estimate
from .words import many as many
from .words import minus as minus
from .words import minute as minute
from .words import number as number
from .words import printable as printable
from .words import second as second


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

    def modern(self) -> document.Table:
        """The table of the document model."""
        columns = [
            document.Column(
                head,
                "sentence" if place in self.wrapped else "number" if place in self.right else "text",
                drops=len(self.leaves) - list(self.leaves).index(place) if place in self.leaves else 0,
            )
            for place, head in enumerate(self.header)
        ]
        return document.Table(columns, self.rows, self.title, self.says, cards=self.cards)

    def markdown(self) -> str:
        """The cells as a Markdown table."""
        return self.modern().markdown()


class Line(document.Command):
    """A command to copy."""

    __slots__ = ()


def signed(value: float, digits: int = 2) -> str:
    """A number of a page with its sign, + as well; with so many digits behind the point. What rounds to 0 has none."""
    return minus(estimate(value, digits=digits, signed=True))
