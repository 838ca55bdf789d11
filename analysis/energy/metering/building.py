"""From readings to a meter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ....store.unseen import FLOOR, LIKELY, LOCKED_S, SUMS
from ...pauses import near
from . import counters
from .findings import Note, Problem, Reason
from .meter import PARTS, Meter
from .power import power_of
from .readings import Floats, Readings, Times, median
from .sampling import unseen

_UNKNOWN_LIMIT = 1.5  # times the highest reading, where no limit is known
_MOST_W = 1500.0  # no board draws more: where neither a limit nor a reading is known
_IDLE_READINGS = 5
_OFTEN = 0.99  # quantile of the readings that counts as the most that work draws
_AGREE = 0.02  # a difference between counter and power that needs no mention
_AGREE_S = 10.0  # less time than this tells nothing of it


def build(
    cluster: str,
    gpu: str,
    readings: Readings,
    limit_w: float | None = None,
    model: str | None = None,
    events: Sequence[Note] = (),
) -> Meter:
    """The meter of one GPU. `limit_w` is its power limit where the readings have none; `events` were told elsewhere."""
    notes = list(events)
    limit_w = readings.highest_limit_w or limit_w
    power = power_of(readings, limit_w, model, notes)
    counter = np.where((readings.counter_j >= 0) & (readings.counter_j < 2.0**53), readings.counter_j, np.nan)
    # A clock that was set back shows the same time twice: rows of both times lie mixed, and the counter to and fro.
    back = [one for one in events if one.problem == Problem.CLOCK_STEP and one.seconds is not None and one.seconds < 0]
    mixed = np.zeros(len(counter), bool)
    for note in back:
        mixed |= (readings.ts_ns >= note.began_ns) & (readings.ts_ns <= note.ended_ns)
    counter[mixed] = np.nan
    some = ~(np.isnan(power.watts) & np.isnan(counter)) | power.stuck | power.zero
    if np.count_nonzero(some) < 2:
        empty = Reason.NO_SENSOR if len(readings.ts_ns) and not some.any() else Reason.NO_TELEMETRY
        return _empty(cluster, gpu, readings, limit_w, notes, empty)
    ts, watts, counter = readings.ts_ns[some], power.watts[some], counter[some]
    utilization = readings.utilization[some]
    times = (ts - ts[0]) / 1e9
    step = np.diff(times)
    known = ~np.isnan(watts)
    idle_w, idle_n = _idle(watts, utilization)
    floor_w, full_w, highest_w = _levels(watts[known], idle_w, limit_w)

    together = near(times, np.ones(len(times), bool))
    if known.any():
        shape = np.interp(times + power.shift_s, times[known], watts[known])
        sensed = (together if known.all() else near(times, known)) & ~_beside(power.stuck[some] | power.zero[some])
    else:
        middle = (floor_w + highest_w) / 2 if limit_w else floor_w
        shape, sensed = np.full(len(times), middle), np.zeros(len(step), bool)
    slope, bend = step * shape[:-1], step * np.diff(shape) / 2
    by_power = slope + bend
    count, told = counters.counted(ts, counter, by_power, sensed, highest_w)
    notes += told
    trusted = count.trusted
    factor = np.divide(count.energy_j, by_power, out=np.ones(len(step)), where=trusted & (by_power > 0))
    energy = np.where(trusted, count.energy_j, by_power)
    slope, bend = np.where(by_power > 0, slope * factor, energy), np.where(by_power > 0, bend * factor, 0.0)

    blind = ~trusted & ~sensed
    slope, bend = np.where(blind, energy, slope), np.where(blind, 0.0, bend)
    refused = _beside(power.stuck[some] | power.zero[some])
    notes += _gaps(ts, blind & ~refused, energy)
    unseen_j2 = np.zeros((4, len(step)))
    if np.count_nonzero(known) > 1:
        means = (None if each is None else each[some] for each in (readings.spread_w, readings.every_s))
        unseen_j2 = unseen(times, shape, utilization, power.sensor, floor_w, full_w, *means)
    differ = _compare(ts, by_power, energy, unseen_j2, trusted & sensed & ~_beside(mixed[some]), notes)
    # A counter misses nothing between its readings, but what it adds up may be the readings of the same sensor.
    usual = max(median(step), power.sensor.period_s)
    unseen_j2[:, trusted] *= power.sensor.missed
    unseen_j2[0, trusted] *= power.sensor.period_s / usual
    least = np.where(trusted, 0.0, np.maximum(floor_w * step, count.energy_j))
    below = np.where(blind, np.maximum(energy - least, 0.0), 0.0)
    above = np.where(blind, np.maximum(highest_w * step - energy, 0.0), 0.0)
    for note in back:
        above[min(int(np.searchsorted(ts, note.began_ns)), len(above) - 1)] += abs(note.seconds or 0) * highest_w
    below += np.where(trusted, max(differ, 0.0) * energy, 0.0)
    above += np.where(trusted, max(-differ, 0.0) * energy, 0.0)
    parts = {
        "measured_j": np.where(blind, 0.0, energy),
        "below_j": below,
        "above_j": above,
        **dict(zip(SUMS, np.where(blind, 0.0, unseen_j2), strict=True)),
        "measured_s": np.where(blind, 0.0, step),
        "counter_s": np.where(trusted, step, 0.0),
        "stuck_s": np.where(blind & _beside(power.stuck[some]), step, 0.0),
        "zero_s": np.where(blind & _beside(power.zero[some]), step, 0.0),
    }
    swing = _swing(times, shape, power.sensor.window_s + power.sensor.period_s)
    swing = np.where(together, swing, highest_w - floor_w)
    return Meter(
        cluster, gpu, int(ts[0]), int(ts[-1]), int(ts[0]), idle_w, idle_n, limit_w, floor_w, highest_w, tuple(notes),
        None, times, _from_zero(energy), slope, bend, swing, power.lag_s,
        np.stack([_from_zero(parts[name]) for name in PARTS]),
    )  # fmt: skip


def _levels(watts: Floats, idle_w: float | None, limit_w: float | None) -> tuple[float, float, float]:
    """The least that the GPU draws, the most that its work draws often, and the most that it can draw at all."""
    if not len(watts):
        return (FLOOR * limit_w, LIKELY * limit_w, limit_w) if limit_w else (0.0, 0.0, _MOST_W)
    lowest, seen = float(watts.min()), float(watts.max())
    often = float(np.partition(watts, int(_OFTEN * (len(watts) - 1)))[int(_OFTEN * (len(watts) - 1))])
    if limit_w is None:
        floor = lowest if idle_w is not None else 0.0
        return floor, often, _UNKNOWN_LIMIT * seen
    floor = lowest if idle_w is not None else min(lowest, FLOOR * limit_w)
    return floor, max(often, LIKELY * limit_w), max(limit_w, seen)


def _idle(watts: Floats, utilization: Floats) -> tuple[float | None, int]:
    idle = watts[(utilization == 0) & ~np.isnan(watts)]
    return (median(idle), len(idle)) if len(idle) >= _IDLE_READINGS else (None, len(idle))


def _beside(which: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """By interval, whether one of its ends is such a reading."""
    return which[:-1] | which[1:]


def _swing(times: Floats, shape: Floats, around_s: float) -> Floats:
    """By interval, the range of the power within it and `around_s` before and after."""
    low, high = np.minimum(shape[:-1], shape[1:]), np.maximum(shape[:-1], shape[1:])
    reach = 1 + int(around_s / max(median(np.diff(times)), 1e-3))
    while reach > 0:  # doubling: each pass widens by twice as much
        by = min(reach, len(low))
        low = np.minimum(low, np.minimum(_shifted(low, by), _shifted(low, -by)))
        high = np.maximum(high, np.maximum(_shifted(high, by), _shifted(high, -by)))
        reach //= 2
    return high - low


def _shifted(values: Floats, by: int) -> Floats:
    found = np.empty_like(values)
    if by > 0:
        found[:by], found[by:] = values[0], values[:-by]
    else:
        found[by:], found[:by] = values[-1], values[-by:]
    return found


def _gaps(ts: Times, gap: NDArray[np.bool_], energy: Floats) -> list[Note]:
    """One note for each stretch without readings."""
    if not gap.any():
        return []
    edges = np.flatnonzero(np.diff(np.concatenate([[0], gap.view(np.int8), [0]])))
    began, ended = edges[::2], edges[1::2]
    upto = _from_zero(energy)
    return counters.some_notes(Problem.GAP, ts[began], ts[ended], upto[ended] - upto[began])


def _compare(
    ts: Times, by_power: Floats, energy: Floats, unseen_j2: Floats, both: NDArray[np.bool_], notes: list[Note]
) -> float:
    """By which share of it the counter has more than the integrated power, beyond what sampling explains."""
    power, counter = float(by_power[both].sum()), float(energy[both].sum())
    at = np.flatnonzero(both)
    if not power or not counter or float((ts[at + 1] - ts[at]).sum()) < _AGREE_S * 1e9:
        return 0.0
    sampling = float(unseen_j2[0, both].sum() + unseen_j2[3, both].sum() * LOCKED_S)
    doubt = 2 * sampling**0.5 + _AGREE * power
    apart = counter - power
    if abs(apart) <= doubt:
        return 0.0
    notes.append(Note(Problem.DISAGREE, int(ts[at[0]]), int(ts[at[-1] + 1]), apart, 100 * apart / power))
    return float((apart - doubt if apart > 0 else apart + doubt) / counter)


def _from_zero(steps: Floats) -> Floats:
    """Sums from the first interval on; one more than there are intervals."""
    found = np.zeros(len(steps) + 1)
    if steps.any():
        np.cumsum(steps, out=found[1:])
    return found


def _empty(cluster: str, gpu: str, readings: Readings, limit: float | None, notes: list[Note], reason: Reason) -> Meter:
    first, last = (int(readings.ts_ns[0]), int(readings.ts_ns[-1])) if len(readings.ts_ns) else (0, 0)
    none = np.zeros(0)
    return Meter(
        cluster, gpu, first, last, first, None, 0, limit, 0.0, limit or 0.0, tuple(notes), reason,
        np.zeros(1), np.zeros(1), none, none, none, 0.0, np.zeros((11, 1)),
    )  # fmt: skip
