"""Advice for a waiting job: the nodes that it avoids, kept up to date by its owner.

What whorl added stands in the job's comment as `whorl:excluded=HOSTLIST`, beside whatever the user wrote there: so a
later call refreshes it and leaves the user's own exclusions alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from .hostlist import compress, expand
from .slurm import Job, Node, update_command

_TOKEN = re.compile(r"(?:^|\s)whorl:excluded=(\S*)")
_WORKLOAD = re.compile(r"(?:^|\s)whorl=(\S+)")


@dataclass(frozen=True)
class Change:
    """What is to be done to a waiting job, or to the alike tasks of an array."""

    job: str
    before: str  # host lists
    after: str
    comment: str | None  # None: as it is
    notes: tuple[str, ...]
    needed: bool

    @property
    def command(self) -> list[str]:
        return update_command(self.job, self.after, self.comment)

    def as_dict(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "before": self.before,
            "after": self.after,
            "changed": self.needed,
            "command": shlex.join(self.command) if self.needed else None,
            "notes": list(self.notes),
        }


def workload_of(jobs: Sequence[Job]) -> str | None:
    """The workload that a job's owner named in its comment, `whorl=WORKLOAD`."""
    for job in jobs:
        match = _WORKLOAD.search(job.comment)
        if match:
            return match[1]
    return None


def pending(jobs: Sequence[Job], named: str, uid: int) -> list[Job]:
    """Of a job's records those that wait. Raises InputError for another user's job and where none waits."""
    for job in jobs:
        if job.uid != uid:
            raise InputError(f"job {named} is {job.user or 'somebody'}'s: you can change only your own jobs")
    waiting = [job for job in jobs if job.state == "PENDING"]
    if not waiting:
        state = ", ".join(sorted({job.state for job in jobs})) or "unknown"
        raise InputError(f"job {named} is {state}: only a waiting (PENDING) job can be changed")
    return waiting


def change(job: Job, advised: Sequence[str], nodes: Mapping[str, Node]) -> Change:
    """What `advised` (nodes to avoid, the worst first) means for a job.

    The job keeps the nodes that its owner excluded; it avoids none that its owner asked for; and so many usable nodes
    are left that it can start: of the advised ones, the mildest are then not excluded.
    """
    notes: list[str] = []
    before = expand(job.excluded)
    token = _TOKEN.search(job.comment) or _TOKEN.search(job.admin_comment)
    earlier = set(expand(token[1])) if token else set()
    own = [name for name in before if name not in earlier]
    required = set(expand(job.required))
    kept = [name for name in advised if name in nodes and name not in own and name not in required]
    asked_for = sorted(required & set(advised))
    if asked_for:
        notes.append(f"{compress(asked_for)} is not excluded, because the job asks for it")
    left = {name: node for name, node in nodes.items() if _fits(job, node) and name not in own}
    added: list[str] = []
    for name in kept:
        without = {other: node for other, node in left.items() if other != name}
        if name in left and not _enough(job, list(without.values())):
            notes.append(f"{name} is not excluded: without it, the job could not start")
            continue
        left = without
        added.append(name)
    comment = _TOKEN.sub("", job.comment).strip() if _TOKEN.search(job.comment) else job.comment
    if added:
        comment = f"{comment} whorl:excluded={compress(added)}".strip()
    after = compress([*own, *added])
    needed = after != compress(before) or comment != job.comment
    return Change(job.id, compress(before), after, comment if comment != job.comment else None, tuple(notes), needed)


def _enough(job: Job, nodes: Sequence[Node]) -> bool:
    """Whether a job could start on these nodes, were they idle."""
    cpus = [node.cpus for node in nodes]
    return (
        len(nodes) >= job.nodes
        and sum(node.gpus for node in nodes) >= job.gpus
        and (None in cpus or sum(filter(None, cpus)) >= job.cpus)
    )


def _fits(job: Job, node: Node) -> bool:
    """Whether a job could run on a node; features count where they are plain names that must all be there."""
    wanted = re.split(r"[&,]", job.features) if re.fullmatch(r"[\w&,.]+", job.features) else []
    return (
        node.usable
        and (not job.partitions or bool(set(job.partitions) & set(node.partitions)))
        and node.gpus >= job.gpus_per_node
        and set(wanted) <= set(node.active)
    )
