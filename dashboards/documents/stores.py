"""What a store holds, what became of rows that went into it, and of the logs by which other engines open it.

`import_parts` says it of a file, `merge_parts` of another store, `compacted`, `pruned` and `upgraded` of its files,
`registered` and `moved_on` of the logs of Delta and Iceberg.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import numpy as np

from ...store.compaction import Done
from ...store.importing import Report
from ...store.importing.layout import by_name
from ...store.merging import Merged
from ...store.replacing import LogStatus
from ...store.retention import Pruned
from ...store.status import Status, TableStatus
from ...store.table_logs import MovedOn
from ...store.upgrade import Upgraded
from ..document import Column, Command, Document, Facts, Part, Table, TableColumns
from ..words import count, many, number, second

_NAMED = 5
_KINDS = {"jobs": "jobs", "timelines": "timelines", "node_power": "node power"}


# -- files and stores that come in -------------------------------------------------------------------------------


def import_parts(report: Report) -> Iterator[str]:
    """What was kept and refused of a file, and what was taken for what."""
    total = report.total
    if report.already:
        yield f"{report.file}: imported before into cluster {report.cluster}; nothing added"
        return
    ranks = f"{many(report.ranks, 'rank')}, " if report.kind == "timelines" else ""
    sources = (report.nodes, "node") if report.kind == "node_power" else (report.gpus, "GPU")
    rows_of = _KINDS.get(report.kind) or " and ".join(report.workloads) or "telemetry"
    yield (
        f"{report.file}: {many(total.rows, 'row')} of {rows_of}: {count(total.kept)} kept, "
        f"{many(total.duplicates, 'duplicate')} dropped, {count(total.refused)} refused; {ranks}{many(*sources)}"
    )
    for reason, lines in sorted(report.refusals.items(), key=lambda refusal: -len(refusal[1])):
        first = ", ".join(str(line) for line in sorted(lines)[:_NAMED]) + (", ..." if len(lines) > _NAMED else "")
        yield f"  refused: {count(len(lines))} where {reason} (line {first})"
    units: dict[str, dict[str, list[str]]] = {}
    for name, unit in report.units.items():
        origin = "the columns' names" if unit["from"] == by_name(name) else unit["from"]
        units.setdefault(origin, {}).setdefault(unit["unit"], []).append(name.partition(" [")[0])
    for origin, columns in units.items():
        listed = "; ".join(f"{', '.join(names)} {unit}" for unit, names in columns.items())
        yield f"  units from {origin}: {listed}"
    if report.placeholders:
        unknown = ", ".join(f"{name} {count(n)}" for name, n in report.placeholders.items())
        yield f"  placeholders stored as NULL: {unknown}"
    yield from (f"  note: {note}" for note in report.notes)
    if report.ignored:
        yield f"  columns not stored: {', '.join(report.ignored)}"


def next_command(reports: Sequence[Report], store: str) -> list[Command]:
    """What to do with runs that came in: who stands out? Nothing follows from other rows alone."""
    has_runs = any(report.workloads and report.total.kept for report in reports)
    return [Command(f"next: whorl verdicts --store {shlex.quote(store)}")] if has_runs else []


def merge_parts(merged: Merged) -> Iterator[str]:
    """What was added of another store, or of files of its tables."""
    added, stored_before = sum(merged.added.values()), sum(merged.known.values())
    tables = ", ".join(f"{name} {count(rows)}" for name, rows in merged.added.items())
    yield (
        f"{merged.source}: {many(added, 'row')} added{f' ({tables})' if tables else ''}; {count(stored_before)} "
        "were stored before"
    )
    if merged.replaced:
        yield f"  {many(merged.replaced, 'reading')} took the place of ones that were written earlier"
    if merged.pruned:
        yield f"  {many(merged.pruned, 'row')} left out, of minutes that the store has already, pruned or as readings"
    for moved in merged.moved[:_NAMED]:
        yield (
            f"  {moved['uuid']} is {moved['here']} here and {moved['there']} there: the UUID says which GPU it is, and "
            "both places are kept; if the two clusters are one, give --cluster"
        )
    if len(merged.moved) > _NAMED:
        yield f"  and so are {count(len(merged.moved) - _NAMED)} more GPUs"
    for crowded in merged.crowded:
        yield (
            f"  cluster {crowded['cluster']} has other GPUs there, in {many(crowded['places'], 'place')} "
            f"({crowded['place']}, ...): all count as one cluster; if it is another one, merge it into a store without "
            "it, with --cluster NAME"
        )


# -- what a store holds, and its files ---------------------------------------------------------------------------

_ALIVE = {True: "alive", False: "dead: run `whorl store compact` to seal it", None: "not known from here"}


def status_document(found: Status, store: str) -> Document:
    """Rows and bytes of every table, the open journals, and what is known of the store as a whole."""

    def per_row(table: TableStatus) -> str:
        filed = table.rows - table.in_journals
        return number(table.bytes / filed if filed else None, 3)

    tables: TableColumns = [
        ("table", "table"),
        *((Column(head, "count"), head) for head in ("rows", "files", "bytes")),
        (Column("bytes/row", "number", drops=1), per_row),
    ]
    journals: TableColumns = [
        ("journal of", "writer"),
        (Column("host", drops=1), "host"),
        (Column("process", drops=2), lambda journal: str(journal.pid)),
        (Column("state", "sentence"), lambda journal: _ALIVE[journal.alive]),
        (Column("rows", "count"), "rows"),
        (Column("youngest row", "number"), lambda journal: number(journal.age_s, 3, suffix=" s")),
    ]
    parts: list[Part] = [Table.of(found.tables, tables)]
    if found.journals:
        parts.append(Table.of(found.journals, journals))
    return Document(f"The store {store}", [*parts, Facts(list(_facts(found, store)))])


def _facts(found: Status, store: str) -> Iterator[tuple[str, str]]:
    hot = "none at full rate"
    if found.oldest is not None and found.newest is not None:
        hot = f"{_time(found.oldest)} to {_time(found.newest)} (UTC) at full rate"
    yield "telemetry", f"{hot}; {many(found.cold_rows, 'minute')} of older telemetry"
    yield "retention", f"full rate for {found.keep}" if found.keep else "none set: everything is kept"
    yield "late rows", count(found.late_rows)
    yield "durability", found.durability
    if found.to_be_removed and found.removed_at is not None:
        moment = _time(int(found.removed_at * 1e9))
        yield "replaced", f"{many(found.to_be_removed, 'file')}, which the first whorl command after {moment} removes"
    for log in found.logs:
        yield "table log", f"{log.log}, {log_state(log, store)}"
    for path, reason in found.skipped.items():
        yield "skipped", f"{path}: {reason}"
    yield "free", f"{found.free / 2**30:,.1f} GiB"


def _time(ns: int) -> str:
    return str(np.datetime64(ns // 10**9, "s")).replace("T", " ")  # ns do not hold every time of a store


def compacted(done: Done, energy_days: int) -> Iterator[str]:
    """What a compaction joined, and what it left."""
    yield (
        f"{many(done.before, 'file')} became {count(done.after)}; {many(done.late_rows, 'late row')} put in place; "
        f"{many(done.sealed, 'journal')} of dead writers sealed"
    )
    if energy_days:
        yield f"energy of each GPU and minute of {many(energy_days, 'day')} written"
    if done.waiting:
        yield f"{many(done.waiting, 'file')} of late rows wait until the journals of their GPUs are sealed"
    if done.open_journals:
        yield (
            f"{many(len(done.open_journals), 'journal')} left, because the writer lives or this host cannot tell; "
            f"other DuckDB clients see the rows when it is sealed: {', '.join(done.open_journals)}"
        )
    if done.unreadable:
        yield f"{many(len(done.unreadable), 'file')} left that cannot be read: the warnings say why"


def pruned(done: Pruned, *, dry_run: bool) -> Iterator[str]:
    """What pruning did, or with `dry_run` would do, and what it left."""
    verb = "would become" if dry_run else "became"
    yield f"{many(done.rows, 'row')} before {_time(done.until)} (UTC) {verb} {many(done.minutes, 'row')} of a minute"
    if not dry_run and done.rows:
        yield f"{count(done.before)} bytes of files became {count(done.after)}"
    if done.sparse:
        yield f"{many(done.sparse, 'row')} stay: they are hardly more than one a minute, and would take more space"
    if done.waiting:
        yield f"left: {many(done.waiting, 'day')} that another process still writes to. Run this command again later"


def upgraded(done: Upgraded) -> Iterator[str]:
    """What an upgrade wrote anew."""
    if done.files or done.journals or done.older != done.newer:
        written = f"{many(done.files, 'file')} and {many(done.journals, 'journal')} written anew"
        yield f"from format {done.older} to {done.newer}: {written}"
    else:
        yield f"the store has format {done.newer} already: nothing was done"
    if done.unreadable:
        yield f"{count(len(done.unreadable))} could not be read, and stay as they are: {done.unreadable[0]}"


# -- logs of tables ----------------------------------------------------------------------------------------------


def registered(logs: Sequence[MovedOn]) -> Iterator[Part]:
    """What a registration did, with what other engines open."""
    for moved in logs:
        if moved.failure is not None:
            yield _failure(moved)
            continue
        rows = [logged for logged in moved.tables if logged.files or logged.removed]
        columns: TableColumns = [
            (f"{moved.log} table", "table"),
            (Column("files", "count"), "files"),
            (Column("new", "count"), "added"),
            (Column("gone", "count"), "removed"),
            ("location", "location"),
        ]
        yield Table.of(rows, columns)
        if len(rows) < len(moved.tables):
            yield f"tables that have no rows yet: {len(moved.tables) - len(rows)}"
        yield from _unreadable(moved)
    if any(moved.failure is None for moved in logs):
        yield "how Spark, Trino, ClickHouse, Polars and DuckDB open them: docs/store.md"


def moved_on(logs: Sequence[MovedOn], store: str) -> Iterator[str]:
    """What a compaction or pruning says of the logs at its end."""
    for moved in logs:
        if moved.failure is not None:
            yield _failure(moved)
            if moved.status is not None:
                yield f"the {moved.log} log, {log_state(moved.status, store)}"
            continue
        added, removed = (sum(getattr(logged, name) for logged in moved.tables) for name in ("added", "removed"))
        yield f"the {moved.log} log moved on: {many(added, 'new file')}, {many(removed, 'file')} less"
        yield from _unreadable(moved)


def log_state(log: LogStatus, store: str) -> str:
    """How far a log has moved on, what waits for it, and what to do."""
    command = f"whorl store register --store {shlex.quote(store)}"
    since = "never completed" if log.moved_on is None else f"up to date at {_utc(log.moved_on)}"
    if not log.waiting or log.since is None:
        return since if log.moved_on is not None else f"{since}: run `{command}`"
    return (
        f"{since}: {many(log.waiting, 'replaced file')} ({count(log.bytes)} bytes) stay for it since "
        f"{_utc(log.since)}; run `{command}`, or `{command} --forget {log.log}` if nobody reads it"
    )


def _failure(moved: MovedOn) -> str:
    return f"the {moved.log} log was not brought up to date: {moved.failure}"


def _unreadable(moved: MovedOn) -> Iterator[str]:
    if moved.unreadable:
        yield f"{many(len(moved.unreadable), 'damaged file')} left out of it: {moved.unreadable[0]}"


def _utc(seconds: float) -> str:
    return f"{second(datetime.fromtimestamp(int(seconds), UTC))} (UTC)"
