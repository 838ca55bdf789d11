"""Compaction: what is joined when, what waits, two compactors, and what clients see meanwhile."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.errors import StoreError
from whorl.store import Store, file_names, manifest, replacing, telemetry_files
from whorl.store.system import files, processes
from whorl.tests.store.journaler import (
    BEGAN,
    DAY_S,
    LATER,
    S,
    batch,
    journals,
    leave_journal,
    open_journal,
    plain_powers,
    powers,
    readings,
    seen,
    segments,
)

TEN = {("a", second): second for second in range(10)}
QUICK = replacing.Pace(0.05, 0.05, 60.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits of a compaction beside others are short; its old files stay for a minute."""
    monkeypatch.setattr(replacing, "pace_of", lambda _root, *, offline=False: replacing.OFFLINE if offline else QUICK)


def fill(store: Store, *, files_: int = 5, gpu: str = "a") -> None:
    """Rows of ten seconds in several files."""
    each = 10 // files_
    for number in range(files_):
        store.append({"telemetry": readings(range(each * number, each * number + each), gpu)}, f"x{gpu}{number}")


def numbers(store: Store) -> list[int]:
    return replacing.note_numbers(store.root)


# -- what is joined when -----------------------------------------------------------------------------------------


def test_files_of_an_hour_of_a_day_and_of_a_week_ago_are_joined_once_each(store: Store) -> None:
    for number in range(6):
        store.append({"telemetry": readings(range(600 * number, 600 * number + 600, 60))}, f"x{number}")
    store.append({"telemetry": readings([7_200, 7_260])}, "y")
    expected = powers(store)
    (folder,) = (store.root / "telemetry").glob("day=*")

    def codecs() -> set[str]:
        (path,) = segments(store)
        group = pq.read_metadata(path).row_group(0)
        return {group.column(number).compression for number in range(group.num_columns)}

    passes = []
    for after_s in (3_600 + 1_200, 3_600 + 1_300, DAY_S + 1_200, DAY_S + 1_300, 8 * DAY_S + 1_200, 9 * DAY_S):
        done = store.compact(offline=True, now=BEGAN + after_s * S)
        passes.append((done.before, done.after))
        assert powers(store) == expected
        if after_s == DAY_S + 1_200:
            assert codecs() == {"UNCOMPRESSED", "LZ4"}, "it is quick to read"
    assert passes == [(6, 1), (0, 0), (2, 1), (0, 0), (1, 1), (0, 0)]
    assert codecs() == {"ZSTD"}
    assert seen(store) == expected
    said = manifest.read(folder)
    assert said is not None
    assert said.cold
    assert said.files == {segments(store)[0].name: file_names.gpu_hashes("a")}


def test_a_day_that_got_rows_later_is_written_again(store: Store) -> None:
    fill(store)
    store.compact(offline=True, now=LATER)
    store.append({"telemetry": readings([20])}, "more")
    assert store.compact(offline=True, now=LATER).before == 2
    assert seen(store) == TEN | {("a", 20): 20}
    assert store.compact(offline=True, now=LATER).before == 0


def test_files_that_take_much_space_change_places_in_several_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing.Compactor, "most_bytes", 0)
    for day in range(3):
        for half in range(2):
            store.append({"telemetry": readings([day * DAY_S + half])}, f"x{day}{half}")
    for work in (lambda: store.compact(offline=True, now=LATER), lambda: store.prune("1d", offline=True, now=LATER)):
        expected, before = powers(store), max(numbers(store), default=0)
        work()
        assert numbers(store)[-1] >= before + 2 + 3 * 2, "a step for each day"
        assert seen(store, plain=True) == (expected if segments(store) else {})
    assert store.sql("select sum(n)::int n from history").to_pylist() == [{"n": 6}]


@pytest.mark.parametrize("step", [1, 2])
def test_no_row_is_lost_where_a_note_is_made_and_an_error_comes_behind_it(
    store: Store, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    add = replacing.add_note

    def add_and_fail(root: Path, note: replacing.ReplacementNote) -> None:
        add(root, note)
        if note.step == step:
            raise OSError(errno.EIO, "the folder cannot be made durable")

    with monkeypatch.context() as patch:
        patch.setattr(replacing, "add_note", add_and_fail)
        with pytest.raises(StoreError, match="cannot be made durable"):
            store.compact(offline=True, now=LATER)
    assert seen(store, plain=True) == TEN
    store.compact(offline=True, now=LATER)
    assert (seen(store, plain=True), len(segments(store))) == (TEN, 1)


def test_small_files_of_other_tables_are_joined(store: Store) -> None:
    for number in range(10):
        store.append({"events": pa.table({"gpu": [f"g{number}"], "kind": ["gap"]})}, f"e{number}")
    assert store.compact(offline=True).after == 1
    assert store.sql("select count(*) n, count(distinct gpu) d from events").to_pylist() == [{"n": 10, "d": 10}]
    assert len(segments(store, "events")) == 1


@pytest.mark.long
def test_more_rows_than_fit_into_memory_become_several_files_of_whole_gpus(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_files, "MOST_ROWS", 25)
    monkeypatch.setattr("whorl.store.snapshot._FEW_ROWS", 25)
    for number in range(4):
        gpus = [*"abcde"] * 4
        store.append({"telemetry": readings([5 * number + second // 5 for second in range(20)], gpus)}, f"x{number}")
    store.append({"telemetry": readings([0, 1], ["a", "e"], power_mw=[70, 71])}, "late")
    expected = powers(store)
    largest = []
    real = telemetry_files.joined

    def joined(*words: Any, **more: Any) -> pa.Table:
        rows = real(*words, **more)
        largest.append(len(rows))
        return rows

    monkeypatch.setattr(telemetry_files, "joined", joined)
    store.compact(offline=True, now=LATER)
    assert len(largest) > 3
    assert max(largest) <= 40, "a piece has one GPU at least"
    assert seen(store) == expected
    held = [set(pq.read_table(path, columns=["gpu"], partitioning=None)["gpu"].to_pylist()) for path in segments(store)]
    assert sum(map(len, held)) == 5, "no GPU is in two files"
    assert store.compact(offline=True, now=LATER).before == 0
    assert len(store.parts("telemetry")) == len(held)


# -- late rows and journals --------------------------------------------------------------------------------------


@pytest.mark.long
def test_late_rows_wait_for_open_journals_and_compact_says_so(store: Store) -> None:
    """The row that is replaced may be in the journal still."""
    with open_journal(store) as journal:
        journal.append_batch(batch(["a"], 0, 1))
        store.append({"telemetry": readings([0, 1], power_mw=[2, 3])}, "x")
        journal.append_batch(batch(["a"], 1, 4))
        expected = {("a", 0): 2, ("a", 1): 4}
        assert seen(store) == expected
        done = store.compact(offline=True, now=LATER)
        assert len(done.open_journals) == len(journals(store)) == 1
        assert seen(store) == expected
        said = CliRunner().invoke(cli, ["store", "compact", "--offline", "--store", str(store.root)])
        assert (said.exit_code, journals(store)[0].name in said.output) == (0, True), said.output
    assert seen(store, plain=True) == expected
    assert store.compact(offline=True, now=LATER).waiting == 0
    assert seen(store, plain=True) == expected
    assert segments(store, "late") == []
    assert len(segments(store)) == 1


def test_a_late_row_waits_for_a_damaged_file_that_may_have_its_key(store: Store) -> None:
    """The file may be restored from a backup."""
    store.append({"telemetry": readings(range(10))}, "x")
    (path,) = segments(store)
    store.append({"telemetry": readings([5], power_mw=[500])}, "late")
    content = path.read_bytes()
    path.write_bytes(content[:100])
    done = store.compact(offline=True, now=LATER)
    assert (done.waiting, len(segments(store, "late"))) == (1, 1)
    path.write_bytes(content)
    assert store.compact(offline=True, now=LATER).late_rows == 1
    assert seen(store, plain=True) == TEN | {("a", 5): 500}


def test_journals_of_dead_writers_are_sealed_so_that_a_plain_client_misses_nothing(store: Store) -> None:
    for name in ("one", "two"):
        leave_journal(store, *(batch([name], second, second) for second in range(3)), name=name)
    leave_journal(store, pa.record_batch({"kind": ["gap"]}), name="three", table="events")
    expected = {(name, second): second for name in ("one", "two") for second in range(3)}
    assert seen(store) == expected
    assert plain_powers(store.root) == {}
    said = CliRunner().invoke(cli, ["store", "compact", "--offline", "--store", str(store.root)])
    assert "3 journals" in said.output
    assert seen(store, plain=True) == expected
    assert journals(store) == []
    assert store.sql("select count(*) n from events").to_pylist() == [{"n": 1}]


# -- two compactors ----------------------------------------------------------------------------------------------


def owner(host: str | None = None, pid: int = 999_999_999) -> str:
    began = processes.began(pid) or "0badcafe"
    return f"{host or processes.host()}-{processes.pid_namespace() if host is None else '0badcafe'}-{pid}-{began}"


@contextlib.contextmanager
def another_compactor(store: Store, name: str) -> Iterator[replacing.Compactor]:
    """Another process that holds the store, and ends without a word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "owner", lambda: name)
        compactor = replacing.Compactor(store.root, replacing.OFFLINE)
        compactor.__enter__()
    yield compactor


def age(store: Store, seconds: float) -> None:
    """Let the newest note be so old."""
    then = time.time() - seconds
    os.utime(replacing.note_path(store.root, numbers(store)[-1]), (then, then))


@pytest.mark.parametrize("host", [None, "elsewhere"])
def test_a_second_compactor_is_refused_until_the_first_is_dead(store: Store, host: str | None) -> None:
    """On this host its process is looked for; on another its note must be old."""
    fill(store)
    with another_compactor(store, owner(host, os.getppid())):
        for act in (lambda: store.compact(offline=True, now=LATER), lambda: store.prune("1d", offline=True, now=LATER)):
            with pytest.raises(
                replacing.TakenError, match=f"process {os.getppid()} on {host or processes.host()} compacts"
            ):
                act()
        for verb in (["compact"], ["prune", "--keep", "1d"]):
            said = CliRunner().invoke(cli, ["store", *verb, "--offline", "--store", str(store.root)])
            assert (said.exit_code, "compacts or prunes" in said.output) == (0, True), said.output
        assert len(segments(store)) == 5
        store.append({"telemetry": readings([10])}, "beside")  # nobody else is hindered
        age(store, replacing.TAKE_OVER_S + 60)
        if host is None:
            with pytest.raises(replacing.TakenError):
                store.compact(offline=True, now=LATER)
        else:
            store.compact(offline=True, now=LATER)
            assert seen(store, plain=True) == TEN | {("a", 10): 10}


@pytest.mark.long(short=1)
@pytest.mark.parametrize("pid", [os.getpid(), os.getppid()])
def test_a_claim_whose_process_number_a_later_process_has_now_is_over(store: Store, pid: int) -> None:
    """As in a container that starts again: its process has the same number, host and namespace."""
    fill(store)
    with another_compactor(store, owner(pid=pid) + "0"):
        store.compact(offline=True, now=LATER)
    assert seen(store) == TEN


@pytest.mark.long(short=1)
@pytest.mark.parametrize("days", [1000, -1000])
def test_a_clock_that_was_wrong_keeps_no_old_file_for_ever(
    store: Store, days: int, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    fill(store)
    with monkeypatch.context() as patch:
        patch.setattr(files, "clock", lambda _folder: time.time() + days * DAY_S)
        store.compact(now=LATER)
    assert len(segments(store)) == 6
    Store.open(store.root)
    assert len(segments(store)) == 1
    assert seen(store, plain=True) == TEN


def test_old_files_stay_a_minute_for_queries_that_began_before(store: Store, quick: None) -> None:
    fill(store)
    frame = store.scan("telemetry")
    store.compact(now=LATER)
    assert len(segments(store)) == 6
    assert store.collect(frame).height == 10
    assert seen(store, plain=True) == TEN
    status = CliRunner().invoke(cli, ["store", "status", "--store", str(store.root)])
    assert "5 files, which the first whorl command after" in status.output
    store.compact(offline=True, now=LATER)
    assert len(segments(store)) == 1
    assert len(numbers(store)) <= 3


# -- network file systems ----------------------------------------------------------------------------------------


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The store lies on NFS, whose waits are noted and not made."""
    waits: list[float] = []
    monkeypatch.setattr(files, "_magic", lambda _: 0x6969)
    monkeypatch.setattr(replacing.Compactor, "wait", lambda _, seconds: waits.append(seconds))
    return waits


def test_on_a_network_file_system_a_replacement_waits_for_the_listings_of_other_hosts(
    store: Store, network: list[float]
) -> None:
    fill(store)
    store.compact(now=LATER)
    assert len(network) == 2, "once before, once after, for all files of a pass"
    assert min(network) > 60
    assert len(segments(store)) == 6, "the old ones stay"
    assert seen(store, plain=True) == TEN


def test_on_a_network_file_system_a_journal_stays_at_the_end_for_the_next(store: Store, network: list[float]) -> None:
    journal = store.journal("n", background=False)
    assert "NFS" in str(journal.durability)
    journal.append_batch(batch(["a"], 1, 1))
    journal.close()
    assert len(journals(store)) == 1
    assert seen(store) == {("a", 1): 1}
    store.compact(offline=True)
    assert seen(store, plain=True) == {("a", 1): 1}


def test_without_locks_a_journal_is_sealed_when_it_has_not_grown_for_an_hour(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = leave_journal(store, batch(["a"], 1, 1))
    lock = store.root / "journal" / "n.lock"
    lock.write_text("elsewhere 00000000 1\n")

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert store.compact(offline=True).open_journals == [str(path)]
    then = time.time() - 7_200
    os.utime(path, (then, then))
    lock.write_text(f"{processes.host()} {processes.pid_namespace()} {os.getppid()}\n")
    assert store.compact(offline=True).sealed == 0, "its writer lives on this host"
    lock.write_text("elsewhere 00000000 1\n")
    assert store.compact(offline=True).sealed == 1
    assert seen(store) == {("a", 1): 1}


def test_durability_follows_the_file_system() -> None:
    for magic in (0xEF53, 0x01021994, None):  # ext, tmpfs, not known
        assert files.durability_of_type(magic).seconds == 0
    for magic, name in ((0x6969, "NFS"), (0x0BD00BD0, "Lustre"), (0x47504653, "GPFS"), (0x65735546, "FUSE")):
        assert (files.durability_of_type(magic).seconds, name in str(files.durability_of_type(magic))) == (5, True)
    assert files.durability_of_type(-11317950).seconds == 5  # SMB 2: its number is negative as a 32-bit long
