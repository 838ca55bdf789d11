"""What the power sensors of GPUs say: which readings count, where in time they belong, and what they miss.

    true power ──▶ mean over window_s ──▶ a new value every period_s ──▶ read every so often
       (its board reads gain x power + offset)      └──── shift_s ± lag_s ────┘

* **window and period**: by the GPU's model, or as stored. Where neither is known, the readings tell: a power draw that
  differs from an instantaneous reading beside it is a mean of 1 s (NVIDIA's text of nvidia-smi: Ampere and later, but
  not GA100); one that follows utilisation or moves quickly is none.
* **shift**: a reading is of the time before it: the middle of its window, which is half a window and half a period
  earlier. Where load edges show another delay, that counts.
* **lag**: by how much more or less that may be. Drivers hand values on late: by 0.2 s at most, as far as is known.
* **aliasing**: what a sensor misses that sees a part of the time (`store.aliasing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...store.aliasing import LOCKED_S, PART_S, PERIOD_S, beat, locked_w2
from ...store.power_sensors import PowerSensor, sensor_of_model
from ...store.vocabulary import Code
from ..telemetry.pauses import near
from .series import Flags, Floats, Groups, Ints, Note, Problem, Readings, median

_LATE_S = 0.2  # drivers hand values on so much too late, or with a clock that is off
_OF_WINDOW = 1 / 8  # of its window that a mean smears the energy of a step by, at most
_MEAN_S = 1.0  # what the driver averages over, if it does
_SLOW_S = 0.2  # the answer of Kepler and Maxwell, which average nothing
_SHORT_PERIOD_S = 0.02  # of sensors that average over 10 ms
_EQUAL, _PAIRS = 0.8, 8  # of so many pairs of readings, most are equal where both are of one sensor
_SHARP, _SHARP_S, _SHARP_W = 0.55, 0.25, 20.0  # a mean of 1 s moves by less of its range in 0.25 s
_EDGE_EVERY_S, _BEFORE_S, _AFTER_S = 0.25, 1.5, 2.0  # load edges are told by readings so close, over times so long
_EDGES = 8  # that are looked at
_TOLD_LATE_S = 0.2  # utilisation is of the last sixth of a second or so, and read a while later
_LEAST_W = 0.5  # no GPU draws less, whatever it does
_ABOVE_LIMIT = 2.0  # power over this many limits is no power of the board
_NEVER_W = 5000.0  # of one GPU, whatever its limit
_STUCK_READINGS, _STUCK_S, _MOVED = 30, 10.0, 0.3  # the same value for so long, while utilisation moves by so much
_USUAL, _SHORT_S = 3.0, 1.0  # what is no longer than so many shortest intervals, or than this, is no gap
_BLOCK = 64  # new values that tell how readings vary
_OF_RANGE = 1 / 8  # variance over range squared: between that of two levels (1/4) and of an even spread (1/12)


class PowerSource(Code):
    """Which readings gave most of the energy of a GPU."""

    COUNTER = "counter", "the energy counter"
    POWER = "power", "the power draw as the driver reports it"
    INSTANT = "instant", "the instantaneous reading of power"
    BOTH = "both", "the middle of the power draw and of the instantaneous reading, which are of one sensor"
    GPU_POWER = (
        "gpu power",
        "the power draw of the GPU: energy counter and instantaneous reading of this chip are of the whole module",
    )


@dataclass(frozen=True)
class SensorTiming:
    """What one GPU's power sensor sees, and when; s."""

    window_s: float
    period_s: float
    shift_s: float
    """How much earlier than it was read the middle of a reading's window is."""
    lag_s: float
    """By how much more or less that may be."""
    settle_s: float
    """How long after work ended a reading has nothing of it."""
    source: PowerSource

    @classmethod
    def of(cls, window_s: float, period_s: float, source: PowerSource) -> SensorTiming:
        """A mean over `window_s`, new every `period_s`."""
        middle, lag = (window_s + period_s) / 2, _LATE_S + period_s / 2 + _OF_WINDOW * window_s
        return cls(window_s, period_s, middle, lag, window_s + period_s, source)


@dataclass(frozen=True)
class SensedPower:
    """The power of some GPUs by reading, (n,), and their sensors, (g,)."""

    readings: Readings
    watts: Floats
    """NaN where it is not known or not to be used."""
    stuck: Flags
    zero: Flags
    timings: Sequence[SensorTiming]
    read_every_s: Floats
    """(g,) the median time between readings."""

    @property
    def groups(self) -> Groups:
        return self.readings.groups

    def by_gpu(self, name: str) -> Floats:
        """A figure of `SensorTiming`, (g,)."""
        return np.array([getattr(timing, name) for timing in self.timings], np.float64)

    def only(self, flags: Flags, gpus: Flags) -> SensedPower:
        """The readings with the flag of some GPUs (flags (g,))."""
        at = np.flatnonzero(flags & np.repeat(gpus, self.groups.sizes))
        return SensedPower(
            self.readings.take(at, self.groups.count(flags)[gpus]), self.watts[at], self.stuck[at], self.zero[at],
            [self.timings[gpu] for gpu in np.flatnonzero(gpus).tolist()], self.read_every_s[gpus],
        )  # fmt: skip

    @cached_property
    def has_power(self) -> Flags:
        return ~np.isnan(self.watts)

    @cached_property
    def powered(self) -> Ints:
        """(g,) how many readings have a power that counts."""
        return self.groups.count(self.has_power)

    @cached_property
    def times_s(self) -> Floats:
        """Since the first reading of a GPU."""
        times: Floats = (self.readings.ts_ns - self.groups.each(self.readings.ts_ns[self.groups.firsts])) / 1e9
        return times

    @cached_property
    def step_s(self) -> Floats:
        """To the next reading of the GPU; 0 from its last."""
        return self.groups.steps(self.times_s)

    @cached_property
    def refused(self) -> Flags:
        """By interval, whether power was read at one of its ends and is not used."""
        return self.groups.beside(self.stuck | self.zero)


def sensed_power(
    readings: Readings, limit_w: Floats, models: Sequence[str | None], notes: Sequence[list[Note]]
) -> SensedPower:
    """Choose between the readings of power, and take out those that cannot be; adds to the `notes` of each GPU.

    `limit_w` (g,) is NaN where no power limit is known.
    """
    groups = readings.groups
    step = groups.steps(readings.ts_ns) / 1e9
    read_every = np.array([median(step[first : end - 1]) if end - first > 1 else 0.0 for first, end in groups.spans])
    watts, timings = readings.power_w.copy(), []
    for gpu, (first, end) in enumerate(groups.spans):
        at = slice(first, end)
        watts[at], timing = _chosen(readings, at, float(read_every[gpu]), models[gpu])
        timings.append(timing)
    zero = watts < _LEAST_W
    impossible = watts > groups.each(np.fmin(_NEVER_W, _ABOVE_LIMIT * limit_w))
    stuck = (readings.stuck & ~np.isnan(watts)) | _stuck(readings, watts)
    stuck &= ~zero
    for problem, flags in ((Problem.STUCK, stuck), (Problem.ZERO, zero), (Problem.IMPOSSIBLE, impossible)):
        for gpu, places in groups.places(flags):
            began, ended = readings.ts_ns[places[[0, -1]]].tolist()
            notes[gpu].append(Note(problem, began, ended, n=len(places)))
    watts[stuck | zero | impossible] = np.nan
    return SensedPower(readings, watts, stuck, zero, timings, read_every)


def _chosen(readings: Readings, at: slice, read_every: float, model: str | None) -> tuple[Floats, SensorTiming]:
    """The power of one GPU, and what its sensor sees."""
    row = None if model is None else sensor_of_model(model)
    draw = _drawn_over(readings, at, row)
    period = row.period_ms / 1000 if row and row.period_ms else _SHORT_PERIOD_S if 0 < draw <= 0.01 else PERIOD_S
    part = row.window_ms / 1000 if row and row.window_ms else draw if 0 < draw <= period else PART_S
    power, source, window = readings.power_w[at], PowerSource.POWER, draw
    if readings.instant_w is not None and not np.isnan(readings.instant_w[at]).all():
        instant = readings.instant_w[at]
        missing, pairs = np.isnan(power), np.count_nonzero(~np.isnan(power + instant))
        same = np.count_nonzero(power == instant) >= _EQUAL * pairs if pairs else False
        if same and not draw > period:
            power = np.where(missing, instant, np.where(np.isnan(instant), power, (power + instant) / 2))
            source, window = PowerSource.BOTH, part
        else:
            if np.isnan(draw) and pairs >= _PAIRS:
                window = _MEAN_S
            if window > 0 and part < 0.9 * min(window, max(read_every, period)):  # the mean has seen more
                power = np.where(missing, instant, power)
            else:
                power = np.where(np.isnan(instant), power, instant)
                source, window = PowerSource.INSTANT, part
    if row is not None and row.of_module:
        source = PowerSource.GPU_POWER
    if row is not None and row.period_ms == 20 and row.window_ms is None and np.isnan(draw):
        timing = SensorTiming(_SLOW_S, period, _SLOW_S / 2 + period / 2, _LATE_S + period, 5 * _SLOW_S, source)
        return power, timing
    fine = 0 < read_every <= _EDGE_EVERY_S
    times = (readings.ts_ns[at] - readings.ts_ns[at.start]) / 1e9
    delay = _delay(times, readings.utilization[at], power) if fine else None
    if not window <= _MEAN_S / 2:  # a mean of 1 s, as far as its model tells, or nothing is known
        quick = delay is not None and delay < _MEAN_S * 0.4
        if quick or (fine and _sharp(times, power)):  # older drivers do not average
            window = part
        elif np.isnan(window) and delay is not None:
            window = _MEAN_S
        elif np.isnan(window):
            half = _MEAN_S / 2 + _LATE_S
            return power, SensorTiming(part, period, _MEAN_S / 3, half, _MEAN_S + part + period, source)
    timing = SensorTiming.of(window, period, source)
    if delay is not None and abs(delay - timing.shift_s) > _LATE_S:
        later = max(delay - timing.shift_s, 0.0)
        timing = SensorTiming(window, period, delay, timing.lag_s, timing.settle_s + later, source)
    return power, timing


def _drawn_over(readings: Readings, at: slice, row: PowerSensor | None) -> float:
    """The time over which the power draw of a GPU is averaged, as stored or by its model, s; NaN where not known."""
    if readings.window_s is not None:
        stored = readings.window_s[at]
        stored = stored[~np.isnan(stored)]
        if len(stored):
            return median(stored)
    return row.draw_ms / 1000 if row is not None and row.draw_ms is not None else np.nan


def _delay(times: Floats, utilization: Floats, watts: Floats) -> float | None:
    """By how much power is read later than the load moved, s: the median over load edges; None where there is none.

    An edge is utilisation that goes from one half of its range to the other and stays there. The delay of any reading
    that answers a step is the area between it and its last level, over the height of the step.
    """
    busy = utilization >= 0.5
    edges = np.flatnonzero(busy[1:] != busy[:-1]) + 1
    moments = times[edges]
    apart = np.diff(moments, prepend=times[0], append=times[-1])
    lone = edges[(apart[:-1] > _BEFORE_S) & (apart[1:] > _AFTER_S)][:_EDGES]
    delays = []
    for edge in lone.tolist():
        first, last = np.searchsorted(times, [times[edge] - _BEFORE_S, times[edge] + _AFTER_S])
        late = [
            _area_over_height(times[first:last] - times[first], values[first:last]) for values in (watts, utilization)
        ]
        if None not in late and np.ptp(watts[first:last]) > _SHARP_W:
            delays.append(late[0] - late[1])  # type: ignore[operator]
    return _TOLD_LATE_S + median(np.array(delays)) if delays else None


def _area_over_height(times: Floats, values: Floats) -> float | None:
    """When a step between the levels at both ends of some values is, on average; None where there is none."""
    quarter = len(values) // 8
    if quarter < 1 or np.isnan(values).any():
        return None
    before, after = values[:quarter].mean(), values[-quarter:].mean()
    to_go = (after - values) / (after - before) if after != before else np.zeros(len(values))
    return float(np.trapezoid(to_go, times)) if after != before else None


def _sharp(times: Floats, watts: Floats) -> bool:
    """Whether the readings of a GPU move faster than a mean of 1 s can."""
    has_power = ~np.isnan(watts)
    moments, power = times[has_power], watts[has_power]
    if len(power) < 3 or np.ptp(power) < _SHARP_W:
        return False
    ahead = np.searchsorted(moments, moments + _SHARP_S, "right") - 1
    return bool(np.abs(power[ahead] - power).max() > _SHARP * np.ptp(power))


def _stuck(readings: Readings, watts: Floats) -> Flags:
    """Readings that are the same for long while utilisation moves."""
    stuck = np.zeros(len(watts), bool)
    moved = np.ones(len(watts), bool)
    np.not_equal(watts[1:], watts[:-1], out=moved[:-1])
    moved[readings.groups.lasts] = True
    ends = np.flatnonzero(moved) + 1
    for run in np.flatnonzero(np.diff(ends, prepend=0) >= _STUCK_READINGS).tolist():
        first, end = int(ends[run - 1]) if run else 0, int(ends[run])
        used = readings.utilization[first:end]
        used = used[~np.isnan(used)]
        lasted_s = (readings.ts_ns[end - 1] - readings.ts_ns[first]) / 1e9
        if lasted_s >= _STUCK_S and len(used) and used.max() - used.min() >= _MOVED:
            stuck[first:end] = True
    return stuck


# -- between readings -----------------------------------------------------------------------------------------


def power_at(sensed: SensedPower, middle_w: Floats) -> Floats:
    """The power at the time of each reading, (n,), W: that of the readings whose windows lie around it.

    `middle_w` (g,) stands for all of a GPU whose power is not known.
    """
    groups, step, shift_s = sensed.groups, sensed.step_s, sensed.by_gpu("shift_s")
    power = sensed.watts + groups.steps(sensed.watts) * np.minimum(groups.each(shift_s) / np.maximum(step, 1e-9), 1.0)
    shortest = np.minimum.reduceat(np.where(step > 0, step, np.inf), groups.firsts)
    for gpu in np.flatnonzero((shift_s > shortest) | (sensed.powered < groups.sizes)).tolist():
        first, end = groups.spans[gpu]
        times, powered = sensed.times_s[first:end], sensed.has_power[first:end]
        if sensed.powered[gpu]:
            power[first:end] = np.interp(times + shift_s[gpu], times[powered], sensed.watts[first:end][powered])
        else:
            power[first:end] = middle_w[gpu]
    return np.asarray(power, np.float64)


def followed(sensed: SensedPower) -> tuple[Flags, Flags]:
    """By interval, whether readings follow each other as usual, and whether those of a power that counts do."""
    groups, step = sensed.groups, sensed.step_s
    together = np.ones(len(step), bool)
    together[groups.lasts] = False
    longest, shortest = np.maximum.reduceat(step, groups.firsts), np.where(together, step, np.inf)
    uneven = longest > np.maximum(_USUAL * np.minimum.reduceat(shortest, groups.firsts), _SHORT_S)
    for gpu in np.flatnonzero(uneven).tolist():
        first, end = groups.spans[gpu]
        together[first : end - 1] = near(sensed.times_s[first:end], np.ones(end - first, bool))
    powered = together.copy()
    for gpu in np.flatnonzero(sensed.powered < groups.sizes).tolist():
        first, end = groups.spans[gpu]
        has_power = sensed.has_power[first:end]
        powered[first : end - 1] = near(sensed.times_s[first:end], has_power) if has_power.any() else False
    return together, powered & ~sensed.refused


def aliasing(sensed: SensedPower, power: Floats, floor_w: Floats, full_w: Floats) -> tuple[Floats, Floats, Floats]:
    """`store.aliasing.SUMS` in the interval after each reading, (n,) each.

    `floor_w` (g,) is what a GPU draws without work, `full_w` (g,) the most that its work draws, as far as is known.
    Telemetry of pruned minutes says how far the readings varied that its means are of.
    """
    groups, step, readings = sensed.groups, sensed.step_s, sensed.readings
    window, period = sensed.by_gpu("window_s"), sensed.by_gpu("period_s")
    usual = np.maximum(sensed.read_every_s, period)
    longest = np.maximum(step, groups.each(usual))
    missed_s = np.clip(1.0 - groups.each(window) / longest, 0.0, 1.0) * step
    if not missed_s.any():
        return missed_s, missed_s, missed_s
    # A block of readings has so many new values of the sensor, whose distance is `reach` readings.
    reach = np.maximum(np.rint(usual / np.maximum(sensed.read_every_s, 1e-3)), 1).astype(np.int64)
    blocks = np.maximum(groups.sizes // (_BLOCK * reach), 1)
    gpu = np.repeat(np.arange(len(groups)), blocks)
    starts = (
        groups.firsts[gpu]
        + (np.arange(len(gpu)) - (np.cumsum(blocks) - blocks)[gpu]) * groups.sizes[gpu] // blocks[gpu]
    )
    number = np.diff(starts, append=len(power))
    values = np.maximum(number / reach[gpu], 1.0)
    mean, square = (np.add.reduceat(of_reading, starts) / number for of_reading in (power, power**2))
    above = power > np.repeat(mean, number)
    crossed = np.zeros(len(power))
    crossed[1:] = above[1:] != above[:-1]
    crossed[starts] = 0
    spread_w2 = np.maximum(square - mean**2, 0.0)
    beat_w2, coherent_s = beat(spread_w2, np.add.reduceat(crossed, starts), values * usual[gpu])
    here, apart = np.arange(len(power)), groups.each(reach)
    ahead, back = np.minimum(here + apart, groups.last_of), np.maximum(here - apart, groups.first_of)
    bend_w = power[ahead] - 2 * power + power[back]
    rate = usual[gpu] * np.add.reduceat(bend_w**2, starts) / number / 6 * (1 + 4 / values)
    rate, beat_w2, coherent_s = (np.repeat(of_block, number) for of_block in (rate, beat_w2, coherent_s))
    used = np.where(np.isnan(readings.utilization), 0.5, readings.utilization)  # nothing tells how busy it was
    hidden_w2, locked_s, at = np.zeros(len(power)), np.zeros(len(power)), np.flatnonzero((used > 0) & (used < 1))
    if len(at):
        gpu_at = np.searchsorted(groups.begins, at, "right") - 1
        hidden_w2[at] = np.maximum(locked_w2(power[at], used[at], floor_w[gpu_at], full_w[gpu_at]) - beat_w2[at], 0.0)
        hidden_w2[:-1] = (hidden_w2[:-1] + hidden_w2[1:]) / 2
        # It hides for no longer than readings follow each other at which the GPU was busy for a part of the time.
        runs = np.flatnonzero((np.diff(at, prepend=-2) > 1) | (np.diff(gpu_at, prepend=-1) > 0))
        lasted_s = np.add.reduceat(step[at], runs) + usual[gpu_at[runs]]
        locked_s[at] = np.repeat(np.minimum(lasted_s, LOCKED_S), np.diff(runs, append=len(at)))
        locked_s[:-1] = np.maximum(locked_s[:-1], locked_s[1:])
    rate *= longest / groups.each(usual)
    if readings.spread_w is not None and readings.every_s is not None:
        within_w2 = np.nan_to_num(readings.spread_w) ** 2 * _OF_RANGE
        rate[:-1] = np.maximum(rate[:-1], (within_w2 * np.nan_to_num(readings.every_s))[1:])
        hidden_w2 = np.maximum(hidden_w2 - within_w2, 0.0)
    alias_j2s = beat_w2 * coherent_s + hidden_w2 * locked_s
    missed_s = np.where(groups.each(sensed.powered) >= 2, missed_s, 0.0)
    return rate * missed_s, (beat_w2 + hidden_w2) * missed_s, alias_j2s * missed_s
