"""IBM Spectrum LSF 10.1, by what `bhosts`, `bjobs`, `bqueues` and `lsid` print.

It was written from IBM's documentation and output that sites published; it was never tried on a real one. A name of LSF
may have 4,094 characters and any but those of arrays. The template writes the name of a job and its comment into its
description (`bsub -Jd`), and `queue` reads them there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping

from ..errors import SchedulerError
from .scheduler import QUEUE_S, Node, Partition, QueuedJob, Scheduler, count_of, printed_time, user_number

_USABLE = {"ok", "closed_Full", "closed_Excl", "closed_cu_excl", "closed_Busy"}  # the others are closed or lost
_HOSTS = "host_name status max njobs ngpus"
_JOBS = "jobid jobindex stat user job_name job_description exec_host pend_reason exit_reason start_time finish_time"
_STATES = {"RUN": "RUNNING", "UNKWN": "RUNNING", "USUSP": "SUSPENDED", "SSUSP": "SUSPENDED", "DONE": "COMPLETED"}
_STATES |= {"EXIT": "FAILED", "ZOMBI": "NODE_FAIL"}
_ENDS = {"TERM_OWNER": "CANCELLED", "TERM_ADMIN": "CANCELLED", "TERM_FORCE_OWNER": "CANCELLED"}
_ENDS |= {"TERM_FORCE_ADMIN": "CANCELLED", "TERM_RUNLIMIT": "TIMEOUT", "TERM_DEADLINE": "DEADLINE"}
_ENDS |= {"TERM_PREEMPT": "PREEMPTED", "TERM_MEMLIMIT": "OUT_OF_MEMORY", "TERM_ZOMBIE": "NODE_FAIL"}
_TIME = "%b %d %H:%M:%S %Y"


class Lsf(Scheduler):
    """The LSF of this machine, asked through its commands; it prints times in UTC, with the year."""

    name, title, tried, ping = "lsf", "LSF", False, "lsid"
    unconfigured = re.compile("lsf.conf|LSF_ENVDIR|LSF_CONFDIR")
    unreachable = re.compile("(?:LIM|LSF|daemon) is down|daemon not responding|connect to LSF|Please wait")
    variables = {"LC_ALL": "C", "TZ": "UTC", "LSB_DISPLAY_YEAR": "Y"}  # noqa: RUF012
    submits, number = ("bsub",), re.compile(r"Job <(\d+)> is submitted")
    overrides = ("BSUB_", "LSB_SUB_")  # BSUB_BLOCK waits for the job's end, BSUB_CHK_RESREQ submits nothing
    in_output = re.compile("%[IJ]")  # the number of the job
    busy = re.compile("[Pp]ending job|limit (?:has been )?reached|[Tt]oo many|try (?:again )?later")
    no_node = re.compile("Bad host|not a valid host|not used by the queue|No eligible host")
    cancels, gone = ("bkill",), re.compile("already finished|No matching job found|not found")

    def cluster_name(self) -> str | None:
        match = re.search(r"My cluster name is (\S+)", self.call("lsid"))
        return match[1] if match else None

    def partitions(self) -> dict[str, Partition]:
        return {queue.name: queue for queue, _ in self._queues()}

    def nodes(self) -> dict[str, Node]:
        rows = self.document("bhosts", "-X", "-o", _HOSTS, "-json").get("RECORDS", [])
        lines = self.ask("bmgroup", "-r", "-w").stdout.splitlines()[1:]  # it fails where there are no groups
        groups = {words[0].rstrip("/"): words[1:] for words in map(str.split, lines) if words}
        queues = [(queue.name, *_members(words, groups)) for queue, words in self._queues()]
        nodes = [_node(row, queues) for row in rows if row.get("HOST_NAME")]
        return {node.name: node for node in nodes}

    def queued_jobs(self, user: int | None) -> Iterable[QueuedJob]:  # noqa: ARG002  all are listed
        # -X: the hosts themselves, not their groups.
        command = ("bjobs", "-a", "-u", "all", "-X", "-o", _JOBS, "-json")
        try:
            rows = self.document(*command, timeout_s=QUEUE_S).get("RECORDS", [])
        except SchedulerError as error:
            if not re.search("No (?:unfinished |matching )?job found", str(error)):
                raise
            rows = []
        return [_job(row) for row in rows if row.get("STAT")]

    def _queues(self) -> list[tuple[Partition, list[str]]]:
        """The queues, each with the words behind HOSTS: names of hosts and groups, `all`, ~ before what is left out."""
        queues = []
        for text in re.split(r"^QUEUE: ", self.call("bqueues", "-l"), flags=re.MULTILINE)[1:]:
            hosts = re.search(r"^HOSTS:(.*)$", text, re.MULTILINE)
            queue = Partition(
                text.split(maxsplit=1)[0],
                default="This is the default queue" in text or "This is a default queue" in text,
                up="Open:Active" in text,
                longest_min=_run_limit(text),
            )
            queues.append((queue, hosts[1].split() if hosts else ["all"]))
        return queues


def _run_limit(text: str) -> float:
    """The longest job of a queue, minutes: the largest RUNLIMIT, whose column may stand behind that of CPULIMIT."""
    limits = []
    for head, line in re.findall(r"^ *((?:CPULIMIT +)?RUNLIMIT)\b.*\n(.*)$", text, re.MULTILINE):
        minutes = re.findall(r"([\d.]+) min", line)
        limits += [float(minute) for minute in minutes[len(head.split()) - 1 :][:1]]
    return max(limits, default=math.inf)  # the default limit is at most the maximum


def _members(
    words: Iterable[str], groups: Mapping[str, Collection[str]]
) -> tuple[Collection[str] | None, Collection[str]]:
    """The hosts of a queue, None where it has all, and those that are left out of them."""
    members: dict[bool, set[str]] = {True: set(), False: set()}
    for word in words:
        name = re.sub(r"\+\d*$", "", word).lstrip("~").rstrip("/")
        members[not word.startswith("~")].update(groups.get(name, [name]))
    return None if "all" in members[True] else members[True], members[False]


def _node(row: Mapping[str, str], queues: Iterable[tuple[str, Collection[str] | None, Collection[str]]]) -> Node:
    name, state, busy_slots = row["HOST_NAME"], row.get("STATUS", "unavail"), count_of(row.get("NJOBS"))
    full = state == "closed" and 0 < count_of(row.get("MAX")) <= busy_slots  # without the reason
    return Node(
        name=name,
        state=state,
        partitions=tuple(
            queue for queue, hosts, spared in queues if (hosts is None or name in hosts) and name not in spared
        ),
        gpus=count_of(row.get("NGPUS")),
        usable=state in _USABLE or full,
        idle=state == "ok" and busy_slots == 0,
    )


def _job(row: Mapping[str, str]) -> QueuedJob:
    number, index = row.get("JOBID", ""), count_of(row.get("JOBINDEX"))
    name, _, comment = (_text(row, "JOB_DESCRIPTION") or _text(row, "JOB_NAME")).partition(" ")
    state, ended = _STATES.get(row["STAT"], "PENDING"), _text(row, "EXIT_REASON")
    if row["STAT"] == "EXIT":
        state = _ENDS.get(ended.partition(":")[0], "FAILED")
    hosts = [host.rpartition("*")[2] for host in _text(row, "EXEC_HOST").split(":") if host]
    return QueuedJob(
        job=f"{number}[{index}]" if index else number,
        name=name,
        state=state,
        reason=ended or _text(row, "PEND_REASON"),
        user=user_number(row.get("USER", "")),
        comment=comment,
        nodes=",".join(dict.fromkeys(hosts)),
        held=row["STAT"] == "PSUSP",
        start=printed_time(_text(row, "START_TIME"), _TIME),
        end=printed_time(_text(row, "FINISH_TIME").rstrip(" ELX"), _TIME),  # a letter marks what is a limit
    )


def _text(row: Mapping[str, str], field: str) -> str:
    """A field, "" where it says that there is none."""
    return "" if row.get(field) in (None, "-") else row[field]
