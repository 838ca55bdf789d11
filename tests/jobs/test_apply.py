"""What advice means for a job that waits: what its owner said stays, and can be restored to the letter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from whorl.errors import InputError
from whorl.jobs.apply import NodeChoice, UndoNote, change_of, pending, workload_of
from whorl.jobs.slurm import JobRecord

JOB = JobRecord("12", "PENDING", "Resources", user="alice", uid=1001, partitions=("batch",))


@pytest.fixture
def note(tmp_path: Path) -> UndoNote:
    return UndoNote(tmp_path / "undo" / "whorl-12.json", "12")


def test_a_fresh_job(note: UndoNote) -> None:
    change = change_of(JOB, ["n02", "n05"], note)
    assert change.command == [
        *("scontrol", "update", "JobId=12", "ExcNodeList=n[02,05]", "Comment=whorl:excluded=n[02,05]"),
    ]
    assert (change.needed, change.notes) == (True, ())


def test_what_the_owner_excluded_and_wrote_stays(note: UndoNote) -> None:
    job = replace(JOB, excluded="n[01,04]", comment="for the paper: k=v")
    change = change_of(job, ["n02", "n04"], note)
    assert change.after == NodeChoice("n[01-02,04]", "for the paper: k=v whorl:excluded=n02")


def test_advice_is_refreshed_not_piled_up(note: UndoNote) -> None:
    job = replace(JOB, excluded="n[01-02]", comment="mine whorl:excluded=n02 too")
    assert change_of(job, ["n05"], note).after == NodeChoice("n[01,05]", "mine too whorl:excluded=n05")
    assert change_of(job, [], note).after == NodeChoice("n01", "mine too")
    assert change_of(replace(JOB, excluded="n02", comment="whorl:excluded=n02"), [], note).after == NodeChoice("", "")


def test_nothing_to_do_twice(note: UndoNote) -> None:
    job = replace(JOB, excluded="n02", comment="mine whorl:excluded=n02")
    assert not change_of(job, ["n02"], note).needed
    assert not change_of(JOB, [], note).needed


def test_what_the_sites_filter_put_there_counts_as_whorls(note: UndoNote) -> None:
    job = replace(JOB, excluded="n02", admin_comment="whorl:excluded=n02", comment="whorl=sgemm")
    assert change_of(job, ["n03"], note).after == NodeChoice("n03", "whorl=sgemm whorl:excluded=n03")


def test_a_comment_that_is_no_host_list_is_told_of(note: UndoNote) -> None:
    with pytest.raises(InputError, match=r"the comment of job 12 has whorl:excluded=n\[01, which is no host list"):
        change_of(replace(JOB, comment="whorl:excluded=n[01"), ["n02"], note)


def test_a_node_that_the_job_asks_for_is_not_excluded(note: UndoNote) -> None:
    change = change_of(replace(JOB, required="n[02-03]"), ["n02", "n05"], note)
    assert change.after.excluded == "n05"
    assert change.notes == ("n02 is not excluded, because the job asks for it",)


def test_a_job_that_must_not_be_changed_is_as_its_owner_wrote_it(note: UndoNote) -> None:
    job = replace(JOB, excluded="n[01-02]", comment="whorl:excluded=n02", strict="it has a deadline")
    change = change_of(job, ["n03"], note)
    assert (change.after, change.notes) == (
        NodeChoice("n01", ""),
        ("whorl excludes nothing for it, because it has a deadline",),
    )


def test_the_owners_list_is_restored_to_the_letter(note: UndoNote) -> None:
    """The comment says which nodes whorl added; the note, how the owner spelled the others."""
    job = replace(JOB, excluded="n04,n01", comment="mine")
    change = change_of(job, ["n02"], note)
    note.add([change])
    changed = replace(job, excluded=change.after.excluded, comment=change.after.comment)
    assert change_of(changed, [], note).after == NodeChoice("n04,n01", "mine")
    by_others = replace(changed, excluded="n02,n07")
    assert change_of(by_others, [], note).after == NodeChoice("n07", "mine"), "the owner changed it since"
    note.settle([changed])
    assert note.path.exists()
    note.settle([job])
    assert not note.path.exists()


def test_a_note_that_cannot_be_written_is_told_of_before_the_job_is_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    note = UndoNote(tmp_path / "file" / "undo" / "whorl-12.json", "12")
    with pytest.raises(InputError, match=r"cannot be written .* no job is changed: XDG_STATE_HOME names another"):
        note.add([change_of(JOB, ["n02"], note)])


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
