"""What a sensor cannot have seen: how far the mean of the readings may be from the mean of the power.

See `store.unseen`. Readings of a load with a period near the sensor's are like one another over a beat, so what counts
is the variance of long means (the long-run variance), not of single readings.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ....store.unseen import Sensor, beats, hidden_w2, partly
from .readings import Floats, median

_BLOCK = 64  # readings whose variance is taken together
_AROUND = 16  # readings before and after that tell whether readings vary
_LIKE = 4  # of them at least
_OF_RANGE = 1 / 8  # variance over range squared: between that of two levels (1/4) and of an even spread (1/12)
_TELLS_S = 1.0  # utilisation tells of up to so much time before it was read
_HARDLY = 0.03  # utilisation up to which hardly anything runs: a driver that is read causes some


def unseen(
    times_s: Floats,
    power_w: Floats,
    utilization: Floats,
    sensor: Sensor,
    floor_w: float,
    full_w: float,
    spread_w: Floats | None = None,
    every_s: Floats | None = None,
) -> Floats:
    """What the sensor did not see: `store.unseen.SUMS` by interval between two of n readings, (4, n - 1).

    Times increase strictly, and no value is missing but of utilisation.

    `spread_w` and `every_s` are of means: the range of what they are of, and how far apart it was read. `floor_w` is
    what the GPU draws without work, `full_w` the most that work draws, as far as is known.
    """
    step = np.diff(times_s)
    read_every = median(step)
    usual = max(read_every, sensor.period_s)
    locked = _locked(power_w, utilization, floor_w, full_w, around=round(_AROUND * usual / read_every))
    inside = np.zeros(len(step))
    if spread_w is not None and every_s is not None:
        within = np.nan_to_num(spread_w) ** 2 * _OF_RANGE
        locked = np.maximum(locked - within, 0.0)
        inside = (within * np.nan_to_num(every_s))[1:]
    quiet = _quiet(utilization, read_every)
    asleep = quiet[:-1] & quiet[1:] & (step <= _TELLS_S)
    if usual > 1.3 * read_every:  # read more often than there are new values
        grid = np.arange(times_s[0], times_s[-1] + usual, usual)
        at = np.minimum(np.searchsorted(times_s, grid, "right") - 1, len(times_s) - 1)
        power_w, quiet = power_w[at], quiet[at]
        block_of = ((times_s[:-1] - times_s[0]) / usual).astype(np.intp) // _BLOCK
    else:
        block_of = np.arange(len(step)) // _BLOCK
    rate, beat, ahead = _blocks(power_w, usual)
    block_of = np.minimum(block_of, len(rate) - 1)
    rate, beat, ahead = rate[block_of], beat[block_of], ahead[block_of]
    still = quiet[2:] & quiet[1:-1] & quiet[:-2]
    if np.count_nonzero(still) >= _LIKE:  # readings beside work say nothing of the time without it
        rate[asleep] = usual * float((np.diff(power_w, 2)[still] ** 2).mean()) / 6
        beat[asleep] = ahead[asleep] = 0.0
    longer = np.maximum(step / usual, 1.0)
    not_seen = np.clip(1.0 - sensor.window_s / np.maximum(step, usual), 0.0, 1.0)
    sums = np.array([np.maximum(rate * longer, inside), beat, ahead, (locked[:-1] + locked[1:]) / 2])
    return sums * not_seen * step


def _quiet(utilization: Floats, read_every: float) -> NDArray[np.bool_]:
    """By reading, whether hardly any kernel ran then, shortly before and after."""
    around = max(1, math.ceil(_TELLS_S / max(read_every, 1e-3)))
    found: NDArray[np.bool_] = _running((~(utilization <= _HARDLY)).astype(np.float64), around) == 0
    return found


def _blocks(power: Floats, usual: float) -> tuple[Floats, Floats, Floats]:
    """By block of readings: variance of the energy per second; variance of power and of energy of beats."""
    n = len(power)
    size = min(_BLOCK, n)
    starts = np.minimum(np.arange(0, n, size), n - size)  # the last block overlaps the one before
    inside = power[starts[:, None] + np.arange(size)]
    spread2 = inside.var(axis=1)
    bend = np.diff(inside, 2, axis=1) if size > 2 else np.zeros((len(starts), 1))
    rate = usual * (bend**2).mean(axis=1) / 6
    if size <= 2:
        rate += usual * spread2
    above = inside > inside.mean(axis=1)[:, None]
    crossings = (above[:, 1:] != above[:, :-1]).sum(axis=1)
    return rate * (1 + 4 / size), *beats(spread2, crossings, size * usual)


def _locked(power: Floats, utilization: Floats, floor_w: float, full_w: float, around: int) -> Floats:
    """By reading, the variance of what may hide, W^2.

    `around` readings before and after tell whether readings like this one vary: then nothing is locked.
    """
    share = np.where(np.isnan(utilization), 0.5, utilization)  # nothing tells how busy it was
    one = partly(share).astype(np.float64)
    if not one.any():
        return np.zeros(len(power))
    above = np.maximum(power - floor_w, 0.0)
    n, first, second = (_running(of, around) for of in (one, one * above, one * above**2))
    n = np.maximum(n, 1)
    spread2 = np.where(n >= _LIKE, second / n - (first / n) ** 2, 0.0)
    found: Floats = np.maximum(hidden_w2(power, share, floor_w, full_w) - np.maximum(spread2, 0.0), 0.0)
    return found


def _running(values: Floats, around: int) -> Floats:
    """The sum of each value and those `around` it on either side."""
    around = min(around, len(values) - 1)
    upto = np.concatenate([np.zeros(around + 1), np.cumsum(values)])
    found: Floats = np.concatenate([upto[2 * around + 1 :], np.full(around, upto[-1])]) - upto[: len(values)]
    return found
