"""Parts of documents as elements of HTML: the one table of drawings behind the report, notebooks and the dashboard.

A `Medium` is what differs between them: where names lead, how figures and long tables come to life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any, TypeAlias

from .document import (
    Cell,
    Chart,
    Column,
    Command,
    Facts,
    Finding,
    Findings,
    Listing,
    Part,
    Picture,
    Section,
    Table,
    Tiles,
    address_of_svg,
)
from .words import minus, printable, unbroken

Attributes: TypeAlias = Mapping[str, Any]
"""By their names in HTML; "style" is a mapping, too."""
_VOID = ("img",)
_TELEPHONE_PX, _GAP_PX, _LETTER_PX = 366, 18, 8
"""The room for a table on a telephone, what stands between two columns, and a letter in `document.css`."""


@dataclass(frozen=True)
class Element:
    """An element of HTML. Text within is plain: who writes it escapes it."""

    tag: str
    inside: tuple[Node, ...] = ()
    attributes: Attributes = field(default_factory=dict)

    def __str__(self) -> str:
        texts = "".join(f' {name}="{_attribute(value)}"' for name, value in self.attributes.items())
        opening = f"<{self.tag}{texts}>"
        return opening if self.tag in _VOID else f"{opening}{''.join(map(text_of, self.inside))}</{self.tag}>"


Node: TypeAlias = Element | str | Any
"""What stands within an element; what a medium makes itself is passed on to it as it is."""


def text_of(node: Node) -> str:
    """A node as HTML."""
    return escape(printable(node), quote=False) if isinstance(node, str) else str(node)


def _attribute(value: Any) -> str:
    if isinstance(value, Mapping):
        value = ";".join(f"{name}:{text}" for name, text in value.items())
    return escape(printable(str(value)))


def element(tag: str, *inside: Node, **attributes: Any) -> Element:
    """An element; `look` is its class. Attributes that are None, and what is "" within it, are left out."""
    if "look" in attributes:
        attributes = {"class": attributes.pop("look") or None, **attributes}
    given = {name.replace("_", "-"): value for name, value in attributes.items() if value is not None}
    return Element(tag, tuple(node for node in inside if not (isinstance(node, str) and not node)), given)


def _soft(medium: Medium, text: str) -> Node:
    return element("p", *medium.prose(text), look="soft") if text else ""


@dataclass(frozen=True)
class Medium:
    """Where documents are drawn. Without any of these, a page that leads nowhere, and has no figures."""

    plain: Callable[[str], list[Node]] = lambda text: [minus(text)]
    """A text without code."""
    link: Callable[[Node, str, str, str | None], Node] = lambda text, *_: text
    """A text that leads to a page (`gpu`) about a name on a cluster (None: nobody says which)."""
    table: Callable[[Table, str, Callable[[], Element]], Node] = lambda _, __, rows: rows()
    """A table with its label; `rows` makes it of plain HTML."""
    chart: Callable[[Chart], tuple[Node, Node]] = lambda _: ("", "")
    """What a reader chooses the figure with, "" where there is one only, and the figure."""
    listing: Callable[[Listing], Node] = lambda _: ""
    """A long table of GPUs; "" leaves it out."""
    sorts: bool = False
    """Whether a click on the head of a table sorts it."""

    def prose(self, text: str) -> list[Node]:
        """A text, with what stands between two backticks as code."""
        parts = text.split("`")
        if len(parts) % 2 == 0:  # one that has no partner is a part of a name
            parts = ["`".join(parts)]
        return [
            node
            for place, part in enumerate(parts)
            for node in ([element("code", part)] if place % 2 else self.plain(part))
        ]


def draw(part: Part, medium: Medium, level: int = 2) -> Node:
    """A part as an element; "" where nothing is to be seen. `level`: of the heading of a section."""
    if isinstance(part, Section):
        return section(part, medium, level)
    return _DRAWINGS[type(part)](part, medium)


def section(part: Section, medium: Medium, level: int = 2, anchor: str = "") -> Element:
    """A section under its heading; a folded one opens where a reader clicks on it. `anchor`: in place of its own."""
    head: Node = element(f"h{level}", part.title) if part.title else ""
    below = level + 1 if part.title else level
    inside = [_soft(medium, part.lead), *(draw(piece, medium, below) for piece in part.parts)]
    name = anchor or part.anchor or None
    if part.folded:
        return element("section", element("details", element("summary", head), *inside), id=name)
    return element("section", head, *inside, id=name)


def _sentence(part: str, medium: Medium) -> Node:
    return element("p", *medium.prose(part)) if part else ""


def _command(part: Command, _: Medium) -> Node:
    return element("pre", element("code", str(part)), look="command", tabindex=0)


def _facts(part: Facts, medium: Medium) -> Node:
    pairs = [node for name, text in part.pairs for node in (element("dt", name), element("dd", *medium.prose(text)))]
    return element("div", element("h3", part.title) if part.title else "", element("dl", *pairs, look="facts"))


def _tiles(part: Tiles, medium: Medium) -> Node:
    tiles = [
        element("div", element("dt", *medium.prose(meaning)), element("dd", *medium.prose(unbroken(value))))
        for value, meaning in part.figures
    ]
    return element("dl", *tiles, look="tiles")


def _findings(part: Findings, medium: Medium) -> Node:
    hidden = 0 if part.most is None else len(part.findings) - part.most
    findings = [_finding(finding, medium) for finding in part.findings[: part.most]]
    others = _soft(medium, f"and {hidden:,} more" if hidden > 0 else "")
    return element("div", element("ol", *findings, look="findings"), others)


def _finding(finding: Finding, medium: Medium) -> Node:
    name: Node = element("b", finding.name)
    if len(finding.gpus) == 1:
        name = medium.link(name, "gpu", finding.gpus[0], None)
    size = f" {finding.kind}, {finding.state} {finding.size}".rstrip()
    lines: list[Node] = [element("p", name, *medium.prose(size)), _sentence(finding.because, medium)]
    if finding.action:
        lines.append(element("p", element("b", "Do:"), " ", *medium.prose(finding.action)))
    return element("li", *lines, _soft(medium, finding.evidence), look="severe" if finding.severe else "")


def _figure(title: str, caption: str, choice: Node, medium: Medium, *drawn: Node) -> Element:
    return element("figure", element("figcaption", element("h3", title), choice, _soft(medium, caption)), *drawn)


def _chart(part: Chart, medium: Medium) -> Node:
    choice, plot = medium.chart(part)
    return _figure(part.title, part.caption, choice, medium, plot)


def _picture(part: Picture, medium: Medium) -> Node:
    labels = [
        element(
            "span",
            medium.link(minus(label.text), "gpu", label.gpu, None) if label.gpu else minus(label.text),
            look=label.look,
            style={"left": f"{label.left}%", "top": f"{label.top}%"},
            title=label.gpu or None,
        )
        for label in part.labels
    ]
    marks = [element("li", element("img", src=address_of_svg(mark), alt=""), meaning) for meaning, mark in part.legend]
    image = element("img", src=address_of_svg(part.svg), alt=part.described)
    picture = element("div", image, *labels, look="picture")
    return _figure(part.title, part.caption, "", medium, picture, element("ul", *marks, look="legend"))


def _listing(part: Listing, medium: Medium) -> Node:
    table = medium.listing(part)
    return element("div", element("h3", part.title), _soft(medium, part.below), table) if table else ""


def _table(part: Table, medium: Medium) -> Node:
    above: Node = element("h3", part.title) if part.title else ""
    below = [_soft(medium, part.below), _soft(medium, f"and {part.hidden:,} more" if part.hidden else "")]
    label = part.title or ", ".join(filter(None, (head.head for head in part.heads)))
    drawn = medium.table(part, label, partial(_rows, part, label, medium)) if part.heads else ""
    return element("div", above, drawn, *below)


def _rows(part: Table, label: str, medium: Medium) -> Element:
    """A table of plain HTML; cells of a column that names a page are links."""
    looks = ["r" if head.right else "w" if head.kind == "sentence" else "" for head in part.heads]
    as_cards = _is_wider_than_a_telephone(part)
    heads = ["", *(head.head for head in part.heads[1:])] if as_cards else [""] * len(part.heads)
    named = [{"data-head": head} if head else {} for head in heads]
    top = [
        element(
            "th",
            element("button", head.head, type="button") if medium.sorts else head.head,
            scope="col",
            look=look,
            title=head.explains or None,
        )
        for head, look in zip(part.heads, looks, strict=True)
    ]

    def row(cells: Sequence[Cell]) -> Element:
        cluster, columns = part.cluster(cells), zip(part.heads, cells, looks, named, strict=True)
        return element(
            "tr",
            *(
                element("td", *_cell(head, cell, medium, cluster), look=look, **name, data_sort=_order(cell, medium))
                for head, cell, look, name in columns
            ),
        )

    body = element("tbody", *map(row, part.rows[: part.most]))
    table = element("table", element("thead", element("tr", *top)), body)
    look = "wide cards" if as_cards else "wide"
    return element("div", table, look=look, role="region", aria_label=label, tabindex=0)  # a keyboard reaches it


def _is_wider_than_a_telephone(part: Table) -> bool:
    """Whether `document.css` draws each row as a card where a telephone is as wide as most."""
    lines = [[head.head for head in part.heads], *part.texts()]
    return sum(_GAP_PX + _LETTER_PX * max(map(len, column)) for column in zip(*lines, strict=True)) > _TELEPHONE_PX


def _cell(head: Column, cell: Cell, medium: Medium, cluster: str | None) -> Iterable[Node]:
    text = head.text(cell)
    return [medium.link(text, head.page, text, cluster)] if head.page and cell is not None else medium.prose(text)


def _order(cell: Cell, medium: Medium) -> float | None:
    """By what a cell is sorted, where that is not its text."""
    value = cell[0] if isinstance(cell, tuple) else cell
    return value if medium.sorts and isinstance(value, int | float) else None


_DRAWINGS: Mapping[type, Callable[[Any, Medium], Node]] = {
    str: _sentence,
    Command: _command,
    Facts: _facts,
    Tiles: _tiles,
    Findings: _findings,
    Chart: _chart,
    Picture: _picture,
    Listing: _listing,
    Table: _table,
}
