"""The pod list of Alibaba's GPU trace of 2023 (openb): one row a pod, times in seconds."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from .table import MOST_GPUS, Reading, Sheet, headings, jobs, sheet

COLUMNS = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")
_WHOLE = 1000  # gpu_milli of one GPU
_UNKNOWN = ("", "nan", "NaN", "None", "null")


def fits(first: str) -> bool:
    return len(headings(first) & set(COLUMNS)) >= 4


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:  # noqa: ARG001
    """Jobs of the file: pods with GPUs that were scheduled and ended; a share of a GPU counts as one."""
    found = sheet(path, text)
    found.need(*COLUMNS)
    found.check(~found.frame["name"].is_first_distinct(), "pod {name} occurs twice", "name")
    texts = [name for name in ("qos", "gpu_spec") if name in found.frame.columns]
    wanted = [name for name in (*COLUMNS[1:], "gpu_milli") if name in found.frame.columns]
    found.frame = found.frame.with_columns(
        *(found.numbers(name, unknown=_UNKNOWN) for name in wanted),
        *(pl.col(name).str.strip_chars() for name in texts),
    )
    found.check(found.frame["num_gpu"] > MOST_GPUS, "num_gpu is {num_gpu}; no cluster has so many", "num_gpu")
    found.leave_out(found.frame["num_gpu"].fill_null(0) < 1, "they held no GPU")
    found.leave_out(found.frame["scheduled_time"].is_null(), "they were never scheduled")
    found.leave_out(found.frame["creation_time"].is_null(), "when they were created is unknown")
    found.leave_out(found.frame["deletion_time"].is_null(), "they had not ended, so for how long they run is unknown")
    frame = found.frame
    found.leave_out(frame["deletion_time"] <= frame["scheduled_time"], "they ended before they ran")
    if "gpu_milli" in found.frame.columns:
        shares = int(((found.frame["gpu_milli"] > 0) & (found.frame["gpu_milli"] < _WHOLE)).sum())
        if shares:
            found.notes.append(f"{jobs(shares)} asked for a share of a GPU and got a whole one")
    return found, found.frame.select(
        "name",
        submit_s="creation_time",
        gpus=pl.col("num_gpu").cast(pl.Int64),
        ideal_s=pl.col("deletion_time") - pl.col("scheduled_time"),
        limit_s=pl.lit(None, pl.Float64),
        model=pl.col("qos") if "qos" in texts else pl.lit(""),
    )
