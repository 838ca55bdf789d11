"""The power of GPUs between their readings: which of these count, where some are missing, and how far it may swing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ....store.unseen import Sensor
from ...telemetry.pauses import near
from . import counters
from .findings import Note, Problem
from .power import Power, PowerSource
from .readings import Flags, Floats, Groups, Ints, Readings, Times

_USUAL, _SHORT_S = 3.0, 1.0  # what is no longer than so many shortest intervals, or than this, is no gap


@dataclass(frozen=True)
class Kept:
    """What is used of the readings of some GPUs; arrays (n,), NaN where a value is missing."""

    groups: Groups
    ts_ns: Times
    watts: Floats
    counter_j: Floats | None
    """None: no GPU has any."""
    utilization: Floats
    stuck: Flags
    zero: Flags
    mixed: Flags | None
    """Readings of a time that the clock showed twice; None: there is none."""
    spread_w: Floats | None
    every_s: Floats | None
    sensors: Sequence[Sensor]
    """By GPU."""
    shift_s: Floats
    lag_s: Floats
    settle_s: Floats
    instant_w: Floats | None
    source: Sequence[PowerSource]
    back: Sequence[Sequence[Note]]
    """By GPU, when its clock was set back."""

    @classmethod
    def of(cls, readings: Readings, power: Power, events: Sequence[Sequence[Note]]) -> Kept:
        groups, ts = readings.groups, readings.ts_ns
        # A clock that was set back shows the same time twice: rows of both times lie mixed, and the counter to and fro.
        back = [
            [one for one in notes if one.problem == Problem.CLOCK_STEP and one.seconds is not None and one.seconds < 0]
            for notes in events
        ]
        mixed = np.zeros(len(ts), bool) if any(back) else None
        for gpu, notes in enumerate(back):
            began, ended = groups.spans[gpu]
            for note in notes:
                assert mixed is not None
                own = ts[began:ended]
                mixed[began:ended] |= (own >= note.began_ns) & (own <= note.ended_ns)
        counter = readings.counter_j
        if counter is not None:
            cannot = ~((counter >= 0) & (counter < 2.0**53))
            counter = np.where(cannot if mixed is None else cannot | mixed, np.nan, counter)
        return cls(
            groups, ts, power.watts, counter, readings.utilization, power.stuck, power.zero, mixed, readings.spread_w,
            readings.every_s, power.sensors, power.shift_s, power.lag_s, power.settle_s,
            None if readings.instant_w is None else np.where(np.isnan(power.watts), np.nan, readings.instant_w),
            power.source, back,
        )  # fmt: skip

    @cached_property
    def known(self) -> Flags:
        """Whether the power is known."""
        return ~np.isnan(self.watts)

    @property
    def has_value(self) -> Flags:
        """The readings that say anything."""
        some = self.known | self.stuck | self.zero
        return some if self.counter_j is None else some | ~np.isnan(self.counter_j)

    def only(self, which: Flags, gpus: Flags) -> Kept:
        """Some readings of some GPUs."""
        at, whose = np.flatnonzero(which), np.flatnonzero(gpus)
        numbers = whose.tolist()
        names = (
            "ts_ns",
            "watts",
            "counter_j",
            "utilization",
            "stuck",
            "zero",
            "mixed",
            "spread_w",
            "every_s",
            "instant_w",
        )
        columns: dict[str, Any] = {}
        for name in names:
            one = getattr(self, name)
            columns[name] = None if one is None else one[at]
        return replace(
            self,
            groups=Groups.of_sizes(self.groups.count(which)[whose]),
            **columns,
            sensors=[self.sensors[one] for one in numbers],
            shift_s=self.shift_s[whose],
            lag_s=self.lag_s[whose],
            settle_s=self.settle_s[whose],
            source=[self.source[one] for one in numbers],
            back=[self.back[one] for one in numbers],
        )

    @cached_property
    def times_s(self) -> Floats:
        """Since the first reading of a GPU."""
        found: Floats = (self.ts_ns - self.groups.each(self.ts_ns[self.groups.firsts])) / 1e9
        return found

    @cached_property
    def step_s(self) -> Floats:
        """To the next reading of the GPU; 0 from its last."""
        return self.groups.steps(self.times_s)

    @cached_property
    def refused(self) -> Flags | None:
        """By interval, whether power was read at one of its ends and is not used; None: nowhere."""
        which = self.stuck | self.zero
        return self.groups.beside(which) if which.any() else None


def shape_of(kept: Kept, known: Ints, middle_w: Floats) -> Floats:
    """The power at each reading. `known` is how many readings of a GPU have it, `middle_w` for those that have none."""
    groups = kept.groups
    odd = np.flatnonzero((kept.shift_s != 0) | (known < groups.sizes))
    shape = kept.watts.copy() if len(odd) else kept.watts
    for gpu in odd.tolist():
        began, ended = groups.spans[gpu]
        times, there = kept.times_s[began:ended], kept.known[began:ended]
        if known[gpu]:
            shape[began:ended] = np.interp(times + kept.shift_s[gpu], times[there], kept.watts[began:ended][there])
        else:
            shape[began:ended] = middle_w[gpu]
    return shape


def sensed_of(kept: Kept, known: Ints) -> tuple[Flags, Flags]:
    """By interval, whether readings follow each other as usual, and whether those of the power do and count."""
    groups, step = kept.groups, kept.step_s
    together = np.ones(len(step), bool)
    together[groups.lasts] = False
    longest, shortest = np.maximum.reduceat(step, groups.firsts), np.where(together, step, np.inf)
    uneven = longest > np.maximum(_USUAL * np.minimum.reduceat(shortest, groups.firsts), _SHORT_S)
    for gpu in np.flatnonzero(uneven).tolist():
        began, ended = groups.spans[gpu]
        together[began : ended - 1] = near(kept.times_s[began:ended], np.ones(ended - began, bool))
    sensed = together.copy()
    for gpu in np.flatnonzero(known < groups.sizes).tolist():
        began, ended = groups.spans[gpu]
        own = near(kept.times_s[began:ended], kept.known[began:ended]) if known[gpu] else False
        sensed[began : ended - 1] = own
    if kept.refused is not None:
        sensed &= ~kept.refused
    return together, sensed


def swing_of(groups: Groups, shape: Floats, read_every: Floats, around_s: Floats) -> Floats:
    """By interval, the range of the power within it and `around_s` before and after."""
    low, high = shape.copy(), shape.copy()
    np.minimum(shape[:-1], shape[1:], out=low[:-1])
    np.maximum(shape[:-1], shape[1:], out=high[:-1])
    last = groups.lasts - 1  # the last interval of each GPU
    low[groups.lasts], high[groups.lasts] = low[last], high[last]
    reach = 1 + (around_s / np.maximum(read_every, 1e-3)).astype(np.int64)
    if (reach == 1).all():
        low, high = _widened(np.minimum, low, groups), _widened(np.maximum, high, groups)
        return high - low
    here, firsts, lasts = np.arange(len(shape)), np.repeat(groups.firsts, groups.sizes), np.repeat(last, groups.sizes)
    while (reach > 0).any():  # doubling: each pass widens by twice as much
        by = np.repeat(reach, groups.sizes)
        before, after = np.maximum(here - by, firsts), np.minimum(here + by, lasts)
        low = np.minimum(low, np.minimum(low[before], low[after]))
        high = np.maximum(high, np.maximum(high[before], high[after]))
        reach = reach // 2
    return high - low


def _widened(most: np.ufunc, values: Floats, groups: Groups) -> Floats:
    """The least or the most of each interval and the one before and after it."""
    found = values.copy()
    most(found[1:], values[:-1], out=found[1:])
    most(found[:-1], values[1:], out=found[:-1])
    found[groups.firsts] = most(values[groups.firsts], values[groups.firsts + 1])  # not of the GPU before
    return found


def gaps(kept: Kept, blind: Flags, energy: Floats, notes: Sequence[list[Note]]) -> None:
    """One note for each stretch without readings."""
    gap = blind if kept.refused is None else blind & ~kept.refused
    for gpu, at in kept.groups.found(gap):
        first = np.concatenate([[True], np.diff(at) > 1])
        began, ended = at[first], at[np.append(first[1:], True)] + 1
        joules = np.add.reduceat(energy[at], np.flatnonzero(first))
        notes[gpu] += counters.some_notes(Problem.GAP, kept.ts_ns[began], kept.ts_ns[ended], joules)
