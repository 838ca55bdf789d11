"""Journals: nothing acknowledged is lost, whatever happens to the process, the disk and the file."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.rows import journal_file, journal_runs, replacing
from whorl.store.schema import FORMAT
from whorl.store.status import status
from whorl.store.system import durability
from whorl.store.writers import sealing
from whorl.tests.store.journaler import BEGAN, batch
from whorl.tests.stores import plain_client

ROWS = f"select gpu, (epoch_ns(ts) - {BEGAN}) // 1000000000 as second, power_mw from telemetry order by all"

Rows = list[tuple[str, int, int]]


@pytest.fixture
def journal(store: Store) -> Iterator[Journal]:
    with store.journal("n", background=False, offline=True) as made:
        yield made


def read(store: Store) -> Rows:
    return [tuple(row.values()) for row in store.sql(ROWS).to_pylist()]


def client(store: Store) -> Rows:
    with contextlib.closing(plain_client(store.root)) as connection:
        return connection.execute(ROWS).fetchall()


# -- what the disk does ---------------------------------------------------------------------------------------


def test_a_journal_that_was_removed_says_so_and_goes_on_in_a_new_file(store: Store, journal: Journal) -> None:
    journal.append_batch(batch(["a"], 0, 1))
    for path in (store.root / "journal").glob("*.arrow"):
        path.unlink()
    with pytest.raises(StoreError, match=r"cannot write .*\.arrow: it is gone, with rows that were stored"):
        journal.append_batch(batch(["a"], 1, 1))
    journal.append_batch(batch(["a"], 2, 1))
    assert read(store) == [("a", 2, 1)]


@pytest.mark.parametrize("gone", [shutil.rmtree, lambda root: root.rename(root.with_name("elsewhere"))])
def test_a_store_that_was_removed_or_moved_is_an_error_at_the_end(store: Store, gone: Callable[[Path], object]) -> None:
    journal = store.journal("n", background=False, offline=True)
    journal.append_batch(batch(["a"], 0, 1))
    gone(store.root)
    with pytest.raises(StoreError, match="it is gone, with rows that were stored"):
        journal.close()
    assert not store.root.exists()


def test_a_tail_that_cannot_be_taken_back_does_not_hide_later_batches(
    store: Store, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append_batch(batch(["a"], 0, 0))
    real, code = os.write, errno.ENOSPC

    def torn(handle: int, content: memoryview) -> int:
        real(handle, content[: len(content) // 2])
        raise OSError(code, os.strerror(code))

    def fail(handle: int, size: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", torn)
    monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(StoreError):
        journal.append_batch(batch(["a"], 1, 1))
    monkeypatch.undo()
    journal.append_batch(batch(["a"], 2, 2))
    assert read(store) == [("a", 0, 0), ("a", 2, 2)]
    journal.seal()
    assert read(store) == client(store) == [("a", 0, 0), ("a", 2, 2)]


# -- the file -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_journal_torn_at_every_byte_ends_before(store: Store, journal: Journal) -> None:
    ends = []
    for second in range(3):
        journal.append_batch(batch(["a"], second, second))
        (part,) = journal_file.parts(store.root)
        ends.append(part.path.stat().st_size)
    whole = part.path.read_bytes()
    start = len(whole) - 3 * (ends[1] - ends[0])
    copy = store.root / "copy.telemetry.0.arrow"
    for cut in range(len(whole)):
        copy.write_bytes(whole[:cut])
        if cut < start:
            with pytest.raises(ValueError, match="it is cut off before its first row"):
                journal_file.read(copy)
        else:
            content = journal_file.read(copy)
            assert len(content.table) == sum(end <= cut for end in ends)
            assert content.upto + content.torn == cut
    # A changed byte costs the rows of its batch; the padding behind the check holds nothing.
    for place in range(start, len(whole) - 8):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        copy.write_bytes(damaged)
        found = journal_file.read(copy)
        hit = sum(end <= place for end in ends)
        left = [second for second in range(3) if second != hit]
        in_padding = place in {e - n for e in ends for n in range(1, 9)}
        assert found.table["power_mw"].to_pylist() == left or (in_padding and len(found.table) == 3)
        assert found.lost or len(found.table) == 3
    copy.write_bytes(whole + bytes(4096))
    assert len(journal_file.read(copy).table) == 3


@pytest.mark.long(short=1)
@pytest.mark.parametrize("rows", [5, 1, 8, 11])
def test_many_alike_batches_are_read_as_each_of_them_alone(
    store: Store, journal: Journal, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(rows)
    gpus = [f"g{number}" for number in range(rows)]
    for tick in range(60):
        made = batch(gpus, tick, draw.randrange(2**31)).to_pydict()
        powers = [None if draw.random() < 0.2 else draw.randrange(-(2**31), 2**31) for _ in gpus]
        made |= {"power_mw": pa.array(powers, pa.int32()), "energy_mj": pa.array([draw.getrandbits(62)] * rows)}
        if tick % 20 == 0:
            made["fan_speed"] = pa.array([3] * rows, pa.int32())
        made["ts"] = pa.array(made["ts"], pa.timestamp("ns"))
        if tick > 40:
            made["quality"] = [draw.choice(["lost", "hung", None])] * rows
        journal.append_batch(pa.RecordBatch.from_pydict(made))
    paths = [part.path for part in journal_file.parts(store.root)]
    damaged = bytearray(paths[-1].read_bytes())
    damaged[damaged.index(b"\xff" * 4, len(damaged) // 2) + 20] ^= 1  # near the beginning of a batch
    paths.append(store.root / "damaged.telemetry.0.arrow")
    paths[-1].write_bytes(damaged)

    def contents() -> list[journal_file.Content]:
        return [journal_file.read(path, most=most) for path in paths for most in (None, 9000)]

    together = contents()
    assert sum(len(content.table) for content in together[:-2:2]) == 60 * rows
    assert together[-2].lost
    monkeypatch.setattr(journal_runs, "_FEWEST", 10**9)
    assert contents() == together


@pytest.mark.long
def test_rows_of_few_columns_have_a_part_of_their_own(store: Store, journal: Journal) -> None:
    def ticked(gpus: list[str], second: int, *, wide: bool) -> None:
        made = batch(gpus, second, second)
        for name in ("fan_speed", "pstate", "utilization", "sm_clock_mhz", "mem_clock_mhz") if wide else ():
            made = made.append_column(name, pa.array([second] * len(made), pa.int32()))
        journal.append_batch(made)

    for second in range(12):
        ticked(["a"], second, wide=second % 4 == 0)
    wide, narrow = (journal_file.read(part.path).table for part in journal_file.parts(store.root))
    assert (len(wide), len(narrow)) == (3, 9)
    assert "fan_speed" not in narrow.column_names
    ticked(["a", "b"], 12, wide=False)  # a new GPU, then a column that no part has
    journal.append_batch(batch(["b"], 13, 13).append_column("energy_mj", pa.array([7])))
    ticked(["b"], 14, wide=True)
    everything = [("a", second, second) for second in range(13)] + [("b", second, second) for second in (12, 13, 14)]
    assert read(store) == everything
    journal.publish()
    assert client(store) == read(store) == everything
    ticked(["a"], 15, wide=False)
    ticked(["a"], 16, wide=True)
    journal.seal()
    everything = sorted([*everything, ("a", 15, 15), ("a", 16, 16)])
    assert client(store) == read(store) == everything
    assert store.sql("select sum(fan_speed) as s, sum(energy_mj) as e from telemetry").to_pylist() == [
        {"s": 0 + 4 + 8 + 14 + 16, "e": 7}
    ]


def test_a_header_that_a_kill_cut_short_is_no_damage(store: Store, journal: Journal) -> None:
    journal.append_batch(batch(["a"], 0, 0))
    header = journal_file.head(journal_file.parts(store.root)[0].path).serialize().to_pybytes()
    torn = store.root / journal_file.FOLDER / "other-1-1-0.telemetry.0.arrow"
    for cut in (0, 8, len(header) - 1):
        torn.write_bytes(header[:cut])
        assert read(store) == [("a", 0, 0)]
        assert store.skipped == store.check() == {}
    sealing.seal_abandoned(store.root, None, replacing.OFFLINE)
    assert not torn.exists()


def test_a_journal_is_an_arrow_stream(store: Store, journal: Journal) -> None:
    journal.append_batch(batch(["a", "b"], 0, 7))
    (part,) = journal_file.parts(store.root)
    with pa.ipc.open_stream(part.path.read_bytes()) as stream:
        assert stream.read_all()["power_mw"].to_pylist() == [7, 7]


def test_a_journal_of_a_newer_whorl_is_named_and_the_rest_is_read(
    store: Store, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.append_batch(batch(["a"], 0, 0))
    (part,) = journal_file.parts(store.root)
    schema = journal_file.head(part.path)
    known = {name: value for name, value in schema.metadata.items() if name != b"whorl.check"}
    newer = schema.with_metadata(known | {b"whorl.format": str(FORMAT + 1).encode()})
    path = part.path.with_name("other-1-1-0.telemetry.0.arrow")
    path.write_bytes(newer.serialize())
    with caplog.at_level(logging.WARNING, "whorl"):
        assert read(store) == [("a", 0, 0)]
    assert f"skipped {path}: it has format {FORMAT + 1}" in caplog.text
    path.unlink()


def test_batches_that_do_not_fit_are_a_sentence(store: Store, journal: Journal) -> None:
    journal.append_batch(batch(["a"], 0, 1))
    with pytest.raises(StoreError, match="no column colour"):
        journal.append_batch(pa.RecordBatch.from_pydict({"colour": ["red"]}))
    with pytest.raises(StoreError, match="1 rows of table telemetry have no ts"):
        journal.append_batch(pa.RecordBatch.from_pydict({"ts": pa.array([None], pa.timestamp("ns")), "gpu": ["a"]}))
    with pytest.raises(StoreError, match="there is no table 'colours'"):
        journal.append_batch(batch(["a"], 0, 1), "colours")
    assert read(store) == [("a", 0, 1)]


def test_names_that_would_reach_elsewhere_are_refused(store: Store) -> None:
    for name in ("", "../a", "a/b", ".a", "a\nb"):
        with pytest.raises(StoreError, match="is not a valid name of a journal"):
            store.journal(name, background=False)


# -- time -----------------------------------------------------------------------------------------------------


def test_a_clock_that_steps_back_loses_no_correction(store: Store) -> None:
    now = iter([BEGAN + 1000, BEGAN + 1001, *range(BEGAN, BEGAN + 50)])
    with Journal(store.root, "n", settle_s=0, grace_s=0, thread=False, clock=lambda: next(now)) as journal:
        for power in range(5):
            journal.append_batch(batch(["a"], 0, power))
            assert read(store) == [("a", 0, power)]


def test_durability_follows_the_file_system() -> None:
    assert durability.of_type(0xEF53).seconds == 0  # ext
    assert durability.of_type(0x01021994).seconds == 0  # tmpfs
    for magic, name in ((0x6969, "NFS"), (0x0BD00BD0, "Lustre"), (0x47504653, "GPFS"), (0x65735546, "FUSE")):
        found = durability.of_type(magic)
        assert found.seconds == 5
        assert name in str(found)
    assert durability.of_type(-11317950).seconds == 5  # SMB 2 and CIFS numbers are negative as a 32-bit long
    assert durability.of_type(None).seconds == 0


def test_durability_may_be_chosen(store: Store) -> None:
    with store.journal("n", durable_s=5, background=False) as journal:
        assert str(journal.durability) == "made durable every 5 s (as requested)"
        journal.append_batch(batch(["a"], 0, 1))
        assert read(store) == [("a", 0, 1)]


def test_rows_reach_a_plain_client_by_themselves(store: Store) -> None:
    with Journal(store.root, "n", publish_s=0.1, settle_s=0, grace_s=0) as journal:
        journal.append_batch(batch(["a"], 0, 1))
        last = time.monotonic() + 30
        while not (found := client(store)) and time.monotonic() < last:
            time.sleep(0.05)
        assert found == [("a", 0, 1)]
        assert status(store).journals[0].alive


def test_a_journal_that_was_sealed_is_not_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays for a while, for queries that began before; publishing need not look into it."""
    with Journal(store.root, "n", settle_s=0, grace_s=3600, thread=False) as journal:
        journal.append_batch(batch(["a"], 0, 1))
        journal.publish()
        journal.seal()
        (sealed,) = journal_file.parts(store.root)
        looked_into: list[Path] = []
        reading = journal_file.read

        def noted(path: Path, *rest: Any, **options: Any) -> journal_file.Content:
            looked_into.append(path)
            return reading(path, *rest, **options)

        monkeypatch.setattr(journal_file, "read", noted)
        journal.append_batch(batch(["a"], 1, 2))
        journal.publish()
        journal.seal()
        assert sealed.path.exists()
        assert looked_into
        assert sealed.path not in looked_into
    assert read(store) == [("a", 0, 1), ("a", 1, 2)]


def test_a_clock_before_1970(store: Store) -> None:
    with Journal(store.root, "n", settle_s=0, grace_s=0, thread=False, clock=lambda: -(10**15)) as journal:
        journal.append_batch(batch(["a"], 0, 1))
        assert journal.append_template(journal.template(batch(["a"], 1, 1)))
        store.compact(offline=True)  # leaves it alone: its writer lives
        assert [path.name for path in store.root.glob("journal/*.lock")] == ["n.lock"]
        journal.append_batch(batch(["a"], 2, 1))
    assert read(store) == [("a", 0, 1), ("a", 1, 1), ("a", 2, 1)]


def test_a_part_that_a_disk_left_behind_keeps_nobody_from_appending(store: Store) -> None:
    with store.journal("n", background=False, offline=True) as journal:
        left = store.root / "journal" / f"{journal._generation()}.telemetry.0.arrow"
        left.write_bytes(b"")
        journal.append_batch(batch(["a"], 0, 1))
        assert left.stat().st_size == 0
        assert store.sql("select count(*) n from telemetry").to_pylist() == [{"n": 1}]
        journal.seal()
        assert store.sql("select count(*) n from telemetry").to_pylist() == [{"n": 1}]
    assert store.check() == {}
    assert list((store.root / "journal").glob("*.arrow")) == []
