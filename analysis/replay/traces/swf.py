"""The Standard Workload Format of the Parallel Workloads Archive: 18 numbers a line, -1 where unknown."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from .table import LINE, MOST_GPUS, Reading, Sheet, jobs, spaced

# Feitelson's definition of the format (version 2.2), in its order.
COLUMNS = (
    *("job", "submit", "wait", "run", "processors", "cpu", "memory", "wanted_processors", "wanted_time"),
    *("wanted_memory", "status", "user", "group", "executable", "queue", "partition", "preceding", "think"),
)
_PARTIAL = (2.0, 3.0, 4.0)  # a stretch of a job that was stopped and went on; the job has a line of its own


def fits(first: str) -> bool:
    if first.startswith(";"):
        return True
    cells = first.split()
    return len(cells) == len(COLUMNS) and all(cell.lstrip("+-").replace(".", "", 1).isdigit() for cell in cells)


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:
    """Jobs of the file; processors become GPUs, `reading.processors_per_gpu` to each, rounded up."""
    found = spaced(path, text, COLUMNS, ";")
    found.frame = found.frame.with_columns(
        *(found.numbers(name) for name in COLUMNS if name not in ("job", "user", "executable"))
    )
    found.leave_out(found.frame["status"].is_in(_PARTIAL), "lines of parts of jobs; the whole job has its own line")
    found.frame = found.frame.with_columns(
        pl.when(pl.col("processors") > 0).then("processors").otherwise("wanted_processors").alias("width")
    )
    found.leave_out(found.frame["submit"] < 0, "their submit time is not known")
    found.leave_out(found.frame["run"] <= 0, "their run time is zero or not known")
    found.leave_out(found.frame["width"] <= 0, "the number of processors is unknown")
    each = reading.processors_per_gpu
    found.check(found.frame["width"] > each * MOST_GPUS, "{width:.0f} processors; no cluster has so many", "width")
    found.frame = found.frame.with_columns(
        pl.when(pl.col("job") == "-1").then(pl.format("line {}", LINE)).otherwise("job").alias("job")
    )
    found.check(~found.frame["job"].is_first_distinct(), "job {job} occurs twice", "job")
    if each == 1:
        found.notes.append("each processor was read as a GPU (change this with --processors-per-gpu)")
    else:
        found.notes.append(f"{each} processors were read as a GPU, rounded up")
    if chained := int((found.frame["preceding"] > 0).sum()):
        found.notes.append(
            f"{jobs(chained)} waited for an earlier job; this was ignored, and each arrives at its recorded time"
        )
    return found, found.frame.select(
        name="job",
        submit_s="submit",
        gpus=(pl.col("width") / each).ceil().cast(pl.Int64),
        ideal_s="run",
        limit_s=pl.when(pl.col("wanted_time") > 0).then("wanted_time"),
        model=pl.when(pl.col("executable") != "-1").then("executable").otherwise(pl.lit("")),
    )
