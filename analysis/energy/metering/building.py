"""From readings to a meter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .findings import Note, Problem, Reason
from .meter import Meter
from .readings import Floats, Readings

_LONGEST_STEPS = 3.0  # a pause of more usual intervals than this is a gap
_SHORTEST_GAP_S = 1.0
_ABOVE_LIMIT = 2.0  # power over this many limits is no power of the board
_NEVER_W = 5000.0  # of one GPU, whatever its limit
_UNKNOWN_LIMIT = 1.5  # times the highest reading, where no limit is known
_LAG_S = 0.1  # a new value comes every 0.1 s at the rarest (docs/energy.md)
_IDLE_READINGS = 5
_JUMP = 1.5  # times the highest power that a counter may show
_CREEP = 0.3  # of the power: a counter that grows by less stands still


def build(cluster: str, gpu: str, readings: Readings) -> Meter:
    """The meter of one GPU."""
    notes: list[Note] = []
    power, stuck, zero = _usable(readings, notes)
    counter = np.where((readings.counter_j >= 0) & (readings.counter_j < 2.0**53), readings.counter_j, np.nan)
    some = ~(np.isnan(power) & np.isnan(counter)) | stuck | zero
    if not some.any():
        return _empty(cluster, gpu, readings, Reason.NO_SENSOR if len(readings.ts_ns) else Reason.NO_TELEMETRY)
    ts, power, counter, stuck, zero = readings.ts_ns[some], power[some], counter[some], stuck[some], zero[some]
    times = (ts - ts[0]) / 1e9
    known = ~np.isnan(power)
    idle_w, idle_n = _idle(power, readings.utilization[some])
    seen = float(power[known].max()) if known.any() else 0.0
    lowest = float(min(power[known].min(), idle_w or np.inf)) if known.any() else 0.0
    limit = readings.limit_w
    highest = max(limit or 0.0, seen) if limit else _UNKNOWN_LIMIT * seen
    if len(ts) < 2:
        return _empty(cluster, gpu, readings, Reason.GAPS)

    step = np.diff(times)
    usual = float(np.median(step))
    gap = step > max(_LONGEST_STEPS * usual, _SHORTEST_GAP_S)
    shape = np.interp(times, times[known], power[known]) if known.any() else np.full(len(times), highest / 2)
    slope, bend = step * shape[:-1], step * np.diff(shape) / 2
    by_power = slope + bend
    grown = np.diff(counter)
    with np.errstate(invalid="ignore"):
        counted = (grown >= 0) & (grown <= _JUMP * highest * step + 1.0) & (grown >= _CREEP * by_power - 1.0)
    fallen = np.flatnonzero(grown < 0)
    notes += [_note(Problem.COUNTER_RESET, ts, int(i), float(grown[i])) for i in fallen]
    factor = np.ones(len(step))
    np.divide(grown, by_power, out=factor, where=counted & (by_power > 0))
    slope, bend = slope * factor, bend * factor
    energy = np.where(counted, grown, by_power)

    blind_stuck = (stuck[:-1] | stuck[1:]) & ~counted
    blind_zero = (zero[:-1] | zero[1:]) & ~counted & ~blind_stuck
    blind = (gap & ~counted) | blind_stuck | blind_zero
    notes += [_note(Problem.GAP, ts, int(i), float(energy[i])) for i in np.flatnonzero(gap & blind)]
    measured = np.where(blind, 0.0, step)
    below = np.where(blind, np.maximum(energy - lowest * step, 0.0), 0.0)
    above = np.where(blind, np.maximum(highest * step - energy, 0.0), 0.0)
    swing = np.abs(np.diff(shape))
    variance = np.where(blind | counted, 0.0, (swing * step) ** 2 / 3)
    parts = np.array(
        [
            np.where(blind, 0.0, energy),
            below,
            above,
            variance,
            measured,
            np.where(counted & ~blind, step, 0.0),
            np.where(blind_stuck, step, 0.0),
            np.where(blind_zero, step, 0.0),
        ]
    )
    return Meter(
        cluster,
        gpu,
        int(ts[0]),
        int(ts[-1]),
        idle_w,
        idle_n,
        limit,
        highest,
        lowest,
        tuple(notes),
        None,
        times,
        _from_zero(energy),
        slope,
        bend,
        _around(swing),
        _LAG_S,
        np.array([_from_zero(part) for part in parts]),
    )


def _usable(readings: Readings, notes: list[Note]) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Power without readings that cannot be, and which readings are of a stuck sensor or of 0 W."""
    power = readings.power_w.copy()
    stuck = readings.stuck & ~np.isnan(power)
    zero = power <= 0.0
    most = _NEVER_W if readings.limit_w is None else min(_NEVER_W, _ABOVE_LIMIT * readings.limit_w)
    impossible = power > most
    power[stuck | zero | impossible] = np.nan
    for problem, which in ((Problem.STUCK, stuck), (Problem.ZERO, zero), (Problem.IMPOSSIBLE, impossible)):
        if which.any():
            at = np.flatnonzero(which)
            began, ended = int(readings.ts_ns[at[0]]), int(readings.ts_ns[at[-1]])
            notes.append(Note(problem, began, ended, n=len(at)))
    return power, stuck, zero & ~stuck


def _idle(power: Floats, utilization: Floats) -> tuple[float | None, int]:
    idle = power[(utilization == 0) & ~np.isnan(power)]
    return (float(np.median(idle)), len(idle)) if len(idle) >= _IDLE_READINGS else (None, len(idle))


def _around(swing: Floats) -> Floats:
    """The largest swing of a segment and its neighbours."""
    padded = np.pad(swing, 1)
    found: Floats = np.maximum(np.maximum(padded[:-2], padded[1:-1]), padded[2:])
    return found


def _from_zero(steps: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(steps)])


def _note(problem: Problem, ts: NDArray[np.int64], at: int, joules: float) -> Note:
    return Note(problem, int(ts[at]), int(ts[at + 1]), joules)


def _empty(cluster: str, gpu: str, readings: Readings, reason: Reason) -> Meter:
    first, last = (int(readings.ts_ns[0]), int(readings.ts_ns[-1])) if len(readings.ts_ns) else (0, 0)
    none = np.zeros(0)
    return Meter(
        cluster, gpu, first, last, None, 0, readings.limit_w, readings.limit_w or 0.0, 0.0, (), reason, np.zeros(1),
        np.zeros(1), none, none, none, 0.0, np.zeros((8, 1)),
    )  # fmt: skip
