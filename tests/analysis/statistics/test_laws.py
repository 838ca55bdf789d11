"""Laws of chance against `scipy.stats`, which whorl does without, as it takes a second to import."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from whorl.analysis.statistics import laws


def test_the_laws_are_those_of_scipy() -> None:
    t, counts, means = np.array([-30.0, -1.0, 0.3, 2.0, 1e4]), np.arange(30), np.array([[1e-9], [0.3], [40.0]])
    for freedom in (1, 2.1, 7, 1400):
        assert laws.upper_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-8)
        assert laws.quantile([0.25, 0.005], freedom) == pytest.approx(stats.t.isf([0.25, 0.005], freedom))
        assert laws.log_density(t, freedom) == pytest.approx(stats.t.logpdf(t, freedom))
    assert laws.poisson(counts, means) == pytest.approx(stats.poisson.pmf(counts, means), rel=1e-9)
    assert laws.poisson_at_least(counts, means) == pytest.approx(stats.poisson.sf(counts - 1, means), rel=1e-9)
    assert laws.binomial(40, 0.125) == pytest.approx(stats.binom.pmf(np.arange(41), 40, 0.125), rel=1e-9)
    for successes, draws in ((0, 5), (5, 5), (1, 30), (7, 12)):
        exact = stats.binomtest(successes, draws).proportion_ci(method="exact")
        assert laws.share_interval(successes, draws) == pytest.approx((exact.low, exact.high))
    p_values = np.array([0.2, 0.001, 0.03, 0.5])
    assert laws.discoveries(p_values, 4) == pytest.approx(stats.false_discovery_control(p_values))


@pytest.mark.parametrize(("freedom", "kurtosis", "least"), [(1e9, 3.0, 0.93), (5.0, 9.0, 0.91)])
def test_the_interval_of_a_standard_deviation_holds_the_true_value(
    freedom: float, kurtosis: float, least: float
) -> None:
    """Of 12 values of a normal distribution, and of Student's t with 5 degrees, whose kurtosis is 9."""
    assert np.array(laws.interval_of_sd(2.0, 9)) ** 2 == pytest.approx((36 / 19.0228, 36 / 2.70039), rel=1e-5)
    random, n, many = np.random.default_rng(3), 12, 1_000
    values, true = random.standard_t(freedom, (many, n)), float(np.sqrt(freedom / (freedom - 2)))
    ends = np.array([laws.interval_of_sd(float(drawn.std(ddof=1)), n - 1, kurtosis) for drawn in values])
    assert np.mean((ends[:, 0] <= true) & (true <= ends[:, 1])) >= least
