"""Student's t against values that are known in closed form or from printed tables."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from whorl.analysis.statistics.student import log_density, quantile, upper_tail


def test_two_and_one_degrees_of_freedom_have_closed_forms() -> None:
    t = np.array([-30.0, -1.0, 0.0, 0.3, 2.0, 12.0, 1e4, 1e7])
    assert upper_tail(t, 1) == pytest.approx(0.5 - np.arctan(t) / np.pi, rel=1e-6)
    two = np.where(t > 0, 1 / (2 + t * t) / (1 + t / np.sqrt(2 + t * t)), 0.5 * (1 - t / np.sqrt(2 + t * t)))
    assert upper_tail(t, 2) == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize("freedom", [1, 2.1, 7, 60, 1400])
def test_it_is_as_scipy_has_it(freedom: float) -> None:
    t = np.array([0.3, 1.6, -2.5, 4.0, 9.0, 40.0])
    assert upper_tail(t, freedom) == pytest.approx(special.stdtr(freedom, -t), rel=1e-9)
    half = (freedom + 1) / 2
    constant = special.gammaln(half) - special.gammaln(freedom / 2) - np.log(freedom * np.pi) / 2
    density = constant - half * np.log1p(t * t / freedom)
    assert log_density(t, freedom) == pytest.approx(density, rel=1e-9)
    for probability in (0.5, 0.25, 0.05, 0.005):
        assert quantile(probability, freedom) == pytest.approx(-special.stdtrit(freedom, probability), abs=1e-9)


def test_infinite_and_missing_values() -> None:
    assert upper_tail([np.inf, -np.inf], 3) == pytest.approx([0.0, 1.0])
    assert np.isnan(upper_tail(np.nan, 3))
