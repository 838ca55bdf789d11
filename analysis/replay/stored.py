"""The jobs that a store holds, as a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from ...store.catalog import quoted
from .job import Job, Trace
from .trace_text import TraceText

if TYPE_CHECKING:
    from ...store import Store

MOST_JOBS = 500

_JOBS = (
    "SELECT allocation, any_value(job_id) AS job, "
    "max(coalesce(eligible, submitted, began)) AS arrived, min(began) AS began, max(ended) AS ended, "
    "coalesce(max(job_gpus), sum(node_gpus)) AS gpus, bool_or(share < 1) AS shared, max(time_limit_s) AS limit_s "
    "FROM jobs_now WHERE cluster IS NOT DISTINCT FROM {cluster} GROUP BY allocation"
)


@dataclass(frozen=True)
class StoredJobs:
    """How many jobs of a cluster a store holds, and how many of them can be replayed."""

    jobs: int
    usable: int


def _read(store: Store, cluster: str) -> tuple[int, TraceText]:
    """How many jobs a cluster has, and those that can be replayed; why the others cannot stands in their notes."""
    table = TraceText(str(store.root), store.sql(_JOBS.format(cluster=quoted(cluster))).polars())
    total = table.frame.height
    began, ended = pl.col("began"), pl.col("ended")
    table.leave_out(began.is_null() | ended.is_null(), "it is not known when they began and ended")
    table.leave_out(ended <= began, "they never ran")
    table.leave_out(pl.col("shared"), "they had parts of GPUs")
    table.leave_out(pl.col("gpus").fill_null(0) < 1, "it is not known how many GPUs they had")
    return total, table


def stored_jobs(store: Store, cluster: str) -> StoredJobs:
    """How many jobs of a cluster there are to replay."""
    total, table = _read(store, cluster)
    return StoredJobs(total, table.frame.height)


def stored_trace(store: Store, cluster: str, most: int = MOST_JOBS) -> Trace:
    """The newest `most` jobs of a cluster that ended, as a trace; their times count as times on GPUs of median speed.

    Raises InputError where there is none.
    """
    _, table = _read(store, cluster)
    # A job that was requeued may have been submitted long before; one that began earlier is a fault of the data.
    frame, notes = table.frame.with_columns(pl.min_horizontal("arrived", "began").alias("arrived")), table.notes
    if frame.is_empty():
        raise InputError(
            f"the store has no jobs of {cluster} that can be replayed{': ' if notes else ''}{'; '.join(notes)}; "
            "`whorl jobs import` reads them from Slurm's accounting"
        )
    if frame.height > most:
        notes.insert(0, f"the newest {most:,} of {frame.height:,} jobs are replayed")
        frame = frame.top_k(most, by="arrived")
    frame = frame.sort("arrived", "allocation")
    notes.append("run times count as times on GPUs of median speed")
    rows = frame.select(
        pl.col("allocation").fill_null("?"),
        (pl.col("arrived") - pl.col("arrived").min()).dt.total_nanoseconds() / 1e9,
        pl.col("gpus").cast(pl.Int64),
        (pl.col("ended") - pl.col("began")).dt.total_nanoseconds().alias("run time") / 1e9,
        pl.col("limit_s").cast(pl.Float64),
    ).iter_rows()
    jobs = (Job(name, submit, gpus, ideal, "", limit) for name, submit, gpus, ideal, limit in rows)
    return Trace(f"the jobs of {cluster}", tuple(jobs), tuple(notes))
