"""What a slow GPU costs beside itself: the other GPUs of its jobs wait for it, if they work in step."""

from __future__ import annotations

import polars as pl

from ..attribute import Kind

_KEYS = ["cluster", "gpu"]


def held(rows: pl.DataFrame, slow: pl.DataFrame, jobs: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """At most how much GPU time and energy of others each slow GPU cost: cluster, gpu, held_s, held_j.

    Nobody knows which jobs work in step, so these are bounds, not best figures: as if all of them did, at the power of
    work while they wait. `rows`: from `excess.excess`. `slow`: cluster, gpu of the GPUs that are surely slow. `jobs`:
    cluster, allocation, job_id. `pieces`: those that `rows` are from.
    """
    times = pieces.filter(pl.col("kind") == Kind.JOB).group_by(*_KEYS, "allocation").agg(
        pl.col("began").min(), pl.col("ended").max()
    )  # fmt: skip
    known = rows.filter(pl.col("kind") == Kind.JOB).drop_nulls(["time_ratio", "busy"])
    named = jobs.select("cluster", "allocation", "job_id").drop_nulls("job_id")
    of = known.select(*_KEYS, "allocation", "time_ratio", "busy", "gpu_s", "energy_j")
    of = of.join(times, on=[*_KEYS, "allocation"], maintain_order="left")
    of = of.join(named, on=["cluster", "allocation"], maintain_order="left")
    culprits = of.join(slow, on=_KEYS, how="semi").sort("time_ratio", descending=True, maintain_order=True)
    culprits = culprits.select("cluster", "job_id", "gpu", "time_ratio", "began", "ended")
    both = of.join(culprits, on=["cluster", "job_id"], suffix="_slow", maintain_order="left_right").filter(
        (pl.col("gpu") != pl.col("gpu_slow")) & (pl.col("time_ratio_slow") > pl.col("time_ratio"))
    )
    ns = (pl.min_horizontal("ended", "ended_slow") - pl.max_horizontal("began", "began_slow")).dt.total_nanoseconds()
    whole = (pl.col("ended") - pl.col("began")).dt.total_nanoseconds()
    usual = pl.max_horizontal("time_ratio", 1.0)
    part = ns.clip(lower_bound=0) / whole * (1 - usual / pl.col("time_ratio_slow")).clip(lower_bound=0)
    # A GPU waits for the slowest one of its job only.
    worst = both.with_columns(part.alias("part")).sort("part", descending=True, maintain_order=True)
    worst = worst.unique([*_KEYS, "allocation"], keep="first", maintain_order=True)
    return worst.group_by("cluster", pl.col("gpu_slow").alias("gpu")).agg(
        (pl.col("part") * pl.col("busy") * pl.col("gpu_s")).sum().alias("held_s"),
        (pl.col("part") * pl.col("energy_j").fill_null(0.0)).sum().alias("held_j"),
    )  # fmt: skip
