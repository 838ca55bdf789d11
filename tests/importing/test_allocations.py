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


def test_a_longer_file_adds_what_is_new_and_ends_what_ran(run: Any, store: Store) -> None:
    run(*ROWS)
    assert run(*ROWS).already
    ended = ROWS[2].replace(",,0.25", ",1793540000,0.25")
    more = f"10,alice,,n01,{A},2026-11-02 10:00:00,2026-11-02 12:00:00,1"
    report = run(*ROWS[:2], ended, ROWS[3], more)
    assert (report.total.kept, report.total.duplicates) == (2, 3)
    assert now(store, "count(*), count(ended)") == [(5, 5)]
    stale = run(*ROWS, header=f"{HEADER} ")  # an old copy of the file, exported once more
    assert stale.total.kept == 0
    assert now(store, "count(*), count(ended)") == [(5, 5)]


def test_rows_that_cannot_be_are_refused_with_their_line(run: Any, store: Store) -> None:
    report = run(
        *ROWS,
        f"11,bob,,n01,{A},2026-11-01 10:00:00,2026-11-01 09:00:00,1",
        f",bob,,n01,{A},2026-11-01 10:00:00,2026-11-01 11:00:00,1",
        f"12,bob,,n01,{A},,2026-11-01 11:00:00,1",
        "13,bob,,,,2026-11-01 10:00:00,2026-11-01 11:00:00,1",
        f"14,bob,,n01,{A},2026-11-01 10:00:00,2026-11-01 11:00:00,1.5",
    )
    lines = {line: why for why, found in report.refusals.items() for line in found}
    assert lines == {
        6: "it ended before it began: a clock was set back, or the columns were exchanged",
        7: "it names no job",
        8: "began is missing",
        9: "it names neither a GPU nor a node",
        10: "share is outside 1e-06 to 1",
    }
    assert now(store, "count(*)") == [(4,)]


def test_columns_of_other_names_are_mapped_and_names_of_gpus_found(run: Any, store: Store) -> None:
    known = {"cluster": ["fleet"], "gpu": [A], "uuid": [A], "node": ["n01"], "slot": [0]}
    store.append({"gpus": arrow_rows("gpus", known)}, "gpus")
    columns = {"id": "job", "where": "gpu", "from": "began", "to": "ended"}
    row = "7,n01/0,2026-11-01 10:00:00,2026-11-01 12:00:00"
    run(row, header="id,where,from,to", columns=columns, time_zone="Europe/Berlin")
    assert now(store, "job_id, gpu, began") == [("7", A, dt.datetime(2026, 11, 1, 9))]
    with pytest.raises(InputError, match="is of jobs and no column is began: name it with --map COLUMN=began"):
        run(row, header="job,gpu,from,to", columns={"to": "ended"}, name="other.csv")


def test_places_are_gpus_and_rows_without_one_stand_beside_them(run: Any, store: Store) -> None:
    rows = [f"{n},n01,{gpu},1793530000,1793540000" for n, gpu in enumerate(("c002-001-0", "c002-1-1", ""))]
    run(*rows, header="job_id,node,gpu,start,end")
    assert now(store, "job_id, gpu") == [("0", "c002-1-0"), ("1", "c002-1-1"), ("2", None)]


def test_a_file_of_runs_with_times_of_jobs_stays_one_of_runs(run: Any, store: Store) -> None:
    report = run(
        f"7,{A},1793530000,1793540000,12", header="job_id,gpu,start,end,took", columns={"took": "time:ms", "gpu": "gpu"}
    )
    assert report.kind == "runs"
    assert now(store) == []
