"""Flux, by what `flux resource`, `flux queue` and `flux jobs` print in a format that is asked for.

It was written from the manual pages of flux-core and from RFC 20, and flux-core 0.88's own parser reads the directives
of the template as they are meant; no real Flux ran it. A name of Flux may be any text, so the template writes the name
of a job and its comment into it, with a space between.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..store.hostlist import expand
from .scheduler import Node, Partition, QueuedJob, Scheduler, utc_time

_JOBS = (
    *("id.f58", "userid", "status", "urgency", "t_run", "expiration", "t_inactive", "nodelist"),
    *("annotations.sched.reason_pending", "exception.type", "exception.note", "name"),
)
_QUEUES = ("queue", "queuem", "submission", "scheduling", "limits.timelimit")
_HELD = ("state", "queue", "nodelist")
_STATUS = ("state", "nodelist", "reason")
_STATES = {"RUNNING": "RUNNING", "RUN": "RUNNING", "CLEANUP": "COMPLETING", "COMPLETED": "COMPLETED"}
_STATES |= {"FAILED": "FAILED", "CANCELED": "CANCELLED", "TIMEOUT": "TIMEOUT"}  # others wait
_UNIT_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}  # Flux Standard Duration, RFC 23


class Flux(Scheduler):
    """The Flux instance that this process is in, or that of the system, asked through its commands."""

    name, title, tried, ping = "flux", "Flux", False, "flux uptime"
    unconfigured = re.compile("FLUX_URI|broker socket .* was not found|ENOENT")
    unreachable = re.compile("Unable to connect to Flux|[Cc]onnection refused|lost connection")
    hides = ("FLUX_JOBS_", "FLUX_RESOURCE_", "FLUX_QUEUE_")
    variables = {"LC_ALL": "C", "FLUX_F58_FORCE_ASCII": "1"}  # noqa: RUF012
    submits, number = ("flux", "batch"), re.compile(r"^([fƒ][1-9A-HJ-NP-Za-km-z]+)$", re.MULTILINE)
    in_output = re.compile("{{")  # begins what Flux replaces
    busy = re.compile("submission (?:is )?disabled|try again|[Rr]esource temporarily unavailable|limit exceeded")
    no_node = re.compile("unsatisfiable|unknown host|[Nn]o such host|infeasible")
    cancels, gone = ("flux", "cancel"), re.compile("inactive|unknown job|No such file")

    def partitions(self) -> dict[str, Partition]:
        rows = self._rows(_QUEUES, "queue", "list")
        queues = [_queue(*row) for row in rows if row[0]]  # the queue of a Flux without named ones has no name
        return {queue.name: queue for queue in queues}

    def nodes(self) -> dict[str, Node]:
        states: dict[str, set[str]] = {}
        queues: dict[str, set[str]] = {}
        for state, names, hosts in self._rows(_HELD, "resource", "list"):
            for host in expand(hosts):
                states.setdefault(host, set()).add(state)
                queues.setdefault(host, set()).update(filter(None, names.split(",")))
        status: dict[str, tuple[str, str]] = {}
        for state, hosts, reason in self._rows(_STATUS, "resource", "status"):
            status |= dict.fromkeys(expand(hosts), (state, reason))
        return {
            host: Node(
                name=host,
                state=status.get(host, ("down" if "down" in states.get(host, ()) else "avail", ""))[0],
                partitions=tuple(sorted(queues.get(host, ()))),
                gpus=gpus,
                reason=status.get(host, ("", ""))[1],
                usable=bool(states.get(host, set()) & {"free", "allocated", "up"}) and "down" not in states[host],
                idle=states.get(host) == {"free"},
            )
            for host, gpus in _gpus_of_hosts(self.document("flux", "resource", "R")).items()
        }

    def queued_jobs(self, user: int | None) -> Iterable[QueuedJob]:
        owner = ["-A"] if user is None else [f"--user={user}"]
        return map(_job, self._rows(_JOBS, "jobs", "-a", *owner, "--count=10000"))

    def _rows(self, fields: Sequence[str], *command: str) -> list[list[str]]:
        """The rows that a command prints of these fields."""
        rows = self.rows([f"{{{field}}}" for field in fields], "flux", *command, "-n", "-o")
        return [[part.strip() for part in row] for row in rows]


def _gpus_of_hosts(document: Mapping[str, Any]) -> dict[str, int]:
    """GPUs of each host, from a resource set (RFC 20): ranks stand for the hosts of its list in order."""
    execution = document.get("execution", {})
    hosts = [host for text in execution.get("nodelist", []) for host in expand(text)]
    gpus: dict[int, int] = {}
    for row in execution.get("R_lite", []):
        gpus |= dict.fromkeys(_ids(str(row["rank"])), len(_ids(row.get("children", {}).get("gpu", ""))))
    return dict(zip(hosts, (gpus[rank] for rank in sorted(gpus)), strict=False))


def _ids(ids: str) -> list[int]:
    """The numbers of an idset: 0-3,7."""
    return [int(name[1:]) for name in expand(f"i[{ids}]")] if ids else []


def _queue(name: str, marked: str, submission: str, scheduling: str, limit: str) -> Partition:
    seconds = _seconds(limit)
    return Partition(
        name,
        default=marked.endswith("*"),
        up=submission == "enabled" and scheduling == "started",
        longest_min=seconds / 60 if seconds else math.inf,  # no limit is 0 or inf
    )


def _seconds(duration: str) -> float:
    match = re.fullmatch(r"([\d.]+)(ms|[smhd]?)", duration)
    return float(match[1]) * _UNIT_S[match[2]] if match else 0.0


def _job(row: list[str]) -> QueuedJob:
    number, user, status, urgency, began, expires, ended, hosts, waits, kind, note, name = row
    name, _, comment = name.partition(" ")
    state = _STATES.get(status, "PENDING")
    if state == "FAILED" and kind in ("node-failure", "lost-shell"):
        state = "NODE_FAIL"
    return QueuedJob(
        job=number,
        name=name,
        state=state,
        reason=waits or ": ".join(filter(None, (kind, note))),
        user=int(user) if user.isdigit() else None,
        comment=comment,
        nodes=hosts,
        held=state == "PENDING" and urgency == "0",
        start=utc_time(began),
        end=utc_time(ended) or utc_time(expires),
    )
