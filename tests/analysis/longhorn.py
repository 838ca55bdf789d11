"""The Longhorn measurements of `../shared`, read without whorl's own importer."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import polars as pl
import pytest

from whorl.analysis import coupled_jobs

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "longhorn"
WORKLOADS = ("bert", "pagerank", "resnet50", "sgemm")

needs_longhorn = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"the Longhorn files are not at {FOLDER}")


def raw(workload: str) -> pl.DataFrame:
    """A file without its row index and its exact duplicates."""
    frame = pl.read_csv(FOLDER / f"{workload}.csv.gz", infer_schema_length=None)
    frame = frame.drop([name for name in frame.columns if name in ("", "Unnamed: 0")])
    return frame.unique(maintain_order=True)


@cache
def runs(*workloads: str) -> pl.DataFrame:
    """The runs of these workloads, all without any, as `variability` takes them."""
    return pl.concat([_runs(workload) for workload in workloads or WORKLOADS])


def _runs(workload: str) -> pl.DataFrame:
    frame = raw(workload)
    cabinet, node = pl.col("cabinet").cast(pl.String), pl.col("node").cast(pl.Int64)
    placed_nodes = (node >= 0) & (cabinet != "-1")
    job = pl.col("job_id").cast(pl.String) if "job_id" in frame.columns else pl.lit(None, pl.String)
    frame = frame.select(
        cluster=pl.lit("longhorn"),
        workload=pl.lit(workload),
        gpu="uuid",
        value="perf",
        unit=pl.lit("ms"),
        sm_clock_mhz=pl.col("freq").cast(pl.Float64),
        power_w=pl.col("pwr").cast(pl.Float64),
        temperature_c=pl.col("temp").cast(pl.Float64),
        job_id=job,
        cabinet=pl.when(placed_nodes).then(cabinet),
        node=pl.when(placed_nodes).then(pl.format("{}-{}", cabinet, node)),
        began=pl.when(pl.col("ts") >= 0).then(pl.from_epoch("ts")),
    )
    return coupled_jobs(frame)


def identities() -> pl.DataFrame:
    """The UUIDs and places that the PageRank file joins."""
    place = pl.format("{}-{}-{}", "cabinet", pl.col("node").cast(pl.Int64), "device")
    return raw("pagerank").select(cluster=pl.lit("longhorn"), gpu="uuid", uuid="uuid", place=place).unique()
