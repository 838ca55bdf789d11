"""The job list of the simulator of Tiresias (NSDI'19): one row a job, times in seconds."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from .table import MOST_GPUS, Reading, Sheet, headings, sheet

COLUMNS = ("job_id", "num_gpu", "submit_time", "duration", "model_name")


def fits(first: str) -> bool:
    return set(COLUMNS) <= headings(first)


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:  # noqa: ARG001
    """Jobs of the file. `duration` is in seconds, also of models whose duration the PAL study counts in iterations."""
    found = sheet(path, text)
    found.need(*COLUMNS)
    found.frame = found.frame.with_columns(pl.col("job_id", "model_name").str.strip_chars())
    found.frame = found.frame.with_columns(found.numbers(name) for name in ("num_gpu", "submit_time", "duration"))
    gpus = found.frame["num_gpu"]
    found.check(~found.frame["job_id"].is_first_distinct(), "job {job_id} occurs twice", "job_id")
    found.check(gpus != gpus.floor(), "num_gpu is {num_gpu}; it must be a whole number", "num_gpu")
    found.check(gpus > MOST_GPUS, "num_gpu is {num_gpu:.0f}; no cluster has so many", "num_gpu")
    found.leave_out(found.frame["num_gpu"] < 1, "they had no GPU")
    found.leave_out(found.frame["duration"] <= 0, "they never ran")
    return found, found.frame.select(
        name="job_id",
        submit_s="submit_time",
        gpus=pl.col("num_gpu").cast(pl.Int64),
        ideal_s="duration",
        limit_s=pl.lit(None, pl.Float64),
        model="model_name",
    )
