"""Which GPUs are free, and which job holds the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .fleet import Ints

Bools = NDArray[np.bool_]
Places = NDArray[np.intp]
"""Numbers of GPUs or of nodes."""


class NotFreeError(Exception):
    """GPUs are to be taken that are not free."""


class Cluster:
    """The free GPUs of a fleet, as a policy hands them out."""

    def __init__(self, node: Ints, avoided: Bools | None = None) -> None:
        """`node`: (gpus,) the number of each GPU's node. `avoided`: (gpus,) GPUs that are never free."""
        self._node = node.astype(np.intp)
        self._first = np.searchsorted(node, np.arange(int(node[-1]) + 2)).tolist()
        self._allowed = np.ones(len(node), dtype=np.bool_) if avoided is None else ~avoided
        self.largest = int(np.diff(self._first).max())
        """GPUs of the largest node."""
        self.held: dict[int, tuple[int, ...]] = {}
        """By job number, the GPUs that the job took."""
        self.set_up(np.ones(len(node), dtype=np.bool_))

    def set_up(self, up: Bools) -> None:
        """(gpus,) which GPUs are on nodes that are up. Jobs on other nodes have given theirs."""
        self._usable = up & self._allowed
        self.capacity = int(np.count_nonzero(self._usable))
        """GPUs that are not avoided, on nodes that are up."""
        self.free: Bools = self._usable.copy()
        """(gpus,) whether each is free. Not to be written to."""
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
