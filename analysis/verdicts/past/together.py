"""What many GPUs do together: a day on which all are slower, a step at a new driver. Arrays in, arrays out.

It is taken out before a GPU is compared with its own past. So a driver that costs every GPU 3 % is one finding, and a
GPU that changed beside it is still seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...runs.sittings import Bools, Floats, Ints
from ...statistics.student import quantile, upper_tail
from ..levels import RELEVANT
from ..sittings import Sittings, groups_median, spread

CERTAIN = 1e-3
"""The p below which something that the GPUs share is a finding."""

_GPUS, _NODES = 8, 3  # that a day's common effect is taken from, at least
_TURN_GPUS, _TURN_NODES = 4, 2  # that changed their driver alike, at least
_SAMPLE = 3000  # series are enough to know what they share
_POLISH = 4
_MEDIAN = 1.2533  # the standard error of a median, in that of a mean
_CONFIDENCE = 0.025
_LEAST_SE = 1e-5


@dataclass(frozen=True)
class Common:
    """A common effect, in logarithms."""

    effect: float
    low: float
    high: float
    p: float
    series: Ints
    """Those that show it."""
    began: float
    """The first sitting with it, in days; and the last one without it before that."""
    before: float
    lasts: bool
    """Whether it was still there at the end."""
    what: tuple[int, int] | None = None
    """From which regime to which, where it is one of a driver or firmware."""


def turns(of: Sittings, regime: Ints, node: Ints) -> tuple[list[Common], Floats]:
    """Steps where series change from one regime (driver and firmware) to another, and the effect on every sitting.

    `regime`: (sittings,), -1 where unknown. `node`: (series,), -1 where unknown.
    """
    none = np.zeros(len(of))
    pair = np.flatnonzero((np.diff(of.series) == 0) & (np.diff(regime) != 0) & (regime[1:] >= 0) & (regime[:-1] >= 0))
    if not len(pair):
        return [], none
    # What other GPUs did at the same time is no effect of the driver.
    same = np.flatnonzero((np.diff(of.series) == 0) & (np.diff(regime) == 0))
    kinds, which = np.unique(np.stack([regime[pair], regime[pair + 1]]), axis=1, return_inverse=True)
    which = which.reshape(-1)
    found = []
    for kind in range(kinds.shape[1]):
        mine = pair[which == kind]
        began, before = float(of.at[mine + 1].min()), float(of.at[mine].max())
        beside = same[(of.at[same] <= of.at[mine].max()) & (of.at[same + 1] >= began)]
        moves = of.value[mine + 1] - of.value[mine]
        if len(beside) >= _GPUS:
            moves = moves - float(np.median(of.value[beside + 1] - of.value[beside]))
        nodes = node[of.series[mine]]
        if len(np.unique(of.series[mine])) < _TURN_GPUS or len(np.unique(nodes)) < _TURN_NODES <= 1 + (nodes[0] >= 0):
            continue
        effect, se, df = _shared(moves, nodes)
        p = min(1.0, 2 * float(upper_tail(abs(effect) / se, df)))
        reach = se * float(quantile(_CONFIDENCE, df))
        if p > _CONFIDENCE * 2:
            continue
        old, new = (int(one) for one in kinds[:, kind])
        # From a GPU's first sitting under the new regime on.
        after = np.zeros(len(of))
        np.add.at(after, mine + 1, effect)
        total = np.cumsum(after)
        none += total - (total - after)[of.first[of.series]]
        found.append(
            Common(
                effect, effect - reach, effect + reach, p, of.series[mine], began, min(before, began), True, (old, new),
            )
        )  # fmt: skip
    return found, none


def days(of: Sittings, node: Ints) -> tuple[list[Common], Floats]:
    """Days and steps that all GPUs share, and the effect of its day on every sitting."""
    several = np.flatnonzero(of.per_series >= 2)
    if len(several) < _GPUS:
        return [], np.zeros(len(of))
    if len(several) > _SAMPLE:
        several = np.random.default_rng(0).permutation(several)[:_SAMPLE]
    chosen = of.keep(np.isin(of.series, several))
    day, names = _days(chosen.at)
    count = len(names)
    effect = np.zeros(count)
    sizes = np.bincount(day, minlength=count)
    on = np.unique(np.stack([day, node[chosen.series]]), axis=1)
    nodes = np.bincount(on[0], minlength=count)
    known = (node[chosen.series] >= 0).any()
    enough = (sizes >= _GPUS) & (nodes >= _NODES if known else True)
    level = np.zeros(of.count)
    for _ in range(_POLISH):
        level = groups_median(chosen.value - effect[day], chosen.series, of.count)
        rest = groups_median(chosen.value - level[chosen.series], day, count)
        effect = np.where(enough, rest, 0.0)
    if enough.any():
        effect = np.where(enough, effect - np.median(effect[enough]), 0.0)
    away = chosen.value - level[chosen.series] - effect[day]
    place = np.clip(np.searchsorted(names, np.floor(of.at)), 0, count - 1)
    out = np.where(names[place] == np.floor(of.at), effect[place], 0.0)
    return _named(chosen, day, effect, enough, away, node), out


def _days(at: Floats) -> tuple[Ints, Floats]:
    names, day = np.unique(np.floor(at), return_inverse=True)
    return day.astype(np.int64), names


def _shared(moves: Floats, nodes: Ints) -> tuple[float, float, float]:
    """The median move, its standard error and degrees of freedom; GPUs of one node count as one where that is wider."""
    effect = float(np.median(moves))
    se, df = _MEDIAN * spread(moves - effect) / np.sqrt(len(moves)), len(moves) - 1
    names, place = np.unique(nodes, return_inverse=True)
    if len(names) >= _NODES:
        by_node = groups_median(moves, place.astype(np.int64), len(names))
        wider = _MEDIAN * spread(by_node - effect) / np.sqrt(len(names))
        if wider > se:
            se, df = wider, len(names) - 1
    return effect, max(float(se), _LEAST_SE), float(max(df, 1))


def _named(of: Sittings, day: Ints, effect: Floats, enough: Bools, away: Floats, node: Ints) -> list[Common]:
    """The relevant common steps and days: where the level of the days moves, and for how long."""
    order = np.flatnonzero(enough)
    found: list[Common] = []
    start = 0
    while start < len(order) - 1:
        base = effect[order[start]]
        move = effect[order[start + 1]] - base
        if abs(move) < RELEVANT:
            start += 1
            continue
        # It lasts as long as the days stay on its side of the middle between the two levels.
        side = (effect[order[start + 1 :]] - base - move / 2) * np.sign(move) > 0
        length = int(np.argmin(side)) if not side.all() else len(side)
        spell = order[start + 1 : start + 1 + length]
        size = float(np.median(effect[spell]) - np.median(effect[order[max(0, start - length + 1) : start + 1]]))
        mine = np.isin(day, spell)
        _, se, df = _shared(away[mine], node[of.series[mine]])
        se *= np.sqrt(2.0)
        p = min(1.0, 2 * float(upper_tail(abs(size) / se, df)) * len(order))
        if p <= CERTAIN and abs(size) >= RELEVANT:
            reach = se * float(quantile(_CONFIDENCE, df))
            series = np.unique(of.series[mine])
            earlier = of.at[np.isin(day, order[: start + 1])]
            found.append(
                Common(
                    size, size - reach, size + reach, p, series, float(of.at[mine].min()), float(earlier.max()),
                    bool(side.all()),
                )
            )  # fmt: skip
            if not side.all():
                start += length  # the way back is no finding of its own
        start += 1
    return found
