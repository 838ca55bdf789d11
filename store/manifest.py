"""The manifest of a day: what its compacted files hold, so that a reader need not open them to leave them out.

It is a help and never needed: a file that it does not name is judged by its own name.
"""

from __future__ import annotations

import contextlib
import functools
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .file_names import gpu_hashes, parse
from .schema import FORMAT
from .system import files

NAME = "manifest.json"
_MOST = 1 << 26


@dataclass(frozen=True)
class Entry:
    """A file: its rows, its row groups, its GPUs, and the first and last time of its rows (us since 1970)."""

    rows: int
    row_groups: int
    gpus: frozenset[str | None]
    first: int
    last: int


@dataclass(frozen=True)
class Manifest:
    """The files of a day when it was compacted; `cold`: whether they are in the smallest form."""

    files: dict[str, Entry]
    cold: bool


def write(folder: Path, paths: Iterable[Path], *, cold: bool = False) -> None:
    """Write the manifest of a day's folder. Raises OSError."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from . import parquet

    listed = {}
    for path in paths:
        stated = parse(path.name)
        if stated is None:
            continue
        with files.readable(folder):
            about = pq.read_metadata(path)
        gpus = pc.unique(parquet.read(path, ["gpu"])["gpu"]).to_pylist()
        listed[path.name] = [about.num_rows, about.num_row_groups, gpus, stated.bounds.first, stated.bounds.last]
    _put(folder, {"cold": cold, "files": listed})


def _put(folder: Path, listed: Mapping[str, object]) -> None:
    text = json.dumps({**listed, "format": FORMAT}, separators=(",", ":")).encode()
    files.put(folder / NAME, b"%08x" % zlib.crc32(text) + text, below=True)


def rename(folder: Path, names: Mapping[str, str]) -> None:
    """Let the manifest of an older format name files that were written anew, by their old names. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        stated = files.parse_json(files.read_small(folder / NAME, _MOST)[8:])
        _put(folder, {**stated, "files": {names[name]: entry for name, entry in stated["files"].items()}})


def read(folder: Path) -> Manifest | None:
    """The manifest of a day's folder; None where there is none, or it is damaged."""
    try:
        return _read(folder / NAME, (folder / NAME).lstat().st_mtime_ns)
    except OSError:
        return None


@functools.lru_cache(maxsize=1024)
def _read(path: Path, _changed: int) -> Manifest | None:
    try:
        text = files.read_small(path, _MOST).encode()
        if text[:8] != b"%08x" % zlib.crc32(text[8:]):
            return None
        stated = files.parse_json(text[8:])
        if stated["format"] != FORMAT:
            return None
        entries = {
            str(name): Entry(int(rows), int(groups), frozenset(gpus), int(first), int(last))
            for name, (rows, groups, gpus, first, last) in stated["files"].items()
        }
        return Manifest(entries, bool(stated["cold"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def gpus_of(path: Path) -> frozenset[int] | None:
    """The GPUs of a file by its name or its day's manifest, as `file_names.gpu_hash`; None where neither says."""
    stated = parse(path.name)
    if stated is not None and stated.bounds.gpus is not None:
        return stated.bounds.gpus
    day_manifest = read(path.parent)
    entry = day_manifest.files.get(path.name) if day_manifest is not None else None
    return None if entry is None else gpu_hashes(entry.gpus)
