"""What each GPU draws without work: from which readings that is known, and how well.

    utilisation  ▔▔▔▔▔╲______________╱▔▔▔▔
    power        ▔▔▔▔▔▔╲▁_____________▁╱▔▔▔    a mean of 1 s: only what lies whole in the pause counts
                         └── clean ──┘

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
from .sensor import SensedPower
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


IDLE_SOURCES = tuple(source.value for source in IdleSource)


@dataclass(frozen=True)
class IdlePower:
    """What some GPUs draw without work, W; arrays (g,)."""

    watts: Floats
    """NaN where only bounds are known."""
    low_w: Floats
    """The interval; `high_w` is NaN where nothing is known."""
    high_w: Floats
    source: NDArray[np.int64]
    """Number of the code in `IDLE_SOURCES`."""


Estimate = tuple[float, float, float]
"""W: the value, and the interval."""


def idle_power(sensed: SensedPower, limit_w: Floats) -> IdlePower:
    """What each GPU draws without work. `limit_w` (g,) is NaN where no power limit is known."""
    groups, readings = sensed.groups, sensed.readings
    lowest = np.fmin.reduceat(sensed.watts, groups.firsts)
    watts, low, high = np.full(len(groups), np.nan), np.nan_to_num(FLOOR * limit_w), (1 + _ALIKE) * lowest + _ALIKE_W
    source = np.where(np.isnan(high), IDLE_SOURCES.index(IdleSource.UNKNOWN), IDLE_SOURCES.index(IdleSource.BOUNDED))
    without_work = readings.utilization == 0
    pausing = np.flatnonzero(groups.count(without_work) >= _READINGS).tolist()
    clean = []
    if pausing and readings.instant_w is not None:
        instant_w = np.where(sensed.has_power, readings.instant_w, np.nan)
        flags = _clean(sensed, instant_w, without_work, np.array([PART_S + PERIOD_S]))
        clean.append((IdleSource.INSTANT, instant_w, flags))
    if pausing:
        settle_s = groups.each(sensed.by_gpu("settle_s"))
        clean.append((IdleSource.POWER, sensed.watts, _clean(sensed, sensed.watts, without_work, settle_s)))
    for gpu in pausing:
        at = slice(*groups.spans[gpu])
        estimate: Estimate | None = None
        for code, power, flags in clean:
            idle = power[at][flags[at]]
            if len(idle) >= _READINGS and _is_idle(sensed, gpu, idle, limit_w[gpu]):
                low_w, high_w = np.quantile(idle, _MIDDLE).tolist()
                estimate, source[gpu] = (median(idle), low_w, high_w), IDLE_SOURCES.index(code)
                break
        else:
            code, estimate = IdleSource.COUNTER, _by_counter(sensed, at, without_work[at], high[gpu])
            if estimate is None:
                code, estimate = IdleSource.EXTENDED, _by_line(sensed, gpu, low[gpu])
            if estimate is not None:
                source[gpu] = IDLE_SOURCES.index(code)
        if estimate is not None:
            watts[gpu], low[gpu], high[gpu] = estimate
    return IdlePower(watts, np.minimum(low, np.nan_to_num(high)), high, source)


def _clean(sensed: SensedPower, power: Floats, without_work: Flags, settle_s: Floats) -> Flags:
    """The readings of which all that the sensor averaged over was without work."""
    groups, step = sensed.groups, sensed.step_s
    counts = without_work & ~np.isnan(power)
    on = np.zeros(len(power), bool)  # both ends of the interval after a reading are without work
    on[:-1] = counts[:-1] & counts[1:]
    on[groups.lasts] = False
    near = on & (step <= _TOGETHER_S)
    sure = on & (step <= _FINE_S)  # what may have run between readings that are far apart, their likeness tells
    sure[:-1] |= on[:-1] & (np.abs(power[1:] - power[:-1]) <= _ALIKE * power[:-1] + _ALIKE_W)
    since_s, until_s = _around(sensed.times_s, near)
    long = (since_s >= settle_s - _ROUND_S) & (until_s >= _AFTER_S - _ROUND_S)
    clean: Flags = sure & _before(sure) & (long | ~near | ~_before(near))
    return clean


def _around(times: Floats, near: Flags) -> tuple[Floats, Floats]:
    """By reading, for how long such intervals follow each other up to it, and from it on, s."""
    here = np.arange(len(times))
    first = np.maximum.accumulate(np.where(_before(near), 0, here))
    last = np.minimum.accumulate(np.where(near, len(times), here)[::-1])[::-1]
    return times - times[first], times[last] - times


def _before(flags: Flags) -> Flags:
    """By reading, whether the interval before it has the flag."""
    return np.concatenate([[False], flags[:-1]])


def _is_idle(sensed: SensedPower, gpu: int, idle: Floats, limit_w: float) -> bool:
    """Whether readings that seem to be without work are: a load in step with the readings looks as if nothing ran."""
    at = slice(*sensed.groups.spans[gpu])
    middle = median(idle)
    working = sensed.watts[at][(sensed.readings.utilization[at] > _WORKS) & sensed.has_power[at]]
    apart = len(working) < 2 or working.mean() >= (1 + _ABOVE) * middle + _ABOVE_W
    return bool(apart and (sensed.read_every_s[gpu] <= _FINE_S or not middle > _MOST * limit_w))


def _by_counter(sensed: SensedPower, at: slice, without_work: Flags, high_w: float) -> Estimate | None:
    """From what the counter grew by in pauses, once it had caught up with the work before."""
    if sensed.readings.counter_j is None:
        return None
    counter, times = sensed.readings.counter_j[at], sensed.times_s[at]
    step, grown = np.diff(times, append=times[-1:]), np.diff(counter, append=np.nan)
    near = without_work & np.append(without_work[1:], False) & (step <= _COUNTED_EVERY_S)
    since_s, until_s = _around(times, near)
    within = near & (grown >= 0) & (since_s >= PERIOD_S - _ROUND_S) & (until_s - step >= _AFTER_S - _ROUND_S)
    seconds = float(step[within].sum())
    if seconds < _COUNTED_S:
        return None
    watts = float(grown[within].sum()) / seconds
    doubt = watts * PERIOD_S * np.sqrt(2 * np.count_nonzero(within)) / seconds  # each of its ends is a period late
    if not watts - doubt <= high_w:  # what it counts is not what the power readings are of
        return None
    return min(watts, high_w), max(watts - doubt, 0.0), min(watts + doubt, high_w)


def _by_line(sensed: SensedPower, gpu: int, low_w: float) -> Estimate | None:
    """From how power falls with the utilisation of its averaging window, extended to none."""
    at, window = slice(*sensed.groups.spans[gpu]), sensed.timings[gpu].window_s
    power, used, times = sensed.watts[at], sensed.readings.utilization[at], sensed.times_s[at]
    if len(times) < 2 or window <= 2 * sensed.read_every_s[gpu] or np.isnan(used).any():
        return None
    busy_s = np.concatenate([[0.0], np.cumsum(np.diff(times) * used[1:])])
    inside = ~np.isnan(power) & (times >= window + _SHIFTS_S[-1]) & (times <= times[-1] + _SHIFTS_S[0])
    if np.count_nonzero(inside) < _READINGS:
        return None
    moments, watts = times[inside], power[inside]
    fits = []
    for shift in _SHIFTS_S:
        ends = moments - shift
        share = (np.interp(ends, times, busy_s) - np.interp(ends - window, times, busy_s)) / window
        if np.ptp(share) >= _SPREAD and share.min() <= _LEAST:
            slope, base = np.polyfit(share, watts, 1)
            off_w = watts - base - slope * share
            if slope > 0:
                fits.append((1 - off_w.var() / max(watts.var(), 1e-9), float(base), float(off_w.std())))
    fit, base, off = max(fits, default=(0.0, 0.0, 0.0))
    lowest = float(watts.min())
    if fit < _FIT or not low_w <= base <= lowest:
        return None
    doubt = 2 * off + _BENDS * (lowest - base)
    return base, max(base - doubt, low_w), min(base + doubt, lowest)
