"""The driver of a campaign: submits jobs for the nodes that are not covered, a few at a time, until none is left.

It keeps nothing in memory that matters. What is measured stands in the store, and what was submitted in the queue, by
the names of the jobs. So it may be killed at any time and run again. A lock in the store lets one driver of a campaign
run at a time. The command that submits inherits the lock: if the driver is killed while a job is on its way, the next
driver waits until that job is in the queue.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import InputError, SchedulerError, StoreError
from ..store.events import Event, event_rows
from ..store.system.locks import Lock, locked
from ..store.vocabulary import EventKind
from .campaign import (
    USUAL_OPTIONS,
    CampaignChoice,
    CampaignRequest,
    SubmitOptions,
    allocated_h,
    choose_campaign,
    declare_campaign,
    make_output_folder,
    node_job,
    output_folder,
)
from .campaign_status import (
    TRIES,
    CampaignStatus,
    GpuState,
    Inventory,
    NodeState,
    NodeStatus,
    assess,
    prepare,
    with_output,
    with_outputs,
)
from .scheduler import Answer, Patience, Refusal, Scheduler, last_line

if TYPE_CHECKING:
    from ..store import Store

_FIRST_S, _LONGEST_S = 1.0, 300.0  # pauses between two looks at the queue
_GROWS, _SHRINKS = 1.5, 0.85
_LONGER_S = 5.0  # so much longer than a submission of a driver that was killed may take, the next driver waits
_RENEWED_S = 10.0  # the nodes are not asked for more often
_RESTS = 10.0  # after its answers the scheduler is left alone for so many times as long as they took
_SOON_S = 60.0  # a job that is expected to start within this time is about to
_HOPELESS = 4
"""After so many nodes whose jobs ended while the campaign has no run at all, something is wrong with every job. Where
somebody waits and can mend it, a single one is enough."""
_BY_CHANCE = frozenset({"BOOT_FAIL", "CANCELLED", "NODE_FAIL", "PREEMPTED"})
"""Ends of a job that tell nothing of the jobs on other nodes."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """How fast, how far and how patiently a driver works, and who hears of it."""

    max_pending: int = 8  # so many jobs wait in the queue at most
    budget_h: float | None = None  # GPU-hours that the campaign may be allocated
    patience_s: float = 600.0  # so long a scheduler may refuse, or not answer
    settle_s: float = 20.0  # so long a node rests after its job: on a shared file system runs may come late
    tries: int = TRIES  # so many jobs a node gets; more, for nodes that failed and were mended
    once: bool = False  # submit one round, and end
    begins: Callable[[str], None] = lambda _: None  # is called with the campaign's name before the first job
    progress: Progress = lambda *_: None  # is called with how many of how many nodes are covered, and what goes on


USUAL_DRIVER = DriverOptions()


def run_campaign(
    store: Store | str | Path,
    choice: CampaignChoice,
    *,
    scheduler: Scheduler,
    options: SubmitOptions = USUAL_OPTIONS,
    driver: DriverOptions = USUAL_DRIVER,
) -> CampaignStatus:
    """Run a campaign until every node is covered, has failed, or is not available; or one round of it.

    It goes on where an earlier call ended. Raises InputError for options that cannot be used, StoreError if the store
    cannot be written or another driver runs this campaign, SchedulerError if the scheduler is not here, or does not
    answer or refuses for too long.
    """
    from ..store import Store

    if driver.max_pending < 1:
        raise InputError(f"at least one job must be allowed to wait, not {driver.max_pending}")
    # Says what is wrong with the options before a store is made.
    opened, request, inventory = prepare(store, choice, scheduler, options)
    scheduler.render(node_job(Path("store"), request, inventory.covered[0], options), options.template)
    if opened is None:
        opened = Store.create(store if not isinstance(store, Store) else store.root)
    if not opened.writable():
        raise StoreError(f"{opened.root} cannot be written by this user: the jobs could store nothing there")
    path = opened.root / f"campaign-{request.campaign}.lock"
    with locked(path, f"campaign {request.campaign}", wait_s=scheduler.timeout_s + _LONGER_S) as lock:
        if request.is_new:  # another driver may have begun it while this one waited for the lock
            begun_request = choose_campaign(opened, replace(choice, campaign=request.campaign))
            request = request if begun_request.is_new else begun_request
        make_output_folder(opened.root, request, options)
        driver.begins(request.campaign)
        return _Driver(opened, request, options, driver, scheduler, lock, inventory).run()


@dataclass
class _Driver:
    """A campaign that is being run. Times are of the monotonic clock."""

    store: Store
    request: CampaignRequest
    options: SubmitOptions
    driver: DriverOptions
    scheduler: Scheduler
    lock: Lock
    inventory: Inventory
    renewed_s: float = field(default_factory=lambda: time.monotonic())  # when the scheduler was asked for the nodes
    took_s: float = field(default_factory=lambda: time.monotonic())  # when it last refused no job, or had one of ours
    resting_s: dict[str, float] = field(default_factory=dict)  # node -> until when it is not tried again
    live: set[str] | None = None  # nodes whose jobs were in the queue at the last look; None before the first
    refused: dict[str, str] = field(default_factory=dict)  # node -> why the scheduler does not take a job for it
    limit: str | None = None  # what the scheduler said when it took no more jobs
    unaffordable_h: float | None = None  # what the job may take that the budget does not allow
    earlier_tries: dict[str, int] | None = None
    """Node -> tries that tell nothing, as who runs the command again has mended what was wrong; None: not known yet."""
    covered: tuple[int, int] = (0, 0)  # how many of how many nodes

    def __post_init__(self) -> None:
        longest_s = 0.0 if self.driver.once else self.driver.patience_s
        self.patience = Patience(longest_s, lambda sentence: self.driver.progress(*self.covered, sentence))

    def run(self) -> CampaignStatus:
        pause_s, before = _FIRST_S, None
        while True:
            status = self.look()
            self.stop_if_hopeless(status)
            sent = self.submit(status)
            self.tell(status, sent)
            if self.driver.once:
                return self.end(self.look() if sent else status)
            waits = any(map(self.rests, status.of(NodeState.TO_DO))) or any(node.live for node in status.nodes)
            goes_on = sent or self.limit or waits
            if not goes_on and not self.nodes_came_back(status):
                return self.end(status)
            states = [(node.name, node.state) for node in status.nodes], sent
            pause_s = pause_s * _GROWS if states == before else max(pause_s * _SHRINKS, _FIRST_S)
            pause_s, before = min(pause_s, _LONGEST_S), states
            if goes_on:
                time.sleep(max(pause_s, _RESTS * self.patience.asking_s))
                self.patience.asking_s = 0.0
                # A node may have come back, gone, or become idle. That is a long answer: it is asked for less often.
                old = time.monotonic() - self.renewed_s > max(_RENEWED_S, 2 * pause_s)
                if old and status.count(NodeState.TO_DO) + status.count(NodeState.UNAVAILABLE):
                    self.renew()

    # -- looking ----------------------------------------------------------------------------------------------------

    def look(self) -> CampaignStatus:
        """How far the campaign is. The queue is asked before the store is read: no job that ends between is missed."""
        queue = self.patience.ask(self.scheduler.queue)
        title = self.scheduler.title
        status = assess(self.request, self.inventory, queue, self.store, tries=self.driver.tries, title=title)
        if self.earlier_tries is None:  # with `once` a clock runs the command again, which mends nothing
            before = [] if self.driver.once else status.nodes
            self.earlier_tries = {node.name: node.tries - (node.job is not None) for node in before}
        live = {node.name for node in status.nodes if node.job is not None}
        if live or self.limit is None:
            self.took_s = time.monotonic()
        for node in status.of(NodeState.TO_DO):
            if (node.name in self.live) if self.live is not None else self.ended_lately(node):
                self.resting_s[node.name] = time.monotonic() + self.driver.settle_s
        self.live = live
        return status

    def ended_lately(self, node: NodeStatus) -> bool:
        """Whether its last job ended so lately that its runs may come late: what an earlier driver saw in the queue."""
        end = None if node.ended is None else node.ended.end
        return end is not None and abs((datetime.now(UTC) - end).total_seconds()) < self.driver.settle_s

    def renew(self) -> None:
        """Ask the scheduler for the nodes again."""
        self.inventory = self.patience.ask(lambda: Inventory.of(self.scheduler, self.request, self.options))
        self.renewed_s = time.monotonic()

    def nodes_came_back(self, status: CampaignStatus) -> bool:
        """Whether a node that was not available takes jobs again."""
        unavailable = {node.name for node in status.of(NodeState.UNAVAILABLE)}
        if not unavailable or time.monotonic() - self.renewed_s <= _FIRST_S:
            return False
        self.renew()
        return any(node.name in unavailable and not node.obstacle for node in self.inventory.covered)

    def rests(self, node: NodeStatus) -> bool:
        """Whether a node waits for its next try."""
        return self.resting_s.get(node.name, 0) > time.monotonic()

    def stop_if_hopeless(self, status: CampaignStatus) -> None:
        """Raise SchedulerError where every job ends without a run: to send thousands of them would help nobody."""
        earlier = self.earlier_tries or {}
        tried = [node for node in status.nodes if node.tries > earlier.get(node.name, 0)]
        tried = [node for node in tried if node.job is None and not self.rests(node)]
        folder = output_folder(self.store.root, self.request, self.options)
        # A job that wrote nothing did not begin: its node or its launch is at fault, and another node may do.
        wrote = [node for node in tried if last_line(folder / f"{node.name}.out")]
        telling = [node for node in wrote if node.ended is None or node.ended.state not in _BY_CHANCE]
        enough = len(tried) >= _HOPELESS or (telling and not self.driver.once)
        if not enough or status.has_runs:
            return
        first = [*telling, *wrote, *tried][0]
        jobs = "1 job" if first.tries == 1 else f"{first.tries} jobs"
        first = with_output(replace(first, why=f"{jobs} stored nothing"), folder)
        which = f"the jobs on {len(tried)} nodes" if len(tried) > 1 else "the first job"
        raise SchedulerError(f"{which} ended and stored nothing, so no more are sent; {first.name}: {first.why}")

    # -- submitting -------------------------------------------------------------------------------------------------

    def room(self, status: CampaignStatus) -> tuple[int, int]:
        """How many jobs may be sent, and how many of them to busy nodes."""
        pending = [node for node in status.nodes if node.job is not None and node.job.pending]
        pending_busy = sum(not node.idle for node in pending)
        room = self.driver.max_pending - len(pending)
        if not status.has_runs:  # what is wrong with every job is seen on one node
            return min(room, int(not any(map(_on_trial, status.nodes)))), int(not pending_busy)
        # Jobs for busy nodes may wait for days: they leave room for nodes that become idle.
        return room, max(1, self.driver.max_pending // 2) - pending_busy

    def submit(self, status: CampaignStatus) -> list[str]:
        """Submit jobs as far as room, budget and scheduler allow; returns the nodes whose jobs it took."""
        self.limit, self.unaffordable_h = None, None
        budget_h = math.inf if self.driver.budget_h is None else self.driver.budget_h
        spent_h = status.allocated_h + sum(self.cost_h(node) for node in status.nodes if node.job is not None)
        room, room_busy = self.room(status)
        sent: list[Event] = []
        to_do = [node for node in status.of(NodeState.TO_DO) if not self.rests(node)]
        # Idle ones first, busy ones in the order in which they become free.
        for node in sorted(to_do, key=lambda node: (not node.idle, node.tries, node.free_s or math.inf)):
            if room <= 0 or (room_busy <= 0 and not node.idle):
                break
            if node.name in self.refused:  # also a moment ago, with a job like it
                continue
            if spent_h + self.cost_h(node) > budget_h:
                self.unaffordable_h = self.cost_h(node)
                break
            answer = self.send(node)
            if answer.job is not None:
                spent_h, room, room_busy = spent_h + self.cost_h(node), room - 1, room_busy - (not node.idle)
                sent.append(_submission(self.request, node, answer.job))
            elif answer.refusal in (Refusal.UNSURE, Refusal.LATER):
                if answer.refusal is Refusal.UNSURE:
                    self.resting_s[node.name] = time.monotonic() + max(self.driver.settle_s, self.scheduler.timeout_s)
                self.limit = answer.message
                break
            elif answer.refusal is Refusal.NODE:
                self.refused[node.name] = answer.message
            elif not (sent or any(tried.tries for tried in status.nodes)):
                raise SchedulerError(f"{self.scheduler.title} refused the job for node {node.name}: {answer.message}")
            else:  # it would say the same of every job that is like this one
                same_kind = (peer for peer in status.of(NodeState.TO_DO) if _kind(peer) == _kind(node))
                self.refused |= {peer.name: answer.message for peer in same_kind}
        names = [event.node or "" for event in sent]
        if sent:
            self.took_s, self.live = time.monotonic(), {*(self.live or ()), *names}
            rows = pa.Table.from_batches([event_rows(sent, cluster=self.request.cluster or "")])
            self.store.append({"events": rows}, f"campaign-{self.request.campaign}-{time.time_ns()}")
        elif self.limit and not self.driver.once and time.monotonic() - self.took_s > self.driver.patience_s:
            raise SchedulerError(f"{self.scheduler.title} took no job for {self.driver.patience_s:g} s: {self.limit}")
        return names

    def send(self, node: NodeStatus) -> Answer:
        """Submit the job of a node."""
        # Whenever the driver is killed, the store knows the campaign of a job that is in the queue.
        self.request = declare_campaign(self.store, self.request)
        assert node.target is not None
        # A further try leaves out GPUs that failed, once all are known.
        good = [gpu.gpu for gpu in node.covered.gpus if gpu.state is not GpuState.FAILED]
        gpus = good if len(node.covered.gpus) == node.gpus > len(good) else []
        job = node_job(self.store.root, self.request, node.target, self.options, attempt=node.tries + 1, gpus=gpus)
        return self.scheduler.submit(self.scheduler.render(job, self.options.template), keep=(self.lock.handle,))

    def cost_h(self, node: NodeStatus) -> float:
        """GPU-hours that the node's job is allocated at most."""
        return allocated_h(self.request, node.gpus, self.options)

    # -- telling ----------------------------------------------------------------------------------------------------

    def tell(self, status: CampaignStatus, sent: Sequence[str]) -> None:
        sentence = f"{status.count(NodeState.RUNNING)} running, {status.count(NodeState.WAITING)} waiting"
        if sent:
            sentence += f"; submitted {', '.join(sent[:3])}" + (f" and {len(sent) - 3} more" if len(sent) > 3 else "")
        elif self.limit:
            sentence += f"; {self.scheduler.title} takes no more now: {self.limit}"
        if not status.has_runs and len(status.nodes) > 1:
            sentence += "; the other nodes follow when a first run is stored"
        self.covered = status.count(NodeState.COVERED), len(status.nodes)
        self.driver.progress(*self.covered, sentence)

    def end(self, status: CampaignStatus) -> CampaignStatus:
        """How far it is, with what this driver alone knows."""
        title = self.scheduler.title
        nodes = [
            replace(node, state=NodeState.UNAVAILABLE, why=f"{title} refused its job: {self.refused[node.name]}")
            if node.state is NodeState.TO_DO and node.name in self.refused
            else node
            for node in status.nodes
        ]
        status = with_outputs(replace(status, nodes=nodes), self.store.root, self.options)
        if self.unaffordable_h is not None:
            status.notes.append(
                f"the budget of {self.driver.budget_h:g} GPU-hours is spent or does not suffice for the next node: "
                f"its job may take {self.unaffordable_h:.2g}"
            )
        if self.limit:
            status.notes.append(f"{title} took no more jobs: {self.limit}")
        return status


def _on_trial(node: NodeStatus) -> bool:
    """Whether its job runs or is about to: what becomes of it tells whether jobs can measure."""
    if node.job is None or not node.live:
        return False
    start = node.job.start  # later for a job that was requeued, or that others with higher priority precede
    waits = start is not None and (start - datetime.now(UTC)).total_seconds() > _SOON_S
    return not node.job.pending or (node.idle and not waits)


def _kind(node: NodeStatus) -> tuple[str | None, int]:
    """What the scheduler's rules on jobs look at: equal for nodes whose jobs differ only in the node."""
    return node.target.partition if node.target else None, node.gpus


def _submission(request: CampaignRequest, node: NodeStatus, job: str) -> Event:
    """The event of a job that the scheduler took."""
    attempt = node.tries + 1
    return Event(
        EventKind.JOB_SUBMITTED,
        None,
        f"job {job} of campaign {request.campaign} was submitted to measure {node.name}, try {attempt}",
        time.time_ns(),
        node.name,
        n=attempt,
        campaign=request.campaign,
        job_id=job,
    )
