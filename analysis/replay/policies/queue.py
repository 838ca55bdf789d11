"""Placements under a scheduler: the one policy behind all of them.

A scheduler orders the jobs (first come, least attained service, shortest remaining time), a placement picks GPUs for
one job at a time. Two ways of deciding come of that: a placement that keeps jobs where they are starts jobs in order,
fills in behind the first that must wait (EASY backfill), and under a scheduler that preempts stops jobs from the end of
the order; one that does not keep them places all jobs anew.

EASY backfill, after Lifka (JSSPP'95): a later job starts where it does not delay the reservation of the first that
waits. That is the earliest moment at which, by the limits of the jobs that run, enough GPUs are free for it. A later
job may start if by its own limit it has ended by then, or if it fits into the GPUs that are left over at that moment.
Jobs are looked at in the order of the queue, all of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ..checking import gpu_numbers
from ..fleet import Cluster, NotFreeError, Places
from ..jobs import Allocation
from ..world import Request, View
from .policy import Decision, Policy

EDGE = 1e-9  # of a round: what lies that little after an edge is at it


@dataclass(frozen=True)
class Scheduler:
    """An order of the queue: the job with the least key is served first. Ties go in order of arrival."""

    name: str
    summary: str
    key: Callable[[Request, float], float]
    """`key(request, attained_s)`; attained is the wall time for which the job has held GPUs."""
    preempts: bool = False  # a job may be stopped for one that is served before it
    by_rounds: bool = False  # the order changes while nothing happens, so decisions need rounds
    knowledge: str = "none"  # what it needs to know of the work of jobs (`Policy.knowledge`)


def _remaining(request: Request, attained_s: float) -> float:
    """A slowed job looks closer to its end than it is, as in PAL's simulator."""
    assert request.work_s is not None
    return request.work_s - attained_s


SCHEDULERS = (
    Scheduler("fifo", "first come, first served", lambda request, _: request.submit_s),
    Scheduler(
        "las",
        "least attained service first, in wall time",
        lambda _, attained_s: attained_s,
        preempts=True,
        by_rounds=True,
    ),
    Scheduler("srtf", "shortest remaining time first", _remaining, preempts=True, knowledge="exact"),
)


def find_scheduler(name: str) -> Scheduler:
    """The scheduler of that name. Raises `InputError` for an unknown one."""
    for scheduler in SCHEDULERS:
        if scheduler.name == name.lower():
            return scheduler
    raise InputError(f"no scheduler is named {name!r}; there are {', '.join(row.name for row in SCHEDULERS)}")


Held: TypeAlias = dict[int, tuple[int, ...]]  # GPUs by the number of the job

Key: TypeAlias = Any
"""A scheduler's key; where patience ends, after whether the job has any left. One kind in one replay."""

Entry: TypeAlias = tuple[Key, int]  # a job by its key and number: entries sort as jobs are served


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
        """Free GPUs for a job, or None to let it wait: no job behind it is then asked for.

        It is asked only while there are as many free GPUs as the job wants.
        """
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
        self._entries: dict[int, Entry] = {}  # of the jobs that wait
        self._impatient: set[int] = set()  # they have waited too long and go first
        self._impatient_s: dict[int, float] = {}  # when each job that waits loses patience
        self._spares = False  # whether the last decision left jobs alone that the next one may stop or move
        self._patience_s = view.options.patience_s
        self._preempts = self.scheduler.preempts or self._patience_s is not None
        self._ends_s: dict[int, float] | None = None  # of jobs that run, as backfill plans them; None without backfill
        if view.options.backfill == "easy":
            if not self.sticky:
                raise InputError(f"backfill needs jobs that keep their GPUs, which {self.name} moves")
            if self._preempts:
                raise InputError("backfill needs jobs that are not stopped: use fifo and no patience")
            self._ends_s = {}
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
            self._wait(number)
        changes = self._start_in_order() if self.sticky else self._place_anew()
        again_s = min(self._impatient_s.values(), default=math.inf)
        # In a round in which nothing happens the order can still change, and so can what `place` answers.
        restless = self.scheduler.preempts and (self._waiting or not self.sticky)
        if view.requests and (restless or self._spares or (self.redraws and not self.sticky)):
            again_s = min(again_s, view.edge_s)
        return Decision(changes, again_s)

    def _catch_up(self) -> None:
        """What happened since the last decision."""
        view = self.view
        for number in (*view.ended, *view.lost):
            self.cluster.give(number)
            if self._ends_s is not None:
                del self._ends_s[number]
        self._impatient.difference_update(view.ended)
        for number in (*view.arrived, *view.lost):
            self._wait(number)
        if view.nodes_down or view.nodes_up:
            self.cluster.set_up(view.up)

    # The queue

    def _entry(self, number: int) -> Entry:
        """A job as it would be served now."""
        key = self.scheduler.key(self.view.requests[number], self.view.progress[number].attained_at(self.view.now_s))
        return (key if self._patience_s is None else (number not in self._impatient, key)), number

    def _wait(self, number: int) -> None:
        """The job waits: its patience counts from the edge that admitted it, or a round after it lost its GPUs."""
        request, progress, round_s = self.view.requests[number], self.view.progress[number], self.view.options.round_s
        self._entries[number] = entry = self._entry(number)
        place = bisect_left(self._waiting, entry)
        self._waiting.insert(place, entry)
        if self._patience_s is not None and number not in self._impatient:
            if progress.started:
                since_s = (self.view.now_s if progress.gpus else progress.since_s) + round_s
            else:
                since_s = math.ceil(request.submit_s / round_s) * round_s
            self._impatient_s[number] = since_s + self._patience_s

    def _leave(self, number: int) -> None:
        """The job waits no longer."""
        self._impatient_s.pop(number, None)
        del self._waiting[bisect_left(self._waiting, self._entries.pop(number))]

    # Starting in order, and backfill

    def _start_in_order(self) -> dict[int, Allocation | None]:
        """Start jobs in order until one must wait, and fill in behind it.

        Under a scheduler that preempts running jobs behind it are stopped first, if it can then start. Stopped jobs may
        find other GPUs in the same decision; a job that was started in it is not stopped in it.
        """
        staying = self._paying() if self._preempts and self._waiting else set[int]()
        self._spares = bool(staying)
        if not self._waiting:
            return {}
        candidates = sorted(map(self._entry, self.cluster.held.keys() - staying)) if self._preempts else []
        stopped: Held = {}
        granted: Held = {}
        while self._waiting:
            request = self.view.requests[self._waiting[0][1]]
            gpus = self._place(request) or self._stop_for(request, candidates, stopped)
            if gpus is not None:
                self._start(request, gpus, granted)
                continue
            # One that waits although enough GPUs are free waits for an unknown time: no job overtakes it.
            reserved = request.gpus > self.cluster.free_count or self.bars(request) is not None
            if self._ends_s is not None and reserved and self.cluster.free_count:
                self._backfill(self._ends_s, granted)
            break
        return _changed(stopped, granted)

    def _backfill(self, ends_s: dict[int, float], granted: Held) -> None:
        """Start later jobs that do not delay the first: they end before it can start, or fit beside it then."""
        now_s, cluster = self.view.now_s, self.cluster
        head = self.view.requests[self._waiting[0][1]]
        barred = self.bars(head)
        free = self._free_for(barred)
        end_s, returned = math.inf, 0
        for at_s, number in sorted((at_s, number) for number, at_s in ends_s.items()):
            if at_s > end_s:
                break
            returned += self._outside(barred, cluster.held[number])
            if returned >= head.gpus - free:
                end_s = at_s
        spare = free + returned - head.gpus
        time_s = max(end_s, now_s) - now_s
        for _, number in self._waiting[1:]:
            if not cluster.free_count:
                return
            request = self.view.requests[number]
            besides = cluster.free_count - self._free_for(barred)
            if request.gpus > cluster.free_count or (request.gpus > spare + besides and _limit_s(request) > time_s):
                continue
            gpus = self._place(request)
            used = 0 if gpus is None or _limit_s(request) <= time_s else self._outside(barred, gpus)
            if gpus is None or (used and used > spare):  # nothing is spared where the first may never start
                if gpus is not None:
                    cluster.give(request.number)
                continue
            spare -= used
            self._start(request, gpus, granted)

    def _start(self, request: Request, gpus: tuple[int, ...], granted: Held) -> None:
        self._leave(request.number)
        granted[request.number] = gpus
        if self._ends_s is not None:
            self._ends_s[request.number] = self.view.now_s + _limit_s(request)

    # Preemption

    def _stop_for(self, request: Request, candidates: list[Entry], stopped: Held) -> tuple[int, ...] | None:
        """What the first job that waits is given once jobs behind it are stopped, from the end of the order.

        Nobody is stopped if it still cannot start, unless that is how it was published.
        """
        cluster, in_vain, barred = self.cluster, self.view.options.stops_in_vain, self.bars(request)
        behind = candidates[bisect_left(candidates, self._entries[request.number]) :][::-1]
        lacking = request.gpus - self._free_for(barred)
        if not in_vain and lacking > 0:
            widths = [(entry, self._outside(barred, cluster.held[entry[1]])) for entry in behind]
            needed = fewest(widths, lacking)
            if not needed:
                return None
            # The others only where the policy waits for more.
            behind = needed + [entry for entry, width in widths if width and entry not in needed]
        gpus: tuple[int, ...] | None = None
        returned: Held = {}
        for _, number in behind:
            returned[number] = cluster.give(number)
            gpus = self._place(request)
            if gpus is not None:
                break
        if gpus is None and not in_vain:
            for number, held in returned.items():
                cluster.take(number, held)
            return None
        stopped |= returned
        for number in returned:
            self._wait(number)
        candidates[:] = [entry for entry in candidates if entry[1] not in returned]
        return gpus

    def _paying(self) -> set[int]:
        """Running jobs that have not yet worked for as long as their start or move cost: they stay where they are."""
        if not self.view.rounds:
            return set()
        end_s = self.view.now_s + EDGE * self.view.options.round_s
        return {number for number in self.cluster.held if self.view.progress[number].keeps_until_s > end_s}

    # Placing anew

    def _place_anew(self) -> dict[int, Allocation | None]:
        """Take all GPUs back and place the first jobs of the queue that fit together, in the policy's order.

        Where that would stop or move jobs that stay where they are, the others are placed around them.
        """
        cluster, staying = self.cluster, self._paying()
        back, granted = self._place_all(set())
        self._spares = any(granted.get(number) != back[number] for number in staying)
        if self._spares:
            for number in granted:
                cluster.give(number)
            for number, gpus in back.items():
                cluster.take(number, gpus)
            back, granted = self._place_all(staying)
        for number in granted.keys() - back.keys():
            self._leave(number)
        for number in back.keys() - granted.keys():
            self._wait(number)
        return _changed(back, granted)

    def _place_all(self, staying: set[int]) -> tuple[Held, Held]:
        """The GPUs that are taken back, by job, and what jobs are given; `staying`: those that stay where they are."""
        cluster, requests = self.cluster, self.view.requests
        back = {number: cluster.give(number) for number in cluster.held.keys() - staying}
        first: list[int] = []
        room = cluster.free_count
        for _, number in merge(self._waiting, sorted(map(self._entry, back))):
            room -= requests[number].gpus
            if room < 0:
                break
            first.append(number)
        granted: Held = {}
        for number in self.arrange(first):
            gpus = self._place(requests[number])
            if gpus is None:
                break
            granted[number] = gpus
        return back, granted

    # Parts of them

    def _place(self, request: Request) -> tuple[int, ...] | None:
        """The free GPUs that the placement gives a job, which are then taken; None: it is to wait."""
        choice = self.place(request) if request.gpus <= self.cluster.free_count else None
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

    def _free_for(self, barred: NDArray[np.bool_] | None) -> int:
        """How many free GPUs a job may be given that is kept off these nodes."""
        return self.cluster.free_count - (0 if barred is None else int(self.cluster.counts[barred].sum()))

    def _outside(self, barred: NDArray[np.bool_] | None, gpus: Sequence[int]) -> int:
        """How many of these GPUs it may be given."""
        if barred is None:
            return len(gpus)
        return len(gpus) - int(np.count_nonzero(barred[self.view.fleet.node[list(gpus)]]))


def _limit_s(request: Request) -> float:
    """The run time that backfill plans with."""
    if request.limit_s is not None:
        return request.limit_s
    return math.inf if request.work_s is None else request.work_s


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
