"""What a store holds at one instant: the files that readers use, and the rows that are still in journals.

Files may be replaced while a reader lists them (see `replacing`). So the notes are read before and after the listing,
and if the listing does not fit the notes, it is repeated. Every row is seen, and none twice.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..rows import contents, journal_file, placing, replacing
from ..rows.arranging import take
from ..rows.footers import least_and_most
from ..rows.journal_file import WRITTEN, Part
from ..rows.soundness import known, undecodable
from ..schema import BOOKKEEPING, LATE, LATEST, TABLES, TELEMETRY, arrow_schema
from ..system import files, light
from . import last

if TYPE_CHECKING:
    import pyarrow as pa

EMPTY = "_schema.parquet"
FEW = 500
"""Up to so many files, it pays to look into each before a query: DuckDB does so sooner than pyarrow is loaded."""

_TRIES = 100
_PAUSE_S = 0.02

Skip = Callable[[Path, str], None]  # called with a file that cannot be read, and the reason
Sound = Callable[[str, Iterable[Path]], list[Path]]  # of the files of a table: those that can be read


@dataclass(frozen=True)
class Snapshot:
    """The files of every table that readers use, and the journals with the byte from which they are read."""

    files: dict[str, list[Path]]
    journals: list[tuple[Part, int]]
    noted: frozenset[tuple[str, str]] = frozenset()  # files on either side of a replacement that is under way


@dataclass(frozen=True)
class Rows:
    """A table at one instant: the rows of `free`, those of `contested` whose key is not in `late`, `late`, `live`."""

    free: list[Path]
    contested: list[Path] = field(default_factory=list)
    late: pa.Table | None = None
    live: pa.Table | None = None

    @property
    def files(self) -> list[Path]:
        return [*self.free, *self.contested]


def holding(rows: Rows, gpus: Iterable[str]) -> tuple[int, ...] | None:
    """Which files can hold these GPUs, by their place in `rows.files`; None: all of them."""
    if not 1 < len(rows.files) <= FEW:
        return None
    wanted, found = tuple(gpus), []
    for number, path in enumerate(rows.files):
        span = least_and_most(path, known(path, TELEMETRY.name).stamp)
        if span is None or any(span[0] <= gpu <= span[1] for gpu in wanted):
            found.append(number)
    return tuple(found)


def part_of(rows: Rows, held: Iterable[int]) -> Rows:
    """The rows of some of the files, as `holding` gives them, and all that are in no file."""
    files, free = rows.files, len(rows.free)
    parts = [[files[number] for number in held if (number < free) == is_free] for is_free in (True, False)]
    return replace(rows, free=parts[0], contested=parts[1])


def snapshot(root: Path, names: Iterable[str] = (), *, trusting: bool = False) -> Snapshot:
    """What a store holds now, of some tables (none: of all). Raises StoreError if its folders cannot be read.

    `trusting` believes what collectors say of their files: the caller looks again if one of them cannot be read.
    """
    wanted = {*names} or {spec.name for spec in TABLES}
    if wanted & {TELEMETRY.name, LATEST.name}:
        wanted |= {TELEMETRY.name, LATE.name}
    gone: set[str] = set()
    with files.readable(root):
        for _ in range(_TRIES):
            before = replacing.steps(root)
            parts = journal_file.parts(root)
            for kinds in _kinds(parts):
                if kinds & wanted:  # what was published of a journal's tables at once counts at once
                    wanted |= kinds | ({LATE.name} if TELEMETRY.name in kinds else set())
            # In this order: a run that is seen has its results.
            listed = {t.name: names_in(root, t.name) for t in (*TABLES, *BOOKKEEPING) if t.name in wanted}
            steps = replacing.steps(root)
            after = replacing.read_notes(root, steps)
            _add_switched(root, after, listed)
            known = all(one in after or replacing.is_there(root, one, step) for one, step in steps.items())
            absent = _absent(after, listed) - gone
            if known and before.keys() <= steps.keys() and not absent:
                break
            gone |= absent  # if the next listing lacks them, too, others have replaced them, and stand in it
            time.sleep(_PAUSE_S)  # files are being replaced
    hidden = replacing.hidden(after.values())
    empty = f"/{EMPTY}"
    visible = {
        table: [
            _path(root, name)
            for name in sorted(found, key=lambda name: (not name.endswith(empty), name))
            if replacing.key_of(name) not in hidden
        ]
        for table, found in listed.items()
    }
    if trusting:
        contents.recall(visible.get(TELEMETRY.name, ()))
    open_parts = [part for part in parts if replacing.key(root, part.path) not in hidden]
    noted = frozenset(one for note in after.values() for one in (*note.old, *note.new))
    return _with_journals(visible, open_parts, noted)


@functools.lru_cache(maxsize=65_536)  # to make a path takes longer than to look at the file
def _path(root: Path, name: str) -> Path:
    return Path(root, name)


def only(found: Snapshot, gpus: frozenset[int]) -> Snapshot:
    """A snapshot without the files and journals that hold no row of these GPUs (as `placing.hashes`), by what they say
    of themselves."""

    def may_hold(part: Part) -> bool:
        theirs = journal_file.gpus_in(str(part.path))
        return theirs is None or not theirs.isdisjoint(gpus)

    return Snapshot(
        {table: [path for path in paths if placing.may_name(path, gpus)] for table, paths in found.files.items()},
        [(part, start) for part, start in found.journals if may_hold(part)],
        found.noted,
    )


def _kinds(parts: Iterable[Part]) -> list[set[str]]:
    """The tables of each journal."""
    found: dict[str, set[str]] = {}
    for part in parts:
        found.setdefault(part.generation, set()).add(part.table)
    return list(found.values())


def names_in(root: Path, table: str) -> set[str]:
    """Everything under a table's folder with the name of a Parquet file, as paths under the root.

    Links to folders are among them: as files that cannot be read they are named, and what they hide is not passed over.
    """
    folder = f"{root}/{table}"
    cut = len(folder) - len(table)
    return {path[cut:] for path in files.files_under(folder, lambda name: name.endswith(".parquet"), links=True)}


def _add_switched(root: Path, notes: dict[str, replacing.Note], listed: dict[str, set[str]]) -> None:
    """Add files that have replaced others to an older listing: a network file system may list from its cache."""
    for note in notes.values():
        for name in note.paths["new"] if note.step == 2 else ():
            found = listed.get(name.partition("/")[0])
            if found is not None and name not in found and (root / name).exists():
                found.add(name)


def _absent(notes: dict[str, replacing.Note], listed: dict[str, set[str]]) -> set[str]:
    """The files that have replaced others, and that the listing lacks."""
    return {
        name
        for note in notes.values()
        for name in (note.paths["new"] if note.step == 2 else ())
        if name not in listed.get(name.partition("/")[0], (name,))
    }


def _with_journals(visible: dict[str, list[Path]], parts: list[Part], noted: frozenset[tuple[str, str]]) -> Snapshot:
    """Leave out rows that are not published completely, and read journals from where the published rows end."""
    generations = {part.generation for part in parts}
    published: dict[str, dict[int, list[Path]]] = {}
    for path in (p for paths in visible.values() for p in paths):
        live = journal_file.live_of(path)
        if live is not None and live[0] in generations:
            published.setdefault(live[0], {}).setdefault(live[1], []).append(path)
    start: dict[str, int] = {}
    partial: set[Path] = set()
    for by_number in published.values():
        whole = True
        for number in sorted(by_number):
            about = journal_file.told(by_number[number][0]) if whole else None
            whole = about is not None and len(by_number[number]) == about.files
            if about is not None and whole:
                start |= about.upto
            else:
                partial.update(by_number[number])
    if partial:
        visible = {name: [p for p in paths if p not in partial] for name, paths in visible.items()}
    return Snapshot(visible, [(part, start.get(part.path.name, 0)) for part in parts], noted)


def tails(found: Snapshot, names: Iterable[str], skip: Skip) -> dict[str, pa.Table] | None:
    """The rows in journals that are not published, by table, with `written`; None if a journal has gone meanwhile.

    `skip` is called with a file that cannot be read, and the reason. Raises StoreError.
    """
    rows: dict[str, list[pa.Table]] = {}
    for part, start in found.journals:
        if part.table not in names:
            continue
        try:
            content = journal_file.read(part.path, start, table=part.table)
        except FileNotFoundError:
            return None
        except journal_file.TornHeaderError:
            continue  # its writer died while it made the file
        except ValueError as error:
            skip(part.path, str(error))
            continue
        except OSError as error:
            skip(part.path, f"it cannot be read ({error.strerror})")
            continue
        if content.lost:
            skip(part.path, journal_file.unread(content.lost))
        if len(content.table):
            rows.setdefault(part.table, []).append(content.table)
    if not rows:
        return {}
    import pyarrow as pa

    joined = {name: pa.concat_tables(tables, promote_options="default") for name, tables in rows.items()}
    return {name: journal_file.whole(name, data.combine_chunks()) for name, data in joined.items()}


def rows_of(name: str, found: Snapshot, live: dict[str, pa.Table], sound: Sound, skip: Skip) -> Rows:
    """A table of a snapshot, with the unpublished tails of the journals."""
    if name == LATEST.name:
        return Rows([], live=last.latest(found, live.get(TELEMETRY.name), sound, skip))
    paths = sound(name, found.files[name])
    fresh = live.get(name)
    if name != TELEMETRY.name:
        return Rows(paths, live=None if fresh is None else fresh.drop_columns([WRITTEN]))
    late_paths = [path for path in sound(LATE.name, found.files[LATE.name]) if path.name != EMPTY]
    late = [rows for path in late_paths if (rows := _read(path, LATE.name, skip)) is not None]
    if fresh is not None:
        others = [placing.keys_in(path) for path in placing.rivals_by_gpu(fresh, [*paths, *late_paths])]
        fresh, newer = placing.resolve(fresh, [keys for keys in others if keys is not None])
        if len(newer):
            late.append(newer)
        fresh = fresh.drop_columns([WRITTEN])
    if not late:
        return Rows(paths, live=fresh)
    import pyarrow as pa

    all_late = placing.newest(pa.concat_tables(late))
    contested = set(placing.rivals_by_gpu(all_late, paths))
    return Rows(
        [path for path in paths if path not in contested],
        [path for path in paths if path in contested],
        all_late.drop_columns([WRITTEN]),
        fresh,
    )


def _read(path: Path, name: str, skip: Skip) -> pa.Table | None:
    """A small file of a table. If it is damaged, calls `skip` and gives None. Raises FileNotFoundError."""
    import pyarrow as pa

    try:
        return journal_file.whole(TELEMETRY.name, light.read(path, arrow_schema(name).names))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        skip(path, undecodable(error))
        return None


def without_late(data: pa.Table, late: pa.Table) -> pa.Table:
    """The rows whose key is not among late ones."""
    return take(data, placing.without(data, late))
