"""Fleets of several models and board variants: each GPU is compared with its like, and the answers are told apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whorl.analysis.placement import advise, scores
from whorl.errors import InputError
from whorl.jobs import steering as jobs
from whorl.jobs.steering import Steering
from whorl.store import Store
from whorl.tests.analysis.placement.fleets import Fleet, Floats, noise

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
