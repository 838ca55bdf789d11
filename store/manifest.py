"""The manifest of a day: what its compacted files hold, so that a reader need not open them to leave them out.

It is a help and never needed: a file that it does not name is judged by its own name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import file_names
from .file_names import Bounds, gpu_hashes, parse
from .schema import FORMAT
from .system import files

NAME = "manifest.json"
_MOST = 1 << 26
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True)
class Manifest:
    """The files of a day when it was compacted, with the GPUs of each, as `file_names.gpu_hashes`, and its rows.

    `cold`: whether they are in the smallest form.
    """

    files: dict[str, frozenset[int]]
    rows: dict[str, int]
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
        with files.opened(path) as source:
            about = pq.read_metadata(source)
        gpus = pc.unique(parquet.read(path, ["gpu"])["gpu"]).to_pylist()
        listed[path.name] = [about.num_rows, about.num_row_groups, gpus, stated.bounds.first_us, stated.bounds.last_us]
    content = files.json_with_sum({"cold": cold, "files": listed, "format": FORMAT})
    files.put(folder / NAME, content, below=True)


def read(folder: Path) -> Manifest | None:
    """The manifest of a day's folder; None where there is none, or it is damaged or of another format."""
    try:
        return _read(folder / NAME, (folder / NAME).lstat().st_mtime_ns)
    except OSError:
        return None


def names_of_gpus(folder: Path) -> dict[str, frozenset[str | None]]:
    """The GPUs of each file that the manifest of a day's folder names, in full: of thousands, some hashes are equal."""
    try:
        return _names(folder / NAME, (folder / NAME).lstat().st_mtime_ns)
    except _UNREADABLE:
        return {}


@functools.lru_cache(maxsize=4)  # parts of a day are made one after another; names take memory
def _names(path: Path, _changed: int) -> dict[str, frozenset[str | None]]:
    return {str(name): frozenset(gpus) for name, (_, _, gpus, _, _) in _stated(path)["files"].items()}


@functools.lru_cache(maxsize=1024)
def _read(path: Path, _changed: int) -> Manifest | None:
    try:
        stated = _stated(path)
        entries = {str(name): gpu_hashes(gpus) for name, (_, _, gpus, _, _) in stated["files"].items()}
        rows = {str(name): int(number) for name, (number, *_) in stated["files"].items()}
        return Manifest(entries, rows, bool(stated["cold"]))
    except _UNREADABLE:
        return None


def _stated(path: Path) -> dict[str, Any]:
    """What a manifest states. Raises one of `_UNREADABLE` where it is damaged or of another format."""
    stated: dict[str, Any] = files.parse_json_with_sum(files.read_small(path, _MOST).encode())
    if stated["format"] != FORMAT:
        raise ValueError(f"{path} has another format")
    return stated


def may_hold(path: Path, bounds: Bounds) -> bool:
    """Whether a file can hold a row within the bounds, by its name and its day's manifest."""
    by_name = file_names.may_hold(path.name, bounds)
    return by_name and (bounds.gpus is None or Bounds(gpus=gpus_of(path)).overlap(bounds))


def gpus_of(path: Path) -> frozenset[int] | None:
    """The GPUs of a file by its name or its day's manifest, as `file_names.gpu_hash`; None where neither says."""
    stated = parse(path.name)
    if stated is not None and stated.bounds.gpus is not None:
        return stated.bounds.gpus
    day_manifest = read(path.parent)
    return day_manifest.files.get(path.name) if day_manifest is not None else None
