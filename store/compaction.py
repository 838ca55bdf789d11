"""Join many small files into few large ones, while collectors write and readers read.

A pass seals the journals of dead writers and then rewrites, of every day, what is worth it: the files of each past hour
become files of up to 1.5 million rows, sorted by GPU; those of each past day again, with a manifest; a day that is a
week old is written once more in the smallest form. Late rows go where they belong. The files of a pass change places at
once (see `replacing`), of a large pass in several steps. It may be killed at any moment, and the next one begins anew.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import commits, file_names, keys, manifest, parquet, replacing, sealing, snapshot, telemetry_files
from .file_names import DAY_US, EVER, Bounds
from .parquet import DamagedError, Verified
from .replacing import Compactor, NewFiles, Skip
from .schema import DERIVED, LATE, LATEST, TABLES, TELEMETRY, Table
from .system import files
from .telemetry_files import name_of

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_HOUR_US = 3_600_000_000
_SETTLED_US = 15 * 60_000_000  # a period is over when its journals are sealed, too
_COLD_US = 7 * DAY_US
_FEW_FILES = 8  # of other tables: so many are left alone


@dataclass
class Done:
    """What a pass did: journals sealed, late rows put in place, files before and after; and what it left: late files
    that wait for an open journal, journals whose writers live or cannot be judged, files that cannot be read."""

    sealed: int = 0
    late_rows: int = 0
    before: int = 0
    after: int = 0
    waiting: int = 0
    open_journals: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


@dataclass
class Day:
    """The files of a day that can be joined: of telemetry, and of late rows.

    `stays`: others cannot, as they are damaged, or an open journal could have an older row of one of their keys. Then
    late rows stay too: of two late rows of a key the newer one must not be put in place first.
    """

    telemetry: list[Path] = field(default_factory=list)
    late: list[Path] = field(default_factory=list)
    stays: bool = False


@dataclass
class _Group:
    """Files to be written anew together; `closed`: they are all of a day that is over."""

    spec: Table
    files: list[Path]
    codec: str = "warm"
    closed: bool = False


def days_of(root: Path, verified: Verified, skip: Skip, bounds: Bounds = EVER) -> dict[str, Day]:
    """The days of telemetry that can have rows within bounds, by their folders, in order.

    Raises OSError; no other process may replace files meanwhile.
    """
    oldest_us = telemetry_files.oldest_journal_us(root)
    days: dict[str, Day] = {}
    for spec in (TELEMETRY, LATE):
        for folder, paths in file_names.by_day(snapshot.visible_now(root, spec, bounds)).items():
            day = days.setdefault(folder, Day())
            sound = snapshot.sound(spec, paths, verified, skip)
            movable = [path for path in sound if not telemetry_files.blocked(path, oldest_us)]
            (day.telemetry if spec == TELEMETRY else day.late).extend(movable)
            day.stays |= len(movable) < len(paths)
    return dict(sorted(days.items()))


def compact(
    root: Path, *, offline: bool = False, now: int | None = None, progress: Callable[[str], None] = lambda _: None
) -> Done:
    """One pass over a store; `now` in ns. Raises StoreError, also where another process compacts."""
    now_us = (time.time_ns() if now is None else now) // 1000
    pace = replacing.pace_of(root, offline=offline)
    done = Done()
    failure: StoreError | None = None
    with Compactor(root, pace) as compactor, files.readable(root):
        commits.remove_leftovers(root)
        try:
            done.sealed, left_journals = sealing.seal_dead(root, pace)
            done.open_journals = [str(path) for path in left_journals]
        except StoreError as error:  # the rest first: one journal that cannot be read must not stop it for ever
            failure = error
        _Pass(compactor, now_us, done, progress).run()
    parquet.shorten_log(root)
    if failure is not None:
        raise failure
    return done


class _Pass:
    """Plans and writes the files of a pass."""

    def __init__(self, compactor: Compactor, now_us: int, done: Done, progress: Callable[[str], None]) -> None:
        self._root, self._compactor = compactor.root, compactor
        self._now, self._done, self._progress = now_us, done, progress
        self._verified = Verified(self._root)

    def run(self) -> None:
        for group in [*self._telemetry(), *self._other_tables()]:
            self._compactor.beat()
            self._progress(f"{group.spec.name}: {len(group.files)} files")
            try:
                with self._compactor.replacing(group.files) as part:
                    self._write(group, part)
                    self._done.before += len(part.old)
                    self._done.after += len(part.moves)
            except (DamagedError, FileNotFoundError) as error:
                log.warning("%s", error)

    def _list(self, folder: Path, *, cold: bool) -> None:
        """Write the manifest of a day that is over."""
        with contextlib.suppress(OSError, DamagedError):
            of_day = file_names.bounds_of_day(folder.name)
            visible = snapshot.visible_now(self._root, TELEMETRY, of_day)
            paths = snapshot.sound(TELEMETRY, visible, self._verified, lambda *_: None)
            manifest.write(folder, file_names.by_day(paths).get(folder.name, []), cold=cold)

    def _skip(self, path: Path, reason: str) -> None:
        self._done.unreadable.append(f"{path}: {reason}")
        log.warning("left %s alone: %s", path, reason)

    # -- what to write --------------------------------------------------------------------------------------

    def _telemetry(self) -> Iterator[_Group]:
        """The groups of telemetry: of each day those of its hours, or all of it, with its late rows."""
        for folder, day in days_of(self._root, self._verified, self._skip).items():
            number = file_names.day_number(folder)
            if day.stays:
                self._done.waiting += len(day.late)
                day.late = []
            since_end = self._now - DAY_US * (number + 1) if number is not None else 0
            if since_end >= _SETTLED_US:
                yield from _whole_day(day, cold=since_end >= _COLD_US)
            elif day.late:
                yield _Group(TELEMETRY, [*day.telemetry, *day.late])
            else:
                yield from self._hours(day.telemetry)

    def _hours(self, paths: list[Path]) -> Iterator[_Group]:
        """The files of each hour that is over."""
        hours: dict[int, list[Path]] = {}
        for path in paths:
            hour = name_of(path).bounds.last_us // _HOUR_US
            if (hour + 1) * _HOUR_US + _SETTLED_US <= self._now:
                hours.setdefault(hour, []).append(path)
        yield from (_Group(TELEMETRY, several) for _, several in sorted(hours.items()) if len(several) > 1)

    def _other_tables(self) -> Iterator[_Group]:
        for spec in TABLES:
            if spec == TELEMETRY or spec in DERIVED:
                continue
            counts = {}
            for path in snapshot.visible_now(self._root, spec):
                with contextlib.suppress(FileNotFoundError):  # its writer has replaced it, as those of `latest`
                    if snapshot.sound(spec, [path], self._verified, self._skip):
                        counts[path] = parquet.rows_in(path)
            if spec.partitioned:
                groups, codec = [*file_names.by_day(counts).values()], "cold"
            else:
                small = {path: rows for path, rows in counts.items() if rows < telemetry_files.MOST_ROWS // 2}
                groups, codec = telemetry_files.batches(small) if len(small) > _FEW_FILES else [], "warm"
            yield from (_Group(spec, several, codec) for several in groups if len(several) > 1)

    # -- writing --------------------------------------------------------------------------------------------

    def _write(self, group: _Group, part: NewFiles) -> None:
        """Write a group's rows under temporary names."""
        stem = f"compacted-{time.time_ns():x}"
        if not group.spec.partitioned:
            part.add(telemetry_files.files_of(self._root, group.spec, _plain_rows(group), stem))
            return
        written_ns = 1000 * max(name_of(path).written_us for path in group.files)
        late = [path for path in group.files if path.parent.parent.name == LATE.name]
        self._done.late_rows += sum(map(parquet.rows_in, late))
        for number, rows in enumerate(telemetry_files.pieces(group.spec, group.files)):
            self._compactor.beat()
            part.add(
                telemetry_files.files_of(
                    self._root, group.spec, rows, f"{stem}-{number}", written_ns=written_ns, codec=group.codec
                )
            )
        if group.closed:
            folders = {path.parent for path in part.moves.values()}
            part.then += [partial(self._list, folder, cold=group.codec == "cold") for folder in folders]


def _whole_day(day: Day, *, cold: bool) -> Iterator[_Group]:
    """All files of a day that is over, where they are not yet as they are to stay."""
    paths = day.telemetry
    listed = manifest.read(paths[0].parent) if paths else None
    same = set(listed.files) == {path.name for path in paths} if listed else len(paths) == 1
    if paths and (day.late or not same or (cold and listed is not None and not listed.cold)):
        yield _Group(TELEMETRY, [*paths, *day.late], "cold" if cold else "warm", closed=True)
    elif day.late:
        yield _Group(TELEMETRY, day.late)


def _plain_rows(group: _Group) -> pa.Table:
    """The rows of a group of a table that is not kept by days; of `latest` without files that writers replaced."""
    import pyarrow as pa

    tables = []
    for path in group.files:
        try:
            tables.append(parquet.read(path))
        except FileNotFoundError:
            if group.spec != LATEST:
                raise
    rows = keys.last_rows(tables) if group.spec == LATEST else pa.concat_tables(tables, promote_options="default")
    return keys.sort(group.spec, keys.conform(group.spec, rows))
