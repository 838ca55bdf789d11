"""The dip against a linear programme, its p-values against fresh simulation, the modes against known mixtures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from whorl.analysis.statistics.modes import (
    dip,
    dip_p,
    modes_test,
    places,
    quantum,
)
from whorl.tests.sizes import count

Floats = npt.NDArray[np.float64]


def test_dip_of_plain_cases() -> None:
    assert dip(np.arange(50.0)) == pytest.approx(1 / 100)  # evenly spaced: as unimodal as can be
    assert dip(np.repeat([0.0, 1.0], 25)) == pytest.approx(0.25)  # two equal atoms: the largest there is
    x = np.sort(np.random.default_rng(0).normal(size=300))
    assert dip(7.0 + 3.0 * x) == pytest.approx(dip(x), rel=1e-9)
    assert dip(np.sort(-x)) == pytest.approx(dip(x), rel=1e-9)


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


@pytest.mark.parametrize("shares", [(0.12, 0.88), (0.5, 0.5), (0.2, 0.5, 0.3), (0.3, 0.1, 0.4, 0.2)])
def test_heaps_are_found_where_they_are(shares: tuple[float, ...]) -> None:
    for seed in range(count(20, short=5)):
        rng = np.random.default_rng([15, seed])
        sizes = np.round(400 * np.array(shares)).astype(int)
        x = np.sort(np.concatenate([rng.normal(100 + 10 * i, 1, size) for i, size in enumerate(sizes)]))
        test = modes_test(x, quantum(x))
        assert test.p is not None
        assert test.p < 0.05
        modes = places(x, test.splits)
        assert [mode["n"] for mode in modes] == sizes.tolist()
        assert [mode["median"] for mode in modes] == pytest.approx([100 + 10 * i for i in range(len(sizes))], abs=1.0)
        assert sum(mode["share"] for mode in modes) == pytest.approx(1.0)


def test_too_little_to_test() -> None:
    few = modes_test(np.array([1.0, 2.0, 3.0]), 1.0)
    assert (few.dip, few.p, few.reason) == (None, None, "fewer than 4 GPUs")
    same = modes_test(np.full(9, 2.0), 0.0)
    assert (same.p, same.reason) == (None, "every value is the same")
