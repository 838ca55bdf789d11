"""What a sensor cannot have seen (`store.aliasing`), step by step as readings come in.

A counter misses nothing, but what it adds up may be the readings of the same sensor.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from ...store.aliasing import FLOOR, LIKELY, LOCKED_S, PART_S, PERIOD_S, Sensor, beat, locked_w2
from ...store.power_sensors import sensor_of_model

_MEMORY = 64  # new values that tell how readings vary
_LIKE = 1 / 16  # weight of a new value in the mean of those before


def sees(model: str | None, *, period_ms: float | None = None, window_ms: float | None = None) -> Sensor:
    """What the sensor of a model sees; where its name tells nothing, what the backend says of period and window."""
    known = sensor_of_model(model)
    if known is not None:
        period_ms, window_ms = known.period_ms, known.window_ms
    period = PERIOD_S if not period_ms else period_ms / 1000
    return Sensor(min(period, window_ms / 1000 if window_ms else PART_S), period)


class Unseen:
    """What the sensor of one GPU does not see."""

    def __init__(self, sensor: Sensor, limit_w: float | None) -> None:
        self._sensor, self._limit = sensor, limit_w
        self._past: deque[bool] = deque(maxlen=_MEMORY)  # whether each new value was above the mean
        self._before: tuple[float, float] | None = None  # the last two
        self._mean: float | None = None
        self._spread2 = 0.0
        self._lowest = self._highest = 0.0

    def step(self, watts: float, seconds: float, utilization: float | None, *, counter: bool) -> tuple[float, ...]:
        """`SUMS` of `store.aliasing`, of a step that ends with a new value.

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
            return 0.0, 0.0, 0.0
        usual = max(self._sensor.period_s, min(seconds, 1.0))
        rate = usual * bend * bend / 6
        past = list(self._past)
        crossings = sum(a != b for a, b in pairwise(past))
        beat_w2, coherent_s = beat(self._spread2, crossings, len(past) * usual)
        limit = self._limit or self._highest
        floor, full = min(self._lowest, FLOOR * limit), max(self._highest, LIKELY * limit)
        hidden = float(locked_w2(watts, 0.5 if utilization is None else utilization, floor, full))
        locked = max(hidden - self._spread2, 0.0)
        by = missed * (missed if counter else 1.0) * seconds
        return rate * by, (beat_w2 + locked) * by, (beat_w2 * coherent_s + locked * LOCKED_S) * by
