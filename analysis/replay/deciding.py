"""Decisions of a replay: which jobs hold which GPUs, and the four ways in which policies decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from heapq import merge
from itertools import chain, takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from . import checking
from .backfill import ByWidth, PlannedEnds
from .cluster import NotFreeError
from .holdings import EDGE
from .job import Allocation, Job
from .queued import Entry, Key, Queue, fewest
from .state import State

if TYPE_CHECKING:
    from .holdings import Holdings
    from .options import Options
    from .policies.row import Policy
    from .schedulers import Scheduler
    from .view import View


class Decisions:
    """The queue of a replay and what is decided about it.

    A policy that decides everything is asked once. One that is not sticky places all jobs anew. A sticky one under a
    scheduler that preempts may stop jobs from the end of the order; under one that does not it only starts jobs.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        policy: Policy,
        scheduler: Scheduler,
        options: Options,
        view: View,
        holdings: Holdings,
        *,
        rounds: bool,
    ) -> None:
        """`jobs`: those of the trace. `view` holds the jobs on their way (`View.states`) and the cluster.

        `rounds`: decisions are made at the edges of rounds.
        """
        self.policy = policy
        self.made = 0
        self.queue = Queue(scheduler, options, view)
        self.running: dict[int, State] = {}
        self._placed: list[int] | None = None  # in the order of placing, as of the last decision; None: do not rely on
        self._view, self._cluster, self._holdings = view, view.cluster, holdings
        self._round_s = options.round_s
        self._keeps = rounds and max(options.preemption_s, options.migration_s) > 0
        self._keeping = False
        """Whether the last decision left jobs alone that the next one may stop or move."""
        self._in_vain = options.stops_in_vain
        if (policy.place is None) == (policy.decide is None):
            raise InputError(f"the policy {policy.name} must have either place or decide")
        stops = scheduler.preempts or options.patience_s is not None
        if policy.decide is not None:
            self.decide = self._all_at_once
        elif not policy.sticky:
            self.decide = self._anew
        elif stops:
            self.decide = self._preempting
        else:
            self.decide = self._in_order
        self._planned: PlannedEnds | None = None
        if options.backfill == "easy":
            if policy.decide is not None or not policy.sticky:
                raise InputError(f"backfill needs jobs that keep their GPUs, which {policy.name} moves")
            if stops:
                raise InputError("backfill needs jobs that are not stopped: use fifo and no patience")
            self._planned = PlannedEnds()
            if options.arrivals is not None:
                raise InputError("backfill needs to know all jobs: use it without arrivals after the trace's")
            self._index = ByWidth(jobs)
        self._restless_queue = policy.place is not None and policy.sticky and scheduler.preempts
        self._restless = policy.decide is not None or (not policy.sticky and (policy.redraws or scheduler.preempts))

    # What happens

    def wait(self, state: State) -> None:
        """The job waits from now on."""
        self.queue.add(state, self.queue.key(state, state.attained_s))
        if self._planned is not None:
            self._index.wait(state.number)

    def release(self, state: State) -> None:
        """The job has ended or has lost its node: its GPUs are free."""
        del self.running[state.number]
        if self.policy.decide is None:
            self._cluster.give(state.gpus)
        if self._planned is not None:
            self._planned.remove(state.planned_s, state.number, len(state.gpus))

    def cluster_changed(self) -> None:
        """A node went down or came back."""
        self._placed = None

    def restless(self) -> bool:
        """Whether the next round can bring another decision although nothing happens until then."""
        if self._restless or self._keeping:
            return bool(self.queue.waiting or self.running)
        return self._restless_queue and bool(self.queue.waiting)

    # The ways of deciding

    def _in_order(self) -> None:
        """Start jobs in order until one must wait."""
        waiting, cluster = self.queue.waiting, self._cluster
        while waiting:
            state = self._view.states[waiting[0][1]]
            if state.job.gpus > cluster.free_count:
                break
            gpus = self._place(state)
            if gpus is None:
                if self._barred(state) is not None:
                    break
                return  # The policy waits for GPUs that are not free, for an unknown time: no job overtakes.
            self._start(state, gpus)
        if self._planned is not None and waiting and cluster.free_count:
            self._backfill(self._planned)

    def _backfill(self, planned: PlannedEnds) -> None:
        now, cluster = self._view.now_s, self._cluster
        after = self.queue.waiting[0]
        head = self._view.states[after[1]]
        barred = self._barred(head)
        free, of = self._for_it(barred)
        end, returned = planned.reservation(head.job.gpus - free, of)
        spare = free + returned - head.job.gpus
        time_s = max(end, now) - now
        while cluster.free_count:
            besides = 0 if barred is None else cluster.free_count - self._for_it(barred)[0]
            number = self._index.next(after, cluster.free_count, spare + besides, time_s)
            if number is None:
                return
            state = self._view.states[number]
            after = self.queue.entry(number)
            gpus = self._place(state)
            if gpus is not None:
                if state.limit_s > time_s:
                    taken = len(gpus) if barred is None else self._not_on(barred, gpus)
                    if taken > spare:
                        cluster.give(gpus)
                        continue
                    spare -= taken
                self._start(state, gpus)

    def _start(self, state: State, gpus: tuple[int, ...]) -> None:
        self.queue.remove(state.number)
        self._hold(state, Allocation(gpus))
        if self._planned is not None:
            self._index.start(state.number)
            state.planned_s = self._view.now_s + state.limit_s
            self._planned.add(state.planned_s, state.number, len(gpus))

    def _preempting(self) -> None:
        """Start jobs in order; for one that does not fit, stop running jobs that are behind it, if it can then start.

        The first that cannot ends the decision. Stopped jobs may find other GPUs in it. A job that was started in it
        is not stopped in it.
        """
        waiting, states = self.queue.waiting, self._view.states
        self._keeping = False
        if not waiting:
            return
        kept = self._kept()
        self._keeping = bool(kept)
        candidates = self.queue.in_order(self.running)
        if kept:
            candidates = [one for one in candidates if one[1] not in kept]
        stopped: dict[int, State] = {}
        granted: dict[int, tuple[int, ...]] = {}
        while waiting:
            head = waiting[0]
            state = states[head[1]]
            gpus = self._place(state) if state.job.gpus <= self._cluster.free_count else None
            if gpus is None and candidates and candidates[-1] > head:
                gpus = self._stop_for(head, candidates, stopped)
            if gpus is None:
                break
            self.queue.remove(state.number)
            granted[state.number] = gpus
        self._carry_out(stopped, granted)

    def _stop_for(self, head: Entry, candidates: list[Entry], stopped: dict[int, State]) -> tuple[int, ...] | None:
        """What the head of the queue is given once running jobs behind it are stopped, from the end of the order.

        Nobody is stopped if it still cannot start, unless that is how it was published.
        """
        states, cluster = self._view.states, self._cluster
        state = states[head[1]]
        behind: Iterable[Entry] = takewhile(lambda entry: entry > head, reversed(candidates))
        free, of = self._for_it(self._barred(state))
        lacking = state.job.gpus - free
        if not self._in_vain and lacking > 0:
            width = of or (lambda number: len(states[number].gpus))
            needed = fewest(((entry, width(entry[1])) for entry in behind), lacking)
            if not needed:
                return None
            others = takewhile(lambda entry: entry > head, reversed(candidates))  # where the policy waits for more
            behind = chain(needed, (entry for entry in others if entry not in needed and width(entry[1])))
        gpus: tuple[int, ...] | None = None
        taken: dict[int, Key] = {}
        for key, number in behind:
            taken[number] = key
            cluster.give(states[number].gpus)
            gpus = self._place(state) if state.job.gpus <= cluster.free_count else None
            if gpus is not None:
                break
        if gpus is None and not self._in_vain:
            for number in taken:
                cluster.take(states[number].gpus)
            return None
        for number, key in taken.items():
            stopped[number] = states[number]
            self.queue.add(states[number], key)
        before = len(candidates) - len(taken)
        while candidates and candidates[-1][1] in taken:
            candidates.pop()
        if len(candidates) > before:
            candidates[:] = [one for one in candidates if one[1] not in taken]
        return gpus

    def _kept(self) -> set[int]:
        """Running jobs that have not yet worked for as long as their start or move cost: they stay where they are."""
        if not self._keeps:
            return set()
        end = self._view.now_s + EDGE * self._round_s
        return {number for number, state in self.running.items() if state.keeps_until_s > end}

    def _anew(self) -> None:
        """Take all GPUs back and place the first jobs of the queue that fit together, in the policy's order.

        Where that would stop or move jobs that stay where they are, the others are placed around them.
        """
        cluster, states = self._cluster, self._view.states
        back, granted = self._place_all()
        kept = self._kept()
        self._keeping = any(number in back and granted.get(number) != states[number].gpus for number in kept)
        if self._keeping:
            for gpus in granted.values():
                cluster.give(gpus)
            for state in back.values():
                cluster.take(state.gpus)
            self._placed = None
            back, granted = self._place_all(kept)
            self._placed = None
        for number in granted:
            if number not in back:
                self.queue.remove(number)
        for number, state in back.items():
            if number not in granted:
                self.queue.add(state, self.queue.key(state, state.attained_at(self._view.now_s)))
        self._carry_out(back, granted)

    def _place_all(self, kept: Set[int] = frozenset()) -> tuple[dict[int, State], dict[int, tuple[int, ...]]]:
        """The running jobs whose GPUs are taken back, and what jobs are given; `kept`: those that stay where they are.

        Where the policy goes by the free GPUs and the job alone, jobs up to the first one that differs from the last
        decision's would get what they hold, so the rest only is placed.
        """
        cluster, view, states = self._cluster, self._view, self._view.states
        first: list[int] = []
        left = cluster.capacity - sum(len(states[number].gpus) for number in kept)
        for _, number in self._in_system():
            if number in kept:
                continue
            left -= states[number].job.gpus
            if left < 0:
                break
            first.append(number)
        order = first
        if self.policy.arrange is not None:
            order = checking.arranged(self.policy.name, self.policy.arrange(view, first), first)
        same = 0
        if self._placed is not None and not self.policy.redraws:
            for last, number in zip(self._placed, order, strict=False):
                if last != number:
                    break
                same += 1
        keep = kept | set(order[:same])
        back = {number: state for number, state in self.running.items() if number not in keep}
        for state in back.values():
            cluster.give(state.gpus)
        granted: dict[int, tuple[int, ...]] = {}
        self._placed = order[:same]
        for number in order[same:]:
            gpus = self._place(states[number])
            if gpus is None:
                break
            granted[number] = gpus
            self._placed.append(number)
        return back, granted

    def _all_at_once(self) -> None:
        """Ask the policy what every job holds."""
        view, states = self._view, self._view.states
        assert self.policy.decide is not None
        self.made += 1
        view.order = [number for _, number in self._in_system()]
        granted = checking.granted(self.policy.name, self.policy.decide(view), states, view.available())
        for number in [number for number in self.running if number not in granted]:
            state = self.running.pop(number)
            self._holdings.stop(state)
            self.wait(state)
        for number, allocation in granted.items():
            if number not in self.running:
                self.queue.remove(number)
            self._hold(states[number], allocation)

    # Parts of them

    def _barred(self, state: State) -> NDArray[np.bool_] | None:
        """(nodes,) those that the policy never gives a job; None: it may be given all."""
        return None if self.policy.bars is None else self.policy.bars(self._view, state.job)

    def _for_it(self, barred: NDArray[np.bool_] | None) -> tuple[int, Callable[[int], int] | None]:
        """How many free GPUs a job may be given that is kept off these nodes, and how many of those a job holds."""
        cluster, states = self._cluster, self._view.states
        if barred is None:
            return cluster.free_count, None
        besides = sum(cluster.counts[node] for node in np.flatnonzero(barred).tolist())
        return cluster.free_count - besides, lambda number: self._not_on(barred, states[number].gpus)

    def _not_on(self, barred: NDArray[np.bool_], gpus: Sequence[int]) -> int:
        return len(gpus) - int(np.count_nonzero(barred[self._view.node[list(gpus)]]))

    def _place(self, state: State) -> tuple[int, ...] | None:
        """The free GPUs that the policy gives a job, which are then taken; None: it is to wait."""
        assert self.policy.place is not None
        self.made += 1
        view, name = self._view, self.policy.name
        given = self.policy.place(view, state.job)
        if given is None:
            return None
        gpus = checking.placed(name, state.job, given, len(view.node))
        try:
            self._cluster.take(gpus)
        except NotFreeError:
            raise InputError(checking.not_free(name, state.job, gpus, view.free, view.available())) from None
        return gpus

    def _hold(self, state: State, allocation: Allocation) -> None:
        self.running[state.number] = state
        if (state.gpus, state.rate, state.shared) != (allocation.gpus, allocation.rate, allocation.shared):
            self._holdings.hold(state, allocation.gpus, allocation.rate, allocation.shared)

    def _carry_out(self, back: dict[int, State], granted: dict[int, tuple[int, ...]]) -> None:
        """`back`: jobs whose GPUs were taken back; `granted`: what jobs have been given since."""
        for number, state in back.items():
            if number not in granted:
                del self.running[number]
                self._holdings.stop(state)
        for number, gpus in granted.items():
            self._hold(self._view.states[number], Allocation(gpus))

    def _in_system(self) -> Iterator[Entry]:
        return merge(self.queue.waiting, self.queue.in_order(self.running))
