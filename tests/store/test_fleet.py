"""A fleet's store: what one collector looks at does not grow with the number of the others."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.compaction import compact
from whorl.store.journal import Journal
from whorl.store.rows import journal_file, placing, replacing
from whorl.store.rows.replacing import Pace
from whorl.store.system.locks import locked
from whorl.store.writers import rivals
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store


def batch(gpu: str, second: int, power: int) -> pa.RecordBatch:
    ts = pa.array([second * 10**9], pa.timestamp("ns"))
    return pa.record_batch({"ts": ts, "cluster": ["c"], "gpu": [gpu], "power_mw": pa.array([power], pa.int32())})


def journal(store: Store, name: str) -> Journal:
    return store.journal(name, background=False, offline=True)


def powers(store: Store) -> list[int]:
    return sorted(store.sql("select power_mw from telemetry")["power_mw"].to_pylist())


def test_a_collector_looks_at_its_own_files_only(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    with journal(store, "one") as one, journal(store, "two") as two, journal(store, "shares") as shares:
        for second, (writer, gpu) in enumerate([(one, "a"), (two, "b"), (shares, "a")]):
            writer.append_batch(batch(gpu, second, second))
            writer.publish()
        bounds = placing.bounds_of(pa.Table.from_batches([batch("a", 9, 9)]))
        day = placing.Bounds(0, 9 * 10**9, bounds.gpus)
        looked_at = {path.parent.name for path in rivals.stored(store.root, day) if path.name != "_schema.parquet"}
        assert {name.partition("~")[0] for name in looked_at} == {"one", "shares"}
    assert powers(store) == [0, 1, 2]


@pytest.mark.long
def test_two_collectors_of_one_gpu_store_each_reading_once(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    with journal(store, "one") as one, journal(store, "two") as two:
        one.append_batch(batch("a", 1, 10))
        one.publish()
        two.append_batch(batch("a", 1, 20))
        two.publish()
        one.append_batch(batch("b", 1, 30))
        assert powers(store) == [20, 30]
    assert powers(store) == [20, 30]
    compact(store.root, pace=Pace(0.0, 0.0), now=time.time_ns())
    assert powers(Store.open(store.root)) == [20, 30]


def test_a_folder_that_does_not_say_its_gpus_is_looked_into(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    with journal(store, "one") as one:
        one.append_batch(batch("a", 1, 10))
    (says,) = store.root.glob("telemetry/day=*/one~*/gpus.txt")
    says.unlink()
    rivals._homes.clear()
    with journal(store, "two") as two:
        two.append_batch(batch("a", 1, 20))
    assert powers(store) == [20]


def test_a_folder_whose_gpus_do_not_fit_its_name_may_hold_any(tmp_path: Path) -> None:
    folder = tmp_path / "day=1970-01-01" / rivals._home("one", "0badcafe")
    folder.mkdir(parents=True)
    others = frozenset({1})
    for text, may in (("12345678", True), ("0badcafe", False), ("12345678", False)):  # what it was is remembered
        (folder / "gpus.txt").write_text(text)
        assert rivals._may_hold(str(folder), others) is may


def test_a_changed_bit_in_the_header_of_a_journal_does_not_hide_whose_it_is(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    with journal(store, "one") as one:
        one.append_batch(batch("a", 1, 10))
        (path,) = store.root.glob("journal/one-*.arrow")
        content = path.read_bytes()
        header = 8 + int.from_bytes(content[4:8], "little")
    mine = placing.hashes([("c", "a")])
    damaged = tmp_path / "damaged.arrow"
    seen = set()
    for bit in sample(range(8 * header), short=800):
        damaged.write_bytes(content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :])
        seen.add(journal_file.gpus_in(str(damaged)))
    assert seen == {mine, None}


def test_the_journal_of_an_earlier_whorl_says_whose_it_is(tmp_path: Path) -> None:
    writer = journal_file.Writer("one", "h", "0", 1, 2)
    schema = journal_file.schema_of("telemetry", ["ts", "gpu"], writer, "0badcafe")
    metadata = {key: text for key, text in (schema.metadata or {}).items() if key != b"whorl.found"}
    before = schema.with_metadata({**metadata, b"whorl.check": journal_file._check_of(schema.with_metadata(metadata))})
    (tmp_path / "x.arrow").write_bytes(before.serialize().to_pybytes())
    assert b"gpus=" not in (tmp_path / "x.arrow").read_bytes()
    assert journal_file.gpus_in(str(tmp_path / "x.arrow")) == frozenset({0x0BADCAFE})


@pytest.mark.long
def test_compaction_removes_the_folders_of_collectors_that_it_emptied(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    day = 86_400
    for second in (1, 2, 3 * day):
        with journal(store, "one") as one:
            one.append_batch(batch("a", second, second))
    (old, new) = sorted(store.root.glob("telemetry/day=*/one~*"))
    outside = tmp_path / "outside"
    (outside / "two~1").mkdir(parents=True)
    (outside / "two~1" / "gpus.txt").write_text("")
    (store.root / "telemetry" / "day=1970-01-03").symlink_to(outside)
    for _ in range(2):
        compact(store.root, pace=Pace(0.0, 0.0), now=(3 * day + 7200) * 10**9)
    assert not old.exists()
    assert new.exists()
    assert (outside / "two~1" / "gpus.txt").exists()
    with journal(store, "one") as one:  # its folder is made again
        one.append_batch(batch("a", 4, 4))
    assert old.exists()
    assert powers(store) == [1, 2, 4, 3 * day]


def test_collectors_of_different_gpus_do_not_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with locked(path, "it", shared=True), locked(path, "it", shared=True), pytest.raises(StoreError, match="holds it"):
        locked(path, "it")
    with locked(path, "it"), pytest.raises(StoreError, match="holds it"):
        locked(path, "it", shared=True)


def test_notes_of_other_hosts_are_left_to_compaction_where_there_are_many(tmp_path: Path) -> None:
    store = new_store(tmp_path / "s")
    path = store.root / "runs" / "old.parquet"
    for number in range(20):
        for step in (1, 2):
            replacing._write(store.root, f"elsewhere-0123abcd-1-{number}", step, [("old", path)])
    there = len(list((store.root / "replaced").iterdir()))
    replacing.recover(store.root, grace_s=0.0)
    assert len(list((store.root / "replaced").iterdir())) == there
    replacing.recover(store.root, grace_s=0.0, every=True)
    assert len(list((store.root / "replaced").iterdir())) == 1  # the empty file


def test_a_reader_compares_rows_of_journals_only_with_files_of_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store(tmp_path / "s")
    opened: list[str] = []
    real = placing.keys_in

    def keys_in(path: Path) -> pa.Table | None:
        opened.append(path.name.partition("-")[0])
        return real(path)

    monkeypatch.setattr(placing, "keys_in", keys_in)
    with journal(store, "one") as one, journal(store, "two") as two:
        for writer, gpu in ((one, "a"), (two, "b")):
            for second in (1, 5):
                writer.append_batch(batch(gpu, second, second))
            writer.publish()
        two.append_batch(batch("b", 3, 30))
        opened.clear()
        assert powers(store) == [1, 1, 5, 5, 30]
        assert set(opened) == {"two"}
        two.append_batch(batch("b", 5, 50))
        assert powers(store) == [1, 1, 5, 30, 50]
