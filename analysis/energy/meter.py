"""Meters: the energy of GPUs as functions of time, and how far they may be wrong.

      J │                    ╱ energy_j: by the counter where it is believed, else the trapezoid of power
        │             ______╱   over the time that each reading is of (`sensor`)
        │      ______╱ gap: the middle of what it can draw, with bounds below_j and above_j
        │_____╱
        └──────────────────────────── t
           ◄─L─a─L─►         ◄─L─b─L─►   a window from a to b

All figures are differences of functions that only grow with time, so those of two windows side by side add up to those
of both. How far an energy may be wrong has these terms:

* **the board**: gain and offset of its sensor (`calibration` has them; linear in energy and time, so not in a meter);
* **the lag**: all readings may be later or earlier by L. If the power is alike at both ends, a window loses at one what
  it gains at the other; a load edge between them moves its height x L in or out: |level_j(b) - level_j(a)|. Where
  power changes near an end, lag_j comes on top;
* **aliasing**: what the sensor missed (`store.aliasing`); with the lag it is a variance;
* **bounds**, which are added: of an end between two readings (doubt_j), of gaps, of counters that began anew, of clocks
  that were set back, of a counter and a power that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.aliasing import FLOOR, LIKELY, SUMS, variance_j2
from ...store.power_sensors import NORMAL_95, sensor_of_model
from .counter import counted
from .idle import IDLE_SOURCES, IdlePower, IdleSource, idle_power
from .sensor import PowerSource, SensedPower, aliasing, followed, power_at, sensed_power
from .series import Flags, Floats, Groups, Ints, Note, Problem, Readings, Reason, Times, notes_of

_REASON = f"<U{max(len(reason) for reason in Reason)}"
_REFUSED_FROM = 0.5  # of a window without readings that count
_UNKNOWN_LIMIT = 1.5  # times the highest reading, where no limit is known
_MOST_W = 1500.0  # no board draws more: where neither a limit nor a reading is known
_OFTEN = 0.99  # quantile of the readings that counts as the most that work draws
_AGREE = 0.02  # a difference between counter and power that needs no mention
_AGREE_S = 10.0  # less time than this tells nothing of it
PARTS = ("measured_j", "below_j", "above_j", *SUMS, "measured_s", "counter_s", "stuck_s", "zero_s")
"""What a meter sums up besides the energy: of `Energies`, and what its variance and its reasons are made of."""
ENDS = ("level_j", "lag_j", "doubt_j")
"""What a meter shows of the end of a window: the energy of the time that readings may lag by; what they may move across
the end as power changes near it; what may lie on the other side as the end is between two readings."""
_WATTS = ("idle_w", "idle_low_w", "idle_high_w", "lowest_w", "highest_w")
_KNOTS = ("knots_ns", "knots_s", "energy_j", "slope_j", "bend_j", "edge_w", "parts", "ends_j")


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
    """Of aliasing and lag. Independent from window to window where these last some minutes."""
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
    parts: Floats
    """(parts, k) the other figures to each knot, in the order of `PARTS`."""
    ends_j: Floats
    """(3, k) of a window that ends at the knot, in the order of `ENDS`; between knots as a line."""

    def __len__(self) -> int:
        return len(self.gpus)

    def over(self, numbers: Ints, began: Times, ended: Times) -> Energies:
        """The energy of these GPUs (numbers) from `began` to `ended` (ns UTC); arrays (n,).

        Raises ValueError where one ends before it begins.
        """
        if (ended < began).any():
            raise ValueError("a window ends before it begins")
        length = (ended - began) / 1e9
        first, since = self.at(numbers, began)
        last, until = self.at(numbers, ended)
        grown = until - since
        energy, sums = grown[0], dict(zip(PARTS, grown[1 : -len(ENDS)], strict=True))
        inside = last - first
        lag_j2 = (grown[-3] ** 2 + since[-2] ** 2 + until[-2] ** 2) / NORMAL_95**2
        doubt = since[-1] + until[-1]
        # What was not measured before the first reading and after the last is not in the energy: it may be more.
        beyond = (length - inside) * self.highest_w[numbers]
        # No doubt goes further than the least and the most that the GPU can draw.
        spare_j = np.maximum(energy - self.lowest_w[numbers] * inside, 0.0)
        room_j = np.maximum(self.highest_w[numbers] * inside - energy, 0.0)
        variance = variance_j2([sums[name] for name in SUMS], length) + lag_j2
        return Energies(
            energy,
            sums["measured_j"],
            np.minimum(sums["below_j"] + doubt, spare_j),
            np.minimum(sums["above_j"] + doubt, room_j) + beyond,
            np.minimum(variance, (np.maximum(spare_j, room_j) / NORMAL_95) ** 2),
            sums["measured_s"],
            sums["counter_s"],
            self._reasons(numbers, length, sums),
        )

    def joules(self, numbers: Ints, began: Times, ended: Times) -> Floats:
        """The `energy_j` of windows."""
        first, last = (
            self._upto(at, share) for _, at, _, share in (self._where(numbers, moments) for moments in (began, ended))
        )
        return last - first

    def least(self, numbers: Ints, moments: Times) -> tuple[Floats, Floats, Floats]:
        """Up to each time (ns UTC) of these GPUs: the least energy that they drew (J), seconds with readings, and by
        how much less it may be of a window that ends there (J).

        The first two are sums. Their differences tell of windows side by side what `over` does, at a third of the cost.
        """
        _, at, step, share = self._where(numbers, moments)
        rows = (self.parts[PARTS.index(name)] for name in ("below_j", "measured_s"))
        below, measured = (row[at] + share * (row[at + 1] - row[at]) for row in rows)
        return self._upto(at, share) - below, measured, self._ends(at, step, share)[1:].sum(axis=0)

    def gaps(self, longer_s: float) -> tuple[Ints, Times]:
        """Where times of more than `longer_s` without readings begin and end: the GPUs (numbers) and when (ns UTC)."""
        if not len(self):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        lasted, measured = np.diff(self.knots_s), np.diff(self.parts[PARTS.index("measured_s")])
        at = np.flatnonzero((lasted > longer_s) & (measured <= 0))
        order = np.argsort(self.begins)  # of some GPUs: `only` keeps the knots of all
        numbers = order[np.searchsorted(self.begins[order], at, "right") - 1]
        inside = (at >= self.begins[numbers]) & (at < self.ends[numbers] - 1)
        numbers, at = numbers[inside], at[inside]
        since = (self.origin_ns - self.knots_ns[self.begins])[numbers]
        return np.repeat(numbers, 2), (np.stack([self.knots_ns[at], self.knots_ns[at + 1]]) + since).T.ravel()

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

    def only(self, numbers: Ints) -> Meters:
        """Some of them, in this order."""
        if np.array_equal(numbers, np.arange(len(self))):
            return self
        columns: dict[str, Any] = {}
        for name, values in vars(self).items():
            if name not in _KNOTS:
                arrays = isinstance(values, np.ndarray)
                columns[name] = values[numbers] if arrays else tuple(values[number] for number in numbers.tolist())
        return replace(self, **columns)

    def calibrated(self, boards: pl.DataFrame) -> Meters:
        """The meters with what a calibration knows of their boards: while a sensor read, true energy is
        (1 + h) x read energy + p x time. `boards`: cluster, gpu, h and p; meters of other GPUs stay as they are.
        """
        learnt = {
            (cluster, gpu): (h, p) for cluster, gpu, h, p in boards.select("cluster", "gpu", "h", "p").iter_rows()
        }
        if not any(key in learnt for key in self.gpus):
            return self
        h, p = np.array([learnt.get(key, (0.0, 0.0)) for key in self.gpus]).T
        of_gpu = {name: np.maximum((1 + h) * getattr(self, name) + p, 0.0) for name in _WATTS}
        knots = {name: getattr(self, name).copy() for name in _KNOTS[2:]}
        joules, seconds = (PARTS.index(name) for name in ("measured_j", "measured_s"))
        for number, (began, ended) in enumerate(zip(self.begins.tolist(), self.ends.tolist(), strict=True)):
            at, before = slice(began, ended), self.parts[:, began:ended]
            more_j = h[number] * before[joules] + p[number] * before[seconds]
            read_s = np.diff(before[seconds], append=before[seconds, -1])  # of the segment after each knot
            factor = np.where(read_s > 0, 1 + h[number], 1.0)
            knots["energy_j"][at] += more_j
            knots["parts"][joules, at] += more_j
            for name in ("bend_j", "edge_w", "ends_j"):
                knots[name][..., at] = factor * getattr(self, name)[..., at]
            of_segment = np.diff(knots["energy_j"][at], append=knots["energy_j"][ended - 1])
            knots["slope_j"][at] = of_segment - knots["bend_j"][at]
        return replace(self, **of_gpu, **knots)

    def beside(self, others: Meters) -> Meters:
        """Both, these first."""
        knots = len(self.knots_ns)
        moved = replace(
            others, begins=others.begins + knots, ends=others.ends + knots,
            knots_ns=others.knots_ns + (self.knots_ns[-1] + 1),
        )  # fmt: skip
        columns: dict[str, Any] = {}
        for name, values in vars(self).items():
            added = getattr(moved, name)
            arrays = isinstance(values, np.ndarray)
            columns[name] = np.concatenate([values, added], axis=-1) if arrays else (*values, *added)
        return Meters(**columns)

    def at(self, numbers: Ints, moments: Times) -> tuple[Floats, Floats]:
        """What the meters of these GPUs (numbers) show at some times (ns UTC), each since its first knot.

        The time on the meter, s (n,); and (1 + parts + 3, n): the energy, `PARTS` and `ENDS`.
        """
        inside, at, step, share = self._where(numbers, moments)
        figures = np.empty((1 + len(PARTS) + len(ENDS), len(moments)))
        figures[0] = self._upto(at, share)
        before, grown = self.parts[:, at], self.parts[:, at + 1] - self.parts[:, at]
        figures[1 : -len(ENDS)] = before + share * grown
        # What is measured of a segment grows as its energy does, which need not be a line.
        energy, of_segment = figures[0] - self.energy_j[at], self.energy_j[at + 1] - self.energy_j[at]
        part = np.divide(energy, of_segment, out=share.copy(), where=of_segment > 0)
        joules = PARTS.index("measured_j")
        figures[1 + joules] = before[joules] + part * grown[joules]
        figures[-len(ENDS) :] = self._ends(at, step, share)
        return inside, figures

    def _where(self, numbers: Ints, moments: Times) -> tuple[Floats, Ints, Floats, Floats]:
        """The time on the meter, the segment that it is in, how long this is, and which share of it has passed."""
        begins, ends = self.begins[numbers], self.ends[numbers]
        zero = self.knots_ns[begins]
        inside = np.minimum(np.maximum(moments - self.origin_ns[numbers], 0), self.knots_ns[ends - 1] - zero)
        at = np.searchsorted(self.knots_ns, inside + zero, "right") - 1
        at = np.minimum(at, ends - 2)
        before, seconds = self.knots_s[at], np.minimum(inside / 1e9, self.knots_s[ends - 1])
        step = self.knots_s[at + 1] - before
        return seconds, at, step, (seconds - before) / np.where(step > 0, step, 1.0)

    def _upto(self, at: Ints, share: Floats) -> Floats:
        energy: Floats = self.energy_j[at] + self.slope_j[at] * share + self.bend_j[at] * share**2
        return energy

    def _ends(self, at: Ints, step: Floats, share: Floats) -> Floats:
        """(3, n) `ENDS`."""
        before = self.ends_j[:, at]
        ends: Floats = before + share * (self.ends_j[:, at + 1] - before)
        ends[2] += self.edge_w[at] * share * (1 - share) * step
        return ends

    def _reasons(self, numbers: Ints, length: Floats, sums: dict[str, Floats]) -> NDArray[np.str_]:
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
                reasons[numbers == number] = reason
        return reasons


# -- from readings to meters ----------------------------------------------------------------------------------


def meters_of_readings(
    gpus: Sequence[tuple[str, str]],
    readings: Readings,
    limits_w: Sequence[float | None],
    models: Sequence[str | None],
    events: Sequence[Sequence[Note]],
) -> Meters:
    """The meters of some GPUs (cluster and GPU of each). Each has readings, but for a single one.

    `limits_w` are power limits where the readings have none; `events` are notes that were made elsewhere.
    """
    notes, limit_w = [list(of_gpu) for of_gpu in events], np.array([np.nan if w is None else w for w in limits_w])
    if not len(readings.ts_ns):
        return _without_energy(gpus, np.zeros((2, 1), np.int64), limit_w, notes, [Reason.NO_TELEMETRY])
    sensors = [None if model is None else sensor_of_model(model) for model in models]
    readings = readings.without_modules(np.array([sensor is not None and sensor.of_module for sensor in sensors]))
    groups = readings.groups
    if readings.limit_w is not None:
        highest = np.fmax.reduceat(readings.limit_w, groups.firsts)
        limit_w = np.where(np.isnan(highest) | (highest == 0), limit_w, highest)
    sensed = sensed_power(readings, limit_w, models, notes)
    useful = sensed.has_power | sensed.stuck | sensed.zero
    if readings.counter_j is not None:
        useful |= ~np.isnan(readings.counter_j)
    count = groups.count(useful)
    if useful.all() and (count >= 2).all():
        return _metered(gpus, sensed, limit_w, notes)
    metered, others = np.flatnonzero(count >= 2), np.flatnonzero(count < 2)
    parts = []
    for numbers in filter(len, (metered, others)):
        names, of_some = [gpus[gpu] for gpu in numbers.tolist()], [notes[gpu] for gpu in numbers.tolist()]
        if numbers is metered:
            parts.append(_metered(names, sensed.only(useful, count >= 2), limit_w[numbers], of_some))
            rows = [readings.ts_ns[slice(*groups.spans[gpu])] for gpu in numbers.tolist()]
            parts[-1] = replace(parts[-1], notes=_with_rows(parts[-1].notes, rows))
        else:
            reasons = [Reason.NO_TELEMETRY if has_value else Reason.NO_SENSOR for has_value in count[numbers].tolist()]
            parts.append(_without_energy(names, readings.ends_ns[numbers].T, limit_w[numbers], of_some, reasons))
    return reduce(Meters.beside, parts).only(np.argsort(np.concatenate([metered, others])))


def _with_rows(notes: Sequence[tuple[Note, ...]], times: Sequence[Times]) -> tuple[tuple[Note, ...], ...]:
    """The notes of each GPU; gaps with whether there are rows at other times (sorted) within them."""

    def with_rows(note: Note, ts: Times) -> Note:
        first, end = np.searchsorted(ts, note.began_ns, "right"), np.searchsorted(ts, note.ended_ns)
        return replace(note, has_rows=bool(end > first)) if note.problem == Problem.GAP else note

    return tuple(tuple(with_rows(note, ts) for note in of_gpu) for of_gpu, ts in zip(notes, times, strict=True))


def _metered(
    gpus: Sequence[tuple[str, str]], sensed: SensedPower, limit_w: Floats, notes: Sequence[list[Note]]
) -> Meters:
    groups, ts, step = sensed.groups, sensed.readings.ts_ns, sensed.step_s
    idle = idle_power(sensed, limit_w)
    floor_w, full_w, highest_w = _levels(sensed, idle, limit_w)
    power = power_at(sensed, np.where(limit_w > 0, (floor_w + highest_w) / 2, floor_w))
    together, powered = followed(sensed)
    slope, bend = step * power, step * groups.steps(power) / 2
    by_power = slope + bend
    back, mixed = _clock_set_back(sensed, notes)
    trusted, counter_j = np.zeros(len(ts), bool), np.zeros(len(ts))
    if (counter := sensed.readings.counter_j) is not None:
        counter = np.where((counter >= 0) & (counter < 2.0**53) & ~mixed, counter, np.nan)
        trusted, counter_j = counted(
            groups, ts, counter, by_power=by_power, sensed=powered, highest_w=highest_w, notes=notes
        )
    energy = np.where(trusted, counter_j, by_power)
    blind = ~(trusted | powered)
    blind[groups.lasts] = False
    _note_gaps(sensed, blind, energy, notes)
    # Within an interval the energy has the shape of the power, but where there is none.
    shaped = (by_power > 0) & ~blind
    factor = energy / np.where(shaped, by_power, 1.0)
    slope, bend = np.where(shaped, slope * factor, energy), np.where(shaped, bend * factor, 0.0)

    sums = np.array(aliasing(sensed, power, floor_w, full_w))
    apart = _disagreement(sensed, by_power, energy, sums, trusted & powered & ~groups.beside(mixed), notes)
    if trusted.any():  # it misses nothing between its readings, but what it adds up may be those of the same sensor
        period, window = sensed.by_gpu("period_s"), sensed.by_gpu("window_s")
        sums *= np.where(trusted, groups.each(1.0 - np.minimum(window / period, 1.0)), 1.0)
        sums[0] *= np.where(trusted, groups.each(period / np.maximum(sensed.read_every_s, period)), 1.0)
    nothing, upto = np.zeros(len(ts)), groups.upto(energy)
    grown = dict.fromkeys(PARTS, nothing) | dict(zip(SUMS, sums, strict=True))
    grown |= {"measured_j": energy, "measured_s": step}
    if trusted.any():
        grown["counter_s"] = step * trusted
        grown["below_j"] = np.where(trusted, np.maximum(groups.each(apart), 0.0) * energy, 0.0)
        grown["above_j"] = np.where(trusted, np.maximum(-groups.each(apart), 0.0) * energy, 0.0)
    if blind.any():
        grown |= {name: grown[name] * ~blind for name in (*SUMS, "measured_j", "measured_s")}
        least = np.maximum(groups.each(floor_w) * step, np.where(trusted, 0.0, counter_j))
        below, above = energy - least, groups.each(highest_w) * step - energy
        grown["below_j"] = grown["below_j"] + np.where(blind, np.maximum(below, 0.0), 0.0)
        grown["above_j"] = grown["above_j"] + np.where(blind, np.maximum(above, 0.0), 0.0)
        for name, flags in (("stuck_s", sensed.stuck), ("zero_s", sensed.zero)):
            grown[name] = np.where(blind & groups.beside(flags), step, 0.0)
    if back:
        grown["above_j"] = grown["above_j"].copy()
    for at, seconds, gpu in back:
        grown["above_j"][at] += seconds * highest_w[gpu]
    parts = np.zeros((len(PARTS), len(ts)))
    for row, name in zip(parts, PARTS, strict=True):
        if grown[name] is not nothing:
            row[:] = upto if grown[name] is energy else groups.upto(grown[name])
    edge_w = np.where(together, _edge_w(groups, power), groups.each(highest_w - floor_w))
    first, last = ts[groups.firsts], ts[groups.lasts]
    lasted = last - first
    return Meters(
        gpus, first, last, first, idle.watts, idle.low_w, idle.high_w, idle.source,
        _sources(sensed, trusted), limit_w, floor_w, highest_w, tuple(map(tuple, notes)),
        [None] * len(gpus), groups.begins[:-1], groups.begins[1:],
        ts - np.repeat(first - (np.cumsum(lasted) - lasted + np.arange(len(gpus))), groups.sizes),
        sensed.times_s, upto, slope, bend, edge_w, parts, _ends(sensed, upto),
    )  # fmt: skip


def _edge_w(groups: Groups, power: Floats) -> Floats:
    """By interval, the largest step of the power in it, the one before and the one after."""
    step_w: Floats = np.abs(groups.steps(power))
    edge_w = step_w.copy()
    edge_w[1:], edge_w[:-1] = np.maximum(edge_w[1:], step_w[:-1]), np.maximum(edge_w[:-1], step_w[1:])
    return edge_w


def _ends(sensed: SensedPower, energy_j: Floats) -> Floats:
    """(3, k) `ENDS`, from the energy up to each reading.

    With the power `early` and `late` in the time of the lag before and after an end, readings that lag by it move the
    end by lag x (early + late) / 2 as a level and by lag x (late - early) / 2 as power changes there. A mean over
    a window smears a step: a quarter of the window x (late - early) at most.
    """
    groups, times, here = sensed.groups, sensed.times_s, np.arange(len(energy_j))
    lag_s, smear_s = sensed.by_gpu("lag_s"), sensed.by_gpu("window_s") / 4
    reach = groups.each(np.maximum(np.rint(lag_s / np.maximum(sensed.read_every_s, 1e-3)), 1).astype(np.int64))
    if (reach == 1).all():
        late = groups.steps(energy_j) / np.maximum(sensed.step_s, 1e-9)
        early = np.roll(late, 1)
    else:
        back, ahead = np.maximum(here - reach, groups.first_of), np.minimum(here + reach, groups.last_of)
        early = (energy_j - energy_j[back]) / np.maximum(times - times[back], 1e-9)
        late = (energy_j[ahead] - energy_j) / np.maximum(times[ahead] - times, 1e-9)
    early[groups.firsts], late[groups.lasts] = late[groups.firsts], early[groups.lasts]
    ends = np.zeros((len(ENDS), len(here)))
    ends[0] = groups.each(lag_s / 2) * (early + late)
    ends[1] = groups.each(lag_s / 2 + smear_s) * np.abs(late - early)
    return ends


def _clock_set_back(sensed: SensedPower, notes: Sequence[list[Note]]) -> tuple[list[tuple[int, float, int]], Flags]:
    """Where a clock was set back: the interval, by how many s, and the GPU; and the readings of times that it showed
    twice: rows of both times lie mixed, and the counter to and fro."""
    ts, back, mixed = sensed.readings.ts_ns, [], np.zeros(len(sensed.watts), bool)
    for gpu, (first, end) in enumerate(sensed.groups.spans):
        for note in notes[gpu]:
            if note.problem == Problem.CLOCK_STEP and note.seconds is not None and note.seconds < 0:
                at = first + np.searchsorted(ts[first:end], [note.began_ns, note.ended_ns + 1])
                mixed[at[0] : at[1]] = True
                back.append((min(int(at[0]), end - 2), -note.seconds, gpu))
    return back, mixed


def _note_gaps(sensed: SensedPower, blind: Flags, energy: Floats, notes: Sequence[list[Note]]) -> None:
    """One note for each stretch without readings."""
    ts = sensed.readings.ts_ns
    for gpu, at in sensed.groups.places(blind & ~sensed.refused):
        first = np.concatenate([[True], np.diff(at) > 1])
        began, ended = at[first], at[np.append(first[1:], True)] + 1
        joules = np.add.reduceat(energy[at], np.flatnonzero(first))
        notes[gpu] += notes_of(Problem.GAP, ts[began], ts[ended], joules)


def _sources(sensed: SensedPower, trusted: Flags) -> list[PowerSource]:
    """By GPU, which readings gave most of the energy."""
    mostly = 2 * sensed.groups.sums(sensed.step_s * trusted) >= sensed.groups.sums(sensed.step_s)
    mostly &= sensed.groups.count(trusted) > 0
    return [
        PowerSource.COUNTER if counter else timing.source
        for counter, timing in zip(mostly.tolist(), sensed.timings, strict=True)
    ]


def _levels(sensed: SensedPower, idle: IdlePower, limit_w: Floats) -> tuple[Floats, Floats, Floats]:
    """The least that each GPU draws, the most that its work draws often, and the most that it can draw at all."""
    groups, watts = sensed.groups, sensed.watts
    lowest, highest_read = np.fmin.reduceat(watts, groups.firsts), np.fmax.reduceat(watts, groups.firsts)
    often = np.full(len(groups), np.nan)
    for gpu in np.flatnonzero(sensed.powered).tolist():
        first, end = groups.spans[gpu]
        powers = watts[first:end]
        powers = powers if sensed.powered[gpu] == end - first else powers[sensed.has_power[first:end]]
        at = int(_OFTEN * (len(powers) - 1))
        often[gpu] = np.partition(powers, at)[at]
    limited = ~np.isnan(limit_w)
    least = np.where(~np.isnan(idle.watts), idle.low_w, np.where(limited, FLOOR * limit_w, 0.0))
    floor = np.fmin(lowest, least)
    full = np.where(limited, np.fmax(often, LIKELY * limit_w), often)
    highest = np.where(limited, np.fmax(limit_w, highest_read), _UNKNOWN_LIMIT * highest_read)
    unlike = (sensed.powered == 0) & ~(limit_w > 0)
    return np.where(unlike, 0.0, floor), np.where(unlike, 0.0, full), np.where(unlike, _MOST_W, highest)


def _disagreement(
    sensed: SensedPower, by_power: Floats, energy: Floats, sums: Floats, both: Flags, notes: Sequence[list[Note]]
) -> Floats:
    """(g,) which share of it the counter has more than the integrated power, beyond what sampling explains."""
    groups, ts, excess = sensed.groups, sensed.readings.ts_ns, np.zeros(len(sensed.groups))
    if not both.any():
        return excess
    power, counter, independent, alias = (groups.sums(values * both) for values in (by_power, energy, sums[0], sums[2]))
    doubt, apart = 2 * np.sqrt(independent + alias) + _AGREE * power, counter - power
    long = groups.sums(sensed.step_s * both) >= _AGREE_S
    for gpu in np.flatnonzero((power != 0) & (counter != 0) & long & (np.abs(apart) > doubt)).tolist():
        at = groups.spans[gpu][0] + np.flatnonzero(both[slice(*groups.spans[gpu])])
        first, last, excess_j = int(ts[at[0]]), int(ts[at[-1] + 1]), float(apart[gpu])
        notes[gpu].append(Note(Problem.DISAGREE, first, last, excess_j, float(100 * excess_j / power[gpu])))
        excess[gpu] = (excess_j - doubt[gpu] if excess_j > 0 else excess_j + doubt[gpu]) / counter[gpu]
    return excess


def _without_energy(
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
        np.nan_to_num(limit_w), tuple(map(tuple, notes)), reasons, np.arange(0, 2 * n, 2), np.arange(2, 2 * n + 1, 2),
        np.arange(2 * n), knots, knots, knots, knots, knots, np.zeros((len(PARTS), 2 * n)),
        np.zeros((len(ENDS), 2 * n)),
    )  # fmt: skip
