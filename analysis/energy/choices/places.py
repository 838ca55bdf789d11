"""Where the GPUs of jobs stand among the GPUs of their model: how much longer they take, and their rank."""

from __future__ import annotations

import polars as pl

from ...statistics.student import quantile
from ..attribute import Kind
from .excess import SITTINGS_FREEDOM, add
from .levels import Measure

COLUMNS = {
    "cluster": pl.String,
    "gpu": pl.String,
    "basis": pl.String,  # the workload or use in which it is compared
    "slower_pct": pl.Float64,  # than the median GPU of its model
    "slower_low_pct": pl.Float64,
    "slower_high_pct": pl.Float64,
    "rank": pl.Int64,  # from the fastest, 1
    "compared": pl.Int64,  # GPUs, itself included
    "runs": pl.Int64,
    "sittings": pl.Int64,
}
_KEYS = ["cluster", "gpu", "basis"]
_EXCESS = tuple(f"excess_{name}" for of in "sj" for name in (of, f"low_{of}", f"high_{of}", f"{of}_reason"))


def stands(levels: pl.DataFrame) -> pl.DataFrame:
    """Where each GPU stands in each work or use that it was compared in: `COLUMNS`. `levels`: as `levels.levels` gives
    them."""
    time = levels.filter(pl.col("measure") == Measure.TIME).with_columns(pl.coalesce("workload", "use").alias("basis"))
    of = time.group_by(*_KEYS, "model").agg(
        pl.col("x", "sd").mean(), pl.col("gpus").first().alias("compared"), pl.col("runs", "sittings").first()
    )
    half = float(quantile(0.025, SITTINGS_FREEDOM)) * pl.col("sd")
    ends = {"slower_pct": pl.lit(0.0), "slower_low_pct": -half, "slower_high_pct": half}
    of = of.with_columns(
        *(((pl.col("x") + end).exp() * 100 - 100).alias(name) for name, end in ends.items()),
        pl.col("x").rank("min").over("cluster", "model", "basis").alias("rank"),
    )
    return of.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())


def places(rows: pl.DataFrame, stands: pl.DataFrame) -> pl.DataFrame:
    """A row for each GPU of the jobs in `rows` (of `excess.excess`): `COLUMNS`, NULL for a GPU that was not compared,
    and its excess with the 95 % interval. `stands`: as `stands` gives them."""
    jobs = rows.filter(pl.col("kind") == Kind.JOB.value, pl.col("gpu").is_not_null())
    own = jobs.select(_KEYS).unique(["cluster", "gpu"], keep="first", maintain_order=True)
    of = own.join(stands, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
    lost = add(jobs, ["cluster", "gpu"]).select("cluster", "gpu", *_EXCESS)
    return of.join(lost, on=["cluster", "gpu"], how="left", nulls_equal=True, maintain_order="left")
