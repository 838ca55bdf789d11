"""Steps that a test takes while `whorl collect` runs in this process: each waits for what it needs to see."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from whorl.errors import WhorlError

PATIENCE_S = 60.0
LONG = ("--duration", "100")  # longer than any wait: `meanwhile` ends the collector


def until(condition: Callable[[], object]) -> None:
    """Wait for something that a store must show; while there is no store yet, it shows nothing."""
    last = time.monotonic() + PATIENCE_S
    while True:
        with suppress(WhorlError):
            if condition():
                return
        assert time.monotonic() < last, "it did not come to pass"
        time.sleep(0.2)  # looking costs more than waiting


@contextmanager
def meanwhile(steps: Callable[[], object]) -> Iterator[None]:
    """Take these steps in a thread, then end the collector of this process as SIGTERM does."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            steps()
        except BaseException as error:
            failures.append(error)
        if callable(signal.getsignal(signal.SIGTERM)):  # a collector runs, and notes it
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failures:
        raise failures[0]
