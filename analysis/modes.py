"""Whether the GPUs fall into more than one heap, and where the heaps are.

The units are GPU medians: the runs of one GPU are not independent. The dip test decides (5 % level; values
reported in steps are spread over their step first); only if it rejects one mode are the heaps looked for, with
the critical bandwidth of B. W. Silverman (J. R. Statist. Soc. B 43, 1981): a Gaussian kernel is narrowed until
the density has two modes that each hold at least 2 % of the GPUs and three of them, and the split is where the
density between them is lowest at half that bandwidth. Each part is tested again, and so on; a bump that the dip
test does not confirm is no mode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dip import Floats, dip, dip_p, spread_ties
from .dip_table import SIZES

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
    if n < SIZES[0]:
        return ModesTest(None, None, n, reason=f"fewer than {SIZES[0]} GPUs")
    if medians[0] == medians[-1]:
        return ModesTest(None, None, n, reason="every value is the same")
    smooth = spread_ties(medians, step)
    statistic = dip(smooth)
    return ModesTest(statistic, dip_p(statistic, n), n, tuple(_splits(smooth)))


def places(ordered: Floats, splits: tuple[float, ...]) -> list[dict[str, float | int]]:
    """Each mode of ascending values: its `median`, its `share` (0 to 1) and `n`; the first mode is the fastest."""
    cuts = [0, *np.searchsorted(ordered, splits).tolist(), len(ordered)]
    return [
        {"median": float(np.median(ordered[a:b])), "share": (b - a) / len(ordered), "n": b - a}
        for a, b in zip(cuts, cuts[1:], strict=False)
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
    cut = int(np.searchsorted(ordered, split))
    return [*_splits(ordered[:cut]), split, *_splits(ordered[cut:])]


def _antimode(ordered: Floats) -> float | None:
    """Where the density is lowest between the two modes that are last to merge, or None when none count."""
    n = len(ordered)
    smallest = max(SMALLEST_COUNT, math.ceil(SMALLEST_SHARE * n))
    # Fewer values than a mode needs cannot hold one, so a lone outlier must not stretch the grid.
    ends = ordered[[(smallest - 1) // 2, n - 1 - (smallest - 1) // 2]]
    width = float(ends[1] - ends[0])
    if not width > 0:
        return None
    edges = np.linspace(ends[0] - width / 4, ends[1] + width / 4, _GRID + 1)
    centres = (edges[:-1] + edges[1:]) / 2
    counts = np.histogram(ordered, edges)[0].astype(np.float64)
    frequency = np.fft.rfftfreq(2 * _GRID, d=float(edges[1] - edges[0]))
    transform = np.fft.rfft(counts, 2 * _GRID)

    def density(bandwidth: float) -> Floats:
        smoothed = np.fft.irfft(transform * np.exp(-2.0 * (math.pi * bandwidth * frequency) ** 2), 2 * _GRID)
        return smoothed[:_GRID]

    bandwidth = width / 2
    while bandwidth > width / 400:
        found = _two_modes(density(bandwidth), counts, smallest)
        if found is not None:
            narrow = density(bandwidth / 2)[found[0] : found[1] + 1]
            # Over an empty stretch the density is flat but for rounding: the middle of it.
            lowest = np.flatnonzero(narrow <= narrow.min() + 1e-9 * narrow.max())
            return float(centres[found[0] + int(lowest[len(lowest) // 2])])
        bandwidth *= 0.93
    return None


def _two_modes(density: Floats, counts: Floats, smallest: int) -> tuple[int, int] | None:
    """The grid places of two neighbouring modes that each hold `smallest` values, the deepest valley between."""
    rise = np.sign(np.diff(density))
    turns = np.flatnonzero(rise)  # flat steps take no side
    signs = rise[turns]
    peaks = turns[:-1][(signs[:-1] > 0) & (signs[1:] < 0)] + 1
    if len(peaks) < 2:
        return None
    valleys = [a + int(density[a:b].argmin()) for a, b in zip(peaks[:-1], peaks[1:], strict=True)]
    reach = np.concatenate(([0.0], np.cumsum(counts)))
    held = np.diff(reach[[0, *valleys, len(counts)]])
    # A part too small to be a mode belongs to the neighbour; between two that count lies the split.
    large = np.flatnonzero(held >= smallest)
    if len(large) < 2:
        return None
    pairs = [(int(peaks[a]), int(peaks[b])) for a, b in zip(large[:-1], large[1:], strict=True)]
    return min(pairs, key=lambda pair: float(density[pair[0] : pair[1]].min()))
