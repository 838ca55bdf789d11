"""The true power of a board, 1 kHz, of the kinds of loads that GPUs have: what an external power meter would record.

It knows nothing of whorl's meter and takes nothing from it, so that it can judge it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy

Floats = npt.NDArray[np.float64]
Random = np.random.Generator
Load = tuple[Floats, Floats]  # by ms: the level, 0 (no work) to 1 (full power), and whether a kernel runs


@dataclass(frozen=True)
class Board:
    """A board: what it draws without work and at full load, and its power limit; W."""

    idle_w: float
    full_w: float
    limit_w: float


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
    whole = np.minimum(ms.astype(np.int64), len(cumulated) - 2)
    between: Floats = cumulated[whole] + (ms - whole) * (cumulated[whole + 1] - cumulated[whole])
    return between


def _parts(length: int, ms: Floats, level: Floats, busy: Floats) -> Load:
    """Parts of given lengths, one after another, cut or held on to `length`."""
    ends = np.minimum(np.round(np.cumsum(ms)), length).astype(np.int64)
    ends[-1] = length
    lengths = np.diff(ends, prepend=0)
    return np.repeat(level, lengths), np.repeat(busy, lengths)


def _until(length: int, draw: Callable[[int], Floats]) -> Floats:
    """Enough of the lengths that `draw` gives to fill `length`."""
    found = draw(64)
    while found.sum() < length:
        found = np.concatenate([found, draw(2 * len(found))])
    return found[: int(np.searchsorted(np.cumsum(found), length)) + 1]


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
    each = int(rng.integers(100, 1000))
    pause = rng.uniform(2e3, 2e4)

    def steps(n: int) -> Floats:
        parts = step * np.maximum(rng.normal(1.0, 0.02, (n, 1)), 0.5) * shares * rng.normal(1.0, 0.02, (n, 4)).clip(0.5)
        parts[each::each, 3] += pause
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
    every = 10 ** rng.uniform(2.5, 4.5)

    def pairs(n: int) -> Floats:
        return np.stack([rng.exponential(every, n) + 1.0, rng.uniform(5.0, 50.0, n)], axis=1).ravel()

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


def truth(rng: Random, board: Board, load: str, length: int, sensor_ms: float, *, job: tuple[int, int] | None) -> Truth:
    """The power of a board over `length` ms under a load, in the time of `job` (ms) only where that is given."""
    began, ended = job or (0, length)
    level, busy = LOADS[load](rng, ended - began, sensor_ms)
    level = np.pad(level, (began, length - ended))
    busy = np.pad(busy, (began, length - ended))
    swing = board.full_w - board.idle_w
    warm = scipy.signal.lfilter([1e-3 / 60.0], [1.0, 1e-3 / 60.0 - 1.0], level)  # the chip warms up in a minute or so
    power = board.idle_w + swing * level * (1.0 + 0.04 * (warm - 0.5)) + 0.03 * swing * warm
    if rng.random() < 0.5:  # what the board's capacitors smooth
        share = 1.0 / rng.uniform(2.0, 20.0)
        power = scipy.signal.lfilter([share], [1.0, share - 1.0], power, zi=np.array([power[0] * (1.0 - share)]))[0]
    power += 0.02 * (power - 0.8 * board.idle_w) * rng.standard_normal(length)
    return Truth(np.maximum(power, 1.0), busy)
