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
from .sittings import Runs, Sittings, groups_median, middles, sittings
from .variance import LEAST, Noise, as_normal, assumed, estimate

_PAIRS = 8  # GPUs with two sittings, or pairs of sittings, for how much sittings differ to be known
_DAYS_OF_ALL = 8  # GPUs with other sittings that a day needs for its effect to be known
RELEVANT = 0.01
"""Of a time, as a logarithm: less is not worth a look at the machine, however sure it is."""
REACH_95 = 2.6
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
    noise: Noise | None
    """How a GPU's figure moves by itself, from the fleet; None where no GPU has two runs."""
    between_known: bool
    """Whether enough GPUs have several sittings for `noise` to be seen, or it is taken from how runs differ."""
    repeats: float | None
    """Of the variance of single runs, the share that lies between GPUs; None where no GPU has two runs."""
    steps: Floats
    """(sittings,) what the day did to all, which `level` is without."""
    sat: Sittings
    within: Floats
    """Standard deviation of the GPU's runs within their sittings; NaN where no sitting with a date has two."""

    @property
    def within_freedom(self) -> Ints:
        """(gpus,) the degrees of freedom of `within`."""
        return _within_freedom(self.sat)

    @property
    def known(self) -> Bools:
        return np.isfinite(self.level)

    @cached_property
    def again(self) -> float:
        """Standard deviation of the level of a sitting, from one to the next, pooled over the fleet; NaN if unknown."""
        return math.nan if self.noise is None else self.noise.again(self.sat)

    @cached_property
    def pooled(self) -> Floats:
        """(gpus,) standard error of a level, if the GPU's sittings differ as those of the fleet do."""
        again = self.again if np.isfinite(self.again) else LEAST
        return np.asarray(again / np.sqrt(np.maximum(self.sittings, 1)))

    def half(self, share: float = 0.95, part: Levels | None = None) -> Floats:
        """(gpus,) half of the interval that holds the level of a GPU in another sitting, up to a month later, with this
        probability; NaN where nothing is known. `part`: levels of a part of these sittings, whose intervals are wanted.
        """
        if self.noise is None:
            return np.full(len(self.level), np.nan)
        sat = self if part is None else part
        wide = self.noise.of_levels(sat.sat) * self.noise.excess(self.sat.less(self.steps))
        widths: Floats = self.noise.reach(share) * np.sqrt(wide)
        return widths

    def later(self) -> Floats:
        """(gpus,) the scale (of Student's t with `noise.freedom` degrees) of the level in another sitting about the
        level in the long run: `half` without what the level itself may be off. NaN where nothing is known."""
        if self.noise is None:
            return np.full(len(self.level), np.nan)
        again = self.again**2 / as_normal(self.noise.freedom)
        both = (self.half() / self.noise.reach(0.95)) ** 2
        scales: Floats = np.sqrt(np.maximum(both - again / np.maximum(self.sittings, 1), again))
        return scales


def levels(gpu: Ints, at: Floats, figure: Floats, gpus: int, step: float = 0.0) -> Levels:
    """The levels of the GPUs numbered 0 to `gpus` - 1, from runs: the number of the GPU, when it began (days since
    1970, or `UNKNOWN`) and the figure, finite. `step`: in which times come (`step_of`)."""
    sat, runs_of = sittings(gpu, at, figure, gpus, step=step)
    count = sat.per_series
    steps = _steps(sat.value, sat.series, _days(sat.at), count)
    at_rest = sat.less(steps)
    middle = groups_median(at_rest.value, sat.series, gpus)
    low = middles(at_rest.low, sat.series, gpus)[0]
    high = middles(at_rest.high, sat.series, gpus)[1]
    runs = np.bincount(sat.series, sat.runs, minlength=gpus).astype(np.int64)
    repeated, pairs = int((count > 1).sum()), int(np.maximum(count - 1, 0).sum())
    # Of a small fleet most GPUs must show it.
    between_known = repeated >= _PAIRS or (pairs >= _PAIRS and 2 * repeated >= int((count > 0).sum()))
    noise = estimate(at_rest, runs_of, published=True) if between_known else assumed(at_rest, runs_of)
    repeats = _repeats(sat, middle, count, runs, noise, between_known)
    return Levels(middle, low, high, count, runs, noise, between_known, repeats, steps, sat, _own_within(sat, runs_of))


def _within_freedom(sat: Sittings) -> Ints:
    """(gpus,) degrees of freedom of what runs tell within sittings that have a date."""
    return np.bincount(sat.series, np.where(sat.at > UNKNOWN, sat.runs - 1, 0), sat.count).astype(np.int64)


def _own_within(sat: Sittings, runs: Runs) -> Floats:
    """(gpus,) of `Levels.within`: about the means of sittings, so that it is not biased by how few runs they have.

    Of runs without a date nobody knows which are of one sitting: they do not count.
    """
    if not len(sat):
        return np.full(sat.count, np.nan)
    first = np.cumsum(sat.runs) - sat.runs
    off = runs.value - np.repeat(np.add.reduceat(runs.value, first) / sat.runs, sat.runs)
    off *= off
    squares = np.bincount(sat.series, np.where(sat.at > UNKNOWN, np.add.reduceat(off, first), 0.0), sat.count)
    freedom = _within_freedom(sat)
    return np.asarray(np.sqrt(np.divide(squares, freedom, out=np.full(sat.count, np.nan), where=freedom > 0)))


def _repeats(
    sat: Sittings, middle: Floats, count: Ints, runs: Ints, noise: Noise | None, between_known: bool
) -> float | None:  # fmt: skip
    """The intraclass correlation of single runs, from the spread of the levels and that within GPUs."""
    measured = np.isfinite(middle)
    if measured.sum() < 2 or (runs > 1).sum() < 2 or noise is None:
        return None
    scale, run_count = as_normal(noise.freedom), max(1.0, float(np.median(sat.runs)))
    # Noise is never taken for less than the rounding of the times. What is no more than that was not seen to scatter.
    rounding = sat.rounding**2 * scale * (1 + 1e-9)
    within = noise.within * scale
    between = max(noise.again(sat) ** 2 - within / run_count, 0.0) if between_known else 0.0
    within, between = (variance if variance > rounding else 0.0 for variance in (within, between))
    of_level = within / float(np.median(runs[measured])) + between / float(np.median(count[measured]))
    between_gpus = max(float(np.var(middle[measured], ddof=1)) - of_level, 0.0)
    return between_gpus / (between_gpus + within + between) if between_gpus + within + between > 0 else 0.0


def _days(at: Floats) -> Ints:
    """The number of the day of each sitting; -1 where unknown."""
    dated = at > UNKNOWN
    numbers = np.full(len(at), -1, dtype=np.int64)
    day = np.floor(at[dated]).astype(np.int64)
    if len(day) and day.max() - day.min() < len(day):  # these can be counted, which takes less than to sort them
        day -= day.min()
        numbers[dated] = (np.cumsum(np.bincount(day) > 0) - 1)[day]
    else:
        numbers[dated] = np.unique(day, return_inverse=True)[1]
    return numbers


def _steps(middle: Floats, gpu: Ints, day: Ints, count: Ints) -> Floats:
    """What each day did to all GPUs, from those that were measured on other days too; 0 where that is not clear."""
    steps = np.zeros(len(middle))
    use = (count[gpu] > 1) & (day >= 0)
    days = int(day.max(initial=-1)) + 1
    if days < 2 or not use.any():
        return steps
    effect = np.zeros(days)
    x, owner, day_of = middle[use], gpu[use], day[use]
    sizes = np.bincount(day_of, minlength=days)
    start = np.concatenate(([0], np.cumsum(sizes)))
    order = np.argsort(day_of, kind="stable")
    for _ in range(4):
        last = effect.copy()
        levels_of_gpus = groups_median(x - effect[day_of], owner, len(count))
        off = x - levels_of_gpus[owner]
        for number in np.flatnonzero(sizes >= _DAYS_OF_ALL):
            part = off[order[start[number] : start[number + 1]]]
            centre = float(np.median(part))
            doubt = 1.4826 * float(np.median(np.abs(part - centre))) * 1.2533 / np.sqrt(len(part))
            effect[number] = centre if abs(centre) > 2.5 * max(doubt, LEAST / 10) else 0.0
        effect -= np.median(effect[sizes > 0])
        if (effect == last).all():
            break
    dated = day >= 0
    steps[dated] = effect[day[dated]]
    return steps
