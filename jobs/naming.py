"""Nodes of a store under the names that the scheduler has for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .slurm import Node


@dataclass(frozen=True)
class Known:
    """Which of a store's nodes a scheduler knows: its names for them, and those that it does not know."""

    names: Mapping[str, str]  # a store's name -> the scheduler's
    unknown: tuple[str, ...]
    elsewhere: tuple[str, ...]  # known, but not in the partition asked for

    def of(self, nodes: Iterable[str]) -> list[str]:
        """The scheduler's names of a store's nodes, in their order, each once; the others are left out."""
        return list(dict.fromkeys(self.names[name] for name in nodes if name in self.names))


def within(node: Node, partition: str | None) -> bool:
    """Whether a node is in a partition, or in one of several as Slurm lists them; every node is in None."""
    return partition is None or bool(set(partition.split(",")) & set(node.partitions))


def known(measured: Iterable[str], nodes: Mapping[str, Node], partition: str | None = None) -> Known:
    """Find a store's nodes among the scheduler's.

    A name counts if it is the same, else if the parts before the first dot are the same, else if it is the host name
    of one node only.
    """
    short: dict[str, list[str]] = {}
    hosts: dict[str, list[str]] = {}
    for node in nodes.values():
        short.setdefault(node.name.partition(".")[0], []).append(node.name)
        hosts.setdefault(node.host.partition(".")[0], []).append(node.name)
    names: dict[str, str] = {}
    unknown, elsewhere = [], []
    for name in dict.fromkeys(measured):
        candidates = [name] if name in nodes else short.get(name.partition(".")[0], [])
        candidates = candidates or hosts.get(name.partition(".")[0], [])
        if len(candidates) != 1:
            unknown.append(name)
        elif not within(nodes[candidates[0]], partition):
            elsewhere.append(name)
        else:
            names[name] = candidates[0]
    return Known(names, tuple(unknown), tuple(elsewhere))
