"""What is wrong with who had which GPU: codes, and rows of `whorl energy reconcile` beside those of the meters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ....store.events import EventKind
from ....store.outcomes import Code
from ..metering import Note, Problem

if TYPE_CHECKING:
    from ....store import Store


class JobProblem(Code):
    """What is wrong with an allocation, and what was done about it."""

    BACKWARD = "ends before it begins", "the job ends before it begins: it has no energy"
    REFUSED = "refused at import", "the import did not store an allocation of the job: it is not in these books"
    OVERLAP = "overlap", "jobs hold more than the whole GPU at the same time: its energy was split by their shares"
    OVERLAP_NO_SHARES = (
        "overlap, shares not known",
        "both jobs had the GPU, and nobody knows their shares: it was split into equal parts",
    )
    UNKNOWN_GPU = "unknown GPU", "the job names a GPU that the store does not know: it has no energy"
    NO_TELEMETRY = "no telemetry of the GPU", "nobody read the GPU in this time: the energy is bounded by its limit"
    GPU_NOT_KNOWN = "GPU not known", "nobody knows which GPUs the job had: its energy is in the unattributed energy"
    SHARE_NOT_KNOWN = (
        "share not known",
        "nobody knows which part of the GPU the first job had beside others: it got what they left",
    )
    RELOAD = "spans a driver reload", "the driver was loaded again while the job had the GPU"


class JobReason(Code):
    """Why the energy of a job is no honest figure, beside the reasons of meters."""

    BACKWARD = "ends before it begins", "it ends before it begins"
    GPU_NOT_KNOWN = "GPU not known", "nobody knows which GPUs it had"


SCHEMA: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "node": pl.String(),
    "problem": pl.String(),  # a code of `JobProblem` or of the meters' `Problem`
    "allocation": pl.String(),  # of jobs_now; NULL where it concerns no job
    "job_id": pl.String(),
    "other_allocation": pl.String(),  # of an overlap: the other job
    "other_job_id": pl.String(),
    "began": pl.Datetime("ns"),
    "ended": pl.Datetime("ns"),
    "joules": pl.Float64(),  # the energy that it concerns
    "percent": pl.Float64(),  # of a disagreement: how much more the counter has than integrated power
    "n": pl.Int64(),  # how many findings of this kind the row stands for
    "detail": pl.String(),  # of a job that the import refused: why, and in which line of which file
}
"""The columns of a frame of problems."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of problems; times are ns UTC."""

    cluster: str | None
    gpu: str | None
    node: str | None
    problem: str
    began_ns: int | None
    ended_ns: int | None
    allocation: str | None = None
    job_id: str | None = None
    other_allocation: str | None = None
    other_job_id: str | None = None
    joules: float | None = None
    percent: float | None = None
    n: int = 1
    detail: str | None = None


def twice(store: Store, metered: pl.DataFrame) -> list[Finding]:
    """GPUs of one name that were read at the same time, of which one has no UUID: they are the same.

    `metered`: rows of `Books.metered`.
    """
    of = ["cluster", "gpu"]
    named = store.sql(
        "SELECT cluster, gpu, name, uuid IS NULL AS bare FROM gpus_now WHERE parent IS NULL AND name <> gpu "
        "QUALIFY count(*) OVER (PARTITION BY cluster, name) > 1"
    ).polars()
    read = metered.join(named, on=of, nulls_equal=True)
    pairs = read.filter("bare").join(read.filter(~pl.col("bare")), on=["cluster", "name"], nulls_equal=True)
    pairs = pairs.with_columns(
        pl.max_horizontal("first", "first_right").cast(pl.Int64).alias("began"),
        pl.min_horizontal("last", "last_right").cast(pl.Int64).alias("ended"),
    ).filter(pl.col("ended") > pl.col("began"))
    return [
        Finding(row["cluster"], row["gpu"], row["node"], Problem.TWICE, row["began"], row["ended"])
        for row in pairs.sort("cluster", "gpu").iter_rows(named=True)
    ]


def refused(store: Store, cluster: str | None, since_ns: int | None, until_ns: int | None) -> list[Finding]:
    """The allocations that an import did not store, by the events about them."""
    rows = store.scan("events").filter(pl.col("kind") == EventKind.JOB_REFUSED.value)
    if cluster is not None:
        rows = rows.filter(pl.col("cluster") == cluster)
    found = store.collect(
        rows.select(
            "cluster", "gpu", "node", "job_id", "duration_ns", "detail", pl.col("ts").cast(pl.Int64).alias("at")
        )
    )
    return [
        Finding(
            row["cluster"], row["gpu"], row["node"],
            JobProblem.BACKWARD if (row["duration_ns"] or 0) < 0 else JobProblem.REFUSED,
            row["at"], None if row["duration_ns"] is None else row["at"] + row["duration_ns"], job_id=row["job_id"],
            detail=row["detail"],
        )
        for row in found.iter_rows(named=True)
        if (since_ns is None or (row["at"] or 0) >= since_ns) and (until_ns is None or (row["at"] or 0) < until_ns)
    ]  # fmt: skip


def of_note(note: Note, cluster: str, gpu: str, node: str | None) -> Finding:
    """What a meter found."""
    return Finding(
        cluster, gpu, node, note.problem, note.began_ns, note.ended_ns,
        joules=note.joules, percent=note.percent, n=note.n,
    )  # fmt: skip


def frame(findings: list[Finding]) -> pl.DataFrame:
    """Findings as rows, in order of GPU and time."""
    times = ("began", "ended")
    columns = {
        name: [getattr(one, f"{name}_ns" if name in times else name) for one in findings] for name in SCHEMA
    }  # fmt: skip
    rows = pl.DataFrame(columns, schema={**SCHEMA, **dict.fromkeys(times, pl.Int64())})
    return rows.with_columns(pl.col(*times).cast(pl.Datetime("ns"))).sort(
        "cluster", "gpu", "began", "problem", nulls_last=True
    )
