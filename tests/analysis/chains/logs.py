"""Logs of jobs that the tests of chains share: drawn ones, and the real one beside the clone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.analysis.chains.jobs_log import JobsLog, read_log

LONESTAR = Path(__file__).parents[4] / "shared" / "data" / "schedulers" / "mirage" / "ls6_a100_2022-11_2023-02.csv.gz"
CLUSTER_NODES = 72

needs_lonestar = pytest.mark.skipif(not LONESTAR.is_file(), reason=f"the log of Lonestar6 is not at {LONESTAR}")


@cache
def lonestar() -> JobsLog:
    """The real log, November 2022 to February 2023."""
    return read_log(LONESTAR)


def drawn_log(
    seed: int, jobs: int, *, cluster_nodes: int = 16, load: float | NDArray[np.float64] = 0.9, used: float = 0.5
) -> JobsLog:
    """Jobs drawn from a seed, of 1 to 8 nodes and limits of 1 to 24 hours, and no waits.

    `load`: node-seconds that arrive over those that the cluster has, of each job or of all. `used`: the mean share of
    its limit that a job runs.
    """
    rng = np.random.default_rng(seed)
    nodes = rng.choice([1, 1, 1, 1, 2, 2, 4, 8], size=jobs)
    limit_s = 3600.0 * rng.choice([1, 2, 4, 8, 12, 24], size=jobs)
    run_s = np.ceil(limit_s * np.minimum(rng.exponential(used, size=jobs), 1.0))
    gap_s = rng.exponential(np.mean(nodes * run_s) / cluster_nodes, size=jobs) / load
    submit_s = 1_667_260_800.0 + np.floor(np.cumsum(gap_s))
    return JobsLog(submit_s, submit_s, submit_s + run_s, limit_s, nodes.astype(np.int64), f"drawn from seed {seed}")
