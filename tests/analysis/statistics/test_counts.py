"""Laws of counts against their definitions, in whole numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import special

from whorl.analysis.statistics.laws import binomial, poisson, poisson_at_least, share_interval


def test_poisson_is_its_series() -> None:
    means = np.array([[1e-9], [0.3], [1.0], [40.0]])
    series = [[math.exp(-mean) * mean**n / math.factorial(n) for n in range(30)] for (mean,) in means.tolist()]
    assert poisson(np.arange(30), means) == pytest.approx(np.array(series), rel=1e-12)
    above = 1 - np.cumsum(series, axis=1)
    assert poisson_at_least(np.arange(1, 31), means) == pytest.approx(above, rel=1e-6, abs=1e-12)
    assert poisson_at_least([-1, 0], 0.2).tolist() == [1.0, 1.0]


def test_binomial_is_made_of_whole_numbers_of_ways() -> None:
    for draws, chance in ((0, 0.5), (1, 1.0), (12, 0.0), (40, 0.125)):
        exact = [
            math.comb(draws, n) * Fraction(chance) ** n * (1 - Fraction(chance)) ** (draws - n)
            for n in range(draws + 1)
        ]
        assert binomial(draws, chance) == pytest.approx([float(part) for part in exact], rel=1e-12)


@pytest.mark.parametrize(("successes", "draws"), [(0, 5), (5, 5), (1, 30), (7, 12)])
def test_beyond_each_end_of_the_interval_of_a_share_lies_a_fortieth(successes: int, draws: int) -> None:
    low, high = share_interval(successes, draws)
    assert low == (0.0 if not successes else pytest.approx(special.bdtri(successes - 1, draws, 0.975), rel=1e-9))
    assert high == (1.0 if successes == draws else pytest.approx(special.bdtri(successes, draws, 0.025), rel=1e-9))
    assert low <= successes / draws <= high
