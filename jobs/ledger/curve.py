"""What one GPU had used by any time: a curve through the readings of its sensor, with what these leave open.

The curve has a knot wherever the sensor had a new value. Between two knots it is a straight line: nobody knows when,
within one step of the sensor, the energy was used. `doubt` is how far the line may be off at a time between them.

Energy comes from the driver's counter where it counts, else from power (trapezoids between new values), else it is a
gap: what the GPU drew before, between nothing and the most that the board can draw. Times are s, on any steady clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...store.aliasing import Sensor
from .unseen import Unseen

Floats = NDArray[np.float64]

ENERGY, BELOW, ABOVE, VARIANCE, ALIAS_W2S, ALIAS_J2, SENSED_J, SENSED_S, COUNTER_S, DOUBT = range(10)
"""What is counted, in J and s; of it three are `store.aliasing.SUMS`. Each adds up over times and over spans.
`splitting` fills DOUBT."""
WIDTH = 10

LONGEST_STEP_S = 1.0
"""A sensor without a new value for longer is not believed to be at work."""
MOST_W = 2000.0
"""What no board draws more than: for one whose power limit is not known."""
_OVER_LIMIT = 1.25  # for moments, boards draw more than their limit

_COUNTER, _POWER, _GAP = range(3)


@dataclass(frozen=True)
class _Lines:
    """The lines between knots, as arrays; by line but for `knots`."""

    knots: Floats
    rows: Floats  # where it begins
    more: Floats  # from there to its end
    step: Floats
    used: Floats
    displaced: Floats  # J: as the times of knots are not exact
    read: NDArray[np.bool_]  # no gap, whose bounds hold for each part of it

    @classmethod
    def of(
        cls, times: list[float], rows: list[list[float]], kinds: list[int], slack: list[float], period: float
    ) -> _Lines:
        knots, table, late = np.array(times), np.array(rows), np.array(slack)
        step, more = np.diff(knots), np.diff(table, axis=0)
        used = more[:, ENERGY]
        watts = used / step
        around = np.pad(watts, 1, mode="edge")
        swing = np.ptp([around[:-2], watts, around[2:]], axis=0)
        # A step in power may be in a later value, as the sensor has it late, or in an earlier one.
        displaced = watts * np.maximum(late[:-1], late[1:]) + swing * period
        return cls(knots, table, more, step, used, displaced, np.array(kinds[1:]) != _GAP)


class Curve:
    """The curve of one GPU, made by `read`, of which `forget` drops what nobody will ask for."""

    def __init__(self, limit_w: float | None, sensor: Sensor) -> None:
        self.most_w = MOST_W if limit_w is None else limit_w * _OVER_LIMIT
        self._sensor, self._period = sensor, sensor.period_s
        self._unseen = Unseen(sensor, limit_w)
        self._times: list[float] = []
        self._rows: list[list[float]] = []
        self._kinds: list[int] = []  # of the line that ends at the knot
        self._slack: list[float] = []  # s: how exactly the knot's time is known, either way
        self._looked: float | None = None  # the last reading, with or without a new value
        self._counter: float | None = None  # at the last knot
        self._power: float | None = None
        self._stuck: float | None = None  # where the counter stands still
        self._utilization: float | None = None
        self._lines: _Lines | None = None

    @property
    def end(self) -> float | None:
        """The time of the last knot; None before the first."""
        return self._times[-1] if self._times else None

    def read(
        self,
        at: float,
        counter_j: float | None,
        power_w: float | None,
        window_s: float = 0.0,
        utilization: float | None = None,
    ) -> None:
        """Take in a reading: the counter (J), the power (W; 0 is no reading) and what time this power averages.

        `utilization` is from 0 to 1.
        """
        self._utilization = utilization
        power_w = power_w or None
        looked, self._looked = self._looked, at
        if not self._times:
            if counter_j is not None or power_w is not None:
                self._add(at, [0.0] * WIDTH, _GAP, self._period / 2)
                self._counter, self._power = counter_j, power_w
            return
        last = self._times[-1]
        if at <= last:
            return
        late = min(at - (last if looked is None else looked), self._period) / 2
        if counter_j is not None and self._counter is not None and counter_j != self._stuck:
            used = counter_j - self._counter
            # A new value came since the last look: in the middle, as far as anybody knows.
            if 0 < used <= self.most_w * (at - late - last + 2 * self._period):
                self._line(at - late, used, _COUNTER, late)
            elif used == 0:
                if at - last > LONGEST_STEP_S and power_w is not None:
                    self._stuck = counter_j
                return
            else:  # it began anew, or jumped
                self._gap(at)
        elif power_w is not None and self._power is not None and at - last <= LONGEST_STEP_S:
            if power_w == self._power and at - last < self._period:
                return
            self._trapezoid(at, power_w, window_s)
        elif counter_j is not None or power_w is not None:
            self._gap(at)
        else:
            if at - last > LONGEST_STEP_S:
                self._gap(at)
                self._counter = None
            return
        if counter_j is None or counter_j != self._stuck:
            self._counter, self._stuck = counter_j, None
        self._power = power_w

    def extend(self, to: float) -> None:
        """Make the curve reach so far, although the sensor has had no new value: that is a gap."""
        if self._times and to > self._times[-1]:
            self._gap(to)
            self._counter = None

    def _line(self, at: float, used: float, kind: int, slack: float) -> None:
        step = at - self._times[-1]
        row = list(self._rows[-1])
        row[ENERGY] += used
        if kind == _GAP:
            row[BELOW] += used
            row[ABOVE] += max(0.0, self.most_w * step - used)
        else:
            row[SENSED_J] += used
            row[SENSED_S] += step
            row[COUNTER_S] += step * (kind == _COUNTER)
            unseen = self._unseen.step(used / step, step, self._utilization, counter=kind == _COUNTER)
            for column, more in enumerate(unseen, VARIANCE):
                row[column] += more
        self._add(at, row, kind, slack)

    def _trapezoid(self, at: float, power_w: float, window_s: float) -> None:
        assert self._power is not None
        step = at - self._times[-1]
        self._line(at, (self._power + power_w) / 2 * step, _POWER, (window_s + self._period) / 2)

    def _gap(self, to: float) -> None:
        step = to - self._times[-1]
        self._line(to, min(self._power or self._slope(), self.most_w) * step, _GAP, 0.0)

    def _slope(self) -> float:
        """W, along the last line; half of the most where there is none."""
        if len(self._times) < 2 or self._kinds[-1] == _GAP:
            return self.most_w / 2
        return (self._rows[-1][ENERGY] - self._rows[-2][ENERGY]) / (self._times[-1] - self._times[-2])

    def _add(self, at: float, row: list[float], kind: int, slack: float) -> None:
        self._lines = None
        self._times.append(at)
        self._rows.append(row)
        self._kinds.append(kind)
        self._slack.append(slack)

    def at(self, times: Floats) -> tuple[Floats, Floats]:
        """What was used by each time, shape (times, WIDTH), and how far off the energy may be, J, shape (times,).

        Times before the first knot have what it has: nothing. Those after the last one have what that has.
        """
        if len(self._times) < 2:
            return np.repeat(np.array(self._rows), len(times), axis=0), np.zeros(len(times))
        lines = self._lines = self._lines or _Lines.of(self._times, self._rows, self._kinds, self._slack, self._period)
        line = np.searchsorted(lines.knots[1:-1], times, side="right")
        step, used = lines.step[line], lines.used[line]
        since = np.minimum(np.maximum(times - lines.knots[line], 0.0), step)
        part = since / step
        found = lines.rows[line] + part[:, None] * lines.more[line]
        here = used * part
        above = np.minimum(self.most_w * since, used) - here
        below = here - np.maximum(0.0, used - self.most_w * (step - since))
        doubt = np.maximum(np.maximum(above, below), 0.0) + lines.displaced[line]
        return found, doubt * lines.read[line]

    def forget(self, before: float) -> None:
        """Drop knots that no time from `before` on needs."""
        keep = max(0, min(int(np.searchsorted(self._times, before, side="right")) - 1, len(self._times) - 2))
        if keep > 0:
            self._lines = None
            for one in (self._times, self._rows, self._kinds, self._slack):
                del one[:keep]
