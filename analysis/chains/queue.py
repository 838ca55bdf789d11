"""A log of jobs replayed on a number of whole nodes: first come, first served, with EASY backfill by time limits.

A queue can be copied at any moment. Further jobs can be submitted to a copy, which then runs on with all that the log
brings later: so the wait of a job that nobody submitted is known. Nodes are alike here, so a count of free nodes is
enough; the starts equal those of `analysis.replay` with the policy packed and EASY backfill on nodes of one GPU, which
a test compares. A copy of that engine costs a thousand times as much, and a study makes thousands of copies.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple, Self

import numpy as np

from ...errors import InputError
from .jobs_log import JobsLog
from .waits import RECENT_WAITS, QueueState

SHORTEST_S = 1.0  # Seconds that a job runs at least. Logs have jobs that ended in the second of their start.


class Submission(NamedTuple):
    """A job that is submitted."""

    submit_s: float
    nodes: int
    limit_s: float
    run_s: float  # seconds from its start to its end: at most the limit


class Queue:
    """The jobs of a log on a number of nodes, up to `now_s`.

    Jobs start in the order of submission. Where the first that waits does not fit, a later one starts if by its limit
    it has ended when the first can start, or if it fits beside it then (EASY; Lifka, JSSPP 1995). A job runs for as
    long as it did in the log, at most until its limit. At one moment jobs end first, then jobs arrive, then jobs start.
    """

    def __init__(self, log: JobsLog, cluster_nodes: int) -> None:
        """Raises `InputError` where a job of the log asks for more nodes than there are."""
        if len(log.nodes) and int(log.nodes.max()) > cluster_nodes:
            row = int(log.nodes.argmax())
            raise InputError(
                f"{log.source}: a job asks for {int(log.nodes[row]):,} nodes, and the cluster has {cluster_nodes:,}; "
                "state more cluster-nodes"
            )
        self.cluster_nodes = self.free_nodes = cluster_nodes
        self.now_s = -math.inf
        columns = (log.submit_s, log.nodes, log.limit_s, np.maximum(log.run_times_s, SHORTEST_S))
        self._log = list(map(Submission, *(column.tolist() for column in columns)))
        self._arrived = 0
        self._submitted = len(self._log)
        self._pending: list[tuple[int, Submission]] = []
        self._ends: list[tuple[float, int]] = []  # a heap of (end, number)
        self._running: dict[int, tuple[float, int]] = {}  # by number: start + limit, nodes
        self._waits_s: list[float] = []
        self.starts_s: dict[int, float] = {}
        """By number, when jobs started since the queue was made or copied. Jobs of the log have their row's number."""

    def copy(self) -> Self:
        """The same queue, which goes its own way. Its `starts_s` begins empty."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._pending, copied._ends = self._pending.copy(), self._ends.copy()
        copied._running, copied._waits_s = self._running.copy(), self._waits_s.copy()
        copied.starts_s = {}
        return copied

    def submit(self, nodes: int, limit_s: float, run_s: float | None = None) -> int:
        """Submit a job at `now_s`, behind all that were submitted until then; its number.

        `run_s`: seconds that it will run; None: until its limit. Raises `InputError` where it can never start.
        """
        if not 1 <= nodes <= self.cluster_nodes:
            raise InputError(f"a job asks for {nodes:,} nodes, and the cluster has {self.cluster_nodes:,}")
        number = self._submitted
        self._submitted += 1
        self._pending.append((number, Submission(self.now_s, nodes, limit_s, limit_s if run_s is None else run_s)))
        self._start_jobs()
        return number

    def advance(self, time_s: float) -> None:
        """All that happens up to a moment, which included."""
        while self._next_event_s() <= time_s:
            self._step()
        self.now_s = max(self.now_s, time_s)

    def run_until_started(self, number: int) -> float:
        """Run on until a job of this queue has started; when it did."""
        while number not in self.starts_s:
            if math.isinf(self._next_event_s()):
                raise InputError(f"job {number} is not in the queue")
            self._step()
        return self.starts_s[number]

    def run_out(self) -> None:
        """Run on until the log has no more jobs and all have started."""
        while self._arrived < len(self._log) or self._pending:
            self._step()

    def state(self) -> QueueState:
        """What a user can see of the queue at `now_s`."""
        pending = [job for _, job in self._pending]
        running = list(self._running.values())
        return QueueState(
            now_s=self.now_s,
            free_nodes=self.free_nodes,
            cluster_nodes=self.cluster_nodes,
            pending_nodes=np.array([job.nodes for job in pending], dtype=np.int64),
            pending_limit_s=np.array([job.limit_s for job in pending], dtype=np.float64),
            pending_since_s=np.array([job.submit_s for job in pending], dtype=np.float64),
            running_nodes=np.array([nodes for _, nodes in running], dtype=np.int64),
            running_until_s=np.array([until_s for until_s, _ in running], dtype=np.float64),
            recent_waits_s=np.array(self._waits_s[-RECENT_WAITS:], dtype=np.float64),
        )

    @property
    def next_arrival_s(self) -> float:
        """When the next job of the log is submitted; infinite after the last."""
        return self._log[self._arrived].submit_s if self._arrived < len(self._log) else math.inf

    def _next_event_s(self) -> float:
        return min(self._ends[0][0] if self._ends else math.inf, self.next_arrival_s)

    def _step(self) -> None:
        """All that happens at the next moment at which something does."""
        self.now_s = now_s = self._next_event_s()
        while self._ends and self._ends[0][0] <= now_s:
            _, number = heapq.heappop(self._ends)
            self.free_nodes += self._running.pop(number)[1]
        while self.next_arrival_s <= now_s:
            self._arrive(self._arrived, self._log[self._arrived])
            self._arrived += 1
        self._start_jobs()

    def _arrive(self, number: int, job: Submission) -> None:
        self._pending.append((number, job))

    def _start_jobs(self) -> None:
        self._start_in_order()
        if self._pending and self.free_nodes:
            self._backfill()

    def _start_in_order(self) -> None:
        """Start the jobs that wait in their order until one does not fit."""
        pending = self._pending
        started = 0
        while started < len(pending) and pending[started][1].nodes <= self.free_nodes:
            self._start(*pending[started])
            started += 1
        del pending[:started]

    def _backfill(self) -> None:
        pending, first = self._pending, self._pending[0][1]
        until_s, spare_nodes = self._reservation(first.nodes)
        time_s = until_s - self.now_s
        left_in_queue = [pending[0]]
        for place, (number, job) in enumerate(pending[1:], start=1):
            if job.nodes > self.free_nodes or not (job.limit_s <= time_s or job.nodes <= spare_nodes):
                left_in_queue.append((number, job))
                continue
            self._start(number, job)
            if job.limit_s > time_s:
                spare_nodes -= job.nodes
            if not self.free_nodes:
                left_in_queue += pending[place + 1 :]
                break
        self._pending = left_in_queue

    def _reservation(self, nodes: int) -> tuple[float, int]:
        """When, by limits, so many nodes are free, and how many more than these are free then."""
        free, free_from_s = self.free_nodes, self.now_s
        for until_s, returned in sorted(self._running.values()):
            if free >= nodes and until_s > free_from_s:
                break
            free, free_from_s = free + returned, until_s
        return free_from_s, free - nodes

    def _start(self, number: int, job: Submission) -> None:
        now_s = self.now_s
        self.free_nodes -= job.nodes
        self._running[number] = now_s + job.limit_s, job.nodes
        heapq.heappush(self._ends, (now_s + min(job.run_s, job.limit_s), number))
        self.starts_s[number] = now_s
        self._waits_s.append(now_s - job.submit_s)
        if len(self._waits_s) >= 2 * RECENT_WAITS:
            del self._waits_s[:-RECENT_WAITS]
