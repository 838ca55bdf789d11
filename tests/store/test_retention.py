"""Hot and cold, compaction and `whorl store`: what becomes of old telemetry, and of many small files."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from whorl.cli import cli, output
from whorl.cli.store import _print_pruned
from whorl.errors import InputError, StoreError
from whorl.store import Store, compaction, retention
from whorl.store.rows import replacing
from whorl.store.schema import MINUTES, TELEMETRY, arrow_schema
from whorl.store.status import status
from whorl.store.system import processes

S = 10**9
BEGAN = 1_700_006_400 * S
LATER = BEGAN + 20 * 86_400 * S


def rows(seconds: list[int], gpu: str = "a", **columns: list[Any]) -> pa.Table:
    schema = arrow_schema("telemetry")
    given = {"ts": [BEGAN + s * S for s in seconds], "cluster": ["c"] * len(seconds), "gpu": [gpu] * len(seconds)}
    return pa.table({name: pa.array(v, schema.field(name).type) for name, v in (given | columns).items()})


def whorl(*arguments: str | Path) -> tuple[int, str]:
    answer = CliRunner().invoke(cli, [str(a) for a in arguments])
    return answer.exit_code, answer.output


def test_a_minute_keeps_what_its_kind_of_column_needs(store: Store) -> None:
    some = rows(
        [0, 20, 40, 60],
        power_mw=[100, None, 400, 7],
        energy_mj=[None, 5, 9, 1],
        clock_event_reasons=[1, 4, None, None],
        quality=[None, "power_stuck", None, None],
    )
    store.append({"telemetry": some}, "x")
    store.prune("1m", offline=True, now=LATER)
    first, second = store.sql("select * exclude ts, epoch_ns(ts) t from telemetry_minutes order by ts").to_pylist()
    assert (first["t"], first["n"], second["t"], second["n"]) == (BEGAN, 3, BEGAN + 60 * S, 1)
    assert (first["power_mw_min"], first["power_mw_mean"], first["power_mw_max"]) == (100, 250, 400)
    assert (first["energy_mj_first"], first["energy_mj_last"]) == (5, 9)
    assert (first["clock_event_reasons"], first["quality"]) == (5, "power_stuck")
    assert (second["clock_event_reasons"], second["quality"]) == (None, None)
    assert (first["sm_clock_mhz_min"], first["sm_clock_mhz_mean"], first["pcie_tx_bytes_last"]) == (None, None, None)


def test_rows_that_are_hardly_more_than_one_a_minute_stay(store: Store) -> None:
    for gpu in ("a", "b"):
        store.append({"telemetry": rows([60 * minute for minute in range(100)], gpu, power_mw=[*range(100)])}, gpu)
    store.append({"telemetry": rows([86_400])}, "c")
    code, text = whorl("store", "prune", "--store", store.root, "--keep", "90d")
    assert code == 0
    assert "201 rows stay: they are hardly more than one a minute" in text
    assert store.sql("select count(*) n from telemetry").to_pylist() == [{"n": 201}]
    store.append({"telemetry": rows([60 * minute + 30 for minute in range(100)], power_mw=[*range(100)])}, "more")
    done = store.prune("90d", offline=True, now=LATER + 90 * 86_400 * S)
    assert (done.rows, done.minutes, done.sparse) == (300, 200, 1)


def test_a_host_whose_clock_is_years_ahead_prunes_by_the_clock_of_the_file_server(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    readings = rows([0, 1, 2]).set_column(0, "ts", pa.array([now - n for n in range(3)], pa.timestamp("ns")))
    store.append({"telemetry": readings}, "x")
    monkeypatch.setattr(time, "time_ns", lambda: now + 10 * 366 * 86_400 * S)
    assert store.prune("90d", offline=True).rows == 0
    monkeypatch.undo()
    assert store.sql("select count(*) n from telemetry").to_pylist() == [{"n": 3}]


def test_every_column_of_telemetry_is_in_a_minute() -> None:
    made = {name for column in TELEMETRY.columns for name in MINUTES.names if name.startswith(column.name)}
    assert made == set(MINUTES.names) - {"n"}


@pytest.mark.long
def test_minutes_where_files_meet_have_one_row_and_late_ones_another(store: Store) -> None:
    store.append({"telemetry": rows([0, 10], power_mw=[1, 2])}, "x")
    store.append({"telemetry": rows([20, 3 * 86_400], power_mw=[6, 7])}, "y")
    now = BEGAN + 4 * 86_400 * S
    done = store.prune("2d", offline=True, now=now)
    assert (done.rows, done.minutes) == (3, 1)
    assert store.sql("select n, power_mw_mean m from telemetry_minutes").to_pylist() == [{"n": 3, "m": 3.0}]
    assert store.sql("select power_mw from telemetry").to_pylist() == [{"power_mw": 7}]
    store.append({"telemetry": rows([30], power_mw=[9])}, "z")
    assert store.sql("select sum(n) n from history").to_pylist() == [{"n": 5}]
    store.append({"telemetry": rows([40], power_mw=[9])}, "w")
    store.prune("2d", offline=True, now=now)
    assert store.sql("select n from telemetry_minutes order by n").to_pylist() == [{"n": 2}, {"n": 3}]
    assert store.sql("select power_mw from latest").to_pylist() == [{"power_mw": 7}]


@pytest.mark.long(short=1)
@pytest.mark.parametrize("columns", [80, 120, None])
def test_the_status_fits_a_terminal(store: Store, columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "width", lambda: columns)
    _, text = whorl("store", "status", "--store", store.root)
    assert "telemetry     none at full rate; 0 minutes of older telemetry" in text.splitlines()
    store.append({"telemetry": rows([0, 10, 70])}, "x")
    _, text = whorl("store", "status", "--store", store.root)
    lines = text.splitlines()
    assert any(line.startswith("telemetry     2023-11-15 00:00:00 to 2023-11-15 00:01:10 (UTC) ") for line in lines)
    assert any(line.startswith("durability    every append is made durable") for line in lines)
    assert not [line for line in lines if columns is not None and len(line) > columns]


def test_one_of_a_thing_is_no_plural(capsys: pytest.CaptureFixture[str]) -> None:
    for waiting, said in ((1, "1 day is left: a collector"), (2, "2 days are left: a collector")):
        _print_pruned(retention.Pruned(until=BEGAN, rows=1, minutes=1, waiting=waiting), dry_run=False)
        text = capsys.readouterr().out
        assert said in text
        assert f"still writes to {'it' if waiting == 1 else 'them'}." in text
        assert text.startswith("1 row before ")
        assert "became 1 row of a minute" in text


@pytest.mark.long
def test_days_that_compacting_has_just_joined_are_left_and_it_is_said_until_when(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        store.append({"telemetry": rows([number])}, f"f{number}")
    compaction.compact(store.root, now=LATER, pace=replacing.Pace(0.0, 1.5))
    status, text = whorl("store", "prune", "--store", store.root, "--keep", "90d", "--json")
    left = json.loads(text)
    assert (status, left["rows"], left["waiting"], left["replaced"]) == (0, 0, 1, 1)
    status, text = whorl("store", "prune", "--store", store.root, "--keep", "90d")
    sentence = text.splitlines()[-1]
    assert sentence.startswith("1 day is left: compacting has just joined files of it")
    [said] = re.findall(r"again at (....-..-.. ..:..:..) \(UTC\) or later$", sentence)
    assert datetime.fromisoformat(f"{said}+00:00").timestamp() == math.ceil(left["free_at"])
    now = left["free_at"]
    monkeypatch.setattr("whorl.store.system.files.clock", lambda _: now)
    would = store.prune("90d", dry_run=True)
    assert (would.rows, would.waiting, would.free_at) == (12, 0, None)  # the time that it said has come
    done = Store.open(store.root).prune("90d")
    assert (done.rows, done.waiting) == (12, 0)
    assert store.sql("select sum(n) n from telemetry_minutes").to_pylist() == [{"n": 12}]


@pytest.mark.long
def test_the_time_to_keep_is_in_store_toml_or_given(store: Store) -> None:
    status, text = whorl("store", "prune", "--store", store.root)
    assert status == 2
    assert "--keep 90d" in text
    about = store.root / "store.toml"
    about.write_text(about.read_text() + 'keep = "30d"\n')
    assert whorl("store", "prune", "--store", store.root)[0] == 0
    (store.root / "whorl.duckdb").unlink()
    Store.open(store.root)  # which writes store.toml anew
    assert retention.configured(store.root) == "30d"
    assert "full rate for 30d" in whorl("store", "status", "--store", store.root)[1]
    for wrong in ("90", "0d", "d", "-1d", "1y"):
        with pytest.raises(InputError, match="is not a time to keep"):
            retention.seconds(wrong)


def test_compaction_joins_the_segments_of_an_hour_and_of_a_day(store: Store) -> None:
    for number in range(6):
        store.append({"telemetry": rows([600 * number + s for s in range(0, 600, 60)])}, f"x{number}")
    store.append({"telemetry": rows([7_200, 7_260])}, "y")
    during = BEGAN + 3_600 * S + 20 * 60 * S
    done = store.compact(offline=True, now=during)
    assert (done.before, done.after) == (6, 1)
    done = store.compact(offline=True, now=LATER)
    assert (done.before, done.after) == (2, 1)
    _, joined = store.files("telemetry")  # after the empty one
    assert store.sql("select count(*) n, count(distinct ts) d from telemetry").to_pylist() == [{"n": 62, "d": 62}]
    assert store.compact(offline=True, now=LATER).before == 0
    group = pq.read_metadata(joined).row_group(0)
    codecs = {(one := group.column(i)).path_in_schema: one.compression for i in range(group.num_columns)}
    assert (codecs["ts"], codecs["gpu"]) == ("UNCOMPRESSED", "LZ4"), "it is quick to read"


def test_a_late_row_whose_earlier_one_never_came_is_kept(store: Store) -> None:
    """The earlier one was in a journal, and the late one had superseded it when the journal was sealed."""
    with store.journal("n", background=False, offline=True) as journal:
        journal.append_batch(rows([0], power_mw=[1]).combine_chunks().to_batches()[0])
        store.append({"telemetry": rows([0, 1], power_mw=[2, 3])}, "x")
        journal.append_batch(rows([1], power_mw=[4]).combine_chunks().to_batches()[0])
        expected = [{"power_mw": 2}, {"power_mw": 4}]
        query = "select power_mw from telemetry order by ts"
        assert store.sql(query).to_pylist() == expected
        assert store.compact(offline=True, now=LATER).waiting == 1
        assert store.sql(query).to_pylist() == expected
    assert store.sql(query).to_pylist() == expected
    assert store.compact(offline=True, now=LATER).late_rows == 2
    assert store.sql(query).to_pylist() == expected
    assert len(list((store.root / "late").iterdir())) == 1  # the empty one


def test_small_files_of_other_tables_are_joined(store: Store) -> None:
    for number in range(10):
        store.append({"events": pa.table({"gpu": [f"g{number}"], "kind": ["gap"]})}, f"e{number}")
    assert store.compact(offline=True).after == 1
    assert store.sql("select count(*) n, count(distinct gpu) d from events").to_pylist() == [{"n": 10, "d": 10}]
    assert len(store.files("events")) == 2


def test_a_second_compactor_says_so_and_ends(store: Store) -> None:
    code = "import sys; from pathlib import Path; from whorl.store import compaction\n"
    code += "lock = compaction.lock(Path(sys.argv[1])); print(flush=True); sys.stdin.readline()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, store.root], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        for verb in (["compact"], ["prune", "--keep", "1d"]):
            status, text = whorl("store", *verb, "--store", store.root)
            assert status == 0
            assert "another process compacts or prunes this store" in text
        with pytest.raises(StoreError, match=f"process {other.pid} on "):
            compaction.compact(store.root)
        other.communicate("\n")
    assert whorl("store", "compact", "--store", store.root)[0] == 0


def test_without_locks_the_next_host_compacts_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next boot of this one: nobody clears the file of a lock."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (store.root / "compact.lock").write_text(f"{processes.host()} 00000000 1\n")
    store.journal("n", background=False).close()
    for verb in (["compact"], ["prune", "--keep", "1d"]):
        status, text = whorl("store", *verb, "--store", store.root)
        assert (status, "another process" in text) == (0, False), text


def test_status_tells_rows_files_and_writers(store: Store) -> None:
    store.append({"telemetry": rows([0, 1, 2])}, "x")
    store.append({"telemetry": rows([1])}, "again")
    with store.journal("node7", background=False, offline=True) as journal:
        journal.append_batch(rows([3], "b").combine_chunks().to_batches()[0])
        status, text = whorl("store", "status", "--store", store.root, "--json")
        assert status == 0
        found = json.loads(text)
        assert found["schema"] == "whorl.store.status/1"
        tables = {one["table"]: one for one in found["tables"]}
        assert (tables["telemetry"]["rows"], tables["telemetry"]["files"]) == (4, 1)  # a row is in the journal
        (one,) = found["journals"]
        assert (one["writer"], one["pid"], one["alive"], one["rows"]) == ("node7", os.getpid(), True, 1)
        assert one["age_s"] < 3600
        assert (found["late_rows"], found["oldest"], found["newest"]) == (1, BEGAN, BEGAN + 3 * S)
        text = whorl("store", "status", "--store", store.root)[1]
        assert "node7" in text
        assert "alive" in text


def test_rows_of_made_tables_are_not_appended(store: Store) -> None:
    with pytest.raises(StoreError, match="made from telemetry: append to telemetry"):
        store.append({"latest": rows([0])}, "x")


def test_in_a_copy_of_a_store_nobody_writes(store: Store, tmp_path: Path) -> None:
    with store.journal("node7", background=False, offline=True) as journal:
        journal.append_batch(rows([3], "b").combine_chunks().to_batches()[0])
        copy = Store.open(shutil.copytree(store.root, tmp_path / "copy"))
        assert [one.alive for one in (*status(store).journals, *status(copy).journals)] == [True, False]
