"""A query that is asked again reads less, and its answer is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from whorl.analysis.telemetry.extent import extent, last_hour
from whorl.analysis.telemetry.happened import happened
from whorl.analysis.telemetry.readings import read
from whorl.errors import QueryError
from whorl.store import Store
from whorl.store.readers import query
from whorl.store.readers.asked import pieces_of
from whorl.store.readers.reading import Rows, holding
from whorl.store.schema import arrow_schema
from whorl.tests.stores import new_store

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-ä", "x' or 'y", None)


def rows(gpus: tuple[str | None, ...], power: int, **columns: Any) -> pa.Table:
    n = len(gpus)
    given = {"ts": list(range(n)), "cluster": ["c"] * n, "gpu": list(gpus), "power_mw": [power] * n, **columns}
    given["ts"] = [second * 10**9 for second in given["ts"]]
    schema = arrow_schema("telemetry")
    return pa.table({name: pa.array(values, schema.field(name).type) for name, values in given.items()})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Files with different columns and GPUs, late rows, and rows in a journal."""
    made = new_store(tmp_path_factory.mktemp("asked") / "s")
    made.append({"telemetry": rows(GPUS[:2], 1)}, "one")
    made.append({"telemetry": rows(GPUS[2:], 2, temperature_c=[30] * 4)}, "two")
    made.append({"telemetry": rows(GPUS[1:2], 3, ts=[1])}, "late")
    made.append({"runs": pa.table({"run_id": ["r"], "cluster": ["c"], "gpu": ["GPU-a"], "status": ["ok"]})}, "runs")
    with made.journal("node", background=False, offline=True) as journal:
        journal.append_batch(rows(("GPU-a", "GPU-z"), 4, ts=[7, 8]).to_batches()[0])
        yield made


SAME = {
    "one gpu": "select power_mw, ts from telemetry where gpu = 'GPU-b'",
    "turned": "select power_mw p from telemetry t where 'GPU-c' = t.gpu and ts >= '1970-01-01'",
    "several": "select gpu, power_mw from telemetry where gpu in ('GPU-a', 'GPU-ä', 'none')",
    "either": "select gpu, power_mw from telemetry where gpu = 'GPU-a' or power_mw = 2",
    "not": "select gpu from telemetry where gpu <> 'GPU-a'",
    "of no file": "select count(*) from telemetry where gpu = 'none'",
    "quote": "select power_mw from telemetry where gpu = 'x'' or ''y'",
    "dollars": "select power_mw from telemetry where gpu = $$GPU-a$$",
    "comment": "select power_mw /* from telemetry */ from telemetry -- 'GPU-a\n where gpu = 'GPU-b'",
    "spaces": "\n  select power_mw\nfrom telemetry\nwhere gpu = 'GPU-b';\n",
    "count": "select count(*) from telemetry",
    "absent column": "select temperature_c, sm_clock_mhz from telemetry",
    "star": "select * from telemetry where gpu = 'GPU-a'",
    "short": "from telemetry where gpu = 'GPU-b'",
    "columns": "select max(columns('power.*')) from telemetry",
    "whole row": "select t from telemetry t where gpu = 'GPU-b'",
    "whole row by the table": "select telemetry from telemetry where gpu = 'GPU-b'",
    "names for columns": "select b from telemetry t(a, b)",
    "quoted": 'select "gpu" from "telemetry"',
    "qualified": "select telemetry.gpu, main.telemetry.power_mw from main.telemetry where main.telemetry.gpu = 'GPU-a'",
    "capitals": "select GPU, Power_mw from Telemetry where Gpu = 'GPU-b'",
    "alias": "select power_mw as temperature_c from telemetry where temperature_c is null",
    "outer": "select (select max(power_mw) from telemetry t where t.gpu = r.gpu) from runs r",
    "outer only": "select run_id, (select count(*) from telemetry where gpu = 'GPU-a' and run_id = 'r') from runs",
    "natural": "select power_mw from telemetry natural join runs",
    "using": "select status, power_mw from runs join telemetry using (cluster, gpu)",
    "both": "select t.power_mw from telemetry t, telemetry u where t.gpu = u.gpu and u.gpu = 'GPU-b'",
    "common table": "with telemetry as (select 9 as gpu) select gpu from telemetry",
    "common tables": "with t as (select gpu g, ts from telemetry where gpu = 'GPU-a') select max(ts) from t group by g",
    "union": "select gpu from telemetry where gpu = 'GPU-a' union all select gpu from runs where gpu = 'GPU-b'",
    "pivot": "pivot telemetry on gpu in ('GPU-a', 'GPU-b') using sum(power_mw) group by cluster",
    "describe": "select column_name from (describe telemetry)",
    "sample": "select count(*) from telemetry tablesample 100% where gpu = 'GPU-a'",
    "lambda": "select list_transform([1], lambda gpu: gpu + 1) l from telemetry where gpu = 'GPU-a'",
    "view": "select count(*) from history where gpu = 'GPU-a'",
    "explain": "explain select gpu from telemetry where gpu = 'GPU-a'",
    "text": "select 'telemetry' as a, 'from telemetry' as b, gpu from telemetry where gpu = 'GPU-a'",
    "ä": "select gpu as größe, power_mw from telemetry where gpu = 'GPU-ä'",
}


@pytest.mark.long
@pytest.mark.parametrize("asked", SAME.values(), ids=SAME)
def test_a_query_that_reads_less_has_the_same_answer(store: Store, asked: str) -> None:
    first = store.sql(asked, unsafe=True).table  # reads all files
    for _ in range(3):
        again = store.sql(asked).table
        assert again.schema == first.schema
        assert sorted(map(repr, again.to_pylist())) == sorted(map(repr, first.to_pylist()))


def test_a_query_for_another_gpu_has_its_own_answer(store: Store) -> None:
    for _ in range(2):
        for gpu in ("GPU-a", "GPU-b", "GPU-c", "GPU-ä", "GPU-z", "none"):
            told = store.sql(f"select gpu, power_mw from telemetry where gpu = '{gpu}'").to_pylist()
            powers = {"GPU-a": [1, 4], "GPU-b": [3], "GPU-c": [2], "GPU-ä": [2], "GPU-z": [4], "none": []}[gpu]
            assert sorted(row["power_mw"] for row in told) == powers
            assert {row["gpu"] for row in told} <= {gpu}


def test_queries_for_another_gpu_and_time_are_known_again(store: Store) -> None:
    def asked(gpu: str, at_s: int) -> None:
        keys = [("c", gpu)]
        assert [one.key for one in read(store, keys, ("power_mw",), 0, at_s * 10**9)] == keys
        happened(store, keys, 0, at_s * 10**9, apart=True)
        extent(store, keys)
        last_hour(store, keys, 0, at_s * 10**9)

    asked("GPU-a", 9)
    known = len(query._PASSED)
    asked("GPU-b", 8)
    assert len(query._PASSED) == known, "a number in them would make each another query, which reads every file"


def test_new_rows_are_in_the_next_answer(tmp_path: Path) -> None:
    made = new_store(tmp_path / "s")
    for number in range(4):
        made.append({"telemetry": rows(("GPU-a",), number, ts=[number])}, f"n{number}")
        for _ in range(2):
            told = made.sql("select count(*) n, max(power_mw) p from telemetry where gpu = 'GPU-a'").to_pylist()
            assert told == [{"n": number + 1, "p": number}]


def test_files_that_cannot_hold_a_gpu_are_left_out(store: Store) -> None:
    paths = [path for path in store.files("telemetry") if path.stem in ("one", "two")]
    one, two = sorted(paths, key=lambda path: path.stem)
    assert holding(Rows([one], [two]), ["GPU-b"]) == (0,)
    assert holding(Rows([one], [two]), ["GPU-b", "GPU-c"]) == (0, 1)
    assert holding(Rows([one], [two]), ["A"]) == ()


@pytest.mark.parametrize("gpu", ["GPU-a", "GPU-b", "GPU-ä", "none"])
def test_a_scan_for_some_gpus_has_all_their_rows(store: Store, gpu: str) -> None:
    mine = pl.col("gpu") == gpu
    whole, part = (
        store.collect(scan.filter(mine)) for scan in (store.scan("telemetry"), store.scan("telemetry", [gpu]))
    )
    assert part.sort("ts").equals(whole.sort("ts"))
    assert store.collect(store.scan("telemetry", ["A"])).height < store.collect(store.scan("telemetry")).height


def test_a_file_that_does_not_say_its_gpus_is_read(store: Store, tmp_path: Path) -> None:
    (path,) = (path for path in store.files("telemetry") if path.stem == "one")
    content = path.read_bytes()
    unsigned = tmp_path / "unsigned.parquet"
    unsigned.write_bytes(content.replace(b"whorl.check", b"whorl.chack"))
    assert holding(Rows([unsigned, path]), ["A"]) == (0,)


def test_the_error_of_a_query_shows_what_was_asked(store: Store) -> None:
    wrong = "select gpu, error(gpu) from telemetry where gpu = '{}'"
    store.sql(wrong.format("none"))
    for _ in range(2):
        with pytest.raises(QueryError, match=r"GPU-a") as caught:
            store.sql(wrong.format("GPU-a"))
        assert "view_" not in str(caught.value)


def test_texts_are_told_from_the_rest_of_a_query_only_where_that_is_certain() -> None:
    assert pieces_of(b"select 'a' from t where b in ('', 'c')")[1] == [b"'a'", b"''", b"'c'"]
    for odd in (
        b"select 'it''s'",
        b"select E'\\'' || 'a'",
        b"select x'00'",
        b"select U&'a'",
        b"select $$'a'$$",
        b"select 1 -- 'a'",
        b"select /* ' */ 'a'",
        b"""select "a'b", 'a'""",
    ):
        assert pieces_of(odd) == ((odd,), [])


@pytest.mark.parametrize(
    "pair",
    [
        ("select 'a' x, 'b' y", "select 'a' x; drop view runs; select 'b' y"),
        ("select 'a' x", "copy (select 'a' x) to 'b'"),
        ("from read_text('a')", "from query('from runs')"),
        ("select e'a', 'b'", "select e'\\', ' || (copy runs to 'b') --'"),
    ],
)
def test_what_is_refused_stays_refused_after_a_query_like_it(store: Store, pair: tuple[str, str]) -> None:
    for asked in (*pair, *pair):
        if asked == pair[1] or "read_text" in asked:
            with pytest.raises(QueryError):
                store.sql(asked)
        else:
            store.sql(asked)


@pytest.mark.long
def test_many_queries_are_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_MOST", 3)
    names = ("power_mw", "ts", "cluster", "temperature_c", "quality")
    for _ in range(3):
        for name in names:
            asked = f"select count({name}) n from telemetry t where gpu = 'GPU-a'"
            assert store.sql(asked).to_pylist()[0]["n"] == (0 if name in names[3:] else 2)
    kept = store._kept
    assert kept is not None
    assert len(kept._sources) <= 4
    assert len(query._PASSED) <= 3
