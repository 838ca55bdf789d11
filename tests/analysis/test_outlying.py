"""Robust scale, tail probability and correction for many looks: against definitions, scipy, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from whorl.analysis.statistics.outlying import biweight_scale, holm, robust_z, tail

from .longhorn import needs_longhorn, runs


@pytest.mark.parametrize("n", [4, 8, 33, 256, 2000])
@pytest.mark.parametrize("z", [1.6, -2.5, 4.0, 9.0, 40.0])
def test_the_tail_is_students(n: int, z: float) -> None:
    assert tail(z, n) == pytest.approx(2 * stats.t.sf(abs(z), 0.7 * (n - 1)), rel=1e-9)


def test_a_value_near_the_middle_is_no_finding() -> None:
    assert tail(1.4, 100) == tail(0.0, 100) == 1.0
    assert tail(math.inf, 100) == 0.0


def test_the_scale_is_the_biweights() -> None:
    values = np.random.default_rng(3).standard_normal(501)
    middle = np.median(values)
    mad = np.median(np.abs(values - middle))
    u = (values - middle) / (9 * mad)
    inside = np.abs(u) < 1
    top = sum((values[inside] - middle) ** 2 * (1 - u[inside] ** 2) ** 4)
    bottom = sum((1 - u[inside] ** 2) * (1 - 5 * u[inside] ** 2))
    assert biweight_scale(values) == pytest.approx(math.sqrt(len(values) * top) / abs(bottom))


def test_the_scale_is_that_of_the_good_values() -> None:
    random = np.random.default_rng(5)
    scales = []
    for _ in range(50):
        values = random.normal(10, 2, 300)
        values[:45] += 60  # 15 % of them
        scales.append(biweight_scale(values))
    assert np.mean(scales) == pytest.approx(2, rel=0.25)


def test_where_all_are_the_same_nothing_stands_out() -> None:
    assert biweight_scale(np.full(9, 4.0)) == 0
    assert not robust_z(np.full(9, 4.0)).any()


def test_one_that_differs_from_many_that_are_the_same_stands_out_by_what_the_clock_can_tell() -> None:
    values = np.zeros(64)
    values[7] = 0.2
    z = robust_z(values, floor=0.001)
    assert z[7] > 50
    assert not z[values == 0].any()


def test_a_poor_measurement_is_no_outlier() -> None:
    values = np.append(np.random.default_rng(1).normal(0, 0.01, 99), 0.14)
    own = np.full(100, 0.001)
    assert robust_z(values, own=own)[-1] > 8
    own[-1] = 0.1
    assert robust_z(values, own=own)[-1] < 2


def test_a_skewed_population_has_a_longer_tail_where_it_is_long() -> None:
    values = np.exp(0.5 * np.random.default_rng(2).standard_normal(1000))
    z = robust_z(values)
    assert z.max() < (values.max() - np.median(values)) / biweight_scale(values)


@given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=30), st.integers(0, 50))
def test_holm_is_holm(p: list[float], more: int) -> None:
    adjusted, looks = holm(p, len(p) + more), len(p) + more
    order = np.argsort(p, kind="stable")
    plain = np.minimum(1, np.maximum.accumulate([(looks - rank) * p[place] for rank, place in enumerate(order)]))
    assert [adjusted[place] for place in order] == pytest.approx(plain.tolist())
    assert all(a >= b for a, b in zip(adjusted, p, strict=True))


@pytest.mark.parametrize("n", [8, 20, 64, 256])
def test_the_family_wise_error_rate_holds_on_normal_data(n: int) -> None:
    """1,500 fleets at a rate of 5 %: the bound is what a rate of 5 % exceeds once in 10,000 tries."""
    random, families = np.random.default_rng(11), 1500
    named = 0
    for _ in range(families):
        z = robust_z(random.standard_normal(n))
        named += holm([tail(float(np.abs(z).max()), n)], n)[0] < 0.05
    assert named <= stats.binom.ppf(0.9999, families, 0.05)
    assert named > 0  # it can fail


@needs_longhorn
def test_on_a_real_cluster_only_the_boards_below_the_cap_are_named() -> None:
    """392 V100s under SGEMM: those named draw well below the 297 W of the others, the known braked one first."""
    sgemm = runs("sgemm").group_by("gpu").agg(pl.col("value", "power_w").median()).sort("gpu")
    z = robust_z(np.log(sgemm["value"].to_numpy()))
    p = holm([tail(float(one), len(z)) for one in z], len(z))
    named = sgemm.filter(pl.Series(p) < 0.01).sort("value", descending=True)
    assert [gpu[:12] for gpu in named["gpu"]] == ["GPU-87570fdd", "GPU-8bd5126e", "GPU-bf17fd1b"]
    assert named["power_w"].to_numpy().max() < 0.95 * np.median(sgemm["power_w"].to_numpy())


@needs_longhorn
def test_on_a_real_cluster_without_slow_gpus_nobody_is_named() -> None:
    pagerank = runs("pagerank").group_by("gpu").agg(pl.col("value").median())
    z = robust_z(np.log(pagerank["value"].to_numpy()))
    assert min(holm([tail(float(one), len(z)) for one in z], len(z))) == 1
