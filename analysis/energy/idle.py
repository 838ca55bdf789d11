"""What GPUs draw without work.

A reading tells it only where nothing ran during all of the time that the sensor averages over. A GPU that pauses for
less than that is never read without work: then its energy counter tells it, or how power falls as utilisation does, or
nothing but the lowest reading, which it cannot exceed. Arrays are those of `sensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...store.vocabulary import Code
from .aliasing import FLOOR, PART_S, PERIOD_S
from .sensor import Flags, Floats, Ints, SensedPower, before, quantiles, steps

_IDLE_READINGS = 5  # of a GPU without work at least
_TOGETHER_S = 1.5  # readings that follow each other so soon tell of the time between them
_AFTER_WORK_S = (
    0.15  # utilisation may be told so much too late: a pause goes on for so long after a reading that counts
)
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
    """What GPUs draw without work, W, and the interval of it."""

    watts: Floats
    """NaN where only bounds are known."""
    low_w: Floats
    high_w: Floats
    """NaN where nothing is known."""
    source: Ints
    """Number in `IDLE_SOURCES`."""

    def tell(self, source: IdleSource, sure: Flags, figures: Sequence[Floats | float]) -> None:
        """What a source says of the GPUs of which it is sure: watts, low_w, high_w."""
        columns = (*figures, IDLE_SOURCES.index(source))
        for values, column in zip((self.watts, self.low_w, self.high_w, self.source), columns, strict=True):
            np.copyto(values, column, where=sure)


def idle_power(sensed: SensedPower, limit_w: Floats) -> IdlePower:
    """What the GPUs draw without work. `limit_w` is NaN where no power limit is known."""
    readings = sensed.readings
    high = (1 + _ALIKE) * np.fmin.reduce(sensed.watts, axis=1, keepdims=True) + _ALIKE_W
    low = np.nan_to_num(FLOOR * limit_w)
    unknown, bounded = (IDLE_SOURCES.index(source) for source in (IdleSource.UNKNOWN, IdleSource.BOUNDED))
    idle = IdlePower(
        np.full(high.shape, np.nan), np.minimum(low, np.nan_to_num(high)), high.copy(),
        np.where(np.isnan(high), unknown, bounded),
    )  # fmt: skip
    without_work = readings.utilization == 0
    unsure = np.count_nonzero(without_work, axis=1, keepdims=True) >= _IDLE_READINGS
    choices = [(IdleSource.POWER, sensed.watts, sensed.timing.settle_s)]
    if readings.instant_w is not None:
        instant_w = np.where(sensed.has_power, readings.instant_w, np.nan)
        choices.insert(0, (IdleSource.INSTANT, instant_w, PART_S + PERIOD_S))
    for source, power, settle_s in choices:
        if unsure.any():
            clean = _clean(sensed, power, without_work, settle_s)
            low_w, idle_w, high_w = quantiles(np.where(clean, power, np.nan), (_MIDDLE[0], 0.5, _MIDDLE[1]))
            sure = unsure & (np.count_nonzero(clean, axis=1, keepdims=True) >= _IDLE_READINGS)
            sure &= _is_idle(sensed, idle_w, limit_w)
            idle.tell(source, sure, (idle_w, low_w, high_w))
            unsure &= ~sure
    if readings.counter_j is not None and unsure.any():
        counted_w = _by_counter(sensed, readings.counter_j, without_work, high)
        idle.tell(IdleSource.COUNTER, sure := unsure & ~np.isnan(counted_w[0]), counted_w)
        unsure &= ~sure
    for gpu in np.flatnonzero(unsure & (sensed.timing.window_s > 2 * sensed.read_every_s)).tolist():
        line_w = _by_line(sensed, gpu, float(low[gpu, 0]))
        if line_w is not None:
            idle.tell(IdleSource.EXTENDED, np.arange(len(unsure))[:, None] == gpu, line_w)
    return idle


def _clean(sensed: SensedPower, power: Floats, without_work: Flags, settle_s: float) -> Flags:
    """The readings of which all that the sensor averaged over was without work."""
    counts = without_work & ~np.isnan(power)
    on = np.zeros(counts.shape, bool)
    on[:, :-1] = counts[:, :-1] & counts[:, 1:]  # both ends of the interval after a reading are without work
    together = on & (sensed.step_s <= _TOGETHER_S)
    sure = on & (sensed.step_s <= _FINE_S)  # what may have run between readings that are far apart, likeness tells
    sure |= on & (np.abs(steps(power)) <= _ALIKE * power + _ALIKE_W)
    since_s, until_s = _around(sensed.times_s, together)
    long = (since_s >= settle_s - _ROUND_S) & (until_s >= _AFTER_WORK_S - _ROUND_S)
    clean: Flags = sure & before(sure) & (long | ~together | ~before(together))
    return clean


def _around(times: Floats, together: Flags) -> tuple[Floats, Floats]:
    """By reading, for how long such intervals follow each other up to it, and from it on, s."""
    here = np.arange(times.shape[1])
    first = np.maximum.accumulate(np.where(before(together), 0, here), axis=1)
    last = np.minimum.accumulate(np.where(together, len(here), here)[:, ::-1], axis=1)[:, ::-1]
    return times - np.take_along_axis(times, first, axis=1), np.take_along_axis(times, last, axis=1) - times


def _is_idle(sensed: SensedPower, idle_w: Floats, limit_w: Floats) -> Flags:
    """Whether readings that seem to be without work are: a load in step with the readings looks as if nothing ran.
    `idle_w`: their median."""
    works = (sensed.readings.utilization > _WORKS) & sensed.has_power
    n = np.count_nonzero(works, axis=1, keepdims=True)
    working_w = np.where(works, sensed.watts, 0.0).sum(axis=1, keepdims=True) / np.maximum(n, 1)
    apart = (n < 2) | (working_w >= (1 + _ABOVE) * idle_w + _ABOVE_W)
    is_idle: Flags = apart & ((sensed.read_every_s <= _FINE_S) | ~(idle_w > _MOST * limit_w))
    return is_idle


def _by_counter(sensed: SensedPower, counter_j: Floats, without_work: Flags, high_w: Floats) -> tuple[Floats, ...]:
    """From what the counter grew by in pauses, once it had caught up with the work before: what a GPU draws (NaN where
    that tells nothing), and the interval of it."""
    step, grown = sensed.step_s, steps(counter_j)
    pauses = without_work & (step <= _COUNTED_EVERY_S)
    pauses[:, :-1] &= without_work[:, 1:]
    pauses[:, -1] = False
    since_s, until_s = _around(sensed.times_s, pauses)
    within = pauses & (grown >= 0) & (since_s >= PERIOD_S - _ROUND_S) & (until_s - step >= _AFTER_WORK_S - _ROUND_S)
    seconds, joules = (np.where(within, values, 0.0).sum(axis=1, keepdims=True) for values in (step, grown))
    seconds = np.where(seconds >= _COUNTED_S, seconds, np.nan)
    watts = joules / seconds
    ends = 2 * np.count_nonzero(within, axis=1, keepdims=True)
    doubt = watts * PERIOD_S * np.sqrt(ends) / seconds  # each of its ends is a period late
    watts = np.where(watts - doubt <= high_w, watts, np.nan)  # else it does not count what the readings are of
    return np.minimum(watts, high_w), np.maximum(watts - doubt, 0.0), np.minimum(watts + doubt, high_w)


def _by_line(sensed: SensedPower, gpu: int, low_w: float) -> tuple[float, float, float] | None:
    """From how the power of a GPU falls with the utilisation of its averaging window, extended to none: what it draws,
    and the interval of it."""
    window, power = sensed.timing.window_s, sensed.watts[gpu]
    used, times = sensed.readings.utilization[gpu], sensed.times_s[gpu]
    if np.isnan(used).any():
        return None
    busy_s = np.append(0.0, np.cumsum(np.diff(times) * used[1:]))
    inside = sensed.has_power[gpu] & (times >= window + _SHIFTS_S[-1]) & (times <= times[-1] + _SHIFTS_S[0])
    if np.count_nonzero(inside) < _IDLE_READINGS:
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
