"""Bring a store of an older format to the present one: every file is written anew, and all change places at once.

The new files of all tables and of the journals of dead writers are put beside the old ones, which one note then hides,
as in a compaction (see `replacing`). Then `store.toml` gets the new number. Until then an older whorl reads the old
files, and this whorl refuses the store; from then on it is the other way round. A process that is killed leaves one of
these two, and the next upgrade goes on from there. Files that an older whorl stores later are upgraded by the next one.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError
from . import commits, file_names, journal_file, keys, manifest, parquet, replacing, sealing, snapshot, telemetry_files
from .journal_file import JournalName
from .parquet import WRITTEN
from .replacing import Compactor
from .schema import BOOKKEEPING, FORMAT, REPLACED, TABLES, TELEMETRY, Table, other_format, upgrades
from .store import furnish, read_about, write_about
from .system import files

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


@dataclass
class Upgraded:
    """What an upgrade did: from which format to which, files and journals that were written anew, and those that cannot
    be read, which stay where they are."""

    older: str
    newer: str = str(FORMAT)
    files: int = 0
    journals: int = 0
    unreadable: list[str] = field(default_factory=list)


def upgrade(root: Path, *, offline: bool = False, progress: Callable[[str], None] = lambda _: None) -> Upgraded:
    """Upgrade the store at `root`; nothing is done where it has the present format already.

    It needs as much space again as the store takes. `offline`: nobody else uses the store, so that nothing waits for
    readers; `progress` is called with what is done next. Raises FormatError where the format cannot be upgraded, and
    StoreError where a writer lives that has an older format, or the store cannot be written; nothing is changed then.
    """
    about = read_about(root, older=True)
    done = Upgraded(str(about["format"]))
    with commits.exclusive(root), files.readable(root):
        pace = replacing.pace_of(root, offline=offline)
        with Compactor(root, pace, done.older) as compactor, _older_journals(root) as journals:
            compactor.tidy()
            work = _Work(compactor, done, progress)
            try:
                work.write(journals)
            except BaseException as error:
                for temporary in work.moves:
                    files.remove(temporary)
                if isinstance(error, OSError):
                    raise files.failed("write", root, error) from error
                raise
            if done.older != done.newer:
                compactor.replace(work.old, work.moves, then=lambda: write_about(root, about, ""))
                try:
                    furnish(root, about)
                except StoreError as error:
                    log.warning("%s; until then other DuckDB clients may be unable to read it", error)
            elif work.old:
                compactor.replace(work.old, work.moves)
            work.rewrite_manifests()
    return done


@contextlib.contextmanager
def _older_journals(root: Path) -> Iterator[list[JournalName]]:
    """The journals of older formats, whose writers are dead. Raises StoreError where one of them lives."""
    older = []
    hidden = replacing.newest(root).hidden  # an earlier upgrade took their rows
    for journal in journal_file.journals(root):
        if journal.path.relative_to(root).as_posix() in hidden:
            continue
        with contextlib.suppress(FileNotFoundError, ValueError):
            if journal_file.header(journal.path, older=True).format != str(FORMAT):
                older.append(journal)
    with sealing.of_dead(older) as dead:
        if living := [journal for journal in older if journal not in dead]:
            raise StoreError(
                f"{living[0].writer} writes to {root} ({living[0].path}): stop it, and run `whorl store upgrade` again"
            )
        yield dead


class _Work:
    """The files to be replaced, and those that take their places, still under temporary names."""

    def __init__(self, compactor: Compactor, done: Upgraded, progress: Callable[[str], None]) -> None:
        self._root, self._compactor, self._done, self._progress = compactor.root, compactor, done, progress
        self.old: list[Path] = []
        self.moves: dict[Path, Path] = {}
        self._names: dict[Path, str] = {}  # the new names of files

    def write(self, journals: list[JournalName]) -> None:
        """Write everything of older formats anew. Raises OSError and StoreError."""
        hidden = replacing.newest(self._root).hidden
        unsealed = {journal.stem for journal in journals}
        for spec in (*TABLES, *BOOKKEEPING):
            if spec == REPLACED:
                continue
            everything = list(parquet.names_in(self._root, spec, file_names.EVER))
            visible = set(snapshot.visible(self._root, spec, hidden, unsealed))
            for path in everything:
                self._compactor.beat()
                if path in visible:
                    self._rewrite(spec, path)
                elif path.relative_to(self._root).as_posix() not in hidden:
                    self.old.append(path)  # an earlier sealing of a journal left it, whose rows come from the journal
        self._of_journals(journals)

    def _rewrite(self, spec: Table, path: Path) -> None:
        try:
            version = version_of(path)
            if version == str(FORMAT):
                return
            self._progress(f"{spec.name}: {path.name}")
            rows = upgraded(spec, _sound_rows(spec, path, version), version)
        except ValueError as error:
            self._skip(path, str(error))
            return
        name_parts = _file_name(spec, path)
        assert name_parts is not None  # its rows are sound
        content = parquet.encode(spec, rows, codec="warm" if path.name.startswith("compacted-") else "fresh")
        name = file_names.plain(spec.name, name_parts.stem, name_parts.bounds.gpus, content)
        if spec.partitioned:
            name = file_names.dated(
                spec.name,
                name_parts.stem,
                written=name_parts.written,
                bounds=name_parts.bounds,
                content=content,
            )
        self._add(path.with_name(name), content)
        self.old.append(path)
        self._names[path] = name
        self._done.files += 1

    def _add(self, path: Path, content: bytes) -> None:
        self.moves[parquet.write(path, content)] = path

    def _skip(self, path: Path, reason: str) -> None:
        self._done.unreadable.append(f"{path}: {reason}")
        log.warning("left %s alone: %s", path, reason)

    def _of_journals(self, journals: list[JournalName]) -> None:
        """Write the rows of journals as files of the tables."""
        import pyarrow as pa

        readings = []
        stem = f"upgraded-{time.time_ns():x}"
        for number, journal in enumerate(journals):
            try:
                content = journal_file.read(journal.path, older=True)
            except journal_file.TornHeaderError:
                self.old.append(journal.path)
                continue
            except ValueError as error:
                self._skip(journal.path, str(error))
                continue
            if content.lost:
                sealing.put_aside(journal.path, content.lost)
            version = next(iter(content.layouts.values())).format
            for spec in TABLES:
                rows = content.of(spec.name)
                if rows is None:
                    continue
                rows = upgraded(spec, rows, version)
                if spec == TELEMETRY:
                    readings.append(rows)
                    continue
                name, body = parquet.plain_file(spec, keys.sort(spec, rows.drop_columns([WRITTEN])), f"{stem}-{number}")
                self._add(self._root / spec.name / name, body)
            self.old.append(journal.path)
            self._done.journals += 1
        if readings:
            joined = pa.concat_tables(readings, promote_options="default")
            with telemetry_files.placing(self._root):
                placed = telemetry_files.place(self._root, joined, stem, written=None)
            for path, body in placed.files:
                self._add(path, body)

    def rewrite_manifests(self) -> None:
        """Let the manifests of days name the new files. Without one a day is only compacted again."""
        for folder in {path.parent for path in self._names if path.parent.parent.name == TELEMETRY.name}:
            with contextlib.suppress(OSError):
                manifest.rename(
                    folder, {path.name: name for path, name in self._names.items() if path.parent == folder}
                )


def version_of(path: Path) -> str:
    """The format of a file. Raises OSError, and ValueError where it is no Parquet file of a store."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with files.opened(path) as source:
            about = pq.read_schema(source).metadata or {}
    except (OverflowError, MemoryError, pa.ArrowException) as error:
        raise ValueError(
            f"it is not a Parquet file ({str(error).splitlines()[0]}); move it out of the store"
        ) from error
    version = str(about.get(b"whorl.format", b"").decode("utf-8", "replace"))
    if why := other_format(version, older=True):
        raise ValueError(why)
    return version


def _file_name(spec: Table, path: Path) -> file_names.FileName | None:
    return file_names.parse(path.name) if spec.partitioned else file_names.parse_plain(path.name)


def _sound_rows(spec: Table, path: Path, version: str) -> pa.Table:
    """The rows of a file of an older format, all columns. Raises OSError, and ValueError where it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with files.opened(path) as source:
        content = source.read()
    name_parts = _file_name(spec, path)
    if name_parts is None or file_names.check_sum(spec.name, content, version=version) != name_parts.crc:
        raise ValueError("it is damaged, or has another name than whorl gave it; restore it from a backup")
    return pq.read_table(pa.BufferReader(content), use_threads=False).replace_schema_metadata()


def upgraded(spec: Table, rows: pa.Table, version: str) -> pa.Table:
    """Rows of an older format as those of the present one. Raises StoreError where an upgrade does not fit."""
    for step in upgrades(version):
        rows = step.rows(spec.name, rows)
    if WRITTEN not in rows.column_names or WRITTEN in spec.names:
        return keys.conform(spec, rows)
    return keys.conform(spec, rows.drop_columns([WRITTEN])).append_column(WRITTEN, rows[WRITTEN])
