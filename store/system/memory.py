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
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")  # the first line about one
# Of a file, and of no device. Not what can only be read: another thread may load a library, and write there meanwhile.
_OF_CODE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ [1-9]\d*\s+/(?!dev/)")
_MADV_DONTNEED = 4


def give_back(*, thoroughly: bool = False) -> None:
    """Give freed memory back to the system, where the C library can; it takes half a millisecond, thoroughly 20."""
    gc.collect(2 if thoroughly else 1)  # cycles: what pyarrow says of a file is one
    if (trim := _trim()) is not None:
        trim(0)


def give_back_code() -> None:
    """Let go of what only the start used of the code of programs and libraries.

    What is used again comes from the file cache. Code that was changed in memory stays, as by a debugger. Does nothing
    where the kernel is not Linux.
    """
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        code = None
        for line in _MAPPINGS.read_text().splitlines():
            if _MAPPING.match(line):
                code = _OF_CODE.match(line)
            elif code and line.startswith("Anonymous:") and line.split()[1] == "0":
                begin, end = (int(edge, 16) for edge in code.groups())
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
