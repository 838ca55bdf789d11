"""One document, four readers: what a terminal, a pipe, a report, a notebook and a page say is the same."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go
import polars as pl
import pytest
from plotly.utils import PlotlyJSONEncoder

from whorl.dashboards import html, terminal
from whorl.dashboards.app.grid import MOST, GridOptions, definitions, frame_table, grid, grid_rows
from whorl.dashboards.app.page import components
from whorl.dashboards.document import (
    Chart,
    Column,
    Command,
    Document,
    Facts,
    Finding,
    Findings,
    Listing,
    Part,
    Section,
    Table,
    Tiles,
)
from whorl.dashboards.words import estimate, interval, number, quantity, with_interval

HOSTILE = "<b>n1\x1b[2J/0</b>"
SHOWN = "<b>n1\\x1b[2J/0</b>"
FINDING = Finding(
    HOSTILE,
    "slow",
    "suspected",
    "+6.1 % [+5.2, +7.0]",
    "Its clock is held by the power brake.",
    "Check the power supply: `nvidia-smi -q -d POWER`.",
    "n 64 GPUs, p 0.001",
    [HOSTILE],
)
COLUMNS = [
    Column("GPU"),
    Column("slower", "percent"),
    Column("95 %", "interval", digits=1),
    Column("seen", "time"),
    Column("energy", "quantity", unit="J", drops=1),
    Column("why", "sentence", explains="What holds it back."),
]
ROWS: list[list[Any]] = [
    [
        HOSTILE,
        6.123,
        (5.2, 7.0),
        datetime(2026, 11, 30, 7, tzinfo=UTC),
        12_345.0,
        "The power brake is on; a cable may be loose.",
    ],
    ["n2/1", -0.04, (None, 1.0), None, None, "Nothing."],
]


def document(*parts: Any) -> Document:
    chart = Chart("The machine", "A cell is a GPU.", {"": go.Figure([go.Bar(x=["a"], y=[1])], {"template": "none"})})
    default: list[Part] = [
        "One GPU is slow.",
        Tiles([("64", "GPUs measured")]),
        Section(
            "What was found", [Findings([FINDING]), Table(COLUMNS, ROWS, "All of them", "Medians.")], "Worst first."
        ),
        Facts([("cluster", "longhorn")], "About"),
        Command("whorl explain 'n1/0' --store S"),
        chart,
        Section("Words", ["Suspected: seen in one sitting."], folded=True),
    ]
    return Document("The fleet", [*parts] or default, ["A note."])


def visible(page: str) -> str:
    """The text of HTML."""
    body = page.partition("<body")[2].partition("<script")[0] or page
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))
    for entity, sign in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&#x27;", "'"), ("&amp;", "&")):
        text = text.replace(entity, sign)
    return text


def of_dash(parts: Any) -> str:
    """All texts of components, in their order."""
    texts: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, str):
            texts.append(node)
        elif isinstance(node, list):
            for child in node:
                walk(child)
        elif isinstance(node, dict):
            walk(node.get("props", {}).get("children"))

    walk(json.loads(json.dumps(parts, cls=PlotlyJSONEncoder)))
    return " ".join(texts)


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("−", "-").replace("`", "").replace(" ", "")).strip()


SENTENCES = [
    "One GPU is slow.",
    "GPUs measured",
    "What was found",
    "Worst first.",
    SHOWN,
    "slow, suspected",
    "+6.1 % [+5.2, +7.0]",
    FINDING.because,
    "Check the power supply: nvidia-smi -q -d POWER.",
    FINDING.evidence,
    "+6.1 %",
    "[5.2, 7.0]",
    "2026-11-30 07:00:00",
    "12.3 kJ",
    "n/a",
    "The power brake is on; a cable may be loose.",
    "Medians.",
    "longhorn",
    "whorl explain 'n1/0' --store S",
]


def test_terminal_report_notebook_and_page_say_the_same() -> None:
    statement = document()
    drawn = {
        "terminal": terminal.text(statement),
        "report": visible(html.page(statement)),
        "notebook": visible(html.fragment(statement.parts)),
        "page": of_dash(components(statement.parts)),
    }
    for name, text in drawn.items():
        missing = [sentence for sentence in SENTENCES if plain(sentence) not in plain(text)]
        assert missing == [], name
    assert "Suspected: seen in one sitting." not in drawn["terminal"], "definitions are folded away"
    assert "Suspected: seen in one sitting." in drawn["report"]
    assert "A note." in drawn["report"]


def test_a_report_holds_no_markup_of_names_and_a_chart() -> None:
    page = html.page(document())
    assert 'class="plot"' not in html.fragment([Section("Where", document().parts)]), "a notebook has no script for it"
    assert "<b>n1" not in page
    assert page.count('class="plot"') == 1
    assert "<details><summary><h2>Words</h2></summary>" in page
    assert re.findall(r'(?:src|href)\s*=\s*"(?!#)|https?:', page.partition('<script type="application/octet')[0]) == []


def test_a_narrow_terminal_drops_columns_and_names_them_then_takes_rows_apart() -> None:
    table = Table(COLUMNS, ROWS)
    wide = "\n".join(terminal.lines([table], 120))
    assert "energy" in wide
    narrow = "\n".join(terminal.lines([table], 84))
    assert "No room for energy: a wider terminal shows more." in narrow
    assert max(map(len, narrow.splitlines())) <= 84
    apart = "\n".join(terminal.lines([Table([Column("GPU"), Column("name")], [["a" * 30, "b" * 30]])], 40))
    assert apart.splitlines() == ["row 1", f"  GPU   {'a' * 30}", f"  name  {'b' * 30}"]


def test_a_link_of_a_table_leads_to_the_cluster_of_its_row() -> None:
    links: list[tuple[str, str | None]] = []

    def address(_: str, name: str, cluster: str | None) -> str:
        links.append((name, cluster))
        return "gpu"

    rows = [(f"n{number}/0", "ab"[number % 2]) for number in range(4)]
    components([Table([Column("GPU", page="gpu"), "cluster"], rows)], address)
    components([Table([Column("GPU", page="gpu"), "cluster"], rows * 9)], address)
    assert links == rows * 10
    components([Table([Column("GPU", page="gpu")], [("n0/0",)])], address)
    assert links[-1] == ("n0/0", None)


def test_rows_that_are_not_drawn_are_counted_everywhere() -> None:
    parts: list[Part] = [Table(["a"], [["1"], ["2"], ["3"]], most=1), Findings([FINDING] * 3, most=1)]
    text = document(*parts)
    assert terminal.text(text).count("and 2 more: --json has all") == 2
    assert html.page(text).count("and 2 more") == 2
    assert of_dash(components(parts)).count("and 2 more") == 2


def test_a_listing_is_packed_in_a_page_and_not_shown_in_a_terminal() -> None:
    numbers = [Column("slower, %", "percent", digits=1), Column("runs", "count")]
    listing = Listing(
        "All GPUs", "n = 2.", {"GPU": [HOSTILE, "n2/1"]}, numbers, {"gemm": [[1.25, None], [3.0, 4.0]]}, "probe"
    )
    assert list(terminal.lines([listing])) == []
    page = html.page(document(Section("Every GPU", [listing])))
    assert HOSTILE not in page
    assert 'data-listing="0"' in page


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        (with_interval(6.123, 5.2, 7.0, signed=True, unit="%"), "+6.1 % [+5.2, +7.0]"),
        (with_interval(0.3012, 0.3009, 0.3015), "0.30120 [0.30090, 0.30150]"),
        (with_interval(0.8712, None, None), "0.87"),
        (with_interval(8.712, None, None), "8.7"),
        (interval(0.301, None), "n/a"),
        (interval(-0.04, 10.0), "[0.0, +10.0]"),
        (estimate(-0.04, signed=True), "0.0"),
        (estimate(float("nan")), "n/a"),
        (quantity(12_345, "J"), "12.3 kJ"),
        (quantity(999.6, "W"), "1.00 kW"),
        (quantity(None, "W"), "n/a"),
        (quantity(0.00002, "bit"), "2.00e-05 bit"),
        (number(1234567.0), "1,234,567"),
        (number(0.00002), "2.000e-05"),
    ],
)
def test_numbers_have_the_digits_that_a_reader_needs(text: str, digits: str) -> None:
    assert text == digits


# -- long tables: values to sort by, texts to read, the ends of intervals ----------------------------------------------


SENT = {
    "gpu": Column("GPU", page="gpu"),
    "slower": Column("slower", "percent", 1),
    "low high": Column("95 %", "interval", 0),
    "at": Column("when", "time"),
}


def test_a_frame_is_sent_with_what_people_read_and_is_json() -> None:
    at = pl.Series(["2026-01-02 03:04:05", None, "2026-02-01 00:00:00"]).str.to_datetime()
    frame = pl.DataFrame({"gpu": ["b/10", None, ""], "slower": [2.0, None, float("inf")], "low": [0.0, 1.0, None]})
    frame = frame.with_columns(high=pl.Series([1.0, 2.0, None]), at=at, unseen=1)
    options = GridOptions(list(SENT), ["x", "y", "z"], "slower")
    table = frame_table(frame, SENT)
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
