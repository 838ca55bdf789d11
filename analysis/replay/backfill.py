"""EASY backfill: a later job starts where it does not delay the reservation of the first that waits.

The reservation of the first job is the earliest moment at which, by the limits of the jobs that run, enough GPUs are
free for it. A later job may start now if by its own limit it has ended by then, or if it fits into the GPUs that are
left over at that moment. Jobs are looked at in the order of the queue, all of it. After Lifka (JSSPP'95).
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from itertools import accumulate, chain

from .job import Job

_BLOCK = 128
_ALWAYS = 1e300
"""Stands for a limit without end in a tree where infinite means that nobody waits."""


class PlannedEnds:
    """The jobs that run by the end that is planned for them: sorted blocks with sums of GPUs."""

    def __init__(self) -> None:
        self._blocks: list[list[tuple[float, int, int]]] = [[]]
        self._sums = [0]
        self._lasts: list[tuple[float, int, int]] = [(math.inf, sys.maxsize, 0)]  # of each block; the last is above all

    def add(self, end_s: float, number: int, gpus: int) -> None:
        """A job has started."""
        entry = (end_s, number, gpus)
        at = min(bisect_left(self._lasts, entry), len(self._blocks) - 1)
        block = self._blocks[at]
        insort(block, entry)
        self._sums[at] += gpus
        if len(block) > 2 * _BLOCK:
            half = block[:_BLOCK]
            self._blocks.insert(at, half)
            del block[:_BLOCK]
            self._sums[at] -= (taken := sum(one[2] for one in half))
            self._sums.insert(at, taken)
            self._lasts.insert(at, half[-1])

    def remove(self, end_s: float, number: int, gpus: int) -> None:
        """The job has ended or was stopped."""
        entry = (end_s, number, gpus)
        at = min(bisect_left(self._lasts, entry), len(self._blocks) - 1)
        block = self._blocks[at]
        del block[bisect_left(block, entry)]
        self._sums[at] -= gpus
        if not block and len(self._blocks) > 1:
            if at == len(self._blocks) - 1:  # the bound of the last block is to stay infinite
                self._lasts[at - 1] = self._lasts[at]
            del self._blocks[at], self._sums[at], self._lasts[at]

    def reservation(self, lacking: int, of: Callable[[int], int] | None = None) -> tuple[float, int]:
        """The end by which `lacking` GPUs are returned, and how many are returned by then; infinite if never.

        `of(number)`: how many of the GPUs of a job count; all if None.
        """
        if of is not None:
            end, total = math.inf, 0
            for at, number, _ in chain.from_iterable(self._blocks):
                if at > end:
                    break
                total += of(number)
                if total >= lacking:
                    end = at
            return end, total
        totals = list(accumulate(self._sums))
        at = bisect_left(totals, lacking)
        if at == len(totals):
            return math.inf, totals[-1]
        before = totals[at - 1] if at else 0
        returned = list(accumulate((one[2] for one in self._blocks[at]), initial=before))
        end = self._blocks[at][bisect_left(returned, lacking, lo=1) - 1][0]
        # Others may be planned to end at the same moment, in this block or the next ones.
        total = before
        while at < len(self._blocks):
            block = self._blocks[at]
            same = bisect_right(block, end, key=lambda one: one[0])
            total += self._sums[at] if same == len(block) else sum(one[2] for one in block[:same])
            if same < len(block):
                break
            at += 1
        return end, total


class ByWidth:
    """The waiting jobs of a first-come queue: for each width a tree of the least limit over the jobs in order.

    A search takes O(widths) and O(log jobs) for those widths that can have one; memory is O(jobs).
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        """`jobs`: all that can ever wait, in the order of the queue; none waits yet."""
        self._members: dict[int, list[int]] = {}
        self._place: list[int] = []
        for number, job in enumerate(jobs):
            members = self._members.setdefault(job.gpus, [])
            self._place.append(len(members))
            members.append(number)
        self._limit = [min(job.ideal_s if job.limit_s is None else job.limit_s, _ALWAYS) for job in jobs]
        self._width = [job.gpus for job in jobs]
        self._widths = sorted(self._members)
        self._trees = {width: [math.inf] * (2 * _power(len(of))) for width, of in self._members.items()}

    def wait(self, number: int) -> None:
        """The job waits."""
        self._put(number, self._limit[number])

    def start(self, number: int) -> None:
        """The job waits no longer."""
        self._put(number, math.inf)

    def next(self, after: tuple[float, int], free: int, spare: int, time_s: float) -> int | None:
        """The first job behind `after` that needs at most `free` GPUs, and at most `spare` or at most `time_s`."""
        found: int | None = None
        for width in self._widths:
            if width > free:
                break
            least = _ALWAYS if width <= spare else min(time_s, _ALWAYS)
            tree = self._trees[width]
            if tree[1] > least:
                continue
            members = self._members[width]
            place = _first_at_most(tree, bisect_right(members, after[1]), least)
            if place is not None and (found is None or members[place] < found):
                found = members[place]
        return found

    def _put(self, number: int, limit_s: float) -> None:
        tree = self._trees[self._width[number]]
        at = (len(tree) >> 1) + self._place[number]
        tree[at] = limit_s
        while at > 1:
            at >>= 1
            least = min(tree[2 * at], tree[2 * at + 1])
            if tree[at] == least:
                break
            tree[at] = least


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


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
