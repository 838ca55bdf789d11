"""What the footer of a Parquet file says, read once: a query asks for it several times, of thousands of files."""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import light

_MOST = 65536  # files that are remembered


@dataclass(frozen=True, slots=True)
class Footer:
    """How many rows a file has, its metadata of whorl, and its columns: Arrow's schema, one object for equal ones."""

    rows: int
    about: dict[bytes, bytes]
    schema: Any


_read: dict[tuple[Path, tuple[int, int]], Footer] = {}
_schemas: list[tuple[Any, Any]] = []  # Parquet's schemas that were seen, as Arrow's: making these takes long


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of change. Files never change, so the same stamp means the same content. Raises OSError."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return status.st_size, status.st_mtime_ns


def footer(path: Path) -> Footer:
    """The footer of a file. Raises OSError, and pyarrow.ArrowException or ValueError where it is damaged."""
    key = path, stamp(path)
    found = _read.get(key)
    if found is None:
        metadata = light.metadata(path)
        about = {name: text for name, text in (metadata.metadata or {}).items() if name.startswith(b"whorl.")}
        found = Footer(metadata.num_rows, about, _schema(metadata.schema))
        if len(_read) >= _MOST:
            _read.clear()
        _read[key] = found
    return found


def _schema(schema: Any) -> Any:
    for known, made in _schemas:
        if schema.equals(known):
            return made
    made = schema.to_arrow_schema().remove_metadata()
    if len(_schemas) < 64:
        _schemas.append((schema, made))
    return made
