"""What a store holds, how large it is, and who writes to it now."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checking, file_names, journal_file, keys, parquet, replacing, retention, snapshot
from .replacing import LogStatus, retried
from .schema import LATE, MINUTES, TABLES, TELEMETRY
from .system import files, processes
from .system.locks import is_held

if TYPE_CHECKING:
    from .store import Store


@dataclass
class TableStatus:
    """A table: its rows, those `in_journals` among them; its files of Parquet, and their `bytes`."""

    table: str
    rows: int = 0
    files: int = 0
    bytes: int = 0
    in_journals: int = 0


@dataclass
class JournalStatus:
    """A journal: its writer, its rows, and the age of the newest one (s)."""

    writer: str
    host: str
    pid: int
    alive: bool | None  # None: this host cannot know
    rows: int = 0
    bytes: int = 0
    age_s: float | None = None
    torn_bytes: int = 0


@dataclass
class Status:
    """The state of a store."""

    tables: list[TableStatus] = field(default_factory=list)
    journals: list[JournalStatus] = field(default_factory=list)
    late_rows: int = 0
    oldest: int | None = None  # ns since 1970, of telemetry at full rate
    newest: int | None = None
    cold_rows: int = 0
    keep: str | None = None
    durability: str = ""
    replacements: int = 0
    to_be_removed: int = 0
    removed_at: float | None = None
    logs: list[LogStatus] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    free: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def status(store: Store) -> Status:
    """The state of a store. Raises StoreError."""
    return retried(store.root, lambda: _status(store))


def _status(store: Store) -> Status:
    root = store.root
    names = [spec.name for spec in TABLES]
    listing = snapshot.take(root, names, store.skip)
    out = Status(keep=retention.configured(root), durability=str(files.durability_of(root)))
    dated: list[Path] = []
    for name in names:
        live = snapshot.live_rows(listing, name)
        here = TableStatus(name, in_journals=0 if live is None else len(live))
        here.rows = here.in_journals
        for path in store.sound(name, listing.files[name]):
            here.files += 1
            here.bytes += path.stat().st_size
            here.rows += parquet.rows_in(path)
            dated += [path] if name == TELEMETRY.name else []
        out.tables.append(here)
    out.cold_rows = next(table_status.rows for table_status in out.tables if table_status.table == MINUTES.name)
    out.late_rows = sum(
        map(parquet.rows_in, snapshot.sound(LATE, listing.files[LATE.name], store.verified, store.skip))
    )
    spans = [file_name.bounds for path in dated if (file_name := file_names.parse(path.name))]
    live = snapshot.live_rows(listing, TELEMETRY.name)
    spans += [keys.bounds_of(live)] if live is not None else []
    if spans:
        out.oldest = 1000 * min(bounds.first_us for bounds in spans)
        out.newest = 1000 * max(bounds.last_us for bounds in spans)
    out.journals = _journals(root, listing)
    note = replacing.newest_note(root)
    out.replacements = int(note.step != 0)
    replaced = {name: since_s for name, since_s in note.old.items() if (root / name).exists()}
    out.to_be_removed, out.logs = len(replaced), replacing.statuses(root, note)
    if replaced and not any(log.waiting for log in out.logs):
        out.removed_at = max(replaced.values()) + replacing.pace_of(root).grace_s
        for log in note.logs.values():
            released_s = max(log.released.get(name, 0.0) for name in replaced)
            out.removed_at = max(out.removed_at, replacing.LOG_GRACE_S + released_s)
    skipped = store.skipped | checking.without_a_journals_name(root)
    out.skipped = {str(path): reason for path, reason in skipped.items()}
    out.free = shutil.disk_usage(root).free
    return out


def _journals(root: Path, listing: snapshot.Snapshot) -> list[JournalStatus]:
    by_writer: dict[tuple[str, str, int], JournalStatus] = {}
    for journal, content in listing.journals.items():
        writer = content.writer
        if writer is None:
            continue
        here = by_writer.setdefault(  # by the file's name: what a header names may lie outside the store
            (journal.writer, writer.host, writer.pid),
            JournalStatus(journal.writer, writer.host, writer.pid, _alive(root, journal.writer, writer)),
        )
        tables = [rows for rows in content.rows.values() if len(rows)]
        here.rows += sum(map(len, tables))
        here.bytes += content.upto
        here.torn_bytes += 0 if here.alive else content.torn
        if tables:
            age_s = (time.time_ns() - max(int(keys.written_ns(rows).max()) for rows in tables)) / 1e9
            here.age_s = age_s if here.age_s is None else min(age_s, here.age_s)
    return list(by_writer.values())


def _alive(root: Path, name: str, writer: journal_file.Writer) -> bool | None:
    held = is_held(root / journal_file.FOLDER / f"{name}.lock")
    if (writer.host, writer.pid_namespace) == (processes.host(), processes.pid_namespace()):
        # It may live and write to the store of which this is a copy.
        return held is not False and processes.alive(writer.pid)
    return held or None
