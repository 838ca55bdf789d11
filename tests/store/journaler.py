"""A process that journals, publishes, seals and compacts; run as a script by the tests.

    journaler.py STORE PAUSE_S    journals until stdin ends, for two minutes at most, and compacts meanwhile; the pause
                                  is that between two rows

Rows that were acknowledged are in the file `acknowledged` beside the store, one line each: gpu, second, power.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.journal import Journal
from whorl.store.rows import replacing

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
    _stream(Path(sys.argv[1]), float(sys.argv[2]))
