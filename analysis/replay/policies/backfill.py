"""EASY backfill: a later job starts where it does not delay the reservation of the first that waits.

The reservation of the first job is the earliest moment at which, by the limits of the jobs that run, enough GPUs are
free for it. A later job may start now if by its own limit it has ended by then, or if it fits into the GPUs that are
left over at that moment. Jobs are looked at in the order of the queue, all of it. After Lifka (JSSPP'95).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable

import numpy as np


class PlannedEnds:
    """The jobs that run by the end that is planned for them."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []  # end and number, ascending
        self._planned: dict[int, tuple[float, tuple[int, ...]]] = {}

    def add(self, end_s: float, number: int, gpus: tuple[int, ...]) -> None:
        """A job has started."""
        self._planned[number] = end_s, gpus
        insort(self._ends, (end_s, number))

    def remove(self, number: int) -> None:
        """The job has ended or was stopped."""
        end_s, _ = self._planned.pop(number)
        del self._ends[bisect_left(self._ends, (end_s, number))]

    def reservation(self, lacking: int, useful: Callable[[tuple[int, ...]], int]) -> tuple[float, int]:
        """The end by which `lacking` GPUs are returned, and how many are returned by then; infinite if never.

        `useful(gpus)`: how many of the GPUs of a job count. It costs time in proportion to the jobs that end by then:
        few, as those that wait for GPUs are not much wider than those that hold them.
        """
        end_s, returned = math.inf, 0
        for at_s, number in self._ends:
            if at_s > end_s:
                break
            returned += useful(self._planned[number][1])
            if returned >= lacking:
                end_s = at_s
        return end_s, returned


class Sizes:
    """The widths and the limits of the waiting jobs, in the order of the queue."""

    def __init__(self) -> None:
        self._count = 0
        self._rows = np.empty((2, 64))

    def insert(self, place: int, gpus: int, limit_s: float) -> None:
        """A job waits at this place of the queue."""
        if self._count == self._rows.shape[1]:
            self._rows = np.hstack([self._rows, np.empty_like(self._rows)])
        self._rows[:, place + 1 : self._count + 1] = self._rows[:, place : self._count]
        self._rows[:, place] = gpus, limit_s
        self._count += 1

    def remove(self, place: int) -> None:
        """The job at this place waits no longer."""
        self._rows[:, place : self._count - 1] = self._rows[:, place + 1 : self._count]
        self._count -= 1

    def first(self, begin: int, free: int, spare: int, time_s: float) -> int | None:
        """The first place from `begin` on whose job needs at most `free` GPUs, and at most `spare` or `time_s`."""
        gpus, limit_s = self._rows[:, begin : self._count]
        fits = (gpus <= free) & ((gpus <= spare) | (limit_s <= time_s))
        place = int(fits.argmax()) if len(fits) else 0
        return begin + place if fits[place : place + 1].any() else None
