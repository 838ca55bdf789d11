"""How far a campaign is: its nodes as Slurm has them, with what the store has of each, and its jobs in the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError, SchedulerError
from ...store.hostlist import expand
from ...store.names import by_number
from ..naming import known
from ..scheduler import Node, Partition
from ..slurm import Slurm
from .asking import Asked, CampaignRequest, choose, find
from .coverage import Covered, GpuState, coverage
from .inventory import QueuedJob, Target, own_jobs, reach, targets, with_cluster
from .planning import How, minutes, output_folder, output_of

if TYPE_CHECKING:
    from ...store import Store

TRIES = 3
"""So many jobs a node gets, unless more are allowed."""
_TOLD = 4  # sentences about GPUs of one node


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
    target: Target | None
    """None where Slurm has no such node any more, or was not asked."""
    covered: Covered
    job: QueuedJob | None = None
    """Its job that waits or runs."""
    tries: int = 0
    why: str | None = None
    """Why it failed, waits or is not available."""
    ended: str | None = None
    """How its last job ended, as Slurm says it; None where Slurm does not tell."""

    @property
    def gpus(self) -> int:
        """As Slurm says; without Slurm, as many as the store has."""
        return self.target.gpus if self.target else len(self.covered.gpus)

    @property
    def live(self) -> bool:
        """Whether its job runs, or starts by itself."""
        if self.state is NodeState.RUNNING:
            return True
        waits = self.state is NodeState.WAITING and self.job is not None and not self.job.held
        return waits and (self.target is None or self.target.why_not is None)


@dataclass(frozen=True, slots=True)
class Status:
    """How far a campaign is."""

    request: CampaignRequest
    nodes: Sequence[NodeStatus]
    notes: list[str] = field(default_factory=list)

    def count(self, state: NodeState) -> int:
        return sum(one.state is state for one in self.nodes)

    def of(self, state: NodeState) -> list[NodeStatus]:
        return [one for one in self.nodes if one.state is state]

    @property
    def gpus(self) -> Counter[GpuState]:
        """How many GPUs are in each state."""
        return Counter(gpu.state for one in self.nodes for gpu in one.covered.gpus)

    @property
    def is_complete(self) -> bool:
        """Whether every node is covered."""
        return all(one.state is NodeState.COVERED for one in self.nodes)

    @property
    def has_failures(self) -> bool:
        """Whether a GPU or a node failed."""
        return bool(self.count(NodeState.FAILED) or self.gpus[GpuState.FAILED])

    @property
    def measured_h(self) -> float:
        """GPU-hours of the stored runs."""
        return sum(one.covered.measured_s for one in self.nodes) / 3600

    @property
    def allocated_h(self) -> float:
        """GPU-hours of the nodes, from the first run of each job to its last; the start of a job is left out."""
        return sum(one.covered.span_s * one.gpus for one in self.nodes) / 3600


@dataclass(frozen=True, slots=True)
class Site:
    """What Slurm said of a campaign's nodes."""

    targets: Sequence[Target]
    nodes: Mapping[str, Node]
    partitions: Mapping[str, Partition]


def site_of(
    slurm: Slurm, request: CampaignRequest, how: How, partitions: Mapping[str, Partition] | None = None
) -> Site:
    """Ask Slurm for the campaign's nodes, and for its partitions if they are not given."""
    nodes = slurm.nodes()
    partitions = slurm.partitions() if partitions is None else partitions
    limit = {one.gpus: minutes(request, one.gpus, how) for one in nodes.values()}
    return Site(targets(nodes, partitions, request, limit.__getitem__, reserved=how.reserved), nodes, partitions)


def assess(
    request: CampaignRequest,
    site: Site | None,
    queue: Sequence[QueuedJob],
    stored: Mapping[str, Covered],
    tries: int = TRIES,
) -> Status:
    """Bring together what Slurm has and what the store has. A node gets so many `tries`."""
    names: dict[str, str] = {}
    if site is not None:
        names = dict(known([name for name in stored if name], site.nodes).names)
    by_node: dict[str, Covered] = {}
    for name, covered in stored.items():
        if name:
            by_node[names.get(name, name)] = covered
    jobs: dict[str, list[QueuedJob]] = {}
    for job in queue:
        jobs.setdefault(job.node, []).append(job)
    inventory = {one.name: one for one in site.targets} if site else {}
    gone = set(expand(request.nodes)) - site.nodes.keys() if site and request.nodes else set()
    every = [*inventory, *sorted((by_node.keys() | gone) - inventory.keys(), key=by_number)]
    why = "Slurm has no such node any more" if site else "Slurm did not tell"

    def node(name: str) -> NodeStatus:
        return _node(name, inventory.get(name), by_node.get(name) or Covered(), jobs.get(name, []), tries, why)

    found = [node(name) for name in every]
    status = Status(request, found)
    for one in found:
        if skew_s := one.covered.skew_s:
            status.notes.append(
                f"the clock of node {one.name} is {'ahead' if skew_s > 0 else 'behind'} by at least {abs(skew_s):,.0f} "
                "s: set it, as its runs have wrong times"
            )
    return status


def _node(
    name: str, target: Target | None, covered: Covered, jobs: Sequence[QueuedJob], most: int, unknown: str
) -> NodeStatus:
    job = max((one for one in jobs if not one.ended), key=lambda one: (not one.pending, one.attempt), default=None)
    tries = max([covered.tries, len({*covered.jobs, *(one.id for one in jobs)}), *(one.attempt for one in jobs)])
    gpus = target.gpus if target else len(covered.gpus)
    why = None
    if covered.settled >= gpus > 0:
        failed = [f"{one.name}: {one.why}" for one in covered.gpus if one.state is GpuState.FAILED]
        more = f" and {len(failed) - _TOLD} more" if len(failed) > _TOLD else ""
        state, why = NodeState.COVERED, "; ".join(failed[:_TOLD]) + more or None
    elif job is not None and not job.pending:
        state = NodeState.RUNNING
    elif job is not None:
        state, why = NodeState.WAITING, (target and target.why_not) or (None if job.reason == "None" else job.reason)
    elif tries >= most:
        state, why = NodeState.FAILED, _failure(covered, gpus, tries, jobs)
    elif target is None:
        state, why = NodeState.UNAVAILABLE, unknown
    elif target.why_not:
        state, why = NodeState.UNAVAILABLE, target.why_not
    else:
        state, why = NodeState.TO_DO, _failure(covered, gpus, tries, jobs) if tries else None
    last = max((one for one in jobs if one.ended), key=lambda one: one.attempt, default=None)
    return NodeStatus(name, state, target, covered, job, tries, why, last.state if last else None)


def _all_found(covered: Covered) -> bool:
    """Whether the jobs settled every GPU that they found."""
    return 0 < len(covered.gpus) == covered.settled


def _failure(covered: Covered, gpus: int, tries: int, jobs: Sequence[QueuedJob]) -> str:
    """Why a node that was tried often enough is not covered."""
    if _all_found(covered):
        return f"its jobs found {len(covered.gpus)} GPUs, but Slurm says {gpus}: look at its driver, or mend its Gres"
    last = max(jobs, key=lambda one: one.attempt, default=None)
    how = f"; the last one ended as {last.state}" if last else ""
    return f"{tries} job{'' if tries == 1 else 's'} measured {covered.settled} of {gpus} GPUs{how}"


def campaign_status(
    store: Store | str | Path, campaign: str | None = None, *, how: How | None = None, slurm: Slurm | None = None
) -> Status:
    """How far a campaign is, by its name, or the newest one. Without Slurm it tells what the store has.

    Raises InputError where the store has no such campaign, SchedulerError where Slurm does not answer.
    """
    from ...store import Store

    opened = store if isinstance(store, Store) else Store.open(store)
    how, slurm = how or How(), slurm or Slurm()
    request = find(opened, campaign)
    site, queue, note = None, [], None
    try:
        slurm.check()
        queue = own_jobs(slurm, request, opened.root)  # before the store is read: a job that ends between is not missed
        site = site_of(slurm, request, how)
    except (SchedulerError, InputError) as error:  # the store's part is told, whatever became of nodes and files
        if isinstance(error, SchedulerError) and not error.absent:
            raise
        note = f"{error}; nodes that were not measured yet are not known here"
    found = assess(request, site, queue, coverage(opened, request))
    found = with_outputs(found, opened.root, how)
    found.notes.extend([note] if note else [])
    return found


def with_outputs(found: Status, root: Path, how: How) -> Status:
    """The same, with the last line that the jobs wrote of nodes that they did not cover. Jobs that found too few GPUs
    need none."""
    from dataclasses import replace

    folder, told = output_folder(root, found.request, how), []
    for one in found.nodes:
        tried = one.state is NodeState.FAILED or (one.state is NodeState.TO_DO and one.tries)
        if tried and not _all_found(one.covered):
            path = output_of(folder, one.name)
            line = last_line(path)
            one = replace(one, why=f"{one.why}; {path} ends: {line}" if line else f"{one.why}; no output in {path}")
        told.append(one)
    return replace(found, nodes=told)


def last_line(path: Path) -> str | None:
    """The last line of a file that is not empty, cut; None where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), None)


def plan_campaign(
    store: Store | str | Path, asked: Asked, *, how: How | None = None, slurm: Slurm | None = None
) -> Status:
    """What a campaign would measure now; nothing is sent, and no store is made."""
    from ...store import Store

    how, slurm = how or How(), slurm or Slurm()
    opened = store if isinstance(store, Store) else Store.find(store)
    request = choose(opened, asked)
    reach(slurm)
    request = with_cluster(request, slurm)
    queue = own_jobs(slurm, request, None if opened is None else opened.root)
    site = site_of(slurm, request, how)
    return assess(request, site, queue, coverage(opened, request))
