"""The GPUs that jobs hold, their speed on them, and when each job will end."""

from __future__ import annotations

import heapq
import math
from collections import Counter

import numpy as np

from .fleet import Fleet
from .options import Options
from .outcome import Series, Span
from .state import State
from .view import View, believed

EDGE = 1e-9
"""Of a round: a job whose work is done that little after an edge has ended at it."""


class Holdings:
    """The GPUs that each job holds. Jobs are stopped and started by decisions, at the view's time."""

    def __init__(self, fleet: Fleet, view: View, options: Options) -> None:
        self.busy = 0
        """GPUs that are held; one that several jobs share counts once."""
        self.spans: list[Span] = []
        self.edge = -1
        """The number of the round that is decided, or was last."""
        self._fleet, self._view, self._options = fleet, view, options
        self._node: list[int] = view.cluster.node
        self._finishes: list[tuple[float, int, int]] = []  # a heap; void where the allocation has changed since
        self._actual: dict[str, list[float]] = {}
        self._power: dict[str, list[float]] = {}
        self._series: list[tuple[float, int, int]] = []
        self._sharers: Counter[int] = Counter()
        """Of each GPU that is shared, the jobs on it."""
        self._twice, self._twice_s, self._twice_until_s = 0, 0.0, 0.0

    def next_finish_s(self) -> float:
        """When the next job ends, if nothing changes; infinite if none runs."""
        finishes, states = self._finishes, self._view.states
        while finishes:
            at, number, version = finishes[0]
            state = states.get(number)
            if state is not None and state.version == version:
                return at
            heapq.heappop(finishes)
        return math.inf

    def pop_finish(self) -> int:
        """The job that ends at `next_finish_s`."""
        return heapq.heappop(self._finishes)[1]

    def hold(self, state: State, gpus: tuple[int, ...], rate: float = 1.0, shared: bool = False) -> None:
        """A job now holds these GPUs, ascending, whatever it held before."""
        options, now = self._options, self._view.now_s
        cost = 0.0
        if state.gpus:
            state.settle(now)
            if gpus != state.gpus:
                state.migrations += 1
                cost = options.migration_s
            self.close_span(state)
            self._free(state)
        else:
            if math.isnan(state.start_s):
                state.start_s = now
            elif not state.lost_node:
                cost = options.preemption_s
            state.lost_node = False
            state.since_s = now
            state.works_from_s = now
        state.gpus, state.rate, state.shared = gpus, rate, shared
        self._take(state)
        state.began_s = now
        state.works_from_s = max(state.works_from_s, now + cost)  # what is still due of an earlier cost stays due
        if cost:
            state.keeps_until_s = state.works_from_s + cost
        scores = self._scores(state.job.workload)
        slowdown = max(map(scores.__getitem__, gpus))
        if self._node[gpus[0]] != self._node[gpus[-1]]:
            slowdown *= self._fleet.locality
        state.speed = rate / slowdown
        state.power_w = math.nan if shared else self._watts(state.job.workload, gpus)
        state.version += 1
        finish = state.works_from_s + state.left_s / state.speed
        if options.quantised:
            finish = max(math.ceil(finish / options.round_s - EDGE), self.edge + 1) * options.round_s
        heapq.heappush(self._finishes, (finish, state.number, state.version))

    def stop(self, state: State) -> None:
        """A job holds nothing any longer and waits: it was stopped for others, and its work is kept."""
        state.settle(self._view.now_s)
        state.preemptions += 1
        self.let_go(state)

    def lose(self, state: State) -> None:
        """A job has lost a node, and with it the work that is not kept."""
        state.settle(self._view.now_s)
        if self._options.on_failure == "restart":
            state.left_s, state.attained_s = state.job.ideal_s, 0.0
        state.restarts += 1
        state.lost_node = True
        self.let_go(state)

    def let_go(self, state: State) -> None:
        """A job holds nothing any longer; its sums are settled."""
        self.close_span(state)
        self._free(state)
        state.version += 1
        state.gpus = ()

    def twice_s(self) -> float:
        """GPU-seconds that stand in the sums of several jobs, beyond the first of them, until now."""
        self._twice_s += self._twice * (self._view.now_s - self._twice_until_s)
        self._twice_until_s = self._view.now_s
        return self._twice_s

    def _take(self, state: State) -> None:
        """The job's GPUs are busy."""
        self.busy += len(state.gpus)
        if state.shared:
            already = sum(self._sharers[gpu] > 0 for gpu in state.gpus)
            self._sharers.update(state.gpus)
            self._count_twice(already)

    def _free(self, state: State) -> None:
        """The job's GPUs are busy no longer, but for those that it shared."""
        self.busy -= len(state.gpus)
        if state.shared:
            self._sharers.subtract(state.gpus)
            self._count_twice(-sum(self._sharers[gpu] > 0 for gpu in state.gpus))

    def _count_twice(self, more: int) -> None:
        self.twice_s()
        self._twice += more
        self.busy -= more

    def _scores(self, workload: str) -> list[float]:
        found = self._actual.get(workload)
        if found is None:
            found = self._actual[workload] = believed(self._fleet.actual, workload, len(self._fleet)).tolist()
        return found

    def _watts(self, workload: str, gpus: tuple[int, ...]) -> float:
        if self._fleet.power_w is None or workload not in self._fleet.power_w:
            return math.nan
        if workload not in self._power:
            self._power[workload] = self._fleet.power_w[workload].tolist()
        return sum(map(self._power[workload].__getitem__, gpus))

    # What is recorded

    def close_span(self, state: State) -> None:
        """Keep what a job held until now."""
        now = self._view.now_s
        if self._options.record and now > state.began_s:
            self.spans.append(Span(state.number, state.gpus, state.began_s, now, state.rate))

    def note(self, waiting: int) -> None:
        """Keep the length of the queue and the busy GPUs as of now."""
        row = (self._view.now_s, waiting, self.busy)
        if self._series and self._series[-1][0] == row[0]:
            self._series[-1] = row
        else:
            self._series.append(row)

    def series(self) -> Series:
        """What was noted."""
        at, queue, busy = (np.array(column) for column in zip(*self._series, strict=True))
        return Series(at.astype(np.float64), queue.astype(np.int32), busy.astype(np.int32))
