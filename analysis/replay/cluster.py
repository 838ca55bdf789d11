"""Which GPUs are free: bits by node, and nodes by how many of their GPUs are free."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .fleet import Ints


class NotFreeError(Exception):
    """GPUs are to be taken_bits that are not free, or one stands twice among them."""


class Cluster:
    """The free GPUs of a fleet. Taking and returning costs O(GPUs taken_bits + nodes touched × log nodes)."""

    def __init__(self, node: Ints, avoided: NDArray[np.bool_] | None = None, ranks: Ints | None = None) -> None:
        """`avoided`: (gpus,) GPUs that are never free. `ranks`: (nodes,) the order of the nodes where one comes first;
        by number if None."""
        nodes = int(node[-1]) + 1
        self.node: list[int] = node.tolist()
        self.first: list[int] = np.searchsorted(node, np.arange(nodes + 1)).tolist()
        """First GPU of each node, and the number of GPUs at the end."""
        self._usable = [(1 << (b - a)) - 1 for a, b in zip(self.first, self.first[1:], strict=False)]
        for gpu in np.flatnonzero(avoided).tolist() if avoided is not None else ():
            self._usable[self.node[gpu]] &= ~(1 << (gpu - self.first[self.node[gpu]]))
        self.free_bits = list(self._usable)
        """Of each node, bit i is its GPU i."""
        self.counts: list[int] = [bits.bit_count() for bits in self.free_bits]
        """Free GPUs of each node."""
        self.free_count: int = sum(self.counts)
        self.capacity = self.free_count
        """GPUs that are not avoided, on nodes that are up."""
        self.largest = max(b - a for a, b in zip(self.first, self.first[1:], strict=False))
        """GPUs of the largest node."""
        self._ranks = ranks
        self._nodes: FreeNodes | None = None
        self._free: NDArray[np.bool_] | None = None
        self._away: set[int] = set()
        self.held: dict[int, tuple[int, ...]] = {}
        """By job number, the GPUs that the job took."""
        self._held_bits: dict[int, dict[int, int]] = {}

    @property
    def nodes(self) -> FreeNodes:
        """The nodes by free GPUs; kept up from the first use on."""
        if self._nodes is None:
            self._nodes = FreeNodes(self.counts, self.largest, self._ranks)
        return self._nodes

    @property
    def free(self) -> NDArray[np.bool_]:
        """(gpus,) whether each is free; kept up from the first use on. Not to be written to."""
        if self._free is None:
            bits = self.free_bits
            self._free = np.array([bits[n] >> (g - self.first[n]) & 1 for g, n in enumerate(self.node)], dtype=np.bool_)
        return self._free

    def available(self) -> NDArray[np.bool_]:
        """(gpus,) whether each may be given to a job: not avoided, its node up."""
        usable, away = self._usable, self._away
        return np.array(
            [n not in away and usable[n] >> (g - self.first[n]) & 1 for g, n in enumerate(self.node)], dtype=np.bool_
        )

    def first_free(self, node: int, count: int) -> Sequence[int]:
        """The first `count` free GPUs of a node that has as many."""
        bits, first = self.free_bits[node], self.first[node]
        if bits & ((1 << count) - 1) == (1 << count) - 1:
            return range(first, first + count)
        gpus = []
        for _ in range(count):
            low = bits & -bits
            gpus.append(first + low.bit_length() - 1)
            bits ^= low
        return gpus

    def take(self, number: int, gpus: tuple[int, ...]) -> None:
        """A job takes these GPUs, ascending. Raises `NotFreeError` when one is not free or stands twice."""
        node_of, first = self.node, self.first
        taken_bits: dict[int, int] = {}
        node = begin = -1
        bits = 0
        for gpu in gpus:
            if node_of[gpu] != node:
                taken_bits[node] = bits
                node, bits = node_of[gpu], 0
                begin = first[node]
            bit = 1 << (gpu - begin)
            if bits & bit:
                raise NotFreeError
            bits |= bit
        taken_bits[node] = bits
        del taken_bits[-1]
        for node, bits in taken_bits.items():
            if self.free_bits[node] & bits != bits:
                raise NotFreeError
        self._update((node, self.free_bits[node] ^ bits) for node, bits in taken_bits.items())
        if self._free is not None:
            self._free[list(gpus)] = False
        self.held[number], self._held_bits[number] = gpus, taken_bits

    def give(self, number: int) -> tuple[int, ...]:
        """A job's GPUs are free again, except on a node that is away. Returns them."""
        gpus = self.held.pop(number)
        held = self._held_bits.pop(number).items()
        self._update((node, self.free_bits[node] | bits) for node, bits in held if node not in self._away)
        if self._free is not None:
            self._free[list(gpus)] = True
            for node in self._away:
                self._free[self.first[node] : self.first[node + 1]] = False
        return gpus

    def sync(self, node: int, *, up: bool) -> None:
        """The node is up, or is not; it may have changed in between. Jobs that were on it have given their GPUs."""
        if up == (node in self._away):
            if up:
                self.open(node)
            else:
                self.close(node)

    def close(self, node: int) -> None:
        """The node goes away, with its free GPUs."""
        self._away.add(node)
        self.capacity -= self._usable[node].bit_count()
        self._update(((node, 0),))
        if self._free is not None:
            self._free[self.first[node] : self.first[node + 1]] = False

    def open(self, node: int) -> None:
        """The node is back and all of its GPUs are free."""
        self._away.discard(node)
        self.capacity += self._usable[node].bit_count()
        self._update(((node, self._usable[node]),))
        self._free = None

    def _update(self, changes: Iterable[tuple[int, int]]) -> None:
        """By node, the bits that are free from now on."""
        free_bits, counts = self.free_bits, self.counts
        moved = None if self._nodes is None else self._nodes.moved
        for node, bits in changes:
            count = bits.bit_count()
            self.free_count += count - counts[node]
            free_bits[node], counts[node] = bits, count
            if moved is not None:
                moved(node, count)


class FreeNodes:
    """Nodes by how many of their GPUs are free: for each number a heap of nodes, in the order that comes first.

    A node that has moved to another number stays in its old heap until it is at the top of it; it is in each heap
    once at most, so that all take O(nodes × GPUs of a node) memory.
    """

    def __init__(self, counts: list[int], largest: int, ranks: Ints | None) -> None:
        order = range(len(counts)) if ranks is None else np.argsort(ranks, kind="stable").tolist()
        self._node: list[int] = list(order)
        self._rank = [0] * len(counts)
        self._counts = counts
        self._heaps: list[list[int]] = [[] for _ in range(largest + 1)]
        self._inside = [bytearray(len(counts)) for _ in range(largest + 1)]
        for rank, node in enumerate(self._node):
            self._rank[node] = rank
            self._heaps[counts[node]].append(rank)  # ascending, so already a heap
            self._inside[counts[node]][rank] = 1

    def moved(self, node: int, count: int) -> None:
        """The node now has `count` free GPUs."""
        rank = self._rank[node]
        if not self._inside[count][rank]:
            self._inside[count][rank] = 1
            heapq.heappush(self._heaps[count], rank)

    def snuggest(self, least: int) -> int | None:
        """The node with the fewest free GPUs that are at least `least`; the first of several."""
        for count in range(least, len(self._heaps)):
            rank = self._top(count)
            if rank is not None:
                return self._node[rank]
        return None

    def earliest(self, least: int) -> int | None:
        """The first node of all with at least `least` free GPUs."""
        tops = [rank for count in range(least, len(self._heaps)) if (rank := self._top(count)) is not None]
        return self._node[min(tops)] if tops else None

    def fullest(self, gpus: int) -> list[int]:
        """The nodes with most free GPUs, the first ones on ties, until they have `gpus` together."""
        nodes: list[int] = []
        for count in range(len(self._heaps) - 1, 0, -1):
            popped: list[int] = []
            while gpus > 0 and (rank := self._top(count)) is not None:
                popped.append(heapq.heappop(self._heaps[count]))
                nodes.append(self._node[rank])
                gpus -= count
            for rank in popped:
                heapq.heappush(self._heaps[count], rank)
            if gpus <= 0:
                break
        return nodes

    def in_order(self, gpus: int) -> list[int]:
        """The first nodes with a free GPU until they have `gpus` together."""
        nodes: list[int] = []
        popped: list[tuple[int, int]] = []
        while gpus > 0:
            tops = [(rank, count) for count in range(1, len(self._heaps)) if (rank := self._top(count)) is not None]
            if not tops:
                break
            rank, count = min(tops)
            heapq.heappop(self._heaps[count])
            popped.append((count, rank))
            nodes.append(self._node[rank])
            gpus -= count
        for count, rank in popped:
            heapq.heappush(self._heaps[count], rank)
        return nodes

    def _top(self, count: int) -> int | None:
        heap, counts, node = self._heaps[count], self._counts, self._node
        while heap:
            rank = heap[0]
            if counts[node[rank]] == count:
                return rank
            heapq.heappop(heap)
            self._inside[count][rank] = 0
        return None
