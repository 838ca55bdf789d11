"""A Gaussian process over settings that are scaled to [0, 1]: what a few noisy trials say of all other settings.

Kernel Matérn 5/2 with a length for each axis (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
section 4.2.1). The lengths are chosen from a short list by the marginal likelihood of the trials, with a weak
preference for the middle of the list; the amplitude has a closed form. There is no optimiser that could fail.
"""

from __future__ import annotations

from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]

LENGTHS = (0.3, 0.8, 2.0)
"""Distances, as shares of a knob's range, over which a value stays alike: short, middle, long."""
MOST_OWN_LENGTHS = 6
"""With more axes than this all axes share one length: 3^7 combinations cost more than they tell."""
_PREFERENCE = 0.15
_LEAST_AMPLITUDE = 0.3
_LEAST_NOISE = 1e-5
_LEAST_SD = 1e-3


class Process:
    """A Gaussian process with a constant mean and a stated noise.

    `noise` is the standard deviation of one value, in the unit of the values: for logarithms, the relative noise.
    """

    def __init__(self, noise: float = 0.01) -> None:
        self.noise = noise

    def fit(self, points: FloatArray, values: FloatArray, noise: FloatArray | None = None) -> Process:
        """Learn from points (n, d) in [0, 1], d at least 1, and their values (n,); returns itself.

        `noise` (n,) is the standard deviation of each value, where they differ. Afterwards `misfit` is minus the
        logarithm of how probable the values are, up to a constant: of two noises, the better one has the lower misfit.
        """
        self._points = points
        self._mean = float(values.mean())
        self._sd = max(float(values.std()), _LEAST_SD)
        targets = (values - self._mean) / self._sd
        own_noise = np.full(len(values), self.noise) if noise is None else noise
        noise_variance = np.maximum((own_noise / self._sd) ** 2, _LEAST_NOISE)

        lengths = _length_combinations(points.shape[1])
        squares = (points[:, None, :] - points[None, :, :]) ** 2
        covariance = _matern(squares @ (lengths**-2).T).transpose(2, 0, 1) + np.diag(noise_variance)
        roots = np.linalg.cholesky(covariance)  # (combinations, n, n)
        whitened = np.linalg.solve(roots, np.broadcast_to(targets[:, None], (len(roots), len(values), 1)))[..., 0]
        fits = (whitened**2).sum(1)
        amplitude = np.maximum((fits + 1) / (len(values) + 1), _LEAST_AMPLITUDE)
        misfit = (
            len(values) / 2 * np.log(amplitude)
            + fits / (2 * amplitude)
            + np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
            + _PREFERENCE * np.abs(np.log(lengths / LENGTHS[1])).sum(1)
        )
        best = int(misfit.argmin())
        self.misfit = float(misfit[best])
        self.lengths = lengths[best]
        self._amplitude = float(amplitude[best])
        self._root = roots[best]
        self._weights = np.linalg.solve(self._root.T, whitened[best])
        return self

    def predict(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean (m,) and standard deviation (m,) of the noiseless value at points (m, d), in the unit of the values."""
        scaled = (points[:, None, :] - self._points[None, :, :]) ** 2 @ self.lengths**-2
        cross = _matern(scaled)
        explained = (np.linalg.solve(self._root, cross.T) ** 2).sum(0)
        sd = np.sqrt(self._amplitude * np.maximum(1 - explained, 1e-9))
        return self._mean + self._sd * (cross @ self._weights), self._sd * sd


def _length_combinations(axes: int) -> FloatArray:
    """Length vectors (combinations, axes) to choose from."""
    if axes > MOST_OWN_LENGTHS:
        return np.array([[length] * axes for length in LENGTHS])
    return np.array(list(product(LENGTHS, repeat=axes)))


def _matern(squared_distances: FloatArray) -> FloatArray:
    """Matérn 5/2 correlation from squared distances in units of the lengths."""
    root = np.sqrt(5 * squared_distances)
    return np.asarray((1 + root + root**2 / 3) * np.exp(-root))
