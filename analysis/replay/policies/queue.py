"""Placements under a scheduler: the one policy behind all of them.

A scheduler orders the jobs (first come, least attained service, shortest remaining time), a placement picks GPUs for
one job at a time. Three ways of deciding come of that: a placement that keeps jobs where they are only starts jobs, in
order, and fills in behind the first that must wait (EASY backfill); under a scheduler that preempts it may also stop
jobs from the end of the order; one that does not keep them places all jobs anew.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from heapq import merge
from itertools import chain, takewhile
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ..beliefs import Request, View
from ..checking import gpu_numbers
from ..cluster import Cluster, NotFreeError, Places
from ..job import Allocation
from .backfill import PlannedEnds, Sizes
from .policy import Decision, Policy

EDGE = 1e-9
"""Of a round: what lies that little after an edge is at it."""


@dataclass(frozen=True)
class Scheduler:
    """An order of the queue: the job with the least key is served first. Ties go in order of arrival."""

    name: str
    summary: str
    key: Callable[[Request, float], float]
    """`key(request, attained_s)`; attained is the wall time for which the job has held GPUs."""
    preempts: bool = False
    """A job may be stopped for one that is served before it."""
    by_rounds: bool = False
    """The order changes while nothing happens, so decisions need rounds."""
    knowledge: str = "none"
    """What it needs to know of the work of jobs (`Policy.knowledge`)."""


def _submitted(request: Request, attained_s: float) -> float:  # noqa: ARG001 (every key has the same arguments)
    return request.submit_s


def _attained(request: Request, attained_s: float) -> float:  # noqa: ARG001 (the same)
    return attained_s


def _remaining(request: Request, attained_s: float) -> float:
    """A slowed job looks closer to its end than it is, as in PAL's simulator."""
    assert request.work_s is not None
    return request.work_s - attained_s


SCHEDULERS = (
    Scheduler("fifo", "first come, first served", _submitted),
    Scheduler("las", "least attained service first, in wall time", _attained, preempts=True, by_rounds=True),
    Scheduler("srtf", "shortest remaining time first", _remaining, preempts=True, knowledge="exact"),
)


def find_scheduler(name: str) -> Scheduler:
    """The scheduler of that name. Raises `InputError` for an unknown one."""
    for scheduler in SCHEDULERS:
        if scheduler.name == name.lower():
            return scheduler
    raise InputError(f"no scheduler is named {name!r}; there are {', '.join(row.name for row in SCHEDULERS)}")


Held: TypeAlias = dict[int, tuple[int, ...]]
"""GPUs by the number of the job."""

Key: TypeAlias = Any
"""A scheduler's key; where patience ends, after whether the job has any left. One kind in one replay."""

Entry: TypeAlias = tuple[Key, int]
"""A job by its key and number: entries sort as jobs are served."""


class Queued(Policy):
    """A placement under a scheduler. A subclass has `place`, which picks the GPUs of one job.

    `view` is what the replay shows, and `cluster` the free GPUs as of this moment of the decision.
    """

    whole = False
    sticky: ClassVar[bool] = True
    """A job that runs keeps its GPUs. Otherwise all jobs are placed again at every decision."""
    redraws: ClassVar[bool] = False
    """`place` looks at more than the free GPUs and the job, such as random numbers: no earlier answer stands in."""

    def __init__(self, scheduler: str | Scheduler = "fifo") -> None:
        self.scheduler = find_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
        self.by_rounds = self.by_rounds or self.scheduler.by_rounds
        self.knowledge = self.scheduler.knowledge

    # What a placement says

    def place(self, request: Request) -> Sequence[int] | Places | None:
        """Free GPUs for a job, or None to let it wait: no job behind it is then asked for."""
        raise NotImplementedError

    def arrange(self, numbers: Sequence[int]) -> Sequence[int]:
        """The order in which the jobs about to run may choose; the first of the queue that fit, together, are given."""
        return numbers

    def avoids(self, view: View) -> NDArray[np.bool_] | None:  # noqa: ARG002 (of all placements)
        """(gpus,) GPUs that no job is given; None: it may give all."""
        return None

    def bars(self, request: Request) -> NDArray[np.bool_] | None:  # noqa: ARG002 (of all placements)
        """(nodes,) nodes that `place` never gives this job; None: it may be given all."""
        return None

    # What the replay asks

    def begin(self, view: View) -> None:
        """Raises `InputError` for options that exclude each other, and where the widest job can never run."""
        self.view = view
        self.cluster = Cluster(view.fleet.node, self.avoids(view))
        self._waiting: list[Entry] = []
        self._keys: dict[int, Key] = {}
        self._impatient: set[int] = set()  # they have waited too long and go first
        self._impatient_s: dict[int, float] = {}  # when each job that waits loses patience
        self._placed: list[int] | None = None  # in the order of placing, as of the last decision; None: unknown
        self._spares = False  # whether the last decision left jobs alone that the next one may stop or move
        options = view.options
        self._patience_s = options.patience_s
        self._costs = view.rounds and max(options.preemption_s, options.migration_s, options.start_s) > 0
        preempts = self.scheduler.preempts or self._patience_s is not None
        self._decide = self._preempt if preempts else self._start_in_order
        if not self.sticky:
            self._decide = self._place_anew
        self._restless = not self.sticky and (self.redraws or self.scheduler.preempts)
        self._planned: PlannedEnds | None = None
        if options.backfill == "easy":
            if not self.sticky:
                raise InputError(f"backfill needs jobs that keep their GPUs, which {self.name} moves")
            if preempts:
                raise InputError("backfill needs jobs that are not stopped: use fifo and no patience")
            self._planned, self._sizes = PlannedEnds(), Sizes()
        if view.widest > self.cluster.capacity:
            raise InputError(
                f"a job asks for {view.widest:,} GPUs and the policy {self.name} uses {self.cluster.capacity:,} of the "
                f"fleet's {len(view.fleet):,}; leave out the job or the policy"
            )

    def decide(self, view: View) -> Decision:
        """What is to change: GPUs of jobs that start, stop or move."""
        self._catch_up()
        for number in [number for number, at_s in self._impatient_s.items() if at_s <= view.now_s]:
            self._leave(number)
            self._impatient.add(number)
            self._wait(number, self._key(number, view.progress[number].attained_s), view.now_s)
        changes = self._decide()
        again_s = min(self._impatient_s.values(), default=math.inf)
        # In a round in which nothing happens the order can still change.
        restless = self._restless or self._spares
        if (restless and view.requests) or (self._waiting and self.sticky and self.scheduler.preempts):
            again_s = min(again_s, view.edge_s)
        return Decision(changes, again_s)

    def _catch_up(self) -> None:
        """What happened since the last decision."""
        view = self.view
        for number in (*view.ended, *view.lost):
            self.cluster.give(number)
            if self._planned is not None:
                self._planned.remove(number)
        self._impatient.difference_update(view.ended)
        for number in (*view.arrived, *view.lost):
            progress = view.progress[number]
            self._wait(number, self._key(number, progress.attained_s), progress.since_s + view.options.round_s)
        if view.nodes_down or view.nodes_up:
            self.cluster.set_up(view.up)
            self._placed = None

    # The queue

    def _key(self, number: int, attained_s: float) -> Key:
        """By which a job is served that has held GPUs for so long."""
        key = self.scheduler.key(self.view.requests[number], attained_s)
        return key if self._patience_s is None else (number not in self._impatient, key)

    def _in_order(self, numbers: Iterable[int]) -> list[Entry]:
        """Jobs that hold GPUs, as they would be served now."""
        now_s, progress = self.view.now_s, self.view.progress
        return sorted((self._key(number, progress[number].attained_at(now_s)), number) for number in numbers)

    def _wait(self, number: int, key: Key, since_s: float) -> None:
        """The job waits; its patience counts from `since_s`, or where it never ran from the edge that admitted it."""
        self._keys[number] = key
        place = bisect_left(self._waiting, (key, number))
        self._waiting.insert(place, (key, number))
        if self._planned is not None:
            self._sizes.insert(place, self.view.requests[number].gpus, self._limit_s(number))
        if self._patience_s is not None and number not in self._impatient:
            if not self.view.progress[number].started:
                round_s = self.view.options.round_s
                since_s = math.ceil(self.view.requests[number].submit_s / round_s) * round_s
            self._impatient_s[number] = since_s + self._patience_s

    def _leave(self, number: int) -> None:
        """The job waits no longer."""
        self._impatient_s.pop(number, None)
        place = bisect_left(self._waiting, (self._keys.pop(number), number))
        del self._waiting[place]
        if self._planned is not None:
            self._sizes.remove(place)

    # Starting in order, and backfill

    def _start_in_order(self) -> dict[int, Allocation | None]:
        """Start jobs in order until one must wait."""
        started: dict[int, Allocation | None] = {}
        while self._waiting:
            request = self.view.requests[self._waiting[0][1]]
            if request.gpus > self.cluster.free_count:
                break
            gpus = self._place(request)
            if gpus is None:
                if self.bars(request) is not None:
                    break
                return started  # The policy waits for GPUs that are not free, for an unknown time: no job overtakes.
            self._start(request, gpus, started)
        if self._planned is not None and self._waiting and self.cluster.free_count:
            self._backfill(self._planned, started)
        return started

    def _backfill(self, planned: PlannedEnds, started: dict[int, Allocation | None]) -> None:
        """Start later jobs that do not delay the first: they end before it can start, or fit beside it then."""
        now_s, cluster = self.view.now_s, self.cluster
        head, place = self.view.requests[self._waiting[0][1]], 1
        barred = self.bars(head)
        free, useful = self._for_job(barred)
        end_s, returned = planned.reservation(head.gpus - free, useful)
        spare = free + returned - head.gpus
        time_s = max(end_s, now_s) - now_s
        while cluster.free_count:
            besides = 0 if barred is None else cluster.free_count - self._for_job(barred)[0]
            candidate = self._sizes.first(place, cluster.free_count, spare + besides, time_s)
            if candidate is None:
                return
            request = self.view.requests[self._waiting[candidate][1]]
            gpus = self._place(request)
            place = candidate + 1
            if gpus is not None:
                if self._limit_s(request.number) > time_s:
                    used = len(gpus) if barred is None else self._outside(barred, gpus)
                    if used > spare:
                        cluster.give(request.number)
                        continue
                    spare -= used
                self._start(request, gpus, started)
                place = candidate

    def _start(self, request: Request, gpus: tuple[int, ...], started: dict[int, Allocation | None]) -> None:
        self._leave(request.number)
        started[request.number] = Allocation(gpus)
        if self._planned is not None:
            self._planned.add(self.view.now_s + self._limit_s(request.number), request.number, len(gpus))

    def _limit_s(self, number: int) -> float:
        """The run time that backfill plans with."""
        request = self.view.requests[number]
        if request.limit_s is not None:
            return request.limit_s
        return math.inf if request.work_s is None else request.work_s

    # Preemption

    def _preempt(self) -> dict[int, Allocation | None]:
        """Start jobs in order; for one that does not fit, stop running jobs that are behind it, if it can then start.

        The first that cannot ends the decision. Stopped jobs may find other GPUs in it. A job that was started in it
        is not stopped in it.
        """
        self._spares = False
        if not self._waiting:
            return {}
        staying = self._paying()
        self._spares = bool(staying)
        candidates = self._in_order(number for number in self.cluster.held if number not in staying)
        stopped: Held = {}
        granted: Held = {}
        while self._waiting:
            head = self._waiting[0]
            request = self.view.requests[head[1]]
            gpus = self._place(request) if request.gpus <= self.cluster.free_count else None
            if gpus is None and candidates and candidates[-1] > head:
                gpus = self._stop_for(head, candidates, stopped)
            if gpus is None:
                break
            self._leave(request.number)
            granted[request.number] = gpus
        return _changed(stopped, granted)

    def _stop_for(self, head: Entry, candidates: list[Entry], stopped: Held) -> tuple[int, ...] | None:
        """What the head of the queue is given once running jobs behind it are stopped, from the end of the order.

        Nobody is stopped if it still cannot start, unless that is how it was published.
        """
        cluster, in_vain = self.cluster, self.view.options.stops_in_vain
        request = self.view.requests[head[1]]
        behind: Iterable[Entry] = takewhile(lambda entry: entry > head, reversed(candidates))
        free, useful = self._for_job(self.bars(request))
        lacking = request.gpus - free
        if not in_vain and lacking > 0:
            width = useful or (lambda number: len(cluster.held[number]))
            needed = fewest(((entry, width(entry[1])) for entry in behind), lacking)
            if not needed:
                return None
            others = takewhile(lambda entry: entry > head, reversed(candidates))  # where the policy waits for more
            behind = chain(needed, (entry for entry in others if entry not in needed and width(entry[1])))
        gpus: tuple[int, ...] | None = None
        returned: dict[int, tuple[Key, tuple[int, ...]]] = {}
        for key, number in behind:
            returned[number] = key, cluster.give(number)
            gpus = self._place(request) if request.gpus <= cluster.free_count else None
            if gpus is not None:
                break
        if gpus is None and not in_vain:
            for number, (_, held) in returned.items():
                cluster.take(number, held)
            return None
        for number, (key, held) in returned.items():
            stopped[number] = held
            self._wait(number, key, self.view.now_s + self.view.options.round_s)
        candidates[:] = [entry for entry in candidates if entry[1] not in returned]
        return gpus

    def _paying(self) -> set[int]:
        """Running jobs that have not yet worked for as long as their start or move cost: they stay where they are."""
        if not self._costs:
            return set()
        end_s = self.view.now_s + EDGE * self.view.options.round_s
        return {number for number in self.cluster.held if self.view.progress[number].keeps_until_s > end_s}

    # Placing anew

    def _place_anew(self) -> dict[int, Allocation | None]:
        """Take all GPUs back and place the first jobs of the queue that fit together, in the policy's order.

        Where that would stop or move jobs that stay where they are, the others are placed around them.
        """
        cluster = self.cluster
        staying = self._paying()
        back, granted = self._place_all()
        self._spares = any(number in back and granted.get(number) != back[number] for number in staying)
        if self._spares:
            for number in granted:
                cluster.give(number)
            for number, gpus in back.items():
                cluster.take(number, gpus)
            self._placed = None
            back, granted = self._place_all(staying)
            self._placed = None
        for number in granted:
            if number not in back:
                self._leave(number)
        now_s = self.view.now_s
        for number in back:
            if number not in granted:
                key = self._key(number, self.view.progress[number].attained_at(now_s))
                self._wait(number, key, now_s + self.view.options.round_s)
        return _changed(back, granted)

    def _place_all(self, staying: Set[int] = frozenset()) -> tuple[Held, Held]:
        """The GPUs that are taken back, by job, and what jobs are given; `staying`: those that stay where they are.

        Where the policy goes by the free GPUs and the job alone, jobs up to the first one that differs from the last
        decision's would get what they hold, so only those after it are placed.
        """
        cluster, requests = self.cluster, self.view.requests
        first: list[int] = []
        room = cluster.capacity - sum(len(cluster.held[number]) for number in staying)
        for _, number in merge(self._waiting, self._in_order(cluster.held)):
            if number in staying:
                continue
            room -= requests[number].gpus
            if room < 0:
                break
            first.append(number)
        order = list(self.arrange(first))
        same = 0
        if self._placed is not None and not self.redraws:
            for last, number in zip(self._placed, order, strict=False):
                if last != number:
                    break
                same += 1
        keep = staying | set(order[:same])
        back = {number: cluster.give(number) for number in list(cluster.held) if number not in keep}
        granted: Held = {}
        self._placed = order[:same]
        for number in order[same:]:
            gpus = self._place(requests[number])
            if gpus is None:
                break
            granted[number] = gpus
            self._placed.append(number)
        return back, granted

    # Parts of them

    def _place(self, request: Request) -> tuple[int, ...] | None:
        """The free GPUs that the placement gives a job, which are then taken; None: it is to wait."""
        choice = self.place(request)
        if choice is None:
            return None
        try:
            gpus = tuple(sorted(choice.tolist() if isinstance(choice, np.ndarray) else choice))
            self.cluster.take(request.number, gpus)
        except (NotFreeError, IndexError, TypeError):
            pass
        else:
            return gpus
        grant = f"the policy {self.name} gives job {request.name} at {self.view.now_s:g} s"
        gpus = gpu_numbers(grant, choice, len(self.cluster.free))
        busy = next((gpu for gpu in gpus if not self.cluster.free[gpu]), None)
        raise InputError(f"{grant} the GPU {busy}, which is not free")

    def _for_job(self, barred: NDArray[np.bool_] | None) -> tuple[int, Callable[[int], int] | None]:
        """How many free GPUs a job may be given that is kept off these nodes, and how many of those a job holds."""
        cluster = self.cluster
        if barred is None:
            return cluster.free_count, None
        return cluster.free_count - int(cluster.counts[barred].sum()), lambda number: self._outside(
            barred, cluster.held[number]
        )

    def _outside(self, barred: NDArray[np.bool_], gpus: Sequence[int]) -> int:
        return len(gpus) - int(np.count_nonzero(barred[self.view.fleet.node[list(gpus)]]))


def _changed(back: Held, granted: Held) -> dict[int, Allocation | None]:
    """`back`: the GPUs that jobs held; `granted`: what jobs have been given since."""
    changes: dict[int, Allocation | None] = {number: None for number in back if number not in granted}
    for number, gpus in granted.items():
        if back.get(number) != gpus:
            changes[number] = Allocation(gpus)
    return changes


def fewest(behind: Iterable[tuple[Entry, int]], lacking: int) -> list[Entry]:
    """Those to stop for `lacking` more GPUs, as few as will do; none at all if all of them are not enough.

    `behind`: running jobs and how many GPUs each can give, from the end of the order. As many of them as have the
    GPUs; then each of these that the others suffice without runs on, whoever is served first before the others.
    """
    needed = []
    for entry in behind:
        if lacking <= 0:
            break
        needed.append(entry)
        lacking -= entry[1]
    if lacking > 0:
        return []
    for entry in list(reversed(needed)):
        if lacking + entry[1] <= 0:
            lacking += entry[1]
            needed.remove(entry)
    return [entry for entry, _ in needed]
