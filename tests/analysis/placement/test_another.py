"""The interval of a score in another sitting: what sittings and weeks do, not how well runs at hand agree."""

from __future__ import annotations

import numpy as np
import pytest

from whorl.analysis.placement.scores import in_another_sitting
from whorl.analysis.verdicts.levels import REACH_90, WEEKS, Levels, levels


def _seen(days: tuple[float, ...], between: float, within: float, gpus: int = 200, each: int = 4) -> Levels:
    """From runs of `each` GPU on these days, which differ by `between`."""
    rng = np.random.default_rng(1)
    x = rng.normal(0.0, between, (gpus, len(days), 1)) + rng.normal(0.0, within, (gpus, len(days), each))
    at = np.array(days)[:, None] + np.arange(each) / 1440
    owner = np.repeat(np.arange(gpus), len(days) * each)
    return levels(owner, np.broadcast_to(at, x.shape).ravel(), x.ravel(), gpus)


def test_runs_that_agree_do_not_make_sittings_agree() -> None:
    found = _seen((100.0, 110.0, 120.0), between=0.01, within=0.001)
    assert found.between_known
    assert found.later(WEEKS) == pytest.approx(0.01, rel=0.15)


def test_sittings_of_few_days_say_nothing_about_weeks() -> None:
    long, short = (_seen(days, between=0.0005, within=0.0001) for days in ((100.0, 107.0, 121.0), (100.0, 101.0)))
    assert long.later(WEEKS) < 0.0007
    assert short.later(WEEKS) > WEEKS


def test_one_sitting_does_not_say_how_much_sittings_differ() -> None:
    found = _seen((100.0,), between=0.0, within=0.02)
    assert not found.between_known
    assert found.later(WEEKS) > 0.02


def test_an_interval_only_grows_and_where_nothing_is_known_there_is_none() -> None:
    belief, lower, upper = np.array([1.0, 1.2, 1.0]), np.array([1.0, 1.1, np.nan]), np.array([1.0, 1.4, np.nan])
    of = _seen((100.0, 120.0, 140.0), between=0.005, within=0.001)
    reach = REACH_90 * of.again
    low, high = in_another_sitting(of, belief, lower, upper)
    assert low[:2] == pytest.approx([np.exp(-reach), 1.2 * np.exp(-np.hypot(np.log(1.2 / 1.1), reach))])
    assert high[:2] == pytest.approx([np.exp(reach), 1.2 * np.exp(np.hypot(np.log(1.4 / 1.2), reach))])
    assert np.isnan([low[2], high[2]]).all()
