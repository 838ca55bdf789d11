"""Whether a waiting job that can start can still start without some of the nodes.

There are two ways to know, for each partition that the job may run in; one is enough.

* **By number**: the job asks only for what can be counted (nodes, tasks, CPUs, memory, disk, GPUs, plain features, one
  whole reservation). Each node that is left surely holds a known number of its tasks and GPUs. Together they hold all.
* **By kind**: for each excluded node, a node that can stand for it is left. Two nodes are of one kind if they are alike
  in all that the job can ask for: partition, hardware, GRES, reservations, network, and the features that it speaks of.
  If the job can start, it can start on a smallest set of nodes, and no such set has more nodes of a kind than
  `Count._needed` says. If that many of the kind are left, or all that there were, they take the place of the excluded
  ones. What the job wrote need not be understood for this.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .requests import Devices, Job
from .scheduler import Node, Partition
from .slurm import Reservation, Slurm

_ALL_OF, _ONE_OF = re.compile(r"[\w.-]+([&,][\w.-]+)*"), re.compile(r"[\w.-]+(\|[\w.-]+)*")


@dataclass(frozen=True)
class Site:
    """What a scheduler has, of what decides where a job can run."""

    nodes: Mapping[str, Node]
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    reservations: Mapping[str, Reservation] = field(default_factory=dict)
    fabric: Mapping[str, str] = field(default_factory=dict)  # node -> the network that a job cannot leave
    caps: frozenset[str] = frozenset()  # of what jobs may get less on a node than is there: cpu, mem, gpu

    @classmethod
    def of(cls, slurm: Slurm) -> Site:
        """Ask a scheduler. Raises SchedulerError."""
        return cls(slurm.nodes(), slurm.partitions(), slurm.reservations(), slurm.fabric(), slurm.caps())

    def why_not(self, job: Job) -> str | None:
        """Why it cannot be counted what a job needs: a clause for people. None where it can be counted."""
        if job.strict:
            return job.strict
        for name in job.reservations:
            reservation = self.reservations.get(name)
            if reservation is None:
                return f"Slurm shows you no reservation {name}"
            if not reservation.nodes:
                return f"its reservation {name} names no nodes"
            if any(flag.startswith("REPLACE") for flag in reservation.flags):
                return f"Slurm may replace the nodes of its reservation {name}"
            if self.is_part(reservation):
                return f"its reservation {name} has only a part of its nodes' cores"
        return None

    def is_part(self, reservation: Reservation) -> bool:
        """Whether only a part of the cores of its nodes is reserved, or that is not known."""
        found = [self.nodes[name].cores if name in self.nodes else None for name in reservation.nodes]
        cores = [one for one in found if one is not None]
        return len(cores) < len(found) or reservation.cores is None or reservation.cores < sum(cores)

    def fits(self, job: Job, node: Node) -> bool:
        """Whether a job could use a node. What is not understood counts as met."""
        features = {*node.available, *node.active}
        wanted = set(re.findall(r"[\w.-]+", job.features))
        reserved = [self.reservations[name] for name in job.reservations if name in self.reservations]
        return (
            bool(set(job.partitions) & set(node.partitions))
            and all(_count(one, node) >= one.count for one in (*job.per_node, *job.per_task))
            and all(_count(one, node) > 0 for one in job.per_job)
            and (node.cpus is None or node.cpus >= job.cpus_per_node)
            and (node.memory is None or node.memory >= job.memory_per_node)
            and (node.disk is None or node.disk >= job.disk_per_node)
            and (wanted <= features if _ALL_OF.fullmatch(job.features) else True)
            and (bool(wanted & features) if _ONE_OF.fullmatch(job.features) else True)
            and (not reserved or any(node.name in one.nodes or "FLEX" in one.flags for one in reserved))
        )


class Count:
    """The nodes that are left for a job, without those that its owner excluded; `spare` takes further ones away."""

    def __init__(self, job: Job, site: Site, without: Collection[str]) -> None:
        self.job, self.site = job, site
        self._members = {name: frozenset(one.nodes) for name, one in site.reservations.items() if one.nodes}
        self._parts = {name for name, one in site.reservations.items() if site.is_part(one)}
        self.usable = {name: node for name, node in site.nodes.items() if name not in without and site.fits(job, node)}
        """Nodes that the job could use, were they in order."""
        self._kinds = {name: self._kind(node) for name, node in self.usable.items()}
        self._room = {name: self._surely(node) for name, node in self.usable.items()}
        self._there: Counter[tuple[str, object]] = Counter()  # partition and kind -> nodes, with those that are down
        self._left: Counter[tuple[str, object]] = Counter()  # the same -> nodes that are left
        self._serving: dict[str, Counter[tuple[str, tuple[int, ...]]]] = {}  # partition -> network and room -> nodes
        for node in self.usable.values():
            for partition in self._partitions(node):
                self._there[partition, self._kinds[node.name]] += 1
                self._change(node, partition, 1)

    def spare(self, name: str) -> str | None:
        """Take a node away if the job can do without it; else why not, a clause for people."""
        node = self.usable[name]
        for partition in self._partitions(node):
            self._change(node, partition, -1)
        why = next(filter(None, (self._short(node, partition) for partition in self._partitions(node))), None)
        if why:
            for partition in self._partitions(node):
                self._change(node, partition, 1)
        return why

    def _partitions(self, node: Node) -> list[str]:
        return [name for name in self.job.partitions if name in node.partitions]

    def _change(self, node: Node, partition: str, by: int) -> None:
        if not node.usable:
            return
        self._left[partition, self._kinds[node.name]] += by
        room = self._room[node.name]
        if room is not None:
            serving = self._serving.setdefault(partition, Counter())
            serving[self.site.fabric.get(node.name, ""), room] += by

    def _short(self, node: Node, partition: str) -> str | None:
        """Why too little may be left in a partition without a node of its: a clause for people."""
        if self._suffices(partition):
            return None
        key = partition, self._kinds[node.name]
        needed = min(self._needed(node, partition), self._there[key])
        left = self._left[key]
        if left >= needed:
            return None
        many = "one node" if needed == 1 else f"{needed} nodes"
        return f"the job may need {many} of its kind in partition {partition}, and {left or 'none'} would be left"

    # -- by number -----------------------------------------------------------------------------------------------

    def _surely(self, node: Node) -> tuple[int, ...] | None:
        """How many tasks, and devices of each kind that the job asks for, a node surely holds; None if not known."""
        job, cpus = self.job, max(self.job.cpus_per_task, 1)
        inside = [name for name, members in self._members.items() if node.name in members]
        if (
            not job.countable
            or job.preferred
            or job.required
            or len(job.reservations) > 1
            or inside != list(job.reservations)
            or (not job.reservations and "RESERVED" in node.state.upper())
            or not (_ALL_OF.fullmatch(job.features) or _ONE_OF.fullmatch(job.features) or not job.features)
            or set(node.available) != set(node.active)
            or node.cores is None
            or node.cores < job.cpus_per_node
            or (node.memory is None and (job.memory_per_node or job.memory_per_cpu))
            or (node.disk is None and job.disk_per_node)
        ):
            return None
        tasks = node.cores // cpus
        if job.memory_per_cpu:
            tasks = min(tasks, int((node.memory or 0) // (job.memory_per_cpu * cpus)))
        if job.tasks_per_node:
            tasks = min(tasks, job.tasks_per_node)
        for one in job.per_task:
            tasks = min(tasks, _count(one, node) // max(one.count, 1))
        devices = []
        for one in job.per_job:
            taken = [other.count for other in job.per_node if other.name == one.name]  # of each node, and no more
            devices.append(min([_count(one, node), *taken]))
        return (tasks, *devices) if tasks and all(devices) else None

    def _suffices(self, partition: str) -> bool:
        """Whether the nodes that are left surely suffice: some of them, each with at least as much room."""
        found = self.site.partitions.get(partition)
        if found is None or self._capped(found):
            return False
        serving = self._serving.get(partition, Counter())
        most = math.inf if self.job.most_nodes is None else max(self.job.most_nodes, self.job.nodes)
        most = min(most, found.most_nodes)
        for network, room in serving:
            there = sum(
                count
                for (other, more), count in serving.items()
                if other == network and all(a >= b for a, b in zip(more, room, strict=True))
            )
            if self._nodes_for(room, found.least_nodes) <= min(there, most):
                return True
        return False

    def _capped(self, partition: Partition) -> bool:
        """Whether the job may get less of a node in this partition than there is room for."""
        job, caps = self.job, partition.caps | self.site.caps
        devices = job.per_job or job.per_task or job.per_node
        memory = job.memory_per_cpu or job.memory_per_node
        return "cpu" in caps or ("mem" in caps and memory > 0) or ("gpu" in caps and bool(devices))

    def _nodes_for(self, room: tuple[int, ...], least: int) -> int:
        """Nodes of such room that hold all of the job."""
        wanted = (self.job.tasks, *(one.count for one in self.job.per_job))
        return max(self.job.nodes, least, *(math.ceil(all_ / each) for all_, each in zip(wanted, room, strict=True)))

    # -- by kind -------------------------------------------------------------------------------------------------

    def _kind(self, node: Node) -> tuple[object, ...]:
        """Nodes of the same kind can stand for each other in this job."""
        asked = f"{self.job.features} {self.job.preferred}"
        inside = tuple(sorted(name for name, members in self._members.items() if node.name in members))
        return (
            node.kind,
            frozenset(feature for feature in node.available if feature in asked),
            frozenset(feature for feature in node.active if feature in asked),
            inside,
            node.name if self._parts & set(inside) else "",
            "RESERVED" in node.state.upper(),
            self.site.fabric.get(node.name, ""),
        )

    def _needed(self, node: Node, partition: str) -> int:
        """How many nodes of this kind the job may need."""
        job, room = self.job, self._room[node.name]
        found = self.site.partitions.get(partition)
        least = max(job.nodes, found.least_nodes if found else 1)
        # One node for each task or device is enough, as each that Slurm gives to the job has room for a task.
        most = max(least, job.tasks, sum(one.count for one in job.per_job))
        if job.most_nodes is not None:
            most = min(most, max(job.most_nodes, least))
        if room is not None and found and not self._capped(found):
            most = min(most, self._nodes_for(room, least))
        return most


def _count(wanted: Devices, node: Node) -> int:
    return sum(one.of(wanted) for one in node.devices)
