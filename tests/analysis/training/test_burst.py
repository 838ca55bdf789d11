"""Burst plans beside DeepPool's published ones, brute force, and the right traffic of convolutions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from whorl.analysis.training.burst import (
    BurstQuestion,
    Costs,
    Layer,
    LayerProfile,
    costs_of,
    plan_burst,
    read_network,
    read_profile,
)
from whorl.tests.burst_files import BATCH, write_files

DEEPPOOL = Path(__file__).parents[3].parent / "shared" / "data" / "schedulers" / "deeppool"
needs_deeppool = pytest.mark.skipif(not DEEPPOOL.is_dir(), reason=f"DeepPool's files are not at {DEEPPOOL}")

Vgg16 = tuple[tuple[Layer, ...], LayerProfile]


@pytest.fixture(scope="module")
def vgg16() -> Vgg16:
    return read_network(DEEPPOOL / "vgg16_plans.json"), read_profile(DEEPPOOL / "layer_times_a100.csv.gz", "vgg16")


@needs_deeppool
def test_published_rules_give_the_published_plans_and_exact_ones_are_never_slower(vgg16: Vgg16) -> None:
    rows = json.loads((DEEPPOOL / "vgg16_plans.json").read_text())["rows"]
    assert len(rows) == 60
    for row in rows:
        limit = None if row["limit"] == "data-parallel" else row["limit"]
        plan = plan_burst(*vgg16, BurstQuestion(row["batch"], row["gpus"], limit, "published"))
        assert list(plan.layers) == row["plan"], row
        assert (plan.time_ms, plan.gpu_ms) == pytest.approx((row["iter_ms"], row["gpu_ms"]), abs=1e-4)
        exact = plan_burst(*vgg16, BurstQuestion(row["batch"], row["gpus"], limit, "exact", "published"))
        assert exact.time_ms <= plan.time_ms + 1e-9
        if limit is not None:
            assert exact.gpu_ms <= limit * exact.single_gpu_ms + 1e-9


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Layer, ...], list[LayerProfile]]:
    """A network of six layers and profiles of it."""
    profiles = []
    for seed in range(8):
        profile, network = write_files(tmp_path_factory.mktemp(f"small-{seed}"), seed)
        profiles.append(read_profile(profile))
    return read_network(network), profiles


def _totals(costs: Costs, places: Sequence[int]) -> tuple[float, float]:
    """The time and the GPU time of a plan."""
    took = [
        costs.layer_us[layer, place] + (costs.move_us[layer, places[layer - 1], place] if layer else 0.0)
        for layer, place in enumerate(places)
    ]
    return sum(took), sum(costs.widths[place] * step for place, step in zip(places, took, strict=True))


def test_exact_plans_equal_brute_force(small: tuple[tuple[Layer, ...], list[LayerProfile]]) -> None:
    network, profiles = small
    bound = 0
    for profile in profiles:
        costs = costs_of(network, profile, BurstQuestion(BATCH, 8))
        assert costs.widths == (1, 2, 4, 8)
        everything = [_totals(costs, places) for places in itertools.product(range(4), repeat=6)]
        for limit in (1.0, 1.2, 1.6, 2.5, 1e9):
            least = min(time for time, gpu_time in everything if gpu_time <= limit * costs.single_gpu_us * (1 + 1e-9))
            bound += least > min(everything)[0]
            plan = plan_burst(network, profile, BurstQuestion(BATCH, 8, limit))
            assert plan.time_ms == pytest.approx(least / 1000, rel=1e-12)
    assert bound > 8, "the limit decides"


def test_the_gradients_of_convolutions_are_k_k_cin_cout(small: tuple[tuple[Layer, ...], list[LayerProfile]]) -> None:
    network, profiles = small
    assert [layer.gradient_bytes(published=False) for layer in network] == [
        4 * 9 * 3 * 16, 0, 0, 4 * 9 * 16 * 32, 0, 4 * (8192 * 100 + 100),
    ]  # fmt: skip
    assert [network[number].gradient_bytes(published=True) for number in (0, 3)] == [4 * (3 * 32 + 3), 4 * (3 * 16 + 3)]
    times = [
        plan_burst(network, profiles[0], BurstQuestion(BATCH, 8, None, "exact", traffic, 1e3)).time_ms
        for traffic in ("right", "published")
    ]
    extra = 4 * 9 * (3 * 16 + 16 * 32) - 4 * (3 * 32 + 3 + 3 * 16 + 3)
    assert times[0] - times[1] == pytest.approx(extra / 1e3 / 1e3)


def test_stages_and_idle_shares_add_up(small: tuple[tuple[Layer, ...], list[LayerProfile]]) -> None:
    network, profiles = small
    plan = plan_burst(network, profiles[2], BurstQuestion(BATCH, 8, 1.5))
    assert sum(share for _, share in plan.stages) == pytest.approx(1)
    assert np.mean(plan.idle_shares) == pytest.approx(plan.idle_share)
    assert plan.idle_share == pytest.approx(1 - plan.gpu_ms / plan.time_ms / plan.width)
