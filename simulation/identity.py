"""Identities of simulated GPUs: UUIDs made from the seed, cabinets, nodes, devices."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from .fleet import GPUS_PER_NODE, NODES_PER_CABINET


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


def uuid_of(what: str) -> str:
    """The UUID of a simulated GPU that is described so."""
    digest = sha256(f"whorl simulated {what}".encode()).hexdigest()
    return "GPU-" + "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
