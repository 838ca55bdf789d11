"""Fleets that a replay takes from a store, and from the published profiles."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from whorl.analysis.placement import scores
from whorl.analysis.replay import Job, Options, Trace
from whorl.analysis.replay.fleet import read_failures
from whorl.analysis.replay.from_store import MeasuredFleets
from whorl.analysis.replay.published import levels, outlying, profiles
from whorl.analysis.replay.study import Case, General
from whorl.errors import InputError
from whorl.store import Store
from whorl.tests.analysis.longhorn import FOLDER, needs_longhorn, raw
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


# -- the published profiles --------------------------------------------------------------------------------------------


EXPS = ("resnet", "bert", "pagerank")


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def small(folder: Path, exp: str, *perf: float) -> Path:
    return write(folder / f"{exp}.csv", "exp,perf,uuid", *(f"{exp},{value},g" for value in perf))


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    return [small(tmp_path, exp, 10 + i, 12 + i, 11 + i) for i, exp in enumerate(EXPS)]


@needs_longhorn
def test_a_folder_as_published() -> None:
    profile_set = profiles([FOLDER])
    assert profile_set.notes == ()
    assert {name: times.size for name, times in profile_set.perf.items()} == {"A": 1404, "B": 1096, "C": 1096, "D": 880}
    assert profile_set.perf["A"][:2].tolist() == [419.4316536, 352.5439696]  # the rows' order, duplicates kept
    assert (profile_set.perf["B"] == profile_set.perf["C"]).all()
    for name, workload in (("A", "resnet50"), ("B", "bert"), ("D", "pagerank")):
        assert np.median(profile_set.relative()[name]) == pytest.approx(1)
        assert set(profile_set.perf[name]) == set(raw(workload)["perf"])


def test_which_is_which_is_read_from_the_files(three: list[Path]) -> None:
    """Names say nothing: the files are renamed in a circle."""
    a, b, d = three
    b.rename(b.with_name("x.csv"))
    a.rename(b)
    d.rename(a)
    profile_set = profiles([b, a, b.with_name("x.csv")])
    assert {name: times[0] for name, times in profile_set.perf.items()} == {"A": 10, "B": 11, "C": 11, "D": 12}


def test_a_file_given_twice_and_a_copy_count_once(three: list[Path], tmp_path: Path) -> None:
    """As the artifact lists BERT's file for two classes."""
    copy = tmp_path / "copy.csv"
    shutil.copy(three[1], copy)
    assert profiles([three[0], three[1], three[1], copy, three[2]]).perf["C"].tolist() == [11, 13, 12]


def test_other_files_of_a_folder_are_passed_over(three: list[Path], tmp_path: Path) -> None:
    write(tmp_path / "workload-1.csv", "job_id,num_gpus", "0,1")
    write(tmp_path / "sgemm.csv", "exp,perf", "sgemm,5")
    write(tmp_path / "notes.csv", "a,b", "1")
    assert len(profiles([tmp_path]).perf) == 4
    with pytest.raises(
        InputError, match=r"workload-1.csv is not one of the published profiles: it has no column `exp`"
    ):
        profiles([*three, tmp_path / "workload-1.csv"])


def test_two_files_of_one_profile(three: list[Path], tmp_path: Path) -> None:
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    with pytest.raises(InputError, match=r"bert.csv and .*other/bert.csv both have bert runs; give only one of them"):
        profiles([*three, small(other_folder, "bert", 1, 2)])


@pytest.mark.parametrize(
    ("left_out", "sentence"),
    [
        (0, "no profile of resnet runs was given, which class A of jobs needs; there is bert and pagerank in "),
        (1, "no profile of bert runs was given, which class B and C of jobs needs"),
        (slice(3), r"no profile of resnet and bert and pagerank runs .* there is none in no file at all"),
    ],
)
def test_a_class_without_a_profile(three: list[Path], left_out: int | slice, sentence: str) -> None:
    del three[left_out]
    with pytest.raises(InputError, match=sentence):
        profiles(three)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("exp,time", "resnet,3"), "resnet.csv has no column perf; it has exp, time"),
        (("exp,perf", "resnet,3", "resnet,fast"), "resnet.csv, line 3: perf is 'fast', which is not a finite number"),
        (("exp,perf", "resnet,"), "resnet.csv, line 2: perf is '', which is not a finite number"),
        (("exp,perf", "resnet,-1"), "resnet.csv, line 2: perf is -1; it must be above 0"),
        (("exp,perf", "resnet,1", "resnet,2", "resnet"), "resnet.csv, line 4: 1 field where 2 are expected"),
        (("exp,perf", "resnet,1", "bert,2"), "resnet.csv is not one of the published profiles"),
        (("exp,perf",), "resnet.csv has no rows"),
    ],
)
def test_a_bad_profile(three: list[Path], lines: tuple[str, ...], sentence: str) -> None:
    write(three[0], *lines)
    with pytest.raises(InputError, match=sentence):
        profiles(three)


def test_an_outlier_gets_a_further_level() -> None:
    """Worked by hand: 62 GPUs at 0.99 and 1.01, one at 2; mean 1.0154, sd 0.126, so the limit is 1.39."""
    scores = np.array([0.99] * 31 + [1.01] * 31 + [2.0])
    assert np.flatnonzero(outlying(scores)).tolist() == [62]
    assert levels(scores) == pytest.approx([0.99 / 1.01] * 31 + [1.0] * 31 + [2.0 / 1.01])
    assert not outlying(scores[:62]).any()
    assert levels(scores[:62]) == pytest.approx(scores[:62])  # over the mean of both levels, the median of two
    assert levels(np.full(8, 1.07)).tolist() == [1.0] * 8
