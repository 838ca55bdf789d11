"""What chains and exclusions cost in waiting, with intervals that are drawn from whole weeks of a log.

A `PolicyRow` has what a policy came to over many chains. Excluding a slow node makes jobs faster and the queue longer:
the gain is elsewhere (`analysis.placement`); here is the price, in hours of waiting of the jobs of a site's own log, by
the same replay with all nodes and with fewer.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ...errors import InputError
from .jobs_log import FloatArray, IntArray, JobsLog
from .queue import Queue

_WEEK_S = 7 * 86400.0
_REPLICATES = 1000

Interval95 = tuple[float, float] | None
"""Low and high end of a 95 % interval; None where all is of one week."""


@dataclass(frozen=True)
class PolicyRow:
    """What one policy came to: means over chains of two jobs, each with a 95 % interval."""

    policy: str
    nodes: int
    n: int  # chains
    interruption_h: float
    """Mean hours between the end of a job and the start of the next, where that starts later; else 0."""
    interruption_interval_h: Interval95
    overlap_h: float  # mean hours in which both jobs hold their nodes
    overlap_interval_h: Interval95
    none_pct: float  # chains without an interruption, with or without overlap, in percent
    none_interval_pct: Interval95
    coverage_pct: float | None
    """Of waits, how many were at most what was predicted, in percent; None where nothing is predicted."""

    def overlap_gpu_h(self, gpus_per_node: int) -> float:
        """Mean GPU-hours of a chain that overlap wastes."""
        return self.overlap_h * self.nodes * gpus_per_node

    def as_dict(self, gpus_per_node: int = 1) -> dict[str, Any]:
        """For JSON; an interval is two keys, null where there is none."""
        document: dict[str, Any] = {
            "policy": self.policy,
            "nodes": self.nodes,
            "interruption_h": self.interruption_h,
            "overlap_h": self.overlap_h,
            "none_pct": self.none_pct,
            "n": self.n,
            "coverage_pct": self.coverage_pct,
            "overlap_gpu_h": self.overlap_gpu_h(gpus_per_node),
        }
        intervals = {
            "interruption_{}_h": self.interruption_interval_h,
            "overlap_{}_h": self.overlap_interval_h,
            "none_{}_pct": self.none_interval_pct,
        }
        for key, interval in intervals.items():
            low, high = interval or (None, None)
            document |= {key.format("low"): low, key.format("high"): high}
        return document


def policy_row(
    policy: str, nodes: int, *, times_s: FloatArray, gaps_s: ArrayLike, coverage_pct: float | None = None
) -> PolicyRow:
    """A row from (chains,) `gaps_s`, seconds from the end of a job to the start of the next, negative for an overlap.

    `times_s` (chains,) says when each chain was, in seconds since 1970. Chains of one week depend on each other, so
    intervals are drawn from whole weeks (block bootstrap).
    """
    gaps_h = np.asarray(gaps_s, dtype=np.float64) / 3600
    blocks, drawn = drawn_weeks(times_s)
    weeks = drawn.shape[1]
    interruption, overlap, none = (
        means_by_week(column, blocks, drawn) for column in (np.maximum(gaps_h, 0), np.maximum(-gaps_h, 0), gaps_h <= 0)
    )
    return PolicyRow(
        policy=policy,
        nodes=nodes,
        n=len(gaps_h),
        interruption_h=float(interruption[0]),
        interruption_interval_h=interval_of(interruption, weeks),
        overlap_h=float(overlap[0]),
        overlap_interval_h=interval_of(overlap, weeks),
        none_pct=float(100 * none[0]),
        none_interval_pct=interval_of(100 * none, weeks, most=100),
        coverage_pct=coverage_pct,
    )


def drawn_weeks(times_s: FloatArray, seed: int = 0) -> tuple[NDArray[np.intp], IntArray]:
    """The week of each time, numbered from 0, and (1 + replicates, weeks) how often each week counts in a replicate.

    In the first row each week counts once; there are no others where all is of one week.
    """
    _, blocks = np.unique((times_s // _WEEK_S).astype(np.int64), return_inverse=True)
    weeks = int(blocks.max()) + 1
    random = np.random.default_rng(seed)
    drawn = random.multinomial(weeks, np.full(weeks, 1 / weeks), size=_REPLICATES if weeks > 1 else 0)
    return blocks, np.concatenate([np.ones((1, weeks), dtype=np.int64), drawn])


def means_by_week(values: NDArray[Any], blocks: NDArray[np.intp], drawn: IntArray) -> FloatArray:
    """(1 + replicates,) the mean of `values`, first as they are, then of the weeks that `drawn_weeks` drew."""
    return np.asarray((drawn @ np.bincount(blocks, values)) / (drawn @ np.bincount(blocks)))


def interval_of(replicated: FloatArray, weeks: int, *, most: float = math.inf, least: float = 0.0) -> Interval95:
    """The 95 % interval of a figure, of which (1 + replicates,) the first is the figure itself.

    Replicates of few weeks vary too little. So both ends are moved away from the figure, as far as Student's t with
    `weeks` - 1 degrees of freedom is wider than the normal law, times the root of weeks / (weeks - 1), within the least
    and the most that the figure can be.
    """
    if weeks < 2:
        return None
    wider = special.stdtrit(weeks - 1, 0.975) / special.ndtri(0.975) * math.sqrt(weeks / (weeks - 1))
    ends = replicated[0] + wider * (np.percentile(replicated[1:], [2.5, 97.5]) - replicated[0])
    low, high = np.clip(ends, least, most).tolist()
    return low, high


# -- the price of excluded nodes ---------------------------------------------------------------------------------------

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
