"""Whole schedulers that give GPUs to jobs in one order and skip jobs that do not fit; and Tiresias (NSDI'19).

Tiresias has two queues, as Pollux's authors simulate it (OSDI'21).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from ..jobs import Allocation
from ..world import Request, View
from .policy import Decision, Policy

Pick = Callable[[View, Request, Sequence[int]], Sequence[int]]
"""Picks a job's GPUs out of the free ones, which are enough."""


def fitting(requests: Iterable[Request], gpus: int) -> list[Request]:
    """Those that fit on so many GPUs one after the other; the others are skipped."""
    fit = []
    for request in requests:
        if request.gpus <= gpus:
            gpus -= request.gpus
            fit.append(request)
    return fit


def emptiest(view: View, request: Request, free: Sequence[int]) -> Sequence[int]:
    """The first GPUs of the node with the most free ones, of as few nodes as can be; the first node on ties."""
    by_node = defaultdict[int, list[int]](list)
    for gpu in free:
        by_node[int(view.fleet.node[gpu])].append(gpu)
    nodes = sorted(by_node.values(), key=len, reverse=True)
    return [gpu for gpus in nodes for gpu in gpus][: request.gpus]


def grant(view: View, chosen: Iterable[Request], pick: Pick) -> dict[int, Allocation | None]:
    """The changes by which exactly the chosen jobs run: those that run keep their GPUs, the others pick in turn."""
    requests = {request.number: request for request in chosen}
    changes: dict[int, Allocation | None] = {n: None for n in view.running if n not in requests}
    held = {gpu for n, allocation in view.running.items() if n in requests for gpu in allocation.gpus}
    free = [gpu for gpu, up in enumerate(view.up.tolist()) if up and gpu not in held]
    for number, request in requests.items():
        if number not in view.running:
            gpus = tuple(pick(view, request, free))
            changes[number] = Allocation(gpus)
            free = [gpu for gpu in free if gpu not in gpus]
    return changes


class Shares(Policy):
    """Runs the jobs of the least `rank` that fit, on the emptiest nodes; ties by arrival."""

    blind = True

    def rank(self, view: View, request: Request) -> float:
        """The place of a job: the least first."""
        raise NotImplementedError

    def decide(self, view: View) -> Decision:
        order = sorted(view.requests.values(), key=lambda request: self.rank(view, request))
        return Decision(grant(view, fitting(order, int(view.up.sum())), emptiest), again_s=view.edge_s)


class FirstCome(Shares):
    name = "fifo"
    summary = "first come, first served on the emptiest nodes; jobs that do not fit are skipped, none is stopped"

    def rank(self, view: View, request: Request) -> float:
        return -1.0 if request.number in view.running else request.submit_s


class LeastAttained(Shares):
    name = "las"
    summary = "the jobs that have held the fewest GPU-seconds, in every round"
    by_rounds = True

    def rank(self, view: View, request: Request) -> float:
        return view.progress[request.number].gpu_s_at(view.now_s)


class _ByWork(Shares):
    """Ranks by the work that a job has left, which must be known."""

    knowledge = "exact"
    needs_progress: ClassVar[bool] = True

    def left_s(self, view: View, request: Request) -> float:
        """Seconds of work left, as known."""
        left_s = view.progress[request.number].left_s
        assert left_s is not None, f"{self.name} is asked only where the work of jobs is known"
        return left_s


class ShortestLeft(_ByWork):
    name = "srtf"
    summary = "the jobs with the least work left"

    def rank(self, view: View, request: Request) -> float:
        return self.left_s(view, request)


class LongestLeft(_ByWork):
    name = "lrtf"
    summary = "the jobs with the most work left, in every round"
    by_rounds = True

    def rank(self, view: View, request: Request) -> float:
        return -self.left_s(view, request)


class FinishTimeFair(_ByWork):
    name = "ftf"
    summary = "the jobs whose time to their end is the longest beside their work (Themis, NSDI'20), in every round"
    by_rounds = True

    def rank(self, view: View, request: Request) -> float:
        assert request.work_s is not None
        return -(view.now_s - request.submit_s + self.left_s(view, request)) / request.work_s


DEMOTED_AT_GPU_S = 16 * 3600.0  # GPU-seconds after which a job goes to the second queue


class Tiresias(Policy):
    """Least attained service in two steps: jobs that have had few GPU-hours go first, in the order of arrival.

    A job that does not fit is passed over, and stopped if it runs. GPUs are those of the emptiest nodes.
    """

    name = "tiresias"
    summary = "jobs with under 16 GPU-hours first, then the others; each in the order of arrival there"
    by_rounds = True
    blind = True

    def __init__(self) -> None:
        self._second: dict[int, None] = {}  # the jobs of the second queue, in its order

    def decide(self, view: View) -> Decision:
        """Jobs in the order of the queues, as long as they fit."""
        for number in view.ended:
            self._second.pop(number, None)
        left = {  # until a job goes to the second queue, GPU-seconds
            number: DEMOTED_AT_GPU_S - view.progress[number].gpu_s_at(view.now_s)
            for number in view.requests
            if number not in self._second
        }
        # A demotion was asked for at this moment, but for rounding.
        self._second |= {number: None for number, gpu_s in left.items() if gpu_s < 1e-3}
        order = [*(number for number in left if number not in self._second), *self._second]
        chosen = fitting((view.requests[number] for number in order), int(view.up.sum()))
        demotions = (view.now_s + left[job.number] / job.gpus for job in chosen if job.number not in self._second)
        return Decision(grant(view, chosen, emptiest), again_s=min(demotions, default=math.inf))
