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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from operator import le, ne

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
_WORDS = len(READ) + 2  # of a reading in the ring: its time (ns), those of READ, and a bit for each that is known
_KINDS = {
    "stuck": EventKind.STUCK_SENSOR,
    "zero": EventKind.ZERO_POWER,
    "quantised": EventKind.QUANTISED_SENSOR,
    "slow": EventKind.SLOW_SENSOR,
}


@dataclass(frozen=True)
class SensorFinding:
    """A mark that begins or ends, with what is known of it and the sentence that explains it."""

    kind: EventKind
    quality: str
    detail: str
    value: float | None = None
    duration_ns: int | None = None

    def event(self, gpu: str) -> Event:
        """As an event of that GPU."""
        return Event(self.kind, gpu, self.detail, quality=self.quality, value=self.value, duration_ns=self.duration_ns)


@dataclass(frozen=True)
class _Mark:
    """What is wrong with a sensor: a sentence, and the reading (mW) and the time that it is about."""

    detail: str
    value: float | None = None
    duration_ns: int | None = None


class Quality:
    """Keeps the last readings of one GPU and judges its power sensor now and then.

    `interval_s` is the time between readings, `period_s` that between new values of the sensor where it is known,
    `window_s` how far back a judgement looks.
    """

    def __init__(self, *, interval_s: float, period_s: float | None = None, window_s: float = 60.0) -> None:
        self._length = max(_LEAST, round(window_s / interval_s))
        self._interval = interval_s
        # Half an interval of doubt: a value that comes every 4.1 intervals is seen after 4 or 5.
        self._longest_s = _SLOW * max(interval_s, period_s or 0.1) + interval_s / 2
        self._every = max(1, self._length // 12)
        self._seen = 0
        self._ring = bytearray(8 * _WORDS * self._length)
        self._pack = struct.Struct(f"<{_WORDS}q").pack_into
        self._marks: dict[str, _Mark] = {}
        self.text: str | None = None
        """Its marks, as the column `quality` has them."""
        self.last: tuple[Sequence[int], int] = (), 0
        """The last readings of READ, and a bit for each that is known."""

    def note(self, ts_ns: int, readings: Sequence[int], known: int) -> list[SensorFinding]:
        """Take in what was read at UTC `ts_ns`, in the order of READ; bit k of `known` says whether the k-th counts.

        Returns what a judgement found.
        """
        self.last = readings, known
        self._pack(self._ring, 8 * _WORDS * (self._seen % self._length), ts_ns, *readings, known)
        self._seen += 1
        if self._seen < _LEAST or self._seen % self._every:
            return []
        return self._judge()

    def _column(self, place: int) -> list[int]:
        """A column of the ring, in order of time."""
        words = memoryview(self._ring).cast("q")[place::_WORDS].tolist()
        oldest = self._seen % self._length
        return words[oldest:] + words[:oldest] if self._seen >= self._length else words[:oldest]

    def _known(self, name: str, masks: list[int], times: list[int]) -> tuple[list[int], list[int]]:
        """When a metric of READ was known (ns), and its values then."""
        place = READ.index(name)
        column, bit = self._column(place + 1), 1 << place
        if all(mask & bit for mask in masks):
            return times, column
        there = [mask & bit != 0 for mask in masks]
        return list(compress(times, there)), list(compress(column, there))

    def _judge(self) -> list[SensorFinding]:
        times, masks = self._column(0), self._column(_WORDS - 1)
        power = self._column(1)
        if not all(mask & 1 for mask in masks):
            pairs = zip(power, self._column(2), masks, strict=True)
            power = [instant if mask & 1 else reported for instant, reported, mask in pairs]
        if all(mask & 3 for mask in masks):
            if not self._marks and self._healthy(power, times):
                return []
            when = times
        else:
            there = [mask & 3 != 0 for mask in masks]
            when, power = list(compress(times, there)), list(compress(power, there))
        if len(power) < _LEAST:
            return []  # too little to judge by: the marks stand
        marks = self._marked(when, power, (times, masks))
        findings = [
            SensorFinding(_KINDS[name], f"power_{name}", mark.detail, mark.value, mark.duration_ns)
            for name, mark in marks.items()
            if name not in self._marks
        ]
        findings += [
            SensorFinding(EventKind.SENSOR_RECOVERED, f"power_{name}", f"the power sensor is no longer {name}")
            for name in self._marks
            if name not in marks
        ]
        self._marks, self.text = marks, ",".join(f"power_{name}" for name in marks) or None
        return findings

    def _healthy(self, power: list[int], times: list[int]) -> bool:
        """Whether a quick look shows that a sensor without a mark gets none; most are so."""
        # If the middle gap were too long, the longer half of the gaps would take more than all the time. So nothing
        # that stands still is prompt.
        gaps = sum(map(ne, power[1:], power)) - 1
        prompt = gaps * self._longest_s * 5e8 >= times[-1] - times[0] and all(map(le, times, times[1:]))
        return prompt and math.gcd(*power) < COARSE_MW

    def _marked(self, when: list[int], power: list[int], ring: tuple[list[int], list[int]]) -> dict[str, _Mark]:
        """What is wrong with power readings (mW) at these times (ns); `ring` has all times, and what is known then."""
        marks, before, span_ns = {}, self._marks, when[-1] - when[0]
        distinct = set(power)
        if distinct == {0}:
            detail = (
                f"all power readings of {span_ns / 1e9:.0f} s are 0 W, which no GPU draws: the sensor does not work"
            )
            marks["zero"] = _Mark(detail, duration_ns=span_ns)
        elif len(distinct) == 1 and self._seen >= self._length and (moved := self._moved(*ring)):
            detail = f"the power reading stayed at {power[0] / 1000:.3f} W for {span_ns / 1e9:.0f} s while {moved}"
            marks["stuck"] = _Mark(detail, float(power[0]), span_ns)
        step = math.gcd(*distinct)
        if step >= COARSE_MW and ("quantised" in before or _chance(step, len(distinct)) < _CHANCE):
            # The largest common step shrinks as values come in; the sentence of the beginning stays.
            mark = _Mark(f"the power readings are multiples of {step / 1000:g} W", step)
            marks["quantised"] = before.get("quantised", mark)
        elif len(distinct) >= _LEAST_CHANGES and (period := self._period(when, power, marked="slow" in before)):
            detail = f"a new power value comes every {period:.2g} s; it is read every {self._interval:g} s"
            marks["slow"] = before.get("slow", _Mark(detail, duration_ns=round(period * 1e9)))
        return marks

    def _period(self, when: list[int], power: list[int], *, marked: bool) -> float | None:
        """The time (s) between new values where that is far too long and, to begin with, regular; else None."""
        changed = list(compress(when[1:], map(ne, power[1:], power)))
        if len(changed) < _LEAST_CHANGES:
            return None
        gaps = sorted(later - earlier for later, earlier in zip(changed[1:], changed, strict=False))
        low, middle, high = (gaps[len(gaps) * quarter // 4] / 1e9 for quarter in (1, 2, 3))
        # A busy node reads late now and then: that ends no mark.
        regular = marked or high - low <= self._interval + 0.2 * middle
        return (changed[-1] - changed[0]) / 1e9 / len(gaps) if regular and middle > self._longest_s else None

    def _moved(self, times: list[int], masks: list[int]) -> str | None:
        """What moved while the power reading stood still; None where nothing did."""
        _, used = self._known("utilization", masks, times)
        if used and max(used) - min(used) >= _UTILIZATION:
            return f"utilisation moved by {max(used) - min(used)} points"
        _, clocks = self._known("sm_clock_mhz", masks, times)
        if clocks and max(clocks) - min(clocks) >= _CLOCK * max(*clocks, 1):
            return f"the SM clock moved by {max(clocks) - min(clocks)} MHz"
        when, energy = self._known("energy_mj", masks, times)
        if len(energy) < _LEAST:
            return None
        parts = [(len(energy) - 1) * part // 6 for part in range(7)]  # spans long beside the counter's period
        watts = [
            1e6 * (energy[last] - energy[first]) / max(when[last] - when[first], 1) for first, last in pairwise(parts)
        ]
        if min(watts) > 0 and max(watts) - min(watts) >= _POWER * max(watts):
            return f"the energy counter shows {min(watts):.0f} to {max(watts):.0f} W"
        return None


def _chance(step: int, distinct: int) -> float:
    """A bound on the chance that as many distinct mW values of a fine sensor share a divisor of `step` or more."""
    return float(step) ** (1 - distinct) / (distinct - 1) if distinct > 1 else 1.0
