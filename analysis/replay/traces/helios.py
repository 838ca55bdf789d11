"""The job lists of Helios (SenseTime 2020, SC'21) and Acme (Shanghai AI Lab 2023, NSDI'24): one row a job."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from .sacct import instant, seconds
from .table import MOST_GPUS, Reading, Sheet, headings, jobs, sheet

COLUMNS = ("job_id", "gpu_num", "submit_time", "duration")
_OWN = {"vc", "node_num", "queue", "cpu_num"}  # what tells it from a trace made for replays
_UNKNOWN = ("", "None", "NaN", "nan")


def fits(first: str) -> bool:
    names = headings(first)
    return set(COLUMNS) <= names and bool(names & _OWN)


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:  # noqa: ARG001
    """Jobs of the file that had GPUs and ran; those that were cancelled or failed after they ran are load too.

    The model is the virtual cluster (`vc`), of Acme the kind of work (`type`).
    """
    found = sheet(path, text)
    found.need(*COLUMNS)
    found.frame = found.frame.with_columns(pl.col(pl.String).str.strip_chars())
    found.frame = found.frame.with_columns(
        found.numbers("gpu_num", unknown=_UNKNOWN), found.numbers("duration", unknown=_UNKNOWN),
        instant(found, "submit_time").alias("submit_time"),
    )  # fmt: skip
    found.check(~found.frame["job_id"].is_first_distinct(), "job {job_id} occurs twice", "job_id")
    found.check(found.frame["gpu_num"] > MOST_GPUS, "gpu_num is {gpu_num:.0f}; no cluster has so many", "gpu_num")
    found.leave_out(found.frame["gpu_num"].fill_null(0) < 1, "they had no GPU")
    found.leave_out(found.frame["submit_time"].is_null(), "their submit time is not known")
    if {"start_time", "end_time"} <= set(found.names):
        _without_the_wait(found)
    found.leave_out(found.frame["duration"].fill_null(0) <= 0, "they never ran")
    return found, found.frame.select(
        name="job_id",
        submit_s="submit_time",
        gpus=pl.col("gpu_num").cast(pl.Int64),
        ideal_s="duration",
        limit_s=pl.lit(None, pl.Float64),
        model=next((pl.col(name) for name in ("vc", "type") if name in found.frame.columns), pl.lit("")),
    )


def _without_the_wait(found: Sheet) -> None:
    """Let `duration` begin when the job did. In the file of Kalos it begins at submission, so it holds the wait."""
    began, ended, submitted = seconds("start_time"), seconds("end_time"), pl.col("submit_time")
    told, span = pl.col("duration"), ended - began
    waited = found.frame.select((told > span) & ((told - (ended - submitted)).abs() <= 1)).to_series().fill_null(False)
    if n := int(waited.sum()):
        found.notes.append(
            f"duration of {jobs(n)} is from submit_time to end_time, with the wait in the queue: the time from "
            "start_time to end_time was taken instead"
        )
    never = pl.col("start_time").is_in(_UNKNOWN) & ~pl.col("start_time").is_in(_UNKNOWN).all()
    found.frame = found.frame.with_columns(
        pl.when(never).then(0.0).when(waited).then(span).otherwise(told).alias("duration")
    )
