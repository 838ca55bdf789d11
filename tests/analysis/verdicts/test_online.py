"""The detector that watches one GPU run by run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from whorl.analysis.verdicts.levels import Noise
from whorl.analysis.verdicts.plan import ALPHA, BETA, Decision, decide
from whorl.analysis.verdicts.watch import SITTINGS, Alarm, update
from whorl.tests.sizes import count

WEEK_S = 7 * 86_400.0
QUIET = Noise(np.zeros(1), np.full(1, 2 * 0.001**2), 0.0008**2, 5.0, 0)

State = dict[str, Any] | None


def watched(
    times: Iterable[Iterable[float]], state: State = None, first: int = 0
) -> tuple[State, list[tuple[int, Alarm]]]:
    """The alarms over sittings of runs, a week apart, and in which sitting each was."""
    sittings = []
    for week, runs in enumerate(times, first):
        for run, value in enumerate(runs):
            state, alarm = update(state, value, week * WEEK_S + 600 * run, expected=QUIET)
            if alarm is not None:
                sittings.append((week, alarm))
    return state, sittings


def usual(weeks: int, runs: int = 3, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 100 * np.exp(0.001 * rng.normal(size=(weeks, 1)) + 0.0008 * rng.normal(size=(weeks, runs)))


@pytest.mark.long
def test_a_healthy_gpu_raises_fewer_alarms_than_stated() -> None:
    weeks = 3_000
    rng = np.random.default_rng(2)
    heavy = 100 * np.exp(0.001 * rng.standard_t(5, size=(weeks, 1)) + 0.0008 * rng.normal(size=(weeks, 2)))
    _, alarms = watched(heavy)
    assert len(alarms) <= weeks / SITTINGS


def test_a_change_of_two_per_cent_is_found_within_two_sittings_and_told_once() -> None:
    times = usual(30)
    times[20:] *= 1.02
    _, alarms = watched(times)
    ((week, alarm),) = alarms
    assert week in (20, 21)
    assert alarm.effect_pct == pytest.approx(2.0, abs=0.5)
    assert alarm.since_s == 20 * WEEK_S
    assert alarm.sittings == week


def test_what_temperature_does_is_no_change() -> None:
    warm = replace(QUIET, a_kelvin=0.001)
    for know, alarms in ((warm, 0), (QUIET, 1)):
        state, reported = None, 0
        for week, (value,) in enumerate(usual(20, 1)):
            hot = week >= 10
            state, alarm = update(
                state, value * (1.02 if hot else 1), week * WEEK_S, warmth=80.0 if hot else 60.0, expected=know
            )
            reported += alarm is not None
        assert reported == alarms


# -- sequential --------------------------------------------------------------------------------------------------------
# The sequential test keeps its error rates, and stops early.


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
        result, after = decided(level, gpus=200, sittings=10, sd=0.002, tails=False)
        assert (result == verdict).all()
        assert set(after) == {2}
    result, after = decided(EFFECT, gpus=2000, sittings=60, sd=0.02, tails=False)
    assert (result != Decision.OPEN).mean() > 0.99
    assert 5 < after.mean() < 20
