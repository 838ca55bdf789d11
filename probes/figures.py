"""The figures of a run: what the times of its repeats, its work and its telemetry come to, with units.

`time` stands once for each repeat, all else once for the run. Rates are those of the median time:

    rate           = FLOP / time                                GFLOP/s
    operation_rate = operations / time                          Gop/s; of integer arithmetic, too
    bandwidth      = bytes / time                               GB/s
    latency        = time / operations, where they are serial   ns
    energy         = mean power x time                          J per repetition
    efficiency     = FLOP / energy                              GFLOP/J

The mean power is that of the energy counter between its first and its last renewal, where the driver has one: then
`energy_low` and `energy_high` say what the energy can be. Else it is the median of the power readings.

The interval of a median by order statistics, for repeats that may be correlated.

The interval takes nothing for granted about the shape of the distribution: of n independent values, the k-th
smallest and the k-th largest enclose the median unless fewer than k values fall on one side of it, which is a
binomial tail (David and Nagaraja, Order Statistics, section 7.1). Repeats that follow each other on a GPU are not
independent where the clock wanders: n values are then worth as many as n / tau independent ones, tau being the
integrated autocorrelation time, 1 + 2 times the sum of the autocorrelations, up to where Sokal's window ends it (A.
Sokal, Monte Carlo Methods in Statistical Mechanics, 1996, section 3). What counts is how the sides of the median
hang together, and the ranks of the values, which tells more: the longer time of the two is taken. Ranks do not mind
how skewed the times are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

from ..kernels.device import Verdict
from ..kernels.work import Work
from .watch import Window

FEWEST_WORTH = 10.0
"""With values worth fewer independent ones, the autocorrelation time itself is not known well enough."""

_HANGS_TOGETHER = 0.1  # lag-1 correlation above which values hang together; by chance alone it is 1/sqrt(n)
_BEYOND = 0.025  # of a 95 % interval, on each side
_WINDOW = 2.5  # autocorrelation times that are summed over: five, of times counted as Sokal does, with a half


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval, in the unit of the values."""

    median: float
    low: float | None
    """None, as `high`, where there are too few values."""
    high: float | None
    n: int
    """How many values."""
    block: float
    """How many neighbouring values are worth one independent value: the integrated autocorrelation time."""
    settled: bool
    """False where the values hang together so much that the interval is too narrow."""

    @property
    def relative(self) -> float | None:
        """Half the interval's width as a share of the median; None where it is not known."""
        if self.low is None or self.high is None or self.median <= 0:
            return None
        return (self.high - self.low) / 2 / self.median

    def within(self, half_width: float) -> bool:
        """Whether the median is known as well as that: half the width as a share of it, and not too narrow."""
        return self.settled and self.relative is not None and self.relative <= half_width


@lru_cache(maxsize=4096)
def rank(n: int) -> int:
    """The largest k for which the k-th smallest and k-th largest of n values enclose the median by 95 %; 0: none."""
    if n > 2000:  # the normal approximation is right to a rank there, and taken a rank wider
        return int(n / 2 - 1.959964 * sqrt(n) / 2) - 1
    tail, k = 0, 0
    total = 1 << n
    while k < n:
        tail += comb(n, k)
        if tail / total > _BEYOND:
            break
        k += 1
    return k


def interval_of(values: NDArray[np.float64]) -> Interval:
    """The median of values in the order in which they came, shape (n,), n at least 1, with its interval."""
    n = len(values)
    median = float(np.median(values))
    block = _together(values)
    settled = block == 1.0 or n / block >= FEWEST_WORTH
    k = rank(int(n / block))
    if k == 0:
        return Interval(median, None, None, n, block, settled)
    ordered = np.sort(values)
    place = int(k * block)
    return Interval(median, float(ordered[place - 1]), float(ordered[-place]), n, block, settled)


def _together(values: NDArray[np.float64]) -> float:
    """The integrated autocorrelation time of values, in values; 1 where neighbours do not hang together."""
    n = len(values)
    ranks = np.empty(n)
    ranks[np.argsort(values, kind="stable")] = np.arange(n)
    if lag_one(values) <= max(_HANGS_TOGETHER, 1 / sqrt(n)):
        return 1.0
    return max(_integrated(ranks), _integrated((values < np.median(values)).astype(np.float64)))


def _integrated(values: NDArray[np.float64]) -> float:
    off = values - values.mean()
    squares = float(off @ off)
    if squares == 0:  # more than half of the values are the smallest one
        return 1.0
    time = 1.0
    for lag in range(1, len(values) // 2):
        # An autocorrelation of n values is too low by about time/n (Marriott and Pope, Biometrika 1954).
        time += 2 * (float(off[:-lag] @ off[lag:]) / squares + (1 + max(time, 1.0)) / len(values))
        if lag >= _WINDOW * max(time, 1.0):
            break
    return max(time, 1.0)


def lag_one(values: NDArray[np.float64]) -> float:
    """Correlation of each value with the next; 0 where it is not defined."""
    if len(values) < 4:
        return 0.0
    off = values - values.mean()
    squares = float(off @ off)
    # Values that agree to the last digits differ by rounding alone.
    if squares <= len(values) * (1e-12 * abs(float(values.mean()))) ** 2:
        return 0.0
    return float(off[:-1] @ off[1:]) / squares


SOAK_RATES = tuple(10**power for power in range(2, 9))
"""One wrong repetition in so many: where the detection curve of a soak is given."""
LATENCY = "latency"
INTEGER = "int32"
"""Its arithmetic is counted as FLOP is, and is none."""


@dataclass(frozen=True)
class Figure:
    """A row of `results`: a value with its name and unit."""

    name: str
    unit: str
    value: float
    repeat: int = 0


def of_times(times_ms: NDArray[np.float64], interval: Interval) -> list[Figure]:
    """The times of every repeat, shape (repeats,), their median, and its interval where there is one."""
    figures = [Figure("time", "ms", float(value), repeat) for repeat, value in enumerate(times_ms)]
    figures.append(Figure("time_median", "ms", interval.median))
    if interval.low is not None and interval.high is not None:
        figures += [Figure("time_low", "ms", interval.low), Figure("time_high", "ms", interval.high)]
    return figures


def drift(times_ms: NDArray[np.float64]) -> float:
    """By how much the median of the second half of the repeats differs from that of the first, as a share of it."""
    middle = len(times_ms) // 2
    before, after = float(np.median(times_ms[: max(middle, 1)])), float(np.median(times_ms[middle:]))
    return round(after / before - 1, 6) if before > 0 else 0.0


def of_work(work: Work, time_ms: float, *, serial: bool) -> list[Figure]:
    """What a work's FLOP, bytes and operations come to at a time per repetition, ms."""
    figures, seconds = [], time_ms / 1000
    if work.flop and work.precision == INTEGER:
        figures.append(Figure("operation_rate", "Gop/s", work.flop / seconds / 1e9))
    elif work.flop:
        figures.append(Figure("rate", "GFLOP/s", work.flop / seconds / 1e9))
    if work.bytes and work.path != "none":
        figures.append(Figure("bandwidth", "GB/s", work.bytes / seconds / 1e9))
    if work.operations and serial:
        figures.append(Figure(LATENCY, "ns", time_ms * 1e6 / work.operations))
    elif work.operations:
        figures.append(Figure("operation_rate", "Gop/s", work.operations / seconds / 1e9))
    return figures


def of_energy(work: Work, time_ms: float, window: Window) -> tuple[list[Figure], str | None]:
    """Energy and efficiency of a repetition, and what the power is from: 'counter', 'power', or None."""
    watts, source = (window.counter_w, "counter") if window.counter_w is not None else (window.power_w, "power")
    if watts is None or watts <= 0:
        return [], None
    joules = watts * time_ms / 1000
    figures = [Figure("energy", "J", joules)]
    if source == "counter" and window.counter_low_w is not None and window.counter_high_w is not None:
        figures.append(Figure("energy_low", "J", window.counter_low_w * time_ms / 1000))
        figures.append(Figure("energy_high", "J", window.counter_high_w * time_ms / 1000))
    if work.flop and work.precision != INTEGER:
        figures.append(Figure("efficiency", "GFLOP/J", work.flop / joules / 1e9))
    return figures, source


def of_verdict(verdict: Verdict, repetitions: int) -> list[Figure]:
    """How many repetitions ran, in how many of them the result was checked, how many elements were compared in all,
    and how many were wrong."""
    return [
        Figure("repetitions", "", float(repetitions)),
        Figure("checked_repetitions", "", float(verdict.repetitions)),
        Figure("checked_elements", "", float(verdict.elements)),
        Figure("wrong_elements", "", float(verdict.wrong)),
    ]


def detected(repetitions: int, rate: int) -> float:
    """The probability that at least one of some checked repetitions is wrong on a GPU that does one in `rate` wrong."""
    return -math.expm1(repetitions * math.log1p(-1 / rate))


def of_soak(medians_ms: Sequence[float], repetitions: int) -> list[Figure]:
    """The median time of each part of a soak, and what such a soak finds.

    `found_at_N` is the probability, %, that it finds a GPU that does one repetition in N wrong: 1 - (1 - 1/N)^n for n
    checked repetitions, if each is wrong independently of the others.
    """
    figures = [Figure("time", "ms", value, part) for part, value in enumerate(medians_ms)]
    figures.append(Figure("time_median", "ms", float(np.median(medians_ms))))
    return figures + [Figure(f"found_at_{rate}", "%", 100 * detected(repetitions, rate)) for rate in SOAK_RATES]


def of_square(window: Window, load_w: float | None, rest_w: float | None, fall: Window, seconds: float) -> list[Figure]:
    """What the power sensor shows of a square wave, and what it averages away.

    `load_w` and `rest_w` are what the same sensor showed of steady load and steady rest, `fall` is the window from
    the end of the load to that of the rest. High and low are the 95th and 5th percentile of the readings, so that
    noise alone does not make a swing.
    """
    figures = []
    if len(window.shown_w) >= _FEWEST:
        low, high = np.percentile(window.shown_w, [5, 95])
        figures += [Figure("power_high", "W", float(high)), Figure("power_low", "W", float(low))]
        figures.append(Figure("power_swing", "W", float(high - low)))
        if load_w is not None and rest_w is not None and load_w > rest_w:
            steady = load_w - rest_w
            figures.append(Figure("power_swing_steady", "W", steady))
            figures.append(Figure("swing_seen", "%", 100 * float(high - low) / steady))
    if len(window.instant_w) >= _FEWEST:
        low, high = np.percentile(window.instant_w, [5, 95])
        figures.append(Figure("power_swing_instant", "W", float(high - low)))
    if len(window.shown_w):
        figures.append(Figure("energy_by_power", "J", float(window.shown_w.mean()) * seconds))
    if window.counter_w is not None:
        figures.append(Figure("energy_by_counter", "J", window.counter_w * seconds))
    return figures + of_sensor(window, load_w, rest_w, fall)


def of_sensor(wave: Window, load_w: float | None, rest_w: float | None, fall: Window) -> list[Figure]:
    """How often the power sensor has a new value, and over how long it averages, both about.

    The period is the median time between two readings that differ; no shorter one than that of the readings shows.
    A mean of the last w seconds falls from load to rest along a line, under which lies w / 2 times the step; that
    every value stands for a period T adds T / 2 on average.
    """
    figures = []
    changed = wave.shown_s[1:][np.diff(wave.shown_w) != 0]
    if len(changed) < _FEWEST:
        return []
    period_s = float(np.median(np.diff(changed)))
    figures.append(Figure("sensor_period", "ms", 1000 * period_s))
    if load_w is not None and rest_w is not None and load_w > rest_w and len(fall.shown_w) >= 2:
        above = np.clip((fall.shown_w - rest_w) / (load_w - rest_w), 0.0, 1.0)
        # Until the next reading, a reading is what is known; until the first one, the load's.
        area_s = float(fall.shown_s[0]) + float(above[:-1] @ np.diff(fall.shown_s))
        figures.append(Figure("sensor_window", "ms", 1000 * max(0.0, 2 * area_s - period_s)))
    return figures


_FEWEST = 10  # readings of a wave, before its percentiles mean anything


def find(figures: Sequence[Figure], name: str) -> float | None:
    """The value of the first figure of a name; None where there is none."""
    return next((figure.value for figure in figures if figure.name == name), None)
