"""Meters: the energy of GPUs as functions of time, and how far they may be wrong.

All figures are differences of functions that only grow with time, so the figures of two windows side by side add up to
those of both. Only the ends of a window add something of their own: where a reading is placed in time is not exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.aliasing import FLOOR, LIKELY, LOCKED_S, SUMS, variance_j2
from ...store.power_sensors import NORMAL_95, sensor_of_model
from . import counter as counters
from .idle import IDLE_SOURCES, Idle, IdleSource, idle_of
from .sensor import Kept, PowerSource, gaps, power_of, sensed_of, shape_of, swing_of, unseen
from .series import Flags, Floats, Groups, Ints, Note, Problem, Readings, Reason, Times, median

_REASON = f"<U{max(len(one) for one in Reason)}"
_REFUSED_FROM = 0.5  # of a window without readings that count
PARTS = ("measured_j", "below_j", "above_j", *SUMS, "measured_s", "counter_s", "stuck_s", "zero_s")
"""What a meter sums up besides the energy: of `Energies`, and what its variance and its reasons are made of."""
_WATTS = ("idle_w", "idle_low_w", "idle_high_w", "lowest_w", "highest_w")
_KNOTS = ("knots_ns", "knots_s", "energy_j", "slope_j", "bend_j", "edge_w", "lag_j", "parts")


@dataclass(frozen=True)
class Energies:
    """The energy of a GPU in n windows; arrays (n,)."""

    energy_j: Floats
    """Best estimate; over(a, b) + over(b, c) is over(a, c). It is there also where `reason` refuses it."""
    measured_j: Floats
    """Of it, what a sensor measured; the rest fills gaps."""
    below_j: Floats
    """How much less it could be: bounds, from gaps, ends of the window and what the counter and power disagree by."""
    above_j: Floats
    """How much more."""
    variance_j2: Floats
    """Of sampling: what the sensor did not see. Independent from window to window where these last some minutes."""
    measured_s: Floats
    """Time with readings."""
    counter_s: Floats
    """Of it, time for which the energy counter was used."""
    reason: NDArray[np.str_]
    """Why it is no honest figure, a `Reason`; '' where it is one."""


@dataclass(frozen=True)
class Meters:
    """The energy of g GPUs as functions of time. The knots of all GPUs lie one after another."""

    gpus: Sequence[tuple[str, str]]
    """Cluster and GPU of each."""
    first_ns: Times
    """(g,) when the time that it meters begins, UTC: at its first reading, or later where less was asked for."""
    last_ns: Times
    origin_ns: Times
    """(g,) time of the first knot."""
    idle_w: Floats
    """(g,) what it draws without work; NaN where only bounds are known."""
    idle_low_w: Floats
    """(g,) the interval of it; `idle_high_w` is NaN where nothing is known."""
    idle_high_w: Floats
    idle_source: Ints
    """(g,) what it is known from: number in `IDLE_SOURCES`."""
    power_source: Sequence[PowerSource]
    """Which readings gave most of the energy."""
    limit_w: Floats
    """(g,) its power limit; NaN where unknown."""
    lowest_w: Floats
    """(g,) the least and the most that it can draw, as far as is known: the bounds of gaps."""
    highest_w: Floats
    notes: Sequence[tuple[Note, ...]]
    empty: Sequence[Reason | None]
    """Why it has no energy at all."""
    begins: Ints
    """(g,) its first knot, and the one after its last; it has two or more."""
    ends: Ints
    knots_ns: Times
    """(k,) since `origin_ns`, on from the time of all GPUs before: they increase over all."""
    knots_s: Floats
    """(k,) since `origin_ns`."""
    energy_j: Floats
    """(k,) from the first knot to each."""
    slope_j: Floats
    """(k,) of the segment after a knot: its energy to the fraction f of it is slope * f + bend * f**2."""
    bend_j: Floats
    edge_w: Floats
    """(k,) the range of the power within a segment and around it."""
    lag_j: Floats
    """(k,) of a window that ends in the segment, how much energy may lie on the other side of its end: readings lag."""
    parts: Floats
    """(parts, k) the other figures to each knot, in the order of `PARTS`."""

    def __len__(self) -> int:
        return len(self.gpus)

    def __iter__(self) -> Iterator[Meter]:
        return (Meter(self, number) for number in range(len(self)))

    def over(self, of: Ints, began: Times, ended: Times) -> Energies:
        """The energy of the GPUs `of` (numbers) from `began` to `ended` (ns UTC); arrays (n,).

        Raises ValueError where one ends before it begins.
        """
        if (ended < began).any():
            raise ValueError("a window ends before it begins")
        length = (ended - began) / 1e9
        first, since = self.at(of, began)
        last, until = self.at(of, ended)
        sums = dict(zip(PARTS, until[1:-1] - since[1:-1], strict=True))
        seconds = np.maximum(length, 1e-9)
        inside = last - first
        edges = since[-1] + until[-1]
        # What was not measured before the first reading and after the last is not in the energy: it may be more.
        beyond = (length - inside) * self.highest_w[of]
        # No doubt goes further than the least and the most that the GPU can draw.
        energy = until[0] - since[0]
        less = np.maximum(energy - self.lowest_w[of] * inside, 0.0)
        more = np.maximum(self.highest_w[of] * inside - energy, 0.0)
        variance = variance_j2([sums[name] for name in SUMS], seconds)
        return Energies(
            energy,
            sums["measured_j"],
            np.minimum(sums["below_j"] + edges, less),
            np.minimum(sums["above_j"] + edges, more) + beyond,
            np.minimum(variance, (np.maximum(less, more) / NORMAL_95) ** 2),
            sums["measured_s"],
            sums["counter_s"],
            self._reasons(of, length, sums),
        )

    def joules(self, of: Ints, began: Times, ended: Times) -> Floats:
        """The `energy_j` of windows."""
        first, last = (self._upto(at, share) for _, at, _, share in (self._where(of, one) for one in (began, ended)))
        return last - first

    def least(self, of: Ints, when: Times) -> tuple[Floats, Floats, Floats]:
        """Up to each time (ns UTC) of the GPUs `of`: the least energy that they drew (J), seconds with readings, and
        by how much less it may be of a window that ends there (J).

        The first two are sums. Their differences tell of windows side by side what `over` does, at a third of the cost.
        """
        _, at, step, share = self._where(of, when)
        rows = (self.parts[PARTS.index(name)] for name in ("below_j", "measured_s"))
        below, measured = (row[at] + share * (row[at + 1] - row[at]) for row in rows)
        edge = self.edge_w[at] * share * (1 - share) * step + self.lag_j[at + (share >= 1)]
        return self._upto(at, share) - below, measured, edge

    def gaps(self, longer_s: float) -> tuple[Ints, Times]:
        """Where times of more than `longer_s` without readings begin and end: the GPUs (numbers) and when (ns UTC)."""
        if not len(self):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        lasted, measured = np.diff(self.knots_s), np.diff(self.parts[PARTS.index("measured_s")])
        at = np.flatnonzero((lasted > longer_s) & (measured <= 0))
        order = np.argsort(self.begins)  # of some GPUs: `only` keeps the knots of all
        of = order[np.searchsorted(self.begins[order], at, "right") - 1]
        own = (at >= self.begins[of]) & (at < self.ends[of] - 1)
        of, at = of[own], at[own]
        since = (self.origin_ns - self.knots_ns[self.begins])[of]
        return np.repeat(of, 2), (np.stack([self.knots_ns[at], self.knots_ns[at + 1]]) + since).T.ravel()

    def between(self, since_ns: int | None, until_ns: int | None) -> Meters:
        """The same meters of less time, without those that have none of it."""
        if since_ns is None and until_ns is None:
            return self
        first = self.first_ns if since_ns is None else np.maximum(self.first_ns, since_ns)
        last = self.last_ns if until_ns is None else np.minimum(self.last_ns, until_ns)
        notes = tuple(
            tuple(note for note in notes if note.ended_ns >= since and note.began_ns <= until)
            for notes, since, until in zip(self.notes, first.tolist(), last.tolist(), strict=True)
        )
        return replace(self, first_ns=first, last_ns=last, notes=notes).only(np.flatnonzero(first <= last))

    def only(self, which: Ints) -> Meters:
        """Some of them, in this order."""
        if np.array_equal(which, np.arange(len(self))):
            return self
        numbers = which.tolist()
        columns: dict[str, Any] = {}
        for name, values in vars(self).items():
            if name not in _KNOTS:
                arrays = isinstance(values, np.ndarray)
                columns[name] = values[which] if arrays else tuple(values[one] for one in numbers)
        return replace(self, **columns)

    def calibrated(self, boards: pl.DataFrame) -> Meters:
        """The meters with what a calibration knows of their boards: while a sensor read, true energy is
        (1 + h) x read energy + p x time. `boards`: cluster, gpu, h and p; meters of other GPUs stay as they are.
        """
        known = {(cluster, gpu): (h, p) for cluster, gpu, h, p in boards.select("cluster", "gpu", "h", "p").iter_rows()}
        if not any(key in known for key in self.gpus):
            return self
        h, p = np.array([known.get(key, (0.0, 0.0)) for key in self.gpus]).T
        of_gpu = {name: np.maximum((1 + h) * getattr(self, name) + p, 0.0) for name in _WATTS}
        knots = {name: getattr(self, name).copy() for name in _KNOTS[2:]}
        joules, seconds = (PARTS.index(name) for name in ("measured_j", "measured_s"))
        for number, (began, ended) in enumerate(zip(self.begins.tolist(), self.ends.tolist(), strict=True)):
            own, before = slice(began, ended), self.parts[:, began:ended]
            more_j = h[number] * before[joules] + p[number] * before[seconds]
            read_s = np.diff(before[seconds], append=before[seconds, -1])  # of the segment after each knot
            factor = np.where(read_s > 0, 1 + h[number], 1.0)
            knots["energy_j"][own] += more_j
            knots["parts"][joules, own] += more_j
            knots["slope_j"][own] = factor * self.slope_j[own] + p[number] * read_s
            for name in ("bend_j", "edge_w", "lag_j"):
                knots[name][own] = factor * getattr(self, name)[own]
        return replace(self, **of_gpu, **knots)

    def beside(self, other: Meters) -> Meters:
        """Both, these first."""
        knots = len(self.knots_ns)
        moved = replace(
            other, begins=other.begins + knots, ends=other.ends + knots,
            knots_ns=other.knots_ns + (self.knots_ns[-1] + 1),
        )  # fmt: skip
        columns: dict[str, Any] = {}
        for name, mine in vars(self).items():
            more = getattr(moved, name)
            arrays = isinstance(mine, np.ndarray)
            columns[name] = np.concatenate([mine, more], axis=-1) if arrays else (*mine, *more)
        return Meters(**columns)

    def at(self, of: Ints, when: Times) -> tuple[Floats, Floats]:
        """What the meters of the GPUs `of` (numbers) show at some times (ns UTC), each since its first knot.

        The time on the meter, s (n,); and (2 + parts, n): the energy, `PARTS`, and how much energy may lie on the other
        side of a window's end there.
        """
        inside, at, step, share = self._where(of, when)
        found = np.empty((2 + len(PARTS), len(when)))
        found[0] = self._upto(at, share)
        before = self.parts[:, at]
        found[1:-1] = before + share * (self.parts[:, at + 1] - before)
        found[-1] = self.edge_w[at] * share * (1 - share) * step + self.lag_j[at + (share >= 1)]
        return inside, found

    def _where(self, of: Ints, when: Times) -> tuple[Floats, Ints, Floats, Floats]:
        """The time on the meter, the segment that it is in, how long this is, and which share of it has passed."""
        begins, ends = self.begins[of], self.ends[of]
        zero = self.knots_ns[begins]
        inside = np.minimum(np.maximum(when - self.origin_ns[of], 0), self.knots_ns[ends - 1] - zero)
        at = np.searchsorted(self.knots_ns, inside + zero, "right") - 1
        at = np.minimum(at, ends - 2)
        before, seconds = self.knots_s[at], np.minimum(inside / 1e9, self.knots_s[ends - 1])
        step = self.knots_s[at + 1] - before
        return seconds, at, step, (seconds - before) / np.where(step > 0, step, 1.0)

    def _upto(self, at: Ints, share: Floats) -> Floats:
        found: Floats = self.energy_j[at] + self.slope_j[at] * share + self.bend_j[at] * share**2
        return found

    def _reasons(self, of: Ints, length: Floats, sums: dict[str, Floats]) -> NDArray[np.str_]:
        reasons = np.zeros(len(length), _REASON)
        refused = sums["measured_s"] < _REFUSED_FROM * length
        if refused.any():
            missing = length - sums["measured_s"]
            reasons[refused] = Reason.GAPS
            reasons[refused & (sums["stuck_s"] > missing / 2)] = Reason.STUCK
            reasons[refused & (sums["zero_s"] > missing / 2)] = Reason.ZERO
            unread = sums["measured_s"] + sums["stuck_s"] + sums["zero_s"] == 0
            reasons[unread & (length > 0)] = Reason.NO_TELEMETRY
        for number, reason in enumerate(self.empty):
            if reason is not None:
                reasons[of == number] = reason
        return reasons


@dataclass(frozen=True)
class Meter:
    """One of some meters."""

    among: Meters
    number: int

    @property
    def cluster(self) -> str:
        return self.among.gpus[self.number][0]

    @property
    def gpu(self) -> str:
        return self.among.gpus[self.number][1]

    @property
    def first_ns(self) -> int:
        """When the time that it meters begins, UTC."""
        return int(self.among.first_ns[self.number])

    @property
    def last_ns(self) -> int:
        return int(self.among.last_ns[self.number])

    @property
    def idle_w(self) -> float | None:
        """What it draws without work; None where it was never seen idle."""
        return number_or_none(self.among.idle_w[self.number])

    @property
    def notes(self) -> tuple[Note, ...]:
        return self.among.notes[self.number]

    @property
    def energy_j(self) -> Floats:
        """(k,) from its first reading to each."""
        return self.among.energy_j[self.among.begins[self.number] : self.among.ends[self.number]]

    def over(self, began: Times, ended: Times) -> Energies:
        """The energy from `began` to `ended` (ns UTC, arrays). Raises ValueError where one ends before it begins."""
        began, ended = np.asarray(began, np.int64), np.asarray(ended, np.int64)
        return self.among.over(np.full(len(began), self.number), began, ended)


def number_or_none(value: float) -> float | None:
    """A value of an array; None for NaN."""
    return None if np.isnan(value) else float(value)


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
    lag_j = swing * groups.each(kept.lag_s)
    lag_j[groups.lasts] = lag_j[groups.lasts - 1]
    first, last = ts[groups.firsts], ts[groups.lasts]
    lasted = last - first
    return Meters(
        gpus, first, last, first, idle.watts, idle.low_w, idle.high_w, idle.source,
        _sources(kept, step, trusted), limit_w, floor_w, highest_w, tuple(map(tuple, notes)),
        [None] * len(gpus), groups.begins[:-1], groups.begins[1:],
        ts - np.repeat(first - (np.cumsum(lasted) - lasted + np.arange(len(gpus))), groups.sizes),
        times, upto, slope, bend, swing, lag_j, parts,
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
        np.nan_to_num(limit_w),
        tuple(map(tuple, notes)), reasons, np.arange(0, 2 * n, 2), np.arange(2, 2 * n + 1, 2),
        np.arange(2 * n), knots, knots, knots, knots, knots, knots, np.zeros((len(PARTS), 2 * n)),
    )  # fmt: skip
