"""What a collector says of its files, so that a query beside a thousand others need not open them."""

from __future__ import annotations

import json
import os
import random
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from whorl.store import Store
from whorl.store.readers import query
from whorl.store.rows import contents, footers, soundness
from whorl.store.system import light
from whorl.tests.sizes import count
from whorl.tests.stores import new_store

SECONDS = 4


def batch(second: int) -> pa.RecordBatch:
    ts = pa.array([second * 10**9], pa.timestamp("ns"))
    return pa.record_batch({"ts": ts, "cluster": ["c"], "gpu": ["a"], "power_mw": pa.array([second], pa.int32())})


def powers(store: Store) -> list[int]:
    return sorted(store.sql("select power_mw from telemetry")["power_mw"].to_pylist())


@pytest.fixture(autouse=True)
def believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few files are treated as thousands are, by a process that knows none of them."""
    monkeypatch.setattr(contents, "_FEW", 0)
    monkeypatch.setattr(query, "FEW", 0)
    _forget()


def _forget() -> None:
    footers._read.clear()
    footers._distrusted.clear()
    soundness._known.clear()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A collector's journal with a published file a second, as it is while it runs, or after it was killed."""
    store = new_store(tmp_path / "s")
    writer = store.journal("one", background=False)
    for second in range(SECONDS):
        writer.append_batch(batch(second))
        writer.publish()
    writer._hold.release()
    _forget()
    return store


def _catalogue(store: Store) -> Path:
    (found,) = store.root.glob(f"telemetry/day=*/one~*/{contents.NAME}")
    return found


def test_a_query_opens_no_footer_that_the_collector_has_noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = light.metadata

    def metadata(path: Path) -> Any:
        opened.append(path.name)
        return real(path)

    monkeypatch.setattr(light, "metadata", metadata)
    assert powers(store) == list(range(SECONDS))
    assert not [name for name in opened if ".live" in name]


def test_a_noted_file_that_cannot_be_read_is_named_and_its_rows_come_from_the_journal(store: Store) -> None:
    live = sorted(_catalogue(store).parent.glob("*.live1.parquet"))[0]
    status = live.stat()
    live.write_bytes(live.read_bytes()[:-9] + bytes(9))
    os.utime(live, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a bad disk does it
    assert powers(store) == list(range(SECONDS))
    assert list(store.skipped) == [live]


def test_a_collector_forgets_files_that_are_gone(store: Store) -> None:
    folder = _catalogue(store).parent
    contents.note(folder)
    assert len(footers._read) == len(soundness._known) == SECONDS
    for path in sorted(folder.glob("*.parquet"))[1:]:
        path.unlink()
    soundness.forget_gone()
    assert len(footers._read) == len(soundness._known) == 1


def test_a_noted_file_that_is_gone_or_was_written_anew_is_looked_at(store: Store) -> None:
    last, other = (next(_catalogue(store).parent.glob(f"*.live{number}.parquet")) for number in (SECONDS - 1, 0))
    last.unlink()
    assert powers(store) == list(range(SECONDS))
    other.write_bytes(b"PAR1 nothing")
    assert powers(Store.open(store.root)) == list(range(SECONDS))


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        json.dumps({"format": 10**6, "columns": [], "files": {}}).encode(),
        b'{"format": 3, "columns": [["no such"]], "files": {}}',
        b'{"format": 3, "columns": [], "files": []}',
        b'{"format": 3, "columns": [["ts"]], "files": {"LIVE": 1}}',
        b'{"format": 3, "columns": [["ts"]], "files": {"LIVE": [1, 2, 3, 4, {}]}}',
    ],
)
def test_a_strange_copy_changes_no_answer(store: Store, text: bytes) -> None:
    path = _catalogue(store)
    name = next(path.parent.glob("*.live0.parquet")).name
    text = text.replace(b"LIVE", name.encode())
    path.write_bytes(b"%08x" % zlib.crc32(text) + text)
    assert powers(store) == list(range(SECONDS))


def test_a_flipped_bit_in_the_copy_changes_no_answer(store: Store) -> None:
    path = _catalogue(store)
    whole = path.read_bytes()
    for bit in random.Random(3).sample(range(8 * len(whole)), count(120, short=2)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        _forget()
        assert powers(Store.open(store.root)) == list(range(SECONDS)), bit


def test_a_copy_that_is_a_pipe_or_a_link_is_not_opened(store: Store) -> None:
    path = _catalogue(store)
    path.unlink()
    os.mkfifo(path)
    assert powers(store) == list(range(SECONDS))
    path.unlink()
    path.symlink_to("/dev/zero")
    assert powers(Store.open(store.root)) == list(range(SECONDS))
