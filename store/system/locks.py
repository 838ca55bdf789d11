"""Locks on files: held by a process until it ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from pathlib import Path

from ...errors import StoreError
from . import processes
from .files import failed, held, opened, share_file

log = logging.getLogger(__name__)

JOURNALS = "journal"  # the folder of the locks of journals

_POLL_S = 0.02
_GLANCE_S = 0.3  # a process that only looks whether a lock is free holds it for an instant


class Lock:
    """A lock that is held: `release` gives it back."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @property
    def handle(self) -> int:
        """The number of the open file: a child that keeps it holds the lock too, until it ends."""
        return self._handle

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def attempt(handle: int, *, shared: bool = False) -> bool | None:
    """Try to lock an open file. True: it is locked now; False: another holds it; None: the file system has no locks."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def wait(handle: int, wait_s: float) -> bool | None:
    """Try for some seconds; the answer is that of `attempt`."""
    last = time.monotonic() + wait_s
    while (got := attempt(handle)) is False and time.monotonic() < last:
        time.sleep(_POLL_S)
    return got


def locked(path: Path, label: str, *, wait_s: float = 0.0) -> Lock:
    """Take the lock at `path`; the file names the holder.

    Raises StoreError if another living process still has it after `wait_s` seconds; the message names the holder and
    what it holds, `label`. On a file system without locks, the file's content decides.
    """
    try:
        handle = _open(path)
    except OSError as error:
        raise failed("write", path, error) from error
    try:
        _take(handle, path, label, max(wait_s, _GLANCE_S))
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{processes.host()} {processes.pid_namespace()} {os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(handle)
        raise
    return Lock(handle)


def _open(path: Path) -> int:
    """Open the file of a lock. If it is missing, make it for all who may write to its folder. Raises OSError."""
    # For writing: NFS gives an exclusive lock only on a file that is open for writing.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with held(path.parent, below=path.parent.name == JOURNALS) as folder:
        handle = os.open(path.name, flags, 0o666, dir_fd=folder)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(handle)
            raise OSError(errno.EINVAL, "it is no lock file of whorl's: remove it", str(path))
        with contextlib.suppress(OSError):  # another user's file keeps its permissions
            share_file(handle, folder)
    return handle


def _take(handle: int, path: Path, label: str, wait_s: float) -> None:
    last = time.monotonic() + wait_s
    got = wait(handle, wait_s)
    if got is None:
        log.warning("%s cannot be locked because its file system has no locks; its content decides", path)
        while not (got := _holder(path)[2] == os.getpid() or not _holder_lives(path)) and time.monotonic() < last:
            time.sleep(_POLL_S)
    if not got:
        host, _, pid = _holder(path)
        holder = f"process {pid} on {host}" if host else "another process"
        raise StoreError(f"{holder} holds {label} ({path}): stop it first, or choose another name")


def _holder(path: Path) -> tuple[str, str, int]:
    """The host, the PID namespace and the process that a lock's file names."""
    try:
        with opened(path) as file:
            host, namespace, pid = file.read(1000).decode().split()
        return host, namespace, int(pid)
    except (OSError, ValueError):
        return "", "", 0


def _holder_lives(path: Path) -> bool | None:
    """Whether the process that a lock's file names lives; None for one of another host, or none."""
    host, namespace, pid = _holder(path)
    return processes.alive(pid) if (host, namespace) == (processes.host(), processes.pid_namespace()) else None


def is_held(path: Path) -> bool | None:
    """Whether somebody holds the lock at `path`, or this user may not look; a lock that was never taken is free.

    On a file system without locks the content of its file decides, on the host that it names; on others the answer is
    None.
    """
    try:
        with opened(path) as file:
            got = attempt(file.fileno(), shared=True)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return _holder_lives(path) if got is None else not got
