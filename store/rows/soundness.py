"""Whether a file of a table can be read: a quick check of its footer, and a full check of its pages.

The quick check costs a few reads, and its result is remembered. It notices torn, foreign and newer files. The full
check reads everything with the checksums of the pages, and notices every changed byte of data.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from ..schema import arrow_schema, other_format
from ..system.files import is_seen, open_regular
from . import footers, placing
from .footers import CHANGED, Shape, distrust, footer, is_intact, stamp

_MOST = 65536  # files whose state is remembered


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a file with a stamp: why it cannot be read (None: it can), and the columns it has."""

    stamp: tuple[int, int]
    reason: str | None
    columns: frozenset[str]


_known: dict[tuple[Path, str], State] = {}


def reason_to_skip(path: Path, name: str) -> str | None:
    """Why a file cannot be read as part of the table `name`; None if it can. Raises OSError."""
    now, found = stamp(path), _known.get((path, name))
    if found is None or found.stamp != now:
        found = State(now, *_look(path, name, now))
        remember(path, name, found)
    return found.reason


def known(path: Path, name: str) -> State:
    """What `reason_to_skip` found of a file: a second look at thousands of files takes as long as the first."""
    if (path, name) not in _known:
        reason_to_skip(path, name)
    return _known[path, name]


def remember(path: Path, name: str, found: State) -> None:
    """Remember what a caller knows of a file of the table `name`."""
    if len(_known) >= _MOST:
        _known.clear()
    _known[path, name] = found


def forget(path: Path, name: str) -> None:
    """Look at a file anew, as it could not be read after all."""
    _known.pop((path, name), None)
    distrust(path)


def forget_gone() -> None:
    """Forget files that are gone: a collector makes and removes thousands of files a day."""
    for key in [key for key in list(_known) if not is_seen(key[0])]:
        _known.pop(key, None)
    footers.forget_gone()


def looks_whole(path: Path) -> bool:
    """Whether a file begins and ends like a Parquet file: enough for files that can be made again. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        begin, size = file.read(4), file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        end = file.read(8)
    return size >= 12 and begin == end[4:] == b"PAR1" and int.from_bytes(end[:4], "little") <= size - 12


def _look(path: Path, name: str, now: tuple[int, int]) -> tuple[str | None, frozenset[str]]:
    """Why a file cannot be read as part of a table (None if it can), and the columns it has."""
    import pyarrow as pa

    none: frozenset[str] = frozenset()
    try:
        found = footer(path, now)
    except FileNotFoundError:
        raise  # it was replaced by others just now
    except PermissionError:
        return "this user has no permission to read it", none
    except (OSError, ValueError, OverflowError, MemoryError, pa.ArrowException) as error:
        return f"it is cut off or not a Parquet file ({str(error).splitlines()[0]}); move it out of the store", none
    belongs = found.about.get(b"whorl.table", b"").decode("utf-8", "replace")
    if belongs != name:
        what = f"it belongs to table {belongs!r}" if belongs else "whorl did not write it"
        return f"{what}; move it out of {name}/", none
    version = found.about.get(b"whorl.format", b"").decode("utf-8", "replace")
    if why := other_format(version):
        return why, none
    if not placing.readable(found.about):
        return f"what it says of its times and GPUs is damaged; move it out of {name}/", none
    return _columns(found.shape, name)


@functools.lru_cache(maxsize=256)
def _columns(shape: Shape, name: str) -> tuple[str | None, frozenset[str]]:
    schema = shape.schema
    for field in arrow_schema(name):
        if field.name in schema.names and schema.field(field.name).type != field.type:
            kind = schema.field(field.name).type
            return f"its column {field.name} is {kind} and not {field.type}; move it out of the store", frozenset()
    return None, frozenset(schema.names)


def undecodable(error: Exception) -> str:
    """The reason to skip a file that could not be read."""
    return f"it is damaged ({str(error).splitlines()[0]}); move it out of the store"


def damage(path: Path) -> str | None:
    """What is wrong with the data in a file, after reading all of it; None if nothing is.

    Raises FileNotFoundError if it was replaced by others.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not is_intact(path):
            return CHANGED
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for _ in file.iter_batches():
                pass
    except FileNotFoundError:
        raise
    except (OSError, ValueError, OverflowError, MemoryError, pa.ArrowException) as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    return None
