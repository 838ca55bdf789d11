"""The readings of one GPU as arrays, in order of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class Readings:
    """What was read of one GPU; arrays (n,), NaN where a value is missing. Times increase strictly."""

    ts_ns: Times
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
    stuck: NDArray[np.bool_]
    """The reading is marked: its power sensor is stuck."""
    limit_w: float | None = None
    """The highest power limit that is known."""
    model: str | None = None
