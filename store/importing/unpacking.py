"""The bytes of a file, without its compression. A few kilobytes can hold more than any memory: that is refused."""

from __future__ import annotations

import errno
import gzip
import io
import stat
import zlib
from pathlib import Path
from typing import Any

from ...errors import InputError

_RATIO, _LEAST = 100, 64 << 20  # bytes
_PIECE = 1 << 20  # bytes
_TAR = slice(257, 262)  # where a tar archive says that it is one
_ARCHIVES = ((b"PK\x03\x04", "zip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"))


def most(size: int) -> int:
    """How many bytes a file of this size may become."""
    return max(_LEAST, _RATIO * size)


def too_much(path: Path) -> InputError:
    """The sentence for a small file that becomes huge: files of measurements do not."""
    return InputError(
        f"{path} unpacks to more than {_RATIO} times its size, unlike any measurements; "
        "if the file is right, unpack it first and import the result"
    )


def load(path: Path) -> bytes:
    """The content of the file at `path`, without its compression (gzip, zstd; told by content, not by name).

    Raises InputError where there is no such file, it may not be read, or it is torn.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise InputError(f"{path} is a device, which may never end; name a file of measurements")
        packed = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; name the files in it, for example {path}/*.csv") from None
    except OSError as error:
        why = "this user has no permission to read it" if error.errno in (errno.EACCES, errno.EPERM) else error.strerror
        raise InputError(f"{path} cannot be read: {why}") from error
    except MemoryError:
        raise InputError(f"{path} does not fit into memory; split it") from None
    try:
        content = _unpacked(packed, path)
    except MemoryError:
        raise InputError(f"{path} does not fit into memory when it is unpacked; split it") from None
    if content[_TAR] == b"ustar":
        raise InputError(f"{path} is a tar archive; unpack it first, for example with tar -xf {path.name}")
    return content


def _unpacked(packed: bytes, path: Path) -> bytes:
    content = packed
    try:
        if packed[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
                content = _limited(stream, packed, path)
        elif packed[:4] == b"\x28\xb5\x2f\xfd":
            import pyarrow as pa

            with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
                content = _limited(stream, packed, path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: the compressed file is damaged or cut short ({error}); fetch it again") from error
    for magic, archive in _ARCHIVES:
        if content.startswith(magic):
            raise InputError(f"{path} is a {archive} file; unpack it first (whorl reads plain, .gz and .zst files)")
    return content


def _limited(stream: Any, packed: bytes, path: Path) -> bytes:
    """What a compressed stream holds. Raises InputError where a small file becomes huge."""
    parts, size, limit = [], 0, most(len(packed))
    while part := stream.read(_PIECE):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise too_much(path)
    return b"".join(parts)
