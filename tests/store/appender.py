"""A process that appends to a store and may die while it does; run as a script by the tests.

    appender.py loop STORE        every line on stdin ("SECONDS") starts a child that appends groups until it is
                                  killed so long after its first group; answers with the groups acknowledged
    appender.py step STORE HOW    one child per step of one commit; HOW is "exit" or "raise"; prints one line a
                                  step: its number and what append did: 9 died, 3 raised, 0 returned, and 100
                                  where the commit has no such step
    appender.py many STORE WHO N  appends N groups

Children are forked from a process that has imported everything and started no thread.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pyarrow as pa

from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.system import files
from whorl.tests.store.dying import DURABLE, fails_at, forked, killed_in_turn


def group(name: str, rows: int = 3) -> dict[str, pa.Table]:
    """Rows of three tables that belong together; every value says which group it is of."""
    ids = [f"{name}-{i}" for i in range(rows)]
    return {
        "runs": pa.table({"run_id": ids, "cluster": ["c"] * rows, "import_id": [name] * rows}),
        "results": pa.table({"run_id": ids, "figure": ["time"] * rows, "value": [float(i) for i in range(rows)]}),
        "imports": pa.table({"import_id": [name], "rows": [rows]}),
    }


def _append_until_killed(store: Store, acknowledged: Path) -> None:
    handle = os.open(acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in range(1_000_000):
        name = f"g{os.getpid()}-{number}"
        store.append(group(name), name)
        os.write(handle, f"{name}\n".encode())


def _step(root: Path, how: str) -> None:
    """Make the n-th system call of a commit that matters fail, for every n."""
    for fatal in range(1000):
        status = forked(lambda: _fail_at(Store.open(root), fatal, how))  # noqa: B023 - called at once
        sys.stdout.write(f"{fatal} {status}\n")
        sys.stdout.flush()
        if status == 100:
            return


def _fail_at(store: Store, fatal: int, how: str) -> int:
    def fail() -> None:
        if how == "exit":
            os._exit(9)
        raise OSError(errno.EIO, "Input/output error")

    files.temporary_name(store.root)  # looks once at who this process is
    failed = fails_at(fatal + 1, fail, [*DURABLE, (Path, "mkdir"), (Path, "open")])
    try:
        store.append(group(f"step{fatal}"), f"step{fatal}")
    except StoreError:
        return 3
    return 0 if failed() else 100


def _many(root: Path, who: str, number: int) -> None:
    store = Store.create(root)
    for i in range(number):
        store.append(group(f"{who}-{i}"), f"{who}-{i}")


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    root = Path(place)
    if verb == "loop":
        killed_in_turn(root, lambda: _append_until_killed(Store.open(root), root.with_name("acknowledged")))
    elif verb == "step":
        _step(root, *rest)
    else:
        _many(root, rest[0], int(rest[1]))
