"""Which power reading to integrate, where in time it belongs, and which readings cannot be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....store.power_sensors import sensor_of_model
from ....store.unseen import PART_S, PERIOD_S, Sensor
from .findings import Note, Problem
from .readings import Floats, Readings, median

_LEAST_W = 0.5  # no GPU draws less, whatever it does
_ABOVE_LIMIT = 2.0  # power over this many limits is no power of the board
_NEVER_W = 5000.0  # of one GPU, whatever its limit
_STUCK_READINGS, _STUCK_S, _MOVED = 30, 10.0, 0.3  # the same value for so long, while utilisation moves by so much
_SHORT_PERIOD_S = 0.02  # of sensors that average over 10 ms
_LONGEST_S = 1.0  # what the driver may average besides
_SLOW_S = 0.2  # the answer of Kepler and Maxwell, which average nothing
_MOST_EQUAL = 0.8  # of the readings, where both are of one sensor
_SHARP, _SHARP_S, _SHARP_W = 0.35, 0.25, 20.0  # a mean of 1 s moves by a quarter of its range in 0.25 s at most


@dataclass(frozen=True)
class Power:
    """The power of one GPU by reading (n,), NaN where it is not known or not to be used."""

    watts: Floats
    stuck: NDArray[np.bool_]
    zero: NDArray[np.bool_]
    sensor: Sensor
    shift_s: float
    """How much earlier than it was read the middle of a reading's window is."""
    lag_s: float
    """By how much the energy of a step may still be displaced: its height times this."""


def power_of(readings: Readings, limit_w: float | None, model: str | None, notes: list[Note]) -> Power:
    """Choose between the readings of power, and take out what cannot be; adds to `notes`."""
    step = np.diff(readings.ts_ns) / 1e9
    usual = median(step) if len(step) else _LONGEST_S
    known = sensor_of_model(model)
    told = readings.window_s[~np.isnan(readings.window_s)]
    window = median(told) if len(told) else _seconds(known.draw_ms if known else None)
    period = _seconds(known.period_ms if known else None) or (
        _SHORT_PERIOD_S if window and window <= 0.01 else PERIOD_S
    )
    part = _seconds(known.window_ms if known else None) or (window if window and window <= period else PART_S)

    reported, instant = readings.power_w, readings.instant_w
    among = max(usual, period)
    if np.isnan(instant).all():
        watts = reported
    elif (window is None or window <= period) and _same(reported, instant):
        watts, window = np.where(np.isnan(reported), instant, (reported + instant) / 2), part
        watts = np.where(np.isnan(instant), reported, watts)
    elif window and part < 0.9 * min(window, among):  # the mean has seen more
        watts = np.where(np.isnan(reported), instant, reported)
    else:
        watts, window = np.where(np.isnan(instant), reported, instant), part
    watts, stuck, zero = _without_impossible(readings, watts, limit_w, notes)
    if known is not None and window is None and known.window_ms is None and known.period_ms == 20:
        sensor, shift, lag = Sensor(_SLOW_S / 2, period), 0.0, _SLOW_S + period
    elif window is None:
        longest = 0.0 if _sharp(readings.ts_ns, watts) else _LONGEST_S
        sensor, shift, lag = Sensor(part, period), 0.0, longest / 2 + part + period
    elif window <= period:  # so short that it is left where it was read
        sensor, shift, lag = Sensor(window, period), 0.0, window / 2 + period
    else:
        sensor, shift, lag = Sensor(window, period), (window + period) / 2, window / 8 + period
    return Power(watts, stuck, zero, sensor, shift, lag)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _without_impossible(
    readings: Readings, watts: Floats, limit_w: float | None, notes: list[Note]
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Power without readings that cannot be; which are of a stuck sensor, and which of 0 W."""
    watts = watts.copy()
    with np.errstate(invalid="ignore"):
        zero = watts < _LEAST_W
        most = _NEVER_W if limit_w is None else min(_NEVER_W, _ABOVE_LIMIT * limit_w)
        impossible = watts > most
    stuck = ((readings.stuck & ~np.isnan(watts)) | _stuck(readings, watts)) & ~zero
    for problem, which in ((Problem.STUCK, stuck), (Problem.ZERO, zero), (Problem.IMPOSSIBLE, impossible)):
        if which.any():
            at = np.flatnonzero(which)
            notes.append(Note(problem, int(readings.ts_ns[at[0]]), int(readings.ts_ns[at[-1]]), n=len(at)))
    watts[stuck | zero | impossible] = np.nan
    return watts, stuck, zero


def _stuck(readings: Readings, watts: Floats) -> NDArray[np.bool_]:
    """Readings that are the same for long while utilisation moves."""
    found = np.zeros(len(watts), bool)
    if len(watts) < _STUCK_READINGS:
        return found
    ends = np.flatnonzero(np.concatenate([watts[1:] != watts[:-1], [True]])) + 1
    starts = np.concatenate([[0], ends[:-1]])
    lasted = (readings.ts_ns[ends - 1] - readings.ts_ns[starts]) / 1e9
    for run in np.flatnonzero((ends - starts >= _STUCK_READINGS) & (lasted >= _STUCK_S)):
        span = slice(int(starts[run]), int(ends[run]))
        used = readings.utilization[span]
        used = used[~np.isnan(used)]
        if len(used) and used.max() - used.min() >= _MOVED:
            found[span] = True
    return found


def _same(reported: Floats, instant: Floats) -> bool:
    """Whether both are readings of one sensor, one shortly after the other: then most of them are equal."""
    both = ~np.isnan(reported) & ~np.isnan(instant)
    return bool(both.any() and (reported[both] == instant[both]).mean() >= _MOST_EQUAL)


def _sharp(ts: NDArray[np.int64], watts: Floats) -> bool:
    """Whether the readings move faster than a mean of 1 s can."""
    there = ~np.isnan(watts)
    at, power = ts[there] / 1e9, watts[there]
    if len(power) < 3 or np.ptp(power) < _SHARP_W:
        return False
    ahead = np.searchsorted(at, at + _SHARP_S, "right") - 1
    return bool(np.abs(power[ahead] - power).max() > _SHARP * np.ptp(power))
