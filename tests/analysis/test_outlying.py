"""Tail probabilities of values far out: against scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from whorl.analysis.statistics.outlying import tail


@pytest.mark.parametrize("n", [4, 8, 33, 256, 2000])
@pytest.mark.parametrize("z", [1.6, -2.5, 4.0, 9.0, 40.0])
def test_the_tail_is_students(n: int, z: float) -> None:
    assert tail(z, n) == pytest.approx(2 * stats.t.sf(abs(z), 0.7 * (n - 1)), rel=1e-9)


def test_a_value_near_the_middle_is_no_finding() -> None:
    assert tail(1.4, 100) == tail(0.0, 100) == 1.0
    assert tail(math.inf, 100) == 0.0
