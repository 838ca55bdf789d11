"""Nodes of a store under the names that the scheduler has for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .scheduler import Node


@dataclass(frozen=True)
class NodeNames:
    """Which of a store's nodes a scheduler has: its names for them, and those that it does not know."""

    names: Mapping[str, str]
    """A store's name -> the scheduler's."""
    unknown: tuple[str, ...]
    elsewhere: tuple[str, ...]
    """Known, but not in the partition asked for."""
    unclear: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A scheduler's node -> the nodes of several domains (all unknown) of which it can be one."""

    def of(self, nodes: Iterable[str]) -> list[str]:
        """The scheduler's names of a store's nodes, in their order, each once; the others are left out."""
        return list(dict.fromkeys(self.names[name] for name in nodes if name in self.names))


def within(node: Node, partition: str | None) -> bool:
    """Whether a node is in a partition, or in one of several as Slurm lists them; every node is in None."""
    return partition is None or bool(set(partition.split(",")) & set(node.partitions))


def known(measured: Iterable[str], nodes: Mapping[str, Node], partition: str | None = None) -> NodeNames:
    """Find a store's nodes among the scheduler's.

    A name counts if it is the same, else if it differs only in case or in that one of the two has no domain, else if
    it is so the host name of one node only. Two domains are two nodes: where names of several would be one node of the
    scheduler's, none of them is.
    """
    by_name = _by_host((node.name, node.name) for node in nodes.values())
    by_host = _by_host((node.host, node.name) for node in nodes.values() if node.host)
    names: dict[str, str] = {}
    with_domain: dict[str, list[str]] = {}  # a scheduler's node -> names with a domain that fit it
    stored = list(dict.fromkeys(measured))
    for name in stored:
        if name in nodes:
            names[name] = name
            continue
        candidates = _candidates(name, by_name) or _candidates(name, by_host)
        if len(candidates) == 1:
            names[name] = candidates[0]
            with_domain.setdefault(candidates[0], []).append(name)
    unclear = {}
    for node, fitting in with_domain.items():
        if len({name.lower().partition(".")[2] for name in fitting} - {""}) > 1:
            unclear[node] = tuple(name for name in fitting if "." in name)
            for name in unclear[node]:
                del names[name]
    unknown = tuple(name for name in stored if name not in names)
    elsewhere = tuple(name for name, node in names.items() if not within(nodes[node], partition))
    return NodeNames({name: names[name] for name in names if name not in elsewhere}, unknown, elsewhere, unclear)


def _by_host(nodes: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """By the host in small letters: the domains, and the scheduler's nodes that have them."""
    by_host: dict[str, list[tuple[str, str]]] = {}
    for name, node in nodes:
        host, _, domain = name.lower().partition(".")
        by_host.setdefault(host, []).append((domain, node))
    return by_host


def _candidates(name: str, by_host: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    """The scheduler's nodes that this name can stand for."""
    host, _, domain = name.lower().partition(".")
    fitting = [(at, node) for at, node in by_host.get(host, []) if not (at and domain and at != domain)]
    exact = [node for at, node in fitting if at == domain]
    return list(dict.fromkeys(exact or [node for _, node in fitting]))
