"""The interval of a standard deviation: that of textbooks for normal values, and wide enough for others."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.statistics.laws import interval_of_sd


def test_it_is_the_interval_of_textbooks() -> None:
    """Ten values with a standard deviation of 2: 9 x 4 / 19.023 and 9 x 4 / 2.700."""
    low, high = interval_of_sd(2.0, 9)
    assert (low**2, high**2) == pytest.approx((36 / 19.0228, 36 / 2.70039), rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(("df", "least"), [(np.inf, 0.93), (5.0, 0.91)])
def test_the_interval_holds_the_true_value(df: float, least: float) -> None:
    """Of 12 values of a normal distribution or of Student's t with 5 degrees, whose kurtosis is 9."""
    random = np.random.default_rng(3)
    n, many = 12, 4_000
    true = 1.0 if np.isinf(df) else float(np.sqrt(df / (df - 2)))
    values = random.standard_normal((many, n)) if np.isinf(df) else random.standard_t(df, (many, n))
    ends = [interval_of_sd(float(one.std(ddof=1)), n - 1, 3.0 if np.isinf(df) else 9.0) for one in values]
    assert np.mean([low <= true <= high for low, high in ends]) >= least
