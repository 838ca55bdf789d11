"""What nodes that are excluded cost in waiting: a site's own log, replayed with all nodes and with fewer.

Excluding a slow node makes jobs faster and the queue longer. The gain is elsewhere (`analysis.placement`); here is the
price, in hours of waiting of the jobs of the log, by the same replay for both sizes of the cluster.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .jobs_log import FloatArray, IntArray, JobsLog
from .policy_rows import drawn_weeks, interval_of, means_by_week
from .queue import Queue

_BATCH = 50  # replicates at once: a batch of a million jobs takes 400 MB
P95 = 0.95


@dataclass(frozen=True)
class WaitHours:
    """A figure of waits in hours, with its 95 % interval; None where the log has less than two weeks."""

    hours: float
    low_h: float | None
    high_h: float | None


@dataclass(frozen=True)
class WaitsCompared:
    """One figure of the same jobs with all nodes, with fewer, and the difference, which is compared week by week."""

    all_nodes: WaitHours
    fewer_nodes: WaitHours
    added: WaitHours


@dataclass(frozen=True)
class ExclusionPrice:
    """What waiting costs where nodes are excluded from a cluster."""

    cluster_nodes: int
    excluded_nodes: int
    job_nodes: int | None  # only jobs of this number of nodes are counted; None: all. All are replayed.
    jobs: int  # jobs whose waits are counted
    too_wide_jobs: int
    """Jobs that ask for more nodes than would be left: they could never start, and are in neither replay."""
    weeks: int  # weeks in which jobs of these were submitted: what the intervals are drawn from
    mean_wait: WaitsCompared
    p95_wait: WaitsCompared

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def price_of_exclusion(
    log: JobsLog, *, cluster_nodes: int, excluded_nodes: int, job_nodes: int | None = None, seed: int = 0
) -> ExclusionPrice:
    """The waits of the log's jobs with `cluster_nodes` and with `excluded_nodes` fewer, replayed with EASY backfill.

    Intervals come from drawing whole weeks of the log again (block bootstrap), the same weeks for both sizes: jobs of
    a week wait together. They say how much the price varies from week to week of this log, not what another load does.

    Raises:
        InputError: no nodes would be left, or the log has no job of that size.
    """
    nodes_left = cluster_nodes - excluded_nodes
    if not 0 < excluded_nodes < cluster_nodes:
        raise InputError(f"{excluded_nodes} of {cluster_nodes} nodes cannot be excluded: one at least must remain")
    fits = log.nodes <= nodes_left
    counted = fits if job_nodes is None else fits & (log.nodes == job_nodes)
    if not counted.any():
        jobs = "job" if job_nodes is None else f"job of {job_nodes} nodes"
        raise InputError(
            f"{log.source} has no {jobs} that fits on {nodes_left} nodes: the price of excluding is not known"
        )
    replayed = log.where(fits)
    of_these = counted[fits]
    waits_h = [_waits_s(replayed, nodes)[of_these] / 3600 for nodes in (cluster_nodes, nodes_left)]
    blocks, drawn = drawn_weeks(replayed.submit_s[of_these], seed)
    weeks = drawn.shape[1]
    return ExclusionPrice(
        cluster_nodes=cluster_nodes,
        excluded_nodes=excluded_nodes,
        job_nodes=job_nodes,
        jobs=int(of_these.sum()),
        too_wide_jobs=int((~fits).sum()),
        weeks=weeks,
        mean_wait=_compared([means_by_week(waits, blocks, drawn) for waits in waits_h], weeks),
        p95_wait=_compared([_p95s(waits, blocks, drawn) for waits in waits_h], weeks),
    )


def _waits_s(log: JobsLog, cluster_nodes: int) -> FloatArray:
    """(jobs,) waits of the jobs of the log, in its order."""
    queue = Queue(log, cluster_nodes)
    queue.run_out()
    return np.array([queue.starts_s[row] for row in range(len(log))]) - log.submit_s


def _p95s(waits_h: FloatArray, blocks: NDArray[np.intp], drawn: IntArray) -> FloatArray:
    """(1 + replicates,) the least wait that at least 95 % of the jobs do not exceed."""
    order = np.argsort(waits_h)
    ascending = waits_h[order]
    quantiles = []
    for first in range(0, len(drawn), _BATCH):
        below = np.cumsum(drawn[first : first + _BATCH, blocks[order]], axis=1)
        reached = below >= P95 * below[:, -1:]
        quantiles.append(ascending[reached.argmax(axis=1)])
    return np.concatenate(quantiles)


def _compared(replicated: list[FloatArray], weeks: int) -> WaitsCompared:
    """Of the figures with all nodes and with fewer, each with its replicates."""
    all_nodes, fewer_nodes = replicated
    added = _hours(fewer_nodes - all_nodes, weeks, least_h=-math.inf)
    return WaitsCompared(_hours(all_nodes, weeks), _hours(fewer_nodes, weeks), added)


def _hours(replicated: FloatArray, weeks: int, least_h: float = 0.0) -> WaitHours:
    low_h, high_h = interval_of(replicated, weeks, least=least_h) or (None, None)
    return WaitHours(float(replicated[0]), low_h, high_h)
