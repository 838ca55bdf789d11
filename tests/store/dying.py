"""How the scripts of these tests die: killed at a random moment, or at a stated step of what they do."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DURABLE = ((os, "fsync"), (os, "fdatasync"), (Path, "replace"), (os, "rename"), (os, "unlink"))
"""Functions that change the disk in steps that matter."""


def forked(work: Callable[[], int]) -> int:
    """Do the work in a child: its exit status."""
    child = os.fork()
    if child == 0:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fails_at(number: int, die: Callable[[], object], functions: Sequence[tuple[Any, str]]) -> Callable[[], bool]:
    """From now on the call with this number (from 1) of any of the functions dies. Whether it was reached."""
    calls = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                die()
            return real(*args, **kwargs)

        return call

    for owner, name in functions:
        setattr(owner, name, failing(getattr(owner, name)))
    return lambda: calls >= number


def killed_in_turn(root: Path, work: Callable[[], None]) -> None:
    """Each line on stdin ("SECONDS") starts a child that works until it is killed so long after its first row."""
    acknowledged = root.with_name("acknowledged")
    for line in sys.stdin:
        before = acknowledged.stat().st_size if acknowledged.exists() else 0
        child = os.fork()
        if child == 0:
            work()
        while not acknowledged.exists() or acknowledged.stat().st_size == before:
            time.sleep(0.001)
        time.sleep(float(line))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        sys.stdout.write("killed\n")
        sys.stdout.flush()
