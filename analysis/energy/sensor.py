"""What the power sensor of a GPU says: which readings count, when they are of, what they miss.

    true power ──▶ mean over window_s ──▶ a new value every period_s ──▶ read every so often
       (its board reads gain x power + offset)      └──── shift_s ± lag_s ────┘

* **window and period**: by the GPU's model, or as stored. Where neither is known, the readings tell: a power draw that
  differs from an instantaneous reading beside it is a mean of 1 s (NVIDIA's text of nvidia-smi: Ampere and later, but
  not GA100); one that follows utilisation or moves quickly is none.
* **shift**: a reading is of the time before it: the middle of its window, which is half a window and half a period
  earlier. Where load edges show another delay, that counts.
* **lag**: by how much more or less that may be. Drivers hand values on late: by 0.2 s at most, as far as is known.
* **aliasing**: what a sensor misses that sees a part of the time (`store.aliasing`).

GPUs with as many readings each are looked at together: arrays (g, n) have a row for each GPU, of a value for each of
its readings. Those of intervals have one for the time from a reading to the next; that of the last reading is 0 or
False. What is known of a GPU as a whole is a column, (g, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...store.power_sensors import PowerSensor
from ...store.vocabulary import Code
from ..telemetry.readings import LONGEST, SHORTEST_S, near
from .aliasing import LOCKED_S, PART_S, PERIOD_S, beat, locked_w2

Floats = NDArray[np.float64]
Times = NDArray[np.int64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NOTES = 100  # of one kind and GPU at most; the others are added up in the last one
_LATE_S = 0.2  # drivers hand values on so much too late, or with a clock that is off
_OF_WINDOW = 1 / 8  # of its window that a mean smears the energy of a step by, at most
_MEAN_S = 1.0  # what the driver averages over, if it does
_SLOW_S = 0.2  # the answer of Kepler and Maxwell, which average nothing
_SHORT_PERIOD_S = 0.02  # of sensors that average over 10 ms
_EQUAL, _PAIRS = 0.8, 8  # of so many pairs of readings, most are equal where both are of one sensor
_SHARP, _SHARP_S, _SHARP_W = 0.55, 0.25, 20.0  # a mean of 1 s moves by less of its range in 0.25 s
_EDGE_EVERY_S, _BEFORE_S, _AFTER_S = 0.25, 1.5, 2.0  # load edges are told by readings so close, over times so long
_EDGES, _CLEAN = 8, 0.75  # so many are looked at; of the range around it that a step makes up, else it is none
_TOLD_LATE_S = 0.2  # utilisation is of the last sixth of a second or so, and read a while later
_LEAST_W = 0.5  # no GPU draws less, whatever it does
_ABOVE_LIMIT = 2.0  # power over this many limits is no power of the board
_NEVER_W = 5000.0  # of one GPU, whatever its limit
_STUCK_READINGS, _STUCK_S, _MOVED = 30, 10.0, 0.3  # the same value for so long, while utilisation moves by so much
_BLOCK = 64  # new values that tell how readings vary
_OF_RANGE = 1 / 8  # variance over range squared: between that of two levels (1/4) and of an even spread (1/12)


# -- readings, and what is noted about them --------------------------------------------------------------------


def beside(flags: Flags) -> Flags:
    """By interval, whether one of its ends has the flag."""
    either = np.zeros(flags.shape, bool)
    np.logical_or(flags[:, 1:], flags[:, :-1], out=either[:, :-1])
    return either


def before(flags: Flags) -> Flags:
    """By reading, whether the interval before it has the flag."""
    shifted = np.zeros(flags.shape, bool)
    shifted[:, 1:] = flags[:, :-1]
    return shifted


def steps(values: NDArray[Any]) -> NDArray[Any]:
    """From each value of a row to the next; 0 from the last one."""
    grown = np.zeros_like(values)
    np.subtract(values[..., 1:], values[..., :-1], out=grown[..., :-1])
    return grown


def alike(keys: Iterable[Hashable]) -> dict[Any, Ints]:
    """The places of each key among them."""
    places: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    return {key: np.array(of_key) for key, of_key in places.items()}


def rows_of(gpus: Ints, values: NDArray[Any]) -> NDArray[Any]:
    """The rows of some GPUs."""
    return values if len(gpus) == len(values) else values[gpus]


def quantiles(values: Floats, shares: Sequence[float]) -> list[Floats]:
    """By row, quantiles (g, 1) of the values that are no NaN; NaN where there are none. Linear between two values."""
    last = np.maximum(np.count_nonzero(~np.isnan(values), axis=1, keepdims=True) - 1, 0)
    ordered, figures = np.sort(values, axis=1), []
    for share in shares:
        below = (share * last).astype(np.int64)
        low, high = (np.take_along_axis(ordered, at, axis=1) for at in (below, np.minimum(below + 1, last)))
        figures.append(low + (high - low) * (share * last - below))
    return figures


@dataclass(frozen=True)
class Readings:
    """What was read of GPUs with as many readings each; arrays (g, n), NaN where a value is missing, None where all
    are. The times of a GPU increase strictly."""

    ts_ns: Times
    stuck: Flags
    """The reading is marked: its power sensor is stuck."""
    power_w: Floats
    """Board power as the driver reports it."""
    instant_w: Floats | None
    """Its instantaneous reading."""
    counter_j: Floats | None
    """The driver's energy counter."""
    utilization: Floats
    """Share of time with a kernel, 0 to 1."""
    window_s: Floats | None
    """Time over which the sensor averages `power_w`."""
    limit_w: Floats | None
    """The power limit."""
    spread_w: Floats | None = None
    """Of the two ends of a minute of pruned telemetry, where the other figures are means: the range of its power."""
    every_s: Floats | None = None
    """Of these: how far its readings were apart."""

    def each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Readings:
        """Readings whose arrays are these after a change."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = {name: None if values is None else change(values) for name, values in columns.items()}
        return Readings(**columns)


class Reason(Code):
    """Why the energy of a window is no honest figure."""

    NO_TELEMETRY = "no telemetry", "there is no reading of this GPU in this time"
    NO_SENSOR = "no sensor", "the readings have neither power nor an energy counter"
    STUCK = "sensor stuck", "the power sensor was stuck for most of this time, and no energy counter was read"
    ZERO = "zero watts", "the sensor read 0 W, which no GPU draws, for most of this time"
    GAPS = "mostly gaps", "less than half of this time has readings"


class Problem(Code):
    """What went wrong in the readings of a GPU, and what was done about it."""

    GAP = "gap", "no readings: bounded by what the GPU draws without work and by its power limit"
    STUCK = "sensor stuck", "the power reading did not move while the GPU's load did: not used"
    ZERO = "zero watts", "the sensor read 0 W, which no GPU draws: not used"
    IMPOSSIBLE = "impossible power", "readings far above the power limit: not used"
    COUNTER_RESET = "counter reset", "the energy counter began anew: power is used across the reset"
    COUNTER_BACK = "counter back", "the energy counter went back and did not begin anew: power is used there"
    COUNTER_WRAP = "counter wrapped", "the energy counter went over its 32 bits: counted across"
    COUNTER_JUMP = "counter jump", "the energy counter grew by more than the GPU can draw: power is used there"
    COUNTER_STALE = "counter stale", "the energy counter stood still or crept while the GPU drew power: power is used"
    DISAGREE = "counter and power disagree", "the energy counter and the integrated power differ; the interval has both"
    DRIVER_RELOAD = "driver reload", "the driver was loaded again, which sets the energy counter to 0"
    CLOCK_STEP = "clock step", "the wall clock was set: times around it may be wrong by as much"
    TWICE = "counted twice", "the store knows the GPU by its number only and by its UUID: both are in the sums"


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was found in the readings of a GPU: a row of `whorl energy reconcile`."""

    problem: Problem
    began_ns: int
    ended_ns: int
    joules: float | None = None
    """Energy that it concerns: best estimate in a gap, size of a step of the counter."""
    percent: float | None = None
    """Of a disagreement: how much more the counter has than the integrated power."""
    seconds: float | None = None
    """Of a step of the clock: by how much it was set, back where that is negative."""
    n: int = 1
    """How many findings of this kind the row stands for."""
    has_rows: bool = False
    """Of a gap: whether the GPU has rows within it, none of which counts."""


def notes_of(problem: Problem, began: Times, ended: Times, joules: Floats) -> list[Note]:
    """One note each, but not more than `_NOTES`: the last stands for all others."""
    rows: Sequence[tuple[int, int, float]] = list(zip(began.tolist(), ended.tolist(), joules.tolist(), strict=True))
    notes = [Note(problem, *row) for row in rows[:_NOTES]]
    if len(rows) > _NOTES:
        last = float(joules[_NOTES - 1 :].sum())
        notes[-1] = Note(problem, int(began[_NOTES - 1]), int(ended[-1]), last, n=len(rows) - _NOTES + 1)
    return notes


# -- which readings count --------------------------------------------------------------------------------------


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
    """What a power sensor sees, and when; s."""

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
    """The power of GPUs by reading, and their sensors, which see alike."""

    readings: Readings
    watts: Floats
    """NaN where it is not known or not to be used."""
    stuck: Flags
    zero: Flags
    timing: SensorTiming
    read_every_s: Floats
    """The median time between readings."""

    @cached_property
    def has_power(self) -> Flags:
        return ~np.isnan(self.watts)

    @cached_property
    def times_s(self) -> Floats:
        """Since the first reading."""
        times: Floats = (self.readings.ts_ns - self.readings.ts_ns[:, :1]) / 1e9
        return times

    @cached_property
    def step_s(self) -> Floats:
        """By interval, how long it is."""
        return steps(self.times_s)

    @cached_property
    def refused(self) -> Flags:
        """By interval, whether power was read at one of its ends and is not used."""
        return beside(self.stuck | self.zero)

    @cached_property
    def usual_s(self) -> Floats:
        """How far new values that were read are apart."""
        return np.maximum(self.read_every_s, self.timing.period_s)

    def reach(self, seconds: Floats | float) -> int:
        """How many readings come in so much time."""
        return int(_reach(seconds, self.read_every_s)[0, 0])


def _reach(seconds: Floats | float, read_every_s: Floats) -> Ints:
    return np.maximum(np.rint(seconds / np.maximum(read_every_s, 1e-3)), 1).astype(np.int64)


def sensed_power(
    readings: Readings, limit_w: Floats, sensor: PowerSensor | None, notes: Sequence[list[Note]]
) -> Iterator[tuple[Ints, SensedPower]]:
    """Choose between the readings of power, and take out those that cannot be and those that say nothing; adds to the
    `notes` of each GPU. `sensor` has what is known of that of their model; `limit_w` is NaN where no limit is known.

    GPUs of which as many readings count and whose sensors see alike come together: their numbers, and their power.
    """
    between = np.diff(readings.ts_ns, axis=1)
    read_every_s = np.median(between, axis=1, keepdims=True) / 1e9 if between.size else np.zeros((len(between), 1))
    watts, timings = _chosen(readings, read_every_s, sensor)
    zero = watts < _LEAST_W
    impossible = watts > np.fmin(_NEVER_W, _ABOVE_LIMIT * limit_w)
    stuck = ((readings.stuck & ~np.isnan(watts)) | _stuck(readings, watts)) & ~zero
    for problem, flags in ((Problem.STUCK, stuck), (Problem.ZERO, zero), (Problem.IMPOSSIBLE, impossible)):
        for gpu in np.flatnonzero(flags.any(axis=1)).tolist():
            at = np.flatnonzero(flags[gpu])
            began, ended = readings.ts_ns[gpu, at[[0, -1]]].tolist()
            notes[gpu].append(Note(problem, began, ended, n=len(at)))
    watts[stuck | zero | impossible] = np.nan
    useful = ~np.isnan(watts) | stuck | zero
    if readings.counter_j is not None:
        useful |= ~np.isnan(readings.counter_j)
    lag_s = np.array([[timing.lag_s] for timing in timings])
    usual_s = np.maximum(read_every_s, np.array([[timing.period_s] for timing in timings]))
    counts = (useful.sum(axis=1), _reach(lag_s, read_every_s)[:, 0], _reach(usual_s, read_every_s)[:, 0])
    keys = zip(timings, *(count.tolist() for count in counts), strict=True)
    for (timing, n, *_), gpus in alike(keys).items():
        keep = useful[gpus] if n < useful.shape[1] else None

        def of_these(values: NDArray[Any], gpus: Ints = gpus, keep: Flags | None = keep) -> NDArray[Any]:
            rows = rows_of(gpus, values)
            return rows if keep is None else rows[keep].reshape(len(gpus), np.count_nonzero(keep[0]))

        parts = of_these(watts), of_these(stuck), of_these(zero)
        yield gpus, SensedPower(readings.each(of_these), *parts, timing, read_every_s[gpus])


def _chosen(readings: Readings, read_every_s: Floats, sensor: PowerSensor | None) -> tuple[Floats, list[SensorTiming]]:
    """The power, and by GPU what its sensor sees."""
    power, instant = readings.power_w, readings.instant_w
    draw_s = sensor.draw_ms / 1000 if sensor is not None and sensor.draw_ms is not None else np.nan
    draws_s = np.full(len(power), draw_s)
    if readings.window_s is not None:  # as stored
        stored_s = quantiles(readings.window_s, [0.5])[0][:, 0]
        draws_s = np.where(np.isnan(stored_s), draw_s, stored_s)
    pairs, same = np.zeros(len(power), np.int64), np.zeros(len(power), bool)
    has_instant = np.zeros(len(power), bool)
    if instant is not None:
        has_instant = np.any(~np.isnan(instant), axis=1)
        pairs = np.count_nonzero(~np.isnan(power + instant), axis=1)
        equal = np.count_nonzero(power == instant, axis=1)
        same = np.logical_and(pairs > 0, equal >= _EQUAL * pairs)
    of_gpus = [values.tolist() for values in (draws_s, read_every_s[:, 0], has_instant, pairs, same)]
    choices = [_sensor_choice(sensor, *of_gpu) for of_gpu in zip(*of_gpus, strict=True)]
    if instant is not None:
        sources = np.array([[choice.source] for choice in choices])
        power = np.where(np.isnan(power), instant, power)
        other = np.where(np.isnan(instant), power, instant)
        power = np.where(sources == PowerSource.BOTH, (power + other) / 2, power)
        power = np.where(sources == PowerSource.INSTANT, other, power)
    timings = []
    for gpu, choice in enumerate(choices):
        times = (readings.ts_ns[gpu] - readings.ts_ns[gpu, 0]) / 1e9 if choice.fine else None
        timings.append(choice.timing(times, readings.utilization[gpu], power[gpu]))
    return power.copy() if power is readings.power_w else power, timings


@dataclass(frozen=True, slots=True)
class _SensorChoice:
    """Which readings of power are used of a GPU, and what is known of their sensor without looking at them."""

    source: PowerSource
    window_s: float
    """NaN where it is not known."""
    period_s: float
    part_s: float
    """The window of an instantaneous reading."""
    slow: bool
    """Whether its answer is slow."""
    fine: bool
    """Whether it was read so often that readings tell how late they are."""

    def timing(self, times: Floats | None, utilization: Floats, power: Floats) -> SensorTiming:
        """What the sensor sees; of readings that are fine, `times` in s."""
        period, window, source = self.period_s, self.window_s, self.source
        if self.slow:
            return SensorTiming(_SLOW_S, period, _SLOW_S / 2 + period / 2, _LATE_S + period, 5 * _SLOW_S, source)
        delay = None if times is None else _delay(times, utilization, power)
        if not window <= _MEAN_S / 2:  # a mean of 1 s, as far as its model tells, or nothing is known
            if times is not None and _sharp(times, power):  # older drivers do not average
                window = self.part_s
            elif math.isnan(window) and delay is not None:
                window = _MEAN_S
            elif math.isnan(window):
                half = _MEAN_S / 2 + _LATE_S
                return SensorTiming(self.part_s, period, _MEAN_S / 3, half, _MEAN_S + self.part_s + period, source)
        timing = SensorTiming.of(window, period, source)
        if delay is not None and abs(delay - timing.shift_s) > _LATE_S:
            delay = max(delay, window / 2)  # a reading has nothing of the time after it
            later = max(delay - timing.shift_s, 0.0)
            timing = SensorTiming(window, period, delay, timing.lag_s, timing.settle_s + later, source)
        return timing


def _sensor_choice(
    sensor: PowerSensor | None, draw_s: float, read_every_s: float, has_instant: bool, pairs: int, same: bool
) -> _SensorChoice:
    """`draw_s`: what the power draw averages over (NaN: unknown); so many `pairs` of readings have an instantaneous
    power too, of which most are the `same`."""
    period = sensor.period_ms / 1000 if sensor and sensor.period_ms else PERIOD_S
    if not (sensor and sensor.period_ms) and 0 < draw_s <= 0.01:
        period = _SHORT_PERIOD_S
    part = sensor.window_ms / 1000 if sensor and sensor.window_ms else draw_s if 0 < draw_s <= period else PART_S
    source, window = PowerSource.POWER, draw_s
    if has_instant and same and not draw_s > period:
        source, window = PowerSource.BOTH, part
    elif has_instant:
        window = _MEAN_S if math.isnan(draw_s) and pairs >= _PAIRS else draw_s
        if not (window > 0 and part < 0.9 * min(window, max(read_every_s, period))):  # else the mean has seen more
            source, window = PowerSource.INSTANT, part
    slow = sensor is not None and sensor.period_ms == 20 and sensor.window_ms is None and math.isnan(draw_s)
    if sensor is not None and sensor.of_module:
        source = PowerSource.GPU_POWER
    return _SensorChoice(source, window, period, part, slow, 0 < read_every_s <= _EDGE_EVERY_S)


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
    return _TOLD_LATE_S + float(np.median(delays)) if delays else None


def _area_over_height(times: Floats, values: Floats) -> float | None:
    """When a step between the levels at both ends of some values is, on average; None where they are no such step."""
    eighth = len(values) // 8
    if eighth < 1 or np.isnan(values).any():
        return None
    before, after = values[:eighth].mean(), values[-eighth:].mean()
    if before == after or abs(after - before) < _CLEAN * np.ptp(values):
        return None
    return float(np.trapezoid((after - values) / (after - before), times))


def _sharp(times: Floats, watts: Floats) -> bool:
    """Whether the readings move faster than a mean of 1 s can."""
    has_power = ~np.isnan(watts)
    moments, power = times[has_power], watts[has_power]
    if len(power) < 3 or np.ptp(power) < _SHARP_W:
        return False
    ahead = np.searchsorted(moments, moments + _SHARP_S, "right") - 1
    return bool(np.abs(power[ahead] - power).max() > _SHARP * np.ptp(power))


def _stuck(readings: Readings, watts: Floats) -> Flags:
    """Readings that are the same for long while utilisation moves."""
    moves = np.ones(watts.shape, bool)
    moves[:, :-1] = watts[:, 1:] != watts[:, :-1]
    ends = np.flatnonzero(moves) + 1  # of readings that are the same, among those of all GPUs
    firsts = np.append(0, ends[:-1])
    if not (ends - firsts >= _STUCK_READINGS).any():
        return np.zeros(watts.shape, bool)
    ts, used = readings.ts_ns.ravel(), readings.utilization.ravel()
    moved = np.fmax.reduceat(used, firsts) - np.fmin.reduceat(used, firsts) >= _MOVED
    stuck = moved & (ends - firsts >= _STUCK_READINGS) & ((ts[ends - 1] - ts[firsts]) / 1e9 >= _STUCK_S)
    return np.repeat(stuck, ends - firsts).reshape(watts.shape)


# -- between readings ------------------------------------------------------------------------------------------


def power_at(sensed: SensedPower, unknown_w: Floats) -> Floats:
    """The power at the time of each reading, W: that of the readings whose windows lie around it; `unknown_w` where no
    power is known at all."""
    power = np.empty(sensed.watts.shape)
    power[:] = unknown_w
    for gpu, (times, watts, has_power) in enumerate(zip(sensed.times_s, sensed.watts, sensed.has_power, strict=True)):
        if has_power.any():
            power[gpu] = np.interp(times + sensed.timing.shift_s, times[has_power], watts[has_power])
    return power


def followed(sensed: SensedPower) -> tuple[Flags, Flags]:
    """By interval, whether readings follow each other as usual, and whether those of a power that counts do."""
    together = np.ones(sensed.watts.shape, bool)
    together[:, -1] = False
    step_s, all_power = sensed.step_s[:, :-1], sensed.has_power.all(axis=1)
    even = step_s.max(axis=1) <= np.maximum(LONGEST * step_s.min(axis=1), SHORTEST_S)
    for gpu in np.flatnonzero(~even).tolist():
        together[gpu, :-1] = near(sensed.times_s[gpu], np.ones(len(together[gpu]), bool))
    powered = together.copy()
    for gpu in np.flatnonzero(~all_power).tolist():
        has_power = sensed.has_power[gpu]
        powered[gpu, :-1] = near(sensed.times_s[gpu], has_power) & has_power.any()
    return together, powered & ~sensed.refused


def aliasing(sensed: SensedPower, power: Floats, floor_w: Floats, full_w: Floats) -> tuple[Floats, Floats, Floats]:
    """`store.aliasing.SUMS` by interval.

    `floor_w` is what a GPU draws without work, `full_w` the most that its work draws, as far as is known. Telemetry
    of pruned minutes says how far the readings varied that its means are of.
    """
    step, readings, usual_s = sensed.step_s, sensed.readings, sensed.usual_s
    n = power.shape[1]
    longest_s = np.maximum(step, usual_s)
    missed_s = np.clip(1.0 - sensed.timing.window_s / longest_s, 0.0, 1.0) * step
    missed_s *= np.count_nonzero(sensed.has_power, axis=1, keepdims=True) >= 2
    if not missed_s.any():
        return missed_s, missed_s, missed_s
    # A block of readings has so many new values of the sensor, whose distance is `reach` readings.
    reach = sensed.reach(usual_s)
    blocks = max(n // (_BLOCK * reach), 1)
    starts = np.arange(blocks) * n // blocks
    number = np.diff(starts, append=n)
    values = np.maximum(number / reach, 1.0)
    mean, square = (np.add.reduceat(of_reading, starts, axis=1) / number for of_reading in (power, power**2))
    above = power > np.repeat(mean, number, axis=1)
    crossed = np.zeros(power.shape)
    crossed[:, 1:] = above[:, 1:] != above[:, :-1]
    crossed[:, starts] = 0
    crossings = np.add.reduceat(crossed, starts, axis=1)
    beat_w2, coherent_s = beat(np.maximum(square - mean**2, 0.0), crossings, values * usual_s)
    here = np.arange(n)
    bend_w = power[:, np.minimum(here + reach, n - 1)] - 2 * power + power[:, np.maximum(here - reach, 0)]
    rate = usual_s * np.add.reduceat(bend_w**2, starts, axis=1) / number / 6 * (1 + 4 / values)
    rate, beat_w2, coherent_s = (np.repeat(of_block, number, axis=1) for of_block in (rate, beat_w2, coherent_s))
    used = np.where(np.isnan(readings.utilization), 0.5, readings.utilization)  # nothing tells how busy it was
    hidden_w2, locked_s, partly = np.zeros(power.shape), np.zeros(power.shape), (used > 0) & (used < 1)
    if partly.any():
        hidden_w2 = np.maximum(locked_w2(power, used, floor_w, full_w) - beat_w2, 0.0)
        hidden_w2[:, :-1] = (hidden_w2[:, :-1] + hidden_w2[:, 1:]) / 2
        # It hides for no longer than readings follow each other at which the GPU was busy for a part of the time.
        at = np.flatnonzero(partly)
        runs = np.flatnonzero((partly & ~before(partly)).ravel()[at])
        lasted_s = np.add.reduceat(step.ravel()[at], runs) + usual_s[at[runs] // n, 0]
        locked_s.ravel()[at] = np.repeat(np.minimum(lasted_s, LOCKED_S), np.diff(runs, append=len(at)))
        locked_s[:, :-1] = np.maximum(locked_s[:, :-1], locked_s[:, 1:])
    rate *= longest_s / usual_s
    if readings.spread_w is not None and readings.every_s is not None:
        within_w2 = np.nan_to_num(readings.spread_w) ** 2 * _OF_RANGE
        rate[:, :-1] = np.maximum(rate[:, :-1], (within_w2 * np.nan_to_num(readings.every_s))[:, 1:])
        hidden_w2 = np.maximum(hidden_w2 - within_w2, 0.0)
    alias_j2s = beat_w2 * coherent_s + hidden_w2 * locked_s
    return rate * missed_s, (beat_w2 + hidden_w2) * missed_s, alias_j2s * missed_s
