"""A simulated cluster: named nodes, of which each is simulated alone, as a job on it would find it.

    cluster = Cluster("tiny", ("n01", "n02"), Fleet.draw(V100, 8, seed=1))
    node = cluster.node("n02")
    node.who[0].name            # "n02/0"
    node.fleet(day=20_000)      # its GPUs on that day

Whoever asks, and whenever, a node has the same GPUs with the same UUIDs, silicon and faults. Its runs have random
numbers of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from ..errors import InputError
from .fleet import GPUS_PER_NODE, NODES_PER_CABINET, Fleet


@dataclass(frozen=True)
class Identity:
    """One GPU's UUID and place; cabinets and nodes count from 1, devices from 0."""

    uuid: str
    cabinet: int
    node: int
    """Number of the node within its cabinet."""
    device: int
    named: str = ""
    """Name of the node where that has one of its own."""

    @property
    def host(self) -> str:
        """The node as one word, unique within the fleet, as in "c001-4"."""
        return self.named or f"c{self.cabinet:03d}-{self.node}"

    @property
    def place(self) -> str:
        """The place as one word, as in "c001-4-1"."""
        return f"{self.host}-{self.device}"

    @property
    def name(self) -> str:
        """The name for people, as in "c001-4/1"."""
        return f"{self.host}/{self.device}"


def identities(seed: int, gpus: int, model: str = "") -> tuple[Identity, ...]:
    """The identities of a fleet's GPUs, in order.

    The same seed and model give the same ones, however many GPUs. The sample fleet's name no model.
    """
    result = []
    for gpu in range(gpus):
        cabinet, node = divmod(gpu // GPUS_PER_NODE, NODES_PER_CABINET)
        uuid = uuid_of(f"{model or 'GPU'} {seed} {gpu}")
        result.append(Identity(uuid, cabinet + 1, node + 1, gpu % GPUS_PER_NODE))
    return tuple(result)


def uuid_of(label: str) -> str:
    """The UUID of a simulated GPU that is described so."""
    digest = sha256(f"whorl simulated {label}".encode()).hexdigest()
    return "GPU-" + "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


@dataclass(frozen=True)
class Cluster:
    """A simulated cluster. `drawn` has the GPUs of its nodes, in their order, `drawn.per_node` of each."""

    name: str
    nodes: tuple[str, ...]
    drawn: Fleet
    present: Mapping[str, int] = field(default_factory=dict)
    """By node: how many of its GPUs are there, where some are missing."""
    seconds_per_job: float = 0.0
    """A job that measures a node takes at least so long, s of real time."""

    def node(self, name: str) -> SimulatedNode:
        """A node. InputError where the cluster has no such one."""
        if name not in self.nodes:
            first_nodes = ", ".join(self.nodes[:3]) + (", ..." if len(self.nodes) > 3 else "")
            raise InputError(f"the simulated cluster {self.name} has no node {name!r}: its nodes are {first_nodes}")
        return SimulatedNode(self, name)


@dataclass(frozen=True)
class SimulatedNode:
    """One node of a simulated cluster."""

    cluster: Cluster
    name: str

    @cached_property
    def who(self) -> tuple[Identity, ...]:
        """Its GPUs, without those that are missing."""
        drawn, first = self.cluster.drawn, self._gpus.start
        cabinet, place = divmod(first // drawn.per_node, NODES_PER_CABINET)
        drawing = f"{self.cluster.name}: {drawn.model.name} {drawn.seed}"
        return tuple(
            Identity(uuid_of(f"{drawing} {gpu}"), cabinet + 1, place + 1, gpu - first, self.name)
            for gpu in range(first, self._gpus.stop)
        )

    def fleet(self, day: int | None = None) -> Fleet:
        """Its GPUs as a fleet, on a day (its number) or on none."""
        digest = sha256(f"{self.cluster.name} {self.cluster.drawn.seed} {self.name}".encode()).digest()
        drawn = self.cluster.drawn if day is None else self.cluster.drawn.on_day(day)
        return drawn.part(self._gpus, int.from_bytes(digest[:7]))

    @cached_property
    def _gpus(self) -> slice:
        drawn = self.cluster.drawn
        first = self.cluster.nodes.index(self.name) * drawn.per_node
        return slice(first, first + self.cluster.present.get(self.name, drawn.per_node))
