"""What advice means for a job that waits: what its owner said stays, and can be restored to the letter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from whorl.errors import InputError
from whorl.jobs.apply import NodeChoice, change_of, owner_of, pending, workload_of
from whorl.jobs.slurm import JobRecord

JOB = JobRecord("12", "PENDING", "Resources", user="alice", uid=1001, partitions=("batch",))


def test_a_fresh_job() -> None:
    change = change_of(JOB, ["n02", "n05"])
    assert change.command == [
        *("scontrol", "update", "JobId=12", "ExcNodeList=n[02,05]", "Comment=whorl:excluded=n[02,05]"),
    ]
    assert (change.needed, change.notes) == (True, ())


def test_what_the_owner_excluded_and_wrote_stays() -> None:
    job = replace(JOB, excluded="n[01,04]", comment="for the paper: k=v")
    change = change_of(job, ["n02", "n04"])
    assert change.after == NodeChoice("n[01-02,04]", "for the paper: k=v whorl:excluded=n02")


def test_advice_is_refreshed_not_piled_up() -> None:
    job = replace(JOB, excluded="n[01-02]", comment="mine whorl:excluded=n02 too")
    assert change_of(job, ["n05"]).after == NodeChoice("n[01,05]", "mine too whorl:excluded=n05")
    assert change_of(job, []).after == NodeChoice("n01", "mine too")
    assert change_of(replace(JOB, excluded="n02", comment="whorl:excluded=n02"), []).after == NodeChoice("", "")


def test_nothing_to_do_twice() -> None:
    job = replace(JOB, excluded="n02", comment="mine whorl:excluded=n02")
    assert not change_of(job, ["n02"]).needed
    assert not change_of(JOB, []).needed


def test_what_the_sites_filter_put_there_counts_as_whorls() -> None:
    job = replace(JOB, excluded="n02", admin_comment="whorl:excluded=n02", comment="whorl=sgemm")
    assert change_of(job, ["n03"]).after == NodeChoice("n03", "whorl=sgemm whorl:excluded=n03")


def test_a_comment_that_is_no_host_list_is_told_of() -> None:
    with pytest.raises(InputError, match=r"the comment of job 12 has whorl:excluded=n\[01, which is no host list"):
        change_of(replace(JOB, comment="whorl:excluded=n[01"), ["n02"])


def test_a_node_that_the_job_asks_for_is_not_excluded() -> None:
    change = change_of(replace(JOB, required="n[02-03]"), ["n02", "n05"])
    assert change.after.excluded == "n05"
    assert change.notes == ("n02 is not excluded, because the job asks for it",)


def test_a_job_that_must_not_be_changed_is_as_its_owner_wrote_it() -> None:
    job = replace(JOB, excluded="n[01-02]", comment="whorl:excluded=n02", strict="it has a deadline")
    change = change_of(job, ["n03"])
    assert (change.after, change.notes) == (
        NodeChoice("n01", ""),
        ("whorl excludes nothing for it, because it has a deadline",),
    )


def test_the_owners_list_is_restored_to_the_letter() -> None:
    """The comment also says how the owner spelled the list, if that is not how whorl spells it."""
    job = replace(JOB, excluded="n04,n01", comment="mine")
    change = change_of(job, ["n02"])
    assert change.after == NodeChoice("n[01-02,04]", "mine whorl:excluded=n02 whorl:was=n04,n01")
    for choice in (change.after, change.trying):
        changed = replace(job, excluded=choice.excluded, comment=choice.comment)
        assert owner_of(changed) == NodeChoice("n04,n01", "mine")
        by_others = replace(changed, excluded="n02,n07")
        assert owner_of(by_others) == NodeChoice("n07", "mine"), "the owner changed it since"
    refreshed = change_of(replace(job, excluded="n[01-02,04]", comment=change.after.comment), ["n05"])
    assert refreshed.after == NodeChoice("n[01,04-05]", "mine whorl:excluded=n05 whorl:was=n04,n01")


def test_a_list_with_spaces_is_restored_to_the_letter() -> None:
    job = replace(JOB, excluded="n04, n01", comment="mine")  # as `scontrol update` takes it
    change = change_of(job, ["n02"])
    assert change.after.comment == "mine whorl:excluded=n02 whorl:was=n04,%20n01"
    changed = replace(job, excluded=change.trying.excluded, comment=change.trying.comment)
    assert owner_of(changed) == NodeChoice("n04, n01", "mine")


def test_a_comment_that_would_be_too_long_leaves_the_job_alone() -> None:
    job = replace(JOB, excluded="n01", comment="ü" * 500)
    change = change_of(job, ["n02"])
    assert not change.needed
    assert "longer than the 1,024 bytes that Slurm takes" in change.notes[0]
    assert change_of(replace(job, comment="u" * 500), ["n02"]).needed


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
