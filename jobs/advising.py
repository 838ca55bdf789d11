"""Advice from a store in the scheduler's own names: what it does not know is dropped before anything is printed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..store.hostlist import compress, expand
from .asked import Asked, Wanted
from .formats import preference
from .naming import Known, known, within
from .scheduler import Node
from .slurm import Slurm, Wait, nodes_for

if TYPE_CHECKING:
    from ..analysis.placement import Advice
    from ..store import Store
    from .kubernetes import KubeNode

_HOST = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Steering:
    """Advice, and the part of it that is meant for the scheduler."""

    advice: Advice
    placing: Advice  # the same over nodes that run jobs now: its sets of GPUs are the ones to ask for
    partition: str | None
    nodes: Mapping[str, Node]  # those of the partition; empty without a scheduler
    names: Known
    unusable: tuple[str, ...]  # nodes that were measured and run no jobs now
    remarks: tuple[str, ...]  # sentences for people
    scheduler: Slurm | None = None  # the one that was asked
    foreign: bool = False  # a scheduler was asked, and has none of the nodes: advice on all that were measured
    cluster: Mapping[str, KubeNode] | None = None  # the nodes of a Kubernetes cluster, where their state is known

    def __repr__(self) -> str:
        return f"<{self.advice.workload} on {self.advice.cluster}: {self.advice.finding}>"

    @property
    def exclude(self) -> list[str]:
        """Nodes to exclude, the worst first."""
        order = [evidence.node for evidence in self.advice.nodes]
        return self.names.of(sorted(self.advice.exclude, key=lambda n: order.index(n) if n in order else len(order)))

    @property
    def tiers(self) -> dict[str, str]:
        """Node -> hard or soft."""
        worst_first = [(self.names.names[e.node], e.tier) for e in self.advice.nodes if e.node in self.names.names]
        return dict(reversed(worst_first))  # of a node under two names, the worse

    @property
    def preferred(self) -> list[str]:
        return self.names.of(self.advice.prefer)

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes that the job takes, and GPUs on each."""
        return nodes_for(self.advice.gpus, list(self.nodes.values()))

    def prefer(self) -> tuple[str, str]:
        """The expression for --prefer, or "" and why there is none."""
        if not self.nodes:
            return "", self._unasked
        return preference(self.advice.workload, self.nodes.values(), set(self.tiers), self.shape[0])

    def nodelist(self) -> list[str]:
        """Nodes of the best packed set."""
        best = self.placing.packed or self.placing.spread
        return self.names.of(best.nodes) if best else []

    def wait(self) -> Wait:
        """How much later the job would start for the exclusion."""
        if not self.advice.exclude:
            return Wait(0.0)
        if self.scheduler is None or not self.nodes:
            return Wait(None, self._unasked)
        return self.scheduler.wait_for(*self.shape, self.partition, compress(self.exclude))

    @property
    def _unasked(self) -> str:
        return "the scheduler knows none of these nodes" if self.foreign else "no scheduler was asked"


def steer(
    store: Store,
    wanted: Wanted,
    *,
    slurm: Slurm | None = None,
    listed: Mapping[str, Node] | None = None,
    partition: str | None = None,
    leave_out: Collection[str] = (),
    placing: bool = False,
    lenient: bool = False,
    asked: Asked | None = None,
) -> Steering:
    """Advice for a workload over the nodes that the scheduler has, or that are `listed`, or all where neither is given.

    `leave_out`: nodes, under the scheduler's names, on which the job does not run anyway: they do not count.
    `placing`: also advise over the nodes that run jobs now, where some do not. `lenient`: a scheduler that has none
    of the nodes is no error: the advice is then on all that were measured, and none of it is for the scheduler.
    `asked`: what is wanted with its scores, where they are known already.
    Raises InputError, SchedulerError.
    """
    asked = Asked.of(store, wanted) if asked is None else asked
    measured = sorted(asked.nodes)
    nodes = slurm.nodes() if slurm is not None else {}
    _check_partition(nodes, partition)
    names, where = _named(measured, nodes if slurm is not None else None, listed, partition)
    nodes = {name: node for name, node in nodes.items() if within(node, partition)}
    bounded = slurm is not None or listed is not None
    remarks: list[str] = []
    foreign = False
    if bounded and not names.names:
        theirs = list(listed or nodes)
        sentence = _none_known(
            measured, theirs, partition if names.elsewhere else None, asked.found.cluster, slurm is not None
        )
        if not lenient or listed is not None or names.elsewhere:
            raise InputError(sentence)
        remarks.append(sentence)
        bounded, foreign, partition, nodes = False, True, None, {}
    unclear = {name for same in names.unclear.values() for name in same}
    unknown = [name for name in names.unknown if name not in unclear]
    if unknown and names.names:
        remarks.append(f"left out: {where} {_some(unknown)}, which {_were(unknown)} measured")
    remarks += [
        f"left out: {' and '.join(same)} were measured, and {node} can be only one of them: give it its full name"
        for node, same in names.unclear.items()
    ]
    if names.elsewhere:
        remarks.append(
            f"{_some(names.elsewhere)} {_were(names.elsewhere)} measured but not in partition {partition}: left out"
        )
    unusable = tuple(n for n, own in names.names.items() if own in nodes and not nodes[own].usable)
    if unusable:
        states = "; ".join(f"{names.names[n]} {nodes[names.names[n]].state}" for n in unusable[:5])
        remarks.append(
            f"{len(unusable)} of the measured nodes cannot run jobs now ({states}): the best sets do not use them"
        )
    # Without a scheduler GPUs of no known node count too: they can be compared, though not named to a scheduler.
    usable = set(names.names) if bounded else None
    if usable is not None and partition is not None:
        # Nodes that nobody measured count in the share that is excluded and in what is left.
        usable |= {name for name, node in nodes.items() if node.gpus} - set(names.names.values())
    if leave_out:
        usable = {n for n in (measured if usable is None else usable) if names.names.get(n, n) not in leave_out}
        if not usable & set(measured):
            raise InputError(f"no node that the job can use was measured ({wanted.workload})")
    if usable is not None:
        asked = asked.within(usable)
    advice = asked.advice(usable)
    other = advice
    if placing and unusable and len(unusable) < len(names.names):
        other = asked.advice((usable or set()) - set(unusable))
    return Steering(advice, other, partition, nodes, names, unusable, tuple(remarks), slurm, foreign)


def _named(
    measured: Sequence[str], nodes: Mapping[str, Node] | None, listed: Mapping[str, Node] | None, partition: str | None
) -> tuple[Known, str]:
    """The measured nodes under the names of the scheduler or the list, and how to say that some have none."""
    if nodes is not None:
        return known(measured, nodes, partition), "the scheduler does not know"
    if listed is not None:
        return known(measured, listed), "the list of nodes does not contain"
    hosts = {name: name for name in measured if _HOST.fullmatch(name)}
    return Known(hosts, tuple(name for name in measured if name not in hosts), ()), "not a valid host name:"


def read_names(path: Path | None, text: str) -> list[str]:
    """Names of nodes from a file's text: host lists, one or several a line; what follows # is a remark."""
    names: list[str] = []
    for line in text.splitlines():
        for word in line.partition("#")[0].split():
            names += expand(word)
    if not names:
        raise InputError(f"{path or 'standard input'} names no nodes: write one per line, as n01 or n[01-32]")
    return names


def _check_partition(nodes: Mapping[str, Node], partition: str | None) -> None:
    there = sorted({name for node in nodes.values() for name in node.partitions})
    if nodes and partition is not None and not set(partition.split(",")) & set(there):
        raise InputError(f"the scheduler has no partition {partition} with nodes; it has {', '.join(there)}")


def _none_known(measured: Sequence[str], nodes: Sequence[str], partition: str | None, cluster: str, asked: bool) -> str:
    if not measured:
        return (
            f"the runs of {cluster} name no nodes, so there is no advice for a scheduler: --no-scheduler advises about "
            "GPUs"
        )
    ours, theirs = _few(measured), _few(nodes)
    if partition is not None:
        return f"none of the measured nodes is in partition {partition}: the store has {ours}, the partition {theirs}"
    if not asked:
        return f"none of the measured nodes is in the list: the store has {ours}, the list {theirs}"
    return f"none of the measured nodes is known to the scheduler: the store has {ours}, the scheduler {theirs}"


def _few(names: Sequence[str]) -> str:
    return (compress(names[:3]) or "none") + (", ..." if len(names) > 3 else "")


def _some(names: Sequence[str]) -> str:
    """Names as a host list, not more of them than a line takes."""
    listed = compress(names)
    return listed if len(listed) <= 120 else f"{len(names)} nodes ({compress(names[:5])}, ...)"


def _were(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"
