"""Each GPU against its own past: when its level changed, whether it drifts. Arrays in, arrays out.

A change at a date is the difference of two medians, after and before; a drift is the median of the slopes between any
two sittings (Theil and Sen). Both are linear contrasts of the sittings in good approximation, so the noise between any
two sittings (`noise`) gives their variance, whatever the dates and however much one day resembles the next. Tails are
Student's: one of more degrees of freedom where more sittings would have to be wrong at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...runs.sittings import Bools, Floats, Ints
from ...statistics.student import quantile, upper_tail
from ..levels import RELEVANT
from ..noise import Noise, mean_size
from ..sittings import Sittings

GLITCH = 1e-3
"""The share of runs that are wrong for no reason that lasts; so a change that one run could make has no smaller p."""
LEAST_TO_DRIFT = 5
"""Sittings, below which a drift cannot be told from a step."""

_LONGEST = 96  # sittings of a series looked at one by one; of more, neighbours are taken together
_LEAST_KEPT = _LONGEST // 4  # of a series that is longer, at least so many are left
_TAIL = 48  # of a longer series, the sittings that the newest one is compared with
_CHUNK = 4_000_000  # numbers of a working array
_PRIOR = 4.0  # sittings that the fleet's scatter counts for beside a GPU's own
_CLIPPED = 10.0  # scales: what a difference adds to a GPU's own scatter, at most
LEAST_SD = 1e-5
"""Of a change, in logarithms."""
_CONFIDENCE = 0.025  # of each side of an interval
_ANOTHER = 7.0  # days to another sitting
_DRIFT_BREAKS = 0.29  # the share of sittings that can move the median slope anywhere
_SLOPE_SD = 1.05  # of the median slope, in that of least squares


@dataclass(frozen=True)
class Shapes:
    """What was found in the past of each series that was looked at: arrays of one length."""

    series: Ints
    sittings: Ints
    split: Ints
    """How many sittings are before the change."""
    change: Floats
    """After less before, in logarithms."""
    change_sd: Floats
    """Its own standard deviation, and that of another sitting's level against the one before (t scales)."""
    another_sd: Floats
    change_p: Floats
    """Two-sided, over all dates at which it could have been."""
    change_df: Floats
    newest: Floats
    """The newest sitting less the level before it, its scale, and the probability of one so slow (one side)."""
    newest_sd: Floats
    newest_p: Floats
    slope: Floats
    """A day, in logarithms; NaN with too few sittings."""
    slope_sd: Floats
    slope_p: Floats
    slope_df: Floats
    misfit_change: Floats
    """Mean distance of the sittings from two levels, and from a line."""
    misfit_drift: Floats

    @property
    def drifts(self) -> Bools:
        """Whether a line fits better than a step."""
        with np.errstate(invalid="ignore"):
            found: Bools = (self.misfit_drift < self.misfit_change) & np.isfinite(self.slope)
        return found


def worth(of: Sittings) -> Ints:
    """The series whose sittings lie far enough apart for a relevant change: the others cannot have one."""
    several = np.flatnonzero(of.per_series >= 2)
    if not len(several):
        return several
    value = of.value[of.per_series[of.series] >= 2]
    starts = np.cumsum(of.per_series[several]) - of.per_series[several]
    found: Ints = several[np.maximum.reduceat(value, starts) - np.minimum.reduceat(value, starts) >= RELEVANT]
    return found


def shapes(of: Sittings, noise: Noise, series: Ints) -> Shapes:
    """The best change and the drift of each of these series (two sittings or more each)."""
    parts = [_shapes(of, noise, some) for some in _chunks(of, series)]
    if not parts:
        nothing = np.zeros(0)
        whole = np.zeros(0, np.int64)
        return Shapes(whole, whole, whole, *[nothing] * 14)
    found = Shapes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return found if not (found.sittings > _LONGEST).any() else _of_long(of, noise, found)


def _of_long(of: Sittings, noise: Noise, found: Shapes) -> Shapes:
    """Of series whose sittings were taken together: the split to the sitting, and the newest sitting by itself."""
    long = np.flatnonzero(found.sittings > _LONGEST)
    split, newest = found.split.copy(), [found.newest.copy(), found.newest_sd.copy(), found.newest_p.copy()]
    for row in long:
        first, n = of.first[found.series[row]], found.sittings[row]
        value = of.value[first : first + n]
        near = np.arange(max(1, split[row] - n // _LEAST_KEPT), min(n, split[row] + n // _LEAST_KEPT + 1))
        levels = np.median(value[: near[0]]), np.median(value[near[-1] :])
        away = [np.abs(value - np.where(np.arange(n) < k, *levels)).sum() for k in near]
        split[row] = near[int(np.argmin(away))]
    series = found.series[long]
    ends = of.first[series] + of.per_series[series]
    places = (ends[:, None] - np.arange(_TAIL, 0, -1)).ravel()
    tail = of.take(places, np.repeat(np.arange(len(long)), _TAIL), len(long))
    again = shapes(tail, noise, np.arange(len(long)))
    order = long[again.series]
    for column, fresh in zip(newest, (again.newest, again.newest_sd, again.newest_p), strict=True):
        column[order] = fresh
    return replace(found, split=split, newest=newest[0], newest_sd=newest[1], newest_p=newest[2])


def interval(effect: Floats, sd: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """95 % interval of an effect with Student's tails."""
    reach = sd * quantile(_CONFIDENCE, np.maximum(freedom, 1.0)) if len(sd) else sd
    return effect - reach, effect + reach


def discoveries(p: Floats, looks: int) -> Floats:
    """Benjamini and Hochberg's q of each p, of so many looks; those that are left out count as larger."""
    if not len(p):
        return p
    order = np.argsort(p)
    ranked = p[order] * max(looks, len(p)) / np.arange(1, len(p) + 1)
    q = np.empty_like(p)
    q[order] = np.minimum(np.minimum.accumulate(ranked[::-1])[::-1], 1.0)
    return q


def _chunks(of: Sittings, series: Ints) -> Iterator[Ints]:
    """The series in groups of similar length that fit into memory."""
    lengths = of.per_series[series]
    ordered = series[np.argsort(lengths, kind="stable")]
    start = 0
    while start < len(ordered):
        longest = int(of.per_series[ordered[start]]) * 2
        step = max(1, _CHUNK // min(longest, _LONGEST) ** 2)
        stop = start + int(np.searchsorted(of.per_series[ordered[start : start + step]], longest, "right"))
        yield ordered[start:stop]
        start = stop


def _shapes(of: Sittings, noise: Noise, series: Ints) -> tuple[Ints | Floats, ...]:
    at, value, low, high, runs, warmth = of.padded(series, "at", "value", "low", "high", "runs", "warmth")
    whole, together = np.isfinite(at).sum(axis=1), 1
    while at.shape[1] > _LONGEST:
        at, value, low, high, runs, warmth = _halved(at, value, low, high, runs, warmth)
        together *= 2
    many, longest = at.shape
    n = np.isfinite(at).sum(axis=1)
    there = np.isfinite(at)
    gap = np.abs(at[:, :, None] - at[:, None, :])
    pairs = np.nan_to_num(noise.difference(np.nan_to_num(gap), runs[:, :, None] * 1.0, runs[:, None, :] * 1.0))
    rough = noise.roughness(warmth)
    pairs *= np.maximum(rough[:, :, None], rough[:, None, :]) * (there[:, :, None] & there[:, None, :])
    pairs[:, np.arange(longest), np.arange(longest)] = 0.0
    sums = np.zeros((many, longest + 1, longest + 1))
    sums[:, 1:, 1:] = pairs.cumsum(axis=1).cumsum(axis=2)
    rows = np.arange(many)
    everything = sums[rows, n, n]
    moved = _moved(value, pairs)
    best = {name: np.full(many, np.nan) for name in ("p", "df", "change", "sd", "misfit")}
    best["misfit"][:] = np.inf
    split = np.ones(many, np.int64)
    newest, newest_sd, newest_p = np.full(many, np.nan), np.full(many, np.nan), np.ones(many)
    for k in range(1, longest):
        fits = n > k
        after = np.maximum(n - k, 1)
        inside_before = sums[:, k, k]
        across = sums[rows, k, n] - inside_before
        inside_after = everything - inside_before - 2 * across
        variance = across / (k * after) - inside_before / (2 * k * k) - inside_after / (2 * after * after)
        variance = np.maximum(variance, noise.between[0] / 4)
        before_value, before_low, before_high = _middles(value[:, :k], low[:, :k], high[:, :k], np.full(many, k))
        after_value, after_low, after_high = _middles(value[:, k:], low[:, k:], high[:, k:], after)
        change = after_value - before_value
        sure = np.maximum(np.maximum(after_low - before_high, before_low - after_high), 0.0)
        left = np.abs(value[:, :k] - before_value[:, None])
        right = np.abs(value[:, k:] - after_value[:, None])
        own = _own_scatter(moved.sum(axis=1) - moved[:, k - 1], n - 2, noise)
        sd = np.sqrt(variance * own)
        wrong = np.minimum(k // 2 + 1, after // 2 + 1)
        df = noise.freedom * wrong
        # Of the sittings that would have to be wrong, how many runs: one run of one sitting is soon wrong.
        by_chance = GLITCH ** np.minimum(_runs_to_spoil(runs[:, :k], k), _runs_to_spoil(runs[:, k:], after))
        p = np.where(fits, np.maximum(2 * upper_tail(sure / sd, df), by_chance), np.inf)
        last = np.flatnonzero(n == k + 1)
        if len(last):
            size, scale, slower = _newest(value[last], low[last], high[last], sums[last], k, noise)
            scale *= np.sqrt(own[last])
            newest[last], newest_sd[last] = size, scale
            newest_p[last] = np.maximum(upper_tail(slower / scale, noise.freedom), by_chance[last])
        misfit = np.where(fits, (np.nansum(left, axis=1) + np.nansum(right, axis=1)) / n, np.inf)
        better = misfit < best["misfit"]  # the date at which two levels fit best
        split[better] = k
        for name, found in (("p", p), ("df", df), ("change", change), ("sd", sd), ("misfit", misfit)):
            best[name][better] = np.broadcast_to(found, (many,))[better]
    own = np.maximum(best["sd"] ** 2, LEAST_SD**2)
    another = noise.difference(np.array([_ANOTHER]), np.array([3.0]), np.array([3.0]))[0] / 2
    slope, slope_sd, slope_p, slope_df, line = _drift(at, value, n, pairs, noise)
    return (
        series, whole, np.minimum(split * together, whole - 1), best["change"], np.sqrt(own),
        np.sqrt(own + another), np.minimum(best["p"] * (n - 1), 1.0), best["df"], newest, newest_sd, newest_p,
        slope, slope_sd, slope_p, slope_df, best["misfit"], line,
    )  # fmt: skip


def _middles(value: Floats, low: Floats, high: Floats, n: Ints) -> tuple[Floats, Floats, Floats]:
    """Of the first n sittings (NaN after them): median, lower median of the lows, upper median of the highs."""
    rows = np.arange(len(value))
    below, above = (n - 1) // 2, n // 2
    ranked, lows, highs = np.sort(value, axis=1), np.sort(low, axis=1), np.sort(high, axis=1)
    return (ranked[rows, below] + ranked[rows, above]) / 2, lows[rows, below], highs[rows, above]


def _newest(
    value: Floats, low: Floats, high: Floats, sums: Floats, k: int, noise: Noise
) -> tuple[Floats, Floats, Floats]:
    """Sitting k against as many of those before it as say most: its difference, the scale of it, and how much slower
    it is for certain. Where levels wander, the newest ones say most; where days are independent, all together do."""
    many = len(value)
    best = [np.full(many, np.inf), np.zeros(many), np.zeros(many)]
    width = 1
    while True:
        m = min(width, k)
        inside = sums[:, k, k] - sums[:, k - m, k] - sums[:, k, k - m] + sums[:, k - m, k - m]
        across = sums[:, k, k + 1] - sums[:, k - m, k + 1] - sums[:, k, k] + sums[:, k - m, k]
        variance = np.maximum(across / m - inside / (2 * m * m), noise.between[0] / 4)
        middle, _, top = _middles(value[:, k - m : k], low[:, k - m : k], high[:, k - m : k], np.full(many, m))
        better = variance < best[0]
        for column, found in zip(best, (variance, value[:, k] - middle, low[:, k] - top), strict=True):
            column[better] = found[better]
        if m == k:
            return best[1], np.sqrt(best[0]), np.maximum(best[2], 0.0)
        width *= 2


def _moved(value: Floats, pairs: Floats) -> Floats:
    """(series, sittings - 1) how far each sitting is from the one before it, in scales; 0 behind the last."""
    places = np.arange(value.shape[1] - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        scales = np.abs(np.diff(value, axis=1)) / np.sqrt(pairs[:, places, places + 1])
    found: Floats = np.minimum(np.nan_to_num(scales, nan=0.0), _CLIPPED)
    return found


def _own_scatter(moved: Floats, n: Ints, noise: Noise) -> Floats:
    """A factor of 1 or more on the variance: how much more a GPU's n differences scatter than the fleet's do."""
    usual = mean_size(noise.freedom, _CLIPPED)
    factor: Floats = np.maximum(1.0, (_PRIOR * usual + moved) / ((_PRIOR + np.maximum(n, 0)) * usual)) ** 2
    return factor


def _runs_to_spoil(runs: Ints, n: Ints | int) -> Ints:
    """How many runs must be wrong for the middle of n sittings to be wrong."""
    alone = runs.max(axis=1) // 2 + 1
    found: Ints = np.where(np.asarray(n) == 1, alone, np.asarray(n) // 2 + 1)
    return found


def _drift(at: Floats, value: Floats, n: Ints, pairs: Floats, noise: Noise) -> tuple[Floats, ...]:
    """Slope a day, its scale, p, degrees of freedom and mean distance from the line."""
    many, longest = at.shape
    nothing = np.full(many, np.nan)
    if longest < LEAST_TO_DRIFT:
        return nothing, nothing, np.ones(many), nothing, nothing
    first, second = np.triu_indices(longest, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes = (value[:, second] - value[:, first]) / (at[:, second] - at[:, first])
    slopes = np.sort(slopes, axis=1)
    found = n * (n - 1) // 2
    rows = np.arange(many)
    slope = (slopes[rows, (found - 1) // 2] + slopes[rows, found // 2]) / 2
    centred = np.nan_to_num(at - np.nanmean(at, axis=1)[:, None])
    weights = centred / np.maximum((centred**2).sum(axis=1), 1e-12)[:, None]
    variance = -0.5 * np.einsum("si,sij,sj->s", weights, pairs, weights) * _SLOPE_SD**2
    rest = value - slope[:, None] * centred
    middle, _, _ = _middles(rest, rest, rest, n)
    away = np.abs(rest - middle[:, None])
    own = _own_scatter(_moved(rest, pairs).sum(axis=1), n - 1, noise)
    sd = np.sqrt(np.maximum(variance, LEAST_SD**2 / 1e4) * own)
    df = noise.freedom * np.maximum(1, np.floor(_DRIFT_BREAKS * n) + 1)
    p = np.minimum(1.0, 2 * upper_tail(np.abs(slope) / sd, df))
    enough = n >= LEAST_TO_DRIFT
    return (
        np.where(enough, slope, np.nan), np.where(enough, sd, np.nan), np.where(enough, p, 1.0),
        np.where(enough, df, np.nan), np.where(enough, np.nansum(away, axis=1) / n, np.nan),
    )  # fmt: skip


def _halved(*columns: Floats) -> tuple[Floats, ...]:
    """Neighbouring sittings taken together, two by two."""
    at, value, low, high, runs, warmth = (
        np.pad(c, ((0, 0), (0, c.shape[1] % 2)), constant_values=0 if c.dtype.kind == "i" else np.nan) for c in columns
    )
    two = (len(at), -1, 2)
    one = np.isnan(at.reshape(two)[:, :, 1])

    def mean(column: Floats) -> Floats:
        pair = column.reshape(two)
        return np.where(one, pair[:, :, 0], pair.mean(axis=2))

    return mean(at), mean(value), mean(low), mean(high), runs.reshape(two).sum(axis=2), mean(warmth)
