"""Logs of jobs, the queue of whole nodes against the replay, and what fewer nodes cost in waiting."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.chains.costs import WaitEstimate, price_of_exclusion
from whorl.analysis.chains.jobs_log import NEVER_BEGAN, STEP, TWICE, UNLIMITED_S, JobsLog, log_of_rows, read_log
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


# -- logs: sacct of several versions, and the log of the Mirage study --------------------------------------------------


SACCT = "JobIDRaw|State|Submit|Start|End|TimelimitRaw|NNodes\n"
T0 = 1_667_260_800  # 2022-11-01 00:00 UTC


def written(tmp_path: Path, text: str, *, time_zone: str = "UTC") -> JobsLog:
    path = tmp_path / "sacct.txt"
    path.write_text(text)
    return read_log(path, time_zone=time_zone)


def test_columns_of_the_mirage_study(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    rows = "7,u1,2022-11-01T00:00:10,2022-11-01T01:00:10,2022-11-01T02:00:10,90,2\n"
    rows += "6,u1,2022-11-01T00:00:00,2022-11-01T00:00:00,2022-11-01T03:00:00,60,3\n"
    path.write_bytes(gzip.compress(("job,user,submit,start,end,limit_min,nodes\n" + rows).encode()))
    log = read_log(path)
    assert log.submit_s.tolist() == [T0, T0 + 10]
    assert log.waits_s.tolist() == [0, 3600]
    assert log.run_times_s.tolist() == [3600, 3600]  # the first ran three hours on a limit of one
    assert log.nodes.tolist() == [3, 2]
    assert log.most_nodes_at_once == 5
    assert len(log.until(T0 + 10)) == len(log.since(T0 + 10)) == 1


def test_sacct_with_steps_jobs_that_wait_run_or_were_cancelled(tmp_path: Path) -> None:
    text = SACCT + (
        f"1|COMPLETED|{T0}|{T0 + 60}|{T0 + 120}|30|2K\n"
        f"1.batch|COMPLETED|{T0}|{T0 + 60}|{T0 + 120}||1\n"
        f"2|RUNNING|{T0 + 1}|{T0 + 60}|Unknown|UNLIMITED|1\n"
        f"3|PENDING|{T0 + 2}|Unknown|Unknown|30|1\n"
        f"4|CANCELLED by 1000|{T0 + 3}|{T0 + 99}|{T0 + 99}|30|1\n"
        f"5|RUNNING|{T0 + 4}|{T0 + 60}|Unknown|10|1\n"
        f"5|TIMEOUT|{T0 + 4}|{T0 + 60}|{T0 + 660}|10|1\n"
    )
    log = written(tmp_path, text)
    assert log.nodes.tolist() == [2048, 1, 1]
    assert np.isinf(log.end_s).tolist() == [False, True, False]
    assert log.limit_s.tolist() == [1800, UNLIMITED_S, 600]
    assert log.run_times_s.tolist() == [60, UNLIMITED_S, 600]
    assert log.passed == {STEP: 1, NEVER_BEGAN: 2, TWICE: 1}
    assert not log.refused


def test_an_array_and_limits_as_clocks(tmp_path: Path) -> None:
    text = "JobID|Submit|Start|End|Timelimit|AllocTRES|\n"
    for job, limit in [("9_1", "2-00:00:00"), ("9_2", "01:30:00"), ("9_[3-5]", "01:30:00")]:
        start = "Unknown" if "[" in job else "2022-11-01T00:00:00"
        text += f"{job}|2022-11-01T00:00:00|{start}|{start}|{limit}|billing=4,node=4|\n"
    log = written(tmp_path, text)
    assert log.limit_s.tolist() == [172_800, 5400]
    assert log.nodes.tolist() == [4, 4]
    assert log.passed == {NEVER_BEGAN: 1}


def test_bad_rows_are_refused_with_their_lines_and_the_others_used(tmp_path: Path) -> None:
    text = SACCT + (
        f"1|COMPLETED|{T0}|{T0}|{T0 + 9}|30|1\n"
        "2|COMPLETED|Di 01 Nov 2022 00:00:00|Di 01 Nov 2022 00:00:00|Di 01 Nov 2022 00:00:09|30|1\n"
        f"3|COMPLETED|{T0}|{T0}|{T0 - 9}|30|1\n"
        f"4|COMPLETED|{T0}|{T0}|{T0 + 9}|Partition_Limit|1\n"
        f"5|COMPLETED|{T0}|{T0}|{T0 + 9}|30|some\n"
        f"6|COMPLETED|{T0}|{T0}|{T0 + 9}|30\n"
        f"7|COMPLETED|{T0}|{T0 - 1}|{T0 + 9}|30|1\n"
    )
    log = written(tmp_path, text)
    assert len(log) == 1
    assert sorted(line for lines in log.refused.values() for line in lines) == [3, 4, 5, 6, 7, 8]
    assert log.refused["Submit is no time"] == [3]


def test_aligned_columns_are_read_and_what_sacct_cut_is_told(tmp_path: Path) -> None:
    text = (
        "JobID             State              Submit               Start                 End  Timelimit   NNodes \n"
        "------------ ---------- ------------------- ------------------- ------------------- ---------- -------- \n"
        "7             COMPLETED 2022-11-01T00:00:00 2022-11-01T00:00:05 2022-11-01T00:01:00   00:30:00        2 \n"
        "7.batch       COMPLETED 2022-11-01T00:00:00 2022-11-01T00:00:05 2022-11-01T00:01:00                   2 \n"
        "12345678.ba+  COMPLETED 2022-11-01T00:00:00 2022-11-01T00:00:05 2022-11-01T00:00:59   00:30:00        2 \n"
        "8            CANCELLED+ 2022-11-01T00:00:00 2022-11-01T00:00:09 2022-11-01T00:00:09   00:30:00        1 \n"
        "47110815_10+     FAILED 2022-11-01T00:00:00 2022-11-01T00:00:09 2022-11-01T00:00:19 2-00:00:00        1 \n"
        "47110815_10+     FAILED 2022-11-01T00:00:00 2022-11-01T00:00:09 2022-11-01T00:00:19 2-00:00:00        1 \n"
    )
    log = written(tmp_path, text)
    assert (log.nodes.tolist(), log.limit_s.tolist()) == ([2, 1, 1], [1800, 172_800, 172_800])
    assert log.passed == {STEP: 2, NEVER_BEGAN: 1}
    assert not log.notes
    (note,) = written(tmp_path, text.replace("2022-11-01T00:01:00   00", "2022-11-01T00:01:0+   00")).notes
    assert note.startswith("sacct without -P cut values (1 of End); save it with: ")


def test_a_number_of_nodes_that_was_cut_is_not_known(tmp_path: Path) -> None:
    text = "JobID|Submit|Start|End|Timelimit|AllocTRES\n"
    text += "".join(
        f"{job}|{T0}|{T0}|{T0 + 9}|00:30:00|cpu=4,node={n}\n" for job, n in [(1, "16"), (2, "1+"), (3, "2,mem+")]
    )
    log = written(tmp_path, text)
    assert log.nodes.tolist() == [16, 2]
    assert log.refused == {"its number of nodes is not a number of at least 1": [3]}


def test_jobs_of_pbs_are_no_steps_and_two_partitions_are_told(tmp_path: Path) -> None:
    text = "job,partition,submit,start,end,limit_min,nodes\n"
    text += "".join(f"{job}.pbs01,{'ab'[job > 2]},{T0},{T0},{T0 + 9},30,1\n" for job in range(1, 6))
    log = written(tmp_path, text)
    assert len(log) == 5
    assert "2 partitions (b has 3 of 5) and count as one queue" in log.notes[0]


def test_a_job_that_waited_for_another_job_queued_from_when_it_could_run(tmp_path: Path) -> None:
    text = "JobIDRaw|Submit|Eligible|Start|End|TimelimitRaw|NNodes\n"
    text += f"1|{T0}|{T0 + 60}|{T0 + 90}|{T0 + 99}|30|1\n2|{T0}|Unknown|{T0 + 90}|{T0 + 99}|30|1\n"
    text += f"3|{T0}|{T0 + 90}|{T0 + 90}|{T0 + 99}|30|1\n"
    assert written(tmp_path, text).waits_s.tolist() == [90, 30, 0]


def test_the_night_in_which_clocks_go_back(tmp_path: Path) -> None:
    """In Berlin 02:30 occurred twice on 2022-10-30: the elapsed seconds say which one it was."""
    text = "JobIDRaw|Submit|Start|End|ElapsedRaw|TimelimitRaw|NNodes\n"
    text += "1|2022-10-30T01:30:00|2022-10-30T01:30:00|2022-10-30T02:30:00|7200|240|1\n"
    text += "2|2022-10-30T01:30:00|2022-10-30T01:30:00|2022-10-30T02:30:00|3600|240|1\n"
    log = written(tmp_path, text, time_zone="Europe/Berlin")
    assert log.start_s[0] == datetime(2022, 10, 29, 23, 30, tzinfo=UTC).timestamp()
    assert log.run_times_s.tolist() == [7200, 3600]
    assert len(log.notes) == 1


def test_rows_that_were_asked_live() -> None:
    row = {"JobIDRaw": "1", "Submit": str(T0), "Start": str(T0 + 5), "End": "Unknown", "TimelimitRaw": "5"}
    log = log_of_rows([row | {"NNodes": "3"}], "sacct")
    assert (log.source, log.waits_s.tolist(), log.nodes.tolist()) == ("sacct", [5], [3])
    with pytest.raises(InputError, match="sacct lists no jobs"):
        log_of_rows([], "sacct")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (SACCT, "has no job to learn from: it has no rows"),
        (SACCT.replace("TimelimitRaw|", "") + "1|COMPLETED|1|2|3|1\n", "has no column TimelimitRaw"),
        ("1|COMPLETED|1667260800|1667260800|1667260800|30|1\n", "its first line names no columns"),
        (SACCT + "1|PENDING|1667260800|Unknown|Unknown|30|1\n", "1 are jobs that never began"),
        (SACCT + "1|RUNNING|gestern|heute|Unknown|30|1\n", "the first in line 2: Submit is no time"),
        (SACCT.replace("State", "Start") + "1|2|2|3|4|5|6\n", "has the column Start twice"),
        (SACCT.replace("State", "JOBIDRAW") + "1|2|2|3|4|5\n", "has a column twice, under two names"),
    ],
)
def test_a_log_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        written(tmp_path, text)
