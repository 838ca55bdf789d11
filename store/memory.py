"""Freed memory goes back to the system: a collector shares a node with those who paid for it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from typing import Any


def give_back(*, thoroughly: bool = False) -> None:
    """Give freed memory back to the system, where the C library can; it takes half a millisecond, thoroughly 20."""
    gc.collect(2 if thoroughly else 1)  # cycles: what pyarrow says of a file is one
    if (trim := _trim()) is not None:
        trim(0)


@functools.cache
def _trim() -> Any:
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None
