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

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate

import numpy as np

from ...errors import InputError
from .costs import PolicyRow, policy_row
from .jobs_log import FloatArray, IntArray, JobsLog
from .queue import Queue, Submission

POLICIES = {"reactive": "reactive_min", "average": "avg_min"}  # policy -> its column of a sample
Sample = dict[str, str | int]
"""A chain of two jobs in one window, with the names of the published table: when the window begins (UTC), the nodes of
a job and of the cluster (`N`), when the first job started (from there), the mean wait of the 100 jobs that started last
before the next one arrived (cut to a whole minute), the jobs that waited and the nodes that were free then, the wait of
the first job; and the time from the end of the first job to the start of the second, negative where that started
earlier, submitted at the end (`reactive_min`), or earlier by the mean wait (`avg_min`)."""
_MINUTE_S, _DAY_S = 60.0, 86400.0
_EVERY_S = 4 * 3600.0
_SPANS = ((datetime(2022, 11, 1, tzinfo=UTC), 684), (datetime(2023, 3, 1, tzinfo=UTC), 156))
"""The first sample of the study's training and of its validation, and how many follow, four hours apart."""
_WINDOW_S = 5 * _DAY_S
_FIRST_S = 2 * _DAY_S  # the first job of the chain is submitted
_CHAIN_S = 2 * _DAY_S  # run time and limit of both jobs of a chain
_SLOT_S, _SLOTS = 600.0, 288  # backfill plans two days ahead, and is done when a slot begins
_PLANNED_JOBS = 3000  # so many waiting jobs are planned at most


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
    log: JobsLog, starts_s: FloatArray, *, cluster_nodes: int, nodes: int, progress: Callable[[int], None] | None = None
) -> list[Sample]:
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


def _sample(log: JobsLog, start_s: float, cluster_nodes: int, nodes: int) -> Sample:
    window = _Window(log, start_s, cluster_nodes)
    first_start_s = window.run_until_started(window.submit_at(_FIRST_S, nodes))
    end_s = first_start_s + _CHAIN_S
    measured = window.copy()
    measured.advance(min(window.next_arrival_s, end_s) - _MINUTE_S)
    state = measured.state()
    mean_wait_min = int(state.recent_waits_s.mean() / _MINUTE_S)
    early_s = max(first_start_s + _MINUTE_S, end_s - _MINUTE_S * mean_wait_min)
    gaps_min = []
    for submitted_s in (end_s, early_s):
        follower = (measured if submitted_s > measured.now_s else window).copy()
        second_start_s = follower.run_until_started(follower.submit_at(submitted_s, nodes))
        gaps_min.append(round((second_start_s - end_s) / _MINUTE_S))
    return {
        "start": f"{datetime.fromtimestamp(start_s, UTC):%Y-%m-%dT%H:%M:%S}",
        "node": nodes,
        "N": cluster_nodes,
        "first_start_min": round(first_start_s / _MINUTE_S),
        "avg_wait_min": mean_wait_min,
        "queue": len(state.pending_nodes),
        "free": state.free_nodes,
        "wait_first_min": round((first_start_s - _FIRST_S) / _MINUTE_S),
        "reactive_min": gaps_min[0],
        "avg_min": gaps_min[1],
    }


def published_rows(starts_s: FloatArray, samples: Sequence[Sample], policies: Sequence[str]) -> list[PolicyRow]:
    """What each of these policies, of `POLICIES`, came to over the samples of windows that begin at `starts_s`."""
    gaps_min = {policy: [int(chain[POLICIES[policy]]) for chain in samples] for policy in policies}
    return [
        policy_row(policy, int(samples[0]["node"]), times_s=starts_s, gaps_s=_MINUTE_S * np.array(gaps))
        for policy, gaps in gaps_min.items()
    ]


class _Window(Queue):
    """The cluster in one window, which begins empty, in seconds from there. All happens at whole minutes.

    The order of jobs is that of their priority: 100 nodes / N at submission, growing by 7000 / 10080 a minute, for all
    jobs alike, so that it can be compared at minute 0. They start in this order until one does not fit; when a slot of
    ten minutes begins, all that wait are planned in slots instead.
    """

    def __init__(self, log: JobsLog, start_s: float, cluster_nodes: int) -> None:
        arriving = log.where((log.submit_s >= start_s) & (log.submit_s <= start_s + _WINDOW_S))
        super().__init__(
            replace(
                arriving,
                submit_s=(arriving.submit_s - start_s) // _MINUTE_S * _MINUTE_S,
                start_s=np.zeros(len(arriving)),
                end_s=np.maximum(np.ceil(arriving.run_times_s / _MINUTE_S), 1) * _MINUTE_S,
                limit_s=np.ceil(arriving.limit_s / _MINUTE_S) * _MINUTE_S,
            ),
            cluster_nodes,
        )
        self._due_s = -math.inf

    def submit_at(self, time_s: float, nodes: int) -> int:
        """Run on until a job of the chain arrives, at a minute that has yet to come; its number."""
        self.advance(time_s - _MINUTE_S)
        self._due_s = time_s
        number = self._submitted
        self._submitted += 1
        self._arrive(number, Submission(time_s, nodes, _CHAIN_S, _CHAIN_S))
        return number

    def _arrive(self, number: int, job: Submission) -> None:
        insort(self._pending, (number, job), key=self._order)

    def _order(self, numbered: tuple[int, Submission]) -> tuple[float, float, bool, int]:
        """The priority as a whole number (-36 N / 25 times it), so that equal ones are equal; then the time of
        submission. Of jobs of one minute those of the chain come first."""
        number, job = numbered
        submit_min = job.submit_s / _MINUTE_S
        return self.cluster_nodes * submit_min - 144 * job.nodes, submit_min, number < len(self._log), number

    def _next_event_s(self) -> float:
        """When a job ends or arrives, or backfill could start a job that waits; at other minutes nothing changes."""
        event_s = super()._next_event_s()
        if self._due_s > self.now_s:
            event_s = min(event_s, self._due_s)
        if any(job.nodes <= self.free_nodes for _, job in self._pending):
            event_s = min(event_s, (self.now_s // _SLOT_S + 1) * _SLOT_S)
        return event_s

    def _start_jobs(self) -> None:
        if self.now_s % _SLOT_S:
            self._start_in_order()
        else:
            self._backfill()

    def _backfill(self) -> None:
        """Plan the jobs that wait in their order, each at its first slot with enough nodes; start those of slot 0."""
        planned = self._pending[:_PLANNED_JOBS]
        fewest = list(accumulate((job.nodes for _, job in reversed(planned)), min))[::-1]  # of a job and those behind
        free = self._free_in_slots()
        started = set()
        for place, (number, job) in enumerate(planned):
            if fewest[place] > self.free_nodes:
                break
            slots = math.ceil(job.limit_s / _SLOT_S)
            slot = _first_slot(free, job.nodes, slots)
            free[slot : slot + slots] -= job.nodes
            if slot == 0:
                self._start(number, job)
                started.add(place)
        self._pending = [job for place, job in enumerate(self._pending) if place not in started]

    def _free_in_slots(self) -> IntArray:
        """(289,) nodes that are free in each slot if all jobs run until their limits; last -1, where no job fits."""
        until_s, nodes = np.array(list(self._running.values())).reshape(-1, 2).T
        slots = np.minimum(np.ceil((until_s - self.now_s) / _SLOT_S), _SLOTS).astype(np.int64)  # begun ones too
        filled = np.bincount(slots, nodes, minlength=_SLOTS + 1)[::-1].cumsum()[::-1]  # by jobs of at least so many
        return np.append(self.cluster_nodes - filled[1:].astype(np.int64), -1)


def _first_slot(free: IntArray, nodes: int, slots: int) -> int:
    """The first slot from which enough nodes are free for so many slots, or until the end of the plan; 288 if none."""
    lacking = (free < nodes).nonzero()[0]
    if lacking[0] >= min(slots, _SLOTS):
        return 0
    begins = lacking[:-1] + 1
    return int(begins[(lacking[1:] - begins >= np.minimum(slots, _SLOTS - begins)).argmax()])
