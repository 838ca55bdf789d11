"""The history of a queue: when jobs were submitted, began and ended, with their time limits and numbers of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...errors import InputError
from ...store.importing import sacct_output
from ...store.importing.content import LINE, Refused, load

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]

SAVE = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -P -D -S 2026-01-01 "
    "-o JobIDRaw,Partition,State,Submit,Eligible,Start,End,TimelimitRaw,NNodes"
)
"""A command whose output `read_log` reads."""
UNLIMITED_S = 365 * 86400.0  # what Slurm plans for a job whose time limit is UNLIMITED: a year

_COLUMNS = {
    "jobidraw": "JobIDRaw", "jobid": "JobID", "state": "State", "submit": "Submit", "start": "Start", "end": "End",
    "elapsedraw": "ElapsedRaw", "timelimitraw": "TimelimitRaw", "timelimit": "Timelimit", "nodelist": "NodeList",
    "nnodes": "NNodes", "allocnodes": "AllocNodes", "alloctres": "AllocTRES",
    "eligible": "Eligible", "partition": "Partition",
    "job": "JobIDRaw", "limit_min": "TimelimitRaw", "nodes": "NNodes",
}  # fmt: skip
"""Columns that are read, in lower case, with sacct's spelling: those of sacct, then those of the Mirage study's log."""
_NODES = ("NNodes", "AllocNodes", "AllocTRES")
NEVER_BEGAN, STEP, TWICE = "that never began", "steps of jobs", "that the log has twice"


@dataclass(frozen=True, eq=False)
class JobsLog:
    """Jobs that began, sorted by `submit_s`; jobs submitted at the same time stand in the order of the log."""

    submit_s: FloatArray
    """(jobs,) when they began to queue, in seconds since 1970, UTC, as all times here.

    That is their submission, or where the log says so when they could run: those that waited for another job or for a
    set time did not wait for nodes until then.
    """
    start_s: FloatArray  # (jobs,)
    end_s: FloatArray  # (jobs,) infinite for a job that was running when the log was written
    limit_s: FloatArray  # (jobs,) time limit, above 0
    nodes: IntArray  # (jobs,) at least 1
    source: str  # where the jobs come from, for messages: the path of the file, or a command
    refused: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Why rows cannot be used, with their lines; of JSON the number of the job in the list."""
    passed: Mapping[str, int] = field(default_factory=dict)
    """Rows that are no jobs that began: `NEVER_BEGAN`, `STEP` or `TWICE`, with their number."""
    notes: Sequence[str] = ()  # what else a reader should know of the times

    def __len__(self) -> int:
        return len(self.submit_s)

    def until(self, time_s: float) -> JobsLog:
        """The jobs that were submitted before this time, seconds since 1970."""
        return self.where(self.submit_s < time_s)

    def since(self, time_s: float) -> JobsLog:
        """The jobs that were submitted at this time or later, seconds since 1970."""
        return self.where(self.submit_s >= time_s)

    def where(self, jobs: NDArray[np.bool_]) -> JobsLog:
        """Some of the jobs: those where `jobs`, of shape (jobs,), is true."""
        columns = ("submit_s", "start_s", "end_s", "limit_s", "nodes")
        return replace(self, **{name: getattr(self, name)[jobs] for name in columns})

    @cached_property
    def waits_s(self) -> FloatArray:
        """(jobs,) from submission to start, at least 0."""
        return self.start_s - self.submit_s

    @cached_property
    def run_times_s(self) -> FloatArray:
        """(jobs,) from start to end, cut at the time limit, which a running job is taken to use up."""
        return np.minimum(self.end_s - self.start_s, self.limit_s)

    @property
    def most_nodes_at_once(self) -> int:
        """The most nodes that ran jobs at the same time: the size of a cluster that was full once. 0 without jobs."""
        times = np.concatenate([self.end_s, self.start_s])  # where both are at one time, the end comes first
        steps = np.concatenate([-self.nodes, self.nodes])
        order = np.argsort(times, kind="stable")
        return int(np.cumsum(steps[order]).max(initial=0))


def read_log(path: str | Path, *, time_zone: str = "UTC") -> JobsLog:
    """The jobs of a saved log, plain or packed (.gz, .zst), that began.

    It is a CSV with the columns submit, start, end, limit_min (minutes) and nodes, or the output of `sacct -P` with a
    header or of `sacct --json`. `time_zone` is that of times without one. Steps, jobs that never began and jobs that
    the log has twice are passed over; rows that cannot be read are in `refused`.

    Raises:
        InputError: the file cannot be read, lacks a column, or has no job that can be used.
    """
    path = Path(path)
    text, source = load(path).decode("utf-8-sig", "replace"), str(path)
    refused, notes = Refused(), list[str]()
    frame = sacct_output.rows(text, source, refused, save=SAVE, notes=notes)
    return _log(frame, source, time_zone, refused, notes)


def log_of_rows(rows: Iterable[Mapping[str, str]], source: str) -> JobsLog:
    """The jobs that began among rows of `sacct`, each a mapping from sacct's names of fields to text.

    `source` names them in messages. Raises InputError as `read_log` does.
    """
    frame = pl.DataFrame(list(rows), infer_schema_length=None)
    if not frame.height:
        raise InputError(f"{source} lists no jobs: there is no history to learn from")
    return _log(frame.with_row_index(LINE, 1).cast({LINE: pl.Int64}), source, "UTC", Refused(), [])


def _log(frame: pl.DataFrame, source: str, time_zone: str, refused: Refused, notes: list[str]) -> JobsLog:
    """The jobs of rows of text, as sacct or the Mirage study name their columns."""
    passed: dict[str, int] = {}

    def without(jobs: pl.DataFrame, no_job: pl.Expr, why: str) -> pl.DataFrame:
        remaining = jobs.filter(~no_job.fill_null(value=False))
        if remaining.height < jobs.height:
            passed[why] = jobs.height - remaining.height
        return remaining

    frame = _named(frame, source)
    rows, job = frame.height + refused.count, pl.coalesce("JobIDRaw", "JobID")
    frame = without(frame, job.str.contains(sacct_output.STEP), STEP)
    frame = sacct_output.add_times(frame, source, time_zone, refused, notes)
    frame = without(frame, _never_began(frame), NEVER_BEGAN)
    frame = refused.take(frame.with_columns(_limit_s().alias("limit_s"), _nodes().alias("nodes")), _rules())
    if frame.select(job.is_not_null().all()).item():  # of a job that is there twice, the row with its end counts
        frame = frame.sort(pl.col("ended").is_null(), descending=True, maintain_order=True)
        key = ["JobIDRaw", "JobID", "submitted"]
        frame = without(frame, pl.int_range(pl.len()).over(key) < pl.len().over(key) - 1, TWICE)
    if not frame.height:
        raise InputError(f"{source} has no job to learn from: {_why_none(rows, refused, passed)}")
    partitions = frame["Partition"].drop_nulls().value_counts(sort=True)
    if partitions.height > 1:
        notes.append(
            f"its jobs are of {partitions.height} partitions ({partitions[0, 0]} has {partitions[0, 1]:,} of "
            f"{frame.height:,}) and count as one queue for the same nodes; if they are not, save one: sacct -r NAME"
        )
    queued = pl.when(pl.col("eligible") <= pl.col("began")).then(pl.max_horizontal("submitted", "eligible"))
    frame = frame.with_columns(queued.fill_null(pl.col("submitted")).alias("submitted")).sort("submitted", LINE)
    submit_s, start_s, end_s = (
        frame[name].dt.epoch("us").cast(pl.Float64).to_numpy() / 1e6 for name in ("submitted", "began", "ended")
    )
    return JobsLog(
        submit_s=submit_s,
        start_s=start_s,
        end_s=np.where(np.isnan(end_s), np.inf, end_s),
        limit_s=frame["limit_s"].to_numpy(),
        nodes=frame["nodes"].to_numpy(),
        source=source,
        refused=refused.lines,
        passed=passed,
        notes=tuple(notes),
    )


def _named(frame: pl.DataFrame, source: str) -> pl.DataFrame:
    """The columns that are read, as sacct spells them, NULL for what sacct writes where nothing is known."""
    spelled = {name: _COLUMNS[name.lower()] for name in frame.columns if name.lower() in _COLUMNS}
    if len(set(spelled.values())) < len(spelled):
        raise InputError(f"{source} has a column twice, under two names; save it with: {SAVE}")
    frame = frame.rename(spelled)
    for names in (("Submit",), ("Start",), ("End",), ("TimelimitRaw", "Timelimit"), _NODES):
        if not set(names) & set(frame.columns):
            raise InputError(f"{source} has no column {names[0]}; save it with: {SAVE}")
    columns_read = set(_COLUMNS.values())
    frame = frame.select(LINE, *(name for name in frame.columns if name in columns_read))
    return sacct_output.known(frame, sorted(columns_read))


def _never_began(frame: pl.DataFrame) -> pl.Expr:
    """Jobs without a start. Some versions of sacct print the end of a job that was cancelled in the queue there."""
    cancelled = pl.col("State").str.starts_with("CANCELLED") & (pl.col("began") == pl.col("ended"))
    no_nodes = pl.col("NodeList").is_null() if frame["NodeList"].is_not_null().any() else pl.lit(False)
    return pl.col("began").is_null() | cancelled.fill_null(False) | no_nodes | (pl.col("AllocNodes") == "0")


def _limit_s() -> pl.Expr:
    """The time limit in seconds: minutes of TimelimitRaw, or `[DD-]HH:MM:SS` of Timelimit; NULL where neither says."""
    clock = pl.col("Timelimit").str.extract_groups(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)$")
    days, hours, minutes, seconds = (clock.struct.field(str(place)).cast(pl.Float64) for place in range(1, 5))
    written = 86400 * days.fill_null(0) + 3600 * hours.fill_null(0) + 60 * minutes + seconds
    unlimited = pl.any_horizontal(
        pl.col(name).str.to_uppercase().str.contains("UNLIMITED").fill_null(False)
        for name in ("TimelimitRaw", "Timelimit")
    )
    minutes_raw = pl.col("TimelimitRaw").cast(pl.Float64, strict=False)
    return pl.when(unlimited).then(UNLIMITED_S).otherwise(pl.coalesce(60 * minutes_raw, written))


def _nodes() -> pl.Expr:
    """How many nodes a job had. sacct writes 2048 as 2K unless it is told not to."""
    text = pl.coalesce("NNodes", "AllocNodes", pl.col("AllocTRES").str.extract(r"(?:^|,)node=(\d+K?)(?:,|$)"))
    thousands = pl.when(text.str.ends_with("K")).then(1024).otherwise(1)
    return text.str.strip_suffix("K").cast(pl.Int64, strict=False) * thousands


def _rules() -> list[tuple[pl.Expr, str]]:
    """Which jobs cannot be used, and why."""
    backward = "the clock was set back"
    return [
        (pl.col("submitted").is_null(), "it has no time of submission"),
        (pl.col("began") < pl.col("submitted"), f"it began before it was submitted: {backward}"),
        ((pl.col("ended") < pl.col("began")).fill_null(False), f"it ended before it began: {backward}"),
        (pl.col("limit_s").is_null(), "its time limit is not known; give TimelimitRaw in minutes"),
        (~pl.col("limit_s").is_finite() | (pl.col("limit_s") <= 0), "its time limit is not above 0"),
        (pl.col("nodes").is_null() | (pl.col("nodes") < 1), "its number of nodes is not a number of at least 1"),
    ]


def _why_none(rows: int, refused: Refused, passed: Mapping[str, int]) -> str:
    if refused.lines:
        reason, lines = max(refused.lines.items(), key=lambda entry: len(entry[1]))
        return f"of {rows} rows {len(lines)} cannot be read, the first in line {lines[0]}: {reason}"
    if passed:
        return f"of {rows} rows " + ", ".join(f"{number} are jobs {why}" for why, number in passed.items())
    return f"it has no rows; save it with: {SAVE}"
