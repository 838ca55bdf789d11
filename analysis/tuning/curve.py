"""A workload's own curve: what a power cap does to its energy and time, from runs under several limits and clocks.

A steady work whose clock is locked draws some power. A cap of that power would hold it at the same clock. So a run with
a locked clock is a point of the curve too. The level of a cap is its share of the power above which no cap changes
anything, and the curve runs over 1 / level, as the time of work at its limit does roughly.

    ln(figure at a level / figure of the same GPU without a cap) = process(1 / level) + scatter

A point is the mean of the runs of one GPU at one level. How far points scatter nobody measures: clocks come in steps,
GPUs differ. The prediction is the mean over `SCATTERS`, each weighted by how probable it makes the points (Rasmussen
and Williams, Gaussian Processes for Machine Learning, 2006, section 5.2). Its variance has the noise of the two runs
that are compared, as repeated runs have it, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .search import FloatArray, Process

SAME_LEVEL = 0.01  # levels that differ by less than this count as one
LEAST_LEVELS = 3
SCATTERS = np.array([0.001, 0.0025, 0.005, 0.01, 0.02, 0.04])  # of ln energy or ln time
SPREAD = 0.005
"""How far GPUs are taken to differ in what a cap does (ln), beside the scatter. In Zeus's profiles of one job, the
energies of four A40 changed by 2.3 % (standard deviation) differently from 300 W to any lower limit, those of two V100
by 0 to 2 %."""


@dataclass(frozen=True)
class CappedRuns:
    """Runs of one workload on GPUs of one model: an element of each array (n,) is a run."""

    unit: NDArray[Any]
    """What was measured: the GPU, and the size of the work where that varies. Only runs of one unit are compared."""
    cap_w: FloatArray
    """The power cap that the run is like: its limit, or under a locked clock what it drew if that is less."""
    energy_j: FloatArray  # of a repetition
    time_s: FloatArray
    uncapped_w: FloatArray
    """The power above which a cap does nothing on this unit: the default limit, or what the work draws under it."""


@dataclass(frozen=True)
class CapEffect:
    """What a cap does: ln of energy and time over those without it, with standard deviations for another run."""

    log_energy: float
    energy_sd: float
    log_time: float
    time_sd: float


@dataclass(frozen=True)
class OwnCurve:
    """Energy and time over the level; `own_curve` makes one."""

    runs: int
    levels: int  # how many levels were measured
    lowest: float  # the lowest of them
    uncapped_w: FloatArray  # of each unit, as in `CappedRuns`
    energy: _Change
    time: _Change

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the standard deviations, for Student's t."""
        return self.levels - 1

    def effect(self, cap_w: float, since_w: float = math.inf) -> CapEffect | None:
        """What a cap does to work that ran under the cap `since_w`; None below the lowest level that was measured."""
        level, since = (np.minimum(watts / self.uncapped_w, 1.0) for watts in (cap_w, since_w))
        if min(level.min(), since.min()) < self.lowest - SAME_LEVEL:
            return None
        (energy, energy_sd), (time, time_sd) = (change.between(level, since) for change in (self.energy, self.time))
        return CapEffect(energy, energy_sd, time, time_sd)


def own_curve(runs: CappedRuns) -> OwnCurve | None:
    """The curve of some runs; None where they have fewer than `LEAST_LEVELS` levels, the default among them.

    Units without a run at the default are left out, as nobody knows what they do without a cap.
    """
    level = np.minimum(runs.cap_w / runs.uncapped_w, 1.0)
    at_default = level > 1 - SAME_LEVEL
    kept = np.isin(runs.unit, runs.unit[at_default])
    level = np.where(at_default, 1.0, level)[kept]
    bins = np.round(level / SAME_LEVEL)
    if len(np.unique(bins)) < LEAST_LEVELS:
        return None
    _, first, unit = np.unique(runs.unit[kept], return_index=True, return_inverse=True)
    points, point = np.unique(np.stack([unit, bins]), axis=1, return_inverse=True)
    point = point.ravel()
    counts = np.bincount(point)
    levels = np.bincount(point, level) / counts
    default = levels == 1.0

    def change(values: FloatArray) -> _Change:
        logs = np.log(values[kept])
        means = np.bincount(point, logs) / counts
        repeated = len(logs) - len(counts)
        noise_variance = float(((logs - means[point]) ** 2).sum()) / repeated if repeated else 0.0
        changes = means - means[default][points[0].astype(int)]  # points are ordered by unit, as defaults are
        # The default is one point, as nothing changes there by definition.
        return _Change(np.append(levels[~default], 1.0), np.append(changes[~default], 0.0), noise_variance)

    return OwnCurve(
        len(level), len(np.unique(bins)), float(levels.min()), runs.uncapped_w[kept][first],
        change(runs.energy_j), change(runs.time_s),
    )  # fmt: skip


class _Change:
    """Processes through ln of a figure over that without a cap, one process for each scatter, weighted."""

    def __init__(self, levels: FloatArray, changes: FloatArray, noise_variance: float) -> None:
        """From the points at levels (n,), the lowest of which is below 1, their changes (n,), and the variance of ln
        of repeated runs."""
        self._least_variance = SPREAD**2 + 2 * noise_variance
        self._lowest = levels.min()
        self._processes = [Process(scatter).fit(self._scaled(levels), changes) for scatter in SCATTERS]
        misfits = np.array([process.misfit for process in self._processes])
        likelihoods = np.exp(misfits.min() - misfits)
        self._weights = likelihoods / likelihoods.sum()

    def between(self, level: FloatArray, since: FloatArray) -> tuple[float, float]:
        """The change from a level of each unit (units,) to another one: its mean over the units, and its standard
        deviation for another run on another unit."""
        (to, to_variance), (base, base_variance) = self._at(level), self._at(since)
        differ = np.abs(level - since) > SAME_LEVEL
        changes = (to - base) * differ
        variance = ((to_variance + base_variance) * differ).mean() + changes.var() + self._least_variance
        return float(changes.mean()), float(np.sqrt(variance))

    def _at(self, level: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The changes from the default to levels (n,), and their variances with the scatter; none at the default."""
        point, capped = self._scaled(level), level < 1 - SAME_LEVEL
        means, sds = np.array([process.predict(point) for process in self._processes]).transpose(1, 2, 0)
        mean = means @ self._weights
        variance = (sds**2 + SCATTERS**2 + (means - mean[:, None]) ** 2) @ self._weights
        return mean * capped, variance * capped

    def _scaled(self, levels: FloatArray) -> FloatArray:
        return np.asarray((1 / levels - 1) / (1 / self._lowest - 1))[:, None]
