"""The nodes that a campaign covers, as Slurm has them, and the campaign's own jobs in the queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...errors import InputError, SchedulerError
from ...store.hostlist import compress, expand
from ...store.names import by_number
from ..naming import within
from ..scheduler import Node, Partition
from ..slurm import Slurm
from .asking import CampaignRequest

PREFIX = "whorl"
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
_ENDED |= {"OUT_OF_MEMORY", "REVOKED"}
_HELD = ("JobHeldAdmin", "JobHeldUser", "launch failed requeued held", "launch_failed_requeued_held", "BadConstraints")


def reach(slurm: Slurm) -> None:
    """Raise SchedulerError where no controller answers; where there is no Slurm, say what measures without one."""
    try:
        slurm.check()
    except SchedulerError as error:
        if not error.absent:
            raise
        raise SchedulerError(
            f"{error}. Without Slurm: `whorl probe run` measures this machine's GPUs, `whorl campaign render` prints a "
            "script for another scheduler",
            absent=True,
        ) from error


@dataclass(frozen=True, slots=True)
class Target:
    """A node with GPUs that the campaign covers."""

    name: str
    gpus: int
    state: str
    """As Slurm spells it."""
    idle: bool
    partition: str | None = None
    """The partition that its job is sent to."""
    why_not: str | None = None
    """Why no job can be sent to it now; None where one can."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the campaign, as the queue has it."""

    id: str
    node: str
    attempt: int
    """Which try it is, from 1."""
    state: str
    reason: str

    @property
    def ended(self) -> bool:
        """Whether it has ended: Slurm still shows it for some minutes."""
        return self.state in _ENDED

    @property
    def pending(self) -> bool:
        return not self.ended and self.state not in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING")

    @property
    def held(self) -> bool:
        """Whether it does not start before somebody releases it."""
        return self.pending and self.reason in _HELD


def job_name(campaign: str, node: str, attempt: int) -> str:
    """The name by which a job is found again in the queue."""
    return f"{PREFIX}:{campaign}:{node}" + (f":{attempt}" if attempt > 1 else "")


def comment_of(store: Path) -> str | None:
    """What tells the jobs of this store's campaigns from those of campaigns of the same names in another store."""
    from ...store.folder import made_at

    made = made_at(store)
    return made and f"{PREFIX}:{made}"


def own_jobs(slurm: Slurm, request: CampaignRequest, store: Path | None) -> list[QueuedJob]:
    """The campaign's jobs: those that wait or run, and those that ended some minutes ago.

    Another user may have submitted some of them, if Slurm shows his jobs.
    """
    found, own = [], None if store is None else comment_of(store)
    for line in slurm.call("squeue", "-h", "-t", "all", "-o", "%A|%T|%r|%U|%j|%k").splitlines():
        number, state, reason, user, name, comment = [*line.strip().split("|", 5), "", "", "", "", ""][:6]
        parts = name.split(":")
        if user == str(os.geteuid()):
            # A site may have its own template, or change comments: only a comment of another store counts.
            foreign = comment.startswith(f"{PREFIX}:") and comment != own
        else:  # anybody may have a campaign of this name
            foreign = own is None or comment != own
        if parts[:2] == [PREFIX, request.campaign] and len(parts) in (3, 4) and not foreign:
            attempt = int(parts[3]) if len(parts) == 4 and parts[3].isdigit() else 1
            found.append(QueuedJob(number, parts[2], attempt, state, reason))
    return found


def with_cluster(request: CampaignRequest, slurm: Slurm) -> CampaignRequest:
    """The same, with the cluster's name: as asked, else as the file of a simulated cluster says, else as Slurm says."""
    if request.cluster is not None or not request.is_new:
        return request
    stated = None
    if request.fleet is not None:
        from ..fleet_file import cluster_of  # Python needs some time for the simulator

        stated = cluster_of(request.fleet)
    return replace(request, cluster=stated or _cluster_name(slurm))


def _cluster_name(slurm: Slurm) -> str | None:
    """What Slurm calls this cluster; None where it does not say."""
    for line in slurm.call("scontrol", "show", "config").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "ClusterName":
            return value.strip() or None
    return None


def targets(
    nodes: Mapping[str, Node],
    partitions: Mapping[str, Partition],
    request: CampaignRequest,
    minutes: Callable[[int], int],
    *,
    reserved: bool = False,
) -> list[Target]:
    """The nodes with GPUs that the campaign covers, in the order of their names.

    `minutes` is the limit of a job on a node with so many GPUs. `reserved`: the jobs go to a reservation.
    Raises InputError for a partition that Slurm does not know, for a node that it or the simulated cluster does not
    know, and where no node has GPUs. A campaign that was begun goes on without a node that Slurm lost.
    """
    for name in (request.partition or "").split(","):
        if name and name not in partitions:
            raise InputError(f"Slurm has no partition {name}; it has {', '.join(sorted(partitions))}")
    asked = None if request.nodes is None else set(expand(request.nodes))
    if asked is not None and asked - nodes.keys() and request.is_new:
        raise InputError(f"Slurm has no node {compress(asked - nodes.keys())}")
    if request.fleet is not None:
        from ..fleet_file import nodes_of  # Python needs some time for the simulator

        listed = set(nodes_of(request.fleet))
        if asked is not None and asked - listed:
            raise InputError(f"{request.fleet} lists no node {compress(asked - listed)}")
        asked = listed if asked is None else asked
    chosen = [one for one in nodes.values() if asked is None or one.name in asked]
    chosen = [one for one in chosen if within(one, request.partition)]
    found = [_target(one, partitions, request, minutes(one.gpus), reserved=reserved) for one in chosen if one.gpus]
    if not found:
        where = f"of partition {request.partition}" if request.partition else "of Slurm"
        where = f"that {request.fleet} lists" if request.fleet else where
        where = f"among {request.nodes}" if request.nodes else where
        have = sorted({name for one in nodes.values() if one.gpus for name in one.partitions})
        has = f": the partitions with GPUs are {', '.join(have)}" if have else ""
        raise InputError(f"no node {where} has GPUs by its Gres{has}")
    return sorted(found, key=lambda one: by_number(one.name))


def _target(
    node: Node, partitions: Mapping[str, Partition], request: CampaignRequest, minutes: int, *, reserved: bool
) -> Target:
    state = node.state.upper()
    idle = state.split("+")[0].rstrip("~#%$@^-") == "IDLE"
    chosen, why_not = _partition(node, partitions, request, minutes)
    if not node.usable:
        why_not = state.lower() + (f": {node.reason}" if node.reason else "")
    elif "RESERVED" in state.split("+") and not reserved:
        why_not = "reserved"
    return Target(node.name, node.gpus, node.state, idle, chosen, why_not)


def _partition(
    node: Node, partitions: Mapping[str, Partition], request: CampaignRequest, minutes: int
) -> tuple[str | None, str | None]:
    """The partition that a job on the node is sent to, or why there is none."""
    names = request.partition.split(",") if request.partition else sorted(node.partitions, key=_by_default(partitions))
    own = [partitions[name] for name in names if name in node.partitions and name in partitions]
    allowed = [one for one in own if one.up]
    fitting = [one for one in allowed if one.longest_min >= minutes]
    if fitting:
        return fitting[0].name, None
    if allowed:
        longest = max(one.longest_min for one in allowed)
        return None, f"its partition allows jobs of {longest:g} min, and this one asks for {minutes} min"
    if own:
        return None, f"partition {', '.join(one.name for one in own)} is down or closed to this user"
    return None, "it is in no partition that this user sees"


def _by_default(partitions: Mapping[str, Partition]) -> Callable[[str], bool]:
    return lambda name: name not in partitions or not partitions[name].default
