"""What runs of several GPUs say: their mean, and the variance between GPUs over that between runs, with intervals.

A result is mean + GPU + run, both normal (one-way random effects). There are n GPUs with k runs each; the mean squares
between and within GPUs are MSB and MSW, and F = MSB / MSW. The variance between GPUs over that of a run is (F - 1) / k.
As F over its expectation has the F distribution with n - 1 and n (k - 1) degrees of freedom, its interval is that of F
over the quantiles of the distribution.
Source: Searle, Casella and McCulloch, Variance Components (1992), section 3.6. The square of Student's t with m degrees
has the F distribution with 1 and m. Quantiles are those of 200,000 random numbers of a fixed seed, so that no scipy is
needed: they are off by 1 % or so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class RunFigure:
    """A figure of runs, with its 95 % interval."""

    value: float
    low: float | None
    """None, as `high`, where each GPU has one run."""
    high: float | None
    gpus: int
    runs: int
    """Of each GPU."""


def mean_of_runs(values: npt.ArrayLike) -> RunFigure:
    """The mean over GPUs and runs, shape (gpus, runs), in their unit. Its interval is that of these GPUs: it has the
    variance between runs alone (Student's t)."""
    runs = np.asarray(values, np.float64)
    gpus, repeats = runs.shape
    mean = float(runs.mean())
    if repeats < 2:
        return RunFigure(mean, None, None, gpus, repeats)
    half = float(np.sqrt(_fisher(0.95, 1, gpus * (repeats - 1)) * runs.var(axis=1, ddof=1).mean() / runs.size))
    return RunFigure(mean, mean - half, mean + half, gpus, repeats)


def spread_over_runs(values: npt.ArrayLike) -> RunFigure | None:
    """The variance of ln value between GPUs over that between runs, of positive values of shape (gpus, runs).

    None where it is not known: with one GPU, one run each, or runs that are equal to the last digit.
    """
    logs = np.log(np.asarray(values, np.float64))
    gpus, repeats = logs.shape
    if gpus < 2 or repeats < 2 or not (within := float(logs.var(axis=1, ddof=1).mean())) > 0:
        return None
    ratio = repeats * float(np.var(logs.mean(axis=1), ddof=1)) / within
    least, most = (_fisher(share, gpus - 1, gpus * (repeats - 1)) for share in (0.025, 0.975))
    value, low, high = (max(0.0, (f - 1) / repeats) for f in (ratio, ratio / most, ratio / least))
    return RunFigure(value, low, high, gpus, repeats)


@lru_cache(maxsize=32)
def _fisher(share: float, between: int, within: int) -> float:
    return float(np.quantile(np.random.default_rng(1).f(between, within, 200_000), share))
