"""Find the stored rows that new rows could replace: in files whose times and GPUs overlap, and in open journals."""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import StoreError
from ..rows import arranging, contents, journal_file, placing, replacing
from ..rows.journal_file import WRITTEN, Part
from ..schema import LATE, TELEMETRY, arrow_schema
from ..system import processes
from ..system.files import files_under, make_folder, names_in, open_regular, put, remove_folder_inside, remove_inside

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES = 20
_MANY_DAYS = 100  # up to this many folders are looked at one by one
GPUS = "gpus.txt"  # in a collector's folder: the hashes of its GPUs
_DAY = re.compile(r"day=\d{4}-\d\d-\d\d")
_TELEMETRY = f".{TELEMETRY.name}."  # in the name of a journal's file

_headers: dict[Path, dict[str, frozenset[int]]] = {}  # by store: the GPUs of the open journals
_homes: dict[str, frozenset[int]] = {}  # the GPUs of a collector's folders, by their name, which is that of each day
_MOST_HOMES = 65_536


def place(root: Path, rows: pa.Table, bounds: placing.Bounds, generation: str) -> tuple[pa.Table, pa.Table]:
    """Split rows of telemetry, which have the column `written`, into new rows and rows that replace stored ones.

    `bounds` are those of the rows. The new rows keep the time of writing only if an open journal of the same GPUs,
    other than `generation`, could contradict them.
    """
    new, late = placing.resolve(rows, _rivals(root, bounds))
    if not open_journals(root, bounds, generation):
        new = new.drop_columns([WRITTEN])
    return new, late


def split(root: Path, rows: pa.Table, mine: set[str]) -> tuple[pa.Table, pa.Table]:
    """As `place`, and the new rows keep the time of writing. Files whose names match `mine` do not count."""
    return placing.resolve(rows, _rivals(root, placing.bounds_of(rows), mine))


def place_now(root: Path, rows: pa.Table, now: int) -> tuple[pa.Table, pa.Table]:
    """Split sorted rows that are written now into new rows and rows that replace others, stored or in journals."""
    bounds = placing.bounds_of(rows)
    journals = open_journals(root, bounds)
    others = _rivals(root, bounds) + journals
    if not others:
        return rows, rows.slice(0, 0)
    newest = max((placing.last_written(other) for other in others if len(other)), default=now)
    new, late = placing.resolve(placing.with_written(rows, max(now, newest + 1)), others)
    return (new if journals else new.drop_columns([WRITTEN])), late


def _rivals(root: Path, bounds: placing.Bounds, but: Collection[str] = ()) -> list[pa.Table]:
    """The keys in stored files that these rows could have, too. Files whose names match `but` do not count."""
    for _ in range(_TRIES):
        paths = [path for path in stored(root, bounds) if path.stem not in but]
        with contextlib.suppress(FileNotFoundError):  # it was replaced by others: look again
            found = [placing.keys_in(path) for path in placing.rivals(bounds, paths)]
            return [keys for keys in found if keys is not None]
    raise StoreError(f"the files of {root} change faster than they can be listed; run the command again")


def stored(root: Path, bounds: placing.Bounds) -> list[Path]:
    """The files of telemetry of the days of these rows that could hold their GPUs, and all late rows.

    Raises OSError where a folder cannot be listed: rows in it could be stored twice.
    """
    folder = root / TELEMETRY.name
    first, last = bounds.first // arranging.DAY, bounds.last // arranging.DAY
    late = [root / LATE.name / name for name in names_in(root / LATE.name) if name.endswith(".parquet")]
    if last - first > _MANY_DAYS:
        return [*map(Path, files_under(folder, lambda name: name.endswith(".parquet"))), *late]
    found: list[str] = []
    for day in (folder, *(folder / f"day={arranging.day_name(day)}" for day in range(first, last + 1))):
        names, homes = _listed(day)
        found += names
        if day != folder:
            found += [name for home in homes if _may_hold(home, bounds.gpus) for name in _listed(home)[0]]
    return [*map(Path, found), *late]


def _listed(folder: Path | str) -> tuple[list[str], list[str]]:
    """The Parquet files and the folders in a folder."""
    try:
        with os.scandir(folder) as entries:
            every = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    files = [entry.path for entry in every if entry.name.endswith(".parquet")]
    return files, [entry.path for entry in every if "~" in entry.name and entry.is_dir(follow_symlinks=False)]


# -- who writes which GPUs ------------------------------------------------------------------------------------


def home(root: Path, name: str, gpus: frozenset[int] | None, days: Iterable[str]) -> str:
    """The folder within each of these days for what the collector `name` writes about GPUs. Raises OSError.

    The folder says which GPUs these are before it holds a row of them, so that a fleet's other collectors need not look
    into it.
    """
    text = placing.as_text(gpus or frozenset())
    found = _home(name, text)
    for day in days:
        says = root / TELEMETRY.name / f"day={day}" / found / GPUS
        if not says.exists():
            make_folder(says.parent)
            put(says, text.encode(), below=True)
    return found


def remove_empty_homes(root: Path, before: int) -> None:
    """Remove folders of collectors without a file of rows, within days that ended before a time (ns).

    If a collector publishes into such a folder just then, it makes the folder anew; at worst it publishes again later.
    """
    last = f"day={arranging.day_name(before // arranging.DAY)}"
    for day in names_in(root / TELEMETRY.name):
        if not _DAY.fullmatch(day) or day >= last:
            continue
        for home in _listed(root / TELEMETRY.name / day)[1]:
            names = set(names_in(Path(home)))
            if names <= {GPUS, contents.NAME}:
                inside = f"{TELEMETRY.name}/{day}/{Path(home).name}"
                with contextlib.suppress(OSError):
                    for name in names:
                        remove_inside(root, f"{inside}/{name}")
                    remove_folder_inside(root, inside)


def _home(name: str, text: str) -> str:
    return f"{name}~{zlib.crc32(text.encode()):08x}"


def _gpus_of(home: str) -> frozenset[int]:
    """The GPUs of a collector's folder. Raises OSError and ValueError if it does not say."""
    name = home.rpartition("/")[2]
    gpus = _homes.get(name)
    if gpus is None:
        with os.fdopen(open_regular(Path(home, GPUS)), encoding="ascii") as file:
            text = file.read()
        gpus = placing.from_text(text)
        if _home(name.rpartition("~")[0], text) != name:
            raise ValueError("it has changed since it was written")
        _know(name, gpus)
    return gpus


def _know(home: str, gpus: frozenset[int]) -> None:
    if len(_homes) >= _MOST_HOMES:
        _homes.clear()
    _homes[home] = gpus


def _may_hold(home: str, gpus: frozenset[int] | None) -> bool:
    """Whether a collector's folder could hold rows of these GPUs."""
    try:
        return gpus is None or not gpus.isdisjoint(_gpus_of(home))
    except (OSError, ValueError):
        return True  # it does not say


def contested(root: Path, name: str, bounds: placing.Bounds) -> bool:
    """Whether another's journal, or folder within these days, could hold rows of the GPUs of the collector `name`."""
    if any(journal_file.name_in(part.generation) != name for part in _open_parts(root, bounds)):
        return True
    days = range(bounds.first // arranging.DAY, bounds.last // arranging.DAY + 1)
    homes = [home for day in days for home in _listed(root / TELEMETRY.name / f"day={arranging.day_name(day)}")[1]]
    return any(_may_hold(home, bounds.gpus) for home in homes if home.rpartition("/")[2].rpartition("~")[0] != name)


def _open_parts(root: Path, bounds: placing.Bounds) -> list[Part]:
    """The files of journals whose header names one of the GPUs of some rows, or cannot be read."""
    folder = root / journal_file.FOLDER
    names = {name for name in names_in(folder) if _TELEMETRY in name}
    known = _headers.setdefault(root, {})
    for gone in known.keys() - names:
        known.pop(gone, None)
    found = []
    for name in names:
        gpus = known.get(name)
        if gpus is None:
            gpus = journal_file.gpus_in(f"{folder}/{name}")
            if gpus:
                known[name] = gpus
                writer = journal_file.name_in(name.partition(_TELEMETRY)[0])
                _know(_home(writer, placing.as_text(gpus)), gpus)  # so its folders need not be asked
        if gpus is None or bounds.gpus is None or not gpus.isdisjoint(bounds.gpus):
            part = journal_file.named(folder / name)
            found += [part] if part is not None else []
    return found


def open_journals(root: Path, bounds: placing.Bounds, but: str | None = None) -> list[pa.Table]:
    """The keys in journals, except those of one generation, that these rows could have, too.

    A journal that cannot be read now, as on a bad disk, counts without keys: its rows may be compared later.
    """
    found = []
    replaced: dict[bool, set[tuple[str, str]]] = {}
    for part in _open_parts(root, bounds):
        if part.generation == but:
            continue
        own = but is not None and journal_file.name_in(part.generation) == journal_file.name_in(but)
        if own not in replaced:  # its own notes say what this process replaced; a fleet has hundreds of others
            found_notes = replacing.notes(root, processes.owner() if own else "")
            replaced[own] = replacing.hidden(found_notes.values())
        if replacing.key(root, part.path) in replaced[own]:  # its rows are in a segment already; it will be removed
            continue
        try:
            rows = journal_file.read(part.path).table
        except (FileNotFoundError, ValueError):  # sealed meanwhile, or not whorl's
            continue
        except OSError:
            rows = arrow_schema(part.table).empty_table()
            found.append(placing.with_written(rows.select(arranging.KEY), 0))
        if len(rows):
            keys = journal_file.whole(
                part.table, rows.select([n for n in (*arranging.KEY, WRITTEN) if n in rows.column_names])
            )
            if bounds.overlap(placing.bounds_of(keys)):
                found.append(keys.select([*arranging.KEY, WRITTEN]))
    return found
