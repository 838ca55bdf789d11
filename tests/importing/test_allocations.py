"""A file of allocations, of any scheduler: rows of the table `jobs`."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from whorl.errors import InputError
from whorl.store import Store
from whorl.store.importing import Options, Report, import_file
from whorl.store.schema import arrow_rows
from whorl.tests.jobs.accounts import now

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-aaaaaaaa-0000-0000-0000-000000000002"
HEADER = "job_id,user,account,node,gpu,began,ended,share"
ROWS = (
    f"7,alice,physics,n01,{A},2026-11-01 10:00:00,2026-11-01 12:00:00,1",
    f"7,alice,physics,n01,{B.upper()},2026-11-01 10:00:00,2026-11-01 12:00:00,1",
    f"8.pbs[3],bob,,n02,{A[:-1]}3,1793530000,,0.25",
    "9,bob,chem,n03,,2026-11-01 10:00:00,2026-11-01 11:00:00,",
)

# ruff: noqa: DTZ001 - the store's times are UTC without a zone


@pytest.fixture
def run(store: Store, tmp_path: Path) -> Any:
    def run(*lines: str, header: str = HEADER, name: str = "jobs.csv", **options: Any) -> Report:
        (tmp_path / name).write_text("\n".join([header, *lines, ""]))
        return import_file(store, tmp_path / name, Options(**options))

    return run


def test_each_row_is_an_allocation(run: Any, store: Store) -> None:
    report = run(*ROWS, cluster="c")
    assert (report.format, report.total.kept, report.gpus) == ("allocations", 4, 3)
    columns = 'cluster, job_id, "user", account, node, gpu, gpu_from, share, node_gpus, ended, source'
    ten, twelve = dt.datetime(2026, 11, 1, 11), dt.datetime(2026, 11, 1, 12)
    assert now(store, columns) == [
        ("c", "7", "alice", "physics", "n01", A, "file", 1.0, 1, twelve, "csv"),
        ("c", "7", "alice", "physics", "n01", B, "file", 1.0, 1, twelve, "csv"),
        ("c", "8.pbs[3]", "bob", None, "n02", f"{A[:-1]}3", "file", 0.25, 1, None, "csv"),
        ("c", "9", "bob", "chem", "n03", None, None, None, None, ten, "csv"),
    ]


def test_an_unknown_end_is_of_a_running_job_and_a_list_of_nodes_is_refused(run: Any, store: Store) -> None:
    times = "2026-11-01 10:00:00,Unknown,"
    nodes = ("n[01-04]", "n01 n02", "n01/0*8+n02/0*8", "n01/0*8", "(n01:ncpus=8:ngpus=4)")
    report = run(f"7,alice,,n01,{A},{times}", *(f"8,bob,,{node},,{times}" for node in nodes), cluster="c")
    assert report.refusals == {
        "it names several nodes: write a row for each": [3, 4, 5],
        "its node is no name of a host: write n01, not n01/0*8 as PBS does": [6, 7],
    }
    assert now(store, "job_id, ended") == [("7", None)]


def test_rows_that_cannot_be_are_refused_with_their_line(run: Any, store: Store) -> None:
    report = run(
        *ROWS,
        f"11,bob,,n01,{A},2026-11-01 10:00:00,2026-11-01 09:00:00,1",
        f",bob,,n01,{A},2026-11-01 10:00:00,2026-11-01 11:00:00,1",
        f"12,bob,,n01,{A},,2026-11-01 11:00:00,1",
        "13,bob,,,,2026-11-01 10:00:00,2026-11-01 11:00:00,1",
        f"14,bob,,n01,{A},2026-11-01 10:00:00,2026-11-01 11:00:00,1.5",
        f"15,bob,,n01,{A},2026-11-01 10:00:00,nonsense,1",
    )
    lines = {line: why for why, gpus_of_jobs in report.refusals.items() for line in gpus_of_jobs}
    assert lines == {
        6: "it ended before it began: a clock was set back, or the columns were exchanged",
        7: "it names no job",
        8: "began is missing",
        9: "it names neither a GPU nor a node",
        10: "share is outside 1e-06 to 1",
        11: "ended is not a readable time stamp",
    }
    assert now(store, "count(*)") == [(4,)]
    expected_events = (
        "select ts, job_id, gpu, node, duration_ns, detail from events where kind = 'job_refused' order by detail"
    )
    events = store.sql(expected_events).to_pylist()
    assert [(e["job_id"], e["gpu"], e["node"]) for e in events] == [
        ("11", A, "n01"), ("12", A, "n01"), ("13", None, None), ("14", A, "n01"), ("15", A, "n01"), (None, A, "n01"),
    ]  # fmt: skip
    assert (events[0]["ts"], events[0]["duration_ns"]) == (dt.datetime(2026, 11, 1, 10), -3600 * 10**9)
    assert events[0]["detail"] == f"job 11 is not stored: {lines[6]} (jobs.csv, line 6)"
    hour = 3600 * 10**9
    assert [e["duration_ns"] for e in events[1:]] == [None, hour, hour, None, hour]
    run(*ROWS, f"11,bob,,n01,{A},2026-11-01 10:00:00,2026-11-01 09:00:00,1", name="again.csv")
    assert store.sql("select count(*) as n from events").to_pylist() == [{"n": 6}]  # it was told before


def test_a_row_may_name_several_gpus(run: Any, store: Store) -> None:
    report = run(
        f'7,n01,"{A},{B.upper()}",1793530000,1793540000',
        f"8,n01,{A};{A},1793540000,1793550000",
        f"9,n01,{A[:-1]}3 | {A[:-1]}4,1793530000,1793540000",
        f"10,n01,{A} {B},1793550000,1793560000",
        f"11,n01,{A} GPU-1,1793560000,1793570000",
        header="job_id,node,gpus,start,end",
    )
    assert (report.total.rows, report.total.kept, report.gpus) == (5, 4, 4)
    assert report.refusals == {"gpus is not a UUID": [6]}  # a row is stored with all its GPUs, or not
    gpus_of_jobs = sorted(now(store, "job_id, gpu"))
    assert gpus_of_jobs == sorted(
        [("7", A), ("7", B), ("8", A), ("9", f"{A[:-1]}3"), ("9", f"{A[:-1]}4"), ("10", A), ("10", B)]
    )
    again = run(
        f'7,n01,"{A},{B}",1793530000,1793540000', "12,n01,,1793530000,1793540000", header="job_id,node,gpus,start,end"
    )
    assert (again.total.kept, again.total.duplicates) == (1, 1)


def test_numbers_of_gpus_are_looked_up_on_their_node(run: Any, store: Store) -> None:
    identities = {
        "cluster": ["fleet"] * 3,
        "gpu": [A, B, "GPU-c"],
        "uuid": [A, B, "GPU-c"],
        "node": ["n01", "n01", "n02"],
    }
    store.append({"gpus": arrow_rows("gpus", identities | {"slot": [0, 1, 0]})}, "gpus")
    times = "1793530000,1793540000"
    report = run(
        f'1,n01,"0,1",{times}',
        f"2,n02,0,{times}",
        f"3,n01,0-1,{times}",
        f"4,n01,gpu:v100:2(IDX:0-1),{times}",
        f"5,n03,2,{times}",
        f"6,,1,{times}",
        f"7,n01,1-0,{times}",
        f"8,n01,0-999,{times}",
        header="job_id,node,gpu_index,began,ended",
    )
    assert report.refusals == {
        "its GPU is a number, so its node is needed too (--map COLUMN=node)": [7],
        "gpu_index is no list of GPUs": [8, 9],
    }
    assert sorted(now(store, "job_id, gpu")) == [
        ("1", A), ("1", B), ("2", "GPU-c"), ("3", A), ("3", B), ("4", None), ("4", None), ("5", "n03/2"),
    ]  # fmt: skip
    assert sum("2 GPUs of jobs are known by Slurm's index (IDX) only" in note for note in report.notes) == 1
    said_so = {"gpu_index": "index"}
    row = f"9,n01,gpu:v100:2(IDX:0-1),{times}"
    run(row, header="job_id,node,gpu_index,began,ended", columns=said_so, name="so.csv")
    assert now(store, "gpu", "job_id = '9'") == [(A,), (B,)]
    with pytest.raises(InputError, match="so its node is needed too"):
        run(f"1,0,{times}", header="job_id,gpu,began,ended", name="bare.csv")


@pytest.mark.long
def test_gpus_that_become_known_later_are_found_and_a_longer_file_adds_only_what_is_new(run: Any, store: Store) -> None:
    header, times = "job_id,node,gpu,began,ended", "1793530000,1793540000"
    rows = [f'1,n01,"0,1",{times}', f"2,,n01/1,{times}"]
    run(*rows, header=header)
    assert sorted(now(store, "job_id, gpu")) == [("1", "n01/0"), ("1", "n01/1"), ("2", "n01/1")]
    identities = {"cluster": ["fleet"] * 2, "gpu": [A, B], "uuid": [A, B], "node": ["n01"] * 2, "slot": [0, 1]}
    store.append({"gpus": arrow_rows("gpus", identities)}, "gpus")
    gpus_of_jobs = [("1", A), ("1", B), ("2", B)]
    assert sorted(now(store, "job_id, gpu")) == gpus_of_jobs
    assert store.sql("select distinct name from jobs_on_gpu order by 1").to_pylist() == [
        {"name": "n01/0"},
        {"name": "n01/1"},
    ]
    run(*rows, f"3,n01,0,{times}", header=header, name="longer.csv")
    assert sorted(now(store, "job_id, gpu")) == [*gpus_of_jobs, ("3", A)]


@pytest.mark.long
def test_a_job_may_end_in_the_hour_that_occurs_twice(run: Any, store: Store) -> None:
    header = "job_id,gpu,began,ended"
    rows = (
        f"1,{A},2026-10-25 02:50:00,2026-10-25 02:10:00",  # the clock went back in between
        f"2,{A},2026-10-25 02:10:00,2026-10-25 02:50:00",
        f"3,{A},2026-10-25 02:50:00,2026-10-25T02:10:00+02:00",  # it says its zone: it did end before
        f"4,{A},2026-10-24 02:50:00,2026-10-24 02:10:00",
    )
    report = run(*rows, header=header, time_zone="Europe/Berlin")
    assert sorted(line for lines in report.refusals.values() for line in lines) == [4, 5]
    minutes = "date_diff('minute', began, ended)"
    assert sorted(now(store, f"job_id, began, {minutes}")) == [
        ("1", dt.datetime(2026, 10, 25, 0, 50), 20),
        ("2", dt.datetime(2026, 10, 25, 0, 10), 40),
    ]


def test_a_column_that_may_count_gpus_is_not_taken_for_their_numbers(run: Any, store: Store) -> None:
    rows = ["1,n01,4,1793527200,1793530800", "2,n01,1,1793530800,1793540000"]
    header = "job_id,node,gpus,start,end"
    with pytest.raises(InputError, match="column 'gpus' may say which GPU of the node a job had, or how many"):
        run(*rows, header=header)
    assert now(store, "job_id") == []
    assert run(*rows, header=header, columns={"gpus": "gpu"}).gpus == 2
    listed = [row.replace(",4,", ",0-3,") for row in rows]
    assert run(*listed, header=header, name="lists.csv").gpus == 4
    several = [f"{job},n02,{2 ** (job % 3)},1793527200,1793530800" for job in range(10)]
    with pytest.raises(InputError, match="column 'gpu' may say which GPU of the node a job had, or how many"):
        run(*several, header="job_id,node,gpu,start,end", name="counts.csv")
    zero = "99,n02,0,1793527200,1793530800"
    assert run(*several, zero, header="job_id,node,gpu,start,end", name="numbers.csv").gpus == 4
