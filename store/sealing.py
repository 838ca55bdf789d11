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
from . import commits, file_names, journal_file, keys, replacing, telemetry_files
from .journal_file import JournalName
from .parquet import DamagedError, Verified
from .replacing import NewFiles, Pace
from .schema import FORMAT, LATE, LATEST, TABLES, TELEMETRY
from .system import children, files
from .system.locks import Lock, is_held, locked

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
        except StoreError as error:  # the others first: one that cannot be sealed must not keep them for ever
            failure = error
        except OSError as error:
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
    """Put the files of a journal in place; false where the journal cannot be read. Raises OSError and StoreError."""
    try:
        content, reason = journal_file.look(journal.path)
    except FileNotFoundError:
        return True
    if content.lost:
        put_aside(journal.path, content.lost)
    elif reason is not None:
        log.warning("%s stays where it is: %s", journal.path, reason)
        return False
    with NewFiles() as new_files:
        for spec in TABLES[::-1]:
            if spec != TELEMETRY and (rows := content.rows.get(spec.name)) is not None:
                shaped = keys.sort(spec, keys.conform(spec, keys.without_written(rows)))
                new_files.add(telemetry_files.files_of(root, spec, shaped, journal.stem))
        readings = content.rows.get(TELEMETRY.name)
        if readings is None:
            _rename(root, new_files, journal, [])
        else:
            _place_readings(root, journal, keys.conform(TELEMETRY, readings, dated=True), new_files)
    return True


def _place_readings(root: Path, journal: JournalName, rows: pa.Table, others: NewFiles) -> None:
    """Put readings in place with the other files of their journal. Raises OSError and StoreError.

    To compare and to write them takes most of the time. So it is done before others must wait, and once more if they
    have stored rows meanwhile that could have the same keys.
    """
    earlier, bounds = _latest_so_far(root, journal), keys.bounds_of(rows)
    days = [day for day, _ in keys.days(rows)]

    def rivals() -> set[Path]:
        return {*telemetry_files.candidates(root, bounds, (), without=journal.stem)}

    before = rivals()
    with NewFiles() as placed:

        def write() -> None:
            placed.add(telemetry_files.place(root, rows, journal.stem, of_journal=True, latest=earlier.values()))

        write()
        with telemetry_files.placing(root):
            commits.finish(root)  # what a dead holder of the lock committed must be visible first
            if rivals() - before:
                placed.discard()
                write()
            placed.take(others)
            _rename(root, placed, journal, days)
        newest = next((path for path in placed.moves.values() if path.parent.name == LATEST.name), None)
    # What earlier files hold is in the new one, or no longer the last. The one before stays for queries that listed it.
    for path in [path for path in earlier if path != newest][:-1] if newest is not None else ():
        files.remove(path)


def _rename(root: Path, new_files: NewFiles, journal: JournalName, days: Iterable[str]) -> None:
    """Rename files into place, instead of those that a process that died has made of the journal. Raises OSError."""
    folders = [root / spec.name for spec in TABLES if not spec.partitioned]
    folders += [root / spec.name / day for spec in (TELEMETRY, LATE) for day in days]
    staying = {*new_files.moves.values()}
    for folder in folders:
        strays = {folder / name for name in file_names.of_stem(files.names_in(folder), journal.stem)} - staying
        for path in strays:
            with contextlib.suppress(FileNotFoundError):
                files.remove_inside(root, path)
        if strays:  # they must not come back after a power failure
            files.sync_folder(folder)
    new_files.place()


def _latest_so_far(root: Path, journal: JournalName) -> dict[Path, pa.Table]:
    """The files of `latest` that journals of a writer made, this one too in an earlier attempt, with their rows; in the
    order of the times at which their rows were written, as names tell it.

    One that is damaged stays.
    """
    tables, verified = {}, Verified(root, use_log=False)
    for path in (root / LATEST.name).glob(f"{journal.writer}-*.parquet"):
        stated = file_names.parse(path.name)
        stem, _, written = stated.stem.rpartition(".") if stated else ("", "", "")
        maker = journal_file.parse(Path(f"{stem}{journal_file.ENDING}"))
        if maker and maker.writer == journal.writer:
            with contextlib.suppress(OSError, DamagedError):
                if verified.reason(path, LATEST) is None:
                    tables[path] = (len(written), written), telemetry_files.read(path)
    in_order = sorted(tables, key=lambda path: tables[path][0])
    return {path: tables[path][1] for path in in_order}


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
