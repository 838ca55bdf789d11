"""The long tables of the dashboard: one wrapper of AG Grid, for rows that a page sends and for more that it asks for.

Cells are sorted and filtered by value, and shown as `document.Column` writes them for people: a terminal and a page say
the same. Missing values are "n/a" and come last, whichever way a column is sorted. Cells are text, never HTML.
`assets/grid.js` draws them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlencode

import polars as pl
from dash import Input, Output, State, dcc, html, no_update
from dash_ag_grid import AgGrid

from ...analysis.by_number import by_number
from .. import document
from ..answers.texts import FORMULA, NUMBER
from ..words import minus
from .state import URL

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

MOST = 2_000
"""Rows that a page sends at once; of more it asks for blocks."""
BLOCK = 100
"""Rows of a block."""
_FEW = 12  # rows up to which a table is as high as they are, and needs no filters
_ROW_PX, _HEAD_PX = 34, 40
_BEYOND = 4  # rows above and below those in sight that are drawn: ten took a sixth of the time of the first page
_LETTER_PX, _AROUND_PX, _WIDEST_PX = 7.6, 44, 300  # the room of a cell
_FILTERED_PX = 112  # a filter needs
_TYPICAL_LETTERS = {"number": 8, "count": 8, "percent": 9, "time": 19, "exact": 12}  # where rows are not known; else 16
_STRETCHED = 1.5  # so much wider than it must be is a table at most
_DIGITS = 6  # significant ones that are sent of a number: more than any figure shows
_NUMBERS = ("number", "count", "percent", "interval", "estimate", "quantity")

Kind = document.Kind | Literal["exact", "exact text"]
"""`exact` is a number as text, shown as it is and ordered by its value; `exact text` is a text that may be empty."""


@dataclass(frozen=True)
class GridColumn:
    """A column of a table. `name`: the column of the frame it shows."""

    name: str
    title: str
    kind: Kind = "text"
    """An `interval` starts at `name` and ends at `high`; a time is in UTC."""
    digits: int | None = 0
    """Behind the point."""
    says: str = ""
    """What it means: shown where the pointer rests on its title."""
    low: str = ""
    """Of an estimate: the column with the lower end of its interval, for who copies the table."""
    high: str = ""
    """Of an interval or an estimate: the column with its upper end."""
    unit: str = ""
    link: str = ""
    """The page that the cell leads to: `gpu`."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """What that page is asked: a name in its address, and the column that has its value. Where the first of these is
    missing, the cell is no link."""
    sort: Literal["asc", "desc"] | None = None
    """How rows are sorted before a person sorts them."""
    wraps: bool = False
    """Whether it holds sentences, whose lines may break."""
    width: int | None = None
    """In pixels, at least; None leaves it to the words in it."""

    def text(self, cell: document.Cell) -> str:
        """A cell that is known, as people read it."""
        kind: document.Kind = "text" if self.kind in ("exact", "exact text") else self.kind  # type: ignore[assignment]
        return minus(document.Column(self.title, kind, self.digits, self.unit).text(cell))


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


def table(
    name: str,
    columns: Sequence[GridColumn],
    rows: pl.DataFrame | None,
    *,
    label: str,
    key: str | None = None,
    height: int = 560,
    saved: bool = True,
) -> Component:
    """A table of a frame.

    `name`: the id of the grid. `rows`: with all columns that `columns` name; None for many rows, which it asks for in
    blocks: then call `serve` once with the same columns. `key`: the column that tells rows apart. `height`: in
    pixels, of a longer table. `saved`: False leaves its menu out. Raises ValueError for more rows than `MOST`.
    """
    if rows is not None and rows.height > MOST:
        raise ValueError(f"{rows.height:,} rows are too many to send: give None and call serve")
    options = _Options(name, label, key, height)
    buttons: list[Component] = []
    if saved:
        buttons.append(menu(label, **{"data-grid": name}))
        if rows is None:  # the server writes the file of rows that the browser does not have
            buttons += [html.Button(id=_csv(name), hidden=True), dcc.Download(id=_saved(name))]
    return _grid(options, columns, None if rows is None else sent(rows, columns, key), buttons)


_numbers = count(1)  # of the tables of documents, whose ids nobody needs to know


def document_table(part: document.Table, address: Callable[[str, str], str | None] | None = None) -> Component:
    """A table of a document, with all its rows; above `MOST`, the first ones, and a line says so.

    `address`: where the names of a column that names a page lead to.
    """
    columns = [_document_column(part, place) for place in range(len(part.heads))]
    data = list(_document_rows(part, columns, address))
    label = part.title or ", ".join(filter(None, (head.head for head in part.heads)))
    name = f"table-{next(_numbers)}"
    about = {"data-grid": name, "data-command": part.command, "data-query": part.query}
    button = menu(label, **{key: value for key, value in about.items() if value})
    drawn = _grid(_Options(name, label), columns, data, [button])
    hidden = len(part.rows) - len(data)
    return html.Div([drawn, html.P(f"and {hidden:,} more", className="soft")]) if hidden else drawn


def _document_column(part: document.Table, place: int) -> GridColumn:
    """A column of a document, with those of the ends of its intervals."""
    head, name = part.heads[place], f"c{place}"
    cells = [row[place] for row in part.rows]
    ends = max((len(cell) for cell in cells if isinstance(cell, tuple)), default=0)
    return GridColumn(
        name,
        head.head,
        head.kind,
        says=head.explains,
        low=f"{name}low" if ends == 3 else "",
        high=f"{name}high" if ends else "",
        link=head.page,
        wraps=head.kind == "sentence",
    )


def _document_rows(
    part: document.Table, columns: Sequence[GridColumn], address: Callable[[str, str], str | None] | None
) -> Iterator[dict[str, Any]]:
    for cells in part.rows[:MOST]:
        row: dict[str, Any] = {}
        for column, head, cell in zip(columns, part.heads, cells, strict=True):
            low = cell[0] if isinstance(cell, tuple) else cell
            row[column.name] = _plain(low)
            if isinstance(cell, tuple):
                row |= {name: _plain(end) for name, end in ((column.low, cell[-2]), (column.high, cell[-1])) if name}
            if cell == "":
                row[f"{column.name}:text"] = ""  # empty, and not missing
            elif not isinstance(cell, str) and low is not None and head.kind != "time":
                row[f"{column.name}:text"] = minus(head.text(cell))
            if address is not None and head.page and cell is not None:
                row[f"{column.name}:href"] = address(head.page, str(cell))  # None: no link
        yield row


@dataclass(frozen=True)
class _Options:
    name: str
    label: str
    key: str | None = None
    height: int = 560


def _grid(
    options: _Options, columns: Sequence[GridColumn], data: list[dict[str, Any]] | None, buttons: Sequence[Component]
) -> Component:
    few = data is not None and len(data) <= _FEW
    grid_options: dict[str, Any] = {
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
    }
    properties: dict[str, Any] = {}
    if few:
        grid_options["domLayout"] = "autoHeight"
    if data is None:
        properties["rowModelType"] = "infinite"
        grid_options |= {
            "cacheBlockSize": BLOCK,
            "maxBlocksInCache": 20,
            "infiniteInitialRowCount": BLOCK,
            "blockLoadDebounceMillis": 60,
        }
    else:
        properties["rowData"] = data
    if options.key is not None:
        properties["getRowId"] = f"params.data[{json.dumps(options.key)}]"
    widths = [_width(column, data, filters=not few) for column in columns]
    drawn = AgGrid(
        id=options.name,
        columnDefs=_definitions(columns, widths, filters=not few),
        defaultColDef={"sortable": True, "resizable": True, "suppressHeaderMenuButton": True},
        dashGridOptions=grid_options,
        columnSize=None,
        style={"height": None if few else options.height, "width": "100%"},
        **properties,
    )
    return html.Div(
        [drawn, *buttons],
        className="grid",
        style={"maxWidth": None if any(column.wraps for column in columns) else round(_STRETCHED * sum(widths))},
        role="group",
        **labelled(options.label),
    )


def _width(column: GridColumn, data: Sequence[Mapping[str, Any]] | None, *, filters: bool) -> int:
    """How wide a column must be, in pixels: as its title, its filter and most of its text."""
    letters = _TYPICAL_LETTERS.get(column.kind, 16) + (len(column.unit) if column.kind == "interval" else 0)
    if data:
        lengths = sorted(len(str(row.get(f"{column.name}:text", row[column.name]))) for row in data)
        letters = max(3, lengths[int(0.95 * (len(lengths) - 1))])
    needed = _AROUND_PX + _LETTER_PX * max(letters, len(column.title))
    return column.width or round(min(max(needed, _FILTERED_PX if filters else 0), _WIDEST_PX))


def definitions(columns: Sequence[GridColumn]) -> list[dict[str, Any]]:
    """Other columns for a table of many rows: its property `columnDefs`."""
    return _definitions(columns, [_width(column, None, filters=True) for column in columns], filters=True)


def _definitions(columns: Sequence[GridColumn], widths: Sequence[int], *, filters: bool) -> list[dict[str, Any]]:
    definitions: list[dict[str, Any]] = []
    for column, width in zip(columns, widths, strict=True):
        is_number = column.kind in _NUMBERS
        definition: dict[str, Any] = {
            "field": column.name,
            "headerName": column.title,
            "valueFormatter": {"function": f"whorlText(params, {json.dumps(column.kind)})"},
            "comparator": {"function": "whorlOrder"},
            "filter": filters and ("agNumberColumnFilter" if is_number else "agTextColumnFilter"),
            "floatingFilter": filters,
            "minWidth": width,
            "flex": width,
            "useValueFormatterForExport": False,
            "cellDataType": False,
        }
        if is_number or column.kind == "exact":
            definition["type"] = "rightAligned"
        if column.says:
            definition["headerTooltip"] = column.says
        if column.sort:
            definition["sort"] = column.sort
        if column.wraps:
            definition |= {"wrapText": True, "autoHeight": True, "minWidth": 320, "flex": 1000}
        elif column.kind in ("text", "exact text"):
            definition["tooltipField"] = column.name  # the whole of a text that is cut
        if column.link:
            definition["cellRenderer"] = "WhorlLink"
        definitions.append(definition)
        for end, word in ((column.low, "from"), (column.high, "up to")):
            if end:
                definitions.append({"field": end, "headerName": f"{column.title}, {word}", "hide": True})
    return definitions


# -- rows of a frame ---------------------------------------------------------------------------------------------


def serve(
    app: Dash,
    name: str,
    columns: Sequence[GridColumn] | Callable[[str | None], Sequence[GridColumn]],
    read: Callable[[str | None], pl.DataFrame],
    *,
    key: str | None = None,
    follows: Sequence[str] = (),
    file: str = "whorl.csv",
) -> None:
    """Answer what the table `name` asks for. `read`: all its rows, of the part of the address from "?" on; `columns`
    may be a function of that, too.

    `follows`: the names in the address that its rows depend on. When one of them changes, the table asks again.
    """

    def columns_of(search: str | None) -> Sequence[GridColumn]:
        return columns(search) if callable(columns) else columns

    @app.callback(
        Output(name, "getRowsResponse"),
        Input(name, "getRowsRequest"),
        State(URL, "search"),
    )
    def answer(request: dict[str, Any] | None, search: str | None) -> Any:
        return no_update if request is None else block(read(search), columns_of(search), request, key)

    @app.callback(
        Output(_saved(name), "data"),
        Input(_csv(name), "n_clicks"),
        State(name, "filterModel"),
        State(name, "columnState"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def save(clicks: int | None, filters: Any, states: Any, search: str | None) -> Any:
        if not clicks:
            return no_update
        sorts = [state for state in states or () if state.get("sort")]
        sorts.sort(key=lambda state: state.get("sortIndex") or 0)
        rows = arranged(read(search), columns_of(search), filters or {}, sorts)
        return {"content": _as_csv(rows, columns_of(search)), "filename": file}

    app.clientside_callback(  # type: ignore[no-untyped-call]
        f"search => {{ window.whorlAskAgain({json.dumps(name)}, search, {json.dumps(list(follows))}); "
        "return window.dash_clientside.no_update; }",
        Output(name, "className"),
        Input(URL, "search"),
    )


def block(
    rows: pl.DataFrame, columns: Sequence[GridColumn], request: Mapping[str, Any], key: str | None = None
) -> dict[str, Any]:
    """The rows that a table asks for: filtered and sorted as it says, and how many there are in all."""
    matching = arranged(rows, columns, request.get("filterModel") or {}, request.get("sortModel") or ())
    first = max(0, int(request.get("startRow") or 0))
    return {"rowData": sent(matching.slice(first, BLOCK), columns, key), "rowCount": matching.height}


def sent(rows: pl.DataFrame, columns: Sequence[GridColumn], key: str | None = None) -> list[dict[str, Any]]:
    """Rows as a page gets them: the columns that it needs, with `NAME:text` where people read another text than the
    value, and `NAME:href` where a cell leads somewhere. Times are text in UTC, numbers as short as they may be."""
    return [_row(row, columns) for row in rows.select(column_names(columns, key)).iter_rows(named=True)]


def _row(values: Mapping[str, Any], columns: Sequence[GridColumn]) -> dict[str, Any]:
    row = {name: _plain(value) for name, value in values.items()}
    for column in columns:
        if row[column.name] is None:
            continue
        if column.kind in _NUMBERS and not isinstance(row[column.name], str):
            ends = (row[column.name], row[column.high]) if column.kind == "interval" else row[column.name]
            row[f"{column.name}:text"] = column.text(ends)
        if column.link and row[next(iter(column.asks.values()))] is not None:
            pairs = [(name, row[source]) for name, source in column.asks.items() if row[source] is not None]
            row[f"{column.name}:href"] = f"{column.link}?{urlencode(pairs)}"
    return row


def column_names(columns: Sequence[GridColumn], key: str | None = None) -> list[str]:
    """The columns of a frame that a table needs."""
    names = [name for column in columns for name in (column.name, column.high, *column.asks.values()) if name]
    return list(dict.fromkeys([*names, *([key] if key else [])]))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return str(value)[:19] if isinstance(value, datetime) else str(value)


def _as_csv(rows: pl.DataFrame, columns: Sequence[GridColumn]) -> str:
    text = pl.selectors.string()
    formula = text.str.contains(FORMULA) & ~text.str.contains(NUMBER)
    shorter = rows.select(column_names(columns)).with_columns(
        pl.selectors.float().round_sig_figs(_DIGITS), pl.when(formula).then("'" + text).otherwise(text).name.keep()
    )
    return shorter.write_csv(datetime_format="%Y-%m-%d %H:%M:%S")


def arranged(
    rows: pl.DataFrame,
    columns: Sequence[GridColumn],
    filters: Mapping[str, Any],
    sorts: Sequence[Mapping[str, Any]],
) -> pl.DataFrame:
    """The rows that pass AG Grid's filter model, in the order of its sort model; missing values last."""
    by_name = {column.name: column for column in columns}
    tests = [_test(by_name[name], test) for name, test in filters.items() if name in by_name]
    if tests:
        rows = rows.filter(*tests)
    order = [(sort["colId"], sort.get("sort") == "desc") for sort in sorts if sort.get("colId") in by_name]
    if not order:
        return rows
    keys = [by_number(name)[0] if rows.schema[name] == pl.String else pl.col(name) for name, _ in order]
    return rows.sort(keys, descending=[down for _, down in order], nulls_last=True, maintain_order=True)


def _test(column: GridColumn, test: Mapping[str, Any]) -> pl.Expr:
    """Whether a row passes the filter of a column."""
    if test.get("conditions"):
        parts = [_test(column, part) for part in test["conditions"]]
        return pl.any_horizontal(parts) if test.get("operator") == "OR" else pl.all_horizontal(parts)
    comparison, value = test.get("type"), pl.col(column.name)
    if comparison in ("blank", "notBlank"):
        return value.is_null() if comparison == "blank" else value.is_not_null()
    if column.kind in _NUMBERS:
        return _number_test(value, str(comparison), test.get("filter"), test.get("filterTo"))
    text = value.dt.strftime("%Y-%m-%d %H:%M:%S") if column.kind == "time" else value.cast(pl.String)
    return _text_test(text.str.to_lowercase(), str(comparison), str(test.get("filter") or "").lower())


def _number_test(value: pl.Expr, comparison: str, low: Any, high: Any) -> pl.Expr:
    if not isinstance(low, int | float) or (comparison == "inRange" and not isinstance(high, int | float)):
        return pl.lit(value=True)
    tests = {
        "equals": value == low,
        "notEqual": (value != low) | value.is_null(),
        "lessThan": value < low,
        "lessThanOrEqual": value <= low,
        "greaterThan": value > low,
        "greaterThanOrEqual": value >= low,
    }
    if comparison == "inRange":
        return value.is_between(low, high, closed="none")
    return tests.get(comparison, pl.lit(value=True))


def _text_test(text: pl.Expr, comparison: str, part: str) -> pl.Expr:
    tests = {
        "contains": text.str.contains(part, literal=True),
        "notContains": ~text.str.contains(part, literal=True) | text.is_null(),
        "equals": text == part,
        "notEqual": (text != part) | text.is_null(),
        "startsWith": text.str.starts_with(part),
        "endsWith": text.str.ends_with(part),
    }
    return tests.get(comparison, pl.lit(value=True))


def _csv(name: str) -> str:
    return f"{name}-csv"


def _saved(name: str) -> str:
    return f"{name}-saved"
