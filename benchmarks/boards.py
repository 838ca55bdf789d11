"""Boards whose true power is known by the millisecond, and what the power sensors of NVIDIA boards read of it.

The loads are of the kinds that GPUs have. They know nothing of whorl's meter and take nothing from it but the table of
boards that others measured, so that they can judge it. Periods, windows, gains and offsets of sensors: Yang, Adamek,
Armour, SC24, doi 10.1109/SC41406.2024.00028, and the repository of its authors, JimZeyuYang/GPU_Power_Benchmark: 19
boards against an external power meter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

from whorl.store.power_sensors import MEASURED_BOARDS

Floats = npt.NDArray[np.float64]
Random = np.random.Generator
Load = tuple[Floats, Floats]  # by ms: the level, 0 (no work) to 1 (full power), and whether a kernel runs


@dataclass(frozen=True)
class Board:
    """A board: what it draws without work and at full load, and its power limit; W."""

    idle_w: float
    full_w: float
    limit_w: float
    tail: float = 0.0
    """The share of its swing by which power stays up after work, as clocks fall late; it falls to idle within 1.8 s.
    That fills short pauses, so that loads near the sensor's period are easier to meter."""


@dataclass(frozen=True)
class Truth:
    """The true power by ms (W), and which share of that ms a kernel ran."""

    power: Floats
    busy: Floats

    @cached_property
    def _joules(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self.power)]) / 1e3

    @cached_property
    def _busy_ms(self) -> Floats:
        return np.concatenate([[0.0], np.cumsum(self.busy)])

    def joules(self, began: Floats, ended: Floats) -> Floats:
        """The true energy from `began` to `ended` (ms), J."""
        return _at(self._joules, ended) - _at(self._joules, began)

    def busy_ms(self, began: Floats, ended: Floats) -> Floats:
        """How long kernels ran from `began` to `ended` (ms), ms."""
        return _at(self._busy_ms, ended) - _at(self._busy_ms, began)


def _at(cumulated: Floats, ms: Floats) -> Floats:
    """A cumulated function between the ms; as at the ends beyond them."""
    ms = np.clip(ms, 0.0, len(cumulated) - 1.0)
    place = np.minimum(ms.astype(np.int64), len(cumulated) - 2)
    between: Floats = cumulated[place] + (ms - place) * (cumulated[place + 1] - cumulated[place])
    return between


def _parts(length: int, ms: Floats, level: Floats, busy: Floats) -> Load:
    """Parts of given lengths, one after another, cut or held on to `length`."""
    ends = np.minimum(np.round(np.cumsum(ms)), length).astype(np.int64)
    ends[-1] = length
    lengths = np.diff(ends, prepend=0)
    return np.repeat(level, lengths), np.repeat(busy, lengths)


def _until(length: int, draw: Callable[[int], Floats]) -> Floats:
    """Enough of the lengths that `draw` gives to fill `length`."""
    lengths = draw(64)
    while lengths.sum() < length:
        lengths = np.concatenate([lengths, draw(2 * len(lengths))])
    return lengths[: int(np.searchsorted(np.cumsum(lengths), length)) + 1]


def steady(rng: Random, length: int, _sensor_ms: float) -> Load:
    """One level."""
    return np.full(length, rng.uniform(0.4, 1.0)), np.ones(length)


def ramps(rng: Random, length: int, _sensor_ms: float) -> Load:
    """A level that climbs and falls slowly, over 5 s to minutes."""
    time = np.arange(length) / rng.uniform(5e3, 3e5)
    saw = np.abs((time + rng.random()) % 2.0 - 1.0)
    return 0.3 + 0.7 * (saw if rng.random() < 0.5 else np.sin(np.pi * saw / 2)), np.ones(length)


def _waves(rng: Random, length: int, period: float, wander: float) -> Load:
    """A square wave of that period (ms), which wanders by that share, between no work or a low level and a high one."""
    steps = np.cumsum(rng.normal(0.0, 1.0, length // 1000 + 2)) * wander * 0.1
    rate = (1.0 + np.repeat(steps - steps[0], 1000)[:length]) / period
    on = (rng.random() + np.cumsum(rate)) % 1.0 < rng.uniform(0.15, 0.85)
    return np.where(on, rng.uniform(0.5, 1.0), 0.0), on.astype(np.float64)


def square(rng: Random, length: int, _sensor_ms: float) -> Load:
    """A square wave with a period of 5 ms to 10 s."""
    return _waves(rng, length, 5.0 * 2000.0 ** rng.random(), 2e-3)


def nearly_locked(rng: Random, length: int, sensor_ms: float) -> Load:
    """A square wave whose period is within 5 % of the sensor's, or of a simple part or multiple of it."""
    ratio = rng.choice([0.25, 1 / 3, 0.5, 1.0, 2.0, 3.0])
    return _waves(rng, length, sensor_ms * ratio * (1.0 + rng.choice([-1, 1]) * 10 ** rng.uniform(-3, -1.3)), 1e-3)


def locked(rng: Random, length: int, sensor_ms: float) -> Load:
    """A square wave locked to the sensor's period for ever: the worst case, which no real load keeps up."""
    return _waves(rng, length, sensor_ms * rng.choice([0.5, 1.0, 1.0, 1.0, 2.0]), 0.0)


def locked_busy(rng: Random, length: int, sensor_ms: float) -> Load:
    """The same between two levels of power with a kernel running all the time: utilisation shows nothing."""
    level, _ = locked(rng, length, sensor_ms)
    return np.maximum(level, rng.uniform(0.3, 0.6)), np.ones(length)


def two_levels(rng: Random, length: int, _sensor_ms: float) -> Load:
    """Kernels of much and of little power in turn, 5 ms to 2 s each; one of them runs all the time."""
    level, _ = _waves(rng, length, 10.0 * 400.0 ** rng.random(), 5e-3)
    return np.maximum(level, rng.uniform(0.3, 0.6)), np.ones(length)


def bursts(rng: Random, length: int, _sensor_ms: float) -> Load:
    """Short bursts at random times: 5 to 500 ms of work, then a pause, most pauses longer."""
    work, pause = 5.0 * 100.0 ** rng.random(), 20.0 * 100.0 ** rng.random()

    def pairs(n: int) -> Floats:
        return np.maximum(np.stack([rng.exponential(work, n), rng.exponential(pause, n)], axis=1), 1.0).ravel()

    ms = _until(length, pairs)
    on = np.arange(len(ms)) % 2 == 0
    return _parts(length, ms, np.where(on, rng.uniform(0.3, 1.0, len(ms)), 0.0), on.astype(np.float64))


def training(rng: Random, length: int, _sensor_ms: float) -> Load:
    """Training: steps of 60 ms to 3 s (forward, backward, communication, next data), and a checkpoint now and then."""
    step = 60.0 * 50.0 ** rng.random()
    shares = rng.dirichlet([6.0, 10.0, 3.0, 1.0])
    levels, busy = np.array([rng.uniform(0.7, 0.9), 1.0, rng.uniform(0.3, 0.6), 0.05]), np.array([1.0, 1.0, 1.0, 0.0])
    checkpoint = int(rng.integers(100, 1000))
    pause = rng.uniform(2e3, 2e4)

    def steps(n: int) -> Floats:
        parts = step * np.maximum(rng.normal(1.0, 0.02, (n, 1)), 0.5) * shares * rng.normal(1.0, 0.02, (n, 4)).clip(0.5)
        parts[checkpoint::checkpoint, 3] += pause
        lasted: Floats = np.maximum(parts, 1.0).ravel()
        return lasted

    ms = _until(length, steps)
    return _parts(length, ms, np.tile(levels, len(ms) // 4 + 1)[: len(ms)], np.tile(busy, len(ms) // 4 + 1)[: len(ms)])


def heavy_tails(rng: Random, length: int, _sensor_ms: float) -> Load:
    """Work and pauses whose lengths have heavy tails (Pareto, 1.2), at levels that differ widely."""
    least = 5.0 * 40.0 ** rng.random()
    ms = _until(length, lambda n: least * (1.0 + rng.pareto(1.2, n)))
    on = rng.random(len(ms)) < rng.uniform(0.2, 0.8)
    return _parts(length, ms, np.where(on, rng.lognormal(-0.7, 0.5, len(ms)).clip(0.1, 1.0), 0.0), on.astype(float))


def spikes(rng: Random, length: int, _sensor_ms: float) -> Load:
    """No work but for a spike of 5 to 50 ms, one in some seconds."""
    spike_ms = 10 ** rng.uniform(2.5, 4.5)

    def pairs(n: int) -> Floats:
        return np.stack([rng.exponential(spike_ms, n) + 1.0, rng.uniform(5.0, 50.0, n)], axis=1).ravel()

    ms = _until(length, pairs)
    on = np.arange(len(ms)) % 2 == 1
    return _parts(length, ms, np.where(on, rng.uniform(0.1, 0.6), 0.0), on.astype(np.float64))


def nothing(_rng: Random, length: int, _sensor_ms: float) -> Load:
    """No work at all."""
    return np.zeros(length), np.zeros(length)


LOADS: dict[str, Callable[[Random, int, float], Load]] = {
    load.__name__: load
    for load in (
        nothing, spikes, steady, ramps, training, two_levels, square, bursts, heavy_tails, nearly_locked, locked,
        locked_busy,
    )
}  # fmt: skip


_TAIL_MS = 1800


def truth(rng: Random, board: Board, load: str, length: int, sensor_ms: float, *, job: tuple[int, int] | None) -> Truth:
    """The power of a board over `length` ms under a load, in the time of `job` (ms) only where that is given."""
    began, ended = job or (0, length)
    level, busy = LOADS[load](rng, ended - began, sensor_ms)
    level = np.pad(level, (began, length - ended))
    busy = np.pad(busy, (began, length - ended))
    swing = board.full_w - board.idle_w
    warm = scipy.signal.lfilter([1e-3 / 60.0], [1.0, 1e-3 / 60.0 - 1.0], level)  # the chip warms up in a minute or so
    busy_ms = np.cumsum(busy)
    lately = (busy_ms - np.pad(busy_ms, (_TAIL_MS, 0))[:length]) / _TAIL_MS
    drawn = level * (1.0 + 0.04 * (warm - 0.5)) + 0.03 * warm
    power = board.idle_w + swing * np.maximum(drawn, board.tail * lately)
    if rng.random() < 0.5:  # what the board's capacitors smooth
        share = 1.0 / rng.uniform(2.0, 20.0)
        power = scipy.signal.lfilter([share], [1.0, share - 1.0], power, zi=np.array([power[0] * (1.0 - share)]))[0]
    power += 0.02 * (power - 0.8 * board.idle_w) * rng.standard_normal(length)
    return Truth(np.maximum(power, 1.0), busy)


# -- sensors ---------------------------------------------------------------------------------------------------------


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
    late_ms: float = 60.0
    """At most from the end of a window to the new value."""


SENSORS = {
    "kepler": Sensor("Tesla K40m", 20.0, None, counter=False, limit_w=235.0, idle_w=25.0, late_ms=10.0),
    "pascal": Sensor("Tesla P100-PCIE-16GB", 20.0, 10.0, counter=False, limit_w=250.0, idle_w=30.0, late_ms=10.0),
    "volta": Sensor("Tesla V100-SXM2-32GB", 20.0, 10.0, limit_w=300.0, idle_w=42.0, late_ms=10.0),
    "turing": Sensor("Quadro RTX 6000", 100.0, 100.0, limit_w=260.0, idle_w=25.0),
    "a100": Sensor("NVIDIA A100-SXM4-40GB", 100.0, 25.0, limit_w=400.0, idle_w=55.0),
    "h100": Sensor("NVIDIA H100 80GB HBM3", 100.0, 25.0, 1000.0, limit_w=700.0, idle_w=70.0),
    "gh200": Sensor("NVIDIA GH200 480GB", 100.0, 20.0, 1000.0, limit_w=900.0, idle_w=90.0),
}
SENSORS_BESIDE_METERS = (
    Sensor("NVIDIA GeForce RTX 3090", 100.0, 100.0, 1000.0, limit_w=350.0, idle_w=30.0, late_ms=250.0),
    Sensor("NVIDIA GeForce RTX 4090", 100.0, 100.0, 1000.0, limit_w=420.0, idle_w=25.0, late_ms=250.0),
    Sensor("NVIDIA A100-PCIE-40GB", 100.0, 25.0, limit_w=240.0, idle_w=45.0, late_ms=250.0),
    Sensor("NVIDIA GeForce RTX 2080 Ti", 100.0, 100.0, limit_w=250.0, idle_w=20.0, late_ms=250.0),
    Sensor("Tesla P100-PCIE-16GB", 20.0, 10.0, limit_w=240.0, idle_w=30.0, late_ms=250.0),
    Sensor("NVIDIA RTX A5000", 100.0, 100.0, 1000.0, limit_w=230.0, idle_w=80.0, late_ms=250.0),
)
"""Models that SC24 held against a meter; how late their drivers are differs more."""
_KEPLER_MS = 90.0  # the time in which a reading of Kepler covers 63 % of a step: 90 % in about 200 ms
_NOISE = 0.001  # of a reading, as a share of the power limit


@dataclass(frozen=True)
class Error:
    """The error of one board's sensor: reading = (1 + gain) x true + offset."""

    gain: float
    offset_w: float


def published_error(rng: Random) -> Error:
    """The error of one of the 19 boards that were measured."""
    _, gain_pct, offset_w = MEASURED_BOARDS[int(rng.integers(len(MEASURED_BOARDS)))]
    return Error(gain_pct / 100.0, offset_w)


def heavier_error(rng: Random) -> Error:
    """An error of a population with the mean and the covariance of the 19 boards, and heavier tails (Student, 4)."""
    boards = np.array([board[1:] for board in MEASURED_BOARDS]).T
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
    late = rng.uniform(0.0, sensor.late_ms)

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
    place: Floats = np.round(times[times < ended])  # whole ms, as nvidia-smi writes them
    return place[np.append(True, np.diff(np.maximum.accumulate(place)) > 0)] if len(place) else place


def gaps(rng: Random, at_ms: Floats, number: int) -> npt.NDArray[np.bool_]:
    """Which polls are left after so many gaps, each of up to a tenth of the time."""
    remain = np.ones(len(at_ms), dtype=bool)
    length = at_ms[-1] - at_ms[0] if len(at_ms) else 0.0
    for _ in range(number):
        began = at_ms[0] + rng.uniform(0.0, length)
        remain &= ~((at_ms > began) & (at_ms < began + rng.uniform(0.01, 0.1) * length))
    return remain


# -- faults of one board's readings ---------------------------------------------------------------------------

POWER_FAULTS = ("zero", "stuck")
"""For a twentieth to a fifth of the time the power reads 0 W, or stays as it was."""
COUNTER_FAULTS = ("reset", "jump", "still", "less")
"""The driver is loaded again, so that the counter begins at 0; it grows by 10 kJ to 10 MJ at once; it stands still for
such a while and does not make up for it; it counts 60 to 90 % of the energy, as one card was seen to do."""


def faulted(rng: Random, reading: Poll, fault: str) -> Poll:
    """The readings with a fault; one of the counter needs a counter."""
    polls_there, at_ms = len(reading.at_ms), reading.at_ms

    def later() -> npt.NDArray[np.bool_]:
        return np.asarray(np.arange(polls_there) >= rng.integers(1, max(polls_there, 2)), np.bool_)

    def inside() -> npt.NDArray[np.bool_]:
        length = (at_ms[-1] - at_ms[0]) * rng.uniform(0.05, 0.2)
        began = at_ms[0] + rng.uniform(0.0, at_ms[-1] - at_ms[0] - length)
        return np.asarray((at_ms >= began) & (at_ms <= began + length), np.bool_)

    if fault in POWER_FAULTS:
        span = inside()

        def wrong(watts: Floats) -> Floats:
            return np.where(span, 0.0 if fault == "zero" else watts[int(np.argmax(span))], watts)

        instant = None if reading.instant_w is None else wrong(reading.instant_w)
        return replace(reading, power_w=wrong(reading.power_w), instant_w=instant)
    joules = reading.energy_j
    assert joules is not None
    if fault == "reset":
        after = later()
        return replace(reading, energy_j=joules - np.where(after, joules[int(np.argmax(after)) - 1], 0.0))
    if fault == "jump":
        after, by = later(), 10 ** rng.uniform(4, 7)
        return replace(reading, energy_j=joules + np.where(after, by, 0.0))
    grown = np.diff(joules, prepend=joules[0])
    grown = np.where(inside(), 0.0, grown) if fault == "still" else grown * rng.uniform(0.6, 0.9)
    return replace(reading, energy_j=joules[0] + np.cumsum(grown))
