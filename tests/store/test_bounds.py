"""What a query asks of telemetry: which times and GPUs can matter to it, so that few files are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from whorl.store import Store, sql
from whorl.store.file_names import EVER, gpu_hashes
from whorl.store.schema import TABLES, TELEMETRY, arrow_schema
from whorl.store.snapshot import Rows
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-ä", "x' or 'y", None)
DAY_S = 86_400


def rows(gpus: tuple[str | None, ...], power: int, at_s: int, **columns: Any) -> pa.Table:
    """A row of each GPU, a second after another from `at_s` on."""
    n = len(gpus)
    ts = [second * 10**6 for second in range(at_s, at_s + n)]
    columns = {"ts": ts, "cluster": ["c"] * n, "gpu": list(gpus), "power_mw": [power] * n, **columns}
    schema = arrow_schema(TELEMETRY.name)
    return pa.table({name: pa.array(values, schema.field(name).type) for name, values in columns.items()})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Files of three days, late rows, and rows in a journal; runs and jobs that fit them."""
    made = new_store(tmp_path_factory.mktemp("bounds") / "s")
    for day in range(3):
        made.append({"telemetry": rows(GPUS[:2], 10 * day + 1, day * DAY_S)}, f"one-{day}")
        made.append({"telemetry": rows(GPUS[2:], 10 * day + 2, day * DAY_S, temperature_c=[30] * 4)}, f"two-{day}")
    made.append({"telemetry": rows(GPUS[1:2], 3, 1)}, "late")
    times = {name: pa.array([at_s * 10**6], pa.timestamp("us")) for name, at_s in (("began", 1), ("ended", 2 * DAY_S))}
    run = {"run_id": ["r"], "cluster": ["c"], "gpu": ["GPU-a"], "status": ["ok"], **times}
    made.append({"runs": pa.table(run)}, "runs")
    with made.journal("node", background=False, offline=True) as journal:
        columns = {"cluster": "c", "power_mw": [4, 5]}
        journal.append((2 * DAY_S + 7) * 10**9, ["GPU-a", "GPU-z"], columns)
        yield made


@pytest.fixture(scope="module")
def everything(store: Store) -> Iterator[sql.Connection]:
    """A connection that reads every file, whatever a query asks."""
    connection = sql.Connection(store.root)
    connection.furnish(store.rows([spec.name for spec in TABLES]))
    yield connection
    connection.close()


SAME = {
    "one gpu": "select power_mw, ts from telemetry where gpu = 'GPU-b'",
    "a day": "select count(*) from telemetry where ts >= '1970-01-02' and ts < '1970-01-03'",
    "between": "select gpu from telemetry where ts between '1970-01-01T00:00:01Z' and timestamp '1970-01-02 00:00:00'",
    "one instant": "select gpu from telemetry where ts = '1970-01-02 00:00:01'",
    "several": "select gpu, power_mw from telemetry where gpu in ('GPU-a', 'GPU-ä', 'none')",
    "not": "select gpu from telemetry where not (gpu = 'GPU-a' and ts > '1970-01-02')",
    "whole row": "select t from telemetry t where gpu = 'GPU-b'",
    "names for columns": "select b from telemetry t(gpu, b, ts) where gpu > '1970-01-02' and ts = 'GPU-a'",
    "qualified": "select main.telemetry.power_mw from main.telemetry where main.telemetry.gpu = 'GPU-a'",
    "outer": "select run_id, (select max(ts) from telemetry t where t.gpu = r.gpu and ts > '1970-01-02') from runs r",
    "inner join": "select power_mw from runs r join telemetry t on t.gpu = r.gpu and t.ts >= '1970-01-02'",
    "left join": "select r.gpu, t.ts from runs r left join telemetry t on t.gpu = r.gpu and t.ts >= '1970-01-02'",
    "after a left join": "select r.gpu from runs r left join telemetry t on t.gpu = r.gpu where t.ts >= '1970-01-09'",
    "full join": "select t.ts, r.gpu from telemetry t full join runs r on t.gpu = r.gpu and t.ts >= '1970-01-02'",
    "asof": "select power_mw from runs r asof join telemetry t on t.gpu = r.gpu and t.ts <= r.ended "
    "where t.ts < '1970-01-02 12:00'",
    "anti": "select gpu from runs r anti join telemetry t on t.gpu = r.gpu and t.ts > '1970-01-09'",
    "semi": "select gpu from telemetry t semi join runs r on t.gpu = r.gpu where t.ts > '1970-01-02'",
    "shadowed": "select (select count(*) from telemetry where t.ts < '1970-01-02') from telemetry t",
    "common table": "with telemetry as (select 9 as gpu, 8 as ts) select gpu from telemetry where ts = 8",
    "pivot": "pivot telemetry on gpu in ('GPU-a', 'GPU-b') using sum(power_mw) group by cluster",
    "sample of the query": "select count(*) from telemetry where ts > '1970-01-03' using sample 1000 rows",
    "history": "select count(*) from history where gpu = 'GPU-a' and ts < '1970-01-02'",
}


@pytest.mark.long(short=2)
@pytest.mark.parametrize("name", sample(SAME, short=12))
def test_a_query_that_reads_few_files_has_the_same_answer(store: Store, everything: sql.Connection, name: str) -> None:
    expected = everything.run(everything.parse(SAME[name]))
    assert isinstance(expected, pa.Table)
    answer = store.sql(SAME[name]).table
    assert answer.schema == expected.schema
    assert sorted(map(repr, answer.to_pylist())) == sorted(map(repr, expected.to_pylist()))


HOUR = 3600 * 10**9
KNOWN = [
    ("telemetry where ts >= '1970-01-01 01:00' and ts < '1970-01-01 02:00:00.5Z'", HOUR, 2 * HOUR + 10**9 // 2, None),
    ("telemetry t where t.ts between timestamp '1970-01-01 01:00' and date '1970-01-02'", HOUR, 24 * HOUR, None),
    ("telemetry where timestamp_ns '1970-01-01 01:00:00.000000001' < ts", HOUR + 1, None, None),
    ("telemetry where gpu = 'a' and (gpu in ('a', 'b') and ts = '1970-01-01T01:00:00')", HOUR, HOUR, {"a"}),
    ("history where ts >= '1970-01-01 01:00'", HOUR, None, None),
    ("telemetry where ts > '1970-01-01 01:00' union all from history where ts > '1970-01-02'", HOUR, None, None),
    ("telemetry where ts >= '1970-01-01 01:00:00.12345'", HOUR + 123_450_000, None, None),
    ("telemetry where gpu = 'a' union all select * from telemetry where gpu = 'b'", None, None, {"a", "b"}),
    ("runs r left join telemetry t on t.gpu = 'a' and r.gpu = t.gpu", None, None, {"a"}),
    ("runs where gpu = 'a'", None, None, None),
]
UNKNOWN = [
    "telemetry where ts > '1970-01-01 01:00' or gpu = 'a'",
    "telemetry where ts + interval 1 day > '1970-01-02'",
    "telemetry where ts > now() - interval 1 day",
    "telemetry where ts > '1970-01-01 01:00+02'",
    "telemetry where ts > timestamp_s '1970-01-01 01:00'",
    "telemetry, runs where ts > '1970-01-01 01:00'",
    "telemetry where gpu in ('a', null)",
    "telemetry where ts > '1970-02-30'",
    "(select * from telemetry) telemetry where ts > '1970-01-01 01:00'",
    "telemetry t left join runs r on t.ts > '1970-01-01 01:00'",
    "runs r asof join telemetry t on r.gpu = t.gpu and t.ts <= r.began where t.ts < '1970-01-02'",
    "telemetry where gpu = 'a' union all from telemetry",
    "telemetry tablesample 5 rows where ts > '1970-01-02'",
]


def test_bounds_are_those_of_every_row_that_matters(tmp_path: Path) -> None:
    connection = sql.Connection(tmp_path)
    for source, since, until, gpus in KNOWN:
        parsed = connection.parse(f"from {source}")
        assert parsed.near.first_us == (EVER.first_us if since is None else since // 1000 - 1), source
        assert parsed.near.last_us == (EVER.last_us if until is None else -(-until // 1000) + 1), source
        assert parsed.near.gpus == (None if gpus is None else gpu_hashes(gpus)), source
    for source in UNKNOWN:
        parsed = connection.parse(f"from {source}")
        assert parsed.near == EVER, source
    connection.close()


def test_a_query_of_a_day_reads_the_files_of_that_day(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    furnish = sql.Connection.furnish

    def spied(self: sql.Connection, tables: Mapping[str, Rows]) -> None:
        read.extend(path for rows in tables.values() for path in rows.files)
        furnish(self, tables)

    monkeypatch.setattr(sql.Connection, "furnish", spied)
    query = "select power_mw from telemetry where gpu = 'GPU-b' and ts between '1970-01-02' and '1970-01-02 12:00'"
    assert store.sql(query).to_pylist() == [{"power_mw": 11}]
    assert {path.parent.name for path in read} == {"day=1970-01-02"}
    assert {path.name.partition(".")[0] for path in read} == {"one-1"}


def test_a_file_that_gives_way_while_a_query_begins_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = new_store(tmp_path / "s")
    for name in ("x", "y"):
        made.append({"runs": pa.table({"run_id": [name]})}, name)
    run = sql.Connection.run

    def late(self: sql.Connection, query: sql.Query, *, plain: bool = False) -> sql.Answer:
        for path in (made.root / "runs").glob("[xy].*"):
            path.rename(path.with_name(path.name.replace(".", "-joined.", 1)))
        return run(self, query, plain=plain)

    monkeypatch.setattr(sql.Connection, "run", late)
    assert made.sql("select run_id from runs order by 1")["run_id"].to_pylist() == ["x", "y"]
    assert made.skipped == {}
