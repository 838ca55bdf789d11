"""The folder of a store: what makes it one, `store.toml`, and what else it holds besides rows."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatError, StoreError
from . import commits, journal_file, parquet, replacing, telemetry_files
from .file_names import EMPTY
from .formats import other_format, upgrades
from .schema import BOOKKEEPING, CATALOG, COLUMNS, FORMAT, TABLES, arrow_schema
from .system import files

ABOUT = "store.toml"
_DEMO = "store"  # in the folder of a demo, beside its report
_TABLES = {spec.name for spec in (*TABLES, *BOOKKEEPING)}
_FOLDERS = _TABLES | {commits.PENDING, journal_file.FOLDER, replacing.ICEBERG}
_MADE_FIRST = _TABLES | {CATALOG, commits.PENDING, commits.IMPORTING, telemetry_files.PLACING, ABOUT}
_MAKING_S = 3.0  # to make a store takes a third of a second


def checked_path(path: str | Path) -> Path:
    """The path of a store. Raises StoreError for one that DuckDB or Arrow cannot take."""
    full = str(Path(path).absolute())
    if "\\" in full or full != full.encode(errors="replace").decode():
        raise StoreError(f"{full!r} cannot hold a store: choose a path in UTF-8 and without a backslash")
    return Path(path)


def is_store(root: Path) -> bool:
    """Whether there is a store, or a place for one. Raises StoreError where one cannot be made."""
    with files.readable(root):
        if (root / ABOUT).exists():
            return True
        if root.exists() and not root.is_dir():
            raise StoreError(f"{root} is a file, but a store is a folder: choose another path")
        if root.is_dir() and not _has_no_other(root):
            raise StoreError(f"{root} has other contents and no {ABOUT}; choose an empty or a new folder for a store")
    return False


def _has_no_other(root: Path) -> bool:
    """Whether a folder holds nothing that making a store does not leave there when it is interrupted."""
    return all(name in _MADE_FIRST or name.startswith(files.TEMPORARY) for name in files.names_in(root))


def _half_made(root: Path) -> bool:
    """Whether making a store was interrupted here: the folder holds what comes first, and no facts."""
    if not root.is_dir() or not files.names_in(root) or not _has_no_other(root):
        return False
    return all(path.name == EMPTY for spec in TABLES for path in (root / spec.name).rglob("*.parquet"))


# -- store.toml -----------------------------------------------------------------------------------------------


def stated(root: Path) -> dict[str, Any]:
    """What `store.toml` says. Raises OSError, and ValueError where it is damaged."""
    try:
        about = tomllib.loads(files.read_small(root / ABOUT))
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    version = about.get("format")
    if type(version) not in (int, str) or not re.fullmatch(r"[1-9]\d{0,8}(\.\d{1,9})?", str(version)):
        raise ValueError("it has no format number")
    return about


def read_about(root: Path, *, older: bool = False) -> dict[str, Any]:
    """What `store.toml` says. Raises StoreError where the folder is no store that this whorl reads.

    `older`: or one that it can upgrade.
    """
    last = time.monotonic() + _MAKING_S
    try:
        while not (root / ABOUT).exists() and _half_made(root) and time.monotonic() < last:
            time.sleep(0.1)  # somebody makes it just now
        about = stated(root)
        strange = files.strange_folders(root, _FOLDERS)
    except FileNotFoundError:
        raise _no_store(root) from None
    except OSError as error:
        raise files.failed("read", root / ABOUT, error) from error
    except ValueError as error:  # also of a number of thousands of digits
        raise StoreError(
            f"{root / ABOUT} is damaged ({error}); restore it from a backup, or copy the table folders into a new store"
        ) from error
    version = str(about["format"])
    if why := other_format(version, older=older):
        if upgrades(version):
            raise FormatError(f"{root} has format {version}; run `whorl store upgrade --store {root}`")
        raise FormatError(f"{root} was made by {about.get('created_by', 'another whorl')}: {why}")
    if strange:  # what is repaired, removed or locked in it could be another store's
        raise StoreError(
            f"{root / strange[0]} is a link or a file, and no folder of a store: put the folder itself in its place"
        )
    return about


def _no_store(root: Path) -> StoreError:
    if _half_made(root):
        return StoreError(
            f"{root} is a store that was interrupted while it was made; run the command that made it again"
        )
    reason = "it does not exist" if not root.exists() else f"it has no {ABOUT}"
    if (root / _DEMO / ABOUT).is_file():
        return StoreError(f"{root} is not a store ({reason}); the store is in {root / _DEMO}")
    return StoreError(
        f"{root} is not a store ({reason}); `whorl import --store {root} FILES` or `whorl probe run --store "
        f"{root} --suite quick` makes one"
    )


def write_about(root: Path, about: Mapping[str, Any], place: str) -> None:
    """Write `store.toml`: what it says in `about`, this whorl and its format, and `place`, where the views point.

    With an empty place the next whorl that opens the store furnishes it. Raises StoreError.
    """
    from .. import __version__

    lines = [
        "# A whorl store: append-only tables. `whorl schema` explains every column.",
        f"format = {json.dumps(FORMAT)}",
        f'created_by = "whorl {__version__}"',
        f"created = {_toml_string(about.get('created', 'unknown'))}",
        'time_zone = "UTC"',
        f"columns = {about.get('columns', 1)}  # the generation of columns that all its files have",
        f"place = {_toml_string(place)}  # where the views of whorl.duckdb point",
    ]
    if "keep" in about:
        lines.append(f"keep = {_toml_string(about['keep'])}  # how long telemetry stays at full rate")
    files.write_bytes(root / ABOUT, "".join(f"{line}\n" for line in lines).encode())


def _toml_string(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def has_all_columns(root: Path) -> bool:
    """Whether every file of the store at `root` has all columns: it was made since the last column was added."""
    try:
        return stated(root).get("columns") == COLUMNS
    except (OSError, ValueError):
        return False


def made_at(root: Path) -> str | None:
    """When the store at `root` was made, as it says: the same on all machines. None where it says nothing."""
    try:
        created = stated(root).get("created")
    except (OSError, ValueError):
        return None
    return created if isinstance(created, str) and created != "unknown" else None


# -- furniture ------------------------------------------------------------------------------------------------


def missing_folders(root: Path, about: Mapping[str, Any]) -> list[Path]:
    """The folders of tables that a store had when it was made, and has not. `about`: what its `store.toml` says."""
    had = [spec.name for spec in TABLES if not spec.added or about.get("columns") == COLUMNS]
    return [folder for name in had if not (folder := root / name).is_dir()]


def is_furnished(root: Path, place: object) -> bool:
    """Whether every table has its empty file, and the views, which point to `place`, are those of this folder."""
    try:
        if not all(parquet.looks_whole(root / name / EMPTY) for name in _TABLES):
            return False
        if not _has_duckdb():
            return True  # a compute node that only appends has no DuckDB: the next command that has it writes the views
        return isinstance(place, str) and os.path.lexists(root / CATALOG) and Path(place).samefile(root)
    except (OSError, ValueError):  # the latter of a zero byte
        return False


def furnish(root: Path, about: Mapping[str, Any]) -> None:
    """Write what a store holds besides rows. `store.toml` comes last: it makes the folder a store.

    `about`: what an earlier `store.toml` says. Raises StoreError.
    """
    for spec in (*TABLES, *BOOKKEEPING):
        path = root / spec.name / EMPTY
        try:
            files.put(path, parquet.encode(spec, arrow_schema(spec.name).empty_table()), below=True)
        except OSError as error:
            raise files.failed("write", path, error) from error
    write_views(root, about)
    write_about(root, about, str(root.resolve()))


def write_views(root: Path, about: Mapping[str, Any]) -> None:
    """Write the views for other DuckDB clients, where there is a DuckDB; `about` as in `furnish`. Raises StoreError."""
    if _has_duckdb():
        from . import catalog

        catalog.write(root, complete=about.get("columns") == COLUMNS)


def _has_duckdb() -> bool:
    return importlib.util.find_spec("duckdb") is not None


def is_writable(root: Path) -> bool:
    """Whether this user may append to the store."""
    folders = (root / spec.name for spec in TABLES)
    return all(os.access(path if path.is_dir() else root, os.W_OK | os.X_OK) for path in folders)
