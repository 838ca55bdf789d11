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
from . import commits, file_names, journal_file, keys, notes, parquet, replacing, sealing, snapshot, telemetry_files
from .folder import furnish, read_about, write_about
from .formats import other_format, upgrades
from .journal_file import JournalName
from .replacing import Compactor, Replacement
from .schema import COLUMNS, FORMAT, LATE, TABLES, TELEMETRY, Table, table
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
        with (
            Compactor(root, pace, done.older) as compactor,
            _older_journals(root) as journals,
            Replacement() as replacement,
        ):
            compactor.tidy()
            _Work(compactor, replacement, done, progress).write(journals)
            if done.older == done.newer:
                if replacement.old:
                    compactor.switch(replacement)
                return done
            about |= {"columns": COLUMNS}
            compactor.switch(replacement, then=lambda: write_about(root, about, ""))
            try:
                furnish(root, about)
            except StoreError as error:
                log.warning("%s; until then other DuckDB clients may be unable to read it", error)
    return done


@contextlib.contextmanager
def _older_journals(root: Path) -> Iterator[list[JournalName]]:
    """The journals of older formats, whose writers are dead. Raises StoreError where one of them lives."""
    older = []
    hidden = notes.newest(root).hidden_in(root)  # an earlier upgrade took their rows
    for journal in journal_file.journals(root):
        if journal.path in hidden:
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
    """Writes everything of older formats anew."""

    def __init__(
        self, compactor: Compactor, replacement: Replacement, done: Upgraded, progress: Callable[[str], None]
    ) -> None:
        self._root, self._compactor, self._replacement = compactor.root, compactor, replacement
        self._done, self._progress = done, progress

    def write(self, journals: list[JournalName]) -> None:
        """Write files and journals of older formats anew. Raises OSError and StoreError."""
        hidden = notes.newest(self._root).hidden_in(self._root)
        unsealed = {journal.stem for journal in journals}
        for spec in (*TABLES, LATE):
            visible = set(snapshot.visible(self._root, spec, hidden, unsealed))
            for path in parquet.paths_in(self._root, spec, file_names.EVER):
                self._compactor.beat()
                if path in visible:
                    self._rewrite(spec, path)
                elif path not in hidden:
                    # An earlier sealing of a journal left it, whose rows come from the journal.
                    self._replacement.old.append(path)
        self._of_journals(journals)

    def _rewrite(self, spec: Table, path: Path) -> None:
        try:
            older = _older_rows(spec, path)
        except ValueError as error:
            self._skip(path, str(error))
            return
        if older is None:
            return
        self._progress(f"{spec.name}: {path.name}")
        stated, rows = older
        content = parquet.encode(spec, rows, codec="warm" if path.name.startswith("compacted-") else "fresh")
        self._replacement.add([(path.with_name(file_names.compose(spec.name, stated, content)), content)])
        self._replacement.old.append(path)
        self._done.files += 1

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
            except ValueError as error:
                self._skip(journal.path, str(error))
                continue
            if content.lost:
                sealing.put_aside(journal.path, content.lost)
            version = next(iter(content.layouts.values())).format
            for name, stored in content.rows.items():
                spec = table(name)
                rows = _upgraded(spec, stored, version)
                if spec == TELEMETRY:
                    readings.append(rows)
                    continue
                rows = keys.sort(spec, keys.without_written(rows))
                self._replacement.add(telemetry_files.files_of(self._root, spec, rows, f"{stem}-{number}"))
            self._replacement.old.append(journal.path)
            self._done.journals += 1
        if readings:
            joined = pa.concat_tables(readings, promote_options="default")
            with telemetry_files.placing(self._root):
                placed = telemetry_files.place(self._root, joined, stem, dated=True)
            self._replacement.add(placed)


def _older_rows(spec: Table, path: Path) -> tuple[file_names.FileName, pa.Table] | None:
    """What the name of a file of an older format says, and its rows in the present one; None for one of the present.

    Raises OSError, and ValueError for a file that is damaged or none of a store.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with files.opened(path) as source:
            _, version = parquet.stated_in(pq.read_schema(source).metadata)
            if why := other_format(version, older=True):
                raise ValueError(why)
            if version == str(FORMAT):
                return None
            source.seek(0)
            content = source.read()
    except (OverflowError, MemoryError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"it is not a Parquet file ({reason}); move it out of the store") from error
    stated = file_names.parse(path.name)
    if (
        stated is None
        or stated.dated != spec.partitioned
        or file_names.check_sum(spec.name, content, version=version) != stated.crc
    ):
        raise ValueError("it is damaged, or has another name than whorl gave it; restore it from a backup")
    rows = pq.read_table(pa.BufferReader(content), use_threads=False).replace_schema_metadata()
    return stated, _upgraded(spec, rows, version)


def _upgraded(spec: Table, rows: pa.Table, version: str) -> pa.Table:
    """Rows of an older format as those of the present one. Raises StoreError where an upgrade does not fit."""
    for step in upgrades(version):
        rows = step.rows(spec.name, rows)
    return keys.conform(spec, rows, dated=True)
