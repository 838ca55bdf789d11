"""The level of every GPU in one figure: from runs to sittings, without what a day did to all, to a level a GPU.

The model: figure = fleet + batch + node + GPU + sitting + run. A run is one measurement; a sitting is the runs of a GPU
without a pause of six hours; a level is the median of a GPU's sittings. Every step takes medians, so that no single run
decides anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..runs.sittings import UNKNOWN, Bools, Floats, Ints
from .sittings import Runs, Sittings, groups_median, middles, sittings, spread

_FAR = 6.0  # robust standard deviations from which a run counts as no farther off
_PAIRS = 8  # GPUs with two sittings, or pairs of sittings, for how much sittings differ to be known
_DAYS_OF_ALL = 8  # GPUs with other sittings that a day needs for its effect to be known
_BETWEEN_TO_WITHIN = 1.3
"""Where no GPU has two sittings: the standard deviation between sittings over that within one. Of SGEMM on a public
cluster 61 to 65 % of a GPU's variance lies between days (docs/operating-characteristics.md)."""
LEAST = 1e-4
"""No figure is known better than to a ten-thousandth."""
RELEVANT = 0.01
"""Of a time, as a logarithm: less is not worth a look at the machine, however sure it is."""
WEEKS = 0.0015
"""How much the level of a GPU's times changes from one week to another (robust standard deviation of the logarithm):
SGEMM on 272 GPUs of a public cluster, between the halves of six weeks (docs/operating-characteristics.md)."""
_SEEN_WEEKS = 14.0
"""Days between a GPU's first and last sitting, in the median: with fewer, sittings cannot tell what weeks do."""
REACH_95, REACH_90 = 2.6, 2.015
"""Half of an interval over its standard deviation, of Student's t with 5 degrees of freedom: sittings have heavier
tails than the normal distribution."""


def in_pct(effect: float) -> float:
    """A logarithm of a ratio in per cent."""
    return 100 * math.expm1(effect)


@dataclass(frozen=True)
class Levels:
    """Every GPU's level in one figure: arrays of shape (gpus,), NaN for a GPU without it."""

    level: Floats
    """The median of its sittings."""
    slow_side: Floats
    """As `level`, of the values in the middle that are lower: what a glitch cannot raise."""
    fast_side: Floats
    """... and that are higher."""
    sittings: Ints
    runs: Ints
    error: Floats
    """Standard error of the level as that of the level in the long run."""
    again: float
    """Standard deviation of the level of a sitting, from one to another, pooled over the fleet."""
    between_known: bool
    """Whether `again` was seen (enough GPUs have several sittings) or taken from how runs of a sitting differ."""
    repeats: float | None
    """Of the variance of single runs, the share that lies between GPUs; None where no GPU has two runs."""
    steps: Floats
    """(sittings,) what the day did to all, which `level` is without."""
    sat: Sittings
    within: Floats
    """Standard deviation of the GPU's runs within their sittings; NaN where no sitting has two."""

    @property
    def known(self) -> Bools:
        return np.isfinite(self.level)

    @cached_property
    def _saw_weeks(self) -> bool:
        """Whether the sittings of most GPUs with several show what weeks do."""
        if not self.between_known:
            return False
        first, last = (np.full(self.sat.count, value) for value in (np.inf, -np.inf))
        timed = self.sat.at > UNKNOWN
        series, at = self.sat.series[timed], self.sat.at[timed]  # by series and time
        first[series[::-1]], last[series] = at[::-1], at  # of several, the last that is set stays
        return float(np.median((last - first)[self.sittings > 1])) >= _SEEN_WEEKS

    def later(self, weeks: float = 0.0) -> float:
        """Standard deviation of the level of a sitting at another time about a GPU's level in the long run; NaN where
        nothing is known. `weeks`: how much weeks change a level, which sittings of fewer days cannot tell."""
        # Sittings of one week share what that week does: the level seen has its share of it, and the other sitting too.
        return self.again if self._saw_weeks else float(np.hypot(self.again, np.sqrt(2.0) * weeks))

    @property
    def pooled(self) -> Floats:
        """(gpus,) standard error of a level, if the GPU's sittings differ as those of the fleet do."""
        again = self.again if np.isfinite(self.again) else LEAST
        return np.asarray(again / np.sqrt(np.maximum(self.sittings, 1)))

    def apart(self, weeks: float = 0.0) -> Floats:
        """(gpus,) standard deviation of the level in another sitting about the level seen: of both. NaN as `later`."""
        return np.hypot(np.maximum(self.error, self.pooled), self.later(weeks))


def levels(gpu: Ints, at: Floats, figure: Floats, gpus: int, step: float = 0.0) -> Levels:
    """The levels of the GPUs numbered 0 to `gpus` - 1, from runs: the number of the GPU, when it began (days since
    1970, or `UNKNOWN`) and the figure, finite. `step`: in which times come (`step_of`)."""
    sat, runs_of = sittings(gpu, at, figure, gpus, step=step)
    least = max(LEAST, sat.rounding)
    inside = _within(sat, runs_of)
    count = sat.per_series
    day = _days(sat.at)
    steps = _steps(sat.value, sat.series, day, count)
    middle = groups_median(sat.value - steps, sat.series, gpus)
    low = middles(sat.low - steps, sat.series, gpus)[0]
    high = middles(sat.high - steps, sat.series, gpus)[1]
    runs = np.bincount(sat.series, sat.runs, minlength=gpus).astype(np.int64)
    freedom = np.maximum(sat.runs - 1, 0)
    within = float(np.sqrt(inside.sum() / freedom.sum())) if freedom.any() else np.nan
    off = sat.value - steps - middle[sat.series]
    several = count[sat.series] > 1
    shown, pairs = int((count > 1).sum()), int(np.maximum(count - 1, 0).sum())
    # Of a small fleet most GPUs must show it.
    between_known = shown >= _PAIRS or (pairs >= _PAIRS and 2 * shown >= int((count > 0).sum()))
    if between_known:
        # Medians of differences between sittings next to each other: drifts and steps of one GPU stay out of it.
        pair = np.flatnonzero(several[1:] & (sat.series[1:] == sat.series[:-1]))
        apart = (sat.value - steps)[pair + 1] - (sat.value - steps)[pair]
        scale = 1.4826 * float(np.median(np.abs(apart)))
        clipped = np.clip(apart, -_FAR * scale, _FAR * scale) if scale > 0 else apart
        again = float(np.sqrt((clipped**2).mean() / 2))
    else:
        again = _BETWEEN_TO_WITHIN * within if np.isfinite(within) else np.nan
    again = max(again, least) if np.isfinite(again) else np.nan
    spread = np.where(several, off, 0.0)
    squares = np.bincount(sat.series, spread**2, minlength=gpus)
    with np.errstate(all="ignore"):
        mine = np.sqrt(squares / np.maximum(count - 1, 1))
        # A GPU that changes more than the fleet's usual one is known less well; few sittings say little about that.
        pooled = np.sqrt((again**2 * 4 + mine**2 * (count - 1)) / (4 + np.maximum(count - 1, 0)))
        error = np.where(count > 0, pooled / np.sqrt(np.maximum(count, 1)), np.nan)
        repeats = _repeats(sat, middle, count, runs, within, again if between_known else 0.0)
    return Levels(
        middle, low, high, count, runs, error, again, between_known, repeats, steps, sat, _own_within(sat, runs_of)
    )


def _within(sat: Sittings, runs: Runs) -> Floats:
    """(sittings,) sums of squares of the runs about their median, each no farther off than six robust sd."""
    off = runs.value - sat.value[runs.sitting]
    several = sat.runs[runs.sitting] > 1
    reach = _FAR * max(spread(off[several]) if several.any() else 0.0, LEAST)
    return np.bincount(runs.sitting, np.clip(off, -reach, reach) ** 2, minlength=len(sat)).astype(np.float64)


def _own_within(sat: Sittings, runs: Runs) -> Floats:
    """(gpus,) of `Levels.within`: about the means of sittings, so that it is not biased by how few runs they have."""
    mean = np.bincount(runs.sitting, runs.value, len(sat)) / sat.runs
    squares = np.bincount(sat.series[runs.sitting], (runs.value - mean[runs.sitting]) ** 2, sat.count)
    freedom = np.bincount(sat.series, sat.runs - 1, sat.count)
    return np.asarray(np.sqrt(np.divide(squares, freedom, out=np.full(sat.count, np.nan), where=freedom > 0)))


def _repeats(sat: Sittings, middle: Floats, count: Ints, runs: Ints, within: float, again: float) -> float | None:
    """The intraclass correlation of single runs, from the spread of the levels and that within GPUs."""
    known = np.isfinite(middle)
    if known.sum() < 2 or (runs > 1).sum() < 2:
        return None
    run = within if np.isfinite(within) else 0.0
    noise = run**2 + max(again**2 - run**2 / max(1.0, float(np.median(sat.runs))), 0.0)
    typical = float(np.median(runs[known]))
    of_level = run**2 / typical + max(noise - run**2, 0.0) / float(np.median(count[known]))
    between = max(float(np.var(middle[known], ddof=1)) - of_level, 0.0)
    return between / (between + noise) if between + noise > 0 else 0.0


def _days(at: Floats) -> Ints:
    """The number of the day of each sitting; -1 where unknown."""
    known = at > UNKNOWN
    found = np.full(len(at), -1, dtype=np.int64)
    day = np.floor(at[known]).astype(np.int64)
    if len(day) and day.max() - day.min() < len(day):  # these can be counted, which takes less than to sort them
        day -= day.min()
        found[known] = (np.cumsum(np.bincount(day) > 0) - 1)[day]
    else:
        found[known] = np.unique(day, return_inverse=True)[1]
    return found


def _steps(middle: Floats, gpu: Ints, day: Ints, count: Ints) -> Floats:
    """What each day did to all GPUs, from those that were measured on other days too; 0 where that is not clear."""
    found = np.zeros(len(middle))
    use = (count[gpu] > 1) & (day >= 0)
    days = int(day.max(initial=-1)) + 1
    if days < 2 or not use.any():
        return found
    effect = np.zeros(days)
    x, its, when = middle[use], gpu[use], day[use]
    many = np.bincount(when, minlength=days)
    start = np.concatenate(([0], np.cumsum(many)))
    order = np.argsort(when, kind="stable")
    for _ in range(4):
        own = groups_median(x - effect[when], its, len(count))
        off = x - own[its]
        for one in np.flatnonzero(many >= _DAYS_OF_ALL):
            part = off[order[start[one] : start[one + 1]]]
            centre = float(np.median(part))
            doubt = 1.4826 * float(np.median(np.abs(part - centre))) * 1.2533 / np.sqrt(len(part))
            effect[one] = centre if abs(centre) > 2.5 * max(doubt, LEAST / 10) else 0.0
        effect -= np.median(effect[many > 0])
    known = day >= 0
    found[known] = effect[day[known]]
    return found
