"""PBS Professional and OpenPBS, by the text that `pbsnodes -a` and `qstat -f` print: a head, and indented fields.

It was written from the reference guides, OpenPBS's source, and output that sites published; it was never tried on a
real one. Versions differ in whether the JSON of `qstat` is valid and whole (OpenPBS 1255, 2541, 2672); the text is one
for all. A name of PBS (`qsub -N`) has no colons, at most 230 characters, 15 before version 14, and may be cut; so the
template puts the name and the comment of a job into variables (`qsub -v`), and `queue` reads them there.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

from ..errors import SchedulerError
from .scheduler import QUEUE_S, Node, Partition, QueuedJob, Scheduler, count_of, printed_time, user_number

Fields = Mapping[str, str]

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
    submits = ("qsub", "-f")
    # Without the name of the server behind the first dot, as a job's own runs have it.
    number = re.compile(r"^(\d+(?:\[\])?)(?:\.\S+)?$", re.MULTILINE)
    overrides = ("PBS_DPREFIX",)
    in_output = re.compile(":")  # before it stands a host
    busy = re.compile(
        "would exceed .*limit|Maximum number of jobs|temporarily unavailable|[Ss]erver shutting down|"
        "No free connections|connection table full"
    )
    no_node = re.compile("Unknown node|node\\(s\\) specification error|Illegal value for node")
    cancels, gone = ("qdel",), re.compile("Unknown Job Id|Job has finished|Delete already in progress")

    def cluster_name(self) -> str | None:
        return next(iter(self._server()), None)

    def partitions(self) -> dict[str, Partition]:
        usual = [row.get("default_queue") for row in self._server().values()]
        rows = _sections(self.call("qstat", "-Q", "-f"), "Queue: ")
        return {name: _queue(name, row, default=name in usual) for name, row in rows.items()}

    def nodes(self) -> dict[str, Node]:
        queues = tuple(self.partitions())
        hosts: dict[str, Node] = {}
        for name, row in _sections(self.call("pbsnodes", "-a")).items():
            node = _node(name, row, queues)
            hosts[node.name] = _joined(hosts[node.name], node) if node.name in hosts else node
        return hosts

    def queued_jobs(self, user: int | None) -> Iterable[QueuedJob]:  # noqa: ARG002  `qstat -f` does not choose by user
        try:
            text = self.call("qstat", "-x", "-f", timeout_s=QUEUE_S)
        except SchedulerError as error:
            if "job history" not in str(error):
                raise
            text = self.call("qstat", "-f", timeout_s=QUEUE_S)  # jobs that have ended are forgotten at once
        return [_job(number, row) for number, row in _sections(text, "Job Id: ").items()]

    def _server(self) -> Mapping[str, Fields]:
        """What the server says of itself, by its name."""
        return _sections(self.call("qstat", "-B", "-f"), "Server: ")


def _sections(text: str, head: str = "") -> dict[str, Fields]:
    """The fields of each object, by its name, which stands behind `head`, or alone before the first field.

    Long values are broken before a tab. One may hold line breaks: it ends where the next field begins. Of a field that
    comes twice, the first counts, as a variable of a job's environment may look like one. Raises SchedulerError for a
    text without objects, as the commands of Torque print: to take it for an empty queue would submit jobs twice.
    """
    objects: dict[str, Fields] = {}
    for part in re.split(rf"^{head}(?=\S)" if head else r"^(?=\S+\n +\w+ = )", text, flags=re.MULTILINE)[1:]:
        name, _, lines = part.partition("\n")
        _, *words = re.split(r"^ +([\w.]+) = ", lines.replace("\n\t", ""), flags=re.MULTILINE)
        fields = zip(words[-2::-2], words[::-2], strict=True)  # backwards, so that the first one stays
        objects[name.strip()] = {key: value.strip() for key, value in fields}
    if text.strip() and not objects:
        raise SchedulerError(f"PBS printed what whorl cannot read, is it PBS Pro or OpenPBS? {text.strip()[:60]!r}")
    return objects


def _queue(name: str, row: Fields, *, default: bool) -> Partition:
    users = map(user_number, row.get("acl_users", "").replace(" ", "").split(","))
    closed = _true(row, "acl_user_enable") and os.geteuid() not in users  # as the queue of a reservation
    longest = _duration(row.get("resources_max.walltime", ""))
    return Partition(
        name,
        default=default,
        up=_true(row, "enabled") and _true(row, "started") and not closed and not _true(row, "from_route_only"),
        longest_min=longest.total_seconds() / 60 if longest else math.inf,
    )


def _node(name: str, row: Fields, queues: tuple[str, ...]) -> Node:
    """A host, or a part of one: a vnode. Its name is that of the host, by which jobs ask for it."""
    state = row.get("state", "state-unknown")
    states = {word.strip() for word in state.split(",")}
    return Node(
        name=row.get("resources_available.host", name),
        state=state,
        partitions=(row["queue"],) if "queue" in row else queues,
        gpus=count_of(row.get("resources_available.ngpus")),
        host=row.get("Mom", ""),
        reason=row.get("comment", ""),
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
        reason=first.reason or second.reason,
        usable=first.usable and second.usable,
        idle=first.idle and second.idle,
        reserved=first.reserved or second.reserved,
    )


def _job(number: str, row: Fields) -> QueuedJob:
    letter = row.get("job_state", "")
    ended = _ENDS.get(row.get("Exit_status", ""), "FAILED")
    start = printed_time(row.get("stime", ""), "%a %b %d %H:%M:%S %Y")
    limit = _duration(row.get("Resource_List.walltime", ""))
    hosts = re.findall(r"(?:^|\+)([^/+:]+)", row.get("exec_host", ""))
    return QueuedJob(
        job=number.partition(".")[0],
        name=_variable(row, "WHORL_JOB") or row.get("Job_Name", ""),
        state=ended if letter == "F" else _STATES.get(letter, "PENDING"),
        reason=row.get("comment", ""),
        user=user_number(row.get("Job_Owner", "")),
        comment=_variable(row, "WHORL_COMMENT"),
        nodes=",".join(dict.fromkeys(hosts)),
        held=letter == "H",
        start=start,
        end=start + limit if start and limit else None,
    )


def _variable(row: Fields, name: str) -> str:
    """A variable of the job's environment that the template pbs.sh sets; "" where it is not there."""
    match = re.search(rf"(?:^|,){name}=([^,\n]*)", row.get("Variable_List", ""))
    return match[1] if match else ""


def _true(row: Fields, name: str) -> bool:
    return row.get(name, "").lower() == "true"


def _duration(limit: str) -> timedelta | None:
    """A time as 24:00:00 or 90:00, hours without an end; None where there is none."""
    parts = limit.split(":")
    if not all(part.isdigit() for part in parts):
        return None
    return timedelta(seconds=sum(int(part) * 60**power for power, part in enumerate(reversed(parts))))
