"""Whether values have more than one mode, and where the modes are; and Hartigan's dip, which says how sure that is.

The dip (J. A. Hartigan and P. M. Hartigan, "The Dip Test of Unimodality", Annals of Statistics 13, 1985) is
the smallest largest distance between the empirical distribution function and any distribution function that is
convex up to a mode and concave after it. Its null distribution is taken under the uniform, the least favourable
unimodal law, so that for every other unimodal law the test rejects too rarely rather than too often. It weighs a mode
by its share: one of less than about 15 % of 60 GPUs, 9 % of 170 or 6 % of 400 is not confirmed, however far away.

The modes themselves are parted by valleys: verdicts look for them in any case, a description of a fleet only where the
dip test rejects one mode (5 % level). Values that are reported in steps are spread over their step first, as rounding
alone would look like many modes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

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
    by_size = -1.0 / np.sqrt(sizes)  # ascending in n
    here = -1.0 / math.sqrt(n)
    row = np.array([np.interp(here, by_size, column) for column in values.T])
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


LEVEL = 0.05
_LEAST_MODE_GPUS = 16
"""With fewer values there are too few in a mode to tell it from chance."""
_MODE_SHARE, _MODE_NUMBER = 0.02, 4
"""Of the values: a smaller group is no mode."""
_GAP, _GAP_GPUS = 2.0, 32
"""An empty stretch that is so many times as wide as the inner 80 % of the larger side is a valley in any fleet of so
many: one mode, even with the tails of Student's t with 2 degrees of freedom, leaves one as wide once in 500 times at
most."""
_CENTRES, _WIDTHS = 240, 14
_MOST_CUTS = 4
CHANCE = 500
"""One sample of one mode in so many is said to have two."""
_DEPTHS = (16, 2.7), (32, 3.2), (64, 3.6), (128, 3.8), (256, 4.0), (1000, 3.6)
"""By the number of values, the depth that one uniform sample in `CHANCE` reaches; normal ones reach it less often."""


@dataclass(frozen=True)
class ModesTest:
    """The dip test of one mode against more, over `n` GPU medians, and the split points it led to."""

    dip: float | None
    p: float | None
    n: int
    splits: tuple[float, ...] = ()
    """Ascending, in the unit of the values; none when one mode is enough."""
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The row's JSON: dip, p, n, and reason when there is no test."""
        fields: dict[str, Any] = {"dip": self.dip, "p": self.p, "n": self.n}
        return fields if self.reason is None else {**fields, "reason": self.reason}


def modes_test(medians: Floats, step: float) -> ModesTest:
    """Test one median a GPU (ascending, any unit) for more than one mode.

    `step`: the step in which single values are reported (`quantum` of the runs), in the same unit. A p at
    the table's end (0.001) means at most that.
    """
    n = len(medians)
    if n < SMALLEST_N:
        return ModesTest(None, None, n, reason=f"fewer than {SMALLEST_N} GPUs")
    if medians[0] == medians[-1]:
        return ModesTest(None, None, n, reason="every value is the same")
    smooth = spread_ties(medians, step)
    statistic = dip(smooth)
    p = dip_p(statistic, n)
    return ModesTest(statistic, p, n, tuple(valleys(smooth, step)) if p < LEVEL else ())


def places(ordered: Floats, splits: tuple[float, ...]) -> list[dict[str, float | int]]:
    """Each mode of ascending values: its `median`, its `share` (0 to 1) and `n`; the first mode is the fastest."""
    cuts = [0, *np.searchsorted(ordered, splits).tolist(), len(ordered)]
    return [
        {"median": float(np.median(ordered[a:b])), "share": (b - a) / len(ordered), "n": b - a}
        for a, b in pairwise(cuts)
        if b > a
    ]


def modes(values: Floats, step: float = 0.0) -> npt.NDArray[np.int64]:
    """(n,) the mode of each finite value, from 0 for the lowest; all 0 where there is one. `step`: between readings.

    The test looks for a valley: a stretch with clearly fewer values than stretches of the same width on both sides of
    it. A population with one mode has none but by chance, whatever its skew and tails. How deep a valley chance makes
    was found by simulation of the uniform distribution, for which valleys are commonest.
    """
    return np.searchsorted(valleys(values, step), values)


def valleys(values: Floats, step: float = 0.0) -> list[float]:
    """The middles of the valleys that part the modes of `modes`, ascending."""
    cuts: list[float] = []
    parts = [(-np.inf, np.inf)]
    while parts and len(cuts) < _MOST_CUTS:
        low, high = parts.pop()
        cut = _valley(np.sort(values[(values > low) & (values <= high)]), step)
        if cut is not None:
            cuts.append(cut)
            parts += [(low, cut), (cut, high)]
    return sorted(cuts)


def _valley(x: Floats, step: float) -> float | None:
    """The middle of the deepest valley of ascending values, if chance makes one as deep once in `CHANCE` times at
    most."""
    n = len(x)
    if n < _LEAST_MODE_GPUS:
        return None
    few = max(_MODE_NUMBER, math.ceil(_MODE_SHARE * n))
    gap = _gap(x, few, step)
    if gap is not None:
        return gap
    # A handful at the far ends must not stretch the grid over an empty range.
    low, high = x[few - 1], x[-few]
    if not high > low:
        return None
    span = float(high - low)
    centres = np.linspace(low - 0.1 * span, high + 0.1 * span, _CENTRES)
    numbers, depths = zip(*_DEPTHS, strict=True)
    deepest = float(np.interp(np.log(n), np.log(numbers), depths)) - 1e-12
    valley = None
    for half in np.maximum(span * np.geomspace(0.01, 0.2, _WIDTHS), 1.5 * step):
        count = np.searchsorted(x, centres + half, side="right") - np.searchsorted(x, centres - half, side="left")
        apart = math.ceil(2 * half / (centres[1] - centres[0]))  # stretches beside each other do not overlap
        inner = np.arange(apart, _CENTRES - apart)
        if not len(inner):
            continue
        below_it, above_it = np.maximum.accumulate(count), np.maximum.accumulate(count[::-1])[::-1]
        beside = np.minimum(below_it[inner - apart], above_it[inner + apart])
        below = np.searchsorted(x, centres[inner])
        depth = np.where(np.minimum(below, n - below) >= few, np.sqrt(beside) - np.sqrt(count[inner]), -1.0)
        if depth.max() > deepest:
            deepest = float(depth.max())
            # The middle of the stretch of equal depth: the widest gap is cut in its middle.
            equal = np.flatnonzero(depth >= deepest - 1e-9)
            valley = float(centres[inner][equal[len(equal) // 2]])
    return valley


def _gap(x: Floats, few: int, step: float) -> float | None:
    """The middle of the widest empty stretch between groups of `few` of the ascending values or more, if it is a valley
    by itself."""
    if len(x) < max(_GAP_GPUS, 2 * few):
        return None
    gaps = np.diff(x)[few - 1 : len(x) - few]
    at = int(np.argmax(gaps)) + few - 1
    larger = x[: at + 1] if 2 * (at + 1) >= len(x) else x[at + 1 :]
    low, high = np.quantile(larger, (0.1, 0.9))
    if gaps[at - few + 1] <= _GAP * max(high - low, step) or high == low:
        return None
    return float(x[at] + x[at + 1]) / 2
