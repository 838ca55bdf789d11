"""How far a campaign is: what the store has of each node, what the queue has of its jobs, and what that makes of it.

Table `runs` decides: a job that ran and stored no run did not measure. Events tell what was not possible on a GPU, and
which jobs were submitted. The queue is asked before the store is read: so no job that ends between is missed. It
is asked once for a look, as a controller with many jobs takes long to list them.
"""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError, SchedulerError
from ..store.catalog import quoted
from ..store.hostlist import expand
from ..store.names import by_number, gpu_name
from ..store.vocabulary import EndedBy, EventKind
from .campaign import (
    PREFIX,
    USUAL_OPTIONS,
    CampaignChoice,
    CampaignNode,
    CampaignRequest,
    SubmitOptions,
    campaign_nodes,
    choose_campaign,
    comment_of,
    find_campaign,
    output_folder,
    select,
    with_cluster,
)
from .scheduler import Node, QueuedJob, Scheduler, known, last_line

if TYPE_CHECKING:
    from ..store import Store

TRIES = 3  # so many jobs a node gets, unless more are allowed
_SENTENCES = 4  # about GPUs of one node


# -- what the store has -------------------------------------------------------------------------------------------


class GpuState(StrEnum):
    """How far a GPU is measured."""

    COVERED = "covered"
    PARTIAL = "partial"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CampaignGpu:
    """A GPU that the campaign has measured or tried to."""

    gpu: str
    name: str
    state: GpuState
    done: int  # probes that are measured, or that are not possible on it
    why: str | None = None  # why it failed, in a sentence


@dataclass(slots=True)
class NodeCoverage:
    """What the store has of one node."""

    gpus: list[CampaignGpu] = field(default_factory=list)
    tries: int = 0  # jobs that were submitted
    jobs: set[str] = field(default_factory=set)
    span_s: float = 0.0  # from the first run to the last of each job, added up
    measured_s: float = 0.0  # its runs, added up

    def count(self, state: GpuState) -> int:
        return sum(gpu.state is state for gpu in self.gpus)

    @property
    def settled(self) -> int:
        """GPUs that need no further job: measured, or failed."""
        return self.count(GpuState.COVERED) + self.count(GpuState.FAILED)

    def add(self, part: NodeCoverage) -> None:
        """Add what the store has of the node under another name."""
        self.gpus += part.gpus
        self.jobs |= part.jobs
        self.tries = max(self.tries, part.tries, len(self.jobs))
        self.span_s, self.measured_s = self.span_s + part.span_s, self.measured_s + part.measured_s


def coverage(store: Store | None, request: CampaignRequest) -> dict[str, NodeCoverage]:
    """What the store has of the campaign, by the store's name of the node; "" stands for what is of no known node."""
    nodes: defaultdict[str, NodeCoverage] = defaultdict(NodeCoverage)
    if store is None:
        return nodes
    words = {"cluster": "true" if request.cluster is None else f"cluster = {quoted(request.cluster)}"}
    words["campaign"] = f"campaign = {quoted(request.campaign)} AND {words['cluster']}"
    words["probes"] = ", ".join(map(quoted, request.probes))
    for gpu, node, slot, probes, failure in select(store, _GPUS.format(**words)):
        unfinished = GpuState.PARTIAL if failure is None else GpuState.FAILED
        state = GpuState.COVERED if probes == len(request.probes) else unfinished
        nodes[node or ""].gpus.append(CampaignGpu(gpu, gpu_name(gpu, node, slot), state, probes, failure))
    for node, job, attempt in select(store, _SUBMISSIONS.format(**words)):
        nodes[node].add(NodeCoverage(tries=attempt, jobs={job} - {""}))
    for node, job, span_s, measured_s in select(store, _JOBS.format(**words)):
        nodes[node].add(NodeCoverage(jobs={job} - {""}, span_s=span_s, measured_s=measured_s))
    return dict(nodes)


_PLACES = """places AS (SELECT gpu, last(node ORDER BY first_seen NULLS FIRST) AS node,
    last(slot ORDER BY first_seen NULLS FIRST) AS slot FROM gpus WHERE node IS NOT NULL AND {cluster} GROUP BY gpu)"""
_GPUS = f"""
WITH {_PLACES}, facts AS (
    SELECT gpu, NULL AS node, ended AS ts,
        CASE WHEN ended_by IS DISTINCT FROM '{EndedBy.FAILED}' THEN workload END AS done,
        CASE WHEN ended_by = '{EndedBy.FAILED}' THEN workload || ': ' || coalesce(status_detail, 'failed') END AS why
    FROM runs WHERE {{campaign}} AND began IS NOT NULL AND ended IS NOT NULL
    UNION ALL SELECT gpu, NULL, ts, workload, NULL FROM events
    WHERE {{campaign}} AND kind = '{EventKind.PROBE_NOT_RUN}' AND gpu IS NOT NULL
    UNION ALL SELECT coalesce(gpu, detail, ''), node, ts, NULL, coalesce(detail, 'it could not be used') FROM events
    WHERE {{campaign}} AND kind = '{EventKind.PROBE_FAILED}' AND workload IS NULL)
SELECT gpu, coalesce(any_value(places.node), any_value(facts.node)), any_value(slot) AS slot,
    count(DISTINCT done) FILTER (done IN ({{probes}})), arg_max(why, ts)
FROM facts LEFT JOIN places USING (gpu) GROUP BY gpu ORDER BY slot NULLS FIRST, gpu
"""
"""Each GPU with runs, or that could not be used: node, slot, the number of its settled probes, why the last failed."""
_SUBMISSIONS = f"""
SELECT coalesce(node, ''), coalesce(job_id, ''), coalesce(n, 0) FROM events
WHERE {{campaign}} AND kind = '{EventKind.JOB_SUBMITTED}'
"""
_JOBS = f"""
WITH {_PLACES} SELECT coalesce(node, ''), coalesce(job_id, ''), (max(epoch_ns(ended)) - min(epoch_ns(began))) / 1e9,
    sum(epoch_ns(ended) - epoch_ns(began)) / 1e9 FROM runs LEFT JOIN places USING (gpu)
WHERE {{campaign}} AND began IS NOT NULL AND ended IS NOT NULL GROUP BY ALL
"""
"""Each job on each node that has runs: from the begin of the first to the end of the last, and all together, s."""


# -- what the scheduler has ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the scheduler has of a campaign's nodes; nothing where there is no scheduler."""

    nodes: Mapping[str, Node] = field(default_factory=dict)  # all of the cluster
    covered: Sequence[CampaignNode] = ()  # those with GPUs that the campaign covers

    @classmethod
    def of(cls, scheduler: Scheduler, request: CampaignRequest, options: SubmitOptions) -> Inventory:
        """Ask the scheduler. Raises InputError where it has none of the nodes, SchedulerError."""
        nodes = scheduler.nodes()
        return cls(nodes, campaign_nodes(request, options, nodes, scheduler.partitions(), title=scheduler.title))

    def free_s(self, queue: Sequence[QueuedJob]) -> Mapping[str, float]:
        """When each busy node is free at the latest, by the time limits of the jobs of a queue: seconds since 1970.

        A node with a job without limit is left out.
        """
        if all(node.idle or node.obstacle for node in self.covered):
            return {}
        from ..analysis.chains.waits import free_at

        running = [job for job in queue if job.nodes and not job.ended and not job.pending]
        ends = ((expand(job.nodes), math.inf if job.end is None else job.end.timestamp()) for job in running)
        return {node: free_s for node, free_s in free_at(ends).items() if math.isfinite(free_s)}


def campaign_jobs(
    queue: Sequence[QueuedJob], request: CampaignRequest, store: Path | None
) -> Mapping[str, Sequence[QueuedJob]]:
    """The campaign's jobs in the queue by node, those of other users among them where the scheduler shows them.

    Raises InputError where jobs of a campaign of this name wait or run, and this one is new.
    """
    comment = None if store is None else comment_of(store)
    jobs: defaultdict[str, list[QueuedJob]] = defaultdict(list)
    for job in queue:
        if not job.name.startswith(f"{PREFIX}:{request.campaign}:"):
            continue
        if job.user == os.geteuid():
            # A site may have its own template, or change comments: only a comment of another store counts.
            foreign = job.comment.startswith(f"{PREFIX}:") and job.comment != comment
        else:  # anybody may have a campaign of this name
            foreign = comment is None or job.comment != comment
        if not foreign:
            jobs[job.name.split(":")[2]].append(job)
            if request.is_new and not job.ended:
                raise InputError(
                    f"jobs of campaign {request.campaign} are in the queue, which was begun with other options: leave "
                    "them out to go on, or choose another --campaign"
                )
    return jobs


def _attempt(job: QueuedJob) -> int:
    """Which try of its node a job is, from 1."""
    number = job.name.split(":")[3:4]
    return int(number[0]) if number and number[0].isdigit() else 1


# -- both together ------------------------------------------------------------------------------------------------


class NodeState(StrEnum):
    """How far a node is."""

    COVERED = "covered"
    RUNNING = "running"
    WAITING = "waiting"
    TO_DO = "to do"
    UNAVAILABLE = "unavailable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """How far one node is."""

    name: str
    state: NodeState
    target: CampaignNode | None  # None where the scheduler has no such node any more, or was not asked
    covered: NodeCoverage
    job: QueuedJob | None = None  # its job that waits or runs
    tries: int = 0
    why: str | None = None  # why it failed, waits or is not available
    ended: QueuedJob | None = None  # its last job that ended, as long as the scheduler tells
    free_s: float | None = None
    """When it is free at the latest, where it waits or is to do: seconds since 1970 (UTC). None: not known."""

    @property
    def gpus(self) -> int:
        """As the scheduler says; without it, as many as the store has."""
        return self.target.gpus if self.target else len(self.covered.gpus)

    @property
    def idle(self) -> bool:
        """Whether a job for it would start at once."""
        return self.target is not None and self.target.idle

    @property
    def live(self) -> bool:
        """Whether its job runs, or starts by itself."""
        if self.state is NodeState.RUNNING:
            return True
        waits = self.state is NodeState.WAITING and self.job is not None and not self.job.held
        return waits and (self.target is None or self.target.obstacle is None)

    @property
    def complete_jobs(self) -> bool:
        """Whether its jobs settled every GPU that they found."""
        return 0 < len(self.covered.gpus) == self.covered.settled


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """How far a campaign is."""

    request: CampaignRequest
    nodes: Sequence[NodeStatus]
    notes: list[str] = field(default_factory=list)

    def count(self, state: NodeState) -> int:
        return len(self.of(state))

    def of(self, state: NodeState) -> list[NodeStatus]:
        return [node for node in self.nodes if node.state is state]

    @property
    def gpus(self) -> Counter[GpuState]:
        """How many GPUs are in each state."""
        return Counter(gpu.state for node in self.nodes for gpu in node.covered.gpus)

    @property
    def has_runs(self) -> bool:
        """Whether a job has told anything of a GPU."""
        return any(node.covered.gpus for node in self.nodes)

    @property
    def is_complete(self) -> bool:
        """Whether every node is covered."""
        return all(node.state is NodeState.COVERED for node in self.nodes)

    @property
    def has_failures(self) -> bool:
        """Whether a GPU or a node failed."""
        return bool(self.count(NodeState.FAILED) or self.gpus[GpuState.FAILED])

    @property
    def measured_h(self) -> float:
        """GPU-hours of the stored runs."""
        return sum(node.covered.measured_s for node in self.nodes) / 3600

    @property
    def allocated_h(self) -> float:
        """GPU-hours of the nodes, from the first run of each job to its last; the start of a job is left out."""
        return sum(node.covered.span_s * node.gpus for node in self.nodes) / 3600


def assess(
    request: CampaignRequest,
    inventory: Inventory,
    queue: Sequence[QueuedJob],
    store: Store | None,
    *,
    tries: int = TRIES,
    title: str = "Slurm",
) -> CampaignStatus:
    """Bring together what the scheduler, called `title`, and the store have. A node gets so many `tries`.

    Raises InputError as `campaign_jobs` does.
    """
    jobs = campaign_jobs(queue, request, None if store is None else store.root)
    stored = coverage(store, request)
    nodes, free_s = inventory.nodes, inventory.free_s(queue)
    names = known(filter(None, stored), nodes).names
    targets = {node.name: node for node in inventory.covered}
    covered: defaultdict[str, NodeCoverage] = defaultdict(NodeCoverage)
    for name in filter(None, stored):  # a node may have a domain in the store that it has not here
        covered[names.get(name, name)].add(stored[name])
    lost = set(expand(request.nodes or "")) - nodes.keys() if nodes else set()
    unlisted = sorted((covered.keys() | jobs.keys() | lost) - targets.keys(), key=by_number)
    statuses = []
    for name in [*targets, *unlisted]:
        unknown = f"{title} lists it without GPUs, or in another partition" if name in nodes else None
        unknown = unknown or (f"{title} has no such node any more" if nodes else f"{title} did not tell")
        node = NodeStatus(name, NodeState.TO_DO, targets.get(name), covered[name])
        node = _assess_node(node, jobs.get(name, []), tries, unknown=unknown, title=title)
        waits = targets.get(name) and node.state in (NodeState.WAITING, NodeState.TO_DO)
        statuses.append(replace(node, free_s=free_s.get(name)) if waits else node)
    return CampaignStatus(request, statuses)


def _assess_node(node: NodeStatus, jobs: Sequence[QueuedJob], most: int, *, unknown: str, title: str) -> NodeStatus:
    """The same node with its state, its job and its tries; `unknown` says why the scheduler has no such node."""
    covered, target = node.covered, node.target
    live = max((job for job in jobs if not job.ended), key=lambda job: (not job.pending, _attempt(job)), default=None)
    ended = max((job for job in jobs if job.ended), key=_attempt, default=None)
    tries = max([covered.tries, len({*covered.jobs, *(job.job for job in jobs)}), *map(_attempt, jobs)])
    node = replace(node, tries=tries, job=live, ended=ended)
    if covered.settled >= node.gpus > 0:
        failures = [f"{gpu.name}: {gpu.why}" for gpu in covered.gpus if gpu.state is GpuState.FAILED]
        others = f" and {len(failures) - _SENTENCES} more" if len(failures) > _SENTENCES else ""
        return replace(node, state=NodeState.COVERED, why="; ".join(failures[:_SENTENCES]) + others or None)
    if node.job is not None and not node.job.pending:
        return replace(node, state=NodeState.RUNNING)
    if node.job is not None:
        reason = None if node.job.reason == "None" else node.job.reason
        return replace(node, state=NodeState.WAITING, why=(target and target.obstacle) or reason or None)
    if node.complete_jobs:
        failure = f"its jobs found {len(covered.gpus)} GPUs, but {title} says {node.gpus}"
        failure += ": look at its driver, or mend its Gres"
    else:
        failure = f"{tries} job{'' if tries == 1 else 's'} measured {covered.settled} of {node.gpus} GPUs"
        failure += f"; the last one ended as {node.ended.state}" if node.ended else ""
    if tries >= most:
        return replace(node, state=NodeState.FAILED, why=failure)
    if target is None or target.obstacle:
        return replace(node, state=NodeState.UNAVAILABLE, why=target.obstacle if target else unknown)
    return replace(node, why=failure if tries else None)


def with_outputs(status: CampaignStatus, root: Path, options: SubmitOptions) -> CampaignStatus:
    """The same, with the last line that the jobs wrote of nodes that they did not cover. Jobs that found too few GPUs
    need none."""
    folder, nodes = output_folder(root, status.request, options), []
    for node in status.nodes:
        tried = node.state is NodeState.FAILED or (node.state is NodeState.TO_DO and node.tries)
        nodes.append(with_output(node, folder) if tried and not node.complete_jobs else node)
    return replace(status, nodes=nodes)


def with_output(node: NodeStatus, folder: Path) -> NodeStatus:
    """The same, with the last line that its jobs wrote."""
    path = folder / f"{node.name}.out"
    line = last_line(path)
    return replace(node, why=f"{node.why}; {path} ends: {line}" if line else f"{node.why}; no output in {path}")


def campaign_status(store: Store | str | Path, campaign: str | None = None, *, scheduler: Scheduler) -> CampaignStatus:
    """How far a campaign is, by its name, or the newest one. Without a scheduler it tells what the store has.

    Raises InputError where the store has no such campaign, SchedulerError where the scheduler does not answer.
    """
    from ..store import Store

    opened = store if isinstance(store, Store) else Store.open(store)
    request = find_campaign(opened, campaign)
    inventory, notes = Inventory(), list[str]()
    queue: Sequence[QueuedJob] = ()
    try:
        scheduler.check()
        queue = scheduler.queue()
        inventory = Inventory.of(scheduler, request, USUAL_OPTIONS)
    except (SchedulerError, InputError) as error:  # the store's part is told, whatever became of nodes and files
        if isinstance(error, SchedulerError) and not error.absent:
            raise
        notes = [f"{error}; nodes that were not measured yet are not known here"]
    status = assess(request, inventory, queue, opened, title=scheduler.title)
    status = with_outputs(status, opened.root, USUAL_OPTIONS)
    status.notes.extend(notes)
    return status


def plan_campaign(
    store: Store | str | Path, choice: CampaignChoice, *, scheduler: Scheduler, options: SubmitOptions = USUAL_OPTIONS
) -> CampaignStatus:
    """What a campaign would measure now; nothing is sent, and no store is made."""
    opened, request, inventory = prepare(store, choice, scheduler, options)
    return assess(request, inventory, scheduler.queue(), opened, title=scheduler.title)


def prepare(
    store: Store | str | Path, choice: CampaignChoice, scheduler: Scheduler, options: SubmitOptions
) -> tuple[Store | None, CampaignRequest, Inventory]:
    """The store, None where there is none yet, the campaign that is meant, and its nodes. Raises as `reach` does."""
    from ..store import Store

    opened = store if isinstance(store, Store) else Store.find(store)
    request = choose_campaign(opened, choice)
    reach(scheduler)
    request = with_cluster(request, scheduler)
    return opened, request, Inventory.of(scheduler, request, options)


def reach(scheduler: Scheduler) -> None:
    """Raise SchedulerError where no server answers; where there is no scheduler, say what measures without one."""
    try:
        scheduler.check()
    except SchedulerError as error:
        if not error.absent:
            raise
        raise SchedulerError(
            f"{error}. Without {scheduler.title}: `whorl probe run` measures this machine's GPUs, `whorl campaign "
            "render` prints a script for another scheduler",
            absent=True,
        ) from error
