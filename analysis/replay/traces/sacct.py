"""Slurm's own account: what `sacct -a -X -P -o ...` prints, in any order of columns, or `sacct -a --json`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from ....errors import InputError
from ....store.importing import content, sacct_json
from .table import LINE, MOST_GPUS, Reading, Sheet, jobs, sheet

_UNKNOWN = ("", "Unknown", "None", "N/A", "Partition_Limit", "UNLIMITED", "INVALID")
_GPU = re.compile(r"(?:^|,)(?:gres[/:])?gpu(?P<type>:[^:=,(]+)?[:=](?P<gpus>\d+)(?=[,(]|$)")
_INSTANCE = r"gpu:[^:=,]*\d+g\.\d+gb"  # the usual name of a MIG instance's type
_NO_TIME_YET = ("PENDING", "CONFIGURING", "RESV_DEL_HOLD")
_STILL = ("RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "STOPPED", "SIGNALING", "STAGE_OUT")


def fits(first: str) -> bool:
    names = {name.strip().lower() for name in first.split("|")}
    return sacct_json.fits(first) or (len(names) > 1 and bool(names & {"jobid", "jobidraw"}))


def read(path: Path, text: str, reading: Reading) -> tuple[Sheet, pl.DataFrame]:  # noqa: ARG001
    """Jobs of the file that held GPUs and ended; those that were cancelled or failed after they ran are load too.

    A job arrives when it was eligible (a dependency or a begin time kept it from starting before), else when it
    was submitted. The model is the job's name where that column is there, else its partition.
    """
    if sacct_json.fits(text):
        rows = sacct_json.rows(text, str(path)).rename({content.LINE: LINE})
        found = Sheet(str(path), rows.with_columns(pl.col(pl.String).fill_null("")))
    else:
        found = sheet(path, text, "|", quoting=False)
    twice = [name for name, n in Counter(name.lower() for name in found.names).items() if n > 1]
    if twice:
        raise InputError(f"{path} has the column {twice[0]!r} twice (in upper and lower case); remove one")
    found.frame = found.frame.rename({name: name.lower() for name in found.names}).with_columns(
        pl.col(pl.String).str.strip_chars()
    )
    trailing = [name for name in found.names if not name]  # `sacct -p` ends each line with a delimiter
    found.frame = found.frame.drop(trailing)
    job = _first(found, "JobIDRaw", "JobID")
    arrival = [name for name in ("eligible", "submit") if name in found.frame.columns]
    tres = [name for name in ("alloctres", "allocgres", "reqtres") if name in found.frame.columns]
    if not arrival:
        found.need("Submit")
    if not tres:
        found.need("AllocTRES")
    found.frame = found.frame.filter(~pl.col(job).str.contains(".", literal=True))  # steps of jobs
    again = found.frame.select(~pl.struct(found.names).is_first_distinct()).to_series()
    found.leave_out(again, "the same line occurs before, as when two exports overlap")
    if "state" in found.frame.columns:
        state = found.frame["state"].str.to_uppercase().str.split(" ").list.first()
        found.leave_out(state.is_in(_NO_TIME_YET), "they had not started")
        state = found.frame["state"].str.to_uppercase().str.split(" ").list.first()
        found.leave_out(state.is_in(_STILL), "they were still running, so their run time is not known")
    elif "end" in found.frame.columns:
        found.leave_out(found.frame["end"].is_in(list(_UNKNOWN)), "they had not ended")
    else:
        found.notes.append("there is no column State or End, so jobs that were still running count as ended")
    found.frame = found.frame.with_columns(
        _gpus(found.frame, tres).alias("=gpus"), _elapsed(found), _arrival(found, arrival)
    )
    found.leave_out(found.frame["=gpus"].fill_null(0) < 1, "they held no GPU")
    found.leave_out(found.frame["=elapsed"].fill_null(0) <= 0, "they never ran")
    found.leave_out(found.frame["=arrival"].is_null(), "their submit time is not known")
    parts = found.frame.select(pl.any_horizontal(pl.col(tres).str.contains(_INSTANCE)).sum()).item()
    if parts:
        found.notes.append(f"{jobs(parts)} held MIG instances, and each of these counts as a whole GPU")
    return found, _names(found, job).select(
        name="=name",
        submit_s="=arrival",
        gpus="=gpus",
        ideal_s="=elapsed",
        limit_s=_limit(found),
        model=next((pl.col(n) for n in ("jobname", "partition") if n in found.frame.columns), pl.lit("")),
    )


def _first(found: Sheet, *names: str) -> str:
    """The first of these columns that is there, in lower case."""
    for name in names:
        if name.lower() in found.frame.columns:
            return name.lower()
    found.need(names[0])
    raise AssertionError


def _names(found: Sheet, job: str) -> pl.DataFrame:
    """The frame with `=name`: a requeued job, which `sacct -D` prints once for each time it ran, is several."""
    again = pl.col(job).cum_count().over(job)
    n = int((~found.frame[job].is_first_distinct()).sum())
    if n:
        found.notes.append(f"{jobs(n)} ran again after being requeued; each time counts as a job of its own")
    if "jobid" in found.frame.columns and (parts := int(found.frame["jobid"].str.contains("+", literal=True).sum())):
        found.notes.append(f"components of heterogeneous jobs count as jobs of their own: {jobs(parts)}")
    return found.frame.with_columns(
        pl.when(again > 1).then(pl.format("{}#{}", job, again)).otherwise(pl.col(job)).alias("=name")
    )


def _gpus(frame: pl.DataFrame, columns: Sequence[str]) -> pl.Expr:
    """GPUs by the first of these columns that tells them."""
    return pl.coalesce(
        pl.col(name).replace_strict({text: _count(text) for text in frame[name].unique()}, return_dtype=pl.Int64)
        for name in columns
    )


def _count(text: str) -> int | None:
    """GPUs of a list such as `cpu=8,gres/gpu=2,gres/gpu:v100=2` or `gpu:a100:2(IDX:0-1)`: the total, else the sum."""
    found = [(match["type"], int(match["gpus"])) for match in _GPU.finditer(text)]
    total = [gpus for kind, gpus in found if kind is None]
    if not found:
        return None
    return min(total[0] if total else sum(gpus for _, gpus in found), MOST_GPUS)


def _known(name: str) -> pl.Expr:
    return pl.when(~pl.col(name).is_in(list(_UNKNOWN))).then(pl.col(name))


def _elapsed(found: Sheet) -> pl.Expr | pl.Series:
    names = found.frame.columns
    if "elapsedraw" in names:
        return found.numbers("elapsedraw", unknown=_UNKNOWN).alias("=elapsed")
    if "elapsed" in names:
        return _span(found, "elapsed").alias("=elapsed")
    if "start" in names and "end" in names:
        return (instant(found, "end") - instant(found, "start")).alias("=elapsed")
    raise InputError(
        f"{found.file} has none of ElapsedRaw, Elapsed, or Start with End: the run times of the jobs are not known"
    )


def _limit(found: Sheet) -> pl.Expr | pl.Series:
    if "timelimitraw" in found.frame.columns:  # minutes
        return 60 * found.numbers("timelimitraw", unknown=_UNKNOWN)
    if "timelimit" in found.frame.columns:
        return _span(found, "timelimit")
    return pl.lit(None, pl.Float64)


def _arrival(found: Sheet, names: Sequence[str]) -> pl.Series:
    """The later of what is known of these instants, in seconds."""
    instants = found.frame.select(instant(found, name).alias(name) for name in names)
    return instants.select(pl.max_horizontal(*names)).to_series().alias("=arrival")


def _span(found: Sheet, name: str) -> pl.Series:
    """`[DD-]HH:MM:SS`, `MM:SS` or `DD-HH` in seconds."""
    parts = pl.col(name).str.extract_groups(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?$")
    days, hours, minutes, seconds = (parts.struct.field(str(i)).cast(pl.Float64).fill_null(0.0) for i in range(1, 5))
    whole = pl.when(pl.col(name).str.contains(r"^(?:\d+-)?(?:\d+:)?\d+:\d+(?:\.\d+)?$")).then(
        86400 * days + 3600 * hours + 60 * minutes + seconds
    )
    days_only = pl.col(name).str.extract_groups(r"^(\d+)-(\d+)$")
    short = 86400 * days_only.struct.field("1").cast(pl.Float64) + 3600 * days_only.struct.field("2").cast(pl.Float64)
    return _strict(found, name, pl.coalesce(whole, short), "a time such as 1-02:03:04")


def instant(found: Sheet, name: str) -> pl.Series:
    """A time stamp in seconds: ISO 8601, with an offset from UTC or without, or seconds since 1970."""
    return _strict(found, name, seconds(name), "a time such as 2026-01-31T12:00:00")


def seconds(name: str) -> pl.Expr:
    """The same, and null where it is none."""
    text = pl.col(name).str.replace(" ", "T", literal=True).str.replace(r"Z$", "+0000").str.replace(r"\.\d+", "")
    text = text.str.replace(r"([+-]\d{2}):(\d{2})$", "$1$2")
    local = text.str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False, time_unit="ms").dt.epoch("s")
    zoned = text.str.to_datetime("%Y-%m-%dT%H:%M:%S%z", strict=False, time_unit="ms", time_zone="UTC").dt.epoch("s")
    stamp = pl.coalesce(local, zoned)
    return pl.coalesce(stamp.cast(pl.Float64), pl.col(name).cast(pl.Float64, strict=False))


def _strict(found: Sheet, name: str, value: pl.Expr, what: str) -> pl.Series:
    """`value` where `name` is known; what is known and yet has no value is an error."""
    column = found.frame.select(_known(name)).to_series()
    values = found.frame.with_columns(column).select(value.alias(name)).to_series()
    found.check(column.is_not_null() & values.is_null(), f"{name} is {{{name}!r}}, which is not {what}", name)
    return values
