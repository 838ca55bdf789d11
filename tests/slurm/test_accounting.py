"""Real accounts of a real Slurm: arrays, requeues, shared nodes, a drained node, hostile names; and their tags."""

from __future__ import annotations

import datetime as dt
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from whorl.errors import SchedulerError
from whorl.jobs.accounting.importing import ImportReport, JobSources, import_jobs
from whorl.store import Store
from whorl.store.importing import Options, import_file
from whorl.store.importing.tags import SPOOL
from whorl.store.schema import arrow_rows
from whorl.tests.jobs.accounts import now
from whorl.tests.slurm.accounted import Accounted, uuid
from whorl.tests.slurm.daemons import GPUS
from whorl.tests.stores import new_store

pytestmark = pytest.mark.slurm


@pytest.fixture
def here(accounted_slurm: Accounted, monkeypatch: pytest.MonkeyPatch) -> Accounted:
    """The cluster, for whorl in this process."""
    for name, value in accounted_slurm.environment().items():
        monkeypatch.setenv(name, value)
    return accounted_slurm


def import_all(store: Store, **options: Any) -> ImportReport:
    return import_jobs(
        store, JobSources(since=dt.datetime.now(dt.UTC).replace(tzinfo=None) - dt.timedelta(hours=1), **options)
    )


def know_nodes(store: Store, cluster: Accounted, *nodes: str) -> None:
    rows: dict[str, Any] = {
        "gpu": [uuid(node, device) for node in nodes for device in range(GPUS)],
        "node": [node for node in nodes for _ in range(GPUS)],
        "slot": [GPUS - 1 - device for _ in nodes for device in range(GPUS)],
    }
    number = len(rows["gpu"])
    rows |= {"cluster": ["whorl"] * number, "first_seen": [dt.datetime(2026, 1, 1)] * number}  # noqa: DTZ001
    store.append({"gpus": arrow_rows("gpus", rows)}, "gpus")


@pytest.mark.long
def test_what_really_ran_is_what_is_stored(here: Accounted, store: Store, tmp_path: Path) -> None:
    know_nodes(store, here, "n01", "n02")
    short, go = "--wrap=true", here.folder / "out" / "go"
    held = f"--wrap=until [ -e {go} ]; do sleep 0.1; done"
    whole_node = here.submit("--gres=gpu:4", "-w", "n01", short)
    two = here.submit("-N2", "--exclusive", "-w", "n01,n02", short, user="bob")
    shared = [here.submit("--gres=gpu:1", "-w", "n03", held, user=user) for user in ("alice", "bob")]
    evil = here.submit("--gres=gpu:1", "-w", "n03", "--job-name", f"a|b\n99|99|whorl|root|n01\n{'|' * 30}", short)
    array = here.submit("--gres=gpu:2", "-w", "n04", "-a", "1-2", short)
    drained = here.submit("--gres=gpu:4", "-w", "n05", held)
    lost = here.submit("--gres=gpu:2", "-w", "n06", "--no-requeue")
    requeued = here.submit("--gres=gpu:1", "-w", "n04", "--requeue", user="bob")
    without = here.submit("-w", "n04", short)
    never = here.submit("--gres=gpu:4", "--begin=now+1hour")
    for job in (drained, lost, requeued, *shared):
        here.nodes_of(job)
    here.run("scontrol", "update", "nodename=n05", "state=drain", "reason=test")
    here.run("scontrol", "update", "nodename=n06", "state=down", "reason=test")
    here.until(lambda: {drained, requeued, *shared} <= here.accounted("-s", "R"), "the accounts to have the jobs")
    import_all(store)
    assert {drained, *shared} <= {job for (job,) in now(store, "raw_id", "state = 'RUNNING' and ended is null")}

    go.touch()
    here.run("scontrol", "requeue", requeued)
    here.until(lambda: "BeginTime" in here.field(requeued, "Reason"), "the requeued job to wait")
    # Not in the same second: slurmd would take the second run for the first, which it has just been told to forget.
    here.run("scontrol", "update", f"jobid={requeued}", "StartTime=now+2")
    here.until(lambda: requeued in here.accounted("-s", "R"), "the accounts to have the second run")
    here.run("scancel", requeued, never)
    ended = ("-j", requeued, "-D", "-s", "CA", "-S", "now-1hour", "-E", "now")
    here.until(lambda: bool(here.accounted(*ended)), "the accounts to have both")
    here.settle()
    import_all(store)
    rows_of_job: dict[str, list[tuple[Any, ...]]] = {}
    for job, *columns in now(store, "job_id, state, node, gpu, node_gpus, job_gpus"):
        rows_of_job.setdefault(job, []).append(tuple(columns))
    assert rows_of_job.keys() == {
        *(whole_node, two, *shared, evil, drained, lost, requeued),
        *(f"{array}_{task}" for task in (1, 2)),
    }
    assert without not in rows_of_job  # it has no GPU
    assert never not in rows_of_job  # it never began
    all_of = {node: [(node, uuid(node, device), 1) for device in range(GPUS)] for node in ("n01", "n02")}
    assert rows_of_job[whole_node] == [("COMPLETED", *row, 4) for row in all_of["n01"]]
    assert rows_of_job[two] == [("COMPLETED", *row, 8) for node in ("n01", "n02") for row in all_of[node]]
    for job in (*shared, evil):
        assert rows_of_job[job] == [("COMPLETED", "n03", None, 1, 1)]  # accounting does not say which
    assert rows_of_job[drained] == [("COMPLETED", "n05", None, 4, 4)]  # the store knows no GPUs there
    assert rows_of_job[lost] == [("NODE_FAIL", "n06", None, 2, 2)]
    assert [row[0] for row in rows_of_job[requeued]] == ["CANCELLED", "REQUEUED"]
    owners = dict(now(store, 'distinct job_id, "user"'))
    assert {owners[two], owners[shared[1]]} == {"bob"}
    assert {owners[whole_node], owners[evil]} == {"alice"}
    assert set(now(store, "distinct ended is null, began <= ended, account")) == {(False, True, "physics")}

    # With the tags of the same jobs, all of them by UUID: gres.conf says which GPU an index is.
    assert here.spool_of_tags.stat().st_size
    tagged = import_all(store, tag_folders=[here.spool_of_tags])
    assert not tagged.tags_refused
    assert now(store, "gpu, gpu_from", f"job_id = '{drained}'") == [(uuid("n05", d), "tag") for d in range(GPUS)]
    assert not tagged.tags_unknown
    on_part = now(store, "gpu", f"job_id in ('{shared[0]}', '{shared[1]}')")
    assert {gpu for (gpu,) in on_part} == {uuid("n03", 0), uuid("n03", 1)}, "two jobs of one node, a GPU each"
    assert now(store, "count(*)", "source = 'tag'") == [(0,)]  # accounting explains all of them
    again = import_all(store, tag_folders=[here.spool_of_tags])
    assert (again.stored, again.tags_stored) == (0, 0)


@pytest.mark.long
def test_two_jobs_of_a_node_have_the_gpus_whose_device_files_slurm_gave_them(
    here: Accounted, store: Store, tmp_path: Path
) -> None:
    """The second job of a node is on index 1, which is /dev/nvidia5, and the third GPU by PCI address."""
    go = here.folder / "out" / "together"
    held = f"--wrap=until [ -e {go} ]; do sleep 0.1; done; sleep 2"
    jobs = [here.submit(f"--gres=gpu:{number}", "-w", "n03", held) for number in (1, 2)]
    for job in jobs:
        here.nodes_of(job)
    here.until(lambda: set(jobs) <= here.accounted("-s", "R"), "the accounts to have the jobs")
    running = import_all(store, tag_folders=[here.spool_of_tags])
    assert not running.tags_unknown
    state = "job_id, gpu, gpu_from, state"
    expected = [(jobs[0], uuid("n03", 0)), (jobs[1], uuid("n03", 1)), (jobs[1], uuid("n03", 2))]
    both_jobs = f"job_id in ('{jobs[0]}', '{jobs[1]}')"
    assert now(store, state, both_jobs) == [(*pair, "tag", "RUNNING") for pair in expected]
    indices = [here.run("scontrol", "-d", "-o", "show", "job", job).stdout for job in jobs]
    assert ["IDX:0)" in indices[0], "IDX:1-2)" in indices[1]] == [True, True]
    by_index, saved = new_store(tmp_path / "by-index"), tmp_path / "scontrol.txt"
    saved.write_text("".join(indices))
    shutil.copytree(here.spool_of_tags, by_index.root / SPOOL, dirs_exist_ok=True)
    import_file(by_index, saved, Options(cluster="whorl", time_zone=time.strftime("%Z")))
    assert now(by_index, "job_id, gpu, gpu_from", both_jobs) == [(*pair, "file") for pair in expected]
    go.touch()
    here.settle()
    ended = ("-s", "CD", "-S", "now-1hour", "-E", "now")
    here.until(lambda: set(jobs) <= here.accounted(*ended), "the accounts to have the ends")
    import_all(store, tag_folders=[here.spool_of_tags])
    assert now(store, state, both_jobs) == [(*pair, "tag", "COMPLETED") for pair in expected]


@pytest.mark.long
def test_accounting_that_does_not_answer_is_one_sentence(here: Accounted, store: Store) -> None:
    here.stop_accounting()
    try:
        with pytest.raises(SchedulerError, match="does not answer: check that slurmdbd and its database run"):
            import_all(store)
    finally:
        here.start_accounting()
    assert now(store) == []
