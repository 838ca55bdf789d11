"""A copy made while a collector wrote: `doctor` names rows that are there twice, and `compact` mends that."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.tests.store.journaler import batch


def copied(store: Store, to: Path, *, journal: bool) -> Store:
    """A copy with the published rows of a collector and with the segment that took their place; its journal as well."""
    writer = store.journal("n", background=False, offline=True)
    for second in range(6):
        writer.append_batch(batch(["g", "h"], second, second))
        if second == 3:
            writer.publish()
    shutil.copytree(store.root, to)
    writer.close()
    shutil.copytree(store.root / "telemetry", to / "telemetry", dirs_exist_ok=True)
    for path in () if journal else (to / "journal").glob("*.arrow"):
        path.unlink()
    for path in (to / "telemetry").rglob("*.parquet"):
        os.utime(path, (time.time() - 3600,) * 2)
    return Store.open(to)


def rows(store: Store) -> tuple[int, int]:
    [found] = store.sql("select count(*) n, count(distinct (gpu, ts)) d from telemetry").to_pylist()
    return found["n"], found["d"]


@pytest.mark.long(short=1)
@pytest.mark.parametrize("journal", [True, False])
def test_rows_that_are_there_twice_are_named_and_mended(store: Store, tmp_path: Path, journal: bool) -> None:
    copy = copied(store, tmp_path / "copy", journal=journal)
    assert rows(store) == (12, 12)
    assert rows(copy) == (20, 12)
    [(path, reason)] = copy.check().items()
    assert reason.startswith("8 of its rows are in ")
    assert "whorl store compact" in reason
    assert path.parent.parent.parent.name == "telemetry"
    copy.compact(offline=True)
    assert rows(copy) == (12, 12)
    assert copy.check() == store.check() == {}


def test_pruning_counts_rows_that_are_there_twice_once(store: Store, tmp_path: Path) -> None:
    copy = copied(store, tmp_path / "copy", journal=False)
    copy.prune("1h", offline=True)
    assert copy.sql("select sum(n) n from telemetry_minutes").to_pylist() == [{"n": 12}]
    assert rows(copy) == (0, 0)
