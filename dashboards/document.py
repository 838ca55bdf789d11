"""What whorl says, as data: sections of sentences, findings, figures and tables, whatever draws them.

    answer of analysis --documents/--> Document --terminal.py------------> a terminal or a pipe
                                                --markup.py--> html.py --> a report, a notebook
                                                           --> app/ -----> pages of the dashboard

A cell of a table is a value, not a text: its column says how it is written, so that a page can sort what a terminal
prints. A text is shown as it is. What is missing is None, and is shown as n/a.

It imports nothing but the standard library, so that a node that only measures can print documents too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol
from urllib.parse import quote

from .words import (
    LADDERS,
    MISSING,
    estimate,
    interval,
    number,
    quantity,
    second,
    with_interval,
    with_interval_in_unit,
)

Kind = Literal["text", "sentence", "count", "number", "percent", "interval", "estimate", "time", "quantity"]
"""How the cells of a column are written and sorted. `text`: one line that does not break; `sentence`: text whose lines
may break; `count`: a whole number; `number`: to `digits` behind the point, or four significant ones; `percent`: a
number with its sign and %, alone or with its interval; `interval`: a pair (low, high); `estimate`: a number with its
interval (value, low, high), sorted by the number; `time`: in UTC, to the second; `quantity`: a number in `unit`, with
the prefix that suits it (kJ, GB)."""

Side = Literal["before", "middle", "after"]
Pair = tuple[float | None, float | None]
Triple = tuple[float | None, float | None, float | None]
Cell = str | int | float | datetime | Pair | Triple | None


@dataclass(frozen=True)
class Column:
    """A column of a table: its head, and how its cells are written."""

    head: str
    kind: Kind = "text"
    digits: int | None = None
    """Digits behind the point, of a number; None for four significant ones. Of an estimate, the most; None for as many
    as tell the ends of its interval apart."""
    unit: str = ""
    """Of a `number` it is written behind each cell; of a `quantity` it gets a prefix; an `estimate` in J, s or g is
    written in the unit of `words.LADDERS` that suits the cell."""
    explains: str = ""
    """What the column means, in a sentence: shown where the pointer rests on its head, and in the fold of terms."""
    drops: int = 0
    """Whether a narrow terminal leaves the column out: 0 never, otherwise the column with the highest number first."""
    page: str = ""
    """The page of the dashboard that a cell leads to: `gpu`. The cell is the name that this page takes."""

    @property
    def right(self) -> bool:
        """Whether cells are aligned to the right."""
        return self.kind not in ("text", "sentence", "time")

    def text(self, cell: Cell) -> str:
        """A cell for people; n/a where the value is missing."""
        if isinstance(cell, str):
            return cell
        if isinstance(cell, tuple) and len(cell) == 3 and self.unit in LADDERS:
            return with_interval_in_unit(*cell, LADDERS[self.unit])
        if isinstance(cell, tuple) and len(cell) == 3:
            signed = self.kind == "percent"
            return with_interval(*cell, signed=signed, unit="%" if signed else self.unit, most=self.digits)
        if isinstance(cell, tuple):
            return interval(*cell, digits=self.digits, signed=False, unit=self.unit)
        if isinstance(cell, datetime):
            return second(cell)
        if cell is None:
            return MISSING
        if self.kind == "percent":
            return estimate(cell, digits=self.digits if self.digits is not None else 1, signed=True, unit="%")
        if self.kind == "quantity":
            return quantity(cell, self.unit)
        if self.kind == "count":
            return f"{cell:,.0f}"
        if self.digits is not None:
            return estimate(cell, digits=self.digits, unit=self.unit)
        return number(cell, suffix=f" {self.unit}" if self.unit else "")


CellSource = str | Callable[[Any], Cell]
"""Where the cells of a column come from: a field of the rows, by its name, or what makes a cell of a row."""
TableColumn = tuple[Column | str, CellSource]
"""A column of a table of records. A head alone stands for a column of text."""
TableColumns = list[TableColumn]
"""The columns of a table of records, from left to right."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads. A head alone stands for a column of text."""

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    below: str = ""
    """A sentence about the rows, drawn below them."""
    most: int | None = None
    """Rows that are drawn; the others are counted in a line. None draws all."""
    command: str = ""
    """The command that prints these rows, for who copies them; empty for that of the page."""
    query: str = ""
    """The SQL over the tables of the store that answers with these rows; empty for that of the page."""

    @classmethod
    def of(
        cls,
        rows: Iterable[Any],
        columns: TableColumns,
        title: str = "",
        below: str = "",
        *,
        most: int | None = None,
    ) -> Table:
        """A table of records, which are mappings or have attributes: each column with where its cells come from."""
        heads, sources = zip(*columns, strict=True)
        cells = [[cell_of(row, source) for source in sources] for row in rows]
        return cls(heads, cells, title, below, most=most)

    @property
    def heads(self) -> list[Column]:
        """The columns, those of a head alone too."""
        return [column if isinstance(column, Column) else Column(column) for column in self.columns]

    def cluster(self, row: Sequence[Cell]) -> str | None:
        """The cluster of a row; None where no column says it."""
        cells = (cell for head, cell in zip(self.heads, row, strict=True) if head.head == "cluster")
        return next((cell for cell in cells if isinstance(cell, str)), None)

    def texts(self) -> list[list[str]]:
        """The cells that are drawn, as people read them."""
        heads = self.heads
        return [[column.text(cell) for column, cell in zip(heads, row, strict=True)] for row in self.rows[: self.most]]

    @property
    def hidden(self) -> int:
        """How many rows are not drawn."""
        return 0 if self.most is None else max(0, len(self.rows) - self.most)

    def markdown(self) -> str:
        """The cells as a Markdown table."""
        heads = self.heads
        lines = [[column.head for column in heads], ["---:" if column.right else "---" for column in heads]]
        lines += self.texts()
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def cell_of(row: Any, source: CellSource) -> Cell:
    """The cell that a column has in a row."""
    if callable(source):
        return source(row)
    cell: Cell = row[source] if isinstance(row, Mapping) else getattr(row, source)
    return cell


@dataclass(frozen=True)
class Listing:
    """A long table of GPUs, which a page sorts and filters: columns, not rows. A terminal shows none.

    `texts` are columns that do not depend on the choice; `values` are the columns of `numbers`, by choice.
    """

    title: str
    below: str
    texts: Mapping[str, Sequence[str | None]]
    numbers: Sequence[Column]
    values: Mapping[str, Sequence[Sequence[float | None]]]
    choice: str = ""
    """What is chosen: `probe`."""


class Figure(Protocol):
    """A figure of Plotly, plain or of Plotly's own class."""

    @property
    def data(self) -> Any:
        """Its traces."""

    @property
    def layout(self) -> Any:
        """Its axes and all else."""

    def to_plotly_json(self) -> dict[str, Any]:
        """The figure as a browser gets it; Dash calls it."""

    def to_json(self) -> str | None:
        """The same as text."""


@dataclass(frozen=True)
class Chart:
    """A figure, or several to choose from by name, with what a reader sees in it. A terminal shows no figures."""

    title: str
    caption: str
    figures: Mapping[str, Figure]
    opens: bool = False
    """Whether a GPU that is opened in a `Listing` is shown here."""
    choice: str = ""
    """The name in the address of a page that says which figure is chosen; empty for none."""


@dataclass(frozen=True)
class Label:
    """A name in a picture. Its size does not depend on that of the picture."""

    text: str
    left: float
    """Of the width of the picture, in per cent."""
    top: float
    """Of its height, in per cent."""
    side: Side
    """Where the text is: its end, its middle or its beginning is at the place."""
    small: bool = False
    """Whether a narrow screen leaves it out."""
    gpu: str = ""
    """The whole name of the GPU that it names: a page makes it a link."""

    @property
    def look(self) -> str:
        """Its classes in `document.css`."""
        return " ".join([self.side, *(["small"] if self.small else []), *(["odd"] if self.gpu else [])])


@dataclass(frozen=True)
class Picture:
    """A picture that a page draws without a script. A terminal shows none."""

    title: str
    caption: str
    svg: str
    """With single quotes; it says how wide and high it is."""
    described: str
    """What is in it, for who does not see it."""
    labels: Sequence[Label]
    legend: Sequence[tuple[str, str]]
    """What a mark means, and the mark as SVG."""


def address_of_svg(svg: str) -> str:
    """A picture as an address that a page can hold itself."""
    return "data:image/svg+xml," + quote(svg, safe=" ='/:,.()-")


@dataclass(frozen=True)
class Finding:
    """One finding: what it is about, how sure, why, and what to do."""

    name: str
    """The GPU, node, batch or rank, as every command takes it."""
    kind: str
    state: str
    size: str
    """The effect with its interval; empty where nothing was measured."""
    because: str
    action: str
    evidence: str
    """What it was compared with, how often it was seen, p-value and q-value."""
    gpus: Sequence[str] = ()
    """Keys of its GPUs, for links and marks."""
    severe: bool = False


@dataclass(frozen=True)
class Findings:
    """Findings, the worst first."""

    findings: Sequence[Finding]
    most: int | None = None
    """Findings that are drawn; the others are counted in a line. None draws all."""


@dataclass(frozen=True)
class Facts:
    """Words with what they stand for, under a title."""

    pairs: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True)
class Tiles:
    """A few large figures side by side: each its value and what it is."""

    figures: Sequence[tuple[str, str]]


class Command(str):
    """A command to copy, in a line of its own."""

    __slots__ = ()


@dataclass(frozen=True)
class Section:
    """A part of a document under its own heading; without a title, parts that stand together."""

    title: str
    parts: Sequence[Part]
    lead: str = ""
    """A sentence under the heading."""
    folded: bool = False
    """Whether a page shows its heading only until a reader opens it: for definitions. A terminal leaves it out."""
    anchor: str = ""
    """Its name in an address; empty for none."""

    @property
    def defines(self) -> bool:
        """Whether it says what words mean: a terminal names the glossary in its place."""
        return self.folded and self.title == WORDS


WORDS = "What the words mean"
"""The title of a section of definitions."""
Part = str | Command | Table | Listing | Chart | Picture | Findings | Facts | Tiles | Section
"""A sentence is a text; what stands between two backticks is code."""


@dataclass(frozen=True)
class Document:
    """An answer: a title, what stands under it, and notes about how it was made."""

    title: str
    parts: Sequence[Part]
    notes: Sequence[str] = ()

    def tables(self) -> Iterator[Table]:
        """All tables, those within sections too."""
        return _tables(self.parts)


def _tables(parts: Iterable[Part]) -> Iterator[Table]:
    for part in parts:
        if isinstance(part, Table):
            yield part
        elif isinstance(part, Section):
            yield from _tables(part.parts)
