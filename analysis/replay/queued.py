"""The jobs that wait, in the order of the scheduler, and when they lose patience; and whom to stop for one of them."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeAlias

from .state import State

if TYPE_CHECKING:
    from .options import Options
    from .schedulers import Scheduler
    from .view import View

Key: TypeAlias = Any
"""A scheduler's key; where patience ends, after whether the job has any left. One kind in one replay."""

Entry: TypeAlias = tuple[Key, int]
"""A job by its key and number: entries sort as jobs are served."""


class Queue:
    """The jobs that wait."""

    def __init__(self, scheduler: Scheduler, options: Options, view: View) -> None:
        self.waiting: list[Entry] = []
        """In the scheduler's order; the key of a waiting job does not change."""
        self._keys: dict[int, Key] = {}
        self._key = scheduler.key
        self._view = view
        self._round_s, self._patience_s = options.round_s, options.patience_s
        self._impatient: list[tuple[float, int]] = []  # a heap of those below; those that have started are void
        self._impatient_s: dict[int, float] = {}
        """When each job that waits loses patience."""

    def key(self, state: State, attained_s: float) -> Key:
        """By which a job is served that has held GPUs for so long."""
        key = self._key(state.job, attained_s)
        return key if self._patience_s is None else (state.patient, key)

    def in_order(self, running: Mapping[int, State]) -> list[Entry]:
        """Jobs that hold GPUs, as they would be served now."""
        now, key = self._view.now_s, self._key
        found: list[Entry] = [
            (key(one.job, one.attained_s + (now - one.since_s)), number) for number, one in running.items()
        ]
        if self._patience_s is not None:
            found = [((running[number].patient, key), number) for key, number in found]
        found.sort()
        return found

    def entry(self, number: int) -> Entry:
        """Of a job that waits."""
        return self._keys[number], number

    def add(self, state: State, key: Key) -> None:
        """The job waits."""
        number = state.number
        self._keys[number] = key
        insort(self.waiting, (key, number))
        if self._patience_s is not None and state.patient:
            round_s, now = self._round_s, self._view.now_s
            # A job waits from the edge at which it is admitted; the round in which it is stopped does not count.
            since = math.ceil(state.job.submit_s / round_s) * round_s if math.isnan(state.start_s) else now + round_s
            self._impatient_s[number] = since + self._patience_s
            heappush(self._impatient, (since + self._patience_s, number))

    def remove(self, number: int) -> None:
        """The job waits no longer."""
        self._impatient_s.pop(number, None)
        entry = (self._keys.pop(number), number)
        if self.waiting[0] == entry:
            del self.waiting[0]
        else:
            del self.waiting[bisect_left(self.waiting, entry)]

    def next_impatient_s(self) -> float:
        """When the next job that waits loses patience; infinite if none does."""
        while self._impatient:
            at, number = self._impatient[0]
            if self._impatient_s.get(number) == at:
                return at
            heappop(self._impatient)
        return math.inf

    def lose_patience(self) -> None:
        """Jobs that have waited too long go to the front."""
        while self.next_impatient_s() <= self._view.now_s:
            state = self._view.states[heappop(self._impatient)[1]]
            self.remove(state.number)
            state.patient = False
            self.add(state, self.key(state, state.attained_s))


def fewest(behind: Iterable[tuple[Entry, int]], lacking: int) -> list[Entry]:
    """Those to stop for `lacking` more GPUs, as few as will do; none at all if all of them are not enough.

    `behind`: running jobs and how many GPUs each can give, from the end of the order. As many of them as have the
    GPUs; then each of these that the others suffice without runs on, whoever is served first before the others.
    """
    needed = []
    for one in behind:
        if lacking <= 0:
            break
        needed.append(one)
        lacking -= one[1]
    if lacking > 0:
        return []
    for one in list(reversed(needed)):
        if lacking + one[1] <= 0:
            lacking += one[1]
            needed.remove(one)
    return [entry for entry, _ in needed]
