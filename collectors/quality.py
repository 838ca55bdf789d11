"""Tests whether a power sensor can be trusted, from its readings alone.

Four marks, for `telemetry.quality`; docs/collect.md has the rules with their reasons and false-alarm rates:

    power_stuck       the reading does not move while what it depends on does
    power_zero        every reading is 0 W
    power_quantised   readings come in coarse steps
    power_slow        a new value comes far less often than it is read
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..store.events import Event
from ..store.metrics import BOARD_POWER, board_power_of
from ..store.vocabulary import EventKind

READ = (*BOARD_POWER, "utilization", "sm_clock_mhz", "energy_mj")  # what a judgement needs
COARSE_MW = 1000  # a step from which readings count as quantised
_CHANCE = 1e-12  # of one look at one healthy sensor being called quantised
_UTILIZATION, _CLOCK, _POWER = 30, 0.10, 0.20  # movement that a live sensor must show: points, share, share
_SLOW = 4  # times rarer than it should be
_LEAST = 30  # readings
_LEAST_CHANGES = 5
_KINDS = {
    "stuck": EventKind.STUCK_SENSOR,
    "zero": EventKind.ZERO_POWER,
    "quantised": EventKind.QUANTISED_SENSOR,
    "slow": EventKind.SLOW_SENSOR,
}


@dataclass(frozen=True)
class Finding:
    """A mark that begins or ends for a device, with what is known of it and the sentence that explains it."""

    device: int
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
    """Keeps the last readings of every device and judges them now and then.

    `interval_s` is the time between readings, `window_s` how far back a judgement looks.
    """

    def __init__(
        self, number: int, *, interval_s: float, period_s: float | None = None, window_s: float = 60.0
    ) -> None:
        length = max(_LEAST, round(window_s / interval_s))
        self._interval = interval_s
        # Half an interval of doubt: a value that comes every 4.1 intervals is seen after 4 or 5.
        self._longest_s = _SLOW * max(interval_s, period_s or 0.1) + interval_s / 2
        self._every = max(1, length // 12)
        self._seen = 0
        # A tick: readings of shape (5, devices), in the order of READ, times in ns, and which readings are known.
        shape = len(READ), number
        kind = [("readings", "<i8", shape), ("time", "<i8", number), ("known", "?", shape)]
        self._ring = np.zeros(length, np.dtype(kind))
        self._ticks = self._ring.view(np.uint8).data
        self._pack = struct.Struct(f"<{len(READ) * number + number}q{len(READ) * number}s")
        self._marks: list[dict[str, _Mark]] = [{} for _ in range(number)]
        self.texts: list[str | None] = [None] * number

    def note(
        self, values: Iterable[Sequence[int] | NDArray[np.int64]], known: NDArray[np.bool_], stamps: Sequence[int]
    ) -> list[Finding]:
        """Take in the readings of one tick, shape (5, devices) in the order of READ; returns what a judgement found.

        `stamps` are UTC ns, by device.
        """
        place = self._seen % len(self._ring) * self._pack.size
        self._pack.pack_into(self._ticks, place, *chain.from_iterable(values), *stamps, known.tobytes())
        self._seen += 1
        if self._seen < _LEAST or self._seen % self._every:
            return []
        return self._judge()

    def _judge(self) -> list[Finding]:
        length = len(self._ring)
        ticks = self._ring[np.arange(max(0, self._seen - length), self._seen) % length]
        found: list[Finding] = []
        for device in np.flatnonzero(~self._healthy(ticks)).tolist():
            marks = self._marks[device]
            readings = np.where(ticks["known"][:, :, device], ticks["readings"][:, :, device], np.nan).T
            power = board_power_of(dict(zip(READ, readings, strict=True)))
            there = ~np.isnan(power)
            if there.sum() < _LEAST:
                continue  # too little to judge by: what was said stands
            readings = np.vstack([power, readings[len(BOARD_POWER) :]])[:, there]
            time = (ticks["time"][there, device] - ticks["time"][-1, device]) / 1e9
            now = self._marked(readings, time, marks, full=len(ticks) == length)
            found += [
                Finding(device, _KINDS[name], f"power_{name}", mark.detail, mark.value, mark.duration_ns)
                for name, mark in now.items()
                if name not in marks
            ]
            found += [
                Finding(device, EventKind.SENSOR_RECOVERED, f"power_{name}", f"the power sensor is no longer {name}")
                for name in marks
                if name not in now
            ]
            marks.clear()
            marks.update(now)
            self.texts[device] = ",".join(f"power_{name}" for name in marks) or None
        return found

    def _healthy(self, ticks: NDArray[Any]) -> NDArray[np.bool_]:
        """By device, whether a quick look shows that it has no mark and gets none; most devices are so."""
        known, readings, time = ticks["known"], ticks["readings"], ticks["time"]
        power = np.where(known[:, 0], readings[:, 0], readings[:, 1])
        there = (known[:, 0] | known[:, 1]).all(axis=0)
        fine = np.gcd.reduce(power, axis=0) < COARSE_MW
        gaps = (power[1:] != power[:-1]).sum(axis=0) - 1
        # If the middle gap were too long, the longer half of the gaps would take more than all the time. So nothing
        # that stands still is prompt.
        prompt = (gaps * self._longest_s * 5e8 >= time[-1] - time[0]) & (time[1:] >= time[:-1]).all(axis=0)
        unmarked = np.array([not marks for marks in self._marks])
        healthy: NDArray[np.bool_] = there & fine & prompt & unmarked
        return healthy

    def _marked(
        self, readings: NDArray[np.float64], time: NDArray[np.float64], before: dict[str, _Mark], *, full: bool
    ) -> dict[str, _Mark]:
        power = readings[0]
        marks = {}
        if not power.any():
            span = float(time[-1] - time[0])
            detail = f"all power readings of {span:.0f} s are 0 W, which no GPU draws: the sensor does not work"
            marks["zero"] = _Mark(detail, duration_ns=round(span * 1e9))
        elif full and (moved := _stuck(readings, time)):
            span, stayed = float(time[-1] - time[0]), float(power[0])
            detail = f"the power reading stayed at {stayed / 1000:.3f} W for {span:.0f} s while {moved}"
            marks["stuck"] = _Mark(detail, stayed, round(span * 1e9))
        ordered = np.sort(power.astype(np.int64))  # not np.unique, which brings in all of numpy.ma
        distinct = ordered[np.append(True, ordered[1:] != ordered[:-1])]
        step = int(np.gcd.reduce(distinct))
        if step >= COARSE_MW and ("quantised" in before or _chance(step, len(distinct)) < _CHANCE):
            # The largest common step shrinks as values come in; the sentence of the beginning stays.
            mark = _Mark(f"the power readings are multiples of {step / 1000:g} W", step)
            marks["quantised"] = before.get("quantised", mark)
        elif len(distinct) >= _LEAST_CHANGES and (period := self._period(power, time, "slow" in before)):
            detail = f"a new power value comes every {period:.2g} s; it is read every {self._interval:g} s"
            marks["slow"] = before.get("slow", _Mark(detail, duration_ns=round(period * 1e9)))
        return marks

    def _period(self, power: NDArray[np.float64], time: NDArray[np.float64], marked: bool) -> float | None:
        """The time (s) between new values where that is far too long and, to begin with, regular; else None."""
        changed = time[1:][power[1:] != power[:-1]]
        if len(changed) < _LEAST_CHANGES:
            return None
        gaps = np.diff(changed)
        low, middle, high = (
            float(part) for part in np.sort(gaps)[[len(gaps) // 4, len(gaps) // 2, 3 * len(gaps) // 4]]
        )
        # A busy node reads late now and then: that ends no mark.
        regular = marked or high - low <= self._interval + 0.2 * middle
        return float(gaps.mean()) if regular and middle > self._longest_s else None


def _stuck(readings: NDArray[np.float64], time: NDArray[np.float64]) -> str | None:
    """What moved while the power reading stood still; None where the reading moved, or nothing else did."""
    power, utilization, clock, energy = readings
    if power.min() != power.max():
        return None
    if _range(utilization) >= _UTILIZATION:
        return f"utilisation moved by {_range(utilization):.0f} points"
    if _range(clock) >= _CLOCK * np.nanmax(clock, initial=1.0):
        return f"the SM clock moved by {_range(clock):.0f} MHz"
    known = ~np.isnan(energy)
    if known.sum() < _LEAST:
        return None
    parts = np.linspace(0, known.sum() - 1, 7).astype(int)  # six spans, each long beside the counter's period
    watts = np.diff(energy[known][parts]) / np.maximum(np.diff(time[known][parts]), 1e-9) / 1000
    if watts.min() > 0 and watts.max() - watts.min() >= _POWER * watts.max():
        return f"the energy counter shows {watts.min():.0f} to {watts.max():.0f} W"
    return None


def _range(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.max() - known.min()) if len(known) else 0.0


def _chance(step: int, distinct: int) -> float:
    """A bound on the chance that as many distinct mW values of a fine sensor share a divisor of `step` or more."""
    return float(step) ** (1 - distinct) / (distinct - 1) if distinct > 1 else 1.0
