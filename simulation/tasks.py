"""A scheduler of coroutines that wait for control steps or for answers, and their results."""

from __future__ import annotations

import heapq
from collections.abc import Coroutine, Generator, Sequence
from types import coroutine
from typing import Any


class Tasks:
    """The coroutines of one run of a bench, numbered in the order in which they were given."""

    def __init__(self) -> None:
        self.running = -1
        """Which one runs now."""
        self.results: list[Any] = []
        self._all: list[Coroutine[Any, Any, Any]] = []
        self._sleeping: list[tuple[int, int]] = []  # (step, task)
        self._ready: list[tuple[int, Any]] = []  # (task, the value sent to it)

    def __len__(self) -> int:
        """How many there are; 0 between two runs."""
        return len(self._all)

    def start(self, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> None:
        """Make coroutines ready to begin."""
        self._all = list(coroutines)
        self.results = [None] * len(self._all)
        self._ready = [(task, None) for task in range(len(self._all))]

    async def sleep(self, step: int) -> None:
        """Suspend the running coroutine up to a step."""
        heapq.heappush(self._sleeping, (step, self.running))
        await suspended()

    @property
    def wakes_at(self) -> int | None:
        """The step at which the next one wakes."""
        return self._sleeping[0][0] if self._sleeping else None

    def wake(self, step: int) -> None:
        """Make those ready that slept up to this step."""
        while self._sleeping and self._sleeping[0][0] <= step:
            self.answer(heapq.heappop(self._sleeping)[1], None)

    def answer(self, task: int, answer: object) -> None:
        """Make one ready, and tell it something."""
        self._ready.append((task, answer))

    def resume(self) -> None:
        """Let those go on that are ready, in their order, until each suspends again or ends."""
        ready, self._ready = sorted(self._ready, key=lambda one: one[0]), []
        for task, answer in ready:
            self.running = task
            try:
                if self._all[task].send(answer) is not None:
                    self._all[task].throw(RuntimeError("a coroutine on the bench awaits what is not the bench's"))
            except StopIteration as done:
                self.results[task] = done.value
            except Exception as error:  # its result; the others go on
                self.results[task] = error
        self.running = -1

    def close(self) -> None:
        """Close those that have not ended."""
        for task in self._all:
            try:
                task.close()
            except Exception:  # noqa: S112 - the first error is on its way, and all are to be closed
                continue
        self._all, self._ready, self._sleeping, self.running = [], [], [], -1


@coroutine
def suspended() -> Generator[None, Any, Any]:
    """Suspend the awaiting coroutine; returns the value sent to it when it continues."""
    return (yield)
