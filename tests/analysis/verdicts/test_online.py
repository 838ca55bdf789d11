"""The detector that watches one GPU run by run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from whorl.analysis.verdicts.levels import Noise
from whorl.analysis.verdicts.watch import SITTINGS, Alarm, update

WEEK_S = 7 * 86_400.0
QUIET = Noise(np.zeros(1), np.full(1, 2 * 0.001**2), 0.0008**2, 5.0, 0)

State = dict[str, Any] | None


def watched(
    times: Iterable[Iterable[float]], state: State = None, first: int = 0
) -> tuple[State, list[tuple[int, Alarm]]]:
    """The alarms over sittings of runs, a week apart, and in which sitting each was."""
    found = []
    for week, runs in enumerate(times, first):
        for run, value in enumerate(runs):
            state, alarm = update(state, value, week * WEEK_S + 600 * run, expected=QUIET)
            if alarm is not None:
                found.append((week, alarm))
    return state, found


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


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_one_run_that_went_wrong_raises_no_alarm(runs: int) -> None:
    for factor in (1.02, 1.1, 1.4):
        times = usual(20, runs)
        times[12, 0] *= factor
        assert watched(times)[1] == []


def test_a_state_survives_json_and_goes_on_as_before() -> None:
    times = usual(20)
    times[12:] *= 1.03
    state, before = watched(times[:8])
    again = json.loads(json.dumps(state))
    assert len(json.dumps(state)) < 1_000
    assert [*before, *watched(times[8:], again, 8)[1]] == watched(times)[1]


def test_what_temperature_does_is_no_change() -> None:
    warm = replace(QUIET, a_kelvin=0.001)
    for know, alarms in ((warm, 0), (QUIET, 1)):
        state, told = None, 0
        for week, (value,) in enumerate(usual(20, 1)):
            hot = week >= 10
            state, alarm = update(
                state, value * (1.02 if hot else 1), week * WEEK_S, warmth=80.0 if hot else 60.0, expected=know
            )
            told += alarm is not None
        assert told == alarms
