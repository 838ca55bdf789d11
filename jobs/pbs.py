"""PBS Professional and OpenPBS, by the JSON that `pbsnodes` and `qstat` print since version 14.

It was written from the reference guides, OpenPBS's source, and output that sites published; it was never tried on a
real one. A name of PBS (`qsub -N`) has no colons, at most 230 characters, 15 before version 14, and may be cut; so the
template puts the name and the comment of a job into variables (`qsub -v`), and `queue` reads them there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ..errors import SchedulerError
from .scheduler import Node, Partition, QueuedJob, Scheduler, count_of, user_number

NAME, COMMENT = "WHORL_JOB", "WHORL_COMMENT"  # variables of the template pbs.sh
_UNUSABLE = {"down", "offline", "stale", "state-unknown", "unresolvable", "initializing", "maintenance"}
_UNUSABLE |= {"provisioning", "wait-provisioning"}
_STATES = {"B": "RUNNING", "E": "COMPLETING", "R": "RUNNING", "S": "SUSPENDED", "U": "SUSPENDED", "M": "REVOKED"}
_STATES |= {"X": "COMPLETED"}  # a task of an array that has ended
_ENDS = {"": "CANCELLED", "0": "COMPLETED", "271": "CANCELLED", "-29": "TIMEOUT"}
"""Exit_status -> state; none where a job was deleted before it ran, 271 is 256 + SIGTERM, which qdel sends."""


class Pbs(Scheduler):
    """The PBS of this machine, asked through its commands; it prints times in UTC."""

    name, title, tried, ping = "pbs", "PBS", False, "qstat -B"
    unconfigured = re.compile("pbs.conf|server host|[Nn]o default server|Unknown Host|No server specified")
    unreachable = re.compile("connect to (?:server|cluster)|Connection refused|Communication failure", re.IGNORECASE)
    variables = {"LC_ALL": "C", "TZ": "UTC"}  # noqa: RUF012
    # -f: otherwise a qsub stays in the background for a minute, with the lock that the driver of a campaign lends.
    submits, number = ("qsub", "-f"), re.compile(r"^(\d+(?:\[\])?(?:\.\S+)?)$", re.MULTILINE)
    overrides = ("PBS_DPREFIX",)
    busy = re.compile(
        "would exceed .*limit|Maximum number of jobs|temporarily unavailable|[Ss]erver shutting down|"
        "No free connections|connection table full"
    )
    no_node = re.compile("Unknown node|node\\(s\\) specification error|Illegal value for node")
    cancels, gone = ("qdel",), re.compile("Unknown Job Id|Job has finished|Delete already in progress")

    def check(self) -> None:
        self._server()

    def cluster_name(self) -> str | None:
        return self._server()[0]

    def partitions(self) -> dict[str, Partition]:
        usual = self._server()[1].get("default_queue")
        rows = self.document("qstat", "-Q", "-f", "-F", "json").get("Queue", {})
        return {name: _queue(name, row, default=name == usual) for name, row in rows.items()}

    def nodes(self) -> dict[str, Node]:
        queues = tuple(self.partitions())
        hosts: dict[str, Node] = {}
        for name, row in self.document("pbsnodes", "-a", "-F", "json").get("nodes", {}).items():
            node = _node(name, row, queues)
            hosts[node.name] = _joined(hosts[node.name], node) if node.name in hosts else node
        return hosts

    def queued_jobs(self, user: int | None) -> Iterable[QueuedJob]:  # noqa: ARG002  `qstat -f` does not choose by user
        try:
            document = self.document("qstat", "-x", "-f", "-F", "json")
        except SchedulerError as error:
            if "job history" not in str(error):
                raise
            document = self.document("qstat", "-f", "-F", "json")  # jobs that have ended are forgotten at once
        return [_job(number, row) for number, row in document.get("Jobs", {}).items()]

    def _server(self) -> tuple[str | None, Mapping[str, Any]]:
        """The server's name and what it says of itself."""
        document = self.document("qstat", "-B", "-f", "-F", "json")
        name, row = next(iter(document.get("Server", {}).items()), (None, {}))
        return document.get("pbs_server", name), row


def _queue(name: str, row: Mapping[str, Any], *, default: bool) -> Partition:
    limits = row.get("resources_max", {})
    longest = _duration(limits.get("walltime", ""))
    return Partition(
        name,
        default=default,
        up=_true(row.get("enabled")) and _true(row.get("started")),
        longest_min=longest.total_seconds() / 60 if longest else math.inf,
    )


def _node(name: str, row: Mapping[str, Any], queues: tuple[str, ...]) -> Node:
    """A host, or a part of one: a vnode. Its name is that of the host, by which jobs ask for it."""
    has = row.get("resources_available", {})
    states = {state.strip() for state in str(row.get("state", "state-unknown")).split(",")}
    return Node(
        name=str(has.get("host", name)),
        state=str(row.get("state", "state-unknown")),
        partitions=(row["queue"],) if row.get("queue") else queues,
        gpus=count_of(has.get("ngpus")),
        cpus=count_of(has.get("ncpus")) or None,
        host=str(row.get("Mom", "")),
        reason=str(row.get("comment", "")),
        usable=not states & _UNUSABLE,
        idle=states == {"free"} and not row.get("jobs"),
        reserved="resv-exclusive" in states,
    )


def _joined(first: Node, second: Node) -> Node:
    """Two vnodes of one host."""
    return replace(
        first,
        state=second.state if first.usable else first.state,
        partitions=tuple(queue for queue in first.partitions if queue in second.partitions),
        gpus=first.gpus + second.gpus,
        cpus=(first.cpus or 0) + (second.cpus or 0) or None,
        reason=first.reason or second.reason,
        usable=first.usable and second.usable,
        idle=first.idle and second.idle,
    )


def _job(number: str, row: Mapping[str, Any]) -> QueuedJob:
    variables = row.get("Variable_List", {})
    variables = variables if isinstance(variables, dict) else {}
    letter = str(row.get("job_state", ""))
    state = _STATES.get(letter, "PENDING")
    if letter == "F":
        state = _ENDS.get(str(row.get("Exit_status", "")), "FAILED")
    start, limit = _time(row.get("stime")), _duration(row.get("Resource_List", {}).get("walltime", ""))
    hosts = re.findall(r"(?:^|\+)([^/+:]+)", str(row.get("exec_host", "")))
    return QueuedJob(
        job=number,
        name=str(variables.get(NAME, row.get("Job_Name", ""))),
        state=state,
        reason=str(row.get("comment", "")),
        user=user_number(str(row.get("Job_Owner", ""))),
        comment=str(variables.get(COMMENT, "")),
        nodes=",".join(dict.fromkeys(hosts)),
        held=letter == "H",
        submitted=_time(row.get("ctime")),
        start=start,
        end=start + limit if start and limit else None,
    )


def _true(flag: object) -> bool:
    return str(flag).lower() == "true"


def _duration(limit: object) -> timedelta | None:
    """A time as 24:00:00 or 90:00, hours without an end; None where there is none."""
    parts = str(limit).split(":")
    if not all(part.isdigit() for part in parts):
        return None
    return timedelta(seconds=sum(int(part) * 60**power for power, part in enumerate(reversed(parts))))


def _time(text: object) -> datetime | None:
    """A time as qstat prints it in UTC: Wed Apr 14 23:34:17 2021."""
    try:
        return datetime.strptime(str(text), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    except ValueError:
        return None
