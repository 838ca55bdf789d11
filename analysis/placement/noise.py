"""The density of the noise of a run about its GPU's time, pooled over a fleet.

A core, Student's t with few degrees of freedom, whose scale comes from differences between runs of one GPU; and the
runs far from their GPU, whatever their distribution, as they were seen: a fleet in which every tenth run is half as
long again must not believe three such runs in a row to be a slow GPU.

The judge needs the spread of a level alone (`verdicts/levels.py`); a posterior needs the density of a single run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..statistics.ordering import Floats, Ints
from ..statistics.student import log_density

Singles = npt.NDArray[np.float32]

FREEDOM = 4.0
"""Degrees of freedom of the core: the information of normal runs is kept to 93 %, one far run has bounded weight."""
LEAST_SCALE = 5e-4
"""Below a twentieth of a percent nobody places a job by it, and readings come in steps."""
FAR = 6.0
"""Scales from its GPU from which a run belongs to no core."""

_MEDIAN_DIFFERENCE = 1.0475
"""Of normal noise with standard deviation 1, the median of |a - b| (0.9539) over the scale of a core with the same
quartiles (0.9106)."""
WIDER = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)
"""How much wider than usual the core of a GPU may be: some GPUs throttle now and then."""
_PAIRS = 8
"""A GPU with more pairs of runs has no more say in the scale."""
_FINE = 8
"""Steps of the table in one scale."""


@dataclass(frozen=True)
class Noise:
    """The density of a run's log time about its GPU's, as a table of its logarithm."""

    far: float
    """The share of runs that strayed from the core."""
    table: Singles
    step: float

    @classmethod
    def of_core(cls, scale: float, span: float) -> Noise:
        """Noise without far runs, tabulated for deviations up to `span`."""
        return _table(scale, np.empty(0), 0.0, span)

    def log_density(self, deviation: Floats) -> Singles:
        """The log density at each of `deviation`, to the nearest eighth of a scale."""
        at = deviation * (1.0 / self.step)
        np.rint(at, out=at)
        at += len(self.table) // 2
        found: Singles = self.table.take(at.astype(np.intp), mode="clip")
        return found


def core_scale(x: Floats, starts: Ints) -> float | None:
    """The scale of the core; None where no GPU has two runs.

    `x`: log times by GPU and in the order of time inside each; `starts`: from `ordering.bounds`. Each run is
    compared with the one half of the GPU's runs later, so that a slow drift counts as noise; a difference needs no
    correction for the few runs of a GPU, as a deviation from its median would.
    """
    size = np.diff(starts)
    half = size // 2
    place = np.arange(len(x)) - np.repeat(starts[:-1], size)
    paired = (place < np.repeat(size - half, size)) & np.repeat(size > 1, size)
    first = np.flatnonzero(paired)
    if len(first) == 0:
        return None
    difference = np.abs(x[first] - x[first + np.repeat(half, size)[first]])
    pairs = np.repeat(size - half, size)[first]
    weight = np.minimum(pairs, _PAIRS) / pairs
    order = np.argsort(difference, kind="stable")
    reach = np.cumsum(weight[order])
    median = float(difference[order[np.searchsorted(reach, 0.5 * reach[-1])]])
    return max(median / _MEDIAN_DIFFERENCE, LEAST_SCALE)


def noises(x: Floats, starts: Ints, scale: float, span: float) -> tuple[Noise, ...]:
    """The noise of these runs (laid out as for `core_scale`), for each width of WIDER, up to deviations of `span`."""
    far = _far(x, starts, scale)
    share = len(far) / max(1, len(x))
    return tuple(_table(scale * wider, far, share, span) for wider in WIDER)


def _table(scale: float, far: Floats, share: float, span: float) -> Noise:
    step = scale / _FINE
    reach = math.ceil(span / step) + 1
    at = np.arange(-reach, reach + 1, dtype=np.float64) * step
    density = (1.0 - share) * _core(at, scale)
    if len(far):
        counts = np.bincount(
            np.clip(np.rint(far / step).astype(np.intp) + reach, 0, 2 * reach), minlength=2 * reach + 1
        )
        kernel = _core(np.arange(-20 * _FINE, 20 * _FINE + 1, dtype=np.float64) * step, scale)
        density += (
            share
            * np.convolve(counts / len(far), kernel / (kernel.sum() * step), mode="full")[
                20 * _FINE : 20 * _FINE + 2 * reach + 1
            ]
        )
    return Noise(share, np.log(density).astype(np.float32), step)


def _core(at: Floats, scale: float) -> Floats:
    return np.exp(log_density(at / scale, FREEDOM)) / scale


def _far(x: Floats, starts: Ints, scale: float) -> Floats:
    """The deviations of the runs far from their GPU's usual ones, which are those near its lower quartile.

    Runs stray to the slow side: of two that differ much, the slow one did.
    """
    size = np.diff(starts)
    owner = np.repeat(np.arange(len(size)), size)
    ordered = x[np.lexsort((x, owner))]
    low = np.repeat(ordered[starts[:-1] + (size - 1) // 4], size)
    near = np.abs(x - low) <= FAR * scale
    usual = np.add.reduceat(np.where(near, x, 0.0), starts[:-1]) / np.add.reduceat(near.astype(np.float64), starts[:-1])
    # A GPU with more of them than its share would have changes its mind: that is it, not the fleet's noise.
    count = size - np.add.reduceat(near.astype(np.float64), starts[:-1])
    wanted = size * (count.sum() / size.sum())
    fair = np.repeat(count <= wanted + 3.0 * np.sqrt(wanted) + 1.0, size)
    found: Floats = (x - np.repeat(usual, size))[~near & fair]
    return found
