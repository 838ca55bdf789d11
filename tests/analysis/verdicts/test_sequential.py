"""The sequential test keeps its error rates, and stops early."""

from __future__ import annotations

import math

import numpy as np
import pytest

from whorl.analysis.verdicts.plan import ALPHA, BETA, Decision, decide
from whorl.tests.sizes import count

EFFECT = math.log1p(0.03)


def decided(
    level: float, *, gpus: int, sittings: int, sd: float, tails: bool, seed: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    noise = random.standard_t(4, (gpus, sittings)) / math.sqrt(2) if tails else random.normal(0, 1, (gpus, sittings))
    owner = np.repeat(np.arange(gpus), sittings)
    return decide(owner, (level + sd * noise).ravel(), gpus, effect=EFFECT, sd=sd)


@pytest.mark.parametrize("tails", [False, True])
@pytest.mark.parametrize("sd", [0.005, 0.015, 0.03])
def test_the_error_rates_hold(sd: float, tails: bool) -> None:
    gpus = count(20_000, short=10_000)
    wrong, _ = decided(0.0, gpus=gpus, sittings=20, sd=sd, tails=tails)
    assert (wrong == Decision.SLOW).mean() <= ALPHA + 3 * math.sqrt(ALPHA / gpus)
    missed, _ = decided(EFFECT, gpus=gpus, sittings=20, sd=sd, tails=tails)
    assert (missed == Decision.FINE).mean() <= BETA + 3 * math.sqrt(BETA / gpus)


def test_clear_cases_end_after_two_sittings_and_noisy_ones_later() -> None:
    for level, verdict in ((0.0, Decision.FINE), (EFFECT, Decision.SLOW)):
        found, after = decided(level, gpus=200, sittings=10, sd=0.002, tails=False)
        assert (found == verdict).all()
        assert set(after) == {2}
    found, after = decided(EFFECT, gpus=2000, sittings=60, sd=0.02, tails=False)
    assert (found != Decision.OPEN).mean() > 0.99
    assert 5 < after.mean() < 20


def test_one_sitting_never_decides() -> None:
    found, after = decide(np.array([0, 1, 1]), np.array([9.0, 9.0, -9.0]), 3, effect=EFFECT, sd=0.001)
    assert found.tolist() == [Decision.OPEN] * 3
    assert after.tolist() == [1, 2, 0]
