"""Table logs: what other engines read of a store, and which replaced files stay for them."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from whorl.cli import cli
from whorl.errors import StoreError
from whorl.store import Store, replacing, table_logs
from whorl.store.schema import LATEST, TABLES, table
from whorl.store.system import files
from whorl.tests.conftest import BuiltOnce
from whorl.tests.sizes import sample
from whorl.tests.store.journaler import (
    BEGAN,
    LATER,
    Powers,
    S,
    leave_journal,
    powers,
    readings,
    seen,
    segments,
)
from whorl.tests.store.other_process import asked as asked_process
from whorl.tests.store.test_engines import make
from whorl.tests.stores import new_store

LOGS = ("delta", "iceberg")
THIRTY = {("a", second): second for second in range(30)}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction does not wait for readers of the store; what it replaced stays for a minute."""
    monkeypatch.setattr(replacing, "pace_of", lambda _root, *, offline=False: replacing.Pace(0.0, 0.0, 60.0))


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only telemetry is in logs, and its late rows: the other tables cost time and prove nothing more."""
    monkeypatch.setattr(table_logs, "_TABLES", (table("telemetry"), table("late")))


def verb(*words: str | Path, status: int = 0) -> str:
    done = CliRunner().invoke(cli, ["store", *map(str, words)])
    assert done.exit_code == status, done.output
    return done.output


def asked(*words: str | Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(verb(*words, "--json"))
    return document


def fill(store: Store) -> None:
    for first in (0, 10, 20):
        store.append({"telemetry": readings(range(first, first + 10))}, f"x{first}")


def table_of(store: Store, name: str = "telemetry") -> DeltaTable:
    return DeltaTable(str(store.root / name))


def iceberg_rows(root: Path, name: str = "telemetry") -> pa.Table:
    with contextlib.closing(SqlCatalog("whorl", uri=f"sqlite:///{root}/iceberg/catalog.db")) as catalog:
        return catalog.load_table(f"whorl.{name}").scan().to_arrow()


def rows_of(store: Store, log: str, name: str = "telemetry") -> pa.Table:
    return table_of(store, name).to_pyarrow_table() if log == "delta" else iceberg_rows(store.root, name)


def logged(store: Store, log: str = "delta") -> Powers:
    """The power of each GPU and second in a log, which has no row twice."""
    rows = rows_of(store, log)
    seconds = [us // 10**6 - BEGAN // S for us in rows["ts"].cast("int64").to_pylist()]
    keyed = dict(zip(zip(rows["gpu"].to_pylist(), seconds, strict=True), rows["power_mw"].to_pylist(), strict=True))
    assert len(keyed) == len(rows)
    return keyed


def later(store: Store, seconds: float) -> None:
    """Let the files that were replaced, and the versions that no longer name them, be older by so many seconds."""
    note = replacing.newest_note(store.root)
    old = {name: since_s - seconds for name, since_s in note.old.items()}
    logs = {
        name: replace(log, released={old: since_s - seconds for old, since_s in log.released.items()})
        for name, log in note.logs.items()
    }
    replacing.add_note(store.root, replace(note, number=note.number + 1, old=old, logs=logs))


# -- what is in a log --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("log", LOGS)
def test_every_table_of_a_log_has_the_rows_of_the_store(built_once: BuiltOnce, tmp_path: Path, log: str) -> None:
    built = built_once("engines", lambda folder: make(folder / "store")) / "store"
    store = Store.open(shutil.copytree(built, tmp_path / "store"))
    moved = table_logs.register(store, log)
    assert {table.table for table in moved.tables} == {*(spec.name for spec in TABLES if spec != LATEST), "late"}
    for spec in TABLES:
        if spec == LATEST:
            continue
        expected = store.arrow(spec.name)
        rows = rows_of(store, log, spec.name)
        assert rows.column_names[: len(spec.names)] == spec.names
        rows = rows.select(spec.names)
        assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, expected.to_pylist())), spec.name


def test_a_log_follows_what_is_stored_and_replaced_in_one_version_each(
    store: Store, quick: None, few_tables: None
) -> None:
    fill(store)
    leave_journal(store, readings([50]).combine_chunks().to_batches()[0])
    first = asked("register", "--store", store.root, "--delta")
    assert logged(store) == THIRTY, "a row in a journal is not in it"
    telemetry = next(table for table in first["logs"][0]["tables"] if table["table"] == "telemetry")
    assert (telemetry["files"], telemetry["added"], telemetry["removed"]) == (3, 3, 0)
    action = pa.table(table_of(store).get_add_actions(flatten=True)).to_pylist()[0]
    assert action["num_records"] == 10
    assert (action["max.ts"] - action["min.ts"]).total_seconds() == 9
    assert str(action["partition.day"]) == "2023-11-15"

    asked("register", "--store", store.root)
    assert table_of(store).version() == 0, "nothing changed"
    store.append({"telemetry": readings([5], power_mw=[500])}, "late")
    asked("register", "--store", store.root)
    assert logged(store) == THIRTY, "the row that is replaced"
    late = table_of(store, "late").to_pyarrow_table(columns=["power_mw", "written"]).to_pylist()
    assert [row["power_mw"] for row in late] == [500]

    store.compact(offline=True, now=LATER)
    assert logged(store) == THIRTY, "until the log moves on it names the old files, which are there"
    done = asked("register", "--store", store.root)
    assert logged(store) == THIRTY | {("a", 5): 500, ("a", 50): 50} == seen(store, plain=True)
    assert table_of(store).version() == 1
    assert table_of(store, "late").version() == 2
    assert not table_of(store, "late").file_uris()
    assert sum(table["removed"] for table in done["logs"][0]["tables"] if table["table"] == "telemetry") == 3


def test_compaction_and_pruning_bring_the_logs_up_to_date(store: Store, quick: None) -> None:
    fill(store)
    verb("register", "--store", store.root, "--delta")
    document = asked("compact", "--store", store.root)
    (moved,) = document["logs"]
    assert moved["failure"] is None
    assert moved["status"]["waiting"] == 0
    assert len(table_of(store).file_uris()) == 1
    assert logged(store) == THIRTY
    document = asked("prune", "--store", store.root, "--keep", "90d")
    assert document["rows"] == 30
    assert logged(store) == {}
    assert table_of(store, "telemetry_minutes").to_pyarrow_table(columns=["n"])["n"].to_pylist() == [30]


@pytest.mark.long
def test_an_iceberg_log_follows_in_one_version_each(
    store: Store, quick: None, monkeypatch: pytest.MonkeyPatch, few_tables: None
) -> None:
    fill(store)
    first = asked("register", "--store", store.root, "--iceberg")["logs"][0]["tables"]
    assert logged(store, "iceberg") == THIRTY
    locations = {table["table"]: table["location"] for table in first}
    again = asked("register", "--store", store.root)["logs"][0]["tables"]
    assert {table["table"]: table["location"] for table in again} == locations, "nothing changed"
    hint = store.root / "iceberg" / "telemetry" / "metadata" / "version-hint.text"
    assert Path(locations["telemetry"]).name == f"{hint.read_text()}.metadata.json"

    store.append({"telemetry": readings([5, 40], power_mw=[500, 400])}, "late")
    asked("register", "--store", store.root)
    assert logged(store, "iceberg") == THIRTY | {("a", 40): 400}
    assert iceberg_rows(store.root, "late")["power_mw"].to_pylist() == [500]
    store.compact(offline=True, now=LATER)
    monkeypatch.setattr(table_logs, "_STALE_S", -1)
    before = {*(store.root / "iceberg" / "telemetry" / "metadata").glob("*.avro")}
    asked("register", "--store", store.root)
    assert logged(store, "iceberg") == THIRTY | {("a", 5): 500, ("a", 40): 400} == seen(store, plain=True)
    assert not before & {*(store.root / "iceberg" / "telemetry" / "metadata").glob("*.avro")}, "stale versions went"
    with contextlib.closing(SqlCatalog("whorl", uri=f"sqlite:///{store.root}/iceberg/catalog.db")) as catalog:
        telemetry = catalog.load_table("whorl.telemetry")
        assert len(telemetry.snapshots()) == 1
        assert not [*telemetry.scan(row_filter="ts >= '2023-11-16T00:00:00'").plan_files()]
        assert [*telemetry.scan(row_filter="ts >= '2023-11-15T00:00:09'").plan_files()]


@pytest.mark.long
def test_a_moved_store_gets_its_iceberg_log_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_tables: None
) -> None:
    store = new_store(tmp_path / "a b'[c]" / "store")
    fill(store)
    table_logs.register(store, "iceberg")
    copy = Store.open(shutil.copytree(store.root, tmp_path / "copy"))
    before = sorted((store.root / "iceberg").rglob("*"))
    table_logs.register(copy, "iceberg")
    assert sorted((store.root / "iceberg").rglob("*")) == before, "nothing is written into the first one"
    shutil.rmtree(store.root)
    assert logged(copy, "iceberg") == THIRTY
    monkeypatch.setattr(files, "own", lambda _path: False)
    with pytest.raises(StoreError, match="only that user can continue it"):
        table_logs.register(copy, "iceberg")


def test_the_files_of_a_log_hinder_no_reader_of_the_store(store: Store, few_tables: None) -> None:
    fill(store)
    table_logs.register(store, "delta")
    table_of(store).create_checkpoint()
    assert list((store.root / "telemetry" / "_delta_log").glob("*.checkpoint.parquet"))
    assert seen(store, plain=True) == THIRTY
    assert not store.check()
    assert not Store.open(store.root).skipped
    assert new_store(store.root.parent / "into").root
    verb("merge", store.root, "--into", store.root.parent / "into")
    assert powers(Store.open(store.root.parent / "into")) == THIRTY


@pytest.mark.long(short=1)
@pytest.mark.parametrize("name", ["a b", "ä'#?x[1]{2}"])
def test_a_store_of_any_name_that_is_moved_takes_its_log_with_it(tmp_path: Path, name: str, few_tables: None) -> None:
    store = new_store(tmp_path / name / "store")
    fill(store)
    table_logs.register(store, "delta")
    moved = Store.open((tmp_path / name).rename(tmp_path / f"{name} moved") / "store")
    assert set(table_of(moved).to_pyarrow_table(columns=["power_mw"])["power_mw"].to_pylist()) == {*range(30)}
    moved.compact(offline=True, now=LATER)
    table_logs.register(moved, "delta")
    assert len(table_of(moved).file_uris()) == 1


def test_a_path_that_the_library_would_take_for_another_one_is_refused(tmp_path: Path) -> None:
    new_store(tmp_path / "a%20b")
    assert "its path has a %" in verb("register", "--store", tmp_path / "a%20b", "--delta", status=3)
    assert [*tmp_path.iterdir()] == [tmp_path / "a%20b"]
    assert asked("status", "--store", tmp_path / "a%20b")["logs"] == []


@pytest.mark.long
@pytest.mark.parametrize("log", LOGS)
def test_rows_of_no_gpu_and_of_any_year_are_in_a_log(store: Store, few_tables: None, log: str) -> None:
    odd = pa.array([-(2**62), 2**62, 0], pa.int64()).cast(pa.timestamp("us"))
    store.append({"telemetry": pa.table({"ts": odd, "gpu": pa.array([None, "g", "g"]), "power_mw": [1, 2, 3]})}, "odd")
    table_logs.register(store, log)
    rows = rows_of(store, log).sort_by("power_mw")
    assert rows["power_mw"].to_pylist() == [1, 2, 3]
    assert rows["gpu"].to_pylist() == [None, "g", "g"]
    assert rows["ts"].cast("int64").to_pylist() == [-(2**62), 2**62, 0]
    if log == "delta":
        assert rows["day"].null_count == 2


@pytest.mark.long
def test_a_store_of_a_later_format_keeps_its_log(store: Store, few_tables: None) -> None:
    fill(store)
    table_logs.register(store, "delta")
    ask, end = asked_process("made")
    try:
        assert ask("upgrade", store.root)["newer"] == "4.1"
        assert logged(store) == THIRTY, "its files stay for the log"
        ask("delta", store.root)
    finally:
        end()
    assert logged(store) == THIRTY
    assert {"read_us", "answer_us", "fans_rpm"} <= {column.name for column in table_of(store).schema().fields}


# -- replaced files ----------------------------------------------------------------------------------------------


def test_replaced_files_stay_until_the_log_moved_on_and_an_hour(store: Store, quick: None, few_tables: None) -> None:
    fill(store)
    verb("register", "--store", store.root, "--delta")
    store.compact(now=LATER)
    later(store, 10_000)
    Store.open(store.root)
    assert len(segments(store)) == 4
    status = asked("status", "--store", store.root)
    (log,) = status["logs"]
    assert (log["log"], log["waiting"], status["to_be_removed"], status["removed_at"]) == ("delta", 3, 3, None)
    assert log["bytes"] == sum(path.stat().st_size for path in segments(store) if path.name[0] == "x")
    assert "3 replaced files" in verb("status", "--store", store.root)
    assert "--forget delta" in verb("status", "--store", store.root)

    old = table_of(store)
    verb("register", "--store", store.root)
    later(store, 3_000)
    Store.open(store.root)
    assert old.to_pyarrow_table(columns=["ts"]).num_rows == 30, "who opened the version before reads on"
    status = asked("status", "--store", store.root)
    assert (status["logs"][0]["waiting"], status["to_be_removed"]) == (0, 3)
    assert status["removed_at"] is not None
    later(store, 1_000)
    Store.open(store.root)
    assert len(segments(store)) == 1
    assert logged(store) == THIRTY


@pytest.mark.long
def test_a_log_that_is_forgotten_keeps_nothing(store: Store, quick: None, few_tables: None) -> None:
    fill(store)
    verb("register", "--store", store.root, "--delta")
    store.compact(now=LATER)
    later(store, 100)
    assert "removed" in verb("register", "--store", store.root, "--forget", "delta")
    Store.open(store.root)
    assert len(segments(store)) == 1
    assert not list(store.root.rglob("_delta_log"))
    assert asked("status", "--store", store.root)["logs"] == []
    assert "has no delta log" in str(
        CliRunner().invoke(cli, ["store", "register", "--store", str(store.root), "--forget", "delta"]).output
    )
    assert "choose --delta" in verb("register", "--store", store.root, status=2)


def test_a_damaged_note_keeps_every_file_that_a_log_names(store: Store, quick: None, few_tables: None) -> None:
    fill(store)
    verb("register", "--store", store.root, "--delta")
    store.compact(now=LATER)
    later(store, 10_000)
    path = replacing.note_path(store.root, replacing.newest_note(store.root).number)
    path.write_bytes(path.read_bytes()[:-2000])
    Store.open(store.root)
    assert len(segments(store)) == 4
    assert path in store.check()
    verb("register", "--store", store.root)
    assert logged(store) == THIRTY
    assert asked("status", "--store", store.root)["logs"][0]["waiting"] == 0


def test_a_log_that_this_whorl_does_not_write_keeps_files_and_hinders_nothing(store: Store, quick: None) -> None:
    fill(store)
    with replacing.Compactor(store.root, replacing.OFFLINE) as compactor:
        compactor.set_log("other", replacing.TableLog())
    assert asked("compact", "--store", store.root)["logs"] == []
    later(store, 10_000)
    Store.open(store.root)
    assert len(segments(store)) == 4
    assert [log["waiting"] for log in asked("status", "--store", store.root)["logs"]] == [3]


@pytest.mark.long(short=1)
@pytest.mark.parametrize(("log", "is_new"), [("delta", False), ("delta", True), ("iceberg", False), ("iceberg", True)])
def test_a_registration_that_is_killed_leaves_the_old_state_or_the_new_one(
    store: Store, quick: None, few_tables: None, log: str, is_new: bool
) -> None:
    fill(store)
    if not is_new:
        table_logs.register(store, log)
        store.append({"telemetry": readings([5], power_mw=[500])}, "late")
        store.compact(now=LATER)
    expected = seen(store)
    before = store.root.rename(store.root.parent / "before")
    ask, end = asked_process()
    try:
        shutil.copytree(before, store.root)
        steps = ask(log, store.root)
        assert logged(store, log) == expected
        for step in sample(range(1, steps + 1), short=3 if log == "delta" else 1):
            shutil.rmtree(store.root)
            shutil.copytree(before, store.root)
            assert ask(log, store.root, step) is None, "it is killed"
            if not is_new:
                later(store, 10_000)
                assert logged(Store.open(store.root), log) in (THIRTY, expected), step
            table_logs.register(Store.open(store.root), log)
            assert logged(store, log) == expected == seen(store), step
    finally:
        end()


# -- what fails --------------------------------------------------------------------------------------------------


def test_without_the_library_a_compaction_says_so_and_what_waits(
    store: Store, quick: None, monkeypatch: pytest.MonkeyPatch, few_tables: None
) -> None:
    fill(store)
    verb("register", "--store", store.root, "--delta")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    output = verb("compact", "--store", store.root)
    assert "pip install 'whorl[delta]'" in output
    assert "3 replaced files" in output
    output = verb("register", "--store", store.root, "--delta", status=3)
    assert "pip install 'whorl[delta]'" in output
    monkeypatch.undo()
    assert logged(store) == THIRTY


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("log", "damaged", "length"),
    [
        ("delta", "telemetry/_delta_log/*.json", 300), ("delta", "telemetry/_delta_log/*.json", 0),
        ("delta", "telemetry/_delta_log", None), ("iceberg", "iceberg/catalog.db", 100),
        ("iceberg", "iceberg/telemetry/metadata/*.metadata.json", 100),
        ("iceberg", "iceberg/telemetry/metadata/snap*.avro", 100),
    ],
)  # fmt: skip
def test_a_damaged_log_is_named_and_can_be_made_anew(
    store: Store, tmp_path: Path, few_tables: None, log: str, damaged: str, length: int | None
) -> None:
    """A file is cut to so many bytes, or (None) a folder is a link."""
    fill(store)
    verb("register", "--store", store.root, f"--{log}")
    for path in store.root.glob(damaged):
        if length is None:
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.write_bytes(path.read_bytes()[:length])
    store.append({"telemetry": readings([40])}, "more")
    output = verb("register", "--store", store.root, f"--{log}", status=3)
    if length is None:
        (store.root / damaged).unlink()
    else:
        assert f"--store {store.root} --forget {log}" in output
    verb("register", "--store", store.root, "--forget", log)
    verb("register", "--store", store.root, f"--{log}")
    assert logged(store, log) == THIRTY | {("a", 40): 40}


@pytest.mark.long(short=1)
@pytest.mark.parametrize(("log", "most_bytes"), [("delta", 100), ("iceberg", 12_000)])
def test_a_disk_without_space_is_told_in_one_sentence_and_the_log_goes_on_later(
    store: Store, few_tables: None, log: str, most_bytes: int
) -> None:
    fill(store)
    expected = seen(store)
    with replacing.Compactor(store.root, replacing.OFFLINE) as compactor:
        compactor.set_log(log, replacing.TableLog())  # as one that was killed here
    done = subprocess.run(
        [sys.executable, "-m", "whorl", "store", "register", "--store", store.root, f"--{log}"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},  # bytecode would be cut, and no later process could read it
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "cannot write" in done.stderr
    assert "run the command again" in done.stderr
    assert "--forget" not in done.stderr, "the log is not damaged"
    assert not set("\x1b↳") & set(done.stderr)
    table_logs.register(Store.open(store.root), log)
    assert logged(store, log) == expected


def test_a_second_registration_waits_and_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch, few_tables: None
) -> None:
    monkeypatch.setattr(table_logs, "_WAIT_S", 0.0)
    with replacing.Compactor(store.root, replacing.OFFLINE):
        output = verb("register", "--store", store.root, "--delta", status=3)
    assert f"process {os.getpid()}" in output
    assert "wait for it" in output


@pytest.mark.long
def test_what_others_wrote_into_a_log_is_put_right(store: Store, few_tables: None) -> None:
    fill(store)
    table_logs.register(store, "delta")
    table_of(store).optimize.compact()
    assert len(table_of(store).file_uris()) == 1
    table_logs.register(store, "delta")
    assert logged(store) == THIRTY
    assert len(table_of(store).file_uris()) == 3


# -- beside collectors and compaction ----------------------------------------------------------------------------
