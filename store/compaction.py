"""Join many small files into few large ones, while collectors write and readers read.

A pass seals the journals of dead writers and then rewrites, of every day, what is worth it: the files of each past hour
become files of up to 1.5 million rows, sorted by GPU; those of each past day again, with a manifest; a day that is a
week old is written once more in the smallest form. Late rows go where they belong. All files of a pass change places at
once (see `replacing`). A pass may be killed at any moment, and the next one begins anew.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import StoreError
from . import file_names, keys, manifest, parquet, replacing, sealing, snapshot, telemetry_files
from .file_names import DAY_US
from .parquet import DamagedError, Verified
from .replacing import Compactor, Replacement
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
_BATCH_BYTES = 2 << 30  # old files that change places at once: so much more space a pass takes

Progress = Callable[[str], None]
T = TypeVar("T")


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
class _Group:
    """Files to be written anew together; `closed`: they are all of a day that is over."""

    spec: Table
    files: list[Path]
    codec: str = "warm"
    closed: bool = False


def compact(root: Path, *, offline: bool = False, now: int | None = None, progress: Progress = lambda _: None) -> Done:
    """One pass over a store; `now` in ns. Raises StoreError, also where another process compacts."""
    now_us = (time.time_ns() if now is None else now) // 1000
    pace = replacing.pace_of(root, offline=offline)
    done = Done()
    failure: StoreError | None = None
    with Compactor(root, pace) as compactor, files.readable(root):
        compactor.tidy()
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
    """Plans and writes the files of a pass; they change places at the end, or after each `_BATCH_BYTES`."""

    def __init__(self, compactor: Compactor, now_us: int, done: Done, progress: Progress) -> None:
        self._root, self._compactor = compactor.root, compactor
        self._now, self._done, self._progress = now_us, done, progress
        self._verified = Verified(self._root)
        self._oldest_us = telemetry_files.oldest_journal_us(self._root)
        self._bytes = 0  # of old files that wait for the next switch
        self._closed: dict[Path, bool] = {}  # folders of days that are over; whether they get their smallest form

    def run(self) -> None:
        with Replacement() as batch:
            for group in self._groups():
                self._compactor.beat()
                self._progress(f"{group.spec.name}: {len(group.files)} files")
                try:
                    with Replacement() as part:
                        self._write(group, part)
                        self._bytes += sum(_of_each(part.old, lambda path: path.stat().st_size).values())
                        if group.closed:
                            self._closed |= {path.parent: group.codec == "cold" for path in part.moves.values()}
                        batch.take(part)
                except (DamagedError, FileNotFoundError) as error:
                    log.warning("%s", error)
                if self._bytes > _BATCH_BYTES:
                    self._switch(batch)
            self._switch(batch)
        self._complete_latest()

    def _switch(self, batch: Replacement) -> None:
        if not batch.old:
            return
        self._done.before += len(batch.old)
        self._done.after += len(batch.moves)
        self._compactor.switch(batch)
        by_day = file_names.by_day(self._visible(TELEMETRY)) if self._closed else {}
        for folder, cold in self._closed.items():
            with contextlib.suppress(OSError, DamagedError):
                manifest.write(folder, by_day.get(folder.name, []), cold=cold)
        self._closed, self._bytes = {}, 0

    def _skip(self, path: Path, reason: str) -> None:
        text = f"{path}: {reason}"
        if text not in self._done.unreadable:
            self._done.unreadable.append(text)
            log.warning("left %s alone: %s", path, reason)

    def _visible(self, spec: Table) -> list[Path]:
        """The sound files of a table."""
        return [path for path in snapshot.visible_now(self._root, spec) if self._sound(spec, path)]

    def _sound(self, spec: Table, path: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return bool(snapshot.sound(spec, [path], self._verified, self._skip))
        return False

    # -- what to write --------------------------------------------------------------------------------------

    def _groups(self) -> Iterator[_Group]:
        yield from self._telemetry()
        for spec in TABLES:
            paths = [] if spec == TELEMETRY or spec in DERIVED else self._visible(spec)
            if spec.partitioned:
                yield from (
                    _Group(spec, several, "cold") for several in file_names.by_day(paths).values() if len(several) > 1
                )
            else:
                counts = _of_each(paths, parquet.rows_in)
                small = {path: rows for path, rows in counts.items() if rows < telemetry_files.MOST_ROWS // 2}
                batches = telemetry_files.batches(small) if len(small) > _FEW_FILES else []
                yield from (_Group(spec, several) for several in batches if len(several) > 1)

    def _telemetry(self) -> Iterator[_Group]:
        """The groups of telemetry: of each day those of its hours, or all of it, with its late rows."""
        staying: list[Path] = []  # files that stay as they are: their rows cannot be put in order now
        movable: list[Path] = []
        for path in snapshot.visible_now(self._root, TELEMETRY):
            blocked = telemetry_files.blocked(path, self._oldest_us) or not self._sound(TELEMETRY, path)
            (staying if blocked else movable).append(path)
        by_day = file_names.by_day(movable)
        late_by_day = file_names.by_day(self._ready(self._visible(LATE), staying))
        for day in sorted({*by_day, *late_by_day}):
            paths, late = by_day.get(day, []), late_by_day.get(day, [])
            number = file_names.day_number(day)
            since_end = self._now - DAY_US * (number + 1) if number is not None else 0
            if since_end >= _SETTLED_US:
                yield from self._day(paths, late, cold=since_end >= _COLD_US)
            elif number is not None:
                yield from self._hours(paths, late)

    def _day(self, paths: list[Path], late: list[Path], *, cold: bool) -> Iterator[_Group]:
        """All files of a day that is over, where they are not yet as they are to stay."""
        listed = manifest.read(paths[0].parent) if paths else None
        same = set(listed.files) == {path.name for path in paths} if listed else len(paths) == 1
        if paths and (late or not same or (cold and listed is not None and not listed.cold)):
            yield _Group(TELEMETRY, [*paths, *late], "cold" if cold else "warm", closed=True)
        elif late:
            yield _Group(TELEMETRY, late)

    def _hours(self, paths: list[Path], late: list[Path]) -> Iterator[_Group]:
        """The files of each hour that is over, and those that late rows belong to."""
        touched = [path for path in paths if any(file_names.may_hold(path.name, name_of(near).bounds) for near in late)]
        if late:
            yield _Group(TELEMETRY, [*touched, *late])
        hours: dict[int, list[Path]] = {}
        for path in paths:
            hour = name_of(path).bounds.last_us // _HOUR_US
            if path not in touched and (hour + 1) * _HOUR_US + _SETTLED_US <= self._now:
                hours.setdefault(hour, []).append(path)
        yield from (_Group(TELEMETRY, several) for _, several in sorted(hours.items()) if len(several) > 1)

    def _ready(self, late: list[Path], staying: list[Path]) -> list[Path]:
        """The late files that can be put in place. One waits for an open journal, with a file that stays as it is, and
        with another that waits: of two late rows of a key the newer one must not be put in place first."""
        waiting = [path for path in late if telemetry_files.blocked(path, self._oldest_us)]
        ready = [path for path in late if path not in waiting]
        stays = [*staying, *waiting]
        while stays:
            near = [
                path
                for path in ready
                if any(file_names.may_hold(path_near.name, name_of(path).bounds) for path_near in stays)
            ]
            ready = [path for path in ready if path not in near]
            waiting += near
            stays = near
        self._done.waiting = len(waiting)
        return ready

    # -- writing --------------------------------------------------------------------------------------------

    def _write(self, group: _Group, part: Replacement) -> None:
        """Write a group's rows under temporary names."""
        part.old += group.files
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

    def _complete_latest(self) -> None:
        """Store the last reading of GPUs that `latest` does not have: one of its files was damaged or removed."""
        import pyarrow as pa

        known: set[int] = set()
        with contextlib.suppress(OSError, DamagedError):
            for path in self._visible(LATEST):
                known |= keys.hashes_of(keys.with_key(parquet.read(path)))
            absent = []
            for path in reversed(self._visible(TELEMETRY)):  # the newest day first
                gpus = manifest.gpus_of(path)
                if gpus is None or not gpus <= known:
                    last = keys.last_rows([telemetry_files.read(path)])
                    fresh = [file_names.gpu_hash(gpu) not in known for gpu in last["gpu"].to_pylist()]
                    absent += [last.filter(pa.array(fresh))] if any(fresh) else []
                    known |= keys.hashes_of(last)
            if absent:
                rows = keys.conform(LATEST, keys.last_rows(absent))
                for path, content in telemetry_files.files_of(self._root, LATEST, rows, f"missing-{time.time_ns():x}"):
                    files.rename(files.write(path, content), path)


def _of_each(paths: Iterable[Path], ask: Callable[[Path], T]) -> dict[Path, T]:
    """What `ask` says of each file, but for those that a writer has just replaced, as in `latest`."""
    answers = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            answers[path] = ask(path)
    return answers


def _plain_rows(group: _Group) -> pa.Table:
    """The rows of a group of a table that is not kept by days; of `latest` without files that writers replaced."""
    import pyarrow as pa

    latest = group.spec == LATEST
    of_files = _of_each(group.files, parquet.read) if latest else {path: parquet.read(path) for path in group.files}
    tables = [*of_files.values()]
    rows = keys.last_rows(tables) if latest else pa.concat_tables(tables, promote_options="default")
    return keys.sort(group.spec, keys.conform(group.spec, rows))
