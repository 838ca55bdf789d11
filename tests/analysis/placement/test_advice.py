"""Advice for fleets whose scores are known: what it excludes, what it promises, and whether that comes true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis import measurements
from whorl.analysis.placement import Advice, Gain, Scores, advise, scores
from whorl.analysis.placement.advice import finding
from whorl.errors import InputError
from whorl.jobs import steering as jobs
from whorl.jobs.steering import Steering
from whorl.store import Store
from whorl.tests.analysis.longhorn import needs_longhorn
from whorl.tests.analysis.placement.fleets import BEGAN, Fleet, Floats, noise
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import build_longhorn
from whorl.tests.sizes import count
from whorl.tests.stores import new_store

NOW = BEGAN + timedelta(days=10)


def _slow(gpus: int = 80, **slow: float) -> Floats:
    true_scores = np.ones(gpus)
    for name, score in slow.items():
        true_scores[int(name[1:])] = score
    return true_scores


def _scores(tmp_path: Path, true_scores: Floats, *, runs: int = 3, sd: float = 0.02) -> Scores:
    fleet = Fleet(len(true_scores)).run("w", true_scores, noise(np.random.default_rng(0), len(true_scores), runs, sd))
    return scores(fleet.store(tmp_path / "S"))


def _gain(advice: Advice, choice: str, against: str) -> Gain:
    (fleet_scores,) = [gain for gain in advice.gains if (gain.choice, gain.against) == (choice, against)]
    return fleet_scores


def test_a_slow_gpu_is_not_hidden_by_slower_ones(tmp_path: Path) -> None:
    """Four GPUs at 1.4 times the usual time, of 16, make what chance gives the largest of 16 large."""
    for seed in range(count(6, short=1)):
        rng = np.random.default_rng(seed)
        true_scores = _slow(16, g4=1.4, g5=1.4, g6=1.4, g7=1.4, g13=1.25) * np.exp(rng.normal(0.0, 0.01, 16))
        fleet = Fleet(16).run("w", true_scores, noise(rng, 16, 4, 0.005))
        advice = advise(scores(fleet.store(tmp_path / f"S{seed}")), "w", max_share=1.0, now=NOW)
        assert advice.exclude == ("n0001", "n0003")


def test_a_gpu_that_is_braked_is_excluded_though_it_was_measured_twice_only(tmp_path: Path) -> None:
    """What `whorl demo` run twice has: a board that takes 1.17 times as long, among others that hardly differ."""
    gpus = 32
    fleet = Fleet(gpus)
    for seed in range(count(6, short=1)):
        rng = np.random.default_rng([seed, gpus])
        true_scores = np.exp(rng.normal(0.0, 0.012, gpus))
        fleet.run(f"healthy-{seed}", true_scores, noise(rng, gpus, 2, 0.002))
        true_scores[9] = 1.17
        fleet.run(f"braked-{seed}", true_scores, noise(rng, gpus, 2, 0.002))
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    for seed in range(count(6, short=1)):
        advice = advise(fleet_scores, f"braked-{seed}", now=NOW)
        assert advice.exclude == ("n0002",)
        assert _gain(advice, "exclude", "random").measurable
        assert advise(fleet_scores, f"healthy-{seed}", now=NOW).exclude == ()


def test_where_gpus_hardly_differ_a_slow_node_is_told_and_none_is_preferred(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fleet = Fleet(80)
    true_scores = np.exp(rng.normal(0.0, 0.004, 80))
    true_scores[20] = 1.08
    fleet.run("bound", true_scores, noise(rng, 80, 4, 0.002))
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    advice = advise(fleet_scores, "bound", gpus=4, now=NOW)
    assert not advice.sensitive
    assert [(node.node, node.tier) for node in advice.nodes] == [("n0005", "soft")]
    assert (advice.exclude, advice.prefer) == ((), ())
    assert "n0005" in advice.finding


def test_why_a_node_is_not_excluded_however_slow_is_said(tmp_path: Path) -> None:
    true_scores = np.repeat([1.0, 1.0, 1.3], 16)
    fleet_scores = _scores(tmp_path, true_scores, runs=2, sd=0.01)
    advice = advise(fleet_scores, "w", now=NOW)
    assert {node.tier for node in advice.nodes} == {"soft"}
    assert advice.exclude == ()
    assert "too many nodes are slow" in advice.finding
    assert "3 more" in advice.finding
    for lower, runs, why in ((1.1, 2, "not above 1.1"), (1.11, 1, "only one run"), (1.11, 2, "does not stand out")):
        node = replace(advice.nodes[0], lower=lower, runs=runs)
        sentence = finding(replace(advice, nodes=(node,)), 0.1, 1.1, spared=None, once=False)
        assert sentence.startswith(f"Exclude nothing: {node.node} takes ")
        assert why in sentence
        assert "more is" not in sentence


@pytest.mark.long
def test_noise_gives_no_gain_and_excludes_nobody(tmp_path: Path) -> None:
    fleet = Fleet(48)
    for seed in range(20):
        fleet.run(f"w{seed}", np.ones(48), noise(np.random.default_rng(seed), 48, 3, 0.05, glitches=0.1 * (seed % 2)))
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    promised = 0
    for workload in fleet_scores.workloads:
        advices = [advise(fleet_scores, workload, gpus=gpus, now=NOW) for gpus in (1, 4, 16)]
        promised += any(gain.measurable for advice in advices for gain in advice.gains)
        for advice in advices:
            assert advice.exclude == ()
            if not advice.repeatable:
                assert all((gain.median, gain.lower, gain.upper) == (0.0, 0.0, 0.0) for gain in advice.gains)
                assert advice.packed is None
                assert not advice.sensitive
    assert promised <= 4  # one fleet in twenty is said to differ: of 20, five or more have a chance of 0.3 %


def test_no_more_than_the_stated_share_is_excluded_worst_first(tmp_path: Path) -> None:
    true_scores = _slow(128, g1=1.5, g20=2.8, g40=2.0, g60=1.8)
    fleet_scores = _scores(tmp_path, true_scores)
    advice = advise(fleet_scores, "w", now=NOW)  # 5 % of 32 nodes is one
    assert advice.exclude == ("n0005",)
    assert [(node.node, node.excluded) for node in advice.nodes] == [
        ("n0005", True),
        ("n0010", False),
        ("n0015", False),
        ("n0000", False),
    ]
    assert any("max-share=13%" in note for note in advice.notes)
    assert len(advise(fleet_scores, "w", now=NOW, max_share=0.13).exclude) == 4
    assert len(advise(fleet_scores, "w", now=NOW, max_share=0.1).exclude) == 3
    assert advise(fleet_scores, "w", now=NOW, max_share=0.0).exclude == ()
    # "drained" is against all of them, excluded or not.
    assert not _gain(advice, "packed", "drained").measurable


def test_the_best_sets_keep_off_hard_nodes_whose_other_gpus_are_the_fastest(tmp_path: Path) -> None:
    gpus = 3
    true_scores = _slow(32, g21=2.8)
    true_scores[[20, 22, 23]] = 0.7
    fleet_scores = _scores(tmp_path, true_scores)
    advice = advise(fleet_scores, "w", gpus=gpus, now=NOW)
    assert advice.packed is not None
    assert advice.spread is not None
    assert "n0005" not in (*advice.packed.nodes, *advice.spread.nodes)
    everything = advise(fleet_scores, "w", gpus=30, now=NOW)
    assert everything.spread is not None
    assert "n0005" in everything.spread.nodes


@pytest.mark.long
def test_twice_as_many_gpus_as_the_job_needs_are_left(tmp_path: Path) -> None:
    fleet_scores = _scores(tmp_path, _slow(32, g9=2.8))
    assert advise(fleet_scores, "w", gpus=14, now=NOW).exclude == ("n0002",)
    advice = advise(fleet_scores, "w", gpus=15, now=NOW)
    assert advice.exclude == ()
    assert any("fewer than 30 GPUs" in note for note in advice.notes)
    assert not advice.nodes[0].excluded


def test_only_nodes_of_the_partition_are_advised(tmp_path: Path) -> None:
    fleet_scores = _scores(tmp_path, _slow(g9=2.8, g33=2.0))
    partition = ["n0008", "n0009", "n0010", "n0011", "n0012", "other"]
    advice = advise(fleet_scores, "w", gpus=4, partition=partition, max_share=0.2, now=NOW)
    assert advice.exclude == ("n0008",)
    assert set(advice.score_of_node) == set(partition) - {"other"}
    assert advice.cost.nodes == 6
    assert advice.packed is not None
    assert set(advice.packed.nodes) <= set(partition)
    assert any("1 of the 6 nodes of the partition were not measured" in note for note in advice.notes)
    with pytest.raises(InputError, match="the job needs 1 GPUs, but only 0 GPUs of the partition"):
        advise(fleet_scores, "w", partition=["elsewhere"], now=NOW)


def test_old_scores_and_changed_drivers_are_said(tmp_path: Path) -> None:
    fleet = Fleet(80).run("w", _slow(g9=2.8), noise(np.random.default_rng(0), 80, 3))
    fleet.identity("g00009", driver="550.1", first_seen=BEGAN - timedelta(days=9))
    fleet.identity("g00009", driver="560.1", first_seen=BEGAN + timedelta(days=5))
    fleet_scores = scores(fleet.store(tmp_path / "S"))
    advice = advise(fleet_scores, "w", now=NOW)
    stale = advice.nodes[0].stale
    assert stale is not None
    assert "550.1 to 560.1" in stale
    assert advice.staleness.stale_gpus == 1
    assert advice.exclude == ("n0002",)  # shown, and for people to judge
    late = advise(fleet_scores, "w", now=BEGAN + timedelta(days=200))
    assert late.staleness.stale_gpus == 80
    assert late.staleness.says is not None
    assert "all scores may be out of date" in late.staleness.says
    assert advise(fleet_scores, "w", now=BEGAN + timedelta(days=200), max_age=365).staleness.stale_gpus == 1


def test_runs_of_simulated_gpus_do_not_age(tmp_path: Path) -> None:
    """Their clock is the simulation's: how long ago that was by ours says nothing."""
    fleet = Fleet(40).run("w", _slow(40, g9=2.8), noise(np.random.default_rng(0), 40, 3))
    real = "g00033"
    late = BEGAN + timedelta(days=200)
    for simulated, stale in ((True, 0), (False, 1)):
        fleet.tables["runs"]["conditions"] = [
            {"suite": "quick", "simulated": simulated or gpu != real} for gpu in fleet.tables["runs"]["gpu"]
        ]
        fleet_scores = scores(fleet.store(tmp_path / f"S{stale}", places=simulated))
        advice = advise(fleet_scores, "w", now=late)
        assert advice.staleness.stale_gpus == stale
        assert advice.staleness.simulated_gpus == 40 - stale
        assert (advice.staleness.newest_days is None) == (advice.staleness.says is None) == simulated
        (node,) = advice.nodes
        assert (node.simulated, node.age_days, node.stale) == (True, None, None)


def test_a_slow_gpu_on_no_known_node_excludes_none_but_is_told(tmp_path: Path) -> None:
    fleet = Fleet(80).run("w", _slow(g9=2.8), noise(np.random.default_rng(0), 80, 3))
    for number, name in enumerate(fleet.names):
        if number != 9:
            fleet.identity(name, node=fleet.node(number), slot=number % 4)
    advice = advise(scores(fleet.store(tmp_path / "S", places=False)), "w", gpus=4, now=NOW)
    assert advice.exclude == ()
    assert any("g00009 is certainly slow (2." in note and "find it" in note for note in advice.notes)


def test_without_any_node_there_are_sets_but_nothing_packed(tmp_path: Path) -> None:
    true_scores = np.exp(np.random.default_rng(2).normal(0.0, 0.05, 64))
    fleet = Fleet(64).run("w", true_scores, noise(np.random.default_rng(0), 64, 4))
    advice = advise(scores(fleet.store(tmp_path / "S", places=False)), "w", gpus=4, now=NOW)
    assert advice.packed is None
    assert advice.spread is not None
    assert advice.spread.nodes == ()
    assert len(advice.spread.gpus) == 4
    assert advice.nodes == ()
    assert advice.cost.nodes == 0


@pytest.mark.long
@pytest.mark.parametrize("factor", [1e60, 1e-60])
def test_times_out_of_all_proportion_are_survived(tmp_path: Path, factor: float) -> None:
    fleet_scores = _scores(tmp_path, _slow(g9=factor))
    advice = advise(fleet_scores, "w", gpus=4, now=NOW)
    assert advice.exclude == (("n0002",) if factor > 1.0 else ())
    json.dumps(advice.as_dict(), allow_nan=False)


def test_what_cannot_be_answered_is_refused_in_a_sentence(tmp_path: Path) -> None:
    fleet_scores = _scores(tmp_path, _slow(16, g3=2.0))
    with pytest.raises(InputError, match="the job needs 17 GPUs, but only 16 GPUs on c were measured in w"):
        advise(fleet_scores, "w", gpus=17, now=NOW)
    with pytest.raises(InputError, match="at least one GPU"):
        advise(fleet_scores, "w", gpus=0, now=NOW)
    with pytest.raises(InputError, match="no scores of workload v; there are w"):
        advise(fleet_scores, "v", now=NOW)
    with pytest.raises(InputError, match="locality-penalty"):
        advise(fleet_scores, "w", locality_penalty=0.9, now=NOW)


# -- real fleets -------------------------------------------------------------------------------------------------------
# Advice from the published Longhorn measurements comes true.


@pytest.fixture(scope="module")
def longhorn(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("contract-longhorn", build_longhorn) / "store")


def _against(gains: tuple[Gain, ...], choice: str) -> Gain:
    return next(gain for gain in gains if (gain.choice, gain.against) == (choice, "random"))


@pytest.mark.long
@needs_longhorn
def test_what_the_first_half_of_the_runs_promises_comes_true_in_the_second(longhorn: Store, tmp_path: Path) -> None:
    """SGEMM runs over six weeks: advice from each GPU's earlier runs, judged by its later ones."""
    frame = measurements(longhorn, workloads=["sgemm"], run_ids=True).sort("began", nulls_last=True)
    place = pl.int_range(pl.len()).over("gpu")
    early = frame.filter(place < pl.len().over("gpu") // 2)
    late = frame.filter(place >= pl.len().over("gpu") // 2).group_by("gpu").agg(pl.col("value").median())
    store = new_store(tmp_path / "early")
    run_ids = early["run_id"].implode()
    store.append(
        {
            "runs": longhorn.collect(longhorn.scan("runs").filter(pl.col("run_id").is_in(run_ids))).to_arrow(),
            "results": longhorn.collect(longhorn.scan("results").filter(pl.col("run_id").is_in(run_ids))).to_arrow(),
            "gpus": longhorn.collect(longhorn.scan("gpus")).to_arrow(),
        },
        "early",
    )
    fleet_scores = scores(store, ["sgemm"])
    later = {str(gpu): value for gpu, value in late.iter_rows()}
    times = np.array([later[gpu] for gpu in fleet_scores.gpus])
    scored, usual = fleet_scores.of["sgemm"], times / np.median(times)
    # Held by the 90 % intervals: those of the runs at hand held half.
    assert np.mean((scored.lower <= usual) & (usual <= scored.upper)) > 0.85
    homed = np.array([node is not None for node in fleet_scores.nodes])
    for gpus in (1, 4, 16):
        spread = advise(fleet_scores, "sgemm", gpus=gpus).spread
        assert spread is not None
        chosen = np.array([gpu in spread.gpus for gpu in fleet_scores.gpus])
        rng = np.random.default_rng(0)
        random = np.mean([rng.choice(times[homed], gpus, replace=False).max() for _ in range(4000)])
        promised = _against(advise(fleet_scores, "sgemm", gpus=gpus).gains, "spread")
        assert 1.0 - times[chosen].max() / random == pytest.approx(promised.median, abs=0.012)


# -- several models and board variants: each GPU is compared with its like ---------------------------------------------


V100, A100 = "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB"
TIME = {V100: 2.5, A100: 1.5}


class Mixed(Fleet):
    """Nodes v0, v1, ... of V100 and a0, a1, ... of A100, four GPUs each."""

    def __init__(self, v100: int = 3, a100: int = 4) -> None:
        super().__init__(4 * (v100 + a100))
        self.nodes = [f"v{n}" for n in range(v100)] + [f"a{n}" for n in range(a100)]

    def node(self, gpu: int) -> str:
        return self.nodes[gpu // 4]

    def model(self, gpu: int) -> str:
        return V100 if self.node(gpu).startswith("v") else A100

    def measured(self, slow: Mapping[str, float], seed: int = 0, runs: int = 4, spread: float = 0.01) -> Mixed:
        rng = np.random.default_rng(seed)
        gpu_times = np.exp(rng.normal(0.0, spread, self.gpus))
        gpu_times *= [TIME[self.model(gpu)] * slow.get(self.node(gpu), 1.0) for gpu in range(self.gpus)]
        self.run("w", gpu_times, noise(rng, self.gpus, runs, 0.003))
        return self

    def kept(self, path: Path, *, with_models: bool = True) -> Store:
        for gpu, name in enumerate(self.names):
            model = self.model(gpu) if with_models else None
            self.identity(name, node=self.node(gpu), slot=gpu % 4, model=model)
        return self.store(path, places=False)


def asked(store: Store, **options: Any) -> Steering:
    if "nodes" not in options:
        options["no_scheduler"] = True
    return jobs.advise(store, "w", **options)


def test_a_slow_node_is_found_among_its_own_model_and_the_slower_model_is_no_fault(tmp_path: Path) -> None:
    store = Mixed().measured({"a2": 1.4}).kept(tmp_path / "S")
    with_models = jobs.advise(store, f"w [{A100}]", no_scheduler=True).advice
    assert (with_models.workload, with_models.exclude) == (f"w [{A100}]", ("a2",))
    answer = asked(store, gpus=4)
    advice = answer.advice
    assert advice.exclude == ("a2",)
    assert [(node.node, node.tier) for node in advice.nodes] == [("a2", "hard")]
    assert 1.35 < advice.nodes[0].slowdown < 1.45
    assert advice.nodes[0].reference == f"16 GPUs ({A100}) on 4 nodes"
    assert advice.workload == "w"
    assert [kind.workload for kind in advice.kinds] == [A100, V100], "the faster one first"
    on_a100, on_v100 = advice.kinds
    assert (on_a100.exclude, on_v100.exclude, on_v100.nodes) == (("a2",), (), ())
    assert advice.finding == f"{A100}: {on_a100.finding} {V100}: {on_v100.finding}"
    assert advice.gains == (), "a random choice between models is none"
    for kind in advice.kinds:
        assert {gain.choice for gain in kind.gains} >= {"packed", "spread"}
        assert all(gain.median < 0.3 for gain in kind.gains), "that A100 are faster is no gain of placement's"
    assert advice.packed == on_a100.packed
    assert set(answer.nodelist()) <= {"a0", "a1", "a3"}
    assert (advice.cost.nodes, advice.cost.gpus_left, advice.staleness.gpus) == (7, 24, 28)
    assert [(scored.model, scored.gpus, scored.nodes) for scored in advice.references] == [(A100, 16, 4), (V100, 12, 3)]
    assert advice.references[1].usual_ms / advice.references[0].usual_ms == pytest.approx(2.5 / 1.5, rel=0.03)
    assert set(advice.score_of_node) == set(Mixed().nodes)
    assert [kind["exclude"] for kind in advice.as_dict()["kinds"]] == [["a2"], []]


@pytest.mark.long
def test_the_nodes_of_a_partition_or_a_model_get_advice_of_their_own(tmp_path: Path) -> None:
    store = Mixed().measured({"a2": 1.4, "v1": 1.3}).kept(tmp_path / "S")
    of_both = asked(store).advice
    assert of_both.exclude == ("a2", "v1")
    for options in ({"nodes": ["a0", "a1", "a2", "a3"]}, {"model": "a100"}, {"model": A100}):
        answer = asked(store, **options).advice
        assert (answer.workload, answer.exclude, answer.kinds) == ("w", ("a2",), ())
        assert answer.references == of_both.kinds[0].references, (
            "the reference set is that of the model, not the partition"
        )
        assert "Tesla" not in answer.finding + " ".join(answer.notes)
        assert "sgemm [" not in answer.finding
    assert asked(store, nodes=["v0", "v1", "v2"]).advice.exclude == ("v1",)
    scored = asked(store, nodes=["a2", "v0"]).advice
    assert [node.node for node in scored.nodes] == ["a2"], "still slow beside its model, also where it is the only one"
    with pytest.raises(InputError, match=f"no GPU of model 'h100' was measured in w; there are {A100}, {V100}"):
        asked(store, model="h100")
    with pytest.raises(InputError, match=f"needs 20 GPUs of one model, but there are only 16 of {A100} and 12 of "):
        asked(store, gpus=20)
    large = asked(store, gpus=14).advice
    assert large.packed is not None
    assert {node[0] for node in large.packed.nodes} == {"a"}
    assert f"left out, because the job does not fit there: {V100} (GPUs: 12)" in large.notes


def test_a_model_with_one_node_says_what_cannot_be_told(tmp_path: Path) -> None:
    store = Mixed(v100=1).measured({"v0": 1.4}).kept(tmp_path / "S")
    answer = asked(store).advice
    assert answer.exclude == ()
    [note] = [note for note in answer.notes if "as a whole" in note]
    assert note.startswith(f"{V100}: 4 GPUs")
    assert "v0" in note


def _boards(path: Path, slower: float, slow: Mapping[int, float], seed: int = 0) -> tuple[Store, Floats]:
    """Sixteen nodes; the boards of every third one have another VBIOS and are so much slower."""
    fleet, rng = Fleet(64), np.random.default_rng(seed)
    is_b = np.arange(64) // 4 % 3 == 1
    gpu_times = np.exp(rng.normal(0.0, 0.008, 64)) * np.where(is_b, slower, 1.0)
    for gpu, factor in slow.items():
        gpu_times[gpu] *= factor
    fleet.run("w", gpu_times, noise(rng, 64, 4, 0.003))
    for gpu, name in enumerate(fleet.names):
        fleet.identity(name, node=fleet.node(gpu), slot=gpu % 4, model=A100, vbios="B" if is_b[gpu] else "A")
    return fleet.store(path, places=False), fleet.true_scores["w"]


def test_slower_boards_are_no_faults_and_a_fault_among_them_is_found(tmp_path: Path) -> None:
    store, true_scores = _boards(tmp_path / "S", 1.2, {5: 1.25, 20: 1.3})
    answer = scores(store, ["w"])
    advice = advise(answer, "w", gpus=4, max_share=0.2)
    assert [(scored.vbios, scored.gpus, scored.nodes) for scored in advice.references] == [("A", 44, 11), ("B", 20, 5)]
    slow = {node.node: node for node in advice.nodes}
    assert set(slow) == {"n0001", "n0005"} == set(advice.exclude)
    assert "VBIOS B" in slow["n0001"].reference
    assert slow["n0001"].slowdown == pytest.approx(1.25, rel=0.02)
    assert any("1.2" in note and "boards of its own VBIOS" in note for note in advice.notes)
    scored = answer.of["w"]
    inside = (scored.posterior.lower * scored.usual <= true_scores) & (
        true_scores <= scored.posterior.upper * scored.usual
    )
    assert inside.mean() > 0.8, "scores are times over the whole fleet's"
    drawn = np.mean([answer.one("w").draw(np.random.default_rng(seed)) for seed in range(200)], axis=0)
    assert drawn == pytest.approx(scored.belief, rel=0.01)
    assert advice.packed is not None
    assert all(int(node[1:]) % 3 != 1 for node in advice.packed.nodes), "the best set is on the faster boards"
