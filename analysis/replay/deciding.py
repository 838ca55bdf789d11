"""Decisions of a replay: which jobs hold which GPUs, and the four ways in which policies decide."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, merge
from typing import TYPE_CHECKING, Any, TypeAlias

from ...errors import InputError
from .backfill import ByWidth, InOrder, PlannedEnds, Waiting
from .job import Allocation, Job
from .state import State

if TYPE_CHECKING:
    from .holdings import Holdings
    from .options import Options
    from .policies.policy import Policy
    from .schedulers import Scheduler
    from .view import View


Key: TypeAlias = Any
"""A scheduler's key; where patience ends, after whether the job has any left. One kind in one replay."""


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
    ) -> None:
        """`jobs`: those of the trace. `view` holds the jobs on their way (`View.states`) and the cluster."""
        self.policy = policy
        self.made = 0
        self.waiting: list[tuple[Key, int]] = []
        """(key, number) in the scheduler's order; the key of a waiting job does not change."""
        self.running: dict[int, State] = {}
        self._keys: dict[int, Key] = {}
        self._placed: list[int] | None = None  # in the order of placing, as of the last decision; None: do not rely on
        self._view, self._cluster, self._holdings = view, view.cluster, holdings
        self._key = scheduler.key
        self._round_s = options.round_s
        if (policy.place is None) == (policy.decide is None):
            raise InputError(f"the policy {policy.name} must have either place or decide")
        self._patience_s = options.patience_s
        self._impatient: list[tuple[float, int]] = []  # a heap of those below; those that have started are void
        self._impatient_s: dict[int, float] = {}
        """When each job that waits loses patience."""
        preempts = scheduler.preempts and options.preempt
        stops = preempts or (options.patience_s is not None and options.preempt)
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
                raise InputError("backfill needs jobs that are not stopped: use fifo, no patience, or no preemption")
            self._planned = PlannedEnds()
            indexed = not scheduler.preempts and options.arrivals is None and options.patience_s is None
            self._index: Waiting = ByWidth(jobs) if indexed else InOrder(self.waiting, view.states)
        self._restless_queue = policy.place is not None and policy.sticky and preempts
        self._restless = policy.decide is not None or (not policy.sticky and (policy.redraws or scheduler.preempts))

    # What happens

    def wait(self, state: State) -> None:
        """The job waits from now on."""
        self._enqueue(state, self._order(state, state.attained_s))
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
        if self._restless:
            return bool(self.waiting or self.running)
        return self._restless_queue and bool(self.waiting)

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
            self._leave_queue(state.number)
            state.patient = False
            self._enqueue(state, self._order(state, state.attained_s))

    # The ways of deciding

    def _in_order(self) -> None:
        """Start jobs in order until one must wait."""
        waiting, cluster = self.waiting, self._cluster
        while waiting:
            state = self._view.states[waiting[0][1]]
            if state.job.gpus > cluster.free_count:
                break
            gpus = self._place(state)
            if gpus is None:
                return  # The policy waits for GPUs that are not free, for an unknown time: no job overtakes.
            self._start(state, gpus)
        if self._planned is not None and waiting and cluster.free_count:
            self._backfill(self._planned)

    def _backfill(self, planned: PlannedEnds) -> None:
        now, cluster = self._view.now_s, self._cluster
        after = self.waiting[0]
        wanted = self._view.states[after[1]].job.gpus
        end, returned = planned.reservation(wanted - cluster.free_count)
        spare = cluster.free_count + returned - wanted
        time_s = max(end, now) - now
        while cluster.free_count:
            number = self._index.next(after, cluster.free_count, spare, time_s)
            if number is None:
                return
            state = self._view.states[number]
            after = (self._keys[number], number)
            gpus = self._place(state)
            if gpus is not None:
                if state.limit_s > time_s:
                    spare -= len(gpus)
                self._start(state, gpus)

    def _start(self, state: State, gpus: tuple[int, ...]) -> None:
        self._cluster.take(gpus)
        self._leave_queue(state.number)
        self._hold(state, Allocation(gpus))
        if self._planned is not None:
            self._index.start(state.number)
            state.planned_s = self._view.now_s + state.limit_s
            self._planned.add(state.planned_s, state.number, len(gpus))

    def _preempting(self) -> None:
        """Start jobs in order; for one that does not fit, stop running jobs from the end of the order, those behind it.

        They stay stopped if it still does not fit, which ends the decision; stopped jobs may find other GPUs in it.
        A job that was started in it is not stopped in it.
        """
        waiting, cluster, states = self.waiting, self._cluster, self._view.states
        if not waiting:
            return
        candidates = self._running_in_order()
        stopped: dict[int, State] = {}
        granted: dict[int, tuple[int, ...]] = {}
        while waiting:
            head = waiting[0]
            state = states[head[1]]
            gpus = self._place(state) if state.job.gpus <= cluster.free_count else None
            while gpus is None and candidates and candidates[-1] > head:
                key, number = candidates.pop()
                stopped[number] = states[number]
                cluster.give(states[number].gpus)
                self._enqueue(states[number], key)
                if state.job.gpus <= cluster.free_count:
                    gpus = self._place(state)
            if gpus is None:
                break
            cluster.take(gpus)
            self._leave_queue(state.number)
            granted[state.number] = gpus
        self._carry_out(stopped, granted)

    def _anew(self) -> None:
        """Take all GPUs back and place the first jobs of the queue that fit together, in the policy's order.

        Where the policy goes by the free GPUs and the job alone, jobs up to the first one that differs from the last
        decision's would get what they hold, so the rest only is placed.
        """
        cluster, view, states = self._cluster, self._view, self._view.states
        first: list[int] = []
        left = cluster.capacity
        for _, number in self._in_system():
            left -= states[number].job.gpus
            if left < 0:
                break
            first.append(number)
        order = list(first if self.policy.arrange is None else self.policy.arrange(view, first))
        same = 0
        if self._placed is not None and not self.policy.redraws:
            for last, number in zip(self._placed, order, strict=False):
                if last != number:
                    break
                same += 1
        keep = set(order[:same])
        back = {number: state for number, state in self.running.items() if number not in keep}
        for state in back.values():
            cluster.give(state.gpus)
        granted: dict[int, tuple[int, ...]] = {}
        self._placed = order[:same]
        for number in order[same:]:
            gpus = self._place(states[number])
            if gpus is None:
                break
            cluster.take(gpus)
            granted[number] = gpus
            self._placed.append(number)
            if number not in back:
                self._leave_queue(number)
        for number, state in back.items():
            if number not in granted:
                self._enqueue(state, self._order(state, state.attained_at(self._view.now_s)))
        self._carry_out(back, granted)

    def _all_at_once(self) -> None:
        """Ask the policy what every job holds."""
        view, states = self._view, self._view.states
        assert self.policy.decide is not None
        self.made += 1
        view.order = [number for _, number in self._in_system()]
        granted = self.policy.decide(view)
        self._check(granted)
        for number in [number for number in self.running if number not in granted]:
            state = self.running.pop(number)
            self._holdings.stop(state)
            self.wait(state)
        for number, allocation in granted.items():
            if number not in self.running:
                self._leave_queue(number)
            self._hold(states[number], allocation)

    # Parts of them

    def _place(self, state: State) -> tuple[int, ...] | None:
        assert self.policy.place is not None
        self.made += 1
        gpus = self.policy.place(self._view, state.job)
        if gpus is None:
            return None
        if len(gpus) != state.job.gpus:
            raise InputError(
                f"the policy {self.policy.name} gave job {state.job.name} {len(gpus)} GPUs; it wants {state.job.gpus}"
            )
        return tuple(gpus) if isinstance(gpus, range) else tuple(sorted(gpus))

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

    def _order(self, state: State, attained_s: float) -> Key:
        key = self._key(state.job, attained_s)
        return key if self._patience_s is None else (state.patient, key)

    def _enqueue(self, state: State, key: Key) -> None:
        number = state.number
        self._keys[number] = key
        insort(self.waiting, (key, number))
        if self._patience_s is not None and state.patient:
            round_s, now = self._round_s, self._view.now_s
            # A job waits from the edge at which it is admitted; the round in which it is stopped does not count.
            since = math.ceil(state.job.submit_s / round_s) * round_s if math.isnan(state.start_s) else now + round_s
            self._impatient_s[number] = since + self._patience_s
            heappush(self._impatient, (since + self._patience_s, number))

    def _leave_queue(self, number: int) -> None:
        self._impatient_s.pop(number, None)
        entry = (self._keys.pop(number), number)
        if self.waiting[0] == entry:
            del self.waiting[0]
        else:
            del self.waiting[bisect_left(self.waiting, entry)]

    def _running_in_order(self) -> list[tuple[Key, int]]:
        now = self._view.now_s
        return sorted((self._order(state, state.attained_at(now)), number) for number, state in self.running.items())

    def _in_system(self) -> Iterator[tuple[Key, int]]:
        return merge(self.waiting, self._running_in_order())

    def _check(self, granted: object) -> None:
        """Raise `InputError` where what a policy decided cannot be."""
        name, states = self.policy.name, self._view.states
        assert isinstance(granted, dict)
        holders: dict[int, tuple[int, bool]] = {}
        available = self._view.available()
        for number, allocation in granted.items():
            if number not in states:
                raise InputError(f"the policy {name} gives GPUs to job number {number}, which is not in the system")
            job, gpus = states[number].job, allocation.gpus
            if not gpus or list(gpus) != sorted(set(gpus)):
                raise InputError(f"the policy {name} gives job {job.name} no GPUs, or not in ascending order")
            if not allocation.rate > 0:
                raise InputError(f"the policy {name} gives job {job.name} the rate {allocation.rate:g}: it must be > 0")
            for gpu in gpus:
                if not (0 <= gpu < len(available) and available[gpu]):
                    raise InputError(f"the policy {name} gives job {job.name} the GPU {gpu}, which is not available")
                if gpu in holders and not (allocation.shared and holders[gpu][1]):
                    other = states[holders[gpu][0]].job.name
                    raise InputError(f"the policy {name} gives GPU {gpu} to jobs {other} and {job.name}")
                holders[gpu] = (number, allocation.shared)
