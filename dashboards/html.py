"""Draws documents as HTML: one offline page with figures, in a light or dark theme, or a piece of a notebook.

Plotly's own bundle is put in compressed, and unpacked by the browser's DecompressionStream, so that a page weighs
about 2 MB and not 5. `document.css` is the look of documents, `page.css` that of a report; `page.js` is what it does,
and `listing.js` draws long tables.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, StoreError
from ..store.system.files import write_bytes
from .document import (
    Chart,
    Column,
    Command,
    Document,
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

_HERE = Path(__file__).parent


def page(document: Document) -> str:
    """The document as one HTML page that needs no network: its sections with links to them, its notes at the end."""
    pieces = _Pieces()
    sections = [part for part in document.parts if isinstance(part, Section)]
    anchors = {id(section): section.anchor or f"s{place}" for place, section in enumerate(sections)}
    body = [f"<h1>{_text(document.title)}</h1>"]
    for part in document.parts:
        if sections and part is sections[0] and len(sections) > 1:
            links = (
                f'<a href="#{escape(anchors[id(section)])}">{_text(section.title)}</a>'
                for section in sections
                if section.title and not section.folded
            )
            body.append(f"<nav>{''.join(links)}</nav>")
        if isinstance(part, str) and not isinstance(part, Command):
            body.append(f'<p class="summary">{prose(part)}</p>')
        elif isinstance(part, Section):
            body.append(pieces.section(part, anchor=anchors[id(part)]))
        else:
            body.append(pieces.part(part))
    if document.notes:
        rows = "".join(f"<li>{prose(note)}</li>" for note in document.notes)
        body.append(f"<section><h2>Notes</h2><ul>{rows}</ul></section>")
    if pieces.figures or pieces.listings:
        body.append("<noscript><p>The figures need JavaScript, which is switched off in this browser.</p></noscript>")
    script = _file("page.js") + (_file("listing.js") if pieces.listings else "")
    return _HTML.format(
        title=_text(document.title),
        style=_file("document.css") + _file("page.css"),
        body="\n".join(body),
        bundle=_bundle() if pieces.figures else "",
        figures=_packed(json.dumps(pieces.figures, separators=(",", ":")).encode()),
        listings=_packed(json.dumps(pieces.listings, separators=(",", ":")).encode()),
        script=script,
    )


def fragment(parts: Iterable[Part]) -> str:
    """Parts as a piece of HTML for a notebook: without figures, which a notebook draws by itself."""
    pieces = _Pieces()
    return f'<div class="whorl">{"".join(map(pieces.part, _without_figures(parts)))}</div>'


def _without_figures(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts that need no script, those within sections too; a section of figures alone is left out."""
    for part in parts:
        if isinstance(part, Section):
            inside = list(_without_figures(part.parts))
            if inside or part.lead:
                yield replace(part, parts=inside)
        elif not isinstance(part, Chart | Listing):
            yield part


def prose(text: str) -> str:
    """A text as HTML, with what stands between two backticks as code."""
    parts = _text(text).split("`")
    if len(parts) % 2 == 0:  # one that has no partner is a part of a name
        return minus("`".join(parts))
    return "".join(f"<code>{part}</code>" if place % 2 else minus(part) for place, part in enumerate(parts))


def _text(text: str) -> str:
    return escape(printable(text))


class _Pieces:
    """Parts as HTML, with the figures and long tables that the page's script draws later."""

    def __init__(self) -> None:
        self.figures: list[Any] = []
        self.listings: list[Any] = []

    def part(self, part: Part) -> str:
        """One part as HTML."""
        if isinstance(part, Command):
            return f'<pre class="command">{_text(part)}</pre>'
        if isinstance(part, str):
            return f"<p>{prose(part)}</p>" if part else ""
        if isinstance(part, Section):
            return self.section(part, level=3)
        if isinstance(part, Table):
            return _table(part)
        if isinstance(part, Facts):
            return _facts(part)
        if isinstance(part, Tiles):
            tiles = (
                f"<div><b>{prose(unbroken(value))}</b><span>{prose(what)}</span></div>" for value, what in part.figures
            )
            return f'<div class="tiles">{"".join(tiles)}</div>'
        if isinstance(part, Findings):
            return _findings(part)
        if isinstance(part, Listing):
            return self._listing(part)
        if isinstance(part, Picture):
            return _picture(part)
        return self._chart(part)

    def section(self, section: Section, *, anchor: str = "", level: int = 2) -> str:
        """A section under its heading; a folded one opens where a reader clicks on it."""
        head = f"<h{level}>{_text(section.title)}</h{level}>" if section.title else ""
        lead = f"<p>{prose(section.lead)}</p>" if section.lead else ""
        below = level + 1 if section.title else level
        inside = lead + "".join(
            self.section(part, level=below) if isinstance(part, Section) else self.part(part) for part in section.parts
        )
        name = anchor or section.anchor
        opening = f'<section id="{escape(name)}">' if name else "<section>"
        if section.folded:
            return f"{opening}<details><summary>{head}</summary>{inside}</details></section>"
        return f"{opening}{head}{inside}</section>"

    def _listing(self, part: Listing) -> str:
        self.listings.append(_listing_columns(part))
        return (
            f'<h3 class="of">{_text(part.title)}</h3><p class="soft">{prose(part.below)}</p>'
            f'<div class="listing" data-listing="{len(self.listings) - 1}" data-chosen="{escape(part.choice)}"></div>'
        )

    def _chart(self, part: Chart) -> str:
        """The place of a figure; what it shows is kept for the script."""
        first = len(self.figures)
        self.figures += [json.loads(str(figure.to_json())) for figure in part.figures.values()]
        choice = ""
        if len(part.figures) > 1:
            options = "".join(
                f'<option value="{first + place}">{_text(name)}</option>' for place, name in enumerate(part.figures)
            )
            opens = " data-opens" if part.opens else ""
            choice = f'<select aria-label="{escape(part.title)}"{opens}>{options}</select>'
        height = max(int(figure["layout"].get("height", 400)) for figure in self.figures[first:])
        return (
            f"<figure><figcaption><h3>{_text(part.title)}</h3>{choice}<p>{prose(part.caption)}</p></figcaption>"
            f'<div class="plot" data-figure="{first}" style="height:{height}px"></div></figure>'
        )


def _picture(picture: Picture) -> str:
    labels = "".join(
        f'<span class="{label.look}" style="left:{label.left}%;top:{label.top}%" title="{_text(label.gpu)}">'
        f"{prose(label.text)}</span>"
        for label in picture.labels
    )
    legend = "".join(
        f'<li><img src="{address_of_svg(mark)}" alt="">{_text(name)}</li>' for name, mark in picture.legend
    )
    caption = f"<p>{prose(picture.caption)}</p>" if picture.caption else ""
    return (
        f"<figure><figcaption><h3>{_text(picture.title)}</h3>{caption}</figcaption>"
        f'<div class="picture"><img src="{address_of_svg(picture.svg)}" alt="{_text(picture.described)}">{labels}</div>'
        f'<ul class="legend">{legend}</ul></figure>'
    )


def _facts(facts: Facts) -> str:
    title = f'<h3 class="of">{_text(facts.title)}</h3>' if facts.title else ""
    rows = "".join(f"<dt>{_text(name)}</dt><dd>{prose(text)}</dd>" for name, text in facts.pairs)
    return f'{title}<dl class="facts">{rows}</dl>'


def _findings(part: Findings) -> str:
    hidden = 0 if part.most is None else len(part.findings) - part.most
    others = f'<p class="soft">and {hidden:,} more</p>' if hidden > 0 else ""
    return f'<ol class="findings">{"".join(map(_finding, part.findings[: part.most]))}</ol>{others}'


def _finding(finding: Finding) -> str:
    rows = [
        f"<p><b>{_text(finding.name)}</b> {_text(finding.kind)}, {_text(finding.state)} {prose(finding.size)}</p>",
        f"<p>{prose(finding.because)}</p>",
        f"<p><b>Do:</b> {prose(finding.action)}</p>" if finding.action else "",
        f'<p class="soft">{prose(finding.evidence)}</p>' if finding.evidence else "",
    ]
    return f'<li class="{"severe" if finding.severe else ""}">{"".join(rows)}</li>'


def _table(table: Table) -> str:
    heads = table.heads
    looks = [' class="r"' if head.right else ' class="w"' if head.kind == "sentence" else "" for head in heads]
    named = [f' data-head="{escape(head.head)}"' if table.cards else "" for head in heads]
    top = "".join(f"<th{look}{_tip(head)}>{_text(head.head)}</th>" for head, look in zip(heads, looks, strict=True))

    def row(texts: Sequence[str]) -> str:
        cells = zip(texts, looks, named, strict=True)
        return f"<tr>{''.join(f'<td{look}{name}>{prose(text)}</td>' for text, look, name in cells)}</tr>"

    rows = "".join(map(row, table.texts()))
    above = f'<h3 class="of">{_text(table.title)}</h3>' if table.title else ""
    below = f'<p class="soft">{prose(table.below)}</p>' if table.below else ""
    below += f'<p class="soft">and {table.hidden:,} more</p>' if table.hidden else ""
    if not heads:
        return above + below
    what = escape(table.title or ", ".join(filter(None, (head.head for head in heads))))
    cards = " cards" if table.cards else ""
    region = f'<div class="wide{cards}" role="region" aria-label="{what}" tabindex="0">'  # a keyboard reaches it
    return f"{above}{region}<table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>{below}"


def _tip(column: Column) -> str:
    return f' title="{escape(column.explains)}"' if column.explains else ""


# -- long tables -------------------------------------------------------------------------------------------------


def _listing_columns(part: Listing) -> dict[str, Any]:
    """The columns of a long table for JSON: packed, not as HTML; the page draws only the rows in sight."""
    digits = [column.digits or 0 for column in part.numbers]
    return {
        "texts": [[name, list(column)] for name, column in part.texts.items()],
        "numbers": [[column.head, column.digits or 0, column.kind == "percent"] for column in part.numbers],
        "values": [
            [choice, [_rounded(column, places) for column, places in zip(columns, digits, strict=True)]]
            for choice, columns in part.values.items()
        ],
    }


def _rounded(values: Sequence[float | None], digits: int) -> list[float | int | None]:
    """The values to so many digits; None for what is not known."""
    column = np.array(values, dtype=np.float64).round(digits)
    finite = np.isfinite(column)
    filled = np.where(finite, column, 0.0)
    numbers = (filled if digits else filled.astype(np.int64)).tolist()
    return [number if is_known else None for number, is_known in zip(numbers, finite.tolist(), strict=True)]


# -- files -------------------------------------------------------------------------------------------------------


def refuse_unwritable(path: Path, option: str) -> None:
    """InputError where no page can be written to a path: before the work whose page it is."""
    if str(path) == "-":
        raise InputError(f"{option} writes a file, and - is none: give it a name, as in {option} report.html")
    if path.is_dir():
        raise InputError(f"{path} is a folder, and {option} writes a file: {path / 'report.html'}")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
    if _is_stream(path):
        if not os.access(path, os.W_OK):
            raise InputError(f"{path} cannot be written: no permission to write to it")
    elif not os.access(path.parent, os.W_OK):
        raise InputError(f"{path} cannot be written: no permission to write in {path.parent}")


def write_page(path: Path, html: str) -> None:
    """Write a page whole or not at all; into a pipe or a device such as /dev/null, as it comes. Raises InputError."""
    try:
        if _is_stream(path):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CLOEXEC), "wb") as stream:
                stream.write(html.encode())
        else:
            write_bytes(path.resolve(), html.encode())  # of a link, the file it leads to
    except (OSError, StoreError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        why = cause.strerror if isinstance(cause, OSError) else error
        raise InputError(f"{path} cannot be written: {why}") from error


def _is_stream(path: Path) -> bool:
    """Whether a path is a pipe or a character device, which no file may replace.

    InputError where it is neither that nor a file, and where it is in a store, whose files nothing may replace.
    """
    try:
        for folder in path.resolve().parents:
            if (folder / "store.toml").exists():
                raise InputError(
                    f"{path} is in the store {folder}, which holds only its own files: choose another path"
                )
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, RuntimeError) as error:  # a loop of links
        raise InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(f"{path} is no regular file: choose another path")
    return False


@cache
def _file(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def _bundle() -> str:
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs().encode())


def _packed(content: bytes) -> str:
    """gzip (without a time, so that the same page is the same file) as base64. Level 9 takes ten times as long as 6 for
    the figures of a large fleet, and saves 1 % of the page."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/octet-stream" id="bundle">{bundle}</script>
<script type="application/octet-stream" id="figures">{figures}</script>
<script type="application/octet-stream" id="listings">{listings}</script>
<script>{script}</script>
</body>
</html>
"""
