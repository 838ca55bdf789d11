"""How long the GPUs of jobs were busy, and with what: from telemetry, and from the jobs' runs where they have some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ....store.catalog import quoted
from ....store.instants import in_sql
from ...statistics.ordering import Floats, Ints
from ..attribute import Kind
from .excess import BUSY

if TYPE_CHECKING:
    from ....store import Store

_AT_ONCE = 256  # GPUs
_FEW = 100  # allocations
_READINGS = 5  # in the time of a job, at least
_KEYS = ["cluster", "gpu", "allocation"]


def busy(store: Store, pieces: pl.DataFrame) -> pl.DataFrame:
    """Of each job and GPU of `pieces`: how busy the GPU was, and what ran; columns as `BUSY`."""
    jobs = pieces.filter(pl.col("kind") == Kind.JOB, pl.col("gpu").is_not_null()).select(*_KEYS, "began", "ended")
    parts = [pl.DataFrame(schema={**dict.fromkeys(_KEYS, pl.String), "busy": pl.Float64, "memory": pl.Float64})]
    for (cluster,), part in jobs.group_by("cluster", maintain_order=True):
        gpus = part["gpu"].unique().sort().to_list()
        for first in range(0, len(gpus), _AT_ONCE):
            some = gpus[first : first + _AT_ONCE]
            parts.append(_of_gpus(store, str(cluster), some, part.filter(pl.col("gpu").is_in(some))))
    found = pl.concat(parts).join(_workloads(store, jobs["allocation"].unique()), on=_KEYS, how="left")
    return found.select(pl.col(name).cast(kind) for name, kind in BUSY.items())


def _of_gpus(store: Store, cluster: str, gpus: list[str], jobs: pl.DataFrame) -> pl.DataFrame:
    """The shares of the time of some GPUs of a cluster: the mean over the readings while the job had the GPU."""
    began, ended = (jobs[name].dt.timestamp("ns").to_numpy() for name in ("began", "ended"))
    named = ", ".join(quoted(one) for one in gpus)
    query = f"""
        select gpu, epoch_ns(ts) as at_ns, n, utilization_mean as busy, memory_utilization_mean as memory from history
        where cluster = {quoted(cluster)} and gpu in ({named}) and utilization_mean is not null
            and ts between {in_sql(int(began.min()))} and {in_sql(int(ended.max()))}
        order by gpu, ts
    """
    read = store.sql(query).polars().with_columns(pl.col("gpu").cast(pl.String))
    rows = []
    readings = {str(gpu): part for (gpu,), part in read.group_by("gpu", maintain_order=True)}
    for (gpu,), part in jobs.with_columns(pl.Series("_from", began), pl.Series("_to", ended)).group_by(
        "gpu", maintain_order=True
    ):
        if str(gpu) in readings:
            rows.append(_shares(readings[str(gpu)], part))
    nothing = pl.DataFrame(schema={**dict.fromkeys(_KEYS, pl.String), "busy": pl.Float64, "memory": pl.Float64})
    return pl.concat([nothing, *rows])


def _shares(readings: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    at: Ints = readings["at_ns"].to_numpy()
    weight = readings["n"].cast(pl.Float64).to_numpy()
    memory = readings["memory"].cast(pl.Float64).to_numpy()
    kept = np.isfinite(memory)

    def upto(values: Floats) -> Floats:
        return np.concatenate(([0.0], np.cumsum(values)))

    sums = [upto(weight), upto(weight * readings["busy"].cast(pl.Float64).to_numpy()),
            upto(weight * kept), upto(weight * np.where(kept, memory, 0.0))]  # fmt: skip
    first = np.searchsorted(at, jobs["_from"].to_numpy(), side="left")
    last = np.searchsorted(at, jobs["_to"].to_numpy(), side="left")
    n, used, known, traffic = (one[last] - one[first] for one in sums)
    pieces = jobs.select(*_KEYS).with_columns(
        pl.Series("n", n), pl.Series("used", used), pl.Series("known", known), pl.Series("traffic", traffic)
    )
    sums_of = pieces.group_by(_KEYS, maintain_order=True).agg(pl.col("n", "used", "known", "traffic").sum())
    enough = sums_of.filter(pl.col("n") >= _READINGS)
    return enough.select(
        *_KEYS, (pl.col("used") / pl.col("n") / 100).clip(0, 1).alias("busy"),
        pl.when(pl.col("known") >= _READINGS).then(pl.col("traffic") / pl.col("known") / 100).alias("memory"),
    )  # fmt: skip


def _workloads(store: Store, allocations: pl.Series) -> pl.DataFrame:
    """The workload of each job and GPU whose runs are all of one: cluster, gpu, allocation, workload. Where few
    allocations are asked for, only of these."""
    few = allocations.to_list() if len(allocations) <= _FEW else []
    where = f"where j.allocation in ({', '.join(map(quoted, few))})" if few else ""
    query = f"""
        select j.cluster, j.gpu, j.allocation, any_value(r.workload) as workload
        from jobs_now j join runs r on r.cluster is not distinct from j.cluster and r.gpu = j.gpu
            and (r.job_id = j.raw_id or r.job_id = j.job_id)
        {where} group by all having count(distinct r.workload) = 1
    """
    return store.sql(query).polars().with_columns(pl.all().cast(pl.String))
