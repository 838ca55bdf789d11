"""The driver of a campaign: submits jobs for the nodes that are not covered, a few at a time, until none is left.

It keeps nothing in memory that matters. What is measured stands in the store, and what was submitted in the queue, by
the names of the jobs. So it may be killed at any time and run again. A lock in the store lets one driver of a campaign
run at a time. sbatch inherits the lock: if the driver is killed while a job is on its way, the next driver waits until
that job is in the queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from ...errors import InputError, SchedulerError, StoreError
from ...store.events import Event, event_rows
from ...store.system.files import make_folder
from ...store.system.locks import Lock, locked
from ...store.vocabulary import EventKind
from ..batch import render
from ..scheduler import Refusal
from ..slurm import Slurm
from .asking import Asked, CampaignRequest, choose, declare
from .coverage import GpuState, coverage
from .inventory import own_jobs, reach, with_cluster
from .planning import How, allocated_h, batch_job, output_folder, output_of
from .status import TRIES, NodeState, NodeStatus, Site, Status, assess, last_line, site_of, with_outputs

if TYPE_CHECKING:
    from ...store import Store

T = TypeVar("T")

PENDING = 8
"""So many jobs wait in the queue at most."""
PATIENCE_S = 600.0
"""So long a scheduler may refuse, or not answer."""
SETTLE_S = 20.0
"""After its job has ended, a node is not tried again for so long: on a shared file system its runs may come late."""
_FIRST_S, _LONGEST_S = 1.0, 300.0  # pauses between two looks at the queue
_GROWS, _SHRINKS = 1.5, 0.85
_LONGER_S = 5.0  # so much longer than sbatch of a driver that was killed may run, the next driver waits
_RENEWED_S = 10.0  # the nodes are not asked for more often
_HOPELESS = 4
"""After so many nodes whose jobs ended while the campaign has no run at all, something is wrong with every job. Where
somebody waits and can mend it, one is enough."""
_BY_CHANCE = frozenset({"BOOT_FAIL", "CANCELLED", "NODE_FAIL", "PREEMPTED"})
"""Ends of a job that tell nothing of the jobs on other nodes."""

Progress = Callable[[int, int, str], None]
"""Is told how many of how many nodes are covered, and what goes on."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How fast, how far and how patiently a driver works."""

    max_pending: int = PENDING
    budget_h: float | None = None
    """GPU-hours that the campaign may be allocated."""
    patience_s: float = PATIENCE_S
    settle_s: float = SETTLE_S
    tries: int = TRIES
    """So many jobs a node gets; more, for nodes that failed and were mended."""
    once: bool = False
    """Submit one round, and end."""


def run_campaign(
    store: Store | str | Path,
    asked: Asked,
    *,
    how: How | None = None,
    limits: Limits | None = None,
    slurm: Slurm | None = None,
    progress: Progress | None = None,
    begins: Callable[[str], None] | None = None,
) -> Status:
    """Run a campaign until every node is covered, has failed, or is not available; or one round of it.

    It goes on where an earlier call ended. `begins` is called with the campaign's name before the first job.
    Raises InputError for options that cannot be used, StoreError if the store cannot be written or another driver runs
    this campaign, SchedulerError if Slurm is not here, or does not answer or refuses for too long.
    """
    from ...store import Store

    how, limits, slurm = how or How(), limits or Limits(), slurm or Slurm()
    if limits.max_pending < 1:
        raise InputError(f"at least one job must be allowed to wait, not {limits.max_pending}")
    before = store if isinstance(store, Store) else Store.find(store)
    request = choose(before, asked)
    reach(slurm)
    request = with_cluster(request, slurm)
    site = site_of(slurm, request, how)  # says what is wrong with the options before a store is made
    for one in site.targets[:1]:
        render("slurm", batch_job(Path("store"), request, one, how), how.template)
    opened = before or Store.create(store if not isinstance(store, Store) else store.root)
    if not opened.writable():
        raise StoreError(f"{opened.root} cannot be written by this user: the jobs could store nothing there")
    path = opened.root / f"campaign-{request.campaign}.lock"
    with locked(path, f"campaign {request.campaign}", wait_s=slurm.timeout_s + _LONGER_S) as lock:
        folder = output_folder(opened.root, request, how)
        try:
            if opened.root in folder.parents:
                make_folder(folder)  # other users of the store write there, too
            else:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder}, where the jobs write, cannot be made: {error.strerror}") from error
        if begins:
            begins(request.campaign)
        driver = _Driver(opened, request, how, limits, slurm, lock, site, progress or (lambda *_: None))
        return driver.run()


class _Driver:
    def __init__(
        self,
        store: Store,
        request: CampaignRequest,
        how: How,
        limits: Limits,
        slurm: Slurm,
        lock: Lock,
        site: Site,
        progress: Progress,
    ) -> None:
        self._store, self._request, self._how, self._limits = store, request, how, limits
        self._slurm, self._lock, self._progress = slurm, lock, progress
        self._site, self._asked_s = site, time.monotonic()
        self._pause_s = _FIRST_S
        self._held: dict[str, float] = {}  # node -> until when it is not tried again, monotonic
        self._live: set[str] = set()  # nodes whose jobs were in the queue at the last look
        self._refused: dict[str, str] = {}  # node -> why Slurm does not take a job for it
        self._limit: str | None = None  # what Slurm said when it took no more jobs
        self._over_budget_h: float | None = None  # what the job may take that the budget does not allow
        self._forgiven: dict[str, int] | None = {} if limits.once else None  # node -> tries that do not count here
        self._submitted = 0
        self._counted = 0, len(site.targets)  # nodes that are covered, of how many
        self._well_s = time.monotonic()  # when Slurm last answered, and took a job or had one of ours

    def run(self) -> Status:
        seen: object = None
        while True:
            found = self._looked()
            self._despair(found)
            sent = self._submit(found, self._wanted(found))
            self._say(found, sent)
            if self._limits.once:
                return self._ended(self._looked() if sent else found)
            if not (sent or self._limit or self._holds(found) or any(one.live for one in found.nodes)):
                back = {one.name for one in found.of(NodeState.UNAVAILABLE)}
                if back and time.monotonic() - self._asked_s > _FIRST_S:
                    self._renew()
                    back -= {one.name for one in self._site.targets if one.why_not}
                    if back:
                        continue
                return self._ended(found)
            state = [(one.name, one.state) for one in found.nodes], sent
            changed, seen = state != seen, state
            self._pause_s = max(self._pause_s * _SHRINKS, _FIRST_S) if changed else self._pause_s * _GROWS
            self._pause_s = min(self._pause_s, _LONGEST_S)
            time.sleep(self._pause_s)
            # A node may have come back, gone, or become idle. That is a long answer: it is asked for less often.
            old = time.monotonic() - self._asked_s > max(_RENEWED_S, 2 * self._pause_s)
            if old and found.count(NodeState.TO_DO) + found.count(NodeState.UNAVAILABLE):
                self._renew()

    # -- looking ----------------------------------------------------------------------------------------------------

    def _looked(self) -> Status:
        """How far the campaign is. The queue is asked before the store is read: no job that ends between is missed."""
        queue = self._patiently(lambda: own_jobs(self._slurm, self._request, self._store.root))
        stored = coverage(self._store, self._request)
        if queue or stored:  # also of a driver that was killed after its first job
            self._request = declare(self._store, self._request)
        found = assess(self._request, self._site, queue, stored, self._limits.tries)
        now = time.monotonic()
        live = {job.node for job in queue if not job.ended}
        if live:
            self._well_s = now
        for name in (self._live - live) & {one.name for one in found.of(NodeState.TO_DO)}:
            self._held[name] = now + self._limits.settle_s
        self._live = live
        return found

    def _renew(self) -> None:
        """Ask Slurm for the nodes again."""
        partitions = self._site.partitions
        self._site = self._patiently(lambda: site_of(self._slurm, self._request, self._how, partitions))
        self._asked_s = time.monotonic()

    def _patiently(self, ask: Callable[[], T]) -> T:
        """What Slurm answers, in the end: a controller that is busy or restarts is waited for."""
        pause_s = _FIRST_S
        while True:
            try:
                answer = ask()
            except SchedulerError as error:
                waited_s = time.monotonic() - self._well_s
                if error.absent or self._limits.once or waited_s + pause_s > self._limits.patience_s:
                    raise SchedulerError(
                        f"{error}; jobs that were submitted stay in the queue: run the command again to go on",
                        absent=error.absent,
                    ) from error
                self._progress(*self._counted, str(error))
                time.sleep(pause_s)
                pause_s = min(pause_s * _GROWS, 60.0)
            else:
                if self._limit is None:
                    self._well_s = time.monotonic()
                return answer

    def _despair(self, found: Status) -> None:
        """Raise SchedulerError where every job ends without a run: to send thousands of them would help nobody."""
        now = time.monotonic()
        tried = [one for one in self._tried(found) if one.job is None and self._held.get(one.name, 0) <= now]
        folder = output_folder(self._store.root, self._request, self._how)
        # A job that wrote nothing did not begin: its node or its launch is at fault, and another node may do.
        written = [one for one in tried if last_line(output_of(folder, one.name))]
        telling = [one for one in written if one.ended not in _BY_CHANCE]
        enough = len(tried) >= _HOPELESS or (telling and not self._limits.once)
        if not enough or _has_runs(found):
            return
        one = [*telling, *written, *tried][0]
        jobs = "1 job" if one.tries == 1 else f"{one.tries} jobs"
        first = replace(one, state=NodeState.FAILED, why=f"{jobs} stored nothing")
        shown = with_outputs(replace(found, nodes=[first]), self._store.root, self._how).nodes[0]
        which = f"the jobs on {len(tried)} nodes" if len(tried) > 1 else "the first job"
        raise SchedulerError(f"{which} ended and stored nothing, so no more are sent; {shown.name}: {shown.why}")

    def _tried(self, found: Status) -> list[NodeStatus]:
        """The nodes to which a job was sent that tells whether jobs can measure.

        Who runs the command again has mended what was wrong: jobs that had ended by then tell nothing. With `once` the
        command is run again by a clock, so all jobs tell.
        """
        if self._forgiven is None:
            self._forgiven = {one.name: one.tries - (one.job is not None) for one in found.nodes}
        return [one for one in found.nodes if one.tries > self._forgiven.get(one.name, 0)]

    def _holds(self, found: Status) -> bool:
        """Whether a node waits for its next try."""
        now = time.monotonic()
        return any(self._held.get(one.name, 0) > now for one in found.of(NodeState.TO_DO))

    # -- submitting -------------------------------------------------------------------------------------------------

    def _wanted(self, found: Status) -> list[NodeStatus]:
        """The nodes that a job is to be sent to now, idle ones first."""
        now = time.monotonic()
        free = [
            one
            for one in found.of(NodeState.TO_DO)
            if self._held.get(one.name, 0) <= now and one.name not in self._refused
        ]
        free.sort(key=lambda one: one.tries)
        pending = [one for one in found.nodes if one.job is not None and one.job.pending]
        idle = [one for one in free if one.target and one.target.idle]
        busy = [one for one in free if not (one.target and one.target.idle)]
        # Jobs for busy nodes may wait for days: they leave room for nodes that become idle.
        waiting = sum(1 for one in pending if not (one.target and one.target.idle))
        if not _has_runs(found):  # what is wrong with every job is seen on one node
            if any(map(_on_trial, found.nodes)):
                return []
            return idle or ([] if waiting else busy)  # the first that Slurm takes
        room = self._limits.max_pending - len(pending)
        room_busy = max(1, self._limits.max_pending // 2) - waiting
        return [*idle[: max(room, 0)], *busy[: max(min(room_busy, room - len(idle)), 0)]]

    def _submit(self, found: Status, wanted: Sequence[NodeStatus]) -> list[str]:
        self._limit, self._over_budget_h = None, None
        budget_h = self._limits.budget_h
        spent_h = found.allocated_h + sum(self._costs_h(one) for one in found.nodes if one.job is not None)
        sent: list[Event] = []
        for one in wanted:
            if budget_h is not None and spent_h + self._costs_h(one) > budget_h:
                self._over_budget_h = self._costs_h(one)
                break
            assert one.target is not None
            job = batch_job(self._store.root, self._request, one.target, self._how, one.tries + 1, _chosen(one))
            answer = self._slurm.submit(render("slurm", job, self._how.template), keep=(self._lock.handle,))
            if answer.job is not None:
                self._request = declare(self._store, self._request)  # a campaign begins with its first job
                spent_h += self._costs_h(one)
                sent.append(_event(self._request, one, answer.job))
                if not _has_runs(found):
                    break
                continue
            if answer.refusal is Refusal.UNSURE:
                self._held[one.name] = time.monotonic() + max(self._limits.settle_s, self._slurm.timeout_s)
            if answer.refusal in (Refusal.UNSURE, Refusal.LATER):
                self._limit = answer.message
                break
            self._refused[one.name] = answer.message
            if answer.refusal is Refusal.OTHER and not (self._submitted or sent):
                raise SchedulerError(f"Slurm refused the job for node {one.name}: {answer.message}")
        self._submitted += len(sent)
        self._live |= {event.node or "" for event in sent}
        if sent:
            self._well_s = time.monotonic()
            rows = pa.Table.from_batches([event_rows(sent, cluster=self._request.cluster or "")])
            self._store.append({"events": rows}, f"campaign-{self._request.campaign}-{time.time_ns()}")
        elif self._limit and time.monotonic() - self._well_s > self._limits.patience_s and not self._limits.once:
            raise SchedulerError(f"Slurm took no job for {self._limits.patience_s:g} s: {self._limit}")
        return [event.node or "" for event in sent]

    def _costs_h(self, one: NodeStatus) -> float:
        return allocated_h(self._request, one.gpus, self._how)

    def _say(self, found: Status, sent: Sequence[str]) -> None:
        what = f"{found.count(NodeState.RUNNING)} running, {found.count(NodeState.WAITING)} waiting"
        if sent:
            what += f"; submitted {', '.join(sent[:3])}" + (f" and {len(sent) - 3} more" if len(sent) > 3 else "")
        elif self._limit:
            what += f"; Slurm takes no more now: {self._limit}"
        if not _has_runs(found) and len(found.nodes) > 1:
            what += "; the other nodes follow when a first run is stored"
        self._counted = found.count(NodeState.COVERED), len(found.nodes)
        self._progress(*self._counted, what)

    def _ended(self, found: Status) -> Status:
        """How far it is, with what this driver alone knows."""
        nodes = [
            replace(one, state=NodeState.UNAVAILABLE, why=f"Slurm refused its job: {self._refused[one.name]}")
            if one.state is NodeState.TO_DO and one.name in self._refused
            else one
            for one in found.nodes
        ]
        found = with_outputs(replace(found, nodes=nodes), self._store.root, self._how)
        if self._over_budget_h is not None:
            found.notes.append(
                f"the budget of {self._limits.budget_h:g} GPU-hours is spent or does not suffice for the next node: "
                f"its job may take {self._over_budget_h:.2g}"
            )
        if self._limit:
            found.notes.append(f"Slurm took no more jobs: {self._limit}")
        return found


def _on_trial(node: NodeStatus) -> bool:
    """Whether its job runs or is about to: what becomes of it tells whether jobs can measure."""
    if node.job is None or not node.live:
        return False
    return not node.job.pending or (node.target is not None and node.target.idle and node.job.reason != "BeginTime")


def _has_runs(found: Status) -> bool:
    return any(one.covered.gpus for one in found.nodes)


def _chosen(one: NodeStatus) -> list[str]:
    """The GPUs that a further try measures: without those that failed. Empty: all, as long as not all are known."""
    good = [gpu.gpu for gpu in one.covered.gpus if gpu.state is not GpuState.FAILED]
    return good if len(one.covered.gpus) == one.gpus > len(good) else []


def _event(request: CampaignRequest, one: NodeStatus, job: str) -> Event:
    attempt = one.tries + 1
    says = f"job {job} of campaign {request.campaign} was submitted to measure {one.name}, try {attempt}"
    return Event(
        EventKind.JOB_SUBMITTED,
        None,
        says,
        time.time_ns(),
        one.name,
        n=attempt,
        campaign=request.campaign,
        job_id=job,
    )
