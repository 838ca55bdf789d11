"""From a journal to Parquet: what is published of it while it grows, and the segment it becomes.

Published rows are a prefix of the journal. Their files say up to which byte of which part they reach, and how many
files were published at once, so that a reader of whorl takes the rest from the journal and no row twice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import arranging, files, journal_file, light, placing, replacing
from .journal_file import WRITTEN, Part
from .locks import is_free, locked
from .replacing import GRACE_S, SETTLE_S, Pace
from .schema import LATE, LATEST, TABLES, TELEMETRY, Table, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_LOCK_WAIT_S = 60.0
_TRIES = 20
_MANY_DAYS = 100  # so many folders are looked at one by one
_LIVE = re.compile(r"(?P<generation>.+)\.live(?P<number>\d+)\.parquet")
_GENERATION = re.compile(r"(?P<name>.+)-\d+-[0-9a-f]+-\d+")


def live_of(path: Path) -> tuple[str, int] | None:
    """The generation and number of a published file, or None for any other."""
    found = _LIVE.fullmatch(path.name)
    return (found["generation"], int(found["number"])) if found else None


def name_in(generation: str) -> str:
    """The name of the journal that a generation belongs to."""
    found = _GENERATION.fullmatch(generation)
    return found["name"] if found else generation


class Held:
    """One generation of a journal on its way to Parquet; holds the rows that it has read, in columns."""

    def __init__(self, root: Path, generation: str) -> None:
        self.root, self.generation = root, generation
        self.published_s = time.monotonic()
        self._read: dict[Path, int] = {}
        self._rows: dict[str, list[pa.Table]] = {}
        self._unpublished: dict[str, list[pa.Table]] = {}
        self._number = 0
        self._live: list[Path] = []
        self._sealed: pa.Table | None = None  # what is in its place and not yet noted in `latest`
        self.unread: set[Path] = set()  # parts that cannot be read: they stay where they are

    def resume(self, live: Iterable[Path]) -> None:
        """Take over what a dead process had published."""
        self._live = list(live)
        self._number = max((number + 1 for path in live if (number := _number(path)) is not None), default=0)

    def _parts(self) -> list[Part]:
        return [part for part in journal_file.parts(self.root) if part.generation == self.generation]

    def _fold(self) -> None:
        """Read what the journal has grown by."""
        fresh: dict[str, list[pa.Table]] = {}
        for part in self._parts():
            if part.path in self.unread:
                continue
            try:
                reason = journal_file.reason_to_skip(journal_file.head(part.path), part.table)
                if reason is not None:
                    raise ValueError(reason)  # noqa: TRY301 - one sentence for all of it
                content = journal_file.read(part.path, self._read.get(part.path, 0))
            except journal_file.TornHeaderError:
                continue
            except ValueError as error:
                log.warning("left %s alone: %s", part.path, error)
                self.unread.add(part.path)
                continue
            self._read[part.path] = content.upto
            if len(content.table):
                fresh.setdefault(part.table, []).append(content.table)
        for name, tables in fresh.items():
            rows = _joined(name, tables)
            self._rows.setdefault(name, []).append(rows)
            self._unpublished.setdefault(name, []).append(rows)

    def publish(self) -> None:
        """Write the rows since the last time as Parquet files, which other DuckDB clients see. Raises StoreError."""
        self.published_s = time.monotonic()
        try:
            self._fold()
            fresh = {name: _joined(name, tables) for name, tables in self._unpublished.items()}
            if not fresh:
                return
            with locked(self.root / placing.LOCK, "the place of new rows", wait_s=_LOCK_WAIT_S):
                # Rows that were published before are stored: a second row of an instant is late.
                parts = self._placed(fresh, f"{self.generation}.live{self._number}", set())
                upto = {path.name: size for path, size in self._read.items()}
                text = {"whorl.live": json.dumps({"number": self._number, "of": len(parts), "upto": upto})}
                moves = files.write_temporary(parts, text)
                self._live += moves.values()
                self._number += 1
                for temporary, final in moves.items():
                    temporary.replace(final)
                for folder in {final.parent for final in moves.values()}:
                    files.fsync_folder(folder)
        except OSError as error:
            raise files.failed("write", self.root, error) from error
        self._unpublished = {}

    def _placed(self, rows: dict[str, pa.Table], name: str, mine: set[str]) -> list[tuple[Path, Table, pa.Table]]:
        """Where the rows of each table go, those that replace others apart. The lock of places must be held."""
        found = []
        for kind in TABLES[::-1]:
            if kind.name not in rows or not len(rows[kind.name]):
                continue
            if kind != TELEMETRY:
                data = arranging.sort(kind, rows[kind.name].drop_columns([WRITTEN]))
                found += files.placed(self.root, kind, data, name)
                continue
            new, late = place(self.root, rows[kind.name], mine, self.generation)
            if len(new):
                found += files.placed(self.root, kind, new, name)
            if len(late):
                found.append((self.root / LATE.name / f"{name}.parquet", LATE, arranging.conform(LATE, late)))
        return found

    def seal(self, pace: Pace) -> None:
        """Write all rows as sorted segments that take the place of the journal's files. Raises StoreError.

        After an error it is called again, and goes on where it was.
        """
        if self._sealed is None:
            self._put_in_place(pace)
        if self._sealed is not None:
            note_latest(self.root, name_in(self.generation), self.generation, self._sealed)

    def _put_in_place(self, pace: Pace) -> None:
        try:
            self._fold()
            rows = {name: _joined(name, tables) for name, tables in self._rows.items()}
            journals = [part.path for part in self._parts() if part.path not in self.unread]
            if not rows:
                for path in journals:
                    path.unlink(missing_ok=True)
                return
            if not any(path.exists() for path in self._live):  # other clients see nothing change places
                pace = replacing.OFFLINE
            lock = locked(self.root / placing.LOCK, "the place of new rows", wait_s=_LOCK_WAIT_S)
            with lock:
                moves = files.write_temporary(self._placed(rows, self.generation, {self.generation}), level=files.SMALL)
                replacing.replace(self.root, [*self._live, *journals], moves, pace, inside=lock.release)
        except OSError as error:
            raise files.failed("write", self.root, error) from error
        self._rows, self._unpublished = {}, {}
        self._sealed = rows.get(TELEMETRY.name)


def note_latest(root: Path, name: str, generation: str, rows: pa.Table) -> None:
    """Note the last reading of each GPU, with what the writer noted before, in a new file. Raises StoreError.

    Other files of the writer that are a while old go: readers take the newest row of all files.
    """
    import pyarrow as pa

    folder = root / LATEST.name
    path = folder / f"{generation}.parquet"
    parts = [whole(LATEST.name, placing.last_rows(placing.newest(rows)))]
    try:
        earlier = [p for p in folder.glob(f"{name}-*.parquet") if name_in(p.stem) == name]
        for one in earlier:
            with contextlib.suppress(OSError, pa.ArrowException):  # torn: its GPUs are in sight elsewhere
                parts.append(whole(LATEST.name, light.read(one, arrow_schema(LATEST.name).names)))
        last = placing.last_rows(placing.newest(pa.concat_tables(parts)))
        files.replace_parquet(path, LATEST, arranging.conform(LATEST, last))
        for one in earlier:
            if one != path and time.time() - one.stat().st_mtime > GRACE_S:
                files.remove(one)
    except OSError as error:
        raise files.failed("write", path, error) from error


def note_appended(root: Path, name: str, rows: pa.Table, now: int) -> None:
    """Note the last reading of each GPU of rows that were appended. It can be made again, so it may fail."""
    last = placing.with_written(placing.last_rows(rows), now)
    with contextlib.suppress(StoreError):
        files.replace_parquet(root / LATEST.name / f"{name}.appended.parquet", LATEST, arranging.conform(LATEST, last))


def whole(name: str, data: pa.Table) -> pa.Table:
    """A journal's rows with every column of their table, and when they were written."""
    import pyarrow as pa

    schema = arrow_schema(name)
    columns = [
        data[field.name] if field.name in data.column_names else pa.nulls(len(data), field.type) for field in schema
        if field.name != WRITTEN
    ]  # fmt: skip
    fields = [field for field in schema if field.name != WRITTEN]
    written = data[WRITTEN] if WRITTEN in data.column_names else pa.nulls(len(data), pa.int64())
    return pa.table([*columns, written], schema=pa.schema([*fields, pa.field(WRITTEN, pa.int64())], schema.metadata))


def _joined(name: str, tables: list[pa.Table]) -> pa.Table:
    """Rows of a journal in one, with the columns that any of them has (and their keys), in the order of their table.

    Columns that none has would double the memory of a collector while it seals.
    """
    import pyarrow as pa

    schema = arrow_schema(name)
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    for key in arranging.KEY:
        if key in schema.names and key not in rows.column_names:
            rows = rows.append_column(schema.field(key), pa.nulls(len(rows), schema.field(key).type))
    own = [column for column in schema.names if column in rows.column_names and column != WRITTEN]
    return rows.select([*own, WRITTEN]).replace_schema_metadata(schema.metadata)


def _number(path: Path) -> int | None:
    found = live_of(path)
    return found[1] if found else None


def place(root: Path, rows: pa.Table, mine: set[str], generation: str | None = None) -> tuple[pa.Table, pa.Table]:
    """Part rows of telemetry, which say when they were `written`, into new ones and such as replace stored ones.

    The files of the generations `mine` do not count. The new rows say when they were written only where an open
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


def _rivals(root: Path, bounds: placing.Bounds, but: Iterable[str] = ()) -> list[pa.Table]:
    """The keys in stored files that could be among those of some rows; the generations `but` do not count."""
    for _ in range(_TRIES):
        paths = [path for path in stored(root, bounds) if not _of(path, but)]
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


def _of(path: Path, generations: Iterable[str]) -> bool:
    live = live_of(path)
    return path.stem in generations or (live is not None and live[0] in generations)


def open_journals(root: Path, bounds: placing.Bounds, but: str | None = None) -> list[pa.Table]:
    """The keys in journals, other than those of a generation, that could be among those of some rows."""
    found = []
    for part in journal_file.parts(root):
        if part.table != TELEMETRY.name or part.generation == but:
            continue
        gpus = journal_file.gpus_in(part.path)
        if gpus is not None and bounds.gpus is not None and gpus.isdisjoint(bounds.gpus):
            continue
        with contextlib.suppress(FileNotFoundError, ValueError):  # sealed meanwhile, or nothing of whorl's
            rows = journal_file.read(part.path).table
            if len(rows):
                keys = whole(part.table, rows.select([n for n in (*arranging.KEY, WRITTEN) if n in rows.column_names]))
                if bounds.overlap(placing.bounds_of(keys)):
                    found.append(keys.select([*arranging.KEY, WRITTEN]))
    return found


def seal_abandoned(root: Path, name: str | None, pace: Pace) -> list[str]:
    """Seal the journals of dead writers: of `name`, whose lock the caller holds, or (None) of all that have none.

    Returns the generations that were sealed. Raises StoreError.
    """
    by_generation: dict[str, list[Part]] = {}
    hidden = {file for note in replacing.notes(root).values() for table, file in note.old if table == "journal"}
    for part in journal_file.parts(root):
        if f"{journal_file.FOLDER}/{part.path.name}" not in hidden:
            by_generation.setdefault(part.generation, []).append(part)
    done: list[str] = []
    for generation in by_generation:
        owner = name_in(generation)
        if name is not None:
            if owner == name:
                done += _seal_one(root, generation, pace)
            continue
        path = root / journal_file.FOLDER / f"{owner}.lock"
        if not is_free(path):
            continue
        with contextlib.suppress(StoreError), locked(path, f"a journal named {owner}"):
            done += _seal_one(root, generation, pace)
    return done


def _seal_one(root: Path, generation: str, pace: Pace) -> list[str]:
    """Seal one generation; an empty list where a part of it cannot be read, and stays."""
    held = Held(root, generation)
    tables = [root / kind.name for kind in TABLES] + [root / LATE.name]
    held.resume([p for folder in tables for p in folder.rglob(f"{generation}.live*.parquet")])
    held.seal(pace)
    return [] if held.unread else [generation]


__all__ = ["GRACE_S", "SETTLE_S", "Held", "Pace"]
