"""What the footer of a Parquet file says, read once: a query asks for it several times, of thousands of files."""

from __future__ import annotations

import errno
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import light

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


_read: dict[tuple[Path, tuple[int, int]], Footer] = {}
_shapes: list[tuple[Any, Shape]] = []  # by Parquet's schema: making Arrow's takes long
_distrusted: set[Path] = set()


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of change. Files never change, so the same stamp means the same content. Raises OSError."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    return status.st_size, status.st_mtime_ns


def footer(path: Path, now: tuple[int, int] | None = None) -> Footer:
    """The footer of a file, whose stamp is `now` if that is known.

    Raises OSError, and pyarrow.ArrowException or ValueError where the file is damaged.
    """
    key = path, now or stamp(path)
    found = _read.get(key)
    if found is None:
        metadata = light.metadata(path)
        about = {name: text for name, text in (metadata.metadata or {}).items() if name.startswith(b"whorl.")}
        found = _read[key] = Footer(metadata.num_rows, about, _shape(metadata.schema))
        if len(_read) > _MOST:
            _read.clear()
    return found


def suppose(path: Path, then: tuple[int, int], found: Footer) -> None:
    """Take a file that has this stamp to have this footer."""
    if path not in _distrusted:
        _read[path, then] = found


def distrust(path: Path) -> None:
    """Forget the footer of a file that could not be read after all, and read it anew, whatever is supposed of it."""
    _distrusted.add(path)
    for key in [key for key in _read if key[0] == path]:
        del _read[key]


def forget_gone() -> None:
    """Forget the footers of files that are gone."""
    for key in [key for key in list(_read) if not key[0].exists()]:
        _read.pop(key, None)


def _shape(schema: Any) -> Shape:
    for known, shape in _shapes:
        if schema.equals(known):
            return shape
    made = Shape(schema.to_arrow_schema().remove_metadata())
    _ = made.schema.names  # raises where a damaged one is no UTF-8
    if len(_shapes) < _MOST_SHAPES:
        _shapes.append((schema, made))
    return made
