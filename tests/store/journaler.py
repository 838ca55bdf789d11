"""A process that journals, publishes, seals and compacts, and may die while it does; run as a script by the tests.

    journaler.py loop STORE    every line on stdin ("SECONDS") starts a child that journals, with everything that its
                               thread does, until it is killed so long after its first row
    journaler.py step STORE STRIDE     one child per step (every STRIDE-th) of publishing, sealing, correcting and
                                       compacting: it dies at that step; prints one line a step, the last of them 100
    journaler.py prune STORE STRIDE    prunes copies of the store, killed0 and so on, each by a child that dies STRIDE
                                       steps later than the one before; prints one line each, the last of them 100
    journaler.py stream STORE PAUSE_S  journals until stdin ends, for two minutes at most, and compacts meanwhile; the
                               pause is that between two rows

Rows that were acknowledged are in the file `acknowledged` beside the store, one line each: gpu, second, power.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.rows import replacing
from whorl.store.system import files
from whorl.tests.store.dying import DURABLE, fails_at, forked, killed_in_turn

S = 10**9
BEGAN = 1_700_006_400 * S  # long ago: its hours are over, so that they are compacted


def batch(gpus: list[str], second: int, power: int) -> pa.RecordBatch:
    rows = len(gpus)
    return pa.RecordBatch.from_pydict(
        {
            "ts": pa.array([BEGAN + second * S] * rows, pa.timestamp("ns")),
            "cluster": ["c"] * rows,
            "gpu": gpus,
            "power_mw": pa.array([power] * rows, pa.int32()),
        }
    )


class Acknowledging:
    """Appends, and notes what was acknowledged."""

    def __init__(self, root: Path) -> None:
        self._handle = os.open(root.with_name("acknowledged"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._write = os.write  # the real one

    def __call__(self, journal: Journal, gpu: str, second: int, power: int) -> None:
        journal.append_batch(batch([f"{gpu}0", f"{gpu}1"], second, power))
        self._write(self._handle, f"{gpu}0 {second} {power}\n{gpu}1 {second} {power}\n".encode())


def _until_killed(root: Path) -> None:
    store = Store.open(root)
    noted = Acknowledging(root)
    with Journal(store.root, "n", publish_s=0.02, segment_s=0.06, settle_s=0.005, grace_s=0.02) as journal:
        for number in range(10**6):
            noted(journal, f"p{os.getpid()}-", number, number)
            if number % 7 == 3:  # a correction of a row that may be anywhere by now
                noted(journal, f"p{os.getpid()}-", number // 2, -number)


def _step(root: Path, stride: int) -> None:
    for fatal in range(1, 1000, stride):
        status = forked(lambda: _fail_at(root, fatal))  # noqa: B023 - called at once
        sys.stdout.write(f"{status}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        if status == 100:
            return


def _fail_at(root: Path, fatal: int) -> int:
    """Everything that changes the disk, once; the process dies after so many calls."""
    files.temporary_name(root)  # looks once at who this process is
    noted = Acknowledging(root)
    failed = fails_at(fatal + 1, lambda: os._exit(9), [*DURABLE, (os, "write")])
    store = Store.open(root)
    journal = store.journal("n", background=False, offline=True)
    noted(journal, f"s{fatal}-", 0, 1)
    journal.publish()
    noted(journal, f"s{fatal}-", 1, 2)
    noted(journal, f"s{fatal}-", 0, 3)
    journal.seal()
    noted(journal, f"s{fatal}-", 1, 4)
    journal.publish()
    journal.close()
    from whorl.store import compaction

    compaction.compact(root, pace=replacing.OFFLINE)
    return 0 if failed() else 100


def _prune(root: Path, stride: int) -> None:
    for number in range(1000):
        copy = root.with_name(f"killed{number}")
        shutil.copytree(root, copy)
        status = forked(lambda: _die_pruning(copy, number * stride + 1))  # noqa: B023 - called at once
        sys.stdout.write(f"{status}\n")
        if status == 100:
            return


def _die_pruning(root: Path, fatal: int) -> int:
    from whorl.store import retention

    files.temporary_name(root)  # looks once at who this process is
    failed = fails_at(fatal, lambda: os._exit(9), DURABLE)
    retention.prune(root, 86_400, pace=replacing.OFFLINE, now=BEGAN + 2 * 86_400 * S)
    return 0 if failed() else 100


def _stream(root: Path, pause_s: float) -> None:
    store = Store.open(root)
    noted = Acknowledging(root)
    stop = threading.Event()

    def compacting() -> None:
        while not stop.wait(0.3):
            from whorl.store import compaction

            with contextlib.suppress(StoreError):
                compaction.compact(root, pace=replacing.Pace(1.5, 3.0))

    thread = threading.Thread(target=compacting)
    thread.start()
    watched = threading.Thread(target=sys.stdin.read, daemon=True)
    watched.start()
    last = time.monotonic() + 120
    with Journal(store.root, "n", publish_s=0.15, segment_s=0.6, settle_s=1.5, grace_s=3.0) as journal:
        number = 0
        while watched.is_alive() and time.monotonic() < last:
            noted(journal, "g", number, number)
            number += 1
            time.sleep(pause_s)
    stop.set()
    thread.join()


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    root = Path(place)
    if verb == "loop":
        killed_in_turn(root, lambda: _until_killed(root))
    elif verb == "step":
        _step(root, int(rest[0]))
    elif verb == "prune":
        _prune(root, int(rest[0]))
    else:
        _stream(root, float(rest[0]))
