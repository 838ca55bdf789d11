"""Draws documents as text: for a terminal, fitted to its width, and for a pipe or a file, in whole lines.

A table that is too wide breaks its sentences into lines; then it drops columns, in the order they state, and names
them; then it breaks its heads; then each row takes a line per column. A number is never split. `rich` draws tables
where it is installed; on a node that only measures, which has no `rich`, cells are aligned as they are in a pipe.
"""

from __future__ import annotations

import importlib.util
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .document import Chart, Column, Command, Document, Facts, Findings, Listing, Part, Picture, Section, Table, Tiles
from .words import capital, listed, printable

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2
"""Columns of a terminal between two columns of a table."""
_FILLED = 100  # a line of text is no longer, however wide the terminal
_NARROWEST = 16  # of a column of sentences, unless its longest word is longer
_WORD = 40  # a longer word may break there: a UUID has 40 letters, so what does is a path


def text(document: Document, width: int | None = None) -> str:
    """The document as text. `width` in columns; None for a pipe, where a sentence is one line."""
    return "\n".join(lines(document.parts, width)).strip("\n")


def lines(parts: Iterable[Part], width: int | None = None) -> Iterator[str]:
    """The lines of parts, with an empty line between two of them that are no sentences."""
    before: Part | None = None
    for part in parts:
        if isinstance(part, Section) and part.defines:
            part = "docs/glossary.md says what the words mean."
        if isinstance(part, Chart | Picture | Listing) or (isinstance(part, Section) and part.folded):
            continue
        if before is not None and not (isinstance(part, str) and isinstance(before, str)):
            yield ""
        before = part
        yield from _lines(part, width)


def filled(sentence: str, width: int | None, first: str = "", rest: str = "") -> list[str]:
    """A sentence in lines of this width, at most 100; words stay in one piece. None for one line."""
    sentence = printable(sentence)
    if width is None:
        return [first + sentence]
    return textwrap.wrap(
        sentence,
        min(width, _FILLED),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    ) or [first]


def _lines(part: Part, width: int | None) -> Iterable[str]:
    if isinstance(part, Command):
        return [printable(part)]
    if isinstance(part, str):
        indent = part[: len(part) - len(part.lstrip())]
        return filled(part.lstrip(), width, indent, f"{indent}  " if indent else "")
    if isinstance(part, Section):
        lead = filled(part.lead, width) if part.lead else []
        return [*filled(capital(part.title), width), *lead, *lines(part.parts, width)]
    if isinstance(part, Table):
        return _table(part, width)
    if isinstance(part, Findings):
        return _findings(part, width)
    if isinstance(part, Tiles):
        return _pairs("", part.figures, width)
    if isinstance(part, Facts):
        return _pairs(part.title, part.pairs, width)
    raise TypeError(f"a terminal draws no {type(part).__name__}")


def _pairs(title: str, pairs: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    if title:
        yield from filled(title, width)
    longest = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        yield from filled(value, width, f"  {printable(name).ljust(longest)}  ", " " * (longest + 4))


def _findings(part: Findings, width: int | None) -> Iterator[str]:
    """A line for what and how sure; under it why, what to do and the evidence."""
    for finding in part.findings[: part.most]:
        size = f" {finding.size}" if finding.size else ""
        yield from filled(f"{finding.name}: {finding.kind}, {finding.state}{size}", width, "", "  ")
        for word, sentence in (("why", finding.because), ("do", finding.action), ("seen", finding.evidence)):
            if sentence:
                yield from filled(sentence, width, f"  {word}: ".ljust(8), " " * 8)
    if part.most is not None and len(part.findings) > part.most:
        yield f"and {len(part.findings) - part.most:,} more: --json has all"


# -- tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cells:
    """A table as text: heads, cells, and what the columns allow."""

    columns: Sequence[Column]
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def breaking(self) -> list[int]:
        """The places of columns of sentences."""
        return [place for place, column in enumerate(self.columns) if column.kind == "sentence"]

    def widths(self) -> list[int]:
        """The longest line of each column."""
        heads = [max(map(len, head.split("\n"))) for head in self.heads]
        return [max([wide, *map(len, cells)]) for wide, *cells in zip(heads, *self.rows, strict=True)]

    def least(self, *, breaks: bool) -> int:
        """How many columns of a terminal they take at least."""
        widths = self.widths()
        for place in self.breaking if breaks else ():
            words = [len(word) for row in (self.heads, *self.rows) for word in row[place].split()]
            widths[place] = min(widths[place], max(_NARROWEST, min(_WORD, max(words, default=0))))
        return sum(widths) + GAP * (len(widths) - 1)

    def without(self, place: int) -> _Cells:
        """The cells without one column."""

        def rest(row: Sequence[str]) -> list[str]:
            return [*row[:place], *row[place + 1 :]]

        columns = [column for at, column in enumerate(self.columns) if at != place]
        return _Cells(columns, rest(self.heads), list(map(rest, self.rows)))

    def heads_broken(self) -> _Cells:
        """The cells with heads that break into lines as narrow as their column allows."""
        heads = []
        for place, head in enumerate(self.heads):
            longest = max([1, *(len(row[place]) for row in self.rows), *map(len, head.split())])
            heads.append(textwrap.fill(head, longest, break_on_hyphens=False))
        return replace(self, heads=heads)

    def aligned(self) -> list[str]:
        """Heads and rows as lines of aligned cells."""
        widths = self.widths()
        return [
            (" " * GAP)
            .join(
                cell.rjust(wide) if column.right else cell.ljust(wide)
                for column, cell, wide in zip(self.columns, row, widths, strict=True)
            )
            .rstrip()
            for row in (self.heads, *self.rows)
        ]


def _table(table: Table, width: int | None) -> Iterator[str]:
    columns = table.heads
    cells = _Cells(
        columns, [printable(column.head) for column in columns], [list(map(printable, row)) for row in table.texts()]
    )
    has_rich = width is not None and importlib.util.find_spec("rich") is not None
    if table.title:
        yield from filled(table.title, width)
    dropped: list[str] = []
    while width is not None and cells.least(breaks=has_rich) > width:
        drops = [column.drops for column in cells.columns]
        if not any(drops):
            break
        place = drops.index(max(drops))
        dropped.append(cells.heads[place])
        cells = cells.without(place)
    if width is not None and has_rich and cells.least(breaks=True) > width:
        broken = cells.heads_broken()
        cells = broken if broken.least(breaks=True) <= width else cells
    if width is not None and cells.least(breaks=has_rich) > width:
        yield from _row_by_row(cells, width)
    elif width is not None and has_rich:
        yield from _rich(cells, width)
    else:
        yield from cells.aligned()
    if table.hidden:
        yield f"and {table.hidden:,} more: --json has all"
    named = [f"'{head}'" if "," in head else head for head in dropped if head and not head.startswith("[")]
    if named:
        yield from filled(f"No room for {listed(named, len(named))}: a wider terminal shows more.", width)
    if table.below:
        yield from filled(table.below, width)


def _row_by_row(cells: _Cells, width: int) -> Iterator[str]:
    """A line per column that has something in it."""
    longest = max(map(len, cells.heads))
    for position, row in enumerate(cells.rows, start=1):
        yield f"row {position}"
        for head, cell in zip(cells.heads, row, strict=True):
            if cell:
                yield from filled(cell, width, f"  {head.ljust(longest)}  ", " " * (longest + 4))


def console(*, error: bool = False, columns: int | None = None) -> Console:
    """The console of `rich` that a verb prints with; NO_COLOR is honoured."""
    from rich.console import Console

    return Console(
        stderr=error,
        width=columns,
        color_system=None if "NO_COLOR" in os.environ else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def _rich(cells: _Cells, width: int) -> Iterator[str]:
    from rich.table import Table as RichTable

    printer = console(columns=width)
    table = RichTable(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column, head in zip(cells.columns, cells.heads, strict=True):
        table.add_column(
            head,
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=column.kind != "sentence",
        )
    for row in cells.rows:
        table.add_row(*row)
    with printer.capture() as capture:
        printer.print(table)
    yield from (line.rstrip() for line in capture.get().splitlines())
