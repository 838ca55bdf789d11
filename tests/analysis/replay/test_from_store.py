"""Fleets out of a store: who stands where, what policies believe, and what jobs run at."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.analysis.placement import scores
from whorl.analysis.replay import Job, Options, Trace
from whorl.analysis.replay.fleet import read_failures
from whorl.analysis.replay.from_store import EqualFleets, MeasuredFleets
from whorl.analysis.replay.study import Case, General
from whorl.errors import InputError
from whorl.store import Store
from whorl.tests.analysis.replay.measured_fleet import GPUS_PER_NODE, NAMES, NODES, fleet_store

SLOW = 13  # place of the GPU that is planted slow


def spread(seed: int, sd: float = 0.03) -> NDArray[np.float64]:
    values = np.exp(sd * np.random.default_rng(seed).standard_normal(len(NAMES)))
    values[SLOW] = 1.8
    return np.asarray(values / np.median(values))


@pytest.fixture(scope="module")
def planted() -> NDArray[np.float64]:
    return spread(5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, planted: NDArray[np.float64]) -> str:
    folder = tmp_path_factory.mktemp("fleet")
    return fleet_store(folder, {"gemm": planted, "stream": spread(6), "noise": np.ones(len(NAMES))}, noise=0.002)


scored = cache(lambda store, workloads: scores(Store.open(store), workloads))


def of(store: str, *workloads: str, **shape: int) -> MeasuredFleets:
    return MeasuredFleets(scored(store, workloads), workloads, **shape)


def test_the_measured_fleet_stands_as_it_is(store: str, planted: NDArray[np.float64]) -> None:
    """Whole nodes, in an order that every seed draws anew; in a node the GPUs in theirs."""
    world = of(store, "gemm").draw(0)
    places = [NAMES.index(name) for name in world.fleet.gpu_names]
    assert sorted(places) == list(range(len(NAMES)))
    assert places != sorted(places)
    assert world.fleet.node.tolist() == [number // GPUS_PER_NODE for number in range(len(NAMES))]
    assert [world.fleet.node_names[n] for n in world.fleet.node] == [
        f"n{place // GPUS_PER_NODE:02}" for place in places
    ]
    assert [place % GPUS_PER_NODE for place in places] == list(range(GPUS_PER_NODE)) * NODES
    assert world.beliefs.rates.scores["gemm"] == pytest.approx(planted[places], abs=0.01)
    assert world.rates.scores["gemm"] == pytest.approx(planted[places], abs=0.02)
    assert world.rates.power is not None
    assert world.rates.power.gpu_w["gemm"][places.index(SLOW)] == pytest.approx(250 / planted[SLOW], rel=1e-3)


@pytest.mark.parametrize("node", ["n03", "3"])
def test_a_named_node_is_the_one_that_fails_in_every_seed(store: str, tmp_path: Path, node: str) -> None:
    """Every seed draws the order of the nodes anew; a number is that of the order of their names."""
    source = of(store, "gemm")
    path = tmp_path / "failures.csv"
    path.write_text(f"node,down_s,up_s\n{node},0,\n")
    options = Options(failures=read_failures(path, source.node_names))
    jobs = Trace("all that is left", (Job("wide", 0, len(NAMES) - GPUS_PER_NODE, 100, "gemm"),))
    study = General((jobs,), source, options)
    for seed in range(5):
        replayed = study.run(Case(0, "packed", "fifo", seed, record=True))
        assert replayed.outcome is not None
        assert replayed.outcome.spans is not None
        assert replayed.world is not None
        held = {replayed.world.fleet.gpu_names[gpu][:3] for gpu in replayed.outcome.spans[0].gpus}
        assert held == {name[:3] for name in NAMES} - {"n03"}


@pytest.mark.long
def test_noise_is_believed_by_nobody(tmp_path: Path) -> None:
    """GPUs that do not differ, measured noisily: policies see 1 everywhere, whatever the medians were."""
    store = fleet_store(tmp_path, {"noise": np.ones(len(NAMES))}, noise=0.05)
    world = of(store, "noise").draw(0)
    assert world.beliefs.rates.scores["noise"].tolist() == [1.0] * len(NAMES)


@pytest.mark.long
def test_a_gpu_is_drawn_with_all_its_scores(store: str) -> None:
    """12 nodes of 6 from 8 nodes of 4: GPU by GPU, some twice; both scores are always of one measured GPU."""
    world = of(store, "gemm", "stream", nodes=12, gpus_per_node=6).draw(3)
    assert (len(world.fleet), len(world.fleet.node_names)) == (72, 12)
    measured_world = of(store, "gemm", "stream").draw(0)
    pairs = set(
        zip(measured_world.beliefs.rates.scores["gemm"], measured_world.beliefs.rates.scores["stream"], strict=True)
    )
    drawn = list(zip(world.beliefs.rates.scores["gemm"], world.beliefs.rates.scores["stream"], strict=True))
    assert set(drawn) == pairs
    assert max(drawn.count(pair) for pair in pairs) == 3
    assert min(drawn.count(pair) for pair in pairs) == 2


@pytest.mark.long
def test_whole_nodes_are_drawn_where_their_size_is_asked_for(store: str) -> None:
    source = of(store, "gemm", nodes=5, gpus_per_node=GPUS_PER_NODE)
    measured_scores = of(store, "gemm").draw(0).beliefs.rates.scores["gemm"].reshape(NODES, GPUS_PER_NODE)
    measured_nodes = {tuple(row) for row in measured_scores}
    drawn_nodes = set()
    for seed in range(6):
        rows = [tuple(row) for row in source.draw(seed).beliefs.rates.scores["gemm"].reshape(5, GPUS_PER_NODE)]
        assert len(set(rows)) == 5
        assert set(rows) <= measured_nodes
        drawn_nodes.add(tuple(rows))
    assert len(drawn_nodes) > 1
    assert any(note.endswith("5 nodes are drawn from 8 measured ones, again for each seed") for note in source.notes)
    larger = of(store, "gemm", nodes=NODES + 1, gpus_per_node=GPUS_PER_NODE)
    assert any(note.endswith("again for each seed, some more than once") for note in larger.notes)


def test_gpus_of_unknown_nodes_stand_in_made_up_ones(tmp_path: Path) -> None:
    store = fleet_store(tmp_path, {"gemm": spread(1)}, nodes=False)
    source = of(store, "gemm")
    world = source.draw(0)
    assert np.bincount(world.fleet.node).tolist() == [4] * 8
    assert any("the node of 32 GPUs is unknown" in note for note in source.notes)


def test_a_shape_has_two_sides(store: str) -> None:
    with pytest.raises(InputError, match="--nodes and --gpus-per-node go together"):
        of(store, "gemm", nodes=3)


def test_a_level_fleet_is_alike_for_every_seed() -> None:
    world = EqualFleets(3, 2, 1.5).draw(9)
    assert (len(world.fleet), len(world.fleet.node_names), world.rates.locality, dict(world.rates.scores)) == (
        6,
        3,
        1.5,
        {},
    )
