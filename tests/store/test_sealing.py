"""Sealing: a segment is made from published files, some GPUs at a time, and of what is not published yet."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.rows import journal_file, replacing
from whorl.store.system import processes
from whorl.store.writers import sealing, segment
from whorl.tests.store.journaler import BEGAN, batch
from whorl.tests.stores import new_store

ROWS = f"select gpu, (epoch_ns(ts) - {BEGAN}) // 1000000000 as second, power_mw from telemetry order by all"


def stored(store: Store) -> list[tuple[str, int, int]]:
    return [tuple(row.values()) for row in store.sql(ROWS).to_pylist()]


def live(store: Store) -> list[Path]:
    return sorted(path for path in store.root.rglob("*.parquet") if journal_file.live_of(path))


def event(second: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"ts": pa.array([BEGAN + second], pa.timestamp("ns")), "kind": ["gap"]})


@pytest.mark.long
def test_a_segment_of_many_pieces_has_every_row_once_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "_PIECE", 3000)  # a few batches are published at a time
    monkeypatch.setattr(segment, "_ROWS", 9)  # and one GPU is sealed at a time
    expected: dict[tuple[str, int], int] = {}
    with store.journal("n", background=False, offline=True) as journal:
        for second in range(12):
            gpus = ["a", "c", "b"] if second % 2 else ["b", "a"]  # also columns and GPUs that come and go
            wide = batch(gpus, second, second)
            if second > 5:
                wide = wide.append_column("temperature_c", pa.array([second] * len(gpus), pa.int32()))
            journal.append_batch(wide)
            journal.append_batch(batch(["a"], second // 3, 100 + second))  # a correction, also of published rows
            journal.append_batch(event(second), "events")
            expected |= {(gpu, second): second for gpu in gpus}
            expected["a", second // 3] = 100 + second
            if second == 8:
                journal.publish()
                assert len(live(store)) > 2
        rows = [(*key, power) for key, power in sorted(expected.items())]
        assert stored(store) == rows
        journal.seal()
        assert live(store) == []
        assert stored(store) == rows
        assert store.sql("select count(*) n, count(temperature_c) t from telemetry").to_pylist() == [
            {"n": len(rows), "t": sum(second > 5 for _, second, power in rows if power < 100)}
        ]
        assert store.sql("select count(*) n from events").to_pylist() == [{"n": 12}]
        assert store.sql("select gpu, power_mw from latest order by gpu").to_pylist() == [
            {"gpu": gpu, "power_mw": max((s, power) for g, s, power in rows if g == gpu)[1]} for gpu in "abc"
        ]
    assert store.skipped == store.check() == {}


def test_a_published_file_that_a_disk_damaged_is_made_good_from_the_journal(store: Store) -> None:
    with store.journal("n", background=False, offline=True) as journal:
        for second in range(3):
            journal.append_batch(batch(["a", "b"], second, second))
            journal.append_batch(event(second), "events")
            journal.publish()
        rows = stored(store)
        for path in live(store)[1:3]:
            content = bytearray(path.read_bytes())
            content[40] ^= 0x10  # in a page
            path.write_bytes(content)
        assert len(store.check()) == 2
        journal.append_batch(batch(["a"], 9, 9))
        journal.seal()
        for path in live(store):
            path.unlink()  # the damaged ones, which stay
        assert stored(store) == sorted([*rows, ("a", 9, 9)])
        assert store.sql("select count(*) n from events").to_pylist() == [{"n": 3}]


SEALING = """
import json, os, re, sys
import numpy as np
import pyarrow as pa
from whorl.store import Store
from whorl.store.schema import arrow_schema

fields = [field for field in arrow_schema("telemetry") if field.type in (pa.int32(), pa.int64())]
ROWS = 5000

def batch(number):
    gpu = np.arange(ROWS) % 8
    ts = pa.array((number * ROWS + np.arange(ROWS)) // 8 * 100_000_000, pa.timestamp("ns"))
    noise = np.frombuffer(os.urandom(2 * ROWS), np.uint16)
    columns = {"ts": ts, "cluster": ["c"] * ROWS, "gpu": [f"GPU-{one}" for one in gpu]}
    columns |= {field.name: pa.array(noise + place, field.type) for place, field in enumerate(fields)}
    return pa.RecordBatch.from_pydict(columns)

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024

number, peaks = 0, []
with Store.open(sys.argv[1]).journal("n", background=False, offline=True) as journal:
    for publications in (1, 1, 8):
        for _ in range(publications):
            journal.append_batch(batch(number))
            journal.publish()
            number += 1
        journal.seal()
        peaks.append(peak())
print(json.dumps(peaks))
"""


@pytest.mark.long
def test_the_memory_of_a_seal_does_not_grow_with_its_rows(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    done = subprocess.run([sys.executable, "-c", SEALING, store.root], capture_output=True, text=True, check=True)
    _, small, large = json.loads(done.stdout)
    assert store.sql("select count(*) n from telemetry").to_pylist() == [{"n": 50_000}]
    assert large - small < 25, "40,000 rows of 36 columns: 9 MB, and several times that if all are in memory"
    (sealed,) = (store.root / "telemetry").rglob("*-2.parquet")
    gpus = pq.read_table(sealed, columns=["gpu", "ts"], partitioning=None)
    assert gpus.equals(gpus.sort_by([("gpu", "ascending"), ("ts", "ascending")]))
    assert pq.ParquetFile(sealed).num_row_groups > 1


def test_rows_survive_a_seal_that_fails_and_cannot_be_taken_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails for a while; the collector goes on, and dies later."""
    real = replacing._write

    def write(root: Path, one: str, step: int, sides: list[tuple[str, Path]]) -> None:
        if step == 2:
            raise OSError(errno.EIO, "Input/output error")
        real(root, one, step, sides)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    journal = store.journal("n", background=False, offline=True)
    journal.append_batch(batch(["a"], 0, 1))
    journal.publish()
    for failing in ("remove_notes", "take_back"):
        with monkeypatch.context() as patch:
            patch.setattr(replacing, "_write", write)
            patch.setattr(replacing, failing, fail)
            with pytest.raises(StoreError, match="Input/output error"):
                journal.seal()
        assert stored(store) == [("a", 0, 1)]
    journal.seal()  # it is not refused as if another process replaced the files
    journal.append_batch(batch(["a"], 1, 2))
    journal.seal()  # its file of `latest` replaces that of the first segment
    journal.close()
    monkeypatch.setattr(processes, "owner_alive", lambda _: False)
    replacing.recover(store.root, 0, every=True)
    assert stored(store) == [("a", 0, 1), ("a", 1, 2)]
    assert [path.name for path in (store.root / "replaced").iterdir()] == ["_schema.parquet"]


def test_a_folder_that_cannot_be_listed_doubles_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = store.journal("n", background=False, offline=True)
    journal.append_batch(event(0), "events")
    journal.publish()
    left = {path: path.read_bytes() for path in [*live(store), *store.root.glob("journal/*.arrow")]}
    journal.close()
    for path in store.root.glob("events/n-*"):
        path.unlink()
    for path, content in left.items():
        path.write_bytes(content)
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if os.fspath(path) == str(store.root / "events"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        with pytest.raises(StoreError, match=r"cannot read .*events: this user has no read permission"):
            sealing.seal_abandoned(store.root, None, replacing.OFFLINE)
    assert len(store.arrow("events")) == 1
    assert len(sealing.seal_abandoned(store.root, None, replacing.OFFLINE)) == 1
    assert len(store.arrow("events")) == 1
