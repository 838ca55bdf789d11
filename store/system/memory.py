"""Freed memory goes back to the system: a collector shares a node with those who paid for it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAPPINGS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+)")
_MADV_DONTNEED = 4


def give_back(*, thoroughly: bool = False) -> None:
    """Give freed memory back to the system, where the C library can; it takes half a millisecond, thoroughly 20."""
    gc.collect(2 if thoroughly else 1)  # cycles: what pyarrow says of a file is one
    if (trim := _trim()) is not None:
        trim(0)


def give_back_code() -> None:
    """Let go of what only the start used of programs and libraries: 45 MB with pyarrow, of which 20 are used again.

    What is used again comes from the file cache. Only what nobody may write is let go, and nothing that was changed
    in memory, as by a debugger. Does nothing where the kernel is not Linux.
    """
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        begin = end = 0
        for line in _MAPPINGS.read_text().splitlines():
            if found := _MAPPING.match(line):
                kept = "w" in found[3] or found[4] == "0"  # the inode: 0 is no file
                begin, end = (0, 0) if kept else (int(found[1], 16), int(found[2], 16))
            elif line.startswith("Anonymous:") and end > begin and line.split()[1] == "0":
                advise(begin, end - begin, _MADV_DONTNEED)


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
