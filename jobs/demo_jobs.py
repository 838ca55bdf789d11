"""Who had the simulated GPUs of the demo: every node was measured by one job of an invented user."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import polars as pl

from ..store.importing.superseding import conformed
from ..store.schema import JOBS
from ..store.vocabulary import GpuFrom, JobSource

if TYPE_CHECKING:
    from ..probes.campaign import Report
    from ..store import Store

_FIRST_JOB = 1001
_USERS = (("alice", "physics"), ("bob", "chemistry"), ("carol", "physics"))


def record_jobs(store: Store, report: Report) -> None:
    """Store a row of `jobs` for each GPU that a campaign measured: from the first to the last run on its node."""
    assert report.began_ns is not None
    runs = store.collect(
        store.scan("runs")
        .filter((pl.col("campaign") == report.campaign) & (pl.col("cluster") == report.cluster))
        .group_by("gpu")
        .agg(pl.col("began").min(), pl.col("ended").max())
    )
    gpus = store.sql("select cluster, gpu, node, slot, model from gpus_now").polars()
    where = gpus.filter(pl.col("cluster") == report.cluster).drop("cluster")
    jobs = store.scan(JOBS.name).filter(pl.col("cluster") == report.cluster).select(pl.col("job_id").n_unique())
    first = _FIRST_JOB + int(store.collect(jobs).item())
    number = pl.col("node").rank("dense").cast(pl.Int64) - 1
    users = pl.DataFrame(_USERS, schema=["user", "account"], orient="row").with_row_index("who")
    rows = (
        runs.join(where, on="gpu")
        .with_columns(
            pl.lit(report.cluster).alias("cluster"),
            (first + number).cast(pl.String).alias("job_id"),
            (number % len(_USERS)).cast(pl.UInt32).alias("who"),
            pl.col("began").min().over("node"),
            pl.col("ended").max().over("node"),
            pl.lit("COMPLETED").alias("state"),
            pl.lit(GpuFrom.WHOLE_NODE.value).alias("gpu_from"),
            pl.col("model").alias("gpu_type"),
            pl.lit(1.0).alias("share"),
            pl.lit(1).alias("node_gpus"),
            pl.len().over("node").alias("job_gpus"),
            pl.lit(1).alias("job_nodes"),
            pl.lit(JobSource.SIMULATED.value).alias("source"),
        )
        .join(users, on="who", maintain_order="left")
        .with_columns(
            pl.col("job_id").alias("raw_id"), pl.col("job_id").alias("allocation"), pl.col("began").alias("submitted")
        )
    )
    kept = conformed(rows.sort("node", "slot")).with_columns(
        pl.lit(datetime.now(UTC).replace(tzinfo=None)).alias("recorded")
    )
    store.append({JOBS.name: kept.to_arrow()}, f"jobs-{report.campaign}")
