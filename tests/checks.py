"""What tests of every folder need: a value that must be there, and a wait for what must come to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from subprocess import Popen
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE_S = 120.0


def not_none(value: T | None) -> T:
    """A value that must be known."""
    assert value is not None
    return value


def until(condition: Callable[[], object], process: Popen[Any] | None = None, *, every_s: float = 0.02) -> None:
    """Wait for what must come to pass, for two minutes at most, and no longer than a process runs."""
    last = time.monotonic() + PATIENCE_S
    while not condition():
        assert process is None or process.poll() is None, process and process.communicate()
        assert time.monotonic() < last, "it did not come to pass"
        time.sleep(every_s)
