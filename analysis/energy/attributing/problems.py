"""What is wrong with who had which GPU: codes, and rows of `whorl energy reconcile` beside those of the meters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ....store.instants import times_of_ns
from ....store.vocabulary import Code, EventKind
from ..series import Note, Problem, Times

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
    "began": pl.Datetime("us"),
    "ended": pl.Datetime("us"),
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
        pl.max_horizontal("first", "first_right").dt.epoch("ns").alias("began"),
        pl.min_horizontal("last", "last_right").dt.epoch("ns").alias("ended"),
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
            "cluster", "gpu", "node", "job_id", "duration_ns", "detail", pl.col("ts").dt.epoch("ns").alias("at")
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


@dataclass(frozen=True)
class NodeNotes:
    """What the meter of one GPU of a node found, and when it was read and held by jobs (ns, UTC)."""

    gpu: tuple[str, str]
    first_ns: int
    last_ns: int
    notes: Sequence[Note]
    jobs: tuple[Times, Times]
    """When each began and ended."""

    def reads(self, began_ns: int, ended_ns: int) -> bool:
        """Whether the GPU has rows in the most of a time."""
        if min(self.last_ns, ended_ns) - max(self.first_ns, began_ns) < _MOSTLY * (ended_ns - began_ns):
            return False
        gaps = (note for note in self.notes if note.problem == Problem.GAP)
        return not any(
            not gap.has_rows
            and min(gap.ended_ns, ended_ns) - max(gap.began_ns, began_ns) >= _MOSTLY * (ended_ns - began_ns)
            for gap in gaps
        )

    def held_ns(self, began_ns: int, ended_ns: int) -> int:
        """For how long jobs had the GPU in a time; jobs that are there at once count each."""
        began, ended = self.jobs
        return int(np.maximum(np.minimum(ended, ended_ns) - np.maximum(began, began_ns), 0).sum())


def of_notes(of_node: Sequence[NodeNotes], node: str | None) -> Iterator[Finding]:
    """What the meters of the GPUs of a node found.

    A time in which nobody read the node, and in which no job had the GPU, is no problem of the GPU: nor is what a
    counter did meanwhile. `node` is None for GPUs of which it is not known: then each is alone.
    """
    for meter in of_node:
        others = of_node if node is not None else [meter]
        unread = [
            (note.began_ns, note.ended_ns)
            for note in meter.notes
            if note.problem == Problem.GAP
            and note.n == 1
            and not any(other.reads(note.began_ns, note.ended_ns) for other in others)
            and meter.held_ns(note.began_ns, note.ended_ns) <= min(_HELD_NS, 0.1 * (note.ended_ns - note.began_ns))
        ]
        for note in meter.notes:
            if note.problem not in _MEANWHILE or (note.began_ns, note.ended_ns) not in unread:
                yield Finding(
                    *meter.gpu, node, note.problem, note.began_ns, note.ended_ns,
                    joules=note.joules, percent=note.percent, n=note.n,
                )  # fmt: skip


_MEANWHILE = (Problem.GAP, Problem.COUNTER_RESET)
_MOSTLY = 0.9
_HELD_NS = 60 * 10**9  # a job may end shortly after the last reading


def frame(findings: list[Finding]) -> pl.DataFrame:
    """Findings as rows, in order of GPU and time."""
    times = ("began", "ended")
    columns = {
        name: [getattr(one, f"{name}_ns" if name in times else name) for one in findings] for name in SCHEMA
    }  # fmt: skip
    rows = pl.DataFrame(columns, schema={**SCHEMA, **dict.fromkeys(times, pl.Int64())})
    return rows.with_columns(times_of_ns(pl.col(*times))).sort("cluster", "gpu", "began", "problem", nulls_last=True)
