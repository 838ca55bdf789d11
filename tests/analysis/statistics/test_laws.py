"""Laws of chance against `scipy.stats`, which whorl does without, as it takes a second to import."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import scipy
from scipy import stats

from whorl.analysis.runs.measurements import numbers
from whorl.analysis.statistics import ordering
from whorl.analysis.statistics.ordering import correlate, spearman_interval
from whorl.tests.analysis.correlations import pearson, spearman


def test_the_laws_are_those_of_scipy() -> None:
    t, counts, means = np.array([-30.0, -1.0, 0.3, 2.0, 1e4]), np.arange(30), np.array([[1e-9], [0.3], [40.0]])
    for freedom in (1, 2.1, 7, 1400):
        assert ordering.upper_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-8)
        assert ordering.quantile([0.25, 0.005], freedom) == pytest.approx(stats.t.isf([0.25, 0.005], freedom))
        assert ordering.log_density(t, freedom) == pytest.approx(stats.t.logpdf(t, freedom))
    assert ordering.poisson(counts, means) == pytest.approx(stats.poisson.pmf(counts, means), rel=1e-9)
    assert ordering.poisson_at_least(counts, means) == pytest.approx(stats.poisson.sf(counts - 1, means), rel=1e-9)
    assert ordering.binomial(40, 0.125) == pytest.approx(stats.binom.pmf(np.arange(41), 40, 0.125), rel=1e-9)
    for successes, draws in ((0, 5), (5, 5), (1, 30), (7, 12)):
        exact = stats.binomtest(successes, draws).proportion_ci(method="exact")
        assert ordering.share_interval(successes, draws) == pytest.approx((exact.low, exact.high))
    p_values = np.array([0.2, 0.001, 0.03, 0.5])
    assert ordering.discoveries(p_values, 4) == pytest.approx(stats.false_discovery_control(p_values))


@pytest.mark.parametrize(("freedom", "kurtosis", "least"), [(1e9, 3.0, 0.93), (5.0, 9.0, 0.91)])
def test_the_interval_of_a_standard_deviation_holds_the_true_value(
    freedom: float, kurtosis: float, least: float
) -> None:
    """Of 12 values of a normal distribution, and of Student's t with 5 degrees, whose kurtosis is 9."""
    assert np.array(ordering.interval_of_sd(2.0, 9)) ** 2 == pytest.approx((36 / 19.0228, 36 / 2.70039), rel=1e-5)
    random, n, repeats = np.random.default_rng(3), 12, 1_000
    values, true = random.standard_t(freedom, (repeats, n)), float(np.sqrt(freedom / (freedom - 2)))
    ends = np.array([ordering.interval_of_sd(float(drawn.std(ddof=1)), n - 1, kurtosis) for drawn in values])
    assert np.mean((ends[:, 0] <= true) & (true <= ends[:, 1])) >= least


@pytest.mark.parametrize("n", [3, 4, 17, 500])
def test_correlation_by_definition(n: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng([n, seed])
        x, y = rng.normal(size=n), rng.normal(size=n)
        if seed % 2:
            x, y = np.round(x, 1), np.round(y, 0)
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            continue
        correlation = correlate(x, y, "y")
        assert correlation.pearson == pytest.approx(pearson(x, y), abs=1e-12)
        assert correlation.spearman == pytest.approx(spearman(x, y), abs=1e-12)
        hole = rng.random(n) < 0.2
        if n > 10:
            correlation = correlate(x, np.where(hole, np.nan, y), "y")
            assert correlation.n == (~hole).sum()
            assert correlation.spearman == pytest.approx(spearman(x[~hole], y[~hole]), abs=1e-12)


@pytest.mark.long
def test_the_interval_of_spearman_covers() -> None:
    rho, n, hits = 0.6, 60, 0
    true = 6 / np.pi * np.arcsin(rho / 2)
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=n)
        y = rho * x + np.sqrt(1 - rho**2) * rng.normal(size=n)
        spearman = correlate(x, y, "y").spearman
        assert spearman is not None
        interval = spearman_interval(spearman, n)
        assert interval is not None
        hits += interval[0] <= true <= interval[1]
    assert 920 <= hits <= 980  # 95 %, four standard errors and a little of the approximation


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(["b", "a", "never", "c"])])
def test_numbers_follow_the_sorted_names(dtype: pl.DataType) -> None:
    number, names = numbers(pl.Series(["c", "a", "c", "b"], dtype=dtype))
    assert names == ["a", "b", "c"]
    assert number.tolist() == [2, 0, 2, 1]


def test_the_interval_of_a_median_holds_it_95_times_of_100_and_needs_six_values() -> None:
    assert ordering.median_interval(np.arange(5.0)) == (None, None)
    for n in range(6, 400):
        low, high = ordering.median_interval(np.arange(float(n)))
        assert low is not None
        assert high == n - 1 - low
        # Of n values as many are below the median as heads fall in n throws.
        outside, nearer = 2 * scipy.special.bdtr([low, low + 1], n, 0.5)
        assert outside <= 0.05, n
        assert nearer > 0.048, f"{n}: it need not be so wide"
