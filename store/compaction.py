"""Join many small files into few large ones, while collectors write and readers read.

One pass does four things. It seals the journals of dead writers. It puts late rows where they belong. It joins the
segments of each past hour into one file, and those of each past day, as long as a file stays below 1.5 million rows. It
joins small files of the other tables. Each step replaces files at once (see `replacing`): a pass may be killed at any
moment, and the next one goes on.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from .readers import reading
from .rows import arranging, journal_file, placing, replacing, writing
from .rows.journal_file import WRITTEN
from .rows.placing import Bounds
from .rows.replacing import Pace
from .schema import LATE, LATEST, TABLES, TELEMETRY, Table, arrow_schema
from .system import files, light
from .system.locks import COMPACTING, Lock, locked
from .writers import latest, rivals, sealing

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_HOUR = 3600 * 10**9
_DAY = 24 * _HOUR
_SETTLED = 15 * 60 * 10**9  # a period is over when its journals are sealed, too
_MOST_ROWS = 1_500_000  # in memory at once, and again while they are sorted: about 1 GB
_FEW_FILES = 8  # of other tables: so many are left alone

Progress = Callable[[str], None]


class DamagedError(StoreError):
    """A file is damaged inside: it stays as it is."""


@dataclass
class Done:
    """What a pass did: journals sealed, late rows put in place, files before and after."""

    sealed: int = 0
    late_rows: int = 0
    before: int = 0
    after: int = 0
    waiting: int = 0  # late files that wait for an open journal


def lock(root: Path) -> Lock:
    """The lock of those who replace segments. Raises StoreError where another holds it."""
    return locked(root / COMPACTING, "the compaction of this store")


def compact(
    root: Path, *, pace: Pace | None = None, now: int | None = None, progress: Progress = lambda _: None
) -> Done:
    """One pass over a store. Raises StoreError, also where another process compacts."""
    pace = pace or replacing.pace_of(root)
    now = time.time_ns() if now is None else now
    done = Done()
    with lock(root), files.readable(root):
        replacing.recover(root, pace.grace_s, every=True)
        failure: StoreError | None = None
        try:
            done.sealed = len(sealing.seal_abandoned(root, None, pace))
        except StoreError as error:  # the rest first: one journal that cannot be read must not stop it for ever
            failure = error
        progress("late rows")
        fold(root, pace, done)
        for spec in TABLES:
            with contextlib.suppress(FileNotFoundError):  # a writer took a file away: the next pass
                for group in _groups(root, spec, now):
                    progress(f"{spec.name}: {len(group)} files")
                    try:
                        _merge(root, spec, group, pace, done)
                    except (DamagedError, replacing.TakenError) as error:
                        log.warning("%s", error)
        _note_missing(root)
        rivals.remove_empty_homes(root, now - _DAY)
    if failure is not None:
        raise failure
    return done


def _note_missing(root: Path) -> None:
    """Note the last reading of GPUs that `latest` does not have, for example because one of its files is damaged."""
    import pyarrow as pa

    found = reading.snapshot(root)
    noted = []
    for path in sound(LATEST, found.files[LATEST.name]):
        if path.name != reading.EMPTY:
            with contextlib.suppress(DamagedError, FileNotFoundError):
                noted.append(whole(LATEST, path))
    telemetry = [path for spec in (TELEMETRY, LATE) for path in sound(spec, found.files[spec.name])]
    try:
        rows = latest.missing(noted, telemetry)
    except (OSError, pa.ArrowException) as error:
        log.warning("the last readings of some GPUs cannot be noted: %s", str(error).splitlines()[0])
        return
    if rows is not None:
        writing.replace_parquet(root / LATEST.name / f"{_name(0)}.parquet", LATEST, rows)


# -- late rows ------------------------------------------------------------------------------------------------


def fold(root: Path, pace: Pace, done: Done) -> None:
    """Replace rows by the late rows that supersede them. Late rows that an open journal may contradict wait."""
    try:
        _fold(root, pace, done)
    except (DamagedError, OSError) as error:
        log.warning("late rows stay where they are: %s", error)


def _fold(root: Path, pace: Pace, done: Done) -> None:
    import pyarrow as pa

    found = reading.snapshot(root)
    paths = [path for path in sound(LATE, found.files[LATE.name]) if path.name != reading.EMPTY]
    fit = _foldable(found, paths)
    done.waiting = len(paths) - len(fit)
    if not fit:
        return
    late = placing.newest(pa.concat_tables([whole(LATE, path) for path in fit]))
    bounds = placing.bounds_of(late)
    settled = _overlapping(bounds, found.files[TELEMETRY.name])
    if any(replacing.key(root, path) in found.noted for path in [*settled, *fit]):
        done.waiting = len(paths)
        return  # they are being replaced: left for the next pass
    old, parts, rest = list(fit), [], late
    number = 0
    moves: dict[Path, Path] = {}
    try:
        for path in settled:
            rows = whole(TELEMETRY, path)
            kept = reading.without_late(rows, late)
            if len(kept) == len(rows):
                continue
            mine = placing.only(rest, rows)
            rest = reading.without_late(rest, rows)
            joined = placing.newest(pa.concat_tables([kept, mine]))
            old.append(path)
            parts = writing.placed(root, TELEMETRY, said(root, joined), _name(number))
            moves |= writing.write_temporary(parts, stays=True)
            number += 1
        if len(rest):
            moves |= writing.write_temporary(
                writing.placed(root, TELEMETRY, said(root, rest), _name(number)), stays=True
            )
        replacing.replace(root, old, moves, pace)
    except BaseException as error:
        for temporary in moves:
            files.remove(temporary)
        if isinstance(error, OSError):
            raise files.failed("write", root, error) from error
        raise
    done.late_rows += len(late)


def _overlapping(mine: Bounds, paths: Iterable[Path]) -> list[Path]:
    """The files that could hold a key of these rows.

    Raises OSError and DamagedError if the disk does not say: the rows of that file would then be there twice.
    """
    from .rows.soundness import reason_to_skip

    near = []
    for path in paths:
        if path.name != reading.EMPTY and reason_to_skip(path, TELEMETRY.name) is None:
            theirs = placing.bounds(path)
            if theirs is None:
                raise DamagedError(f"{path} cannot be read")
            if mine.overlap(theirs):
                near.append(path)
    return near


def _foldable(found: reading.Snapshot, paths: list[Path]) -> list[Path]:
    """The late files that neither a row of an open journal nor a waiting late file may contradict."""
    waits = open_rows(found)
    fit = {path: bounds for path in paths if (bounds := placing.bounds(path)) is not None}
    while True:
        waiting = [path for path, bounds in fit.items() if any(bounds.overlap(other) for other in waits)]
        if not waiting:
            return list(fit)
        waits = [fit.pop(path) for path in waiting]


def open_rows(found: reading.Snapshot) -> list[Bounds]:
    """The bounds of the rows of telemetry in each part of an open journal."""
    bounds: list[Bounds] = []
    for part, _ in found.journals:
        if part.table == TELEMETRY.name:
            try:
                rows = journal_file.read(part.path).table
            except (ValueError, OSError):  # readers leave it out, and say so
                continue
            if len(rows):
                bounds.append(placing.bounds_of(journal_file.whole(TELEMETRY.name, rows)))
    return bounds


def said(root: Path, rows: pa.Table) -> pa.Table:
    """The rows. They keep the time of writing only if an open journal of their GPUs could contradict them."""
    if WRITTEN not in rows.column_names:
        return rows
    known = rows[WRITTEN].null_count < len(rows)
    if known and rivals.open_journals(root, placing.bounds_of(rows)):
        return rows
    return rows.drop_columns([WRITTEN])


# -- segments -------------------------------------------------------------------------------------------------


def _groups(root: Path, spec: Table, now: int) -> Iterator[list[Path]]:
    """The files of a table to join, group by group."""
    found = reading.snapshot(root)
    with_journal = {part.generation for part in journal_file.parts(root)}
    paths = [
        path
        for path in sound(spec, found.files[spec.name])
        if path.name != reading.EMPTY
        and (journal_file.live_of(path) is None or is_orphan(path, with_journal, now))
        and replacing.key(root, path) not in found.noted
        and _rows(path) < _MOST_ROWS // 2
    ]
    if spec == LATEST:
        old = [path for path in paths if now - path.stat().st_mtime_ns > _HOUR]
        if len(old) > _FEW_FILES:
            yield old
        return
    if not spec.partitioned:
        yield from _filled(paths) if len(paths) > _FEW_FILES else []
        return
    periods: dict[tuple[str, int], list[tuple[str, int, Path]]] = {}
    for path in paths:
        bounds = placing.bounds(path)
        if bounds is None or bounds.first == placing.EVER[0]:
            continue
        day_over = (bounds.first // _DAY + 1) * _DAY + _SETTLED <= now
        hour_over = (bounds.last // _HOUR + 1) * _HOUR + _SETTLED <= now
        if hour_over:
            period = -1 if day_over else bounds.first // _HOUR
            # Orphans come first: a segment that was made of them may have corrected their rows.
            name = "" if journal_file.live_of(path) else journal_file.name_in(path.stem)
            periods.setdefault((path.relative_to(root).parts[1], period), []).append((name, bounds.first, path))
    for key in sorted(periods):
        yield from _filled([path for _, _, path in sorted(periods[key])])


def is_orphan(path: Path, with_journal: Collection[str], now: int) -> bool:
    """Whether a published file will never be sealed, as its journal is gone: in a copy made while collectors wrote."""
    live = journal_file.live_of(path)
    try:
        return live is not None and live[0] not in with_journal and now - path.stat().st_mtime_ns > _SETTLED
    except FileNotFoundError:  # it was sealed just now
        return False


def _filled(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """Groups of neighbouring files that fit into one file; a group has at least two."""
    group: list[Path] = []
    rows = 0
    for path in paths:
        more = _rows(path)
        if group and rows + more > _MOST_ROWS:
            if len(group) > 1:
                yield group
            group, rows = [], 0
        group.append(path)
        rows += more
    if len(group) > 1:
        yield group


def _rows(path: Path) -> int:
    """How many rows a file has.

    For a damaged file, a number so large that it is left alone. Raises FileNotFoundError.
    """
    import pyarrow as pa

    try:
        return int(light.metadata(path).num_rows)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException):
        return _MOST_ROWS


def _merge(root: Path, spec: Table, group: list[Path], pace: Pace, done: Done) -> None:
    import pyarrow as pa

    # Columns that are NULL in all files are left out: they would take most of the memory.
    data = pa.concat_tables([present(spec, path) for path in group], promote_options="default")
    schema = arrow_schema(spec.name)
    names = dict.fromkeys((*schema.names, WRITTEN))
    data = data.select([name for name in names if name in data.column_names]).replace_schema_metadata(schema.metadata)
    data = placing.last_rows(placing.newest(data)) if spec == LATEST else said(root, arranging.sort(spec, data))
    moves: dict[Path, Path] = {}
    try:
        moves = writing.write_temporary(writing.placed(root, spec, data, _name(0)), stays=True)
        replacing.replace(root, group, moves, pace)
    except OSError as error:
        for temporary in moves:
            files.remove(temporary)
        raise files.failed("write", root, error) from error
    done.before += len(group)
    done.after += len(moves)


def whole(spec: Table, path: Path) -> pa.Table:
    """The rows of a file with every column of its table; telemetry also has `written`."""
    data = present(spec, path)
    if spec in (TELEMETRY, LATE, LATEST):
        return journal_file.whole(TELEMETRY.name, data)
    return arranging.conform(spec, data)


def present(spec: Table, path: Path) -> pa.Table:
    """The rows of a file: the columns of the key, and the others that hold more than NULL."""
    import pyarrow as pa

    known = {*arrow_schema(spec.name).names, *([WRITTEN] if spec == TELEMETRY else [])}
    try:
        footer = light.metadata(path)
        data = light.read(path, [name for name in footer.schema.names if name in known])
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        what = str(error).splitlines()[0]
        raise DamagedError(
            f"{path} is damaged: {what}; restore it from a backup or move it out of the store"
        ) from error
    # By the values, not by the footer's statistics: Arrow ends the process where a changed bit made these impossible.
    needed = (*arranging.KEY, WRITTEN)
    return data.select([name for name in data.column_names if name in needed or data[name].null_count < len(data)])


def sound(spec: Table, paths: Iterable[Path]) -> list[Path]:
    """The files that can be read: others are left alone."""
    from .rows.soundness import reason_to_skip

    good = []
    for path in paths:
        try:
            if reason_to_skip(path, spec.name) is None:
                good.append(path)
        except OSError:
            continue
    return good


def _name(number: int) -> str:
    return f"compacted-{time.time_ns():x}-{number}"
