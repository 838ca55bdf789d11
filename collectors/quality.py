"""Tests whether a power sensor can be trusted, from its readings alone.

Four marks, for `telemetry.quality`; each has its rule below:

    power_stuck       the reading does not move while what it depends on does
    power_zero        every reading is 0 W
    power_quantised   readings come in coarse steps
    power_slow        a new value comes far less often than it is read
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..store.events import Event
from ..store.metrics import BOARD_POWER
from ..store.vocabulary import EventKind

READ = (*BOARD_POWER, "utilization", "sm_clock_mhz", "energy_mj")
"""The metrics that a judgement needs, in this order: power in mW (instantaneous, reported), %, MHz, mJ."""
COARSE_MW = 1000  # a step from which readings count as quantised
_CHANCE = 1e-12  # of one look at one healthy sensor being called quantised
_UTILIZATION, _CLOCK, _POWER = 30, 0.10, 0.20  # movement that a live sensor must show: points, share, share
_SLOW = 4  # times rarer than it should be
_LEAST = 30  # readings
_LEAST_CHANGES = 5
_LOOKS = 4  # in a window
# A reading as it is kept: its time (ns), those of READ, and a bit for each that is known.
_READING = struct.Struct(f"<{len(READ) + 2}q")


class Quality:
    """Keeps the last readings of a GPU and judges its power sensor a few times in each window.

    `interval_s` is the time between readings, `period_s` that between new values of the sensor where it is known,
    `window_s` how far back a judgement looks.
    """

    def __init__(self, gpu: str, *, interval_s: float, period_s: float | None = None, window_s: float = 60.0) -> None:
        length = max(_LEAST, round(window_s / interval_s))
        self._gpu, self._interval = gpu, interval_s
        # Half an interval of doubt: a value that comes every 4.1 intervals is seen after 4 or 5.
        self._longest_s = _SLOW * max(interval_s, period_s or 0.1) + interval_s / 2
        self._every = max(1, length // _LOOKS)
        self._unjudged = 0
        self._readings: deque[bytes] = deque(maxlen=length)
        self._marks: dict[str, Event] = {}
        self.text: str | None = None
        """Its marks, as the column `quality` has them."""

    def note(self, ts_ns: int, readings: Sequence[int], known: int) -> None:
        """Take in what was read at UTC `ts_ns`, in the order of READ; bit k of `known` says whether the k-th counts."""
        self._readings.append(_READING.pack(ts_ns, *readings, known))
        self._unjudged += 1

    def judge(self) -> list[Event]:
        """Judge the sensor where it is time to; an event for each mark that begins or ends."""
        if self._unjudged < self._every or len(self._readings) < _LEAST:
            return []
        self._unjudged = 0
        rows = list(_READING.iter_unpack(b"".join(self._readings)))
        powers = [(row[0], row[1] if row[-1] & 1 else row[2]) for row in rows if row[-1] & 3]
        if len(powers) < _LEAST:
            return []  # too little to judge by: the marks stand
        marks, before = self._marked(powers, rows), self._marks
        self._marks, self.text = marks, ",".join(f"power_{name}" for name in marks) or None
        return [mark for name, mark in marks.items() if name not in before] + [
            self._event(EventKind.SENSOR_RECOVERED, name, f"the power sensor is no longer {name}")
            for name in before
            if name not in marks
        ]

    def _event(self, kind: EventKind, name: str, detail: str, **numbers: Any) -> Event:
        return Event(kind, self._gpu, detail, quality=f"power_{name}", **numbers)

    def _marked(self, powers: list[tuple[int, int]], rows: list[tuple[int, ...]]) -> dict[str, Event]:
        """What is wrong with power readings (times in ns, mW); `rows` has all that was read."""
        marks: dict[str, Event] = {}
        before, span_ns, milliwatts = self._marks, powers[-1][0] - powers[0][0], powers[0][1]
        distinct = {power for _, power in powers}
        if distinct == {0}:
            detail = (
                f"all power readings of {span_ns / 1e9:.0f} s are 0 W, which no GPU draws: the sensor does not work"
            )
            marks["zero"] = self._event(EventKind.ZERO_POWER, "zero", detail, duration_ns=span_ns)
        elif len(distinct) == 1 and len(rows) == self._readings.maxlen and (moved := _moved(rows)):
            detail = f"the power reading stayed at {milliwatts / 1000:.3f} W for {span_ns / 1e9:.0f} s while {moved}"
            marks["stuck"] = self._event(
                EventKind.STUCK_SENSOR, "stuck", detail, value=float(milliwatts), duration_ns=span_ns
            )
        step = math.gcd(*distinct)
        # The sentence of the beginning stays: the largest common step shrinks as values come in.
        if step >= COARSE_MW and ("quantised" in before or _chance(step, len(distinct)) < _CHANCE):
            detail = f"the power readings are multiples of {step / 1000:g} W"
            mark = before.get("quantised")
            marks["quantised"] = mark or self._event(EventKind.QUANTISED_SENSOR, "quantised", detail, value=step)
        elif period := self._slow_period(powers, marked="slow" in before):
            detail = f"a new power value comes every {period:.2g} s; it is read every {self._interval:g} s"
            period_ns = round(period * 1e9)
            mark = before.get("slow")
            marks["slow"] = mark or self._event(EventKind.SLOW_SENSOR, "slow", detail, duration_ns=period_ns)
        return marks

    def _slow_period(self, powers: list[tuple[int, int]], *, marked: bool) -> float | None:
        """The time (s) between new values where that is far too long and, to begin with, regular; else None."""
        changed = [ts for (_, power_before), (ts, power) in pairwise(powers) if power != power_before]
        if len(changed) < _LEAST_CHANGES:
            return None
        gaps = sorted(later - earlier for earlier, later in pairwise(changed))
        low, middle, high = (gaps[len(gaps) * quarter // 4] / 1e9 for quarter in (1, 2, 3))
        # A busy node reads late now and then: that ends no mark.
        regular = marked or high - low <= self._interval + 0.2 * middle
        return (changed[-1] - changed[0]) / 1e9 / len(gaps) if regular and middle > self._longest_s else None


def _known(rows: list[tuple[int, ...]], name: str) -> tuple[list[int], list[int]]:
    """When a metric of READ was known (ns), and its values then."""
    place = READ.index(name)
    pairs = [(row[0], row[place + 1]) for row in rows if row[-1] >> place & 1]
    return [ts for ts, _ in pairs], [number for _, number in pairs]


def _moved(rows: list[tuple[int, ...]]) -> str | None:
    """What moved while the power reading stood still; None where nothing did."""
    _, used = _known(rows, "utilization")
    if used and max(used) - min(used) >= _UTILIZATION:
        return f"utilisation moved by {max(used) - min(used)} points"
    _, clocks = _known(rows, "sm_clock_mhz")
    if clocks and max(clocks) - min(clocks) >= _CLOCK * max(*clocks, 1):
        return f"the SM clock moved by {max(clocks) - min(clocks)} MHz"
    times, energy = _known(rows, "energy_mj")
    if len(energy) < _LEAST:
        return None
    parts = [(len(energy) - 1) * part // 6 for part in range(7)]  # spans long beside the counter's period
    watts = [
        1e6 * (energy[last] - energy[first]) / max(times[last] - times[first], 1) for first, last in pairwise(parts)
    ]
    if min(watts) > 0 and max(watts) - min(watts) >= _POWER * max(watts):
        return f"the energy counter shows {min(watts):.0f} to {max(watts):.0f} W"
    return None


def _chance(step: int, distinct: int) -> float:
    """A bound on the chance that as many distinct mW values of a fine sensor share a divisor of `step` or more."""
    return float(step) ** (1 - distinct) / (distinct - 1) if distinct > 1 else 1.0
