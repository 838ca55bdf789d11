"""The tables of the dashboard: one wrapper of AG Grid, for a few rows that a page sends and for many that it asks for.

A column has a kind, so that it is sorted by value and shown for people. What is missing is "n/a" and comes last,
whichever way a column is sorted. Cells are text, never HTML. `assets/grid.js` draws the kinds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
from dash import Input, Output, State, dcc, html, no_update
from dash_ag_grid import AgGrid

from ...analysis.by_number import by_number
from ..answers.texts import FORMULA, NUMBER
from .page import URL, labelled

if TYPE_CHECKING:
    from dash import Dash
    from dash.development.base_component import Component

MOST = 2_000
"""Rows that a page sends whole; of more it asks for blocks."""
BLOCK = 100
"""Rows of a block."""
_FEW = 12  # rows up to which a table is as high as they are, and needs no filters
_ROW_PX, _HEAD_PX = 34, 40
_BEYOND = 4  # rows above and below those in sight that are drawn: ten took a sixth of the time of the first page
_LETTER_PX, _AROUND_PX, _WIDEST_PX = 7.6, 44, 300  # the room of a cell
_FILTERED_PX = 112  # a filter needs
_TYPICAL = {  # letters, where the rows are not known
    "text": 16, "number": 8, "percent": 9, "time": 19, "interval": 16, "exact": 12, "exact text": 16,
}  # fmt: skip
_STRETCHED = 1.5  # so much wider than it must be is a table at most
_DIGITS = 6  # significant ones that are sent of a number: more than any figure shows

Kind = Literal["text", "number", "percent", "time", "interval", "exact", "exact text"]


@dataclass(frozen=True)
class Column:
    """A column of a table. `name`: the column of the frame it shows."""

    name: str
    title: str
    kind: Kind = "text"
    """`percent` is signed and counted in per cent; `interval` starts at `name` and ends at `high`; a time is in UTC.

    `exact` is a number as text, shown as it is and ordered by its value; `exact text` is a text that may be empty.
    """
    digits: int = 0
    """Behind the point."""
    says: str = ""
    """What it means: shown where the pointer rests on its title."""
    high: str = ""
    """Of an interval: the column with its upper end."""
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


def table(
    name: str,
    columns: Sequence[Column],
    rows: pl.DataFrame | None,
    *,
    label: str,
    key: str | None = None,
    height: int = 560,
    saved: bool = True,
) -> Component:
    """A table with a button that saves what it shows as CSV.

    `name`: the id of the grid. `rows`: with all columns that `columns` name; None for many rows, which it asks for in
    blocks: then call `serve` once with the same columns. `key`: the column that tells rows apart. `height`: in
    pixels, of a longer table. `saved`: False leaves the button out. Raises ValueError for more rows than `MOST`.
    """
    if rows is not None and rows.height > MOST:
        raise ValueError(f"{rows.height:,} rows are too many to send: give None and call serve")
    few = rows is not None and rows.height <= _FEW
    options: dict[str, Any] = {
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
    if few:
        options["domLayout"] = "autoHeight"
    more: dict[str, Any] = {}
    if rows is None:
        more["rowModelType"] = "infinite"
        options |= {
            "cacheBlockSize": BLOCK,
            "maxBlocksInCache": 20,
            "infiniteInitialRowCount": BLOCK,
            "blockLoadDebounceMillis": 60,
        }
    else:
        more["rowData"] = sent(rows, columns, key)
    if key is not None:
        more["getRowId"] = f"params.data[{json.dumps(key)}]"
    widths = _widths(columns, rows, filters=not few)
    drawn = AgGrid(
        id=name,
        columnDefs=_definitions(columns, widths, filters=not few),
        defaultColDef={"sortable": True, "resizable": True, "suppressHeaderMenuButton": True},
        dashGridOptions=options,
        columnSize=None,
        style={"height": None if few else height, "width": "100%"},
        **more,
    )
    button: dict[str, Any] = {"type": "button", "className": "csv", "title": "Save the rows that are shown as CSV"}
    button |= {"id": _csv(name)} if rows is None else {"data-grid": name}
    button |= labelled(f"CSV: {label}")
    below: list[Component] = [html.Button("CSV", **button)] if saved else []
    below += [dcc.Download(id=_saved(name))] if saved and rows is None else []
    return html.Div(
        [drawn, *below],
        className="grid",
        style={"maxWidth": None if any(column.wraps for column in columns) else round(_STRETCHED * sum(widths))},
        role="group",
        **labelled(label),
    )


def serve(
    app: Dash,
    name: str,
    columns: Sequence[Column] | Callable[[str | None], Sequence[Column]],
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

    def shown(search: str | None) -> Sequence[Column]:
        return columns(search) if callable(columns) else columns

    @app.callback(
        Output(name, "getRowsResponse"),
        Input(name, "getRowsRequest"),
        State(URL, "search"),
    )
    def answer(request: dict[str, Any] | None, search: str | None) -> Any:
        return no_update if request is None else block(read(search), shown(search), request, key)

    @app.callback(
        Output(_saved(name), "data"),
        Input(_csv(name), "n_clicks"),
        State(name, "filterModel"),
        State(name, "columnState"),
        State(URL, "search"),
        prevent_initial_call=True,
    )
    def save(clicks: int | None, wanted: Any, state: Any, search: str | None) -> Any:
        if not clicks:
            return no_update
        order = sorted((one for one in state or () if one.get("sort")), key=lambda one: one.get("sortIndex") or 0)
        found = arranged(read(search), shown(search), wanted or {}, order)
        return {"content": _as_csv(found, shown(search)), "filename": file}

    app.clientside_callback(  # type: ignore[no-untyped-call]
        f"search => {{ window.whorlAskAgain({json.dumps(name)}, search, {json.dumps(list(follows))}); "
        "return window.dash_clientside.no_update; }",
        Output(name, "className"),
        Input(URL, "search"),
    )


def block(
    rows: pl.DataFrame, columns: Sequence[Column], request: Mapping[str, Any], key: str | None = None
) -> dict[str, Any]:
    """The rows that a table asks for: filtered and sorted as it says, and how many there are in all."""
    found = arranged(rows, columns, request.get("filterModel") or {}, request.get("sortModel") or ())
    first = max(0, int(request.get("startRow") or 0))
    return {"rowData": sent(found.slice(first, BLOCK), columns, key), "rowCount": found.height}


def arranged(
    rows: pl.DataFrame,
    columns: Sequence[Column],
    wanted: Mapping[str, Any],
    order: Sequence[Mapping[str, Any]],
) -> pl.DataFrame:
    """The rows that pass AG Grid's filter model, in the order of its sort model; missing values last."""
    known = {column.name: column for column in columns}
    tests = [_test(known[name], one) for name, one in wanted.items() if name in known]
    if tests:
        rows = rows.filter(*tests)
    by = [(one["colId"], one.get("sort") == "desc") for one in order if one.get("colId") in known]
    if not by:
        return rows
    keys = [by_number(name)[0] if rows.schema[name] == pl.String else pl.col(name) for name, _ in by]
    return rows.sort(keys, descending=[down for _, down in by], nulls_last=True, maintain_order=True)


def sent(rows: pl.DataFrame, columns: Sequence[Column], key: str | None = None) -> list[dict[str, Any]]:
    """Rows as a page gets them: the columns that it needs, times as text in UTC, numbers as short as they may be."""
    return [
        {name: _plain(value) for name, value in row.items()}
        for row in rows.select(named(columns, key)).iter_rows(named=True)
    ]


def _as_csv(rows: pl.DataFrame, columns: Sequence[Column]) -> str:
    text = pl.selectors.string()
    formula = text.str.contains(FORMULA) & ~text.str.contains(NUMBER)
    shorter = rows.select(named(columns)).with_columns(
        pl.selectors.float().round_sig_figs(_DIGITS), pl.when(formula).then("'" + text).otherwise(text).name.keep()
    )
    return shorter.write_csv(datetime_format="%Y-%m-%d %H:%M:%S")


def named(columns: Sequence[Column], key: str | None = None) -> list[str]:
    """The columns of a frame that a table needs."""
    names = [one for column in columns for one in (column.name, column.high, *column.asks.values()) if one]
    return list(dict.fromkeys([*names, *([key] if key else [])]))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "isoformat"):
        return str(value)[:19]
    return str(value)


def _width(column: Column, rows: pl.DataFrame | None, *, filters: bool) -> int:
    """How wide a column must be, in pixels: as its title, its filter and most of its text."""
    letters = _TYPICAL[column.kind]
    if rows is not None and rows.height and column.kind in ("text", "exact", "exact text"):
        lengths = rows[column.name].cast(pl.String).str.len_chars()
        letters = max(3, int(lengths.quantile(0.95) or 0))
    elif column.kind == "interval":
        letters += len(column.unit)
    needed = _AROUND_PX + _LETTER_PX * max(letters, len(column.title))
    return column.width or round(min(max(needed, _FILTERED_PX if filters else 0), _WIDEST_PX))


def _widths(columns: Sequence[Column], rows: pl.DataFrame | None, *, filters: bool) -> list[int]:
    return [_width(column, rows, filters=filters) for column in columns]


def definitions(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Other columns for a table of many rows: its property `columnDefs`."""
    return _definitions(columns, _widths(columns, None, filters=True), filters=True)


def _definitions(columns: Sequence[Column], widths: Sequence[int], *, filters: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for column, width in zip(columns, widths, strict=True):
        number = column.kind in ("number", "percent", "interval")
        args = json.dumps([column.kind, column.digits, column.unit, column.high])
        one: dict[str, Any] = {
            "field": column.name,
            "headerName": column.title,
            "valueFormatter": {"function": f"whorlShown(params, {args})"},
            "comparator": {"function": "whorlOrder"},
            "filter": filters and ("agNumberColumnFilter" if number else "agTextColumnFilter"),
            "floatingFilter": filters,
            "minWidth": width,
            "flex": width,
            "useValueFormatterForExport": False,
            "cellDataType": False,
        }
        if number or column.kind == "exact":
            one["type"] = "rightAligned"
        if column.says:
            one["headerTooltip"] = column.says
        if column.sort:
            one["sort"] = column.sort
        if column.wraps:
            one |= {"wrapText": True, "autoHeight": True, "minWidth": 320, "flex": 1000}
        elif column.kind in ("text", "exact text"):
            one["tooltipField"] = column.name  # the whole of a text that is cut
        if column.link:
            one |= {
                "cellRenderer": "WhorlLink",
                "cellRendererParams": {"path": column.link, "asks": dict(column.asks)},
            }
        found.append(one)
        if column.high:
            found.append({"field": column.high, "headerName": f"{column.title}, up to", "hide": True})
    return found


def _test(column: Column, wanted: Mapping[str, Any]) -> pl.Expr:
    """Whether a row passes the filter of a column."""
    if wanted.get("conditions"):
        each = [_test(column, one) for one in wanted["conditions"]]
        return pl.any_horizontal(each) if wanted.get("operator") == "OR" else pl.all_horizontal(each)
    how, value = wanted.get("type"), pl.col(column.name)
    if how in ("blank", "notBlank"):
        return value.is_null() if how == "blank" else value.is_not_null()
    if column.kind in ("number", "percent", "interval"):
        return _number_test(value, str(how), wanted.get("filter"), wanted.get("filterTo"))
    text = value.dt.strftime("%Y-%m-%d %H:%M:%S") if column.kind == "time" else value.cast(pl.String)
    return _text_test(text.str.to_lowercase(), str(how), str(wanted.get("filter") or "").lower())


def _number_test(value: pl.Expr, how: str, low: Any, high: Any) -> pl.Expr:
    if not isinstance(low, int | float) or (how == "inRange" and not isinstance(high, int | float)):
        return pl.lit(value=True)
    tests = {
        "equals": value == low,
        "notEqual": (value != low) | value.is_null(),
        "lessThan": value < low,
        "lessThanOrEqual": value <= low,
        "greaterThan": value > low,
        "greaterThanOrEqual": value >= low,
    }
    if how == "inRange":
        return value.is_between(low, high, closed="none")
    return tests.get(how, pl.lit(value=True))


def _text_test(text: pl.Expr, how: str, wanted: str) -> pl.Expr:
    tests = {
        "contains": text.str.contains(wanted, literal=True),
        "notContains": ~text.str.contains(wanted, literal=True) | text.is_null(),
        "equals": text == wanted,
        "notEqual": (text != wanted) | text.is_null(),
        "startsWith": text.str.starts_with(wanted),
        "endsWith": text.str.ends_with(wanted),
    }
    return tests.get(how, pl.lit(value=True))


def _csv(name: str) -> str:
    return f"{name}-csv"


def _saved(name: str) -> str:
    return f"{name}-saved"
