"""The level of every GPU in one figure, and how much a figure moves by itself, pooled over a fleet.

The model: figure = fleet + batch + node + GPU + sitting + run. A run is one measurement; a sitting is the runs of a GPU
without a pause of six hours; a level is the median of a GPU's sittings. Every step takes medians, so that no single run
decides anything.

The variance V(h) of the difference of two sittings of one GPU that lie h days apart (a variogram: G. Matheron, Economic
Geology 58, 1963) holds for independent days, for days that resemble each other and for random walks alike. It comes
from the fleet's own pairs of sittings, in classes of h (hours, days, weeks, months), by medians, so that the GPUs which
really changed do not count; where there are few pairs, from what a public cluster showed. How heavy the tails are comes
from the same pairs. The interval of a level, a change of one GPU, a score in another sitting and what advice gains are
contrasts of sittings, and this gives their variance: docs/how-we-know/verdicts.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
from scipy import special

from ..runs.sittings import UNKNOWN, Bools, Floats, Ints, Runs, Sittings, groups_median, middles, sittings, spread
from ..statistics.ordering import quantile

LEAST = 1e-4
"""No time is measured better than to a ten-thousandth: the least standard deviation of a sitting."""
LEAST_PAIRS = 8
"""Differences between sittings of one GPU, over the fleet, below which nothing is said of them."""
CLASSES = np.array([0.0, 0.5, 4.0, 10.0, 21.0, 45.0, 90.0])
"""Days from which two sittings are hours, days, a week, a fortnight, a month, two and three months apart."""
PUBLISHED = np.array([0.0006, 0.0010, 0.0017, 0.0025, 0.0031, 0.0031, 0.0031]) ** 2
"""V of these classes without what runs add, for a normal law with the same 90 % interval: SGEMM of 392 GPUs of a public
cluster on 14 dates in six weeks (docs/how-we-know/verdicts.md)."""
ANOTHER = 28.0
"""Days after a GPU's last sitting at which another one is, where nothing else is said: a month."""
_DATES = 16
"""Pairs of dates that the published growth of V counts for: two dates tell of themselves, however many the GPUs."""
_FASTER = 3.0
"""Times the published growth of V, in proportion: a figure that hardly moves in days does not move far in a month."""
_OF_RUNS = 0.7
"""Where no GPU has two sittings: the standard deviation of a sitting over that of a run, at least."""

_LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_FREEDOMS = np.array([1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 30.0, 100.0])
_FITTED_AT = (0.75, 0.85, 0.9)  # further out are the GPUs that really changed
_UNKNOWN = 3.0  # degrees of freedom, where nothing is known of them
_TAILS = 60  # pairs that these count for
_TO_FIT = 200  # pairs, to know what temperature does, and that tails are heavier
_ROUNDS = 3
_SAMPLE = 3000  # series
_RUNS = 100_000  # differences of runs
_MANY_DAYS = 1e7
_SURE = 2.5  # standard errors of a share are half of that over the root of n
_KELVIN_STEP = 5.0
_A_CLASS, _CLASS_GPUS = 8, 3  # pairs, and GPUs, for a class of temperature
_GPUS = 20  # of which a temperature changed, to know what it does


@dataclass(frozen=True)
class Noise:
    """Of one workload. Variances of logarithms, as scales of Student's t: a difference over the root has that law."""

    gaps: Floats
    """(k,) days between two sittings; above each, up to the next, the difference has the variance beside it."""
    between: Floats
    """(k,) variance of the difference of two sittings of many runs; it never falls with the gap."""
    within: float
    """Variance of a run within its sitting."""
    freedom: float
    """Degrees of freedom of the tails."""
    pairs: int
    """Differences it was taken from."""
    a_kelvin: float = 0.0
    """By how much a sitting is slower for each kelvin that the GPU is warmer, in logarithms; 0 where none is seen."""
    warm: Floats = field(default_factory=lambda: np.full(1, -np.inf))
    """(j,) temperatures, and by what the variance is multiplied from each on: hot GPUs move more. It never falls."""
    rough: Floats = field(default_factory=lambda: np.ones(1))

    def roughness(self, warmth: Floats | float) -> Floats:
        """By what the variance is multiplied at these temperatures; 1 where they are unknown."""
        place = np.searchsorted(self.warm, np.nan_to_num(warmth, nan=-np.inf), "right") - 1
        factors: Floats = self.rough[np.clip(place, 0, len(self.rough) - 1)]
        return factors

    def difference(self, gap: Floats | float, runs_a: Floats | Ints | float, runs_b: Floats | Ints | float) -> Floats:
        """The variance of the difference of two sittings so many days apart, of so many runs."""
        more: Floats = self.within * (1 / np.maximum(runs_a, 1) + 1 / np.maximum(runs_b, 1))
        return self._of_gap(gap) + more

    def of_levels(self, sittings: Sittings, later: float = ANOTHER) -> Floats:
        """(series,) the variance of the difference between the mean of a series' sittings and one more, `later` days
        after its last, of as many runs as usual; NaN without a sitting.

        With weights 1/k for k sittings it is the sum of V(later sitting - i) / k - sum over pairs of V(i - j) / k².
        """
        counts = np.maximum(sittings.per_series, 1)
        last = np.full(sittings.count, -np.inf)
        last[sittings.series] = sittings.at  # they are in the order of time
        to_later = self._of_gap(last[sittings.series] + later - sittings.at)
        pairs = np.zeros(sittings.count)
        if len(sittings) and (counts > 1).any():
            # How many earlier sittings lie at least so far back, by one search in a line of all series.
            line = sittings.at - sittings.at.min()
            line += sittings.series * (float(line.max()) + self.gaps[-1] + 1.0)
            begins = sittings.first[sittings.series]
            longest = float((sittings.at - sittings.at[begins]).max())
            for gap, step in zip(self.gaps, np.diff(self.between, prepend=0.0), strict=True):
                if step > 0 and gap <= longest:
                    earlier = np.searchsorted(line, line - gap, "right") if gap > 0 else np.arange(len(sittings))
                    pairs += step * np.bincount(
                        sittings.series, np.maximum(earlier - begins, 0), minlength=sittings.count
                    )
        usual = float(np.median(sittings.runs)) if len(sittings) and (sittings.at > UNKNOWN).any() else 1.0
        of_runs = np.bincount(sittings.series, 1.0 / sittings.runs, minlength=sittings.count) / counts**2 + 1.0 / usual
        of_sittings = np.bincount(sittings.series, to_later, minlength=sittings.count) / counts - pairs / counts**2
        return np.where(sittings.per_series > 0, of_sittings + self.within * of_runs, np.nan)

    def again(self, sittings: Sittings) -> float:
        """The standard deviation of a sitting of as many runs as usual, from one to the next as far apart as usual, as
        of a normal law with the same 90 % interval."""
        successive = sittings.series[1:] == sittings.series[:-1]
        gap = float(np.median(np.diff(sittings.at)[successive])) if successive.any() else 1.0
        runs = float(np.median(sittings.runs)) if len(sittings) else 1.0
        return float(np.sqrt(self.difference(gap, runs, runs) * as_normal(self.freedom) / 2))

    def _of_gap(self, gap: Floats | float) -> Floats:
        variances: Floats = self.between[np.clip(np.searchsorted(self.gaps, gap, "right") - 1, 0, len(self.gaps) - 1)]
        return variances

    def reach(self, share: float) -> float:
        """Half of the interval that holds this share, over the root of the variance."""
        return float(quantile((1 - share) / 2, self.freedom))

    def excess(self, sittings: Sittings) -> Floats:
        """(series,) by how much the variance of each series is larger than the fleet's, from its own sittings: 1 where
        they differ as usual. Few sittings say little: the fleet counts for 64 differences."""
        successive = np.flatnonzero(sittings.series[1:] == sittings.series[:-1])
        moves = sittings.value[successive + 1] - sittings.value[successive]
        usual = self.difference(
            sittings.at[successive + 1] - sittings.at[successive],
            sittings.runs[successive],
            sittings.runs[successive + 1],
        )
        usual *= as_normal(self.freedom)
        squares = np.bincount(sittings.series[successive], moves**2 / usual, minlength=sittings.count)
        return np.maximum((_FLEET + squares) / (_FLEET + np.maximum(sittings.per_series - 1, 0)), 1.0)


_FLEET = 64.0
UNKNOWN_NOISE = Noise(np.zeros(1), np.full(1, 2 * 0.005**2), 0.002**2, 3.0, 0)
"""Where nothing is known: half a per cent from sitting to sitting."""


def estimate(sittings: Sittings, runs: Runs | None = None, *, published: bool = False) -> Noise | None:
    """The noise of sittings whose common steps were taken out; None where too few GPUs have two sittings.

    `published`: whether V grows with time as it did elsewhere, as far as own dates do not say otherwise. An interval of
    what may come needs that; a change is held against what was seen.
    """
    several = np.flatnonzero(sittings.per_series >= 2)
    if len(several) > _SAMPLE:  # they are enough to know it
        sample = np.zeros(sittings.count, dtype=bool)
        sample[several[:: len(several) // _SAMPLE + 1]] = True
        sittings = sittings.keep(sample[sittings.series])
    gaps, moves, first, second, kelvin, warmest, series, days = _pairs(sittings)
    if len(moves) < LEAST_PAIRS:
        return None
    slope = _a_kelvin(moves, kelvin, series)
    moves = moves - slope * np.nan_to_num(kelvin)
    within = max(_within(runs), sittings.rounding**2)
    run_noise = within * (1 / first + 1 / second)
    bins = np.searchsorted(CLASSES, gaps, "right") - 1
    dates = [len(np.unique(days[bins == number])) for number in range(len(CLASSES))]
    least = 2 * max(LEAST, sittings.rounding) ** 2
    freedom, noise = _UNKNOWN, None
    for _ in range(_ROUNDS):  # the scale depends a little on the tails, and the tails on the scale
        rough = np.ones(len(moves)) if noise is None else noise.roughness(warmest)
        sizes = np.abs(moves) / np.sqrt(rough)
        total = [_square(sizes[bins == b], freedom) if n else np.nan for b, n in enumerate(dates)]
        own_variance = [
            max(t - float(np.median(run_noise[bins == b])), 0.0) if dates[b] else np.nan for b, t in enumerate(total)
        ]
        between = np.maximum(_grown(own_variance, dates, freedom, _DATES if published else 0), least)
        scaled = moves / np.sqrt(between[bins] + run_noise)
        warm, factors = _by_warmth(scaled / _middle(freedom), warmest, series)
        noise = Noise(CLASSES, between, within, freedom, len(moves), slope, warm, factors)
        freedom = _tails(scaled / np.sqrt(noise.roughness(warmest)), published=published)
        noise = replace(noise, freedom=freedom)
    return noise


def assumed(sittings: Sittings, runs: Runs) -> Noise | None:
    """The noise where no GPU has two sittings: from how runs of a sitting differ and what is published; None where no
    GPU has two runs. Runs without a date may be of any time: how they differ is all that is known."""
    off = np.diff(runs.value)[np.diff(runs.sitting) == 0]
    if not len(off):
        return None
    within, freedom = max(_within(runs), sittings.rounding**2), _tails(off, published=True)
    known_variance = np.full(len(CLASSES), np.nan)
    least = 2 * max(LEAST, sittings.rounding) ** 2
    if not (sittings.at > UNKNOWN).any():
        return Noise(CLASSES, np.full(len(CLASSES), least), within, freedom, 0)
    known_variance[1] = PUBLISHED[1] / as_normal(freedom) + 2 * _OF_RUNS**2 * within
    between = np.maximum(_grown(known_variance, [0, 1, *[0] * (len(CLASSES) - 2)], freedom, _DATES), least)
    return Noise(CLASSES, between, within, freedom, 0)


def _square(sizes: Floats, freedom: float) -> float:
    """The square of the scale of t, by the median; of values in steps, of which most are equal, by the mean."""
    middle = float(np.median(sizes))
    return (middle / _middle(freedom)) ** 2 if middle > 0 else float((sizes**2).mean()) / as_normal(freedom)


def as_normal(freedom: float) -> float:
    """What makes the square of a scale of t the variance of a normal law with the same 90 % interval."""
    return float(quantile(0.05, freedom) / -special.ndtri(0.05)) ** 2


def _grown(own_variance: Sequence[float] | Floats, dates: Sequence[int], freedom: float, prior: int) -> Floats:
    """(classes,) V: `own` from pairs of so many pairs of dates, shrunk to what the class before and what is published
    lead to expect, which count for `prior` pairs; with 0 they say nothing. It never falls with time."""
    variances = np.empty(len(CLASSES))
    first = int(np.flatnonzero(dates)[0])
    variances[: first + 1] = last = own_variance[first]
    for number in range(first + 1, len(CLASSES)):
        step = (PUBLISHED[number] - PUBLISHED[number - 1]) / as_normal(freedom)
        most = _FASTER * last * (PUBLISHED[number] / PUBLISHED[number - 1] - 1)
        expected, n = last + min(step, most) * (prior > 0), dates[number]
        seen = (n * own_variance[number] + prior * expected) / (n + prior) if n else expected
        variances[number] = last = max(seen, last)
    return variances


def _a_kelvin(moves: Floats, kelvin: Floats, series: Floats) -> float:
    """The median of the moves a kelvin, where it is clearly above 0."""
    warmer = np.abs(kelvin) >= 1
    slopes = moves[warmer] / kelvin[warmer]
    if len(slopes) < _TO_FIT or len(np.unique(series[warmer])) < _GPUS:
        return 0.0
    # A sign test: it needs no law of the noise.
    up = float((slopes > 0).mean())
    return max(0.0, float(np.median(slopes))) if up - 0.5 > _SURE / np.sqrt(len(slopes)) else 0.0


def _by_warmth(scaled: Floats, warmest: Floats, series: Floats) -> tuple[Floats, Floats]:
    """Temperatures from which the GPUs move more, and by what factor of the variance."""
    measured = np.isfinite(warmest)
    if measured.sum() < _TO_FIT:
        return np.full(1, -np.inf), np.ones(1)
    steps = np.floor(warmest[measured] / _KELVIN_STEP) * _KELVIN_STEP
    names, place = np.unique(steps, return_inverse=True)
    size, who = np.abs(scaled[measured]), series[measured]
    warm, rough = [-np.inf], [1.0]
    for number, name in enumerate(names):
        in_class = size[place == number]
        several = len(in_class) >= _A_CLASS and len(np.unique(who[place == number])) >= _CLASS_GPUS
        if name > np.median(warmest[measured]) and several:
            warm.append(float(name))
            rough.append(max(rough[-1], float(np.median(in_class)) ** 2))
    return np.array(warm), np.array(rough)


def _pairs(sittings: Sittings) -> tuple[Floats, ...]:
    """Of pairs of sittings of one series: days between, difference, runs of the first and of the second, kelvin by
    which the second is warmer, the temperature of the warmer one, the series, and a number for the two dates."""
    parts_by_lag: list[tuple[Floats, ...]] = [(np.zeros(0),) * 8]
    day = np.floor(sittings.at)
    for lag in _LAGS:
        if lag >= len(sittings):
            break
        one_series = sittings.series[lag:] == sittings.series[:-lag]
        if not one_series.any():
            break
        parts_by_lag.append(
            (
                (sittings.at[lag:] - sittings.at[:-lag])[one_series],
                (sittings.value[lag:] - sittings.value[:-lag])[one_series],
                sittings.runs[:-lag][one_series].astype(float),
                sittings.runs[lag:][one_series].astype(float),
                (sittings.warmth[lag:] - sittings.warmth[:-lag])[one_series],
                np.fmax(sittings.warmth[lag:], sittings.warmth[:-lag])[one_series],
                sittings.series[lag:][one_series].astype(float),
                (day[:-lag] * _MANY_DAYS + day[lag:])[one_series],
            )
        )
    return tuple(np.concatenate(parts) for parts in zip(*parts_by_lag, strict=True))


def _within(runs: Runs | None) -> float:
    """The variance of a run within its sitting, from runs that follow one another."""
    if runs is None:
        return 0.0
    moves = np.diff(runs.value)[np.diff(runs.sitting) == 0]
    return spread(moves[:: len(moves) // _RUNS + 1]) ** 2 / 2 if len(moves) else 0.0


def _tails(moves: Floats, *, published: bool) -> float:
    """Degrees of freedom with which t has the tails of these, each over its scale: of few pairs near 3."""
    sizes = np.abs(moves)
    middle = float(np.median(sizes)) if len(sizes) else 0.0
    if middle == 0:
        return _UNKNOWN
    seen = np.log(np.quantile(sizes, _FITTED_AT) / middle)
    fitted = float(_FREEDOMS[int(np.argmin(((seen - _expected()) ** 2).sum(axis=1)))])
    if len(sizes) < _TO_FIT:  # a few far values are no heavy tail, and for a change of one GPU no light one
        fitted = max(fitted, _UNKNOWN) if published else _UNKNOWN
    return (len(sizes) + _TAILS) / (len(sizes) / fitted + _TAILS / _UNKNOWN)


@cache
def _middle(freedom: float) -> float:
    """Half of the sizes of t are below this."""
    return float(quantile(0.25, freedom))


@cache
def _expected() -> Floats:
    """(freedoms, quantiles) the logarithms of quantiles of the sizes of t, over their middle."""
    tails = (1 - np.array([0.5, *_FITTED_AT])) / 2
    logarithms: Floats = np.log(quantile(tails, _FREEDOMS[:, None]))
    return logarithms[:, 1:] - logarithms[:, :1]


@cache
def mean_size(freedom: float, most: float) -> float:
    """The mean size of t, of which no value counts for more than `most`."""
    shares = (np.arange(2000) + 0.5) / 4000
    return float(np.minimum(quantile(shares, freedom), most).mean())


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
    """(sittings,) what the day did to all, which `sat` and `level` are without."""
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
        wide = self.noise.of_levels(sat.sat) * self.noise.excess(self.sat)
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
    sat = sat.less(steps)
    middle = groups_median(sat.value, sat.series, gpus)
    low = middles(sat.low, sat.series, gpus)[0]
    high = middles(sat.high, sat.series, gpus)[1]
    runs = np.bincount(sat.series, sat.runs, minlength=gpus).astype(np.int64)
    repeated, pairs = int((count > 1).sum()), int(np.maximum(count - 1, 0).sum())
    # Of a small fleet most GPUs must show it.
    between_known = repeated >= _PAIRS or (pairs >= _PAIRS and 2 * repeated >= int((count > 0).sum()))
    noise = estimate(sat, runs_of, published=True) if between_known else assumed(sat, runs_of)
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
