"""What the long tables of pages send: values to sort by, texts to read, the ends of intervals, and never too much."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from whorl.dashboards.app.grid import MOST, GridOptions, definitions, frame_table, grid, grid_rows
from whorl.dashboards.document import Column, Table

COLUMNS = {
    "gpu": Column("GPU", page="gpu"),
    "slower": Column("slower", "percent", 1),
    "low high": Column("95 %", "interval", 0),
    "at": Column("when", "time"),
}


def test_a_frame_is_sent_with_what_people_read_and_is_json() -> None:
    at = pl.Series(["2026-01-02 03:04:05", None, "2026-02-01 00:00:00"]).str.to_datetime()
    frame = pl.DataFrame({"gpu": ["b/10", None, ""], "slower": [2.0, None, float("inf")], "low": [0.0, 1.0, None]})
    frame = frame.with_columns(high=pl.Series([1.0, 2.0, None]), at=at, unseen=1)
    options = GridOptions(list(COLUMNS), ["x", "y", "z"], "slower")
    table = frame_table(frame, COLUMNS)
    rows = grid_rows(table, lambda page, name, _: f"{page}?gpu={name}", options)
    assert rows[0] == {
        "key": "x", "gpu": "b/10", "gpu:href": "gpu?gpu=b/10", "slower": 2.0, "slower:text": "+2.0 %", "low": 0.0,
        "low high": 1.0, "low:text": "[0, 1]", "at": "2026-01-02 03:04:05",
    }  # fmt: skip
    assert rows[2]["gpu:text"] == "", "empty, and not missing"
    assert rows[2]["slower"] is rows[1]["gpu"] is None, "JSON has no infinity"
    json.dumps(rows, allow_nan=False)
    assert [column["field"] for column in definitions(table, options)] == ["gpu", "slower", "low", "low high", "at"]
    assert [column.get("initialSort") for column in definitions(table, options)] == [None, "desc", None, None, None]


def test_a_page_never_sends_a_large_table_whole() -> None:
    drawn: Any = grid(Table([Column("a", "number")], [(n,) for n in range(MOST + 1)]))
    table, columns = drawn.children
    assert len(table.children[0].rowData) == MOST
    assert columns.children == "and 1 more"


def test_who_copies_a_long_table_gets_the_ends_of_its_intervals() -> None:
    rows = [(f"g{n}", (1.0 * n, n - 0.5, n + 0.5), (0.5, 1.5)) for n in range(30)]
    columns: list[Column | str] = ["GPU", Column("slower", "percent"), Column("rank [95 %]", "interval")]
    drawn: Any = grid(Table(columns, rows)).children
    table = drawn[0].children[0]
    first = table.rowData[2]
    assert (first["c1"], first["c1 low"], first["c1 high"]) == (2.0, 1.5, 2.5)
    assert (first["c2"], first["c2 high"]) == (0.5, 1.5)
    hidden = {head["field"]: head["headerName"] for head in table.columnDefs if head.get("hide")}
    assert hidden == {"c1 low": "slower, from", "c1 high": "slower, up to", "c2 high": "rank [95 %], up to"}
