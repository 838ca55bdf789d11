"""Slurm, by what `scontrol`, `squeue`, `sbatch`, `scancel` and `sacct` print; tried on 22.05.

The text form of `scontrol -o` is read, which every version has, and fields that are not known are passed over. Times
are asked for as seconds, so that neither a time zone nor a change of the clock matters.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import grp
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, SchedulerError
from ..store.hostlist import expand
from .batch import BatchJob
from .scheduler import APART, Node, Partition, QueuedJob, Scheduler, message_of, one_line, utc_time

if TYPE_CHECKING:
    from ..analysis.chains.waits import QueueState

_KIND = ["Arch", "Boards", "Sockets", "CoresPerSocket", "ThreadsPerCore", "CPUTot", "CPUEfctv", "CoreSpecCount"]
_KIND += ["CPUSpecList", "MemSpecLimit", "RealMemory", "TmpDisk", "Gres", "CfgTRES", "RestrictedCoresPerGPU"]
_UNUSABLE = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "INVAL", "INVALID_REG", "UNKNOWN"}
_UNUSABLE |= {"FUTURE", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "NO_RESPOND", "POWER_DOWN", "POWERING_DOWN"}
_SUFFIXES = "*~#!%$@^-"  # of states of nodes: does not answer, sleeps, starts, ...
_START, _ON_NODES = re.compile(r"to start at (\S+)"), re.compile(r" on nodes (\S+)")
_HELD = ("JobHeldAdmin", "JobHeldUser", "launch failed requeued held", "launch_failed_requeued_held", "BadConstraints")
_QUEUED = ("%A", "%T", "%r", "%U", "%S", "%e", "%N", "%j", "%k")  # free text stands last
_HISTORY = ("JobIDRaw", "Partition", "State", "Submit", "Eligible", "Start", "End", "TimelimitRaw", "NNodes")
_LONG_S = 900.0  # that sacct may take
_RECENT = dt.timedelta(days=2)
_NOT_QUEUED = (*_HELD, "Dependency", "BeginTime", "DependencyNeverSatisfied")  # why a job waits, but not for nodes
_LONGEST_S = 365 * 86_400.0  # what a job without a time limit counts as
_LIMIT = re.compile(r"(?:\d+-)?\d+(?::\d+){0,2}")
_NONE = {"", "(null)", "N/A", "n/a", "None"}  # how Slurm spells that there is no value
_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, or the tasks of an array that are alike, as `scontrol show job` has them."""

    id: str  # as `scontrol update` takes it: 12, 12_3, 12_[3-5]
    state: str
    reason: str = ""  # why it waits, in a word: Resources, BadConstraints
    start: dt.datetime | None = None  # when it started, or Slurm expects that it does: UTC
    user: str = ""
    uid: int | None = None
    partitions: tuple[str, ...] = ()
    gpus: int = 0  # GPUs that it asks for
    limit_s: float = math.inf
    required: str = ""  # the host list that it asks for
    excluded: str = ""  # the host list that it avoids, as it was written
    comment: str = ""
    admin_comment: str = ""
    strict: str = ""  # why its nodes must not be changed, a clause for people; "" where they may

    def blocked_by(self, *reasons: str) -> bool:
        """Whether it waits for one of these reasons, behind which Slurm may write nodes."""
        return self.reason in reasons


@dataclass(frozen=True, slots=True)
class Wait:
    """How much later a job would start for an exclusion: seconds, or None and the reason."""

    extra_s: float | None
    reason: str | None = None


class Slurm(Scheduler):
    """The Slurm of this machine, asked through its commands."""

    name, title, tried, ping = "slurm", "Slurm", True, "scontrol ping"
    unconfigured = re.compile("configuration source")
    unreachable = re.compile("[Uu]nable to contact|connect failure|Connection refused")
    hides = ("SQUEUE_", "SACCT_", "SCANCEL_")
    variables = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}  # noqa: RUF012  lists of tasks in full
    submits, number = ("sbatch", "--parsable"), re.compile(r"^(\d+)(?:;.*)?$", re.MULTILINE)
    # SBATCH_ACCOUNT and others stay as the user set them.
    overrides = (
        *("SBATCH_ARRAY", "SBATCH_ERROR", "SBATCH_EXCLUSIVE", "SBATCH_GPU", "SBATCH_GRES", "SBATCH_JOB_NAME"),
        *("SBATCH_MEM", "SBATCH_NO_REQUEUE", "SBATCH_OPEN_MODE", "SBATCH_OUTPUT", "SBATCH_PARTITION"),
        *("SBATCH_TIMELIMIT", "SBATCH_WAIT"),
    )
    busy = re.compile(
        "submit limit|temporarily unable|try again|MaxSubmit|MaxJobCount|in a state of transition|slow it down|"
        "Job limit|could not be processed at this time",
        re.IGNORECASE,
    )
    no_node = re.compile(
        "node configuration is not available|Invalid node name|node name specified|nodes? .* not (?:available|in)",
        re.IGNORECASE,
    )
    unsure = re.compile("timed out|Zero Bytes", re.IGNORECASE)
    cancels, gone = ("scancel",), re.compile("Invalid job id|already complet")

    def not_configured(self) -> str:
        return "no Slurm is configured here: set SLURM_CONF if it is elsewhere"

    def not_reached(self, command: str) -> str:
        if command == "sacct":
            return "Slurm's accounting does not answer: check that slurmdbd and its database run"
        return "Slurm's controller does not answer: check it with `scontrol ping`"

    def check(self) -> None:
        self.configured()
        done = self.ask("scontrol", "ping")  # at once, where other commands would wait for a controller
        if "configuration file" in done.stderr:
            raise SchedulerError(f"Slurm's commands cannot use slurm.conf: {one_line(done.stderr)}")
        if " is UP" not in done.stdout:
            message = one_line(done.stdout.partition("*")[0]) or one_line(done.stderr) or "no answer"
            raise SchedulerError(f"Slurm's controller does not answer: {message}")

    def configured(self) -> None:
        """Raise SchedulerError where SLURM_CONF names no file: Slurm's commands would wait a minute for it."""
        configuration = self.environment.get("SLURM_CONF")
        if configuration and not Path(configuration).exists():
            raise SchedulerError(f"SLURM_CONF names {configuration}, which does not exist")

    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in filter(None, map(node, self._shown("nodes")))}

    def partitions(self) -> dict[str, Partition]:
        return {partition.name: partition for partition in filter(None, map(partition, self._shown("partitions")))}

    def cluster_name(self) -> str | None:
        return self.configuration().get("ClusterName") or None

    def configuration(self) -> dict[str, str]:
        """What `scontrol show config` prints, by name."""
        lines = (line.partition("=") for line in self.call("scontrol", "show", "config").splitlines())
        return {key.strip(): setting.strip() for key, separator, setting in lines if separator}

    def backfill_interval_s(self) -> float:
        """The time between two looks at the whole queue, in which Slurm plans starts."""
        match = re.search(r"bf_interval=(\d+)", self.configuration().get("SchedulerParameters", ""))
        return float(match[1]) if match else 30.0  # what Slurm takes by itself

    def queued_jobs(self, user: int | None) -> Iterable[QueuedJob]:
        owner = [] if user is None else [f"--user={user}"]
        return [queued_job(row) for row in self._queue(_QUEUED, "-t", "all", *owner)]

    def _queue(self, columns: Sequence[str], *options: str) -> list[list[str]]:
        """The rows that squeue prints of these columns."""
        return self.rows(columns, "squeue", "-h", "-a", *options, "-o")

    def _shown(self, *words: str) -> list[str]:
        """The lines of `scontrol -o show`."""
        return self.call("scontrol", "-o", "show", *words).splitlines()

    def render(self, job: BatchJob, template: Path | None = None) -> str:
        output = None if job.output is None else job.output.replace("%", "%%")  # sbatch replaces %j and others
        return super().render(replace(job, output=output), template)

    def update(self, job: str, **settings: str) -> None:
        """Change a job that waits: `update("12", ExcNodeList="n[01-02]")`, names as `scontrol update` has them."""
        self.call("scontrol", "update", f"JobId={job}", *(f"{key}={value}" for key, value in settings.items()))

    def release(self, job: str) -> None:
        """Let a job go that its owner holds, or that Slurm holds because it can run nowhere."""
        self.call("scontrol", "release", job)

    def test_start(self, options: Sequence[str], script: str | None = None) -> dt.datetime | None:
        """When a job would start if it were submitted, by `sbatch --test-only`: UTC, None where Slurm names no time.

        It may be asked with `options` of sbatch, or those of a script. Nothing is submitted. Raises SchedulerError
        where Slurm would refuse the job.
        """
        match = _START.search(self._tested(options, script))
        return utc_time(match[1]) if match else None

    def test_nodes(self, options: Sequence[str], script: str) -> int | None:
        """How many nodes a job would have if it were submitted, as `test_start`; None where Slurm names none."""
        match = _ON_NODES.search(self._tested(options, script))
        return len(expand(match[1])) if match else None

    def _tested(self, options: Sequence[str], script: str | None) -> str:
        """What `sbatch --test-only` prints. Raises SchedulerError."""
        # An opt-in filter of the site's would exclude nodes of its own.
        wrap = ["--wrap=true"] if script is None else []
        done = self.ask("sbatch", "--test-only", *options, *wrap, text=script, without=["WHORL_ADVISE"])
        if done.returncode:
            raise SchedulerError(f"Slurm would refuse this job: {message_of(done)}")
        return done.stderr + done.stdout

    def history(self, since: dt.datetime, until: dt.datetime | None = None) -> Iterator[Mapping[str, str]]:
        """The jobs of all users since a time, as accounting shows them; each try of a job that was requeued is a row.

        A row has what sacct prints: Submit, Eligible, Start and End in seconds since 1970 (UTC) or a word such as
        Unknown, TimelimitRaw in minutes, NNodes, State, Partition. Raises SchedulerError.
        """
        lines = (line.split(APART) for line in self.accounts(_HISTORY, since, until).splitlines())
        head = next(lines, [])
        yield from (dict(zip(head, line, strict=True)) for line in lines if len(line) == len(head))

    def accounts(
        self, columns: Sequence[str], since: dt.datetime, until: dt.datetime | None, *, user: int | None = None
    ) -> str:
        """What `sacct` prints of the jobs since a time (UTC where it has no zone): a head, and a line each; times in s.

        Of all users, or of the one with a number. Raises SchedulerError, `absent` where Slurm keeps no accounts.
        """
        span = [f"--starttime={_utc(since)}"] + ([f"--endtime={_utc(until)}"] if until else [])
        form = ("--parsable2", f"--delimiter={APART}", f"--format={','.join(columns)}")
        owner = "--allusers" if user is None else f"--user={user}"
        return self._sacct(owner, "--allocations", "--duplicates", *form, *span)

    def account_columns(self) -> list[str]:
        """The columns that this version of `sacct` has. Raises SchedulerError as `accounts`."""
        return self._sacct("--helpformat").split()

    def _sacct(self, *options: str) -> str:
        self.configured()
        done = self.ask("sacct", *options, variables=self.variables | {"TZ": "UTC"}, timeout_s=_LONG_S)
        if done.returncode and "accounting storage is disabled" in done.stderr:
            raise SchedulerError(
                "Slurm keeps no accounts here (AccountingStorageType in slurm.conf): tags of the prolog and epilog can "
                "stand in for them, see `whorl jobs tag`",
                absent=True,
            )
        if done.returncode:
            raise SchedulerError(f"Slurm's accounting does not tell its jobs: {message_of(done)}")
        return done.stdout

    def queue_state(self, cluster_nodes: int | None = None, partition: str | None = None) -> QueueState:
        """The queue at this moment, of a partition, several with commas or all: what a wait is predicted from.

        `cluster_nodes` defaults to the nodes that run jobs. Jobs that are held, or wait for another job or for a time,
        do not queue for nodes: they are left out. A job without a time limit counts as one of a year. The waits of
        jobs that started lately come from accounting, or where there is none, from the jobs that the queue still shows.
        """
        import numpy as np

        from ..analysis.chains.waits import RECENT_WAITS, QueueState

        chosen, names = ([f"--partition={partition}"], set(partition.split(","))) if partition else ([], set())
        pending, running, waits_s, now_s = [], [], [], dt.datetime.now(dt.UTC).timestamp()
        columns = ("%T", "%r", "%D", "%l", "%V", "%S", "%e", "%Q")
        for state, reason, nodes, limit, submit, start, end, priority in self._queue(
            columns, "-r", "-t", "all", *chosen
        ):
            if state == "PENDING" and reason not in _NOT_QUEUED and submit.isdigit():
                pending.append((-int(priority or 0), float(submit), int(nodes), min(60 * _minutes(limit), _LONGEST_S)))
            elif state in ("RUNNING", "SUSPENDED"):
                running.append((int(nodes), float(end) if end.isdigit() else now_s + _LONGEST_S))
            if state != "PENDING" and start.isdigit():
                waits_s.append((float(start), float(start) - float(submit)))
        with contextlib.suppress(SchedulerError):
            rows = list(self.history(dt.datetime.now(dt.UTC) - _RECENT))
            began = [row for row in rows if row["Start"].isdigit() and row["Eligible"].isdigit()]
            began = [row for row in began if not names or row["Partition"] in names]
            waits_s = [(float(row["Start"]), float(row["Start"]) - float(row["Eligible"])) for row in began]
        pending.sort(key=lambda job: job[:2])
        nodes_of_all = [node for node in self.nodes().values() if node.usable]
        here = [node for node in nodes_of_all if not names or names.intersection(node.partitions)]
        return QueueState(
            now_s=now_s,
            free_nodes=sum(node.idle for node in here),
            cluster_nodes=cluster_nodes or len(here),
            pending_nodes=np.array([job[2] for job in pending], dtype=np.int64),
            pending_limit_s=np.array([job[3] for job in pending], dtype=float),
            pending_since_s=np.array([job[1] for job in pending], dtype=float),
            running_nodes=np.array([job[0] for job in running], dtype=np.int64),
            running_until_s=np.array([job[1] for job in running], dtype=float),
            recent_waits_s=np.array([wait_s for _, wait_s in sorted(waits_s)[-RECENT_WAITS:]], dtype=float),
        )

    def default_partition(self) -> str | None:
        """The partition of jobs that name none; None where there is no such."""
        return next((partition.name for partition in self.partitions().values() if partition.default), None)

    def together(self) -> list[frozenset[str]]:
        """Sets of nodes that Slurm may reserve for some jobs, at this moment or later, or within which a job must stay.

        They are those of each reservation and of each part of the network.
        """
        parts: list[tuple[int, list[str]]] = []
        for fields in map(fields_of, self.ask("scontrol", "-o", "show", "topology").stdout.splitlines()):
            if fields.get("BlockName") or fields.get("SwitchName"):
                members = expand(_text(fields.get("Nodes", "")))
                parts.append((-len(members) if fields.get("BlockName") else len(members), members))
        # Of a node the last one stays: the largest of the switches, the smallest of the blocks.
        part_of = {node: number for number, (_, members) in enumerate(sorted(parts)) for node in members}
        by_part: dict[int, set[str]] = {}
        for node, number in part_of.items():
            by_part.setdefault(number, set()).add(node)
        reserved = [expand(_text(fields_of(line).get("Nodes", ""))) for line in self._shown("reservations")]
        return [frozenset(nodes) for nodes in (*reserved, *by_part.values()) if nodes]

    def jobs(self, job: str) -> list[JobRecord]:
        """The records of a job: one, or several of an array. Raises InputError where there is no such job."""
        if not re.fullmatch(r"\d+(?:_\d+)?(?:\+\d+)?", job):
            raise InputError(
                f"{job!r} is not a job id: give one as sbatch prints it, 1234, or 1234_5 for a task of an array"
            )
        try:
            text = self.call("scontrol", "-o", "show", "job", job)
        except SchedulerError as error:
            if re.search("Invalid job id|Job .* not found", str(error)):  # the second: no such task of an array
                raise InputError(f"Slurm knows no job {job}: it may have ended long ago") from error
            raise
        parts = re.split(r"^(?=JobId=)", text, flags=re.MULTILINE)  # the name of a job may hold line breaks
        records = [record for record in map(job_record, parts) if record is not None]
        if any(record.comment for record in records):
            # In `scontrol` output a comment cannot be separated from the fields after it.
            rows = self._queue(("%i", "%k"), "-j", job.partition("_")[0])
            comments = {re.sub(r"%\d+\]$", "]", number): _text(comment) for number, comment in rows}
            records = [replace(record, comment=comments.get(record.id, record.comment)) for record in records]
        return records

    def wait_for(self, nodes: int, gpus_per_node: int, partition: str | None, excluded: str) -> Wait:
        """How much later such a job would start for excluding a host list, as `sbatch --test-only` sees it now."""
        options = [f"--nodes={nodes}", f"--gres=gpu:{gpus_per_node}"]
        options += [f"--partition={partition}"] if partition else []
        try:
            usual, later = (self.test_start([*options, *exclusion]) for exclusion in ([], [f"--exclude={excluded}"]))
        except SchedulerError as error:
            return Wait(None, str(error))
        return Wait((later - usual).total_seconds()) if usual and later else Wait(None, "Slurm gave no start time")


def fields_of(line: str) -> dict[str, str]:
    """KEY=VALUE pairs of `scontrol -o`, values with spaces too; of a key that comes twice, the first, Slurm's own."""
    parts = _KEY.split(line)  # what stands before the first key, a key, its value, a key, ...
    return dict(zip(parts[-2:0:-2], map(str.strip, parts[:1:-2]), strict=True))  # backwards: the first one stays


def _text(value: str) -> str:
    """A value, "" where it says that there is none."""
    return "" if value in _NONE else value


def _names(value: str) -> tuple[str, ...]:
    """The parts of a list with commas."""
    return tuple(name for name in value.split(",") if name not in _NONE)


def node(line: str) -> Node | None:
    """A line of `scontrol -o show nodes`; None where it is no node."""
    fields = fields_of(line)
    if not fields.get("NodeName"):
        return None
    state = fields.get("State", "UNKNOWN").split(" ")[0]
    flags = {flag.rstrip(_SUFFIXES) for flag in state.upper().split("+")}
    return Node(
        name=fields["NodeName"],
        state=state,
        partitions=_names(fields.get("Partitions", "")),
        available=_names(fields.get("AvailableFeatures", fields.get("Features", ""))),
        active=_names(fields.get("ActiveFeatures", fields.get("Features", ""))),
        weight=_number(fields.get("Weight", "")),
        gpus=gres_gpus(fields.get("Gres", "")) or _tres_gpus(fields.get("CfgTRES", "")),
        host=fields.get("NodeHostName", ""),
        usable=not flags & _UNUSABLE and not state.endswith("*"),
        idle=state.partition("+")[0].rstrip(_SUFFIXES) == "IDLE",
        reserved="RESERVED" in flags,
        reason=_text(fields.get("Reason", "").partition(" [")[0]),
        kind=" ".join(f"{name}={fields[name]}" for name in _KIND if name in fields),
    )


def queued_job(row: Sequence[str]) -> QueuedJob:
    """A row of squeue in the columns of `_QUEUED`."""
    job, state, reason, user, start, end, hosts, name, comment = row
    return QueuedJob(
        job=job,
        name=name,
        state=state,
        reason=_text(reason),
        user=_number(user),
        comment=_text(comment),
        nodes=hosts,
        held=state == "PENDING" and reason in _HELD,
        start=utc_time(start),
        end=utc_time(end),
    )


def partition(line: str) -> Partition | None:
    """A line of `scontrol -o show partitions`; None where it is no partition."""
    fields = fields_of(line)
    if not fields.get("PartitionName"):
        return None
    groups = _names(fields.get("AllowGroups", ""))
    closed = fields.get("RootOnly") == "YES" or not ("ALL" in groups or not groups or _member(groups))
    return Partition(
        name=fields["PartitionName"],
        default=fields.get("Default") == "YES",
        up=fields.get("State", "UP") == "UP" and not closed,
        longest_min=_minutes(fields.get("MaxTime", "")),
        usual_min=_minutes(fields.get("DefaultTime", "")),
        least_nodes=_number(fields.get("MinNodes", "")) or 1,
    )


def _member(groups: Collection[str]) -> bool:
    """Whether this user is in one of the groups that may use a partition."""
    if os.geteuid() == 0:
        return True
    names = set()
    for number in {os.getegid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return bool(names & set(groups))


def job_record(line: str) -> JobRecord | None:
    """A line of `scontrol -o show job`; None where it is no job."""
    # A job's name may hold what looks like further fields.
    line = re.sub(r"(?<=\sJobName=).*?(?=\sUserId=\S+\(\d+\) GroupId=)", "", line, count=1, flags=re.DOTALL)
    fields = fields_of(line)
    if not fields.get("JobId"):
        return None
    user, _, uid = fields.get("UserId", "").partition("(")
    number = fields["JobId"]
    task = fields.get("ArrayTaskId", "").partition("%")[0]
    if task not in _NONE:
        number = f"{fields.get('ArrayJobId', number)}_{task if task.isdigit() else f'[{task}]'}"
    strict = "it has several parts (a heterogeneous job)" if fields.get("HetJobId") else ""
    if fields.get("Deadline", "") not in _NONE:
        strict = "it has a deadline, after which Slurm cancels it"
    return JobRecord(
        id=number,
        state=fields.get("JobState", "UNKNOWN"),
        reason=_text(fields.get("Reason", "")).partition(",")[0],
        start=utc_time(fields.get("StartTime")),
        user=user,
        uid=_number(uid.rstrip(")")),
        partitions=_names(fields.get("Partition", "")),
        gpus=_tres_gpus(fields.get("ReqTRES", "") or fields.get("TRES", "")),
        limit_s=60 * _minutes(fields.get("TimeLimit", "")),
        required=_text(fields.get("ReqNodeList", "")),
        excluded=_text(fields.get("ExcNodeList", "")),
        comment=_text(fields.get("Comment", "")),
        admin_comment=_text(fields.get("AdminComment", "")),
        strict=strict,
    )


def gres_gpus(gres: str) -> int:
    """GPUs in a node's Gres: gpu:v100:4(S:0-1) is 4, gpu:fast:3,gpu:slow:1 is 4."""
    parts = [re.split("[:=]", part) for part in _names(re.sub(r"\([^)]*\)", "", gres))]
    return sum(int(part[-1]) if part[-1].isdigit() else 1 for part in parts if part[0] == "gpu")


def _number(number: str) -> int | None:
    return int(number) if number.isdigit() else None


def limit_seconds(text: str) -> float:
    """A time limit as sbatch takes it and Slurm prints it, s: 90 (minutes), 90:00, 24:00:00, 1-12, 1-12:00.

    0 is infinite. Raises InputError for any other text.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return math.inf
    if not _LIMIT.fullmatch(text.strip()):
        raise InputError(f"{text!r} is no time limit: write 24:00:00, 1-12:00 (days-hours:minutes) or 90 (minutes)")
    days, has_days, clock = text.strip().rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units_s = (3600.0, 60.0, 1.0) if has_days or len(parts) == 3 else (60.0, 1.0)
    return int(days or 0) * 86_400.0 + sum(map(mul, parts, units_s)) or math.inf


def _minutes(limit: str) -> float:
    """A limit that Slurm prints; infinite where it says that there is none."""
    with contextlib.suppress(InputError):
        return limit_seconds(limit) / 60
    return math.inf


def _utc(instant: dt.datetime) -> str:
    instant = instant.astimezone(dt.UTC) if instant.tzinfo else instant
    return f"{instant:%Y-%m-%dT%H:%M:%S}"


def _tres_gpus(tres: str) -> int:
    match = re.search(r"(?:^|,)gres/gpu=(\d+)", tres)
    return int(match[1]) if match else 0


def nodes_for(gpus: int, nodes: Sequence[Node]) -> tuple[int, int]:
    """How many nodes a number of GPUs needs, and GPUs on each, for nodes of the most common size."""
    counts = sorted(node.gpus for node in nodes if node.gpus)
    number = math.ceil(gpus / (counts[len(counts) // 2] if counts else 1))
    return number, math.ceil(gpus / number)
