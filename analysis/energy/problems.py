"""What is wrong with readings and claims, and what was done about it: rows of `whorl energy reconcile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ...store.instants import times_of_ns
from ...store.vocabulary import Code, EventKind
from .claims import NEVER, RUNS, Claims
from .sensor import Note, Problem

if TYPE_CHECKING:
    from ...store import Store


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


PROBLEMS: dict[str, pl.DataType] = {
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
ORDER = ("cluster", "gpu", "began", "problem", "allocation", "other_allocation", "ended")
"""The columns by which problems are sorted."""

OVER = 1e-9
"""By so much more than 1 shares may add up without being an overlap."""
_KEYS = ["cluster", "gpu"]
_MOSTLY = 0.9
_HELD_NS = 60 * 10**9  # a job may end shortly after the last reading


def as_problems(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with times in ns as rows of `PROBLEMS`, of which they have some columns."""
    rows = rows.with_columns(times_of_ns(pl.col("began", "ended")))
    missing = (pl.lit(None).alias(name) for name in PROBLEMS if name not in rows.columns)
    return rows.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in PROBLEMS.items())


def of_claims(problem: JobProblem, claims: Claims, times: pl.DataFrame) -> pl.DataFrame:
    """A problem of some claims, as rows of `PROBLEMS`. `times`: claim, began and ended (ns), n."""
    jobs = claims.jobs[times["claim"]].select(*_KEYS, "node", "allocation", "job_id")
    rows = jobs.hstack(times.select("began", "ended", "n"))
    return as_problems(rows.with_columns(pl.lit(problem.value).alias("problem")))


def of_crowds(holders: pl.DataFrame, spans: pl.DataFrame, claims: Claims) -> pl.DataFrame:
    """The claims that do not fit together: a row of `PROBLEMS` for each beside the first of its span.

    `holders`: a row for each claim and span, with span, claim, stated and active (NaN: unknown), holders (of the span)
    and asked (what these state together). `spans`: began, ended, energy_j.
    """
    crowd = holders.filter(pl.col("holders") > 1).with_columns(
        (pl.col("stated").is_nan() & pl.col("active").is_nan()).alias("missing")
    )
    unknown = pl.col("missing").sum().over("span")
    crowd = crowd.with_columns(
        pl.when(unknown == pl.col("holders")).then(pl.lit(JobProblem.OVERLAP_NO_SHARES.value))
        .when(pl.col("asked") > 1 + OVER).then(pl.lit(JobProblem.OVERLAP.value))
        .when(unknown > 0).then(pl.lit(JobProblem.SHARE_NOT_KNOWN.value)).alias("problem")
    ).drop_nulls("problem")  # fmt: skip
    partly = pl.col("problem") == JobProblem.SHARE_NOT_KNOWN.value
    first = pl.col("claim").filter(~partly | ~pl.col("missing")).min().over("span").alias("first")
    crowd = crowd.hstack(spans[crowd["span"]].select("began", "ended", "energy_j")).with_columns(first)
    pairs = crowd.filter(pl.col("claim") != pl.col("first"), ~partly | pl.col("missing"))
    pairs = pairs.group_by("problem", "first", "claim", maintain_order=True).agg(
        pl.col("began").min(), pl.col("ended").max(), pl.col("energy_j").sum().alias("joules"), pl.lit(1).alias("n")
    )
    # The job of which nobody knows the share comes first.
    jobs = claims.jobs[pairs.select(pl.when(partly).then("claim").otherwise("first")).to_series()]
    others = claims.jobs[pairs.select(pl.when(partly).then("first").otherwise("claim")).to_series()]
    return as_problems(
        pairs.hstack(jobs.select(*_KEYS, "node", "allocation", "job_id")).hstack(
            others.select(other_allocation="allocation", other_job_id="job_id")
        )
    )


def joined_crowds(crowds: pl.DataFrame) -> pl.DataFrame:
    """The rows of `of_crowds` of several times and GPUs: two jobs that do not fit on several days are one problem."""
    same = ["problem", *_KEYS, "node", "allocation", "job_id", "other_allocation", "other_job_id"]
    return crowds.group_by(same, maintain_order=True).agg(
        pl.col("began").min(), pl.col("ended").max(), pl.col("joules").sum(), pl.col("percent", "n", "detail").first()
    ).select(*PROBLEMS)  # fmt: skip


def of_notes(
    notes: Sequence[tuple[str, str, str | None, Note]], metered: pl.DataFrame, claims: Claims
) -> Sequence[pl.DataFrame]:
    """What the meters found, and the jobs that had a GPU while its driver was loaded again; rows of `PROBLEMS`.

    `notes`: cluster, GPU and node of each. A time in which nobody read the node, and in which no job had the GPU, is no
    problem of the GPU: nor is what a counter did meanwhile.
    """
    kinds = {name: PROBLEMS[name] for name in (*_KEYS, "node", "problem", "joules", "percent", "n")}
    kinds |= {"began": pl.Int64(), "ended": pl.Int64(), "has_rows": pl.Boolean(), "held": pl.Boolean()}
    rows, reloads = [], [of_claims(JobProblem.RELOAD, claims, _NO_CLAIMS)]
    for cluster, gpu, node, note in dict.fromkeys(notes):
        of_gpu = claims.of_gpu.get((cluster, gpu), range(0))
        claim = np.arange(of_gpu.start, of_gpu.stop)
        ended = np.where(claims.ended[claim] == RUNS, NEVER, claims.ended[claim])
        low, high = np.maximum(claims.began[claim], note.began_ns), np.minimum(ended, note.ended_ns)
        held = np.maximum(high - low, 0).sum() > min(_HELD_NS, 0.1 * (note.ended_ns - note.began_ns))
        rows.append({
            "cluster": cluster, "gpu": gpu, "node": node, "problem": str(note.problem), "began": note.began_ns,
            "ended": note.ended_ns, "joules": note.joules, "percent": note.percent, "n": note.n,
            "has_rows": note.has_rows, "held": bool(held),
        })  # fmt: skip
        if note.problem == Problem.DRIVER_RELOAD:
            touched = claim[(claims.began[claim] < max(note.ended_ns, note.began_ns + 1)) & (ended > note.began_ns)]
            times = pl.DataFrame({"claim": touched}).with_columns(began=note.began_ns, ended=note.ended_ns, n=1)
            reloads.append(of_claims(JobProblem.RELOAD, claims, times))
    return [*reloads, as_problems(_without_pauses(pl.DataFrame(rows, schema=kinds), metered).drop("has_rows", "held"))]


_NO_CLAIMS = pl.DataFrame(schema=dict.fromkeys(("claim", "began", "ended", "n"), pl.Int64))


def _without_pauses(notes: pl.DataFrame, metered: pl.DataFrame) -> pl.DataFrame:
    """The notes but for gaps in which no GPU of the node was read and no job had the GPU."""
    place = pl.coalesce("node", "gpu").alias("place")  # where the node is not known, each GPU is alone
    of_gap = ["cluster", "place", "gpu", "began", "ended"]
    notes = notes.with_columns(place)
    dark = notes.filter(pl.col("problem") == Problem.GAP.value, ~pl.col("has_rows"))
    gaps = dark.filter(pl.col("n") == 1, ~pl.col("held")).select(of_gap)
    read = metered.select("cluster", place, "gpu", pl.col("first", "last").dt.epoch("ns"))
    dark = dark.select("cluster", "place", "gpu", pl.col("began").alias("first"), pl.col("ended").alias("last"))
    for name, times in (("read", read), ("dark", dark)):  # how many GPUs of the node have such a time over most of it
        beside = gaps.select(of_gap).join(times, on=["cluster", "place"], nulls_equal=True)
        overlap = pl.min_horizontal("ended", "last") - pl.max_horizontal("began", "first")
        beside = beside.filter(overlap >= _MOSTLY * (pl.col("ended") - pl.col("began")))
        counts = beside.group_by(of_gap).agg(pl.col("gpu_right").n_unique().cast(pl.Int64).alias(name))
        gaps = gaps.join(counts, on=of_gap, how="left", nulls_equal=True).with_columns(pl.col(name).fill_null(0))
    pauses = gaps.filter(pl.col("read") <= pl.col("dark"))
    meanwhile = pl.col("problem").is_in([Problem.GAP.value, Problem.COUNTER_RESET.value])
    notable = notes.filter(meanwhile).join(pauses, on=of_gap, how="anti", nulls_equal=True)
    return pl.concat([notable, notes.filter(~meanwhile)]).drop("place")


def of_store(store: Store, metered: pl.DataFrame, *, cluster: str | None, since_ns: int, until_ns: int) -> pl.DataFrame:
    """What else is wrong: allocations that an import did not store, and GPUs that are counted twice (rows of one name
    that were read at the same time, of which one has no UUID). Columns of `PROBLEMS`. Raises StoreError."""
    refused = store.scan("events").filter(pl.col("kind") == EventKind.JOB_REFUSED.value)
    if cluster is not None:
        refused = refused.filter(pl.col("cluster") == cluster)
    began = pl.col("ts").dt.epoch("ns")
    backward = pl.col("duration_ns").fill_null(0) < 0
    rows = store.collect(
        refused.select(
            *_KEYS, "node", "job_id", "detail", began.alias("began"), (began + pl.col("duration_ns")).alias("ended"),
            pl.when(backward).then(pl.lit(JobProblem.BACKWARD.value)).otherwise(pl.lit(JobProblem.REFUSED.value)).alias("problem"),
        ).filter(pl.col("began") >= since_ns, pl.col("began") < until_ns)
    )  # fmt: skip
    names = store.sql(
        "SELECT cluster, gpu, name, uuid IS NULL AS bare FROM gpus_now WHERE parent IS NULL AND name <> gpu "
        "QUALIFY count(*) OVER (PARTITION BY cluster, name) > 1"
    ).polars()
    read = metered.join(names, on=_KEYS, nulls_equal=True)
    pairs = read.filter("bare").join(read.filter(~pl.col("bare")), on=["cluster", "name"], nulls_equal=True)
    twice = pairs.select(
        *_KEYS, "node", pl.lit(Problem.TWICE.value).alias("problem"),
        pl.max_horizontal("first", "first_right").dt.epoch("ns").alias("began"),
        pl.min_horizontal("last", "last_right").dt.epoch("ns").alias("ended"),
    ).filter(pl.col("ended") > pl.col("began"))  # fmt: skip
    return pl.concat([as_problems(rows.with_columns(n=1)), as_problems(twice.with_columns(n=1))])
