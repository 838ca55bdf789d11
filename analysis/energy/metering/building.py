"""From readings to meters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....store.power_sensors import sensor_of_model
from ....store.unseen import FLOOR, LIKELY, LOCKED_S, SUMS
from . import counters
from .findings import Note, Problem, Reason
from .idle import IDLE_SOURCES, Idle, IdleSource, idle_of
from .meter import PARTS, Meters
from .power import PowerSource, power_of
from .readings import Flags, Floats, Groups, Ints, Readings, Times, median
from .sampling import unseen
from .shaping import Kept, gaps, sensed_of, shape_of, swing_of

_UNKNOWN_LIMIT = 1.5  # times the highest reading, where no limit is known
_MOST_W = 1500.0  # no board draws more: where neither a limit nor a reading is known
_OFTEN = 0.99  # quantile of the readings that counts as the most that work draws
_AGREE = 0.02  # a difference between counter and power that needs no mention
_AGREE_S = 10.0  # less time than this tells nothing of it


def build_all(
    gpus: Sequence[tuple[str, str]],
    readings: Readings,
    limits_w: Sequence[float | None],
    models: Sequence[str | None],
    events: Sequence[Sequence[Note]],
) -> Meters:
    """The meters of some GPUs. `limits_w` are their power limits where the readings have none; `events` were told
    elsewhere. Each GPU has readings, but for a single one."""
    notes = [list(of_gpu) for of_gpu in events]
    limit_w = np.array([np.nan if one is None else one for one in limits_w], np.float64)
    readings = _of_gpus(readings, models)
    groups, ts = readings.groups, readings.ts_ns
    if not len(ts):
        return _none(gpus, np.zeros((2, 1), np.int64), limit_w, notes, [Reason.NO_TELEMETRY])
    if readings.limit_w is not None:
        highest = np.fmax.reduceat(readings.limit_w, groups.firsts)
        limit_w = np.where(np.isnan(highest) | (highest == 0), limit_w, highest)
    power = power_of(readings, limit_w, models, notes)
    kept = Kept.of(readings, power, events)
    some = kept.has_value
    enough = groups.count(some) >= 2
    if enough.all():
        found = _metered(gpus, kept if some.all() else kept.only(some, enough), limit_w, notes)
        if some.all():
            return found
        return replace(found, notes=_with_rows(found.notes, [ts[slice(*span)] for span in groups.spans]))
    which, rest = np.flatnonzero(enough).tolist(), np.flatnonzero(~enough).tolist()
    any_at_all = groups.any(some)
    empty = _none(
        [gpus[one] for one in rest], np.stack([ts[groups.firsts], ts[groups.lasts]])[:, rest], limit_w[rest],
        [notes[one] for one in rest], [Reason.NO_TELEMETRY if any_at_all[one] else Reason.NO_SENSOR for one in rest],
    )  # fmt: skip
    if not which:
        return empty
    own = kept.only(some & np.repeat(enough, groups.sizes), enough)
    found = _metered([gpus[one] for one in which], own, limit_w[which], [notes[one] for one in which])
    found = replace(found, notes=_with_rows(found.notes, [ts[slice(*groups.spans[one])] for one in which]))
    return found.beside(empty).only(np.argsort(np.array([*which, *rest])))


def _with_rows(notes: Sequence[tuple[Note, ...]], times: Sequence[Times]) -> tuple[tuple[Note, ...], ...]:
    """The notes of each GPU; gaps with whether there are rows at other times (sorted) within them."""
    return tuple(
        tuple(
            replace(
                note, has_rows=bool(np.searchsorted(ts, note.ended_ns) > np.searchsorted(ts, note.began_ns, "right"))
            )
            if note.problem == Problem.GAP
            else note
            for note in of_gpu
        )
        for of_gpu, ts in zip(notes, times, strict=True)
    )


def _of_gpus(readings: Readings, models: Sequence[str | None]) -> Readings:
    """The readings without those that are of a whole module, processor included: they tell nothing of its GPU."""
    sensors = [None if model is None else sensor_of_model(model) for model in models]
    of_module = np.array([sensor is not None and sensor.of_module for sensor in sensors])
    if not of_module.any():
        return readings
    which = np.repeat(of_module, readings.groups.sizes)
    counter, instant = (
        None if values is None else np.where(which, np.nan, values)
        for values in (readings.counter_j, readings.instant_w)
    )
    return replace(readings, counter_j=counter, instant_w=instant)


def _metered(gpus: Sequence[tuple[str, str]], kept: Kept, limit_w: Floats, notes: Sequence[list[Note]]) -> Meters:
    groups, ts, times, step = kept.groups, kept.ts_ns, kept.times_s, kept.step_s
    missed, period, window = (
        np.array([getattr(one, name) for one in kept.sensors]) for name in ("missed", "period_s", "window_s")
    )
    read_every = np.array([median(step[began : ended - 1]) for began, ended in groups.spans])
    known = groups.count(kept.known)
    idle = idle_of(kept, limit_w, read_every)
    floor_w, full_w, highest_w = _levels(kept, known, idle, limit_w)
    middle_w = np.where(limit_w > 0, (floor_w + highest_w) / 2, floor_w)
    shape = shape_of(kept, known, middle_w)
    together, sensed = sensed_of(kept, known)

    slope, bend = step * shape, step * groups.steps(shape) / 2
    by_power = slope + bend
    trusted, energy, least = np.zeros(len(ts), bool), by_power, np.zeros(1)
    if kept.counter_j is not None:
        count = counters.counted(groups, ts, kept.counter_j, by_power, sensed, highest_w, notes)
        trusted, least = count.trusted, count.energy_j
        energy = np.where(trusted, least, by_power)
        some = by_power > 0
        factor = energy / np.where(some, by_power, 1.0)
        slope *= factor
        bend *= factor
        if np.count_nonzero(some) < len(ts) - len(groups):
            slope, bend = np.where(some, slope, energy), np.where(some, bend, 0.0)
    blind = ~(trusted | sensed)
    blind[groups.lasts] = False
    dark = bool(blind.any())
    if dark:
        slope, bend = np.where(blind, energy, slope), np.where(blind, 0.0, bend)
        gaps(kept, blind, energy, notes)
    unseen_j2 = unseen(
        groups, times, step, read_every, shape, kept.utilization, kept.sensors, floor_w, full_w, kept.spread_w,
        kept.every_s,
    )  # fmt: skip
    if (known < 2).any():
        unseen_j2 = [None if one is None else one * np.repeat(known >= 2, groups.sizes) for one in unseen_j2]
    differ = _compare(kept, by_power, energy, unseen_j2, trusted & sensed, notes)
    # A counter misses nothing between its readings, but what it adds up may be the readings of the same sensor.
    if trusted.any():
        less = np.where(trusted, groups.each(missed), 1.0)
        unseen_j2 = [None if one is None else one * less for one in unseen_j2]
        if unseen_j2[0] is not None:
            unseen_j2[0] *= np.where(trusted, groups.each(period / np.maximum(read_every, period)), 1.0)

    # The sums to each knot: of the intervals before it.
    upto = _upto(groups, energy)
    parts = np.zeros((len(PARTS), len(ts)))
    rows = dict(zip(PARTS, parts, strict=True))
    rows["measured_j"][:] = _upto(groups, np.where(blind, 0.0, energy)) if dark else upto
    rows["measured_s"][:] = _upto(groups, np.where(blind, 0.0, step)) if dark else times
    if trusted.any():
        rows["counter_s"][:] = _upto(groups, step * trusted)
    for name, values in zip(SUMS, unseen_j2, strict=True):
        if values is not None:
            rows[name][:] = _upto(groups, np.where(blind, 0.0, values) if dark else values)
    for name, values in _bounds(kept, blind if dark else None, energy, least, trusted, floor_w, highest_w, differ):
        rows[name][:] += _upto(groups, values)
    swing = swing_of(groups, shape, read_every, window + period)
    if not together.all():
        swing = np.where(together, swing, groups.each(highest_w - floor_w))
    first, last = ts[groups.firsts], ts[groups.lasts]
    lasted = last - first
    return Meters(
        gpus, first, last, first, idle.watts, idle.low_w, idle.high_w, idle.source,
        _sources(kept, step, trusted), limit_w, floor_w, highest_w, kept.lag_s, tuple(map(tuple, notes)),
        [None] * len(gpus), groups.begins[:-1], groups.begins[1:],
        ts - np.repeat(first - (np.cumsum(lasted) - lasted + np.arange(len(gpus))), groups.sizes),
        times, upto, slope, bend, swing, parts,
    )  # fmt: skip


def _sources(kept: Kept, step: Floats, trusted: Flags) -> list[PowerSource]:
    """By GPU, which readings gave most of the energy."""
    if not trusted.any():
        return list(kept.source)
    counted, lasted = kept.groups.sums(step, trusted), kept.groups.sums(step)
    return [
        PowerSource.COUNTER if most else code for most, code in zip(2 * counted >= lasted, kept.source, strict=True)
    ]


def _upto(groups: Groups, steps: Floats) -> Floats:
    """By reading, the sum of the intervals of its GPU before it; that after its last is 0."""
    found = np.zeros(len(steps))
    found[1:] = steps[:-1]
    groups.cumulate(found)
    return found


def _bounds(
    kept: Kept, blind: Flags | None, energy: Floats, least: Floats, trusted: Flags, floor_w: Floats, highest_w: Floats,
    differ: Floats,
) -> Iterator[tuple[str, Floats]]:  # fmt: skip
    """By interval, how far the energy may be wrong: what to add to which of `PARTS`."""
    groups, step = kept.groups, kept.step_s
    if blind is not None:
        least = np.maximum(groups.each(floor_w) * step, least)
        yield "below_j", np.where(blind, np.maximum(energy - least, 0.0), 0.0)
        yield "above_j", np.where(blind, np.maximum(groups.each(highest_w) * step - energy, 0.0), 0.0)
        for name, which in (("stuck_s", kept.stuck), ("zero_s", kept.zero)):
            if which.any():
                yield name, np.where(blind & groups.beside(which), step, 0.0)
    if any(kept.back):
        above = np.zeros(len(step))
        for gpu, back in enumerate(kept.back):
            began, ended = groups.spans[gpu]
            for note in back:
                at = min(int(np.searchsorted(kept.ts_ns[began:ended], note.began_ns)), ended - began - 2)
                above[began + at] += abs(note.seconds or 0) * highest_w[gpu]
        yield "above_j", above
    if differ.any():
        apart = np.where(trusted, groups.each(differ), 0.0) * energy
        yield "below_j", np.maximum(apart, 0.0)
        yield "above_j", np.maximum(-apart, 0.0)


def _levels(kept: Kept, known: Ints, idle: Idle, limit_w: Floats) -> tuple[Floats, Floats, Floats]:
    """The least that each GPU draws, the most that its work draws often, and the most that it can draw at all."""
    groups, watts = kept.groups, kept.watts
    lowest, seen = np.fmin.reduceat(watts, groups.firsts), np.fmax.reduceat(watts, groups.firsts)
    often = np.full(len(groups), np.nan)
    for gpu, (began, ended) in enumerate(groups.spans):
        if known[gpu]:
            own = watts[began:ended]
            own = own if known[gpu] == ended - began else own[kept.known[began:ended]]
            at = int(_OFTEN * (len(own) - 1))
            often[gpu] = np.partition(own, at)[at]
    limited = ~np.isnan(limit_w)
    floor = np.where(
        ~np.isnan(idle.watts), np.fmin(lowest, idle.low_w), np.where(limited, np.fmin(lowest, FLOOR * limit_w), 0.0)
    )
    full = np.where(limited, np.fmax(often, LIKELY * limit_w), often)
    highest = np.where(limited, np.fmax(limit_w, seen), _UNKNOWN_LIMIT * seen)
    unlike = (known == 0) & ~(limit_w > 0)
    return np.where(unlike, 0.0, floor), np.where(unlike, 0.0, full), np.where(unlike, _MOST_W, highest)


def _compare(
    kept: Kept,
    by_power: Floats,
    energy: Floats,
    unseen_j2: Sequence[Floats | None],
    both: Flags,
    notes: Sequence[list[Note]],
) -> Floats:
    """By GPU, which share of it the counter has more than the integrated power, beyond what sampling explains."""
    groups, found = kept.groups, np.zeros(len(kept.groups))
    if kept.mixed is not None:
        both = both & ~groups.beside(kept.mixed)
    if not both.any():
        return found
    power, counter, each, locked = (
        np.zeros(1) if of is None else groups.sums(of, both) for of in (by_power, energy, unseen_j2[0], unseen_j2[3])
    )
    lasted = groups.sums(groups.steps(kept.ts_ns), both)
    doubt = 2 * np.sqrt(each + locked * LOCKED_S) + _AGREE * power
    apart = counter - power
    for gpu in np.flatnonzero(
        (power != 0) & (counter != 0) & (lasted >= _AGREE_S * 1e9) & (np.abs(apart) > doubt)
    ).tolist():
        began, ended = groups.spans[gpu]
        at = began + np.flatnonzero(both[began:ended])
        first, last, more = int(kept.ts_ns[at[0]]), int(kept.ts_ns[at[-1] + 1]), float(apart[gpu])
        notes[gpu].append(Note(Problem.DISAGREE, first, last, more, float(100 * more / power[gpu])))
        found[gpu] = (more - doubt[gpu] if more > 0 else more + doubt[gpu]) / counter[gpu]
    return found


def _none(
    gpus: Sequence[tuple[str, str]], ends: Times, limit_w: Floats, notes: Sequence[list[Note]],
    reasons: Sequence[Reason],
) -> Meters:  # fmt: skip
    """Meters that have no energy at all, of GPUs with readings from `ends[0]` to `ends[1]`."""
    n = len(gpus)
    zeros, knots = np.zeros(n), np.zeros(2 * n)
    unknown = np.full(n, np.nan)
    return Meters(
        gpus, ends[0], ends[1], ends[0], unknown, zeros, unknown,
        np.full(n, IDLE_SOURCES.index(IdleSource.UNKNOWN)), [PowerSource.POWER] * n, limit_w, zeros,
        np.nan_to_num(limit_w), zeros,
        tuple(map(tuple, notes)), reasons, np.arange(0, 2 * n, 2), np.arange(2, 2 * n + 1, 2),
        np.arange(2 * n), knots, knots, knots, knots, knots, np.zeros((len(PARTS), 2 * n)),
    )  # fmt: skip
