"""Freed memory goes back to the system: a collector shares a node with those who paid for it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from collections.abc import Iterator
from typing import Any


def give_back(*, thoroughly: bool = False) -> None:
    """Give freed memory back to the system, where the C library can; it takes half a millisecond, thoroughly 20."""
    gc.collect(2 if thoroughly else 1)  # cycles: what pyarrow says of a file is one
    if (trim := _trim()) is not None:
        trim(0)


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


@functools.cache
def _trim() -> Any:
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None
