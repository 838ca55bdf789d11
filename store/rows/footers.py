"""What the footer of a Parquet file says, read once: a query asks for it several times, of thousands of files.

Parquet has checksums of its pages and none of its footer. So a footer that whorl writes holds one of itself. Without
it, one changed bit in the name of a column made a whole column read as NULL.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..system import light
from ..system.files import is_seen

CHECK = b"whorl.check"  # in the metadata: the checksum of the footer, made with `UNCHECKED` in its place
UNCHECKED = b"--------"
_CHECK = re.compile(re.escape(CHECK) + rb"\x18\x08([0-9a-f]{8})")  # as Thrift's compact protocol writes the pair
CHANGED = "its footer has changed since it was written"
_TAIL = 65536  # bytes at the end of a file: most footers are shorter

_MOST = 65536  # files that are remembered
_MOST_SHAPES = 64


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """The columns of files, as Arrow's schema. Files with the same columns share one."""

    schema: Any


@dataclass(frozen=True, slots=True)
class Footer:
    """How many rows a file has, its metadata of whorl, and its columns."""

    rows: int
    about: dict[bytes, bytes]
    shape: Shape


_read: dict[Path, tuple[tuple[int, int], Footer]] = {}  # with the stamp of the file then
_shapes: list[tuple[Any, Shape]] = []  # by Parquet's schema: making Arrow's takes long
_distrusted: set[Path] = set()


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of change. Files never change, so the same stamp means the same content. Raises OSError."""
    status = os.lstat(path)  # pathlib's own takes three times as long
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return status.st_size, status.st_mtime_ns


def footer(path: Path, now: tuple[int, int] | None = None) -> Footer:
    """The footer of a file, whose stamp is `now` if that is known.

    Raises OSError, and pyarrow.ArrowException or ValueError where the file is damaged.
    """
    now = now or stamp(path)
    then, found = _read.get(path, (None, None))
    if found is None or then != now:
        if not is_intact(path):
            raise ValueError(CHANGED)
        metadata = light.metadata(path)
        about = {name: text for name, text in (metadata.metadata or {}).items() if name.startswith(b"whorl.")}
        found = Footer(metadata.num_rows, about, _shape(metadata.schema))
        _read[path] = now, found
        if len(_read) > _MOST:
            _read.clear()
    return found


def seen_footer(path: Path) -> Footer:
    """As `footer`, but what was read before counts without a look at the file: for files that were just checked."""
    found = _read.get(path)
    return footer(path) if found is None else found[1]


@functools.lru_cache(maxsize=4096)
def least_and_most(path: Path, now: tuple[int, int]) -> tuple[str, str] | None:  # noqa: ARG001 - another stamp: another file
    """The first and the last GPU of a file in the order of their names; None if its footer does not say."""
    import pyarrow as pa

    try:
        found = light.metadata(path)
        if CHECK not in (found.metadata or {}) or not is_intact(path):
            return None  # Arrow ends the process where a changed bit made statistics impossible
        names = found.schema.names
        place = names.index("gpu")
        if found.schema.column(place).physical_type != "BYTE_ARRAY":
            return None
        groups = [found.row_group(number).column(place).statistics for number in range(found.num_row_groups)]
        if not groups or not all(group is not None and group.has_min_max for group in groups):
            return None
        return min(group.min for group in groups), max(group.max for group in groups)
    except (OSError, ValueError, TypeError, MemoryError, pa.ArrowException):
        return None


def seal(handle: int) -> None:
    """Put the checksum of its footer into a Parquet file that was written with `CHECK` in its metadata."""
    began, content = _tail(handle)
    here = content.rfind(CHECK + b"\x18\x08" + UNCHECKED)
    if here >= 0:  # else this release of Arrow writes the pair in another way, and nobody can check it
        os.pwrite(handle, b"%08x" % zlib.crc32(content), began + here + len(CHECK) + 2)


def is_intact(path: Path) -> bool:
    """Whether a footer is as it was written, as far as it says. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _, content = _tail(handle)
    finally:
        os.close(handle)
    found = _CHECK.search(content)
    if found is None:
        return True  # it is torn, or of an earlier whorl
    plain = content[: found.start(1)] + UNCHECKED + content[found.end(1) :]
    return zlib.crc32(plain) == int(found[1], 16)


def _tail(handle: int) -> tuple[int, bytes]:
    """Where the footer of an open file begins, and its bytes up to the end of the file."""
    size = os.fstat(handle).st_size
    began = max(0, size - _TAIL)
    content = os.pread(handle, size - began, began)
    length = int.from_bytes(content[-8:-4], "little") + 8
    if length > len(content) and length <= size:
        content = os.pread(handle, length, size - length)
    return size - min(length, len(content)), content[-length:]


def suppose(path: Path, then: tuple[int, int], found: Footer) -> None:
    """Take a file that has this stamp to have this footer."""
    if path not in _distrusted:
        _read[path] = then, found


def distrust(path: Path) -> None:
    """Forget the footer of a file that could not be read after all, and read it anew, whatever is supposed of it."""
    _distrusted.add(path)
    _read.pop(path, None)


def forget_gone() -> None:
    """Forget the footers of files that are gone."""
    for path in [path for path in list(_read) if not is_seen(path)]:
        _read.pop(path, None)


def _shape(schema: Any) -> Shape:
    for known, shape in _shapes:
        if schema.equals(known):
            return shape
    made = Shape(schema.to_arrow_schema().remove_metadata())
    _ = made.schema.names  # raises where a damaged one is no UTF-8
    if len(_shapes) < _MOST_SHAPES:
        _shapes.append((schema, made))
    return made
