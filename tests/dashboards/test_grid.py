"""What tables of many rows answer: filtered, sorted, in blocks, with nothing that is not shown."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from whorl.dashboards.app.grid import BLOCK, MOST, GridColumn, arranged, block, document_table, table
from whorl.dashboards.document import Column, Table

COLUMNS = [
    GridColumn("gpu", "GPU"),
    GridColumn("slower", "slower", "percent", 1),
    GridColumn("low", "95 %", "interval", high="high"),
    GridColumn("at", "when", "time"),
]
ROWS = pl.DataFrame(
    {
        "gpu": ["b/10", "B/2", None, "a<b>"],
        "slower": [2.0, None, float("inf"), -1.0],
        "low": [0.0, 1.0, None, 3.0],
        "high": [1.0, 2.0, None, 4.0],
        "at": pl.Series(["2026-01-02 03:04:05", None, "2026-02-01 00:00:00", "2025-01-01 00:00:00"]).str.to_datetime(),
        "unseen": [1, 2, 3, 4],
    }
)


@pytest.mark.parametrize(
    ("column", "wanted", "expected"),
    [
        ("gpu", {"type": "contains", "filter": "B/"}, [0, 1]),
        ("gpu", {"type": "notContains", "filter": "b/"}, [2, 3]),
        ("gpu", {"type": "equals", "filter": "A<b>"}, [3]),
        ("gpu", {"type": "startsWith", "filter": "b"}, [0, 1]),
        ("gpu", {"type": "endsWith", "filter": ">"}, [3]),
        ("gpu", {"type": "contains", "filter": "("}, []),
        ("gpu", {"type": "blank"}, [2]),
        ("slower", {"type": "greaterThan", "filter": -1}, [0, 2]),
        ("slower", {"type": "inRange", "filter": -2, "filterTo": 3}, [0, 3]),
        ("slower", {"type": "notEqual", "filter": 2}, [1, 2, 3]),
        ("slower", {"type": "lessThan", "filter": "x"}, [0, 1, 2, 3]),
        (
            "slower",
            {"operator": "OR", "conditions": [{"type": "blank"}, {"type": "lessThanOrEqual", "filter": -1}]},
            [1, 3],
        ),
        ("at", {"type": "startsWith", "filter": "2026-01"}, [0]),
        ("unseen", {"type": "equals", "filter": 1}, [0, 1, 2, 3]),
    ],
)
def test_a_filter_keeps_the_rows_that_it_names(column: str, wanted: dict[str, Any], expected: list[int]) -> None:
    assert arranged(ROWS, COLUMNS, {column: wanted}, [])["unseen"].to_list() == [one + 1 for one in expected]


@pytest.mark.parametrize(("way", "expected"), [("asc", [4, 1, 3, 2]), ("desc", [3, 1, 4, 2])])
def test_what_is_missing_comes_last_both_ways(way: str, expected: list[int]) -> None:
    assert arranged(ROWS, COLUMNS, {}, [{"colId": "slower", "sort": way}])["unseen"].to_list() == expected


def test_names_are_sorted_as_people_count() -> None:
    names = pl.DataFrame({"gpu": ["c2-10/0", None, "c2-2/0", "c10-1/0"]})
    up, down = (arranged(names, COLUMNS[:1], {}, [{"colId": "gpu", "sort": way}])["gpu"] for way in ("asc", "desc"))
    assert up.to_list() == ["c2-2/0", "c2-10/0", "c10-1/0", None]
    assert down.to_list() == ["c10-1/0", "c2-10/0", "c2-2/0", None]


def test_a_block_holds_only_what_is_shown_and_is_json() -> None:
    many = pl.concat([ROWS] * 100)
    first = block(many, COLUMNS, {"startRow": 0, "endRow": 10_000})
    assert first["rowCount"] == 400
    assert len(first["rowData"]) == BLOCK
    assert first["rowData"][0] == {"gpu": "b/10", "slower": 2.0, "low": 0.0, "high": 1.0, "at": "2026-01-02 03:04:05",
                                   "slower:text": "+2.0 %", "low:text": "[0, 1]"}  # fmt: skip
    assert first["rowData"][2]["slower"] is None, "JSON has no infinity"
    json.dumps(first, allow_nan=False)
    assert block(many, COLUMNS, {"startRow": 399})["rowData"] == [first["rowData"][3]]


def test_a_page_never_sends_a_large_table_whole() -> None:
    with pytest.raises(ValueError, match="call serve"):
        table("t", [GridColumn("a", "a")], pl.DataFrame({"a": range(MOST + 1)}), label="t")


def test_who_copies_a_long_table_gets_the_ends_of_its_intervals() -> None:
    rows = [(f"g{n}", (1.0 * n, n - 0.5, n + 0.5), (0.5, 1.5)) for n in range(30)]
    columns: list[Column | str] = ["GPU", Column("slower", "percent"), Column("rank [95 %]", "interval")]
    drawn: Any = document_table(Table(columns, rows)).children
    first = drawn[0].rowData[2]
    assert (first["c1"], first["c1low"], first["c1high"]) == (2.0, 1.5, 2.5)
    assert (first["c2"], first["c2high"]) == (0.5, 1.5)
    hidden = {head["field"]: head["headerName"] for head in drawn[0].columnDefs if head.get("hide")}
    assert hidden == {"c1low": "slower, from", "c1high": "slower, up to", "c2high": "rank [95 %], up to"}
