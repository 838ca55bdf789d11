"""Which power reading to integrate, where in time it belongs, and which readings cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....store.power_sensors import sensor_of_model
from ....store.unseen import PART_S, PERIOD_S, Sensor
from ....store.vocabulary import Code
from .findings import Note, Problem
from .readings import Flags, Floats, Readings, Times, median

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
