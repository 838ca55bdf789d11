"""Nodes of a store under the names that the scheduler has for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .scheduler import Node


@dataclass(frozen=True)
class Known:
    """Which of a store's nodes a scheduler knows: its names for them, and those that it does not know."""

    names: Mapping[str, str]  # a store's name -> the scheduler's
    unknown: tuple[str, ...]
    elsewhere: tuple[str, ...]  # known, but not in the partition asked for
    unclear: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A scheduler's node -> the nodes of several domains (all unknown) of which it can be one."""

    def of(self, nodes: Iterable[str]) -> list[str]:
        """The scheduler's names of a store's nodes, in their order, each once; the others are left out."""
        return list(dict.fromkeys(self.names[name] for name in nodes if name in self.names))


def within(node: Node, partition: str | None) -> bool:
    """Whether a node is in a partition, or in one of several as Slurm lists them; every node is in None."""
    return partition is None or bool(set(partition.split(",")) & set(node.partitions))


def known(measured: Iterable[str], nodes: Mapping[str, Node], partition: str | None = None) -> Known:
    """Find a store's nodes among the scheduler's.

    A name counts if it is the same, else if it differs only in case or in that one of the two has no domain, else if
    it is so the host name of one node only. Two domains are two nodes: where names of several would be one node of the
    scheduler's, none of them is.
    """
    by_name = _by_host((node.name, node.name) for node in nodes.values())
    by_host = _by_host((node.host, node.name) for node in nodes.values() if node.host)
    found: dict[str, str] = {}
    fits: dict[str, list[str]] = {}  # a scheduler's node -> names with a domain that it does not have
    every = list(dict.fromkeys(measured))
    for name in every:
        if name in nodes:
            found[name] = name
            continue
        candidates = _fitting(name, by_name) or _fitting(name, by_host)
        if len(candidates) == 1:
            found[name] = candidates[0]
            fits.setdefault(candidates[0], []).append(name)
    unclear = {}
    for node, names in fits.items():
        if len({name.lower().partition(".")[2] for name in names} - {""}) > 1:
            unclear[node] = tuple(name for name in names if "." in name)
            for name in unclear[node]:
                del found[name]
    unknown = tuple(name for name in every if name not in found)
    elsewhere = tuple(name for name, node in found.items() if not within(nodes[node], partition))
    return Known({name: found[name] for name in found if name not in elsewhere}, unknown, elsewhere, unclear)


def _by_host(named: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """By the host in small letters: the domains, and the scheduler's nodes that have them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, node in named:
        host, _, domain = name.lower().partition(".")
        found.setdefault(host, []).append((domain, node))
    return found


def _fitting(name: str, there: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    host, _, domain = name.lower().partition(".")
    same = [(its, node) for its, node in there.get(host, []) if not (its and domain and its != domain)]
    exact = [node for its, node in same if its == domain]
    return list(dict.fromkeys(exact or [node for _, node in same]))
