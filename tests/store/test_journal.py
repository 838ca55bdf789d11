"""Journals: nothing acknowledged is lost, whatever happens to the process, the disk and the file."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import shutil
import subprocess
import sys
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
from whorl.tests.sizes import is_long
from whorl.tests.store.journaler import BEGAN, batch
from whorl.tests.store.test_full_disk import no_file_longer_than
from whorl.tests.stores import new_store, plain_client
from whorl.tests.without import NODE, run_without

JOURNALER = Path(__file__).with_name("journaler.py")
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


def acknowledged(store: Store) -> dict[tuple[str, int], int]:
    lines = store.root.with_name("acknowledged").read_text().splitlines()
    told = (line.split() for line in lines)
    return {(gpu, int(second)): int(power) for gpu, second, power in told}


def holds(rows: Rows, told: dict[tuple[str, int], int]) -> None:
    """Every acknowledged row is there, and none twice."""
    found = {(gpu, second): power for gpu, second, power in rows}
    assert len(found) == len(rows)
    assert {key: found.get(key) for key in told} == told


def compacted(store: Store) -> list[Path]:
    return list((store.root / "telemetry").rglob("compacted-*.parquet"))


def running(*arguments: str | Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, JOURNALER, *arguments], stdin=pipe, stdout=pipe, text=True)


# -- crashes --------------------------------------------------------------------------------------------------


CLIENT = """
import duckdb, json, sys
query = "select count(*), count(distinct (gpu, ts)) from telemetry"
while sys.stdin.readline():
    try:
        with duckdb.connect(f"{sys.argv[1]}/whorl.duckdb", read_only=True) as connection:
            connection.execute(f"SET VARIABLE whorl_store = '{sys.argv[1]}'")
            print(json.dumps(connection.execute(query).fetchone()), flush=True)
    except duckdb.IOException as error:
        print(json.dumps(str(error)), flush=True)
"""


@pytest.mark.long
def test_readers_see_no_row_twice_and_none_less_while_files_change_places(store: Store) -> None:
    """Journals are published, sealed and compacted all the time; two kinds of readers look on."""
    command: list[str | Path] = [sys.executable, "-c", CLIENT, store.root]
    pipe = subprocess.PIPE
    with (
        running(store.root, "0.002" if is_long() else "0.02") as writer,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as plain,
    ):
        assert plain.stdin is not None
        assert plain.stdout is not None
        assert writer.stdin is not None
        seen, answered, gone = 0, 0, 0
        told = store.root.with_name("acknowledged")
        least = time.monotonic() + 9
        while writer.poll() is None:
            plain.stdin.write("\n")
            plain.stdin.flush()
            before = len(told.read_text().splitlines()) if told.exists() else 0
            ((number, distinct),) = (row.values() for row in store.sql(
                "select count(*) n, count(distinct (gpu, ts)) d from telemetry").to_pylist())  # fmt: skip
            assert number == distinct, "a row is seen twice"
            assert number >= before, "an acknowledged row is missing"
            answer = json.loads(plain.stdout.readline())
            if isinstance(answer, str):
                assert "No such file" in answer  # it was replaced long before; only a query in flight minds
                gone += 1
                continue
            assert answer[0] == answer[1], "a row is seen twice by a plain client"
            assert answer[0] >= seen, "a plain client misses rows that it saw before"
            seen = answer[0]
            answered += 1
            if time.monotonic() > least and answered > 10 * gone and compacted(store):
                break
            time.sleep(0 / 1000)
        writer.stdin.close()
    assert writer.returncode == 0
    assert answered > 10 * gone
    assert seen > 0
    holds(read(Store.open(store.root)), acknowledged(store))
    assert compacted(store)
    holds(client(store), acknowledged(store))


# -- two writers ----------------------------------------------------------------------------------------------


def test_a_second_writer_of_the_name_is_refused_and_of_another_is_not(store: Store, journal: Journal) -> None:
    code = "import sys; from whorl.store import Store; from whorl.store.journal import Journal\n"
    code += "Store.open(sys.argv[1]).journal(sys.argv[2]).close()"
    second = subprocess.run([sys.executable, "-c", code, store.root, "n"], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"StoreError: process {os.getpid()} on " in second.stderr
    assert "a journal named n" in second.stderr
    other = subprocess.run([sys.executable, "-c", code, store.root, "m"], capture_output=True, text=True, check=False)
    assert other.returncode == 0, other.stderr
    journal.append_batch(batch(["a"], 0, 1))
    assert read(store) == [("a", 0, 1)]


# -- what the disk does ---------------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing_and_later_batches_are_seen(store: Store, journal: Journal) -> None:
    for second in range(5):
        journal.append_batch(batch(["a", "b"], second, second))
    (part,) = journal_file.parts(store.root)
    with no_file_longer_than(part.path.stat().st_size + 100), pytest.raises(StoreError, match="no space is left there"):
        journal.append_batch(batch(["a", "b"], 5, 5))
    assert len(read(store)) == 10
    journal.append_batch(batch(["a", "b"], 6, 6))
    assert [row[1] for row in read(store)] == [0, 1, 2, 3, 4, 6] * 2


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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_tail_that_cannot_be_taken_back_does_not_hide_later_batches(
    store: Store, journal: Journal, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append_batch(batch(["a"], 0, 0))
    real = os.write

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


UNWRITABLE = """
import os, sys
import duckdb, polars, pyarrow.dataset, pyarrow.parquet  # while this user may read them
from whorl.store import Store
from whorl.store.journal import Journal
from whorl.errors import StoreError
os.setgid(65534); os.setuid(65534)
try:
    Store.open(sys.argv[1]).journal("n")
except StoreError as error:
    sys.exit(str(error))
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_store_that_this_user_may_not_write() -> None:
    place = Path("/tmp", f"whorl-test-journal-{os.getpid()}")
    try:
        store = new_store(place / "s")
        place.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", UNWRITABLE, store.root], capture_output=True, text=True, check=False
        )
        assert "this user has no write permission there" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    finally:
        shutil.rmtree(place)


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


@pytest.mark.long(short=2)
@pytest.mark.parametrize("rows", [1, 5, 8, 11])
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
    for cut in (0, 5, 8, len(header) // 2, len(header) - 1):
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


def test_columns_and_gpus_may_change_between_batches(store: Store, journal: Journal) -> None:
    journal.append_batch(batch(["a"], 0, 1))
    wide = batch(["a", "b"], 1, 2).append_column("temperature_c", pa.array([50, None], pa.int32()))
    journal.append_batch(wide)
    journal.append_batch(batch(["a"], 2, 3))
    journal.append_batch(
        pa.RecordBatch.from_pydict({"ts": pa.array([BEGAN], pa.timestamp("ns")), "kind": ["xid"]}), "events"
    )
    for look in (read, client):
        if look is client:
            journal.seal()
        assert look(store) == [("a", 0, 1), ("a", 1, 2), ("a", 2, 3), ("b", 1, 2)]
    assert store.sql("select temperature_c from telemetry where temperature_c is not null").num_rows == 1
    assert store.sql("select kind from events").to_pylist() == [{"kind": "xid"}]


def test_batches_that_do_not_fit_are_a_sentence(store: Store, journal: Journal) -> None:
    journal.append_batch(batch(["a"], 0, 1))
    with pytest.raises(StoreError, match="no column colour"):
        journal.append_batch(pa.RecordBatch.from_pydict({"colour": ["red"]}))
    with pytest.raises(StoreError, match="1 rows of table telemetry have no ts"):
        journal.append_batch(pa.RecordBatch.from_pydict({"ts": pa.array([None], pa.timestamp("ns")), "gpu": ["a"]}))
    with pytest.raises(StoreError, match="there is no table 'colours'"):
        journal.append_batch(batch(["a"], 0, 1), "colours")
    assert read(store) == [("a", 0, 1)]


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "a\nb"])
def test_names_that_would_reach_elsewhere_are_refused(store: Store, name: str) -> None:
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


LIGHT = """
from whorl.store import Store
from whorl.store.journal import Journal
from whorl.tests.store.journaler import batch
with Store.open(sys.argv[1]).journal("n", background=False, offline=True) as journal:
    journal.append_batch(batch(["a"], 0, 1))
    journal.publish()
    journal.seal()
    journal.append_batch(batch(["a"], 0, 2))
    journal.append_batch(batch(["a"], 0, 2).select(["ts", "cluster", "gpu"]), "events")
assert not {"duckdb", "polars", "pyarrow.acero", "pyarrow.compute"} & set(sys.modules)
"""


@pytest.mark.long
def test_a_node_without_duckdb_and_polars_journals(store: Store) -> None:
    done = run_without(NODE, LIGHT, store.root)
    assert done.returncode == 0, done.stderr
    assert read(store) == client(store) == [("a", 0, 2)]


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
