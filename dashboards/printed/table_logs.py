"""What `whorl store` says of the table logs that name a store's files: Delta, Iceberg."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import numpy as np

from ...store.registrations import LogStatus
from ...store.table_logs import MovedOn
from ..table import Table, count, many


def registered(logs: Sequence[MovedOn]) -> Iterable[str | Table]:
    """What a registration did, with what other engines open."""
    for moved in logs:
        if moved.failure is not None:
            yield _failure(moved)
            continue
        rows = [
            [logged.table, count(logged.files), count(logged.added), count(logged.removed), logged.location]
            for logged in moved.tables
            if logged.files or logged.removed
        ]
        yield Table((f"{moved.log} table", "files", "new", "gone", "location"), rows, (1, 2, 3))
        if len(rows) < len(moved.tables):
            yield f"tables that have no rows yet: {len(moved.tables) - len(rows)}"
        yield from _unreadable(moved)
    if any(moved.failure is None for moved in logs):
        yield "how Spark, Trino, ClickHouse, Polars and DuckDB open them: docs/store.md"


def moved_on(logs: Sequence[MovedOn], store: str) -> Iterable[str]:
    """What a compaction or pruning says of the logs at its end."""
    for moved in logs:
        if moved.failure is not None:
            yield _failure(moved)
            if moved.status is not None:
                yield f"the {moved.log} log, {state(moved.status, store)}"
            continue
        added, removed = (sum(getattr(logged, name) for logged in moved.tables) for name in ("added", "removed"))
        yield f"the {moved.log} log moved on: {many(added, 'new file')}, {many(removed, 'file')} less"
        yield from _unreadable(moved)


def state(log: LogStatus, store: str) -> str:
    """How far a log has moved on, what waits for it, and what to do."""
    command = f"whorl store register --store {shlex.quote(store)}"
    if log.damaged is not None:
        text = f"of which nothing is known ({log.damaged}), so that every replaced file stays"
        return f"{text}: run `{command} --{log.log}`"
    since = "never completed" if log.moved_on is None else f"up to date at {_time(log.moved_on)}"
    if not log.waiting or log.since is None:
        return since if log.moved_on is not None else f"{since}: run `{command}`"
    return (
        f"{since}: {many(log.waiting, 'replaced file')} ({count(log.bytes)} bytes) stay for it since "
        f"{_time(log.since)}; run `{command}`, or `{command} --forget {log.log}` if nobody reads it"
    )


def _failure(moved: MovedOn) -> str:
    return f"the {moved.log} log was not brought up to date: {moved.failure}"


def _unreadable(moved: MovedOn) -> Iterable[str]:
    if moved.unreadable:
        yield f"{many(len(moved.unreadable), 'damaged file')} left out of it: {moved.unreadable[0]}"


def _time(seconds: float) -> str:
    return str(np.datetime64(int(seconds), "s")).replace("T", " ") + " (UTC)"
