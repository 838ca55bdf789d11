"""Advice in Slurm's words: features, weights, and the file for the submit filters."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from whorl.errors import InputError
from whorl.jobs.apply import NodeChoice, change_of, owner_of
from whorl.jobs.formats import filter_file, largest_jobs, node_lines, preference
from whorl.jobs.scheduler import Node
from whorl.jobs.slurm import JobRecord
from whorl.store.hostlist import expand


def fleet(count: int = 6, **fields: object) -> dict[str, Node]:
    nodes = [Node(f"n{i:02d}", "IDLE", ("batch",), ("v100",), ("v100",), 10, 4) for i in range(1, count + 1)]
    return {n.name: replace(n, **fields) for n in nodes}  # type: ignore[arg-type]


def applied(lines: list[str], nodes: dict[str, Node]) -> dict[str, Node]:
    """What the scheduler would have after an administrator ran the lines."""
    after = dict(nodes)
    for line in lines:
        if line.startswith("#"):
            continue
        command, update, target, *settings = shlex.split(line)
        assert (command, update) == ("scontrol", "update")
        for name in expand(target.removeprefix("NodeName=")):
            for setting in settings:
                key, _, value = setting.partition("=")
                names = tuple(filter(None, value.split(",")))
                if key == "Weight":
                    after[name] = replace(after[name], weight=int(value))
                elif key == "AvailableFeatures":
                    after[name] = replace(after[name], available=names)
                else:
                    assert key == "ActiveFeatures"
                    after[name] = replace(after[name], active=names)
    return after


def test_lines_are_a_difference_and_applying_them_leaves_none() -> None:
    nodes = fleet()
    tiers, preferred = {"n02": "hard", "n03": "soft"}, ["n05", "n06"]
    lines = node_lines("sgemm", nodes.values(), tiers, preferred)
    after = applied(lines, nodes)
    assert [after[f"n{i:02d}"].weight for i in range(1, 7)] == [10, 12, 11, 10, 10, 10]
    assert after["n02"].active == ("v100", "whorl_sgemm_avoid", "whorl_weight_10")
    assert after["n05"].available == ("v100", "whorl_sgemm_prefer")
    assert after["n01"] == nodes["n01"]
    assert any("n[05-06]" in line for line in lines)
    assert node_lines("sgemm", after.values(), tiers, preferred) == []


def test_prefer_only_what_enough_nodes_have() -> None:
    nodes = fleet()
    assert preference("w", nodes.values(), [], 1)[0] == ""
    for name in ("n01", "n02"):
        nodes[name] = replace(nodes[name], active=("whorl_w_prefer",))
    assert preference("w", nodes.values(), [], 2) == ("whorl_w_prefer", "")
    assert "the job needs 3" in preference("w", nodes.values(), [], 3)[1]
    assert "n02 should be avoided now" in preference("w", nodes.values(), ["n02"], 1)[1]
    nodes["n02"] = replace(nodes["n02"], state="DOWN", usable=False)
    assert preference("w", nodes.values(), [], 2)[0] == ""


def test_the_file_for_filters_says_how_large_a_job_may_be() -> None:
    sizes = largest_jobs(["n02"], list(fleet().values()))
    line, jobs, facts, end = filter_file(["n02"], sizes, "batch", is_default=True).split("\n")
    assert (line, jobs) == ("n02", "# 4 n02")
    assert re.fullmatch(r"# whorl written=\d{10} length=11 partition=batch default=1", facts)
    assert end == ""


def test_a_job_may_be_as_large_as_what_is_left_of_each_kind() -> None:
    def most(excluded: list[str], nodes: dict[str, Node], *together: set[str]) -> dict[str, int]:
        return largest_jobs(excluded, list(nodes.values()), together)

    nodes = fleet(20)
    assert most(["n02"], nodes) == {"n02": 17}, "of 19, a tenth is kept in reserve"
    down = nodes | {
        f"n{i:02d}": replace(nodes["n01"], name=f"n{i:02d}", state="DOWN*", usable=False) for i in range(16, 21)
    }
    assert most(["n02"], down) == {"n02": 12}, "one that runs no jobs is no rest"
    for name in ("n01", "n02", "n03"):
        nodes[name] = replace(nodes[name], kind="Gres=gpu:a100:4")
    assert most(["n02"], nodes) == {"n02": 1}, "only another A100 can stand in for an A100"
    assert most(["n04", "n02", "n05"], nodes) == {"n[04-05]": 13, "n02": 1}
    assert most(["n01", "n02", "n03"], nodes) == {"n[01-03]": 0}
    assert most(["n04"], nodes, {"n04", "n05", "n06"}) == {"n04": 1}, "two others are reserved with it"
    assert most(["n09"], nodes, {"n04", "n05", "n06"}) == {"n09": 11}
    assert most(["n99"], nodes) == most([], nodes) == {}


# -- apply -------------------------------------------------------------------------------------------------------------
# What advice means for a job that waits: what its owner said stays, and can be restored to the letter.


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
