"""GPUs that are unstable: whose runs, or whose sittings, leave their own level more often than the fleet's do.

Throttling in one run of ten leaves the median of a GPU where it was. So what is counted is how often a run is
clearly slower than the others of its sitting, and how often a sitting is away from the GPU's level. The fleet's own
rate is what that is compared with: heavy tails and glitches are in it. Arrays in, arrays out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...runs.sittings import Bools, Floats, Ints
from ...statistics.student import quantile
from ..levels import RELEVANT
from ..noise import Noise
from ..sittings import Runs, Sittings, groups_median
from .own_past import GLITCH

_FAR = 6.0  # standard deviations
_FEWEST_RUNS = 3  # of a sitting that has a level of its own
_FEWEST_SITTINGS = 4
_LEAST = 2  # how often at least
_ROUNDS = 4


@dataclass(frozen=True)
class Sizes:
    """How far those are away that are far, in logarithms: of every series, NaN where none is or one alone is."""

    median: Floats
    low: Floats
    high: Floats
    """95 % interval of the median: Student's t on the logarithms of the sizes, which are skewed."""


@dataclass(frozen=True)
class Scatter:
    """Of every series."""

    runs: Ints
    """How many runs could be slower than their sitting, how many were, and by how much they were."""
    slow_runs: Ints
    run_size: Sizes
    run_rate: float
    """The share of runs of the fleet that are."""
    sittings: Ints
    far_sittings: Ints
    sitting_size: Sizes
    sitting_rate: float
    p: Floats
    """Of the clearer of the two, both looks counted."""
    by_runs: Bools
    """Whether that is the runs."""


def scatter(of: Sittings, runs: Runs, noise: Noise | None, away: Floats) -> Scatter:
    """How often the runs and sittings of each series are far out.

    `away`: (sittings,) how far each sitting is from its series' level, after changes and drift were taken out.
    """
    within = 0.0 if noise is None else noise.within
    between = 0.0 if noise is None else float(noise.between[len(noise.between) // 2]) / 2
    several = of.runs[runs.sitting] >= _FEWEST_RUNS
    series, over = runs.series[several], (runs.value - of.value[runs.sitting])[several]
    slow = over > max(RELEVANT, _FAR * np.sqrt(within))
    run_count, slow_count, run_size = _counts(series, np.maximum(over, 0), slow, of.count)
    far = np.abs(away) > np.maximum(RELEVANT, _FAR * np.sqrt(between + within / of.runs))
    sitting_count, far_count, sitting_size = _counts(of.series, np.abs(away), far, of.count)
    run_rate = _rate(run_count, slow_count)
    sitting_rate = _rate(sitting_count, far_count)
    by_run = np.where(slow_count >= _LEAST, poisson_tail(slow_count, run_rate * run_count.astype(float)), 1.0)
    enough = (far_count >= _LEAST) & (sitting_count >= _FEWEST_SITTINGS)
    by_sitting = np.where(enough, poisson_tail(far_count, sitting_rate * sitting_count.astype(float)), 1.0)
    p = np.minimum(1.0, 2 * np.minimum(by_run, by_sitting))
    return Scatter(
        run_count, slow_count, run_size, run_rate, sitting_count, far_count, sitting_size, sitting_rate, p,
        by_run <= by_sitting,
    )  # fmt: skip


def _counts(series: Ints, size: Floats, far: Bools, count: int) -> tuple[Ints, Ints, Sizes]:
    many = np.bincount(series[far], minlength=count).astype(np.int64)
    return np.bincount(series, minlength=count).astype(np.int64), many, sizes(size[far], series[far], many)


def sizes(size: Floats, series: Ints, many: Ints) -> Sizes:
    median = groups_median(size, series, len(many))
    logs = np.log(size)
    with np.errstate(all="ignore"):
        mean = np.bincount(series, logs, minlength=len(many)) / many
        squares = np.bincount(series, (logs - mean[series]) ** 2, minlength=len(many))
        error = np.sqrt(squares / (many - 1) / many)
        reach = np.where(many > 1, quantile(0.025, np.maximum(many - 1, 1)) * error, np.nan)
        # The middle of few is not always their mean: the interval holds both.
        low, high = np.minimum(np.exp(mean - reach), median), np.maximum(np.exp(mean + reach), median)
    return Sizes(median, low, high)


def _rate(of: Ints, far: Ints) -> float:
    """The fleet's rate, never below that of glitches. A GPU counts for little more than the rate says of its runs.

    So a few unstable GPUs do not raise it, and heavy tails, which all GPUs have, do.
    """
    total = float(of.sum())
    rate = GLITCH
    for _ in range(_ROUNDS if total else 0):
        rate = GLITCH + float(np.minimum(far, 1 + np.floor(2 * rate * of)).sum()) / total
    return rate


def poisson_tail(count: Ints, mean: Floats) -> Floats:
    """An upper bound of the probability of `count` or more, close where `count` is well above the mean."""
    top = int(count.max(initial=0))
    factorials = np.cumsum(np.log(np.maximum(np.arange(top + 1), 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.exp(count * np.log(mean) - mean - factorials[count])
        bound = first / (1 - mean / (count + 1))
    return np.where((count <= mean) | (count == 0), 1.0, np.clip(np.nan_to_num(bound, nan=1.0), 0.0, 1.0))
