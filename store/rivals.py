"""Which stored rows new ones could replace: in files whose times and GPUs overlap, and in open journals."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import arranging, journal_file, placing, replacing
from .journal_file import WRITTEN
from .schema import LATE, TELEMETRY

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES = 20
_MANY_DAYS = 100  # so many folders are looked at one by one


def place(root: Path, rows: pa.Table, mine: set[str], generation: str | None = None) -> tuple[pa.Table, pa.Table]:
    """Part rows of telemetry, which say when they were `written`, into new ones and such as replace stored ones.

    Files named as in `mine` do not count. The new rows say when they were written only where an open
    journal of the same GPUs, other than `generation`, could contradict them.
    """
    bounds = placing.bounds_of(rows)
    new, late = placing.resolve(rows, _rivals(root, bounds, mine))
    if not open_journals(root, bounds, generation):
        new = new.drop_columns([WRITTEN])
    return new, late


def place_now(root: Path, rows: pa.Table, now: int) -> tuple[pa.Table, pa.Table]:
    """Part rows that are written now, sorted, into new ones and such as replace stored ones or those in journals."""
    bounds = placing.bounds_of(rows)
    journals = open_journals(root, bounds)
    others = _rivals(root, bounds) + journals
    if not others:
        return rows, rows.slice(0, 0)
    newest = max((placing.last_written(other) for other in others if len(other)), default=now)
    new, late = placing.resolve(placing.with_written(rows, max(now, newest + 1)), others)
    return (new if journals else new.drop_columns([WRITTEN])), late


def _rivals(root: Path, bounds: placing.Bounds, but: Collection[str] = ()) -> list[pa.Table]:
    """The keys in stored files that could be among those of some rows; files named as in `but` do not count."""
    for _ in range(_TRIES):
        paths = [path for path in stored(root, bounds) if path.stem not in but]
        with contextlib.suppress(FileNotFoundError):  # it gave way to others: look again
            found = [placing.keys_in(path) for path in placing.rivals(bounds, paths)]
            return [keys for keys in found if keys is not None]
    raise StoreError(f"the files of {root} change faster than they can be listed; run the command again")


def stored(root: Path, bounds: placing.Bounds) -> list[Path]:
    """The files of telemetry of the days of these rows, and all late rows."""
    folder = root / TELEMETRY.name
    first, last = bounds.first // arranging.DAY, bounds.last // arranging.DAY
    late = (root / LATE.name).glob("*.parquet")
    if last - first > _MANY_DAYS:
        return [*folder.rglob("*.parquet"), *late]
    days = [folder, *(folder / f"day={arranging.day_name(day)}" for day in range(first, last + 1))]
    return [*(path for day in days for path in day.glob("*.parquet")), *late]


def open_journals(root: Path, bounds: placing.Bounds, but: str | None = None) -> list[pa.Table]:
    """The keys in journals, other than those of a generation, that could be among those of some rows."""
    found = []
    replaced: set[tuple[str, str]] | None = None
    for part in journal_file.parts(root):
        if part.table != TELEMETRY.name or part.generation == but:
            continue
        gpus = journal_file.gpus_in(part.path)
        if gpus is not None and bounds.gpus is not None and gpus.isdisjoint(bounds.gpus):
            continue
        if replaced is None:
            replaced = replacing.hidden(replacing.notes(root).values())
        if replacing.key(root, part.path) in replaced:  # its rows are in a segment, and it waits to be removed
            continue
        with contextlib.suppress(FileNotFoundError, ValueError):  # sealed meanwhile, or nothing of whorl's
            rows = journal_file.read(part.path).table
            if len(rows):
                keys = journal_file.whole(
                    part.table, rows.select([n for n in (*arranging.KEY, WRITTEN) if n in rows.column_names])
                )
                if bounds.overlap(placing.bounds_of(keys)):
                    found.append(keys.select([*arranging.KEY, WRITTEN]))
    return found
