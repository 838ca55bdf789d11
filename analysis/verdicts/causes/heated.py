"""Whether heat makes a GPU unstable: its slower runs are those of less power or of a lower clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from ...runs.sittings import Floats
from ..saying import Part, action_of
from ..verdict import Cause, Kind
from .holding import DRAWS

_RUNS = 8  # of one GPU, to say what its slower ones have in common
_MOST = 0.5  # of the variance of its times, to name what goes with it
_SAME = 1e-12  # of log times, squared: they are all the same
_UNITS = {"sm_clock_mhz": "MHz", "power_w": "W"}


@dataclass(frozen=True, slots=True)
class Moved:
    """Why a GPU is unstable."""

    causes: tuple[Cause, ...]
    """They add up to the effect."""
    looks: str
    """In words, to add to a sentence."""
    action: str


def by_heat(row: Mapping[str, Any], runs: pl.DataFrame, effect_pct: float, random: np.random.Generator) -> Moved | None:
    """Of a GPU whose temperature is where heat holds a clock: what makes it unstable, where its runs tell.

    `row`: of `states.levels`; `runs`: its times, and beside them clocks, powers or both. The part of heat is the share
    of the variance of its log times that goes with these, adjusted for their number; the interval is that of resampled
    runs. None where less than half of the variance does, or with fewer than 8 runs.
    """
    names = [name for name in _UNITS if name in runs.columns and 2 * runs[name].null_count() < runs.height]
    known = runs.select("value", *names).drop_nulls().cast(pl.Float64).to_numpy()
    known = known[np.all(np.isfinite(known) & (known > 0), axis=1)]
    if not names or len(known) < _RUNS:
        return None
    y, x = np.log(known[:, 0]), np.log(known[:, 1:])
    resampled = random.integers(0, len(y), (DRAWS, len(y)))
    share = goes_with(x, y)
    low, high = np.quantile([goes_with(x[some], y[some]) for some in resampled], (0.025, 0.975))
    if share < _MOST or low <= 0:
        return None
    low, high = min(float(low), share), max(float(high), share)
    heat = Cause(Part.HEAT, effect_pct * share, effect_pct * low, effect_pct * high)
    rest = Cause(Part.UNEXPLAINED, effect_pct - heat.pct, effect_pct * (1 - high), effect_pct * (1 - low))
    slower = y > np.median(y)
    slow, fast = (
        " and ".join(f"{np.exp(x[which, at].mean()):.0f} {_UNITS[name]}" for at, name in enumerate(names))
        for which in (slower, ~slower)
    )
    heated = f"{row['temperature']:.0f} °C, its peers {row['peers_temperature']:.0f}"
    says = f"heat holds its clock ({heated}): {slow} in its slower runs, {fast} in its faster ones"
    return Moved((heat, rest), says, action_of(Kind.HOT))


def goes_with(x: Floats, y: Floats) -> float:
    """The share of the variance of log times `y` that goes with lower values of the columns of `x`, adjusted for their
    number; 0 where no column is lower in the slower runs."""
    off, of_y = x - x.mean(axis=0), y - y.mean()
    total, (n, columns) = float(of_y @ of_y), x.shape
    if total <= _SAME * n or n <= columns + 1 or not any(float(one @ of_y) < 0 for one in off.T):
        return 0.0
    rest = of_y - off @ np.linalg.lstsq(off, of_y, rcond=None)[0]
    return max(0.0, float(1 - (rest @ rest) / total * (n - 1) / (n - 1 - columns)))
