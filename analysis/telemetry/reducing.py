"""A line with fewer points that looks the same: of each stretch of time the first, lowest, highest and last reading.

These four at their own times draw what all readings would draw at that width (M4: Jugel et al., VLDB 2014). So a spike
of a single reading stays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .readings import Bools, Floats, Series, Times

Places = NDArray[np.intp]

PER_STRETCH = 4
FEWEST = 2 * 3 * PER_STRETCH - 1  # dots and the gaps between them, of the two stretches that 1970 parts at any width


def reduced(series: Series, width_ns: int, most: int | None, dot_ns: int) -> tuple[Times, Floats]:
    """The points of a line, `most` at most (FEWEST if it is less): when (ns), and the value, NaN between two pieces
    that a gap parts.

    All readings if they are few enough; else those that stretches of `width_ns` keep, or wider ones where gaps
    make too many pieces. Without `most`, those that stretches of `width_ns` keep. A reading between two gaps is drawn
    as a dot: a line that is `dot_ns` long.
    """
    if most is None:
        return drawn(series, kept(series.ts, series.value, width_ns), dot_ns)
    most = max(most, FEWEST)
    places: Places = np.arange(len(series.ts))
    while True:
        if len(places) <= most:
            ts, value = drawn(series, places, dot_ns)
            if len(ts) <= most:
                return ts, value
        places = kept(series.ts, series.value, width_ns)
        width_ns *= 2


def kept(ts: Times, value: Floats, width_ns: int) -> Places:
    """The places of the first, lowest, highest and last reading of each stretch of time. Stretches begin at multiples
    of `width_ns` since 1970."""
    if not len(ts):
        return np.zeros(0, np.intp)
    stretch = ts // width_ns
    first = np.concatenate([[0], np.flatnonzero(np.diff(stretch)) + 1])
    last = np.append(first[1:], len(ts)) - 1
    number = np.repeat(np.arange(len(first)), last - first + 1)
    both = []
    for extreme in (np.minimum, np.maximum):
        at = np.flatnonzero(value == extreme.reduceat(value, first)[number])
        of = number[at]
        both.append(at[np.append(True, of[1:] != of[:-1])])  # the first of equal ones
    return np.unique(np.concatenate([first, last, *both]))


def drawn(series: Series, places: Places, dot_ns: int) -> tuple[Times, Floats]:
    """The points at these places, with NaN where a gap lies between two."""
    ts, value = series.ts[places], series.value[places]
    if not len(ts):
        return ts, value
    parted = _parted(series.near, places)
    begins, ends = np.append(True, parted), np.append(parted, True)
    alone = begins & ends
    gap = np.append(parted, False)
    times = 1 + alone + gap
    place = np.repeat(np.arange(len(ts)), times)
    after = np.cumsum(times)
    room = np.append(np.diff(ts), 2 * dot_ns)
    following = ts[np.flatnonzero(gap) + 1]
    ts, value = ts[place], value[place]
    dots = after[alone] - 1 - gap[alone]
    ts[dots] += np.minimum(dot_ns, room[alone] // 2)
    value[after[gap] - 1] = np.nan
    ts[after[gap] - 1] = following - 1  # it belongs to what follows: a line that is read on from there has it
    return ts, value


def _parted(near: Bools, places: Places) -> Bools:
    """Whether a gap lies between a place and the next one."""
    gaps = np.concatenate([[0], np.cumsum(~near)])
    found: Bools = gaps[places[1:]] > gaps[places[:-1]]
    return found
