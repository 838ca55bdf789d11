"""The readings of one GPU as arrays, in order of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Times = NDArray[np.int64]


def median(values: Floats) -> float:
    """The median of one value or more, none of which is NaN: quicker than numpy's where there are few."""
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    middle = np.partition(values, (half - 1, half))
    return float((middle[half - 1] + middle[half]) / 2)


@dataclass(frozen=True)
class Readings:
    """What was read of one GPU; arrays (n,), NaN where a value is missing. Times increase strictly."""

    ts_ns: Times
    stuck: NDArray[np.bool_]
    """The reading is marked: its power sensor is stuck."""
    power_w: Floats
    """Board power as the driver reports it."""
    instant_w: Floats
    """Its instantaneous reading."""
    counter_j: Floats
    """The driver's energy counter."""
    utilization: Floats
    """Share of time with a kernel, 0 to 1."""
    window_s: Floats
    """Time over which the sensor averages `power_w`."""
    limit_w: Floats
    """The power limit."""
    spread_w: Floats | None = None
    """Of the two ends of a minute of pruned telemetry, where the other figures are means: the range of its power."""
    every_s: Floats | None = None
    """Of these: how far its readings were apart."""

    @property
    def highest_limit_w(self) -> float | None:
        known = self.limit_w[~np.isnan(self.limit_w)]
        return float(known.max()) if len(known) else None
