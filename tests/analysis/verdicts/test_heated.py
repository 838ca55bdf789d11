"""Whether heat makes a GPU unstable, told from its runs alone; and the interval of how far an unstable GPU is off."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from whorl.analysis.verdicts.causes import by_heat
from whorl.analysis.verdicts.changes import typical_size
from whorl.analysis.verdicts.verdict import Action, Part, Quantity
from whorl.tests.sizes import count

ROW = {"temperature": 82.0, "peers_temperature": 66.0}


def runs(n: int, slope: float, noise: float = 0.001, seed: int = 1) -> pl.DataFrame:
    """Runs of one GPU whose log time changes by `slope` with its log power."""
    random = np.random.default_rng(seed)
    power = random.uniform(-0.02, 0.02, n)
    value = np.exp(slope * power + random.normal(0, noise, n))
    return pl.DataFrame({"value": 100 * value, "sm_clock_mhz": [1312.0] * n, "power_w": 290 * np.exp(power)})


def told(frame: pl.DataFrame) -> object:
    return by_heat(ROW, frame, 1.5, np.random.default_rng(0))


def test_runs_that_are_slower_with_less_power_are_held_by_heat() -> None:
    found = by_heat(ROW, runs(20, -1.0), 1.5, np.random.default_rng(0))
    assert found is not None
    heat, rest = found.causes
    assert (heat.what, rest.what) == (Part.HEAT, Part.UNEXPLAINED)
    assert heat.pct > 1.4
    assert heat.pct + rest.pct == pytest.approx(1.5)
    assert heat.low_pct is not None
    assert heat.high_pct is not None
    assert heat.low_pct <= heat.pct <= heat.high_pct <= 1.5
    figures = {figure.figure: (figure.value, figure.peers) for figure in found.measured}
    assert figures[Quantity.TEMPERATURE] == (82.0, 66.0)
    slower, faster = figures[Quantity.POWER_OF_SLOWER_RUNS]
    assert slower is not None
    assert faster is not None
    assert slower < faster
    assert found.action == Action.CLEAN_COOLING


@pytest.mark.parametrize(
    "frame",
    [
        runs(20, 0.0),
        runs(20, 1.0),
        runs(7, -1.0),
        runs(20, -1.0).with_columns(sm_clock_mhz=None, power_w=None),
        runs(20, -1.0).with_columns(value=100.0),
    ],
    ids=["power says nothing", "slower with more power", "few runs", "nothing recorded", "times alike"],
)
def test_else_nothing_is_said(frame: pl.DataFrame) -> None:
    assert told(frame) is None


@pytest.mark.parametrize("n", [2, 4, 12])
def test_the_interval_of_an_unstable_gpu_holds_the_middle_of_its_sizes(n: int) -> None:
    random, many = np.random.default_rng(3), count(4000, short=2000)
    size = 0.02 * np.exp(random.normal(0, 0.4, many * n))
    median, low, high = typical_size(size, np.repeat(np.arange(many), n), np.full(many, n))
    holds = np.mean((low <= 0.02) & (high >= 0.02))
    assert 0.935 <= holds <= 0.99
    assert bool(((low <= median) & (median <= high)).all())
