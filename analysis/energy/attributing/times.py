"""Parts of time in which nobody comes or goes, of many GPUs at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..series import Ints, Times

_MINUTE_NS = 60_000_000_000
_MOST_MINUTES = 100_000  # of one GPU: longer times are looked at in coarser steps


@dataclass(frozen=True)
class Parts:
    """The parts of the time of each GPU, in order: nobody comes or goes within one."""

    gpu: Ints
    left: Times
    right: Times

    def __len__(self) -> int:
        return len(self.gpu)


Unknown = Mapping[int, tuple[Times, Times]]
"""By number of a GPU: from when to when jobs had GPUs of its node of which nobody knows which (both sorted)."""


def parts_of(
    gpu: Ints, began: Times, ended: Times, first: Times, last: Times, cuts: Times, unknown: Unknown
) -> tuple[Parts, Ints, Ints]:
    """The parts of time of all GPUs; and of each claim, the first part that it holds and the one after its last."""
    n = len(first)
    whose, edges = [np.arange(n), np.arange(n), gpu, gpu], [first, last, began, ended]
    for number, between in unknown.items():
        for one in between:
            whose.append(np.full(len(one), number))
            edges.append(np.clip(one, first[number], last[number]))
    of, bounds = np.concatenate(whose), np.concatenate(edges)
    if len(cuts):
        low, high = first.copy(), last.copy()
        np.minimum.at(low, of, bounds)
        np.maximum.at(high, of, bounds)
        after, upto = np.searchsorted(cuts, low, "right"), np.searchsorted(cuts, high, "left")
        number = np.maximum(upto - after, 0)
        cut = np.arange(number.sum()) + np.repeat(after - np.cumsum(number) + number, number)
        of, bounds = np.append(of, np.repeat(np.arange(n), number)), np.append(bounds, cuts[cut])
    order = np.lexsort((bounds, of))
    of, bounds = of[order], bounds[order]
    new = np.ones(len(of), bool)
    new[1:] = (of[1:] != of[:-1]) | (bounds[1:] != bounds[:-1])
    # The number of each bound, and of the part that begins there: each GPU has one part less than it has bounds.
    place = np.empty(len(of), np.int64)
    place[order] = np.cumsum(new) - 1 - of
    of, bounds = of[new], bounds[new]
    within = of[1:] == of[:-1]
    begins, ends = place[2 * n : 2 * n + len(gpu)], place[2 * n + len(gpu) : 2 * (n + len(gpu))]
    return Parts(of[1:][within], bounds[:-1][within], bounds[1:][within]), begins, ends


def minutes(times: Parts, first: Times, last: Times) -> Parts:
    """The times cut at full minutes, or more coarsely where the time of a GPU is very long."""
    step = np.maximum(_MINUTE_NS, (last - first) // _MOST_MINUTES)[times.gpu]
    before = times.left // step  # the last mark that is not after the begin
    number = -(-times.right // step) - before  # a part more than there are marks between begin and end
    of = np.repeat(np.arange(len(times)), number)
    within = np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number)
    marks = (before[of] + within) * step[of]
    ends = np.minimum(marks + step[of], times.right[of])
    return Parts(times.gpu[of], np.where(within == 0, times.left[of], marks), ends)


def cut_at(times: Parts, gpu: Ints, at: Times) -> Parts:
    """The times cut where these GPUs have a mark within one of theirs."""
    if not len(times) or not len(at):
        return times
    of, left = np.concatenate([times.gpu, gpu]), np.concatenate([times.left, at])
    mark = np.arange(len(of)) >= len(times)
    order = np.lexsort((mark, left, of))
    of, left, mark = of[order], left[order], mark[order]
    whole = np.cumsum(~mark) - 1  # the time that each lies in, if in any
    known = whole >= 0
    inside = known & (times.gpu[whole] == of) & (left < times.right[whole]) & (left > np.append(-1, left[:-1]))
    kept = ~mark | inside
    of, left, whole = of[kept], left[kept], whole[kept]
    right = times.right[whole]
    on = np.flatnonzero(whole[1:] == whole[:-1])
    right[on] = left[on + 1]
    return Parts(of, left, right)
