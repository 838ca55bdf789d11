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
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, StoreError
from ..store.system.files import write_bytes
from .document import Chart, Command, Document, Listing, Part, Section
from .markup import Medium, Node, draw, element, section, text_of

_HERE = Path(__file__).parent


def page(document: Document) -> str:
    """The document as one HTML page that needs no network: its sections with links to them, its notes at the end."""
    kept = _Kept()
    medium = kept.medium
    sections = [part for part in document.parts if isinstance(part, Section)]
    anchors = {id(section): section.anchor or f"s{place}" for place, section in enumerate(sections)}
    body: list[Node] = [element("h1", document.title)]
    for part in document.parts:
        if sections and part is sections[0] and len(sections) > 1:
            links = (
                element("a", part.title, href=f"#{anchors[id(part)]}")
                for part in sections
                if part.title and not part.folded
            )
            body.append(element("nav", *links))
        if isinstance(part, str) and not isinstance(part, Command):
            body.append(element("p", *medium.prose(part), look="summary"))
        elif isinstance(part, Section):
            body.append(section(part, medium, anchor=anchors[id(part)]))
        else:
            body.append(draw(part, medium))
    if document.notes:
        notes = [element("li", *medium.prose(note)) for note in document.notes]
        body.append(element("section", element("h2", "Notes"), element("ul", *notes)))
    if kept.figures or kept.listings:
        needed = "The figures need JavaScript, which is switched off in this browser."
        body.append(element("noscript", element("p", needed)))
    return _HTML.format(
        title=text_of(document.title),
        style=_file("document.css") + _file("page.css"),
        body="\n".join(map(text_of, body)),
        bundle=_bundle() if kept.figures else "",
        figures=_packed(json.dumps(kept.figures, separators=(",", ":")).encode()),
        listings=_packed(json.dumps(kept.listings, separators=(",", ":")).encode()),
        script=_file("page.js") + (_file("listing.js") if kept.listings else ""),
    )


def fragment(parts: Iterable[Part]) -> str:
    """Parts as a piece of HTML for a notebook: without figures, which a notebook draws by itself."""
    medium = Medium()
    return str(element("div", *(draw(part, medium) for part in _without_figures(parts)), look="whorl"))


def _without_figures(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts that need no script, those within sections too; a section of figures alone is left out."""
    for part in parts:
        if isinstance(part, Section):
            inside = list(_without_figures(part.parts))
            if inside or part.lead:
                yield replace(part, parts=inside)
        elif not isinstance(part, Chart | Listing):
            yield part


class _Kept:
    """What the script of a page draws: figures and long tables; `medium` leaves room for them."""

    def __init__(self) -> None:
        self.figures: list[Any] = []
        self.listings: list[Any] = []
        self.medium = Medium(chart=self._chart, listing=self._listing)

    def _listing(self, part: Listing) -> Node:
        self.listings.append(_listing_columns(part))
        return element("div", look="listing", data_listing=len(self.listings) - 1, data_chosen=part.choice)

    def _chart(self, part: Chart) -> tuple[Node, Node]:
        first = len(self.figures)
        self.figures += [json.loads(str(figure.to_json())) for figure in part.figures.values()]
        choice: Node = ""
        if len(part.figures) > 1:
            options = [element("option", name, value=first + place) for place, name in enumerate(part.figures)]
            choice = element("select", *options, aria_label=part.title, data_opens="" if part.opens else None)
        height = max(int(figure["layout"].get("height", 400)) for figure in self.figures[first:])
        return choice, element("div", look="plot", data_figure=first, style={"height": f"{height}px"})


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
