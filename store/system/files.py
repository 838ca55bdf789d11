"""Files that appear whole or not at all: written under a temporary name, made durable, renamed into place."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import stat
import time
import zlib
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from ...errors import StoreError
from . import processes

TEMPORARY = ".tmp-"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SMALL = 1 << 20  # bytes
_NO_FOLDER = "it is a link or a file, and no folder of a store"
_FOREIGN = "a link of another user leads to its folder: name the folder itself"
_LINKS = 40  # one after another, as the operating system follows


def temporary_name(final: Path) -> Path:
    """A temporary name beside `final`. It names the writer, so that a dead writer's files can be removed."""
    return final.with_name(f"{TEMPORARY}{processes.owner()}-{uuid4().hex[:8]}")


def opened(path: Path) -> BinaryIO:
    """A regular file, open for reading; never waits. Raises OSError, also for a link, a pipe or a device."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.EINVAL, "it is a link and no regular file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def read_small(path: Path, most: int = _SMALL) -> str:
    """The text of a regular file of at most so many bytes; never waits. Raises OSError, and ValueError."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError("it is too large")
    return content.decode()


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError, also for one that is nested too deeply or holds half a character."""
    text = text if isinstance(text, str) else text.decode()
    try:
        value = json.loads(text)
        if "\\u" in text:  # half of a surrogate pair, which no file and no terminal takes
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def json_with_sum(value: Any) -> bytes:
    """A value as JSON, with the CRC-32 of it before it."""
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%08x" % zlib.crc32(text) + text


def parse_json_with_sum(content: bytes) -> Any:
    """The value of what `json_with_sum` made. Raises ValueError where it has changed since."""
    if content[:8] != b"%08x" % zlib.crc32(content[8:]):
        raise ValueError("it is damaged")
    return parse_json(content[8:])


def _open_folder(folder: Path) -> int:
    """Open a folder that a user named; a link to it is followed only where it is trusted. Raises OSError.

    Trusted are the links of this user, of root, and of the folder's own owner. Another user, who may write to the
    folder above, can put a link in the folder's place at any moment.
    """
    owners: set[int] = set()
    place = folder
    for _ in range(_LINKS):
        try:
            handle = os.open(place, _FOLDER | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not place.is_symlink():
                raise
            link = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:  # by its handle: the one that is looked at is the one that is followed
                owners.add(os.fstat(link).st_uid)
                place = place.parent / os.readlink("", dir_fd=link)
            finally:
                os.close(link)
        else:
            if owners <= {os.geteuid(), 0, os.fstat(handle).st_uid}:
                return handle
            os.close(handle)
            break
    raise OSError(errno.ELOOP, _FOREIGN, str(folder))


def strange_folders(root: Path, names: Container[str]) -> list[str]:
    """Which of these names in a store are there and are no folders of it: links and files. Raises OSError."""
    with os.scandir(root) as entries:
        return sorted(e.name for e in entries if e.name in names and not e.is_dir(follow_symlinks=False))


def _depth(folder: Path) -> int:
    """How many of the last names of a folder's path are below a store: two of the folder of a day."""
    return 1 + folder.name.startswith("day=")


def held(folder: Path, *, below: bool = True) -> contextlib.AbstractContextManager[int]:
    """Open a folder of a store, following no link below the store: what is done by the handle stays in that folder.

    By its path it could become a link meanwhile, where others may write to the folder above. `below` is false for the
    store itself, and for a folder that is in none: a link to it is followed where it is trusted. Raises OSError.
    """
    return _held(folder, _depth(folder) if below else 0)


@contextlib.contextmanager
def _held(folder: Path, depth: int) -> Iterator[int]:
    """Open a folder, so many of whose last names are below a store. Raises OSError."""
    handle = _open_folder((folder, *folder.parents)[depth])
    try:
        for place in (folder, *folder.parents)[:depth][::-1]:
            if place.name in ("..", ""):
                raise OSError(errno.EINVAL, "it is outside the store", str(folder))
            try:
                inside = os.open(place.name, _FOLDER | os.O_NOFOLLOW, dir_fd=handle)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise OSError(errno.ENOTDIR, _NO_FOLDER, str(place)) from None
                raise OSError(error.errno, error.strerror, str(place)) from None
            os.close(handle)
            handle = inside
        yield handle
    finally:
        os.close(handle)


def remove_inside(root: Path, path: Path) -> None:
    """Remove a file under `root`, never one elsewhere. Raises OSError."""
    with _held(path.parent, len(path.parent.relative_to(root).parts)) as folder:
        os.unlink(path.name, dir_fd=folder)


def create(path: Path, flags: int = os.O_RDWR) -> int:
    """Make a file in a folder of a store, open as `flags` say; who may write to the folder may read it. Raises OSError.

    It lands in that folder and nowhere else, whatever becomes of its path.
    """
    with held(path.parent) as folder:
        return _create(folder, path.name, flags)


def _create(folder: int, name: str, flags: int, mode: int | None = None) -> int:
    """Make a file in an open folder, with these permissions or (None) readable by who may write to the folder."""
    flags |= os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(name, flags, 0o666 if mode is None else mode, dir_fd=folder)
    try:
        if mode is None:
            _share(handle, os.fstat(folder).st_mode, _READ)
        else:
            os.fchmod(handle, mode)
    except OSError:
        os.close(handle)
        os.unlink(name, dir_fd=folder)
        raise
    return handle


def rename(source: Path, target: Path) -> None:
    """Rename a file within folders of a store, never to or from elsewhere. Raises OSError."""
    with held(source.parent) as source_folder, held(target.parent) as target_folder:
        os.rename(source.name, target.name, src_dir_fd=source_folder, dst_dir_fd=target_folder)


def make_folder(folder: Path) -> None:
    """Make a folder of a store if it is missing. Those who may write to its parent may write to it. Raises OSError."""
    try:
        _make_in_parent(folder)
    except FileNotFoundError:  # of the parent; in /proc and under an automounter also of a folder that cannot be made
        if folder.parent == folder:
            raise
        make_folder(folder.parent)
        _make_in_parent(folder)


def _make_in_parent(folder: Path) -> None:
    with _held(folder.parent, _depth(folder) - 1) as parent:
        try:
            os.mkdir(folder.name, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(folder.name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise OSError(errno.ENOTDIR, _NO_FOLDER, str(folder)) from None
            _wait_until_shared(parent, folder.name)
            return
        with held(folder) as handle:
            _share(handle, os.fstat(parent).st_mode, _READ | _WRITE | _ENTER)
        os.fsync(parent)


_SHARED_S, _LOOK_S = 1.0, 0.01


def _wait_until_shared(parent: int, name: str) -> None:
    """Wait until this user may write to a folder, for a second at most: who makes one shares it a moment later."""
    if not os.access(".", os.W_OK, dir_fd=parent, effective_ids=True):
        return
    last = time.monotonic() + _SHARED_S
    while not os.access(name, os.W_OK, dir_fd=parent, effective_ids=True) and time.monotonic() < last:
        time.sleep(_LOOK_S)


_READ, _WRITE, _ENTER = 0o444, 0o222, 0o111
_CLASSES = ((stat.S_IWGRP, stat.S_IRWXG), (stat.S_IWOTH, stat.S_IRWXO))  # of a group, of all others


def _share(handle: int, above: int, rights: int) -> None:
    """Give rights to an open file or folder to those who may write to its folder, whose mode is `above`.

    Whatever this user's umask says. Raises OSError.
    """
    mode = os.fstat(handle).st_mode
    missing = rights & ~mode & sum(everything for write, everything in _CLASSES if above & write)
    if missing:
        os.fchmod(handle, stat.S_IMODE(mode) | missing)


def share_file(handle: int, folder: int) -> None:
    """Let those who may write to an open folder read and write a new file in it. Raises OSError."""
    _share(handle, os.fstat(folder).st_mode, _READ | _WRITE)


def make_root(root: Path) -> None:
    """Make the folder of a new store if it is missing. Raises OSError.

    A group may use it in a folder that was made for the group: one with the setgid bit that it may write to.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    with held(root.parent, below=False) as parent:
        try:
            os.mkdir(root.name, dir_fd=parent)
        except (FileExistsError, FileNotFoundError):  # somebody else has just made it, or it is `.`, which has no name
            if not root.is_dir():
                raise
            return
        with _held(root, 1) as handle:
            above = os.fstat(parent).st_mode
            if above & stat.S_ISGID and above & stat.S_IWGRP:
                os.fchmod(handle, stat.S_IMODE(os.fstat(handle).st_mode) | stat.S_ISGID | stat.S_IRWXG)


def clock(folder: Path) -> float:
    """The time by the clock of the file system of `folder`, s since 1970. The times of its files are by this clock.

    On a network file system it is the server's clock, the same for all hosts. If nothing can be written there, it is
    this host's clock.
    """
    try:
        return _probe(folder)
    except OSError:
        return time.time()


def touch(folder: Path) -> None:
    """Make a file in a folder and remove it. Raises StoreError where this user cannot."""
    try:
        _probe(folder)
    except OSError as error:
        raise failed("write", folder, error) from error


def _probe(folder: Path) -> float:
    """Make a file in a folder and remove it; its time, s since 1970. Raises OSError."""
    name = temporary_name(folder / "probe").name
    with held(folder, below=False) as opened:
        handle = _create(opened, name, os.O_WRONLY, 0o600)
        try:
            return os.fstat(handle).st_mtime
        finally:
            os.close(handle)
            os.unlink(name, dir_fd=opened)


def own(path: Path) -> bool:
    """Whether this user owns a file or folder. A reader does not repair a store that another user owns."""
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def remove(path: Path) -> None:
    """Remove a file if it is there and this user may."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none if it is missing. Names are quicker than a thousand paths. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


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
        reason = "no space is left there; what was stored before stays: free some space and run the command again"
    elif error.errno == errno.EROFS:
        reason = "its file system is read-only here: mount it for writing or choose another store"
    elif error.errno in (errno.EACCES, errno.EPERM):
        verb = "read" if action == "read" else "write"
        reason = f"this user has no {verb} permission there: change the permissions or choose another store"
    else:
        reason = error.strerror or str(error)
    return StoreError(f"cannot {action} {path}: {reason}")


def unreadable(error: OSError) -> str:
    """Why a file is left out that the system does not read."""
    return f"it cannot be read ({error.strerror or error}); repair it or move it out of the store"


@contextlib.contextmanager
def readable(root: Path) -> Iterator[None]:
    """If something under `root` cannot be read, raise a StoreError that names it."""
    try:
        yield
    except OSError as error:
        raise failed("read", Path(error.filename or root), error) from error


def write(path: Path, content: bytes, mode: int | None = None, *, below: bool = True) -> Path:
    """Write content durably under a temporary name beside `path`; returns that name. Raises OSError.

    A folder of a store that is missing is made.
    `mode` are its permissions (None: who may write to the folder may read it); `below` as in `held`.
    """
    if below:
        make_folder(path.parent)
    temporary = temporary_name(path)
    try:
        with held(path.parent, below=below) as folder:
            handle = _create(folder, temporary.name, os.O_RDWR, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            sync(file.fileno())
    except BaseException:
        remove(temporary)
        raise
    return temporary


def put(path: Path, content: bytes, mode: int | None = None, *, below: bool = False) -> None:
    """Write a small file atomically and durably; `mode` and `below` as in `write`. Raises OSError."""
    temporary = write(path, content, mode, below=below)
    try:
        with held(path.parent, below=below) as folder:
            os.rename(temporary.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
    except OSError:
        remove(temporary)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file atomically and durably. Raises StoreError."""
    try:
        put(path, content)
    except OSError as error:
        raise failed("write", path, error) from error


# -- how often a journal is made durable -----------------------------------------------------------------------

_NETWORK_S = 5.0

# `f_type` of statfs(2), from the file systems' own headers and the manual page.
_NETWORK = {
    0x6969: "NFS",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x00C36400: "Ceph",
    0x19830326: "BeeGFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB 2",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x5346414F: "AFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
}


@dataclass(frozen=True, slots=True)
class Durability:
    """Seconds between flushes (0: flush at every append), and the reason in words."""

    seconds: float
    why: str

    def __str__(self) -> str:
        often = "every append is made durable" if self.seconds <= 0 else f"made durable every {self.seconds:g} s"
        return f"{often} ({self.why})"


def durability_of_type(magic: int | None) -> Durability:
    """The default for a type of file system, by its number in statfs(2); None if the type is not known."""
    if magic is None:
        return Durability(0.0, "the type of the file system is not known")
    name = _NETWORK.get(magic & 0xFFFFFFFF)
    if name is None:
        return Durability(0.0, "the store lies on a local file system")
    return Durability(_NETWORK_S, f"the store lies on {name}, where making data durable is slow")


def durability_of(path: Path, seconds: float | None = None) -> Durability:
    """The durability of a journal under `path`: so many seconds, or the default of its file system."""
    return durability_of_type(_magic(path)) if seconds is None else Durability(max(0.0, seconds), "as requested")


def _magic(path: Path) -> int | None:
    """`f_type` of the file system of `path`, which Python's own statvfs does not give."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        content = ctypes.create_string_buffer(512)  # larger than any struct statfs; f_type, a long, comes first
        if libc.statfs(os.fsencode(path), content) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return ctypes.c_long.from_buffer(content).value
