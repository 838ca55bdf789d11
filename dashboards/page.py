"""One HTML file that needs no network: text, tables and Plotly figures, in the reader's light or dark theme.

Plotly's own bundle is put in compressed, and unpacked by the browser's DecompressionStream, so that a page weighs
about 2 MB and not 5. A figure is drawn when it comes near the screen.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, StoreError
from ..store.system.files import write_bytes
from . import listing
from .listing import Listing
from .table import Table, minus

if TYPE_CHECKING:
    from .figures.drawing import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure, or several to choose from by name, under a title; `says` is what the reader sees there."""

    title: str
    says: str
    figures: Mapping[str, Figure]
    opens: bool = False
    """Whether a GPU that is opened in a long table is shown here."""


@dataclass(frozen=True)
class Facts:
    """Words with what they stand for, under a title."""

    pairs: Sequence[tuple[str, str]]
    title: str = ""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    says: str = ""
    parts: Sequence[Table | Drawing | Facts | Listing] = field(default_factory=tuple)


def page(
    title: str,
    summary: Sequence[str],
    sections: Sequence[Section],
    *,
    conditions: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    tiles: Sequence[tuple[str, str]] = (),
) -> str:
    """The page as HTML. `summary` are the sentences that matter; conditions and notes stand at the end.

    `tiles` are the few numbers that stand above the sentences, each with what it is.
    """
    figures: list[Any] = []
    listings: list[Any] = []
    body = [f"<h1>{escape(title)}</h1>"]
    if tiles:
        body.append(
            '<div class="tiles">'
            + "".join(
                f"<div><b>{escape(minus(number))}</b><span>{escape(minus(says))}</span></div>" for number, says in tiles
            )
            + "</div>"
        )
    body += [f'<p class="summary">{_prose(text)}</p>' for text in summary]
    if len(sections) > 1:
        links = "".join(f'<a href="#s{n}">{escape(one.title)}</a>' for n, one in enumerate(sections))
        body.append(f"<nav>{links}</nav>")
    for number, section in enumerate(sections):
        body.append(f'<section id="s{number}"><h2>{escape(section.title)}</h2>')
        if section.says:
            body.append(f"<p>{_prose(section.says)}</p>")
        body += [_part(part, figures, listings) for part in section.parts]
        body.append("</section>")
    if conditions:
        body.append(f"<section><h2>Conditions</h2>{_facts(Facts(list(conditions.items())))}</section>")
    if notes:
        rows = "".join(f"<li>{_prose(note)}</li>" for note in notes)
        body.append(f"<section><h2>Notes</h2><ul>{rows}</ul></section>")
    if figures or listings:
        body.append("<noscript><p>The figures need JavaScript, which is switched off in this browser.</p></noscript>")
    return _HTML.format(
        title=escape(title),
        style=_STYLE + (listing.STYLE if listings else ""),
        body="\n".join(body),
        bundle=_bundle() if figures else "",
        figures=_packed(json.dumps(figures, separators=(",", ":")).encode()),
        listings=_packed(json.dumps(listings, separators=(",", ":")).encode()),
        script=_SCRIPT + (listing.SCRIPT if listings else ""),
    )


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


def _part(part: Table | Drawing | Facts | Listing, figures: list[Any], listings: list[Any]) -> str:
    if isinstance(part, Facts):
        return _facts(part)
    if isinstance(part, Listing):
        listings.append(part.data())
        return listing.placed(part, len(listings) - 1)
    return _table(part) if isinstance(part, Table) else _drawing(part, figures)


def _facts(facts: Facts) -> str:
    title = f'<h3 class="of">{escape(facts.title)}</h3>' if facts.title else ""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{_prose(text)}</dd>" for name, text in facts.pairs)
    return f"{title}<dl>{rows}</dl>"


def _table(table: Table) -> str:
    looks = {**dict.fromkeys(table.right, ' class="r"'), **dict.fromkeys(table.wrapped, ' class="w"')}

    def row(cells: Sequence[str], tag: str) -> str:
        named = [f' data-head="{escape(head)}"' if table.cards and tag == "td" else "" for head in table.header]
        return "".join(
            f"<{tag}{looks.get(place, '')}{named[place]}>{_prose(cell)}</{tag}>" for place, cell in enumerate(cells)
        )

    rows = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows)
    above = f'<h3 class="of">{escape(table.title)}</h3>' if table.title else ""
    above += f'<p class="soft">{_prose(table.says)}</p>' if table.says else ""
    if not table.header:
        return above
    opened = '<table class="cards">' if table.cards else "<table>"
    head = f"<thead><tr>{row(table.header, 'th')}</tr></thead>"
    what = escape(table.title or ", ".join(filter(None, table.header)))  # the keyboard reaches what is cut at its edge
    region = f'<div class="wide" role="region" aria-label="{what}" tabindex="0">'
    return f"{above}{region}{opened}{head}<tbody>{rows}</tbody></table></div>"


def _drawing(drawing: Drawing, figures: list[Any]) -> str:
    """The place of a figure; what it shows is appended to `figures`."""
    first = len(figures)
    figures += [json.loads(str(figure.to_json())) for figure in drawing.figures.values()]
    choice = ""
    if len(drawing.figures) > 1:
        options = "".join(
            f'<option value="{first + place}">{escape(name)}</option>' for place, name in enumerate(drawing.figures)
        )
        opens = " data-opens" if drawing.opens else ""
        choice = f'<select aria-label="{escape(drawing.title)}"{opens}>{options}</select>'
    height = max(int(figure["layout"].get("height", 400)) for figure in figures[first:])
    return (
        f"<figure><figcaption><h3>{escape(drawing.title)}</h3>{choice}<p>{_prose(drawing.says)}</p></figcaption>"
        f'<div class="plot" data-figure="{first}" style="height:{height}px"></div></figure>'
    )


@cache
def _bundle() -> str:
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs().encode())


def _prose(text: str) -> str:
    """A text as HTML, with what stands between two backticks as code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:  # one that has no partner is a part of a name
        return minus(escape(text))
    return "".join(f"<code>{part}</code>" if place % 2 else minus(part) for place, part in enumerate(parts))


def _packed(content: bytes) -> str:
    """gzip (without a time, so that the same page is the same file) as base64. Level 9 takes ten times as long as 6 for
    the figures of a large fleet, and saves 1 % of the page."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --text: #1d2127; --soft: #5d6672; --line: #dfe3e8; --band: #f6f7f9; }
@media screen and (prefers-color-scheme: dark) {
  :root:not(.printed) { --paper: #14171b; --text: #e3e6ea; --soft: #9aa4b0; --line: #333a43; --band: #1c2026; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 25px; line-height: 1.25; margin: 0 0 12px; }
h2 { font-size: 19px; margin: 40px 0 8px; padding-top: 12px; border-top: 1px solid var(--line); }
h3 { font-size: 15px; margin: 0; }
p { margin: 6px 0; max-width: 75ch; }
h1, h2, h3, p, a, .tiles span { overflow-wrap: anywhere; }
.summary { font-size: 16px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin-top: 12px; }
a { color: inherit; }
figure { margin: 26px 0 0; }
figcaption h3 { display: inline-block; margin: 0 12px 2px 0; }
figcaption p { color: var(--soft); font-size: 14px; margin: 0 0 4px; }
select { max-width: 100%; font: inherit; font-size: 14px; padding: 2px 6px; color: inherit; background: var(--band);
  border: 1px solid var(--line); border-radius: 4px; }
h3.of { margin-top: 26px; }
.soft { color: var(--soft); font-size: 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 16px 0; }
.tiles div { background: var(--band); border: 1px solid var(--line); border-radius: 6px; padding: 10px 14px; }
.tiles b { display: block; font-size: 22px; line-height: 1.3; font-weight: 600; overflow-wrap: anywhere; }
.tiles span { color: var(--soft); font-size: 13.5px; line-height: 1.35; display: block; }
.wide { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px 4px 0; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
.r { text-align: right; }
td { vertical-align: top; }
td.w { white-space: normal; min-width: 165px; max-width: 480px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: minmax(90px, max-content) 1fr; gap: 4px 20px; margin: 0; font-size: 14px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
ul { margin: 0; padding-left: 20px; font-size: 14px; overflow-wrap: anywhere; }
@media (max-width: 560px) {
  main { padding: 18px 12px 40px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tiles div { padding: 8px 10px; }
  .tiles b { font-size: 18px; }
  .tiles div:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .cards, .cards tbody, .cards tr, .cards td { display: block; }
  .cards thead { display: none; }
  .cards tr { border-bottom: 1px solid var(--line); padding: 8px 0; }
  .cards td { border: 0; padding: 1px 0; white-space: normal; text-align: left; max-width: none; }
  .cards td:empty { display: none; }
  td.w { min-width: 300px; }
  .cards td::before { content: attr(data-head) ": "; color: var(--soft); }
  .cards td:first-child { font-weight: 600; }
  .cards td:first-child::before { content: none; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: 6px; }
}
@media print {
  @page { margin: 12mm; }
  :root { color-scheme: light; }
  main { padding: 0; }
  nav, .modebar { display: none; }
  figure, .tiles div, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .wide { overflow: visible; }
  table { font-size: 9.5px; }
  th, td { padding: 2px 8px 2px 0; white-space: normal; }
  td.w { min-width: 80px; }
}
"""

_SCRIPT = """
"use strict";
(async () => {
  const unpack = async id => {
    const text = document.getElementById(id).textContent.trim();
    const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  };
  const places = [...document.querySelectorAll(".plot")];
  const lists = [...document.querySelectorAll(".listing")];
  if (!places.length && !lists.length) return;
  // Unpacking and drawing take a moment. The page counts as loading meanwhile, so that what waits for it to be loaded,
  // as a program that prints it or takes a picture, finds the figures drawn: a document that is open within holds it.
  const held = document.createElement("iframe");
  held.hidden = true;
  document.body.append(held);
  held.contentDocument.open();
  const loaded = () => { if (held.isConnected) { held.contentDocument.close(); held.remove(); } };
  try {
    if (lists.length) drawListings(JSON.parse(await unpack("listings")), lists);
  } catch (error) {
    for (const place of lists) place.textContent = "This browser cannot show the table: " + error;
  }
  if (!places.length) { loaded(); return; }
  let figures;
  try {
    figures = JSON.parse(await unpack("figures"));
    const script = document.createElement("script");
    script.textContent = await unpack("bundle");
    document.head.append(script);
  } catch (error) {
    for (const place of places) place.textContent = "This browser cannot show the figures: " + error;
    loaded();
    return;
  }
  const narrow = () => innerWidth < 560;
  const printed = () => document.documentElement.classList.contains("printed");
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    return name => style.getPropertyValue(name).trim();
  };
  const themed = layout => {
    const colour = colours(), made = structuredClone(layout);
    const axes = Object.keys(made).filter(key => /^[xy]axis/.test(key));
    made.paper_bgcolor = colour("--paper");  // a saved picture has it, too
    made.plot_bgcolor = "rgba(0,0,0,0)";
    made.font = {...made.font, color: colour("--text"), family: "inherit", size: narrow() ? 11 : 13};
    made.hoverlabel = {bgcolor: colour("--band"), bordercolor: colour("--line"), font: {color: colour("--text")}};
    made.modebar = {bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--text")};
    made.autosize = true;
    if (printed()) made.width = 700;  // of the paper: a figure as wide as the window would be cut
    for (const key of axes) made[key] = {gridcolor: colour("--line"), linecolor: colour("--line"),
      zerolinecolor: colour("--soft"), automargin: true, ...made[key]};
    if (narrow()) {
      made.margin = {...made.margin, l: 44, r: 4};
      // What has no room on a narrow screen is named "wide".
      if (made.annotations && made.annotations.some(one => one.name === "wide")) {
        made.annotations = made.annotations.filter(one => one.name !== "wide");
        made.margin.t = Math.min(made.margin.t, 24);
      }
      made.height = (made.height || 400) + (made.legend && made.showlegend !== false ? 60 : 0);
    }
    return made;
  };
  const draw = place => {
    const figure = figures[place.dataset.figure], layout = themed(figure.layout);
    place.style.height = layout.height + "px";
    place.dataset.drawn = "1";
    return Plotly.react(place, figure.data, layout, {responsive: true, displaylogo: false,
      displayModeBar: narrow() ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: {scale: 2, filename: "whorl"}});
  };
  const again = () => places.filter(place => place.dataset.drawn).forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  // Paper is white: also what was drawn for a dark window is drawn again.
  addEventListener("beforeprint", () => { document.documentElement.classList.add("printed"); places.forEach(draw); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("printed"); places.forEach(draw); });
  for (const choice of document.querySelectorAll("figure select")) choice.addEventListener("change", () => {
    const place = choice.closest("figure").querySelector(".plot");
    place.dataset.figure = choice.value;
    draw(place);
  });
  try {
    for (const place of places) {
      await draw(place);
      await new Promise(next => setTimeout(next));  // between two figures the reader may scroll
    }
  } finally {
    loaded();
  }
})();
"""

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
