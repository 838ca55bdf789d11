"""Turn a journal into Parquet: publish its rows while it grows, and seal it as a segment at the end.

Published rows are the first rows of the journal. Their files say at which byte of each part they end, and how many
files were published at once. So whorl reads the rest from the journal, and no row twice.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import StoreError
from ..rows import arranging, contents, journal_file, placing, replacing, writing
from ..rows.journal_file import WRITTEN, Part, live_of, name_in
from ..rows.replacing import Pace
from ..rows.soundness import reason_to_skip
from ..schema import LATE, TABLES, TELEMETRY, Table, arrow_schema
from ..system import files
from ..system.locks import Lock, is_free, locked
from ..system.memory import give_back
from . import latest, rivals, segment
from .segment import Segment, Source, UnreadableError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_LOCK_WAIT_S = 60.0
_PIECE = 4 << 20  # bytes of a journal whose rows are in memory at once
_TABLES = {spec.name for spec in (*TABLES, LATE)}


class Sealer:
    """Publishes and seals one generation of a journal. It holds the rows that it has read and not published."""

    def __init__(self, root: Path, generation: str) -> None:
        self.root, self.generation = root, generation
        self.published_s = time.monotonic()
        self._segment = ""
        self.unread: set[Path] = set()  # parts that cannot be read: they stay where they are
        self._begin()

    def _begin(self) -> None:
        self._read: dict[Path, int] = {}
        self._headers: dict[Path, journal_file.Header] = {}
        self._fresh: dict[str, list[pa.Table]] = {}  # rows that are not published
        self._room = _PIECE  # bytes of a journal that may be read until they are
        self._published: dict[str, list[Path]] = {}  # where the rows of each table are
        self._number = 0
        self._live: list[Path] = []
        self._damaged: dict[Path, int] = {}  # bytes that changed, by part

    def resume(self, live: Iterable[Path]) -> None:
        """Take over what a dead process had published: those rows come from its files, the others from the journal.

        If a published file cannot be read, it stays where it is, and its rows are read from the journal.
        """
        self._begin()
        by_number: dict[int, list[Path]] = {}
        for path in live:
            if (found := live_of(path)) is not None:
                by_number.setdefault(found[1], []).append(path)
        gap = False  # whether rows of the journal from here on may also be in published files
        for number, paths in sorted(by_number.items()):
            self._number = number + 1
            readable = {path: name for path in paths if (name := _table_of(path)) is not None}
            about = journal_file.told(paths[0])
            complete = about is not None and about.files == len(readable) == len(paths)
            if about is not None and complete and gap:
                self._fold(about.upto)
            for path, name in readable.items():
                if name == TELEMETRY.name or (complete and not gap):  # in telemetry each key counts once
                    self._published.setdefault(name, []).append(path)
            if about is not None and complete:
                self._read |= {self.root / journal_file.FOLDER / name: size for name, size in about.upto.items()}
            self._live += readable
            gap = not complete

    def _parts(self) -> list[Part]:
        return journal_file.parts(self.root, self.generation)

    def _fold(self, upto: Mapping[str, int] | None = None) -> bool:
        """Read what was added to the journal, if `upto` is given only up to these bytes of its files.

        Otherwise it stops where memory holds enough that is not published; says whether it did.
        """
        for part in self._parts():
            if part.path in self.unread:
                continue
            if upto is None and self._room <= 0:
                return True
            begin = self._read.get(part.path, 0)
            header = self._headers.get(part.path)
            try:
                if header is None:
                    reason = journal_file.reason_to_skip(journal_file.head(part.path), part.table)
                    if reason is not None:
                        raise ValueError(reason)  # noqa: TRY301 - one sentence for all of it
                elif part.path.stat().st_size <= begin:
                    continue
                if upto is None:
                    content = journal_file.read(part.path, begin, most=self._room, header=header)
                else:
                    content = journal_file.read(part.path, begin, upto.get(part.path.name, 0), header=header)
            except journal_file.TornHeaderError:
                continue
            except ValueError as error:
                log.warning("left %s alone: %s", part.path, error)
                self.unread.add(part.path)
                continue
            self._read[part.path] = content.upto
            if content.header is not None:
                self._headers[part.path] = content.header
            self._room -= content.upto - begin
            if content.lost:
                self._damaged[part.path] = content.lost
            if len(content.table):
                self._fresh.setdefault(part.table, []).append(content.table)
            if content.more:
                return True
        return False

    def publish(self) -> None:
        """Write the rows since the last call as Parquet files, which other DuckDB clients see. Raises StoreError."""
        self.published_s = time.monotonic()
        try:
            more = True
            while more:
                more = self._fold()
                self._publish()
        except OSError as error:
            raise files.failed("write", self.root, error) from error
        give_back()

    def _publish(self) -> None:
        fresh = {name: _joined(name, tables) for name, tables in self._fresh.items()}
        if not fresh:
            self._room = _PIECE
            return
        telemetry = fresh.get(TELEMETRY.name)
        bounds = None if telemetry is None else placing.bounds_of(telemetry)
        with self._placing(bounds):
            # Rows that were published before count as stored: a second row of the same instant is late.
            parts = self._placed(fresh, f"{self.generation}.live{self._number}", bounds, live=True)
            upto = {path.name: size for path, size in self._read.items()}
            text = {"whorl.live": json.dumps({"number": self._number, "of": len(parts), "upto": upto})}
            moves = writing.write_temporary(parts, text)
            self._live += moves.values()
            self._number += 1
            for temporary, final in moves.items():
                files.rename(temporary, final)
            for folder in {final.parent for final in moves.values()}:
                files.sync_folder(folder)
                if "~" in folder.name:
                    contents.note(folder)
        for path, spec, _ in parts:
            self._published.setdefault(TELEMETRY.name if spec == LATE else spec.name, []).append(path)
        self._fresh, self._room = {}, _PIECE

    def _placing(self, bounds: placing.Bounds | None) -> Lock:
        """Take the lock of places, shared with collectors of other GPUs: a thousand nodes do not wait for each other.

        Under the lock it looks who else writes the GPUs of telemetry within `bounds`: an open journal names its GPUs
        before it publishes.
        """
        path, what = self.root / placing.LOCK, "the place of new rows"
        lock = locked(path, what, wait_s=_LOCK_WAIT_S, shared=True)
        try:
            if bounds is None or not rivals.contested(self.root, name_in(self.generation), bounds):
                return lock
        except BaseException:
            lock.release()
            raise
        lock.release()
        return locked(path, what, wait_s=_LOCK_WAIT_S)

    def _placed(
        self, rows: dict[str, pa.Table], name: str, bounds: placing.Bounds | None = None, *, live: bool = False
    ) -> list[tuple[Path, Table, pa.Table]]:
        """Where the rows of each table go, which a `live` journal publishes; rows that replace others are separate.

        `bounds` are those of telemetry.

        The caller must hold the lock of places.
        """
        found = []
        for kind in TABLES[::-1]:
            if kind.name not in rows or not len(rows[kind.name]):
                continue
            if kind != TELEMETRY:
                data = arranging.sort(kind, rows[kind.name].drop_columns([WRITTEN]))
                of = "" if live else placing.named(placing.gpus_in([data]))
                found += writing.placed(self.root, kind, data, name + of)
                continue
            assert bounds is not None
            new, late = rivals.place(self.root, rows[kind.name], bounds, self.generation)
            if len(new):
                days = [day for day, _ in arranging.days(new.select(["ts"]))]
                home = rivals.home(self.root, name_in(self.generation), bounds.gpus, days)
                found += writing.placed(self.root, kind, new, name, home)
            if len(late):
                found.append(self._late(late, name))
        return found

    def _late(self, rows: pa.Table, name: str) -> tuple[Path, Table, pa.Table]:
        return self.root / LATE.name / f"{name}.parquet", LATE, arranging.conform(LATE, rows)

    def seal(self, pace: Pace) -> None:
        """Write all rows as sorted segments that take the place of the journal's files. Raises StoreError.

        After an error, call it again: it goes on where it stopped.
        """
        try:
            try:
                self._seal(pace)
            except UnreadableError:
                self.resume(self._live)
                self._seal(pace)
        except UnreadableError as error:
            raise StoreError(f"cannot read {error}, which was readable just now; check the disk") from error
        except OSError as error:
            raise files.failed("write", Path(error.filename or self.root), error) from error
        self._begin()

    def _seal(self, pace: Pace) -> None:
        while self._fold():
            self._publish()
        journals = [part.path for part in self._parts() if part.path not in self.unread]
        for path, lost in self._damaged.items():
            _put_aside(path, lost)
        if not self._fresh and not self._published:
            for path in journals:
                path.unlink(missing_ok=True)
            return
        rows, sources = self._everything()
        with self._placing(placing.union([source.bounds for source in sources]) if sources else None) as lock:
            name = self._segment or self.generation
            live = {path.stem for path in self._live}
            moves, earlier = self._written(rows, sources, name, {name, *live})
            if not self._segment and any(path.exists() for path in moves.values()):  # a part of it was sealed before
                for temporary in moves:
                    files.remove(temporary)
                name = f"{self.generation}.{time.time_ns():x}"
                moves, earlier = self._written(rows, sources, name, live)
            self._segment = name
            if not any(path.exists() for path in self._live):  # for other clients nothing is replaced
                pace = Pace(0.0, pace.grace_s if earlier else 0.0)
            old = [path for path in (*self._live, *journals, *earlier) if path.exists()]
            replacing.replace(self.root, old, moves, pace, inside=lock.release)

    def _everything(self) -> tuple[dict[str, pa.Table], list[Source]]:
        """All rows that are not telemetry, and where those of telemetry are."""
        rows = {}
        for name in self._fresh.keys() | self._published.keys():
            if name != TELEMETRY.name:
                stored = [journal_file.with_written(segment.read(path)) for path in self._published.get(name, [])]
                rows[name] = _joined(name, [*stored, *self._fresh.get(name, [])])
        sources = [Source(path) for path in self._published.get(TELEMETRY.name, [])]
        if TELEMETRY.name in self._fresh:
            sources.append(Source(placing.newest(_joined(TELEMETRY.name, self._fresh[TELEMETRY.name]))))
        return rows, sources

    def _written(
        self, rows: dict[str, pa.Table], sources: list[Source], name: str, mine: set[str]
    ) -> tuple[dict[Path, Path], list[Path]]:
        """Write all rows under temporary names: where they go, and the files of `latest` that they replace."""
        parts, earlier = self._placed(rows, name), list[Path]()
        moves: dict[Path, Path] = {}
        try:
            if sources:
                made = Segment(self.root, name, sources, mine, self.generation)
                moves |= made.moves
                assert made.last is not None  # there is a row in every source
                noted, earlier = latest.of_generation(self.root, name_in(self.generation), name, made.last)
                parts += [noted] if made.late is None else [self._late(made.late, name), noted]
            return moves | writing.write_temporary(parts, stays=True), earlier
        except BaseException:
            for temporary in moves:
                files.remove(temporary)
            raise


def _joined(name: str, tables: list[pa.Table]) -> pa.Table:
    """All rows of a journal in one table: the key and every column that any row has, in the order of their table.

    Columns that no row has would double the memory of a collector while it seals.
    """
    import pyarrow as pa

    schema = arrow_schema(name)
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    for key in arranging.KEY:
        if key in schema.names and key not in rows.column_names:
            rows = rows.append_column(schema.field(key), pa.nulls(len(rows), schema.field(key).type))
    there = set(rows.column_names)  # asked once: it makes a new list every time
    own = [column for column in schema.names if column in there and column != WRITTEN]
    return rows.select([*own, WRITTEN]).replace_schema_metadata(schema.metadata)


def _table_of(path: Path) -> str | None:
    """The table of the rows of a published file; None if it is damaged or gone."""
    kept = next(folder.name for folder in path.parents if folder.name in _TABLES)
    try:
        if reason_to_skip(path, kept) is not None:
            return None
        segment.read(path)
    except (OSError, UnreadableError):
        return None
    return TELEMETRY.name if kept == LATE.name else kept


def _put_aside(path: Path, lost: int) -> None:
    """If some bytes of a journal changed, keep it under another name when its other rows go to a segment."""
    aside = path.with_name(path.name + journal_file.DAMAGED)
    log.warning("%s: %s; it is kept as %s", path, journal_file.unread(lost), aside)
    with contextlib.suppress(FileExistsError):
        os.link(path, aside, follow_symlinks=False)


def seal_abandoned(root: Path, name: str | None, pace: Pace, *, but: str | None = None) -> list[str]:
    """Seal the journals of dead writers: of `name`, whose lock the caller holds, or of all whose lock is free (None).

    Generations that begin with `but` are left. Returns the generations that were sealed. Raises StoreError.
    """
    by_generation: dict[str, list[Part]] = {}
    with files.readable(root):
        hidden = {file for note in replacing.notes(root).values() for table, file in note.old if table == "journal"}
        parts = journal_file.parts(root)
    for part in parts:
        if f"{journal_file.FOLDER}/{part.path.name}" not in hidden:
            by_generation.setdefault(part.generation, []).append(part)
    done: list[str] = []
    failure: StoreError | None = None
    for generation in by_generation:
        owner = name_in(generation)
        if (name is not None and owner != name) or (but is not None and generation.startswith(but)):
            continue
        path = root / journal_file.FOLDER / f"{owner}.lock"
        lock: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if name is None:
            try:
                lock = locked(path, f"a journal named {owner}") if is_free(path) else lock
            except StoreError:
                continue  # its next writer has begun
            if isinstance(lock, contextlib.nullcontext):
                continue
        try:
            with lock:
                done += _seal_one(root, generation, pace)
        except StoreError as error:
            failure = failure or error  # the others first
    if failure is not None:
        raise failure
    return done


def _seal_one(root: Path, generation: str, pace: Pace) -> list[str]:
    """Seal one generation. If a part of it cannot be read, the part stays, and the answer is an empty list."""
    sealer, found = Sealer(root, generation), list[str]()
    begins = f"{generation}.live"
    with files.readable(root):  # what is not found would be taken from the journal once more
        for kind in (*TABLES, LATE):
            found += files.files_under(root / kind.name, lambda n: n.startswith(begins) and n.endswith(".parquet"))
    sealer.resume(map(Path, found))
    sealer.seal(pace)
    return [] if sealer.unread else [generation]
