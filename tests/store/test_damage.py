"""Files that are cut at any byte or of which a bit changed are named; no other row is lost, doubled or wrong."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import cast

import polars as pl
import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store, journal_file
from whorl.store.schema import FORMAT
from whorl.store.system import files
from whorl.tests.sizes import sample
from whorl.tests.store.journaler import (
    LATER,
    batch,
    journals,
    leave_journal,
    open_journal,
    powers,
    readings,
    seen,
    segments,
)


def test_a_scan_whose_file_changed_since_names_it_or_says_to_run_again(store: Store) -> None:
    store.append({"telemetry": readings(range(2000))}, "x")
    frame = store.scan("telemetry")
    (path,) = segments(store)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match=f"{path}: it is damaged.*run the command again"):
        store.collect(frame)
    assert powers(Store.open(store.root)) == {}
    path.write_bytes(content)
    frame = Store.open(store.root).scan("telemetry")
    path.unlink()
    with pytest.raises(StoreError, match="run it again"):
        store.collect(frame)


class PanickingFrame:
    """A frame as Polars gives it where a file that was sound has other bytes: it panics on some of them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def collect(self) -> pl.DataFrame:
        times = self.path.stat()
        with self.path.open("r+b") as file:
            file.seek(times.st_size // 2)
            byte = file.read(1)[0]
            file.seek(times.st_size // 2)
            file.write(bytes([byte ^ 1]))
        os.utime(self.path, ns=(times.st_atime_ns, times.st_mtime_ns))
        raise pl.exceptions.PanicException("index out of bounds")


def test_a_scan_on_which_polars_panics_names_the_file_whose_time_was_put_back(store: Store) -> None:
    store.append({"telemetry": readings(range(2000))}, "x")
    assert len(store.collect(store.scan("telemetry"))) == 2000
    (path,) = segments(store)
    with pytest.raises(StoreError, match=f"{path}: it is damaged"):
        store.collect(cast("pl.LazyFrame", PanickingFrame(path)))
    assert powers(store) == {}


# -- journals ------------------------------------------------------------------------------------------------------


def test_a_journal_cut_at_every_byte_has_the_rows_before(store: Store, tmp_path: Path) -> None:
    with open_journal(store) as journal:
        ends = []
        for second in range(3):
            journal.append_batch(batch(["a", "b"], second, second))
            (path,) = journals(store)
            ends.append(path.stat().st_size)
        content = path.read_bytes()
    copy = tmp_path / path.name
    first = next(iter(journal_file.read(_write(copy, content)).layouts.values()))
    assert first.gpus == (("c", "a"), ("c", "b"))
    for cut in sample(range(len(content)), short=60):
        _write(copy, content[:cut])
        found = journal_file.read(copy)
        assert len(found.rows.get("telemetry", ())) == 2 * sum(end <= cut for end in ends)
        assert (found.lost, found.upto + found.torn) == (0, cut)
    assert journal_file.read(_write(copy, content + bytes(4096))).lost == 0, "a power failure leaves zeros"


def test_a_changed_byte_of_a_journal_costs_the_rows_of_its_block_and_is_told(store: Store, tmp_path: Path) -> None:
    with open_journal(store) as journal:
        for second in range(4):
            journal.append_batch(batch(["a"], second, second))
        (path,) = journals(store)
        content = path.read_bytes()
    blocks = [place for place in range(len(content)) if content[place : place + 3] in (b"wJT", b"wJL")]
    last = blocks[-1]
    for place in sample(range(len(content)), short=80):
        changed = bytearray(content)
        changed[place] ^= 0x10
        found = journal_file.read(_write(tmp_path / path.name, bytes(changed)))
        seconds = found.rows["telemetry"]["power_mw"].to_pylist() if found.rows else []
        assert set(seconds) < set(range(4)) or place < blocks[2], place
        assert len(seconds) >= 3 or place < blocks[2], (place, seconds)
        assert found.lost or (found.torn and place >= last), (place, "nobody says so")


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_header_that_a_kill_cut_short_is_no_damage_and_goes(store: Store) -> None:
    path = leave_journal(store, batch(["a"], 0, 0))
    content = path.read_bytes()
    for cut in (0, 1, 100):
        _write(path.with_name("other-1-1-0.journal"), content[:cut])
        assert seen(store) == {("a", 0): 0}
        assert store.skipped == store.check() == {}
        store.compact(offline=True)
        assert journals(store) == []
        _write(path, content)


def test_a_damaged_journal_is_kept_beside_the_rows_that_it_could_give(store: Store) -> None:
    path = leave_journal(store, *(batch(["a"], second, second) for second in range(3)))
    content = bytearray(path.read_bytes())
    content[content.rindex(b"wJT") - 3] ^= 1
    path.write_bytes(content)
    expected = {("a", 0): 0, ("a", 2): 2}
    assert seen(store) == expected
    assert "bytes of it changed" in store.skipped[path]
    for _ in range(2):
        store.compact(offline=True)
        assert seen(store, plain=True) == expected
        aside = path.with_name(path.name + journal_file.DAMAGED)
        assert list(store.check()) == [aside]


def test_a_journal_that_whorl_did_not_write_and_one_of_a_newer_format_are_named(store: Store) -> None:
    path = leave_journal(store, batch(["a"], 0, 0))
    _write(path.with_name("other-1-1-0.journal"), b"ARROW1 and so on")
    newer = journal_file.block(b"L", 0, 1, json.dumps({"format": FORMAT + 1}).encode())
    _write(path.with_name("newer-1-1-0.journal"), newer)
    assert seen(store) == {("a", 0): 0}
    said = {path.name: reason for path, reason in store.skipped.items()}
    assert "whorl did not write it" in said["other-1-1-0.journal"]
    assert f"it has format {FORMAT + 1}" in said["newer-1-1-0.journal"]
    store.compact(offline=True)
    assert len(journals(store)) == 2


# -- files of tables ---------------------------------------------------------------------------------------------------


def test_foreign_newer_and_strange_files_are_named_and_the_rest_is_read(store: Store) -> None:
    store.append({"runs": pa.table({"run_id": ["r"]}), "results": pa.table({"run_id": ["r"]})}, "x")
    (run,), (result,) = segments(store, "runs"), segments(store, "results")
    strange = {
        "copy": shutil.copy(result, run.with_name(result.name)),
        "renamed": shutil.copy(run, run.with_name("mine.parquet")),
        "other content": shutil.copy(run, run.with_name("x.00000000.parquet")),
        "text": _write(run.with_name("t.00000000.parquet"), b"run_id\nr\n"),
    }
    store = Store.open(store.root)
    for read in (lambda: store.sql("from runs"), lambda: store.arrow("runs"), lambda: store.scan("runs").collect()):
        assert len(read()) == 1
    assert set(store.skipped) == set(store.check()) == set(map(Path, strange.values()))
    store.compact(offline=True)
    assert all(Path(path).exists() for path in strange.values()), "what cannot be read stays"


def test_a_file_damaged_inside_hinders_neither_storing_nor_sealing_nor_compaction(store: Store) -> None:
    store.append({"telemetry": readings(range(5000))}, "x")
    (damaged,) = segments(store)
    content = bytearray(damaged.read_bytes())
    content[100:140] = bytes(byte ^ 255 for byte in content[100:140])
    damaged.write_bytes(content)
    with open_journal(store) as journal:
        journal.append_batch(batch(["a"], 1, 7))
        assert powers(Store.open(store.root)) == {("a", 1): 7}
    store.append({"telemetry": readings(range(10_000, 10_010))}, "y")
    done = store.compact(offline=True, now=LATER)
    assert [str(damaged) in line for line in done.unreadable] == [True]
    assert seen(store) == {("a", 1): 7} | {("a", second): second for second in range(10_000, 10_010)}
    assert store.prune("1d", offline=True, now=LATER).waiting == 1
    damaged.unlink()
    assert store.prune("1d", offline=True, now=LATER).rows == 11


def test_a_manifest_is_never_needed(store: Store) -> None:
    root = store.root
    for first in (0, 15):
        store.append({"telemetry": readings([*range(first, first + 15)] * 2, ["a"] * 15 + ["b"] * 15)}, f"n{first}")
    store.compact(offline=True, now=LATER)
    (path,) = root.glob("telemetry/day=*/manifest.json")
    content = path.read_bytes()
    one_gpu = "select count(*) n from telemetry where gpu = 'b'"
    for text in (None, b"", content[:-1], b"00000000{}", content[8:]):
        path.unlink() if text is None else path.write_bytes(text)
        assert Store.open(root).sql(one_gpu).to_pylist() == [{"n": 30}], text
        path.touch()
    Store.open(root).compact(offline=True, now=LATER)
    assert powers(Store.open(root)) == {(gpu, second): second for gpu in "ab" for second in range(30)}


def test_a_table_without_any_file_is_empty_and_opening_mends_it(store: Store) -> None:
    store.append({"runs": pa.table({"run_id": ["r"]})}, "x")
    shutil.rmtree(store.root / "events")
    (store.root / "runs" / "_schema.parquet").write_bytes(b"PAR1")
    assert store.sql("select (select count(*) from events) e, (select count(*) from runs) r").to_pylist() == [
        {"e": 0, "r": 1}
    ]
    (store.root / "whorl.duckdb").unlink()
    opened = Store.open(store.root)
    assert opened.check() == {}
    assert (store.root / "whorl.duckdb").exists()
    assert (store.root / "events" / "_schema.parquet").exists()


# -- a copy ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_copy_made_while_others_wrote_has_rows_twice_until_it_is_compacted(store: Store, tmp_path: Path) -> None:
    """A file and the one that took its place are in the copy."""
    for number in range(3):
        store.append({"telemetry": readings(range(4 * number, 4 * number + 4))}, f"x{number}")
    copy = shutil.copytree(store.root, tmp_path / "copy")
    store.compact(offline=True, now=LATER)
    shutil.copytree(store.root / "telemetry", copy / "telemetry", dirs_exist_ok=True)
    opened = Store.open(copy)
    assert opened.sql("select count(*) n from telemetry").to_pylist() == [{"n": 24}]
    pruned = shutil.copytree(copy, tmp_path / "pruned")
    assert Store.open(pruned).prune("1d", offline=True, now=LATER).rows == 12, "each row once"
    opened.compact(offline=True, now=LATER)
    assert seen(opened) == {("a", second): second for second in range(12)}
    assert opened.check() == {}


def test_what_a_bad_disk_changed_behind_a_remembered_file_is_found_by_check(store: Store) -> None:
    """Size and times are the same, so that readers believe what was found before; `whorl doctor` does not."""
    store.append({"telemetry": readings(range(10))}, "x")
    seen(store)
    (path,) = segments(store)
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(Store.open(store.root).check()) == [path]
    assert not [one for one in store.root.rglob("*") if one.name.startswith(files.TEMPORARY)]
