"""What `sacct` says as allocations: one row a job, of a requeued job one each time; every line is accounted for.

Free text that users choose (JobName, Comment, ...) is never asked for: it may hold the delimiter and line breaks, and
could pass for rows of other jobs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import polars as pl

from ...errors import InputError, SchedulerError
from ...store import hostlist
from ...store.importing import sacct_output
from ...store.importing.content import LINE, STRANGE, UNREADABLE, Refused
from ...store.importing.sacct_output import add_times
from ...store.vocabulary import EventKind
from ..slurm import Slurm

NEEDED = ("JobIDRaw", "State", "NodeList", "Submit", "Start", "End", "AllocTRES")
FIELDS = (
    *NEEDED, "JobID", "Cluster", "User", "UID", "Account", "Partition", "QOS", "ExitCode", "NNodes", "Eligible",
    "ElapsedRaw", "TimelimitRaw", "ReqTRES", "ConsumedEnergyRaw",
    "Restarts",  # not in 22.05
)  # fmt: skip
SAVE = (
    "SLURM_TIME_FORMAT=%s sacct -a -X -P -D -S 2026-11-01 -o JobIDRaw,JobID,Cluster,User,Account,Partition,QOS,State,"
    "ExitCode,NodeList,NNodes,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,ReqTRES,AllocTRES,ConsumedEnergyRaw"
)
"""A command whose output whorl reads."""
NO_GPU, NEVER_BEGAN, STEP, AGAIN = "without a GPU", "that never began", "steps", "that the file has twice"
SHARDS = r"(?:^|,)gres/(?:shard|mps)(?::[^=,]+)?=[1-9]"  # in AllocTRES: parts of GPUs
_WIDEST = 2**53  # of energy: above it a number says "unknown"
_MOST_GPUS = 10_000_000  # no cluster has them, and the tables could not hold more
_KEY = ["cluster", "allocation"]


@dataclass
class Accounts:
    """What a source says of allocations of GPUs.

    `frame` has a row for each: columns of `jobs`, `nodes` (a list), `shared` (parts of GPUs) and `LINE`. Lines that are
    no allocation of a GPU are counted in `passed`, those that cannot be used in `refused`. `backward` has events about
    jobs that ended before they began: who adds up the energy of jobs must know of them.
    """

    frame: pl.DataFrame = field(default_factory=pl.DataFrame)
    backward: pl.DataFrame = field(default_factory=pl.DataFrame)
    lines: int = 0
    passed: dict[str, int] = field(default_factory=dict)
    refused: Refused = field(default_factory=Refused)
    notes: list[str] = field(default_factory=list)

    def pass_over(self, rows: pl.DataFrame, passed: pl.Expr, why: str) -> pl.DataFrame:
        """The rows without those that are `passed`, which are counted."""
        remaining = rows.filter(~passed)
        if remaining.height < rows.height:
            self.passed[why] = self.passed.get(why, 0) + rows.height - remaining.height
        return remaining


def ask(since: datetime, until: datetime | None) -> str:
    """What `sacct` says of all jobs from `since` to `until` (UTC), a line for each, times in s since 1970.

    Raises SchedulerError where there is no sacct, or accounting is off or does not answer.
    """
    slurm = Slurm()
    columns = {name.lower() for name in slurm.account_columns()}
    missing = [name for name in NEEDED if name.lower() not in columns]
    if missing:
        raise SchedulerError(f"this sacct has no field {missing[0]}: whorl reads those of Slurm 22.05 and later")
    return slurm.accounts([name for name in FIELDS if name.lower() in columns], since, until)


def read(text: str, name: str, cluster: str | None, time_zone: str | None) -> Accounts:
    """The allocations in the output of sacct, of the file `name`.

    `cluster` overrides the file's own column; `time_zone` is that of times which are no numbers. Raises InputError
    where the file as a whole cannot be used.
    """
    accounts = Accounts()
    check = partial(_check_header, name=name)
    rows = sacct_output.rows(text, name, accounts.refused, save=SAVE, notes=accounts.notes, check=check)
    accounts.lines = rows.height + accounts.refused.count
    # Two names that are not UTF-8 would become one, and energy by user would add them up.
    strange = pl.any_horizontal(pl.col(name).str.contains(UNREADABLE) for name in rows.columns if name in FIELDS)
    rows = sacct_output.known(accounts.refused.take(rows, [(strange, STRANGE)]), FIELDS)
    if cluster is not None:
        rows = rows.with_columns(pl.lit(cluster).alias("Cluster"))
    elif rows.height and rows["Cluster"].is_null().all():
        raise InputError(f"{name} does not say which cluster it is of: give --cluster NAME")
    rows = _without_steps(rows, accounts)
    rows = add_times(rows, name, time_zone, accounts.refused, accounts.notes)
    rows = accounts.pass_over(rows, pl.col("began").is_null() | pl.col("NodeList").is_null(), NEVER_BEGAN)
    rows = _with_nodes(_with_gpus(rows, name, accounts), accounts)
    backward = (pl.col("ended") < pl.col("began")).fill_null(False)
    accounts.backward = _events(rows.filter(backward), name)
    rows = accounts.refused.take(
        rows,
        [
            (backward, "it ended before it began: a clock was set back"),
            (pl.col("submitted").is_null(), "it has no time of submission"),
            (pl.col("JobIDRaw").is_null(), "it has no job id"),
            (pl.col("Cluster").is_null(), "it names no cluster"),
        ],
    )
    # A file may have an allocation twice, as it was and as it is: one that has ended counts.
    rows = _columns(rows).sort(pl.col("ended").is_null(), LINE, descending=[True, False])
    twice = pl.int_range(pl.len()).over(_KEY) < pl.len().over(_KEY) - 1
    accounts.frame = accounts.pass_over(rows, twice, AGAIN).sort(LINE)
    if sacct_output.is_json(text) and accounts.refused.count:
        accounts.notes.append(f"{name} is JSON: its line N is the job N of its list")
    return accounts


def _check_header(header: str, names: Sequence[str], name: str) -> None:
    """Raise InputError where the first line of a file is not that of sacct."""
    if header.startswith("JobId="):
        raise InputError(f"{name} is what scontrol shows of jobs: read it with whorl import {name}")
    missing = [column for column in NEEDED if column not in names]
    if "JobIDRaw" in missing and "State" not in names:
        raise InputError(
            f"{name} is no output of sacct -P: its first line names no columns; save it with: {SAVE}. Of another "
            "scheduler, write who had which GPU as a CSV with job_id, node, gpu, began, ended, for whorl import"
        )
    if missing:
        raise InputError(f"{name} has no column {missing[0]}; save it with: {SAVE}")


def _without_steps(rows: pl.DataFrame, accounts: Accounts) -> pl.DataFrame:
    """Jobs with `job_energy_j`, without their steps, which lie within them.

    The energy of a job does not contain that of its batch step: it is the most of its own, its batch step's and the
    sum of the other steps'. If a job ran several times, its steps cannot be told apart, and count for nothing.
    """
    energy = pl.col("ConsumedEnergyRaw").cast(pl.Int64, strict=False)
    parts = pl.col("JobIDRaw").str.split_exact(".", 1).struct
    rows = rows.with_columns(
        pl.when((energy > 0) & (energy < _WIDEST)).then(energy).alias("job_energy_j"),
        parts[0].alias("raw"),
        parts[1].alias("step"),
    )
    steps = rows.filter(pl.col("step").is_not_null())
    if not steps.height:
        return rows
    whole_job = pl.col("step").is_in(["batch", "extern"])
    joules = pl.col("job_energy_j")
    most = pl.max_horizontal(joules.filter(whole_job).max(), joules.filter(~whole_job).sum()).alias("steps_j")
    jobs = accounts.pass_over(rows, pl.col("step").is_not_null(), STEP)
    jobs = jobs.join(steps.group_by("raw").agg(most), on="raw", how="left", maintain_order="left")
    once = (pl.len().over("raw") == 1) & (pl.col("steps_j") > 0)
    return jobs.with_columns(pl.max_horizontal("job_energy_j", pl.when(once).then("steps_j")).alias("job_energy_j"))


def _with_gpus(rows: pl.DataFrame, name: str, accounts: Accounts) -> pl.DataFrame:
    """The GPUs that AllocTRES counts (billing=8,gres/gpu:v100=4,gres/gpu=4); jobs without any are left out.

    The untyped count is the sum of the typed ones and not one more; `gpu_type` is NULL for several types.
    """
    text = pl.col("AllocTRES").fill_null("")
    typed = text.str.extract_all(r"(?:^|,)gres/gpu:[^=,]+=\d+(?:,|$)").list
    counts = typed.eval(pl.element().str.extract(r"=(\d+)").cast(pl.Int64, strict=False).fill_null(_MOST_GPUS))
    untyped = pl.coalesce(
        text.str.extract(r"(?:^|,)gres/gpu=(\d{1,15})(?:,|$)").cast(pl.Int64),
        pl.when(text.str.contains(r"(?:^|,)gres/gpu=\d{16,}(?:,|$)")).then(_MOST_GPUS),
    )
    count = pl.coalesce(untyped, counts.list.sum())
    of_one_type = (typed.len() == 1) & (counts.list.sum() == count)
    rows = rows.with_columns(
        pl.when(count > 0).then(count).alias("job_gpus"),
        pl.when(of_one_type).then(typed.first().str.extract(r"gpu:([^=,]+)=")).alias("gpu_type"),
        text.str.contains(SHARDS).alias("shared"),
    )
    too_many = (pl.col("job_gpus") >= _MOST_GPUS).fill_null(False)
    is_cut = text.str.ends_with("+")
    rules = [(too_many, "AllocTRES counts more GPUs than any cluster has"), (is_cut, "AllocTRES was cut; give -P")]
    rows = accounts.refused.take(rows, rules)
    with_gpus = accounts.pass_over(rows, pl.col("job_gpus").is_null() & ~pl.col("shared"), NO_GPU)
    if rows.height and not with_gpus.height:
        accounts.notes.append(
            f"no job of {name} has gres/gpu in AllocTRES: if they used GPUs, Slurm does not count them (add gres/gpu "
            "to AccountingStorageTRES in slurm.conf)"
        )
    return with_gpus


def _with_nodes(rows: pl.DataFrame, accounts: Accounts) -> pl.DataFrame:
    """The nodes as lists of names. Jobs repeat each other's lists: each is read once."""
    names: dict[str, list[str] | None] = dict.fromkeys(rows["NodeList"].unique().to_list())
    for hosts in names:
        with contextlib.suppress(InputError):
            names[hosts] = hostlist.expand(hosts) or None
    nodes = pl.Series("nodes", [names[hosts] for hosts in rows["NodeList"]], pl.List(pl.String))
    wrong = pl.col("nodes").list.len() != pl.col("NNodes").cast(pl.Int64, strict=False)
    return accounts.refused.take(
        rows.with_columns(nodes),
        [
            (pl.col("NodeList").str.ends_with("+"), "NodeList was cut; give -P"),
            (pl.col("nodes").is_null(), "NodeList is no list of nodes"),
            (wrong.fill_null(False), "NodeList does not have as many nodes as NNodes says: it was cut"),
        ],
    )


def _columns(rows: pl.DataFrame) -> pl.DataFrame:
    """The columns of `jobs` that concern the job as a whole, and `nodes`, `shared` and LINE."""
    exit_code = pl.col("ExitCode").str.extract_groups(r"^([0-9]+):([0-9]+)$").struct
    over = pl.col("ended").is_not_null()
    return rows.select(
        pl.col("Cluster").alias("cluster"),
        (pl.col("JobIDRaw") + "@" + pl.col("submitted").dt.epoch("s").cast(pl.String)).alias("allocation"),
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
        "gpu_type",
        "job_gpus",
        pl.col("nodes").list.len().cast(pl.Int64).alias("job_nodes"),
        (pl.col("TimelimitRaw").cast(pl.Int64, strict=False) * 60).alias("time_limit_s"),
        pl.col("ReqTRES").alias("requested"),
        pl.col("AllocTRES").alias("allocated"),
        "job_energy_j",
        "nodes",
        "shared",
        LINE,
    )


def _events(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    """Events `job_refused` about jobs that ended before they began."""
    job = pl.coalesce("JobID", "JobIDRaw")
    sentence = "job {} is not stored: it ended before it began ({}, line {})"
    return rows.select(
        pl.col("began").alias("ts"),
        pl.col("Cluster").alias("cluster"),
        pl.lit(EventKind.JOB_REFUSED.value).alias("kind"),
        pl.when(pl.col("nodes").list.len() == 1).then(pl.col("nodes").list.first()).alias("node"),
        job.alias("job_id"),
        (pl.col("ended") - pl.col("began")).dt.total_nanoseconds().alias("duration_ns"),
        pl.format(sentence, job.fill_null("without a number"), pl.lit(name), LINE).alias("detail"),
    )
