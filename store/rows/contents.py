"""What a collector says of the files in its folder: a copy of their footers, in one file.

A fleet has ten thousand small files of the last hour. Opening each of them takes a query longer than all else. The copy
says of which size and time of change a file was, so an old copy does no harm: a file that differs is opened. Nor does a
lost or damaged one. If DuckDB cannot read a file after all, what the copy says of it is forgotten.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..schema import FORMAT, TELEMETRY, arrow_schema
from ..system import files
from . import footers
from .footers import Footer, Shape, footer, stamp
from .soundness import reason_to_skip

NAME = "footers.json"  # in a collector's folder, after a checksum

_MOST_BYTES = 1 << 22
_FEW = 500  # up to so many files are opened as quickly

_shapes: dict[tuple[str, ...], Shape] = {}


def note(folder: Path) -> None:
    """Write down the footers of the files in a collector's folder. If that fails, readers open the files."""
    import pyarrow as pa

    with contextlib.suppress(OSError, ValueError, pa.ArrowException):
        columns: dict[tuple[str, ...], int] = {}
        noted: dict[str, list[Any]] = {}
        for name in files.names_in(folder):
            path = folder / name
            if not name.endswith(".parquet") or name.startswith(files.TEMPORARY):
                continue
            with contextlib.suppress(FileNotFoundError):  # it was removed just now
                size, changed = stamp(path)
                if reason_to_skip(path, TELEMETRY.name) is None:
                    found = footer(path)
                    which = columns.setdefault(tuple(found.shape.schema.names), len(columns))
                    about = {key.decode(): text.decode() for key, text in found.about.items()}
                    noted[name] = [size, changed, found.rows, which, about]
        text = json.dumps({"format": FORMAT, "columns": list(columns), "files": noted}, separators=(",", ":")).encode()
        temporary = files.temporary_name(folder / NAME)
        try:
            with os.fdopen(files.create(temporary), "wb") as file:
                file.write(b"%08x" % zlib.crc32(text) + text)
            files.rename(temporary, folder / NAME)
        except OSError:
            files.remove(temporary)


def recall(paths: Sequence[Path]) -> None:
    """Know the footers of files of telemetry from what their folders' collectors say."""
    if len(paths) <= _FEW:
        return
    by_folder: dict[str, list[Path]] = {}
    for path in paths:
        folder = str(path).rpartition("/")[0]
        if "~" in folder:
            by_folder.setdefault(folder, []).append(path)
    for folder, here in by_folder.items():
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            _recall(Path(folder, NAME), here)


def _recall(catalogue: Path, paths: list[Path]) -> None:
    with os.fdopen(files.open_regular(catalogue), "rb") as file:
        content = file.read(_MOST_BYTES)
    if content[:8] != b"%08x" % zlib.crc32(content[8:]):
        return
    told = files.parse_json(content[8:])
    if told["format"] != FORMAT:
        return
    shapes = [_shape(tuple(names)) for names in told["columns"]]
    for path in paths:
        found = told["files"].get(path.name)
        if found is not None:
            size, changed, rows, which, about = found
            known = {key.encode(): text.encode() for key, text in about.items()}
            footers.suppose(path, (size, changed), Footer(rows, known, shapes[which]))


def _shape(names: tuple[str, ...]) -> Shape:
    import pyarrow as pa

    if names not in _shapes:
        schema = arrow_schema(TELEMETRY.name)
        own = {"written": pa.field("written", pa.int64())}
        _shapes[names] = Shape(pa.schema([own[name] if name in own else schema.field(name) for name in names]))
    return _shapes[names]
