"""What chains and exclusions cost in waiting, with intervals that are drawn from whole weeks of a log.

A `PolicyRow` has what a policy came to over many chains. Excluding a slow node makes jobs faster and the queue longer:
the gain is elsewhere (`analysis.placement`); here is the price, in hours of waiting of the jobs of a site's own log, by
the same replay with all nodes and with fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ...errors import InputError
from .jobs_log import FloatArray, IntArray, JobsLog
from .queue import Queue

WEEK_S, DAY_S = 7 * 86400.0, 86400.0
P95 = 0.95
_REPLICATES = 1000
_BATCH = 50  # replicates at once: a batch of a million jobs takes 400 MB


class WaitEstimate(NamedTuple):
    """A figure with the ends of its interval, None where one block of time (a week, a day) is all there is."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class DrawnBlocks:
    """Blocks of time, drawn with replacement: what happened in one week, or on one day, depends on each other."""

    number: NDArray[np.intp]  # (n,) the block of each value, from 0
    counts: IntArray
    """(1 + replicates, blocks) how often a block counts; once each in the first row, the only one of a single block."""

    @classmethod
    def of(cls, times_s: FloatArray, block_s: float = WEEK_S, seed: int = 0) -> DrawnBlocks:
        """The blocks of values at `times_s` (n,), seconds since 1970."""
        number = np.unique(times_s // block_s, return_inverse=True)[1]
        blocks = int(number.max()) + 1
        drawn = np.random.default_rng(seed).multinomial(
            blocks, np.full(blocks, 1 / blocks), size=_REPLICATES if blocks > 1 else 0
        )
        return cls(number, np.concatenate([np.ones((1, blocks), dtype=np.int64), drawn]))

    def means(self, values: NDArray[Any]) -> FloatArray:
        """(1 + replicates,) the mean of (n,) values: as they are, then of the drawn blocks."""
        return np.asarray((self.counts @ np.bincount(self.number, values)) / (self.counts @ np.bincount(self.number)))

    def p95s(self, values: FloatArray) -> FloatArray:
        """(1 + replicates,) the least value that at least 95 % do not exceed."""
        order = np.argsort(values)
        quantiles = []
        for first in range(0, len(self.counts), _BATCH):
            below = np.cumsum(self.counts[first : first + _BATCH, self.number[order]], axis=1)
            quantiles.append(values[order][(below >= P95 * below[:, -1:]).argmax(axis=1)])
        return np.concatenate(quantiles)

    def estimate(self, replicated: FloatArray, *, least: float = 0.0, most: float = math.inf) -> WaitEstimate:
        """A figure with its 95 % interval, from (1 + replicates,), of which the first is the figure itself.

        Replicates of few blocks vary too little. So both ends are moved away from the figure, as far as Student's t
        with one degree of freedom less than blocks is wider than the normal law, times the root of blocks / (blocks -
        1), within the least and the most that the figure can be.
        """
        blocks = self.counts.shape[1]
        if blocks < 2:
            return WaitEstimate(float(replicated[0]))
        wider = special.stdtrit(blocks - 1, 0.975) / special.ndtri(0.975) * math.sqrt(blocks / (blocks - 1))
        ends = replicated[0] + wider * (np.percentile(replicated[1:], [2.5, 97.5]) - replicated[0])
        return WaitEstimate(float(replicated[0]), *np.clip(ends, least, most).tolist())


@dataclass(frozen=True)
class PolicyRow:
    """What one policy came to: means over chains of two jobs, each with a 95 % interval."""

    policy: str
    nodes: int
    n: int  # chains
    interruption_h: WaitEstimate
    """Hours between the end of a job and the start of the next, where that starts later; else 0."""
    overlap_h: WaitEstimate  # hours in which both jobs hold their nodes
    none_pct: WaitEstimate  # chains without an interruption, with or without overlap, in percent
    coverage_pct: float | None
    """Of waits, how many were at most what was predicted, in percent; None where nothing is predicted."""

    def overlap_gpu_h(self, gpus_per_node: int) -> float:
        """Mean GPU-hours of a chain that overlap wastes."""
        return self.overlap_h.value * self.nodes * gpus_per_node

    def as_dict(self, gpus_per_node: int = 1) -> dict[str, Any]:
        """For JSON; an interval is two keys, null where there is none."""
        document = {"policy": self.policy, "nodes": self.nodes, "n": self.n, "coverage_pct": self.coverage_pct}
        document["overlap_gpu_h"] = self.overlap_gpu_h(gpus_per_node)
        for name, unit in (("interruption", "h"), ("overlap", "h"), ("none", "pct")):
            figure: WaitEstimate = getattr(self, f"{name}_{unit}")
            document |= {f"{name}_{unit}": figure.value}
            document |= {f"{name}_low_{unit}": figure.low, f"{name}_high_{unit}": figure.high}
        return document


def policy_row(
    policy: str, nodes: int, *, times_s: FloatArray, gaps_s: ArrayLike, coverage_pct: float | None = None
) -> PolicyRow:
    """A row from (chains,) `gaps_s`, seconds from the end of a job to the start of the next, negative for an overlap.

    `times_s` (chains,) says when each chain was, in seconds since 1970.
    """
    gaps_h = np.asarray(gaps_s, dtype=np.float64) / 3600
    weeks = DrawnBlocks.of(times_s)
    interruption_h, overlap_h = (weeks.estimate(weeks.means(np.maximum(part, 0))) for part in (gaps_h, -gaps_h))
    none_pct = weeks.estimate(100 * weeks.means(gaps_h <= 0), most=100)
    return PolicyRow(
        policy,
        nodes,
        len(gaps_h),
        interruption_h=interruption_h,
        overlap_h=overlap_h,
        none_pct=none_pct,
        coverage_pct=coverage_pct,
    )


# -- the price of excluded nodes ---------------------------------------------------------------------------------------


class WaitsCompared(NamedTuple):
    """One figure of the same jobs with all nodes, with fewer, and the difference, which is compared week by week."""

    all_nodes: WaitEstimate
    fewer_nodes: WaitEstimate
    added: WaitEstimate


@dataclass(frozen=True)
class ExclusionPrice:
    """What waiting costs where nodes are excluded from a cluster, in hours."""

    cluster_nodes: int
    excluded_nodes: int
    job_nodes: int | None  # only jobs of this number of nodes are counted; None: all. All are replayed.
    jobs: int  # jobs whose waits are counted
    too_wide_jobs: int
    """Jobs that ask for more nodes than would be left: they could never start, and are in neither replay."""
    weeks: int  # weeks in which jobs of these were submitted: what the intervals are drawn from
    mean_wait: WaitsCompared
    p95_wait: WaitsCompared


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
    replayed, of_these = log.where(fits), counted[fits]
    weeks = DrawnBlocks.of(replayed.submit_s[of_these], seed=seed)
    waits_h = [_waits_s(replayed, nodes)[of_these] / 3600 for nodes in (cluster_nodes, nodes_left)]

    def compared(all_nodes: FloatArray, fewer_nodes: FloatArray) -> WaitsCompared:
        added = weeks.estimate(fewer_nodes - all_nodes, least=-math.inf)
        return WaitsCompared(weeks.estimate(all_nodes), weeks.estimate(fewer_nodes), added)

    return ExclusionPrice(
        cluster_nodes,
        excluded_nodes,
        job_nodes,
        jobs=int(of_these.sum()),
        too_wide_jobs=int((~fits).sum()),
        weeks=weeks.counts.shape[1],
        mean_wait=compared(*map(weeks.means, waits_h)),
        p95_wait=compared(*map(weeks.p95s, waits_h)),
    )


def _waits_s(log: JobsLog, cluster_nodes: int) -> FloatArray:
    """(jobs,) waits of the jobs of the log, in its order."""
    queue = Queue(log, cluster_nodes)
    queue.run_out()
    return np.array([queue.starts_s[row] for row in range(len(log))]) - log.submit_s
