"""Tables that analysis makes of the telemetry of a day: what a day had when they were made, and how they are stored.

The state of a day is how many readings it has, and when the last of them was written. Neither changes when files are
joined or pruned; readings that come later change one of them: late rows, imports, merges, journals that are sealed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import file_names, keys, manifest, parquet, snapshot, telemetry_files
from .file_names import DAY_US, Bounds
from .replacing import Compactor, Skip, retried
from .schema import DERIVED, LATE, MINUTES, TELEMETRY, Table, table
from .system import files

if TYPE_CHECKING:
    import pyarrow as pa

_HOUR_US = 3_600_000_000
_SUBJECTS = (TELEMETRY, LATE, MINUTES)
_STEM = re.compile(r"derived-(?P<version>\d+)-(?P<rows>\d+)-(?P<written>\d+)-(?P<beside>\d+)-[0-9a-f]+-(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class DayState:
    """What a day has of telemetry."""

    rows: int
    """Readings, those of pruned minutes too."""
    written_us: int
    """When the last of them was stored, since 1970."""
    pruned: bool = field(compare=False, default=False)
    """Whether some of them are in pruned minutes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What derived rows were made of, as the names of their files say."""

    version: int
    """Of the code that made them."""
    state: DayState
    beside: int
    """How many readings there were in the hours beside the day."""
    stored_us: int = field(compare=False, default=0)
    """When they were stored, since 1970."""

    @classmethod
    def of(cls, path: Path) -> tuple[Origin, int] | None:
        """That of a file, and which of the pieces of its day it has; None for a strange name."""
        stated = file_names.parse(path.name)
        match = _STEM.fullmatch(stated.stem) if stated is not None else None
        if match is None or stated is None:
            return None
        state = DayState(int(match["rows"]), int(match["written"]))
        return cls(int(match["version"]), state, int(match["beside"]), stated.written_us), int(match["number"])


def states(root: Path, skip: Skip, first_us: int, last_us: int) -> dict[int, DayState | None]:
    """The state of each day (since 1970) that has telemetry between two times.

    None of a day of which readings are in a journal, or of the hours beside it: it is not over. None too of a day with
    a damaged file. Raises StoreError.
    """
    first, last = first_us // DAY_US, last_us // DAY_US
    bounds = Bounds(first * DAY_US - _HOUR_US, (last + 1) * DAY_US + _HOUR_US)
    found = retried(root, lambda: _states(root, skip, bounds))
    return {day: state for day, state in found.items() if first <= day <= last}


def _states(root: Path, skip: Skip, bounds: Bounds) -> dict[int, DayState | None]:
    import pyarrow as pa

    listing = snapshot.take(root, [TELEMETRY.name, MINUTES.name], skip, bounds)
    found = dict[int, DayState]()
    damaged_days = set[int]()
    for spec in _SUBJECTS:
        for folder, paths in file_names.by_day(listing.files[spec.name]).items():
            day = file_names.day_number(folder)
            if day is None:
                continue
            before = found.get(day, DayState(0, 0))
            try:
                rows = before.rows + _rows_in(spec, paths)
            except (pa.ArrowException, StoreError):  # what reads the rows says which file is damaged
                damaged_days.add(day)
                continue
            names = [name for path in paths if (name := file_names.parse(path.name)) is not None]
            written_us = max([before.written_us, *(name.written_us for name in names)])
            found[day] = DayState(rows, written_us, before.pruned or spec == MINUTES)
    live = snapshot.live_rows(listing, TELEMETRY.name)
    damaged = dict.fromkeys(damaged_days)
    if live is None:
        return {**found, **damaged}
    times = keys.times(live)
    open_days = {*(times // DAY_US).tolist()}
    beside = {day for around in (-_HOUR_US, _HOUR_US) for day in ((times + around) // DAY_US).tolist()}
    return {**found, **damaged, **dict.fromkeys(open_days | (beside & found.keys()))}


def _rows_in(spec: Table, paths: list[Path]) -> int:
    """How many readings files of one day stand for."""
    if spec == MINUTES:
        return sum(int(parquet.read(path, ["n"])["n"].to_numpy().sum()) for path in paths)
    listed = manifest.read(paths[0].parent)
    known_rows = listed.rows if listed is not None else {}
    return sum(known_rows[path.name] if path.name in known_rows else parquet.rows_in(path) for path in paths)


class Derivation(Compactor):
    """Puts the rows of `schema.DERIVED` in place of those of their day, all tables of a day at once.

    Entering raises TakenError where another process replaces files of the store. A process that is killed leaves each
    day as it was or as it became.
    """

    def replace(self, day: int, origin: Origin, pieces: Iterable[Mapping[str, pa.Table]]) -> None:
        """The rows of a day (since 1970), some GPUs at a time, by table, in the order of the table. Raises StoreError.

        They are in place at the end of the block at the latest.
        """
        made_of = f"{origin.version}-{origin.state.rows}-{origin.state.written_us}-{origin.beside}"
        stem, folder = f"derived-{made_of}-{time.time_ns():x}", file_names.day_folder(day)
        with files.readable(self.root):
            within = file_names.bounds_of_day(folder)
            old = [path for spec in DERIVED for path in snapshot.visible_now(self.root, spec, within)]
        with self.replacing(path for path in old if path.parent.name == folder) as of_day:
            for number, tables in enumerate(pieces):
                self.beat()
                for name, rows in tables.items():
                    spec = table(name)
                    in_shape = keys.conform(spec, rows)
                    new_files = telemetry_files.files_of(
                        self.root, spec, in_shape, f"{stem}-{number}", written_ns=time.time_ns(), codec="warm"
                    )
                    of_day.add(new_files)
