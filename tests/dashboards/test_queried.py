"""An answer as a figure: what is drawn, what is left out and said, and names that look like HTML."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from whorl.dashboards.figures.queried import KINDS, queried

HOSTILE = "<a href='x'>n1</a>"


def _rows(n: int = 20) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "at": [datetime.fromisoformat("2026-01-01") + timedelta(seconds=n - number) for number in range(n)],
            "watt": [float(number) for number in range(n)],
            "name": [HOSTILE if number % 2 else "007" for number in range(n)],
            "gaps": [None, math.inf, math.nan, *([1.0] * (n - 3))],
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws_all_rows_and_says_how_many(kind: str) -> None:
    figure: Any
    figure, sentence = queried(_rows(), kind, x="watt", y="watt", colour="name")
    assert [trace.type for trace in figure.data] == [{"line": "scatter", "scatter": "scatter"}.get(kind, kind)] * 2
    assert sorted(value for trace in figure.data for value in trace.x) == list(range(20))
    assert sentence.startswith("n = 20.")
    assert HOSTILE not in json.dumps(figure.to_plotly_json(), default=str)
    assert [trace.name for trace in figure.data] == ["007", "&lt;a href='x'&gt;n1&lt;/a&gt;"]


def test_a_line_is_in_the_order_of_its_axis() -> None:
    figure: Any
    figure, _ = queried(_rows(), "line", x="at", y="watt")
    assert list(figure.data[0].x) == sorted(figure.data[0].x)
    assert figure.data[0].x[0] == "2026-01-01T00:00:01.000000"
    assert figure.data[0].y[0] == 19.0


def test_what_is_missing_or_endless_is_left_out_and_said() -> None:
    figure: Any
    figure, sentence = queried(_rows(), "scatter", x="watt", y="gaps")
    assert list(figure.data[0].y) == [1.0] * 17
    assert sentence == "n = 17. 3 rows left out, as a value in them is missing or endless."


def test_the_most_frequent_values_have_colours_and_the_others_are_grey() -> None:
    rows = pl.DataFrame({"x": range(100), "gpu": [f"n{min(number, 50) % 20:02d}" for number in range(100)]})
    figure: Any
    figure, _ = queried(rows, "scatter", x="x", y="x", colour="gpu")
    assert figure.data[0].name == "all others"
    assert len(figure.data) == 8
    assert "n10" in [trace.name for trace in figure.data]
    assert len({trace.marker.color for trace in figure.data}) == 8


def test_so_many_bars_as_can_be_told_apart() -> None:
    figure: Any
    figure, sentence = queried(pl.DataFrame({"x": range(5000)}), "bar", x="x", y="x")
    assert "sum" not in sentence
    assert "a bar is their sum" in queried(pl.DataFrame({"x": ["a", "b", "a"], "y": [1, 2, 3]}), "bar", x="x", y="y")[1]
    assert len(figure.data[0].x) == 400
    assert "The first 400 of 5,000 rows are drawn" in sentence
    figure, _ = queried(pl.DataFrame({"x": range(5000)}), "scatter", x="x", y="x")
    assert figure.data[0].type == "scattergl"


def test_texts_that_look_like_numbers_stay_texts() -> None:
    figure: Any
    figure, _ = queried(_rows(), "bar", x="name", y="watt")
    assert figure.layout.xaxis.type == "category"
    assert figure.data[0].x[0] == "007"


def test_an_answer_without_rows_is_an_empty_figure() -> None:
    for kind in KINDS:
        _, sentence = queried(_rows().clear(), kind, x="at", y="watt", colour="name")
        assert sentence.startswith("n = 0.")
