"""What a power sensor does not see: what the meter of stored telemetry and the ledger of spans have in common.

Many sensors see a part of the time only (25 of 100 ms), and are read now and then. What follows adds up over time:

* what differs from reading to reading is a variance of the energy;
* readings that go to and fro over their mean, as those of a load with a period near the sensor's do, are wrong
  together for half a beat;
* readings that do not vary may hide a load whose period is a multiple of the sensor's. Utilisation tells that: where a
  kernel ran for the share u of the time, power was that of work for u of the time. That lasts for `LOCKED_S` at most.

The meter looks at whole arrays, the ledger at one new value after another: each tells in its own way how readings vary.
The formulas take numbers and arrays. Only numpy is needed: nodes use it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .power_sensors import NORMAL_95

SUMS = ("variance_j2", "beat_w2s", "beat_j2s", "locked_w2s")
"""What is added up over time: the variance of what differs from reading to reading; that of the power and of the energy
of readings that go to and fro, x s; that of the power while a load is locked to the sensor, x s."""
PERIOD_S, PART_S = 0.1, 0.025
"""Of a sensor of which nothing is known: that of most, and the least that any averages since 2020."""
LOCKED_S = 10.0
"""How long a load is taken to stay locked to the sensor; after that its place in the sensor's period is another one.

A sensor that sees 25 of 100 ms has the same part of a load for 10 s if their periods, or simple ratios of them, differ
by less than 0.25 %. That no load keeps this up for longer is assumed."""
FLOOR, LIKELY = 0.1, 0.75
"""Of the power limit: what no board draws less than, and what work may draw, also where none was seen."""
_CROSSINGS = 3  # of their mean by readings that go to and fro
_LOBE = 0.3  # mean square of the energy that a sine is ahead of its mean by, over (time between crossings x rms)**2
_FULL = 0.99  # utilisation from which a load cannot hide work

Number = Any
"""A number or an array; those of one call are alike."""


@dataclass(frozen=True)
class Sensor:
    """What a power sensor sees: a new value every `period_s`, a mean over `window_s`."""

    window_s: float
    period_s: float

    @property
    def missed(self) -> float:
        """The share of the time that it does not see."""
        return 1.0 - min(1.0, self.window_s / self.period_s)


def beats(spread2: Number, crossings: Number, lasted_s: Number) -> tuple[Number, Number]:
    """The variance of the power (W^2) and of the energy (J^2) of readings that go to and fro.

    `spread2` is the variance of readings over `lasted_s`, which cross their mean so often.
    """
    beat = spread2 * (crossings >= _CROSSINGS)
    return beat, _LOBE * beat * (lasted_s / np.maximum(crossings, 1)) ** 2


def partly(share: Number) -> Number:
    """Whether a load of such a utilisation (0 to 1) may hide work or pauses."""
    return (share > 0) & (share < _FULL)


def hidden_w2(watts: Number, share: Number, floor_w: Number, full_w: Number) -> Number:
    """The variance of what may hide, W^2, of a load that is busy for such a share of the time."""
    above = np.maximum(watts - floor_w, 0.0)
    less = (1 - share) * above  # all that was seen is work
    more = np.maximum(share * (full_w - floor_w) - above, 0.0)  # all that was seen is the pause
    return (partly(share) * np.maximum(less, more) / NORMAL_95) ** 2


def variance_j2(sums: Sequence[Number], seconds: Number) -> Number:
    """The variance of the energy of a time of so many seconds, from the `SUMS` over it."""
    separate_j2, beat_w2s, beat_j2s, locked_w2s = sums
    return separate_j2 + np.minimum(beat_w2s * seconds, beat_j2s / seconds) + locked_w2s * np.minimum(seconds, LOCKED_S)
