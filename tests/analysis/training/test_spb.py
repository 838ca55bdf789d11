"""Structured partial backpropagation: the order of depths, what it leaves idle, and the traffic of gradients."""

from __future__ import annotations

import itertools
import math

import numpy as np
import polars as pl
import pytest

from whorl.analysis.training.gang import depths_of, gradient_shares, slack, step
from whorl.tests.analysis.longhorn import needs_longhorn, raw


@pytest.mark.parametrize("gpus", range(1, 8))
def test_the_deepest_on_the_fastest_is_the_best_of_all_orders(gpus: int) -> None:
    rng = np.random.default_rng(gpus)
    orders = np.array(list(itertools.permutations(range(gpus))))
    for backward in (0.3, 2 / 3, 0.95):
        scores = np.sort(rng.lognormal(0, 0.3, gpus))
        best = step(scores, depths_of(gpus), backward)
        assert best == pytest.approx(step(scores[orders], depths_of(gpus), backward).min(), rel=1e-12)


def test_equal_gpus_have_no_order_and_the_slack_of_the_formula() -> None:
    for gpus, share in ((4, 0.25), (8, 0.2917), (16, 0.3125)):
        scores = np.full(gpus, 1.7)
        orders = np.random.default_rng(1).permuted(np.tile(depths_of(gpus), (20, 1)), axis=1)
        assert np.ptp(step(scores, orders, 2 / 3)) == 0
        assert slack(scores, depths_of(gpus), 2 / 3) == pytest.approx(share, abs=1e-4)


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
