"""How much the figures of healthy GPUs move by themselves, pooled over a fleet: the measure for every change.

Three things are taken from the sittings of the whole fleet, by medians, so that the GPUs which really changed do not
count: by how much two sittings of one GPU differ, depending on the time between them (a variogram: it holds for
independent days, for days that resemble each other and for random walks alike); by how much runs of one sitting
differ; and how heavy the tails are. The interval of a level (`levels`) needs one number for sittings at any time; a
change needs to know how much two sittings so many days apart differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from ..runs.sittings import Floats
from ..statistics.student import quantile
from .sittings import Runs, Sittings, spread

LEAST = 1e-4
"""No time is measured better than to a ten-thousandth: the least standard deviation of a sitting."""
LEAST_PAIRS = 8
"""Differences between sittings of one GPU, over the fleet, below which nothing is said of the noise."""

_LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_BINS = 2.0 ** np.arange(-2, 10)  # days
_A_BIN = 60  # pairs for a bin of its own
_FREEDOMS = np.array([1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0])
_FITTED_AT = (0.75, 0.85, 0.9)  # further out are the GPUs that really changed
_UNKNOWN = 3.0  # degrees of freedom, where there is too little to fit them
_TO_FIT = 200  # pairs to fit degrees of freedom, and what temperature does
_ROUNDS = 3
_SAMPLE = 6000  # series
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
        found: Floats = self.rough[np.clip(place, 0, len(self.rough) - 1)]
        return found

    def difference(self, gap: Floats | float, runs_a: Floats | float, runs_b: Floats | float) -> Floats:
        """The variance of the difference of two sittings so many days apart, of so many runs."""
        place = np.clip(np.searchsorted(self.gaps, gap, "right") - 1, 0, len(self.gaps) - 1)
        with np.errstate(divide="ignore"):
            more = self.within * (1 / np.maximum(runs_a, 1) + 1 / np.maximum(runs_b, 1))
        found: Floats = self.between[place] + more
        return found


UNKNOWN = Noise(np.zeros(1), np.full(1, 2 * 0.005**2), 0.002**2, 3.0, 0)
"""Where nothing is known: half a per cent from sitting to sitting."""


def estimate(of: Sittings, runs: Runs | None = None) -> Noise | None:
    """The noise of sittings whose common steps were taken out; None where too few GPUs have two sittings."""
    several = np.flatnonzero(of.per_series >= 2)
    if len(several) > _SAMPLE:  # they are enough to know it
        of = of.keep(np.isin(of.series, several[:: len(several) // _SAMPLE + 1]))
    gaps, moves, first, second, kelvin, warmest, series = _pairs(of)
    if len(moves) < LEAST_PAIRS:
        return None
    slope = _a_kelvin(moves, kelvin, series)
    moves = moves - slope * np.nan_to_num(kelvin)
    within = max(_within(runs), of.rounding**2)
    each = within * (1 / first + 1 / second)
    sizes = np.bincount(np.searchsorted(_BINS, gaps, "right"), minlength=len(_BINS) + 1)
    edges, kept = [0.0], 0
    for place, size in enumerate(sizes):
        if kept >= _A_BIN and size and sizes[place:].sum() >= _A_BIN:
            edges.append(float(_BINS[place - 1]))
            kept = 0
        kept += int(size)
    starts = np.array(edges)
    bins = np.searchsorted(starts, gaps, "right") - 1
    freedom, found = _UNKNOWN, None
    for _ in range(_ROUNDS):  # the scale depends a little on the tails, and the tails on the scale
        rough = np.ones(len(moves)) if found is None else found.roughness(warmest)
        level = moves / np.sqrt(rough)
        total = np.array([np.median(np.abs(level[bins == b])) / _middle(freedom) for b in range(len(starts))]) ** 2
        mean = np.array([np.median(each[bins == b]) for b in range(len(starts))])
        between = np.maximum.accumulate(np.maximum(total - mean, 2 * max(LEAST, of.rounding) ** 2))
        scaled = moves / np.sqrt(between[bins] + each)
        warm, factors = _by_warmth(scaled / _middle(freedom), warmest, series)
        found = Noise(starts, between, within, freedom, len(moves), slope, warm, factors)
        freedom = _tails(scaled / np.sqrt(found.roughness(warmest)))
        found = replace(found, freedom=freedom)
    return found


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
    known = np.isfinite(warmest)
    if known.sum() < _TO_FIT:
        return np.full(1, -np.inf), np.ones(1)
    steps = np.floor(warmest[known] / _KELVIN_STEP) * _KELVIN_STEP
    names, place = np.unique(steps, return_inverse=True)
    size, who = np.abs(scaled[known]), series[known]
    warm, rough = [-np.inf], [1.0]
    for number, name in enumerate(names):
        mine = size[place == number]
        several = len(mine) >= _A_CLASS and len(np.unique(who[place == number])) >= _CLASS_GPUS
        if name > np.median(warmest[known]) and several:
            warm.append(float(name))
            rough.append(max(rough[-1], float(np.median(mine)) ** 2))
    return np.array(warm), np.array(rough)


def _pairs(of: Sittings) -> tuple[Floats, ...]:
    """Of pairs of sittings of one series: days between, difference, runs of the first and of the second, kelvin by
    which the second is warmer, the temperature of the warmer one, and the series."""
    found: list[tuple[Floats, ...]] = [(np.zeros(0),) * 7]
    for lag in _LAGS:
        if lag >= len(of):
            break
        same = of.series[lag:] == of.series[:-lag]
        if not same.any():
            break
        found.append(
            (
                (of.at[lag:] - of.at[:-lag])[same],
                (of.value[lag:] - of.value[:-lag])[same],
                of.runs[:-lag][same].astype(float),
                of.runs[lag:][same].astype(float),
                (of.warmth[lag:] - of.warmth[:-lag])[same],
                np.fmax(of.warmth[lag:], of.warmth[:-lag])[same],
                of.series[lag:][same].astype(float),
            )
        )
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def _within(runs: Runs | None) -> float:
    """The variance of a run within its sitting, from runs that follow one another."""
    if runs is None:
        return 0.0
    same = np.diff(runs.sitting) == 0
    scale = spread(np.diff(runs.value)[same])
    return 0.0 if np.isnan(scale) else scale**2 / 2


def _tails(moves: Floats) -> float:
    """Degrees of freedom with which t has the tails of these, each over its scale."""
    sizes = np.abs(moves)
    middle = float(np.median(sizes))
    if len(sizes) < _TO_FIT or middle == 0:
        return _UNKNOWN
    seen = np.log(np.quantile(sizes, _FITTED_AT) / middle)
    return float(_FREEDOMS[int(np.argmin(((seen - _expected()) ** 2).sum(axis=1)))])


@cache
def _middle(freedom: float) -> float:
    """Half of the sizes of t are below this."""
    return float(quantile(0.25, freedom))


@cache
def _expected() -> Floats:
    """(freedoms, quantiles) the logarithms of quantiles of the sizes of t, over their middle."""
    tails = (1 - np.array([0.5, *_FITTED_AT])) / 2
    found = np.log(quantile(tails, _FREEDOMS[:, None]))
    return found[:, 1:] - found[:, :1]


@cache
def mean_size(freedom: float, most: float) -> float:
    """The mean size of t, of which no value counts for more than `most`."""
    shares = (np.arange(2000) + 0.5) / 4000
    return float(np.minimum(quantile(shares, freedom), most).mean())
