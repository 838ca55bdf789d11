"""The interval of a median: exact for independent values, honest for those that hang together."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from whorl.probes.figures import interval_of, lag_one, rank


def wandering(random: np.random.Generator, n: int, correlation: float, *, skewed: bool = False) -> NDArray[np.float64]:
    """Values of a first-order autoregression around 100, with standard deviation 1; skewed ones are lognormal, and
    their median is 100 all the same."""
    noise = random.standard_normal(n + 100) * np.sqrt(1 - correlation**2)
    values = np.zeros(n + 100)
    for i in range(1, len(values)):
        values[i] = correlation * values[i - 1] + noise[i]
    return 100 * np.exp(0.8 * values[100:]) if skewed else 100 + values[100:]


def coverage(n: int, correlation: float, trials: int = 600, *, skewed: bool = False) -> tuple[float, float]:
    """How often the interval holds the median, of those that it calls settled, and how often it does so."""
    random = np.random.default_rng(n)
    intervals = [interval_of(wandering(random, n, correlation, skewed=skewed)) for _ in range(trials)]
    settled = [interval for interval in intervals if interval.settled]
    held = [
        interval.low is not None and interval.high is not None and interval.low <= 100 <= interval.high
        for interval in settled
    ]
    return float(np.mean(held)), len(settled) / trials


@pytest.mark.parametrize("n", [6, 7, 20, 51, 300, 1999, 2001, 5000])
def test_the_rank_is_the_binomials(n: int) -> None:
    k = rank(n)
    assert scipy.special.bdtr(k - 1, n, 0.5) <= 0.025
    if n <= 2000:  # beyond, a rank or two is given away
        assert scipy.special.bdtr(k, n, 0.5) > 0.025


@pytest.mark.parametrize("n", [20, 50, 200])
def test_the_interval_of_independent_values_holds_the_median_as_often_as_it_says(n: int) -> None:
    held, settled = coverage(n, 0.0)
    assert held >= 0.94  # 95 %, less twice the standard error of 600 trials and a little for what looks correlated
    assert settled > 0.9


@pytest.mark.long(short=1)
@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize(("n", "correlation", "least"), [(60, 0.3, 0.92), (1000, 0.9, 0.93)])
def test_so_does_that_of_values_that_hang_together(n: int, correlation: float, least: float, skewed: bool) -> None:
    held, settled = coverage(n, correlation, trials=400, skewed=skewed)
    assert held >= least  # 95 %, less twice the standard error, and what a short series hides
    assert settled > 0.8


def test_values_that_hang_together_are_worth_fewer() -> None:
    random = np.random.default_rng(5)
    plain, joined = wandering(random, 1000, 0.0), wandering(random, 1000, 0.9)
    assert interval_of(plain).block == 1
    assert 10 < interval_of(joined).block < 40  # (1 + 0.9) / (1 - 0.9) = 19 for an autoregression
    narrow, wide = interval_of(plain).relative, interval_of(joined).relative
    assert narrow is not None
    assert wide is not None
    assert wide > 2 * narrow


def test_a_drift_is_never_settled() -> None:
    assert not interval_of(np.linspace(1.0, 1.1, 60)).settled


def test_values_that_are_all_the_same_are_known_exactly() -> None:
    answer = interval_of(np.full(20, 3.0))
    assert answer.relative == 0
    assert answer.settled
    assert lag_one(np.full(20, 0.1) * 3) == 0
    mostly = interval_of(np.array([3.0, 3.0, 4.0, 3.0] * 5))
    assert (mostly.low, mostly.median) == (3.0, 3.0)
