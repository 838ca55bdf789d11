"""The queue of whole nodes: its starts are those of the replay, a copy goes its own way; the price of fewer nodes."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.chains.costs import WaitEstimate, price_of_exclusion
from whorl.analysis.chains.jobs_log import JobsLog
from whorl.analysis.chains.queue import SHORTEST_S, Queue
from whorl.analysis.replay import Job, Options, Trace, World, replay
from whorl.errors import InputError
from whorl.tests.analysis.chains.logs import CLUSTER_NODES, drawn_log, lonestar, needs_lonestar
from whorl.tests.sizes import is_long, sample

DAY_S = 86400.0


def starts_of_replay(log: JobsLog, cluster_nodes: int) -> list[float]:
    """When `whorl replay --world backfill=easy` starts the jobs, on nodes of one GPU."""
    first_s, run_s = log.submit_s[0], np.maximum(log.run_times_s, SHORTEST_S)
    columns = (log.submit_s - first_s, log.nodes, run_s, log.limit_s)
    rows = enumerate(zip(*(column.tolist() for column in columns), strict=True))
    jobs = tuple(Job(str(row), submit, nodes, run, limit_s=limit) for row, (submit, nodes, run, limit) in rows)
    outcome = replay(Trace("log", jobs), World.regular(cluster_nodes, 1), options=Options(backfill="easy"))
    return [float(first_s + start) for start in outcome.start_s]


def starts_of_queue(log: JobsLog, cluster_nodes: int) -> list[float]:
    queue = Queue(log, cluster_nodes)
    queue.run_out()
    return [queue.starts_s[row] for row in range(len(log))]


@pytest.mark.parametrize("seed", sample(range(100), short=5))
def test_starts_are_those_of_the_replay(seed: int) -> None:
    log = drawn_log(seed, 250, load=1.1)
    assert starts_of_queue(log, 16) == starts_of_replay(log, 16)


@needs_lonestar
def test_starts_are_those_of_the_replay_on_a_real_log() -> None:
    log = lonestar()
    if not is_long():
        log = log.since(log.submit_s[-1] - 20 * DAY_S)
    starts = starts_of_queue(log, CLUSTER_NODES)
    assert starts == starts_of_replay(log, CLUSTER_NODES)
    assert np.max(np.array(starts) - log.submit_s) > 20 * 3600


def test_what_a_submitted_job_does_to_the_queue() -> None:
    """Four nodes: two run for an hour of two, and a job of three nodes waits."""
    log = JobsLog(
        submit_s=np.array([0.0, 10.0]),
        start_s=np.array([0.0, 10.0]),
        end_s=np.array([3600.0, 3610.0]),
        limit_s=np.array([7200.0, 3600.0]),
        nodes=np.array([2, 3]),
        source="two jobs",
    )
    queue = Queue(log, 4)
    queue.advance(10.0)
    assert (queue.free_nodes, queue.state().pending_since_s.tolist()) == (2, [10.0])
    short, beside, late = queue.submit(1, 7190.0), queue.submit(1, 9000.0, run_s=5000.0), queue.submit(1, 9000.0)
    assert queue.starts_s == {0: 0.0, short: 10.0, beside: 10.0}, "one ends before the first can start, one fits beside"
    assert queue.run_until_started(1) == 5010.0, "three nodes are free when the job that fits beside it has ended"
    assert queue.run_until_started(late) > 5010.0
    assert queue.state().recent_waits_s.tolist()[:4] == [0, 0, 0, 5000.0]
    with pytest.raises(InputError, match="a job asks for 5 nodes, and the cluster has 4"):
        queue.submit(5, 60.0)
    with pytest.raises(InputError, match="two jobs: a job asks for 3 nodes, and the cluster has 2"):
        Queue(log, 2)


# -- exclusion ---------------------------------------------------------------------------------------------------------
# What nodes that are excluded cost in waiting.


WEEK_H = 7 * 24


def log_of(jobs: list[tuple[float, float, float, int]]) -> JobsLog:
    """Jobs that began at once: when each was submitted, run time and limit, in hours, and nodes."""
    submit_h, run_h, limit_h, nodes = (np.array(column) for column in zip(*sorted(jobs), strict=True))
    return JobsLog(3600 * submit_h, 3600 * submit_h, 3600 * (submit_h + run_h), 3600 * limit_h, nodes, "a log")


def test_pairs_of_jobs_each_week_wait_for_each_other_on_one_node() -> None:
    jobs = [(week * WEEK_H, 1.0, 2.0, 1) for week in range(4) for _ in range(2)]  # submit, run, limit, nodes
    price = price_of_exclusion(log_of([*jobs, (1.0, 1.0, 1.0, 2)]), cluster_nodes=2, excluded_nodes=1)
    assert (price.jobs, price.too_wide_jobs, price.weeks) == (8, 1, 4)
    assert price.mean_wait.all_nodes == WaitEstimate(0.0, 0.0, 0.0)
    assert price.mean_wait.added == WaitEstimate(0.5, 0.5, 0.5)
    assert price.p95_wait.fewer_nodes == WaitEstimate(1.0, 1.0, 1.0)
    assert price.p95_wait.added == WaitEstimate(1.0, 1.0, 1.0)


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
    assert price.p95_wait.fewer_nodes.value > 2 * price.p95_wait.all_nodes.value
    added = price.p95_wait.added
    assert added.low is not None
    assert added.high is not None
    assert 0 < added.low < added.value < added.high
