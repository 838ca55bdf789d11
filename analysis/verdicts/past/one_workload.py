"""The past of one workload on all GPUs: arrays of runs in, what changed out. `history` gives it names and dates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...runs.sittings import Floats, Ints
from ..levels import RELEVANT
from ..noise import LEAST, Noise, estimate
from ..sittings import Runs, Sittings, groups_median, sittings, step_of
from .own_past import Shapes, discoveries, shapes, worth
from .scatter import Scatter, scatter
from .together import Common, days, turns

RATE = 0.02
"""The false discovery rate of changes, of drifts and of unstable GPUs, each: together at most 6 in 100 findings."""
ALARM = 0.002
"""The chance that a healthy GPU's newest sitting calls for another one (`watch`)."""
_AGAIN = 2  # how often the parts before and after a change are searched again


@dataclass(frozen=True)
class Past:
    """What was found. `changed`, `drifting` and `watched` are rows of `shapes`; `unstable` are numbers of series."""

    of: Sittings
    """With common effects taken out."""
    runs: Runs
    noise: Noise | None
    """None: too few GPUs have two sittings, and nothing but `of` and `common` is filled."""
    common: tuple[Common, ...]
    shapes: Shapes
    start: Ints
    """Of each row of `shapes`: the place in its series at which the part that was searched begins."""
    change_q: Floats
    drift_q: Floats
    scatter: Scatter | None
    scatter_q: Floats
    changed: Ints
    spans: Ints
    """(changed, 3) of each change: the places in `of` from which its level before begins, at which it is, and up to
    which the level after goes. Other changes of the series bound them."""
    drifting: Ints
    watched: Ints
    unstable: Ints
    looks: int
    """Series with two sittings or more."""


def past(
    series: Ints,
    at: Floats,
    value: Floats,
    *,
    count: int | None = None,
    node: Ints | None = None,
    regime: Ints | None = None,
    warmth: Floats | None = None,
) -> Past:
    """What changed, drifts and scatters.

    `series`, `at` (days), `value` (natural logarithm of a time), `regime` (number of a driver and firmware, -1 where
    unknown): one for each run. `node`: one for each series, -1 where unknown.
    """
    of, runs = sittings(series, at, value, count, warmth, step_of(value))
    node = np.full(of.count, -1) if node is None else node
    effect = np.zeros(len(of))
    common: list[Common] = []
    if regime is not None and len(of):
        starts = np.searchsorted(runs.sitting, np.arange(len(of)))
        common, effect = turns(of, regime[runs.order][starts], node)
    by_day, shift = days(of.less(effect), node)
    common, effect = [*common, *by_day], effect + shift
    of, runs = of.less(effect), replace(runs, value=runs.value - effect[runs.sitting])
    looks = int((of.per_series >= 2).sum())
    noise = estimate(of, runs)
    none = np.zeros(0, np.int64)
    if noise is None:
        nothing = shapes(of, _NO_NOISE, none)
        empty = np.zeros(0)
        return Past(
            of, runs, None, tuple(common), nothing, none, empty, empty, None, empty, none, none.reshape(0, 3), none,
            none, none, looks,
        )  # fmt: skip
    if noise.a_kelvin:
        warm = noise.a_kelvin * (of.warmth - groups_median(of.warmth, of.series, of.count)[of.series])
        warm = np.nan_to_num(warm)
        of, runs = of.less(warm), replace(runs, value=runs.value - warm[runs.sitting])
    found, start = shapes(of, noise, worth(of)), none
    start = np.zeros(len(found.series), np.int64)
    found, start = _searched_again(of, noise, found, start, looks)
    change_q, drift_q = discoveries(found.change_p, looks), discoveries(found.slope_p, looks)
    span = _spans(of, found, start)
    relevant = np.abs(found.change) >= RELEVANT
    is_drift = found.drifts & (drift_q <= RATE) & (np.abs(found.slope) * span >= RELEVANT)
    is_change = (change_q <= RATE) & relevant & ~is_drift
    newest = (start + found.sittings) == of.per_series[found.series]
    with np.errstate(invalid="ignore"):
        watch = newest & (found.newest_p <= ALARM) & (found.newest >= RELEVANT) & ~is_change & ~is_drift
    drifting = np.flatnonzero(is_drift)
    changed, spans = _bounded(of, found, start, np.flatnonzero(is_change))
    level = _levels(of, found, start, changed, drifting)
    scattered = scatter(of, runs, noise, of.value - level)
    enough = int((scattered.runs + np.where(of.per_series >= 4, of.per_series, 0) > 0).sum())
    scatter_q = discoveries(scattered.p, max(enough, 1))
    unstable = np.flatnonzero(scatter_q <= RATE)
    return Past(
        of, runs, noise, tuple(common), found, start, change_q, drift_q, scattered, scatter_q, changed, spans,
        drifting, np.flatnonzero(watch), unstable, looks,
    )  # fmt: skip


_NO_NOISE = Noise(np.zeros(1), np.full(1, LEAST**2), 0.0, 3.0, 0)


def _searched_again(of: Sittings, noise: Noise, found: Shapes, start: Ints, looks: int) -> tuple[Shapes, Ints]:
    """A series with a change may have others: the parts before and after it are searched in the same way."""
    rows, starts = found, start
    for _ in range(_AGAIN):
        q = discoveries(rows.change_p, looks)
        split = np.flatnonzero((q <= RATE) & (np.abs(rows.change) >= RELEVANT) & ~rows.drifts)
        if not len(split):
            break
        series = np.repeat(rows.series[split], 2)
        begin = np.stack([starts[split], starts[split] + rows.split[split]], axis=1).ravel()
        size = np.stack([rows.split[split], rows.sittings[split] - rows.split[split]], axis=1).ravel()
        series, begin, size = series[size >= 2], begin[size >= 2], size[size >= 2]
        if not len(series):
            break
        source = np.concatenate([np.arange(n) + of.first[s] + b for s, b, n in zip(series, begin, size, strict=True)])
        parts = np.repeat(np.arange(len(series)), size)
        part = of.take(source, parts, len(series))
        more = shapes(part, noise, worth(part))
        starts = begin[more.series]
        rows = replace(more, series=series[more.series])
        found = Shapes(*(np.concatenate([getattr(found, n), getattr(rows, n)]) for n in Shapes.__dataclass_fields__))
        start = np.concatenate([start, starts])
    return found, start


def _bounded(of: Sittings, found: Shapes, start: Ints, changed: Ints) -> tuple[Ints, Ints]:
    """The changes that are relevant between the levels next to them, and what bounds these (see `Past.spans`)."""
    begins = of.first[found.series[changed]]
    at = begins + start[changed] + found.split[changed]
    ends = begins + of.per_series[found.series[changed]]
    kept, spans = [], []
    for row, begin, place, end in zip(changed, begins, at, ends, strict=True):
        same = at[begins == begin]
        before = max(same[same < place], default=begin)
        after = min(same[same > place], default=end)
        move = np.median(of.value[place:after]) - np.median(of.value[before:place])
        if abs(move) >= RELEVANT:
            kept.append(row)
            spans.append((before, place, after))
    return np.array(kept, dtype=np.int64), np.array(spans, dtype=np.int64).reshape(-1, 3)


def _spans(of: Sittings, found: Shapes, start: Ints) -> Floats:
    """Days between the first and the last sitting of each part."""
    first = of.first[found.series] + start
    spans: Floats = of.at[first + found.sittings - 1] - of.at[first]
    return spans


def _levels(of: Sittings, found: Shapes, start: Ints, changed: Ints, drifting: Ints) -> Floats:
    """The level of the series at each sitting, with changes and drift in it."""
    sloped = np.zeros(len(of))
    parts = of.place * 0
    for row in drifting:
        mine = of.first[found.series[row]] + np.arange(of.per_series[found.series[row]])
        sloped[mine] = found.slope[row] * (of.at[mine] - of.at[mine[0]])
    for row in changed:
        first = of.first[found.series[row]]
        begin = first + start[row] + found.split[row]
        parts[begin : first + of.per_series[found.series[row]]] += 1
    new = np.ones(len(of), bool)
    new[1:] = (np.diff(of.series) != 0) | (np.diff(parts) != 0)
    piece = (np.cumsum(new) - 1).astype(np.int64)
    middle = groups_median(of.value - sloped, piece, int(piece.max(initial=-1)) + 1)
    level: Floats = middle[piece] + sloped
    return level
