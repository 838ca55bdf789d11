"""`pai_task_table` of Alibaba's GPU trace of 2020 (PAI, NSDI'22): one row a task, a job has one or several.

The file is published without its header line, which is a file of its own. Times are in seconds.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from .table import LINE, MOST_GPUS, Reading, Sheet, headings, jobs, sheet

COLUMNS = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)
_STATUS = ("Running", "Terminated", "Failed", "Waiting", "Interrupted")
_UNKNOWN = ("", "nan", "NaN", "None", "NULL", r"\N")


def fits(first: str) -> bool:
    fields = [field.strip() for field in first.split(",")]
    return set(COLUMNS) <= headings(first) or (len(fields) == len(COLUMNS) and fields[3] in _STATUS)


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:  # noqa: ARG001
    """Jobs of the file that had GPUs and ended. All tasks with GPUs run at once, each instance on GPUs of its own.

    A job arrives when its first task begins, as the table does not say when it was submitted. The model is the name of
    the task that has the most GPUs.
    """
    first = next(line for line in text.splitlines() if line.strip())
    found = sheet(path, text, ",", quoting=False, names=() if set(COLUMNS) <= headings(first) else COLUMNS)
    numbers = ("inst_num", "start_time", "end_time", "plan_gpu")
    found.frame = found.frame.with_columns(found.numbers(name, unknown=_UNKNOWN) for name in numbers)
    each = (pl.col("plan_gpu") / 100).ceil()  # per cent of a GPU
    found.frame = found.frame.with_columns((each * pl.col("inst_num").fill_null(1)).alias("gpus"))
    found.check(found.frame["gpus"] > MOST_GPUS, "the task has {gpus:.0f} GPUs; no cluster has so many", "gpus")
    shares = int((found.frame["plan_gpu"] % 100 > 0).sum())
    if shares:
        found.notes.append(
            f"{shares:,} task{'s' if shares != 1 else ''} asked for a share of a GPU and got a whole one"
        )
    of_gpus = found.frame.filter(pl.col("gpus") >= 1)
    none = found.frame["job_name"].n_unique() - of_gpus["job_name"].n_unique()
    if none:
        found.notes.append(f"{jobs(none)} left out: they had no GPU")
    unknown = pl.col("start_time").is_null() | pl.col("end_time").is_null()
    found.frame = of_gpus.group_by("job_name", maintain_order=True).agg(
        pl.col("task_name").sort_by("gpus", descending=True).first(),
        pl.col("gpus").sum(),
        pl.col("start_time").min().alias("began"),
        pl.col("end_time").max().alias("ended"),
        unknown.any().alias("unknown"),
        pl.col(LINE).first(),
    )
    found.leave_out(found.frame["unknown"], "a task had not begun or not ended")
    found.leave_out(found.frame["ended"] <= found.frame["began"], "they never ran")
    found.notes.append("the table does not say when jobs were submitted: each arrives when its first task began")
    return found, found.frame.select(
        name="job_name",
        submit_s="began",
        gpus=pl.col("gpus").cast(pl.Int64),
        ideal_s=pl.col("ended") - pl.col("began"),
        limit_s=pl.lit(None, pl.Float64),
        model="task_name",
    )
