"""Seal a journal: its rows become sorted files of the store, which carry the journal's name.

As long as the journal is there, readers take its rows and leave out the files that carry its name. So removing the
journal, one step, puts the files in its place; a process that dies before leaves files that the next one makes anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import file_names, journal_file, keys, replacing, telemetry_files
from .journal_file import JournalName
from .parquet import DamagedError, Verified
from .replacing import Pace
from .schema import FORMAT, LATE, LATEST, TABLES, TELEMETRY
from .system import children, files
from .system.locks import Lock, is_held, locked
from .telemetry_files import NewFile

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_STALE_S = 3600.0
_NICE = 10


def seal(root: Path, several: Iterable[JournalName], pace: Pace) -> list[JournalName]:
    """Seal journals whose names the caller holds; returns those that were sealed. Raises StoreError.

    One that cannot be read stays where it is, with a warning. On a network file system the files are there for
    `pace.announce_s` before the journals go, so that every host sees them.
    """
    ready, failure = [], None
    for journal in several:
        try:
            if _place(root, journal):
                ready.append(journal)
        except OSError as error:  # the others first: one that cannot be sealed must not keep them for ever
            failure = files.failed("write", Path(error.filename or root), error)
    if ready and pace.announce_s > 1:
        time.sleep(pace.announce_s)
    for journal in ready:
        with files.readable(root), contextlib.suppress(FileNotFoundError):
            files.remove_inside(root, journal.path)
            files.sync_folder(journal.path.parent)
    if failure is not None:
        raise failure
    return ready


def seal_in_child(
    root: Path, several: Iterable[JournalName], pace: Pace, *, hold: Lock, ended: Callable[[], bool] | None
) -> None:
    """Seal journals in a process of its own, at low priority, where this one has no Arrow. Raises StoreError.

    The child keeps the lock of their name, `hold`, and ends when this process does, or when `ended` says so: with that
    it is always a child, as a file system may make it wait for minutes.
    """
    paths = [str(journal.path) for journal in several]
    if paths:
        arguments = {"root": str(root), "paths": paths, "announce_s": pace.announce_s, "version": FORMAT}
        children.run(f"{__name__}:seal_as_child", arguments, keep=[hold.handle], nice=_NICE, ended=ended)


def seal_as_child(root: str, paths: Iterable[str], *, announce_s: float, version: int) -> None:
    """What the child of `seal_in_child` does. Raises StoreError."""
    if version != FORMAT:
        raise StoreError(f"another version of whorl was installed: start what collects into {root} again")
    several = [journal for path in paths if (journal := journal_file.parse(Path(path))) is not None]
    seal(Path(root), several, Pace(announce_s))
    replacing.tidy(Path(root))


def _place(root: Path, journal: JournalName) -> bool:
    """Put the files of a journal in place; false where the journal cannot be read."""
    try:
        content, reason = journal_file.look(journal.path)
    except FileNotFoundError:
        return True
    if content.lost:
        put_aside(journal.path, content.lost)
    elif reason is not None:
        log.warning("%s stays where it is: %s", journal.path, reason)
        return False
    others = []
    for spec in TABLES[::-1]:
        if spec != TELEMETRY and (rows := content.rows.get(spec.name)) is not None:
            shaped = keys.sort(spec, keys.conform(spec, keys.without_written(rows)))
            others += telemetry_files.files_of(root, spec, shaped, journal.stem)
    readings = content.rows.get(TELEMETRY.name)
    if readings is None:
        _write(root, journal, others, [])
        return True
    rows = keys.conform(TELEMETRY, readings, dated=True)
    with telemetry_files.placing(root):
        earlier = _latest_so_far(root, journal)
        new_files = telemetry_files.place(root, rows, journal.stem, of_journal=True, latest=earlier.values())
        _write(root, journal, [*new_files, *others], [day for day, _ in keys.days(rows)])
        if new_files:  # what earlier files hold is in the new one, or no longer the last
            for path in earlier.keys() - dict(new_files).keys():
                files.remove(path)
    return True


def _latest_so_far(root: Path, journal: JournalName) -> dict[Path, pa.Table]:
    """The files of `latest` that journals of a writer made, this one too in an earlier attempt, with their rows.

    One that is damaged stays.
    """
    folder, tables = root / LATEST.name, {}
    for name in files.names_in(folder):
        file_name = file_names.parse(name) if name.startswith(f"{journal.writer}-") else None
        stem = "" if file_name is None else file_name.stem.rpartition(".")[0]
        earlier_journal = journal_file.parse(Path(f"{stem}{journal_file.ENDING}"))
        if earlier_journal is not None and earlier_journal.writer == journal.writer:
            with contextlib.suppress(OSError, DamagedError):
                if Verified(root).reason(folder / name, LATEST) is None:
                    tables[folder / name] = telemetry_files.read(folder / name)
    return tables


def _write(root: Path, journal: JournalName, contents: list[NewFile], days: list[str]) -> None:
    """Write files durably under their names, in place of those of an earlier attempt. Raises OSError."""
    new_paths = dict(contents).keys()
    folders = {path.parent for path in new_paths}
    places = [root / spec.name for spec in TABLES if not spec.partitioned]
    places += [root / spec.name / day for spec in (TELEMETRY, LATE) for day in days]
    for folder in places:
        for name in file_names.of_stem(files.names_in(folder), journal.stem):
            if folder / name not in new_paths:
                files.remove_inside(root, folder / name)
                folders.add(folder)  # it must not come back after a power failure
    moves: dict[Path, Path] = {}
    try:
        for path, content in contents:
            moves[files.write(path, content)] = path
        for temporary, path in moves.items():
            files.rename(temporary, path)
        for folder in folders:
            files.sync_folder(folder)
    except BaseException:
        for temporary in moves:
            files.remove(temporary)
        raise


def put_aside(path: Path, lost: int) -> None:
    """If some bytes of a journal changed, keep it under another name when its other rows go to a segment."""
    aside = path.with_name(path.name + journal_file.DAMAGED)
    log.warning("%s: %s; it is kept as %s", path, journal_file.unread(lost), aside)
    with contextlib.suppress(FileExistsError):
        os.link(path, aside, follow_symlinks=False)


def seal_dead(root: Path, pace: Pace) -> tuple[int, list[Path]]:
    """Seal the journals whose writers are dead; returns how many, and those that were left. Raises StoreError."""
    with files.readable(root):
        all_journals = journal_file.journals(root)
    with of_dead(all_journals) as held:
        done = seal(root, held, pace)
    left_journals = [journal.path for journal in all_journals if journal.path.exists()]
    return len(done), left_journals


@contextlib.contextmanager
def of_dead(all_journals: Iterable[JournalName]) -> Iterator[list[JournalName]]:
    """Those journals whose writers are dead; as long as the block runs nobody can take their names.

    A writer is dead where its lock is free. Where the file system has no locks, and another host took the lock, its
    journal must not have grown for an hour by the clock of the file system.
    """
    by_writer: dict[str, list[JournalName]] = {}
    for journal in all_journals:
        by_writer.setdefault(journal.writer, []).append(journal)
    dead: list[JournalName] = []
    with contextlib.ExitStack() as stack:
        for writer, several in by_writer.items():
            path = several[0].path.with_name(f"{writer}.lock")
            try:
                held = is_held(path)
                if held is False:
                    stack.enter_context(locked(path, f"a journal named {writer}"))
                elif held or not _is_stale(several):
                    continue
            except StoreError:
                continue  # its next writer has begun
            dead += several
        yield dead


def _is_stale(several: list[JournalName]) -> bool:
    """Whether journals have not grown for an hour, by the clock of the file system."""
    with contextlib.suppress(OSError):
        now_s = files.clock(several[0].path.parent)
        return all(now_s - journal.path.lstat().st_mtime > _STALE_S for journal in several)
    return False
