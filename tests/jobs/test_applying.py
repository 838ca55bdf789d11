"""What advice means for a job that waits: what its owner said stays, and it can still start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whorl.errors import InputError
from whorl.jobs.applying import change, pending, workload_of
from whorl.jobs.slurm import Job, Node

NODES = {f"n{i:02d}": Node(f"n{i:02d}", "IDLE", ("batch",), ("v100",), ("v100",), 10, 4, 8) for i in range(1, 7)}
JOB = Job("12", "PENDING", "alice", 1001, ("batch",), 1, 4, 4, 1, "", "", "", "", "", "Resources")


def test_a_fresh_job() -> None:
    done = change(JOB, ["n02", "n05"], NODES)
    assert done.command == [
        *("scontrol", "update", "JobId=12", "ExcNodeList=n[02,05]", "Comment=whorl:excluded=n[02,05]"),
    ]
    assert done.needed
    assert done.notes == ()


def test_what_the_owner_excluded_and_wrote_stays() -> None:
    job = replace(JOB, excluded="n[01,04]", comment="for the paper: k=v")
    done = change(job, ["n02", "n04"], NODES)
    assert done.after == "n[01-02,04]"
    assert done.comment == "for the paper: k=v whorl:excluded=n02"


def test_advice_is_refreshed_not_piled_up() -> None:
    job = replace(JOB, excluded="n[01-02]", comment="mine whorl:excluded=n02 too")
    done = change(job, ["n05"], NODES)
    assert (done.after, done.comment) == ("n[01,05]", "mine too whorl:excluded=n05")
    gone = change(job, [], NODES)
    assert (gone.after, gone.comment) == ("n01", "mine too")
    last = change(replace(JOB, excluded="n02", comment="whorl:excluded=n02"), [], NODES)
    assert (last.after, last.comment) == ("", "")


def test_nothing_to_do_twice() -> None:
    job = replace(JOB, excluded="n02", comment="mine whorl:excluded=n02")
    assert not change(job, ["n02"], NODES).needed
    assert not change(JOB, [], NODES).needed


def test_what_the_sites_filter_put_there_counts_as_whorls() -> None:
    job = replace(JOB, excluded="n02", admin_comment="whorl:excluded=n02", comment="whorl=sgemm")
    done = change(job, ["n03"], NODES)
    assert (done.after, done.comment) == ("n03", "whorl=sgemm whorl:excluded=n03")


def test_a_node_that_the_job_asks_for_is_not_excluded() -> None:
    done = change(replace(JOB, required="n[02-03]", nodes=2), ["n02", "n05"], NODES)
    assert done.after == "n05"
    assert done.notes == ("n02 is not excluded, because the job asks for it",)


def test_the_job_can_still_start() -> None:
    job = replace(JOB, nodes=5)
    done = change(job, ["n02", "n05"], NODES)
    assert done.after == "n02", "the worst is excluded, the milder one is needed"
    assert done.notes == ("n05 is not excluded: without it, the job could not start",)
    assert change(replace(JOB, gpus=20), ["n02", "n05"], NODES).after == "n02"
    assert change(replace(JOB, gpus=21), ["n02"], NODES).after == ""
    assert change(replace(JOB, cpus=33), ["n02", "n05"], NODES).after == "n02"
    assert change(replace(JOB, nodes=6), ["n02"], NODES).after == ""
    assert change(replace(job, excluded="n06"), ["n02"], NODES).after == "n06"


@pytest.mark.parametrize(
    "nodes",
    [
        {**NODES, "n06": replace(NODES["n06"], state="IDLE+DRAIN")},
        {**NODES, "n06": replace(NODES["n06"], partitions=("debug",))},
        {**NODES, "n06": replace(NODES["n06"], gpus=2)},
        {**NODES, "n06": replace(NODES["n06"], active=())},
    ],
)
def test_nodes_that_the_job_cannot_use_do_not_count(nodes: dict[str, Node]) -> None:
    job = replace(JOB, nodes=5, features="v100")
    assert change(job, ["n02"], nodes).after == ""
    assert change(replace(job, nodes=4), ["n02"], nodes).after == "n02"


def test_names_that_are_gone_are_dropped() -> None:
    assert change(JOB, ["zz9"], NODES).after == ""


def test_whose_and_which_jobs() -> None:
    with pytest.raises(InputError, match="job 12 is alice's: you can change only your own jobs"):
        pending([JOB], "12", 1002)
    with pytest.raises(InputError, match="job 12 is RUNNING: only a waiting"):
        pending([replace(JOB, state="RUNNING")], "12", 1001)
    tasks = [replace(JOB, id="12_1", state="RUNNING"), replace(JOB, id="12_[2-5]")]
    assert [job.id for job in pending(tasks, "12", 1001)] == ["12_[2-5]"]
    with pytest.raises(InputError, match="unknown"):
        pending([], "12", 0)


def test_the_workload_that_a_comment_names() -> None:
    assert workload_of([replace(JOB, comment="a whorl=sgemm b")]) == "sgemm"
    assert workload_of([replace(JOB, comment="notwhorl=sgemm whorl:excluded=n02")]) is None
