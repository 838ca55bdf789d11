"""What nodes that are excluded cost in waiting."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.chains.costs import WaitHours, price_of_exclusion
from whorl.analysis.chains.jobs_log import JobsLog
from whorl.errors import InputError
from whorl.tests.analysis.chains.logs import lonestar, needs_lonestar

WEEK_H = 7 * 24


def log_of(jobs: list[tuple[float, float, float, int]]) -> JobsLog:
    """Jobs that began at once: when each was submitted, run time and limit, in hours, and nodes."""
    submit_h, run_h, limit_h, nodes = (np.array(column) for column in zip(*sorted(jobs), strict=True))
    return JobsLog(3600 * submit_h, 3600 * submit_h, 3600 * (submit_h + run_h), 3600 * limit_h, nodes, "a log")


def test_pairs_of_jobs_each_week_wait_for_each_other_on_one_node() -> None:
    jobs = [(week * WEEK_H, 1.0, 2.0, 1) for week in range(4) for _ in range(2)]  # submit, run, limit, nodes
    price = price_of_exclusion(log_of([*jobs, (1.0, 1.0, 1.0, 2)]), cluster_nodes=2, excluded_nodes=1)
    assert (price.jobs, price.too_wide_jobs, price.weeks) == (8, 1, 4)
    assert price.mean_wait.all_nodes == WaitHours(0.0, 0.0, 0.0)
    assert price.mean_wait.added == WaitHours(0.5, 0.5, 0.5)
    assert price.p95_wait.fewer_nodes == WaitHours(1.0, 1.0, 1.0)
    assert price.as_dict()["p95_wait"]["added"] == {"hours": 1.0, "low_h": 1.0, "high_h": 1.0}


def test_within_one_week_there_is_no_interval() -> None:
    price = price_of_exclusion(log_of([(0.0, 1.0, 1.0, 1)] * 2), cluster_nodes=2, excluded_nodes=1, job_nodes=1)
    assert price.mean_wait.added == WaitHours(0.5, None, None)


@pytest.mark.parametrize(("excluded", "job_nodes", "message"), [(2, None, "one at least"), (1, 3, "no job of 3 nodes")])
def test_what_cannot_be_asked(excluded: int, job_nodes: int | None, message: str) -> None:
    log = log_of([(0.0, 1.0, 1.0, 1)])
    with pytest.raises(InputError, match=message):
        price_of_exclusion(log, cluster_nodes=2, excluded_nodes=excluded, job_nodes=job_nodes)


@pytest.mark.long
@needs_lonestar
def test_four_of_76_nodes_fewer_double_the_p95_wait_of_lonestar6() -> None:
    price = price_of_exclusion(lonestar(), cluster_nodes=76, excluded_nodes=4)
    assert price.jobs == 17_975
    assert price.p95_wait.fewer_nodes.hours > 2 * price.p95_wait.all_nodes.hours
    added = price.p95_wait.added
    assert added.low_h is not None
    assert added.high_h is not None
    assert 0 < added.low_h < added.hours < added.high_h
