"""What sacct says as allocations: one row a job, of a requeued job one each time; every line is accounted for."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import polars as pl

from ...errors import InputError
from ...store import hostlist
from ...store.importing import sacct_json
from ...store.importing.content import LINE, STRANGE, UNREADABLE, Refused
from ...store.importing.sacct_times import add_times
from ...store.vocabulary import EventKind
from ..slurm import DELIMITER
from . import tres
from .fields import FIELDS, FREE_TEXT, NEEDED, SAVE

_UNKNOWN = frozenset({"", "Unknown", "None", "N/A", "None assigned", "(null)", "INVALID"})
_WIDEST = 2**53  # of energy: above it a number says "unknown"
NO_GPU, NEVER_BEGAN, STEP = "without a GPU", "that never began", "steps"
T = TypeVar("T")


@dataclass
class Records:
    """What a source says. `frame` has a row for each allocation: columns of `jobs`, `nodes` (a list) and `LINE`.

    Lines that are no allocation of a GPU are counted in `passed`, those that cannot be used in `refused`.
    """

    frame: pl.DataFrame
    backward: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Events about jobs that ended before they began: whoever adds up the energy of jobs must know of them."""
    lines: int = 0
    passed: dict[str, int] = field(default_factory=dict)
    refused: Refused = field(default_factory=Refused)
    notes: list[str] = field(default_factory=list)


def read(text: str, name: str, cluster: str | None, time_zone: str | None) -> Records:
    """The allocations in the output of sacct, of the file `name`.

    `cluster` overrides the file's own column; `time_zone` is that of times which are no numbers. Raises InputError
    where the file as a whole cannot be used.
    """
    out = Records(pl.DataFrame())
    if as_json := sacct_json.fits(text):
        rows = sacct_json.rows(text, name)
        out.lines = rows.height
    else:
        rows = _cut(text, name, out)
    rows = _known(_readable(rows, out))
    if cluster is not None:
        rows = rows.with_columns(pl.lit(cluster).alias("Cluster"))
    elif rows.height and rows["Cluster"].is_null().all():
        raise InputError(f"{name} does not say which cluster it is of: give --cluster NAME")
    rows = _without_steps(rows, out)
    rows = add_times(rows, name, time_zone, out.refused, out.notes)
    rows = _pass(rows, pl.col("began").is_null() | pl.col("NodeList").is_null(), NEVER_BEGAN, out)
    rows = _with_gpus(rows, name, out)
    rows = _with_nodes(rows, out)
    backward = pl.col("ended") < pl.col("began")
    out.backward = _events(rows.filter(backward), name)
    rows = out.refused.take(
        rows,
        [
            (backward.fill_null(False), "it ended before it began: a clock was set back"),
            (pl.col("submitted").is_null(), "it has no time of submission"),
            (pl.col("JobIDRaw").is_null(), "it has no job id"),
            (pl.col("Cluster").is_null(), "it names no cluster"),
        ],
    )
    out.frame = _newest(_columns(rows), out)
    if as_json and out.refused.count:
        out.notes.append(f"{name} is JSON: its line N is the job N of its list")
    return out


def _cut(text: str, name: str, out: Records) -> pl.DataFrame:
    """The lines as columns of text, with `LINE`."""
    lines = pl.DataFrame({"text": text.split("\n")}).with_columns(pl.int_range(1, pl.len() + 1).alias(LINE))
    lines = lines.with_columns(pl.col("text").str.strip_chars_end("\r")).filter(pl.col("text") != "")
    if not lines.height:
        raise InputError(f"{name} is empty; save it again, for example with: {SAVE}")
    header = lines["text"][0].lstrip("\ufeff")
    if "\0" in header:  # UTF-16, as PowerShell redirects output
        raise InputError(f"{name} is not text in UTF-8 (it holds zero bytes); save it in UTF-8")
    delimiter = max(f"{DELIMITER}|;,\t", key=header.count)
    names = [one.strip().strip('"') for one in header.split(delimiter)]
    if names[-1] == "":  # sacct -p ends each line with the delimiter
        names.pop()
        lines = lines.with_columns(pl.col("text").str.strip_suffix(delimiter))
    if header.startswith("JobId="):
        raise InputError(f"{name} is what scontrol shows of jobs: read it with whorl import {name}")
    missing = [one for one in NEEDED if one not in names]
    if "JobIDRaw" in missing and "State" not in names:
        raise InputError(
            f"{name} is no output of sacct -P: its first line names no columns; save it with: {SAVE}. Of another "
            "scheduler, write who had which GPU as a CSV with job_id, node, gpu, began, ended, for whorl import"
        )
    if missing:
        raise InputError(f"{name} has no column {missing[0]}; save it with: {SAVE}")
    if len(set(names)) < len(names):
        twice = next(one for one in names if names.count(one) > 1)
        raise InputError(f"{name} has the column {twice} twice; save it with: {SAVE}")
    lines = lines.slice(1)
    out.lines = lines.height
    fields = lines.select(LINE, pl.col("text").str.split(delimiter).alias("fields"))
    if delimiter in ",;\t" and lines["text"].str.contains('"', literal=True).any():  # a spreadsheet or pandas wrote it
        cut = [_quoted(text, delimiter) for text in lines["text"]]
        fields = lines.select(LINE, pl.Series("fields", cut, pl.List(pl.String)))
    if delimiter == "," and len(fields) and (fields["fields"].list.len() > len(names)).all():
        raise InputError(f"{name} is parted by commas, which stand in its fields too; save it with: {SAVE}")
    return _even(fields, names, delimiter, out)


def _quoted(text: str, delimiter: str) -> list[str]:
    """The fields of a line by the rules of CSV; the line as one field where it breaks them."""
    try:
        return next(csv.reader([text], delimiter=delimiter))
    except csv.Error:
        return [text]


def _even(fields: pl.DataFrame, names: list[str], delimiter: str, out: Records) -> pl.DataFrame:
    """Rows of as many fields as the header has. Text that a user chose may hold the delimiter or a line break."""
    free = [one for one in names if one in FREE_TEXT]
    if free:
        out.notes.append(
            f"the column {free[0]} holds text that users choose: a line break in it can pass for a job of somebody "
            "else; save the file without it"
        )
    more = pl.col("fields").list.len().cast(pl.Int64) - len(names)
    if len(free) == 1:  # what is too much belongs to it
        at = names.index(free[0])
        joined = pl.concat_list(
            pl.col("fields").list.head(at),
            pl.col("fields").list.slice(at, more + 1).list.join(delimiter),
            pl.col("fields").list.slice(at + more + 1),
        )
        fields = fields.with_columns(pl.when(more > 0).then(joined).otherwise("fields").alias("fields"))
    counts = sorted(fields["fields"].list.len().unique().to_list())
    rules = [
        (pl.col("fields").list.len() == n, f"it has {n} fields, but the header names {len(names)}")
        for n in counts
        if n != len(names)
    ]
    kept = out.refused.take(fields, rules) if rules else fields
    return kept.select(LINE, *(pl.col("fields").list.get(i).str.strip_chars().alias(n) for i, n in enumerate(names)))


def _readable(rows: pl.DataFrame, out: Records) -> pl.DataFrame:
    """Rows of text. Two names that are not UTF-8 would become one: energy by user would add them up."""
    strange = pl.any_horizontal(pl.col(n).str.contains(UNREADABLE) for n in rows.columns if n in FIELDS)
    return out.refused.take(rows, [(strange, STRANGE)])


def _known(rows: pl.DataFrame) -> pl.DataFrame:
    """What stands for "unknown" as NULL, and every column that this reader looks at."""
    texts = [name for name in rows.columns if name != LINE]
    rows = rows.with_columns(pl.when(~pl.col(n).is_in(_UNKNOWN)).then(pl.col(n)).alias(n) for n in texts)
    return rows.with_columns(pl.lit(None, pl.String).alias(n) for n in FIELDS if n not in rows.columns)


def _without_steps(rows: pl.DataFrame, out: Records) -> pl.DataFrame:
    """Jobs without their steps, which lie within them.

    The energy of a job does not contain that of its batch step: it is the most of its own, its batch step's and the
    sum of the other steps'. If a job ran several times, its steps cannot be told apart, and count for nothing.
    """
    energy = pl.col("ConsumedEnergyRaw").cast(pl.Int64, strict=False)
    rows = rows.with_columns(pl.when((energy > 0) & (energy < _WIDEST)).then(energy).alias("job_energy_j"))
    parts = pl.col("JobIDRaw").str.split_exact(".", 1).struct
    rows = rows.with_columns(parts[0].alias("raw"), parts[1].alias("step"))
    steps = rows.filter(pl.col("step").is_not_null())
    if not steps.height:
        return rows
    out.passed[STEP] = steps.height
    whole = pl.col("step").is_in(["batch", "extern"])
    of_steps = steps.group_by("raw").agg(
        pl.max_horizontal(
            pl.col("job_energy_j").filter(whole).max(), pl.col("job_energy_j").filter(~whole).sum()
        ).alias("steps_j")
    )
    jobs = rows.filter(pl.col("step").is_null()).join(of_steps, on="raw", how="left", maintain_order="left")
    once = pl.len().over("raw") == 1
    most = pl.max_horizontal("job_energy_j", pl.when(once & (pl.col("steps_j") > 0)).then("steps_j"))
    return jobs.with_columns(most.alias("job_energy_j"))


def _pass(rows: pl.DataFrame, which: pl.Expr, why: str, out: Records) -> pl.DataFrame:
    kept = rows.filter(~which)
    if kept.height < rows.height:
        out.passed[why] = out.passed.get(why, 0) + rows.height - kept.height
    return kept


def _with_gpus(rows: pl.DataFrame, name: str, out: Records) -> pl.DataFrame:
    """The GPUs that AllocTRES counts; jobs without any are left out."""
    found = _each(rows["AllocTRES"], tres.gpus)
    rows = rows.with_columns(
        pl.Series("job_gpus", [one.count for one in found], pl.Int64),
        pl.Series("gpu_type", [one.type for one in found], pl.String),
        pl.Series("shared", [one.shared for one in found], pl.Boolean),
    )
    too_many = (pl.col("job_gpus") >= tres.MOST_GPUS).fill_null(False)
    rows = out.refused.take(rows, [(too_many, "AllocTRES counts more GPUs than any cluster has")])
    kept = _pass(rows, pl.col("job_gpus").is_null() & ~pl.col("shared"), NO_GPU, out)
    if rows.height and not kept.height:
        out.notes.append(
            f"no job of {name} has gres/gpu in AllocTRES: if they used GPUs, Slurm does not count them (add gres/gpu "
            "to AccountingStorageTRES in slurm.conf)"
        )
    return kept


def _with_nodes(rows: pl.DataFrame, out: Records) -> pl.DataFrame:
    """The nodes as lists of names."""
    nodes = _each(rows["NodeList"], _expand)
    rows = rows.with_columns(pl.Series("nodes", nodes, pl.List(pl.String)))
    wrong = pl.col("nodes").list.len() != pl.col("NNodes").cast(pl.Int64, strict=False)
    return out.refused.take(
        rows,
        [
            (pl.col("nodes").is_null(), "NodeList is no list of nodes"),
            (wrong.fill_null(False), "NodeList does not have as many nodes as NNodes says: it was cut"),
        ],
    )


def _expand(hosts: str | None) -> list[str] | None:
    try:
        return hostlist.expand(hosts or "") or None
    except InputError:
        return None


def _each(values: pl.Series, work: Callable[[str | None], T]) -> list[T]:
    """`work` of each value, done once for each that differs: jobs repeat each other."""
    known: dict[str | None, T] = {value: work(value) for value in values.unique().to_list()}
    texts: Iterable[str | None] = values.to_list()
    return [known[value] for value in texts]


def _columns(rows: pl.DataFrame) -> pl.DataFrame:
    """The columns of `jobs` that concern the job as a whole, and `nodes`, `shared` and LINE."""
    exit_code = pl.col("ExitCode").str.extract_groups(r"^([0-9]+):([0-9]+)$").struct
    over = pl.col("ended").is_not_null()
    submitted = pl.col("submitted").dt.epoch("s").cast(pl.String)
    return rows.select(
        pl.col("Cluster").alias("cluster"),
        (pl.col("JobIDRaw") + "@" + submitted).alias("allocation"),
        pl.coalesce("JobID", "JobIDRaw").alias("job_id"),
        pl.col("JobIDRaw").alias("raw_id"),
        pl.col("Restarts").cast(pl.Int64, strict=False).alias("restart"),
        pl.coalesce("User", "UID").alias("user"),
        pl.col("Account").alias("account"),
        pl.col("Partition").alias("partition"),
        pl.col("QOS").alias("qos"),
        pl.col("State").str.extract(r"^([A-Z_]+)").alias("state"),
        pl.when(over).then(exit_code[0].cast(pl.Int64, strict=False)).alias("exit_code"),
        pl.when(over).then(exit_code[1].cast(pl.Int64, strict=False)).alias("exit_signal"),
        "submitted",
        "eligible",
        "began",
        "ended",
        pl.col("gpu_type"),
        pl.col("job_gpus"),
        pl.col("nodes").list.len().cast(pl.Int64).alias("job_nodes"),
        (pl.col("TimelimitRaw").cast(pl.Int64, strict=False) * 60).alias("time_limit_s"),
        pl.col("ReqTRES").alias("requested"),
        pl.col("AllocTRES").alias("allocated"),
        pl.col("job_energy_j"),
        "nodes",
        "shared",
        LINE,
    )


def _events(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Events `job_refused` about jobs that ended before they began."""
    job = pl.coalesce("JobID", "JobIDRaw")
    said = "job {} is not stored: it ended before it began ({}, line {})"
    return rows.select(
        pl.col("began").alias("ts"),
        pl.col("Cluster").alias("cluster"),
        pl.lit(EventKind.JOB_REFUSED.value).alias("kind"),
        pl.when(pl.col("nodes").list.len() == 1).then(pl.col("nodes").list.first()).alias("node"),
        job.alias("job_id"),
        (pl.col("ended") - pl.col("began")).dt.total_nanoseconds().alias("duration_ns"),
        pl.format(said, job.fill_null("without a number"), pl.lit(name), LINE).alias("detail"),
    )


def _newest(frame: pl.DataFrame, out: Records) -> pl.DataFrame:
    """One row an allocation. A file may have it twice, as it was and as it is: one that has ended counts."""
    key = ["cluster", "allocation"]
    kept = frame.sort(pl.col("ended").is_null(), pl.col(LINE), descending=[True, False]).unique(
        key, keep="last", maintain_order=True
    )
    if kept.height < frame.height:
        again = frame.height - kept.height
        out.passed["that the file has twice"] = again
    return kept.sort(LINE)
