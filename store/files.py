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
import json
import logging
import os
import re
import socket
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..errors import StoreError
from . import arranging, light, locks, placing
from .schema import BOOKKEEPING, FORMAT, LATE, MINUTES, TABLES, TELEMETRY, Table

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
PENDING = "pending"
LOCK = "import.lock"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACE = re.compile(r"(\w+/(?:day=[0-9-]+/)?)[^/]+")
_STALE_S = 86_400.0
_LOCK_WAIT_S = 120.0
_KEPT = {"ts", "cluster", "gpu", "written"}
QUICK, SMALL = 3, 15  # zstd levels: of what is written once, soon, and of what stays: 7 % smaller at 4 times the CPU
_ORDER = {spec: position for position, spec in enumerate((*TABLES, *BOOKKEEPING))}
_ROW_GROUP = 245_760  # rows: DuckDB gives a group to one thread, and skips groups by GPU and time


def host() -> str:
    """This host's name, as file names carry it."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname()) or "host"


@functools.cache
def space() -> str:
    """Where a process number means something: this boot of this machine and this PID namespace.

    Host names do not tell that: containers share their host's name and have processes of their own.
    """
    known = ""
    with contextlib.suppress(OSError):  # no /proc: the host's name has to do
        known += Path("/proc/sys/kernel/random/boot_id").read_text()
        known += str(Path("/proc/self/ns/pid").readlink())
    return f"{zlib.crc32(known.encode()):08x}"


def owner() -> str:
    """This process, in the names of files that it may leave behind."""
    return f"{host()}-{space()}-{os.getpid()}"


def owner_alive(name: str) -> bool | None:
    """Whether the process at the start of a name lives; None where that cannot be told from here."""
    where, _, rest = name.partition("-")
    here, _, rest = rest.partition("-")
    pid = rest.partition("-")[0]
    if (where, here) != (host(), space()) or not pid.isdigit():
        return None
    return alive(int(pid))


def temporary_name(final: Path) -> Path:
    """A temporary name beside `final` that says who writes it, so that a dead writer's files can be removed."""
    return final.with_name(f"{TEMPORARY}{owner()}-{uuid4().hex[:8]}")


def remove(path: Path) -> None:
    """Remove a file if it is there and this user may."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
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
        fsync_folder(path.parent)
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


def write_parquet(
    path: Path, spec: Table, data: pa.Table, metadata: Mapping[str, str] | None = None, level: int = QUICK
) -> None:
    """Write one Parquet file, tuned for the table, and make it durable.

    A column that is NULL throughout is left out, which readers take for NULL; a file without rows has every column.
    """
    if len(data):
        kept = [name for name in data.column_names if name in _KEPT or data[name].null_count < len(data)]
        data = data.select(kept or data.column_names[:1])
    if metadata:
        known = data.schema.metadata or {}
        data = data.replace_schema_metadata({**known, **{k.encode(): v.encode() for k, v in metadata.items()}})
    encoded = {c.name: c.encoding for c in spec.columns if c.encoding}
    encoded["written"] = "DELTA_BINARY_PACKED"
    with path.open("wb") as file:
        light.write(
            file,
            data,
            row_group_size=_ROW_GROUP,
            compression="zstd",
            compression_level=level,
            use_dictionary=[name for name in data.column_names if name not in encoded],
            column_encoding={name: code for name, code in encoded.items() if name in data.column_names} or None,
            write_page_checksum=True,
            store_schema=True,
        )
        file.flush()
        os.fsync(file.fileno())


def placed(root: Path, spec: Table, data: pa.Table, name: str) -> list[tuple[Path, Table, pa.Table]]:
    """Where rows go: one file, or one a day for a partitioned table."""
    if not spec.partitioned:
        return [(root / spec.name / f"{name}.parquet", spec, data)]
    return [(root / spec.name / f"day={day}" / f"{name}.parquet", spec, part) for day, part in arranging.days(data)]


def write_temporary(
    parts: Iterable[tuple[Path, Table, pa.Table]], text: Mapping[str, str] | None = None, level: int = QUICK
) -> dict[Path, Path]:
    """Write rows under temporary names beside their places: the answer maps the ones to the others. Raises OSError."""
    moves: dict[Path, Path] = {}
    try:
        for final, spec, data in parts:
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_name(final)
            moves[temporary] = final
            write_parquet(temporary, spec, data, metadata_of(spec, data) | dict(text or {}), level)
    except BaseException:
        for temporary in moves:
            remove(temporary)
        raise
    return moves


def metadata_of(spec: Table, data: pa.Table) -> dict[str, str]:
    """What a file says of its rows besides its columns."""
    if spec not in (TELEMETRY, LATE, MINUTES) or not len(data):
        return {}
    return placing.as_metadata(placing.bounds_of(data))


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

    Returns the files. The name must be unique to the content: a second commit under it replaces the first, but for
    telemetry, of which nothing is replaced.
    Raises StoreError where a file cannot be written: nothing is stored then, or, where the message says so,
    everything is and the next command that opens the store puts it in place.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r} cannot name files: letters, digits, '.', '_' and '-' can")
    if not tables:
        return []
    whole = {
        spec: arranging.sort(spec, arranging.conform(spec, data, lean=spec == TELEMETRY))
        for spec, data in tables.items()
    }
    if TELEMETRY not in whole:
        return _commit(root, [part for spec, data in whole.items() for part in placed(root, spec, data, name)], name)
    from . import sealing  # which needs this module

    with locks.locked(root / placing.LOCK, "the place of new rows", wait_s=_LOCK_WAIT_S):
        finish(root)  # what a dead holder of the lock committed must be in sight
        rows = whole.pop(TELEMETRY)
        parts = [part for spec, data in whole.items() for part in placed(root, spec, data, name)]
        new, late = sealing.place_now(root, rows, now := time.time_ns())
        if len(new):
            found = placed(root, TELEMETRY, new, name)
            if any(path.exists() for path, _, _ in found):  # its rows are no longer all of this content
                found = placed(root, TELEMETRY, new, f"{name}-{now}")
            parts += found
        if len(late):
            parts.append((root / LATE.name / f"{name}-{now}.parquet", LATE, arranging.conform(LATE, late)))
        stored = _commit(root, parts, name)
    sealing.note_appended(root, name, rows, now)
    return stored


def _commit(root: Path, parts: list[tuple[Path, Table, pa.Table]], name: str) -> list[Path]:
    moves: list[tuple[Path, Path]] = []
    final = root
    # A name of its own for every commit: one process must not remove the intent of another that commits the same.
    intent = root / PENDING / f"{name}-{uuid4().hex[:8]}.json"
    try:
        for final, spec, data in sorted(parts, key=lambda part: _ORDER[part[1]], reverse=True):
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_name(final)
            moves.append((temporary, final))
            write_parquet(temporary, spec, data, metadata_of(spec, data))
        for folder in {temporary.parent for temporary, _ in moves}:
            fsync_folder(folder)
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
        fsync_folder(folder)
    intent.unlink(missing_ok=True)


def _moves(text: str) -> list[tuple[str, str]]:
    """What an intent lists. Raises ValueError where it is damaged or names anything but a table's files."""
    content: Any = json.loads(text)
    if not isinstance(content, dict) or not isinstance(content.get("moves"), list):
        raise ValueError("it is no intent")  # noqa: TRY004 - one kind of error for a damaged file
    version = content.get("format")
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise ValueError(f"it has format {version!r}, this whorl knows {FORMAT}")
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
    finish(root)
    for leftover in root.rglob(f"{TEMPORARY}{host()}-*"):
        living = owner_alive(leftover.name.removeprefix(TEMPORARY))
        with contextlib.suppress(OSError):
            if not living if living is not None else time.time() - leftover.stat().st_mtime > _STALE_S:
                leftover.unlink(missing_ok=True)


def finish(root: Path) -> None:
    """Put in place what was committed and is not."""
    for intent in sorted((root / PENDING).glob("*.json")):
        try:
            _finish(root, intent)
        except OSError:
            continue
        except (ValueError, TypeError) as error:
            log.warning("left %s alone: it is damaged (%s); remove it when nothing writes to the store", intent, error)


def alive(pid: int) -> bool:
    """Whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
