"""SQL for people elsewhere: what is shown is exact, nothing outside the store is reached, and no query harms others."""

from __future__ import annotations

import csv
import itertools
import json
import math
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whorl.dashboards.app.console import Console
from whorl.dashboards.app.reading import QueryLimits
from whorl.dashboards.app.worker import FirstRows, Form
from whorl.dashboards.figures.queried import KINDS, queried
from whorl.errors import QueryError
from whorl.store import Store
from whorl.store.sql import Share
from whorl.tests.escapes import OTHER, READING, TARGETS, WRITING
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made_store = new_store(tmp_path_factory.mktemp("console") / "store")
    runs = {"run_id": ["a", "b"], "gpu": ["<b>GPU</b>", "=1+1"], "power_w": [300.5, None]}
    made_store.append({"runs": pa.table(runs)}, "x")
    made_store.share = Share(200, 1)
    return made_store


@pytest.fixture(scope="module")
def console(store: Store) -> Iterator[Console]:
    made_console = Console(store.root, QueryLimits(seconds=60, memory_mb=300, file_bytes=500_000))
    yield made_console
    made_console.close()


@pytest.fixture(scope="module")
def hasty(store: Store) -> Iterator[Console]:
    """A console that stops a query after three seconds."""
    made_console = Console(store.root, QueryLimits(seconds=3.0, memory_mb=300))
    made_console.show("select 1", "warm")
    yield made_console
    made_console.close()


def _shown(console: Console, query: str) -> FirstRows:
    return console.show(query, "me")[1]


def _cells(console: Console, query: str, visitor: str = "me") -> list[str | None]:
    (row,) = console.show(query, visitor)[1].rows
    return row


def _written(console: Console, query: str, form: Form) -> bytes:
    with console.file(console.show(query, "me")[0], form) as file:
        return file.read()


# -- what is shown ------------------------------------------------------------------------------------------------

EXACT = [
    ("null", None),
    ("''", ""),
    ("'nan'::double", "NaN"),
    ("'-inf'::float", "-Infinity"),
    ("0.1::float", "0.1"),
    ("1 / 3", "0.3333333333333333"),
    ("true", "true"),
    ("9007199254740993", "9007199254740993"),
    ("18446744073709551615::ubigint", "18446744073709551615"),
    ("-(1::hugeint << 126)", str(-(2**126))),
    ("12345678901234567890.0123456789::decimal(38, 10)", "12345678901234567890.0123456789"),
    ("'2026-01-01 00:00:00.000000001'::timestamp_ns", "2026-01-01T00:00:00.000000001Z"),
    ("interval 14 month + interval 3 day + interval 1500 millisecond", "P14M3DT1.5S"),
    ("'\\xDE\\xAD'::blob", "dead"),
    (
        "{'a': [1.50::decimal(9, 2), null], 'b': 'x\"y', 'c': 'nan'::double}",
        '{"a": [1.50, null], "b": "x\\"y", "c": NaN}',
    ),
    ("map {'k': [9007199254740993]}", '{"k": [9007199254740993]}'),
    ("'<img src=x>'", "<img src=x>"),
]


def test_every_kind_of_value_is_shown_exactly(console: Console) -> None:
    answer = _shown(console, "select " + ", ".join(f"{expression} as a" for expression, _ in EXACT))
    assert answer.rows == [[text for _, text in EXACT]]
    assert [column.name for column in answer.columns][:3] == ["a", "a:1", "a:2"]
    assert [answer.columns[place].type for place in (7, 10, 11)] == ["BIGINT", "DECIMAL(38,10)", "TIMESTAMP_NS"]
    assert [answer.columns[place].numeric for place in (2, 7, 10, 11, 16)] == [True, True, True, False, False]


def test_a_long_answer_is_cut_and_counted(console: Console) -> None:
    answer = _shown(console, "select i, repeat('x', 1000) as long from range(123456) t(i)")
    assert (len(answer.rows), answer.total) == (1000, None)
    assert answer.rows[-1] == ["999", "x" * 400 + "…"]
    assert answer.cut == 1000
    assert answer.points.schema == {"i": pl.Float64, "long": pl.String}
    assert answer.points.height == 10_000


def test_what_is_sent_is_bounded_whatever_the_rows_hold(console: Console) -> None:
    wide = ", ".join(f"repeat(chr(1), 300) as c{place}" for place in range(300))
    answer = _shown(console, f"select {wide} from range(50)")
    assert (answer.all_columns, len(answer.columns), answer.total) == (300, 200, 50)
    assert len(answer.rows) < 50
    assert len(json.dumps(answer.rows)) < 1_000_000
    assert answer.points.estimated_size() < 5_000_000


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("selec 1", 'syntax error at or near "selec" (line 1, character 1)'),
        ("select 'é',\n  nothing from runs", "(line 2, character 3)"),
        ("from run", "there is no table run; there is runs (line 1, character 6)"),
        ("select 'a'::int", "Could not convert string 'a' to INT32 (line 1, character 11)"),
        ("select 1; select 2", "there are 2 statements: give only one"),
        ("copy runs to 'x'", "COPY is not run: only queries (SELECT and the like) are answered"),
        ("  ", "there is no SQL statement"),
        ("select " + "(" * 5000 + "1" + ")" * 5000, "Max expression depth"),
        ("select " + "1, " * 6000 + "1", "longer than 16,000 characters"),
    ],
)
def test_an_error_is_one_sentence_with_its_place(console: Console, query: str, sentence: str) -> None:
    with pytest.raises(QueryError) as raised:
        console.show(query, "me")
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "unsafe" not in str(raised.value)


# -- nothing outside ----------------------------------------------------------------------------------------------


def test_nothing_outside_the_store_is_read_or_written(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("word\nsesame\n")
    new_store(store.root.with_name("other"))
    queries = [query.format(o=tmp_path, s=store.root) for query in READING + OTHER]
    queries += [
        query.format(t=target.format(o=tmp_path, s=store.root)) for query, target in itertools.product(WRITING, TARGETS)
    ]
    before = sorted(path for folder in (tmp_path, store.root.parent) for path in folder.rglob("*"))
    for query in queries:
        with pytest.raises(QueryError) as raised:
            store.stream(query, lambda answer: answer.parts().read_all())
        assert "sesame" not in str(raised.value), query
        assert "--unsafe" not in str(raised.value), query
    assert sorted(path for folder in (tmp_path, store.root.parent) for path in folder.rglob("*")) == before


@pytest.mark.long
def test_a_query_spills_nothing_to_disk(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryError, match="more memory than it may use"):
        store.stream(
            "select i from range(100000000) t(i) order by hash(i)", lambda answer: answer.count() and [*answer.parts()]
        )
    assert list(tmp_path.iterdir()) == []


# -- no harm to others ----------------------------------------------------------------------------------------------

ENDLESS = [
    "select levenshtein(repeat('a', 1000000), repeat('b', 1000000))",  # DuckDB cannot interrupt it
    "with recursive t(x) as (select 1 union all select x + 1 from t) select count(*) from t",
    "select sum(a.i * b.i) from range(1000000) a(i), range(1000000) b(i)",
    "select lpad('', 2000000000, 'x')",
    "select jaro_similarity(repeat('ab', 1000000), repeat('ba', 1000000))",
    "select count(*) from range(1000000000) t(i) where regexp_matches(repeat('a', 1000) || i, '(a|aa)*(.?)+c$')",
]
GREEDY = [
    "select list_sort(range(300000000))",  # DuckDB's own limit of memory does not hold it
    "select string_split(repeat('a,', 500000000), ',')",
    "select list(i) from range(10000000000) t(i)",
    "select format('{:2000000000}', 1)",
    "select string_agg(repeat('x', 1000000), '') from range(10000000)",
    "select repeat('x', 10000000000)",
]


@pytest.mark.long
@pytest.mark.parametrize("query", ENDLESS)
def test_a_query_without_end_is_ended(hasty: Console, query: str) -> None:
    with pytest.raises(QueryError, match=r"was stopped after 3 s, its limit"):
        hasty.show(query, "me")


@pytest.mark.long
def test_the_rows_of_an_answer_without_end_are_shown(hasty: Console) -> None:
    hasty.show("select 1", "me")
    answer = _shown(hasty, "select i from range(1000000000000) t(i)")
    assert (len(answer.rows), answer.total) == (1000, None)


@pytest.mark.parametrize("query", sample(GREEDY, short=1))
def test_a_query_that_wants_too_much_memory_fails_and_the_next_one_does_not(console: Console, query: str) -> None:
    with pytest.raises(QueryError, match=r"memory|maximum supported string size"):
        console.show(query, "me")
    assert _cells(console, "select count(*) from runs") == ["2"]


@pytest.mark.long
def test_a_query_is_stopped_by_who_asked_and_by_their_next_one(console: Console) -> None:
    sentence: list[str] = []

    def ask() -> None:
        with pytest.raises(QueryError) as raised:
            console.show(ENDLESS[0], "me")
        sentence.append(str(raised.value))

    def asked() -> threading.Thread:
        thread = threading.Thread(target=ask)
        thread.start()
        while "me" not in console.running():
            time.sleep(0.01)
        return thread

    thread = asked()
    console.stop("somebody else")
    assert _cells(console, "select 1", "another") == ["1"]  # a second person need not wait
    console.stop("me")
    thread.join()
    thread = asked()
    assert _cells(console, "select 2") == ["2"]
    thread.join()
    assert sentence == ["the query was stopped"] * 2


@pytest.mark.long
def test_a_third_person_is_told_to_wait(console: Console) -> None:
    def ask(person: str) -> None:
        with pytest.raises(QueryError, match="the query was stopped"):
            console.show(ENDLESS[0], person)

    threads = [threading.Thread(target=ask, args=(person,)) for person in ("a", "b")]
    for thread in threads:
        thread.start()
    while len(console.running()) < 2:
        time.sleep(0.01)
    with pytest.raises(QueryError, match="2 other queries are running"):
        console.show("select 1", "c")
    for person in ("a", "b"):
        console.stop(person)
    for thread in threads:
        thread.join()
    assert _cells(console, "select 1", "c") == ["1"]


def test_a_store_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    console = Console(tmp_path / "none", QueryLimits())
    with pytest.raises(QueryError, match="is not a store"):
        console.show("select 1", "me")
    console.close()


# -- whole answers ------------------------------------------------------------------------------------------------


def test_a_whole_answer_is_a_csv_file_without_formulas(console: Console) -> None:
    query = (
        "select gpu as \"=name\", power_w, '-1.5' as number, '-1+1' as less, '@x' as at, chr(9) || '=1' as tab, "
        "interval 1 day as day, [1, null] as list, 9007199254740993 as big, '' as nothing from runs order by gpu"
    )
    head, first, second = csv.reader(_written(console, query, "csv").decode().splitlines())
    assert head[0] == "'=name"
    assert first == [
        "<b>GPU</b>", "300.5", "-1.5", "'-1+1", "'@x", "'\t=1", "P0M1DT0S", "[1, null]", "9007199254740993", ""
    ]  # fmt: skip
    assert second[:2] == ["'=1+1", ""]


def test_a_whole_answer_is_a_parquet_file_with_its_types(console: Console) -> None:
    query = (
        "select i as a, i * 2 as a, '2026-01-01'::timestamp_ns as at, [i] as list, interval 1 day as day, "
        "1.5::decimal(20, 2) as d, '=1' as text from range(12000) t(i)"
    )
    table = pq.read_table(pa.BufferReader(_written(console, query, "parquet")))
    assert table.column_names == ["a", "a:1", "at", "list", "day", "d", "text"]
    assert table.column("at").type == pa.timestamp("ns")
    assert table.column("a").to_pylist() == list(range(12_000))
    assert table.slice(0, 1).to_pylist()[0]["day"] == "P0M1DT0S"
    assert table.slice(0, 1).to_pylist()[0]["text"] == "=1"


@pytest.mark.long(short=1)
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_that_would_be_too_large_is_not_kept(
    console: Console, tmp_path: Path, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(QueryError, match=r"larger than 0\.5 MB"):
        _written(console, "select hash(i) as h, hash(i + 1) as g from range(1000000) t(i)", form)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_an_answer_without_rows_has_a_head(console: Console) -> None:
    assert _written(console, "select gpu, power_w from runs where false", "csv") == b'"gpu","power_w"\n'
    answer = _shown(console, "select gpu from runs where false")
    assert (answer.rows, answer.total) == ([], 0)


# -- an answer as a figure ---------------------------------------------------------------------------------------------


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
