"""Advice for a waiting job: the nodes that it avoids, kept up to date by its owner.

What whorl added stands in the job's comment as `whorl:excluded=HOSTLIST`, beside whatever the user wrote there: so a
later call refreshes it and leaves the user's own exclusions alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..store.hostlist import compress, expand
from .counting import Count, Site
from .requests import Job
from .slurm import update_command

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


def change(job: Job, advised: Sequence[str], site: Site) -> Change:
    """What `advised` (nodes to avoid, the worst first) means for a job.

    The job keeps the nodes that its owner excluded; it avoids none that its owner asked for, and none that it could not
    use; and so many nodes of each kind are left that it can start if it could before. Of a job of which that cannot be
    counted, whorl excludes nothing, and takes back what it excluded before.
    """
    notes: list[str] = []
    before = expand(job.excluded)
    token = _TOKEN.search(job.comment) or _TOKEN.search(job.admin_comment)
    earlier = set(_noted(job, token[1])) if token else set()
    own = [name for name in before if name not in earlier]
    required = set(expand(job.required))
    asked_for = sorted(required & set(advised))
    if asked_for:
        notes.append(f"{compress(asked_for)} is not excluded, because the job asks for it")
    others = [name for name in advised if name not in own and name not in required]
    added: list[str] = []
    why_not = site.why_not(job) if others else None
    if why_not:
        notes.append(f"whorl excludes nothing for it, because {why_not}")
    else:
        added, kept = _excludable(job, others, set(own), site)
        notes += kept
    comment = _TOKEN.sub("", job.comment).strip() if _TOKEN.search(job.comment) else job.comment
    if added:
        comment = f"{comment} whorl:excluded={compress(added)}".strip()
    after = compress([*own, *added])
    needed = after != compress(before) or comment != job.comment
    return Change(job.id, compress(before), after, comment if comment != job.comment else None, tuple(notes), needed)


def _noted(job: Job, listed: str) -> list[str]:
    """The nodes that whorl noted in a job's comment."""
    try:
        return expand(listed)
    except InputError:
        raise InputError(
            f"the comment of job {job.id} has whorl:excluded={listed}, which is no host list: take it out of the "
            "comment (`scontrol update`)"
        ) from None


def _excludable(job: Job, advised: Sequence[str], own: set[str], site: Site) -> tuple[list[str], list[str]]:
    """Of the advised nodes those that the job can do without, and sentences about the others that it could use."""
    count = Count(job, site, own)
    added: list[str] = []
    kept: dict[str, list[str]] = {}  # why -> nodes
    for name in advised:
        if name not in count.usable:
            continue
        why = count.spare(name)
        if why is None:
            added.append(name)
        else:
            kept.setdefault(why, []).append(name)
    are = {why: "is" if len(names) == 1 else "are" for why, names in kept.items()}
    return added, [f"{compress(names)} {are[why]} not excluded: {why}" for why, names in kept.items()]
