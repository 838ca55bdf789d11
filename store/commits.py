"""Commit rows of several tables together: all of them appear, or none does.

1. Every file is written beside its place under a temporary name and made durable;
2. an *intent*, a small JSON file that lists temporary and final names, is renamed into `pending/`: from here on the
   group counts as stored;
3. the files are renamed into place and the intent is removed.

A process killed before step 2 leaves temporary files only, which no reader looks at. One killed after it leaves the
intent, and whoever opens the store next finishes step 3; doing so twice does no harm. Details are renamed first: a run
that is visible has its results.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..errors import StoreError
from . import file_names, keys, telemetry_files
from .formats import other_format
from .replacing import TABLE_FOLDER, NewFiles
from .schema import FORMAT, TABLES, TELEMETRY, Table
from .system import files, processes
from .system.files import TEMPORARY
from .system.locks import locked

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

PENDING = "pending"
IMPORTING = "import.lock"

_PLACE = re.compile(rf"({TABLE_FOLDER})[A-Za-z0-9][A-Za-z0-9._-]*\.parquet")
_SOURCE = re.compile(rf"({TABLE_FOLDER}){re.escape(TEMPORARY)}[A-Za-z0-9_-]+")
_MOST = 1 << 26  # bytes of an intent: a million files
_STALE_S = 86_400.0
_ORDER = {spec: position for position, spec in enumerate(TABLES)}


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the lock of importers, who look at what the store has before they append. Plain appending needs no lock.

    It waits for another holder, and dies with its process.
    """
    with locked(root / IMPORTING, "the imports into this store", wait_s=math.inf):
        finish(root)  # what a dead holder committed must be visible first
        yield


def commit(root: Path, tables: Mapping[Table, pa.Table], name: str, *, dated: bool = False) -> list[Path]:
    """Store rows of several tables under one name: all of them appear, or none does.

    Returns the files. The same rows under the same name are the same files. Raises StoreError if a file cannot be
    written. Nothing is stored then. If the message says "stored", everything is stored, and the next command that opens
    the store puts it in place. `dated`: the column `written` of telemetry says when each row was written.
    """
    file_names.check(name)
    rows = {spec: keys.sort(spec, keys.conform(spec, table, dated=dated)) for spec, table in tables.items()}
    contents: list[tuple[Path, bytes]] = []
    with contextlib.ExitStack() as stack, files.readable(root):
        telemetry = rows.pop(TELEMETRY, None)
        for spec in sorted(rows, key=lambda spec: _ORDER[spec], reverse=True):
            contents += telemetry_files.files_of(root, spec, rows[spec], name, written_ns=time.time_ns())
        if telemetry is not None:
            stack.enter_context(telemetry_files.placing(root))
            finish(root)  # what a dead holder of the lock committed must be visible first
            rows_of_now = keys.with_written(telemetry, time.time_ns())
            placed = telemetry_files.place(root, rows_of_now, name, dated=dated)
            contents = [*placed, *contents]
        return _commit(root, contents, name)


def _commit(root: Path, contents: list[tuple[Path, bytes]], name: str) -> list[Path]:
    new_files = NewFiles()
    # Every commit has its own name: two processes may commit the same, and neither may remove the other's intent.
    intent = root / PENDING / f"{name}-{uuid4().hex[:8]}.json"
    try:
        new_files.add(contents)
        for folder in {temporary.parent for temporary in new_files.moves}:
            files.sync_folder(folder)
        moves = [[str(t.relative_to(root)), str(f.relative_to(root))] for t, f in new_files.moves.items()]
        files.put(intent, json.dumps({"format": FORMAT, "moves": moves}).encode(), below=True)
    except BaseException as error:
        if not _may_be_there(intent):  # with it the group counts as stored, whatever failed afterwards
            new_files.discard()
        if isinstance(error, OSError):
            raise files.failed("write", intent, error) from error
        raise
    try:
        _finish(root, intent)
    except OSError as error:
        raise StoreError(
            f"stored, but not yet in place ({error.strerror or error}: {error.filename or root}); "
            f"the next whorl command that opens {root} and may write there puts it in place"
        ) from error
    missing = [path for path in new_files.moves.values() if not _may_be_there(path)]
    if missing:
        raise StoreError(f"cannot write {missing[0]}: somebody removed its temporary file; run the command again")
    return [*new_files.moves.values()]


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
        moves = _listed(files.read_small(intent, _MOST))
    except FileNotFoundError:
        return  # somebody else finished it
    folders = set()
    for source, target in moves:
        with contextlib.suppress(FileNotFoundError):  # renamed already
            files.rename(root / source, root / target)
        if (root / target).exists():
            folders.add((root / target).parent)
        else:
            log.warning("%s lists %s, which is lost because its temporary file was removed", intent, root / target)
    for folder in folders:
        files.sync_folder(folder)
    intent.unlink(missing_ok=True)


def _listed(text: str) -> list[tuple[str, str]]:
    """The moves of an intent. Raises ValueError if it is damaged or names other than files of tables."""
    content: Any = files.parse_json(text)
    if not isinstance(content, dict) or not isinstance(content.get("moves"), list):
        raise ValueError("it is not a commit file")  # noqa: TRY004 - one kind of error for a damaged file
    if why := other_format(str(content.get("format")), older=True):  # names of files say nothing of their format
        raise ValueError(why)
    for source, target in content["moves"]:
        source_match, target_match = _SOURCE.fullmatch(source), _PLACE.fullmatch(target)
        if source_match is None or target_match is None or source_match[1] != target_match[1]:
            raise ValueError(f"it lists {[source, target]!r}")
    return [(source, target) for source, target in content["moves"]]


def remove_leftovers(root: Path) -> None:
    """Remove the temporary files that dead processes left behind, where this user may.

    Files of other hosts stay, because nobody here can know whether their writers live. The same is true of another boot
    or container with this host's name; their files are removed after a day.
    """
    own_prefix = f"{TEMPORARY}{processes.host()}-"
    with contextlib.suppress(OSError):  # a folder that this user may not read
        walk = ((folder, name) for folder, _, names in os.walk(root) for name in names if name.startswith(own_prefix))
        for leftover in itertools.starmap(Path, walk):
            living = processes.owner_alive(leftover.name.removeprefix(TEMPORARY))
            with contextlib.suppress(OSError):
                age_s = files.clock(leftover.parent) - leftover.lstat().st_mtime if living is None else 0.0
                if living is False or age_s > _STALE_S:
                    files.remove_inside(root, leftover)


def damaged(root: Path) -> dict[Path, str]:
    """The intents that cannot be read, with the reason: what they committed is not in place. Raises OSError."""
    reasons = {}
    for intent in _intents(root):
        try:
            _listed(files.read_small(intent, _MOST))
        except FileNotFoundError:
            continue
        except OSError as error:
            reasons[intent] = files.unreadable(error)
        except (ValueError, TypeError) as error:
            reasons[intent] = (
                f"it is damaged ({error}), and the rows that were stored with it are not in place: remove it, and run "
                "the command that stored them again"
            )
    return reasons


def _intents(root: Path) -> list[Path]:
    folder = root / PENDING
    return sorted(folder / name for name in files.names_in(folder) if name.endswith(".json"))


def finish(root: Path) -> None:
    """Put in place what was committed and is not in place yet. Raises StoreError if the disk does not say what that is.

    A user who may not look there reads what is in place.
    """
    intents: list[Path] = []
    with files.readable(root), contextlib.suppress(PermissionError):
        intents = _intents(root)
    for intent in intents:
        try:
            _finish(root, intent)
        except OSError:
            continue
        except (ValueError, TypeError) as error:
            log.warning(
                "%s is damaged (%s) and was not used; remove it when nothing writes to the store", intent, error
            )
