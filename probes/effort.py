"""How thoroughly each suite measures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .catalogue import Kind, Probe

STEADY_SHARE = 0.003
"""Between these, as a share of their median, the last batches of a warm-up must lie for the times to be steady."""
STEADY_BATCHES = 5
CLIMBING_SHARE = 0.02
"""Beyond this, the clock still climbs from its lowest: the warm-up then goes on as long as that of a cold GPU may."""
FEWEST_REPEATS = 3
"""The least number of repeats, however short the time limit."""
REPEAT_S = 0.02
"""A repeat holds as many repetitions as take this long: what an event costs is then no part of it."""
SENSOR_S = 1.2
"""Over at most so long a power sensor averages, with a little to spare."""


@dataclass(frozen=True)
class Effort:
    """How long a probe warms up and measures; times in s."""

    suite: str
    precision: float
    """Relative half width of the median's 95 % interval that is asked for."""
    least_s: float
    """Measured at least that long, so that telemetry has something to say."""
    limit_s: float
    """Measured at most that long."""
    repeats: int
    """Measured at least so often, where the limit allows."""
    warm_up_s: float
    """At most."""
    first_warm_up_s: float
    """At most, of the first probe on a GPU, which finds it cold, and of one whose clock still climbs."""
    slope_k_s: float
    """A temperature that moves less is steady, K/s."""
    slope_s: float
    """Over which time the slope is taken."""
    idle_s: float
    """How long an idle GPU settles, and how long it is then watched."""
    level_s: float
    """How long a level of the staircase, and load and rest before a square wave, last."""
    wave_s: float
    """How long a square wave lasts, at least ten periods."""
    soak_s: float
    """How long a soak lasts."""

    def expected_s(self, probe: Probe) -> float:
        """How long a probe takes at most on a warm GPU, by its limits; loading its work comes on top."""
        match probe.kind:
            case Kind.IDLE:
                return 2 * self.idle_s
            case Kind.SQUARE:
                return self.warm_up_s + 2 * self.level_s + SENSOR_S + self.wave_s
            case Kind.STAIRCASE:
                return self.level_s * len(LEVELS)
            case Kind.SCAN:
                return len(probe.scan[1] if probe.scan else ()) * 2 * self.scan_s
            case Kind.PATTERNS:
                return 2 * self.least_s
            case Kind.EXCHANGE:
                return self.limit_s
            case Kind.SOAK:
                return self.soak_s
        return self.warm_up_s + self.limit_s

    def together_s(self, probes: Iterable[Probe]) -> float:
        """How long some probes take at most on a GPU that is cold at first."""
        return sum(map(self.expected_s, probes)) + self.first_warm_up_s

    @property
    def scan_s(self) -> float:
        """At most for warming up, and at most for measuring, each value of a scan."""
        return self.limit_s / 4


LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the staircase: shares of the SMs under load."""

_ROWS: dict[str, tuple[Any, Any, Any]] = {
    "suite": ("quick", "standard", "full"),
    "precision": (0.005, 0.001, 0.0005),
    "least_s": (0.8, 1.5, 5.0),
    "limit_s": (2.0, 4.5, 30.0),
    "repeats": (20, 20, 50),
    "warm_up_s": (2.2, 5.0, 60.0),
    "first_warm_up_s": (6.0, 15.0, 120.0),
    "slope_k_s": (0.5, 0.2, 0.05),
    "slope_s": (1.0, 3.0, 10.0),
    "idle_s": (2.0, 4.0, 20.0),
    "level_s": (1.5, 2.0, 5.0),
    "wave_s": (3.0, 6.0, 20.0),
    "soak_s": (60.0, 600.0, 1200.0),
}
"""The fields of `Effort`, of each suite in turn."""

EFFORTS = {column[0]: Effort(**dict(zip(_ROWS, column, strict=True))) for column in zip(*_ROWS.values(), strict=True)}
"""By the name of the suite."""
