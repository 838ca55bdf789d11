"""Aliasing: what a power sensor does not see because it looks now and then, and what that does to an energy.

    power    ▁█▁█▁█▁█▁█▁█▁█▁█   a load that goes to and fro
    looks      |   |   |   |    an A100's: 25 of each 100 ms
    reading  ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔   in step with it: only work, or only pauses; nearly in step: slowly up and down (a beat)

Two figures say how wrong the mean of readings may be, each for the share of the time that the sensor misses:

* `variance_j2`: readings that differ as chance has it are wrong independently of each other;
* the alias: an error of the power (variance `w2`, W^2) that stays the same for a time `coherent_s`. Readings that cross
  their mean in turn show a beat: `w2` is their variance, and the coherent time a part of the time between crossings. A
  load that is locked to the sensor shows nothing, but utilisation tells it: where a kernel ran for the share u of the
  time, the GPU drew the power of work for u of the time. That is taken to last `LOCKED_S`.

Meters of stored telemetry look at whole arrays, the ledger of spans at one new value after another; the formulas take
numbers and arrays. Only numpy is needed: nodes use it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...store.power_sensors import NORMAL_95

SUMS = ("variance_j2", "alias_w2s", "alias_j2")
"""What is added up over time: the variance of what is independent; the variance of the alias's power x s, and that x
its coherent time."""
PERIOD_S, PART_S = 0.1, 0.025
"""Of a sensor of which nothing is known: that of most, and the least that any averages since 2020."""
LOCKED_S = 10.0
"""How long a load is taken to stay locked to the sensor; after that its place in the sensor's period is another one.

A sensor that sees 25 of 100 ms has the same part of a load for 10 s if their periods, or simple ratios of them, differ
by less than 0.25 %. That no load keeps this up for longer is assumed."""
FLOOR, LIKELY = 0.1, 0.75
"""Of the power limit: what no board draws less than, and what work may draw, also where none was seen."""
_CROSSINGS = 3  # of their mean by readings that go to and fro
_LOBE = 0.2  # of the time between crossings: so long a sine is taken to keep its sign
_FULL = 0.99  # utilisation from which a load cannot hide work

Number = Any
"""A number or an array; those of one call are alike."""


@dataclass(frozen=True)
class SensorWindow:
    """What a power sensor sees: a new value every `period_s`, a mean over `window_s`."""

    window_s: float
    period_s: float

    @property
    def missed(self) -> float:
        """The share of the time that it does not see."""
        return 1.0 - min(1.0, self.window_s / self.period_s)


def beat(spread_w2: Number, crossings: Number, lasted_s: Number) -> tuple[Number, Number]:
    """The alias of readings with the variance `spread_w2` (W^2) that cross their mean so often in `lasted_s`: its
    variance, W^2, and for how long it is the same, s."""
    between_s = lasted_s / np.maximum(crossings, 1)
    return spread_w2 * (crossings >= _CROSSINGS), np.minimum(_LOBE * between_s, LOCKED_S)


def locked_w2(watts: Number, utilization: Number, floor_w: Number, full_w: Number) -> Number:
    """The variance, W^2, of what a load may hide that is busy for the share `utilization` (0 to 1) of the time.

    `floor_w` is what the GPU draws without work, `full_w` the most that its work draws.
    """
    above = np.maximum(watts - floor_w, 0.0)
    work_w = (1 - utilization) * above  # all that was seen is work
    pause_w = np.maximum(utilization * (full_w - floor_w) - above, 0.0)  # all that was seen is the pause
    partly = (utilization > 0) & (utilization < _FULL)
    return (partly * np.maximum(work_w, pause_w) / NORMAL_95) ** 2


def variance_j2(sums: Sequence[Number], seconds: Number) -> Number:
    """The variance of the energy of a time of so many seconds, J^2, from the `SUMS` over it."""
    independent_j2, alias_w2s, alias_j2 = sums
    return independent_j2 + np.minimum(alias_w2s * seconds, alias_j2)
