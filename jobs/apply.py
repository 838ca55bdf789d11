"""Advice for a user's own waiting job: exclude slow nodes, look at what Slurm makes of it, take it back if it is worse.

Slurm says when it expects to start a job (StartTime) and why it waits (Reason). `apply` reads both, excludes the nodes,
and looks again until Slurm has planned the job anew. The exclusion stays only where Slurm then still plans a start that
is not later than the advice saves; else the job is as its owner wrote it.

How to undo stands in the job's comment, behind the owner's text, and is written together with the list itself, by one
command, which Slurm follows as a whole or not at all: `whorl:excluded=` what whorl added, `whorl:was=` the owner's list
to the letter (a space as %20), if it is spelled in another way than whorl spells lists, and `whorl:trying` until Slurm
was looked at. So whatever ends whorl, and wherever it runs next, `apply` and `undo` know what to restore. Of two calls
at once the later one takes the other for an interrupted one: one decides, the other says that the job was changed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from ..errors import InputError, SchedulerError
from ..store.hostlist import compress, expand
from .price import exclusion_gain
from .slurm import JobRecord, Slurm
from .steering import AdviceRequest, ScoredWorkload, SiteNodes, Steering, only_workload, opened_store, steer

if TYPE_CHECKING:
    from ..store import Store

BLOCKED = ("BadConstraints", "PartitionConfig", "PartitionNodeLimit", "ReqNodeNotAvail")
"""Reasons that say that Slurm cannot start a job on the nodes that it may use."""
HELD = "JobHeldUser"
OFF_PLAN = (HELD, "JobHeldAdmin", "BeginTime", "Dependency", "DependencyNeverSatisfied")
"""Reasons of jobs for which Slurm plans no start yet, whatever time it prints."""
LEAST_DELAY_S = 60.0  # a start that is less later is not later: Slurm plans in steps of a minute (bf_resolution)
PASSES = 4  # intervals between Slurm's looks at the queue (bf_interval) after which each job was looked at once in full
LONGEST_COMMENT = 1024  # bytes of a comment: Slurm refuses a longer one
_ADDED = re.compile(r"(?:^|\s)whorl:excluded=(\S*)")
_OWNERS = re.compile(r"(?:^|\s)whorl:was=(\S*)")
_TRYING = " whorl:trying"
_WORKLOAD = re.compile(r"(?:^|\s)whorl=(\S+)")


@dataclass(frozen=True)
class ApplyOptions:
    """How `whorl advise apply` treats a job."""

    dry_run: bool = False
    release: bool = False  # release a job that its owner holds, once the nodes are excluded
    max_delay_s: float | None = None
    """How much later the job may start. None: the gain times its time limit, and at least a minute."""
    wait_s: float | None = None  # how long to wait for Slurm to plan the job. None: `PASSES` of its intervals.


@dataclass(frozen=True)
class NodeChoice:
    """The nodes that a job avoids, a host list, and its comment: what `apply` changes."""

    excluded: str
    comment: str

    @classmethod
    def of(cls, record: JobRecord) -> NodeChoice:
        """What a job has."""
        return cls(record.excluded, record.comment)

    def same_as(self, choice: NodeChoice) -> bool:
        """Whether two choices are the same nodes and the same comment, however the lists are spelled."""
        return self.comment == choice.comment and set(expand(self.excluded)) == set(expand(choice.excluded))

    def settings(self, before: NodeChoice) -> dict[str, str]:
        """What `scontrol update` has to set on a job that has `before`."""
        settings = {} if self.excluded == before.excluded else {"ExcNodeList": self.excluded}
        return settings if self.comment == before.comment else settings | {"Comment": self.comment}


@dataclass(frozen=True)
class JobChange:
    """What becomes of a waiting job, or of the alike tasks of an array."""

    job: str  # as `scontrol update` takes it
    before: NodeChoice
    owner: NodeChoice  # as its owner wrote it, without what whorl added
    after: NodeChoice
    notes: tuple[str, ...] = ()
    outcome: str = "unchanged"
    """`unchanged`, `excluded`, or `undone`: as its owner wrote it, because Slurm makes it worse."""
    start_before: dt.datetime | None = None  # when Slurm expected to start it, UTC
    start_after: dt.datetime | None = None

    @property
    def needed(self) -> bool:
        """Whether there is anything to change."""
        return not self.after.same_as(self.before)

    @property
    def command(self) -> list[str]:
        """What changes the job."""
        settings = self.after.settings(self.before)
        return ["scontrol", "update", f"JobId={self.job}", *(f"{key}={text}" for key, text in settings.items())]

    @property
    def trying(self) -> NodeChoice:
        """The same as `after`, with the mark that Slurm was not looked at yet."""
        return NodeChoice(self.after.excluded, f"{self.after.comment}{_TRYING}")

    def covers(self, record: JobRecord) -> bool:
        """Whether a record is of this job, or of some of these tasks: Slurm parts them as they change or start."""
        return set(expand(record.id)) <= set(expand(self.job))

    def is_tried_on(self, record: JobRecord) -> bool:
        """Whether a record is of this job with the change made and not yet decided."""
        return self.covers(record) and self.trying.same_as(NodeChoice.of(record))

    def stays(self, note: str) -> JobChange:
        """The job as it is, for a reason."""
        return replace(self, after=self.before, notes=(*self.notes, note))

    def overtaken(self, record: JobRecord | None) -> JobChange:
        """The job as it is in this record, by what it did itself or somebody else did to it."""
        choice = self.before if record is None else NodeChoice.of(record)
        state = "ended" if record is None else "was changed" if record.state == "PENDING" else f"is {record.state}"
        return replace(self, before=choice, owner=choice).stays(f"it {state} meanwhile: whorl leaves it as it is")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        changed = self.after != self.before
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
    not_waiting: int  # tasks of the job that wait no longer


# -- the verbs -------------------------------------------------------------------------------------------------------


def apply(
    store: Store | str | Path,
    job: str,
    *,
    options: ApplyOptions = ApplyOptions(),
    workload: str | None = None,
    tell: Callable[[str], None] = lambda _: None,
    cluster: str | None = None,
    model: str | None = None,
    **job_options: Any,
) -> Applied:
    """Exclude slow nodes for the caller's own job while it waits, as `whorl advise apply` does.

    `job_options`: fields of `AdviceOptions`. `tell` is called with sentences while it waits. What an interrupted call
    left is undone first. Raises InputError, StoreError, SchedulerError; the job is then as it was, or as its owner
    wrote it.
    """
    from ..analysis.placement import AdviceOptions

    slurm = Slurm()
    slurm.check()
    records = slurm.jobs(job)
    waiting = pending(records, job, os.getuid())
    interrupted = [record for record in waiting if _TRYING in record.comment]
    if interrupted and not options.dry_run:
        for record in interrupted:
            _set(slurm, record, owner_of(record))
            tell(f"job {record.id}: what an interrupted whorl excluded was taken back")
        records = slurm.jobs(job)
        waiting = pending(records, job, os.getuid())
    opened = opened_store(store)
    unclear = f"the workload of job {job} is not known: give --workload, or whorl=NAME in its comment"
    workload = workload or workload_of(waiting) or only_workload(opened, unclear)
    gpus = max(job_options.pop("gpus", 1), *(record.gpus for record in waiting))
    request = AdviceRequest(workload, AdviceOptions(gpus=gpus, **job_options), cluster, model)
    scored = ScoredWorkload.of(opened, request)
    steering = steer(scored, SiteNodes(slurm, partition=",".join(waiting[0].partitions) or None))
    changes = [change_of(record, steering.exclude) for record in waiting]
    if not options.dry_run:
        gain = exclusion_gain(steering.advice)
        changes = ExclusionTrial(slurm, job, options, max(0.0, gain.median) if gain else 0.0, tell).run(changes)
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
    owners = expand(owner.excluded)
    required = set(expand(record.required)) & set(advised)
    notes = [f"{compress(required)} is not excluded, because the job asks for it"] if required else []
    added = [node for node in advised if node not in owners and node not in required]
    was = f" whorl:was={quote(owner.excluded, safe=',[]-')}" if owner.excluded != compress(owners) else ""
    comment = f"{owner.comment} whorl:excluded={compress(added)}{was}".strip()
    strict = record.strict
    if len((comment + _TRYING).encode()) > LONGEST_COMMENT:
        strict = strict or f"its comment would be longer than the {LONGEST_COMMENT:,} bytes that Slurm takes"
    if strict and added:
        notes.append(f"whorl excludes nothing for it, because {strict}")
        added = []
    after = NodeChoice(compress([*owners, *added]), comment) if added else owner
    return JobChange(record.id, NodeChoice.of(record), owner, after, tuple(notes))


def owner_of(record: JobRecord) -> NodeChoice:
    """A job without what whorl, or the site's submit filter, says in a comment that it excluded."""
    token = _ADDED.search(record.comment) or _ADDED.search(record.admin_comment)
    if token is None:
        return NodeChoice.of(record)
    try:
        added = set(expand(token[1]))
    except InputError:
        raise InputError(
            f"the comment of job {record.id} has whorl:excluded={token[1]}, which is no host list: take it out of the "
            "comment (`scontrol update`)"
        ) from None
    excluded = compress(node for node in expand(record.excluded) if node not in added)
    was = _OWNERS.search(record.comment)
    if was is not None and set(expand(unquote(was[1]))) == set(expand(excluded)):  # else the owner has changed it since
        excluded = unquote(was[1])
    comment = record.comment
    for tokens in (_ADDED, _OWNERS, re.compile(_TRYING)):
        comment = tokens.sub("", comment)
    return NodeChoice(excluded, comment if comment == record.comment else comment.strip())


def _set(slurm: Slurm, record: JobRecord, choice: NodeChoice, *, release: bool = False) -> None:
    """Change a waiting job, and let it go where asked to, or where Slurm holds it because it could run nowhere.

    Slurm says that it refuses to change a job that cannot run in its partition, and changes it all the same: so a
    refusal counts only where the job is not changed, and still waits.
    """

    def changed(*reasons: str) -> bool:
        records = slurm.jobs(record.id.partition("_")[0])
        return any(choice.same_as(NodeChoice.of(row)) and (not reasons or row.reason in reasons) for row in records)

    try:
        slurm.update(record.id, **choice.settings(NodeChoice.of(record)))
    except SchedulerError as error:
        if "no longer pending" in str(error):
            return
        if not changed():
            raise
    if release or record.blocked_by("BadConstraints"):
        try:
            slurm.release(record.id)
        except SchedulerError:
            if changed(HELD):
                raise


# -- looking at what Slurm makes of it -------------------------------------------------------------------------------


@dataclass
class ExclusionTrial:
    """Changes of one job, made and looked at together."""

    slurm: Slurm
    job: str
    options: ApplyOptions
    gain_share: float  # the share of a job's time that the exclusion saves
    tell: Callable[[str], None]

    def run(self, changes: Sequence[JobChange]) -> list[JobChange]:
        """Make the changes, and undo those after which Slurm starts the job later or not at all."""
        planned = self._planned(changes)
        to_try = [change for change in planned if change.needed and change.after != change.owner]
        outcomes = dict(zip(to_try, self._tried(to_try), strict=True)) if to_try else {}
        records = self.slurm.jobs(self.job)
        for change in (change for change in planned if change not in outcomes):
            for record in (record for record in records if change.covers(record) and record.state == "PENDING"):
                released = self.options.release and record.blocked_by(HELD)
                if change.needed or released:  # more nodes to run on: nothing to compare
                    _set(self.slurm, record, change.after, release=released)
            outcomes[change] = replace(change, outcome="excluded") if change.needed else change
        return [outcomes[change] for change in planned]

    def _planned(self, changes: Sequence[JobChange]) -> list[JobChange]:
        """The changes with the start that Slurm plans for their jobs, waiting for it; without one a job stays."""
        excluding = [change for change in changes if change.needed and change.after != change.owner]
        until = time.monotonic() + self._wait_s if excluding else 0.0
        present: dict[str, JobRecord | None] = {}
        while excluding:
            waiting_first = sorted(self.slurm.jobs(self.job), key=lambda record: record.state != "PENDING")
            present = {change.job: next(filter(change.covers, waiting_first), None) for change in excluding}
            if not any(record and _is_new(record) for record in present.values()) or time.monotonic() > until:
                break
            time.sleep(self._pause_s)
        return [
            self._with_start(change, present[change.job]) if change.job in present else change for change in changes
        ]

    def _with_start(self, change: JobChange, record: JobRecord | None) -> JobChange:
        if record is None or record.state != "PENDING" or not change.before.same_as(NodeChoice.of(record)):
            return change.overtaken(record)
        if record.blocked_by(HELD) and self.options.release:
            # Released, it starts at once, or it waits for the exclusion or the queue.
            return replace(change, start_before=dt.datetime.now(dt.UTC))
        if record.blocked_by(HELD):
            return change.stays(
                "it is held, and Slurm plans no start for held jobs: --set release=yes lets it go with the exclusion"
            )
        if _is_new(record) or record.blocked_by(*OFF_PLAN):
            return change.stays(
                "Slurm plans no start for it yet, so what the exclusion costs cannot be seen: try again later"
            )
        return replace(change, start_before=record.start)

    def _tried(self, changes: Sequence[JobChange]) -> list[JobChange]:
        """Make changes, look at the job until each has an outcome or the time is over, undo those that do not stay."""
        try:
            for record in self.slurm.jobs(self.job):
                for change in changes:
                    if change.covers(record) and record.state == "PENDING":
                        _set(self.slurm, record, change.trying, release=record.blocked_by(HELD))
            self.tell(
                f"waiting for what Slurm plans for job {self.job} without these nodes: {self._wait_s:.0f} s at most"
            )
            outcomes = self._watch(changes)
            self._settle(changes, [outcome.after for outcome in outcomes])
        except BaseException as error:
            try:
                self._settle(changes, [change.owner for change in changes])
            except SchedulerError:
                raise SchedulerError(
                    f"{error or type(error).__name__}: job {self.job} may avoid nodes that it needs; `whorl advise "
                    f"apply --undo {self.job}` takes that back once Slurm answers"
                ) from error
            raise
        return outcomes

    def _settle(self, changes: Sequence[JobChange], choices: Sequence[NodeChoice]) -> None:
        """Give the tasks on which changes are tried what they stay with; of one that started only the comment."""
        records = self.slurm.jobs(self.job)
        for change, choice in zip(changes, choices, strict=True):
            for record in filter(change.is_tried_on, records):
                if record.state == "PENDING":
                    _set(self.slurm, record, choice)
                else:
                    with contextlib.suppress(SchedulerError):  # it may have ended
                        self.slurm.update(record.id, Comment=choice.comment)

    def _watch(self, changes: Sequence[JobChange]) -> list[JobChange]:
        """The outcomes of changes. A start that stands since before the change counts once Slurm had time to look."""
        outcomes: dict[str, JobChange] = {}
        starts: dict[str, dt.datetime | None] = {}  # right after the change
        until = time.monotonic() + self._wait_s
        while True:
            over, records = time.monotonic() > until, self.slurm.jobs(self.job)
            for change in (change for change in changes if change.job not in outcomes):
                tried = [record for record in records if change.is_tried_on(record)]
                waiting = next((record for record in tried if record.state == "PENDING"), None)
                if waiting is not None:
                    planned_before = waiting.start == starts.setdefault(change.job, waiting.start)
                    if over or not planned_before or waiting.blocked_by(*BLOCKED):
                        outcomes[change.job] = self._judged(change, waiting)
                elif tried:  # it started
                    outcomes[change.job] = replace(change, outcome="excluded")
                else:
                    outcomes[change.job] = change.overtaken(next(filter(change.covers, records), None))
            if len(outcomes) == len(changes):
                return [outcomes[change.job] for change in changes]
            time.sleep(self._pause_s)

    def _judged(self, change: JobChange, record: JobRecord) -> JobChange:
        """A change that stays, or is undone, by what Slurm makes of the job that waits."""
        most_s = self.options.max_delay_s
        if most_s is None:
            most_s = max(LEAST_DELAY_S, self.gain_share * record.limit_s if math.isfinite(record.limit_s) else 0.0)
        later_s = (record.start - change.start_before).total_seconds() if record.start and change.start_before else 0.0
        if record.blocked_by(*BLOCKED):
            reason = f"without these nodes Slurm cannot start it ({record.reason})"
        elif record.start is None:
            reason = "without these nodes Slurm plans no start for it"
        elif later_s > most_s:
            reason = f"without these nodes it waits {duration(later_s)} longer, and may {duration(most_s)} (max-delay)"
        else:
            return replace(change, outcome="excluded", start_after=record.start)
        notes = (*change.notes, f"nothing is excluded: {reason}")
        return replace(change, after=change.owner, notes=notes, outcome="undone", start_after=record.start)

    @cached_property
    def _wait_s(self) -> float:
        return PASSES * self.slurm.backfill_interval_s() if self.options.wait_s is None else self.options.wait_s

    @property
    def _pause_s(self) -> float:
        return min(2.0, max(0.2, self._wait_s / 20))


def _is_new(record: JobRecord) -> bool:
    """Whether a job waits which Slurm has not planned yet, though it may."""
    planned = record.start is not None and bool(record.reason)
    return record.state == "PENDING" and not planned and not record.blocked_by(*OFF_PLAN)


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
