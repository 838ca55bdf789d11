"""Damage and ill luck in one place do not spread: other rows are stored, sealed, compacted and read."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.rows import footers, journal_file
from whorl.tests.store.journaler import BEGAN, S

T = TypeVar("T")
LATER = BEGAN + 20 * 86_400 * S
COUNT = "select count(*) n, count(distinct (cluster, gpu, ts)) keys, sum(power_mw)::bigint power from telemetry"
HISTORY = "select sum(n)::bigint, sum(power_mw_mean * n)::bigint from history"


def rows(seconds: range, power: int = 1, gpu: str = "a") -> pa.Table:
    return pa.table(
        {
            "ts": pa.array([BEGAN + second * S for second in seconds], pa.timestamp("ns")),
            "cluster": ["c"] * len(seconds),
            "gpu": [gpu] * len(seconds),
            "power_mw": pa.array([power] * len(seconds), pa.int32()),
        }
    )


def batch(seconds: range, power: int = 1) -> pa.RecordBatch:
    return rows(seconds, power).to_batches()[0]


def counted(store: Store) -> tuple[int, ...]:
    (row,) = store.sql(COUNT).to_pylist()
    return tuple(row.values())


def strew(root: Path) -> None:
    """Torn, foreign and newer files in every folder, under names that whorl could have given."""
    folders = [path for path in root.rglob("*") if path.is_dir() and path.name not in ("journal", "pending")]
    for folder in folders:
        (folder / "torn.2.parquet").write_bytes(b"PAR1 no more")
        pq.write_table(pa.table({"gpu": [1], "ts": [1], "side": ["old"]}), folder / "foreign.1.parquet")
        newer = rows(range(1)).replace_schema_metadata({"whorl.table": folder.name, "whorl.format": "99"})
        pq.write_table(newer, folder / "newer.parquet")
    (root / "journal").mkdir(exist_ok=True)
    (root / "journal" / "x-1-a-0.telemetry.0.arrow").write_bytes(b"no journal" * 50)
    (root / "pending").mkdir(exist_ok=True)
    (root / "pending" / "torn.json").write_text('{"format": 3, "mov')


@pytest.mark.long
def test_strange_files_are_left_where_they_are(store: Store) -> None:
    store.append({"telemetry": rows(range(100))}, "x")
    strew(store.root)
    strange = {
        path for path in store.root.rglob("*") if path.name.split(".")[0] in ("torn", "foreign", "newer", "x-1-a-0")
    }
    store = Store.open(store.root)
    store.append({"telemetry": rows(range(50, 150), power=2)}, "y")
    with store.journal("n", background=False, offline=True) as journal:
        journal.append_batch(batch(range(140, 160), power=3))
        journal.publish()
        assert counted(store) == (160, 160, 290)
    assert counted(Store.open(store.root)) == (160, 160, 290)
    assert len(store.arrow("telemetry")) == len(store.scan("telemetry").collect()) == 160
    store.compact(offline=True)
    store.prune("1d", offline=True)
    assert store.sql(HISTORY).to_pylist() == [dict(zip(store.sql(HISTORY).column_names, (160, 290), strict=True))]
    assert {path for path in strange if not path.exists()} == set()
    unsound = Store.open(store.root).check()
    assert strange <= unsound.keys()


def test_a_file_damaged_inside_hinders_neither_storing_nor_compaction(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.append({"telemetry": rows(range(5000))}, "x")
    (damaged,) = (store.root / "telemetry").rglob("x.parquet")
    content = bytearray(damaged.read_bytes())
    content[100:140] = bytes(byte ^ 255 for byte in content[100:140])
    damaged.write_bytes(content)
    os.utime(damaged, (1, 1))  # whose bounds are not remembered
    with store.journal("n", background=False, offline=True) as journal:
        journal.append_batch(batch(range(10)))
        journal.publish()
        assert len(store.arrow("telemetry")) == 10
        assert list(store.skipped) == [damaged]
    store.append({"telemetry": rows(range(10_000, 10_010))}, "y")
    with caplog.at_level(logging.WARNING):
        store.compact(offline=True)
        store.prune("1d", offline=True)
    assert "restore it from a backup" in caplog.text
    damaged.unlink()
    assert store.sql("select sum(n)::bigint n from history").to_pylist() == [{"n": 20}]


def test_a_seal_whose_end_failed_twice_loses_nothing(store: Store) -> None:
    """`latest` cannot be written, nor, at the next attempt, a note."""
    journal = Journal(store.root, "n", thread=False, settle_s=0)
    journal.append_batch(batch(range(10)))
    journal.publish()
    for name in ("latest", "replaced"):
        folder = store.root / name
        folder.rename(store.root / f"{name}-away")
        if name == "latest":
            folder.write_text("in the way")
            with pytest.raises(StoreError, match="cannot write"):
                journal.seal()
    (store.root / "replaced").write_text("in the way")
    with contextlib.suppress(StoreError):
        journal.seal()
    for name in ("latest", "replaced"):
        (store.root / name).unlink()
        (store.root / f"{name}-away").rename(store.root / name)
    assert counted(store) == (10, 10, 10)
    journal.close()
    for note in (store.root / "replaced").glob("*.[12].parquet"):
        os.utime(note, (time.time() - 7200,) * 2)
    store = Store.open(store.root)
    assert not list((store.root / "journal").glob("*.arrow"))
    assert counted(store) == (10, 10, 10)
    assert store.sql("select count(*) n from latest").to_pylist() == [{"n": 1}]


def test_other_rows_under_a_name_do_not_take_the_place_of_the_first(store: Store) -> None:
    store.append({"telemetry": rows(range(10))}, "x")
    store.append({"telemetry": rows(range(5, 15), power=2)}, "x")
    assert counted(store) == (15, 15, 25)


def test_segments_do_not_say_when_rows_were_written_while_the_next_is_open(store: Store) -> None:
    """It costs a quarter of a segment, and only rows of the same instants could need it."""
    with store.journal("n", background=False, offline=True) as journal:
        for began in (0, 10, 20):
            journal.append_batch(batch(range(began, began + 5)))
            journal.publish()
            journal._turn()
            journal.append_batch(batch(range(began + 5, began + 10)))
            journal.seal()
        columns = [pq.read_schema(path).names for path in (store.root / "telemetry").rglob("n-*.parquet")]
    assert columns
    assert all("written" not in names for names in columns)


def test_a_collector_waits_while_a_compaction_seals_what_its_forerunner_left(store: Store) -> None:
    code = """if True:
        import sys
        from pathlib import Path
        from whorl.store import compaction
        from whorl.store.system import locks
        root = Path(sys.argv[1])
        (root / "journal").mkdir(exist_ok=True)
        with compaction.lock(root), locks.locked(root / "journal" / "n.lock", "a journal named n"):
            print(flush=True)
            sys.stdin.readline()
        """
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, store.root], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        end = threading.Timer(1.0, other.stdin.close)
        end.start()
        with store.journal("n", background=False) as journal:
            journal.append_batch(batch(range(3)))
        end.join()
    assert counted(store) == (3, 3, 3)


def _failing(real: Callable[..., T], name: str, times: int = sys.maxsize) -> Callable[..., T]:
    """A function of `os` that fails so many times for files whose names begin so, as on a bad disk."""
    left = iter(range(times))

    def failing(path: str | Path, *rest: Any, **more: Any) -> T:
        if isinstance(path, str | Path) and Path(path).name.startswith(name) and next(left, None) is not None:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path, *rest, **more)

    return failing


@pytest.mark.parametrize("call", ["lstat", "open"])
def test_a_moment_in_which_a_file_cannot_be_read_stores_no_row_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store.append({"telemetry": rows(range(3))}, "first")
    footers._read.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, _failing(getattr(os, call), "first", 1))
        store.append({"telemetry": rows(range(2), power=5)}, "again")
    assert counted(Store.open(store.root)) == (3, 3, 11)


def test_late_rows_stay_where_they_are_while_a_file_cannot_be_read(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.append({"telemetry": rows(range(3))}, "first")
    store.append({"telemetry": rows(range(2), power=5)}, "late")
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", _failing(os.lstat, "first"))
        store.compact(offline=True, now=LATER)
    assert "late rows stay where they are: " in caplog.text
    for _ in range(2):
        assert counted(Store.open(store.root)) == (3, 3, 11)
        store.compact(offline=True, now=LATER)


def test_a_stale_handle_of_the_views_is_no_traceback(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.stat

    def stale(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "whorl.duckdb":
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stale)
    assert counted(Store.open(store.root))[0] == 0


def test_a_journal_that_cannot_be_read_for_a_moment_does_not_win_over_rows_written_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.journal("n", background=False, offline=True)
    journal.append_batch(*rows(range(1)).to_batches())

    def failing(*_: object, **__: object) -> journal_file.Content:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journal_file, "read", failing)
        store.append({"telemetry": rows(range(1), power=2)}, "later")
    power = "select power_mw from telemetry"
    assert store.sql(power).to_pylist() == [{"power_mw": 2}]
    journal.close()
    assert store.sql(power).to_pylist() == [{"power_mw": 2}]
