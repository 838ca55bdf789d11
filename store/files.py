"""Files that appear whole or not at all: temporary, fsync, rename; several files at once through an intent.

A group of files that belong together (the runs, results and provenance of one import) is committed so:

1. every file is written beside its place under a temporary name and made durable;
2. an *intent*, a small JSON file that lists temporary and final names, is renamed into `pending/`:
   from here on the group counts as stored;
3. the files are renamed into place and the intent is removed.

A process killed before step 2 leaves temporary files only, which no reader looks at. One killed after it
leaves the intent, and whoever opens the store next finishes step 3; doing so twice does no harm.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..errors import StoreError
from .schema import FORMAT, Table, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

TEMPORARY = ".tmp-"
PENDING = "pending"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


def temporary_name(final: Path) -> Path:
    """A temporary name beside `final` that says who writes it, so that a dead writer's files can be removed."""
    return final.with_name(f"{TEMPORARY}{_host()}-{os.getpid()}-{uuid4().hex[:8]}")


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def failed(action: str, path: Path, error: OSError) -> StoreError:
    """The sentence for a file operation that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        reason = "no space is left there; nothing was stored: free some space and run the command again"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason = "this user may not write there: change the folder's permissions or choose another store"
    else:
        reason = error.strerror or str(error)
    return StoreError(f"cannot {action} {path}: {reason}")


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically and durably."""
    temporary = temporary_name(path)
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _fsync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise failed("write", path, error) from error


def write_parquet(path: Path, spec: Table, data: pa.Table) -> None:
    """Write one Parquet file, tuned for the table, and make it durable."""
    import pyarrow.parquet as pq

    encoded = {c.name: c.encoding for c in spec.columns if c.encoding}
    with path.open("wb") as file:
        pq.write_table(
            data,
            file,
            compression="zstd",
            compression_level=3,
            use_dictionary=[c.name for c in spec.columns if not c.encoding],
            column_encoding=encoded or None,
            write_page_checksum=True,
            store_schema=True,
        )
        file.flush()
        os.fsync(file.fileno())


def _conform(spec: Table, data: pa.Table) -> pa.Table:
    """`data` with exactly the table's columns, in order and type; a column it lacks is NULL."""
    import pyarrow as pa

    schema = arrow_schema(spec.name)
    extra = set(data.column_names) - set(schema.names)
    if extra:
        raise StoreError(f"table {spec.name} has no column {', '.join(sorted(extra))}")
    columns = [
        data[field.name].cast(field.type) if field.name in data.column_names else pa.nulls(len(data), field.type)
        for field in schema
    ]
    table = pa.table(columns, schema=schema)
    if spec.sorted_by and len(table) > 1:
        table = table.sort_by([(name, "ascending") for name in spec.sorted_by])
    return table


def _placed(root: Path, spec: Table, data: pa.Table, name: str) -> list[tuple[Path, pa.Table]]:
    """Where the rows go: one file, or one a day for a partitioned table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not spec.partitioned:
        return [(root / spec.name / f"{name}.parquet", data)]
    days = pc.strftime(data["ts"].cast(pa.timestamp("us"), safe=False), format="%Y-%m-%d")
    return [
        (root / spec.name / f"day={day}" / f"{name}.parquet", data.filter(pc.equal(days, day)))
        for day in sorted(d for d in pc.unique(days).to_pylist() if d is not None)
    ]


def commit(root: Path, tables: Mapping[Table, pa.Table], name: str) -> list[Path]:
    """Store rows of several tables under one name: all of them appear, or none does.

    Returns the files. The name must be unique to the content: a second commit under it replaces the first.
    Raises StoreError where a file cannot be written; nothing is stored then.
    """
    moves: list[tuple[Path, Path]] = []
    final = root
    try:
        for spec, data in tables.items():
            for final, part in _placed(root, spec, _conform(spec, data), name):
                final.parent.mkdir(parents=True, exist_ok=True)
                temporary = temporary_name(final)
                moves.append((temporary, final))
                write_parquet(temporary, spec, part)
        for folder in {temporary.parent for temporary, _ in moves}:
            _fsync_folder(folder)
        final = root / PENDING
        final.mkdir(exist_ok=True)
        intent = final / f"{name}.json"
        names = [[str(t.relative_to(root)), str(f.relative_to(root))] for t, f in moves]
        write_text(intent, json.dumps({"format": FORMAT, "moves": names}))
    except OSError as error:
        for temporary, _ in moves:
            temporary.unlink(missing_ok=True)
        raise failed("write", final, error) from error
    except BaseException:
        for temporary, _ in moves:
            temporary.unlink(missing_ok=True)
        raise
    _finish(root, intent)
    return [f for _, f in moves]


def _finish(root: Path, intent: Path) -> None:
    """Rename the files that an intent lists, then remove it. Safe to do twice, also at the same time."""
    try:
        content: dict[str, Any] = json.loads(intent.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return  # somebody else finished it
    folders = set()
    for source, target in content["moves"]:
        with contextlib.suppress(FileNotFoundError):  # renamed already
            (root / source).replace(root / target)
        folders.add((root / target).parent)
    for folder in folders:
        _fsync_folder(folder)
    intent.unlink(missing_ok=True)


def recover(root: Path) -> None:
    """Finish the commits of dead processes and remove the temporary files they left behind.

    Does nothing, silently, where this user may not write: what was committed before is readable all the same.
    """
    for intent in sorted((root / PENDING).glob("*.json")):
        with contextlib.suppress(OSError):
            _finish(root, intent)
    for leftover in root.rglob(f"{TEMPORARY}{_host()}-*"):
        owner = leftover.name.removeprefix(f"{TEMPORARY}{_host()}-").split("-")[0]
        if owner.isdigit() and not _alive(int(owner)):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
