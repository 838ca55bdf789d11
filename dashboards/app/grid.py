"""The long tables of the dashboard: one wrapper of AG Grid over the tables of documents.

Cells are sorted and filtered by value, and shown as `document.Column` writes them for people: a terminal and a page say
the same. Missing values are "n/a" and come last, whichever way a column is sorted. Cells are text, never HTML.
`assets/grid.js` draws them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import polars as pl
from dash import html
from dash_ag_grid import AgGrid

from ..document import Column, Table
from ..words import minus

if TYPE_CHECKING:
    from dash.development.base_component import Component

MOST = 2_000
"""Rows that a page sends."""
_FEW = 12  # rows up to which a table is as high as they are, and needs no filters
_ROW_PX, _HEAD_PX = 34, 40
_BEYOND = 4  # rows above and below those in sight that are drawn: ten took a sixth of the time of the first page
_LETTER_PX, _AROUND_PX, _WIDEST_PX = 7.6, 44, 300  # the room of a cell
_FILTERED_PX = 112  # a filter needs
_STRETCHED = 1.5  # so much wider than it must be is a table at most
_DIGITS = 6  # significant ones that are sent of a number: more than any figure shows

_ENDS = {2: (("high", "up to", 1),), 3: (("low", "from", 1), ("high", "up to", 2))}
"""Of an interval, and of an estimate with its interval: what a hidden column has, and its place in the cell."""

Address = Callable[[str, str, str | None], str | None]
"""The address of a page of the dashboard (`gpu`) about a name on a cluster (None: the table does not say which); None
where the name leads nowhere."""


@dataclass(frozen=True)
class GridOptions:
    """What a table that a page changes is besides its rows."""

    names: Sequence[str] = ()
    """Of the columns, for who copies the table; the heads where there are none. As those of `frame_table`."""
    keys: Sequence[str] = ()
    """What tells rows apart."""
    sort: str = ""
    """The column that rows are sorted by at first, the highest first."""
    height: int = 560
    """In pixels, of a longer table."""


_PLAIN = GridOptions()


def labelled(label: str) -> dict[str, Any]:
    """What an element is, for who cannot see it: give it as `**labelled("Pages")`."""
    return {"aria-label": label}


def menu(label: str, **attributes: str) -> Component:
    """The button of a table that opens its menu: copy as command, SQL or CSV, and save (`assets/page.js`).

    `attributes`: `data-grid` with the id of an AG Grid; `data-command` and `data-query`, where those of the page are
    not those of the table.
    """
    hint: dict[str, Any] = {"title": "Copy as command, SQL or CSV", "aria-haspopup": "menu", **attributes}
    return html.Button("Copy", type="button", className="copies", **hint, **labelled(f"Copy: {label}"))


def frame_table(rows: pl.DataFrame, columns: Mapping[str, Column], title: str = "") -> Table:
    """A table of a frame. `columns`: by the column that it shows; of an interval, `LOW HIGH` are the columns."""
    cells = []
    for name in columns:
        values = [rows[part].to_list() for part in name.split(" ")]
        cells.append(values[0] if len(values) == 1 else list(zip(*values, strict=True)))
    return Table(list(columns.values()), list(zip(*cells, strict=True)), title)


_numbers = count(1)  # of tables whose ids nobody needs to know


def grid(part: Table, address: Address | None = None, name: str = "", options: GridOptions = _PLAIN) -> Component:
    """A table with all its rows; above `MOST`, the first ones, and a line says so. `name`: its id."""
    label = part.title or ", ".join(filter(None, (head.head for head in part.heads)))
    name, data = name or f"table-{next(_numbers)}", grid_rows(part, address, options)
    few = len(data) <= _FEW and not options.keys
    drawn = AgGrid(
        id=name,
        columnDefs=definitions(part, options),
        rowData=data,
        defaultColDef={"sortable": True, "resizable": True, "suppressHeaderMenuButton": True},
        dashGridOptions={
            "rowHeight": _ROW_PX,
            "rowBuffer": _BEYOND,
            "headerHeight": _HEAD_PX,
            "suppressFieldDotNotation": True,
            "enableCellTextSelection": True,
            "ensureDomOrder": True,
            "tooltipShowDelay": 300,
            "animateRows": False,
            "multiSortKey": "ctrl",
            "localeText": {"noRowsToShow": "No rows"},
            **({"domLayout": "autoHeight"} if few else {}),
        },
        columnSize=None,
        style={"height": None if few else options.height, "width": "100%"},
        **({"getRowId": "params.data.key"} if options.keys else {}),
    )
    about = {"data-grid": name, "data-command": part.command, "data-query": part.query}
    button = menu(label, **{key: value for key, value in about.items() if value})
    wraps = any(head.kind == "sentence" for head in part.heads)
    widest = None if wraps or options.keys else round(_STRETCHED * sum(_widths(part)))
    looks: dict[str, Any] = {"className": "grid", "style": {"maxWidth": widest}, "role": "group", **labelled(label)}
    hidden = len(part.rows) - len(data)
    more = [html.P(f"and {hidden:,} more", className="soft")] if hidden else []
    return html.Div([html.Div([drawn, button], **looks), *more])


def definitions(part: Table, options: GridOptions = _PLAIN) -> list[dict[str, Any]]:
    """The columns, for AG Grid, with hidden ones of the ends of intervals."""
    filters = bool(options.keys) or min(len(part.rows), MOST) > _FEW
    names, columns = _names(part, options), list[dict[str, Any]]()
    for place, (name, head, width) in enumerate(zip(names, part.heads, _widths(part), strict=True)):
        is_number = head.kind not in ("text", "sentence", "time")
        column: dict[str, Any] = {
            "field": name,
            "headerName": head.head,
            "valueFormatter": {"function": f"whorlText(params, {json.dumps(head.kind)})"},
            "comparator": {"function": "whorlOrder"},
            "filter": filters and ("agNumberColumnFilter" if is_number else "agTextColumnFilter"),
            "floatingFilter": filters,
            "minWidth": width,
            "flex": width,
            "useValueFormatterForExport": False,
            "cellDataType": False,
        }
        if is_number:
            column["type"] = "rightAligned"
        if head.explains:
            column["headerTooltip"] = head.explains
        if name == options.sort:
            column["initialSort"] = "desc"
        if head.kind == "sentence":
            column |= {"wrapText": True, "autoHeight": True, "minWidth": 320, "flex": 1000}
        elif head.kind == "text":
            column["tooltipField"] = name  # the whole of a text that is cut
        if head.page:
            column["cellRenderer"] = "WhorlLink"
        columns.append(column)
        ends = next((_ENDS[len(cell)] for cell in (row[place] for row in part.rows) if isinstance(cell, tuple)), ())
        for end, word, _ in ends:
            columns.append({"field": f"{name} {end}", "headerName": f"{head.head}, {word}", "hide": True})
    return columns


def _names(part: Table, options: GridOptions) -> Sequence[str]:
    return [name.split(" ")[0] for name in options.names] or [f"c{place}" for place in range(len(part.heads))]


def _widths(part: Table) -> list[int]:
    """How wide the columns must be, in pixels: as their titles, their filters and their texts."""
    widths = []
    for place, head in enumerate(part.heads):
        letters = max((len(head.text(row[place])) for row in part.rows[:MOST]), default=3)
        needed = _AROUND_PX + _LETTER_PX * max(letters, len(head.head))
        least = _FILTERED_PX if len(part.rows) > _FEW else 0
        widths.append(round(min(max(needed, least), _WIDEST_PX)))
    return widths


def grid_rows(part: Table, address: Address | None, options: GridOptions = _PLAIN) -> list[dict[str, Any]]:
    """Rows as a page gets them, with `NAME:text` where people read another text than the value, and `NAME:href` where
    a cell leads somewhere. Times are text in UTC, numbers as short as they may be."""
    return list(_rows(part, address, _names(part, options), options.keys))


def _rows(part: Table, address: Address | None, names: Sequence[str], keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    for place, cells in enumerate(part.rows[:MOST]):
        row: dict[str, Any] = {"key": keys[place]} if keys else {}
        for name, head, cell in zip(names, part.heads, cells, strict=True):
            value = cell[0] if isinstance(cell, tuple) else cell
            row[name] = _plain(value)
            if isinstance(cell, tuple):
                row |= {f"{name} {end}": _plain(cell[number]) for end, _, number in _ENDS[len(cell)]}
            if cell == "":
                row[f"{name}:text"] = ""  # empty, and not missing
            elif not isinstance(cell, str) and value is not None and head.kind != "time":
                row[f"{name}:text"] = minus(head.text(cell))
            if address is not None and head.page and cell is not None:
                row[f"{name}:href"] = address(head.page, str(cell), part.cluster(cells))  # None: no link
        yield row


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return str(value)[:19] if isinstance(value, datetime) else str(value)
