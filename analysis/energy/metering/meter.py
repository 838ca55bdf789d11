"""Meters: the energy of GPUs as functions of time, and how far they may be wrong.

All figures are differences of functions that only grow with time, so the figures of two windows side by side add up to
those of both. Only the ends of a window add something of their own: where a reading is placed in time is not exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....store.power_sensors import NORMAL_95
from ....store.unseen import SUMS, variance_j2
from .findings import Note, Reason
from .power import PowerSource
from .readings import Floats, Ints, Times

_REASON = f"<U{max(len(one) for one in Reason)}"
_REFUSED_FROM = 0.5  # of a window without readings that count
PARTS = ("measured_j", "below_j", "above_j", *SUMS, "measured_s", "counter_s", "stuck_s", "zero_s")
"""What a meter sums up besides the energy: of `Energies`, and what its variance and its reasons are made of."""
_KNOTS = ("knots_ns", "knots_s", "energy_j", "slope_j", "bend_j", "edge_w", "parts")


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
    lag_s: Floats
    """(g,) by how much the energy of a step in power may be displaced: its height times this."""
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
        first, since = self._at(of, began)
        last, until = self._at(of, ended)
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

    def _at(self, of: Ints, when: Times) -> tuple[Floats, Floats]:
        """The time on the meter and (2 + parts, n): energy, parts and the doubt of a window's end there."""
        inside, at, step, share = self._where(of, when)
        found = np.empty((2 + len(PARTS), len(when)))
        found[0] = self._upto(at, share)
        before = self.parts[:, at]
        found[1:-1] = before + share * (self.parts[:, at + 1] - before)
        found[-1] = self.edge_w[at] * (share * (1 - share) * step + self.lag_s[of])
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
