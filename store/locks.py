"""Locks on files: held by a process until it ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from pathlib import Path

from ..errors import StoreError
from . import files

log = logging.getLogger(__name__)

COMPACTING = "compact.lock"

_POLL_S = 0.02
_GLANCE_S = 0.3  # who only looks whether a lock is free holds it for an instant


class Lock:
    """A lock that is held: `release` gives it back."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def locked(path: Path, what: str, *, wait_s: float = 0.0) -> Lock:
    """Take the lock at `path`; the file says who holds it.

    Raises StoreError, which names the holder and `what` it holds, where another living process has it still after
    `wait_s` seconds. On a file system without locks, the file's content decides.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise files.failed("write", path, error) from error
    try:
        _take(handle, path, what, wait_s)
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{files.host()} {files.space()} {os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(handle)
        raise
    return Lock(handle)


def _take(handle: int, path: Path, what: str, wait_s: float) -> None:
    last = time.monotonic() + max(wait_s, _GLANCE_S)
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < last:
                time.sleep(_POLL_S)
                continue
            raise _taken(path, what) from None
        except OSError as error:
            log.warning("%s cannot be locked (%s): its content decides", path, error.strerror or error)
            host, space, pid = _holder(path)
            if (host, space) == (files.host(), files.space()) and pid != os.getpid() and files.alive(pid):
                raise _taken(path, what) from None
        return


def _holder(path: Path) -> tuple[str, str, int]:
    try:
        host, space, pid = path.read_text().split()
        return host, space, int(pid)
    except (OSError, ValueError):
        return "", "", 0


def _taken(path: Path, what: str) -> StoreError:
    host, _, pid = _holder(path)
    who = f"process {pid} on {host}" if host else "another process"
    return StoreError(f"{who} holds {what} ({path}): stop it first, or choose another name")


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock at `path`, as far as can be told; a lock that was never taken is free."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return not path.exists()
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        host, space, pid = _holder(path)
        return (host, space) == (files.host(), files.space()) and not files.alive(pid)
    finally:
        os.close(handle)
    return True
