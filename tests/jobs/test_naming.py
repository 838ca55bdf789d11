"""The nodes of a store under the scheduler's names: a short name, a domain, another case; never another node's."""

from __future__ import annotations

import pytest

from whorl.jobs.scheduler import Node, known


def scheduler(*names: str, **hosts: str) -> dict[str, Node]:
    return {name: Node(name, "IDLE", host=hosts.get(name, "")) for name in names}


@pytest.mark.parametrize(
    ("measured", "there", "expected"),
    [
        (["n03.site"], ["n03"], {"n03.site": "n03"}),
        (["n03"], ["n03.site"], {"n03": "n03.site"}),
        (["n03", "n03.site"], ["n03"], {"n03": "n03", "n03.site": "n03"}),
        (["N03"], ["n03"], {"N03": "n03"}),
        (["n03.Site"], ["N03.site"], {"n03.Site": "N03.site"}),
        # Of two domains these are two nodes.
        (["n03.east"], ["n03.west"], {}),
        (["n03.east", "n03.west"], ["n03.east", "n03.west"], {"n03.east": "n03.east", "n03.west": "n03.west"}),
        (["n03.east", "n03.west"], ["n03.east"], {"n03.east": "n03.east"}),
        (["n03.east", "n03.west", "n04.east"], ["n03", "n04"], {"n04.east": "n04"}),
        (["n03", "n03.east", "n03.west"], ["n03"], {"n03": "n03"}),
        (["n03"], ["n03.east", "n03.west"], {}),
        # Slurm tells case apart: where it has both, only the same letters are the same node.
        (["N03", "n03"], ["N03", "n03"], {"N03": "N03", "n03": "n03"}),
        (["n03"], ["N03", "n03"], {"n03": "n03"}),
    ],
)
def test_a_node_is_found_under_its_own_name_only(
    measured: list[str], there: list[str], expected: dict[str, str]
) -> None:
    node_names = known(measured, scheduler(*there))
    assert node_names.names == expected
    assert set(node_names.unknown) == set(measured) - expected.keys()


def test_names_that_only_one_node_can_have_are_told() -> None:
    node_names = known(["n03.east", "n03.west", "n05"], scheduler("n03", "n04"))
    assert node_names.unclear == {"n03": ("n03.east", "n03.west")}
    assert node_names.unknown == ("n03.east", "n03.west", "n05")


def test_the_host_name_of_a_node_counts_where_its_own_does_not_fit() -> None:
    nodes = scheduler("gpu-1", "gpu-2", **{"gpu-1": "rack1.site", "gpu-2": "Rack2"})
    assert known(["rack1", "rack2.site", "gpu-2"], nodes).names == {
        "rack1": "gpu-1",
        "rack2.site": "gpu-2",
        "gpu-2": "gpu-2",
    }
    assert known(["rack1.other"], nodes).names == {}
    assert known(["rack1"], scheduler("a", "b", a="rack1", b="rack1")).names == {}, "several nodes of one host"
