"""Groups of GPUs that nobody recorded: a second mode among the levels, such as another board revision.

The test looks for a valley: a stretch with clearly fewer GPUs than stretches of the same width on both sides of it. A
population with one mode has none but by chance, whatever its skew and tails. How deep a valley chance makes was found
by simulation of the uniform distribution, for which valleys are commonest. `benchmarks/verdicts.py` measures how often
the test is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..runs.sittings import Floats, Ints

LEAST_GPUS = 16
"""With fewer there are too few in a mode to tell it from chance."""
LEAST_SHARE, LEAST_NUMBER = 0.02, 4
"""Of the GPUs: a smaller group is no group."""
_GAP, _GAP_GPUS = 2.0, 32
"""An empty stretch that is so many times as wide as the inner 80 % of the larger side is a valley in any fleet of so
many: one mode, even with the tails of Student's t with 2 degrees of freedom, leaves one as wide once in 500 times at
most."""
_CENTRES, _WIDTHS = 240, 14
_MOST_CUTS = 4
CHANCE = 500
"""One sample of one mode in so many is said to have two."""
_DEPTHS = (16, 2.7), (32, 3.2), (64, 3.6), (128, 3.8), (256, 4.0), (1000, 3.6)
"""By the number of GPUs, the depth that one uniform sample in `CHANCE` reaches; normal ones reach it less often."""


@dataclass(frozen=True)
class Valley:
    """The deepest valley of a sample."""

    at: float
    """Its middle, in the unit of the values."""
    depth: float
    """sqrt(GPUs in the smaller mode's stretch) - sqrt(GPUs in the valley's)."""

    clear: bool
    """Whether chance makes one as deep once in `CHANCE` times at most."""


def valley(values: Floats, step: float = 0.0) -> Valley | None:
    """The deepest valley of `values` (finite); None for too few, and if there is none. `step`: between readings."""
    n = len(values)
    if n < LEAST_GPUS:
        return None
    x = np.sort(values)
    few = max(LEAST_NUMBER, int(np.ceil(LEAST_SHARE * n)))
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
    needed = np.interp(np.log(n), np.log(numbers), depths)
    best: Valley | None = None
    for half in np.maximum(span * np.geomspace(0.01, 0.2, _WIDTHS), 1.5 * step):
        count = np.searchsorted(x, centres + half, side="right") - np.searchsorted(x, centres - half, side="left")
        apart = int(np.ceil(2 * half / (centres[1] - centres[0])))  # stretches beside each other do not overlap
        left = np.maximum.accumulate(count)
        right = np.maximum.accumulate(count[::-1])[::-1]
        inner = np.arange(apart, _CENTRES - apart)
        if not len(inner):
            continue
        beside = np.minimum(left[inner - apart], right[inner + apart])
        at = centres[inner]
        below = np.searchsorted(x, at)
        depth = np.where(np.minimum(below, n - below) >= few, np.sqrt(beside) - np.sqrt(count[inner]), -1.0)
        top = int(np.argmax(depth))
        if depth[top] > 0 and (best is None or depth[top] > best.depth):
            # The middle of the stretch of equal depth: the widest gap is cut in its middle.
            equal = np.flatnonzero(depth >= depth[top] - 1e-9)
            best = Valley(float(at[equal[len(equal) // 2]]), float(depth[top]), bool(depth[top] >= needed))
    return best


def _gap(x: Floats, few: int, step: float) -> Valley | None:
    """The widest empty stretch between groups of `few` of the ascending values or more, if it is a valley by itself."""
    if len(x) < max(_GAP_GPUS, 2 * few):
        return None
    gaps = np.diff(x)[few - 1 : len(x) - few]
    at = int(np.argmax(gaps)) + few - 1
    larger = x[: at + 1] if 2 * (at + 1) >= len(x) else x[at + 1 :]
    low, high = np.quantile(larger, (0.1, 0.9))
    if gaps[at - few + 1] <= _GAP * max(high - low, step) or high == low:
        return None
    return Valley(float(x[at] + x[at + 1]) / 2, np.inf, True)


def modes(values: Floats, step: float = 0.0) -> Ints:
    """The mode of each value, from 0 for the lowest; all 0 where there is one."""
    found = np.zeros(len(values), dtype=np.int64)
    cuts: list[float] = []
    parts = [(-np.inf, np.inf)]
    while parts and len(cuts) < _MOST_CUTS:
        low, high = parts.pop()
        deepest = valley(values[(values > low) & (values <= high)], step)
        if deepest is not None and deepest.clear:
            cuts.append(deepest.at)
            parts += [(low, deepest.at), (deepest.at, high)]
    for cut in cuts:
        found += values > cut
    return found
