"""What advice means for a job that waits: what its owner said stays, and it can still start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whorl.errors import InputError
from whorl.jobs.applying import change, pending, workload_of
from whorl.jobs.counting import Site
from whorl.jobs.requests import Devices, Job
from whorl.jobs.scheduler import Node
from whorl.jobs.slurm import node, partition, reservation

USUAL = (
    "State=IDLE Partitions=batch AvailableFeatures=v100 ActiveFeatures=v100 Gres=gpu:v100:4 CPUTot=8 CPUEfctv=8 "
    "ThreadsPerCore=1 RealMemory=4000 TmpDisk=0 Weight=10"
)


def built(name: str, **fields: str) -> Node:
    """A usual node but for some fields."""
    said = dict(part.split("=") for part in USUAL.split()) | fields
    if "AvailableFeatures" in fields:
        said["ActiveFeatures"] = fields["AvailableFeatures"]
    found = node(f"NodeName={name} " + " ".join(f"{key}={value}" for key, value in said.items()))
    assert found is not None
    return found


def site(nodes: dict[str, Node], *lines: str, partitions: str = "batch") -> Site:
    """A site with these nodes and reservations (lines of `scontrol`)."""
    kept = [partition(f"PartitionName={name} State=UP MaxTime=UNLIMITED") for name in partitions.split(",")]
    reserved = [reservation(f"ReservationName={line}") for line in lines]
    return Site(nodes, {one.name: one for one in kept if one}, {one.name: one for one in reserved if one})


NODES = {name: built(name) for name in ("n01", "n02", "n03", "n04", "n05", "n06")}
SITE = site(NODES)
FOUR = (Devices("gpu", "", 4),)
JOB = Job("12", "PENDING", "alice", 1001, ("batch",), 1, most_nodes=1, per_node=FOUR)
FREE = replace(JOB, most_nodes=None, per_node=())


def test_a_fresh_job() -> None:
    done = change(JOB, ["n02", "n05"], SITE)
    assert done.command == [
        *("scontrol", "update", "JobId=12", "ExcNodeList=n[02,05]", "Comment=whorl:excluded=n[02,05]"),
    ]
    assert done.needed
    assert done.notes == ()


def test_what_the_owner_excluded_and_wrote_stays() -> None:
    job = replace(JOB, excluded="n[01,04]", comment="for the paper: k=v")
    done = change(job, ["n02", "n04"], SITE)
    assert done.after == "n[01-02,04]"
    assert done.comment == "for the paper: k=v whorl:excluded=n02"


def test_advice_is_refreshed_not_piled_up() -> None:
    job = replace(JOB, excluded="n[01-02]", comment="mine whorl:excluded=n02 too")
    done = change(job, ["n05"], SITE)
    assert (done.after, done.comment) == ("n[01,05]", "mine too whorl:excluded=n05")
    gone = change(job, [], SITE)
    assert (gone.after, gone.comment) == ("n01", "mine too")
    last = change(replace(JOB, excluded="n02", comment="whorl:excluded=n02"), [], SITE)
    assert (last.after, last.comment) == ("", "")


def test_nothing_to_do_twice() -> None:
    job = replace(JOB, excluded="n02", comment="mine whorl:excluded=n02")
    assert not change(job, ["n02"], SITE).needed
    assert not change(JOB, [], SITE).needed


def test_what_the_sites_filter_put_there_counts_as_whorls() -> None:
    job = replace(JOB, excluded="n02", admin_comment="whorl:excluded=n02", comment="whorl=sgemm")
    done = change(job, ["n03"], SITE)
    assert (done.after, done.comment) == ("n03", "whorl=sgemm whorl:excluded=n03")


def test_a_note_that_is_no_host_list_is_told_of() -> None:
    with pytest.raises(InputError, match=r"the comment of job 12 has whorl:excluded=n\[01, which is no host list"):
        change(replace(JOB, comment="whorl:excluded=n[01"), ["n02"], SITE)


def test_a_node_that_the_job_asks_for_is_not_excluded() -> None:
    done = change(replace(JOB, required="n[02-03]", nodes=2, most_nodes=2), ["n02", "n05"], SITE)
    assert done.after == "n05"
    assert done.notes == ("n02 is not excluded, because the job asks for it",)


def test_the_job_can_still_start() -> None:
    job = replace(JOB, nodes=5, most_nodes=5, tasks=5)
    done = change(job, ["n02", "n05"], SITE)
    assert done.after == "n02", "the worst is excluded, the milder one is needed"
    why = "n05 is not excluded: the job may need 5 nodes of its kind in partition batch, and 4 would be left"
    assert done.notes == (why,)
    assert change(replace(FREE, per_job=(Devices("gpu", "", 20),)), ["n02", "n05"], SITE).after == "n02"
    assert change(replace(FREE, per_job=(Devices("gpu", "v100", 21),)), ["n02"], SITE).after == ""
    assert change(replace(FREE, tasks=33), ["n02", "n05"], SITE).after == "n02"
    assert change(replace(FREE, tasks=6, tasks_per_node=1), ["n02"], SITE).after == ""
    assert change(replace(FREE, tasks=10, cpus_per_task=4, memory_per_cpu=500.0), ["n02", "n05"], SITE).after == "n02"
    assert change(replace(FREE, tasks=10, per_task=(Devices("gpu", "", 2),)), ["n02", "n05"], SITE).after == "n02"
    assert change(replace(JOB, nodes=6, most_nodes=6), ["n02"], SITE).after == ""
    assert change(replace(job, excluded="n06"), ["n02"], SITE).after == "n06"


@pytest.mark.parametrize("fields", [{"State": "IDLE+DRAIN"}, {"Partitions": "debug"}, {"Gres": "gpu:a100:4"}, {}])
def test_nodes_that_the_job_cannot_use_do_not_count(fields: dict[str, str]) -> None:
    nodes = NODES | {"n06": built("n06", **fields or {"AvailableFeatures": "(null)"})}
    job = replace(JOB, nodes=5, most_nodes=5, per_node=(Devices("gpu", "v100", 4),), features="v100")
    assert change(job, ["n02"], site(nodes)).after == ""
    assert change(replace(job, nodes=4, most_nodes=4), ["n02"], site(nodes)).after == "n02"


def test_a_kind_of_gpu_that_few_nodes_of_the_partition_have() -> None:
    nodes = {name: built(name, Gres=f"gpu:{'v100' if name < 'n04' else 'a100'}:4") for name in NODES}
    job = replace(JOB, nodes=3, most_nodes=3, per_node=(Devices("gpu", "v100", 4),))
    assert change(job, ["n02", "n05"], site(nodes)).after == "", "n05 has other GPUs, n02 is needed"
    assert change(replace(job, nodes=2, most_nodes=2), ["n02", "n05"], site(nodes)).after == "n02"
    assert change(replace(job, per_node=FOUR), ["n02", "n05"], site(nodes)).after == "n[02,05]"
    assert change(replace(job, per_node=FOUR, nodes=4, most_nodes=4), ["n02", "n05", "n06"], site(nodes)).after != ""


def test_what_is_not_understood_leaves_a_node_of_the_same_kind() -> None:
    nodes = {name: built(name, AvailableFeatures="old" if name < "n03" else "new,fast") for name in NODES}
    job = replace(JOB, nodes=2, most_nodes=2, features="[old*1&new*1]")
    assert change(job, ["n01", "n03"], site(nodes)).after == "n03", "there are two old nodes and four new ones"
    assert change(replace(job, features=""), ["n01", "n03"], site(nodes)).after == "n[01,03]"
    layout = replace(FREE, per_job=(Devices("gpu", "", 4),), countable=False)
    assert change(layout, ["n01", "n02"], SITE).after == "n[01-02]", "a task and four GPUs: four nodes at most"
    assert change(layout, ["n01", "n02", "n03"], SITE).after == "n[01-02]"


def test_a_reservation_is_counted_by_its_nodes() -> None:
    job = replace(JOB, nodes=2, most_nodes=2)
    mine = site(NODES, "mine Nodes=n[01-03] CoreCnt=24 Flags=SPEC_NODES Users=alice")
    inside = replace(job, reservations=("mine",))
    assert change(inside, ["n02", "n05"], mine).after == "n02", "n05 is no node of the reservation"
    assert change(replace(inside, nodes=3, most_nodes=3), ["n02"], mine).after == ""
    assert change(replace(job, nodes=3, most_nodes=3), ["n05"], mine).after == "", "others' jobs do not get n[01-03]"
    assert change(job, ["n05"], mine).after == "n05"


@pytest.mark.parametrize(
    ("job", "line", "why"),
    [
        (replace(JOB, strict="it limits its switches (--switches)"), "", "it limits its switches (--switches)"),
        (replace(JOB, reservations=("r",)), "", "Slurm shows you no reservation r"),
        (replace(JOB, reservations=("r",)), "r Nodes=(null) Flags=ANY_NODES", "its reservation r names no nodes"),
        (replace(JOB, reservations=("r",)), "r Nodes=n[01-03] CoreCnt=24 Flags=REPLACE_DOWN", "Slurm may replace"),
        (replace(JOB, reservations=("r",)), "r Nodes=n[01-03] CoreCnt=6 Flags=", "has only a part of its nodes' cores"),
    ],
)
def test_a_job_that_cannot_be_counted_is_left_as_its_owner_wrote_it(job: Job, line: str, why: str) -> None:
    there = site(NODES, *([line] if line else []))
    done = change(replace(job, excluded="n[01-02]", comment="whorl:excluded=n02"), ["n03"], there)
    assert (done.after, done.comment) == ("n01", "")
    assert len(done.notes) == 1
    assert done.notes[0].startswith("whorl excludes nothing for it, because ")
    assert why in done.notes[0]


def test_every_partition_of_the_job_is_counted() -> None:
    nodes = {name: built(name, Partitions="old" if name < "n03" else "new") for name in NODES}
    job = replace(JOB, partitions=("old", "new"), nodes=2, most_nodes=2)
    where = site(nodes, partitions="old,new")
    assert change(job, ["n01", "n03"], where).after == "n03"
    assert change(replace(job, partitions=("new",)), ["n01", "n03"], where).after == "n03"
    assert change(replace(job, nodes=1, most_nodes=1), ["n01", "n03"], where).after == "n[01,03]"


def test_a_partition_that_limits_what_a_job_gets_on_a_node() -> None:
    """Then it is not known how many tasks a node holds: each may need a node of its own."""
    capped = partition("PartitionName=batch State=UP MaxTime=UNLIMITED MaxCPUsPerNode=2")
    assert capped is not None
    where = Site(NODES, {"batch": capped})
    job = replace(FREE, tasks=6)
    assert change(job, ["n02"], SITE).after == "n02"
    assert change(job, ["n02"], where).after == ""
    assert change(replace(job, tasks=5), ["n02"], where).after == "n02"
    few = partition("PartitionName=batch State=UP MaxTime=UNLIMITED MaxNodes=1")
    assert few is not None
    large = {"n07": built("n07", CPUTot="16", CPUEfctv="16")}
    big = replace(FREE, tasks=10)
    assert change(big, ["n07"], Site(NODES | large, SITE.partitions)).after == "n07", "two of the others do as well"
    assert change(big, ["n07"], Site(NODES | large, {"batch": few})).after == ""
    memory = Site(NODES, SITE.partitions, caps=frozenset({"mem"}))
    assert change(job, ["n02"], memory).after == "n02", "it does not ask for memory"
    assert change(replace(job, memory_per_cpu=100.0), ["n02"], memory).after == ""


def test_names_that_are_gone_are_dropped() -> None:
    assert change(JOB, ["zz9"], SITE).after == ""


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
