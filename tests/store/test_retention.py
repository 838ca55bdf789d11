"""What becomes of old telemetry, and what `whorl store status` says."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from whorl.cli import cli, output
from whorl.errors import InputError, StoreError
from whorl.store import Store, retention
from whorl.store.schema import MINUTES, TELEMETRY
from whorl.store.status import status
from whorl.tests.store.journaler import (
    BEGAN,
    DAY_S,
    LATER,
    S,
    batch,
    leave_journal,
    open_journal,
    powers,
    readings,
    seen,
)


def whorl(*arguments: str | Path) -> tuple[int, str]:
    answer = CliRunner().invoke(cli, ["store", *map(str, arguments)])
    return answer.exit_code, answer.output


def test_a_minute_keeps_what_its_kind_of_column_needs(store: Store) -> None:
    store.append(
        {
            "telemetry": readings(
                [0, 20, 40, 60], power_mw=[100, None, 400, 7], energy_mj=[None, 5, 9, 1],
                clock_event_reasons=[1, 4, None, None], quality=[None, "power_stuck", None, None],
            )
        },
        "x",
    )  # fmt: skip
    store.prune("1m", offline=True, now=LATER)
    first, second = store.sql("select * exclude ts, epoch_ns(ts) t from telemetry_minutes order by ts").to_pylist()
    assert (first["t"], first["n"], second["t"], second["n"]) == (BEGAN, 3, BEGAN + 60 * S, 1)
    assert (first["power_mw_min"], first["power_mw_mean"], first["power_mw_max"]) == (100, 250, 400)
    assert (first["energy_mj_first"], first["energy_mj_last"]) == (5, 9)
    assert (first["clock_event_reasons"], first["quality"]) == (5, "power_stuck")
    assert (second["clock_event_reasons"], second["quality"]) == (None, None)
    assert (first["sm_clock_mhz_min"], first["sm_clock_mhz_mean"], first["pcie_tx_bytes_last"]) == (None, None, None)
    made = {name for column in TELEMETRY.columns for name in MINUTES.names if name.startswith(column.name)}
    assert made == set(MINUTES.names) - {"n"}, "every column of telemetry is in a minute"


@pytest.mark.long
def test_rows_that_are_hardly_more_than_one_a_minute_stay(store: Store) -> None:
    for gpu in ("a", "b"):
        store.append({"telemetry": readings(range(0, 6_000, 60), gpu)}, gpu)
    store.append({"telemetry": readings([DAY_S])}, "c")
    code, text = whorl("prune", "--store", store.root, "--keep", "90d")
    assert (code, "201 rows stay: they are hardly more than one a minute" in text) == (0, True), text
    assert len(powers(store)) == 201
    store.append({"telemetry": readings(range(30, 6_000, 60))}, "more")
    done = store.prune("90d", offline=True, now=LATER + 90 * DAY_S * S)
    assert (done.rows, done.minutes, done.sparse) == (300, 200, 1)


def test_whole_days_go_and_late_rows_of_them_make_minutes_of_their_own(store: Store) -> None:
    store.append({"telemetry": readings([0, 10], power_mw=[1, 2])}, "x")
    store.append({"telemetry": readings([20, 3 * DAY_S], power_mw=[6, 7])}, "y")
    now = BEGAN + 4 * DAY_S * S
    done = store.prune("2d", offline=True, now=now)
    assert (done.rows, done.minutes) == (3, 1)
    assert store.sql("select n, power_mw_mean m from telemetry_minutes").to_pylist() == [{"n": 3, "m": 3.0}]
    assert seen(store, plain=True) == {("a", 3 * DAY_S): 7}
    store.append({"telemetry": readings([30], power_mw=[9])}, "z")
    assert store.sql("select sum(n) n from history").to_pylist() == [{"n": 5}]
    store.append({"telemetry": readings([40], power_mw=[9])}, "w")
    store.prune("2d", offline=True, now=now)
    assert store.sql("select n from telemetry_minutes order by n").to_pylist() == [{"n": 2}, {"n": 3}]
    store.compact(offline=True, now=LATER)
    assert store.sql("select n from telemetry_minutes order by n").to_pylist() == [{"n": 2}, {"n": 3}]
    assert store.sql("select power_mw from latest").to_pylist() == [{"power_mw": 7}]


def test_a_host_whose_clock_is_years_ahead_prunes_by_the_clock_of_the_file_server(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    store.append({"telemetry": readings([(now - BEGAN) // S - n for n in range(3)])}, "x")
    monkeypatch.setattr(time, "time_ns", lambda: now + 10 * 366 * DAY_S * S)
    assert store.prune("90d", offline=True).rows == 0
    assert len(powers(store)) == 3


def test_the_time_to_keep_is_in_store_toml_or_given(store: Store) -> None:
    code, text = whorl("prune", "--store", store.root)
    assert (code, "--keep 90d" in text) == (2, True)
    about = store.root / "store.toml"
    about.write_text(about.read_text() + 'keep = "30d"\n')
    assert whorl("prune", "--store", store.root)[0] == 0
    (store.root / "whorl.duckdb").unlink()
    Store.open(store.root)  # which writes store.toml anew
    assert retention.configured(store.root) == "30d"
    assert "full rate for 30d" in whorl("status", "--store", store.root)[1]
    for wrong in ("90", "0d", "d", "-1d", "1y"):
        with pytest.raises(InputError, match="is not a time to keep"):
            store.prune(wrong)
    about.write_text(about.read_text().replace('"30d"', "30"))
    with pytest.raises(StoreError, match="states keep = 30"):
        store.prune()


def test_a_day_of_an_open_journal_waits_and_it_is_said(store: Store) -> None:
    store.append({"telemetry": readings(range(10))}, "x")
    with open_journal(store) as journal:
        journal.append_batch(batch(["a"], 3, 30))
        code, text = whorl("prune", "--store", store.root, "--keep", "1d", "--offline")
        assert (code, "left: 1 day that another process" in text) == (0, True), text
        assert len(seen(store)) == 10


def test_the_status_tells_rows_files_writers_and_fits_a_terminal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "width", lambda: 80)
    assert "telemetry   none at full rate; 0 minutes of older telemetry" in whorl("status", "--store", store.root)[1]
    store.append({"telemetry": readings([0, 1, 2])}, "x")
    store.append({"telemetry": readings([1])}, "again")
    leave_journal(store, batch(["b"], 70, 1), name="dead")
    with open_journal(store, "node7") as journal:
        journal.append_batch(batch(["b"], 3, 1))
        code, text = whorl("status", "--store", store.root, "--json")
        found = json.loads(text)
        assert (code, found["schema"]) == (0, "whorl.store.status/1")
        tables = {one["table"]: one for one in found["tables"]}
        assert (tables["telemetry"]["rows"], tables["telemetry"]["files"], tables["telemetry"]["in_journals"]) == (
            5,
            1,
            2,
        )
        writers = {one["writer"]: (one["pid"], one["alive"], one["rows"]) for one in found["journals"]}
        assert writers == {"dead": (os.getpid(), False, 1), "node7": (os.getpid(), True, 1)}
        assert (found["late_rows"], found["oldest"], found["newest"]) == (1, BEGAN, BEGAN + 70 * S)
        copy = Store.open(shutil.copytree(store.root, store.root.with_name("copy")))
        assert [one.alive for one in status(copy).journals] == [False, False], "nobody writes in a copy"
        lines = whorl("status", "--store", store.root)[1].splitlines()
    assert any(line.startswith("  telemetry   2023-11-15 00:00:00 to 2023-11-15 00:01:10 (UTC) ") for line in lines)
    assert any(line.startswith("  durability  every append is made durable") for line in lines)
    assert not [line for line in lines if len(line) > 80]
    far = readings([0]).set_column(0, "ts", pa.array([253_402_300_799_000_000], pa.timestamp("us")))
    store.append({"telemetry": far}, "far")
    assert "9999-12-31 23:59:59" in whorl("status", "--store", store.root)[1], "a time that ns cannot hold"
