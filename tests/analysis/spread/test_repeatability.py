"""The ICC and the shares of variance against plain sums, balanced analysis of variance and known components."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from whorl.analysis.statistics.repeatability import Moments, icc, shares

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def moments(values: Floats, group: Ints) -> Moments:
    order = np.argsort(group, kind="stable")
    return Moments.of(values[order], np.concatenate(([0], np.cumsum(np.bincount(group)))))


def by_definition(values: Floats, group: Ints) -> tuple[float, float, float]:
    """ICC(1), sd between and sd within, from the sums of the definition."""
    parts = [values[group == g] for g in np.unique(group)]
    k, n, grand = len(parts), len(values), values.mean()
    msb = sum(len(p) * (p.mean() - grand) ** 2 for p in parts) / (k - 1)
    msw = sum(((p - p.mean()) ** 2).sum() for p in parts) / (n - k)
    n0 = (n - sum(len(p) ** 2 for p in parts) / n) / (k - 1)
    between = max(0.0, (msb - msw) / n0)
    return between / (between + msw), np.sqrt(between), np.sqrt(msw)


def test_icc_by_definition() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(2, 15))
        group = np.repeat(np.arange(count), rng.integers(1, 9, count) + (seed == 0))
        if len(group) == count:
            continue
        values = 2440 + rng.normal(0, seed % 5, count)[group] + rng.normal(0, 1, len(group))
        estimate = icc(moments(values, group), "gpu")
        value, between, within = by_definition(values, group)
        assert estimate.value == pytest.approx(value, abs=1e-9)
        assert estimate.sd_between_pct == pytest.approx(100 * between / values.mean(), rel=1e-6, abs=1e-9)
        assert estimate.sd_within_pct == pytest.approx(100 * within / values.mean(), rel=1e-9)


def machine(
    seed: int, sds: tuple[float, float, float, float], unbalanced: bool, cabinets: int = 8
) -> tuple[Floats, Ints, Ints, Ints]:
    """Values with their GPU, and each GPU's node and cabinet."""
    rng = np.random.default_rng([9, seed])

    def children(parents: int, least: int, most: int) -> Ints:
        return np.repeat(np.arange(parents), rng.integers(least, most + 1, parents) if unbalanced else most)

    cabinet_of_node = children(cabinets, 2, 6)
    node_of_gpu = children(len(cabinet_of_node), 2, 4)
    gpu_of_run = children(len(node_of_gpu), 1, 5)
    cabinet_of_gpu = cabinet_of_node[node_of_gpu]
    c, b, a, e = sds
    values = (
        1000
        + rng.normal(0, c, cabinets)[cabinet_of_gpu[gpu_of_run]]
        + rng.normal(0, b, len(cabinet_of_node))[node_of_gpu[gpu_of_run]]
        + rng.normal(0, a, len(node_of_gpu))[gpu_of_run]
        + rng.normal(0, e, len(gpu_of_run))
    )
    return values, gpu_of_run, node_of_gpu, cabinet_of_gpu


def test_shares_of_a_balanced_machine_are_those_of_the_nested_analysis_of_variance() -> None:
    values, gpu, node, cabinet = machine(0, (4.0, 3.0, 5.0, 2.0), unbalanced=False)
    cube = values.reshape(8, 6, 4, 5)  # cabinet, node, GPU, run
    by_gpu, by_node, by_cabinet = cube.mean(3), cube.mean((2, 3)), cube.mean((1, 2, 3))
    ms_run = ((cube - by_gpu[..., None]) ** 2).sum() / (192 * 4)
    ms_gpu = 5 * ((by_gpu - by_node[..., None]) ** 2).sum() / (48 * 3)
    ms_node = 20 * ((by_node - by_cabinet[:, None]) ** 2).sum() / (8 * 5)
    ms_cabinet = 120 * ((by_cabinet - cube.mean()) ** 2).sum() / 7
    parts = np.array([(ms_cabinet - ms_node) / 120, (ms_node - ms_gpu) / 20, (ms_gpu - ms_run) / 5, ms_run])
    assert (parts > 0).all()
    estimate = shares(moments(values, gpu), cabinet, node).share
    assert list(estimate.values()) == pytest.approx((parts / parts.sum()).tolist(), rel=1e-9)


def test_shares_of_unbalanced_machines_are_right_on_average() -> None:
    sds = (2.0, 1.0, 3.0, 2.0)
    true = np.square(sds) / np.square(sds).sum()
    estimate = np.array([
        list(shares(moments(v, gpu), cabinet, node).share.values())
        for v, gpu, node, cabinet in (machine(seed, sds, unbalanced=True, cabinets=25) for seed in range(200))
    ], dtype=float)  # fmt: skip
    # The share is a ratio of estimates: 0.02 is its bias, beside four standard errors.
    assert np.abs(estimate.mean(0) - true).max() < 0.02 + 4 * estimate.std(0).max() / np.sqrt(200)


def test_levels_that_cannot_be_told_apart_say_so() -> None:
    values, gpu, node, _ = machine(4, (0.0, 1.0, 3.0, 2.0), unbalanced=True)
    two_moments = moments(values, gpu)
    one_cabinet = shares(two_moments, np.zeros(len(node), dtype=np.intp), node)
    assert one_cabinet.share["cabinet"] is None
    assert one_cabinet.reasons["cabinet"] == "there is one cabinet"
    node_is_gpu = shares(two_moments, None, np.arange(len(node)))
    assert node_is_gpu.share["node"] is None
    assert node_is_gpu.reasons["node"] == "each node has one GPU, so the two cannot be separated"
    once = shares(moments(values[:40], np.arange(40)), None, node[:40])
    assert once.share["gpu"] is None
    assert once.reasons["gpu"] == "each GPU has one run, so the two cannot be separated"
    assert once.share["node"] is not None
    same = shares(moments(np.full(40, 5.0), np.arange(40) // 2), None, np.arange(20) // 4)
    assert set(same.share.values()) == {None}
    assert same.reasons["run"] == "every value is the same"
