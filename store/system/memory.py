"""Freed memory goes back to the system: a collector shares a node with those who paid for it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator


def give_back() -> None:
    """Give freed memory back to the system, where the C library can."""
    gc.collect()  # cycles: what pyarrow says of a file is one
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for cycles meanwhile: among a million objects that stay, it takes an eighth of a query's time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
