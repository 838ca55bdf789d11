"""Processes around a store with table logs: `log_roles.py ROLE STORE` writes, compacts or reads.

ROLE is `collect`, `compact`, `read-delta` or `read-iceberg`. The compactor goes on until the collector is over and
replaced files went, the readers until the compactor is over. What was replaced stays for half a second, and for five
after a log moved on. At its end each prints JSON: how often it did what it does, and how many seconds of readings it
stored or saw, or replaced files went.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from whorl.store import Store, notes, registrations, replacing, table_logs
from whorl.store.schema import table
from whorl.tests.store.journaler import BEGAN, LATER, S

ROUNDS = 15
MOST_PASSES = 100


def goes_on(root: Path, role: str) -> bool:
    time.sleep(0.2)
    return not root.with_suffix(f".{role}").exists()


def collect(root: Path) -> tuple[int, int]:
    """A reading of two GPUs for each second of the store's time, sealed ten at a time."""
    store = Store(root)
    for number in range(ROUNDS):
        with store.journal("n", background=False) as journal:
            for second in range(10 * number, 10 * number + 10):
                journal.append(BEGAN + second * S, ["a", "b"], {"cluster": "c", "power_mw": [second, second]})
        time.sleep(0.4)
    return ROUNDS, 10 * ROUNDS


def compact(root: Path) -> tuple[int, int]:
    """Passes of a compaction, each followed by all logs."""
    store, passes, gone = Store(root), 0, 0
    replaced = set[str]()
    while goes_on(root, "collect") or (not gone and passes < MOST_PASSES):
        with contextlib.suppress(replacing.TakenError):
            store.compact(now=LATER)
        for moved in table_logs.move_on(store):
            assert moved.failure is None, moved.failure
        replaced |= {*notes.newest(root).old}
        gone = sum(not (root / name).exists() for name in replaced)
        passes += 1
    return passes, gone


def rows_in_log(log: str, root: Path) -> Any:
    """The readings of a log, as Arrow; the newest version when it is opened."""
    if log == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(root / "telemetry")).to_pyarrow_table(columns=["gpu", "ts", "power_mw"])
    from pyiceberg.catalog.sql import SqlCatalog

    with contextlib.closing(SqlCatalog("whorl", uri=f"sqlite:///{root}/iceberg/catalog.db")) as catalog:
        return catalog.load_table("whorl.telemetry").scan().to_arrow()


def read(log: str, root: Path) -> tuple[int, int]:
    """Reads the whole log again and again: every second that was in it before, of both GPUs, each once."""
    reads = seconds = 0
    while goes_on(root, "compact") or reads < 2:
        rows = rows_in_log(log, root)
        for gpu in ("a", "b"):
            stored = rows.filter(pa.compute.equal(rows["gpu"], gpu))["power_mw"].to_pylist()
            assert sorted(stored) == [*range(len(stored))], "a row is there twice, or missing"
        assert len(rows) >= 2 * seconds, "rows went"
        seconds = len(rows) // 2
        reads += 1
    return reads, seconds


def quick_pace(root: Path, *, offline: bool = False) -> replacing.Pace:
    return replacing.Pace(0.05, 0.05, 0.5)


def main(role: str, root: Path) -> None:
    replacing.pace_of = quick_pace
    registrations.GRACE_S = 5.0
    table_logs._TABLES = (table("telemetry"), table("late"))
    try:
        match role:
            case "collect":
                counts = collect(root)
            case "compact":
                counts = compact(root)
            case _:
                counts = read(role.removeprefix("read-"), root)
    finally:  # also where it failed: nobody waits for it
        root.with_suffix(f".{role}").touch()
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
