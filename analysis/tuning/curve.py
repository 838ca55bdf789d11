"""A workload's own curve: what a power cap does to its energy and time, from runs under several limits and clocks.

A steady work whose clock is locked draws some power. A cap of that power would hold it at the same clock. So a run with
a locked clock is a point of the curve too: its level is the power that it drew, or its limit if that is lower. A level
is a share of the default limit, and the curve runs over 1 / level, as the time of work at its limit does roughly.

    change(level) = process(1 / level) + scatter of the level + noise of a run + difference of the GPU

The last three are random. The noise is that of repeated runs, and GPUs differ as those that ran at one level do. How
far levels scatter beyond that, for instance because clocks come in steps, nobody measures: the prediction is the mean
over `SCATTERS`, each weighted by how probable it makes every level when that is left out (Rasmussen and Williams,
Gaussian Processes for Machine Learning, 2006, section 5.4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .process import FloatArray, Process

SAME_LEVEL = 0.01
"""Levels that differ by less than this count as one."""
LEAST_LEVELS = 3
SCATTERS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04)
"""Of ln energy or ln time."""
SPREAD, SPREAD_UNITS = 0.005, 4
"""How far units are taken to differ in what a cap does (ln), beside those that were measured: as so many further ones
would. In Zeus's profiles of one job, the energies of four A40 changed by 2.3 % (standard deviation) differently from
300 W to any lower limit, those of two V100 by 0 to 2 %. A curve of one unit is for that unit."""
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
    highest: FloatArray
    """The level above which a cap does nothing on this unit: what the work draws without one where that is below 1."""


@dataclass(frozen=True)
class CapEffect:
    """What a cap does: ln of energy and time over those without it, with standard deviations for another run."""

    log_energy: float
    energy_sd: float
    log_time: float
    time_sd: float


class OwnCurve:
    """Energy and time over the level; `own_curve` makes one."""

    def __init__(self, highest: FloatArray, levels: FloatArray, energy: _Figure, time: _Figure) -> None:
        """`levels` (n,) rise to 1, and are shares of the `highest` one (units,), which is as good as the default."""
        self._highest, self._lowest = highest, float(levels[0])
        self.freedom = len(levels) - 1
        """Degrees of freedom of the standard deviations, for Student's t."""
        self.runs, self.units = int(energy.runs.sum()), int(energy.units[-1])
        self._energy, self._time = _Fitted(levels, energy), _Fitted(levels, time)

    def effect(self, level: float, since: float = 1.0) -> CapEffect | None:
        """What a cap at `level` does to work that ran at level `since`; None below the lowest level that was measured.

        The standard deviations are for runs on another GPU, one at each of both levels; where one GPU ran, on that one.
        """
        of_units, since_units = (np.minimum(share / self._highest, 1.0) for share in (level, since))
        if min(of_units.min(), since_units.min()) < self._lowest - SAME_LEVEL:
            return None
        return CapEffect(*self._energy.change(of_units, since_units), *self._time.change(of_units, since_units))


def own_curve(runs: CappedRuns) -> OwnCurve | None:
    """The curve of some runs; None where they have fewer than `LEAST_LEVELS` levels, the default among them.

    Units without a run at the default are left out, as nobody knows what they do without a cap.
    """
    level = np.minimum(runs.level / runs.highest, 1.0)
    at_default = level > 1 - SAME_LEVEL
    kept = np.isin(runs.unit, runs.unit[at_default])
    bins, place = np.unique(np.round(level[kept] / SAME_LEVEL), return_inverse=True)
    if len(bins) < LEAST_LEVELS:
        return None
    level = np.where(at_default, 1.0, level)[kept]
    levels = np.bincount(place, level) / np.bincount(place)
    energy, time = (_figure(values[kept], runs.unit[kept], place, levels) for values in (runs.energy_j, runs.time_s))
    _, first = np.unique(runs.unit[kept], return_index=True)
    return OwnCurve(runs.highest[kept][first], levels, energy, time)


@dataclass(frozen=True)
class _Figure:
    """Energy or time at each level, as ln of the multiple of the same unit's default."""

    means: FloatArray
    """Over units, (levels,)."""
    runs: NDArray[np.int64]
    units: NDArray[np.int64]
    noise: float
    """Standard deviation of a run among those of its unit and level; 0 where nothing was repeated."""
    apart: float
    """Standard deviation of units at one level below the default; 0 of one unit."""

    def variances(self, scatter: float) -> FloatArray:
        """Of the means (levels,)."""
        return np.asarray(
            scatter**2 + self.noise**2 / self.runs + np.where(self.units > 1, self.apart**2, 0) / self.units
        )


def _figure(values: FloatArray, unit: NDArray[np.str_], place: NDArray[np.int64], levels: FloatArray) -> _Figure:
    """From values (n,) of runs, each of a unit and at the level of this place."""
    names, unit_place = np.unique(unit, return_inverse=True)
    cells, cell = np.unique(np.stack([place, unit_place]), axis=1, return_inverse=True)
    cell = cell.ravel()
    counts = np.bincount(cell)
    logs = np.log(values)
    means = np.bincount(cell, logs) / counts
    squares = float(((logs - means[cell]) ** 2).sum())
    repeated = len(logs) - len(counts)
    defaults = np.zeros(len(names))
    last = cells[0] == len(levels) - 1
    defaults[cells[1][last]] = means[last]
    means = means - defaults[cells[1]]
    units = np.bincount(cells[0])
    of_levels = np.bincount(cells[0], means) / units
    freedom = int((units[:-1] - 1).sum())
    apart = float(((means - of_levels[cells[0]])[~last] ** 2).sum())
    return _Figure(
        of_levels,
        np.bincount(place),
        units,
        noise=np.sqrt(squares / repeated) if repeated else 0.0,
        # The predictive variance of Student's t, so that few units count for less.
        apart=np.sqrt((apart + SPREAD_UNITS * SPREAD**2) / (freedom + SPREAD_UNITS - 2)) if units[-1] > 1 else 0.0,
    )


class _Fitted:
    """Processes through the levels of one figure, one for each scatter, weighted by how well they predict."""

    def __init__(self, levels: FloatArray, figure: _Figure) -> None:
        self._levels, self._figure = levels, figure
        self._points = self._scaled(levels)
        surprises = np.array([self._surprise(scatter) for scatter in SCATTERS])
        weights = np.exp(surprises.min() - surprises)
        self._weights = weights / weights.sum()
        self._processes = [
            Process().fit(self._points, figure.means, np.sqrt(figure.variances(scatter))) for scatter in SCATTERS
        ]

    def _scaled(self, levels: FloatArray) -> FloatArray:
        return np.asarray((1 / levels - 1) / (1 / self._levels[0] - 1))[:, None]

    def _surprise(self, scatter: float) -> float:
        """Minus the logarithm of the probability of the levels, each predicted from all others."""
        means, variances = self._figure.means, self._figure.variances(scatter)
        count = len(means)
        total = 0.0
        for place in np.unique(np.linspace(0, count - 1, min(count, _MOST_LEFT_OUT)).round().astype(int)):
            others = np.arange(count) != place
            process = Process().fit(self._points[others], means[others], np.sqrt(variances[others]))
            mean, sd = process.predict(self._points[[place]])
            variance = sd[0] ** 2 + variances[place] + variances[-1]
            total += 0.5 * np.log(variance) + (means[place] - mean[0]) ** 2 / (2 * variance)
        return float(total)

    def change(self, levels: FloatArray, since: FloatArray) -> tuple[float, float]:
        """ln of the figure at a level of each unit (units,) over that at another one: its mean over the units, and its
        standard deviation for another unit, over all scatters."""
        figure = self._figure
        equal = np.abs(levels - since) < SAME_LEVEL
        apart = figure.apart**2 * (1 + 1 / np.median(figure.units[:-1]))
        changes, variances = np.zeros(len(SCATTERS)), np.zeros(len(SCATTERS))
        for number, (scatter, process) in enumerate(zip(SCATTERS, self._processes, strict=True)):
            means, sds = self._predicted(process, levels)
            since_means, since_sds = self._predicted(process, since)
            of_units = np.where(equal, 0.0, means - since_means)
            curve = np.where(equal, 0.0, sds**2 + since_sds**2 + 2 * scatter**2)
            changes[number] = of_units.mean()
            variances[number] = (curve + apart + 2 * figure.noise**2).mean() + of_units.var()
        change = float(self._weights @ changes)
        return change, float(np.sqrt(self._weights @ (variances + (changes - change) ** 2)))

    def _predicted(self, process: Process, levels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation at levels; at the default nothing changes, by definition."""
        at_default = levels > 1 - SAME_LEVEL
        mean, sd = process.predict(self._scaled(levels))
        return np.where(at_default, 0.0, mean), np.where(at_default, 0.0, sd)
