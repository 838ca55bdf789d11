"""Commit rows of several tables together: all of them appear, or none does.

A group of files that belong together (the runs, results and provenance of one import) is committed so:

1. every file is written beside its place under a temporary name and made durable;
2. an *intent*, a small JSON file that lists temporary and final names, is renamed into `pending/`:
   from here on the group counts as stored;
3. the files are renamed into place and the intent is removed.

A process killed before step 2 leaves temporary files only, which no reader looks at. One killed after it
leaves the intent, and whoever opens the store next finishes step 3; doing so twice does no harm.

A reader that looks in the middle of step 3 sees some files of the group. Details are renamed first: a run that is
visible has its results.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ...errors import StoreError
from ..rows import arranging, placing
from ..rows.writing import metadata_of, placed, write_parquet
from ..schema import BOOKKEEPING, FORMAT, LATE, TABLES, TELEMETRY, Table
from ..system import processes
from ..system.files import (
    TEMPORARY,
    clock,
    failed,
    files_under,
    make_folder,
    names_in,
    parse_json,
    put,
    read_small,
    readable,
    remove,
    remove_inside,
    rename_inside,
    sync_folder,
    temporary_name,
)
from ..system.locks import locked
from . import latest, rivals

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

PENDING = "pending"
LOCK = "import.lock"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACE = re.compile(
    rf"((?:{'|'.join(spec.name for spec in (*TABLES, LATE))})/(?:day=[0-9-]+/)?)"
    rf"(?:[A-Za-z0-9][A-Za-z0-9._-]*\.parquet|{re.escape(TEMPORARY)}[A-Za-z0-9_-]+)"
)
_MOST = 1 << 26  # bytes of an intent: a million files
_STALE_S = 86_400.0
_LOCK_WAIT_S = 120.0
_ORDER = {spec: position for position, spec in enumerate((*TABLES, *BOOKKEEPING))}


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the lock of importers, who look at what the store has before they append. Plain appending needs no lock.

    It waits for another holder, and dies with its process.
    """
    with locked(root / LOCK, "the imports into this store", wait_s=math.inf):
        recover(root)  # what a dead holder committed must be visible first
        yield


def commit(root: Path, tables: Mapping[Table, pa.Table], name: str) -> list[Path]:
    """Store rows of several tables under one name: all of them appear, or none does.

    Returns the files. The name must be unique to the content: a second commit with the same name replaces the first
    one. Telemetry is never replaced. Raises StoreError if a file cannot be written. Nothing is stored then. If the
    message says "stored", everything is stored, and the next command that opens the store puts it in place.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r} is not a valid name: use letters, digits, '.', '_' and '-'")
    if not tables:
        return []
    whole = {
        spec: arranging.sort(spec, arranging.conform(spec, data, lean=spec == TELEMETRY))
        for spec, data in tables.items()
    }
    if TELEMETRY not in whole:
        return _commit(root, [part for spec, data in whole.items() for part in placed(root, spec, data, name)], name)

    with locked(root / placing.LOCK, "the place of new rows", wait_s=_LOCK_WAIT_S), readable(root):
        finish(root)  # what a dead holder of the lock committed must be visible first
        rows = whole.pop(TELEMETRY)
        parts = [part for spec, data in whole.items() for part in placed(root, spec, data, name)]
        new, late = rivals.place_now(root, rows, now := time.time_ns())
        if len(new):
            found = placed(root, TELEMETRY, new, name)
            if any(path.exists() for path, _, _ in found):  # the name is taken, and telemetry is never replaced
                found = placed(root, TELEMETRY, new, f"{name}-{now}")
            parts += found
        if len(late):
            parts.append((root / LATE.name / f"{name}-{now}.parquet", LATE, arranging.conform(LATE, late)))
        noted = latest.of_appended(root, name, rows, now)
        if noted[0].exists():
            noted = latest.of_appended(root, f"{name}-{now}", rows, now)
        return [path for path in _commit(root, [*parts, noted], name) if path != noted[0]]


def _commit(root: Path, parts: list[tuple[Path, Table, pa.Table]], name: str) -> list[Path]:
    moves: list[tuple[Path, Path]] = []
    final = root
    # Every commit has its own name: two processes may commit the same, and neither may remove the other's intent.
    intent = root / PENDING / f"{name}-{uuid4().hex[:8]}.json"
    try:
        for final, spec, data in sorted(parts, key=lambda part: _ORDER[part[1]], reverse=True):
            make_folder(final.parent)
            temporary = temporary_name(final)
            moves.append((temporary, final))
            write_parquet(temporary, spec, data, metadata_of(spec, data))
        for folder in {temporary.parent for temporary, _ in moves}:
            sync_folder(folder)
        final = intent.parent
        make_folder(final)
        names = [[str(t.relative_to(root)), str(f.relative_to(root))] for t, f in moves]
        put(intent, json.dumps({"format": FORMAT, "moves": names}).encode(), below=True)
    except BaseException as error:
        if not _may_be_there(intent):  # with it the group counts as stored, whatever failed afterwards
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
    missing = [final for _, final in moves if not _may_be_there(final)]
    if missing:
        raise StoreError(f"cannot write {missing[0]}: somebody removed its temporary file; run the command again")
    return [final for _, final in moves]


def _may_be_there(path: Path) -> bool:
    """Whether a file is there; also true if its folder cannot be looked into."""
    try:
        return path.exists()
    except OSError:
        return True


def _finish(root: Path, intent: Path) -> None:
    """Rename the files that an intent lists, then remove it. Safe to do twice, also at the same time.

    Raises ValueError where the intent is damaged, before anything is renamed.
    """
    try:
        moves = _moves(read_small(intent, _MOST))
    except FileNotFoundError:
        return  # somebody else finished it
    folders = set()
    for source, target in moves:
        with contextlib.suppress(FileNotFoundError):  # renamed already
            rename_inside(root, source, target)
        if not (root / target).exists():
            log.warning("%s lists %s, which is lost because its temporary file was removed", intent, root / target)
            continue
        folders.add((root / target).parent)
    for folder in folders:
        sync_folder(folder)
    intent.unlink(missing_ok=True)


def _moves(text: str) -> list[tuple[str, str]]:
    """What an intent lists. Raises ValueError if it is damaged or names anything other than files of tables."""
    content: Any = parse_json(text)
    if not isinstance(content, dict) or not isinstance(content.get("moves"), list):
        raise ValueError("it is not a commit file")  # noqa: TRY004 - one kind of error for a damaged file
    version = content.get("format")
    if type(version) is not int or version != FORMAT:
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

    Does nothing, silently, if this user may not write: what was committed before is still readable.
    Files of other hosts stay, because nobody here can know whether their writers live. The same is true of another boot
    or container with this host's name; their files are removed after a day.
    """
    finish(root)
    mine = f"{TEMPORARY}{processes.host()}-"
    with contextlib.suppress(OSError):  # a folder that this user may not read
        for leftover in map(Path, files_under(root, lambda name: name.startswith(mine))):
            living = processes.owner_alive(leftover.name.removeprefix(TEMPORARY))
            with contextlib.suppress(OSError):
                if not living if living is not None else clock(leftover.parent) - leftover.lstat().st_mtime > _STALE_S:
                    remove_inside(root, str(leftover.relative_to(root)))


def damaged(root: Path) -> dict[Path, str]:
    """The intents that cannot be read, with the reason: what they committed is not in place. Raises OSError."""
    found = {}
    for intent in (root / PENDING / name for name in names_in(root / PENDING) if name.endswith(".json")):
        try:
            _moves(read_small(intent, _MOST))
        except FileNotFoundError:
            continue
        except OSError as error:
            found[intent] = f"it cannot be read ({error.strerror}); repair it or move it out of the store"
        except (ValueError, TypeError) as error:
            found[intent] = (
                f"it is damaged ({error}), and the rows that were stored with it are not in place: remove it, and run "
                "the command that stored them again"
            )
    return found


def finish(root: Path) -> None:
    """Put in place what was committed and is not in place yet. Raises StoreError if the disk does not say what that is.

    A user who may not look there reads what is in place.
    """
    names: list[str] = []
    with readable(root), contextlib.suppress(PermissionError):
        names = [name for name in names_in(root / PENDING) if name.endswith(".json")]
    for intent in (root / PENDING / name for name in sorted(names)):
        try:
            _finish(root, intent)
        except OSError:
            continue
        except (ValueError, TypeError) as error:
            log.warning(
                "%s is damaged (%s) and was not used; remove it when nothing writes to the store", intent, error
            )
