"""A workload's own curve: what a power cap does to its energy and time, from runs under several limits and clocks.

A steady work whose clock is locked draws some power. A cap of that power would hold it at the same clock. So a run with
a locked clock is a point of the curve too: its level is the power that it drew, or its limit if that is lower. A level
is a share of the default limit, and the curve runs over 1 / level, as the time of work at its limit does roughly.

How much the points scatter beyond the noise of repeated runs is chosen so that each level is predicted best when it is
left out (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 5.4.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .process import FloatArray, Process

SAME_LEVEL = 0.01
"""Levels that differ by less than this share of the default limit count as one."""
LEAST_LEVELS = 3
SCATTERS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04)
"""Of ln energy or ln time: what the scatter of a level is chosen from."""
_MOST_LEFT_OUT = 20


@dataclass(frozen=True)
class CappedRuns:
    """Runs of one workload on GPUs of one model: an element of each array (n,) is a run."""

    unit: NDArray[np.str_]
    """What was measured: the GPU, and the size of the work where that varies. Only runs of one unit are compared."""
    level: FloatArray
    """The power cap that the run is like, as a share of the default limit: 1 is the default."""
    energy_j: FloatArray
    """Of a repetition."""
    time_s: FloatArray


@dataclass(frozen=True)
class CapEffect:
    """What a cap does: ln of energy and time over those without it, with standard deviations for another run."""

    log_energy: float
    energy_sd: float
    log_time: float
    time_sd: float


class OwnCurve:
    """Energy and time over the level; `own_curve` makes one."""

    def __init__(self, levels: FloatArray, energy: _Levels, time: _Levels, runs: int, units: int) -> None:
        """`levels` (n,) rise to 1, the default."""
        self.levels, self.runs, self.units = levels, runs, units
        self.lowest = float(levels[0])
        self.freedom = len(levels) - 1
        """Degrees of freedom of the standard deviations, for Student's t."""
        self._energy, self._time = _Fitted(levels, energy), _Fitted(levels, time)

    def effect(self, level: float, since: float = 1.0) -> CapEffect | None:
        """What a cap at `level` does to work that ran at level `since`; None below the lowest level that was measured.

        Beyond the uncertainty of the curve, the standard deviations have the noise of a run at each of both levels.
        """
        if min(level, since) < self.lowest - SAME_LEVEL:
            return None
        if abs(level - since) < SAME_LEVEL:
            return CapEffect(0.0, 0.0, 0.0, 0.0)
        return CapEffect(*self._energy.change(level, since), *self._time.change(level, since))


def own_curve(runs: CappedRuns) -> OwnCurve | None:
    """The curve of some runs; None where they have fewer than `LEAST_LEVELS` levels, the default among them.

    Units without a run at the default are left out, as nobody knows their own level.
    """
    at_default = np.abs(runs.level - 1) < SAME_LEVEL
    kept = np.isin(runs.unit, runs.unit[at_default])
    if not kept.any():
        return None
    level = np.where(at_default, 1.0, runs.level)[kept]
    bins, place = np.unique(np.round(level / SAME_LEVEL), return_inverse=True)
    if len(bins) < LEAST_LEVELS:
        return None
    counts = np.bincount(place)
    levels = np.bincount(place, level) / counts
    figures = []
    for values in (runs.energy_j, runs.time_s):
        logs = np.log(values[kept])
        for unit in np.unique(runs.unit[kept]):
            own = runs.unit[kept] == unit
            logs[own] -= logs[own & at_default[kept]].mean()
        means = np.bincount(place, logs) / counts
        squares = float(((logs - means[place]) ** 2).sum())
        freedom = len(logs) - len(bins) - (len(np.unique(runs.unit[kept])) - 1)
        figures.append(_Levels(means, counts, np.sqrt(squares / freedom) if freedom > 0 else 0.0))
    return OwnCurve(levels, *figures, int(kept.sum()), len(np.unique(runs.unit[kept])))


@dataclass(frozen=True)
class _Levels:
    """A figure at each level."""

    means: FloatArray
    """Of ln, over the default of the same unit."""
    counts: NDArray[np.int64]
    """Runs."""
    noise: float
    """Standard deviation of a run among those of its level; 0 where no level has several."""

    def sds(self, scatter: float) -> FloatArray:
        """Standard deviations of the means."""
        return np.sqrt(scatter**2 + self.noise**2 / self.counts)


class _Fitted:
    """Processes through the levels of one figure, one for each scatter, weighted by how well they predict."""

    def __init__(self, levels: FloatArray, figure: _Levels) -> None:
        self._levels, self._figure = levels, figure
        self._scale = 1 / levels[0] - 1
        self._points = self._scaled(levels)
        surprises = np.array([self._surprise(scatter) for scatter in SCATTERS])
        weights = np.exp(surprises.min() - surprises)
        self._weights = weights / weights.sum()
        self._processes = [Process().fit(self._points, figure.means, figure.sds(scatter)) for scatter in SCATTERS]

    def _scaled(self, levels: FloatArray) -> FloatArray:
        return np.asarray((1 / levels - 1) / self._scale)[:, None]

    def _surprise(self, scatter: float) -> float:
        """Minus the logarithm of the probability of the levels, each predicted from all others."""
        figure, sds = self._figure, self._figure.sds(scatter)
        count = len(self._levels)
        total = 0.0
        for place in np.unique(np.linspace(0, count - 1, min(count, _MOST_LEFT_OUT)).round().astype(int)):
            others = np.arange(count) != place
            process = Process().fit(self._points[others], figure.means[others], sds[others])
            mean, sd = process.predict(self._points[[place]])
            variance = sd[0] ** 2 + sds[place] ** 2 + sds[-1] ** 2
            total += 0.5 * np.log(variance) + (figure.means[place] - mean[0]) ** 2 / (2 * variance)
        return float(total)

    def change(self, level: float, since: float) -> tuple[float, float]:
        """ln of the figure at a level over that at another one, and its standard deviation.

        By the law of total variance over the scatters.
        """
        from_default = np.abs(np.array([level, since]) - 1) < SAME_LEVEL
        means, variances = [], []
        for scatter, process in zip(SCATTERS, self._processes, strict=True):
            mean, sd = process.predict(self._scaled(np.array([level, since])))
            mean, sd = np.where(from_default, 0.0, mean), np.where(from_default, 0.0, sd)
            means.append(mean[0] - mean[1])
            variances.append((sd**2).sum() + 2 * (scatter**2 + self._figure.noise**2))
        change = float(self._weights @ means)
        return change, float(np.sqrt(self._weights @ (np.array(variances) + (np.array(means) - change) ** 2)))
