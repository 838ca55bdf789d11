"""Whether a file of a table can be read: a quick check of its footer, and a full check of its pages.

The quick check costs a few reads, and its result is remembered. It notices torn, foreign and newer files. The full
check reads everything with the checksums of the pages, and notices every changed byte of data.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from pathlib import Path

from . import light, placing
from .schema import FORMAT, arrow_schema

_MOST = 65536  # files whose state is remembered

_remembered: dict[tuple[Path, str, tuple[int, int]], frozenset[str]] = {}


def reason_to_skip(path: Path, name: str) -> str | None:
    """Why a file cannot be read as part of the table `name`; None if it can. Raises OSError."""
    return _seen(path, name)[0]


def columns(path: Path, name: str) -> frozenset[str]:
    """The names of the columns in a sound file of a table."""
    return _seen(path, name)[1]


def remember(path: Path, name: str, stamp: tuple[int, int], columns: frozenset[str]) -> None:
    """Remember a file with this stamp as a sound one of the table `name`: the caller has checked it."""
    if len(_remembered) >= _MOST:
        _remembered.clear()
    _remembered[path, name, stamp] = columns


def _seen(path: Path, name: str) -> tuple[str | None, frozenset[str]]:
    key = path, name, stamp(path)
    columns = _remembered.get(key)
    return _look(*key) if columns is None else (None, columns)


def looks_whole(path: Path) -> bool:
    """Whether a file begins and ends like a Parquet file: enough for files that can be made again. Raises OSError."""
    with path.open("rb") as file:
        begin, size = file.read(4), file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        end = file.read(8)
    return size >= 12 and begin == end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") <= size - 12


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of change. Files never change, so the same stamp means the same content."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return status.st_size, status.st_mtime_ns


@functools.lru_cache(maxsize=_MOST)
def _look(path: Path, name: str, stamp: tuple[int, int]) -> tuple[str | None, frozenset[str]]:  # noqa: ARG001 - part of the key
    """Why a file cannot be read as part of a table (None if it can), and the columns it has."""
    import pyarrow as pa

    none: frozenset[str] = frozenset()
    try:
        metadata = light.metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except FileNotFoundError:
        raise  # it was replaced by others just now
    except PermissionError:
        return "this user has no permission to read it", none
    except (OSError, ValueError, OverflowError, MemoryError, pa.ArrowException) as error:
        return f"it is cut off or not a Parquet file ({str(error).splitlines()[0]}); move it out of the store", none
    keys = metadata.metadata or {}
    found = keys.get(b"whorl.table", b"").decode("utf-8", "replace")
    if found != name:
        what = f"it belongs to table {found!r}" if found else "whorl did not write it"
        return f"{what}; move it out of {name}/", none
    version = keys.get(b"whorl.format", b"").decode("utf-8", "replace")
    if not version.isdecimal() or int(version) > FORMAT:
        return f"it has format {version or '?'} but this whorl reads up to {FORMAT}; install a newer whorl", none
    if not placing.readable(keys):
        return f"what it says of its times and GPUs is damaged; move it out of {name}/", none
    for field in arrow_schema(name):
        if field.name in schema.names and schema.field(field.name).type != field.type:
            kind = schema.field(field.name).type
            return f"its column {field.name} is {kind} and not {field.type}; move it out of the store", none
    return None, frozenset(schema.names)


def damage(path: Path) -> str | None:
    """What is wrong with the data in a file, after reading all of it; None if nothing is.

    Raises FileNotFoundError if it was replaced by others.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for _ in file.iter_batches():
                pass
    except FileNotFoundError:
        raise
    except (OSError, ValueError, OverflowError, MemoryError, pa.ArrowException) as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    return None
