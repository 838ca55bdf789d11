"""Files that appear whole or not at all: written under a temporary name, made durable, renamed into place."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

from ..errors import StoreError
from . import processes

TEMPORARY = ".tmp-"


def temporary_name(final: Path) -> Path:
    """A temporary name beside `final` that says who writes it, so that a dead writer's files can be removed."""
    return final.with_name(f"{TEMPORARY}{processes.owner()}-{uuid4().hex[:8]}")


def open_regular(path: Path) -> int:
    """A regular file, open for reading. Raises OSError, also for a link, a pipe, or a device: nothing is waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.EINVAL, "it is a link and no regular file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return handle


def remove(path: Path) -> None:
    """Remove a file if it is there and this user may."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def files_under(folder: Path, wanted: Callable[[str], bool]) -> Iterator[str]:
    """The files in a folder and those below it whose names are wanted. Raises OSError where a folder is unreadable."""
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if wanted(entry.name):
                        yield entry.path
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue


def sync(handle: int) -> None:
    """Make what was written to an open file durable. Raises OSError."""
    os.fdatasync(handle) if hasattr(os, "fdatasync") else os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def failed(action: str, path: Path, error: OSError) -> StoreError:
    """The sentence for a file operation that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        reason = "no space is left there; nothing was stored: free some space and run the command again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason = "this user may not write there: change the folder's permissions or choose another store"
    else:
        reason = error.strerror or str(error)
    return StoreError(f"cannot {action} {path}: {reason}")


def put(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a small file atomically and durably; `mode` are its permissions (None: by the umask). Raises OSError."""
    temporary = temporary_name(path)
    try:
        with temporary.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            sync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        remove(temporary)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file atomically and durably. Raises StoreError."""
    try:
        put(path, content)
    except OSError as error:
        raise failed("write", path, error) from error
