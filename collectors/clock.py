"""The machine's clocks as the sampler sees them."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Three clocks, in ns: `wall` is UTC and can be set; `steady` never steps and stops in sleep; `boot` goes on."""

    def wall(self) -> int: ...

    def steady(self) -> int: ...

    def boot(self) -> int: ...

    def sleep(self, ns: int) -> None:
        """Let `ns` of steady time pass."""
        ...


class SystemClock:
    """The clocks of this machine."""

    wall = staticmethod(time.time_ns)
    steady = staticmethod(time.monotonic_ns)

    def boot(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep(self, ns: int) -> None:
        time.sleep(ns / 1e9)


_TOGETHER_NS = 100_000  # clocks that are read within so long tell the same instant


def one_instant(clock: Clock) -> tuple[int, int, int]:
    """Steady, wall and boot time of one instant: a look during which the process was held up is repeated."""
    for _ in range(10):
        steady = clock.steady()
        wall, boot = clock.wall(), clock.boot()
        if clock.steady() - steady < _TOGETHER_NS:
            break
    return steady, wall, boot


class Steps:
    """Detects when the wall clock was set, and when the machine slept.

    Slewing (NTP turns a clock by at most 500 ppm) is no step. A step is a change of the wall clock against the
    steady one by more than `tolerance_ns` and 1000 ppm of the time between two looks.
    """

    def __init__(self, clock: Clock, tolerance_ns: int = 20_000_000) -> None:
        self._clock = clock
        self._tolerance = tolerance_ns
        self._last = one_instant(clock)

    def since(self) -> tuple[int, int]:
        """By how many ns the wall clock was set, and how long the machine slept, since the last call; 0 for not."""
        last_steady, last_wall, last_boot = self._last
        self._last = steady, wall, boot = one_instant(self._clock)
        passed = steady - last_steady
        slept = boot - last_boot - passed
        stepped = wall - last_wall - passed - slept
        allowed = self._tolerance + passed // 1000
        return (stepped if abs(stepped) > allowed else 0), (slept if slept > allowed else 0)
