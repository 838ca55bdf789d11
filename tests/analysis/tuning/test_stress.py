"""The stress search: what it suggests, what it refuses, and that it finds more than random settings do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from whorl.analysis.tuning.search import Setting
from whorl.analysis.tuning.stress import StressKnob, StressSearch
from whorl.errors import InputError
from whorl.tests.sizes import count

GRID = tuple(float(v) for v in range(32))
KNOBS = [StressKnob(f"knob{i}", GRID, 16.0, 0.0 if i >= 18 and i != 23 else None) for i in range(24)]
RANDOM: dict[str, Any] = {"random_first": 1000}


def value(setting: Setting) -> float:
    """Four of the knobs matter: the special value of two is best, knob22's is worst, knob23 has none."""
    better = sum(1.0 if setting[name] == 0 else 0.015 * setting[name] for name in ("knob20", "knob21"))
    bumps = (math.exp(-(((setting[name] - peak) / 10) ** 2)) for name, peak in (("knob22", 24), ("knob23", 8)))
    return (better + sum(bumps)) / 4


def searched(seed: int, trials: int = 30, *, knobs: int = 24, **options: Any) -> StressSearch:
    search = StressSearch(KNOBS[-knobs:], seed=seed, **options)
    for _ in range(trials):
        setting = search.suggest()
        search.tell(setting, value(setting))
    return search


def best_mean(seeds: int, knobs: int = 24, **options: Any) -> float:
    bests = [searched(seed, knobs=knobs, **options).best for seed in range(seeds)]
    return float(np.mean([trial.value for trial in bests if trial and trial.value is not None]))


@pytest.mark.long
def test_special_values_are_worth_more_than_a_process_on_many_knobs() -> None:
    seeds = count(12, short=4)
    assert best_mean(seeds) > best_mean(seeds, special_chance=None) + 0.06


@pytest.mark.long
def test_the_process_is_ahead_of_random_settings_where_most_knobs_matter() -> None:
    assert best_mean(6, 4, special_chance=None) > best_mean(6, 4, special_chance=None, **RANDOM) + 0.05


def test_special_values_are_drawn_with_their_probability() -> None:
    for special in (0.0, 7.0):
        knob = StressKnob("tile", tuple(float(v) for v in range(16)), 1.0, special)
        knobs = [knob, StressKnob("other", tuple(float(v) for v in range(5000)), 0.0)]
        search = StressSearch(knobs, special_chance=0.4, **RANDOM)
        tiles = []
        for _ in range(400):
            setting = search.suggest()
            search.tell(setting, 0.0)
            tiles.append(setting["tile"])
        assert sum(tile == special for tile in tiles) / 400 == pytest.approx(0.4, abs=0.08)
        assert set(tiles) == set(knob.values)


def test_what_does_not_fit_is_never_suggested() -> None:
    settings = []

    def fits(setting: Setting) -> bool:
        settings.append(setting)
        return setting["knob3"] * setting["knob4"] <= 256

    search = StressSearch(KNOBS, fits=fits, seed=2)
    for _ in range(20):
        setting = search.suggest()
        assert setting["knob3"] * setting["knob4"] <= 256
        search.tell(setting, value(setting))
    assert any(setting["knob3"] * setting["knob4"] > 256 for setting in settings)
    with pytest.raises(InputError, match="default setting does not fit"):
        StressSearch(KNOBS, fits=lambda setting: False)


def test_without_a_trial_that_succeeded_there_is_no_best() -> None:
    search = StressSearch(KNOBS)
    assert search.best is None
    for _ in range(8):
        search.tell(search.suggest(), None)
    assert search.best is None
    search.tell(search.suggest(), -3.0)
    search.tell(search.suggest(), -2.0)
    assert search.best is not None
    assert search.best.value == -2.0


def test_every_setting_of_a_small_space_is_tried_once() -> None:
    search = StressSearch(
        [StressKnob("tile", (1.0, 2.0, 4.0), 1.0), StressKnob("unroll", (0.0, 1.0, 2.0), 0.0, special=0.0)]
    )
    for _ in range(9):
        setting = search.suggest()
        search.tell(setting, setting["tile"] * setting["unroll"])
    assert len({tuple(trial.setting.values()) for trial in search.trials}) == 9
    assert search.best is not None
    assert search.best.setting == {"tile": 4.0, "unroll": 2.0}
    with pytest.raises(InputError, match="no setting is left"):
        search.suggest()


def test_bad_input_is_refused_in_one_sentence() -> None:
    knobs = [StressKnob("tile", (1.0, 2.0), 1.0)]
    with pytest.raises(InputError, match="seed must be 0 or more"):
        StressSearch(knobs, seed=-1)
    search = StressSearch(knobs)
    with pytest.raises(InputError, match="tile 3 is none of the values that are searched"):
        search.tell({"tile": 3.0}, 1.0)
    with pytest.raises(InputError, match="does not have the knobs tile"):
        search.tell({"unroll": 1.0}, 1.0)
    with pytest.raises(InputError, match="finite number"):
        search.tell({"tile": 1.0}, math.nan)
