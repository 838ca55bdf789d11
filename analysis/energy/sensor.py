"""What a power sensor says: which reading counts, where in time it belongs, and what it cannot have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...store.aliasing import PART_S, PERIOD_S, Sensor, beats, hidden_w2, partly
from ...store.power_sensors import sensor_of_model
from ...store.vocabulary import Code
from ..telemetry.pauses import near
from . import counter as counters
from .series import Flags, Floats, Groups, Ints, Note, Problem, Readings, Times, median

_LEAST_W = 0.5  # no GPU draws less, whatever it does
_ABOVE_LIMIT = 2.0  # power over this many limits is no power of the board
_NEVER_W = 5000.0  # of one GPU, whatever its limit
_STUCK_READINGS, _STUCK_S, _MOVED = 30, 10.0, 0.3  # the same value for so long, while utilisation moves by so much
_SHORT_PERIOD_S = 0.02  # of sensors that average over 10 ms
_LONGEST_S = 1.0  # what the driver may average besides
_SLOW_S = 0.2  # the answer of Kepler and Maxwell, which average nothing
_MOST_EQUAL = 0.8  # of the readings, where both are of one sensor
_SHARP, _SHARP_S, _SHARP_W = 0.35, 0.25, 20.0  # a mean of 1 s moves by a quarter of its range in 0.25 s at most


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
class Power:
    """The power of some GPUs by reading (n,), NaN where it is not known or not to be used."""

    watts: Floats
    stuck: Flags
    zero: Flags
    sensors: Sequence[Sensor]
    """By GPU."""
    shift_s: Floats
    """By GPU, how much earlier than it was read the middle of a reading's window is."""
    lag_s: Floats
    """By GPU, by how much the energy of a step may still be displaced: its height times this."""
    settle_s: Floats
    """By GPU, how long after work ended a reading has nothing of it."""
    source: Sequence[PowerSource]
    """By GPU."""


def power_of(readings: Readings, limit_w: Floats, models: Sequence[str | None], notes: Sequence[list[Note]]) -> Power:
    """Choose between the readings of power, and take out what cannot be; adds to the `notes` of each GPU."""
    groups = readings.groups
    known = [None if model is None else sensor_of_model(model) for model in models]
    window = _told(readings)
    period, part = np.empty(len(groups)), np.empty(len(groups))
    for gpu, (of_model, told) in enumerate(zip(known, window.tolist(), strict=True)):
        if np.isnan(told) and of_model is not None and of_model.draw_ms is not None:
            told = window[gpu] = of_model.draw_ms / 1000
        period[gpu] = _seconds(of_model.period_ms if of_model else None) or (
            _SHORT_PERIOD_S if 0 < told <= 0.01 else PERIOD_S
        )
        part[gpu] = _seconds(of_model.window_ms if of_model else None) or (told if 0 < told <= period[gpu] else PART_S)
    watts, window, source = _chosen(readings, window, period, part)
    source = [
        PowerSource.GPU_POWER if model is not None and model.of_module else code
        for model, code in zip(known, source, strict=True)
    ]
    watts, stuck, zero = _without_impossible(readings, watts, limit_w, notes)
    shortest = np.minimum.reduceat(_apart(readings), groups.firsts) / 1e9
    sensors, shift, lag, settle = [], np.zeros(len(groups)), np.empty(len(groups)), np.empty(len(groups))
    for gpu, ((began, ended), of_model) in enumerate(zip(groups.spans, known, strict=True)):
        told, every, least = float(window[gpu]), float(period[gpu]), float(part[gpu])
        if np.isnan(told):
            if of_model is not None and of_model.window_ms is None and of_model.period_ms == 20:
                sensors.append(Sensor(_SLOW_S / 2, every))
                lag[gpu] = _SLOW_S + every
                settle[gpu] = 5 * _SLOW_S
                continue
            mine = slice(began, ended)
            sharp = shortest[gpu] <= 2 * _SHARP_S and _sharp(readings.ts_ns[mine], watts[mine])
            sensors.append(Sensor(least, every))
            lag[gpu] = (0.0 if sharp else _LONGEST_S) / 2 + least + every
            settle[gpu] = (0.0 if sharp else _LONGEST_S) + least + every
        elif told <= every:  # so short that it is left where it was read
            sensors.append(Sensor(told, every))
            lag[gpu] = told / 2 + every
        else:
            sensors.append(Sensor(told, every))
            shift[gpu], lag[gpu] = (told + every) / 2, told / 8 + every
        if not np.isnan(told):
            settle[gpu] = told + every
    return Power(watts, stuck, zero, sensors, shift, lag, settle, source)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _apart(readings: Readings) -> Times:
    """By reading, how long it is to the next of its GPU; after the last, for ever."""
    apart = readings.groups.steps(readings.ts_ns)
    apart[readings.groups.lasts] = np.iinfo(np.int64).max
    return apart


def _told(readings: Readings) -> Floats:
    """By GPU, the time over which its sensor averages, as it was stored; NaN where it was not."""
    groups = readings.groups
    found = np.full(len(groups), np.nan)
    if readings.window_s is None:
        return found
    for gpu, at in groups.found(~np.isnan(readings.window_s)):
        found[gpu] = median(readings.window_s[at])
    return found


def _chosen(
    readings: Readings, window: Floats, period: Floats, part: Floats
) -> tuple[Floats, Floats, list[PowerSource]]:
    """The better of two readings of power, and by GPU the time over which its sensor averages and which it is."""
    groups, reported, instant = readings.groups, readings.power_w, readings.instant_w
    source = [PowerSource.POWER] * len(groups)
    if instant is None:
        return reported, window, source
    lacking, without = np.isnan(reported), np.isnan(instant)
    equal = np.add.reduceat((reported == instant).astype(np.int64), groups.firsts)
    both = np.add.reduceat((~(lacking | without)).astype(np.int64), groups.firsts)
    watts, window = reported.copy(), window.copy()
    for gpu in np.flatnonzero(groups.any(~without)).tolist():
        began, ended = groups.spans[gpu]
        mine = slice(began, ended)
        told, step = float(window[gpu]), np.diff(readings.ts_ns[mine]) / 1e9
        among = max(median(step) if len(step) else _LONGEST_S, float(period[gpu]))
        # Most are equal where both are readings of one sensor, one shortly after the other.
        if not told > period[gpu] and both[gpu] and equal[gpu] / both[gpu] >= _MOST_EQUAL:
            mean = (reported[mine] + instant[mine]) / 2
            watts[mine] = np.where(lacking[mine], instant[mine], np.where(without[mine], reported[mine], mean))
            window[gpu], source[gpu] = part[gpu], PowerSource.BOTH
        elif told > 0 and part[gpu] < 0.9 * min(told, among):  # the mean has seen more
            watts[mine] = np.where(lacking[mine], instant[mine], reported[mine])
        else:
            watts[mine] = np.where(without[mine], reported[mine], instant[mine])
            window[gpu], source[gpu] = part[gpu], PowerSource.INSTANT
    return watts, window, source


def _without_impossible(
    readings: Readings, watts: Floats, limit_w: Floats, notes: Sequence[list[Note]]
) -> tuple[Floats, Flags, Flags]:
    """Power without readings that cannot be; which are of a stuck sensor, and which of 0 W."""
    groups = readings.groups
    zero = watts < _LEAST_W
    impossible = watts > groups.each(np.fmin(_NEVER_W, _ABOVE_LIMIT * limit_w))
    stuck = (readings.stuck & ~np.isnan(watts)) | _stuck(readings, watts)
    stuck &= ~zero
    for problem, which in ((Problem.STUCK, stuck), (Problem.ZERO, zero), (Problem.IMPOSSIBLE, impossible)):
        for gpu, at in groups.found(which):
            first, last = readings.ts_ns[at[[0, -1]]].tolist()
            notes[gpu].append(Note(problem, first, last, n=len(at)))
    cannot = stuck | zero | impossible
    if cannot.any():
        watts = np.where(cannot, np.nan, watts)
    return watts, stuck, zero


def _stuck(readings: Readings, watts: Floats) -> Flags:
    """Readings that are the same for long while utilisation moves."""
    found = np.zeros(len(watts), bool)
    moved = np.ones(len(watts), bool)
    np.not_equal(watts[1:], watts[:-1], out=moved[:-1])
    moved[readings.groups.lasts] = True
    ends = np.flatnonzero(moved) + 1
    long = np.flatnonzero(np.diff(ends, prepend=0) >= _STUCK_READINGS)
    for run in long.tolist():
        began, ended = int(ends[run - 1]) if run else 0, int(ends[run])
        if (readings.ts_ns[ended - 1] - readings.ts_ns[began]) / 1e9 < _STUCK_S:
            continue
        used = readings.utilization[began:ended]
        used = used[~np.isnan(used)]
        if len(used) and used.max() - used.min() >= _MOVED:
            found[began:ended] = True
    return found


def _sharp(ts: Times, watts: Floats) -> bool:
    """Whether the readings of a GPU move faster than a mean of 1 s can."""
    there = ~np.isnan(watts)
    at, power = ts[there] / 1e9, watts[there]
    if len(power) < 3 or np.ptp(power) < _SHARP_W:
        return False
    ahead = np.searchsorted(at, at + _SHARP_S, "right") - 1
    return bool(np.abs(power[ahead] - power).max() > _SHARP * np.ptp(power))


_USUAL, _SHORT_S = 3.0, 1.0  # what is no longer than so many shortest intervals, or than this, is no gap


@dataclass(frozen=True)
class Kept:
    """What is used of the readings of some GPUs; arrays (n,), NaN where a value is missing."""

    groups: Groups
    ts_ns: Times
    watts: Floats
    counter_j: Floats | None
    """None: no GPU has any."""
    utilization: Floats
    stuck: Flags
    zero: Flags
    mixed: Flags | None
    """Readings of a time that the clock showed twice; None: there is none."""
    spread_w: Floats | None
    every_s: Floats | None
    sensors: Sequence[Sensor]
    """By GPU."""
    shift_s: Floats
    lag_s: Floats
    settle_s: Floats
    instant_w: Floats | None
    source: Sequence[PowerSource]
    back: Sequence[Sequence[Note]]
    """By GPU, when its clock was set back."""

    @classmethod
    def of(cls, readings: Readings, power: Power, events: Sequence[Sequence[Note]]) -> Kept:
        groups, ts = readings.groups, readings.ts_ns
        # A clock that was set back shows the same time twice: rows of both times lie mixed, and the counter to and fro.
        back = [
            [one for one in notes if one.problem == Problem.CLOCK_STEP and one.seconds is not None and one.seconds < 0]
            for notes in events
        ]
        mixed = np.zeros(len(ts), bool) if any(back) else None
        for gpu, notes in enumerate(back):
            began, ended = groups.spans[gpu]
            for note in notes:
                assert mixed is not None
                own = ts[began:ended]
                mixed[began:ended] |= (own >= note.began_ns) & (own <= note.ended_ns)
        counter = readings.counter_j
        if counter is not None:
            cannot = ~((counter >= 0) & (counter < 2.0**53))
            counter = np.where(cannot if mixed is None else cannot | mixed, np.nan, counter)
        return cls(
            groups, ts, power.watts, counter, readings.utilization, power.stuck, power.zero, mixed, readings.spread_w,
            readings.every_s, power.sensors, power.shift_s, power.lag_s, power.settle_s,
            None if readings.instant_w is None else np.where(np.isnan(power.watts), np.nan, readings.instant_w),
            power.source, back,
        )  # fmt: skip

    @cached_property
    def known(self) -> Flags:
        """Whether the power is known."""
        return ~np.isnan(self.watts)

    @property
    def has_value(self) -> Flags:
        """The readings that say anything."""
        some = self.known | self.stuck | self.zero
        return some if self.counter_j is None else some | ~np.isnan(self.counter_j)

    def only(self, which: Flags, gpus: Flags) -> Kept:
        """Some readings of some GPUs."""
        at, whose = np.flatnonzero(which), np.flatnonzero(gpus)
        numbers = whose.tolist()
        names = (
            "ts_ns",
            "watts",
            "counter_j",
            "utilization",
            "stuck",
            "zero",
            "mixed",
            "spread_w",
            "every_s",
            "instant_w",
        )
        columns: dict[str, Any] = {}
        for name in names:
            one = getattr(self, name)
            columns[name] = None if one is None else one[at]
        return replace(
            self,
            groups=Groups.of_sizes(self.groups.count(which)[whose]),
            **columns,
            sensors=[self.sensors[one] for one in numbers],
            shift_s=self.shift_s[whose],
            lag_s=self.lag_s[whose],
            settle_s=self.settle_s[whose],
            source=[self.source[one] for one in numbers],
            back=[self.back[one] for one in numbers],
        )

    @cached_property
    def times_s(self) -> Floats:
        """Since the first reading of a GPU."""
        found: Floats = (self.ts_ns - self.groups.each(self.ts_ns[self.groups.firsts])) / 1e9
        return found

    @cached_property
    def step_s(self) -> Floats:
        """To the next reading of the GPU; 0 from its last."""
        return self.groups.steps(self.times_s)

    @cached_property
    def refused(self) -> Flags | None:
        """By interval, whether power was read at one of its ends and is not used; None: nowhere."""
        which = self.stuck | self.zero
        return self.groups.beside(which) if which.any() else None


def shape_of(kept: Kept, known: Ints, middle_w: Floats) -> Floats:
    """The power at each reading. `known` is how many readings of a GPU have it, `middle_w` for those that have none."""
    groups = kept.groups
    odd = np.flatnonzero((kept.shift_s != 0) | (known < groups.sizes))
    shape = kept.watts.copy() if len(odd) else kept.watts
    for gpu in odd.tolist():
        began, ended = groups.spans[gpu]
        times, there = kept.times_s[began:ended], kept.known[began:ended]
        if known[gpu]:
            shape[began:ended] = np.interp(times + kept.shift_s[gpu], times[there], kept.watts[began:ended][there])
        else:
            shape[began:ended] = middle_w[gpu]
    return shape


def sensed_of(kept: Kept, known: Ints) -> tuple[Flags, Flags]:
    """By interval, whether readings follow each other as usual, and whether those of the power do and count."""
    groups, step = kept.groups, kept.step_s
    together = np.ones(len(step), bool)
    together[groups.lasts] = False
    longest, shortest = np.maximum.reduceat(step, groups.firsts), np.where(together, step, np.inf)
    uneven = longest > np.maximum(_USUAL * np.minimum.reduceat(shortest, groups.firsts), _SHORT_S)
    for gpu in np.flatnonzero(uneven).tolist():
        began, ended = groups.spans[gpu]
        together[began : ended - 1] = near(kept.times_s[began:ended], np.ones(ended - began, bool))
    sensed = together.copy()
    for gpu in np.flatnonzero(known < groups.sizes).tolist():
        began, ended = groups.spans[gpu]
        own = near(kept.times_s[began:ended], kept.known[began:ended]) if known[gpu] else False
        sensed[began : ended - 1] = own
    if kept.refused is not None:
        sensed &= ~kept.refused
    return together, sensed


def swing_of(groups: Groups, shape: Floats, read_every: Floats, around_s: Floats) -> Floats:
    """By interval, the range of the power within it and `around_s` before and after."""
    low, high = shape.copy(), shape.copy()
    np.minimum(shape[:-1], shape[1:], out=low[:-1])
    np.maximum(shape[:-1], shape[1:], out=high[:-1])
    last = groups.lasts - 1  # the last interval of each GPU
    low[groups.lasts], high[groups.lasts] = low[last], high[last]
    reach = 1 + (around_s / np.maximum(read_every, 1e-3)).astype(np.int64)
    if (reach == 1).all():
        low, high = _widened(np.minimum, low, groups), _widened(np.maximum, high, groups)
        return high - low
    here, firsts, lasts = np.arange(len(shape)), np.repeat(groups.firsts, groups.sizes), np.repeat(last, groups.sizes)
    while (reach > 0).any():  # doubling: each pass widens by twice as much
        by = np.repeat(reach, groups.sizes)
        before, after = np.maximum(here - by, firsts), np.minimum(here + by, lasts)
        low = np.minimum(low, np.minimum(low[before], low[after]))
        high = np.maximum(high, np.maximum(high[before], high[after]))
        reach = reach // 2
    return high - low


def _widened(most: np.ufunc, values: Floats, groups: Groups) -> Floats:
    """The least or the most of each interval and the one before and after it."""
    found = values.copy()
    most(found[1:], values[:-1], out=found[1:])
    most(found[:-1], values[1:], out=found[:-1])
    found[groups.firsts] = most(values[groups.firsts], values[groups.firsts + 1])  # not of the GPU before
    return found


def gaps(kept: Kept, blind: Flags, energy: Floats, notes: Sequence[list[Note]]) -> None:
    """One note for each stretch without readings."""
    gap = blind if kept.refused is None else blind & ~kept.refused
    for gpu, at in kept.groups.found(gap):
        first = np.concatenate([[True], np.diff(at) > 1])
        began, ended = at[first], at[np.append(first[1:], True)] + 1
        joules = np.add.reduceat(energy[at], np.flatnonzero(first))
        notes[gpu] += counters.some_notes(Problem.GAP, kept.ts_ns[began], kept.ts_ns[ended], joules)


_BLOCK = 64  # readings whose variance is taken together
_AROUND = 16  # readings before and after that tell whether readings vary
_LIKE = 4  # of them at least
_OF_RANGE = 1 / 8  # variance over range squared: between that of two levels (1/4) and of an even spread (1/12)
_TELLS_S = 1.0  # utilisation tells of up to so much time before it was read
_HARDLY = 0.03  # utilisation up to which hardly anything runs: a driver that is read causes some


def unseen(
    groups: Groups,
    times_s: Floats,
    step_s: Floats,
    read_every: Floats,
    power_w: Floats,
    utilization: Floats,
    sensors: Sequence[Sensor],
    floor_w: Floats,
    full_w: Floats,
    spread_w: Floats | None = None,
    every_s: Floats | None = None,
) -> list[Floats | None]:
    """The `SUMS` in the interval after each reading, (n,); None where all are 0. No value is missing but of
    utilisation.

    `times_s` is from the first reading of each GPU, `read_every` its median step. `spread_w` and `every_s` are of
    means: the range of what they are of, and how far apart it was read. `floor_w` is what a GPU draws without work,
    `full_w` the most that work draws, as far as is known. What is no array of readings is by GPU.
    """
    period, window = (np.array([getattr(one, name) for one in sensors]) for name in ("period_s", "window_s"))
    usual = np.maximum(read_every, period)
    locked = _locked(groups, power_w, utilization, floor_w, full_w, np.rint(_AROUND * usual / read_every))
    inside = None
    if spread_w is not None and every_s is not None:
        within = np.nan_to_num(spread_w) ** 2 * _OF_RANGE
        inside = np.zeros(len(step_s))
        inside[:-1] = (within * np.nan_to_num(every_s))[1:]
        locked = None if locked is None else np.maximum(locked - within, 0.0)
    quiet = _quiet(groups, utilization, read_every)
    asleep = quiet & (step_s <= _TELLS_S)
    asleep[:-1] &= quiet[1:]
    seen, values, still = groups, power_w, quiet
    often = np.flatnonzero(usual > 1.3 * read_every)
    if len(often):  # read more often than there are new values
        at = [np.arange(began, ended) for began, ended in groups.spans]
        for gpu in often.tolist():
            began, ended = groups.spans[gpu]
            own = times_s[began:ended]
            grid = np.arange(own[0], own[-1] + usual[gpu], usual[gpu])
            at[gpu] = began + np.minimum(np.searchsorted(own, grid, "right") - 1, len(own) - 1)
        seen, shown = Groups.of_sizes(np.array([len(one) for one in at])), np.concatenate(at)
        values, still = power_w[shown], quiet[shown]
    numbers = -(-seen.sizes // _BLOCK)
    rate, beat, ahead = _in_blocks(groups, numbers, _blocks(seen, numbers, values, usual), usual, often, times_s)
    number, calm = _calm(seen, values, still)
    if (number >= _LIKE).any():  # readings beside work say nothing of the time without it
        asleep &= groups.each(number >= _LIKE)
        rate = np.where(asleep, groups.each(usual * calm / 6), rate)
        beat, ahead = (None if one is None else np.where(asleep, 0.0, one) for one in (beat, ahead))
    every = groups.each(usual)
    longest = np.maximum(step_s, every)
    rate *= longest / every
    if inside is not None:
        rate = np.maximum(rate, inside)
    if locked is not None:
        locked[:-1] += locked[1:]
        locked /= 2
    not_seen = np.clip(1.0 - groups.each(window) / longest, 0.0, 1.0) * step_s
    return [None if one is None else one * not_seen for one in (rate, beat, ahead, locked)]


def _in_blocks(
    groups: Groups, numbers: Ints, rates: Sequence[Floats], usual: Floats, often: Ints, times_s: Floats
) -> tuple[Floats, Floats | None, Floats | None]:
    """By interval, the values of the block that it is in; None where all are 0.

    A block is of `_BLOCK` readings, and where a GPU is read more `often` than its sensor has values, of as many values.
    """
    before = np.cumsum(numbers) - numbers
    lengths = np.full(int(numbers.sum()), _BLOCK)
    lengths[before + numbers - 1] = groups.sizes - _BLOCK * (numbers - 1)
    for gpu in often.tolist():
        began, ended = groups.spans[gpu]
        own = times_s[began:ended]
        block = np.minimum(((own - own[0]) / usual[gpu]).astype(np.int64) // _BLOCK, numbers[gpu] - 1)
        lengths[before[gpu] : before[gpu] + numbers[gpu]] = np.bincount(block, minlength=numbers[gpu])
    rate, beat, ahead = (np.repeat(one, lengths) if one.any() else None for one in rates)
    return np.zeros(len(times_s)) if rate is None else rate, beat, ahead


def _quiet(groups: Groups, utilization: Floats, read_every: Floats) -> Flags:
    """By reading, whether hardly any kernel ran then, shortly before and after."""
    around = np.maximum(1, np.ceil(_TELLS_S / np.maximum(read_every, 1e-3))).astype(np.int64)
    busy = ~(utilization <= _HARDLY)
    before, after = np.zeros(len(busy), bool), np.zeros(len(busy), bool)
    before[1:], after[:-1] = busy[:-1], busy[1:]
    before[groups.firsts] = after[groups.lasts] = False
    first, last = np.flatnonzero(busy & ~before), np.flatnonzero(busy & ~after)
    of = np.searchsorted(groups.begins, first, "right") - 1
    began = np.maximum(first - around[of], groups.begins[of])
    ended = np.minimum(last + 1 + around[of], groups.begins[of + 1])
    n = len(busy) + 1
    near = np.cumsum(np.bincount(began, minlength=n) - np.bincount(ended, minlength=n))
    found: Flags = near[:-1] == 0
    return found


def _blocks(groups: Groups, numbers: Ints, power: Floats, usual: Floats) -> tuple[Floats, Floats, Floats]:
    """By block of readings: variance of the energy per second; variance of power and of energy of beats.

    `numbers` says how many blocks each GPU has.
    """
    of = np.repeat(np.arange(len(groups)), numbers)
    sizes = np.minimum(_BLOCK, groups.sizes)[of]
    within = np.arange(len(of)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    # The last block of a GPU overlaps the one before.
    starts = groups.firsts[of] + np.minimum(within * sizes, groups.sizes[of] - sizes)
    rate, spread2, crossings = np.empty(len(of)), np.empty(len(of)), np.empty(len(of), np.int64)
    for size in np.unique(sizes).tolist():
        mine = np.flatnonzero(sizes == size)
        inside = power[starts[mine, None] + np.arange(size)]
        apart = inside - inside.mean(axis=1)[:, None]
        spread2[mine] = np.einsum("ij,ij->i", apart, apart) / size
        above = apart > 0
        crossings[mine] = np.count_nonzero(above[:, 1:] != above[:, :-1], axis=1)
        if size > 2:
            bend = np.diff(inside, 2, axis=1)
            rate[mine] = usual[of[mine]] * np.einsum("ij,ij->i", bend, bend) / (size - 2) / 6
        else:
            rate[mine] = usual[of[mine]] * spread2[mine]
    return rate * (1 + 4 / sizes), *beats(spread2, crossings, sizes * usual[of])


def _calm(groups: Groups, power: Floats, quiet: Flags) -> tuple[Ints, Floats]:
    """By GPU: how many readings are quiet as those beside them are, and the mean square of how power bends there."""
    still = np.zeros(len(power), bool)
    still[1:-1] = quiet[2:] & quiet[1:-1] & quiet[:-2]
    still[groups.firsts] = still[groups.lasts] = False
    at = np.flatnonzero(still)
    bend = (power[at + 1] - power[at]) - (power[at] - power[at - 1])
    of = np.searchsorted(groups.begins, at, "right") - 1
    number = np.bincount(of, minlength=len(groups))
    found: Floats = np.bincount(of, bend**2, minlength=len(groups)) / np.maximum(number, 1)
    return number, found


def _locked(
    groups: Groups, power: Floats, utilization: Floats, floor_w: Floats, full_w: Floats, around: Floats
) -> Floats | None:
    """By reading, the variance of what may hide, W^2; None where nothing may.

    `around` readings before and after tell whether readings like this one vary: then nothing is locked.
    """
    share = np.where(np.isnan(utilization), 0.5, utilization)  # nothing tells how busy it was
    partial = partly(share)
    if not partial.any():
        return None
    one = partial.astype(np.float64)
    floor, reach = groups.each(floor_w), np.repeat(around.astype(np.int64), groups.sizes)
    here = np.arange(len(power))
    first = np.maximum(here - reach, np.repeat(groups.firsts, groups.sizes))
    last = np.minimum(here + reach, np.repeat(groups.lasts, groups.sizes))
    above = np.maximum(power - floor, 0.0)
    n, total, square = (_between(groups, of, first, last) for of in (one, one * above, one * above**2))
    n = np.maximum(n, 1)
    spread2 = np.where(n >= _LIKE, square / n - (total / n) ** 2, 0.0)
    found: Floats = np.maximum(hidden_w2(power, share, floor, groups.each(full_w)) - np.maximum(spread2, 0.0), 0.0)
    return found


def _between(groups: Groups, values: Floats, first: Ints, last: Ints) -> Floats:
    """The sums of the values from `first` to `last` of a GPU, both included."""
    upto = values.copy()
    groups.cumulate(upto)
    return upto[last] - upto[first] + values[first]
