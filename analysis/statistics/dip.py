"""Hartigan's dip: how far a sample is from every distribution with one mode, and how unusual that is.

The dip (J. A. Hartigan and P. M. Hartigan, "The Dip Test of Unimodality", Annals of Statistics 13, 1985) is
the smallest largest distance between the empirical distribution function and any distribution function that is
convex up to a mode and concave after it. Its null distribution is taken under the uniform, the least favourable
unimodal law, so that for every other unimodal law the test rejects too rarely rather than too often.

Ties: a value reported in steps is not a heap of atoms but an interval one step wide. `spread_ties` puts tied
values evenly into that interval before the test; otherwise rounding alone would look like many modes.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

SMALLEST_N = 4
"""The fewest values that can be tested: the first row of the table."""
SMALLEST_P = 0.001
"""The smallest p-value that the table can state; a dip beyond the table has at most this."""


class Quantiles(NamedTuple):
    """Simulated quantiles of sqrt(n) * dip under the uniform distribution."""

    sizes: Floats
    """The values of n. Shape (rows,), ascending."""
    probabilities: Floats
    """Shape (columns,), ascending."""
    values: Floats
    """Shape (rows, columns)."""


@cache
def quantiles() -> Quantiles:
    """The table `dip_quantiles.csv`."""
    lines = Path(__file__).with_name("dip_quantiles.csv").read_text(encoding="utf-8").splitlines()
    header, *rows = [line.split(",") for line in lines if not line.startswith("#")]
    table = np.array(rows, dtype=np.float64)
    return Quantiles(table[:, 0], np.array(header[1:], dtype=np.float64), table[:, 1:])


def dip(values: Floats) -> float:
    """The dip of a sample, between 1/(2n) and 1/4.

    `values`: sorted ascending, at least one. Ties are taken as atoms (see `spread_ties`). Follows the algorithm
    of section 5 of the paper; the hulls are found by splitting at the farthest point, so that the cost is near
    n log n without a Python step for each value.
    """
    n = len(values)
    first = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    x = values[first]
    below = first.astype(np.float64)  # n times the distribution function just before each distinct value
    at = np.concatenate((below[1:], [float(n)]))  # and at the value
    largest = 1.0
    low, high = 0, len(x) - 1
    while high > low:
        # The convex minorant passes through the feet of the steps, the concave majorant through their heads.
        under = _hull(x, below, low, high)
        over = _hull(x, -at, low, high)
        gap_under = np.interp(x[under], x[over], at[over]) - below[under]
        gap_over = at[over] - np.interp(x[over], x[under], below[under])
        if max(gap_under.max(), gap_over.max()) <= largest:
            break
        if gap_under.max() >= gap_over.max():
            new_low = int(under[gap_under.argmax()])
            new_high = int(over[np.searchsorted(over, new_low)])
        else:
            new_high = int(over[gap_over.argmax()])
            new_low = int(under[np.searchsorted(under, new_high, side="right") - 1])
        left = slice(low, new_low + 1)
        right = slice(new_high, high + 1)
        largest = max(
            largest,
            float((at[left] - np.interp(x[left], x[under], below[under])).max()),
            float((np.interp(x[right], x[over], at[over]) - below[right]).max()),
        )
        if (new_low, new_high) == (low, high):
            break
        low, high = new_low, new_high
    return largest / (2.0 * n)


def _hull(x: Floats, y: Floats, low: int, high: int) -> Ints:
    """The corners of the greatest convex minorant of the points (x, y) from `low` to `high`: sorted positions."""
    corners = [low, high]
    spans = [(low, high)]
    # Rounding must not make a corner of a point that lies on the chord; y counts whole values.
    while spans:
        i, j = spans.pop()
        if j - i < 2:
            continue
        slope = (y[j] - y[i]) / (x[j] - x[i])
        distance = (y[i + 1 : j] - y[i]) - slope * (x[i + 1 : j] - x[i])
        k = int(distance.argmin())
        if distance[k] < -1e-9:
            corner = i + 1 + k
            corners.append(corner)
            spans += ((i, corner), (corner, j))
    return np.sort(np.asarray(corners, dtype=np.intp))


def dip_p(statistic: float, n: int) -> float:
    """The probability of a dip at least this large in `n` values of a uniform distribution.

    Read from the simulated quantiles of sqrt(n) * dip, linear in the quantile and in 1/sqrt(n)
    between the sizes; past the largest size the largest is used, where sqrt(n) * dip has settled. Never below
    `SMALLEST_P`, which means "at most".
    """
    if n < SMALLEST_N:
        raise ValueError(f"the dip test needs at least {SMALLEST_N} values, not {n}")
    sizes, probabilities, values = quantiles()
    where = -1.0 / np.sqrt(sizes)  # ascending in n
    here = -1.0 / math.sqrt(n)
    row = np.array([np.interp(here, where, column) for column in values.T])
    scaled = math.sqrt(n) * statistic
    # The least possible dip, 1/(2n), is common among few values: all of it counts as "at least this large".
    p = 1.0 if scaled <= row[0] + 1e-12 else 1.0 - float(np.interp(scaled, row, probabilities))
    return max(round(p, 9), SMALLEST_P)


def quantum(values: Floats) -> float:
    """The step in which values are reported: the smallest gap between two different ones, in their unit.

    `values`: sorted ascending. Gaps below 1e-9 of the largest magnitude are rounding, not steps. 0 when all are
    equal.
    """
    if len(values) == 0:
        return 0.0
    gaps = np.diff(values)
    real = gaps[gaps > 1e-9 * float(np.abs(values[[0, -1]]).max())]
    return float(real.min()) if len(real) else 0.0


def spread_ties(values: Floats, step: float) -> Floats:
    """Sorted values with each heap of ties laid out evenly over one `step` around it, sorted again.

    A value without a tie stays where it is, so continuous data, whose step is minute, do not change.
    """
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    counts = np.diff(np.append(starts, len(values)))
    place = np.arange(len(values)) - np.repeat(starts, counts)
    return np.sort(values + step * ((place + 0.5) / np.repeat(counts, counts) - 0.5))
