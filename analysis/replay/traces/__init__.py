"""Job traces: files of several formats, recognised by their content, read as the jobs of a replay.

A format is one file with `fits` (does the first line look like it?) and `read`, and one row of `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ....errors import InputError
from ..job import Job, Trace
from . import gavel, helios, openb, pai, philly, philly_log, sacct, swf, tiresias
from .classes import assign
from .table import CALENDAR_S, Reading, Sheet, text_of

__all__ = ["FORMATS", "Format", "Reading", "assign", "read_trace", "trace_name"]

_LONGEST_S = 1e10


@dataclass(frozen=True)
class Format:
    """How a kind of trace is recognised and read."""

    name: str
    summary: str
    fits: Callable[[str], bool]  # the first line that is not empty
    read: Callable[[Path, str, Reading], tuple[Sheet, pl.DataFrame]]  # the sheet for its notes; JOBS of table.py


FORMATS = (
    Format("csv", "CSV with job_id, num_gpus, submit_time, duration, model", philly.fits, philly.read),
    Format("swf", "Standard Workload Format: 18 numbers a line", swf.fits, swf.read),
    Format("sacct", "`sacct -a -X -P -o JobIDRaw,Submit,ElapsedRaw,AllocTRES,...` or --json", sacct.fits, sacct.read),
    Format("openb", "CSV of pods: name, num_gpu, creation_time, deletion_time, scheduled_time", openb.fits, openb.read),
    Format("helios", "CSV with job_id, gpu_num, submit_time, duration, vc, queue", helios.fits, helios.read),
    Format("tiresias", "CSV with job_id, num_gpu, submit_time, duration, model_name", tiresias.fits, tiresias.read),
    Format("pai", "CSV of tasks: job_name, task_name, inst_num, status, start_time, ..., plan_gpu", pai.fits, pai.read),
    Format("gavel", "12 fields a line, parted by tabs, as in the traces of Shockwave", gavel.fits, gavel.read),
    Format("philly", "JSON list of jobs with jobid, submitted_time and attempts", philly_log.fits, philly_log.read),
)


def trace_name(path: Path) -> str:
    """A trace's name: the file's, without folder, `.gz` or `.zst`, and the suffix before it."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    return Path(name).stem or name


def read_trace(path: Path | str, format: str | None = None, reading: Reading | None = None) -> Trace:  # noqa: A002
    """The jobs of a file, in seconds and GPUs; `format` is a name of `FORMATS`, found by content where None.

    Run times that a cluster measured are taken as times on its median GPU. Jobs that cannot be replayed stop the
    reading of a trace made for replays (csv), and are left out, counted and said of accounts of real clusters.

    Raises:
        InputError: the file or a row of it cannot be used, or no job is left.
    """
    path = Path(path)
    text = text_of(path)
    chosen = _format(path, text, format)
    found, frame = chosen.read(path, text, reading or Reading())
    notes = list(found.notes)
    if frame.is_empty():
        raise InputError(f"{path} has no job that can be replayed: {'; '.join(notes) or 'it holds none'}")
    for name, *times in frame.select("name", "submit_s", "ideal_s").filter(_too_long()).head(1).iter_rows():
        raise InputError(
            f"{path}: job {name} has a time of {max(times):g} s, which is over 300 years; check the unit of the times"
        )
    if chosen.name != "csv":
        notes.append("run times count as times on GPUs of median speed")
        # Its own first instant is what such a file counts from; a replay counts from the first job.
        frame = frame.with_columns(pl.col("submit_s") - pl.col("submit_s").min())
    if frame.select((pl.col("submit_s") > CALENDAR_S).all()).item():  # else the fleet stands empty until then
        notes.append("submit times look like seconds since 1970, so they count from the first job")
        frame = frame.with_columns(pl.col("submit_s") - pl.col("submit_s").min())
    if not frame["submit_s"].is_sorted():
        notes.append("the jobs were not in the order of their times and were sorted; ties stay in the file's order")
        frame = frame.sort("submit_s", maintain_order=True)
    columns = frame.select("name", "submit_s", "gpus", "ideal_s", "limit_s", "model")
    jobs_ = tuple(
        Job(name, submit, gpus, ideal, "", limit, model or "")
        for name, submit, gpus, ideal, limit, model in columns.iter_rows()
    )
    return Trace(trace_name(path), jobs_, tuple(notes))


def _too_long() -> pl.Expr:
    """Whether a job has impossibly long times, which rounds would take for ever to reach."""
    return pl.max_horizontal("submit_s", "ideal_s") > _LONGEST_S


def _format(path: Path, text: str, name: str | None) -> Format:
    if name is not None:
        for row in FORMATS:
            if row.name == name:
                return row
        raise InputError(f"no trace format is named {name!r}; there are {', '.join(row.name for row in FORMATS)}")
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not first:
        raise InputError(f"{path} is empty")
    for row in FORMATS:
        if row.fits(first):
            return row
    shown = first if len(first) <= 60 else f"{first[:60]}..."
    known = "; ".join(f"{row.name}: {row.summary}" for row in FORMATS)
    raise InputError(f"{path} begins with {shown!r}, which is no known trace format ({known}); see --trace-format")
