"""Whether the GPUs' medians have more than one mode, and where the modes are; and Hartigan's dip, which decides it.

The dip (J. A. Hartigan and P. M. Hartigan, "The Dip Test of Unimodality", Annals of Statistics 13, 1985) is
the smallest largest distance between the empirical distribution function and any distribution function that is
convex up to a mode and concave after it. Its null distribution is taken under the uniform, the least favourable
unimodal law, so that for every other unimodal law the test rejects too rarely rather than too often.

The units are GPU medians: the runs of one GPU are not independent. The dip test decides (5 % level; values
reported in steps are spread over their step first, as rounding alone would look like many modes); only if it rejects
one mode are the modes searched, with the critical bandwidth of B. W. Silverman (J. R. Statist. Soc. B 43, 1981): a
Gaussian kernel is narrowed until the density has two modes that each hold at least 2 % of the GPUs and three of them,
and the split is where the density between them is lowest. Each part is tested again, and so on; a bump that the dip
test does not confirm is no mode, and neither are two parts that together pass for one.

The dip weighs a mode by its share. However far away, one of less than about 15 % of 60 GPUs, 9 % of 170 or 6 % of
400 is not confirmed, and a near one needs more; such GPUs are then in the lists of outliers.
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


LEVEL = 0.05
SMALLEST_SHARE = 0.02
SMALLEST_COUNT = 3
_GRID = 2048


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
        found: dict[str, Any] = {"dip": self.dip, "p": self.p, "n": self.n}
        return found if self.reason is None else {**found, "reason": self.reason}


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
    return ModesTest(statistic, dip_p(statistic, n), n, tuple(_confirmed(smooth, _splits(smooth))))


def places(ordered: Floats, splits: tuple[float, ...]) -> list[dict[str, float | int]]:
    """Each mode of ascending values: its `median`, its `share` (0 to 1) and `n`; the first mode is the fastest."""
    cuts = [0, *np.searchsorted(ordered, splits).tolist(), len(ordered)]
    return [
        {"median": float(np.median(ordered[a:b])), "share": (b - a) / len(ordered), "n": b - a}
        for a, b in pairwise(cuts)
        if b > a
    ]


def _splits(ordered: Floats) -> list[float]:
    """The points that part the values into pieces of one mode each."""
    n = len(ordered)
    if n < 2 * SMALLEST_COUNT or ordered[0] == ordered[-1] or dip_p(dip(ordered), n) >= LEVEL:
        return []
    split = _antimode(ordered)
    if split is None:
        return []
    # A split inside the flank of a mode would leave a part whose cut edge looks like another mode.
    (split,) = _refined(ordered, [split])
    cut = int(np.searchsorted(ordered, split))
    return [*_splits(ordered[:cut]), split, *_splits(ordered[cut:])]


def _antimode(ordered: Floats) -> float | None:
    """Where the density is lowest between the two modes that are last to merge, or None when none count."""
    n = len(ordered)
    smallest = max(SMALLEST_COUNT, math.ceil(SMALLEST_SHARE * n))
    # Fewer values than a mode needs cannot hold one, so a lone outlier must not stretch the grid.
    low, high = ordered[[(smallest - 1) // 2, n - 1 - (smallest - 1) // 2]]
    width = float(high - low)
    if not width > 0:
        return None
    smooth = _Smooth(ordered, float(low) - width / 4, float(high) + width / 4)
    bandwidth = width / 2
    while bandwidth > width / 400:
        found = _two_modes(smooth.density(bandwidth), smooth.counts, smallest)
        if found is not None:
            return smooth.lowest(bandwidth / 2, *found)
        bandwidth *= 0.93
    return None


class _Smooth:
    """The Gaussian kernel density of the values in an interval, on a grid."""

    def __init__(self, ordered: Floats, low: float, high: float) -> None:
        edges = np.linspace(low, high, _GRID + 1)
        self.centres = (edges[:-1] + edges[1:]) / 2
        self.counts = np.histogram(ordered, edges)[0].astype(np.float64)
        # As much again of zeros, so that the circular convolution does not wrap round.
        self._frequency = np.fft.rfftfreq(2 * _GRID, d=float(edges[1] - edges[0]))
        self._transform = np.fft.rfft(self.counts, 2 * _GRID)

    def density(self, bandwidth: float) -> Floats:
        kernel = np.exp(-2.0 * (math.pi * bandwidth * self._frequency) ** 2)
        found: Floats = np.fft.irfft(self._transform * kernel, 2 * _GRID)[:_GRID]
        return found

    def lowest(self, bandwidth: float, start: int, stop: int) -> float:
        """Where the density is lowest between two places of the grid; the middle of an empty stretch."""
        density = self.density(bandwidth)[start : stop + 1]
        # There it is flat but for rounding.
        lowest = np.flatnonzero(density <= density.min() + 1e-9 * density.max())
        return float(self.centres[start + int(lowest[len(lowest) // 2])])


def _confirmed(ordered: Floats, splits: list[float]) -> list[float]:
    """The splits, refined, without those whose two parts together pass for one mode."""
    while splits:
        splits = _refined(ordered, splits)
        cuts = [0, *np.searchsorted(ordered, splits).tolist(), len(ordered)]
        unions = [ordered[a:b] for a, b in zip(cuts, cuts[2:], strict=False)]
        p = [dip_p(dip(union), len(union)) for union in unions]
        if max(p) < LEVEL:
            break
        splits.pop(p.index(max(p)))
    return splits


def _refined(ordered: Floats, splits: list[float]) -> list[float]:
    """The splits moved to the lowest density between the medians of the parts that they separate.

    The bandwidth that shows two modes at all is too wide for a small one beside a large. Here it is that of
    the narrower part, by the rule of thumb 0.9 min(sd, IQR/1.34) n^(-1/5) (Silverman 1986, section 3.4).
    """
    cuts = [0, *np.searchsorted(ordered, splits).tolist(), len(ordered)]
    parts = [ordered[a:b] for a, b in pairwise(cuts)]
    found = []
    for split, (left, right) in zip(splits, pairwise(parts), strict=True):
        low, high = float(np.median(left)), float(np.median(right))
        width = high - low
        bandwidth = min(
            0.9
            * min(float(part.std()), float(np.subtract(*np.quantile(part, (0.75, 0.25)))) / 1.34)
            * len(part) ** -0.2
            for part in (left, right)
        )
        smooth = _Smooth(ordered, low - width / 4, high + width / 4)
        start, stop = np.searchsorted(smooth.centres, (low, high))
        found.append(smooth.lowest(max(bandwidth, width / 400), int(start), int(stop)) if width > 0 else split)
    return found


def _two_modes(density: Floats, counts: Floats, smallest: int) -> tuple[int, int] | None:
    """The grid places of two neighbouring modes that each hold `smallest` values, the deepest valley between."""
    rise = np.sign(np.diff(density))
    turns = np.flatnonzero(rise)  # flat steps take no side
    signs = rise[turns]
    peaks = turns[:-1][(signs[:-1] > 0) & (signs[1:] < 0)] + 1
    if len(peaks) < 2:
        return None
    valleys = [a + int(density[a:b].argmin()) for a, b in pairwise(peaks)]
    reach = np.concatenate(([0.0], np.cumsum(counts)))
    held = np.diff(reach[[0, *valleys, len(counts)]])
    # A part too small to be a mode belongs to the neighbour; between two that count lies the split.
    large = np.flatnonzero(held >= smallest)
    if len(large) < 2:
        return None
    pairs = [(int(peaks[a]), int(peaks[b])) for a, b in pairwise(large)]
    return min(pairs, key=lambda pair: float(density[pair[0] : pair[1]].min()))
