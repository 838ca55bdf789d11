"""Whether the GPUs' medians have more than one mode, and where the modes are.

The units are GPU medians: the runs of one GPU are not independent. The dip test decides (5 % level; values
reported in steps are spread over their step first); only if it rejects one mode are the modes searched, with
the critical bandwidth of B. W. Silverman (J. R. Statist. Soc. B 43, 1981): a Gaussian kernel is narrowed until
the density has two modes that each hold at least 2 % of the GPUs and three of them, and the split is where the
density between them is lowest. Each part is tested again, and so on; a bump that the dip test does not confirm is
no mode, and neither are two parts that together pass for one.

The dip weighs a mode by its share. However far away, one of less than about 15 % of 60 GPUs, 9 % of 170 or 6 % of
400 is not confirmed, and a near one needs more; such GPUs are then in the lists of outliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .dip import SMALLEST_N, Floats, dip, dip_p, spread_ties

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

    `step`: the step in which single values are reported (`dip.quantum` of the runs), in the same unit. A p at
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
