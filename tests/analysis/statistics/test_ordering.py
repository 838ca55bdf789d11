"""Orders, ranks, medians, quantiles and correlations against numpy, Polars and definitions."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import scipy

from whorl.analysis.runs.measurements import numbers
from whorl.analysis.statistics import ordering
from whorl.analysis.statistics.ordering import correlate, spearman_interval, spread
from whorl.tests.analysis.correlations import pearson, spearman


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10, 101])
def test_spread_against_numpy(n: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng([n, seed])
        x = np.sort(rng.normal(100, 5, n) if seed % 2 else rng.integers(95, 105, n).astype(float))
        found = spread(x)
        p5, q1, median, q3, p95 = np.quantile(x, [0.05, 0.25, 0.5, 0.75, 0.95])
        low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
        inside = x[(x >= low) & (x <= high)]
        assert found.median == pytest.approx(median, rel=1e-14)
        assert found.figures["fence_pct"] == pytest.approx(400 * (q3 - q1) / median, abs=1e-11)
        assert found.figures["whisk_pct"] == pytest.approx(100 * (inside.max() - inside.min()) / median, abs=1e-11)
        assert found.figures["range_pct"] == pytest.approx(100 * np.ptp(x) / median, abs=1e-11)
        assert found.figures["p95p5_pct"] == pytest.approx(100 * (p95 - p5) / median, abs=1e-11)
        mad = np.median(np.abs(x - median))
        assert found.figures["rcov_pct"] == pytest.approx(148.26 * mad / median, abs=1e-11)
        if n > 1:
            assert found.figures["cov_pct"] == pytest.approx(100 * x.std(ddof=1) / x.mean(), abs=1e-11)
        assert found.slow == (x > high).sum()
        assert found.fast == (x < low).sum()


@pytest.mark.parametrize("n", [3, 4, 17, 500])
def test_correlation_by_definition(n: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng([n, seed])
        x, y = rng.normal(size=n), rng.normal(size=n)
        if seed % 2:
            x, y = np.round(x, 1), np.round(y, 0)
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            continue
        found = correlate(x, y, "y")
        assert found.pearson == pytest.approx(pearson(x, y), abs=1e-12)
        assert found.spearman == pytest.approx(spearman(x, y), abs=1e-12)
        hole = rng.random(n) < 0.2
        if n > 10:
            found = correlate(x, np.where(hole, np.nan, y), "y")
            assert found.n == (~hole).sum()
            assert found.spearman == pytest.approx(spearman(x[~hole], y[~hole]), abs=1e-12)


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
