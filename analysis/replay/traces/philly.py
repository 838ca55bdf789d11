"""The CSV of the PAL study's Philly traces: job_id, num_gpus, submit_time, duration, model."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from .sacct import instant
from .table import MOST_GPUS, Reading, Sheet, headings, jobs, sheet

COLUMNS = ("job_id", "num_gpus", "submit_time", "duration", "model")

SECONDS_PER_ITERATION = {
    "BERT": 0.179,
    "DCGAN": 0.0469266931,
    "GPT2": 3.5714,
    "PointNet": 0.28125,
    "resnet50": 0.17540429367763434,
    "vgg19": 0.300610341,
}
"""Of the models that PAL's traces hold, on a GPU of score 1, whatever the number of GPUs."""


def fits(first: str) -> bool:
    names = headings(first)
    return "num_gpus" in names and len(names & set(COLUMNS)) >= 3


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:
    """Jobs of the file; `duration` counts iterations for the study's six models, and seconds otherwise."""
    found = sheet(path, text)
    found.need(*COLUMNS)
    frame = found.frame.with_columns(pl.col("job_id", "model").str.strip_chars())
    found.frame = frame
    found.check(frame["job_id"].str.len_chars() == 0, "the job has no job_id")
    found.check(~frame["job_id"].is_first_distinct(), "job_id {job_id} occurs twice", "job_id")
    gpus, duration = found.numbers("num_gpus"), found.numbers("duration")
    civil = frame["submit_time"].str.contains("^ *[0-9]{4}-[0-9]{2}-").any()
    submit = instant(found, "submit_time") if civil else found.numbers("submit_time")
    found.check(submit.is_null(), "the job has no submit_time")
    found.check(gpus != gpus.floor(), "num_gpus is {num_gpus}; it must be a whole number", "num_gpus")
    found.check(gpus < 1, "num_gpus is {num_gpus}; a job holds 1 GPU or more", "num_gpus")
    found.check(gpus > MOST_GPUS, "num_gpus is {num_gpus}; no cluster has so many", "num_gpus")
    found.check(submit < 0, "submit_time is {submit_time}; times count from 0", "submit_time")
    found.check(duration <= 0, "duration is {duration}; it must be above 0", "duration")
    per_iteration = frame["model"].replace_strict(SECONDS_PER_ITERATION, default=None, return_dtype=pl.Float64)
    if reading.duration_unit == "iterations":
        known = ", ".join(SECONDS_PER_ITERATION)
        found.check(
            per_iteration.is_null(),
            f"how long an iteration of {{model!r}} takes is not known, only of {known}; leave the job out, or "
            "use --duration-unit seconds",
            "model",
        )
    if reading.duration_unit == "seconds":
        factor = pl.repeat(1.0, frame.height, eager=True)
        found.notes.append("duration was read as seconds on the median GPU (--duration-unit seconds)")
    else:
        factor = per_iteration.fill_null(1.0)
        n = int(per_iteration.is_not_null().sum())
        if n:
            found.notes.append(
                f"duration of {jobs(n)} of the PAL study's models was read as iterations and turned into seconds "
                "by its table (change this with --duration-unit)"
            )
        if n < frame.height:
            found.notes.append(f"duration of {jobs(frame.height - n)} was read as seconds on the median GPU")
    unused = [name for name in found.names if name not in (*COLUMNS, "user")]
    if unused:
        found.notes.append(f"columns not used: {', '.join(name or '(without a name)' for name in unused)}")
    return found, frame.select(
        name="job_id",
        submit_s=submit,
        gpus=gpus.cast(pl.Int64),
        ideal_s=duration * factor,
        limit_s=pl.lit(None, pl.Float64),
        model="model",
    )
