"""Tiresias (NSDI'19) with two queues, as Pollux's authors simulate it (OSDI'21)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..beliefs import View
from ..job import Allocation
from .policy import Decision, Policy

DEMOTED_AT_GPU_S = 16 * 3600.0
"""GPU-seconds after which a job goes to the second queue."""


class Tiresias(Policy):
    """Least attained service in two steps: jobs that have had few GPU-hours go first, in the order of arrival.

    A job that does not fit is passed over, and stopped if it runs. GPUs are those of the emptiest nodes.
    """

    name = "tiresias"
    summary = "jobs with under 16 GPU-hours first, then the others; each in the order of arrival there"
    by_rounds = True
    blind = True

    def __init__(self) -> None:
        self._first: dict[int, None] = {}
        self._second: dict[int, None] = {}

    def decide(self, view: View) -> Decision:
        """Jobs in the order of the queues, as long as they fit."""
        for number in view.ended:
            self._first.pop(number, None)
            self._second.pop(number, None)
        self._first.update(dict.fromkeys(view.arrived))
        attained = {number: view.progress[number].gpu_s_at(view.now_s) for number in self._first}
        for number, gpu_s in attained.items():
            if gpu_s > DEMOTED_AT_GPU_S - 1e-3:  # it was asked for at this moment, but for rounding
                del self._first[number]
                self._second[number] = None
        up = int(view.up.sum())
        chosen = []
        for number in (*self._first, *self._second):
            if view.requests[number].gpus <= up:
                up -= view.requests[number].gpus
                chosen.append(number)
        changes: dict[int, Allocation | None] = dict.fromkeys(view.running.keys() - set(chosen))
        free = _Free(view, (number for number in chosen if number in view.running))
        for number in chosen:
            if number not in view.running:
                changes[number] = Allocation(free.take(view.requests[number].gpus))
        demotions = (
            view.now_s + (DEMOTED_AT_GPU_S - attained[number]) / view.requests[number].gpus
            for number in chosen
            if number in self._first
        )
        return Decision(changes, again_s=min(demotions, default=math.inf))


class _Free:
    """The GPUs that nobody holds, by node."""

    def __init__(self, view: View, running: Iterable[int]) -> None:
        held = {gpu for number in running for gpu in view.running[number].gpus}
        self._by_node: dict[int, list[int]] = {}
        for gpu, node in enumerate(view.fleet.node.tolist()):
            if view.up[gpu] and gpu not in held:
                self._by_node.setdefault(node, []).append(gpu)

    def take(self, gpus: int) -> tuple[int, ...]:
        """So many GPUs, of the nodes with most free ones."""
        chosen: list[int] = []
        while len(chosen) < gpus:
            emptiest = max(self._by_node.values(), key=len)
            count = min(len(emptiest), gpus - len(chosen))
            chosen += emptiest[:count]
            del emptiest[:count]
        return tuple(chosen)
