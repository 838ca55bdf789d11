"""Make files durable while the caller goes on. The kernel does it, without a thread of this process.

A thread that waits for the disk must be woken for every step and must wait for the interpreter. On a busy node a
collector then misses its next tick. Linux has an asynchronous interface for this, on any file system: `io_submit` with
IOCB_CMD_FDSYNC (since 4.18). If it is missing (another system, or a container that forbids it), `open_background` gives
None, and the caller waits until its files are durable.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import time
from collections.abc import Iterable

# Numbers of io_setup, io_destroy, io_getevents and io_submit, which no C library has.
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2), "ppc64le": (227, 228, 229, 230)}
_MOST = 16  # files at once
_ENOUGH = 4  # files under way: more are begun when these have ended
_LOOK_S = 0.5  # looking for what has ended costs as much as beginning it
_REQUEST, _FDSYNC = "<QIIHhIQQqQII", 3  # struct iocb, little-endian; and what is asked for
_REQUEST_BYTES, _EVENT = 64, "<QQqq"


class Background:
    """Makes files durable in the background: call `begin` with the files whenever it is `ready`."""

    def __init__(self, numbers: tuple[int, int, int, int]) -> None:
        self._setup, self._destroy, self._getevents, self._submit = map(ctypes.c_long, numbers)
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._requests = ctypes.create_string_buffer(_MOST * _REQUEST_BYTES)
        begin = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * _MOST)(*(begin + _REQUEST_BYTES * at for at in range(_MOST)))
        self._events = ctypes.create_string_buffer(_MOST * struct.calcsize(_EVENT))
        self._now = (ctypes.c_long * 2)(0, 0)
        self._prepared: list[int] = []  # the files of the requests
        self._look_due = 0.0
        self.under_way = 0
        self._checked(self._setup, ctypes.c_long(2 * _MOST), ctypes.byref(self._context))

    def _checked(self, number: ctypes.c_long, *arguments: object) -> int:
        while (answer := int(self._call(number, *arguments))) < 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
        return answer

    def begin(self, handles: Iterable[int]) -> None:
        """Begin to make durable what was written to these files until now. Raises OSError.

        The files may be closed meanwhile.
        """
        several = list(handles)[:_MOST]
        if several != self._prepared:
            for at, handle in enumerate(several):
                request = (at, 0, 0, _FDSYNC, 0, handle, 0, 0, 0, 0, 0, 0)
                struct.pack_into(_REQUEST, self._requests, at * _REQUEST_BYTES, *request)
            self._prepared = several
        taken = 0
        while taken < len(several):
            pointers = ctypes.byref(self._pointers, taken * ctypes.sizeof(ctypes.c_void_p))
            number = self._checked(self._submit, self._context, ctypes.c_long(len(several) - taken), pointers)
            taken += number
            self.under_way += number

    def ready(self) -> bool:
        """Whether little enough is under way to begin more. Raises OSError if the disk failed."""
        now = time.monotonic()
        if self.under_way >= _ENOUGH or now >= self._look_due:
            self._look_due = now + _LOOK_S
            self.ended()
        return self.under_way < _ENOUGH

    def ended(self, *, wait: bool = False) -> bool:
        """Whether everything that `begin` was given is durable. Raises OSError if the disk failed."""
        while self.under_way:
            least, until = (ctypes.c_long(1), None) if wait else (ctypes.c_long(0), ctypes.byref(self._now))
            number = self._checked(self._getevents, self._context, least, ctypes.c_long(_MOST), self._events, until)
            if not number:
                return False
            self.under_way -= number
            for at in range(number):
                *_, result, _ = struct.unpack_from(_EVENT, self._events, at * struct.calcsize(_EVENT))
                if result < 0:
                    raise OSError(-result, os.strerror(-result))
        return True

    def close(self) -> None:
        """Wait for what is under way, then close the kernel's interface."""
        if self._context.value:
            self._call(self._destroy, self._context)
            self._context.value = 0


def open_background(handle: int) -> Background | None:
    """A `Background` that was tried on an open file; None if this machine cannot do it."""
    numbers = _NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
    if numbers is None:
        return None
    try:
        background = Background(numbers)
    except (OSError, AttributeError):
        return None
    try:
        background.begin([handle])
        background.ended(wait=True)
    except OSError:
        background.close()
        return None
    return background
