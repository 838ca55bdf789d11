"""Student's t for whole arrays, with any degrees of freedom: tail probabilities and quantiles.

The tail is the regularised incomplete beta function by its continued fraction, in Lentz's form. It keeps its relative
accuracy far out, where a heavy tail is a power of the value and no table reaches.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TERMS = 400  # of the continued fraction; some dozens are enough where it converges quickly
_CLOSE = 1e-12
_TINY = 1e-300
_HALVINGS = 100


def upper_tail(values: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """The probability that t with `freedom` degrees is above each of `values`; NaN where a value is NaN."""
    t, df = np.broadcast_arrays(np.asarray(values, float), np.asarray(freedom, float))
    with np.errstate(over="ignore", invalid="ignore"):
        inside = np.where(np.isinf(t), 0.0, df / (df + t * t))
    half = 0.5 * _beta(df / 2, inside)
    found: Floats = np.where(t >= 0, half, 1 - half)
    return found


def log_density(at: Floats, freedom: float) -> Floats:
    """The logarithm of the density of t with `freedom` degrees."""
    found: Floats = _log_norm(freedom) - (freedom + 1) / 2 * np.log1p(at**2 / freedom)
    return found


def quantile(tail: npt.ArrayLike, freedom: npt.ArrayLike) -> Floats:
    """The value above which t with `freedom` degrees is with probability `tail` (at most a half)."""
    share, df = np.broadcast_arrays(np.asarray(tail, float), np.asarray(freedom, float))
    if share.size == 1:
        return np.full(share.shape, _one_quantile(float(share.flat[0]), float(df.flat[0])))
    # Of many GPUs few differ in these.
    kinds, which = np.unique(np.stack([share.ravel(), df.ravel()]), axis=1, return_inverse=True)
    return _quantiles(*kinds)[which].reshape(share.shape)


@lru_cache(maxsize=10_000)
def _one_quantile(tail: float, freedom: float) -> float:
    """It takes milliseconds, and each finding of a fleet asks for one, of few different degrees of freedom."""
    return float(_quantiles(np.array([tail]), np.array([freedom]))[0])


def _quantiles(share: Floats, df: Floats) -> Floats:
    """Newton's method over the logarithm of the tail, halving the interval where a step would leave it."""
    low, high = np.zeros_like(df), np.full_like(df, 1.0)
    while (above := upper_tail(high, df) > share).any():
        low, high = np.where(above, high, low), np.where(above, 2 * high, high)
    at = low
    norm = np.array([_log_norm(one) for one in df])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        for _ in range(_HALVINGS):
            tail = upper_tail(at, df)
            low, high = np.where(tail > share, at, low), np.where(tail > share, high, at)
            density = np.exp(norm - (df + 1) / 2 * np.log1p(at**2 / df))
            after = at + np.log(tail / share) * tail / density
            after = np.where((low <= after) & (after <= high), after, (low + high) / 2)
            moved, at = np.abs(after - at), after
            if float(np.max(moved, initial=0.0)) <= _CLOSE * float(np.max(at, initial=1.0)):
                break
    return at


def _log_norm(freedom: float) -> float:
    """The logarithm of the density of t with `freedom` degrees at 0."""
    return math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)


def _beta(a: Floats, x: Floats) -> Floats:
    """The regularised incomplete beta function I_x(a, 1/2)."""
    shape = x.shape
    a, x = a.ravel(), x.ravel()
    found = np.where(x >= 1, 1.0, np.where(x <= 0, 0.0, np.nan))
    for todo, turned in ((x <= (a + 1) / (a + 2.5), False), (x > (a + 1) / (a + 2.5), True)):
        of = np.flatnonzero(todo & (x > 0) & (x < 1))
        if not len(of):
            continue
        half = np.full(len(of), 0.5)
        left, right, at = (half, a[of], 1 - x[of]) if turned else (a[of], half, x[of])
        gammas = {value: math.lgamma(value + 0.5) - math.lgamma(value) for value in np.unique(a[of])}
        front = np.array([gammas[value] for value in a[of]]) - math.lgamma(0.5)
        front = np.exp(front + left * np.log(at) + right * np.log1p(-at))
        part = front / left * _fraction(left, right, at)
        found[of] = 1 - part if turned else part
    table: Floats = found.reshape(shape)
    return table


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    def kept(value: Floats) -> Floats:
        return np.where(np.abs(value) > _TINY, value, _TINY)

    c = np.ones_like(x)
    d = 1 / kept(1 - (a + b) * x / (a + 1))
    found = d.copy()
    for m in range(1, _TERMS):
        for top in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / kept(1 + top * d)
            c = kept(1 + top / c)
            found = found * d * c
        if np.all(np.abs(d * c - 1) < _CLOSE):
            break
    return found
