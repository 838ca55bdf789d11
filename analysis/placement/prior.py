"""The prior: the distribution of the scores of a fleet's GPUs, fitted to the fleet.

The non-parametric maximum likelihood estimate (J. Kiefer and J. Wolfowitz, Annals of Mathematical Statistics 27, 1956)
on fixed atoms, by EM (N. Laird, Journal of the American Statistical Association 73, 1978): no shape is assumed, so
that a bulk shrinks towards itself and a GPU far from it, whose runs agree, stays where it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..statistics.ordering import Floats, Ints, medians
from .noise import Noise, Singles

PROBABILITIES: Floats = np.concatenate(([0.002], np.arange(1, 40) / 40.0, [0.998]))
"""Where the quantile function of a posterior is kept."""
_BETWEEN = np.diff(PROBABILITIES)
MASS: Floats = np.concatenate((_BETWEEN, [0.0])) / 2.0 + np.concatenate(([0.0], _BETWEEN)) / 2.0
MASS[0] += PROBABILITIES[0]
MASS[-1] += 1.0 - PROBABILITIES[-1]
"""The weight of each in the mean of a quantile function that is linear between them and level outside."""

_MOST = 256
"""Atoms."""
_REACH = 3.0
"""How far from a GPU's median its score may lie, in standard errors."""
_APART = 4.0
"""Times the usual error from which a GPU, whose runs disagree, has atoms of its own all over the range of them."""
_COARSE = 8
"""Steps between such atoms."""
_MOST_OWN = 64
_ITERATIONS = 300
_WIDTHS = 30
_SETTLED = 1e-4
_LEAST_SMOOTHING = 0.25
_MOST_SMOOTHING = 4.0
"""In standard errors of a GPU."""
_RETURN = 30
"""Iterations of a refit, which starts from the fit."""
_BLOCK = 1 << 15
"""Cells that are looked up at a time: they stay in the cache of a core."""
_NARROW = 64
"""Atoms among which a place is counted, and not searched."""
_FEW = 8
"""Runs of a GPU; NumPy adds more than these in another order."""
_ROWS = 1 << 18
"""Cells of the likelihood that are read once for both products of a step, and small enough for one thread: threads of
a library that wait for each other cost more than they save."""


@dataclass(frozen=True)
class Atoms:
    """Log scores that a GPU may have: points of a lattice, ascending, each the middle of a cell as wide as a step."""

    at: Floats
    step: float
    error: float
    """The usual standard error of a GPU's median."""


def atoms(centre: Floats, error: float, own: Floats | None = None) -> Atoms:
    """The atoms near which some GPU's median `centre` lies.

    `error`: the usual standard error of a median; `own`: (gpus,) that of each, by how far its own runs disagree.
    """
    step = error / 2.0
    wide = np.empty(0)
    if own is not None:
        wild = own > _APART * error
        wide = (centre[wild, None] + own[wild, None] * np.linspace(-_REACH, _REACH, 13)[None, :]).ravel()
    while True:
        cells = np.unique(np.rint(centre / step).astype(np.int64))
        reach = max(1, math.ceil(_REACH * error / step))
        coarse = np.unique(np.rint(wide / (_COARSE * step)).astype(np.int64)) * _COARSE
        coarse = coarse[:: max(1, math.ceil(len(coarse) / _MOST_OWN))]
        near = np.unique(
            np.concatenate([cells + one for one in range(-reach, reach + 1)] + [np.zeros(1, np.int64), coarse])
        )
        if len(near) <= _MOST:
            break
        step *= 1.25
    return Atoms(near.astype(np.float64) * step, step, error)


def likelihoods(x: Floats, starts: Ints, at: Floats, noises: Sequence[Noise]) -> Singles:
    """The likelihood of each GPU's runs at each atom, (gpus, atoms), each GPU's largest 1.

    Which of `noises` a GPU has is not known: each counts by how usual it is in the fleet and how well it fits.
    """
    found = np.empty((len(noises), len(starts) - 1, len(at)), dtype=np.float32)
    for first, last in _blocks(starts, len(at)):
        deviation = x[starts[first] : starts[last], None] - at[None, :]
        own = starts[first : last + 1] - starts[first]
        for one, noise in zip(found, noises, strict=True):
            one[first:last] = _sums(noise.log_density(deviation), own)
    found -= found.max(axis=(0, 2))[None, :, None]
    np.exp(found, out=found)
    fits = found.sum(axis=2, dtype=np.float64)
    usual = np.full(len(noises), 1.0 / len(noises))
    for _ in range(_WIDTHS):
        usual = (usual[:, None] * fits / (usual @ fits)).mean(axis=1)
    mixed = np.tensordot(usual.astype(np.float32), found, axes=1)
    mixed /= mixed.max(axis=1, keepdims=True)
    return mixed


def _sums(rows: Singles, starts: Ints) -> Singles:
    """The sum of the rows of each group, to the last bit as `reduceat` gives it, but much quicker where it can be."""
    size = np.diff(starts)
    runs = int(size[0])
    found: Singles
    if 1 < runs <= _FEW and (size == runs).all():
        each = rows.reshape(len(size), runs, -1)
        found = each[:, 1].copy()
        for one in range(2, runs):
            found += each[:, one]
        found += each[:, 0]
    else:
        found = np.add.reduceat(rows, starts[:-1], axis=0)
    return found


def _blocks(starts: Ints, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of groups of not too many cells each."""
    rows = max(1, _BLOCK // width)
    first, groups = 0, len(starts) - 1
    while first < groups:
        last = int(np.searchsorted(starts, starts[first] + rows, side="right")) - 1
        last = min(groups, max(last, first + 1))
        yield first, last
        first = last


def fit(likelihood: Singles, on: Atoms, replicates: int, rng: np.random.Generator) -> list[Floats]:
    """The prior of GPUs with this `likelihood` (gpus, atoms): weights of the atoms, of each of `replicates` refits.

    Without refits they are those of the fit itself.

    A maximum likelihood estimate is a few spikes, with which every interval would be too narrow: it is smoothed as a
    density of as many points as GPUs would be (B. W. Silverman's rule, 1986, on the estimate itself, so that a fleet
    without differences stays one). The other samples are those of the Bayesian bootstrap (D. B. Rubin, Annals of
    Statistics 9, 1981), in which each GPU keeps some weight: without it a prior would deny the one slow GPU of a
    fleet that is the evidence for it.
    """
    gpus, width = likelihood.shape
    sharp = _em(likelihood, np.full(width, 1.0 / width), np.ones((1, gpus)), _ITERATIONS)[0]
    smoothing = _smoothing(sharp, on, gpus)
    drawn = rng.exponential(size=(replicates, gpus))
    again = _em(likelihood, 0.9 * sharp + 0.1 / width, drawn, _RETURN)
    return [smoothing @ one for one in again] or [smoothing @ sharp]


def _em(likelihood: Singles, start: Floats, drawn: Floats, iterations: int) -> Floats:
    """(fits, atoms) the weights after EM from `start`, for each row of `drawn` (fits, gpus): how often a GPU counts.

    All fits take a step together, as each step reads the whole likelihood.
    """
    weights = np.repeat(start.astype(np.float32)[:, None], len(drawn), axis=1)
    counts = np.ascontiguousarray((drawn / drawn.sum(axis=1, keepdims=True)).astype(np.float32).T)
    going = np.arange(len(drawn))
    for _ in range(iterations):
        if not len(going):
            break
        before = weights[:, going]
        moved = _moved(likelihood, before, counts[:, going] if len(going) < len(drawn) else counts)
        weights[:, going] = moved
        going = going[np.abs(moved - before).sum(axis=0) >= _SETTLED]
    found: Floats = weights.T.astype(np.float64)
    found /= found.sum(axis=1, keepdims=True)
    return found


def _moved(likelihood: Singles, weights: Singles, counts: Singles) -> Singles:
    """One step of EM. `weights`: (atoms, fits); `counts`: (gpus, fits)."""
    rows = max(1, _ROWS // weights.size)
    share = np.zeros_like(weights)
    for first in range(0, len(likelihood), rows):
        part = likelihood[first : first + rows]
        share += part.T @ (counts[first : first + rows] / (part @ weights))
    moved: Singles = weights * share
    moved /= moved.sum(axis=0)
    return moved


def _smoothing(weights: Floats, on: Atoms, gpus: int) -> Floats:
    """(atoms, atoms): how the weight of each atom is spread over those around it."""
    low, high = quantiles(weights[None, :], on, np.array([0.25, 0.75]))[0]
    mean = float(weights @ on.at)
    sd = math.sqrt(float(weights @ (on.at - mean) ** 2))
    apart = np.abs(on.at[:, None] - on.at[None, :])
    # Where few GPUs are, their own runs say nearly all that is known.
    near = gpus * ((apart <= 2.0 * on.error) @ weights)
    width = np.maximum(0.9 * min(sd, (high - low) / 1.34) * gpus**-0.2, 2.0 * on.error / np.sqrt(near + 1e-3))
    width = np.clip(width, _LEAST_SMOOTHING * on.error, _MOST_SMOOTHING * on.error)
    kernel: Floats = np.exp(-0.5 * (apart / width[None, :]) ** 2)
    kernel /= kernel.sum(axis=0)
    return kernel


def quantiles(posterior: Floats, on: Atoms, probabilities: Floats) -> Floats:
    """Quantiles in log score, (gpus, probabilities), of `posterior` weights (gpus, atoms), level within a cell."""
    found = np.empty((len(posterior), len(probabilities)))
    rows = max(1, _BLOCK // len(on.at))
    for first in range(0, len(posterior), rows):
        reach = np.cumsum(posterior[first : first + rows], axis=1, dtype=np.float64)
        reach /= reach[:, -1:]
        place = _places(reach, probabilities)
        cell = place + len(on.at) * np.arange(len(reach))[:, None]
        line = reach.ravel()
        before = line.take(cell - 1, mode="wrap")
        before[place == 0] = 0.0
        inside = (probabilities - before) / np.maximum(line.take(cell) - before, 1e-300)
        np.clip(inside, 0.0, 1.0, out=inside)
        found[first : first + rows] = on.at.take(place) + on.step * (inside - 0.5)
    return found


def _places(reach: Floats, probabilities: Floats) -> Ints:
    """For each row of running totals that end at 1, the first place that reaches each probability (ascending)."""
    gpus, width = reach.shape
    # Below `low` no row has reached any of them, from `high` on every row has reached all.
    low = int((reach < probabilities[0]).all(axis=0).sum())
    high = min(width - 1, width - int((reach >= probabilities[-1]).all(axis=0).sum()))
    if high - low <= _NARROW:
        passed = np.zeros((len(probabilities), gpus), dtype=np.uint8)
        for one in np.ascontiguousarray(reach[:, low:high].T):
            passed += (one[None, :] < probabilities[:, None]).view(np.uint8)
        counted: Ints = low + passed.T.astype(np.intp)
        return counted
    line = (reach + np.arange(gpus)[:, None]).ravel()
    line[width - 1 :: width] = np.arange(1, gpus + 1)  # rounding must not lead into the next row
    wanted = (probabilities[None, :] + np.arange(gpus)[:, None]).ravel()
    at = np.searchsorted(line, wanted, side="left").reshape(gpus, len(probabilities))
    found: Ints = np.clip(at - np.arange(gpus)[:, None] * width, 0, width - 1)
    return found


def posteriors(likelihood: Singles, weights: Floats) -> Floats:
    """Each GPU's posterior weights of the atoms, (gpus, atoms)."""
    found = likelihood * weights
    found /= found.sum(axis=1, keepdims=True)
    return found


def mixed(likelihood: Singles, fits: list[Floats]) -> Floats:
    """The weights' mean posterior over refits, (gpus, atoms)."""
    found = np.zeros(likelihood.shape)
    for weights in fits:
        found += posteriors(likelihood, weights)
    return found / len(fits)


def centres(x: Floats, starts: Ints) -> Floats:
    """The median of each GPU's runs, whatever their order."""
    size = np.diff(starts)
    owner = np.repeat(np.arange(len(size)), size)
    return medians(x[np.lexsort((x, owner))], starts)
