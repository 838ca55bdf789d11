"""`whorl sql`: what it answers, what it refuses, and how it prints."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli, output
from whorl.cli.schema import _type
from whorl.errors import QueryError
from whorl.store import Store
from whorl.store.schema import TABLES
from whorl.store.views import VIEWS
from whorl.tests.cli import calling
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store


def whorl(store: Store, *words: str, stdin: bytes | None = None) -> Result:
    return calling.whorl("sql --store", store.root, *words, stdin=stdin)


def rows(store: Store, query: str) -> list[dict[str, Any]]:
    result = whorl(store, "--json", query)
    assert result.exit_code == 0, result.output

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(result.stdout, parse_constant=refuse)
    assert list(document) == ["schema", "rows"]
    return list(document["rows"])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    new = new_store(tmp_path_factory.mktemp("sql") / "store")
    new.append(
        {
            "runs": pa.table({"run_id": ["a", "b"], "gpu": ["GPU-1", "GPU-2"], "power_w": [300.5, None]}),
            "results": pa.table({"run_id": ["a", "b"], "figure": ["time"] * 2, "value": [1.0, 2.0]}),
        },
        "x",
    )
    return new


QUERIES: dict[str, list[dict[str, Any]]] = {
    "select gpu, power_w from runs order by gpu": [
        {"gpu": "GPU-1", "power_w": 300.5},
        {"gpu": "GPU-2", "power_w": None},
    ],
    "with a as (select 1 as x) from a union all select 2 order by 1": [{"x": 1}, {"x": 2}],
    "with recursive t(x) as (select 1 union all select x + 1 from t where x < 3) select sum(x) s from t": [{"s": 6}],
    "values (1)": [{"col0": 1}],
    "select count(*) n from (show tables)": [{"n": len(TABLES) + len(VIEWS)}],
    "/* why */ select 1 as x -- so": [{"x": 1}],
    "select 1 as a, 2 as a, 3 as b, 4 as a": [{"a": 1, "a:1": 2, "b": 3, "a:2": 4}],
    "pivot results on figure in ('time') using sum(value) group by run_id order by 1": [
        {"run_id": "a", "time": 1.0},
        {"run_id": "b", "time": 2.0},
    ],
    "select * from runs where false": [],
    "select sum(value) over (order by value) s from measurements": [{"s": 1.0}, {"s": 3.0}],
}


@pytest.mark.long(short=1)
@pytest.mark.parametrize("query", QUERIES)
def test_queries(store: Store, query: str) -> None:
    assert rows(store, query) == QUERIES[query]


VALUES = [
    ("null", None),
    ("'nan'::double", None),
    ("'-inf'::double", None),
    ("['inf'::float, null, 1.5]", [None, None, 1.5]),
    ("true", True),
    ("1.5::decimal(38, 10)", 1.5),
    ("12345678901234567890123456789012345678::decimal(38, 0)", 12345678901234567890123456789012345678),
    ("-(1::hugeint << 126)", -(2**126)),
    ("18446744073709551615::ubigint", 2**64 - 1),
    ("'2020-01-01 00:00:00.000000001'::timestamp_ns", "2020-01-01T00:00:00.000000001Z"),
    ("'2020-01-01 00:00:00.5'::timestamp_ns", "2020-01-01T00:00:00.5Z"),
    ("'2020-01-01'::timestamp_ns", "2020-01-01T00:00:00Z"),
    ("'2020-01-01'::timestamp_s", "2020-01-01T00:00:00Z"),
    ("'2020-01-01 12:00:00+02'::timestamptz", "2020-01-01T10:00:00Z"),
    ("'infinity'::timestamp", "infinity"),
    ("'-infinity'::timestamp_ns", "-infinity"),
    ("'infinity'::date", "infinity"),
    ("'2020-02-29'::date", "2020-02-29"),
    ("'-4000-01-01'::date", "-4000-01-01"),
    ("'12:00:00.000000001'::time_ns", "12:00:00.000000001"),
    ("interval 14 month + interval 3 day + interval 1500 millisecond", "P14M3DT1.5S"),
    ("-interval 1 second", "P0M0DT-1S"),
    ("['2020-01-01 00:00:00.000000001'::timestamp_ns]", ["2020-01-01T00:00:00.000000001Z"]),
    ("{'a': {'b': ['2020-01-01'::timestamp_ns, null]}}", {"a": {"b": ["2020-01-01T00:00:00Z", None]}}),
    ("map {'k': [1, 2]}", {"k": [1, 2]}),
    ("map {1: interval 1 day}", {"1": "P0M1DT0S"}),
    ("[[1], null, []]", [[1], None, []]),
    ("array_value(1, 2)", [1, 2]),
    ("union_value(k := '2020-01-01'::timestamp_ns)", "2020-01-01T00:00:00Z"),
    ("'\\xDE\\xAD'::blob", "dead"),
    ("'x'::enum('x')", "x"),
    ("'{\"a\": 1}'::json", '{"a": 1}'),
    ("'€\"\\' || chr(10) || chr(0)", '€"\\\n\0'),
]


EVERY_VALUE = "select " + ", ".join(f"{expression} as c{i}" for i, (expression, _) in enumerate(VALUES))


def test_every_kind_of_value_is_json_and_stands_in_a_table_and_in_csv(store: Store) -> None:
    (row,) = rows(store, EVERY_VALUE)
    assert row == {f"c{i}": value for i, (_, value) in enumerate(VALUES)}
    assert whorl(store, EVERY_VALUE).exit_code == 0
    header, cells = csv.reader(io.StringIO(whorl(store, "--csv", EVERY_VALUE).stdout))
    assert header == list(row)
    assert (cells[0], cells[3]) == ("", "[null, null, 1.5]")
    assert "dead" in cells


def test_a_plain_answer_is_printed_as_one_of_arrow_is(store: Store) -> None:
    values = "-7::tinyint a, 7::uhugeint b, sum(2)::hugeint c, 1.1::float d, 2.5e300::double e, 'x' f, true g, null h"
    query = f"select {values}, 'nan'::double i, 3::ubigint a from runs"
    with_list = query.replace(" from", ", [1] z from")
    assert [row | {"z": [1]} for row in rows(store, query)] == rows(store, with_list)
    plain, arrow = (whorl(store, "--csv", text).output.splitlines() for text in (query, with_list))
    assert plain == [line.rpartition(",")[0] for line in arrow]
    plain, arrow = (whorl(store, text).output.splitlines() for text in (query, with_list))
    assert [line.split() for line in plain] == [line.split()[: -1 if i < 2 else None] for i, line in enumerate(arrow)]


def test_a_plain_answer_needs_no_large_package_also_of_a_compacted_store(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    for number in range(3):
        store.append({"runs": pa.table({"run_id": [str(number)], "power_w": [300.5]})}, f"x{number}")
    store.compact(offline=True, now=2**62)
    assert [*(store.root / "replaced").glob("0*")], "there is a note to read"
    code = "import sys; from whorl.cli import cli; cli(standalone_mode=False); print(*sys.modules)"
    query = "select count(*), max(power_w) from runs"
    command = [sys.executable, "-c", code, "sql", "--store", str(store.root), query]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout
    assert "300.5" in output
    loaded = set(output.splitlines()[-1].split())
    assert "duckdb" in loaded
    assert not loaded & {"pyarrow", "numpy", "polars", "rich"}


def test_what_reads_or_writes_elsewhere_is_refused(store: Store, tmp_path: Path) -> None:
    """tests/dashboards/test_console.py tries every way."""
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nsesame\n")
    for query in (f"from '{secret}'", f"copy runs to '{tmp_path}/made.csv'", "drop view runs"):
        result = whorl(store, "--json", query)
        assert (result.exit_code, result.stdout) == (4, ""), query
        assert result.stderr.startswith("whorl: ")
    assert list(tmp_path.iterdir()) == [secret]


def test_unsafe_lifts_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("word\nsesame\n")
    query = f"select word, n from '{tmp_path}/secret.csv', (select count(*) n from runs)"
    assert json.loads(whorl(store, "--unsafe", "--json", query).stdout)["rows"] == [{"word": "sesame", "n": 2}]
    table_file = tmp_path / "made.csv"
    assert whorl(store, "--unsafe", f"set threads = 1; copy runs to '{table_file}'").exit_code == 0
    assert table_file.read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "there is no SQL statement"), (" ; -- nothing", "there is no SQL statement"),
        ("selec 1", "syntax error"), ("select nothing from runs", "nothing"), ("from rns", "there is runs"),
        ("from nowhere", "there is no table nowhere"), ("select ?", "parameters"),
        ("select 'a'::int", "Could not convert"), ("select 1 \0", "there is no SQL statement"),
        ("pivot results on figure using sum(value)", "PIVOT needs its values listed"),
        ("select " + "(" * 5000 + "1" + ")" * 5000, ""), ("select " + "1+" * 3000 + "1", ""),
    ],
)  # fmt: skip
def test_a_wrong_query_is_a_sentence(store: Store, query: str, words: str) -> None:
    result = whorl(store, query)
    assert result.exit_code == 4
    assert result.stderr.startswith("whorl: ")
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_the_message_about_a_wrong_query_says_where_and_steers_no_terminal(store: Store) -> None:
    message = whorl(store, 'select 1,\n  "nope\x1b[2J\x9b" from runs').stderr
    assert "(line 2, character 3)" in message
    assert "\\x1b[2J\\x9b" in message


def test_standard_input_and_text_that_is_not_utf8(store: Store) -> None:
    assert json.loads(whorl(store, "--json", "-", stdin="select 'ü' as x\n".encode()).stdout)["rows"] == [{"x": "ü"}]
    with pytest.raises(QueryError, match="not UTF-8"):
        store.sql("select '\udcff'")
    assert whorl(store, "-", stdin=b"select '\xff'").exit_code == 4


def test_no_escape_codes_and_no_cut_text_where_the_output_is_no_terminal(store: Store) -> None:
    long = "x" * 5000
    command = [sys.executable, "-m", "whorl", "sql", "--store", str(store.root), f"select '{long}' as a, 1 as b"]
    for variables in sample([{"FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}, {"NO_COLOR": "1"}, {}], short=1):
        environment = {**os.environ, "COLUMNS": "40", **variables}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert "\x1b" not in done.stdout
        assert [line.split() for line in done.stdout.splitlines()] == [["a", "b"], [long, "1"]]
        assert done.stderr == "(1 row)\n"


# -- schema ------------------------------------------------------------------------------------------------------------
# `whorl schema`: every table and column is explained, in every form.


def printed_schema(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["schema", *arguments])


def test_text_names_every_column_with_unit_and_meaning() -> None:
    lines = printed_schema().stdout.splitlines()
    for spec in TABLES:
        assert f"{spec.name}: one row is {spec.row}" in lines
        for column in spec.columns:
            begins = [column.name, *_type(column).split()][:2]
            assert any(line.split()[:2] == begins and line.endswith(column.description) for line in lines), column.name


@pytest.mark.long(short=1)
@pytest.mark.parametrize("columns", [80, 120, None])
def test_it_fits_a_terminal_and_a_pipe_has_whole_lines(columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of codes break their sentences as well; the SQL of a view is shown to those who ask for the view."""
    monkeypatch.setattr(output, "width", lambda: columns)
    lines = printed_schema().stdout.splitlines()
    assert not [line for line in lines if columns is not None and len(line) > columns]
    assert not [line for line in lines if line.startswith("row 1")], "no table is printed row by row"
    for view in sample(VIEWS, short=3):
        assert any(line.startswith(f"{view.name} (view): one row is ") for line in lines)
        assert view.sql not in lines
        view_text = printed_schema(view.name).stdout
        assert " ".join(view.sql.split()) in " ".join(view_text.split())


def test_every_column_of_a_view_is_explained() -> None:
    document = json.loads(printed_schema("--json", "runs", *(view.name for view in VIEWS)).stdout)
    for view in document["views"]:
        assert all(column["description"] for column in view["columns"]), view["name"]
    page = printed_schema("--markdown").stdout
    assert "- `total_j` (J): energy of all of them" in page
    assert "It has all columns of `telemetry`." in page.partition("## telemetry_of_job (view)")[2]
    assert "SELECT" not in page
    assert "- `energy_mj` (mJ): " in page.partition("\nCounters; ")[2].partition("## campaigns")[0]


def test_telemetry_says_how_each_metric_is_read() -> None:
    printed = printed_schema("telemetry").stdout.partition("How each metric is read:")[2]
    row = next(line for line in printed.splitlines() if line.startswith("energy_mj "))
    assert row.split() == [
        *("energy_mj", "counter", "fast", "field", "83", "156", "DEV_TOTAL_ENERGY_CONSUMPTION"),
        "total_energy_consumption",
    ]


def test_an_unknown_table_is_a_sentence() -> None:
    result = printed_schema("nothing")
    assert result.exit_code == 2
    assert "there is no table 'nothing'; there are gpus, telemetry, campaigns, runs" in result.stderr
