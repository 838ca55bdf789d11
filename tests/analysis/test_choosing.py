"""Which GPU a name means, what a search finds, and what is beside a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whorl.analysis.choosing import beside, find, known_gpus, search, shared
from whorl.analysis.contents import held
from whorl.analysis.placement import advise, node_rows, scores
from whorl.analysis.runs.probing import probed
from whorl.analysis.telemetry.choosing import boards
from whorl.collectors.recording import short_hash
from whorl.dashboards.figures.machine import Grid
from whorl.errors import InputError
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, judged_store, uuid
from whorl.tests.stores import new_store


def gpus(store: Store, **columns: list[Any]) -> None:
    store.append({"gpus": arrow_rows("gpus", columns)}, short_hash(sorted(map(str, columns.items()))))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """8 GPUs on two nodes, measured once."""
    return judged_store(tmp_path_factory.mktemp("chosen") / "S", 8, (0,), workloads=("gemm-fp32",))


def test_what_fits_no_gpu_or_several_is_told_with_those_that_there_are(store: Store) -> None:
    with pytest.raises(InputError, match=r"there is no GPU 'n77' in .*; there is n01/0 \(GPU-00000000"):
        find(store, "n77")
    with pytest.raises(InputError, match=r"'n02' fits 4 GPUs: n02/0 \(.*n02/3.*; give more of the name"):
        find(store, "n02")
    with pytest.raises(InputError, match=f"no GPUs of cluster 'west'; it has {CLUSTER}"):
        find(store, "n02/1", "west")


def test_one_letter_is_no_part_of_a_name(store: Store) -> None:
    with pytest.raises(InputError, match="there is no GPU 'n'"):
        find(store, "n")


@pytest.mark.long
def test_nodes_and_gpus_are_listed_as_people_count_on_all_pages_and_in_advice(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 48, (0, 1), node=lambda gpu: f"n{12 - gpu // 4}", spread=0)
    nodes = [f"n{number}" for number in range(1, 13)]
    gpus = known_gpus(store)
    assert gpus["node"].unique(maintain_order=True).to_list() == nodes
    assert list(dict.fromkeys(board.node for board in boards(store).all)) == nodes
    campaign = probed(store, every=True)
    assert campaign.gpus["node"].unique(maintain_order=True).to_list() == nodes
    assert [name for name, _, _ in Grid.of(campaign.gpus).nodes] == nodes
    fleet_scores = scores(store)
    advised = advise(fleet_scores, "gemm-fp32")
    assert node_rows(fleet_scores, advised)["node"].to_list() == nodes, "all have the same score"


def test_a_name_in_two_clusters_is_told_apart(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    gpus(store, cluster=["east", "west"], gpu=["a", "b"], node=["n1", "n1"], slot=[0, 0])
    with pytest.raises(InputError, match=r"fits 2 GPUs: .*--cluster: east, west$"):
        find(store, "n1/0")
    assert find(store, "n1/0", "west")["gpu"] == "b"
    assert find(store, "west:n1/0")["gpu"] == "b"


@pytest.mark.long
def test_a_gpu_that_files_name_in_two_ways_is_one(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    gpus(store, cluster=["c"] * 2, gpu=["GPU-1", "GPU-1"], uuid=["GPU-1"] * 2, place=[None, "r1-n1-0"])
    gpus(store, cluster=["c"], gpu=["r1-n1-0"], place=["r1-n1-0"])
    fleet = known_gpus(store)
    assert fleet.height == held(store).gpus == 1
    row = find(store, "r1-n1-0")
    assert (row["gpu"], sorted(row["keys"])) == ("GPU-1", ["GPU-1", "r1-n1-0"])
    gpus(store, cluster=["c"], gpu=["GPU-2"], uuid=["GPU-2"])
    assert (held(store).gpus, held(store).maybe_twice) == (2, False)
    gpus(store, cluster=["other"], gpu=["r1-n1-1"], node=["r1-n1"], slot=[1])
    assert not held(store).maybe_twice, "a GPU of another cluster is another"
    gpus(store, cluster=["c"], gpu=["r1-n1-1"], node=["r1-n1"], slot=[1])
    assert (held(store).gpus, held(store).maybe_twice) == (4, True)


def test_a_name_with_html_or_a_line_break_in_it_is_found_as_it_is(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    hostile = "<img src=x>\n[(*"
    gpus(store, cluster=["c", "c"], gpu=[hostile, "plain"])
    assert find(store, "<img src=x>")["gpu"] == hostile
    assert search(known_gpus(store), "[(*", None, 5)["gpu"].to_list() == [hostile]


def test_a_search_finds_words_anywhere_and_what_begins_with_it_first(store: Store) -> None:
    gpus = known_gpus(store)
    assert search(gpus, "", None, 3)["name"].to_list() == ["n01/0", "n01/1", "n01/2"]
    assert search(gpus, "", None, 2, (uuid(7),))["name"].to_list() == ["n02/3", "n01/0"]
    assert search(gpus, "v100 n02", None, 9)["name"].to_list() == ["n02/0", "n02/1", "n02/2", "n02/3"]
    assert search(gpus, "S0003", None, 9)["name"].to_list() == ["n01/3"]
    assert search(gpus, "nothing of it", None, 9).is_empty()
    assert search(gpus, "n02", "west", 9).is_empty()


def test_the_gpus_of_a_node_stand_beside_each_other_in_the_order_of_their_slots(store: Store) -> None:
    gpus = known_gpus(store)
    neighbours = beside(gpus, find(store, "n02/1"))
    assert [name for name, _ in neighbours.gpus] == ["n02/0", "n02/1", "n02/2", "n02/3"]
    assert (neighbours.previous, neighbours.next) == ("n02/0", "n02/2")
    last = beside(gpus, find(store, "n02/3"))
    assert (last.previous, last.next) == ("n02/2", None)


def test_a_card_that_was_replaced_and_one_without_a_node(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    gpus(
        store, cluster=["c"] * 4, gpu=["old", "new", "lone", "mig"], uuid=["old", "new", "lone", "mig"],
        node=["n1", "n1", None, "n1"], slot=[0, 0, None, 0], first_seen=[BEGAN_NS, BEGAN_NS + 9_000, None, BEGAN_NS],
        parent=[None, None, None, "new"], mig_profile=[None, None, None, "1g.10gb"],
    )  # fmt: skip
    fleet = known_gpus(store)
    assert [gpu for _, gpu in beside(fleet, find(store, "new")).gpus] == ["new"]
    assert [gpu for _, gpu in beside(fleet, find(store, "old")).gpus] == ["new", "old"]
    assert beside(fleet, find(store, "lone")).gpus == ()
    assert [gpu for _, gpu in beside(fleet, find(store, "mig")).gpus] == ["mig"]


def test_what_a_gpu_shares_with_those_of_its_model_is_counted(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    gpus(
        store, cluster=["c"] * 4, gpu=["a", "b", "d", "e"], model=["X", "X", "X", "Y"],
        driver=["1", "1", None, "1"], vbios=[None] * 4, power_limit_mw=[1, 2, 2, 1],
    )  # fmt: skip
    fleet = known_gpus(store)
    assert shared(fleet, find(store, "a")) == {"driver": (2, 2), "power_limit_mw": (1, 3)}


@pytest.mark.long
def test_a_large_fleet_is_one_small_frame(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    count = 27_648
    keys = [f"GPU-{number:08x}-0000-4000-8000-000000000000" for number in range(count)]
    gpus(
        store, cluster=["c"] * count, gpu=keys, uuid=keys, node=[f"h{number // 6:04}" for number in range(count)],
        slot=[number % 6 for number in range(count)],
    )  # fmt: skip
    fleet = known_gpus(store)
    assert fleet.estimated_size("mb") < 20
    assert search(fleet, "h4607", None, 50).height == 6
    assert isinstance(fleet, pl.DataFrame)
