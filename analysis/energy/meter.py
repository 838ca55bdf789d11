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

An energy counter is not believed everywhere:

    counter  ──┐ reset      it fell to almost nothing: the driver was loaded again
    4294 kJ  ──┐ wrap       it fell from near its 32 bits: counted across
      grows too fast        a jump: more than one and a half times what the GPU can draw
      grows too slowly      stale: less than a third of the integrated power

Between the readings at which it moved (anchors), the power says how its energy is spread over time. A single odd value
is left out. Where it cannot be believed, the integrated power stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.aliasing import FLOOR, LIKELY, SUMS, variance_j2
from ...store.power_sensors import NORMAL_95, sensor_of_model
from .sensor import (
    IDLE_SOURCES,
    Flags,
    Floats,
    IdlePower,
    IdleSource,
    Ints,
    Note,
    PowerSource,
    Problem,
    Readings,
    Reason,
    SensedPower,
    Times,
    aliasing,
    beside,
    followed,
    idle_power,
    notes_of,
    power_at,
    sensed_power,
    steps,
)

_REASON = f"<U{max(len(reason) for reason in Reason)}"
_REFUSED_FROM = 0.5  # of a window without readings that count
_UNKNOWN_LIMIT = 1.5  # times the highest reading, where no limit is known
_MOST_W = 1500.0  # no board draws more: where neither a limit nor a reading is known
_OFTEN = 0.99  # quantile of the readings that counts as the most that work draws
_AGREE = 0.02  # a difference between counter and power that needs no mention
_AGREE_S = 10.0  # less time than this tells nothing of it
_JUMP = 1.5  # times the highest power that a counter may show
_CREEP = 0.3  # of the power: a counter that grows by less stands still
_SLACK_S = 0.3  # a counter is brought up to date now and then: so much of the power may come late or early
_WRAP_J = 2.0**32 / 1000  # a counter of 32 bits, mJ
_STALE_S = 10.0  # shorter standstills are not told of
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
    """(k,) the largest step of the power in a segment and in the one after it."""
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

    @classmethod
    def joined(cls, parts: Sequence[Meters]) -> Meters:
        """The meters of all parts, one after another. The times that they last must not add up to 292 years."""
        if len(parts) == 1:
            return parts[0]
        knots = np.cumsum([0, *(len(part.knots_ns) for part in parts)]).tolist()
        since = np.cumsum([0, *(int(part.knots_ns[-1]) + 1 for part in parts)]).tolist()
        columns: dict[str, Any] = {}
        for name, values in vars(parts[0]).items():
            arrays = [getattr(part, name) for part in parts]
            if name in ("begins", "ends", "knots_ns"):
                moved = since if name == "knots_ns" else knots
                arrays = [array + more for array, more in zip(arrays, moved, strict=False)]
            is_array = isinstance(values, np.ndarray)
            columns[name] = np.concatenate(arrays, axis=-1) if is_array else tuple(chain.from_iterable(arrays))
        return cls(**columns)

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


# -- from readings to a meter ----------------------------------------------------------------------------------


def meter_of_readings(
    gpu: tuple[str, str],
    readings: Readings,
    limit_w: float | None = None,
    model: str | None = None,
    events: Iterable[Note] = (),
) -> Meters:
    """The meter of one GPU (cluster and GPU), which may have no readings.

    `limit_w` is its power limit where the readings have none; `events` are notes that were made elsewhere.
    """
    notes, limit = list(events), np.nan if limit_w is None else limit_w
    ts = readings.ts_ns
    if not len(ts):
        return _without_energy(gpu, (0, 0), limit, notes, Reason.NO_TELEMETRY)
    if readings.limit_w is not None:
        highest = float(np.fmax.reduce(readings.limit_w))
        limit = highest if highest > 0 else limit
    sensor = None if model is None else sensor_of_model(model)
    if sensor is not None and sensor.of_module:  # they are of a whole module, processor included
        readings = replace(readings, counter_j=None, instant_w=None)
    sensed = sensed_power(readings, limit, model, notes)
    useful = sensed.has_power | sensed.stuck | sensed.zero
    if readings.counter_j is not None:
        useful |= ~np.isnan(readings.counter_j)
    if np.count_nonzero(useful) < 2:
        reason = Reason.NO_TELEMETRY if useful.any() else Reason.NO_SENSOR
        return _without_energy(gpu, (int(ts[0]), int(ts[-1])), limit, notes, reason)
    return _metered(gpu, sensed if useful.all() else sensed.take(useful), limit, notes, ts[~useful])


def _metered(gpu: tuple[str, str], sensed: SensedPower, limit_w: float, notes: list[Note], useless_ns: Times) -> Meters:
    """`useless_ns`: when there are readings of which nothing counts."""
    ts, step = sensed.readings.ts_ns, sensed.step_s
    idle = idle_power(sensed, limit_w)
    floor_w, full_w, highest_w = _levels(sensed, idle, limit_w)
    power = power_at(sensed, (floor_w + highest_w) / 2 if limit_w > 0 else floor_w)
    together, powered = followed(sensed)
    slope, bend = step * power, step * steps(power) / 2
    by_power = slope + bend
    back, mixed = _clock_set_back(ts, notes)
    trusted, counter_j = np.zeros(len(ts), bool), np.zeros(len(ts))
    if (counter := sensed.readings.counter_j) is not None:
        counter = np.where((counter >= 0) & (counter < 2.0**53) & ~mixed, counter, np.nan)
        trusted, counter_j = _counted(ts, counter, by_power, powered, highest_w, notes)
    energy = np.where(trusted, counter_j, by_power)
    blind = ~(trusted | powered)
    blind[-1] = False
    _note_gaps(sensed, blind, energy, useless_ns, notes)
    # Within an interval the energy has the shape of the power, but where there is none.
    shaped = (by_power > 0) & ~blind
    factor = energy / np.where(shaped, by_power, 1.0)
    slope, bend = np.where(shaped, slope * factor, energy), np.where(shaped, bend * factor, 0.0)

    sums = np.array(aliasing(sensed, power, floor_w, full_w))
    apart = _disagreement(ts, step, (by_power, energy), sums, trusted & powered & ~beside(mixed), notes)
    if trusted.any():  # it misses nothing between its readings, but what it adds up may be those of the same sensor
        period = sensed.timing.period_s
        sums[:, trusted] *= 1.0 - min(sensed.timing.window_s / period, 1.0)
        sums[0, trusted] *= period / max(sensed.read_every_s, period)
    grown = {name: np.zeros(len(ts)) for name in PARTS} | dict(zip(SUMS, sums * ~blind, strict=True))
    grown |= {"measured_j": energy * ~blind, "measured_s": step * ~blind, "counter_s": step * trusted}
    least_j = np.maximum(floor_w * step, np.where(trusted, 0.0, counter_j))
    for name, bound_j, share in (("below_j", energy - least_j, apart), ("above_j", highest_w * step - energy, -apart)):
        of_counter = np.where(trusted, max(share, 0.0) * energy, 0.0)
        grown[name] = np.where(blind, of_counter + np.maximum(bound_j, 0.0), of_counter)
    for name, flags in (("stuck_s", sensed.stuck), ("zero_s", sensed.zero)):
        grown[name] = np.where(blind & beside(flags), step, 0.0)
    for at, seconds in back:
        grown["above_j"][at] += seconds * highest_w
    jumps_w = np.abs(steps(power))
    edge_w = np.maximum(jumps_w, np.append(jumps_w[1:], 0.0))
    source = PowerSource.COUNTER if 0 < 2 * step[trusted].sum() >= step.sum() else sensed.timing.source
    upto, parts = np.append(0.0, np.cumsum(energy[:-1])), np.zeros((len(PARTS), len(ts)))
    for sums_to, name in zip(parts, PARTS, strict=True):
        if grown[name].any():  # many are 0 everywhere
            np.cumsum(grown[name][:-1], out=sums_to[1:])
    return Meters(
        gpus=[gpu], first_ns=ts[:1], last_ns=ts[-1:], origin_ns=ts[:1],
        idle_w=np.array([idle.watts]), idle_low_w=np.array([idle.low_w]), idle_high_w=np.array([idle.high_w]),
        idle_source=np.array([IDLE_SOURCES.index(idle.source)]), power_source=[source],
        limit_w=np.array([limit_w], np.float64), lowest_w=np.array([floor_w]), highest_w=np.array([highest_w]),
        notes=[tuple(notes)], empty=[None], begins=np.array([0]), ends=np.array([len(ts)]),
        knots_ns=ts - ts[0], knots_s=sensed.times_s, energy_j=upto, slope_j=slope, bend_j=bend,
        edge_w=np.where(together, edge_w, highest_w - floor_w),
        parts=parts, ends_j=_ends(sensed, upto),
    )  # fmt: skip


def _ends(sensed: SensedPower, energy_j: Floats) -> Floats:
    """(3, k) `ENDS`, from the energy up to each reading.

    With the power `early` and `late` in the time of the lag before and after an end, readings that lag by it move the
    end by lag x (early + late) / 2 as a level and by lag x (late - early) / 2 as power changes there. A mean over
    a window smears a step: a quarter of the window x (late - early) at most.
    """
    times, here, last = sensed.times_s, np.arange(len(energy_j)), len(energy_j) - 1
    lag_s, smear_s = sensed.timing.lag_s, sensed.timing.window_s / 4
    reach = max(int(np.rint(lag_s / max(sensed.read_every_s, 1e-3))), 1)
    back, ahead = np.maximum(here - reach, 0), np.minimum(here + reach, last)
    early = (energy_j - energy_j[back]) / np.maximum(times - times[back], 1e-9)
    late = (energy_j[ahead] - energy_j) / np.maximum(times[ahead] - times, 1e-9)
    early[0], late[-1] = late[0], early[-1]
    level_j, moved_j = lag_s / 2 * (early + late), (lag_s / 2 + smear_s) * np.abs(late - early)
    return np.stack([level_j, moved_j, np.zeros(len(here))])


def _clock_set_back(ts: Times, notes: Sequence[Note]) -> tuple[list[tuple[int, float]], Flags]:
    """Where a clock was set back: the interval, and by how many s; and the readings of times that it showed twice: rows
    of both times lie mixed, and the counter to and fro."""
    back, mixed = [], np.zeros(len(ts), bool)
    for note in notes:
        if note.problem == Problem.CLOCK_STEP and note.seconds is not None and note.seconds < 0:
            first, end = np.searchsorted(ts, [note.began_ns, note.ended_ns + 1]).tolist()
            mixed[first:end] = True
            back.append((min(first, len(ts) - 2), -note.seconds))
    return back, mixed


def _note_gaps(sensed: SensedPower, blind: Flags, energy: Floats, useless_ns: Times, notes: list[Note]) -> None:
    """One note for each stretch without readings."""
    ts, at = sensed.readings.ts_ns, np.flatnonzero(blind & ~sensed.refused)
    if not len(at):
        return
    first = np.append(True, np.diff(at) > 1)
    began, ended = at[first], at[np.append(first[1:], True)] + 1
    gaps = notes_of(Problem.GAP, ts[began], ts[ended], np.add.reduceat(energy[at], np.flatnonzero(first)))
    for gap in gaps:
        low, high = np.searchsorted(useless_ns, [gap.began_ns, gap.ended_ns])
        notes.append(replace(gap, has_rows=bool(low < high)))


def _levels(sensed: SensedPower, idle: IdlePower, limit_w: float) -> tuple[float, float, float]:
    """The least that the GPU draws, the most that its work draws often, and the most that it can draw at all."""
    watts, limited = np.sort(sensed.watts[sensed.has_power]), not np.isnan(limit_w)
    if not len(watts) and not limit_w > 0:
        return 0.0, 0.0, _MOST_W
    lowest, often, highest = (
        (watts[0], watts[int(_OFTEN * (len(watts) - 1))], watts[-1]) if len(watts) else (np.nan, np.nan, np.nan)
    )
    least = idle.low_w if not np.isnan(idle.watts) else FLOOR * limit_w if limited else 0.0
    floor = float(np.fmin(lowest, least))
    if not limited:
        return floor, float(often), float(_UNKNOWN_LIMIT * highest)
    return floor, float(np.fmax(often, LIKELY * limit_w)), float(np.fmax(limit_w, highest))


def _disagreement(
    ts: Times, step: Floats, energies: tuple[Floats, Floats], sums: Floats, both: Flags, notes: list[Note]
) -> float:
    """Which share of it the counter has more than the integrated power, beyond what sampling explains. `energies`: of
    the power and of the counter, where there are `both`."""
    power, counter = (float(values[both].sum()) for values in energies)
    doubt = 2 * np.sqrt(sums[0, both].sum() + sums[2, both].sum()) + _AGREE * power
    excess_j = counter - power
    if power == 0 or counter == 0 or step[both].sum() < _AGREE_S or abs(excess_j) <= doubt:
        return 0.0
    at = np.flatnonzero(both)
    percent = 100 * excess_j / power
    notes.append(Note(Problem.DISAGREE, int(ts[at[0]]), int(ts[at[-1] + 1]), excess_j, percent))
    return float(excess_j - np.copysign(doubt, excess_j)) / counter


def _without_energy(
    gpu: tuple[str, str], ends_ns: tuple[int, int], limit_w: float, notes: Sequence[Note], reason: Reason
) -> Meters:
    """The meter of a GPU that has no energy at all, with readings from one time to another."""
    unknown, knots = np.array([np.nan]), np.zeros(2)
    return Meters(
        gpus=[gpu], first_ns=np.array(ends_ns[:1]), last_ns=np.array(ends_ns[1:]), origin_ns=np.array(ends_ns[:1]),
        idle_w=unknown, idle_low_w=np.zeros(1), idle_high_w=unknown,
        idle_source=np.array([IDLE_SOURCES.index(IdleSource.UNKNOWN)]), power_source=[PowerSource.POWER],
        limit_w=np.array([limit_w]), lowest_w=np.zeros(1), highest_w=np.nan_to_num([limit_w]),
        notes=[tuple(notes)], empty=[reason], begins=np.array([0]), ends=np.array([2]),
        knots_ns=np.arange(2), knots_s=knots, energy_j=knots, slope_j=knots, bend_j=knots, edge_w=knots,
        parts=np.zeros((len(PARTS), 2)), ends_j=np.zeros((len(ENDS), 2)),
    )  # fmt: skip


# -- the energy counter ----------------------------------------------------------------------------------------


def _counted(
    ts: Times, counter: Floats, by_power: Floats, sensed: Flags, highest_w: float, notes: list[Note]
) -> tuple[Flags, Floats]:
    """By interval: whether the counter is believed, and what it counted, J; adds to the `notes`.

    `counter` is in J, NaN where it was not read; `by_power` is the energy of the integrated power, `sensed` whether
    that was measured; `highest_w` is what the GPU can draw. Where a counter is not believed, its energy is 0, and where
    it began anew what it shows since: a bound from below.
    """
    at = _anchors(counter)
    trusted, energy = np.zeros(len(ts), bool), np.zeros(len(ts))
    if not len(at):
        return trusted, energy
    value, anchor_ns, power = counter[at], ts[at], np.add.reduceat(by_power, at)
    # By anchor: of the time to the next one. After the last there is none.
    has_next = np.arange(len(at)) < len(at) - 1
    grown, lasted = steps(value), np.append(np.diff(anchor_ns) / 1e9, 1.0)
    most = _JUMP * highest_w * (lasted + _SLACK_S)
    following = np.append(value[1:], 0.0)
    wrapped = (grown < 0) & (following < _WRAP_J) & (value < _WRAP_J) & (value > _WRAP_J / 2)
    wrapped &= grown + _WRAP_J <= most
    grown = np.where(wrapped, grown + _WRAP_J, grown)
    fell = grown < 0
    reset = fell & (following <= most)
    jumped = grown > most + 1.0
    crept = grown < _CREEP * (power / lasted) * np.maximum(lasted - _SLACK_S, 0) - 1.0
    crept &= np.logical_and.reduceat(sensed, at) & has_next & ~fell
    good = has_next & ~(fell | jumped | crept)
    # Each reading's interval belongs to the anchors around it: its part of their energy is that of the power.
    after = slice(int(at[0]), None)
    place = np.repeat(np.arange(len(at)), np.diff(at, append=len(ts)))
    trusted[after] = good[place]
    step = steps(ts)[after] / 1e9
    level = ~(power > 0)[place]
    spread = np.where(level, step / lasted[place], by_power[after] / np.where(level, 1.0, power[place]))
    energy[after] = np.where(trusted[after], grown[place] * spread, 0.0)
    next_at = np.append(at[1:], at[-1])
    energy[next_at[reset] - 1] = following[reset]
    for problem, flags, joules in (
        (Problem.COUNTER_RESET, reset, -grown),
        (Problem.COUNTER_BACK, fell & ~reset, -grown),
        (Problem.COUNTER_WRAP, wrapped, grown),
        (Problem.COUNTER_JUMP, jumped, grown),
        (Problem.COUNTER_STALE, crept & (lasted > _STALE_S), power - grown),
    ):
        notes += notes_of(problem, anchor_ns[flags], ts[next_at[flags]], joules[flags])
    final, last = int(at[-1]), len(ts) - 1
    still_s, missing_j = (ts[last] - ts[final]) / 1e9, float(by_power[final:last].sum())
    usual_s = float(np.median(lasted[:-1])) if len(at) > 1 else 0.0  # it never moved
    is_read = len(at) > 1 or not np.isnan(counter[last])
    if is_read and still_s > max(_STALE_S, 3 * usual_s) and missing_j > highest_w:
        notes.append(Note(Problem.COUNTER_STALE, int(ts[final]), int(ts[last]), missing_j))
    return trusted, energy


def _anchors(counter: Floats) -> Ints:
    """The readings at which the counter had moved, without values that one reading alone has."""
    at = np.flatnonzero(~np.isnan(counter))
    if len(at) > 2:
        before, here, after = counter[at[:-2]], counter[at[1:-1]], counter[at[2:]]
        odd = np.zeros(len(at), bool)
        odd[1:-1] = (after >= before) & ((here < before) | (here > after))
        odd[1:] &= ~odd[:-1]
        at = at[~odd]
    return at[np.append(True, counter[at[1:]] != counter[at[:-1]])] if len(at) else at
