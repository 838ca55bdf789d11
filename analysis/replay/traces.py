"""Job traces: files of many formats, recognised by their content, read as the jobs of a replay.

A format is a row of `FORMATS`: how it is recognised, which column is what and in which unit, what is left out and why,
what is said of it. Where a format needs more than columns, `prepare` adds these to its rows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from ...errors import InputError
from ...store.importing import content, sacct_output
from .jobs import Job, Piece, Trace
from .trace_text import (
    CALENDAR_S,
    LINE,
    UNKNOWN,
    TraceText,
    delimited,
    first_line,
    headings,
    jobs,
    seconds,
    text_of,
)

__all__ = ["FORMATS", "SECONDS_PER_ITERATION", "TraceFormat", "TraceOptions", "read_trace", "trace_name"]

MOST_GPUS = 10_000_000  # of a job; more is a slip of the pen, or a number of something else
_LONGEST_S = 1e10

SECONDS_PER_ITERATION = {
    "BERT": 0.179,
    "DCGAN": 0.0469266931,
    "GPT2": 3.5714,
    "PointNet": 0.28125,
    "resnet50": 0.17540429367763434,
    "vgg19": 0.300610341,
}
"""Of the models that PAL's traces hold, on a GPU of score 1, whatever the number of GPUs."""


@dataclass(frozen=True)
class TraceOptions:
    """What the person says about a file that the file does not."""

    duration_unit: str = "auto"  # of the CSV: "seconds", "iterations", or "auto" to go by the model
    processors_per_gpu: int = 1  # of SWF, which counts processors
    gpus_per_node: int = 1  # of logs that count whole nodes; 1 where the fleet is given in nodes
    regimes: Path | None = None
    """A JSON file of what each job does in order: `{"job": [[epochs, batch size, seconds per epoch], ...], ...}`."""


@dataclass(frozen=True)
class TraceFormat:
    """How a kind of trace is recognised and read.

    Columns are those of the file or those of `added` and `prepare`, which begin with `=`. Several names are one text,
    parted by spaces.
    """

    name: str
    summary: str
    columns: str  # those that a file must have
    job: str
    submit: str  # a time, or a number of seconds
    gpus: str
    run_time: str  # seconds, or as many as `unit` says in each row
    models: str = ""  # the model of a job is in the first of these columns that is there
    limit: str = ""  # seconds
    unit: str = ""
    epochs: str = ""
    batch: str = ""
    numbers: str = ""  # those that are not among `columns` need not be there
    instants: str = ""
    unknown: tuple[str, ...] = UNKNOWN  # how a value is spelled that is not known; () where all must be
    fits: Callable[[str], bool] | None = None
    """Whether the first line that is not empty looks like it; None: if it names all `columns`."""
    rows: Callable[[Path, str], TraceText] = delimited
    prepare: Callable[[TraceText, TraceOptions], None] | None = None  # what takes more than `added`
    added: tuple[pl.Expr, ...] = ()
    """Of `numbers`, `instants`, and the columns `=processors_per_gpu` and `=gpus_per_node`."""
    strict: bool = False
    """Made for replays: a job that cannot be replayed is an error. Else it is left out and counted."""
    left_out: tuple[tuple[pl.Expr, str], ...] = ()
    """Which rows, and why, beside those without GPUs, submit time or run time."""
    counted: tuple[tuple[pl.Expr, str], ...] = ()  # which rows a note gives the number of
    notes: str = ""
    repeats: str = ""  # the note on names that occur again; "" where that is an error
    regimes: str | None = None
    """What a file without regimes lacks; "" where they need not be given; None where there are none to give."""


def trace_name(path: Path) -> str:
    """A trace's name: the file's, without folder, `.gz` or `.zst`, and the suffix before it."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    return Path(name).stem or name


def read_trace(path: Path | str, format: str | None = None, reading: TraceOptions | None = None) -> Trace:  # noqa: A002
    """The jobs of a file, in seconds and GPUs; `format` is a name of `FORMATS`, found by content where None.

    Run times that a cluster measured are taken as times on its median GPU. Jobs that cannot be replayed stop the
    reading of a trace made for replays, and are left out, counted and said of accounts of real clusters.

    Raises:
        InputError: the file or a row of it cannot be used, or no job is left.
    """
    path, reading = Path(path), reading or TraceOptions()
    text = text_of(path)
    row = _format(path, text, format)
    if row.regimes and reading.regimes is None:
        raise InputError(f"{path} {row.regimes}. Give the regimes of its jobs with --regimes FILE")
    if reading.regimes is not None and row.regimes is None:
        able = ", ".join(format_.name for format_ in FORMATS if format_.regimes is not None)
        raise InputError(f"{path} is a trace of the format {row.name}, and --regimes is for traces of {able}")
    table = row.rows(path, text)
    pieces = _jobs(table, row, reading)
    _usable(table, row, reading)
    frame = table.frame
    if frame.is_empty():
        raise InputError(f"{path} has no job that can be replayed: {'; '.join(table.notes) or 'it holds none'}")
    start_s = float(frame["=submit"].min())  # type: ignore[arg-type]
    if not row.strict:  # its own first instant is what such a file counts from; a replay counts from the first job
        table.notes.append("run times count as times on GPUs of median speed")
    elif start_s > CALENDAR_S:  # else the fleet stands empty until then
        table.notes.append("submit times look like seconds since 1970, so they count from the first job")
    else:
        start_s = 0.0
    frame = frame.with_columns(pl.col("=submit") - start_s, pl.col("=gpus").cast(pl.Int64))
    if not frame["=submit"].is_sorted():
        table.notes.append(
            "the jobs were not in the order of their times and were sorted; ties stay in the file's order"
        )
        frame = frame.sort("=submit", maintain_order=True)
    rows = frame.select("=job", "=submit", "=gpus", "=run", "=limit", "=model").iter_rows()
    read = (
        Job(name, submit, gpus, run, "", limit, model, pieces=pieces.get(name, ()))
        for name, submit, gpus, run, limit, model in rows
    )
    return Trace(trace_name(path), tuple(read), tuple(table.notes))


def _jobs(table: TraceText, row: TraceFormat, reading: TraceOptions) -> dict[str, tuple[Piece, ...]]:
    """Add `=job`, `=submit`, `=gpus`, `=run`, `=limit` and `=model` to the table; by job, the pieces that are known."""
    table.need(*row.columns.split())
    table.add_absent(*row.numbers.split())
    table.add(
        *(table.number(name, row.unknown) for name in row.numbers.split()),
        *(table.instant(name, row.unknown) for name in row.instants.split()),
        pl.lit(reading.processors_per_gpu).alias("=processors_per_gpu"),
        pl.lit(reading.gpus_per_node).alias("=gpus_per_node"),
    )
    if row.prepare is not None:
        row.prepare(table, reading)
    table.add(*row.added)
    models = [pl.col(name) for name in row.models.split() if name in table.frame.columns]
    table.add(
        pl.col(row.job).cast(pl.String).alias("=job"),
        table.instant(row.submit, row.unknown).alias("=submit"),
        table.number(row.gpus, row.unknown).alias("=gpus"),
        (pl.when(pl.col(row.limit) > 0).then(row.limit) if row.limit else pl.lit(None, pl.Float64)).alias("=limit"),
        pl.coalesce(*models[:1], pl.lit("")).alias("=model"),
    )
    names = table.frame["=job"].to_list()
    if reading.regimes is not None:
        return _by_regimes(table, row, reading.regimes, names)
    run_times = table.number(row.run_time, row.unknown)
    if row.unit:
        run_times = run_times * table.frame[row.unit]
    table.add(run_times.alias("=run"))
    if not row.epochs:
        return {}
    numbers = table.number(row.epochs), table.number(row.batch)
    for values in numbers:
        table.check(pl.lit(values) <= 0, f"{values.name} is {{{values.name}}}; it must be above 0")
    parts = zip(names, run_times, *numbers, strict=True)
    return {name: (Piece(work, epochs=epochs, batch=int(batch)),) for name, work, epochs, batch in parts}


def _by_regimes(table: TraceText, row: TraceFormat, path: Path, names: Sequence[str]) -> dict[str, tuple[Piece, ...]]:
    """The pieces of each job as a file has them, and `=run` as their sum; those of another trace are refused."""
    pieces = _regimes(path, names, table.file)
    facts = [
        (sum(piece.work_s for piece in job), sum(piece.epochs for piece in job), job[0].batch)
        for job in (pieces[name] for name in names)
    ]
    columns = dict.fromkeys(("=run", "=epochs by regimes", "=batch by regimes"), pl.Float64)
    table.add(*pl.DataFrame(facts, columns, orient="row"), pl.lit(str(path)).alias("=regimes"))
    for kind, column in (("epochs", row.epochs), ("batch", row.batch)):
        if column:
            regimes = f"={kind} by regimes"
            why = f"the {kind} of job {{=job}}: {{{column}}} here, {{{regimes}:g}} in {{=regimes}}; are these its own?"
            table.check(pl.lit(table.number(column)) != pl.col(regimes), why)
    if row.epochs:  # such a trace says how long a job runs under its regimes, others for how long under the first one
        ratio = pl.lit(table.number(row.run_time)) / pl.col("=run")
        note = f"{{}}: {row.run_time} is over 1 % off the sum of its regimes, which counts"
        table.count((ratio - 1).abs() > 0.01, note)
    return pieces


def _usable(table: TraceText, row: TraceFormat, reading: TraceOptions) -> None:
    """Stop at what no trace can have; leave out, or stop at, jobs that cannot be replayed; count what is to be told."""
    for condition, why in row.left_out:
        table.leave_out(condition, why)
    submit, gpus, run, again = pl.col("=submit"), pl.col("=gpus"), pl.col("=run"), ~pl.col("=job").is_first_distinct()
    table.check(submit < 0, f"{row.submit.removeprefix('=')} is {{{row.submit}}}; times count from 0")
    width = f"{row.gpus.removeprefix('=')} is {{{row.gpus}}}; "
    table.check(gpus != gpus.floor(), width + "it must be a whole number")
    table.check(gpus > MOST_GPUS, width + "no cluster has so many GPUs")
    if row.strict:
        table.check(pl.col("=job") == "", f"the job has no {row.job}")
        table.check(gpus < 1, width + "a job holds 1 GPU or more")
        table.check(run <= 0, f"{row.run_time} is {{{row.run_time}}}; it must be above 0")
    table.leave_out(gpus.fill_null(0) < 1, "they had no GPU")
    table.leave_out(submit.is_null(), "their submit time is not known")
    table.leave_out(run.fill_null(0) <= 0, "they never ran")
    table.add(pl.max_horizontal(submit, run).alias("=time"))
    long = "job {=job} has a time of {=time:g} s, which is over 300 years; check the unit of the times"
    table.check(pl.col("=time") > _LONGEST_S, long)
    if row.repeats:
        table.count(again, row.repeats)
        number = pl.col("=job").cum_count().over("=job")
        name = pl.when(number > 1).then(pl.format("{}#{}", "=job", number)).otherwise("=job")
        table.add(name.alias("=job"))
    else:
        table.check(again, f"{row.job.removeprefix('=')} {{=job}} occurs twice")
    for condition, note in row.counted:
        table.count(condition, note)
    if row.notes:
        table.notes.append(row.notes.format(reading=reading))


def _regimes(path: Path, names: Sequence[str], trace: str) -> dict[str, tuple[Piece, ...]]:
    """What each job of a trace does in order: `{"job": [[epochs, batch size, seconds per epoch], ...], ...}`.

    The mapping may stand under the key `regimes`. `names` are the jobs of the file `trace`.

    Raises:
        InputError: the file is no such JSON, lacks a job or has another, or a regime is not three numbers above 0.
    """
    document = _json(path, text_of(path), "--regimes takes a JSON file")
    regimes = document.get("regimes", document) if isinstance(document, dict) else None
    if not isinstance(regimes, dict):
        raise InputError(f"{path} holds no regimes by job, such as {_REGIMES}")
    lacking = [name for name in names if name not in regimes]
    if lacking:
        raise InputError(f"{path} has no regimes of job {lacking[0]} of {trace} ({jobs(len(lacking))} in all)")
    extra = sorted(set(regimes).difference(names))
    if extra:
        raise InputError(
            f"{path} has regimes of job {extra[0]}, and {trace} has no such job; give the file of this trace"
        )
    return {name: tuple(_pieces(path, name, regimes[name])) for name in names}


def _pieces(path: Path, job: str, regimes: Any) -> Iterator[Piece]:
    if not isinstance(regimes, list) or not regimes:
        raise InputError(f"{path}, job {job}: it has no list of regimes, such as {_REGIMES}")
    for number, regime in enumerate(regimes, start=1):
        good = isinstance(regime, list) and len(regime) == 3 and all(type(part) in (int, float) for part in regime)
        if not (good and all(math.isfinite(part) and part > 0 for part in regime) and regime[1] == int(regime[1])):
            raise InputError(
                f"{path}, job {job}: regime {number} is {json.dumps(regime)[:80]}; it must be three numbers above 0: "
                "[epochs, batch size, seconds per epoch]"
            )
        epochs, batch, epoch_s = regime
        yield Piece(float(epochs * epoch_s), epochs=float(epochs), batch=int(batch))


def _json(path: Path, text: str, do: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}; {do}") from error


def _format(path: Path, text: str, name: str | None) -> TraceFormat:
    if name is not None:
        by_name = {row.name: row for row in FORMATS}
        if name not in by_name:
            raise InputError(f"no trace format is named {name!r}; there are {', '.join(by_name)}")
        return by_name[name]
    first = first_line(text)
    if not first:
        raise InputError(f"{path} is empty")
    for row in FORMATS:
        if row.fits(first) if row.fits else _has(first, row.columns):
            return row
    begin = first if len(first) <= 60 else f"{first[:60]}..."
    summaries = "; ".join(f"{row.name}: {row.summary}" for row in FORMATS)
    raise InputError(
        f"{path} begins with {begin!r}, which is no known trace format ({summaries}); say --world trace-format=NAME"
    )


def _csv_units(table: TraceText, reading: TraceOptions) -> None:
    """`=unit`: `duration` counts iterations for the PAL study's six models, and seconds otherwise."""
    by_model = pl.col("model").replace_strict(SECONDS_PER_ITERATION, default=None, return_dtype=pl.Float64)
    if reading.duration_unit == "seconds":
        table.notes.append("duration was read as seconds on the median GPU (duration-unit=seconds)")
        by_model = pl.lit(None, pl.Float64)
    elif reading.duration_unit == "iterations":
        models = ", ".join(SECONDS_PER_ITERATION)
        why = f"is not known, only of {models}; leave the job out, or say --world duration-unit=seconds"
        table.check(by_model.is_null(), "how long an iteration of {model!r} takes " + why)
    else:
        table.count(by_model.is_null(), "duration of {} was read as seconds on the median GPU")
    table.count(
        by_model.is_not_null(),
        "duration of {} of the PAL study's models was read as iterations and turned into seconds by its table "
        "(change this with --world duration-unit=)",
    )
    table.add(by_model.fill_null(1.0).alias("=unit"))
    unused = [name for name in table.names if name not in (*_CSV.split(), "user")]
    if unused:
        table.notes.append(f"columns not used: {', '.join(name or '(without a name)' for name in unused)}")


def _swf_rows(path: Path, text: str) -> TraceText:
    """Fields are parted by any white space; lines that begin with a semicolon are comments."""
    lines = ("" if line.lstrip().startswith(";") else " ".join(line.split()) for line in text.splitlines())
    return delimited(path, "\n".join(lines), " ", names=_SWF.split())


def _without_the_wait(table: TraceText, reading: TraceOptions) -> None:  # noqa: ARG001
    """Let `duration` begin when the job did. In Acme's file of Kalos it begins at submission, so it holds the wait."""
    if not {"start_time", "end_time"} <= set(table.names):
        return
    start, end, duration = seconds("start_time"), seconds("end_time"), pl.col("duration")
    waited = (duration > end - start) & ((duration - (end - pl.col("submit_time"))).abs() <= 1)
    started = ~pl.col("start_time").is_in(list(UNKNOWN))
    table.count(
        waited & started,
        "duration of {} is from submit_time to end_time, with the wait in the queue: the time from start_time to "
        "end_time was taken instead",
    )
    run_time = pl.when(waited).then(end - start).otherwise(duration)
    table.add(pl.when(started | ~started.any()).then(run_time).otherwise(0.0).alias("duration"))


def _pai_jobs(table: TraceText, reading: TraceOptions) -> None:  # noqa: ARG001
    """One row a job: all its tasks with GPUs run at once, each instance on GPUs of its own; plan_gpu is in per cent."""
    tasks = table.frame.with_columns(
        ((pl.col("plan_gpu") / 100).ceil() * pl.col("inst_num").fill_null(1)).alias("=GPUs")
    )
    if shares := int((tasks["plan_gpu"] % 100 > 0).sum()):
        plural = "s" if shares != 1 else ""
        table.notes.append(f"{shares:,} task{plural} asked for a share of a GPU and got a whole one")
    with_gpus = pl.col("=GPUs").fill_null(0) >= 1
    start, end = pl.col("start_time").filter(with_gpus), pl.col("end_time").filter(with_gpus)
    table.frame = tasks.group_by("job_name", maintain_order=True).agg(
        pl.col("task_name").filter(with_gpus).sort_by(pl.col("=GPUs").filter(with_gpus), descending=True).first(),
        pl.col("=GPUs").filter(with_gpus).sum(),
        start.min().alias("start_time"),
        (end.max() - start.min()).alias("=run time"),
        (start.is_null().any() | end.is_null().any()).alias("=open"),
        pl.col(LINE).first(),
    )


def _pai_rows(path: Path, text: str) -> TraceText:
    """The table is published without its header line, which is a file of its own."""
    names = () if _has(first_line(text), _PAI) else _PAI.split()
    return delimited(path, text, ",", quoting=False, names=names)


def _gavel_rows(path: Path, text: str) -> TraceText:
    fields = first_line(text).count("\t") + 1
    if fields < len(_GAVEL.split()):
        raise InputError(
            f"{path} is a trace of Gavel with {fields} fields a job, which does not say how long a job runs; write a "
            "CSV with job_id, num_gpus, submit_time, duration, model, and the durations in seconds"
        )
    return delimited(path, text, "\t", quoting=False, names=_GAVEL.split())


def _philly_rows(path: Path, text: str) -> TraceText:
    """A job runs for as long as all its attempts together, on the GPUs of the last one that held any."""
    log = _json(path, text, "the file looks cut off: copy it again")
    if not isinstance(log, list):
        raise InputError(f"{path} is JSON without a list of jobs; see --world help")
    rows = [_philly_job(path, number, job) for number, job in enumerate(log, start=1)]
    frame = pl.DataFrame(rows, schema=_PHILLY, orient="row").with_row_index(LINE, offset=1)
    return TraceText(str(path), frame, place="job")


def _philly_job(path: Path, number: int, job: Any) -> tuple[Any, ...]:
    """A row of `_PHILLY`."""
    try:
        attempts = job["attempts"]
        spans = [(_civil_s(attempt["start_time"]), _civil_s(attempt["end_time"])) for attempt in attempts]
        # An attempt that got no machine, such as one that was killed while it waited, does not say how many it wanted.
        held = [sum(len(machine["gpus"]) for machine in attempt["detail"]) for attempt in attempts]
        gpus = next((n for n in reversed(held) if n), 0)
        run_time = sum(end - start for start, end in spans if start is not None and end is not None)
        ended = not spans or spans[-1][1] is not None
        submit = _civil_s(job["submitted_time"])
        return str(job["jobid"]), str(job.get("vc") or ""), submit, gpus, run_time, len(spans), ended
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}, job {number} of the list: it is not as the job log of Philly has it ({type(error).__name__}: "
            f"{error}): jobid, submitted_time, and attempts with start_time, end_time and detail"
        ) from error


def _civil_s(text: str | None) -> float | None:
    """A time of the log in seconds; its zone is not known."""
    if text is None or text in ("", "None"):
        return None
    return (datetime.fromisoformat(text).replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001


def _slurm_rows(path: Path, text: str) -> TraceText:
    """Names of columns in lower case."""
    refused, notes = content.Refused(), list[str]()
    rows = sacct_output.rows(text, str(path), refused, save="sacct -a -X -P -o " + _SACCT_FIELDS, notes=notes)
    rows = rows.rename({content.LINE: LINE}).rename(str.lower).with_columns(pl.col(pl.String).fill_null(""))
    notes += (f"{jobs(len(lines))} left out: {reason}" for reason, lines in refused.lines.items())
    return TraceText(str(path), rows, notes, place="job" if sacct_output.is_json(text) else "line")


def _slurm_jobs(table: TraceText, reading: TraceOptions) -> None:  # noqa: ARG001
    """Columns in any order, with more names than one for most; a job arrives when it was eligible, else submitted."""
    names = table.names
    job, *shown_job = _present(table, "JobIDRaw", "JobID")
    arrival, tres = _present(table, "Submit", "Eligible"), _present(table, "AllocTRES", "AllocGRES", "ReqTRES")
    table.frame = table.frame.filter(~pl.col(job).str.contains(sacct_output.STEP))
    table.leave_out(~pl.struct(names).is_first_distinct(), "the same line occurs before, as when two exports overlap")
    if "state" in names:
        state = pl.col("state").str.to_uppercase().str.split(" ").list.first()
        table.leave_out(state.is_in(_NOT_STARTED), "they had not started")
        table.leave_out(state.is_in(_NOT_ENDED), "they were still running, so their run time is not known")
    elif "end" in names:
        table.leave_out(pl.col("end").is_in(list(UNKNOWN)), "they had not ended")
    else:
        table.notes.append("there is no column State or End, so jobs that were still running count as ended")
    elapsed = next((name for name in ("elapsedraw", "elapsed") if name in names), None)
    if elapsed:
        run_time = table.span(elapsed, UNKNOWN)
    elif {"start", "end"} <= set(names):
        run_time = table.instant("end", UNKNOWN) - table.instant("start", UNKNOWN)
    else:
        lacking = "none of ElapsedRaw, Elapsed, or Start with End: the run times of the jobs are not known"
        raise InputError(f"{table.file} has {lacking}")
    limit = "timelimitraw" if "timelimitraw" in names else "timelimit"
    table.add_absent(limit)
    gpus = {text: _gpus_of(text) for name in tres for text in table.frame[name].unique()}
    table.add(
        pl.col(job).alias("=job ID"),
        table.frame.select(table.instant(name, UNKNOWN) for name in arrival).max_horizontal().alias("=arrival"),
        pl.coalesce(pl.col(tres).replace_strict(gpus, return_dtype=pl.Int64)).alias("=GPUs"),
        run_time.alias("=run time"),
        table.span(limit, UNKNOWN, unit=60).alias("=time limit"),
        pl.any_horizontal(pl.col(tres).str.contains(_MIG_INSTANCE)).alias("=MIG"),
        pl.col(*shown_job or [job]).str.contains("+", literal=True).alias("=component"),
    )


def _present(table: TraceText, *names: str) -> list[str]:
    """Those of these columns that are there, in lower case; one at least must be."""
    present = [name.lower() for name in names if name.lower() in table.frame.columns]
    if not present:
        table.need(names[0])
    return present


def _gpus_of(text: str) -> int | None:
    """GPUs of a list such as `cpu=8,gres/gpu=2,gres/gpu:v100=2` or `gpu:a100:2(IDX:0-1)`: the total, else the sum."""
    counts = [(match["type"], int(match["gpus"])) for match in _GPU.finditer(text)]
    total = next((gpus for kind, gpus in counts if kind is None), sum(gpus for _, gpus in counts))
    return min(total, MOST_GPUS) if counts else None


def _has(first: str, columns: str) -> bool:
    return set(columns.split()) <= headings(first)


def _fits_swf(first: str) -> bool:
    cells = first.split()
    numbers = [cell.lstrip("+-").replace(".", "", 1).isdigit() for cell in cells]
    return first.startswith(";") or (len(cells) == len(_SWF.split()) and all(numbers))


def _fits_sacct(first: str) -> bool:
    names = set(re.split(r"[|\x1f;,\s]+", first.lower().replace('"', "")))
    return sacct_output.is_json(first) or bool(names & {"jobid", "jobidraw"} and names & {"submit", "eligible"})


def _fits_pai(first: str) -> bool:
    cells = [cell.strip() for cell in first.split(",")]
    status = ("Running", "Terminated", "Failed", "Waiting", "Interrupted")
    return _has(first, _PAI) or (len(cells) == len(_PAI.split()) and cells[3] in status)


def _fits_gavel(first: str) -> bool:
    number = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?").fullmatch
    cells = first.split("\t")
    return len(cells) in (6, 7, 9, 10, 12) and all(map(number, cells[-2:])) and not number(cells[0])


_REGIMES = '{"job": [[epochs, batch size, seconds per epoch], ...], ...}'
_CSV = "job_id num_gpus submit_time duration model"
# Feitelson's definition of the format (version 2.2), in its order; -1 is unknown.
_SWF = (
    "job submit wait run processors cpu memory wanted_processors wanted_time wanted_memory status user group "
    "executable queue partition preceding think"
)
_HELIOS = "job_id gpu_num submit_time duration"
_PAI = "job_name task_name inst_num status start_time end_time plan_cpu plan_mem plan_gpu gpu_type"
_GAVEL = (
    "job_type command working_directory num_steps_arg needs_data_dir total_steps scale_factor mode priority_weight SLO "
    "duration arrival_time"
)
_PHILLY = {
    "jobid": pl.String, "vc": pl.String, "submitted_time": pl.Float64, "gpus": pl.Float64, "run time": pl.Float64,
    "attempts": pl.Int64, "ended": pl.Boolean,
}  # fmt: skip
_SACCT_FIELDS = "JobIDRaw,Submit,Eligible,ElapsedRaw,TimelimitRaw,AllocTRES,State,Partition,User"
_NOT_STARTED = ("PENDING", "CONFIGURING", "RESV_DEL_HOLD")
_NOT_ENDED = ("RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "STOPPED", "SIGNALING", "STAGE_OUT")
_GPU = re.compile(r"(?:^|,)(?:gres[/:])?gpu(?P<type>:[^:=,(]+)?[:=](?P<gpus>\d+)(?=[,(]|$)")
_MIG_INSTANCE = r"gpu:[^:=,]*\d+g\.\d+gb"  # the usual name of a MIG instance's type
_OPEN = "they had not ended, so for how long they run is unknown"

FORMATS = (
    TraceFormat(
        "csv", "CSV with job_id, num_gpus, submit_time, duration, model", _CSV,
        fits=lambda first: "num_gpus" in headings(first) and len(headings(first) & set(_CSV.split())) >= 3,
        prepare=_csv_units, strict=True, unknown=(),
        job="job_id", submit="submit_time", gpus="num_gpus", run_time="duration", unit="=unit", models="model",
    ),
    TraceFormat(
        "swf", "Standard Workload Format: 18 numbers a line", _SWF,
        fits=_fits_swf, rows=_swf_rows, unknown=(),
        numbers="submit run processors wanted_processors wanted_time status preceding",
        added=(
            pl.when(pl.col("job") == "-1").then(pl.format("line {}", LINE)).otherwise("job").alias("job"),
            (
                pl.when(pl.col("processors") > 0).then("processors").otherwise("wanted_processors")
                / pl.col("=processors_per_gpu")
            ).ceil().alias("=GPUs"),
            pl.when(pl.col("executable") != "-1").then("executable").alias("=model_name"),
        ),
        job="job", submit="submit", gpus="=GPUs", run_time="run", limit="wanted_time", models="=model_name",
        left_out=(
            (pl.col("status").is_in([2.0, 3.0, 4.0]), "lines of parts of jobs; the whole job has its own line"),
            (pl.col("submit") < 0, "their submit time is not known"),
            (pl.col("run") <= 0, "their run time is zero or not known"),
            (pl.col("=GPUs") <= 0, "the number of processors is unknown"),
        ),
        counted=((
            pl.col("preceding") > 0,
            "{} waited for an earlier job; this was ignored, and each arrives at its recorded time",
        ),),
        notes="{reading.processors_per_gpu} processors count as a GPU, rounded up (processors-per-gpu)",
    ),
    TraceFormat(
        "sacct", "`sacct -a -X -P -o JobIDRaw,Submit,ElapsedRaw,AllocTRES,...` or --json", "",
        fits=_fits_sacct, rows=_slurm_rows, prepare=_slurm_jobs,
        job="=job ID", submit="=arrival", gpus="=GPUs", run_time="=run time", limit="=time limit",
        models="jobname partition",
        counted=(
            (pl.col("=MIG"), "{} held MIG instances, and each of these counts as a whole GPU"),
            (pl.col("=component"), "components of heterogeneous jobs count as jobs of their own: {}"),
        ),
        repeats="{} ran again after being requeued; each time counts as a job of its own",
    ),
    TraceFormat(
        "openb", "CSV of pods: name, num_gpu, creation_time, deletion_time, scheduled_time",
        "name num_gpu creation_time deletion_time scheduled_time",
        numbers="num_gpu gpu_milli", instants="creation_time deletion_time scheduled_time",
        added=((pl.col("deletion_time") - pl.col("scheduled_time")).alias("=run time"),),
        job="name", submit="creation_time", gpus="num_gpu", run_time="=run time", models="qos",
        left_out=(
            (pl.col("scheduled_time").is_null(), "they were never scheduled"),
            (pl.col("deletion_time").is_null(), _OPEN),
            (pl.col("=run time") <= 0, "they ended before they ran"),
        ),
        counted=((pl.col("gpu_milli").is_between(1, 999), "{} asked for a share of a GPU and got a whole one"),),
    ),
    TraceFormat(
        "helios", "CSV with job_id, gpu_num, submit_time, duration, vc, queue", _HELIOS,
        fits=lambda first: _has(first, _HELIOS) and bool({"vc", "node_num", "queue", "cpu_num"} & headings(first)),
        numbers="duration", instants="submit_time", prepare=_without_the_wait,
        job="job_id", submit="submit_time", gpus="gpu_num", run_time="duration", models="vc type",
    ),
    TraceFormat(
        "tiresias", "CSV with job_id, num_gpu, submit_time, duration, model_name",
        "job_id num_gpu submit_time duration model_name", unknown=(),
        job="job_id", submit="submit_time", gpus="num_gpu", run_time="duration", models="model_name",
    ),
    TraceFormat(
        "pai", "CSV of tasks: job_name, task_name, inst_num, status, start_time, ..., plan_gpu", _PAI,
        fits=_fits_pai, rows=_pai_rows, numbers="inst_num start_time end_time plan_gpu", prepare=_pai_jobs,
        job="job_name", submit="start_time", gpus="=GPUs", run_time="=run time", models="task_name",
        left_out=((pl.col("=open"), "a task had not begun or not ended"),),
        notes="the table does not say when jobs were submitted: each arrives when its first task began",
    ),
    TraceFormat(
        "shockwave", "CSV with job, model, batch, gpus, epochs, isolated_s, arrival_s",
        "job model batch gpus epochs isolated_s arrival_s", strict=True, unknown=(), regimes="",
        job="job", submit="arrival_s", gpus="gpus", run_time="isolated_s", models="model",
        epochs="epochs", batch="batch",
    ),
    TraceFormat(
        "gavel", "12 fields a line, parted by tabs: a raw trace of Gavel or Shockwave", _GAVEL,
        fits=_fits_gavel, rows=_gavel_rows, unknown=(),
        added=(
            pl.int_range(pl.len()).cast(pl.String).alias("=number"),  # from 0, as Shockwave's regimes name the jobs
            pl.col("job_type").str.replace(r"\s*\(batch size.*$", "").alias("=model_name"),
            pl.col("job_type").str.extract(r"\(batch size (\d+)\)").alias("=batch"),
        ),
        job="=number", submit="arrival_time", gpus="scale_factor", run_time="duration", models="=model_name",
        batch="=batch",
        regimes="does not say how long its jobs run: their batch sizes change, so they take up to 4 times shorter, or "
        "longer, than its durations",
    ),
    TraceFormat(
        "philly", "JSON list of jobs with jobid, submitted_time and attempts", "",
        fits=lambda first: first.startswith("["), rows=_philly_rows,
        job="jobid", submit="submitted_time", gpus="gpus", run_time="run time", models="vc",
        left_out=((pl.col("attempts") == 0, "they never ran"), (~pl.col("ended"), _OPEN)),
        counted=((pl.col("attempts") > 1, "{} ran in several attempts, which count as one run"),),
    ),
    TraceFormat(
        "pollux", "CSV with name, time, application, num_replicas, batch_size",
        "name time application num_replicas batch_size", strict=True, unknown=(),
        job="name", submit="time", gpus="num_replicas", run_time="", models="application",
        regimes="does not say how long its jobs run, nor for how many steps, only with which batch size",
    ),
    TraceFormat(
        "mirage", "CSV of a Slurm log of whole nodes: job, submit, start, end, limit_min, nodes",
        "job submit start end limit_min nodes", numbers="nodes limit_min", instants="submit start end",
        added=(
            (pl.col("nodes") * pl.col("=gpus_per_node")).alias("=GPUs"),
            (pl.col("end") - pl.col("start")).alias("=run time"),
            (60 * pl.col("limit_min")).alias("=time limit"),
        ),
        job="job", submit="submit", gpus="=GPUs", run_time="=run time", limit="=time limit",
        left_out=((pl.col("start").is_null(), "they never started"), (pl.col("end").is_null(), _OPEN)),
        notes="jobs hold whole nodes, of {reading.gpus_per_node} GPUs each (--gpus-per-node)",
    ),
)  # fmt: skip
"""Every format that is read; the first that fits is taken."""
