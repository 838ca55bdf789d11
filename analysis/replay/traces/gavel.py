"""The traces of Gavel (OSDI'20) and of its successor Shockwave (NSDI'23): fields parted by tabs, without a header.

Only those of Shockwave say how long a job runs. Gavel works it out from a second file, of measured throughputs.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from ....errors import InputError
from .table import LINE, MOST_GPUS, Reading, Sheet, sheet

COLUMNS = (
    *("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor"),
    *("mode", "priority_weight", "SLO", "duration", "arrival_time"),
)
_GAVEL = (6, 7, 9, 10)  # fields of a job, in the versions of Gavel


def fits(first: str) -> bool:
    fields = first.split("\t")
    return len(fields) in (*_GAVEL, len(COLUMNS)) and all(map(_number, fields[-2:])) and not _number(fields[0])


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:  # noqa: ARG001
    """Jobs of a trace of Shockwave. `duration` is the time in seconds that a job needs alone; the model is the job type
    without its batch size. A job has no name: it is that of its line."""
    fields = next(line for line in text.splitlines() if line.strip()).count("\t") + 1
    if fields in _GAVEL:
        raise InputError(
            f"{path} is a trace of Gavel with {fields} fields a job, which does not say how long a job runs; write a "
            "CSV with job_id, num_gpus, submit_time, duration, model, and the durations in seconds"
        )
    found = sheet(path, text, "\t", quoting=False, names=COLUMNS)
    numbers = ("scale_factor", "duration", "arrival_time")
    found.frame = found.frame.with_columns(found.numbers(name) for name in numbers)
    gpus = found.frame["scale_factor"]
    found.check(gpus != gpus.floor(), "scale_factor is {scale_factor}; it must be a whole number", "scale_factor")
    found.check(gpus > MOST_GPUS, "scale_factor is {scale_factor:.0f}; no cluster has so many GPUs", "scale_factor")
    found.leave_out(gpus < 1, "they had no GPU")
    found.leave_out(found.frame["duration"] <= 0, "they never ran")
    return found, found.frame.select(
        name=pl.format("line {}", LINE),
        submit_s="arrival_time",
        gpus=pl.col("scale_factor").cast(pl.Int64),
        ideal_s="duration",
        limit_s=pl.lit(None, pl.Float64),
        model=pl.col("job_type").str.replace(r"\s*\(batch size.*$", ""),
    )


def _number(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?", text.strip()) is not None
