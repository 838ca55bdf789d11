"""Power sensors of NVIDIA boards, and how they are polled: from true power to the rows that a collector stores.

Periods, windows, gains and offsets: Yang, Adamek, Armour, SC24, doi 10.1109/SC41406.2024.00028, and the repository of
its authors, JimZeyuYang/GPU_Power_Benchmark: 19 boards against an external power meter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy

from .energy_truth import Floats, Random, Truth

# By board: how much too much the sensor reads, in %, and in W.
GAINS = (
    -5.493, -0.6464, -1.772, 1.4763, 1.7246, 4.4503, 0.3940, -3.3428, -1.3034, -2.5911, -0.1220, 6.3630, 1.0577,
    -9.4997, -4.5826, -0.7221, -2.8742, -3.6307, 2.4105,
)  # fmt: skip
OFFSETS = (
    3.4686, -1.6615, 3.9206, -5.0714, -8.5276, -12.354, -4.8016, -5.7953, 11.8485, 2.5377, -0.3343, -5.1553, 1.2307,
    8.764, -1.2103, 0.8832, 1.4497, -6.2932, 0.8057,
)  # fmt: skip


@dataclass(frozen=True)
class Sensor:
    """What a model's driver reports. `window_ms` is None where the reading follows the logarithm of time (Kepler)."""

    model: str
    period_ms: float
    window_ms: float | None
    average_ms: float | None = None
    """What `power.draw` averages where it is another value than the instantaneous one."""
    counter: bool = True
    limit_w: float = 300.0
    idle_w: float = 50.0


SENSORS = {
    "kepler": Sensor("Tesla K40m", 20.0, None, counter=False, limit_w=235.0, idle_w=25.0),
    "pascal": Sensor("Tesla P100-PCIE-16GB", 20.0, 10.0, counter=False, limit_w=250.0, idle_w=30.0),
    "volta": Sensor("Tesla V100-SXM2-32GB", 20.0, 10.0, limit_w=300.0, idle_w=42.0),
    "turing": Sensor("Quadro RTX 6000", 100.0, 100.0, limit_w=260.0, idle_w=25.0),
    "a100": Sensor("NVIDIA A100-SXM4-40GB", 100.0, 25.0, limit_w=400.0, idle_w=55.0),
    "h100": Sensor("NVIDIA H100 80GB HBM3", 100.0, 25.0, 1000.0, limit_w=700.0, idle_w=70.0),
    "gh200": Sensor("NVIDIA GH200 480GB", 100.0, 20.0, 1000.0, limit_w=900.0, idle_w=90.0),
}
_KEPLER_MS = 90.0  # the time in which a reading of Kepler covers 63 % of a step: 90 % in about 200 ms
_NOISE = 0.001  # of a reading, as a share of the power limit


@dataclass(frozen=True)
class Error:
    """The error of one board's sensor: reading = (1 + gain) x true + offset."""

    gain: float
    offset_w: float


def published_error(rng: Random) -> Error:
    """The error of one of the 19 boards."""
    board = int(rng.integers(len(GAINS)))
    return Error(GAINS[board] / 100.0, OFFSETS[board])


def heavier_error(rng: Random) -> Error:
    """An error of a population with the mean and the covariance of the 19 boards, and heavier tails (Student, 4)."""
    boards = np.array([GAINS, OFFSETS])
    normal = rng.multivariate_normal(np.zeros(2), np.cov(boards))
    gain, offset = boards.mean(axis=1) + normal * np.sqrt(4.0 / rng.chisquare(4.0) / 2.0)
    return Error(float(gain) / 100.0, float(offset))


@dataclass(frozen=True)
class Poll:
    """The readings of one board: times (ms) and values by poll, NaN where there is none."""

    at_ms: Floats
    power_w: Floats
    instant_w: Floats | None
    energy_j: Floats | None
    utilization: Floats


def period(rng: Random, sensor: Sensor) -> float:
    """The period of one board's sensor by the host's clock: the A100 of SC24 has 101 to 104 ms for the nominal 100."""
    return sensor.period_ms * rng.uniform(0.999, 1.04)


def poll(
    rng: Random, truth: Truth, sensor: Sensor, period_ms: float, error: Error, at_ms: Floats, *, counter: str | None
) -> Poll:
    """What is read at these times.

    `counter`: 'full' adds up all of the true power with the sensor's error, 'readings' adds up the published readings.
    """
    length = len(truth.power)
    ends = np.arange(rng.uniform(0.0, period_ms), length, period_ms)
    late = rng.uniform(0.0, 60.0 if sensor.period_ms > 50 else 10.0)  # from the end of the window to the new value

    def seen(window: float | None) -> Floats:
        if window is None:
            share = 1.0 / _KEPLER_MS
            start = np.array([truth.power[0] * (1.0 - share)])
            smooth = scipy.signal.lfilter([share], [1.0, share - 1.0], truth.power, zi=start)[0]
            mean: Floats = smooth[np.minimum(ends.astype(np.int64), length - 1)]
        else:
            began = np.maximum(ends - window, 0.0)
            mean = truth.joules(began, ends) * 1e3 / np.maximum(ends - began, 1e-3)
        reading = (1.0 + error.gain) * mean + error.offset_w + rng.normal(0.0, _NOISE * sensor.limit_w, len(mean))
        return np.asarray(np.round(np.maximum(reading, 0.0), 3), np.float64)

    instant = seen(sensor.window_ms)
    power = instant if sensor.average_ms is None else seen(sensor.average_ms)
    latest = np.searchsorted(ends + late, at_ms, side="right") - 1

    def read(values: Floats) -> Floats:
        return np.where(latest < 0, np.nan, values[np.maximum(latest, 0)])

    energy = None
    if counter == "full":
        update = 20.0 if sensor.period_ms < 50 else 100.0
        upto = np.floor(at_ms / update) * update
        zero = np.zeros_like(upto)
        energy = (1.0 + error.gain) * truth.joules(zero, upto) + error.offset_w * upto / 1e3
    elif counter == "readings":
        energy = read(np.cumsum(instant) * period_ms / 1e3)
    if energy is not None:
        energy = np.round(energy + rng.uniform(0.0, 1e6), 3)
    tick = 200.0 if sensor.period_ms > 50 else 166.0
    used = np.floor(at_ms / tick) * tick
    busy = np.round(100.0 * truth.busy_ms(used - 333.0, used) / 333.0)
    return Poll(at_ms, read(power), read(instant) if sensor.average_ms is not None else None, energy, busy)


def polls(rng: Random, began: float, ended: float, interval_ms: float) -> Floats:
    """Times of polls (ms) between two times: about an interval apart, some of them late."""
    count = int((ended - began) / interval_ms) + 1
    times = began + rng.uniform(0.0, interval_ms) + interval_ms * np.arange(count)
    times += np.clip(rng.normal(0.0, 0.05, count), -0.4, 0.4) * interval_ms
    late = rng.random(count) < 0.005
    times[late] += rng.exponential(2.0 * interval_ms, int(late.sum()))
    whole: Floats = np.round(times[times < ended])  # whole ms, as nvidia-smi writes them
    return whole[np.append(True, np.diff(np.maximum.accumulate(whole)) > 0)] if len(whole) else whole


def gaps(rng: Random, at_ms: Floats, number: int) -> npt.NDArray[np.bool_]:
    """Which polls are left after so many gaps, each of up to a tenth of the time."""
    kept = np.ones(len(at_ms), dtype=bool)
    length = at_ms[-1] - at_ms[0] if len(at_ms) else 0.0
    for _ in range(number):
        began = at_ms[0] + rng.uniform(0.0, length)
        kept &= ~((at_ms > began) & (at_ms < began + rng.uniform(0.01, 0.1) * length))
    return kept


# -- faults of one board's readings ---------------------------------------------------------------------------


def _from(rng: Random, one: Poll) -> npt.NDArray[np.bool_]:
    """The readings from a random place on."""
    return np.asarray(np.arange(len(one.at_ms)) >= rng.integers(1, max(len(one.at_ms), 2)), np.bool_)


def _span(rng: Random, one: Poll) -> npt.NDArray[np.bool_]:
    """The readings of a stretch of a twentieth to a fifth of the time."""
    length = (one.at_ms[-1] - one.at_ms[0]) * rng.uniform(0.05, 0.2)
    began = one.at_ms[0] + rng.uniform(0.0, one.at_ms[-1] - one.at_ms[0] - length)
    return np.asarray((one.at_ms >= began) & (one.at_ms <= began + length), np.bool_)


def _counter(one: Poll, changed: Callable[[Floats], Floats]) -> Poll:
    return one if one.energy_j is None else replace(one, energy_j=changed(one.energy_j))


def reset(rng: Random, one: Poll) -> Poll:
    """The driver is loaded again: the counter begins at 0."""
    after = _from(rng, one)
    return _counter(one, lambda joules: joules - np.where(after, joules[int(np.argmax(after)) - 1], 0.0))


def jump(rng: Random, one: Poll) -> Poll:
    """The counter grows by 10 kJ to 10 MJ at once."""
    after, by = _from(rng, one), 10 ** rng.uniform(4, 7)
    return _counter(one, lambda joules: joules + np.where(after, by, 0.0))


def still(rng: Random, one: Poll) -> Poll:
    """The counter stands still for a while, and does not make up for it."""
    span = _span(rng, one)

    def changed(joules: Floats) -> Floats:
        grown = np.diff(joules, prepend=joules[0])
        grown[span] = 0.0
        return np.asarray(joules[0] + np.cumsum(grown), np.float64)

    return _counter(one, changed)


def less(rng: Random, one: Poll) -> Poll:
    """The counter counts 60 to 90 % of the energy, as one card was seen to do."""
    share = rng.uniform(0.6, 0.9)
    return _counter(one, lambda joules: joules[0] + share * (joules - joules[0]))


def zero(rng: Random, one: Poll) -> Poll:
    """The power reads 0 W for a while."""
    span = _span(rng, one)
    instant = None if one.instant_w is None else np.where(span, 0.0, one.instant_w)
    return replace(one, power_w=np.where(span, 0.0, one.power_w), instant_w=instant)


def stuck(rng: Random, one: Poll) -> Poll:
    """The power stays as it was for a while."""
    span = _span(rng, one)
    first = int(np.argmax(span))
    instant = None if one.instant_w is None else np.where(span, one.instant_w[first], one.instant_w)
    return replace(one, power_w=np.where(span, one.power_w[first], one.power_w), instant_w=instant)


COUNTER_FAULTS = {fault.__name__: fault for fault in (reset, jump, still, less)}
POWER_FAULTS = {fault.__name__: fault for fault in (zero, stuck)}
