"""What a store holds, how large it is, and who writes to it now."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import StoreError
from . import retention
from .readers import reading
from .rows import journal_file, placing, replacing
from .schema import LATE, MINUTES, TABLES, TELEMETRY
from .system import durability, files, light, processes
from .system.locks import is_held

if TYPE_CHECKING:
    from .store import Store


_TRIES = 20


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
    """A journal: its writer, its rows that are in no segment yet, and the age of the newest one (s)."""

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
    skipped: dict[str, str] = field(default_factory=dict)
    free: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def status(store: Store) -> Status:
    """The state of a store. Raises StoreError."""
    for _ in range(_TRIES):
        with files.readable(store.root), contextlib.suppress(FileNotFoundError):  # replaced by others: look again
            return _status(store)
    raise StoreError(f"the files of {store.root} change faster than they can be listed; run the command again")


def _status(store: Store) -> Status:
    root = store.root
    found = reading.snapshot(root)
    out = Status(keep=retention.configured(root), durability=str(durability.of(root)))
    tails = reading.tails(found, [spec.name for spec in TABLES], store.skip)
    if tails is None:
        raise FileNotFoundError
    for spec in TABLES:
        unpublished = len(tails.get(spec.name, ()))
        one = TableStatus(spec.name, rows=unpublished, in_journals=unpublished)
        for path in store.sound(spec.name, found.files[spec.name]):
            if path.name != reading.EMPTY:
                one.files += 1
                one.bytes += path.stat().st_size
                one.rows += light.metadata(path).num_rows
        out.tables.append(one)
    rows = {one.table: one.rows for one in out.tables}
    out.cold_rows = rows[MINUTES.name]
    spans = [bounds for path in found.files[TELEMETRY.name] if (bounds := placing.bounds(path)) is not None]
    known = [bounds for bounds in spans if bounds.first != placing.EVER[0]]
    if known:
        out.oldest, out.newest = min(b.first for b in known), max(b.last for b in known)
    late = [bounds for path in found.files[LATE.name] if (bounds := placing.bounds(path)) is not None]
    out.late_rows = sum(bounds.rows for bounds in late)
    _journals(root, found, out)
    _replacements(root, out)
    out.skipped = {str(path): reason for path, reason in store.skipped.items()}
    out.free = shutil.disk_usage(root).free
    return out


def _journals(root: Path, found: reading.Snapshot, out: Status) -> None:
    by_writer: dict[str, JournalStatus] = {}
    for part, _ in found.journals:
        try:
            writer = journal_file.writer_of(journal_file.head(part.path))
            content = journal_file.read(part.path)
        except (OSError, ValueError):
            continue
        one = by_writer.get(part.generation)
        if one is None:
            alive = _alive(root, writer)
            one = by_writer[part.generation] = JournalStatus(writer.name, writer.host, writer.pid, alive)
        one.rows += len(content.table)
        one.bytes += content.upto
        one.torn_bytes += 0 if one.alive else content.torn
        if len(content.table):
            age = (time.time_ns() - placing.last_written(content.table)) / 1e9
            one.age_s = age if one.age_s is None else min(age, one.age_s)
            if part.table == TELEMETRY.name:
                bounds = placing.bounds_of(journal_file.whole(part.table, content.table))
                out.newest = bounds.last if out.newest is None else max(out.newest, bounds.last)
                out.oldest = bounds.first if out.oldest is None else min(out.oldest, bounds.first)
    out.journals = list(by_writer.values())


def _alive(root: Path, writer: journal_file.Writer) -> bool | None:
    held = is_held(root / journal_file.FOLDER / f"{writer.name}.lock")
    if (writer.host, writer.pid_namespace) == (processes.host(), processes.pid_namespace()):
        return held and processes.alive(writer.pid)  # it may live and write to the store of which this is a copy
    return True if held else None


def _replacements(root: Path, out: Status) -> None:
    now = time.time()
    for note in replacing.notes(root).values():
        out.replacements += 1
        if note.step == 2:
            there = sum((root / name).exists() for name in note.paths["old"])
            out.to_be_removed += there
            if there:
                due = replacing.due(note, now)
                out.removed_at = due if out.removed_at is None else min(out.removed_at, due)
