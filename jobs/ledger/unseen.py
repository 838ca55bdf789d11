"""What a sensor cannot have seen, step by step as readings come in; of stored telemetry, the meter says the same.

Many sensors see a part of the time only (25 of 100 ms), and what a counter adds up may be the readings of the same
sensor. Three things follow, each a figure that adds up over time (`analysis/energy/metering/sampling.py`):

* what differs from reading to reading is a variance of the energy;
* readings that go to and fro, as those of a load near the sensor's period do, are wrong together, for half a beat;
* readings that stay the same though utilisation says that work and pauses alternate may hide either. That lasts for
  `LOCKED_S` at most.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from ...store.power_sensors import sensor_of_model
from ...store.sensor_error import NORMAL_95

LOCKED_S = 60.0
"""How long a load is taken to stay locked to the sensor."""
_MEMORY = 64  # new values that tell how readings vary
_LIKE = 1 / 16  # weight of a new value in the mean of those before
_CROSSINGS = 3  # of their mean by readings that go to and fro
_LOBE = 0.3  # mean square of the energy that a sine is ahead of its mean by, over (time between crossings x rms)**2
_FULL = 0.99  # utilisation from which a load cannot hide work
_FLOOR, _LIKELY = 0.1, 0.75  # of the power limit: what no board draws less than, and what work may draw
_PART_S, _PERIOD_S = 0.025, 0.1  # of a sensor of which nothing is known: the least that any sees since 2020


@dataclass(frozen=True)
class Sees:
    """What a power sensor sees: a new value every `period_s`, a mean over `window_s`."""

    window_s: float
    period_s: float

    @property
    def missed(self) -> float:
        """The share of the time that it does not see."""
        return max(0.0, 1.0 - self.window_s / self.period_s)


def sees(model: str | None, *, period_ms: float | None = None, window_ms: float | None = None) -> Sees:
    """What the sensor of a model sees; where its name tells nothing, what the backend says of period and window."""
    known = sensor_of_model(model)
    if known is not None:
        period_ms, window_ms = known.period_ms, known.window_ms
    period = _PERIOD_S if not period_ms else period_ms / 1000
    return Sees(min(period, window_ms / 1000 if window_ms else _PART_S), period)


class Unseen:
    """What the sensor of one GPU does not see."""

    def __init__(self, sensor: Sees, limit_w: float | None) -> None:
        self._sensor, self._limit = sensor, limit_w
        self._past: deque[bool] = deque(maxlen=_MEMORY)  # whether each new value was above the mean
        self._before: tuple[float, float] | None = None  # the last two
        self._mean: float | None = None
        self._spread2 = 0.0
        self._lowest = self._highest = 0.0

    def step(self, watts: float, seconds: float, utilization: float | None, *, counter: bool) -> tuple[float, ...]:
        """The figures of a step that ends with a new value: J^2, W^2 s, J^2 s and W^2 s; see `COLUMNS` in `curve`.

        `utilization` is from 0 to 1. Of a `counter`, what the sensor sees is added up exactly.
        """
        mean = watts if self._mean is None else self._mean
        if self._mean is None:
            self._lowest = self._highest = watts
            self._before = (watts, watts)
        assert self._before is not None
        self._lowest, self._highest = min(self._lowest, watts), max(self._highest, watts)
        bend = watts - 2 * self._before[1] + self._before[0]
        self._before = (self._before[1], watts)
        off = watts - mean
        self._mean = mean + _LIKE * off
        self._spread2 = (1 - _LIKE) * (self._spread2 + _LIKE * off * off)
        self._past.append(off > 0)

        missed = self._sensor.missed
        if missed == 0:
            return 0.0, 0.0, 0.0, 0.0
        usual = max(self._sensor.period_s, min(seconds, 1.0))
        rate = usual * bend * bend / 6
        past = list(self._past)
        crossings = sum(a != b for a, b in pairwise(past))
        beat = self._spread2 if crossings >= _CROSSINGS else 0.0
        ahead = _LOBE * beat * (len(past) * usual / max(crossings, 1)) ** 2
        locked = max(self._hidden(watts, utilization) - self._spread2, 0.0)
        by = missed * (missed if counter else 1.0) * seconds
        return rate * by, beat * by, ahead * by, locked * by

    def _hidden(self, watts: float, utilization: float | None) -> float:
        """The variance of what may hide, W^2."""
        share = 0.5 if utilization is None else utilization
        if not 0 < share < _FULL:
            return 0.0
        limit = self._limit or self._highest
        floor, full = min(self._lowest, _FLOOR * limit), max(self._highest, _LIKELY * limit)
        above = max(watts - floor, 0.0)
        less = (1 - share) * above  # all that was seen is work
        more = max(share * (full - floor) - above, 0.0)  # all that was seen is the pause
        return (max(less, more) / NORMAL_95) ** 2
