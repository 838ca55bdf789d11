"""Parts and their functions, in a module that workers can import: some fail, some kill the worker that makes them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from distributed import Status, get_worker

from whorl.errors import InputError, StoreError

FAILURES: dict[int, Exception] = {
    2: StoreError("a.parquet is damaged\nat its end"),
    5: OSError(5, "Input/output error"),
    7: pa.ArrowInvalid("no Parquet"),
    9: MemoryError(),
}


@dataclass(frozen=True)
class Square:
    """`folder`: where functions leave a mark that they were here."""

    number: int
    folder: Path = Path()


PARTS = [Square(number) for number in range(12)]
SQUARES = [number**2 for number in range(12)]


def named(part: Square) -> str:
    return f"square {part.number}"


def squared(part: Square) -> int:
    time.sleep(0.002 * (part.number % 3))
    return part.number**2


def slowly(part: Square) -> int:
    time.sleep(0.05)
    return part.number**2


def failing(part: Square) -> int:
    if part.number in FAILURES:
        raise FAILURES[part.number]
    return squared(part)


def refused(part: Square) -> int:
    raise InputError(f"{part.number} is not asked for")


def wrong(part: Square) -> float:
    return 1 / part.number


def process(part: Square) -> int:
    time.sleep(0.05)
    return os.getpid()


def killed_once(part: Square) -> int:
    """Part 3 kills its process, the first time."""
    mark = part.folder / "killed"
    if part.number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return squared(part)


def paused_once(part: Square) -> int:
    """Part 1 pauses its worker, the first time, as Dask does with one whose memory is nearly full; before, the worker
    gets the part that it would make next."""
    mark = part.folder / "paused"
    if part.number == 1 and not mark.exists():
        mark.touch()
        time.sleep(0.5)
        worker = get_worker()
        worker.loop.add_callback(setattr, worker, "status", Status.paused)
    time.sleep(0.05)
    return squared(part)


def greedy(part: Square) -> int:
    """Part 1 takes more memory than a worker may have."""
    blocks = []
    while part.number == 1:
        blocks.append(bytearray(os.urandom(1024)) * (64 << 10))
    return squared(part)
