"""The jobs that a store holds, as a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ...errors import InputError
from ...store.catalog import quoted
from .job import Job, Trace

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


def _read(store: Store, cluster: str) -> pl.DataFrame:
    """The jobs of a cluster, with why each cannot be replayed; null where it can."""
    found = store.sql(_JOBS.format(cluster=quoted(cluster))).polars()
    return found.with_columns(
        pl.when(pl.col("began").is_null() | pl.col("ended").is_null())
        .then(pl.lit("it is not known when they began and ended"))
        .when(pl.col("ended") <= pl.col("began"))
        .then(pl.lit("they never ran"))
        .when(pl.col("shared").fill_null(value=False))
        .then(pl.lit("they had parts of GPUs"))
        .when(pl.col("gpus").fill_null(0) < 1)
        .then(pl.lit("it is not known how many GPUs they had"))
        .alias("why")
    )


def stored_jobs(store: Store, cluster: str) -> StoredJobs:
    """How many jobs of a cluster there are to replay."""
    found = _read(store, cluster)
    return StoredJobs(found.height, found["why"].null_count())


def stored_trace(store: Store, cluster: str, most: int = MOST_JOBS) -> Trace:
    """The newest `most` jobs of a cluster that ended, as a trace; their times count as times on GPUs of median speed.

    Raises InputError where there is none.
    """
    found = _read(store, cluster)
    good = found.filter(pl.col("why").is_null()).with_columns(
        # A job that was requeued may have been submitted long before; one that began earlier is a fault of the data.
        pl.min_horizontal("arrived", "began").alias("arrived")
    )
    notes = [
        f"{n:,} job{'' if n == 1 else 's'} left out: {why}"
        for why, n in found.drop_nulls("why").group_by("why").len().sort("why").iter_rows()
    ]
    if good.is_empty():
        raise InputError(
            f"the store has no jobs of {cluster} that can be replayed{': ' if notes else ''}{'; '.join(notes)}; "
            "`whorl jobs import` reads them from Slurm's accounting"
        )
    if good.height > most:
        notes.insert(0, f"the newest {most:,} of {good.height:,} jobs are replayed")
        good = good.top_k(most, by="arrived")
    good = good.sort("arrived", "allocation")
    notes.append("run times count as times on GPUs of median speed")
    first = good["arrived"].min()
    columns = good.select(
        pl.col("allocation").fill_null("?"),
        ((pl.col("arrived") - first).dt.total_nanoseconds() / 1e9),
        pl.col("gpus").cast(pl.Int64),
        (pl.col("ended") - pl.col("began")).dt.total_nanoseconds() / 1e9,
        pl.col("limit_s").cast(pl.Float64),
    )
    jobs = [Job(name, submit, gpus, ideal, "", limit) for name, submit, gpus, ideal, limit in columns.iter_rows()]
    return Trace(f"the jobs of {cluster}", tuple(jobs), tuple(notes))
