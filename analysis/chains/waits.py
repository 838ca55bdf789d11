"""How long a job would wait in a queue: what the queue looks like at one moment, and models that learn from that.

`QueueState` is a queue at one moment, of a replay or of a real site; `features` are the numbers that a model sees of
it. `WaitModel` predicts quantiles of the wait by gradient boosting, and corrects them on the last part of the history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from .jobs_log import FloatArray, IntArray, JobsLog

RECENT_WAITS = 100
"""Jobs started last whose waits a `QueueState` has."""
_HOUR_S = 3600.0
_ENDING_WITHIN_H = (2, 6, 12, 24)

FEATURES = (
    "nodes",
    "limit_h",
    "pending_jobs",
    "pending_nodes",
    "pending_node_h",
    "free_nodes",
    "running_jobs",
    "running_node_h",
    *(f"ending_nodes_{hours}h" for hours in _ENDING_WITHIN_H),
    "recent_wait_mean_h",
    "recent_wait_max_h",
    "first_pending_nodes",
    "first_pending_age_h",
    "first_fit_h",
    "hour",
    "weekday",
)
"""Names of the columns of `features`. Nodes are counts; hours and weekdays are of UTC, Monday is 0."""


@dataclass(frozen=True)
class QueueState:
    """A queue at one moment, simulated or real. Times are seconds since the epoch (UTC)."""

    now_s: float
    free_nodes: int
    cluster_nodes: int
    pending_nodes: IntArray
    """(pending,) in the queue's order, as the next two."""
    pending_limit_s: FloatArray
    pending_since_s: FloatArray
    """When they were submitted."""
    running_nodes: IntArray
    """(running,)"""
    running_until_s: FloatArray
    """(running,) start + limit."""
    recent_waits_s: FloatArray
    """(at most `RECENT_WAITS`,) of the jobs that started last."""


def features(state: QueueState, nodes: int, limit_s: float) -> FloatArray:
    """What a model sees of a job that is submitted at this moment, shape (features,), by the names in `FEATURES`."""
    left_h = np.maximum(state.running_until_s - state.now_s, 0.0) / _HOUR_S
    now = datetime.fromtimestamp(state.now_s, UTC)
    waits_h = state.recent_waits_s / _HOUR_S
    has_pending = len(state.pending_nodes) > 0
    return np.array(
        [
            nodes,
            limit_s / _HOUR_S,
            len(state.pending_nodes),
            state.pending_nodes.sum(),
            state.pending_nodes @ state.pending_limit_s / _HOUR_S,
            state.free_nodes,
            len(state.running_nodes),
            state.running_nodes @ left_h,
            *(state.running_nodes[left_h <= hours].sum() for hours in _ENDING_WITHIN_H),
            waits_h.mean() if len(waits_h) else 0.0,
            waits_h.max() if len(waits_h) else 0.0,
            state.pending_nodes[0] if has_pending else 0,
            (state.now_s - state.pending_since_s[0]) / _HOUR_S if has_pending else 0.0,
            first_fit_s(state, nodes, limit_s) / _HOUR_S,
            now.hour + now.minute / 60,
            now.weekday(),
        ],
        dtype=np.float64,
    )


def first_fit_s(state: QueueState, nodes: int, limit_s: float) -> float:
    """Seconds until a job would start if every job ran until its limit and no other job came: `sbatch --test-only`.

    The pending jobs are planned in the queue's order, each at the first moment from which enough nodes are free for as
    long as its limit; the job comes last. Infinite where the nodes are never free.
    """
    begins_s, free = _free_by_limits(state)
    earliest: dict[tuple[int, float], float] = {}  # of requests that were planned: an equal one cannot start sooner
    requests = zip(state.pending_nodes.tolist(), state.pending_limit_s.tolist(), strict=True)
    start_s = math.inf
    for request in (*requests, (nodes, limit_s)):
        place = _first_place(begins_s, free, *request, earliest.get(request, 0.0))
        if place is None:
            start_s = math.inf
            continue
        earliest[request] = start_s = begins_s[place]
        _reserve(begins_s, free, place, *request)
    return start_s


def free_at(running: Iterable[tuple[Sequence[str], float]]) -> dict[str, float]:
    """When each busy node is free at the latest, as an empty node: by the time limits of all jobs that run on it.

    `running` has the nodes of each job that runs, and when it reaches its limit in seconds since the epoch (UTC);
    infinite where it has none. The times are upper bounds: jobs may end before their limits. And a job that waits in
    the queue may get the node first, which no limit tells.
    """
    free_s: dict[str, float] = {}
    for nodes, until_s in running:
        for node in nodes:
            free_s[node] = max(free_s.get(node, until_s), until_s)
    return free_s


def _free_by_limits(state: QueueState) -> tuple[list[float], list[int]]:
    """The free nodes as steps: when each begins, in seconds from now, and how many nodes are free from then on."""
    begins_s, free = [0.0], [state.free_nodes]
    left_s = np.maximum(state.running_until_s - state.now_s, 1.0)  # what has passed its limit ends at any moment
    for place in np.argsort(left_s, kind="stable").tolist():
        returned = free[-1] + int(state.running_nodes[place])
        if left_s[place] == begins_s[-1]:
            free[-1] = returned
        else:
            begins_s.append(float(left_s[place]))
            free.append(returned)
    return begins_s, free


def _first_place(begins_s: list[float], free: list[int], nodes: int, limit_s: float, earliest_s: float) -> int | None:
    """The first step, not before `earliest_s`, from which so many nodes are free for so long."""
    place = None
    for step, begin_s in enumerate(begins_s):
        if place is not None and begin_s >= begins_s[place] + limit_s:
            return place
        if free[step] < nodes:
            place = None
        elif place is None and begin_s >= earliest_s:
            place = step
    return place


def _reserve(begins_s: list[float], free: list[int], place: int, nodes: int, limit_s: float) -> None:
    """Take these nodes for so long from the begin of a step on."""
    end_s = begins_s[place] + limit_s
    step = place
    while step < len(begins_s) and begins_s[step] < end_s:
        free[step] -= nodes
        step += 1
    if step == len(begins_s) or begins_s[step] > end_s:
        begins_s.insert(step, end_s)
        free.insert(step, free[step - 1] + nodes)


def states_of(log: JobsLog, cluster_nodes: int, times_s: Iterable[float]) -> Iterator[QueueState]:
    """The queue of a real history at these moments, as it was just before a job that is submitted then.

    Jobs that never started are not in a log, so that the queue looks shorter by them.
    """
    by_start = np.argsort(log.start_s, kind="stable")
    starts_s, waits_s = log.start_s[by_start], (log.start_s - log.submit_s)[by_start]
    for time_s in times_s:
        submitted = slice(0, int(np.searchsorted(log.submit_s, time_s, side="left")))
        start_s, limit_s, nodes = log.start_s[submitted], log.limit_s[submitted], log.nodes[submitted]
        pending = start_s > time_s
        running = ~pending & (log.end_s[submitted] > time_s)
        started = int(np.searchsorted(starts_s, time_s, side="left"))
        yield QueueState(
            now_s=float(time_s),
            free_nodes=max(0, cluster_nodes - int(nodes[running].sum())),
            cluster_nodes=cluster_nodes,
            pending_nodes=nodes[pending],
            pending_limit_s=limit_s[pending],
            pending_since_s=log.submit_s[submitted][pending],
            running_nodes=nodes[running],
            running_until_s=(start_s + limit_s)[running],
            recent_waits_s=waits_s[max(0, started - RECENT_WAITS) : started],
        )
