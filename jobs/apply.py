"""Advice for a user's own waiting job: exclude slow nodes, look at what Slurm makes of it, take it back if it is worse.

Slurm says when it expects to start a job (StartTime) and why it waits (Reason). `apply` reads both, excludes the nodes,
and looks again until Slurm has planned the job anew. The exclusion stays only where Slurm then still plans a start that
is not later than the advice saves; else the job is as its owner wrote it.

How to undo stands in the job's comment, behind the owner's text, and is written together with the list itself, by one
command: `whorl:excluded=` what whorl added, `whorl:was=` the owner's list to the letter, if it is spelled in another
way than whorl spells lists, and `whorl:trying` until Slurm was looked at. So whatever ends whorl, and wherever it runs
next, `apply` and `undo` know what to restore.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, SchedulerError
from ..store.hostlist import compress, expand
from .price import exclusion_gain
from .slurm import JobRecord, Slurm
from .steering import AdviceRequest, ScoredWorkload, SiteNodes, Steering, only_workload, opened_store, steer

if TYPE_CHECKING:
    from ..store import Store

BLOCKED = frozenset({"BadConstraints", "PartitionConfig", "PartitionNodeLimit", "ReqNodeNotAvail"})
"""Reasons that say that Slurm cannot start a job on the nodes that it may use."""
HELD = "JobHeldUser"
OFF_PLAN = frozenset({HELD, "JobHeldAdmin", "BeginTime", "Dependency", "DependencyNeverSatisfied"})
"""Reasons of jobs for which Slurm plans no start yet, whatever time it prints."""
LEAST_DELAY_S = 60.0
"""A start that is less later is not later: Slurm plans in steps of a minute (bf_resolution)."""
PASSES = 4
"""Intervals between Slurm's looks at the queue (bf_interval) after which each job was looked at once in full."""
_ADDED = re.compile(r"(?:^|\s)whorl:excluded=(\S*)")
_OWNERS = re.compile(r"(?:^|\s)whorl:was=(\S*)")
_TRYING = " whorl:trying"
_WORKLOAD = re.compile(r"(?:^|\s)whorl=(\S+)")


@dataclass(frozen=True)
class ApplyOptions:
    """How `whorl advise apply` treats a job."""

    dry_run: bool = False
    release: bool = False
    """Release a job that its owner holds, once the nodes are excluded."""
    max_delay_s: float | None = None
    """How much later the job may start. None: the gain times its time limit, and at least a minute."""
    wait_s: float | None = None
    """How long to wait for Slurm to plan the job. None: `PASSES` of its intervals."""


@dataclass(frozen=True)
class NodeChoice:
    """The nodes that a job avoids, a host list, and its comment: what `apply` changes."""

    excluded: str
    comment: str

    def is_of(self, record: JobRecord) -> bool:
        """Whether the job has these."""
        return record.comment == self.comment and _same(record.excluded, self.excluded)


@dataclass(frozen=True)
class JobChange:
    """What becomes of a waiting job, or of the alike tasks of an array."""

    job: str
    """As `scontrol update` takes it."""
    before: NodeChoice
    owner: NodeChoice
    """As its owner wrote it, without what whorl added."""
    after: NodeChoice
    notes: tuple[str, ...] = ()
    outcome: str = "unchanged"
    """`unchanged`, `excluded`, or `undone`: as its owner wrote it, because Slurm makes it worse."""
    start_before: dt.datetime | None = None
    """When Slurm expected to start it, UTC."""
    start_after: dt.datetime | None = None

    @property
    def needed(self) -> bool:
        return self.after.comment != self.before.comment or not _same(self.after.excluded, self.before.excluded)

    @property
    def command(self) -> list[str]:
        """What changes the job."""
        settings = [f"{key}={value}" for key, value in _settings(self.after, self.before).items()]
        return ["scontrol", "update", f"JobId={self.job}", *settings]

    @property
    def trying(self) -> NodeChoice:
        """The same as `after`, with the mark that Slurm was not looked at yet."""
        return NodeChoice(self.after.excluded, f"{self.after.comment}{_TRYING}")

    def stays(self, note: str) -> JobChange:
        """The job as it is, for a reason."""
        return replace(self, after=self.before, notes=(*self.notes, note))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        changed = self.after.excluded != self.before.excluded or self.after.comment != self.before.comment
        return {
            "job": self.job,
            "before": self.before.excluded,
            "after": self.after.excluded,
            "changed": changed,
            "command": shlex.join(self.command) if changed else None,
            "notes": list(self.notes),
            "outcome": self.outcome,
            "start_before": self.start_before,
            "start_after": self.start_after,
        }


@dataclass(frozen=True)
class Applied:
    """Advice on a waiting job, and what came of it."""

    steering: Steering
    workload: str
    changes: Sequence[JobChange]
    not_waiting: int
    """Tasks of the job that wait no longer."""


# -- the verbs -------------------------------------------------------------------------------------------------------


def apply(
    store: Store | str | Path,
    job: str,
    *,
    options: ApplyOptions = ApplyOptions(),
    workload: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
    **advice: Any,
) -> Applied:
    """Exclude slow nodes for the caller's own job while it waits, as `whorl advise apply` does.

    `advice`: fields of `AdviceRequest`. `tell` is called with sentences while it waits. What an interrupted call left
    is undone first. Raises InputError, StoreError, SchedulerError; the job is then as it was, or as its owner wrote it.
    """
    slurm = Slurm()
    slurm.check()
    records = slurm.jobs(job)
    interrupted = [record for record in records if record.state == "PENDING" and _TRYING in record.comment]
    if interrupted and not options.dry_run:
        for record in interrupted:
            _set(slurm, record, owner_of(record))
            tell(f"job {record.id}: what an interrupted whorl excluded was taken back")
        records = slurm.jobs(job)
    waiting = pending(records, job, os.getuid())
    opened = opened_store(store)
    unclear = f"the workload of job {job} is not known: give --workload, or whorl=NAME in its comment"
    workload = workload or workload_of(waiting) or only_workload(opened, unclear)
    advice["gpus"] = max(advice.get("gpus", 1), *(record.gpus for record in waiting))
    scored = ScoredWorkload.of(opened, AdviceRequest(workload, **advice))
    steering = steer(scored, SiteNodes(slurm, partition=",".join(waiting[0].partitions) or None))
    changes = [change_of(record, steering.exclude) for record in waiting]
    if not options.dry_run:
        gain = exclusion_gain(steering.advice)
        trial = ExclusionTrial(slurm, job, options, max(0.0, gain.median) if gain else 0.0, tell)
        changes = trial.run(changes, waiting)
    return Applied(steering, workload, changes, len(records) - len(waiting))


def undo(job: str) -> list[JobChange]:
    """Give the caller's own waiting job the nodes back that whorl excluded: the list of its owner, to the letter.

    Raises InputError, SchedulerError.
    """
    slurm = Slurm()
    slurm.check()
    waiting = pending(slurm.jobs(job), job, os.getuid())
    changes = [change_of(record, []) for record in waiting]
    for record, change in zip(waiting, changes, strict=True):
        if change.needed:
            _set(slurm, record, change.owner)
    return [replace(change, outcome="undone") if change.needed else change for change in changes]


def pending(records: Sequence[JobRecord], job: str, uid: int) -> list[JobRecord]:
    """Of a job's records those that wait. Raises InputError for another user's job and where none waits."""
    for record in records:
        if record.uid != uid:
            raise InputError(f"job {job} is {record.user or 'somebody'}'s: you can change only your own jobs")
    waiting = [record for record in records if record.state == "PENDING"]
    if not waiting:
        state = ", ".join(sorted({record.state for record in records})) or "unknown"
        raise InputError(f"job {job} is {state}: only a waiting (PENDING) job can be changed")
    return waiting


def workload_of(records: Sequence[JobRecord]) -> str | None:
    """The workload that a job's owner named in its comment, `whorl=WORKLOAD`."""
    matches = [match for match in (_WORKLOAD.search(record.comment) for record in records) if match]
    return matches[0][1] if matches else None


# -- what to change --------------------------------------------------------------------------------------------------


def change_of(record: JobRecord, advised: Sequence[str]) -> JobChange:
    """What `advised` (nodes to avoid, the worst first) means for a job.

    The nodes that its owner excluded stay, those that its owner asked for are not excluded, and what whorl excluded
    before and advises no longer is allowed again.
    """
    owner = owner_of(record)
    owners = set(expand(owner.excluded))
    required = set(expand(record.required)) & set(advised)
    notes = [f"{compress(required)} is not excluded, because the job asks for it"] if required else []
    added = [node for node in advised if node not in owners and node not in required]
    if record.strict and added:
        notes.append(f"whorl excludes nothing for it, because {record.strict}")
        added = []
    after = owner
    if added:
        was = f" whorl:was={owner.excluded}" if owner.excluded != compress(owners) else ""
        comment = f"{owner.comment} whorl:excluded={compress(added)}{was}".strip()
        after = NodeChoice(compress([*owners, *added]), comment)
    return JobChange(record.id, NodeChoice(record.excluded, record.comment), owner, after, tuple(notes))


def owner_of(record: JobRecord) -> NodeChoice:
    """A job without what whorl, or the site's submit filter, says in a comment that it excluded."""
    token = _ADDED.search(record.comment) or _ADDED.search(record.admin_comment)
    if token is None:
        return NodeChoice(record.excluded, record.comment)
    try:
        added = set(expand(token[1]))
    except InputError:
        raise InputError(
            f"the comment of job {record.id} has whorl:excluded={token[1]}, which is no host list: take it out of the "
            "comment (`scontrol update`)"
        ) from None
    excluded = compress(node for node in expand(record.excluded) if node not in added)
    was = _OWNERS.search(record.comment)
    if was is not None and _same(was[1], excluded):  # else the owner has changed it since
        excluded = was[1]
    comment = record.comment
    for tokens in (_ADDED, _OWNERS, re.compile(_TRYING)):
        comment = tokens.sub("", comment)
    return NodeChoice(excluded, comment if comment == record.comment else comment.strip())


def _same(hosts: str, other_hosts: str) -> bool:
    return hosts == other_hosts or set(expand(hosts)) == set(expand(other_hosts))


def _settings(choice: NodeChoice, before: NodeChoice) -> dict[str, str]:
    settings = {} if choice.excluded == before.excluded else {"ExcNodeList": choice.excluded}
    return settings if choice.comment == before.comment else settings | {"Comment": choice.comment}


def _set(slurm: Slurm, record: JobRecord, choice: NodeChoice, *, release: bool = False) -> None:
    """Change a job, and let it go where asked to, or where Slurm holds it because it could run nowhere.

    Slurm says that it refuses to change a job that cannot run in its partition, and changes it all the same: so a
    refusal counts only where the job is not changed.
    """
    job = record.id.partition("_")[0]
    try:
        slurm.update(record.id, **_settings(choice, NodeChoice(record.excluded, record.comment)))
    except SchedulerError:
        if not any(choice.is_of(changed) for changed in slurm.jobs(job)):
            raise
    if not release and not record.blocked_by("BadConstraints"):
        return
    try:
        slurm.release(record.id)
    except SchedulerError:
        if any(choice.is_of(changed) and changed.blocked_by(HELD) for changed in slurm.jobs(job)):
            raise


# -- looking at what Slurm makes of it -------------------------------------------------------------------------------


@dataclass
class ExclusionTrial:
    """Changes of one job, made and looked at together."""

    slurm: Slurm
    job: str
    options: ApplyOptions
    gain_share: float
    """The share of a job's time that the exclusion saves."""
    tell: Callable[[str], None]

    def run(self, changes: Sequence[JobChange], records: Sequence[JobRecord]) -> list[JobChange]:
        """Make the changes, and undo those after which Slurm starts the job later or not at all."""
        by_id = {record.id: record for record in records}
        outcomes = {change.job: change for change in changes}
        for change in changes:
            if change.needed and change.after == change.owner:  # more nodes to run on: nothing to compare
                _set(self.slurm, by_id[change.job], change.after)
                outcomes[change.job] = replace(change, outcome="excluded")
        to_try = [change for change in changes if change.needed and change.after != change.owner]
        if to_try:
            outcomes |= {change.job: change for change in self._tried(self._with_start(to_try, by_id), by_id)}
        for record in records:
            if self.options.release and record.blocked_by(HELD) and outcomes[record.id].start_before is None:
                _set(self.slurm, record, outcomes[record.id].after, release=True)
        return list(outcomes.values())

    def _with_start(self, changes: Sequence[JobChange], by_id: dict[str, JobRecord]) -> list[JobChange]:
        """The changes with the start that Slurm plans for their jobs, waiting for it; without one a job stays."""
        held = "it is held, and Slurm plans no start for held jobs: --release lets it go with the exclusion"
        later = "Slurm plans no start for it yet, so what the exclusion costs cannot be seen: try again later"
        until = time.monotonic() + self._wait_s
        while True:
            if not any(_is_new(record) for record in by_id.values()) or time.monotonic() > until:
                break
            time.sleep(self._pause_s)
            by_id |= {record.id: record for record in self.slurm.jobs(self.job) if record.id in by_id}
        ready = []
        for change in changes:
            record = by_id[change.job]
            if record.blocked_by(HELD):
                now = dt.datetime.now(dt.UTC)  # released, it starts at once, or it waits for the exclusion or the queue
                ready.append(replace(change, start_before=now) if self.options.release else change.stays(held))
            elif _is_new(record) or record.blocked_by(*OFF_PLAN):
                ready.append(change.stays(later))
            else:
                ready.append(replace(change, start_before=record.start))
        return ready

    def _tried(self, changes: Sequence[JobChange], by_id: dict[str, JobRecord]) -> list[JobChange]:
        """Make changes, look at the job until each has an outcome or the time is over, undo those that do not stay."""
        to_make = [change for change in changes if change.needed]
        if not to_make:
            return list(changes)
        try:
            for change in to_make:
                record = by_id[change.job]
                _set(self.slurm, record, change.trying, release=record.blocked_by(HELD))
            self.tell(
                f"waiting for what Slurm plans for job {self.job} without these nodes: {self._wait_s:.0f} s at most"
            )
            outcomes = self._watch(to_make)
            self._settle({change: outcomes[change.job].after for change in to_make})
        except BaseException as error:
            try:
                self._settle({change: change.owner for change in to_make})
            except SchedulerError:
                raise SchedulerError(
                    f"{error or type(error).__name__}: job {self.job} may avoid nodes that it needs; `whorl advise "
                    f"apply --undo {self.job}` takes that back once Slurm answers"
                ) from error
            raise
        return [outcomes.get(change.job, change) for change in changes]

    def _settle(self, choices: Mapping[JobChange, NodeChoice]) -> None:
        """Give the tasks on which changes are tried what they stay with; of one that started only the comment."""
        for record in self.slurm.jobs(self.job):
            for change, choice in choices.items():
                if not change.trying.is_of(record):
                    continue
                if record.state == "PENDING":
                    _set(self.slurm, record, choice)
                else:
                    with contextlib.suppress(SchedulerError):  # it may have ended
                        self.slurm.update(record.id, Comment=choice.comment)

    def _watch(self, changes: Sequence[JobChange]) -> dict[str, JobChange]:
        """The outcomes of changes. A start that stands since before the change counts once Slurm had time to look."""
        outcomes: dict[str, JobChange] = {}
        starts: dict[str, dt.datetime | None] = {}  # right after the change
        until = time.monotonic() + self._wait_s
        while len(outcomes) < len(changes):
            over = time.monotonic() > until
            waiting = [record for record in self.slurm.jobs(self.job) if record.state == "PENDING"]
            for change in changes:
                record = next((record for record in waiting if change.trying.is_of(record)), None)
                stale = record is not None and record.start == starts.setdefault(change.job, record.start)
                reason = self._objection(change, record)
                if change.job in outcomes or (stale and not over and not (record and record.blocked_by(*BLOCKED))):
                    continue
                looked_at = replace(change, outcome="excluded", start_after=record.start if record else None)
                if reason is not None:
                    notes = (*change.notes, f"nothing is excluded: {reason}")
                    looked_at = replace(looked_at, after=change.owner, outcome="undone", notes=notes)
                outcomes[change.job] = looked_at
            if len(outcomes) < len(changes):
                time.sleep(self._pause_s)
        return outcomes

    def _objection(self, change: JobChange, record: JobRecord | None) -> str | None:
        """Why a change does not stay, as Slurm has the job; None where it does, also for a job that started."""
        if record is None or change.start_before is None:
            return None
        if record.blocked_by(*BLOCKED):
            return f"without these nodes Slurm cannot start it ({record.reason})"
        if record.start is None:
            return "without these nodes Slurm plans no start for it"
        later_s, most_s = (record.start - change.start_before).total_seconds(), self._most_delay_s(record)
        if later_s > most_s:
            return f"without these nodes it waits {duration(later_s)} longer, and may {duration(most_s)} (--max-delay)"
        return None

    def _most_delay_s(self, record: JobRecord) -> float:
        if self.options.max_delay_s is not None:
            return self.options.max_delay_s
        return max(LEAST_DELAY_S, self.gain_share * record.limit_s if math.isfinite(record.limit_s) else 0.0)

    @cached_property
    def _wait_s(self) -> float:
        return PASSES * self.slurm.backfill_interval_s() if self.options.wait_s is None else self.options.wait_s

    @property
    def _pause_s(self) -> float:
        return min(2.0, max(0.2, self._wait_s / 20))


def _is_new(record: JobRecord) -> bool:
    """Whether Slurm has not planned a job yet, though it may."""
    return (record.start is None or not record.reason) and not record.blocked_by(*OFF_PLAN)


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
