"""The dip against a linear programme, its p-values against fresh simulation, the modes against known mixtures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import scipy

from whorl.analysis.statistics.modes import (
    SMALLEST_N,
    SMALLEST_P,
    dip,
    dip_p,
    modes_test,
    places,
    quantiles,
    quantum,
    spread_ties,
)
from whorl.tests.analysis.statistics import dip_quantiles
from whorl.tests.sizes import count

Floats = npt.NDArray[np.float64]


def dip_by_definition(x: Floats) -> float:
    """The least distance to a unimodal distribution function, mode by mode, as linear programmes; no ties."""
    n = len(x)
    best = 1.0
    for mode in range(n):
        # Unknown: the function at each value (twice at the mode, before and after it), and the distance.
        at = np.concatenate((x[: mode + 1], x[mode:]))
        heads = np.concatenate((np.arange(1, mode + 1), [mode], np.arange(mode + 1, n + 1))) / n
        feet = np.concatenate((np.arange(mode), [mode], [mode + 1], np.arange(mode + 1, n))) / n
        rows: list[Floats] = []
        limits: list[float] = []

        def require(terms: dict[int, float], limit: float, rows: list[Floats], limits: list[float]) -> None:
            row = np.zeros(n + 2)
            for place, factor in terms.items():
                row[place] += factor
            rows.append(row)
            limits.append(limit)

        for i in range(n + 1):
            require({i: -1.0, n + 1: -1.0}, -heads[i], rows, limits)
            require({i: 1.0, n + 1: -1.0}, feet[i], rows, limits)
            if i:
                require({i - 1: 1.0, i: -1.0}, 0.0, rows, limits)
        for start, stop, side in ((0, mode, 1.0), (mode + 1, n, -1.0)):
            for i in range(start + 1, stop):
                a, b = side / (at[i] - at[i - 1]), side / (at[i + 1] - at[i])
                require({i: a + b, i - 1: -a, i + 1: -b}, 0.0, rows, limits)
        goal = np.zeros(n + 2)
        goal[-1] = 1.0
        best = min(best, scipy.optimize.linprog(goal, A_ub=np.array(rows), b_ub=limits, bounds=(0, 1)).fun)
    return best


@pytest.mark.long
def test_dip_by_definition() -> None:
    for seed in range(16):
        rng = np.random.default_rng([11, seed])
        n = int(rng.integers(3, 22))
        x = [
            rng.random(n),
            np.concatenate((rng.normal(0, 1, n // 2), rng.normal(5, 1, n - n // 2))),
            rng.exponential(size=n),
            np.concatenate([rng.normal(10 * (i % 3), 1, 1) for i in range(n)]),
        ][seed % 4]
        assert dip(np.sort(x)) == pytest.approx(dip_by_definition(np.sort(x)), abs=1e-9)


def test_dip_of_plain_cases() -> None:
    assert dip(np.arange(50.0)) == pytest.approx(1 / 100)  # evenly spaced: as unimodal as can be
    assert dip(np.repeat([0.0, 1.0], 25)) == pytest.approx(0.25)  # two equal atoms: the largest there is
    x = np.sort(np.random.default_rng(0).normal(size=300))
    assert dip(7.0 + 3.0 * x) == pytest.approx(dip(x), rel=1e-9)
    assert dip(np.sort(-x)) == pytest.approx(dip(x), rel=1e-9)


@pytest.mark.long
def test_the_table_comes_out_again() -> None:
    sizes, probabilities, values = quantiles()
    assert (tuple(sizes), tuple(probabilities)) == (dip_quantiles.SIZES, dip_quantiles.PROBABILITIES)
    assert sizes[0] == SMALLEST_N
    assert 1 - probabilities[-1] == pytest.approx(SMALLEST_P)
    fresh = np.array(dip_quantiles.cell(50, 4000, seed=7))
    middle = slice(1, dip_quantiles.PROBABILITIES.index(0.98) + 1)
    assert fresh[middle] == pytest.approx(values[dip_quantiles.SIZES.index(50)][middle], rel=0.03)


@pytest.mark.parametrize("n", [4, 7, 13, 40, 150, 3000])
def test_p_values_of_uniform_samples_are_uniform(n: int) -> None:
    rng = np.random.default_rng([12, n])
    samples = count(200, short=60)
    p = np.array([dip_p(dip(np.sort(rng.random(n))), n) for _ in range(samples)])
    for level in (0.05, 0.1, 0.5):
        # Few values share the least possible dip: then p = 1 is common and the test only more careful.
        assert (p <= level).mean() <= level + 4 * np.sqrt(level * (1 - level) / samples)
        if n > 10:
            assert (p <= level).mean() >= level - 4 * np.sqrt(level * (1 - level) / samples)


def test_p_never_claims_more_than_the_table() -> None:
    assert dip_p(0.25, 1000) == SMALLEST_P == pytest.approx(0.001)
    assert dip_p(1 / 2000, 1000) == 1.0


UNIMODAL: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "lognormal": lambda rng, n: rng.lognormal(0, 1, n),
    "t": lambda rng, n: rng.standard_t(2, n),
    "uniform": lambda rng, n: rng.random(n),
}


@pytest.mark.parametrize("law", UNIMODAL)
@pytest.mark.parametrize("n", [20, 300])
def test_one_mode_is_called_one(law: str, n: int) -> None:
    alarms, samples = 0, count(100, short=30)
    for seed in range(samples):
        x = np.sort(UNIMODAL[law](np.random.default_rng([13, n, seed]), n))
        alarms += len(modes_test(x, quantum(x)).splits) > 0
    assert alarms <= samples * 0.05 + 3 * np.sqrt(samples * 0.05 * 0.95)


@pytest.mark.parametrize("step", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("runs", [1, 4, 5])
def test_rounding_to_a_few_levels_is_no_mode(step: float, runs: int) -> None:
    alarms, samples = 0, count(40, short=10)
    for seed in range(samples):
        rng = np.random.default_rng([14, runs, seed])
        x = np.round((rng.normal(0, 1, (500, 1)) + rng.normal(0, 0.5, (500, runs))) / step) * step
        test = modes_test(np.sort(np.median(x, axis=1)), quantum(np.sort(x.ravel())))
        alarms += test.p is not None and test.p < 0.05
    assert alarms <= samples * 0.05 + 3 * np.sqrt(samples * 0.05 * 0.95)


def test_the_dip_without_spreading_would_cry_wolf() -> None:
    x = np.sort(np.round(np.random.default_rng(0).normal(size=500)))
    assert dip_p(dip(x), 500) == SMALLEST_P
    assert dip_p(dip(spread_ties(x, 1.0)), 500) > 0.05


@pytest.mark.parametrize("shares", [(0.12, 0.88), (0.5, 0.5), (0.2, 0.5, 0.3), (0.3, 0.1, 0.4, 0.2)])
def test_heaps_are_found_where_they_are(shares: tuple[float, ...]) -> None:
    for seed in range(count(20, short=5)):
        rng = np.random.default_rng([15, seed])
        sizes = np.round(400 * np.array(shares)).astype(int)
        x = np.sort(np.concatenate([rng.normal(100 + 10 * i, 1, size) for i, size in enumerate(sizes)]))
        test = modes_test(x, quantum(x))
        assert test.p is not None
        assert test.p < 0.05
        found = places(x, test.splits)
        assert [mode["n"] for mode in found] == sizes.tolist()
        assert [mode["median"] for mode in found] == pytest.approx([100 + 10 * i for i in range(len(sizes))], abs=1.0)
        assert sum(mode["share"] for mode in found) == pytest.approx(1.0)


def test_two_heaps_of_stepped_values_are_two() -> None:
    rng = np.random.default_rng(4)
    x = np.sort(np.round(np.concatenate((rng.normal(1300, 20, 300), rng.normal(1500, 20, 100))) / 7.5) * 7.5)
    assert [mode["n"] for mode in places(x, modes_test(x, quantum(x)).splits)] == [300, 100]


def test_far_outliers_are_no_mode_and_hide_none() -> None:
    rng = np.random.default_rng(5)
    one = np.sort(np.append(rng.normal(100, 1, 400), [300.0, 301.0]))
    assert modes_test(one, quantum(one)).splits == ()
    two = np.sort(np.concatenate((rng.normal(100, 1, 200), rng.normal(110, 1, 200), [9000.0, 9900.0])))
    assert [mode["n"] for mode in places(two, modes_test(two, quantum(two)).splits)] == [200, 202]


def test_too_little_to_test() -> None:
    few = modes_test(np.array([1.0, 2.0, 3.0]), 1.0)
    assert (few.dip, few.p, few.reason) == (None, None, "fewer than 4 GPUs")
    same = modes_test(np.full(9, 2.0), 0.0)
    assert (same.p, same.reason) == (None, "every value is the same")


def test_quantum_is_the_step_and_not_the_rounding() -> None:
    assert quantum(np.array([1.0, 1.0, 1.5, 3.0])) == 0.5
    assert quantum(np.array([0.3, 0.1 + 0.2, 0.4])) == pytest.approx(0.1)
    assert quantum(np.array([2.0, 2.0])) == 0.0
    assert quantum(np.array([])) == 0.0
