"""The readings of some GPUs as arrays, one GPU after another, each in order of time; and what is noted about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...store.vocabulary import Code

Floats = NDArray[np.float64]
Times = NDArray[np.int64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_NOTES = 100  # of one kind and GPU at most; the others are added up in the last one


def median(values: Floats) -> float:
    """The median of one value or more, none of which is NaN: quicker than numpy's where there are few."""
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    middle = np.partition(values, (half - 1, half))
    return float((middle[half - 1] + middle[half]) / 2)


@dataclass(frozen=True)
class Groups:
    """Which values are of which GPU: those of GPU g are `begins[g]` to `begins[g + 1]`.

    What takes sums needs one value or more of each GPU.
    """

    begins: Ints
    """(g + 1,)"""

    @classmethod
    def of_sizes(cls, sizes: Ints) -> Groups:
        return cls(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.begins) - 1

    @cached_property
    def sizes(self) -> Ints:
        return np.diff(self.begins)

    @cached_property
    def firsts(self) -> Ints:
        return self.begins[:-1]

    @cached_property
    def lasts(self) -> Ints:
        return self.begins[1:] - 1

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        return list(pairwise(self.begins.tolist()))

    @cached_property
    def first_of(self) -> Ints:
        """By value, the first of its GPU."""
        return np.repeat(self.firsts, self.sizes)

    @cached_property
    def last_of(self) -> Ints:
        """By value, the last of its GPU."""
        return np.repeat(self.lasts, self.sizes)

    def each(self, by_gpu: NDArray[Any]) -> NDArray[Any]:
        """By value, what is known of its GPU; that alone where it is the same of all."""
        if len(by_gpu) and (by_gpu == by_gpu[0]).all():
            return by_gpu[:1]
        return np.repeat(by_gpu, self.sizes)

    def steps(self, values: NDArray[Any]) -> NDArray[Any]:
        """From each value to the next of its GPU; 0 from the last one."""
        steps = np.empty_like(values)
        np.subtract(values[1:], values[:-1], out=steps[:-1])
        steps[self.lasts] = 0
        return steps

    def beside(self, flags: Flags) -> Flags:
        """By interval, whether one of its ends has the flag."""
        beside = flags.copy()
        beside[:-1] |= flags[1:]
        beside[self.lasts] = False
        return beside

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """By GPU, the sum of all values."""
        sums: NDArray[Any] = np.add.reduceat(values, self.firsts)
        return sums

    def count(self, flags: Flags) -> Ints:
        """By GPU, how many have the flag."""
        return np.diff(np.searchsorted(np.flatnonzero(flags), self.begins))

    def places(self, flags: Flags) -> Iterator[tuple[int, Ints]]:
        """The GPUs that have values with the flag, and where these are."""
        at = np.flatnonzero(flags)
        edges = np.searchsorted(at, self.begins)
        for gpu in np.flatnonzero(np.diff(edges)).tolist():
            yield gpu, at[edges[gpu] : edges[gpu + 1]]

    def cumulate(self, steps: Floats) -> None:
        """Sums from the first value of each GPU on, in place: other GPUs do not round them."""
        for first, end in self.spans:
            np.add.accumulate(steps[first:end], out=steps[first:end])

    def upto(self, steps: Floats) -> Floats:
        """By value, the sum of those of its GPU before it."""
        sums = np.zeros(len(steps))
        sums[1:] = steps[:-1]
        sums[self.firsts] = 0.0
        self.cumulate(sums)
        return sums


@dataclass(frozen=True)
class Readings:
    """What was read of some GPUs; arrays (n,), NaN where a value is missing, None where all are. The times of a GPU
    increase strictly."""

    ts_ns: Times
    stuck: Flags
    """The reading is marked: its power sensor is stuck."""
    power_w: Floats
    """Board power as the driver reports it."""
    instant_w: Floats | None
    """Its instantaneous reading."""
    counter_j: Floats | None
    """The driver's energy counter."""
    utilization: Floats
    """Share of time with a kernel, 0 to 1."""
    window_s: Floats | None
    """Time over which the sensor averages `power_w`."""
    limit_w: Floats | None
    """The power limit."""
    spread_w: Floats | None = None
    """Of the two ends of a minute of pruned telemetry, where the other figures are means: the range of its power."""
    every_s: Floats | None = None
    """Of these: how far its readings were apart."""
    begins: Ints | None = None
    """(g + 1,) where the readings of each GPU begin; None: all are of one."""

    @cached_property
    def groups(self) -> Groups:
        """Which readings are of which GPU. Each has some."""
        return Groups(np.array([0, len(self.ts_ns)], np.int64) if self.begins is None else self.begins)

    @property
    def ends_ns(self) -> Times:
        """(g, 2) when the first and the last reading of each GPU were."""
        return np.stack([self.ts_ns[self.groups.firsts], self.ts_ns[self.groups.lasts]], axis=1)

    def take(self, at: Ints | slice, sizes: Ints) -> Readings:
        """The readings `at` these places, in this order: so many of each GPU."""
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "begins"}
        columns = {name: None if values is None else values[at] for name, values in columns.items()}
        return Readings(**columns, begins=Groups.of_sizes(sizes).begins)

    def without_modules(self, of_module: Flags) -> Readings:
        """The same without what is of a whole module, processor included, of the GPUs with the flag (g,)."""
        if not of_module.any():
            return self
        hidden = np.repeat(of_module, self.groups.sizes)
        counter, instant = (
            None if values is None else np.where(hidden, np.nan, values) for values in (self.counter_j, self.instant_w)
        )
        return replace(self, counter_j=counter, instant_w=instant)


class Reason(Code):
    """Why the energy of a window is no honest figure."""

    NO_TELEMETRY = "no telemetry", "there is no reading of this GPU in this time"
    NO_SENSOR = "no sensor", "the readings have neither power nor an energy counter"
    STUCK = "sensor stuck", "the power sensor was stuck for most of this time, and no energy counter was read"
    ZERO = "zero watts", "the sensor read 0 W, which no GPU draws, for most of this time"
    GAPS = "mostly gaps", "less than half of this time has readings"


class Problem(Code):
    """What went wrong in the readings of a GPU, and what was done about it."""

    GAP = "gap", "no readings: bounded by what the GPU draws without work and by its power limit"
    STUCK = "sensor stuck", "the power reading did not move while the GPU's load did: not used"
    ZERO = "zero watts", "the sensor read 0 W, which no GPU draws: not used"
    IMPOSSIBLE = "impossible power", "readings far above the power limit: not used"
    COUNTER_RESET = "counter reset", "the energy counter began anew: power is used across the reset"
    COUNTER_BACK = "counter back", "the energy counter went back and did not begin anew: power is used there"
    COUNTER_WRAP = "counter wrapped", "the energy counter went over its 32 bits: counted across"
    COUNTER_JUMP = "counter jump", "the energy counter grew by more than the GPU can draw: power is used there"
    COUNTER_STALE = "counter stale", "the energy counter stood still or crept while the GPU drew power: power is used"
    DISAGREE = "counter and power disagree", "the energy counter and the integrated power differ; the interval has both"
    DRIVER_RELOAD = "driver reload", "the driver was loaded again, which sets the energy counter to 0"
    CLOCK_STEP = "clock step", "the wall clock was set: times around it may be wrong by as much"
    TWICE = "counted twice", "the store knows the GPU by its number only and by its UUID: both are in the sums"


@dataclass(frozen=True, slots=True)
class Note:
    """Something that was found in the readings of a GPU: a row of `whorl energy reconcile`."""

    problem: Problem
    began_ns: int
    ended_ns: int
    joules: float | None = None
    """Energy that it concerns: best estimate in a gap, size of a step of the counter."""
    percent: float | None = None
    """Of a disagreement: how much more the counter has than the integrated power."""
    seconds: float | None = None
    """Of a step of the clock: by how much it was set, back where that is negative."""
    n: int = 1
    """How many findings of this kind the row stands for."""
    has_rows: bool = False
    """Of a gap: whether the GPU has rows within it, none of which counts."""


def notes_of(problem: Problem, began: Times, ended: Times, joules: Floats) -> list[Note]:
    """One note each, but not more than `_NOTES`: the last stands for all others."""
    rows: Sequence[tuple[int, int, float]] = list(zip(began.tolist(), ended.tolist(), joules.tolist(), strict=True))
    notes = [Note(problem, *row) for row in rows[:_NOTES]]
    if len(rows) > _NOTES:
        last = float(joules[_NOTES - 1 :].sum())
        notes[-1] = Note(problem, int(began[_NOTES - 1]), int(ended[-1]), last, n=len(rows) - _NOTES + 1)
    return notes
