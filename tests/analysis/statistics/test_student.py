"""Student's t against values that are known in closed form or from printed tables."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.statistics.laws import log_density, quantile, upper_tail


def test_two_and_one_degrees_of_freedom_have_closed_forms() -> None:
    t = np.array([-30.0, -1.0, 0.0, 0.3, 2.0, 12.0, 1e4, 1e7])
    assert upper_tail(t, 1) == pytest.approx(0.5 - np.arctan(t) / np.pi, rel=1e-6)
    two = np.where(t > 0, 1 / (2 + t * t) / (1 + t / np.sqrt(2 + t * t)), 0.5 * (1 - t / np.sqrt(2 + t * t)))
    assert upper_tail(t, 2) == pytest.approx(two, rel=1e-9)


def test_a_quantile_is_where_the_tail_is_so_large_and_the_density_is_the_slope_of_the_tail() -> None:
    for freedom in (1, 2.1, 7, 1400):
        for tail in (0.5, 0.25, 0.005, 1e-9):
            assert upper_tail(quantile(tail, freedom), freedom) == pytest.approx(tail, rel=1e-8)
        t = np.array([0.3, 1.6, -2.5, 4.0])
        slope = (upper_tail(t - 1e-5, freedom) - upper_tail(t + 1e-5, freedom)) / 2e-5
        assert np.exp(log_density(t, freedom)) == pytest.approx(slope, rel=1e-5)


def test_infinite_and_missing_values() -> None:
    assert upper_tail([np.inf, -np.inf], 3) == pytest.approx([0.0, 1.0])
    assert np.isnan(upper_tail(np.nan, 3))
