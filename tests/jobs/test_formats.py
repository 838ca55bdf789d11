"""Advice in Slurm's words: features, weights, and the file for the submit filters."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from whorl.jobs.formats import filter_file, largest_jobs, node_lines, preference, weight_of_site
from whorl.jobs.scheduler import Node
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


def test_lines_take_back_what_lines_did() -> None:
    nodes = fleet(available=("v100", "cab1"))
    after = applied(node_lines("sgemm", nodes.values(), {"n02": "hard"}, ["n05"]), nodes)
    assert after != nodes
    assert weight_of_site(after["n02"]) == 10
    assert applied(node_lines("sgemm", after.values(), {}, []), after) == nodes
    worse = applied(node_lines("sgemm", after.values(), {"n02": "soft"}, []), after)
    assert worse["n02"].weight == 11


def test_features_of_others_stay() -> None:
    nodes = fleet(2, available=("v100", "whorl_bert_avoid", "x"), active=("x",))
    after = applied(node_lines("sgemm", nodes.values(), {"n01": "hard"}, []), nodes)
    assert after["n01"].available == ("v100", "whorl_bert_avoid", "x", "whorl_sgemm_avoid", "whorl_weight_10")
    assert after["n01"].active == ("x", "whorl_sgemm_avoid", "whorl_weight_10")


def test_a_workload_of_any_name_makes_a_word() -> None:
    lines = node_lines("ResNet 50; rm -rf $(x)", fleet(1).values(), {"n01": "hard"}, [])
    assert "whorl_resnet_50_rm_rf_x_avoid" in lines[1]
    assert not re.search(r"[;$()]", lines[1])
    assert lines[0].startswith("# ")
    assert "\n" not in node_lines("a\nb", fleet(1).values(), {"n01": "hard"}, [])[0]


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
