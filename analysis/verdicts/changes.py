"""The statistics of GPUs' own past: steps of their level, drifts, instability, and the update run by run.

Arrays in, arrays out; `history` gives them names and dates. A series is one GPU in one workload, its values are
logarithms of times. What GPUs share (a new driver, a slow day) is taken out first: then a driver that costs every GPU
3 % is one finding, and a GPU that changed beside it is still seen.

A step at a date is the difference of two medians, after and before. A drift is the median of the slopes between any two
sittings (Theil and Sen). Both are, in good approximation, linear contrasts of the sittings x, with weights w that add
up to 0. With the variances V of the differences between any two sittings (`noise`) the variance of such a contrast is

    var(w'x) = -w'Vw / 2

whatever the dates, and however much one day resembles the next. Tails are Student's, of more degrees of freedom where
more sittings would have to be wrong at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..runs.sittings import (
    Bools,
    Floats,
    Ints,
    Runs,
    Sittings,
    groups_median,
    sittings,
    spread,
    step_of,
)
from ..statistics.ordering import discoveries, poisson_at_least, quantile, upper_tail
from .levels import RELEVANT, Noise, estimate, mean_size

RATE = 0.02
"""The false discovery rate of steps, of drifts and of unstable GPUs, each: together at most 6 in 100 findings."""
ALARM = 0.002
"""The chance that a healthy GPU's newest sitting calls for another one."""
GLITCH = 1e-3
"""The share of runs that are wrong for no reason that lasts; so a step that one run could make has no smaller p."""
LEAST_TO_DRIFT = 5
"""Sittings, below which a drift cannot be told from a step."""

_ROUNDS = 3  # a series is searched, then the parts before and after its step, then theirs
_MOST_SITTINGS = 1000  # of a longer past the newest are searched
_SPLITS = 64  # dates of a step that are tried first; then those around the best
_CHUNK = 4_000_000  # numbers of a working array
PRIOR_SITTINGS = 4.0  # sittings that the fleet's scatter counts for beside a GPU's own
CLIPPED = 10.0  # scales: what a difference adds to a GPU's own scatter, at most
_LEAST_SD = 1e-5  # of an effect
_TAIL = 0.025  # of each side of an interval
_ANOTHER_DAYS, _ANOTHER_RUNS = 7.0, 3.0  # to another sitting, and in it
_DRIFT_BREAKS = 0.29  # the share of sittings that can move the median slope anywhere
_SLOPE_SD = 1.05  # of the median slope, in that of least squares


Records = npt.NDArray[np.void]
"""An array of one of the types below."""
ESTIMATE = np.dtype([(name, float) for name in ("effect", "sd", "freedom", "p")])
"""An effect in logarithms, its scale and degrees of freedom as one of Student's t, and its p-value."""
SEGMENT = np.dtype([
    *((name, np.int64) for name in ("series", "first", "size", "split")),
    *((name, ESTIMATE) for name in ("step", "newest", "slope")),
    ("is_line", bool),
])  # fmt: skip
"""A part of a series, of `size` sittings from place `first`, searched for one step and for a drift. `split`: sittings
before the step. `step`: after less before; p is of both sides, over all dates at which it could have been. `newest`:
the newest sitting less the level before it; p is the chance of one so slow. `slope`: a day; NaN, with p 1, where there
are too few sittings. `is_line`: whether a line fits better than a step."""


def _records(kind: np.dtype[np.void], **columns: npt.ArrayLike) -> Records:
    """Records of these columns, of one length, or single values."""
    records = np.empty(max(np.size(column) if np.ndim(column) else 0 for column in columns.values()), kind)
    for name, column in columns.items():
        records[name] = column
    return records


def interval(estimates: Records, more_variance: float = 0.0) -> tuple[Floats, Floats]:
    """95 % interval of each; `more_variance`: of what is predicted beside the effect."""
    reach = np.sqrt(estimates["sd"] ** 2 + more_variance) * quantile(_TAIL, np.maximum(estimates["freedom"], 1.0))
    return estimates["effect"] - reach, estimates["effect"] + reach


# -- one step and one drift ------------------------------------------------------------------------------------------


def search(sat: Sittings, noise: Noise, first: Ints, size: Ints) -> Records:
    """The best step, the newest sitting and the drift of each segment (`SEGMENT`): `size` sittings, 2 or more, from
    place `first`. Of a longer past than 1,000 sittings the newest are searched."""
    first, size = first + np.maximum(size - _MOST_SITTINGS, 0), np.minimum(size, _MOST_SITTINGS)
    segments, order = np.empty(len(size), SEGMENT), np.argsort(size, kind="stable")
    start = 0
    while start < len(order):  # those of similar size together, as many as fit into memory
        longest = 2 * int(size[order[start]])
        rows = order[start : start + max(1, _CHUNK // longest**2)]
        rows = rows[: int(np.searchsorted(size[rows], longest, "right"))]
        segments[rows] = _search(sat, noise, first[rows], size[rows])
        start += len(rows)
    return segments


class _Table:
    """Segments as rows of tables, with a column for each sitting: NaN (of `runs` 0) behind the last one."""

    def __init__(self, sat: Sittings, noise: Noise, first: Ints, size: Ints) -> None:
        self.noise, self.size, self.rows = noise, size, np.arange(len(size))
        self.columns = np.arange(int(size.max(initial=1)))
        self.there = self.columns < size[:, None]
        places = np.where(self.there, first[:, None] + self.columns, 0)
        self.at, self.value, self.low, self.high, warmth = (
            np.where(self.there, values[places], np.nan)
            for values in (sat.at, sat.value, sat.low, sat.high, sat.warmth)
        )
        self.runs = np.where(self.there, sat.runs[places], 0)
        gap = np.abs(np.nan_to_num(self.at[:, :, None] - self.at[:, None, :]))
        rough = noise.roughness(warmth)
        both = self.there[:, :, None] & self.there[:, None, :] & ~np.eye(len(self.columns), dtype=bool)
        self.pairs = noise.difference(gap, self.runs[:, :, None], self.runs[:, None, :])
        self.pairs = np.where(both, self.pairs * np.maximum(rough[:, :, None], rough[:, None, :]), 0.0)
        """(segments, columns, columns) the variance of the difference of any two sittings."""

    def variance(self, weights: Floats) -> Floats:
        """Of the contrasts with these weights."""
        variance: Floats = -0.5 * np.einsum("si,sij,sj->s", weights, self.pairs, weights)
        return variance

    def scales_moved(self, value: Floats) -> Floats:
        """How far each sitting is from the one before it, in scales; 0 behind the last."""
        with np.errstate(invalid="ignore", divide="ignore"):
            scales = np.abs(np.diff(value, axis=1)) / np.sqrt(self.pairs[:, self.columns[:-1], self.columns[1:]])
        clipped: Floats = np.minimum(np.nan_to_num(scales, nan=0.0), CLIPPED)
        return clipped

    def own_scatter(self, moved: Floats, n: Ints) -> Floats:
        """By what factor, 1 or more, a GPU's n differences scatter more than the fleet's, from their sum in scales."""
        usual = mean_size(self.noise.freedom, CLIPPED)
        factor: Floats = np.maximum(1.0, (PRIOR_SITTINGS * usual + moved) / ((PRIOR_SITTINGS + n) * usual))
        return factor


def _middles(values: Floats, mask: Bools) -> tuple[Floats, Floats]:
    """The lower and the upper median of those values of each row that are in the mask."""
    ranked = np.sort(np.where(mask, values, np.inf), axis=1)
    rows, n = np.arange(len(values)), mask.sum(axis=1)
    return ranked[rows, np.maximum(n - 1, 0) // 2], ranked[rows, np.minimum(n // 2, values.shape[1] - 1)]


def _middle(values: Floats, mask: Bools) -> Floats:
    low, high = _middles(values, mask)
    return (low + high) / 2


def _misfit(table: _Table, split: Ints) -> Floats:
    """The mean distance of the sittings from two levels; infinite where there are not sittings on both sides."""
    before = table.columns < split[:, None]
    after = table.there & ~before
    with np.errstate(invalid="ignore"):
        levels = np.where(before, _middle(table.value, before)[:, None], _middle(table.value, after)[:, None])
        distance = np.where(table.there, np.abs(table.value - levels), 0.0).sum(axis=1) / table.size
    return np.where(split < table.size, distance, np.inf)


def _split(table: _Table) -> tuple[Ints, Floats]:
    """The split at which two levels fit best, and how well."""
    best, split = np.full(len(table.size), np.inf), np.ones(len(table.size), np.int64)
    width = 1 + len(table.columns) // _SPLITS
    for candidate in range(1, len(table.columns), width):
        misfit = _misfit(table, np.full(len(split), candidate))
        split, best = np.where(misfit < best, candidate, split), np.minimum(best, misfit)
    coarse = split
    for shift in (*range(1 - width, 0), *range(1, width)):
        candidates = np.maximum(coarse + shift, 1)
        misfit = _misfit(table, candidates)
        split, best = np.where(misfit < best, candidates, split), np.minimum(best, misfit)
    return split, best


def _search(sat: Sittings, noise: Noise, first: Ints, size: Ints) -> Records:
    table = _Table(sat, noise, first, size)
    split, misfit = _split(table)
    before = table.columns < split[:, None]
    step, slower, faster = _difference(table, before, table.there & ~before)
    tail = 2 * upper_tail(np.maximum(slower, faster) / step["sd"], step["freedom"])
    step["p"] = np.minimum(np.maximum(tail, step["p"]) * (size - 1), 1.0)
    newest, slower, _ = _difference(table, *_newest(table))
    newest["p"] = np.maximum(upper_tail(slower / newest["sd"], noise.freedom), newest["p"])
    slope, misfit_line = _drift(table)
    return _records(
        SEGMENT, series=sat.series[first], first=first, size=size, split=split, step=step, newest=newest, slope=slope,
        is_line=misfit_line < misfit,
    )  # fmt: skip


def _difference(table: _Table, before: Bools, after: Bools) -> tuple[Records, Floats, Floats]:
    """The level of the sittings `after`, the last ones, less that of those `before`; and by how much they are slower
    or faster for certain, 0 where they are not: whichever of the middle two sittings and runs counts.

    Its p is the chance that runs which are wrong make it: so many sittings of one side, or runs of its only one, must
    be.
    """
    n_before, n_after = before.sum(axis=1), after.sum(axis=1)
    wrong = [np.where(n == 1, np.where(side, table.runs, 0).max(axis=1, initial=0) // 2 + 1, n // 2 + 1)
             for n, side in ((n_before, before), (n_after, after))]  # fmt: skip
    moved = table.scales_moved(table.value)
    others = moved.sum(axis=1) - moved[table.rows, table.size - n_after - 1]
    weights = after / n_after[:, None] - before / n_before[:, None]
    variance = np.maximum(table.variance(weights), table.noise.between[0] / 4)
    difference = _records(
        ESTIMATE, effect=_middle(table.value, after) - _middle(table.value, before),
        sd=np.maximum(np.sqrt(variance) * table.own_scatter(others, table.size - 2), _LEAST_SD),
        freedom=table.noise.freedom * np.minimum(n_before // 2 + 1, n_after // 2 + 1),
        p=GLITCH ** np.minimum(*wrong).astype(float),
    )  # fmt: skip
    slower = _middles(table.low, after)[0] - _middles(table.high, before)[1]
    faster = _middles(table.low, before)[0] - _middles(table.high, after)[1]
    return difference, np.maximum(slower, 0.0), np.maximum(faster, 0.0)


def _newest(table: _Table) -> tuple[Bools, Bools]:
    """The newest sitting, and as many of those before it as say most of it: where levels wander the newest ones do,
    where days are independent all together."""
    last = table.size[:, None] - 1
    newest, before = table.columns == last, np.zeros(table.there.shape, bool)
    variance, width = np.full(len(last), np.inf), 1
    while width < 2 * last.max(initial=0):
        earlier = (table.columns < last) & (table.columns >= last - width)
        width_variance = table.variance(newest - earlier / earlier.sum(axis=1)[:, None])
        before = np.where((width_variance < variance)[:, None], earlier, before)
        variance, width = np.minimum(width_variance, variance), 2 * width
    return before, newest


def _drift(table: _Table) -> tuple[Records, Floats]:
    """The slope a day, and the mean distance of the sittings from the line."""
    n, unknown = table.size, np.full(len(table.size), np.nan)
    enough = n >= LEAST_TO_DRIFT
    if not enough.any():
        return _records(ESTIMATE, effect=unknown, sd=np.nan, freedom=np.nan, p=1.0), unknown
    earlier, later = np.triu_indices(len(table.columns), 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes = (table.value[:, later] - table.value[:, earlier]) / (table.at[:, later] - table.at[:, earlier])
    slope = _middle(slopes, np.isfinite(slopes))
    centred = np.nan_to_num(table.at - np.nanmean(table.at, axis=1)[:, None])
    weights = centred / np.maximum((centred**2).sum(axis=1), 1e-12)[:, None]
    detrended = table.value - slope[:, None] * centred
    away = np.abs(detrended - _middle(detrended, table.there)[:, None])
    own_scatter = table.own_scatter(table.scales_moved(detrended).sum(axis=1), n - 1)
    sd = _SLOPE_SD * np.sqrt(np.maximum(table.variance(weights), _LEAST_SD**2 / 1e4)) * own_scatter
    freedom = table.noise.freedom * np.maximum(1, np.floor(_DRIFT_BREAKS * n) + 1)
    p = np.where(enough, np.minimum(1.0, 2 * upper_tail(np.abs(slope) / sd, freedom)), 1.0)
    misfit = np.where(enough, np.nanmean(away, axis=1), np.nan)
    return _records(ESTIMATE, effect=np.where(enough, slope, np.nan), sd=sd, freedom=freedom, p=p), misfit


# -- what series share -----------------------------------------------------------------------------------------------

CERTAIN = 1e-3
"""The p below which something that the GPUs share is a finding."""
_GPUS, _NODES = 8, 3  # that a day's common effect is taken from, at least
_TURN_GPUS, _TURN_NODES = 4, 2  # that changed their software alike, at least
_SAMPLE = 3000  # series are enough to know what they share
_POLISH = 4
_MEDIAN = 1.2533  # the standard error of a median, in that of a mean


@dataclass(frozen=True)
class SharedStep:
    """A step that many series made together. Logarithms, and days since 1970."""

    effect: float
    low: float
    high: float
    p: float
    series: Ints
    """Those that show it."""
    before: float
    """The last sitting without it."""
    began: float
    """The first sitting with it."""
    lasts: bool
    """Whether it was still there at the end."""
    regimes: tuple[int, int] | None = None
    """From which regime to which, where it is one of software."""


def _shared(moves: Floats, nodes: Ints, tests: int = 1, per_side: float = 1.0) -> tuple[float, float, float]:
    """The median move, half of its 95 % interval, and its p over so many tests.

    GPUs of one node count as one where that is wider. `per_side`: the variance, in that of the median.
    """
    effect = float(np.median(moves))
    se, freedom = _MEDIAN * spread(moves - effect) / np.sqrt(len(moves)), max(len(moves) - 1, 1)
    names, place = np.unique(nodes, return_inverse=True)
    if len(names) >= _NODES:
        by_node = groups_median(moves, place.astype(np.int64), len(names))
        wider = _MEDIAN * spread(by_node - effect) / np.sqrt(len(names))
        if wider > se:
            se, freedom = wider, len(names) - 1
    se = max(float(se), _LEAST_SD) * math.sqrt(per_side)
    p = min(1.0, 2 * tests * float(upper_tail(abs(effect) / se, freedom)))
    return effect, se * float(quantile(_TAIL, freedom)), p


def regime_steps(sat: Sittings, regime: Ints, node: Ints) -> tuple[list[SharedStep], Floats]:
    """Steps where series change from one regime of software to another alike, and their effect on every sitting.

    `regime`: (sittings,), -1 where unknown. `node`: (series,), -1 where unknown.
    """
    steps: list[SharedStep] = []
    effect = np.zeros(len(sat))
    last = np.flatnonzero(np.diff(sat.series) == 0)  # sittings that have a next one
    old, new, moves = regime[last], regime[last + 1], sat.value[last + 1] - sat.value[last]
    turned = (old != new) & (old >= 0) & (new >= 0)
    for pair in np.unique(np.stack([old, new])[:, turned], axis=1).T.tolist():
        turns = turned & (old == pair[0]) & (new == pair[1])
        places = last[turns]
        began, before = float(sat.at[places + 1].min()), float(sat.at[places].max())
        # What other GPUs did at the same time is no effect of the software.
        beside = (old == new) & (sat.at[last] <= before) & (sat.at[last + 1] >= began)
        others = float(np.median(moves[beside])) if beside.sum() >= _GPUS else 0.0
        series = sat.series[places]
        nodes = node[series]
        few_nodes = len(np.unique(nodes)) < _TURN_NODES and nodes.max() >= 0
        if few_nodes or len(np.unique(series)) < _TURN_GPUS:
            continue
        size, reach, p = _shared(moves[turns] - others, nodes)
        if p > 2 * _TAIL:
            continue
        after = np.zeros(len(sat))
        np.add.at(after, places + 1, size)
        total = np.cumsum(after)
        effect += total - (total - after)[sat.first[sat.series]]
        regimes = int(pair[0]), int(pair[1])
        ends = size - reach, size + reach
        steps.append(SharedStep(size, *ends, p, series, min(before, began), began, lasts=True, regimes=regimes))
    return steps, effect


def day_steps(sat: Sittings, node: Ints) -> tuple[list[SharedStep], Floats]:
    """Days and steps that all series share, and the effect of its day on every sitting: a two-way median polish."""
    several = np.flatnonzero(sat.per_series >= 2)
    if len(several) < _GPUS:
        return [], np.zeros(len(sat))
    if len(several) > _SAMPLE:
        several = np.random.default_rng(0).permutation(several)[:_SAMPLE]
    chosen = sat.keep(np.isin(sat.series, several))
    names, day = np.unique(np.floor(chosen.at), return_inverse=True)
    day = day.astype(np.int64)
    nodes = node[chosen.series]
    enough = np.bincount(day, minlength=len(names)) >= _GPUS
    if (nodes >= 0).any():
        on = np.unique(np.stack([day, nodes]), axis=1)[0]
        enough &= np.bincount(on, minlength=len(names)) >= _NODES
    effect, level = np.zeros(len(names)), np.zeros(sat.count)
    for _ in range(_POLISH):
        level = groups_median(chosen.value - effect[day], chosen.series, sat.count)
        effect = np.where(enough, groups_median(chosen.value - level[chosen.series], day, len(names)), 0.0)
    if enough.any():
        effect = np.where(enough, effect - np.median(effect[enough]), 0.0)
    away = chosen.value - level[chosen.series] - effect[day]
    place = np.clip(np.searchsorted(names, np.floor(sat.at)), 0, len(names) - 1)
    of_sittings = np.where(names[place] == np.floor(sat.at), effect[place], 0.0)
    return list(_spells(chosen, day, effect, enough=enough, away=away, nodes=nodes)), of_sittings


def _spells(
    sat: Sittings, day: Ints, effect: Floats, *, enough: Bools, away: Floats, nodes: Ints
) -> Iterator[SharedStep]:
    """The relevant steps of the days' effect, and for how long each lasts. `away`: what is left of each sitting."""
    days = np.flatnonzero(enough)
    start = 0
    while start < len(days) - 1:
        later = effect[days[start + 1 :]] - effect[days[start]]
        start += 1
        if abs(later[0]) < RELEVANT:
            continue
        # It lasts as long as the days stay on its side of the middle between the two levels.
        side = (later - later[0] / 2) * np.sign(later[0]) > 0
        length = len(side) if side.all() else int(np.argmin(side))
        spell, earlier = days[start : start + length], days[max(0, start - length) : start]
        size = float(np.median(effect[spell]) - np.median(effect[earlier]))
        shown = np.isin(day, spell)
        _, reach, p = _shared(size + away[shown] - np.median(away[shown]), nodes[shown], len(days), per_side=2.0)
        if p > CERTAIN or abs(size) < RELEVANT:
            continue
        before = float(sat.at[np.isin(day, days[:start])].max())
        began, series = float(sat.at[shown].min()), np.unique(sat.series[shown])
        yield SharedStep(size, size - reach, size + reach, p, series, before, began, lasts=bool(side.all()))
        if not side.all():
            start += length  # the way back is no finding of its own


# -- instability -----------------------------------------------------------------------------------------------------

_FAR = 6.0  # standard deviations
_FEWEST_RUNS = 3  # of a sitting that has a level of its own
_FEWEST_SITTINGS = 4
_LEAST_FAR = 2  # how often at least
_RATE_ROUNDS = 4


INSTABILITY = np.dtype([
    ("by_runs", bool), ("total", np.int64), ("far", np.int64),
    *((name, float) for name in ("rate", "size", "low", "high", "p")),
])  # fmt: skip
"""How often a series leaves its own level, by its runs or by its sittings, whichever is clearer: `far` of `total` do,
and `rate` is the share in the fleet. `size`: how far out those are, in the median, with its 95 % interval; NaN where
none is, or one alone. p allows for both counts."""


def instability(sat: Sittings, runs: Runs, noise: Noise, away: Floats) -> Records:
    """The instability of each series (`INSTABILITY`). `away`: (sittings,) how far each is from its series' level,
    steps and drift apart.

    Throttling in one run of ten leaves the median of a GPU where it was. So what is counted is how often a run is
    slower than the others of its sitting, and how often a sitting is away from the series' level. It is compared with
    the fleet's own rate: heavy tails and glitches are in it.
    """
    between = float(noise.between[len(noise.between) // 2]) / 2
    far_sitting = np.abs(away) > np.maximum(RELEVANT, _FAR * np.sqrt(between + noise.within / sat.runs))
    # Where most runs of a sitting are slow and some are not, these tell its level.
    fastest = np.minimum.reduceat(runs.value, np.searchsorted(runs.sitting, np.arange(len(sat)))) - sat.value + away
    level = sat.value - np.where(far_sitting & (fastest < away / 2), np.maximum(away, 0.0), 0.0)
    several = sat.runs[runs.sitting] >= _FEWEST_RUNS
    over = (runs.value - level[runs.sitting])[several]
    far_run = over > max(RELEVANT, _FAR * math.sqrt(noise.within))
    of_runs = _far_out(np.maximum(over, 0.0), runs.series[several], far_run, count=sat.count, least=1)
    of_sittings = _far_out(np.abs(away), sat.series, far_sitting, count=sat.count, least=_FEWEST_SITTINGS)
    by_runs = of_runs["p"] <= of_sittings["p"]
    chosen: Records = np.where(by_runs, of_runs, of_sittings)
    chosen["by_runs"], chosen["p"] = by_runs, np.minimum(1.0, 2 * chosen["p"])
    return chosen


def _far_out(size: Floats, series: Ints, is_far: Bools, *, count: int, least: int) -> Records:
    """Of sizes of runs or sittings; series with fewer than `least` have p 1."""
    total, far = np.bincount(series, minlength=count), np.bincount(series[is_far], minlength=count)
    # The fleet's rate, never below that of glitches. A GPU counts for little more than the rate says of it: so a few
    # unstable GPUs do not raise it, and heavy tails, which all GPUs have, do.
    rate = GLITCH
    for _ in range(_RATE_ROUNDS if len(size) else 0):
        rate = GLITCH + float(np.minimum(far, 1 + np.floor(2 * rate * total)).sum()) / len(size)
    p = np.where((far >= _LEAST_FAR) & (total >= least), poisson_at_least(far, rate * total), 1.0)
    median, low, high = typical_size(size[is_far], series[is_far], far)
    return _records(INSTABILITY, total=total, far=far, rate=rate, size=median, low=low, high=high, p=p)


def typical_size(size: Floats, series: Ints, count: Ints) -> tuple[Floats, Floats, Floats]:
    """The median size of each series, and its 95 % interval: Student's t on the logarithms of sizes, which are skewed.

    `series`: of each size; `count`: (series,) sizes of each. NaN where there is none, or one alone for an interval.
    """
    median = groups_median(size, series, len(count))
    logs = np.log(size)
    with np.errstate(all="ignore"):
        mean = np.bincount(series, logs, minlength=len(count)) / count
        squares = np.bincount(series, (logs - mean[series]) ** 2, minlength=len(count))
        reach = quantile(_TAIL, np.maximum(count - 1, 1)) * np.sqrt(squares / (count - 1) / count)
        reach = np.where(count > 1, reach, np.nan)
        # The middle of few is not always their mean: the interval holds both.
        return median, np.minimum(np.exp(mean - reach), median), np.maximum(np.exp(mean + reach), median)


# -- all of it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LevelChange:
    """How one series changed: a step, a drift, or instability. Effects are logarithms, places those in the sittings."""

    series: int
    begin: int
    """The place at which the level before begins, or the drift."""
    place: int
    """The first place after a step; else `begin`."""
    end: int
    """The place after the last one."""
    effect: float
    """Of a step after less before, with the interval of another sitting; of a drift from its first sitting to its last.
    """
    low: float
    high: float
    p: float
    q: float


@dataclass(frozen=True)
class OwnPast:
    """What changed, drifts and scatters in one workload."""

    sittings: Sittings
    """With shared effects, and what temperature does, taken out."""
    runs: Runs
    noise: Noise | None
    """None: too few series have two sittings, and nothing but `shared` is filled."""
    shared: list[SharedStep] = field(default_factory=list)
    steps: list[LevelChange] = field(default_factory=list)
    drifts: list[LevelChange] = field(default_factory=list)
    watch: list[LevelChange] = field(default_factory=list)
    """Newest sittings that are slower, and not surely enough for a step; p of one side."""
    unstable: list[LevelChange] = field(default_factory=list)
    """Whole series; the effect is how far out its runs or sittings are."""
    instability: Records = field(default_factory=lambda: np.zeros(0, INSTABILITY))
    """Of every series."""

    @property
    def compared(self) -> int:
        """Series with two sittings or more."""
        return int((self.sittings.per_series >= 2).sum())


def own_past(
    series: Ints,
    at: Floats,
    value: Floats,
    *,
    count: int | None = None,
    node: Ints | None = None,
    regime: Ints | None = None,
    warmth: Floats | None = None,
) -> OwnPast:
    """What changed, drifts and scatters.

    `series`, `at` (days), `value` (natural logarithm of a time), `regime` (number of the software, -1 where unknown),
    `warmth` (degC): one for each run. `count`: series. `node`: one for each series, -1 where unknown.
    """
    sat, runs = sittings(series, at, value, count, warmth, step_of(value))
    node = np.full(sat.count, -1) if node is None else node
    shared: list[SharedStep] = []
    effect = np.zeros(len(sat))
    if regime is not None:
        shared, effect = regime_steps(sat, regime[runs.order][np.searchsorted(runs.sitting, np.arange(len(sat)))], node)
    by_day, day_effect = day_steps(sat.less(effect), node)
    sat, runs = _less(sat, runs, effect + day_effect)
    noise = estimate(sat, runs)
    found = OwnPast(sat, runs, noise, [*shared, *by_day])
    if noise is None:
        return found
    if noise.a_kelvin:
        usual = groups_median(sat.warmth, sat.series, sat.count)
        sat, runs = _less(sat, runs, np.nan_to_num(noise.a_kelvin * (sat.warmth - usual[sat.series])))
    segments = _searched(sat, noise, found.compared)
    ends = segments["first"] + segments["size"]
    step_q, drift_q = (discoveries(segments[name]["p"], found.compared) for name in ("step", "slope"))
    span = sat.at[ends - 1] - sat.at[segments["first"]]
    is_drift = segments["is_line"] & (drift_q <= RATE) & (np.abs(segments["slope"]["effect"]) * span >= RELEVANT)
    is_step = (step_q <= RATE) & (np.abs(segments["step"]["effect"]) >= RELEVANT) & ~is_drift
    steps = _steps(sat, noise, segments[is_step], step_q[is_step])
    drifting = segments[is_drift]
    drifts = _changes(drifting, drifting["slope"], drifting["first"], drift_q[is_drift], times=span[is_drift])
    scattered = instability(sat, runs, noise, sat.value - _levels(sat, steps, drifts))
    unstable = _unstable(sat, scattered, discoveries(scattered["p"], len(scattered)))
    newest, is_last = segments["newest"], ends == (sat.first + sat.per_series)[segments["series"]]
    alarms = is_last & (newest["p"] <= ALARM) & (newest["effect"] >= RELEVANT) & ~is_step & ~is_drift
    watched = segments[alarms]
    watch = _changes(watched, watched["newest"], ends[alarms] - 1, step_q[alarms], more=_another(noise))
    return replace(
        found, sittings=sat, runs=runs, steps=steps, drifts=drifts, watch=watch, unstable=unstable,
        instability=scattered,
    )  # fmt: skip


def _less(sat: Sittings, runs: Runs, effect: Floats) -> tuple[Sittings, Runs]:
    return sat.less(effect), replace(runs, value=runs.value - effect[runs.sitting])


def _searched(sat: Sittings, noise: Noise, tests: int) -> Records:
    """Every series, then the parts before and after its step, and theirs: a series may have several steps."""
    several = np.flatnonzero(sat.per_series >= 2)
    first, size = sat.first[several], sat.per_series[several]
    segments_found = []
    value = np.append(sat.value, 0.0)
    for _ in range(_ROUNDS):
        # Sittings that lie together have no step of a size that matters.
        edges = np.stack([first, first + size], axis=1).ravel()
        span = np.maximum.reduceat(value, edges)[::2] - np.minimum.reduceat(value, edges)[::2] if len(edges) else size
        far = span >= RELEVANT
        segments = search(sat, noise, first[far], size[far])
        segments_found.append(segments)
        q = discoveries(segments["step"]["p"], tests)
        relevant = (q <= RATE) & (np.abs(segments["step"]["effect"]) >= RELEVANT)
        parted = segments[relevant & ~segments["is_line"]]
        first = np.concatenate([parted["first"], parted["first"] + parted["split"]])
        size = np.concatenate([parted["split"], parted["size"] - parted["split"]])
        first, size = first[size >= 2], size[size >= 2]
    return np.concatenate(segments_found)


def _another(noise: Noise) -> float:
    """The variance of another sitting about its level."""
    return float(noise.difference(_ANOTHER_DAYS, _ANOTHER_RUNS, _ANOTHER_RUNS)) / 2


def _pieces(sat: Sittings, places: Ints) -> tuple[Ints, Ints]:
    """Where the parts between these places and the ends of series begin, and in which part each sitting is."""
    starts = np.unique(np.concatenate([sat.first[sat.per_series > 0], places]))
    return starts, np.searchsorted(starts, np.arange(len(sat)), "right") - 1


def _steps(sat: Sittings, noise: Noise, segments: Records, q: Floats) -> list[LevelChange]:
    """The steps that are relevant between the levels next to them: other steps of a series bound these."""
    places, step = segments["first"] + segments["split"], segments["step"].copy()
    starts, piece = _pieces(sat, places)
    level, ends = groups_median(sat.value, piece, len(starts)), np.append(starts, len(sat))
    after = piece[places]
    step["effect"] = level[after] - level[after - 1]
    low, high = interval(step, _another(noise))
    steps = _listed(
        series=segments["series"], begin=starts[after - 1], place=places, end=ends[after + 1], effect=step["effect"],
        low=low, high=high, p=step["p"], q=q,
    )  # fmt: skip
    return [change for change in steps if abs(change.effect) >= RELEVANT]


def _changes(
    segments: Records, estimates: Records, place: Ints, q: Floats, *, times: Floats | float = 1.0, more: float = 0.0
) -> list[LevelChange]:
    """Of segments, `times` the estimates; `more`: variance in the interval."""
    low, high = interval(estimates, more)
    first, effect = segments["first"], times * estimates["effect"]
    return _listed(
        series=segments["series"], begin=first, place=place, end=first + segments["size"], effect=effect,
        low=times * low, high=times * high, p=estimates["p"], q=q,
    )  # fmt: skip


def _unstable(sat: Sittings, scattered: Records, q: Floats) -> list[LevelChange]:
    series = np.flatnonzero(q <= RATE)
    begin, size, low, high, p = sat.first[series], *(scattered[name][series] for name in ("size", "low", "high", "p"))
    end = begin + sat.per_series[series]
    return _listed(series=series, begin=begin, place=begin, end=end, effect=size, low=low, high=high, p=p, q=q[series])


def _listed(**columns: Ints | Floats) -> list[LevelChange]:
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [LevelChange(**dict(zip(columns, row, strict=True))) for row in rows]


def _levels(sat: Sittings, steps: Sequence[LevelChange], drifts: Sequence[LevelChange]) -> Floats:
    """The level of the series at each sitting, with steps and drift in it."""
    sloped = np.zeros(len(sat))
    for drift in drifts:
        days = sat.at[drift.begin : drift.end] - sat.at[drift.begin]
        sloped[drift.begin : drift.end] = drift.effect * days / days[-1]
    starts, piece = _pieces(sat, np.array([step.place for step in steps], dtype=np.int64))
    level: Floats = groups_median(sat.value - sloped, piece, len(starts))[piece] + sloped
    return level
