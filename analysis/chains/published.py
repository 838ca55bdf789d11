"""The simulation of the Mirage study, sample by sample: what a chain of two jobs would have waited in windows of a log.

Each window of five days begins with an empty cluster. After two days a first job of 48 h is submitted; a second one
follows as a policy decides: when the first ends (`reactive`), or earlier by the mean wait of the last 100 jobs that
started (`average`). The sample is the time from the end of the first to the start of the second: an interruption, or
an overlap where it is negative.

Windows that begin empty make waits short; `study` replays a log without a break. This module exists so that figures
can be compared with the published ones (the artifact zhaozhang/Mirage, commit 6de19bc). Times are whole
minutes, counted from the begin of the window.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .costs import PolicyRow, policy_row
from .jobs_log import FloatArray, IntArray, JobsLog

POLICIES = ("reactive", "average")
_MINUTE_S, _DAY_S = 60.0, 86400.0
_EVERY_S = 4 * 3600.0
_SPANS = ((datetime(2022, 11, 1, tzinfo=UTC), 684), (datetime(2023, 3, 1, tzinfo=UTC), 156))
"""The first sample of the study's training and of its validation, and how many follow, four hours apart."""
_WINDOW_S = 5 * _DAY_S
_FIRST_MIN = 2 * 1440  # the first job of the chain is submitted
_CHAIN_MIN = 48 * 60  # run time and limit of both jobs of a chain
_SLOT_MIN, _SLOTS = 10, 288  # backfill plans two days ahead, and is done when a slot begins
_PLANNED_JOBS = 3000  # so many waiting jobs are planned at most
_RECENT_JOBS = 100


@dataclass(frozen=True)
class PublishedSample:
    """A chain of two jobs in one window. Times in minutes; the names of `as_row` are those of the published table."""

    start_s: float  # when the window begins, seconds since 1970 (UTC)
    nodes: int
    cluster_nodes: int
    first_start_min: int  # when the first job started, from the begin of the window
    mean_wait_min: int
    """Mean wait of the 100 jobs that started last, cut to a whole minute, before the next job arrived."""
    pending_jobs: int  # jobs that waited then
    free_nodes: int  # nodes that were free then
    reactive_min: int  # from the end of the first job to the start of the second; negative: the second started earlier
    average_min: int  # the same for a second job that was submitted earlier by `mean_wait_min`

    def as_row(self) -> dict[str, str | int]:
        """The columns of the published table."""
        return {
            "start": f"{datetime.fromtimestamp(self.start_s, UTC):%Y-%m-%dT%H:%M:%S}",
            "node": self.nodes,
            "N": self.cluster_nodes,
            "first_start_min": self.first_start_min,
            "avg_wait_min": self.mean_wait_min,
            "queue": self.pending_jobs,
            "free": self.free_nodes,
            "wait_first_min": self.first_start_min - _FIRST_MIN,
            "reactive_min": self.reactive_min,
            "avg_min": self.average_min,
        }

    def minutes(self, policy: str) -> int:
        """The sample of a policy of `POLICIES`."""
        return {"reactive": self.reactive_min, "average": self.average_min}[policy]


def published_starts(log: JobsLog, *, since_s: float = 0.0) -> FloatArray:
    """(samples,) begins of those windows of the study that the log has from the first to the last day, in s since 1970.

    Only windows that begin at `since_s` or later. Raises InputError where the log has none of them.
    """
    starts = np.concatenate([first.timestamp() + _EVERY_S * np.arange(count) for first, count in _SPANS])
    begin_s = log.start_s.min() // _DAY_S * _DAY_S  # jobs that were submitted earlier had waited for long
    end_s = -(-log.submit_s.max() // _DAY_S) * _DAY_S
    starts_in_log: FloatArray = starts[(starts >= max(begin_s, since_s)) & (starts + _WINDOW_S <= end_s)]
    if not len(starts_in_log):
        raise InputError(
            f"{log.source} has no whole window of the study's samples, which begin on 2022-11-01 and 2023-03-01: leave "
            "out --as-published for a log of another time, or choose an earlier --test-from"
        )
    return starts_in_log


def published_samples(
    log: JobsLog,
    starts_s: FloatArray,
    *,
    cluster_nodes: int,
    nodes: int,
    progress: Callable[[int], None] | None = None,
) -> list[PublishedSample]:
    """One sample for each window that begins at `starts_s`, for a chain of jobs of `nodes` nodes.

    `progress` is called with the number of samples that are done. Raises InputError where a job asks for more nodes
    than the cluster has, and so would block the others for ever.
    """
    widest = max(nodes, int(log.nodes.max()))
    if widest > cluster_nodes:
        raise InputError(
            f"{log.source}: a job asks for {widest} nodes, and the cluster has {cluster_nodes}; give more with "
            "--cluster-nodes"
        )
    samples = []
    for done, start_s in enumerate(starts_s.tolist(), start=1):
        samples.append(_sample(log, start_s, cluster_nodes, nodes))
        if progress is not None:
            progress(done)
    return samples


def _sample(log: JobsLog, start_s: float, cluster_nodes: int, nodes: int) -> PublishedSample:
    window = _Window(_arrivals(log, start_s, cluster_nodes), cluster_nodes)
    first = window.submit(_FIRST_MIN, nodes)
    first_start = window.run_until_started(first)
    end = first_start + _CHAIN_MIN
    measured = window.copy()
    measured.run_until(min(window.next_arrival_min - 1, end - 1))
    mean_wait = int(np.mean(measured.recent_waits_min))
    pending_jobs, free_nodes = len(measured.pending), measured.free_nodes
    early = max(first_start + 1, end - mean_wait)
    second_starts = {}
    for submitted in (early, end):
        follower = (measured if submitted > measured.now_min else window).copy()
        second = follower.submit(submitted, nodes)
        second_starts[submitted] = follower.run_until_started(second)
    return PublishedSample(
        start_s=start_s,
        nodes=nodes,
        cluster_nodes=cluster_nodes,
        first_start_min=first_start,
        mean_wait_min=mean_wait,
        pending_jobs=pending_jobs,
        free_nodes=free_nodes,
        reactive_min=second_starts[end] - end,
        average_min=second_starts[early] - end,
    )


def published_policies(policies: Sequence[str]) -> list[str]:
    """Those of some policies that the study publishes. Raises InputError where it publishes none of them."""
    published = [policy for policy in policies if policy in POLICIES]
    if not published:
        raise InputError(
            f"--policy {','.join(policies)}: the published samples are of {' and '.join(POLICIES)} only; leave out "
            "--as-published for other policies"
        )
    return published


def published_rows(samples: Sequence[PublishedSample], policies: Sequence[str]) -> list[PolicyRow]:
    """What each of these policies, of `POLICIES`, came to over the samples."""
    times_s = np.array([chain.start_s for chain in samples])
    return [
        policy_row(
            policy, samples[0].nodes, times_s=times_s, gaps_s=[_MINUTE_S * chain.minutes(policy) for chain in samples]
        )
        for policy in policies
    ]


class _WindowJob(NamedTuple):
    """A job in a window. Tuples of jobs that wait sort in the order in which the scheduler takes them."""

    rank: int
    submit_min: int
    of_log: bool  # of jobs of one rank and minute, those of the chain come first
    number: int
    nodes: int
    limit_min: int
    run_min: int

    @classmethod
    def of(cls, request: tuple[int, int, int, int], number: int, cluster_nodes: int, *, of_log: bool) -> _WindowJob:
        """A job of a request: minute of submission, nodes, limit and run time in minutes.

        The priority is 100 nodes / N at submission and grows by 7000 / 10080 a minute, for all jobs alike, so that it
        can be compared at minute 0. As whole numbers (-36 N / 25 times that), so that equal ones are equal.
        """
        submit_min, nodes, limit_min, run_min = request
        rank = cluster_nodes * submit_min - 144 * nodes
        return cls(rank, submit_min, of_log, number, nodes, limit_min, run_min)


def _arrivals(log: JobsLog, start_s: float, cluster_nodes: int) -> list[_WindowJob]:
    """The jobs that arrive in a window, in the order of submission."""
    window = slice(*np.searchsorted(log.submit_s, [start_s, np.nextafter(start_s + _WINDOW_S, np.inf)]))
    submit_min = (log.submit_s[window] - start_s) // _MINUTE_S
    limit_min = np.ceil(log.limit_s[window] / _MINUTE_S)
    run_min = np.maximum(np.ceil(log.run_times_s[window] / _MINUTE_S), 1)
    columns: tuple[NDArray[np.generic], ...] = (submit_min, log.nodes[window], limit_min, run_min)
    requests = zip(*(column.astype(np.int64).tolist() for column in columns), strict=True)
    return [_WindowJob.of(request, number, cluster_nodes, of_log=True) for number, request in enumerate(requests)]


class _Window:
    """The cluster in one window, up to `now_min`. At one minute jobs end, then jobs arrive, then jobs start."""

    def __init__(self, arrivals: list[_WindowJob], cluster_nodes: int) -> None:
        self.cluster_nodes = self.free_nodes = cluster_nodes
        self.now_min = -1
        self.pending: list[_WindowJob] = []
        self.recent_waits_min: deque[int] = deque(maxlen=_RECENT_JOBS)
        self._arrivals = arrivals
        self._arrived = 0
        self._running: list[tuple[int, int, int]] = []  # a heap: end, start + limit, nodes
        self._chain_starts: dict[int, int] = {}
        self._chain_jobs = 0

    def copy(self) -> _Window:
        """The same cluster, which goes its own way."""
        copied = object.__new__(_Window)
        copied.__dict__.update(self.__dict__)
        copied.pending, copied._running = self.pending.copy(), self._running.copy()
        copied.recent_waits_min = self.recent_waits_min.copy()
        copied._chain_starts = self._chain_starts.copy()
        return copied

    @property
    def next_arrival_min(self) -> float:
        """When the next job is submitted; infinite after the last."""
        return self._arrivals[self._arrived].submit_min if self._arrived < len(self._arrivals) else math.inf

    def submit(self, minute: int, nodes: int) -> int:
        """Let a job of the chain arrive at a minute that has yet to come; its number."""
        number = self._chain_jobs
        self._chain_jobs += 1
        job = _WindowJob.of((minute, nodes, _CHAIN_MIN, _CHAIN_MIN), number, self.cluster_nodes, of_log=False)
        place = bisect_left(self._arrivals, minute, lo=self._arrived, key=lambda arrival: arrival.submit_min)
        self._arrivals = [*self._arrivals[:place], job, *self._arrivals[place:]]
        return number

    def run_until(self, minute: float) -> None:
        """All that happens up to a minute, which included."""
        while (event_min := self._next_event_min()) <= minute:
            self._step(int(event_min))

    def run_until_started(self, number: int) -> int:
        """Run on until a job of the chain has started; when it did."""
        while number not in self._chain_starts:
            self._step(int(self._next_event_min()))
        return self._chain_starts[number]

    def _next_event_min(self) -> float:
        """When a job ends or arrives, or backfill could start a job that waits; at other minutes nothing changes."""
        event_min = min(self._running[0][0] if self._running else math.inf, self.next_arrival_min)
        if any(job.nodes <= self.free_nodes for job in self.pending):
            event_min = min(event_min, (self.now_min // _SLOT_MIN + 1) * _SLOT_MIN)
        return event_min

    def _step(self, minute: int) -> None:
        self.now_min = minute
        while self._running and self._running[0][0] <= minute:
            self.free_nodes += heapq.heappop(self._running)[2]
        while self.next_arrival_min <= minute:
            insort(self.pending, self._arrivals[self._arrived])
            self._arrived += 1
        if minute % _SLOT_MIN == 0:
            self._backfill()
        else:
            started = 0
            while started < len(self.pending) and self.pending[started].nodes <= self.free_nodes:
                self._start(self.pending[started])
                started += 1
            del self.pending[:started]

    def _backfill(self) -> None:
        """Plan the jobs that wait in their order, each at its first slot with enough nodes; start those of slot 0."""
        planned = self.pending[:_PLANNED_JOBS]
        fewest = list(accumulate((job.nodes for job in reversed(planned)), min))[::-1]  # of a job and those behind
        free = self._free_by_limits()
        started = set()
        for place, job in enumerate(planned):
            if fewest[place] > self.free_nodes:
                break
            slots = -(-job.limit_min // _SLOT_MIN)
            slot = _first_slot(free, job.nodes, slots)
            free[slot : slot + slots] -= job.nodes
            if slot == 0:
                self._start(job)
                started.add(place)
        self.pending = [job for place, job in enumerate(self.pending) if place not in started]

    def _free_by_limits(self) -> IntArray:
        """(289,) nodes that are free in each slot if all jobs run until their limits; last -1, where no job fits."""
        _, until_min, nodes = np.array(self._running, dtype=np.int64).reshape(-1, 3).T
        slots = np.minimum(-((self.now_min - until_min) // _SLOT_MIN), _SLOTS)  # that the job fills, begun ones too
        filled = np.bincount(slots, nodes, minlength=_SLOTS + 1)[::-1].cumsum()[::-1]  # by jobs of at least so many
        return np.append(self.cluster_nodes - filled[1:].astype(np.int64), -1)

    def _start(self, job: _WindowJob) -> None:
        now_min = self.now_min
        self.free_nodes -= job.nodes
        heapq.heappush(self._running, (now_min + job.run_min, now_min + job.limit_min, job.nodes))
        self.recent_waits_min.append(now_min - job.submit_min)
        if not job.of_log:
            self._chain_starts[job.number] = now_min


def _first_slot(free: IntArray, nodes: int, slots: int) -> int:
    """The first slot from which enough nodes are free for so many slots, or until the end of the plan; 288 if none."""
    lacking = (free < nodes).nonzero()[0]
    if lacking[0] >= min(slots, _SLOTS):
        return 0
    begins = lacking[:-1] + 1
    return int(begins[(lacking[1:] - begins >= np.minimum(slots, _SLOTS - begins)).argmax()])
