"""IBM Spectrum LSF 10.1, by what `bhosts`, `bjobs`, `bqueues` and `lsid` print.

It was written from IBM's documentation and output that sites published; it was never tried on a real one. A name of LSF
may have 4,094 characters and any but those of arrays. The template writes the name of a job and its comment into its
description (`bsub -Jd`), and `queue` reads them there. LSF prints times without a year, so jobs have none here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping

from ..errors import SchedulerError
from .scheduler import Node, Partition, QueuedJob, Scheduler, count_of, user_number

_USABLE = {"ok", "closed_Full", "closed_Excl", "closed_cu_excl", "closed_Busy"}  # the others are closed or lost
_HOSTS = "host_name status max njobs ngpus"
_JOBS = "jobid jobindex stat user job_name job_description exec_host pend_reason exit_reason"
_STATES = {"RUN": "RUNNING", "UNKWN": "RUNNING", "USUSP": "SUSPENDED", "SSUSP": "SUSPENDED", "DONE": "COMPLETED"}
_STATES |= {"EXIT": "FAILED", "ZOMBI": "NODE_FAIL"}
_ENDS = {"TERM_OWNER": "CANCELLED", "TERM_ADMIN": "CANCELLED", "TERM_FORCE_OWNER": "CANCELLED"}
_ENDS |= {"TERM_FORCE_ADMIN": "CANCELLED", "TERM_RUNLIMIT": "TIMEOUT", "TERM_DEADLINE": "DEADLINE"}
_ENDS |= {"TERM_PREEMPT": "PREEMPTED", "TERM_MEMLIMIT": "OUT_OF_MEMORY", "TERM_ZOMBIE": "NODE_FAIL"}


class Lsf(Scheduler):
    """The LSF of this machine, asked through its commands."""

    name, title, tried, ping = "lsf", "LSF", False, "lsid"
    unconfigured = re.compile("lsf.conf|LSF_ENVDIR|LSF_CONFDIR")
    unreachable = re.compile("(?:LIM|LSF|daemon) is down|daemon not responding|connect to LSF|Please wait")
    submits, number = ("bsub",), re.compile(r"Job <(\d+)> is submitted")
    overrides = ("BSUB_QUIET", "LSB_DEFAULT", "LSB_SUB_")
    busy = re.compile("[Pp]ending job|limit (?:has been )?reached|[Tt]oo many|try (?:again )?later")
    no_node = re.compile("Bad host|not a valid host|not used by the queue|No eligible host")
    cancels, gone = ("bkill",), re.compile("already finished|No matching job found|not found")

    def check(self) -> None:
        self.call("lsid")

    def cluster_name(self) -> str | None:
        match = re.search(r"My cluster name is (\S+)", self.call("lsid"))
        return match[1] if match else None

    def partitions(self) -> dict[str, Partition]:
        return {queue.name: queue for queue, _ in self._queues()}

    def nodes(self) -> dict[str, Node]:
        rows = self.document("bhosts", "-X", "-o", _HOSTS, "-json").get("RECORDS", [])
        groups = self._groups()
        members = {queue.name: _members(hosts, groups) for queue, hosts in self._queues()}
        nodes = [_node(row, members) for row in rows if row.get("HOST_NAME")]
        return {node.name: node for node in nodes}

    def queued_jobs(self, user: int | None) -> Iterable[QueuedJob]:  # noqa: ARG002  all are listed
        try:
            rows = self.document("bjobs", "-a", "-u", "all", "-o", _JOBS, "-json").get("RECORDS", [])
        except SchedulerError as error:
            if not re.search("No (?:unfinished |matching )?job found", str(error)):
                raise
            rows = []
        return [_job(row) for row in rows if row.get("STAT")]

    def _queues(self) -> list[tuple[Partition, list[str]]]:
        """The queues, each with the words behind HOSTS: names of hosts and groups, `all`, ~ before what is left out."""
        queues = []
        for text in re.split(r"^QUEUE: ", self.call("bqueues", "-l"), flags=re.MULTILINE)[1:]:
            limits = [float(minutes) for minutes in re.findall(r"RUNLIMIT\s+([\d.]+) min", text)]
            hosts = re.search(r"^HOSTS:(.*)$", text, re.MULTILINE)
            queue = Partition(
                text.split(maxsplit=1)[0],
                default="This is the default queue" in text or "This is a default queue" in text,
                up="Open:Active" in text,
                longest_min=max(limits, default=math.inf),  # the default limit is at most the maximum
            )
            queues.append((queue, hosts[1].split() if hosts else ["all"]))
        return queues

    def _groups(self) -> Mapping[str, list[str]]:
        """The groups of hosts, with their hosts."""
        lines = self.ask("bmgroup", "-r", "-w").stdout.splitlines()[1:]
        return {words[0]: words[1:] for words in map(str.split, lines) if words}


def _members(words: Iterable[str], groups: Mapping[str, Collection[str]]) -> Collection[str] | None:
    """The hosts of a queue; None where it has all."""
    hosts: set[str] = set()
    for word in words:
        name = re.sub(r"\+\d*$", "", word).rstrip("/")
        if name == "all":
            return None
        hosts.update(groups.get(name, [name]))
    return hosts


def _node(row: Mapping[str, str], members: Mapping[str, Collection[str] | None]) -> Node:
    name, state = row["HOST_NAME"], row.get("STATUS", "unavail")
    queues = [queue for queue, hosts in members.items() if hosts is None or name in hosts]
    return Node(
        name=name,
        state=state,
        partitions=tuple(queues),
        gpus=count_of(row.get("NGPUS")),
        cpus=count_of(row.get("MAX")) or None,
        usable=state in _USABLE,
        idle=state == "ok" and count_of(row.get("NJOBS")) == 0,
    )


def _job(row: Mapping[str, str]) -> QueuedJob:
    index = count_of(row.get("JOBINDEX"))
    number = row.get("JOBID", "")
    name, _, comment = (row.get("JOB_DESCRIPTION") or row.get("JOB_NAME", "")).partition(" ")
    state, ended = _STATES.get(row["STAT"], "PENDING"), row.get("EXIT_REASON", "")
    if row["STAT"] == "EXIT":
        state = _ENDS.get(ended.partition(":")[0], "FAILED")
    hosts = [host.rpartition("*")[2] for host in row.get("EXEC_HOST", "").split(":") if host]
    return QueuedJob(
        job=f"{number}[{index}]" if index else number,
        name=name,
        state=state,
        reason=ended or row.get("PEND_REASON", ""),
        user=user_number(row.get("USER", "")),
        comment=comment,
        nodes=",".join(dict.fromkeys(hosts)),
        held=row["STAT"] == "PSUSP",
    )
