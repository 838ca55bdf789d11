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
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import file_names, journal_file, keys, manifest, parquet, replacing, sealing, snapshot, telemetry_files
from .file_names import DAY_US, Bounds
from .parquet import Verified
from .replacing import Compactor
from .schema import LATE, LATEST, TABLES, TELEMETRY, Table
from .system import files

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_HOUR_US = 3_600_000_000
_SETTLED_US = 15 * 60_000_000  # a period is over when its journals are sealed, too
_COLD_US = 7 * DAY_US
_MOST_ROWS = 1_500_000  # in memory at once, and again while they are sorted: about 1 GB
_FEW_FILES = 8  # of other tables: so many are left alone
_BATCH_BYTES = 2 << 30  # old files that change places at once: so much more space a pass takes

Progress = Callable[[str], None]


class DamagedError(StoreError):
    """A file is damaged inside: it stays as it is."""


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
    """Files to be written anew together."""

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
        self._oldest = telemetry_files.oldest_journal(self._root)
        self._old: list[Path] = []
        self._moves: dict[Path, Path] = {}
        self._closed: dict[Path, bool] = {}  # folders of days that are over; whether they get their smallest form
        self._bytes = 0

    def run(self) -> None:
        try:
            for group in self._groups():
                self._compactor.beat()
                self._progress(f"{group.spec.name}: {len(group.files)} files")
                before = {*self._moves}
                try:
                    self._write(group)
                except (DamagedError, FileNotFoundError) as error:
                    for temporary in self._moves.keys() - before:  # beside its old files they would be there twice
                        del self._moves[temporary]
                        files.remove(temporary)
                    log.warning("%s", error)
                if self._bytes > _BATCH_BYTES:
                    self._switch()
            self._switch()
        except BaseException:
            for temporary in self._moves:
                files.remove(temporary)
            raise
        self._note_missing()

    def _switch(self) -> None:
        old, moves, closed = self._old, self._moves, self._closed
        self._old, self._moves, self._closed, self._bytes = [], {}, {}, 0
        if old:
            self._compactor.replace(old, moves)
            for folder, cold in closed.items():
                with contextlib.suppress(OSError):
                    manifest.write(folder, self._visible(TELEMETRY, folder.name), cold=cold)

    def _skip(self, path: Path, reason: str) -> None:
        text = f"{path}: {reason}"
        if text not in self._done.unreadable:
            self._done.unreadable.append(text)
            log.warning("left %s alone: %s", path, reason)

    def _visible(self, spec: Table, day: str | None = None) -> list[Path]:
        """The sound files of a table, or of one day of it."""
        return [path for path in self._listed(spec, day) if self._sound(spec, path)]

    def _listed(self, spec: Table, day: str | None = None) -> list[Path]:
        unsealed = {journal.stem for journal in journal_file.journals(self._root)}
        hidden = replacing.newest(self._root).hidden
        bounds = Bounds()
        if day is not None and (number := file_names.day_number(day)) is not None:
            bounds = Bounds(number * DAY_US, (number + 1) * DAY_US - 1)
        return snapshot.visible(self._root, spec, hidden, unsealed, bounds)

    def _sound(self, spec: Table, path: Path) -> bool:
        try:
            return bool(snapshot.sound(spec, [path], self._verified, self._skip))
        except FileNotFoundError:
            return False

    # -- what to write --------------------------------------------------------------------------------------

    def _groups(self) -> Iterator[_Group]:
        yield from self._telemetry()
        for spec in TABLES:
            if spec == TELEMETRY:
                continue
            paths = self._visible(spec)
            if spec.partitioned:
                by_day: dict[str, list[Path]] = {}
                for path in paths:
                    by_day.setdefault(path.parent.name, []).append(path)
                yield from (_Group(spec, several, "cold") for several in by_day.values() if len(several) > 1)
            elif spec == LATEST:
                yield from [_Group(spec, paths)] * (len(paths) > _FEW_FILES)
            else:
                small = [path for path in paths if parquet.rows_in(path) < _MOST_ROWS // 2]
                yield from _filled(spec, small) if len(small) > _FEW_FILES else []

    def _telemetry(self) -> Iterator[_Group]:
        """The groups of telemetry: of each day those of its hours, or all of it, with its late rows."""
        by_day: dict[str, list[Path]] = {}
        late: dict[str, list[Path]] = {}
        staying: list[Path] = []  # files that stay as they are: their rows cannot be put in order now
        for path in self._listed(TELEMETRY):
            if telemetry_files.blocked(path, self._oldest) or not self._sound(TELEMETRY, path):
                staying.append(path)
            else:
                by_day.setdefault(path.parent.name, []).append(path)
        for path in self._ready(self._visible(LATE), staying):
            late.setdefault(path.parent.name, []).append(path)
        for day in sorted({*by_day, *late}):
            number = file_names.day_number(day)
            if number is None:
                continue
            free = by_day.get(day, [])
            over = (number + 1) * DAY_US + _SETTLED_US <= self._now
            if over:
                cold = (number + 1) * DAY_US + _COLD_US <= self._now
                listed = manifest.read(self._root / TELEMETRY.name / day)
                same = set(listed.files) == {path.name for path in free} if listed else len(free) == 1
                if free and (late.get(day) or not same or (cold and listed is not None and not listed.cold)):
                    yield self._with_late(
                        _Group(TELEMETRY, free, "cold" if cold else "warm", closed=True), late.pop(day, [])
                    )
                elif late.get(day):
                    yield _Group(TELEMETRY, late.pop(day), "warm")
                continue
            yield from self._hours(free, late.pop(day, []))

    def _ready(self, late: list[Path], staying: list[Path]) -> list[Path]:
        """The late files that can be put in place. One waits for an open journal, with a file that stays as it is, and
        with another that waits: of two late rows of a key the newer one must not be put in place first."""
        waiting = [path for path in late if telemetry_files.blocked(path, self._oldest)]
        ready = [path for path in late if path not in waiting]
        stays = [*staying, *waiting]
        while stays:
            near = [
                path
                for path in ready
                if any(file_names.may_hold(path_near.name, _named(path).bounds) for path_near in stays)
            ]
            ready = [path for path in ready if path not in near]
            waiting += near
            stays = near
        self._done.waiting = len(waiting)
        return ready

    def _hours(self, paths: list[Path], late: list[Path]) -> Iterator[_Group]:
        """The files of each hour that is over, and those that late rows belong to."""
        hours: dict[int, list[Path]] = {}
        for path in paths:
            file_name = file_names.parse(path.name)
            assert file_name is not None  # a sound file has such a name
            of_late = any(file_names.may_hold(path.name, late_name.bounds) for late_name in map(_named, late))
            hour = file_name.bounds.last // _HOUR_US
            if of_late:
                hours.setdefault(-1, []).append(path)
            elif (hour + 1) * _HOUR_US + _SETTLED_US <= self._now:
                hours.setdefault(hour, []).append(path)
        if late:
            yield self._with_late(_Group(TELEMETRY, hours.pop(-1, [])), late)
        yield from (_Group(TELEMETRY, several) for _, several in sorted(hours.items()) if len(several) > 1)

    def _with_late(self, group: _Group, late: list[Path]) -> _Group:
        group.files = [*group.files, *late]
        return group

    # -- writing --------------------------------------------------------------------------------------------

    def _write(self, group: _Group) -> None:
        """Write a group's rows under temporary names."""
        before = len(self._moves)
        stem = f"compacted-{time.time_ns():x}"
        if not group.spec.partitioned:
            self._add_plain(group, stem)
        else:
            written = max(_named(path).written for path in group.files)
            for number, rows in enumerate(self._pieces(group)):
                self._compactor.beat()
                for day, part in keys.days(rows):
                    name, content = telemetry_files.file_of(
                        group.spec, part, f"{stem}-{number}", 1000 * written, codec=group.codec
                    )
                    self._add(self._root / group.spec.name / day / name, content)
                    if group.closed:
                        self._closed[self._root / TELEMETRY.name / day] = group.codec == "cold"
        self._old += group.files
        self._bytes += sum(path.stat().st_size for path in group.files)
        self._done.before += len(group.files)
        self._done.after += len(self._moves) - before

    def _add(self, path: Path, content: bytes) -> None:
        try:
            self._moves[parquet.write(path, content)] = path
        except OSError as error:
            raise files.failed("write", path, error) from error

    def _add_plain(self, group: _Group, stem: str) -> None:
        import pyarrow as pa

        rows = pa.concat_tables([read(path) for path in group.files], promote_options="default")
        if group.spec == LATEST:
            rows = keys.last_rows(keys.newest(keys.with_key(rows)))
            stem = f"{stem}.0"
        rows = keys.sort(group.spec, keys.conform(group.spec, rows))
        name, content = parquet.plain_file(group.spec, rows, stem)
        self._add(self._root / group.spec.name / name, content)

    def _pieces(self, group: _Group) -> Iterator[pa.Table]:
        """The rows of files by days, newest of each key, in pieces of whole GPUs in their order."""
        import pyarrow.dataset as ds

        sizes = {path: parquet.rows_in(path) for path in group.files}
        late = sum(size for path, size in sizes.items() if path.parent.parent.name == LATE.name)
        self._done.late_rows += late
        if sum(sizes.values()) <= _MOST_ROWS:
            yield self._joined(group, None)
            return
        counts: dict[str | None, int] = {}
        for path in group.files:
            column = read(path, ["gpu"])["gpu"].value_counts()
            for pair in column.to_pylist():
                counts[pair["values"]] = counts.get(pair["values"], 0) + pair["counts"]
        chosen: list[str | None] = []
        rows = 0
        for gpu in sorted(counts, key=lambda gpu: (gpu is None, (gpu or "").encode())):
            if chosen and rows + counts[gpu] > _MOST_ROWS:
                yield self._joined(group, _gpus(ds.field("gpu"), chosen))
                chosen, rows = [], 0
            chosen.append(gpu)
            rows += counts[gpu]
        yield self._joined(group, _gpus(ds.field("gpu"), chosen))

    def _joined(self, group: _Group, only: object) -> pa.Table:
        import pyarrow as pa

        if group.spec == TELEMETRY:
            return joined(group.files, only=only)
        rows = pa.concat_tables(
            [keys.with_key(read(path, only=only)) for path in group.files], promote_options="default"
        )
        return rows.sort_by([("gpu", "ascending"), ("ts", "ascending")])  # minutes of one key are several rows

    def _note_missing(self) -> None:
        """Note the last reading of GPUs that `latest` does not have: one of its files was damaged or removed."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known: set[int] = set()
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            for path in self._visible(LATEST):
                known |= file_names.gpu_hashes(pc.unique(keys.with_key(read(path))["gpu"]).to_pylist())
            absent = []
            for path in reversed(self._visible(TELEMETRY)):  # the newest day first
                gpus = manifest.gpus_of(path)
                if gpus is None or not gpus <= known:
                    rows = keys.with_written(keys.with_key(read(path)), 1000 * _named(path).written)
                    last = keys.last_rows(keys.newest(rows))
                    fresh = [file_names.gpu_hash(gpu) not in known for gpu in last["gpu"].to_pylist()]
                    absent += [last.filter(pa.array(fresh))] if any(fresh) else []
                    known |= file_names.gpu_hashes(last["gpu"].to_pylist())
            if absent:
                rows = keys.last_rows(keys.newest(pa.concat_tables(absent, promote_options="default")))
                name, content = parquet.plain_file(LATEST, keys.conform(LATEST, rows), f"missing-{time.time_ns():x}.0")
                place = self._root / LATEST.name / name
                files.rename(parquet.write(place, content), place)


def _named(path: Path) -> file_names.FileName:
    file_name = file_names.parse(path.name)
    if file_name is None:
        raise DamagedError(f"{path} has no name of whorl's")
    return file_name


def _gpus(field: object, chosen: list[str | None]) -> object:
    """A filter of `pyarrow.dataset`: rows of these GPUs."""
    named = field.isin([gpu for gpu in chosen if gpu is not None])  # type: ignore[attr-defined]
    return named | field.is_null() if None in chosen else named  # type: ignore[attr-defined]


def joined(paths: Iterable[Path], *, only: object = None) -> pa.Table:
    """The rows of files of telemetry and of late rows: late rows take the place of others, whenever those were written.

    Raises FileNotFoundError and DamagedError.
    """
    import pyarrow as pa

    parts: dict[bool, list[pa.Table]] = {False: [], True: []}
    for path in paths:
        rows = keys.with_written(keys.with_key(read(path, only=only)), 1000 * _named(path).written)
        parts[path.parent.parent.name == LATE.name].append(rows)
    usual, late = (
        keys.newest(pa.concat_tables(tables, promote_options="default")) if tables else None
        for tables in parts.values()
    )
    if late is not None and usual is not None:
        late = keys.newest(pa.concat_tables([keys.without(usual, late), late], promote_options="default"))
    rows = late if late is not None else usual
    assert rows is not None
    return keys.without_written(rows)


def _filled(spec: Table, paths: Iterable[Path]) -> Iterator[_Group]:
    """Groups of neighbouring files that fit into one file; a group has at least two."""
    group: list[Path] = []
    rows = 0
    for path in paths:
        rows_more = parquet.rows_in(path)
        if group and rows + rows_more > _MOST_ROWS:
            yield from [_Group(spec, group)] * (len(group) > 1)
            group, rows = [], 0
        group.append(path)
        rows += rows_more
    yield from [_Group(spec, group)] * (len(group) > 1)


def read(path: Path, columns: Iterable[str] | None = None, *, only: object = None) -> pa.Table:
    """The rows of a verified file. Raises FileNotFoundError and DamagedError."""
    import pyarrow as pa

    try:
        return parquet.read(path, columns, only=only).replace_schema_metadata()
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DamagedError(
            f"{path} is damaged: {reason}; restore it from a backup or move it out of the store"
        ) from error
