"""The GPUs of a replay and the nodes that they stand in; which of them are free, and when nodes fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...errors import InputError
from .trace_text import CALENDAR_S, csv_of

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True)
class Fleet:
    """GPUs in nodes: arrays over GPUs in the order node, slot."""

    node: Ints  # (gpus,) number of the node, ascending from 0 without gaps
    node_names: tuple[str, ...]
    gpu_names: tuple[str, ...]

    def __post_init__(self) -> None:
        gpus = len(self.node)
        if not gpus:
            raise InputError("the fleet has no GPUs")
        steps = np.diff(self.node)
        if self.node[0] != 0 or ((steps != 0) & (steps != 1)).any() or self.node[-1] + 1 != len(self.node_names):
            raise InputError("the nodes of a fleet must be numbered 0, 1, ... in the order of its GPUs")
        if len(self.gpu_names) != gpus:
            raise InputError(f"the fleet has {gpus} GPUs and {len(self.gpu_names)} names of GPUs")
        _distinct("GPUs", self.gpu_names)
        _distinct("nodes", self.node_names)

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def regular(cls, nodes: int, gpus_per_node: int) -> Fleet:
        """Nodes of equal size."""
        if nodes < 1 or gpus_per_node < 1:
            raise InputError(f"a fleet must have at least one node of one GPU, not {nodes} nodes of {gpus_per_node}")
        return cls(
            np.repeat(np.arange(nodes, dtype=np.int32), gpus_per_node),
            tuple(f"n{node}" for node in range(nodes)),
            tuple(f"n{node}/{slot}" for node in range(nodes) for slot in range(gpus_per_node)),
        )


def _distinct(kind: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two {kind} of the fleet are named {name}")
        seen.add(name)


Bools = NDArray[np.bool_]
Places = NDArray[np.intp]  # numbers of GPUs or of nodes


class NotFreeError(Exception):
    """GPUs are to be taken that are not free."""


class Cluster:
    """The free GPUs of a fleet, as a policy hands them out."""

    def __init__(self, node: Ints, avoided: Bools | None = None) -> None:
        """`node`: (gpus,) the number of each GPU's node. `avoided`: (gpus,) GPUs that are never free."""
        self._node = node.astype(np.intp)
        self._first = np.searchsorted(node, np.arange(int(node[-1]) + 2)).tolist()
        self._allowed = np.ones(len(node), dtype=np.bool_) if avoided is None else ~avoided
        self.largest = int(np.diff(self._first).max())  # GPUs of the largest node
        self.held: dict[int, tuple[int, ...]] = {}  # by job number, the GPUs that the job took
        self.set_up(np.ones(len(node), dtype=np.bool_))

    def set_up(self, up: Bools) -> None:
        """(gpus,) which GPUs are on nodes that are up. Jobs on other nodes have given theirs."""
        self._usable = up & self._allowed
        self.capacity = int(np.count_nonzero(self._usable))  # GPUs that are not avoided, on nodes that are up
        self.free: Bools = self._usable.copy()  # (gpus,) whether each is free. Not to be written to.
        for gpus in self.held.values():
            self.free[list(gpus)] = False
        self.counts: Places = self._by_node(np.flatnonzero(self.free))
        """(nodes,) free GPUs of each. Not to be written to."""
        self.free_count = int(self.counts.sum())

    def take(self, number: int, gpus: tuple[int, ...]) -> None:
        """A job takes these GPUs, all different. Raises `NotFreeError` when one is not free."""
        places = np.array(gpus)
        if not self.free[places].all():
            raise NotFreeError
        self.free[places] = False
        self.counts -= self._by_node(places)
        self.free_count -= len(gpus)
        self.held[number] = gpus

    def give(self, number: int) -> tuple[int, ...]:
        """A job's GPUs are free again, except on nodes that are down. Returns them."""
        gpus = self.held.pop(number)
        places = np.array(gpus)
        places = places[self._usable[places]]
        self.free[places] = True
        self.counts += self._by_node(places)
        self.free_count += len(places)
        return gpus

    def first_free(self, node: int, count: int) -> Places:
        """The first `count` free GPUs of a node that has as many."""
        first, last = self._first[node], self._first[node + 1]
        gpus: Places = first + np.flatnonzero(self.free[first:last])[:count]
        return gpus

    def first_of(self, nodes: Places, count: int) -> Places:
        """The free GPUs of the first of these nodes until they are `count`, which these nodes have together."""
        totals = np.cumsum(self.counts[nodes])
        whole_nodes = int(np.searchsorted(totals, count))
        emptied = np.zeros(len(self.counts), dtype=np.bool_)
        emptied[nodes[:whole_nodes]] = True
        gpus = np.flatnonzero(self.free & emptied[self._node])
        return np.concatenate([gpus, self.first_free(int(nodes[whole_nodes]), count - len(gpus))])

    def _by_node(self, gpus: Places) -> Places:
        """(nodes,) how many of these GPUs each has."""
        return np.bincount(self._node[gpus], minlength=len(self._first) - 1)


_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that is away from `down_s` to `up_s` (after the trace's first instant; infinite: for good)."""

    node: int | str
    """Its number in the fleet, or its name, which stays the same where every seed draws the order of the nodes."""
    down_s: float
    up_s: float


def moments_of(failures: Sequence[Failure], node_names: Sequence[str]) -> list[tuple[float, int, int]]:
    """The failures of a fleet's nodes as moments (time, +1 the node comes back or -1 it goes, node's number), in order.

    Raises `InputError` for an unknown node, a node that comes back before it went, or overlapping failures of a node.
    """
    place: dict[int | str, int] = {number: number for number in range(len(node_names))}
    place |= {name: number for number, name in enumerate(node_names)}
    moments: list[tuple[float, int, int]] = []
    last: dict[int, float] = {}
    for failure in sorted(failures, key=lambda failure: failure.down_s):
        node = place.get(failure.node)
        if node is None:
            names = ", and none of that name" if isinstance(failure.node, str) else ""
            raise InputError(
                f"a failure names node {failure.node}; the fleet has nodes 0 to {len(node_names) - 1}{names}"
            )
        if not 0 <= failure.down_s < failure.up_s:
            raise InputError(
                f"node {failure.node} fails at {failure.down_s:g} s and returns at {failure.up_s:g} s: a failure must "
                "begin at 0 s or later, and end after it began"
            )
        if failure.down_s < last.get(node, 0.0):
            raise InputError(
                f"node {failure.node} fails at {failure.down_s:g} s, but it is still away because of an earlier "
                "failure: failures of a node must not overlap"
            )
        last[node] = failure.up_s
        moments.append((failure.down_s, -1, node))
        if np.isfinite(failure.up_s):
            moments.append((failure.up_s, 1, node))
    # If one node comes back at the moment another goes down, the return comes first.
    return sorted(moments, key=lambda moment: (moment[0], -moment[1], moment[2]))


def drawn_failures(
    nodes: int, until_s: float, *, mtbf_h: float, repair_h: float, random: np.random.Generator
) -> tuple[Failure, ...]:
    """Failures of every node, drawn: exponential times between failures (mean `mtbf_h`) and of repair (`repair_h`)."""
    if not (mtbf_h > 0 and repair_h > 0):
        raise InputError("the mean times between failures and of repair must be more than 0 hours")
    failures: list[Failure] = []
    for node in range(nodes):
        now = random.exponential(mtbf_h * _HOUR_S)
        while now < until_s:
            back = now + random.exponential(repair_h * _HOUR_S)
            failures.append(Failure(node, now, back))
            now = back + random.exponential(mtbf_h * _HOUR_S)
    return tuple(sorted(failures, key=lambda failure: failure.down_s))


def read_failures(path: Path | str, node_names: Sequence[str]) -> tuple[Failure, ...]:
    """Failures of a CSV with the columns node (a name, or its number in `node_names`), down_s, up_s (empty: for good).

    Upper and lower case are the same. They hold names: a number would be another node wherever a seed draws the order
    of the nodes.

    Raises:
        InputError: the file cannot be read, or a row names no node or no times.
    """
    do = "Add what is missing (up_s may be empty: the node stays away)"
    table = csv_of(Path(path), "node", "down_s", "up_s", do=do)
    name = {str(number): name for number, name in enumerate(node_names)} | {name.lower(): name for name in node_names}
    examples = ", ".join(node_names[:3]) + (f", ... {node_names[-1]}" if len(node_names) > 3 else "")
    node = pl.col("node").str.to_lowercase()
    table.check(~node.is_in(list(name)), f"no node of the fleet is named {{node!r}}; there are {examples}")
    table.add(node, table.nonnegative("down_s"), table.number("up_s", ("",)))
    down, up = pl.col("down_s"), pl.col("up_s").fill_null(float("inf"))
    table.check(down > CALENDAR_S, "down_s is {down_s}, a time since 1970: write seconds after the trace's first job")
    table.check(up <= down, "down_s is {down_s} and up_s is {up_s}: up_s must be the later one")
    rows = table.frame.select("node", down, up).iter_rows()
    return tuple(Failure(name[node], start, end) for node, start, end in rows)
