"""Student's t for whole arrays, with any degrees of freedom: tail probabilities, quantiles, densities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]


def upper_tail(values: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """The probability that t with `freedom` degrees is above each of `values`; NaN where a value is NaN.

    It keeps its relative accuracy far out, where a heavy tail is a power of the value.
    """
    return np.asarray(special.stdtr(freedom, -np.asarray(values, float)))


def quantile(tail: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """The value above which t with `freedom` degrees is with probability `tail` (at most a half)."""
    return np.asarray(-special.stdtrit(freedom, tail))


def log_density(values: Floats, freedom: float) -> Floats:
    """The logarithm of the density of t with `freedom` degrees."""
    constant = special.gammaln((freedom + 1) / 2) - special.gammaln(freedom / 2) - np.log(freedom * np.pi) / 2
    return np.asarray(constant - (freedom + 1) / 2 * np.log1p(values**2 / freedom))
