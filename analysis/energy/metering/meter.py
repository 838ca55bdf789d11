"""A meter: the energy of one GPU as a function of time, and how far it may be wrong.

All figures are differences of functions that only grow with time, so the figures of two windows side by side add up to
those of both. Only the ends of a window add something of their own: where a reading is placed in time is not exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....store.sensor_error import NORMAL_95
from ....store.unseen import SUMS, variance_j2
from .findings import Note, Reason
from .readings import Floats, Times

_REASON = f"<U{max(len(one) for one in Reason)}"
_REFUSED_FROM = 0.5  # of a window without readings that count
PARTS = ("measured_j", "below_j", "above_j", *SUMS, "measured_s", "counter_s", "stuck_s", "zero_s")
"""What a meter sums up besides the energy: of `Energies`, and what its variance and its reasons are made of."""


@dataclass(frozen=True)
class Energies:
    """The energy of one GPU in n windows; arrays (n,)."""

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
class Meter:
    """The energy of one GPU as a function of time."""

    cluster: str
    gpu: str
    first_ns: int
    """When the time that it meters begins, UTC: at its first reading, or later where less was asked for."""
    last_ns: int
    origin_ns: int
    """Time of the first knot."""
    idle_w: float | None
    """What it draws without work; None where it was never seen idle."""
    idle_n: int
    """Of how many readings that is the median."""
    limit_w: float | None
    """Its power limit; None where unknown."""
    lowest_w: float
    """The least and the most that it can draw, as far as is known: the bounds of gaps."""
    highest_w: float
    notes: tuple[Note, ...]
    empty: Reason | None
    """Why it has no energy at all."""
    knots_s: Floats
    """(k,) since `origin_ns`."""
    energy_j: Floats
    """(k,) from the first knot to each."""
    slope_j: Floats
    """(k - 1,) of a segment: its energy to the fraction f of it is slope * f + bend * f**2."""
    bend_j: Floats
    edge_w: Floats
    """(k - 1,) the range of the power within a segment and around it."""
    lag_s: float
    """By how much the energy of a step in power may be displaced: its height times this."""
    parts: Floats
    """(parts, k) the other figures to each knot, in the order of `PARTS`."""

    def over(self, began: Times, ended: Times) -> Energies:
        """The energy from `began` to `ended` (ns UTC, arrays). Raises ValueError where one ends before it begins."""
        began, ended = np.asarray(began, np.int64), np.asarray(ended, np.int64)
        if (ended < began).any():
            raise ValueError("a window ends before it begins")
        length = (ended - began) / 1e9
        first, since, last, until = self._at_ends(began, ended)
        sums = dict(zip(PARTS, until[1:-1] - since[1:-1], strict=True))
        seconds = np.maximum(length, 1e-9)
        outside = length - (last - first)
        edges = since[-1] + until[-1]
        # What was not measured before the first reading and after the last is not in the energy: it may be more.
        beyond = outside * self.highest_w
        # No doubt goes further than the least and the most that the GPU can draw.
        energy = until[0] - since[0]
        less = np.maximum(energy - self.lowest_w * (last - first), 0.0)
        more = np.maximum(self.highest_w * (last - first) - energy, 0.0)
        variance = variance_j2([sums[name] for name in SUMS], seconds)
        return Energies(
            energy,
            sums["measured_j"],
            np.minimum(sums["below_j"] + edges, less),
            np.minimum(sums["above_j"] + edges, more) + beyond,
            np.minimum(variance, (np.maximum(less, more) / NORMAL_95) ** 2),
            sums["measured_s"],
            sums["counter_s"],
            self._reasons(length, sums),
        )

    def between(self, since_ns: int | None, until_ns: int | None) -> Meter | None:
        """The same meter of less time; None where it has none of it."""
        first = self.first_ns if since_ns is None else max(self.first_ns, since_ns)
        last = self.last_ns if until_ns is None else min(self.last_ns, until_ns)
        if first > last:
            return None
        notes = tuple(note for note in self.notes if note.ended_ns >= first and note.began_ns <= last)
        return replace(self, first_ns=first, last_ns=last, notes=notes)

    def _at_ends(self, began: Times, ended: Times) -> tuple[Floats, Floats, Floats, Floats]:
        """`_at` the begin and the end of each window. Where one begins as the last one ends, each time counts once."""
        if len(began) > 1 and np.array_equal(began[1:], ended[:-1]):
            inside, found = self._at(np.append(began, ended[-1]))
            return inside[:-1], found[:, :-1], inside[1:], found[:, 1:]
        return *self._at(began), *self._at(ended)

    def _at(self, when: Times) -> tuple[Floats, Floats]:
        """The time on the meter and (2 + parts, n): energy, parts and the doubt of a window's end there."""
        if len(self.knots_s) < 2:
            return np.zeros(len(when)), np.zeros((2 + len(PARTS), len(when)))
        inside, at, step, share = self._where(when)
        found = np.empty((2 + len(PARTS), len(when)))
        found[0] = self._upto(at, share)
        before = self.parts[:, at]
        found[1:-1] = before + share * (self.parts[:, at + 1] - before)
        found[-1] = self.edge_w[at] * (share * (1 - share) * step + self.lag_s)
        return inside, found

    def _where(self, when: Times) -> tuple[Floats, Times, Floats, Floats]:
        """The time on the meter, the segment that it is in, how long this is, and which share of it has passed."""
        inside = np.minimum(np.maximum((when - self.origin_ns) / 1e9, 0.0), self.knots_s[-1])
        at = np.searchsorted(self.knots_s, inside, "right") - 1
        at = np.minimum(np.maximum(at, 0), len(self.knots_s) - 2)
        step = self.knots_s[at + 1] - self.knots_s[at]
        return inside, at, step, (inside - self.knots_s[at]) / step

    def _upto(self, at: Times, share: Floats) -> Floats:
        found: Floats = self.energy_j[at] + self.slope_j[at] * share + self.bend_j[at] * share**2
        return found

    def joules(self, began_ns: int, ended_ns: int) -> float:
        """The `energy_j` of one window."""
        if len(self.knots_s) < 2:
            return 0.0
        _, at, _, share = self._where(np.array([began_ns, ended_ns], np.int64))
        first, last = self._upto(at, share)
        return float(last - first)

    def _reasons(self, length: Floats, sums: dict[str, Floats]) -> NDArray[np.str_]:
        reasons = np.zeros(len(length), _REASON)
        if self.empty is not None:
            reasons[:] = self.empty
            return reasons
        refused = sums["measured_s"] < _REFUSED_FROM * length
        if not refused.any():
            return reasons
        missing = length - sums["measured_s"]
        reasons[refused] = Reason.GAPS
        reasons[refused & (sums["stuck_s"] > missing / 2)] = Reason.STUCK
        reasons[refused & (sums["zero_s"] > missing / 2)] = Reason.ZERO
        unread = sums["measured_s"] + sums["stuck_s"] + sums["zero_s"] == 0
        reasons[unread & (length > 0)] = Reason.NO_TELEMETRY
        return reasons
