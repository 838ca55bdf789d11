"""EASY backfill: a later job starts where it does not delay the reservation of the first that waits.

The reservation of the first job is the earliest moment at which, by the limits of the jobs that run, enough GPUs are
free for it. A later job may start now if by its own limit it has ended by then, or if it fits into the GPUs that are
left over at that moment. Jobs are looked at in the order of the queue, all of it. After Lifka (JSSPP'95).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable

Entry = tuple[float, int]
"""A job that waits: when it was submitted, and its number."""

_ALWAYS = 1e300
"""Stands for a limit without end in a tree where infinite means that nobody waits."""


class PlannedEnds:
    """The jobs that run by the end that is planned for them."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, int]] = []  # end, number, GPUs; ascending
        self._planned: dict[int, tuple[float, int, int]] = {}

    def add(self, end_s: float, number: int, gpus: int) -> None:
        """A job has started."""
        self._planned[number] = (end_s, number, gpus)
        insort(self._ends, self._planned[number])

    def remove(self, number: int) -> None:
        """The job has ended or was stopped."""
        del self._ends[bisect_left(self._ends, self._planned.pop(number))]

    def reservation(self, lacking: int, useful: Callable[[int], int] | None = None) -> tuple[float, int]:
        """The end by which `lacking` GPUs are returned, and how many are returned by then; infinite if never.

        `useful(number)`: how many of the GPUs of a job count; all if None. It costs time in proportion to the jobs
        that end by then: few, as those that wait for GPUs are not much wider than those that hold them.
        """
        end_s, returned = math.inf, 0
        for at_s, number, gpus in self._ends:
            if at_s > end_s:
                break
            returned += gpus if useful is None else useful(number)
            if returned >= lacking:
                end_s = at_s
        return end_s, returned


class WaitingByWidth:
    """The waiting jobs of a first-come queue: for each width a tree of the least limit over its jobs in order.

    A search takes O(widths) and O(log jobs) for those widths that can have one; memory is O(jobs that came).
    """

    def __init__(self) -> None:
        self._widths: list[int] = []
        self._jobs: dict[int, list[Entry]] = {}
        """By width, all that ever waited, as they came."""
        self._trees: dict[int, list[float]] = {}

    def wait(self, entry: Entry, width: int, limit_s: float) -> None:
        """The job waits: for the first time after all that came before it, or again."""
        if width not in self._jobs:
            insort(self._widths, width)
            self._jobs[width], self._trees[width] = [], [math.inf] * 2
        jobs, tree = self._jobs[width], self._trees[width]
        place = bisect_left(jobs, entry)
        if place == len(jobs):
            jobs.append(entry)
            if place == len(tree) // 2:
                tree = self._trees[width] = _doubled(tree)
        _put(tree, place, min(limit_s, _ALWAYS))

    def leave(self, entry: Entry, width: int) -> None:
        """The job waits no longer."""
        _put(self._trees[width], bisect_left(self._jobs[width], entry), math.inf)

    def next(self, after: Entry, free: int, spare: int, time_s: float) -> Entry | None:
        """The first job behind `after` that needs at most `free` GPUs, and at most `spare` or at most `time_s`."""
        first: Entry | None = None
        for width in self._widths:
            if width > free:
                break
            least = _ALWAYS if width <= spare else min(time_s, _ALWAYS)
            tree = self._trees[width]
            if tree[1] > least:
                continue
            jobs = self._jobs[width]
            place = _first_at_most(tree, bisect_right(jobs, after), least)
            if place is not None and (first is None or jobs[place] < first):
                first = jobs[place]
        return first


def _doubled(tree: list[float]) -> list[float]:
    """A tree of minima with twice the leaves; the new ones are infinite."""
    leaves = len(tree) // 2
    larger = [math.inf] * (2 * leaves) + tree[leaves:] + [math.inf] * leaves
    for at in range(2 * leaves - 1, 0, -1):
        larger[at] = min(larger[2 * at], larger[2 * at + 1])
    return larger


def _put(tree: list[float], place: int, limit_s: float) -> None:
    at = (len(tree) >> 1) + place
    tree[at] = limit_s
    while at > 1:
        at >>= 1
        least = min(tree[2 * at], tree[2 * at + 1])
        if tree[at] == least:
            break
        tree[at] = least


def _first_at_most(tree: list[float], begin: int, least: float) -> int | None:
    """The first leaf from `begin` on whose value is at most `least`, in a tree of minima."""
    leaves = len(tree) >> 1
    if begin >= leaves:
        return None
    at = begin + leaves
    while tree[at] > least:
        # Up while this is a right child, then to the right neighbour.
        while at & 1:
            at >>= 1
            if at == 0:
                return None
        at += 1
    while at < leaves:
        at *= 2
        if tree[at] > least:
            at += 1
    return at - leaves
