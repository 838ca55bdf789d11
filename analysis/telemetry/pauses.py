"""Where readings follow each other as usual, and where some are missing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BLOCK = 32  # intervals that tell what is usual
_NEXT = 8  # intervals after or before a long one that tell whether it is usual from or up to there


def near(
    times: Floats, known: NDArray[np.bool_], *, longest: float | Floats = 3.0, shortest_s: float = 1.0
) -> NDArray[np.bool_]:
    """By interval (n - 1,), whether the known readings around it are no gap apart. `times` (n,), s, increase.

    A gap is longer than `longest` usual intervals there (a number, or one by interval), and than `shortest_s`. What is
    usual is the median of the intervals around it, so that readings may come more often at one time than at another.
    """
    n = len(times)
    if n < 2:
        return np.ones(max(n - 1, 0), bool)
    if known.all():
        apart = np.diff(times)
    else:
        at = np.where(known, np.arange(n), -1)
        before = np.maximum.accumulate(at)[:-1]
        after = np.minimum.accumulate(np.where(known, np.arange(n), n)[::-1])[::-1][1:]
        apart = np.where((before < 0) | (after >= n), np.inf, times[np.minimum(after, n - 1)] - times[before])
    size = min(_BLOCK, len(apart))
    starts = np.minimum(np.arange(0, len(apart), size), len(apart) - size)
    around = np.sort(np.diff(times)[starts[:, None] + np.arange(size)], axis=1)
    usual = (around[:, (size - 1) // 2] + around[:, size // 2]) / 2  # the medians
    usual = np.repeat(usual, size)[: len(apart)]
    found: NDArray[np.bool_] = apart <= np.maximum(longest * usual, shortest_s)
    far = np.flatnonzero(~found)
    if len(far) and len(apart) >= _NEXT:  # where readings begin to come more rarely, or end to
        step = np.diff(times)
        most = np.broadcast_to(longest, len(apart))[far]
        for reach in (np.arange(_NEXT), -np.arange(_NEXT)):
            some = np.median(step[np.clip(far[:, None] + reach, 0, len(step) - 1)], axis=1)
            found[far] |= apart[far] <= most * some
    return found
