"""What the power sensor of a GPU says: which readings count, when they are of, what they miss; and power without work.

    true power ──▶ mean over window_s ──▶ a new value every period_s ──▶ read every so often
       (its board reads gain x power + offset)      └──── shift_s ± lag_s ────┘

* **window and period**: by the GPU's model, or as stored. Where neither is known, the readings tell: a power draw that
  differs from an instantaneous reading beside it is a mean of 1 s (NVIDIA's text of nvidia-smi: Ampere and later, but
  not GA100); one that follows utilisation or moves quickly is none.
* **shift**: a reading is of the time before it: the middle of its window, which is half a window and half a period
  earlier. Where load edges show another delay, that counts.
* **lag**: by how much more or less that may be. Drivers hand values on late: by 0.2 s at most, as far as is known.
* **aliasing**: what a sensor misses that sees a part of the time (`store.aliasing`).
* **without work**: a reading tells it only where nothing ran during all of the time that the sensor averages over. A
  GPU that pauses for less than that is never read without work: then its energy counter tells it, or how power falls
  as utilisation does, or nothing but the lowest reading, which it cannot exceed.

Arrays have a value for each reading, (n,). Those of intervals have one for the time from each reading to the next; that
of the last reading is 0 or False.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...store.aliasing import FLOOR, LOCKED_S, PART_S, PERIOD_S, beat, locked_w2
from ...store.power_sensors import PowerSensor, sensor_of_model
from ...store.vocabulary import Code
from ..telemetry.readings import near

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
_EDGES = 8  # that are looked at
_TOLD_LATE_S = 0.2  # utilisation is of the last sixth of a second or so, and read a while later
_LEAST_W = 0.5  # no GPU draws less, whatever it does
_ABOVE_LIMIT = 2.0  # power over this many limits is no power of the board
_NEVER_W = 5000.0  # of one GPU, whatever its limit
_STUCK_READINGS, _STUCK_S, _MOVED = 30, 10.0, 0.3  # the same value for so long, while utilisation moves by so much
_BLOCK = 64  # new values that tell how readings vary
_OF_RANGE = 1 / 8  # variance over range squared: between that of two levels (1/4) and of an even spread (1/12)

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


# -- readings, and what is noted about them --------------------------------------------------------------------


def beside(flags: Flags) -> Flags:
    """By interval, whether one of its ends has the flag."""
    either = np.zeros(len(flags), bool)
    np.logical_or(flags[1:], flags[:-1], out=either[:-1])
    return either


def steps(values: NDArray[Any]) -> NDArray[Any]:
    """From each value to the next; 0 from the last one."""
    grown = np.zeros_like(values)
    np.subtract(values[1:], values[:-1], out=grown[:-1])
    return grown


@dataclass(frozen=True)
class Readings:
    """What was read of one GPU; arrays (n,), NaN where a value is missing, None where all are. The times increase
    strictly."""

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

    def take(self, at: Ints | slice | Flags) -> Readings:
        """Some of the readings, in order."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = {name: None if values is None else values[at] for name, values in columns.items()}
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
    """The power of a GPU by reading, and its sensor."""

    readings: Readings
    watts: Floats
    """NaN where it is not known or not to be used."""
    stuck: Flags
    zero: Flags
    timing: SensorTiming
    read_every_s: float
    """The median time between readings."""

    def take(self, at: Flags) -> SensedPower:
        """Some of the readings, in order."""
        parts = self.watts[at], self.stuck[at], self.zero[at]
        return SensedPower(self.readings.take(at), *parts, self.timing, self.read_every_s)

    @cached_property
    def has_power(self) -> Flags:
        return ~np.isnan(self.watts)

    @cached_property
    def times_s(self) -> Floats:
        """Since the first reading."""
        times: Floats = (self.readings.ts_ns - self.readings.ts_ns[0]) / 1e9
        return times

    @cached_property
    def step_s(self) -> Floats:
        """By interval, how long it is."""
        return steps(self.times_s)

    @cached_property
    def refused(self) -> Flags:
        """By interval, whether power was read at one of its ends and is not used."""
        return beside(self.stuck | self.zero)


def sensed_power(readings: Readings, limit_w: float, model: str | None, notes: list[Note]) -> SensedPower:
    """Choose between the readings of power, and take out those that cannot be; adds to the `notes` of the GPU.

    `limit_w` is NaN where no power limit is known.
    """
    between = np.diff(readings.ts_ns) / 1e9
    read_every = float(np.median(between)) if len(between) else 0.0
    watts, timing = _chosen(readings, read_every, None if model is None else sensor_of_model(model))
    watts = watts.copy()
    zero = watts < _LEAST_W
    impossible = watts > np.fmin(_NEVER_W, _ABOVE_LIMIT * limit_w)
    stuck = ((readings.stuck & ~np.isnan(watts)) | _stuck(readings, watts)) & ~zero
    for problem, flags in ((Problem.STUCK, stuck), (Problem.ZERO, zero), (Problem.IMPOSSIBLE, impossible)):
        if flags.any():
            at = np.flatnonzero(flags)
            began, ended = readings.ts_ns[at[[0, -1]]].tolist()
            notes.append(Note(problem, began, ended, n=len(at)))
    watts[stuck | zero | impossible] = np.nan
    return SensedPower(readings, watts, stuck, zero, timing, read_every)


def _chosen(readings: Readings, read_every: float, row: PowerSensor | None) -> tuple[Floats, SensorTiming]:
    """The power, and what its sensor sees; `row` has what is known of sensors of the model."""
    draw = row.draw_ms / 1000 if row is not None and row.draw_ms is not None else np.nan
    if readings.window_s is not None and not np.isnan(readings.window_s).all():  # as stored
        draw = float(np.nanmedian(readings.window_s))
    period = row.period_ms / 1000 if row and row.period_ms else _SHORT_PERIOD_S if 0 < draw <= 0.01 else PERIOD_S
    part = row.window_ms / 1000 if row and row.window_ms else draw if 0 < draw <= period else PART_S
    power, source, window = readings.power_w, PowerSource.POWER, draw
    instant = readings.instant_w
    if instant is not None and not np.isnan(instant).all():
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
    times = (readings.ts_ns - readings.ts_ns[0]) / 1e9
    delay = _delay(times, readings.utilization, power) if fine else None
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
    """When a step between the levels at both ends of some values is, on average; None where there is none."""
    quarter = len(values) // 8
    if quarter < 1 or np.isnan(values).any():
        return None
    before, after = values[:quarter].mean(), values[-quarter:].mean()
    return float(np.trapezoid((after - values) / (after - before), times)) if after != before else None


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
    stuck = np.zeros(len(watts), bool)
    ends = np.append(np.flatnonzero(watts[1:] != watts[:-1]) + 1, len(watts))
    firsts = np.append(0, ends[:-1])
    for first, end in np.stack([firsts, ends], axis=1)[ends - firsts >= _STUCK_READINGS].tolist():
        used = readings.utilization[first:end]
        used = used[~np.isnan(used)]
        lasted_s = (readings.ts_ns[end - 1] - readings.ts_ns[first]) / 1e9
        stuck[first:end] = lasted_s >= _STUCK_S and len(used) > 0 and np.ptp(used) >= _MOVED
    return stuck


# -- between readings ------------------------------------------------------------------------------------------


def power_at(sensed: SensedPower, unknown_w: float) -> Floats:
    """The power at the time of each reading, W: that of the readings whose windows lie around it; `unknown_w` where no
    power is known at all."""
    has_power = sensed.has_power
    if not has_power.any():
        return np.full(len(has_power), unknown_w)
    shifted = sensed.times_s + sensed.timing.shift_s
    return np.interp(shifted, sensed.times_s[has_power], sensed.watts[has_power])


def followed(sensed: SensedPower) -> tuple[Flags, Flags]:
    """By interval, whether readings follow each other as usual, and whether those of a power that counts do."""
    times, has_power = sensed.times_s, sensed.has_power
    together = np.append(near(times, np.ones(len(times), bool)), False)
    powered = together if has_power.all() else np.append(near(times, has_power), False) & has_power.any()
    return together, powered & ~sensed.refused


def aliasing(sensed: SensedPower, power: Floats, floor_w: float, full_w: float) -> tuple[Floats, Floats, Floats]:
    """`store.aliasing.SUMS` by interval.

    `floor_w` is what the GPU draws without work, `full_w` the most that its work draws, as far as is known. Telemetry
    of pruned minutes says how far the readings varied that its means are of.
    """
    step, readings, n = sensed.step_s, sensed.readings, len(power)
    usual = max(sensed.read_every_s, sensed.timing.period_s)
    longest = np.maximum(step, usual)
    missed_s = np.clip(1.0 - sensed.timing.window_s / longest, 0.0, 1.0) * step
    if not missed_s.any() or np.count_nonzero(sensed.has_power) < 2:
        return np.zeros(n), np.zeros(n), np.zeros(n)
    # A block of readings has so many new values of the sensor, whose distance is `reach` readings.
    reach = max(int(np.rint(usual / max(sensed.read_every_s, 1e-3))), 1)
    blocks = max(n // (_BLOCK * reach), 1)
    starts = np.arange(blocks) * n // blocks
    number = np.diff(starts, append=n)
    values = np.maximum(number / reach, 1.0)
    mean, square = (np.add.reduceat(of_reading, starts) / number for of_reading in (power, power**2))
    above = power > np.repeat(mean, number)
    crossed = np.append(0.0, above[1:] != above[:-1])
    crossed[starts] = 0
    beat_w2, coherent_s = beat(np.maximum(square - mean**2, 0.0), np.add.reduceat(crossed, starts), values * usual)
    here = np.arange(n)
    bend_w = power[np.minimum(here + reach, n - 1)] - 2 * power + power[np.maximum(here - reach, 0)]
    rate = usual * np.add.reduceat(bend_w**2, starts) / number / 6 * (1 + 4 / values)
    rate, beat_w2, coherent_s = (np.repeat(of_block, number) for of_block in (rate, beat_w2, coherent_s))
    used = np.where(np.isnan(readings.utilization), 0.5, readings.utilization)  # nothing tells how busy it was
    hidden_w2, locked_s, at = np.zeros(n), np.zeros(n), np.flatnonzero((used > 0) & (used < 1))
    if len(at):
        hidden_w2[at] = np.maximum(locked_w2(power[at], used[at], floor_w, full_w) - beat_w2[at], 0.0)
        hidden_w2[:-1] = (hidden_w2[:-1] + hidden_w2[1:]) / 2
        # It hides for no longer than readings follow each other at which the GPU was busy for a part of the time.
        runs = np.flatnonzero(np.diff(at, prepend=-2) > 1)
        lasted_s = np.add.reduceat(step[at], runs) + usual
        locked_s[at] = np.repeat(np.minimum(lasted_s, LOCKED_S), np.diff(runs, append=len(at)))
        locked_s[:-1] = np.maximum(locked_s[:-1], locked_s[1:])
    rate *= longest / usual
    if readings.spread_w is not None and readings.every_s is not None:
        within_w2 = np.nan_to_num(readings.spread_w) ** 2 * _OF_RANGE
        rate[:-1] = np.maximum(rate[:-1], (within_w2 * np.nan_to_num(readings.every_s))[1:])
        hidden_w2 = np.maximum(hidden_w2 - within_w2, 0.0)
    alias_j2s = beat_w2 * coherent_s + hidden_w2 * locked_s
    return rate * missed_s, (beat_w2 + hidden_w2) * missed_s, alias_j2s * missed_s


# -- without work ----------------------------------------------------------------------------------------------


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
    """What a GPU draws without work, W, and the interval of it."""

    watts: float
    """NaN where only bounds are known."""
    low_w: float
    high_w: float
    """NaN where nothing is known."""
    source: IdleSource


def idle_power(sensed: SensedPower, limit_w: float) -> IdlePower:
    """What the GPU draws without work. `limit_w` is NaN where no power limit is known."""
    readings = sensed.readings
    lowest_w = float(np.fmin.reduce(sensed.watts))
    low, high = float(np.nan_to_num(FLOOR * limit_w)), (1 + _ALIKE) * lowest_w + _ALIKE_W
    unknown = IdlePower(np.nan, min(low, float(np.nan_to_num(high))), high,
                        IdleSource.UNKNOWN if np.isnan(high) else IdleSource.BOUNDED)  # fmt: skip
    without_work = readings.utilization == 0
    if np.count_nonzero(without_work) < _IDLE_READINGS:
        return unknown
    choices = [(IdleSource.POWER, sensed.watts, sensed.timing.settle_s)]
    if readings.instant_w is not None:
        instant_w = np.where(sensed.has_power, readings.instant_w, np.nan)
        choices.insert(0, (IdleSource.INSTANT, instant_w, PART_S + PERIOD_S))
    for source, power, settle_s in choices:
        idle_w = power[_clean(sensed, power, without_work, settle_s)]
        if len(idle_w) >= _IDLE_READINGS and _is_idle(sensed, idle_w, limit_w):
            low_w, high_w = np.quantile(idle_w, _MIDDLE).tolist()
            return IdlePower(float(np.median(idle_w)), low_w, high_w, source)
    return _by_counter(sensed, without_work, high) or _by_line(sensed, low) or unknown


def _clean(sensed: SensedPower, power: Floats, without_work: Flags, settle_s: float) -> Flags:
    """The readings of which all that the sensor averaged over was without work."""
    counts = without_work & ~np.isnan(power)
    on = np.append(counts[:-1] & counts[1:], False)  # both ends of the interval after a reading are without work
    together = on & (sensed.step_s <= _TOGETHER_S)
    sure = on & (sensed.step_s <= _FINE_S)  # what may have run between readings that are far apart, likeness tells
    sure[:-1] |= on[:-1] & (np.abs(power[1:] - power[:-1]) <= _ALIKE * power[:-1] + _ALIKE_W)
    since_s, until_s = _around(sensed.times_s, together)
    long = (since_s >= settle_s - _ROUND_S) & (until_s >= _AFTER_WORK_S - _ROUND_S)
    clean: Flags = sure & _before(sure) & (long | ~together | ~_before(together))
    return clean


def _around(times: Floats, together: Flags) -> tuple[Floats, Floats]:
    """By reading, for how long such intervals follow each other up to it, and from it on, s."""
    here = np.arange(len(times))
    first = np.maximum.accumulate(np.where(_before(together), 0, here))
    last = np.minimum.accumulate(np.where(together, len(times), here)[::-1])[::-1]
    return times - times[first], times[last] - times


def _before(flags: Flags) -> Flags:
    """By reading, whether the interval before it has the flag."""
    before = np.zeros(len(flags), bool)
    before[1:] = flags[:-1]
    return before


def _is_idle(sensed: SensedPower, idle_w: Floats, limit_w: float) -> bool:
    """Whether readings that seem to be without work are: a load in step with the readings looks as if nothing ran."""
    middle = float(np.median(idle_w))
    working = sensed.watts[(sensed.readings.utilization > _WORKS) & sensed.has_power]
    apart = len(working) < 2 or working.mean() >= (1 + _ABOVE) * middle + _ABOVE_W
    return bool(apart and (sensed.read_every_s <= _FINE_S or not middle > _MOST * limit_w))


def _by_counter(sensed: SensedPower, without_work: Flags, high_w: float) -> IdlePower | None:
    """From what the counter grew by in pauses, once it had caught up with the work before."""
    if sensed.readings.counter_j is None:
        return None
    step, grown = sensed.step_s, np.diff(sensed.readings.counter_j, append=np.nan)
    pauses = without_work & np.append(without_work[1:], False) & (step <= _COUNTED_EVERY_S)
    since_s, until_s = _around(sensed.times_s, pauses)
    within = pauses & (grown >= 0) & (since_s >= PERIOD_S - _ROUND_S) & (until_s - step >= _AFTER_WORK_S - _ROUND_S)
    seconds = float(step[within].sum())
    if seconds < _COUNTED_S:
        return None
    watts = float(grown[within].sum()) / seconds
    doubt = watts * PERIOD_S * np.sqrt(2 * np.count_nonzero(within)) / seconds  # each of its ends is a period late
    if not watts - doubt <= high_w:  # what it counts is not what the power readings are of
        return None
    return IdlePower(min(watts, high_w), max(watts - doubt, 0.0), min(watts + doubt, high_w), IdleSource.COUNTER)


def _by_line(sensed: SensedPower, low_w: float) -> IdlePower | None:
    """From how power falls with the utilisation of its averaging window, extended to none."""
    window, power = sensed.timing.window_s, sensed.watts
    used, times = sensed.readings.utilization, sensed.times_s
    if len(times) < 2 or window <= 2 * sensed.read_every_s or np.isnan(used).any():
        return None
    busy_s = np.append(0.0, np.cumsum(np.diff(times) * used[1:]))
    inside = sensed.has_power & (times >= window + _SHIFTS_S[-1]) & (times <= times[-1] + _SHIFTS_S[0])
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
    return IdlePower(base, max(base - doubt, low_w), min(base + doubt, lowest), IdleSource.EXTENDED)
