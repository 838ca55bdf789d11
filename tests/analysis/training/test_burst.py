"""Burst plans beside DeepPool's published ones, brute force, and the right traffic of convolutions."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
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
from whorl.analysis.training.gang import depths_of, gradient_shares, slack, step
from whorl.tests.analysis.longhorn import needs_longhorn, raw
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


@pytest.mark.parametrize("gpus", range(1, 8))
def test_the_deepest_on_the_fastest_is_the_best_of_all_orders(gpus: int) -> None:
    rng = np.random.default_rng(gpus)
    orders = np.array(list(itertools.permutations(range(gpus))))
    for backward in (0.3, 2 / 3, 0.95):
        scores = np.sort(rng.lognormal(0, 0.3, gpus))
        best = step(scores, depths_of(gpus), backward)
        assert best == pytest.approx(step(scores[orders], depths_of(gpus), backward).min(), rel=1e-12)


@pytest.mark.parametrize(("gpus", "layers"), [(4, 8), (4, 10), (8, 3), (1, 5), (3, 1)])
def test_a_layer_sends_the_share_of_the_gpus_that_have_it(gpus: int, layers: int) -> None:
    having = [
        sum(layer > layers - math.ceil(k * layers / gpus) for k in range(1, gpus + 1)) for layer in range(1, layers + 1)
    ]
    assert gradient_shares(gpus, layers) == pytest.approx(np.array(having) / gpus)


# By workload and GPUs: the step with full backpropagation, with the depths in random order, with the deepest on the
# fastest, and the slack then.
TABLE = {
    ("sgemm", 4): (1.018, 1.000, 0.983, 0.240),
    ("sgemm", 8): (1.029, 1.002, 0.977, 0.278),
    ("sgemm", 16): (1.042, 1.002, 0.972, 0.295),
    ("resnet50", 4): (1.035, 1.004, 0.980, 0.235),
    ("resnet50", 8): (1.052, 1.004, 0.975, 0.274),
    ("resnet50", 16): (1.069, 1.007, 0.969, 0.293),
}


@pytest.mark.long
@needs_longhorn
@pytest.mark.parametrize(("workload", "gpus"), TABLE)
def test_the_steps_on_longhorn(workload: str, gpus: int) -> None:
    medians = raw(workload).group_by("uuid").agg(pl.col("perf").median()).sort("uuid")["perf"].to_numpy()
    scores, rng = medians / np.median(medians), np.random.default_rng(5)
    gangs = np.array([rng.choice(scores, gpus, replace=False) for _ in range(4000)])
    fastest, depths = np.sort(gangs, axis=1), depths_of(gpus)
    figures = (
        gangs.max(axis=1).mean(),
        step(gangs, depths, 2 / 3).mean(),
        step(fastest, depths, 2 / 3).mean(),
        slack(fastest, depths, 2 / 3).mean(),
    )
    assert figures == pytest.approx(TABLE[workload, gpus], abs=0.003)
