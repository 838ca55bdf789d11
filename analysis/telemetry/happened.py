"""What happened to GPUs in a range of time: runs of probes, jobs, events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...store.catalog import quoted
from ...store.instants import in_sql
from ...store.vocabulary import EventKind
from .readings import Key, Which, of

if TYPE_CHECKING:
    from ...store import Store

MOST = 300
"""Bars of runs, bars of jobs, and marks, at most so many of each."""
_STRETCHES = 200  # events of a kind that lie in one of these parts of the range are one mark
_QUIET = (
    EventKind.NOT_SUPPORTED, EventKind.NOT_PERMITTED, EventKind.SOURCE_VERSION, EventKind.EXPORTER,
    EventKind.MODULE_POWER, EventKind.JOB_SUBMITTED, EventKind.JOB_REFUSED,
)  # fmt: skip
"""Kinds that say nothing about what a GPU did at that time."""
_FOR_EVER = "TIMESTAMP '2262-01-01'"


@dataclass(frozen=True)
class Bar:
    """A run or a job on a GPU, or on several (`key` is None) together."""

    key: Key | None
    name: str
    says: str
    """Campaign and outcome of a run; user and state of a job."""
    began: int
    ended: int | None
    """None: it has not ended."""
    gpus: int


@dataclass(frozen=True)
class Mark:
    """An event; or several of the same kind and GPU that lie close together."""

    key: Key | None
    """None: of a node, or of several GPUs."""
    kind: str
    at: int
    says: str
    """What the first of them says."""
    times: int


@dataclass(frozen=True)
class Happened:
    """The longest runs and jobs, the rarest kinds of events; and how many there were in all."""

    runs: tuple[Bar, ...]
    jobs: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    all_runs: int
    all_jobs: int
    all_events: int


def happened(store: Store, keys: Which, since: int, until: int, *, apart: bool) -> Happened:
    """The runs, jobs and events of these GPUs (None: of all) from `since` to before `until`, ns since 1970.

    `apart`: each bar and mark is of one GPU. Else the same probe of a campaign, job or kind of event on several GPUs is
    one.
    """
    runs, all_runs = _bars(
        store, "runs", "coalesce(workload, 'run')", "concat_ws(', ', campaign, status)", "campaign", keys, since, until,
        apart=apart,
    )  # fmt: skip
    jobs, all_jobs = _bars(
        store, "jobs_now", "coalesce(job_id, allocation)", "concat_ws(', ', jobs_now.user, state)", "allocation", keys,
        since, until, apart=apart,
    )  # fmt: skip
    marks, events = _marks(store, keys, since, until, apart=apart)
    return Happened(runs, jobs, marks, all_runs, all_jobs, events)


def _bars(
    store: Store, table: str, name: str, says: str, key_column: str, keys: Which, since: int, until: int, *,
    apart: bool,
) -> tuple[tuple[Bar, ...], int]:  # fmt: skip
    """Bars of a table, and how many there are. `one`: the column that, with the name, tells one from another."""
    during = f"began < {in_sql(until)} AND coalesce(ended, {_FOR_EVER}) >= {in_sql(since)}"
    if apart:
        rows = f"cluster, gpu, {name} AS name, {says} AS says, began, ended, 1 AS gpus"
        group = ""
    else:
        rows = (
            f"cluster, NULL AS gpu, {name} AS name, min({says}) AS says, min(began) AS began, "
            f"CASE WHEN bool_and(ended IS NOT NULL) THEN max(ended) END AS ended, count(DISTINCT gpu) AS gpus"
        )
        group = f"GROUP BY cluster, {name}, {key_column}"
    bars_found = store.sql(
        f"SELECT cluster, gpu, name, says, epoch_ns(began), epoch_ns(ended), gpus, count(*) OVER () FROM "
        f"(SELECT {rows} FROM {table} WHERE {during} AND ({of(keys)}) {group}) "
        f"ORDER BY gpus DESC, coalesce(ended, {_FOR_EVER}) - began DESC, began LIMIT {MOST}"
    ).polars()
    bars = [
        Bar((cluster, gpu) if gpu is not None else None, title, text, start, end, gpus)
        for cluster, gpu, title, text, start, end, gpus, _ in bars_found.rows()
    ]
    return tuple(sorted(bars, key=lambda bar: bar.began)), int(bars_found[0, -1]) if len(bars_found) else 0


def _marks(store: Store, keys: Which, since: int, until: int, *, apart: bool) -> tuple[tuple[Mark, ...], int]:
    """Marks of events, and how many events there are. An event of a node counts for each of its GPUs."""
    width = max(1, (until - since) // _STRETCHES)
    quiet = ", ".join(quoted(kind) for kind in _QUIET)
    nodes = (
        "false"
        if keys is None
        else "gpu IS NULL AND (cluster, node) IN (SELECT (cluster, node) FROM (SELECT cluster, last(node ORDER BY "
        f"first_seen NULLS FIRST) FILTER (node IS NOT NULL) AS node FROM gpus WHERE {of(keys)} GROUP BY cluster, gpu))"
    )
    rows = store.sql(
        f"SELECT cluster, {'gpu' if apart else 'NULL AS gpu'}, kind, epoch_ns(min(ts)), arg_min(detail, ts), count(*), "
        f"(sum(count(*)) OVER ())::BIGINT FROM events WHERE ts >= {in_sql(since)} AND ts < {in_sql(until)} "
        f"AND kind NOT IN ({quiet}) AND (({of(keys)}) OR ({nodes})) "
        f"GROUP BY cluster, {'gpu, ' if apart else ''}kind, epoch_ns(ts) // '{width}'::BIGINT "
        f"ORDER BY count(*) OVER (PARTITION BY kind), min(ts) LIMIT {MOST}"
    ).polars()
    marks = [
        Mark((cluster, gpu) if gpu is not None else None, kind, at, says or "", times)
        for cluster, gpu, kind, at, says, times, _ in rows.rows()
    ]
    return tuple(sorted(marks, key=lambda mark: mark.at)), int(rows[0, -1]) if len(rows) else 0
