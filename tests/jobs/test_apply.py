"""What advice means for a job that waits: what its owner said stays, and can be restored to the letter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from whorl.errors import InputError
from whorl.jobs.apply import NodeChoice, change_of, owner_of
from whorl.jobs.slurm import JobRecord

JOB = JobRecord("12", "PENDING", "Resources", user="alice", uid=1001, partitions=("batch",))


@pytest.mark.parametrize(
    ("fields", "advised", "excluded", "comment"),
    [
        ({}, ["n02", "n05"], "n[02,05]", "whorl:excluded=n[02,05]"),
        ({}, [], "", ""),
        ({"excluded": "n[01,04]", "comment": "a: k=v"}, ["n02", "n04"], "n[01-02,04]", "a: k=v whorl:excluded=n02"),
        # Advice is refreshed, and does not pile up.
        ({"excluded": "n[01-02]", "comment": "a whorl:excluded=n02 b"}, ["n05"], "n[01,05]", "a b whorl:excluded=n05"),
        ({"excluded": "n[01-02]", "comment": "a whorl:excluded=n02 b"}, [], "n01", "a b"),
        # What the site's filter put there counts as whorl's.
        ({"excluded": "n02", "admin_comment": "whorl:excluded=n02"}, ["n03"], "n03", "whorl:excluded=n03"),
        ({"required": "n[02-03]"}, ["n02", "n05"], "n05", "whorl:excluded=n05"),
        ({"excluded": "n[01-02]", "comment": "whorl:excluded=n02", "strict": "it has a deadline"}, ["n03"], "n01", ""),
        ({"excluded": "n04, n01"}, ["n02"], "n[01-02,04]", "whorl:excluded=n02 whorl:was=n04,%20n01"),
    ],
)
def test_what_advice_makes_of_a_job(fields: dict[str, Any], advised: list[str], excluded: str, comment: str) -> None:
    record = replace(JOB, **fields)
    change = change_of(record, advised)
    assert change.after == NodeChoice(excluded, comment)
    again = change_of(replace(record, excluded=excluded, comment=comment, admin_comment=""), advised)
    assert not again.needed, "nothing to do twice"
    assert owner_of(replace(record, excluded=excluded, comment=comment, admin_comment="")) == change.owner


def test_a_comment_that_is_no_host_list_is_told_of() -> None:
    with pytest.raises(InputError, match=r"the comment of job 12 has whorl:excluded=n\[01, which is no host list"):
        change_of(replace(JOB, comment="whorl:excluded=n[01"), ["n02"])


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


def test_a_comment_that_would_be_too_long_leaves_the_job_alone() -> None:
    job = replace(JOB, excluded="n01", comment="ü" * 500)
    change = change_of(job, ["n02"])
    assert not change.needed
    assert "longer than the 1,024 bytes that Slurm takes" in change.notes[0]
    assert change_of(replace(job, comment="u" * 500), ["n02"]).needed
