"""What Slurm knows: nodes and jobs from `scontrol`, and the start time that it predicts for a job.

Every call of a command has a time limit, since clients of a dead controller wait for long. The text form of
`scontrol -o` is read, which every version has, and fields that are not known are passed over.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InputError, SchedulerError
from ..store.hostlist import expand
from . import shown
from .requests import Devices, Job, devices, record

TIMEOUT_S = 10.0
_KIND = ["Arch", "Boards", "Sockets", "CoresPerSocket", "ThreadsPerCore", "CPUTot", "CPUEfctv", "CoreSpecCount"]
_KIND += ["CPUSpecList", "MemSpecLimit", "RealMemory", "TmpDisk", "Gres", "CfgTRES", "RestrictedCoresPerGPU"]
# What limits how much a job gets on a node, and of what; JobDefaults give CPUs or memory to each GPU.
_CAPS = {"MaxCPUsPerNode": "cpu", "MaxCPUsPerSocket": "cpu", "MaxMemPerNode": "mem", "MaxMemPerCPU": "mem"}
_CAPS |= {"JobDefaults": "gpu"}
_UNUSABLE = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "INVAL", "INVALID_REG", "UNKNOWN"}
_UNUSABLE |= {"FUTURE", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "NO_RESPOND", "POWER_DOWN", "POWERING_DOWN"}
_START = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the scheduler has it."""

    name: str
    state: str  # as Slurm spells it: IDLE, MIXED+DRAIN, DOWN*
    partitions: tuple[str, ...] = ()
    available: tuple[str, ...] = ()  # features
    active: tuple[str, ...] = ()
    weight: int | None = None
    gpus: int = 0
    cpus: int | None = None
    host: str = ""  # its NodeHostName
    reason: str = ""  # why an administrator or Slurm itself took it out
    devices: tuple[Devices, ...] = ()
    cores: int | None = None  # that jobs may use
    memory: float | None = None  # MiB that jobs may use
    kind: str = ""  # its GRES, processors, memory, ...: equal where a job that fits on one node fits on the other
    disk: float | None = None  # MiB

    @property
    def usable(self) -> bool:
        """Whether it runs jobs: it may be busy, but is neither down nor drained nor kept back."""
        flags = {flag.rstrip("*~#!%$@^-") for flag in self.state.upper().split("+")}
        return not flags & _UNUSABLE and not self.state.endswith("*")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as the scheduler has it."""

    name: str
    default: bool
    up: bool
    root_only: bool
    groups: tuple[str, ...]  # whose users may use it; empty: every user
    longest_min: float  # the longest job
    least_nodes: int = 1  # of a job
    most_nodes: float = math.inf
    caps: frozenset[str] = frozenset()  # of what a job may get less on a node than is there: cpu, mem, gpu


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation that this user may see."""

    name: str
    nodes: tuple[str, ...]
    cores: int | None  # of these nodes, those that are reserved
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """How much later a job would start for an exclusion: seconds, or None and the reason."""

    extra_s: float | None
    reason: str | None = None


class Slurm:
    """The scheduler of this machine, asked through its commands."""

    def __init__(self, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None) -> None:
        self.timeout_s = timeout_s
        self._environment = dict(os.environ if environment is None else environment)

    def call(self, *command: str) -> str:
        """The output of a command. Raises SchedulerError where it is missing, fails, or does not end in time."""
        done = self.ask(*command)
        if done.returncode:
            message = message_of(done.stderr) or message_of(done.stdout) or f"status {done.returncode}"
            raise SchedulerError(f"Slurm refused `{' '.join(command[:3])}`: {message}")
        return done.stdout

    def ask(
        self, *command: str, text: str | None = None, keep: Sequence[int] = (), without: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, which may refuse.

        `text` is its input; files of the numbers `keep` stay open in it; it does not see variables of the environment
        whose names begin with one of `without`.

        Raises SchedulerError where it is missing, does not end in time, or no controller answers.
        """
        environment = {key: value for key, value in self._environment.items() if not key.startswith(tuple(without))}
        try:
            done = subprocess.run(  # noqa: S603  Slurm's own commands, arguments as a list
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                env=environment | {"LC_ALL": "C", "SLURM_BITSTR_LEN": "0"},  # lists of tasks in full
                check=False,
                pass_fds=keep,
                **({"stdin": subprocess.DEVNULL} if text is None else {"input": text}),
            )
        except FileNotFoundError as error:
            raise SchedulerError(
                f"there is no `{command[0]}` here: run this on a machine with Slurm's commands", absent=True
            ) from error
        except OSError as error:
            raise SchedulerError(f"`{command[0]}` cannot be run: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(
                f"Slurm did not answer `{command[0]}` within {self.timeout_s:g} s: `scontrol ping` says whether its "
                "controller is up"
            ) from error
        if done.returncode and "configuration source" in done.stderr:
            raise SchedulerError("no Slurm is configured here: set SLURM_CONF if it is elsewhere", absent=True)
        if done.returncode and re.search(r"[Uu]nable to contact|connect failure|Connection refused", done.stderr):
            if command[0] == "sacct":
                raise SchedulerError("Slurm's accounting does not answer: check that slurmdbd and its database run")
            raise SchedulerError("Slurm's controller does not answer: check it with `scontrol ping`")
        return done

    def check(self) -> None:
        """Raise SchedulerError where no controller answers: at once, where other commands would wait for it.

        SchedulerError (`absent`) where Slurm is not installed or not configured.
        """
        self.configured()
        done = self.ask("scontrol", "ping")
        if "configuration file" in done.stderr:
            raise SchedulerError(f"Slurm's commands cannot use slurm.conf: {message_of(done.stderr)}")
        if " is UP" not in done.stdout:
            message = message_of(done.stdout.partition("*")[0]) or message_of(done.stderr) or "no answer"
            raise SchedulerError(f"Slurm's controller does not answer: {message}")

    def configured(self) -> None:
        """Raise SchedulerError where SLURM_CONF names no file: Slurm's commands would wait a minute for it."""
        configuration = self._environment.get("SLURM_CONF")
        if configuration and not Path(configuration).exists():
            raise SchedulerError(f"SLURM_CONF names {configuration}, which does not exist")

    def nodes(self) -> dict[str, Node]:
        """Every node, by name."""
        found = [node(line) for line in self.call("scontrol", "-o", "show", "nodes").splitlines()]
        return {n.name: n for n in found if n is not None}

    def partitions(self) -> dict[str, Partition]:
        """Every partition that this user may see, by name."""
        found = [partition(line) for line in self.call("scontrol", "-o", "show", "partitions").splitlines()]
        return {one.name: one for one in found if one is not None}

    def caps(self) -> frozenset[str]:
        """Of what a job may get less on a node than is there, in all partitions: cpu, mem, gpu."""
        lines = self.call("scontrol", "show", "config").splitlines()
        pairs = {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
        return _caps(pairs)

    def reservations(self) -> dict[str, Reservation]:
        """Every reservation that this user may see, by name."""
        found = [reservation(line) for line in self.call("scontrol", "-o", "show", "reservations").splitlines()]
        return {one.name: one for one in found if one is not None}

    def fabric(self) -> dict[str, str]:
        """Node -> the part of the network that a job cannot leave; empty where Slurm knows no topology."""
        parts: list[tuple[int, str, list[str]]] = []
        for line in self.ask("scontrol", "-o", "show", "topology").stdout.splitlines():
            fields = shown.fields(line)
            block, name = fields.get("BlockName"), fields.get("SwitchName")
            members = expand(shown.said(fields.get("Nodes", "")))
            if block or name:
                parts.append((-len(members) if block else len(members), block or name or "", members))
        # The last one stays: the largest of the switches, the smallest of the blocks.
        return {node: name for _, name, members in sorted(parts) for node in members}

    def default_partition(self) -> str | None:
        """The partition of jobs that name none; None where there is no such."""
        return next((one.name for one in self.partitions().values() if one.default), None)

    def together(self) -> list[frozenset[str]]:
        """Sets of nodes that Slurm may keep for some jobs or within which a job must stay.

        They are those of a reservation, now or later, and those of a part of the network.
        """
        parts: dict[str, set[str]] = {}
        for name, part in self.fabric().items():
            parts.setdefault(part, set()).add(name)
        return [
            frozenset(one) for one in (*(r.nodes for r in self.reservations().values() if r.nodes), *parts.values())
        ]

    def jobs(self, job: str) -> list[Job]:
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
        found = [job for job in map(record, text.splitlines()) if job is not None]
        if any(one.comment for one in found):
            # In `scontrol` output a comment cannot be separated from the fields after it.
            whole = self._comments(job.partition("_")[0])
            found = [replace(one, comment=whole.get(one.id, one.comment)) for one in found]
        return found

    def _comments(self, job: str) -> dict[str, str]:
        lines = self.call("squeue", "-h", "-a", "-j", job, "-o", "%i|%k").splitlines()
        pairs = (line.partition("|")[::2] for line in lines if "|" in line)
        return {re.sub(r"%\d+\]$", "]", number.strip()): shown.said(comment) for number, comment in pairs}

    def wait_for(self, nodes: int, gpus_per_node: int, partition: str | None, excluded: str) -> Wait:
        """How much later such a job would start for excluding a host list, as `sbatch --test-only` sees it now."""
        asked = ["sbatch", "--test-only", "--wrap=true", f"--nodes={nodes}", f"--gres=gpu:{gpus_per_node}"]
        asked += [f"--partition={partition}"] if partition else []
        # An opt-in filter of the site's must not exclude what the question without the exclusion does not.
        client = Slurm(self.timeout_s, {k: v for k, v in self._environment.items() if k != "WHORL_ADVISE"})
        starts = []
        for extra in ([], [f"--exclude={excluded}"]):
            try:
                done = client.ask(*asked, *extra)
            except SchedulerError as error:
                return Wait(None, str(error))
            match = _START.search(done.stderr + done.stdout)
            if match is None:
                return Wait(None, message_of(done.stderr) or "Slurm gave no start time")
            starts.append(dt.datetime.fromisoformat(match[1]).astimezone())
        return Wait((starts[1] - starts[0]).total_seconds())

    def update_job(self, job: str, excluded: str, comment: str | None) -> None:
        """Set the nodes that a pending job avoids, and its comment."""
        self.call(*update_command(job, excluded, comment))


def update_command(job: str, excluded: str, comment: str | None) -> list[str]:
    """The command that `Slurm.update_job` runs."""
    comment_option = [] if comment is None else [f"Comment={comment}"]
    return ["scontrol", "update", f"JobId={job}", f"ExcNodeList={excluded}", *comment_option]


def node(line: str) -> Node | None:
    """A line of `scontrol -o show nodes`; None where it is no node."""
    fields = shown.fields(line)
    if not fields.get("NodeName"):
        return None
    weight, cpus, memory, threads = (
        _whole(fields.get(key, "")) for key in ("Weight", "CPUTot", "RealMemory", "ThreadsPerCore")
    )
    cores = _whole(fields.get("CPUEfctv", ""))
    cores = cpus if cores is None else cores
    return Node(
        name=fields["NodeName"],
        state=fields.get("State", "UNKNOWN").split(" ")[0],
        partitions=shown.names(fields.get("Partitions", "")),
        available=shown.names(fields.get("AvailableFeatures", fields.get("Features", ""))),
        active=shown.names(fields.get("ActiveFeatures", fields.get("Features", ""))),
        weight=weight,
        gpus=gres_gpus(fields.get("Gres", "")) or _tres_gpus(fields.get("CfgTRES", "")),
        cpus=cpus,
        host=fields.get("NodeHostName", ""),
        reason=shown.said(fields.get("Reason", "").partition(" [")[0]),
        devices=_devices(fields),
        cores=None if cores is None else cores // max(threads or 1, 1),
        memory=None if memory is None else memory - (_whole(fields.get("MemSpecLimit", "")) or 0),
        kind=" ".join(f"{name}={fields[name]}" for name in _KIND if name in fields),
        disk=_whole(fields.get("TmpDisk", "")),
    )


def partition(line: str) -> Partition | None:
    """A line of `scontrol -o show partitions`; None where it is no partition."""
    fields = shown.fields(line)
    if not fields.get("PartitionName"):
        return None
    groups = shown.names(fields.get("AllowGroups", ""))
    return Partition(
        name=fields["PartitionName"],
        default=fields.get("Default") == "YES",
        up=fields.get("State", "UP") == "UP",
        root_only=fields.get("RootOnly") == "YES",
        groups=() if "ALL" in groups else groups,
        longest_min=_minutes(fields.get("MaxTime", "")),
        least_nodes=_whole(fields.get("MinNodes", "")) or 1,
        most_nodes=_whole(fields.get("MaxNodes", "")) or math.inf,
        caps=_caps(fields),
    )


def reservation(line: str) -> Reservation | None:
    """A line of `scontrol -o show reservations`; None where it is no reservation."""
    fields = shown.fields(line)
    if not fields.get("ReservationName"):
        return None
    cores = fields.get("CoreCnt", "")
    return Reservation(
        name=fields["ReservationName"],
        nodes=tuple(expand(shown.said(fields.get("Nodes", "")))),
        cores=int(cores) if cores.isdigit() else None,
        flags=shown.names(fields.get("Flags", "")),
    )


def gres_gpus(gres: str) -> int:
    """GPUs in a node's Gres: gpu:v100:4(S:0-1) is 4, gpu:fast:3,gpu:slow:1 is 4."""
    return sum(one.count for one in devices(gres) if one.name == "gpu")


def _devices(fields: Mapping[str, str]) -> tuple[Devices, ...]:
    found = devices(shown.said(fields.get("Gres", "")))
    counted = _tres_gpus(fields.get("CfgTRES", ""))
    return found if found or not counted else (Devices("gpu", "", counted),)


def _caps(fields: Mapping[str, str]) -> frozenset[str]:
    values = ((fields.get(name, ""), what) for name, what in _CAPS.items())
    return frozenset(what for value, what in values if value != "UNLIMITED" and not shown.is_none(value))


def _whole(number: str) -> int | None:
    return int(number) if number.isdigit() else None


def _minutes(limit: str) -> float:
    """A limit of time: UNLIMITED, 30:00, 1:00:00, 2-00:00:00."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60


def _tres_gpus(tres: str) -> int:
    match = re.search(r"(?:^|,)gres/gpu=(\d+)", tres)
    return int(match[1]) if match else 0


def message_of(text: str) -> str:
    """What a command of Slurm's said, in one line."""
    lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line).strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines)[:300]


def nodes_for(gpus: int, nodes: Sequence[Node]) -> tuple[int, int]:
    """How many nodes a number of GPUs needs, and GPUs on each, for nodes of the most common size."""
    counts = sorted(n.gpus for n in nodes if n.gpus)
    usual = counts[len(counts) // 2] if counts else 1
    wanted = math.ceil(gpus / usual)
    return wanted, math.ceil(gpus / wanted)
