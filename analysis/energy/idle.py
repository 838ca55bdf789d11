"""What each GPU draws without work: from which readings that is known, and how well.

A reading tells it only where nothing ran during all of the time that the sensor averages over. A GPU that pauses for
less than that is never read without work: then its energy counter tells it, or how power falls as utilisation does, or
nothing but the lowest reading, which it cannot exceed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...store.aliasing import FLOOR, PART_S, PERIOD_S
from ...store.vocabulary import Code
from .sensor import Kept
from .series import Flags, Floats, median

_READINGS = 5  # of a GPU without work at least
_TOGETHER_S = 1.5  # readings that follow each other so soon tell of the time between them
_AFTER_S = 0.15  # utilisation may be told so much too late: a pause goes on for so long after a reading that counts
_FINE_S = 1 / 6  # readings so close together miss no work: utilisation covers as much or more
_ALIKE, _ALIKE_W = 0.05, 2.0  # how far readings without work may differ
_WORKS, _ABOVE, _ABOVE_W = 0.03, 0.05, 1.0  # above such a utilisation a GPU draws so much more, in the mean
_MOST = 0.5  # of the power limit: no board draws more without work
_MIDDLE = (0.05, 0.95)  # quantiles of readings without work: the interval
_ROUND_S = 1e-6
_COUNTED_S, _COUNTED_EVERY_S = 0.5, 0.25  # of pauses in all, read so often, for the counter to tell
_FIT, _SPREAD, _LEAST = 0.9, 0.2, 0.6  # R2 of a line; the range of utilisation that it needs; the least of it at most
_BENDS = 0.25  # of what a line is extended by: how far power may be from it there
_SHIFTS_S = np.arange(-3, 4) / 10  # how much later than power utilisation may be told


class IdleSource(Code):
    """What is known of the power of a GPU without work; the most certain first."""

    POWER = "power", "readings whose whole averaging window was without work"
    INSTANT = "instant", "instantaneous readings while nothing ran"
    COUNTER = "counter", "the energy counter while nothing ran: pauses are shorter than the sensor's averaging window"
    EXTENDED = (
        "extended",
        "no averaging window of the sensor was without work: the line of power over utilisation, extended to none",
    )
    BOUNDED = "bounded", "no reading shows the GPU without work: at most its lowest reading"
    UNKNOWN = "unknown", "no reading of power counts"


IDLE_SOURCES = tuple(one.value for one in IdleSource)


@dataclass(frozen=True)
class Idle:
    """What some GPUs draw without work, W; arrays (g,)."""

    watts: Floats
    """NaN where only bounds are known."""
    low_w: Floats
    """The interval; `high_w` is NaN where nothing is known."""
    high_w: Floats
    source: NDArray[np.int64]
    """Number of the code in `IDLE_SOURCES`."""


def idle_of(kept: Kept, limit_w: Floats, read_every: Floats) -> Idle:
    """What each GPU draws without work. `limit_w` and `read_every` (s, median) are by GPU."""
    groups = kept.groups
    n = len(groups)
    watts, low, high = np.full(n, np.nan), np.nan_to_num(FLOOR * limit_w), np.fmin.reduceat(kept.watts, groups.firsts)
    high = (1 + _ALIKE) * high + _ALIKE_W
    source = np.where(np.isnan(high), IDLE_SOURCES.index(IdleSource.UNKNOWN), IDLE_SOURCES.index(IdleSource.BOUNDED))
    zero = kept.utilization == 0
    without = np.flatnonzero(groups.count(zero) >= _READINGS).tolist()
    if not without:
        return Idle(watts, np.minimum(low, np.nan_to_num(high)), high, source)
    series = [(IdleSource.POWER, kept.watts, groups.each(kept.settle_s))]
    if kept.instant_w is not None:
        series.insert(0, (IdleSource.INSTANT, kept.instant_w, np.array([PART_S + PERIOD_S])))
    clean = [(code, power, _clean(kept, power, zero, settle)) for code, power, settle in series]
    for gpu in without:
        mine = slice(*groups.spans[gpu])
        found = None
        for code, power, which in clean:
            here = power[mine][which[mine]]
            if len(here) >= _READINGS and _is_idle(kept, mine, here, limit_w[gpu], read_every[gpu]):
                found = code, median(here), *np.quantile(here, _MIDDLE).tolist()
                break
        found = found or _by_counter(kept, mine, zero[mine], high[gpu]) or _by_line(kept, mine, gpu, low[gpu])
        if found is not None:
            code, watts[gpu], low[gpu], high[gpu] = found
            source[gpu] = IDLE_SOURCES.index(code)
    return Idle(watts, np.minimum(low, np.nan_to_num(high)), high, source)


def _clean(kept: Kept, power: Floats, zero: Flags, settle_s: Floats) -> Flags:
    """The readings of which all that the sensor averaged over was without work."""
    groups, ts, step = kept.groups, kept.times_s, kept.step_s
    there = zero & ~np.isnan(power)
    on = np.zeros(len(ts), bool)  # both ends of the interval after a reading are without work
    on[:-1] = there[:-1] & there[1:]
    on[groups.lasts] = False
    near = on & (step <= _TOGETHER_S)
    sure = on & (step <= _FINE_S)  # what may have run between readings that are far apart, their likeness tells
    sure[:-1] |= on[:-1] & (np.abs(power[1:] - power[:-1]) <= _ALIKE * power[:-1] + _ALIKE_W)
    since_s, until_s = _around(ts, near)
    long = (since_s >= settle_s - _ROUND_S) & (until_s >= _AFTER_S - _ROUND_S)
    far = ~near | ~_before(near)
    clean: Flags = sure & _before(sure) & (long | far)
    return clean


def _around(ts: Floats, near: Flags) -> tuple[Floats, Floats]:
    """By reading, for how long such intervals follow each other up to it, and from it on, s."""
    here = np.arange(len(ts))
    first = np.maximum.accumulate(np.where(_before(near), 0, here))
    last = np.minimum.accumulate(np.where(near, len(ts), here)[::-1])[::-1]
    return ts - ts[first], ts[last] - ts


def _before(which: Flags) -> Flags:
    """By reading, whether the interval before it is one of these."""
    return np.concatenate([[False], which[:-1]])


def _is_idle(kept: Kept, mine: slice, here: Floats, limit_w: float, read_every: float) -> bool:
    """Whether readings that seem to be without work are: a load in step with the readings looks as if nothing ran."""
    middle = median(here)
    works = kept.watts[mine][(kept.utilization[mine] > _WORKS) & kept.known[mine]]
    apart = len(works) < 2 or works.mean() >= (1 + _ABOVE) * middle + _ABOVE_W
    return bool(apart and (read_every <= _FINE_S or not middle > _MOST * limit_w))


def _by_counter(kept: Kept, mine: slice, zero: Flags, high_w: float) -> tuple[IdleSource, float, float, float] | None:
    """From what the counter grew by in pauses, once it had caught up with the work before."""
    if kept.counter_j is None:
        return None
    counter, ts = kept.counter_j[mine], kept.times_s[mine]
    step, grown = np.diff(ts, append=ts[-1:]), np.diff(counter, append=np.nan)
    near = zero & np.append(zero[1:], False) & (step <= _COUNTED_EVERY_S)
    since_s, until_s = _around(ts, near)
    within = near & (grown >= 0) & (since_s >= PERIOD_S - _ROUND_S) & (until_s - step >= _AFTER_S - _ROUND_S)
    seconds = float(step[within].sum())
    if seconds < _COUNTED_S:
        return None
    watts = float(grown[within].sum()) / seconds
    doubt = watts * PERIOD_S * np.sqrt(2 * np.count_nonzero(within)) / seconds  # each of its ends is a period late
    if not watts - doubt <= high_w:  # what it counts is not what the power readings are of
        return None
    return IdleSource.COUNTER, min(watts, high_w), max(watts - doubt, 0.0), min(watts + doubt, high_w)


def _by_line(kept: Kept, mine: slice, gpu: int, low_w: float) -> tuple[IdleSource, float, float, float] | None:
    """From how power falls with the utilisation of its averaging window, extended to none."""
    window = kept.sensors[gpu].window_s
    power, used, ts = kept.watts[mine], kept.utilization[mine], kept.times_s[mine]
    if len(ts) < 2 or window <= 2 * median(np.diff(ts)) or np.isnan(used).any():
        return None
    upto = np.concatenate([[0.0], np.cumsum(np.diff(ts) * used[1:])])
    inside = ~np.isnan(power) & (ts >= window + _SHIFTS_S[-1]) & (ts <= ts[-1] + _SHIFTS_S[0])
    if np.count_nonzero(inside) < _READINGS:
        return None
    at, watts = ts[inside], power[inside]
    best = None
    for shift in _SHIFTS_S:
        share = (np.interp(at - shift, ts, upto) - np.interp(at - shift - window, ts, upto)) / window
        if np.ptp(share) < _SPREAD or share.min() > _LEAST:
            continue
        slope, base = np.polyfit(share, watts, 1)
        off = watts - base - slope * share
        fit = 1 - off.var() / max(watts.var(), 1e-9)
        if slope > 0 and fit >= _FIT and (best is None or fit > best[0]):
            best = fit, float(base), float(off.std())
    lowest = float(watts.min())
    if best is None or not low_w <= best[1] <= lowest:
        return None
    _, base, off_w = best
    doubt = 2 * off_w + _BENDS * (lowest - base)
    return IdleSource.EXTENDED, base, max(base - doubt, low_w), min(base + doubt, lowest)
