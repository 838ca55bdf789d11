"""The level of every GPU in one figure: from runs to sittings, without what a day did to all, to a level a GPU.

The model: figure = fleet + batch + node + GPU + sitting + run. A run is one measurement; a sitting is the runs of a GPU
without a pause of six hours; a level is the median of a GPU's sittings. Every step takes medians, so that no single run
decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PAUSE_US = 6 * 3600 * 10**6
"""A pause that ends a sitting; two sittings that confirm each other are at least so far apart."""
_LONGEST_US = 24 * 3600 * 10**6
_DAY_US = 24 * 3600 * 10**6
_FAR = 6.0  # robust standard deviations from which a run counts as no farther off
_DAYS_OF_ALL = 8  # GPUs with other sittings that a day needs for its effect to be known
_BETWEEN_TO_WITHIN = 1.3
"""Where no GPU has two sittings: the standard deviation between sittings over that within one. Of SGEMM on a public
cluster 61 to 65 % of a GPU's variance lies between days (docs/operating-characteristics.md)."""
LEAST = 1e-4
"""No figure is known better than to a ten-thousandth."""


@dataclass(frozen=True)
class Sittings:
    """One figure of one workload, a row a sitting, by GPU and in the order of time."""

    gpu: Ints
    """(sittings,) the number of the GPU."""
    at: Ints
    """(sittings,) us since 1970 of its first run; the least integer where unknown."""
    runs: Ints
    middle: Floats
    """(sittings,) medians of the runs."""
    lower: Floats
    upper: Floats
    """The same of an odd number of runs; else the two values in the middle."""
    within: Floats
    """(sittings,) mean square of the runs about their median, each no farther off than six robust sd; NaN of one run."""


def sittings(gpu: Ints, at: Ints, x: Floats) -> Sittings:
    """The sittings of a figure from its runs: the number of the GPU, when it began (us; the least integer where
    unknown) and the figure, finite. Runs at unknown times of one GPU are one sitting."""
    number = _numbered(gpu, at)
    order = np.lexsort((x, number))
    x, number = x[order], number[order]
    start = np.flatnonzero(np.diff(number, prepend=-1))
    runs = np.diff(start, append=len(x))
    lower, upper = x[start + (runs - 1) // 2], x[start + runs // 2]
    middle = (lower + upper) / 2
    off = x - np.repeat(middle, runs)
    several = np.repeat(runs > 1, runs)
    reach = _FAR * max(1.4826 * float(np.median(np.abs(off[several]))) if several.any() else 0.0, LEAST)
    squares = np.add.reduceat(np.clip(off, -reach, reach) ** 2, start) if len(x) else np.empty(0)
    within = np.where(runs > 1, squares / np.maximum(runs - 1, 1), np.nan)
    first = np.full(len(start), np.iinfo(np.int64).max)
    np.minimum.at(first, np.repeat(np.arange(len(start)), runs), at[order])
    return Sittings(gpu[order][start], first, runs.astype(np.int64), middle, lower, upper, within)


def _numbered(gpu: Ints, at: Ints) -> Ints:
    """The number of each run's sitting, by GPU and in the order of time."""
    order = np.lexsort((at, gpu))
    its, when = gpu[order], at[order]
    first = np.diff(its, prepend=-1) != 0
    known = when > np.iinfo(np.int64).min
    first[1:] |= (known[1:] != known[:-1]) | (known[1:] & known[:-1] & (when[1:] - when[:-1] >= PAUSE_US))
    chain = np.cumsum(first) - 1
    since = np.where(known, when - when[np.flatnonzero(first)][chain], 0) // _LONGEST_US if len(when) else when
    first |= np.diff(since, prepend=0) != 0
    found = np.empty(len(gpu), dtype=np.int64)
    found[order] = np.cumsum(first) - 1
    return found


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
    within: float
    """The same of a run within a sitting."""
    between_known: bool
    """Whether `again` was seen (some GPUs have several sittings) or taken from `within`."""
    repeats: float | None
    """Of the variance of single runs, the share that lies between GPUs; None where no GPU has two runs."""
    steps: Floats
    """(sittings,) what the day did to all, which `level` is without."""
    sat: Sittings

    @property
    def known(self) -> Bools:
        return np.isfinite(self.level)


def levels(sat: Sittings, gpus: int) -> Levels:
    """The levels of the GPUs numbered 0 to `gpus` - 1."""
    count = np.bincount(sat.gpu, minlength=gpus)
    day = _days(sat.at)
    steps = _steps(sat.middle, sat.gpu, day, count)
    middle = _medians(sat.middle - steps, sat.gpu, count)
    low = _medians(sat.lower - steps, sat.gpu, count, lower=True)
    high = _medians(sat.upper - steps, sat.gpu, count, upper=True)
    runs = np.bincount(sat.gpu, sat.runs, minlength=gpus).astype(np.int64)
    own = np.isfinite(sat.within)
    freedom = sat.runs - 1
    within = (
        float(np.sqrt((sat.within[own] * freedom[own]).sum() / max(1, freedom[own].sum()))) if own.any() else np.nan
    )
    off = sat.middle - steps - middle[sat.gpu]
    several = count[sat.gpu] > 1
    between_known = bool((count > 1).sum() >= _DAYS_OF_ALL)
    if between_known:
        # Medians of differences between sittings next to each other: drifts and steps of one GPU stay out of it.
        pair = np.flatnonzero(several[1:] & (sat.gpu[1:] == sat.gpu[:-1]))
        apart = (sat.middle - steps)[pair + 1] - (sat.middle - steps)[pair]
        scale = 1.4826 * float(np.median(np.abs(apart)))
        clipped = np.clip(apart, -_FAR * scale, _FAR * scale) if scale > 0 else apart
        again = float(np.sqrt((clipped**2).mean() / 2))
    else:
        again = _BETWEEN_TO_WITHIN * within if np.isfinite(within) else np.nan
    again = max(again, LEAST) if np.isfinite(again) else np.nan
    spread = np.where(several, off, 0.0)
    squares = np.bincount(sat.gpu, spread**2, minlength=gpus)
    with np.errstate(all="ignore"):
        mine = np.sqrt(squares / np.maximum(count - 1, 1))
        # A GPU that changes more than the fleet's usual one is known less well; few sittings say little about that.
        pooled = np.sqrt((again**2 * 4 + mine**2 * (count - 1)) / (4 + np.maximum(count - 1, 0)))
        error = np.where(count > 0, pooled / np.sqrt(np.maximum(count, 1)), np.nan)
    repeats = _repeats(sat, steps, middle, count, runs, within, again if between_known else 0.0)
    return Levels(
        middle, low, high, count, runs, error, again, max(within, LEAST) if np.isfinite(within) else np.nan,
        between_known, repeats, steps, sat,
    )  # fmt: skip


def _repeats(
    sat: Sittings, steps: Floats, middle: Floats, count: Ints, runs: Ints, within: float, again: float
) -> float | None:
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


def _days(at: Ints) -> Ints:
    """The number of the day of each sitting; -1 where unknown."""
    known = at > np.iinfo(np.int64).min
    found = np.full(len(at), -1, dtype=np.int64)
    found[known] = np.unique(at[known] // _DAY_US, return_inverse=True)[1]
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
    size = np.bincount(its, minlength=len(count))
    for _ in range(4):
        own = _medians(x - effect[when], its, size)
        off = x - own[its]
        order = np.lexsort((off, when))
        many = np.bincount(when, minlength=days)
        start = np.concatenate(([0], np.cumsum(many)))
        for one in np.flatnonzero(many >= _DAYS_OF_ALL):
            part = off[order[start[one] : start[one + 1]]]
            centre = float(np.median(part))
            doubt = 1.4826 * float(np.median(np.abs(part - centre))) * 1.2533 / np.sqrt(len(part))
            effect[one] = centre if abs(centre) > 2.5 * max(doubt, LEAST / 10) else 0.0
        effect -= np.median(effect[many > 0])
    known = day >= 0
    found[known] = effect[day[known]]
    return found


def _medians(values: Floats, group: Ints, count: Ints, *, lower: bool = False, upper: bool = False) -> Floats:
    """(groups,) medians of `values` by group; NaN of an empty one. Of an even number the lower or upper on request."""
    order = np.lexsort((values, group))
    ordered = values[order]
    start = np.concatenate(([0], np.cumsum(count)))[:-1]
    some = count > 0
    found = np.full(len(count), np.nan)
    first, n = start[some], count[some]
    low, high = ordered[first + (n - 1) // 2], ordered[first + n // 2]
    found[some] = low if lower else high if upper else (low + high) / 2
    return found
