"""Files that appear whole or not at all: temporary, fsync, rename; several files at once through an intent.

A group of files that belong together (the runs, results and provenance of one import) is committed so:

1. every file is written beside its place under a temporary name and made durable;
2. an *intent*, a small JSON file that lists temporary and final names, is renamed into `pending/`:
   from here on the group counts as stored;
3. the files are renamed into place and the intent is removed.

A process killed before step 2 leaves temporary files only, which no reader looks at. One killed after it
leaves the intent, and whoever opens the store next finishes step 3; doing so twice does no harm.

A reader that looks in the middle of step 3 sees some files of the group: details come before what they belong
to, so that a run that is visible has its results.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..errors import StoreError
from .schema import FORMAT, TABLES, Table, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
PENDING = "pending"
LOCK = "import.lock"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACE = re.compile(r"(\w+/(?:day=[0-9-]+/)?)[^/]+")
_STALE_S = 86_400.0


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


@functools.cache
def _space() -> str:
    """Where a process number means something: this boot of this machine and this PID namespace.

    Host names do not tell that: containers share their host's name and have processes of their own.
    """
    known = ""
    with contextlib.suppress(OSError):  # no /proc: the host's name has to do
        known += Path("/proc/sys/kernel/random/boot_id").read_text()
        known += str(Path("/proc/self/ns/pid").readlink())
    return hashlib.sha256(known.encode()).hexdigest()[:8]


def temporary_name(final: Path) -> Path:
    """A temporary name beside `final` that says who writes it, so that a dead writer's files can be removed."""
    return final.with_name(f"{TEMPORARY}{_host()}-{_space()}-{os.getpid()}-{uuid4().hex[:8]}")


def remove(path: Path) -> None:
    """Remove a file if it is there and this user may."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


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


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file atomically and durably."""
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _fsync_folder(path.parent)
    except OSError as error:
        remove(temporary)
        raise failed("write", path, error) from error


def replace_parquet(path: Path, spec: Table, data: pa.Table) -> None:
    """Write one Parquet file atomically, in the place of an older one: for files that can be made again."""
    temporary = temporary_name(path)
    try:
        path.parent.mkdir(exist_ok=True)
        write_parquet(temporary, spec, data)
        temporary.replace(path)
    except OSError as error:
        remove(temporary)
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
    columns = []
    for field in schema:
        try:
            present = field.name in data.column_names
            columns.append(data[field.name].cast(field.type) if present else pa.nulls(len(data), field.type))
        except pa.ArrowException as error:
            raise StoreError(f"table {spec.name}, column {field.name}: {error}") from error
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
    if data["ts"].null_count:
        raise StoreError(f"{data['ts'].null_count} rows of table {spec.name} have no ts: they belong to no day")
    days = pc.strftime(data["ts"].cast(pa.timestamp("us"), safe=False), format="%Y-%m-%d")
    return [
        (root / spec.name / f"day={day}" / f"{name}.parquet", data.filter(pc.equal(days, day)))
        for day in sorted(pc.unique(days).to_pylist())
    ]


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the lock of those who look what the store has before they append: importers. Plain appending needs none.

    It waits for another holder, and dies with its process. Where the file system has no locks, it does nothing.
    """
    path = root / LOCK
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
    except OSError as error:
        raise failed("write", path, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("%s cannot be locked (%s): do not import overlapping files at the same time", path, error)
        recover(root)  # what a dead holder committed must be in sight
        yield
    finally:
        os.close(handle)


def commit(root: Path, tables: Mapping[Table, pa.Table], name: str) -> list[Path]:
    """Store rows of several tables under one name: all of them appear, or none does.

    Returns the files. The name must be unique to the content: a second commit under it replaces the first.
    Raises StoreError where a file cannot be written: nothing is stored then, or, where the message says so,
    everything is and the next command that opens the store puts it in place.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r} cannot name files: letters, digits, '.', '_' and '-' can")
    if not tables:
        return []
    moves: list[tuple[Path, Path]] = []
    final = root
    # A name of its own for every commit: one process must not remove the intent of another that commits the same.
    intent = root / PENDING / f"{name}-{uuid4().hex[:8]}.json"
    try:
        for spec in sorted(tables, key=TABLES.index, reverse=True):
            for final, part in _placed(root, spec, _conform(spec, tables[spec]), name):
                final.parent.mkdir(parents=True, exist_ok=True)
                temporary = temporary_name(final)
                moves.append((temporary, final))
                write_parquet(temporary, spec, part)
        for folder in {temporary.parent for temporary, _ in moves}:
            _fsync_folder(folder)
        final = intent.parent
        final.mkdir(exist_ok=True)
        names = [[str(t.relative_to(root)), str(f.relative_to(root))] for t, f in moves]
        write_bytes(intent, json.dumps({"format": FORMAT, "moves": names}).encode())
    except BaseException as error:
        if not intent.exists():  # with it the group counts as stored, whatever failed afterwards
            for temporary, _ in moves:
                remove(temporary)
        if isinstance(error, OSError):
            raise failed("write", final, error) from error
        raise
    try:
        _finish(root, intent)
    except OSError as error:
        raise StoreError(
            f"stored, but not yet in place ({error.strerror or error}: {error.filename or root}); "
            f"the next whorl command that opens {root} and may write there puts it in place"
        ) from error
    missing = [final for _, final in moves if not final.exists()]
    if missing:
        raise StoreError(f"cannot write {missing[0]}: somebody removed its temporary file; run the command again")
    return [final for _, final in moves]


def _finish(root: Path, intent: Path) -> None:
    """Rename the files that an intent lists, then remove it. Safe to do twice, also at the same time.

    Raises ValueError where the intent is damaged, before anything is renamed.
    """
    try:
        moves = _moves(intent.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return  # somebody else finished it
    folders = set()
    for source, target in moves:
        with contextlib.suppress(FileNotFoundError):  # renamed already
            (root / source).replace(root / target)
        if not (root / target).exists():
            log.warning("%s lists %s, which is lost: somebody removed its temporary file", intent, root / target)
            continue
        folders.add((root / target).parent)
    for folder in folders:
        _fsync_folder(folder)
    intent.unlink(missing_ok=True)


def _moves(text: str) -> list[tuple[str, str]]:
    """What an intent lists. Raises ValueError where it is damaged or names anything but a table's files."""
    content: Any = json.loads(text)
    if not isinstance(content, dict) or not isinstance(content.get("moves"), list):
        raise ValueError("it is no intent")  # noqa: TRY004 - one kind of error for a damaged file
    if content.get("format") != FORMAT:
        raise ValueError(f"it has format {content.get('format')!r}, this whorl knows {FORMAT}")
    moves = []
    for move in content["moves"]:
        source, target = move
        here, there = _PLACE.fullmatch(source), _PLACE.fullmatch(target)
        same = here is not None and there is not None and here[1] == there[1]
        if not (same and Path(source).name.startswith(TEMPORARY) and target.endswith(".parquet")):
            raise ValueError(f"it lists {move!r}")
        moves.append((source, target))
    return moves


def recover(root: Path) -> None:
    """Finish the commits of dead processes and remove the temporary files they left behind.

    Does nothing, silently, where this user may not write: what was committed before is readable all the same.
    Files of other hosts stay: whether their writers live cannot be told from here. Neither can it for another
    boot or container under this host's name; theirs go after a day.
    """
    for intent in sorted((root / PENDING).glob("*.json")):
        try:
            _finish(root, intent)
        except OSError:
            continue
        except (ValueError, TypeError) as error:
            log.warning("left %s alone: it is damaged (%s); remove it when nothing writes to the store", intent, error)
    mine = f"{TEMPORARY}{_host()}-"
    for leftover in root.rglob(f"{mine}*"):
        space, _, rest = leftover.name.removeprefix(mine).partition("-")
        owner = rest.partition("-")[0]
        with contextlib.suppress(OSError):
            if space == _space() and owner.isdigit():
                dead = not _alive(int(owner))
            else:
                dead = time.time() - leftover.stat().st_mtime > _STALE_S
            if dead:
                leftover.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
